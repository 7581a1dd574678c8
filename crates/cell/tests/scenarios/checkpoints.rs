//! **Checkpoints.** The trees of all shards, of all cells at once, become what the superblock names; the logs before that are
//! free. The supervisor leads:
//!
//! ```text
//! Drain: no new transaction over several cells -> Drained, when none is left
//! Write: every dirty page and node gets a place; this is the state -> all writes done: Written
//! flush, superblock -> Switched: freed blocks and logs may be used again (or Failed: nothing has happened)
//! ```
//!
//! Requests go on all the time: what they change comes after the state that was fixed with `Write`.
//!
//! The code: `checkpoint.rs`, and in `crates/supervisor` the other side.

use warren_base::Errno;
use warren_proto::{
    ByteRange, LockFlavour, LockOwner, LockSpec, LockType, Position, Reply, Request,
};

use crate::bytes::page;
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
        "A gets Drain",
        "A reports Drained",
        "A gets Write",
        "A writes 1 data",
        "A writes 1 data",
        "A reports Written",
        "A gets Switched",
    ];
    assert_eq!(pair.trace(&[""]), order, "a page and the tree's node");
    pair.begin_checkpoint();
    assert!(pair.trace(&["writes"]).is_empty(), "nothing has changed since");
}

#[test]
fn sync_makes_the_files_of_all_cells_durable() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.file(client, IN_A, "here", b"one");
    pair.file(client, IN_B, "there", b"two");
    pair.sync(client);
    assert!(pair.trace(&["log"]).is_empty(), "without the logs");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "here"), b"one");
    assert_eq!(pair.content(client, IN_B, "there"), b"two");
}

#[test]
fn files_are_written_while_a_checkpoint_is() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1));
    pair.device.hold(Kind::Data);
    let sync = pair.ask(client, Request::Sync);
    pair.write(client, file, 0, page(2));
    pair.create(client, IN_A, "later");
    assert!(!pair.is_answered(sync));
    pair.release_io();
    assert_eq!(pair.answer(sync), Some(Ok(Reply::Done)));
    assert_eq!(pair.read(client, file, 0, 4096), page(2));
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1), "the state that was fixed");
    assert_eq!(pair.list(client, IN_A), ["file"]);
}

#[test]
fn what_is_synced_during_a_checkpoint_is_in_the_log_behind_it() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.file(client, IN_A, "file", page(1));
    pair.device.hold(Kind::Data);
    let sync = pair.ask(client, Request::Sync);
    let later = pair.file(client, IN_A, "later", b"text");
    let fsync = pair.ask(client, fsync(later));
    assert!(!pair.is_answered(fsync), "the log names the data that is being written");
    pair.release_io();
    assert_eq!([sync, fsync].map(|call| pair.answer(call)), [const { Some(Ok(Reply::Done)) }; 2]);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "later"), b"text");
}

#[test]
fn transactions_wait_for_a_checkpoint_and_others_do_not() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.create(client, IN_A, "file");
    pair.device.hold(Kind::Data);
    let sync = pair.ask(client, Request::Sync);
    let over_two = pair.ask(client, rename((IN_A, "file"), (IN_B, "moved")));
    let at_one = pair.ask(client, create(IN_B, "new"));
    assert!(pair.is_answered(at_one) && !pair.is_answered(over_two));
    pair.release_io();
    assert_eq!(pair.answer(sync), Some(Ok(Reply::Done)));
    assert_eq!(pair.answer(over_two), Some(Ok(Reply::Done)));
}

#[test]
fn a_checkpoint_waits_for_transactions_that_have_begun() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.create(client, IN_A, "file");
    pair.hold_messages(|body| is_request(body, "Commit"));
    let moved = pair.ask(client, rename((IN_A, "file"), (IN_B, "moved")));
    pair.trace(&[]);
    let sync = pair.ask(client, Request::Sync);
    assert_eq!(pair.trace(&["Drained", "gets Write"]), ["A reports Drained"]);
    pair.release_messages();
    assert_eq!([moved, sync].map(|call| pair.answer(call)), [const { Some(Ok(Reply::Done)) }; 2]);
}

#[test]
fn a_checkpoint_that_cannot_be_written_has_not_happened() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.file(client, IN_A, "file", page(1));
    pair.device.fail(Kind::Data, Errno::EIO);
    assert_eq!(pair.call(client, Request::Sync), Err(Errno::EIO));
    assert_eq!(pair.content(client, IN_A, "file"), page(1));
    pair.create(client, IN_A, "another");
    pair.sync(client);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1), "the next one has written it");
    assert_eq!(pair.list(client, IN_A), ["another", "file"]);
}

#[test]
fn after_a_flush_of_the_supervisor_that_failed_nothing_changes_any_more() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1));
    pair.sync(client);
    pair.write(client, file, 0, page(2));
    pair.device.fail(Kind::Flush, Errno::EIO);
    assert_eq!(pair.call(client, Request::Sync), Err(Errno::EIO));
    assert_eq!(pair.call(client, create(IN_A, "new")), Err(Errno::EROFS));
    assert_eq!(pair.call(client, fsync(file)), Err(Errno::EIO), "it cannot be kept");
    let read = pair.ask(client, read(file, Position::At(0), 4096));
    assert_eq!(pair.bytes_of(read), page(2), "reads go on");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1), "as of the checkpoint before");
}

#[test]
fn what_is_open_and_locked_is_logged_anew_behind_a_checkpoint() {
    let mut pair = Pair::alone();
    let (client, other) = (pair.client(), pair.client());
    let file = pair.file(client, IN_A, "file", b"0123456789");
    assert_eq!(pair.call(client, Request::Seek { handle: file, position: 4 }), Ok(Reply::Done));
    let (flavour, owner, lock) = (LockFlavour::Flock, LockOwner(1), LockType::Exclusive);
    let spec = LockSpec { flavour, owner, lock, range: ByteRange::ALL, pid: 1 };
    let lock = |handle| Request::Lock { handle, spec, wait: false };
    assert_eq!(pair.call(client, lock(file)), Ok(Reply::Done));
    pair.sync(client);
    // The successor replays nothing of what was before the checkpoint.
    pair.replace(A);
    let next = pair.ask(client, read(file, Position::Current, 3));
    assert_eq!(pair.bytes_of(next), b"456");
    let others = pair.open(other, file.ino);
    assert_eq!(pair.call(other, lock(others)), Err(Errno::EAGAIN));
}

#[test]
fn a_checkpoint_that_waits_for_a_cell_that_dies_is_given_up_for_the_next() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.file(client, IN_A, "file", page(1));
    pair.device.hold(Kind::Data);
    let sync = pair.ask(client, Request::Sync);
    pair.lose(B);
    assert!(!pair.is_answered(sync));
    assert_eq!(pair.trace(&["Abandoned"]), ["A gets Abandoned"]);
    pair.release_io();
    pair.succeed(B);
    assert_eq!(pair.answer(sync), Some(Ok(Reply::Done)), "no attempt has failed");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1));
}
