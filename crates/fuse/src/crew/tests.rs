use std::sync::mpsc;

use warren_proto::{Reply, StatFs};

use super::*;
use crate::testing::{FakeChannel, Scripted, message};

fn statfs(unique: u64) -> Vec<u8> {
    message(opcode::STATFS, unique, 1, &[])
}

fn start(fleet: Scripted, channel: &Arc<FakeChannel>) -> io::Result<Crew> {
    let ledger = Arc::new(Ledger::create().unwrap());
    Crew::start(Arc::new(fleet), channel.clone(), ledger, FrontOptions::default())
}

fn crew(fleet: Scripted) -> (Arc<FakeChannel>, Crew) {
    let channel = Arc::new(FakeChannel::default());
    let crew = start(fleet, &channel).unwrap();
    (channel, crew)
}

#[test]
fn a_request_that_takes_long_does_not_keep_the_next_from_being_read() {
    let (release, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let fleet = Scripted::new(8, move |_, request| match request {
        Request::GetAttr { .. } => {
            let _ = gate.lock().unwrap().recv();
            Err(Errno::EIO)
        }
        _ => Ok(Reply::StatFs(StatFs::default())),
    });
    let (channel, crew) = crew(fleet);
    // Nothing in a GETATTR says that it will wait: the sentinel has to notice.
    channel.send(message(opcode::GETATTR, 2, 1, &[&[0; 16]]));
    thread::sleep(Duration::from_millis(20));
    for unique in 3..100 {
        channel.send(statfs(unique));
        assert!(channel.reply_to(unique).is_ok());
    }
    assert!(!channel.has_reply(2));
    release.send(()).unwrap();
    assert_eq!(channel.reply_to(2), Err(Errno::EIO));
    crew.stop();
}

#[test]
fn threads_are_bounded_by_slots_and_all_requests_are_answered() {
    let busy = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let (now, peak) = (Arc::clone(&busy), Arc::clone(&most));
    let fleet = Scripted::new(5, move |_, _| {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(2));
        now.fetch_sub(1, Ordering::SeqCst);
        Ok(Reply::StatFs(StatFs::default()))
    });
    let (channel, crew) = crew(fleet);
    (1..=50).for_each(|unique| channel.send(statfs(unique)));
    (1..=50).for_each(|unique| assert!(channel.reply_to(unique).is_ok()));
    let most = most.load(Ordering::SeqCst);
    assert!((2..=4).contains(&most), "{most} at a time");
    crew.stop();
}

#[test]
fn garbage_is_survived() {
    let fleet = Scripted::new(4, |_, _| Ok(Reply::StatFs(StatFs::default())));
    let (channel, crew) = crew(fleet);
    channel.send(vec![1, 2, 3]);
    channel.send(vec![255; 500]);
    channel.send(message(opcode::LOOKUP, 2, 1, &[b"no end"]));
    channel.send(message(opcode::LOOKUP, 3, 1, &[&[b'n'; 300], b"\0"]));
    channel.send(statfs(4));
    assert_eq!(channel.reply_to(2), Err(Errno::EPROTO));
    assert_eq!(channel.reply_to(3), Err(Errno::ENAMETOOLONG));
    assert!(channel.reply_to(4).is_ok());
    crew.stop();
}

#[test]
fn the_end_comes_even_if_a_request_waits_for_ever() {
    let (cancelled, gate) = mpsc::channel::<()>();
    let (cancelled, gate) = (Mutex::new(cancelled), Mutex::new(gate));
    let fleet = Scripted::new(6, move |_, request| match request {
        Request::Lock { wait: false, .. } => Err(Errno::EAGAIN),
        Request::Lock { .. } => {
            let _ = gate.lock().unwrap().recv();
            Err(Errno::EINTR)
        }
        Request::Cancel { .. } => {
            let _ = cancelled.lock().unwrap().send(());
            Ok(Reply::Done)
        }
        _ => Err(Errno::EIO),
    });
    let (channel, crew) = crew(fleet);
    let mut lock = vec![0; 48];
    lock[32..36].copy_from_slice(&libc::F_WRLCK.to_ne_bytes());
    channel.send(message(opcode::SETLKW, 2, 5, &[&lock]));
    thread::sleep(Duration::from_millis(20));
    assert!(!channel.has_reply(2));
    crew.stop();
    assert_eq!(channel.reply_to(2), Err(Errno::EINTR));
}

