//! **Checkpoints.** The superblock names a new tree of each shard, of all cells at once. The logs
//! before that are free. The supervisor leads:
//!
//! ```text
//! Drain    no transaction over several cells begins -> Drained, when none is left
//! Write    every dirty page and node gets a block: this is the state
//!          -> Written, when all of them are written
//!          flush, superblock -> Switched: freed blocks and logs may be used again
//!                               (or Failed: the last checkpoint counts)
//! ```
//!
//! Requests go on meanwhile. Their changes come after the state that `Write` fixed.
//!
//! The code: `checkpoint.rs`, `phase.rs`, and `crates/supervisor` for the other side.

use warren_base::Errno;
use warren_proto::{
    ByteRange, LockFlavour, LockOwner, LockSpec, LockType, Position, Reply, Request,
};

use crate::bytes::{Bytes, PAGE, page};
use crate::client::{create, fsync, read, rename};
use crate::device::Kind;
use crate::pair::*;

#[test]
fn a_checkpoint_drains_writes_and_switches() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.file(client, IN_A, "file", page(1));
    pair.trace(&[]);
    pair.begin_checkpoint();
    let order = [
        "A receives Drain",
        "A reports Drained",
        "A receives Write",
        "A writes 1 data",
        "A writes 1 data",
        "A reports Written",
        "A receives Switched",
    ];
    assert_eq!(pair.trace(&[""]), order, "a page, and the node of the tree");
    pair.begin_checkpoint();
    assert!(pair.trace(&["writes"]).is_empty(), "nothing has changed since");
}

#[test]
fn sync_makes_all_cells_durable() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.file(client, IN_A, "here", b"one");
    pair.file(client, IN_B, "there", b"two");
    pair.sync(client);
    assert!(pair.trace(&["log"]).is_empty(), "no log was written");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "here"), b"one");
    assert_eq!(pair.content(client, IN_B, "there"), b"two");
}

#[test]
fn files_are_written_during_a_checkpoint() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1));
    pair.device.hold(Kind::Data);
    let sync = pair.send(client, Request::Sync);
    pair.write(client, file, 0, page(2));
    pair.create(client, IN_A, "later");
    assert!(!pair.is_answered(sync));
    pair.release_io();
    assert_eq!(pair.answer(sync), Some(Ok(Reply::Done)));
    assert_eq!(pair.read(client, file, 0, PAGE), page(2));
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1), "as it was when the state was fixed");
    assert_eq!(pair.list(client, IN_A), ["file"]);
}

#[test]
fn fsync_during_a_checkpoint_is_in_the_log_that_follows_it() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.file(client, IN_A, "file", page(1));
    pair.device.hold(Kind::Data);
    let sync = pair.send(client, Request::Sync);
    let later = pair.file(client, IN_A, "later", b"text");
    let fsync = pair.send(client, fsync(later));
    assert!(!pair.is_answered(fsync), "the log names the data that is being written");
    pair.release_io();
    assert_eq!([sync, fsync].map(|call| pair.answer(call)), [const { Some(Ok(Reply::Done)) }; 2]);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "later"), b"text");
}

#[test]
fn only_transactions_over_two_cells_wait_for_a_checkpoint() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.create(client, IN_A, "file");
    pair.device.hold(Kind::Data);
    let sync = pair.send(client, Request::Sync);
    let over_two = pair.send(client, rename((IN_A, "file"), (IN_B, "moved")));
    let at_one = pair.send(client, create(IN_B, "new"));
    assert!(pair.is_answered(at_one) && !pair.is_answered(over_two));
    pair.release_io();
    assert_eq!(pair.answer(sync), Some(Ok(Reply::Done)));
    assert_eq!(pair.answer(over_two), Some(Ok(Reply::Done)));
}

#[test]
fn a_checkpoint_waits_for_the_end_of_transactions() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.create(client, IN_A, "file");
    pair.hold_messages(|body| is_message(body, "Commit"));
    let moved = pair.send(client, rename((IN_A, "file"), (IN_B, "moved")));
    pair.trace(&[]);
    let sync = pair.send(client, Request::Sync);
    assert_eq!(pair.trace(&["Drained", "receives Write"]), ["A reports Drained"]);
    pair.release_messages();
    assert_eq!([moved, sync].map(|call| pair.answer(call)), [const { Some(Ok(Reply::Done)) }; 2]);
}

#[test]
fn after_a_checkpoint_that_failed_the_next_writes_everything() {
    // Without file data, the write of a tree node fails. With file data, the write of the page.
    for bytes in [Bytes(Vec::new()), page(1)] {
        let mut pair = Pair::alone();
        let client = pair.client();
        pair.file(client, IN_A, "file", &bytes);
        pair.device.fail(Kind::Data, Errno::EIO);
        assert_eq!(pair.call(client, Request::Sync), Err(Errno::EIO));
        assert_eq!(pair.content(client, IN_A, "file"), bytes);
        pair.sync(client);
        pair.cut_power();
        let client = pair.client();
        assert_eq!(pair.content(client, IN_A, "file"), bytes);
    }
}

#[test]
fn after_a_failed_flush_of_the_supervisor_changes_are_refused() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1));
    pair.sync(client);
    pair.write(client, file, 0, page(2));
    pair.device.fail(Kind::Flush, Errno::EIO);
    assert_eq!(pair.call(client, Request::Sync), Err(Errno::EIO));
    assert_eq!(pair.call(client, create(IN_A, "new")), Err(Errno::EROFS));
    assert_eq!(pair.call(client, fsync(file)), Err(Errno::EIO), "nothing becomes durable any more");
    let read = pair.send(client, read(file, Position::At(0), PAGE));
    assert_eq!(pair.bytes_of(read), page(2), "reads go on");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1), "as of the last checkpoint");
}

#[test]
fn open_files_and_locks_are_logged_anew_with_a_checkpoint() {
    let mut pair = Pair::alone();
    let (client, other) = (pair.client(), pair.client());
    let file = pair.file(client, IN_A, "file", b"0123456789");
    assert_eq!(pair.call(client, Request::Seek { handle: file, position: 4 }), Ok(Reply::Done));
    let (flavour, owner, lock) = (LockFlavour::Flock, LockOwner(1), LockType::Exclusive);
    let spec = LockSpec { flavour, owner, lock, range: ByteRange::ALL, pid: 1 };
    let lock = |handle| Request::Lock { handle, spec, wait: false };
    assert_eq!(pair.call(client, lock(file)), Ok(Reply::Done));
    pair.sync(client);
    // The successor replays only records that follow the checkpoint.
    pair.replace(A);
    let next = pair.send(client, read(file, Position::Current, 3));
    assert_eq!(pair.bytes_of(next), b"456");
    let others = pair.open(other, file.ino);
    assert_eq!(pair.call(other, lock(others)), Err(Errno::EAGAIN));
}

#[test]
fn a_checkpoint_is_abandoned_when_a_cell_dies_and_the_next_one_counts() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.file(client, IN_A, "file", page(1));
    pair.device.hold(Kind::Data);
    let sync = pair.send(client, Request::Sync);
    pair.lose(B);
    assert!(!pair.is_answered(sync));
    assert_eq!(pair.trace(&["Abandoned"]), ["A receives Abandoned"]);
    pair.release_io();
    pair.start_successor(B);
    assert_eq!(
        pair.answer(sync),
        Some(Ok(Reply::Done)),
        "a checkpoint that was abandoned is no failure"
    );
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1));
}
