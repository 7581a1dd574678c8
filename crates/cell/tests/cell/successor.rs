//! What a log has room for, and what a successor finds in it.

use warren_base::Errno;
use warren_proto::{
    AccessMode, Answer, ByteRange, Handle, LockFlavour, LockOwner, LockSpec, LockType, Reply,
    Request,
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
    match bench.call(Request::Open { ino: FILE, access: AccessMode::READ }) {
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
