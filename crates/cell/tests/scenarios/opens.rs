//! **Open files and advisory locks.** The cell of an inode knows which clients have it open. So a
//! file without a name lives until its last close, wherever its clients are. The same cell holds
//! the locks of `fcntl` and `flock` on the file.
//!
//! A request for a lock that conflicts is refused, or it waits. A request that waits is not counted
//! as a live task, because a client that releases a lock must always find room for its request. The
//! wait can be interrupted until the lock is granted.
//!
//! The code: `inode/open.rs`, `inode/lock.rs`, `shard/open.rs`, `shard/filelock.rs`.

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

/// Requests a lock that is refused if it conflicts.
fn try_lock(pair: &mut Pair, (client, handle): (ClientId, Handle), spec: LockSpec) -> Answer {
    pair.call(client, Request::Lock { handle, spec, wait: false })
}

fn wait_for(pair: &mut Pair, (client, handle): (ClientId, Handle), spec: LockSpec) -> Call {
    pair.send(client, Request::Lock { handle, spec, wait: true })
}

/// Three clients that have the same file open.
fn openers(pair: &mut Pair) -> [(ClientId, Handle); 3] {
    let first = pair.client();
    let file = pair.create(first, IN_A, "file");
    let [second, third] = [(); 2].map(|()| pair.client());
    [(first, file), (second, pair.open(second, file.ino)), (third, pair.open(third, file.ino))]
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
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
fn an_unlinked_file_lives_until_its_last_close() {
    let mut pair = Pair::alone();
    let [(first, own), (second, others), _] = openers(&mut pair);
    pair.write(first, own, 0, b"text");
    pair.unlink(first, IN_A, "file");
    pair.close(first, own);
    assert_eq!(pair.read(second, others, 0, 4), b"text");
}

#[test]
fn locks_on_ranges_that_overlap_conflict() {
    let mut pair = Pair::alone();
    let [one, other, _] = openers(&mut pair);
    assert_eq!(try_lock(&mut pair, one, record(EXCLUSIVE, (0, 9))), Ok(Reply::Done));
    assert_eq!(try_lock(&mut pair, other, record(SHARED, (9, 20))), Err(Errno::EAGAIN));
    assert_eq!(try_lock(&mut pair, other, record(EXCLUSIVE, (10, 20))), Ok(Reply::Done));
    let spec = record(SHARED, (0, 20));
    let test = Request::TestLock { handle: other.1, spec };
    let holder = Some(record(EXCLUSIVE, (0, 9)));
    assert_eq!(pair.call(other.0, test), Ok(Reply::LockHolder(holder)));
    assert_eq!(
        try_lock(&mut pair, other, flock(EXCLUSIVE)),
        Ok(Reply::Done),
        "flock and fcntl do not conflict"
    );
}

#[test]
fn requests_that_wait_are_granted_in_their_order() {
    let mut pair = Pair::alone();
    let [first, second, third] = openers(&mut pair);
    assert_eq!(try_lock(&mut pair, first, flock(EXCLUSIVE)), Ok(Reply::Done));
    let waiting = [second, third].map(|opener| wait_for(&mut pair, opener, flock(EXCLUSIVE)));
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
    let readers = [one, other].map(|opener| wait_for(&mut pair, opener, flock(SHARED)));
    assert_eq!(readers.map(|call| pair.is_answered(call)), [false, false]);
    assert_eq!(try_lock(&mut pair, writer, flock(UNLOCK)), Ok(Reply::Done));
    assert_eq!(readers.map(|call| pair.answer(call)), [const { Some(Ok(Reply::Done)) }; 2]);
}

#[test]
fn a_request_that_waits_can_be_interrupted() {
    let mut pair = Pair::alone();
    let [holder, second, third] = openers(&mut pair);
    assert_eq!(try_lock(&mut pair, holder, flock(EXCLUSIVE)), Ok(Reply::Done));
    let interrupted = wait_for(&mut pair, second, flock(EXCLUSIVE));
    let waiting = wait_for(&mut pair, third, flock(EXCLUSIVE));
    let cancel = pair.cancel(second.0, interrupted);
    assert_eq!(pair.answer(cancel), Some(Ok(Reply::Done)));
    assert_eq!(pair.answer(interrupted), Some(Err(Errno::EINTR)));
    assert_eq!(try_lock(&mut pair, holder, flock(UNLOCK)), Ok(Reply::Done));
    assert_eq!(
        pair.answer(waiting),
        Some(Ok(Reply::Done)),
        "the interrupted request is not in its way"
    );
    let late = pair.cancel(third.0, waiting);
    assert_eq!(pair.answer(late), Some(Ok(Reply::Done)), "too late is no error");
    assert_eq!(try_lock(&mut pair, second, flock(SHARED)), Err(Errno::EAGAIN));
}

#[test]
fn a_request_that_closes_a_circle_of_waits_is_refused() {
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
fn a_client_that_disconnects_releases_its_locks() {
    let mut pair = Pair::alone();
    let [first, second, _] = openers(&mut pair);
    assert_eq!(try_lock(&mut pair, first, record(EXCLUSIVE, (0, 9))), Ok(Reply::Done));
    let waits = wait_for(&mut pair, second, record(EXCLUSIVE, (5, 6)));
    assert!(!pair.is_answered(waits));
    pair.disconnect(first.0);
    assert_eq!(pair.answer(waits), Some(Ok(Reply::Done)));
}
