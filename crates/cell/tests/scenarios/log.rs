//! **The op log.** Everything that changes a cell is a record of its log, made in the same event and before the reply. The
//! log's image lies in frames that outlive the process; the device gets it when a client asks for durability.
//!
//! ```text
//! idle -> settling: data that its records name is still being written
//!      -> data flush, if any such data was -> log written through: durable up to there
//! ```
//!
//! A commit is shared by all who wait for it: those who come while one is under way share the next. When the log is
//! half full the cell asks for a checkpoint, which frees it; when it is full, what changes anything waits for that.
//!
//! The code: `oplog.rs`, `step.rs`.

use std::time::Duration;

use warren_base::{ClientId, Errno};
use warren_proto::{Handle, Position, Reply, Request, SetAttr};

use crate::bytes::page;
use crate::client::{Call, fsync, write};
use crate::device::Kind;
use crate::pair::*;

const IO: [&str; 4] = ["reads", "writes", "flushes", "replies"];

fn chmod(handle: Handle, mode: u16) -> Request {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    Request::SetAttr { ino: handle.ino, handle: None, set }
}

/// Fills the log, with checkpoints withheld. Returns a request that waits for room.
fn fill(pair: &mut Pair, client: ClientId, handle: Handle) -> Call {
    pair.supervisor.grants = false;
    loop {
        let call = pair.ask(client, chmod(handle, 0o600));
        if !pair.is_answered(call) {
            return call;
        }
    }
}

#[test]
fn a_change_is_answered_before_the_device_hears_of_it() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.trace(&[]);
    pair.file(client, IN_A, "file", b"text");
    assert_eq!(pair.trace(&IO), ["A replies", "A replies"]);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.lookup(client, IN_A, "file"), None, "it was not synced");
}

#[test]
fn fsync_of_a_few_pages_is_one_write() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1));
    pair.trace(&[]);
    pair.fsync(client, file);
    assert_eq!(pair.trace(&IO), ["A writes 2 log", "A replies"], "the page is in the log");
    pair.fsync(client, file);
    assert_eq!(pair.trace(&IO), ["A replies"], "there is nothing new");
}

#[test]
fn fsync_of_many_pages_writes_them_flushes_and_then_writes_the_log() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.trace(&[]);
    pair.fsync(client, file);
    let order = ["A writes 20 data", "A flushes", "A writes 1 log", "A replies"];
    assert_eq!(pair.trace(&IO), order, "a record must not name data that is not there");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(20));
}

#[test]
fn fsync_is_answered_when_the_log_is_on_the_device() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"text");
    pair.device.hold(Kind::Log);
    let call = pair.ask(client, fsync(file));
    assert!(!pair.is_answered(call));
    pair.write(client, file, 0, b"more");
    pair.release_io();
    assert_eq!(pair.answer(call), Some(Ok(Reply::Done)));
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), b"text", "what came later was not synced");
}

#[test]
fn three_writers_share_a_commit() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let files = ["one", "two", "three", "four"].map(|name| pair.file(client, IN_A, name, b"text"));
    pair.trace(&[]);
    pair.device.hold(Kind::Log);
    let first = pair.ask(client, fsync(files[0]));
    let others = [1, 2, 3].map(|at| pair.ask(client, fsync(files[at])));
    assert_eq!(pair.trace(&["writes"]).len(), 1, "the first is under way");
    pair.release_io();
    assert_eq!(pair.answer(first), Some(Ok(Reply::Done)));
    assert!(others.iter().all(|call| pair.answer(*call) == Some(Ok(Reply::Done))));
    let io = pair.trace(&IO);
    assert_eq!(io.iter().filter(|line| line.contains("writes")).count(), 1, "{io:?}");
}

