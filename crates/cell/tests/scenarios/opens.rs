//! **Open files and the locks on them.** The cell of an inode knows who has it open: so a file without a name lives until it
//! is closed, wherever its openers are. The locks of `fcntl` and `flock` are there, too.
//!
//! A lock that cannot be had is refused, or its request waits; one that waits is no live task, because those who give
//! locks back must not find the tasks taken by those who wait. It can be interrupted until it has the lock.
//!
//! The code: `open.rs`, `filelock.rs`, and in `request.rs` how they meet.

use warren_base::{ClientId, Errno};
use warren_proto::{
    Answer, ByteRange, Handle, LockFlavour, LockOwner, LockSpec, LockType, Reply, Request,
};

use crate::bytes::page;
use crate::client::Call;
use crate::pair::*;

const EXCLUSIVE: LockType = LockType::Exclusive;
const SHARED: LockType = LockType::Shared;
const UNLOCK: LockType = LockType::Unlock;

fn record(lock: LockType, (start, end): (u64, u64)) -> LockSpec {
    let range = ByteRange { start, end };
    LockSpec { flavour: LockFlavour::Record, owner: LockOwner(1), lock, range, pid: 9 }
}

fn flock(lock: LockType) -> LockSpec {
    let flavour = LockFlavour::Flock;
    LockSpec { flavour, owner: LockOwner(1), lock, range: ByteRange::ALL, pid: 9 }
}

/// Asks for a lock, and does not wait for it.
fn try_lock(pair: &mut Pair, (client, handle): (ClientId, Handle), spec: LockSpec) -> Answer {
    pair.call(client, Request::Lock { handle, spec, wait: false })
}

fn wait_for(pair: &mut Pair, (client, handle): (ClientId, Handle), spec: LockSpec) -> Call {
    pair.ask(client, Request::Lock { handle, spec, wait: true })
}

/// A file that three clients have open.
fn openers(pair: &mut Pair) -> [(ClientId, Handle); 3] {
    let first = pair.client();
    let file = pair.create(first, IN_A, "file");
    let [second, third] = [(); 2].map(|()| pair.client());
    [(first, file), (second, pair.open(second, file.ino)), (third, pair.open(third, file.ino))]
}

#[test]
fn a_file_without_a_name_lives_until_it_is_closed() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(7));
    pair.unlink(client, IN_A, "file");
    assert_eq!(pair.lookup(client, IN_A, "file"), None);
    assert_eq!(pair.attr(client, file.ino).nlink, 0);
    pair.write(client, file, 0, b"still here");
    assert_eq!(pair.read(client, file, 0, 10), b"still here");
    pair.close(client, file);
    let look = Request::GetAttr { ino: file.ino };
    assert_eq!(pair.call(client, look), Err(Errno::ESTALE));
}

#[test]
fn a_file_that_two_have_open_lives_until_the_second_closes_it() {
    let mut pair = Pair::alone();
    let [(first, own), (second, others), _] = openers(&mut pair);
    pair.write(first, own, 0, b"text");
    pair.unlink(first, IN_A, "file");
    pair.close(first, own);
    assert_eq!(pair.read(second, others, 0, 4), b"text");
}

#[test]
fn locks_that_overlap_exclude_each_other() {
    let mut pair = Pair::alone();
    let [one, other, _] = openers(&mut pair);
    assert_eq!(try_lock(&mut pair, one, record(EXCLUSIVE, (0, 9))), Ok(Reply::Done));
    assert_eq!(try_lock(&mut pair, other, record(SHARED, (9, 20))), Err(Errno::EAGAIN));
    assert_eq!(try_lock(&mut pair, other, record(EXCLUSIVE, (10, 20))), Ok(Reply::Done));
    let spec = record(SHARED, (0, 20));
    let test = Request::TestLock { handle: other.1, spec };
    let holder = Some(record(EXCLUSIVE, (0, 9)));
    assert_eq!(pair.call(other.0, test), Ok(Reply::LockHolder(holder)));
    assert_eq!(try_lock(&mut pair, other, flock(EXCLUSIVE)), Ok(Reply::Done), "the other flavour");
}

