use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Condvar, Mutex, mpsc};

use warren_proto::{Reply, StatFs};

use super::*;
use crate::abi::UNIQUE_RESEND;
use crate::testing::{FakeChannel, ScriptedFleet, message, state_with_open};

fn statfs(unique: u64) -> Vec<u8> {
    message(opcode::STATFS, unique, 1, &[])
}

fn start(fleet: ScriptedFleet, channel: &Arc<FakeChannel>) -> io::Result<Workers> {
    let state = state_with_open();
    Workers::start(Arc::new(fleet), channel.clone(), state, FrontOptions::default())
}

fn workers(fleet: ScriptedFleet) -> (Arc<FakeChannel>, Workers) {
    let channel = Arc::new(FakeChannel::default());
    let workers = start(fleet, &channel).unwrap();
    (channel, workers)
}

#[test]
fn messages_are_read_while_a_request_takes_long() {
    let (release, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let fleet = ScriptedFleet::new(8, move |_, request| match request {
        Request::GetAttr { .. } => {
            let _ = gate.lock().unwrap().recv();
            Err(Errno::EIO)
        }
        _ => Ok(Reply::StatFs(StatFs::default())),
    });
    let (channel, workers) = workers(fleet);
    // A GETATTR is not known to wait, so that the monitor has to pass the token.
    channel.send(message(opcode::GETATTR, 2, 1, &[&[0; 16]]));
    thread::sleep(Duration::from_millis(20));
    for unique in 3..100 {
        channel.send(statfs(unique));
        assert!(channel.reply_to(unique).is_ok());
    }
    assert!(!channel.has_reply(2));
    release.send(()).unwrap();
    assert_eq!(channel.reply_to(2), Err(Errno::EIO));
    workers.stop();
}

#[test]
fn threads_are_bounded_by_slots_and_all_requests_are_answered() {
    let busy = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let (now, peak) = (Arc::clone(&busy), Arc::clone(&most));
    let fleet = ScriptedFleet::new(5, move |_, _| {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(2));
        now.fetch_sub(1, Ordering::SeqCst);
        Ok(Reply::StatFs(StatFs::default()))
    });
    let (channel, workers) = workers(fleet);
    (1..=50).for_each(|unique| channel.send(statfs(unique)));
    (1..=50).for_each(|unique| assert!(channel.reply_to(unique).is_ok()));
    let most = most.load(Ordering::SeqCst);
    assert!((2..=4).contains(&most), "{most} at a time");
    workers.stop();
}

#[test]
fn malformed_messages_are_answered_or_ignored() {
    let fleet = ScriptedFleet::new(4, |_, _| Ok(Reply::StatFs(StatFs::default())));
    let (channel, workers) = workers(fleet);
    channel.send(vec![1, 2, 3]);
    channel.send(vec![255; 500]);
    channel.send(message(opcode::LOOKUP, 2, 1, &[b"no end"]));
    channel.send(message(opcode::LOOKUP, 3, 1, &[&[b'n'; 300], b"\0"]));
    channel.send(statfs(4));
    assert_eq!(channel.reply_to(2), Err(Errno::EPROTO));
    assert_eq!(channel.reply_to(3), Err(Errno::ENAMETOOLONG));
    assert!(channel.reply_to(4).is_ok());
    workers.stop();
}

