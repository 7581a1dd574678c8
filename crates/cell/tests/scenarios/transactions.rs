//! **Transactions.** An operation whose names or inodes lie at two cells locks every key that it touches, in one global order,
//! at both; then the cell that got the request decides, alone and with one record of its log.
//!
//! ```text
//! coordinator   Prepare ------>            locked: the record decides -> Commit ---->
//! participant            locks, -> Prepared                                     makes its part -> Committed
//! ```
//!
//! A cell that runs an operation without other cells takes no lock; it only waits while a transaction stands in its way. So no
//! client sees half of a transaction, and a process that dies leaves either none of it or what its log has decided.
//!
//! The code: `txn.rs`, `lock.rs`, `loss.rs`, and the operations in `op/`.

use warren_base::{CellId, ClientId, Errno, Ino};
use warren_cell::{Effect, PeerBody};
use warren_proto::{
    AccessMode, CreateFlags, LockKey, NewInode, PeerReply, PeerRequest, Reply, Request, SetAttr,
};

use crate::client::{create, rename};
use crate::image::name;
use crate::pair::*;

const MESSAGES: [&str; 2] = [" to A: ", " to B: "];

/// A directory below `dir` that lies at the cell: directories spread over the cells by their names.
fn directory_at(pair: &mut Pair, client: ClientId, cell: CellId, dir: Ino) -> (String, Ino) {
    for number in 0..100 {
        let text = format!("dir{number}");
        let new = NewInode::directory(0o755);
        let (flags, access) = (CreateFlags::empty(), AccessMode::empty());
        let made = Request::Create { dir, name: name(&text), new, flags, access };
        let Ok(Reply::Created { entry, .. }) = pair.call(client, made) else {
            panic!("it is not created");
        };
        if pair.home(entry.ino) == cell {
            return (text, entry.ino);
        }
    }
    panic!("no directory lies at the cell");
}

/// `/a/file`, and a client that moves it to `/b/moved`: B coordinates, A takes part.
fn about_to_rename() -> (Pair, ClientId, Ino, Request) {
    let mut pair = Pair::new();
    let client = pair.client();
    let ino = pair.create(client, IN_A, "file").ino;
    pair.trace(&[]);
    (pair, client, ino, rename((IN_A, "file"), (IN_B, "moved")))
}

/// The file lies at its new place, and only there.
fn assert_moved(pair: &mut Pair, client: ClientId, ino: Ino) {
    assert_eq!(pair.lookup(client, IN_A, "file"), None);
    assert_eq!(pair.lookup(client, IN_B, "moved"), Some(ino));
    assert_eq!(pair.attr(client, ino).nlink, 1);
}

#[test]
fn a_rename_over_two_cells_prepares_commits_and_is_answered() {
    let (mut pair, client, ino, request) = about_to_rename();
    assert_eq!(pair.call(client, request), Ok(Reply::Done));
    let trace = pair.trace(&[" to A: ", " to B: ", "replies"]);
    assert_eq!(trace[..2], ["B to A: Prepare", "A to B: Prepared"]);
    let end = ["B to A: Commit", "A to B: Committed", "B replies"];
    assert_eq!(trace[trace.len() - 3..], end, "no client hears of it before all have made it");
    assert_moved(&mut pair, client, ino);
}

#[test]
fn an_operation_at_one_cell_sends_nothing() {
    let (mut pair, client, _, _) = about_to_rename();
    pair.rename(client, (IN_A, "file"), (IN_A, "other"));
    pair.unlink(client, IN_A, "other");
    assert!(pair.trace(&MESSAGES).is_empty());
}

#[test]
fn a_directory_is_made_at_another_cell() {
    let mut pair = Pair::new();
    let client = pair.client();
    let (text, dir) = directory_at(&mut pair, client, B, IN_A);
    assert_eq!(pair.lookup(client, IN_A, &text), Some(dir));
    let ino = pair.create(client, dir, "file").ino;
    assert_eq!(pair.home(ino), B, "files lie with their directory");
    assert_eq!(pair.attr(client, dir).nlink, 2);
}

#[test]
fn no_client_sees_half_of_a_rename() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.hold_messages(|body| is_request(body, "Commit"));
    let moved = pair.ask(client, request);
    let look = |dir, text: &str| Request::Lookup { dir, name: name(text) };
    let old = pair.ask(client, look(IN_A, "file"));
    let new = pair.ask(client, look(IN_B, "moved"));
    assert!(![moved, old, new].iter().any(|call| pair.is_answered(*call)), "all of them wait");
    let other = pair.ask(client, look(IN_A, "other"));
    assert!(pair.is_answered(other), "only these names are locked");
    pair.release_messages();
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert!(matches!(pair.answer(old), Some(Ok(Reply::Absent(_)))));
    assert!(matches!(pair.answer(new), Some(Ok(Reply::Entry(entry))) if entry.ino == ino));
}

#[test]
fn an_answer_does_not_wait_for_an_inode_that_is_locked() {
    let (mut pair, client, ino, _) = about_to_rename();
    pair.hold_messages(|body| is_request(body, "Commit"));
    let link = pair.ask(client, Request::Link { ino, dir: IN_B, name: name("link") });
    assert!(pair.is_answered(link), "no entry of another cell changes");
    let attr = pair.ask(client, Request::GetAttr { ino });
    assert!(!pair.is_answered(attr), "the inode is locked until it has the link");
    pair.release_messages();
    let Some(Ok(Reply::Attr { attr, .. })) = pair.answer(attr) else { panic!("it is answered") };
    assert_eq!(attr.nlink, 2);
}