#[test]
fn requests_that_wait_get_the_lock_in_the_order_in_which_they_came() {
    let mut pair = Pair::alone();
    let [first, second, third] = openers(&mut pair);
    assert_eq!(try_lock(&mut pair, first, flock(EXCLUSIVE)), Ok(Reply::Done));
    let waiting = [second, third].map(|who| wait_for(&mut pair, who, flock(EXCLUSIVE)));
    assert_eq!((pair.cell(A).live_tasks(), pair.cell(A).lock_waiters()), (0, 2));
    assert_eq!(try_lock(&mut pair, first, flock(UNLOCK)), Ok(Reply::Done));
    assert_eq!(waiting.map(|call| pair.is_answered(call)), [true, false]);
    assert_eq!(try_lock(&mut pair, second, flock(UNLOCK)), Ok(Reply::Done));
    assert_eq!(pair.answer(waiting[1]), Some(Ok(Reply::Done)));
}

#[test]
fn shared_locks_are_granted_together() {
    let mut pair = Pair::alone();
    let [writer, one, other] = openers(&mut pair);
    assert_eq!(try_lock(&mut pair, writer, flock(EXCLUSIVE)), Ok(Reply::Done));
    let readers = [one, other].map(|who| wait_for(&mut pair, who, flock(SHARED)));
    assert_eq!(readers.map(|call| pair.is_answered(call)), [false, false]);
    assert_eq!(try_lock(&mut pair, writer, flock(UNLOCK)), Ok(Reply::Done));
    assert_eq!(readers.map(|call| pair.answer(call)), [const { Some(Ok(Reply::Done)) }; 2]);
}

#[test]
fn a_request_that_waits_can_be_interrupted() {
    let mut pair = Pair::alone();
    let [holder, tired, patient] = openers(&mut pair);
    assert_eq!(try_lock(&mut pair, holder, flock(EXCLUSIVE)), Ok(Reply::Done));
    let given_up = wait_for(&mut pair, tired, flock(EXCLUSIVE));
    let waiting = wait_for(&mut pair, patient, flock(EXCLUSIVE));
    let cancel = pair.cancel(tired.0, given_up);
    assert_eq!(pair.answer(cancel), Some(Ok(Reply::Done)));
    assert_eq!(pair.answer(given_up), Some(Err(Errno::EINTR)));
    assert_eq!(try_lock(&mut pair, holder, flock(UNLOCK)), Ok(Reply::Done));
    assert_eq!(pair.answer(waiting), Some(Ok(Reply::Done)), "it does not wait for the other");
    let late = pair.cancel(patient.0, waiting);
    assert_eq!(pair.answer(late), Some(Ok(Reply::Done)), "too late, which is no error");
    assert_eq!(try_lock(&mut pair, tired, flock(SHARED)), Err(Errno::EAGAIN));
}

#[test]
fn two_that_would_wait_for_each_other_are_told() {
    let mut pair = Pair::alone();
    let [one, other, _] = openers(&mut pair);
    let (left, right) = ((0, 9), (10, 19));
    assert_eq!(try_lock(&mut pair, one, record(EXCLUSIVE, left)), Ok(Reply::Done));
    assert_eq!(try_lock(&mut pair, other, record(EXCLUSIVE, right)), Ok(Reply::Done));
    let waits = wait_for(&mut pair, one, record(EXCLUSIVE, right));
    let circle = wait_for(&mut pair, other, record(EXCLUSIVE, left));
    assert_eq!(pair.answer(circle), Some(Err(Errno::EDEADLK)));
    assert!(!pair.is_answered(waits));
    assert_eq!(try_lock(&mut pair, other, record(UNLOCK, right)), Ok(Reply::Done));
    assert_eq!(pair.answer(waits), Some(Ok(Reply::Done)));
}

#[test]
fn the_locks_of_a_client_that_hangs_up_go_to_those_who_wait() {
    let mut pair = Pair::alone();
    let [gone, other, _] = openers(&mut pair);
    assert_eq!(try_lock(&mut pair, gone, record(EXCLUSIVE, (0, 9))), Ok(Reply::Done));
    let waits = wait_for(&mut pair, other, record(EXCLUSIVE, (5, 6)));
    assert!(!pair.is_answered(waits));
    pair.hang_up(gone.0);
    assert_eq!(pair.answer(waits), Some(Ok(Reply::Done)));
}
