//! **The op log.** Every change of a cell is a record of its log. The record is made before the
//! reply. The image of the log lies in frames that outlive the process. The device receives it with
//! an `fsync`.
//!
//! ```text
//! idle -> settling: data that its records name is still being written
//!      -> data flush, if such data was written -> log written through: durable up to there
//! ```
//!
//! All requests that wait share a commit. Requests that arrive during a commit share the next one.
//! A log that is half full requests a checkpoint, which frees it. While the log is full, changes
//! wait.
//!
//! The code: `log.rs`, `log/commit.rs`, `durable.rs`, `apply.rs`.

use std::time::Duration;

use warren_base::{ClientId, Errno};
use warren_proto::{AccessMode, Handle, Position, Reply, Request, SetAttr};

use crate::bytes::page;
use crate::client::{Call, fsync, write};
use crate::device::Kind;
use crate::pair::*;

const IO: [&str; 4] = ["reads", "writes", "flushes", "replies"];

fn chmod(handle: Handle, mode: u16) -> Request {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    Request::SetAttr { ino: handle.ino, handle: None, set }
}

/// Changes the file until this holds. Returns how many changes were answered, and the last one.
fn chmod_until(
    pair: &mut Pair,
    (client, file): (ClientId, Handle),
    holds: impl Fn(&Pair, Call) -> bool,
) -> (usize, Call) {
    let change = |pair: &mut Pair| pair.send(client, chmod(file, 0o600));
    let mut last = change(pair);
    let mut answered = 0;
    while !holds(pair, last) {
        answered += 1;
        last = change(pair);
    }
    (answered, last)
}

#[test]
fn a_change_is_answered_before_anything_is_written() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.trace(&[]);
    pair.file(client, IN_A, "file", b"text");
    assert_eq!(pair.trace(&IO), ["A replies", "A replies"]);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.lookup(client, IN_A, "file"), None, "it was not durable");
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
    assert_eq!(pair.trace(&IO), ["A replies"], "nothing has changed");
}

#[test]
fn fsync_of_many_pages_writes_them_flushes_and_then_writes_the_log() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.trace(&[]);
    pair.fsync(client, file);
    let order = ["A writes 20 data", "A flushes", "A writes 1 log", "A replies"];
    assert_eq!(pair.trace(&IO), order, "no record names data that is not durable");
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
    let call = pair.send(client, fsync(file));
    assert!(!pair.is_answered(call));
    pair.write(client, file, 0, b"more");
    pair.release_io();
    assert_eq!(pair.answer(call), Some(Ok(Reply::Done)));
    pair.cut_power();
    let client = pair.client();
    assert_eq!(
        pair.content(client, IN_A, "file"),
        b"text",
        "the second write came after the fsync"
    );
}

#[test]
fn three_writers_share_a_commit() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let files = ["one", "two", "three", "four"].map(|name| pair.file(client, IN_A, name, b"text"));
    pair.trace(&[]);
    pair.device.hold(Kind::Log);
    let first = pair.send(client, fsync(files[0]));
    let others = [1, 2, 3].map(|at| pair.send(client, fsync(files[at])));
    assert_eq!(pair.trace(&["writes"]).len(), 1, "the commit of the first has begun");
    pair.release_io();
    assert_eq!(pair.answer(first), Some(Ok(Reply::Done)));
    assert!(others.iter().all(|call| pair.answer(*call) == Some(Ok(Reply::Done))));
    let io = pair.trace(&IO);
    assert_eq!(io.iter().filter(|line| line.contains("writes")).count(), 1, "{io:?}");
}

/// Three writers. The first has a commit alone, which has taken 100 us and is over.
fn three_writers() -> (Pair, ClientId, [Handle; 3], [Call; 3]) {
    let mut pair = Pair::alone();
    let client = pair.client();
    let files = ["one", "two", "three"].map(|name| pair.file(client, IN_A, name, b"text"));
    pair.io_takes = Duration::from_micros(100);
    let calls = files.map(|file| pair.submit(client, fsync(file), &[]));
    pair.trace(&[]);
    pair.drive_until(|pair| pair.is_answered(calls[0]));
    assert_eq!(pair.trace(&["writes"]).len(), 1);
    (pair, client, files, calls)
}

#[test]
fn a_commit_waits_a_little_for_the_writers_of_the_last_commit() {
    let (mut pair, client, files, calls) = three_writers();
    pair.submit(client, write(files[0], Position::At(0)), b"more");
    let next = pair.send(client, fsync(files[0]));
    assert!(calls.iter().all(|call| pair.is_answered(*call)) && pair.is_answered(next));
    assert_eq!(pair.trace(&["writes"]).len(), 1, "the three writers share it");
}

#[test]
fn a_commit_waits_at_most_half_of_the_time_of_the_last_commit() {
    let (mut pair, _, _, calls) = three_writers();
    let begun = pair.now;
    pair.drive_until(|pair| pair.is_answered(calls[2]));
    assert_eq!(pair.now - begun, Duration::from_micros(50 + 100));
}

#[test]
fn a_commit_that_fails_fails_all_requests_that_wait_for_it() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let [one, two] = ["one", "two"].map(|name| pair.file(client, IN_A, name, b"text"));
    pair.supervisor.grants = false;
    pair.device.fail(Kind::Log, Errno::EIO);
    let calls = [one, two].map(|file| pair.submit(client, fsync(file), &[]));
    pair.drive();
    assert_eq!(calls.map(|call| pair.answer(call)), [const { Some(Err(Errno::EIO)) }; 2]);
    // The device may have lost the log. A checkpoint writes everything anew, and fsync waits for
    // it.
    let next = pair.send(client, fsync(one));
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
    let call = pair.send(client, fsync(file));
    assert_eq!(pair.answer(call), Some(Err(Errno::EIO)));
    assert!(!pair.trace(&["data"]).is_empty());
    // The device has lost the pages, and a checkpoint has written them again.
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(5).repeat(20));
}

#[test]
fn a_log_that_is_half_full_requests_a_checkpoint() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.supervisor.grants = false;
    let (before, _) = chmod_until(&mut pair, (client, file), |pair, _| pair.supervisor.is_wanted);
    assert!(before > 1000, "{before} changes");
    let (behind, _) = chmod_until(&mut pair, (client, file), |pair, call| !pair.is_answered(call));
    assert!(behind > 100, "{behind} changes while the checkpoint is awaited");
    pair.grant_checkpoints();
    assert!(pair.call(client, chmod(file, 0o644)).is_ok());
    assert!(!pair.supervisor.is_wanted, "the checkpoint has freed the log");
}

#[test]
fn changes_wait_for_a_full_log_until_a_checkpoint_has_freed_it() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.supervisor.grants = false;
    let is_full = |pair: &Pair, call| !pair.is_answered(call);
    let (_, waiting) = chmod_until(&mut pair, (client, file), is_full);
    assert!(pair.supervisor.is_wanted);
    assert_eq!(pair.attr(client, file.ino).mode, 0o600, "reads do not wait");
    let second = pair.send(client, chmod(file, 0o640));
    assert!(!pair.is_answered(second));
    pair.grant_checkpoints();
    assert!([waiting, second].iter().all(|call| pair.answer(*call).is_some_and(|a| a.is_ok())));
    assert_eq!(pair.attr(client, file.ino).mode, 0o640, "the later change is the last");
}

#[test]
fn fsync_of_a_directory_makes_its_names_durable() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.create(client, IN_A, "file");
    let dir = pair.open_as(client, IN_A, AccessMode::READ);
    pair.fsync(client, dir);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_A), ["file"]);
}
