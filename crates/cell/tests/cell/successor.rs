//! What a log has room for, and what a successor finds in it.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Errno, Ino, ShardId, TxnId};
use warren_cell::PeerBody;
use warren_pool::PoolMessage;
use warren_proto::{
    AccessMode, Answer, ByteRange, Handle, LockFlavour, LockKey, LockMode, LockOwner, LockSpec,
    LockType, PeerReply, PeerRequest, Position, Reply, Request,
};

use crate::bench::*;

fn spec(flavour: LockFlavour, owner: u64, lock: LockType, range: ByteRange) -> LockSpec {
    LockSpec { flavour, owner: LockOwner(owner), lock, range, pid: 1 }
}

fn flock(owner: u64, lock: LockType, wait: bool) -> Request {
    let spec = spec(LockFlavour::Flock, owner, lock, ByteRange::ALL);
    Request::Lock { ino: FILE, spec, wait }
}

fn record_lock(lock: LockType, start: u64, end: u64) -> Request {
    let spec = spec(LockFlavour::Record, 1, lock, ByteRange { start, end });
    Request::Lock { ino: FILE, spec, wait: false }
}

fn open(bench: &mut Bench) -> Handle {
    let access = AccessMode::READ | AccessMode::WRITE;
    match bench.call(Request::Open { ino: FILE, access }) {
        Ok(Reply::Opened(opened)) => opened.handle,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flock_that_was_given_up_in_vain_is_nobodys_after_a_death() {
    let mut bench = Bench::new(&Image::new(), false);
    bench.grants = false;
    for owner in [1, 2] {
        assert_eq!(bench.call(flock(owner, LockType::Shared, false)), Ok(Reply::Done));
    }
    assert_eq!(bench.ask(flock(3, LockType::Exclusive, true)), None);
    assert_eq!(bench.call(flock(1, LockType::Exclusive, false)), Err(Errno::EAGAIN));
    assert_eq!(bench.call(flock(2, LockType::Unlock, false)), Ok(Reply::Done));
    let answers: Vec<Answer> = std::mem::take(&mut bench.answers).into_values().collect();
    assert_eq!(answers, [Ok(Reply::Done)], "the third has it");
    bench.take_over();
    assert_eq!(bench.call(flock(4, LockType::Shared, false)), Err(Errno::EAGAIN));
    assert_eq!(bench.call(flock(3, LockType::Unlock, false)), Ok(Reply::Done));
    assert_eq!(bench.call(flock(4, LockType::Exclusive, false)), Ok(Reply::Done));
}

#[test]
fn a_flock_that_was_given_up_to_wait_is_nobodys_after_a_death() {
    let mut bench = Bench::new(&Image::new(), false);
    bench.grants = false;
    for owner in [1, 2] {
        assert_eq!(bench.call(flock(owner, LockType::Shared, false)), Ok(Reply::Done));
    }
    assert_eq!(bench.ask(flock(1, LockType::Exclusive, true)), None);
    assert_eq!(bench.call(flock(2, LockType::Exclusive, false)), Ok(Reply::Done));
    bench.take_over();
    assert_eq!(bench.call(flock(3, LockType::Shared, false)), Err(Errno::EAGAIN));
    assert_eq!(bench.call(flock(2, LockType::Unlock, false)), Ok(Reply::Done));
    assert_eq!(bench.call(flock(3, LockType::Exclusive, false)), Ok(Reply::Done));
}

#[test]
fn what_changes_the_session_alone_waits_for_room_in_the_log() {
    let mut bench = Bench::new(&Image::new(), false);
    let handle = open(&mut bench);
    let lock = record_lock(LockType::Exclusive, 0, 9);
    let unlock = record_lock(LockType::Unlock, 0, 9);
    for request in [Request::Seek { handle, position: 7 }, lock, unlock] {
        bench.grants = false;
        while let Some(answer) = bench.ask(request.clone()) {
            assert!(answer.is_ok());
        }
        let look = Request::GetAttr { ino: FILE };
        assert!(bench.call(look).is_ok(), "who only looks does not wait");
        bench.grants = true;
        bench.grant();
        let answers: Vec<Answer> = std::mem::take(&mut bench.answers).into_values().collect();
        assert_eq!(answers, [Ok(Reply::Done)]);
    }
}

#[test]
fn locks_are_not_made_more_by_unlocking() {
    let mut bench = Bench::new(&Image::new(), false);
    let whole = record_lock(LockType::Exclusive, 0, u64::MAX);
    assert_eq!(bench.call(whole.clone()), Ok(Reply::Done));
    let punch = |n: u64| record_lock(LockType::Unlock, 2 * n + 1, 2 * n + 1);
    let mut punched = (0..).map(|n| bench.call(punch(n))).take_while(|answer| answer.is_ok());
    let count = punched.by_ref().count();
    assert!((1000..4096).contains(&count), "{count} locks");
    assert_eq!(bench.call(punch(5000)), Err(Errno::ENOLCK));
    assert_eq!(bench.call(record_lock(LockType::Unlock, 0, 4)), Ok(Reply::Done), "these are fewer");
    bench.grants = false;
    assert_eq!(bench.call(record_lock(LockType::Unlock, 0, u64::MAX)), Ok(Reply::Done));
    assert_eq!(bench.call(whole), Ok(Reply::Done));
}

fn write(handle: Handle, page: u32) -> Request {
    let position = Position::At(u64::from(page) * BLOCK_SIZE as u64);
    Request::Write { handle, position, kill_privileges: false }
}

#[test]
fn a_device_that_fails_takes_no_more_of_the_log_than_there_is() {
    let mut bench = Bench::new(&Image::new(), false);
    let handle = open(&mut bench);
    bench.fails = Some(Errno::ENOSPC);
    // Each lies alone, and wants a record of its own.
    let refused = (0..FRAMES).find(|page| bench.call(write(handle, 2 * page)).is_err());
    assert!(refused.is_some_and(|page| page > FRAMES / 4), "written back at {refused:?}");
    for _ in 0..5 {
        assert_eq!(bench.call(Request::Sync), Err(Errno::ENOSPC));
        assert_eq!(bench.call(Request::Fsync { ino: FILE, data_only: false }), Err(Errno::ENOSPC));
    }
    assert!(bench.call(Request::GetAttr { ino: FILE }).is_ok());
    bench.fails = None;
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    assert!(bench.call(write(handle, 1)).is_ok());
    assert_eq!(bench.call(Request::Fsync { ino: FILE, data_only: false }), Ok(Reply::Done));
}

#[test]
fn nothing_is_durable_any_more_when_the_supervisors_flush_has_failed() {
    let mut bench = Bench::new(&Image::new(), false);
    let handle = open(&mut bench);
    let fsync = Request::Fsync { ino: FILE, data_only: false };
    assert!(bench.call(write(handle, 0)).is_ok());
    assert_eq!(bench.call(fsync.clone()), Ok(Reply::Done));
    bench.broken_device = true;
    assert_eq!(bench.call(Request::Sync), Err(Errno::EIO));
    assert!(bench.call(write(handle, 0)).is_ok());
    assert_eq!(bench.call(fsync), Err(Errno::EIO));
}

/// Takes what room there is in the log, with a checkpoint withheld.
fn fill(bench: &mut Bench) {
    let handle = open(bench);
    bench.grants = false;
    while bench.ask(Request::Seek { handle, position: 7 }).is_some() {}
}

#[test]
fn nothing_is_prepared_for_which_the_log_has_no_room() {
    let mut bench = Bench::new(&Image::new(), true);
    bench.hear(PeerBody::Pool(PoolMessage::Hello));
    bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    fill(&mut bench);
    for seq in 1..1000 {
        let txn = TxnId { cell: PEER, seq };
        let keys = vec![(LockKey::Inode(FILE), LockMode::Write)];
        bench.sent.clear();
        bench.hear(PeerBody::Request(PeerRequest::Prepare { txn, client: CLIENT, keys }));
        let refused = PeerReply::Refused { txn, errno: Errno::EAGAIN };
        assert_eq!(bench.sent, [PeerBody::Reply(refused)]);
    }
}

#[test]
fn what_another_cells_log_has_no_room_for_is_tried_again_after_a_checkpoint() {
    let mut bench = Bench::new(&Image::new(), true);
    bench.hear(PeerBody::Pool(PoolMessage::Hello));
    bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    let prepared = |bench: &mut Bench| {
        let sent = std::mem::take(&mut bench.sent);
        sent.into_iter().find_map(|body| match body {
            PeerBody::Request(PeerRequest::Prepare { txn, .. }) => Some(txn),
            _ => None,
        })
    };
    let there = Ino(u64::from(ShardId(2).0) << 48 | 1);
    bench.grants = false;
    assert_eq!(bench.ask(Request::Link { ino: there, dir: Ino::ROOT, name: name("l") }), None);
    let first = prepared(&mut bench).expect("a part of it lies there");
    let refused = PeerReply::Refused { txn: first, errno: Errno::EAGAIN };
    bench.hear(PeerBody::Reply(refused));
    assert!(bench.sent.contains(&PeerBody::Request(PeerRequest::Abort { txn: first })));
    assert_eq!(prepared(&mut bench), None);
    bench.grant();
    assert!(prepared(&mut bench).is_some_and(|second| second != first));
    assert!(bench.answers.is_empty());
}