/// Three writers, of whom the first has its commit alone. It ends 100 us after the start, and the next may begin.
fn a_crowd() -> (Pair, ClientId, [Handle; 3], [Call; 3]) {
    let mut pair = Pair::alone();
    let client = pair.client();
    let files = ["one", "two", "three"].map(|name| pair.file(client, IN_A, name, b"text"));
    pair.io_takes = Duration::from_micros(100);
    let calls = files.map(|file| pair.post(client, fsync(file), &[]));
    pair.trace(&[]);
    pair.drive_until(|pair| pair.is_answered(calls[0]));
    assert_eq!(pair.trace(&["writes"]).len(), 1);
    (pair, client, files, calls)
}

#[test]
fn a_commit_waits_a_little_for_those_who_were_there_at_the_last() {
    let (mut pair, client, files, calls) = a_crowd();
    pair.post(client, write(files[0], Position::At(0)), b"more");
    let next = pair.ask(client, fsync(files[0]));
    assert!(calls.iter().all(|call| pair.is_answered(*call)) && pair.is_answered(next));
    assert_eq!(pair.trace(&["writes"]).len(), 1, "it is for all three");
}

#[test]
fn a_commit_waits_no_longer_than_half_of_what_the_last_took() {
    let (mut pair, _, _, calls) = a_crowd();
    let begun = pair.now;
    pair.drive_until(|pair| pair.is_answered(calls[2]));
    assert_eq!(pair.now - begun, Duration::from_micros(50 + 100));
}

#[test]
fn all_who_waited_for_a_commit_that_fails_hear_of_it() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let [one, two] = ["one", "two"].map(|name| pair.file(client, IN_A, name, b"text"));
    pair.supervisor.grants = false;
    pair.device.fail(Kind::Log, Errno::EIO);
    let calls = [one, two].map(|file| pair.post(client, fsync(file), &[]));
    pair.drive();
    assert_eq!(calls.map(|call| pair.answer(call)), [const { Some(Err(Errno::EIO)) }; 2]);
    // What is in the log may not be there. A checkpoint writes everything anew, and the next fsync waits for it.
    let next = pair.ask(client, fsync(one));
    assert!(!pair.is_answered(next));
    pair.grant_checkpoints();
    assert_eq!(pair.answer(next), Some(Ok(Reply::Done)));
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "two"), b"text");
}

#[test]
fn a_flush_that_fails_makes_the_pages_dirty_again() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(5).repeat(20));
    pair.device.fail(Kind::Flush, Errno::EIO);
    let call = pair.ask(client, fsync(file));
    assert_eq!(pair.answer(call), Some(Err(Errno::EIO)));
    assert!(!pair.trace(&["data"]).is_empty());
    // The device has lost them, and the checkpoint has written them again.
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(5).repeat(20));
}

#[test]
fn a_log_that_is_half_full_asks_for_a_checkpoint() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.trace(&[]);
    let made = (0..).take_while(|_| {
        assert!(pair.call(client, chmod(file, 0o600)).is_ok());
        !pair.trace(&["gets Switched"]).iter().any(|line| line == "A gets Switched")
    });
    assert!(made.count() > 100, "not for each change");
    assert!(pair.call(client, chmod(file, 0o644)).is_ok());
    assert!(pair.trace(&["WantCheckpoint"]).is_empty(), "it is empty again");
}

#[test]
fn writers_wait_for_a_full_log_until_a_checkpoint_has_freed_it() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    let waiting = fill(&mut pair, client, file);
    assert!(pair.supervisor.is_wanted);
    let looks = pair.attr(client, file.ino);
    assert_eq!(looks.mode, 0o600, "reads do not wait");
    let second = pair.ask(client, chmod(file, 0o640));
    assert!(!pair.is_answered(second));
    pair.grant_checkpoints();
    assert!([waiting, second].iter().all(|call| pair.answer(*call).is_some_and(|a| a.is_ok())));
    assert_eq!(pair.attr(client, file.ino).mode, 0o640, "in their order");
}

#[test]
fn fsync_of_a_directory_makes_its_names_durable() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.create(client, IN_A, "file");
    let dir = pair.open_as(client, IN_A, warren_proto::AccessMode::READ);
    pair.fsync(client, dir);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_A), ["file"]);
}