#[test]
fn opposite_renames_do_not_wait_for_each_other_for_ever() {
    let mut pair = Pair::new();
    let client = pair.client();
    let from_a = pair.create(client, IN_A, "one").ino;
    let from_b = pair.create(client, IN_B, "two").ino;
    let calls = [
        pair.post(client, rename((IN_A, "one"), (IN_B, "one")), &[]),
        pair.post(client, rename((IN_B, "two"), (IN_A, "two")), &[]),
    ];
    pair.drive();
    assert_eq!(calls.map(|call| pair.answer(call)), [const { Some(Ok(Reply::Done)) }; 2]);
    assert_eq!(pair.lookup(client, IN_B, "one"), Some(from_a));
    assert_eq!(pair.lookup(client, IN_A, "two"), Some(from_b));
}

#[test]
fn an_operation_that_fails_releases_what_it_had_locked() {
    let mut pair = Pair::new();
    let client = pair.client();
    let (text, dir) = directory_at(&mut pair, client, B, IN_A);
    pair.create(client, dir, "file");
    let rmdir = Request::Rmdir { dir: IN_A, name: name(&text) };
    assert_eq!(pair.call(client, rmdir.clone()), Err(Errno::ENOTEMPTY));
    assert!(pair.trace(&MESSAGES).contains(&"A to B: Abort".into()));
    pair.create(client, dir, "another");
    pair.unlink(client, dir, "file");
    pair.unlink(client, dir, "another");
    assert_eq!(pair.call(client, rmdir), Ok(Reply::Done));
    assert_eq!(pair.lookup(client, IN_A, &text), None);
    assert!(pair.call(client, create(dir, "late")).is_err(), "no entry comes into it any more");
}

#[test]
fn a_directory_does_not_come_to_lie_below_itself() {
    let mut pair = Pair::new();
    let client = pair.client();
    let (text, above) = directory_at(&mut pair, client, B, IN_A);
    let (_, below) = directory_at(&mut pair, client, A, above);
    let request = rename((IN_A, &text), (below, "circle"));
    assert_eq!(pair.call(client, request), Err(Errno::EINVAL));
    assert_eq!(pair.lookup(client, IN_A, &text), Some(above));
    pair.rename(client, (IN_A, &text), (IN_B, "moved"));
    assert_eq!(pair.lookup(client, IN_B, "moved"), Some(above), "no lock is left");
}

#[test]
fn a_participant_whose_log_is_full_refuses_until_a_checkpoint() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.supervisor.grants = false;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let chmod = Request::SetAttr { ino, handle: None, set };
    while {
        let call = pair.ask(client, chmod.clone());
        pair.is_answered(call)
    } {}
    pair.trace(&[]);
    let moved = pair.ask(client, request);
    assert!(pair.trace(&MESSAGES).contains(&"A to B: Refused".into()));
    assert!(!pair.is_answered(moved));
    pair.grant_checkpoints();
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}

#[test]
fn prepared_and_the_coordinator_dies_undecided() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.hold_messages(|body| match body {
        PeerBody::Reply(PeerReply::Prepared { values, .. }) => {
            values.iter().any(|(key, _)| matches!(key, LockKey::Name(..)))
        }
        _ => false,
    });
    let moved = pair.ask(client, request);
    let look = pair.ask(client, Request::Lookup { dir: IN_A, name: name("file") });
    pair.lose(B);
    assert!(!pair.is_answered(look), "it may have been decided: A keeps the locks");
    pair.stop_holding_messages();
    pair.succeed(B);
    assert!(pair.is_answered(look), "the successor has named all that was decided");
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)), "it has found the request in its slot");
    assert_moved(&mut pair, client, ino);
}

#[test]
fn the_coordinator_dies_when_it_has_decided() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.die_before(B, |effect| {
        matches!(effect, Effect::Send { message, .. }
        if is_request(&message.body, "Commit"))
    });
    let moved = pair.ask(client, request);
    assert!(pair.is_dead(B));
    pair.replace(B);
    assert!(pair.trace(&MESSAGES).contains(&"B to A: Again".into()), "its log says so");
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}

#[test]
fn a_participant_dies_when_it_has_prepared() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.die_before(A, |effect| {
        matches!(effect, Effect::Send { message, .. }
        if matches!(message.body, PeerBody::Reply(PeerReply::Prepared { .. })))
    });
    let moved = pair.ask(client, request);
    pair.lose(A);
    assert!(!pair.is_answered(moved));
    assert_eq!(pair.lookup(client, IN_B, "moved"), None, "it waits, and holds nothing");
    pair.create(client, IN_B, "other");
    pair.succeed(A);
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}

#[test]
fn a_participant_dies_when_it_has_made_its_part() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.die_before(A, |effect| {
        matches!(effect, Effect::Send { message, .. }
        if matches!(message.body, PeerBody::Reply(PeerReply::Committed { .. })))
    });
    let moved = pair.ask(client, request);
    assert!(pair.is_dead(A) && !pair.is_answered(moved));
    pair.replace(A);
    let trace = pair.trace(&MESSAGES);
    assert!(trace.contains(&"B to A: Again".into()) && trace.contains(&"A to B: Committed".into()));
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}

#[test]
fn what_was_decided_twice_over_is_made_once() {
    let (mut pair, client, ino, _) = about_to_rename();
    pair.hold_messages(|body| matches!(body, PeerBody::Request(PeerRequest::Commit { .. })));
    let link = pair.ask(client, Request::Link { ino, dir: IN_B, name: name("link") });
    assert!(pair.is_answered(link));
    pair.lose(B);
    pair.stop_holding_messages();
    pair.succeed(B);
    assert!(pair.trace(&MESSAGES).contains(&"B to A: Again".into()));
    assert_eq!(pair.attr(client, ino).nlink, 2, "the Commit had come before the Again");
}