/// Each of them is tried when it comes, and all every ten milliseconds, but not all whenever another one comes.
#[test]
fn a_crowd_that_waits_for_a_lock_is_tried_at_times() {
    const CROWD: u64 = 300;
    let (attempts, gate) =
        (Arc::new(AtomicU64::new(0)), Arc::new((Mutex::new(false), Condvar::new())));
    let (tried, shut) = (Arc::clone(&attempts), Arc::clone(&gate));
    let fleet = Scripted::new(6, move |_, request| match request {
        Request::Lock { wait: false, .. } => {
            tried.fetch_add(1, Ordering::SeqCst);
            if *shut.0.lock().unwrap() { Ok(Reply::Done) } else { Err(Errno::EAGAIN) }
        }
        Request::Lock { .. } => {
            drop(shut.1.wait_while(shut.0.lock().unwrap(), |is_open| !*is_open).unwrap());
            Ok(Reply::Done)
        }
        _ => Ok(Reply::StatFs(StatFs::default())),
    });
    let (channel, crew) = crew(fleet);
    let mut lock = vec![0; 48];
    lock[32..36].copy_from_slice(&libc::F_WRLCK.to_ne_bytes());
    let begun = Instant::now();
    // After these something is answered, so that all were read.
    (0..CROWD).for_each(|n| channel.send(message(opcode::SETLKW, 2 + 2 * n, 5, &[&lock])));
    channel.send(statfs(1));
    assert!(channel.reply_to(1).is_ok());
    while attempts.load(Ordering::SeqCst) < 3 * CROWD {
        assert!(begun.elapsed() < Duration::from_secs(20), "they are tried again and again");
        thread::sleep(Duration::from_millis(1));
    }
    let (tried, rounds) =
        (attempts.load(Ordering::SeqCst), begun.elapsed().as_millis() as u64 / 10);
    assert!(tried <= CROWD * (3 + rounds), "{tried} attempts in {rounds} rounds");
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    (0..CROWD).for_each(|n| assert!(channel.reply_to(2 + 2 * n).is_ok()));
    crew.stop();
}

#[test]
fn a_cell_that_answers_nothing_does_not_keep_the_end_from_coming() {
    let (held, gate) = mpsc::channel::<()>();
    let (taken, is_taken) = mpsc::channel();
    let ends = Mutex::new((gate, taken));
    // As a cell that a signal has stopped: it answers no `Cancel` either.
    let fleet = Scripted::new(6, move |_, request| match request {
        Request::Lock { wait: false, .. } => Err(Errno::EAGAIN),
        _ => {
            let (gate, taken) = &*ends.lock().unwrap();
            let _ = taken.send(());
            let _ = gate.recv();
            Err(Errno::EIO)
        }
    });
    let (channel, crew) = crew(fleet);
    let mut lock = vec![0; 48];
    lock[32..36].copy_from_slice(&libc::F_WRLCK.to_ne_bytes());
    channel.send(message(opcode::SETLKW, 2, 5, &[&lock]));
    is_taken.recv_timeout(Duration::from_secs(20)).expect("the request waits at the cell");
    let (over, ended) = mpsc::channel();
    thread::spawn(move || {
        crew.stop();
        let _ = over.send(());
    });
    let stopped = ended.recv_timeout(GRACE + Duration::from_secs(5));
    drop(held);
    assert_eq!(stopped, Ok(()));
}

#[test]
fn a_connection_with_too_few_slots_is_refused() {
    let fleet = Scripted::new(2, |_, _| Err(Errno::EIO));
    let channel = Arc::new(FakeChannel::default());
    assert!(start(fleet, &channel).is_err());
}

/// A `WRITE` of five bytes.
fn write(unique: u64) -> Vec<u8> {
    let mut fields = [0; 40];
    fields[16..20].copy_from_slice(&5_u32.to_ne_bytes());
    message(opcode::WRITE, unique, 5, &[&fields, b"hello"])
}

/// A fleet that takes every write, and counts them.
fn writing() -> (Scripted, Arc<AtomicU32>) {
    let writes = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&writes);
    let fleet = Scripted::new(6, move |_, request| match request {
        Request::Write { .. } => {
            let size = u64::from(counted.fetch_add(1, Ordering::SeqCst));
            Ok(Reply::Written { len: 5, size })
        }
        _ => Err(Errno::EIO),
    });
    (fleet, writes)
}

#[test]
fn what_a_dead_front_has_executed_is_answered_and_not_executed_again() {
    let ledger = Arc::new(Ledger::create().unwrap());
    // The first slot that serves.
    let record = ledger.record(SlotNo(1));
    record.attempt(10, 0);
    record.conclude(&Ok(Reply::Written { len: 3, size: 3 }));
    let (fleet, writes) = writing();
    let channel = Arc::new(FakeChannel::default());
    for unique in [10 | UNIQUE_RESEND, 12 | UNIQUE_RESEND, 14] {
        channel.send(write(unique));
    }
    let crew =
        Crew::start(Arc::new(fleet), channel.clone(), ledger, FrontOptions::default()).unwrap();
    let len = |unique| channel.reply_to(unique).unwrap()[0];
    assert_eq!(channel.notices()[0].0, crate::abi::NOTIFY_RESEND);
    assert_eq!(len(10 | UNIQUE_RESEND), 3, "as it was answered");
    assert_eq!(len(12 | UNIQUE_RESEND), 5, "nobody had begun with it");
    assert_eq!(len(14), 5);
    assert_eq!(writes.load(Ordering::SeqCst), 2);
    crew.stop();
}

#[test]
fn what_a_dead_front_had_only_meant_to_do_is_done() {
    let ledger = Arc::new(Ledger::create().unwrap());
    let record = ledger.record(SlotNo(1));
    record.attempt(10, 0);
    let (fleet, writes) = writing();
    let channel = Arc::new(FakeChannel::default());
    // Attempted, but it never got out: the slot's last number is still what it was.
    channel.send(write(10 | UNIQUE_RESEND));
    let crew =
        Crew::start(Arc::new(fleet), channel.clone(), ledger, FrontOptions::default()).unwrap();
    assert_eq!(channel.reply_to(10 | UNIQUE_RESEND).unwrap()[0], 5);
    assert_eq!(writes.load(Ordering::SeqCst), 1);
    crew.stop();
}
