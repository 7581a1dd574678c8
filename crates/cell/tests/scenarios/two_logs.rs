//! **A log that rests on another.** Each message between cells carries how far its sender's log had come. The next record
//! of the receiver names that (`Depends`): what it tells may follow from what the other log says up to there.
//!
//! So who makes a log durable makes durable what it rests on: `fsync` sends `Harden` to the other cell and waits for
//! `Hardened`, which also names what that log rests on in turn. After a power failure each log is cut before the first
//! record that rests on more of another log than there is, until no cut moves: the greatest consistent cut.
//!
//! The code: `oplog.rs` (dependencies), `replay.rs` (the cut).

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{AccessMode, Handle, Reply};

use crate::client::{Call, fsync};
use crate::device::Kind;
use crate::pair::*;

const ALL: [&str; 3] = ["Harden", "log", "replies"];

fn open_directory(pair: &mut Pair, client: ClientId, dir: Ino) -> Handle {
    pair.open_as(client, dir, AccessMode::READ)
}

/// `/a/file` has become `/b/moved`, which neither log says durably. `/a` and `/b` are open.
fn renamed() -> (Pair, ClientId, [Handle; 2]) {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.create(client, IN_A, "file");
    pair.sync(client);
    pair.rename(client, (IN_A, "file"), (IN_B, "moved"));
    let dirs = [IN_A, IN_B].map(|dir| open_directory(&mut pair, client, dir));
    pair.trace(&[]);
    (pair, client, dirs)
}

#[test]
fn fsync_waits_for_the_log_that_its_own_rests_on() {
    let (mut pair, client, [_, dir]) = renamed();
    pair.fsync(client, dir);
    let trace = pair.trace(&ALL);
    let at = |line: &str| trace.iter().position(|at| at == line).expect(line);
    assert!(at("B to A: Harden") < at("A writes 1 log"));
    assert!(at("A writes 1 log") < at("A to B: Hardened"));
    assert!(at("A to B: Hardened") < at("B replies"));
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_B), ["moved"]);
    assert!(pair.list(client, IN_A).is_empty());
}

#[test]
fn fsync_is_not_answered_while_the_other_log_is_not_durable() {
    let (mut pair, client, [_, dir]) = renamed();
    pair.hold_messages(|body| is_request(body, "Harden"));
    let call = pair.ask(client, fsync(dir));
    assert!(!pair.is_answered(call));
    assert_eq!(pair.trace(&["log"]), ["B writes 1 log"], "its own log is written meanwhile");
    pair.release_messages();
    assert_eq!(pair.answer(call), Some(Ok(Reply::Done)));
}

#[test]
fn after_a_power_failure_no_log_tells_what_the_other_has_lost() {
    for (synced, lost) in [(0, "B"), (1, "A")] {
        let (mut pair, client, dirs) = renamed();
        pair.hold_messages(|body| is_request(body, "Harden"));
        let call = pair.ask(client, fsync(dirs[synced]));
        assert!(!pair.is_answered(call));
        pair.cut_power();
        let client = pair.client();
        assert_eq!(pair.list(client, IN_A), ["file"], "without the log of {lost}");
        assert!(pair.list(client, IN_B).is_empty(), "without the log of {lost}");
    }
}

#[test]
fn what_rests_on_nothing_is_not_cut() {
    let (mut pair, client, [dir, _]) = renamed();
    // The record of the rename at A rests on B's log; what A did before does not.
    pair.cut_power();
    let _ = (client, dir);
    let client = pair.client();
    let first = pair.create(client, IN_A, "first");
    pair.rename(client, (IN_A, "file"), (IN_B, "moved"));
    pair.hold_messages(|body| is_request(body, "Harden"));
    pair.ask(client, fsync(first));
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_A), ["file", "first"]);
}

#[test]
fn a_log_that_cannot_be_made_durable_fails_those_that_rest_on_it() {
    let (mut pair, client, [_, dir]) = renamed();
    pair.hold_messages(|body| is_request(body, "Harden"));
    let call = pair.ask(client, fsync(dir));
    pair.device.fail(Kind::Log, Errno::EIO);
    pair.release_messages();
    assert_eq!(pair.answer(call), Some(Err(Errno::EIO)));
    // A checkpoint has made good what the log of A may have lost.
    pair.fsync(client, dir);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_B), ["moved"]);
}

#[test]
fn what_a_checkpoint_made_durable_need_not_be_asked_for() {
    let (mut pair, client, [_, dir]) = renamed();
    pair.sync(client);
    pair.trace(&[]);
    pair.fsync(client, dir);
    assert!(pair.trace(&["Harden"]).is_empty());
}

#[test]
fn logs_rest_on_each_other_in_chains() {
    let mut pair = Pair::three();
    let client = pair.client();
    pair.create(client, IN_A, "file");
    pair.rename(client, (IN_A, "file"), (IN_B, "file"));
    pair.create(client, IN_B, "another");
    pair.rename(client, (IN_B, "another"), (IN_C, "moved"));
    let dir = open_directory(&mut pair, client, IN_C);
    pair.trace(&[]);
    pair.fsync(client, dir);
    let trace = pair.trace(&["Harden"]);
    let order = ["C to B: Harden", "B to C: Hardened", "C to A: Harden", "A to C: Hardened"];
    let known: Vec<_> = order.iter().filter(|line| trace.iter().any(|at| at == *line)).collect();
    assert_eq!(known.len(), order.len(), "C has heard of the log of A from B: {trace:?}");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(
        [IN_A, IN_B, IN_C].map(|dir| pair.list(client, dir)),
        [vec![], vec!["file".to_string()], vec!["moved".to_string()],]
    );
}

#[test]
fn many_calls_ask_the_other_log_once() {
    let (mut pair, client, [_, dir]) = renamed();
    pair.hold_messages(|body| is_request(body, "Harden"));
    let calls: [Call; 3] = [(); 3].map(|()| pair.ask(client, fsync(dir)));
    assert_eq!(pair.trace(&["Harden"]), ["B to A: Harden"]);
    pair.release_messages();
    assert!(calls.iter().all(|call| pair.answer(*call) == Some(Ok(Reply::Done))));
}