#[test]
fn stopping_cancels_a_request_that_waits_for_ever() {
    let (cancelled, gate) = mpsc::channel::<()>();
    let (cancelled, gate) = (Mutex::new(cancelled), Mutex::new(gate));
    let fleet = ScriptedFleet::new(6, move |_, request| match request {
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
    let (channel, workers) = workers(fleet);
    let mut lock = vec![0; 48];
    lock[32..36].copy_from_slice(&libc::F_WRLCK.to_ne_bytes());
    channel.send(message(opcode::SETLKW, 2, 5, &[&lock]));
    thread::sleep(Duration::from_millis(20));
    assert!(!channel.has_reply(2));
    workers.stop();
    assert_eq!(channel.reply_to(2), Err(Errno::EINTR));
}

/// A deferred lock is tried when it arrives, and all are tried every ten milliseconds. They are not
/// all tried at every arrival.
#[test]
fn deferred_locks_are_retried_in_rounds() {
    const LOCKS: u64 = 300;
    let (attempts, gate) =
        (Arc::new(AtomicU64::new(0)), Arc::new((Mutex::new(false), Condvar::new())));
    let (tried, shut) = (Arc::clone(&attempts), Arc::clone(&gate));
    let fleet = ScriptedFleet::new(6, move |_, request| match request {
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
    let (channel, workers) = workers(fleet);
    let mut lock = vec![0; 48];
    lock[32..36].copy_from_slice(&libc::F_WRLCK.to_ne_bytes());
    let begun = Instant::now();
    // The reply to a later request shows that all of them were read.
    (0..LOCKS).for_each(|n| channel.send(message(opcode::SETLKW, 2 + 2 * n, 5, &[&lock])));
    channel.send(statfs(1));
    assert!(channel.reply_to(1).is_ok());
    while attempts.load(Ordering::SeqCst) < 3 * LOCKS {
        assert!(begun.elapsed() < Duration::from_secs(20), "deferred locks are not retried");
        thread::sleep(Duration::from_millis(1));
    }
    let (tried, rounds) =
        (attempts.load(Ordering::SeqCst), begun.elapsed().as_millis() as u64 / 10);
    assert!(tried <= LOCKS * (3 + rounds), "{tried} attempts in {rounds} rounds");
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    (0..LOCKS).for_each(|n| assert!(channel.reply_to(2 + 2 * n).is_ok()));
    workers.stop();
}

#[test]
fn workers_stop_although_a_cell_does_not_answer() {
    let (open_gate, gate) = mpsc::channel::<()>();
    let (received, is_received) = mpsc::channel();
    let ends = Mutex::new((gate, received));
    // Like a cell that a signal has stopped, it does not answer a `Cancel` either.
    let fleet = ScriptedFleet::new(6, move |_, request| match request {
        Request::Lock { wait: false, .. } => Err(Errno::EAGAIN),
        _ => {
            let (gate, received) = &*ends.lock().unwrap();
            let _ = received.send(());
            let _ = gate.recv();
            Err(Errno::EIO)
        }
    });
    let (channel, workers) = workers(fleet);
    let mut lock = vec![0; 48];
    lock[32..36].copy_from_slice(&libc::F_WRLCK.to_ne_bytes());
    channel.send(message(opcode::SETLKW, 2, 5, &[&lock]));
    is_received.recv_timeout(Duration::from_secs(20)).expect("the request waits at the cell");
    let (over, ended) = mpsc::channel();
    thread::spawn(move || {
        workers.stop();
        let _ = over.send(());
    });
    let stopped = ended.recv_timeout(STOP_WAIT + Duration::from_secs(5));
    drop(open_gate);
    assert_eq!(stopped, Ok(()));
}

#[test]
fn a_connection_with_too_few_slots_is_refused() {
    let fleet = ScriptedFleet::new(2, |_, _| Err(Errno::EIO));
    let channel = Arc::new(FakeChannel::default());
    assert!(start(fleet, &channel).is_err());
}

/// A `WRITE` of five bytes.
fn write(unique: u64) -> Vec<u8> {
    let mut fields = [0; 40];
    fields[16..20].copy_from_slice(&5_u32.to_ne_bytes());
    message(opcode::WRITE, unique, 5, &[&fields, b"hello"])
}

/// A fleet that executes every write, and the number of writes.
fn writing() -> (ScriptedFleet, Arc<AtomicU32>) {
    let writes = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&writes);
    let fleet = ScriptedFleet::new(6, move |_, request| match request {
        Request::Write { .. } => {
            let size = u64::from(counted.fetch_add(1, Ordering::SeqCst));
            Ok(Reply::Written { len: 5, size })
        }
        _ => Err(Errno::EIO),
    });
    (fleet, writes)
}

#[test]
fn a_step_of_a_dead_front_is_replayed_and_not_sent_again() {
    let state = state_with_open();
    // The slot of the first worker.
    let record = state.record(SlotNo(1));
    record.begin_step(10, 0);
    record.end_step(&Ok(Reply::Written { len: 3, size: 3 }));
    let (fleet, writes) = writing();
    let channel = Arc::new(FakeChannel::default());
    for unique in [10 | UNIQUE_RESEND, 12 | UNIQUE_RESEND, 14] {
        channel.send(write(unique));
    }
    let workers =
        Workers::start(Arc::new(fleet), channel.clone(), state, FrontOptions::default()).unwrap();
    let len = |unique| channel.reply_to(unique).unwrap()[0];
    assert_eq!(channel.notices()[0].0, crate::abi::NOTIFY_RESEND);
    assert_eq!(len(10 | UNIQUE_RESEND), 3, "the recorded answer");
    assert_eq!(len(12 | UNIQUE_RESEND), 5, "no step was recorded");
    assert_eq!(len(14), 5);
    assert_eq!(writes.load(Ordering::SeqCst), 2);
    workers.stop();
}

#[test]
fn a_step_that_a_dead_front_did_not_send_is_sent() {
    let state = state_with_open();
    let record = state.record(SlotNo(1));
    record.begin_step(10, 0);
    let (fleet, writes) = writing();
    let channel = Arc::new(FakeChannel::default());
    // The step has begun, but the slot's sequence number shows that it was not sent.
    channel.send(write(10 | UNIQUE_RESEND));
    let workers =
        Workers::start(Arc::new(fleet), channel.clone(), state, FrontOptions::default()).unwrap();
    assert_eq!(channel.reply_to(10 | UNIQUE_RESEND).unwrap()[0], 5);
    assert_eq!(writes.load(Ordering::SeqCst), 1);
    workers.stop();
}
