//! **A log that depends on another log.** Each message between cells carries the end of its
//! sender's log. The next record of the receiver names that point (`Depends`), because it may be a
//! consequence of the other log up to there.
//!
//! So an `fsync` must make durable what its own log depends on: the cell sends `Harden` and waits
//! for `Hardened`, which names what that log depends on in turn. After a power failure, each log is
//! cut before the first record that depends on a lost part of another log, until no cut moves. The
//! result is the greatest consistent cut.
//!
//! The code: `log/depend.rs`, `recovery/scan.rs` (the cut).

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{AccessMode, Handle, Reply};

use crate::client::{Call, fsync};
use crate::device::Kind;
use crate::pair::*;

const ALL: [&str; 3] = ["Harden", "log", "replies"];

fn open_directory(pair: &mut Pair, client: ClientId, dir: Ino) -> Handle {
    pair.open_as(client, dir, AccessMode::READ)
}

/// `/a/file` was renamed to `/b/moved`, which is durable in neither log. `/a` and `/b` are open.
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
fn fsync_waits_for_the_log_that_its_own_log_depends_on() {
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
    pair.hold_messages(|body| is_message(body, "Harden"));
    let call = pair.send(client, fsync(dir));
    assert!(!pair.is_answered(call));
    assert_eq!(pair.trace(&["log"]), ["B writes 1 log"], "B writes its own log meanwhile");
    pair.release_messages();
    assert_eq!(pair.answer(call), Some(Ok(Reply::Done)));
}

#[test]
fn after_a_power_failure_logs_are_cut_to_what_is_consistent() {
    for (synced, lost) in [(0, "B"), (1, "A")] {
        let (mut pair, client, dirs) = renamed();
        pair.hold_messages(|body| is_message(body, "Harden"));
        let call = pair.send(client, fsync(dirs[synced]));
        assert!(!pair.is_answered(call));
        pair.cut_power();
        let client = pair.client();
        assert_eq!(pair.list(client, IN_A), ["file"], "without the log of {lost}");
        assert!(pair.list(client, IN_B).is_empty(), "without the log of {lost}");
    }
}

#[test]
fn records_before_the_dependency_are_not_cut() {
    let mut pair = Pair::new();
    let client = pair.client();
    let first = pair.create(client, IN_A, "first");
    pair.create(client, IN_A, "file");
    pair.rename(client, (IN_A, "file"), (IN_B, "moved"));
    pair.hold_messages(|body| is_message(body, "Harden"));
    let call = pair.send(client, fsync(first));
    assert!(!pair.is_answered(call), "the end of the log depends on the log of B");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_A), ["file", "first"]);
}

#[test]
fn fsync_fails_if_the_other_log_cannot_be_made_durable() {
    let (mut pair, client, [_, dir]) = renamed();
    pair.hold_messages(|body| is_message(body, "Harden"));
    let call = pair.send(client, fsync(dir));
    pair.device.fail(Kind::Log, Errno::EIO);
    pair.release_messages();
    assert_eq!(pair.answer(call), Some(Err(Errno::EIO)));
    // A checkpoint has written what the log of A may have lost.
    pair.fsync(client, dir);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_B), ["moved"]);
}

#[test]
fn after_a_checkpoint_no_log_depends_on_another() {
    let (mut pair, client, [_, dir]) = renamed();
    pair.sync(client);
    pair.trace(&[]);
    pair.fsync(client, dir);
    assert!(pair.trace(&["Harden"]).is_empty());
}

#[test]
fn dependencies_are_followed_from_log_to_log() {
    // The caretaker of a cell that is taken out has its dependencies from the log.
    for b_is_out in [false, true] {
        let mut pair = Pair::three();
        let client = pair.client();
        pair.create(client, IN_A, "file");
        pair.rename(client, (IN_A, "file"), (IN_B, "file"));
        pair.create(client, IN_B, "another");
        pair.rename(client, (IN_B, "another"), (IN_C, "moved"));
        let dir = open_directory(&mut pair, client, IN_C);
        pair.supervisor.grants = false;
        if b_is_out {
            pair.take_out(B);
        }
        pair.trace(&[]);
        pair.fsync(client, dir);
        let trace = pair.trace(&["Harden"]);
        let order = ["C to B: Harden", "B to C: Hardened", "C to A: Harden", "A to C: Hardened"];
        let is_known = |line: &&str| trace.iter().any(|at| at == *line);
        assert!(order.iter().all(is_known), "B has named the log of A to C: {trace:?}");
        pair.cut_power();
        let client = pair.client();
        assert_eq!(
            [IN_A, IN_B, IN_C].map(|dir| pair.list(client, dir)),
            [vec![], vec!["file".to_string()], vec!["moved".to_string()],]
        );
    }
}

#[test]
fn calls_that_depend_on_the_same_point_send_one_request() {
    let (mut pair, client, [_, dir]) = renamed();
    pair.hold_messages(|body| is_message(body, "Harden"));
    let calls: [Call; 3] = [(); 3].map(|()| pair.send(client, fsync(dir)));
    assert_eq!(pair.trace(&["Harden"]), ["B to A: Harden"]);
    pair.release_messages();
    assert!(calls.iter().all(|call| pair.answer(*call) == Some(Ok(Reply::Done))));
}

#[test]
fn a_log_is_cut_where_it_first_depends_on_what_is_lost() {
    let names = ["one", "three", "two"];
    let mut pair = Pair::new();
    let client = pair.client();
    for name in names {
        pair.create(client, IN_A, name);
    }
    pair.sync(client);
    for name in names {
        pair.rename(client, (IN_A, name), (IN_B, name));
    }
    let dir = open_directory(&mut pair, client, IN_B);
    pair.hold_messages(|body| is_message(body, "Harden"));
    let call = pair.send(client, fsync(dir));
    assert!(!pair.is_answered(call), "the log of A is lost, and that of B is not");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_A), names);
    assert!(pair.list(client, IN_B).is_empty());
}
