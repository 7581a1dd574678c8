//! **Transactions.** An operation whose names or inodes lie at two cells locks every key that it
//! touches, at both cells, in one global order. Then the coordinator, the cell that received the
//! request, decides with one record of its log.
//!
//! ```text
//! coordinator   Prepare -->                     decides: a record, Commit -->
//! participant               locks, Prepared -->                               changes, Committed
//! ```
//!
//! An operation at one cell takes no locks; it only waits while a transaction holds its keys. So no
//! client sees half of a transaction. When a process dies, a transaction happens if the log of its
//! coordinator has decided it, and only then.
//!
//! The code: `txn.rs`, `txn/coordinator.rs`, `txn/participant.rs`, `shard/lock.rs`,
//! `core/peers.rs`, and the operations in `op/`.

use warren_base::{CellId, ClientId, Errno, Ino};
use warren_cell::PeerBody;
use warren_proto::{
    AccessMode, CreateFlags, LockKey, NewInode, PeerReply, Reply, Request, SetAttr,
};

use crate::client::{create, rename};
use crate::image::name;
use crate::pair::*;

const MESSAGES: [&str; 2] = [" to A: ", " to B: "];

/// A directory in `dir` that lies at the cell. Directories spread over the cells by their names.
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

/// `/a/file`, and a request to move it to `/b/moved`. B is the coordinator, A the participant.
fn about_to_rename() -> (Pair, ClientId, Ino, Request) {
    let mut pair = Pair::new();
    let client = pair.client();
    let ino = pair.create(client, IN_A, "file").ino;
    pair.trace(&[]);
    (pair, client, ino, rename((IN_A, "file"), (IN_B, "moved")))
}

/// The file has its new name, and only that.
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
    let messages = ["B to A: Prepare", "A to B: Prepared", "B to A: Commit", "A to B: Committed"];
    assert_eq!(trace[..4], messages);
    assert_eq!(trace[4..], ["B replies"], "the reply comes when both have changed");
    assert_moved(&mut pair, client, ino);
}

/// The number of messages between the cells for a request that is carried out.
fn messages(pair: &mut Pair, client: ClientId, request: Request) -> usize {
    pair.trace(&[]);
    assert!(pair.call(client, request.clone()).is_ok(), "{request:?}");
    pair.trace(&MESSAGES).len()
}

/// A cell prepares with one message and commits with one. Each has an answer.
const ONE_PREPARE: usize = 4;
/// A second prepare asks for a key that only the first one shows to be needed.
const TWO_PREPARES: usize = 6;

#[test]
fn one_message_prepares_all_keys_of_a_cell() {
    let (mut pair, client, ino, _) = about_to_rename();
    let (own, dir_at_b) =
        (pair.create(client, IN_B, "own").ino, directory_at(&mut pair, client, B, IN_A));
    let link = |dir, text| Request::Link { ino, dir, name: name(text) };
    let unlink = |dir, text| Request::Unlink { dir, name: name(text) };
    let mut count = |request| messages(&mut pair, client, request);
    assert_eq!(count(rename((IN_A, "file"), (IN_B, "moved"))), ONE_PREPARE);
    assert_eq!(count(rename((IN_B, "moved"), (IN_B, "again"))), ONE_PREPARE, "the inode is at A");
    assert_eq!(count(rename((IN_B, "again"), (IN_A, "file"))), ONE_PREPARE, "the inode is at A");
    assert_eq!(count(rename((IN_B, "own"), (IN_A, "own"))), ONE_PREPARE);
    assert_eq!(count(link(IN_B, "link")), ONE_PREPARE);
    assert_eq!(count(unlink(IN_B, "link")), ONE_PREPARE);
    assert_eq!(count(Request::Rmdir { dir: IN_A, name: name(&dir_at_b.0) }), ONE_PREPARE);
    let made = Request::Create {
        dir: IN_A,
        name: name(&dir_at_b.0),
        new: NewInode::directory(0o755),
        flags: CreateFlags::empty(),
        access: AccessMode::empty(),
    };
    assert_eq!(count(made), ONE_PREPARE);
    assert_eq!(count(rename((IN_A, "own"), (IN_A, "file"))), TWO_PREPARES, "its data are logged");
    assert_eq!(pair.lookup(client, IN_A, "file"), Some(own));
}

#[test]
fn a_name_brings_the_inode_of_its_shard_along_only_if_that_is_free() {
    let mut pair = Pair::three();
    let client = pair.client();
    let ino = pair.create(client, IN_A, "file").ino;
    pair.hold_messages(|body| is_message(body, "Commit"));
    let link = pair.send(client, Request::Link { ino, dir: IN_C, name: name("link") });
    assert!(pair.is_answered(link), "C has decided, and the inode is locked until its Commit");
    pair.trace(&[]);
    let moved = pair.send(client, rename((IN_A, "file"), (IN_B, "moved")));
    let messages = ["B to A: Prepare", "A to B: Prepared", "B to A: Abort", "B to A: Prepare"];
    assert_eq!(pair.trace(&MESSAGES), messages, "the inode comes before the name in the order");
    assert!(!pair.is_answered(moved));
    pair.release_messages();
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_eq!(pair.lookup(client, IN_B, "moved"), Some(ino));
    assert_eq!(pair.attr(client, ino).nlink, 2);
}

#[test]
fn the_move_of_a_directory_locks_the_trees_shape_last() {
    let mut pair = Pair::new();
    let client = pair.client();
    let (text, dir) = directory_at(&mut pair, client, A, IN_A);
    let request = rename((IN_A, &text), (IN_B, "moved"));
    assert_eq!(messages(&mut pair, client, request), TWO_PREPARES, "the shape is locked at A");
    assert_eq!(messages(&mut pair, client, rename((IN_B, "moved"), (IN_A, "back"))), ONE_PREPARE);
    assert_eq!(pair.lookup(client, IN_A, "back"), Some(dir));
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
fn no_client_sees_a_rename_at_one_cell_only() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.hold_messages(|body| is_message(body, "Commit"));
    let moved = pair.send(client, request);
    let look = |dir, text: &str| Request::Lookup { dir, name: name(text) };
    let old = pair.send(client, look(IN_A, "file"));
    let new = pair.send(client, look(IN_B, "moved"));
    assert!(
        ![moved, old, new].iter().any(|call| pair.is_answered(*call)),
        "these names are locked"
    );
    let other = pair.send(client, look(IN_A, "other"));
    assert!(pair.is_answered(other), "no other name is locked");
    pair.release_messages();
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert!(matches!(pair.answer(old), Some(Ok(Reply::Absent(_)))));
    assert!(matches!(pair.answer(new), Some(Ok(Reply::Entry(entry))) if entry.ino == ino));
}

#[test]
fn a_reply_waits_for_entries_of_other_cells_but_not_for_inodes() {
    let (mut pair, client, ino, _) = about_to_rename();
    pair.hold_messages(|body| is_message(body, "Commit"));
    let link = pair.send(client, Request::Link { ino, dir: IN_B, name: name("link") });
    assert!(pair.is_answered(link), "only an inode of A changes");
    let attr = pair.send(client, Request::GetAttr { ino });
    assert!(!pair.is_answered(attr), "the inode is locked until it has the link");
    pair.release_messages();
    let Some(Ok(Reply::Attr { attr, .. })) = pair.answer(attr) else { panic!("it is answered") };
    assert_eq!(attr.nlink, 2);
}

#[test]
fn a_file_without_a_name_stays_until_it_has_the_one_that_is_decided() {
    let mut pair = Pair::new();
    let front = pair.front();
    let new = NewInode::regular(0o644);
    let flags = CreateFlags::OPEN | CreateFlags::NAMELESS;
    let access = AccessMode::READ | AccessMode::WRITE;
    let made = Request::Create { dir: IN_A, name: name("none"), new, flags, access };
    let Ok(Reply::Created { opened: Some(opened), .. }) = pair.call(front, made) else {
        panic!("it is not made");
    };
    let (handle, ino) = (opened.handle, opened.handle.ino);
    pair.hold_messages(|body| is_message(body, "Commit"));
    let link = pair.send(front, Request::Link { ino, dir: IN_B, name: name("link") });
    assert!(pair.is_answered(link), "B has decided, and the inode is at A");
    pair.close(front, handle);
    pair.release_messages();
    assert_eq!(pair.lookup(front, IN_B, "link"), Some(ino));
    assert_eq!(pair.attr(front, ino).nlink, 1);
}

#[test]
fn opposite_renames_do_not_deadlock() {
    let mut pair = Pair::new();
    let client = pair.client();
    let from_a = pair.create(client, IN_A, "one").ino;
    let from_b = pair.create(client, IN_B, "two").ino;
    let calls = [
        pair.submit(client, rename((IN_A, "one"), (IN_B, "one")), &[]),
        pair.submit(client, rename((IN_B, "two"), (IN_A, "two")), &[]),
    ];
    pair.drive();
    assert_eq!(calls.map(|call| pair.answer(call)), [const { Some(Ok(Reply::Done)) }; 2]);
    assert_eq!(pair.lookup(client, IN_B, "one"), Some(from_a));
    assert_eq!(pair.lookup(client, IN_A, "two"), Some(from_b));
}

#[test]
fn an_operation_that_fails_releases_its_locks() {
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
    assert!(pair.call(client, create(dir, "late")).is_err(), "the directory is gone");
}

#[test]
fn a_directory_cannot_be_moved_below_itself() {
    let mut pair = Pair::new();
    let client = pair.client();
    let (text, above) = directory_at(&mut pair, client, B, IN_A);
    let (_, below) = directory_at(&mut pair, client, A, above);
    let request = rename((IN_A, &text), (below, "circle"));
    assert_eq!(pair.call(client, request), Err(Errno::EINVAL));
    assert_eq!(pair.lookup(client, IN_A, &text), Some(above));
    pair.rename(client, (IN_A, &text), (IN_B, "moved"));
    assert_eq!(pair.lookup(client, IN_B, "moved"), Some(above), "no lock was left");
}

#[test]
fn no_entry_is_created_in_a_directory_that_is_being_removed() {
    let mut pair = Pair::new();
    let client = pair.client();
    let (text, dir) = directory_at(&mut pair, client, B, IN_A);
    pair.hold_messages(|body| is_message(body, "Commit"));
    let rmdir = pair.send(client, Request::Rmdir { dir: IN_A, name: name(&text) });
    let late = pair.send(client, create(dir, "late"));
    assert!(!pair.is_answered(late), "the write lock on the directory is its mark");
    pair.release_messages();
    assert_eq!(pair.answer(rmdir), Some(Ok(Reply::Done)));
    assert!(pair.answer(late).is_some_and(|answer| answer.is_err()));
    assert_eq!(pair.call(client, Request::GetAttr { ino: dir }), Err(Errno::ESTALE));
}

#[test]
fn a_participant_whose_log_is_full_refuses_until_a_checkpoint() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.supervisor.grants = false;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let chmod = Request::SetAttr { ino, handle: None, set };
    let is_full = |pair: &mut Pair| {
        let call = pair.send(client, chmod.clone());
        !pair.is_answered(call)
    };
    while !is_full(&mut pair) {}
    pair.trace(&[]);
    let moved = pair.send(client, request);
    assert!(pair.trace(&MESSAGES).contains(&"A to B: Refused".into()));
    assert!(!pair.is_answered(moved));
    pair.grant_checkpoints();
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}

#[test]
fn the_coordinator_dies_undecided() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.hold_messages(|body| match body {
        PeerBody::Reply(PeerReply::Prepared { values, .. }) => {
            values.iter().any(|(key, _)| matches!(key, LockKey::Name(..)))
        }
        _ => false,
    });
    let moved = pair.send(client, request);
    let look = pair.send(client, Request::Lookup { dir: IN_A, name: name("file") });
    pair.lose(B);
    assert!(!pair.is_answered(look), "A keeps the locks, because B may have decided");
    pair.stop_holding_messages();
    pair.start_successor(B);
    assert!(pair.is_answered(look), "the successor has sent AllSaid");
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)), "the successor has executed it");
    assert_moved(&mut pair, client, ino);
}

#[test]
fn the_coordinator_dies_after_it_has_decided() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.die_before(B, |effect| sends(effect, "Commit"));
    let moved = pair.send(client, request);
    assert!(pair.is_dead(B));
    pair.replace(B);
    assert!(pair.trace(&MESSAGES).contains(&"B to A: Again".into()), "its log has the decision");
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}

#[test]
fn a_participant_dies_before_it_has_prepared() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.die_before(A, |effect| sends(effect, "Prepared"));
    let moved = pair.send(client, request);
    pair.lose(A);
    assert!(!pair.is_answered(moved));
    assert_eq!(pair.lookup(client, IN_B, "moved"), None, "the rename waits without locks");
    pair.create(client, IN_B, "other");
    pair.start_successor(A);
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}

#[test]
fn a_participant_dies_after_it_has_changed() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.die_before(A, |effect| sends(effect, "Committed"));
    let moved = pair.send(client, request);
    assert!(pair.is_dead(A) && !pair.is_answered(moved));
    pair.replace(A);
    let trace = pair.trace(&MESSAGES);
    assert!(trace.contains(&"B to A: Again".into()) && trace.contains(&"A to B: Committed".into()));
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}

#[test]
fn a_change_that_the_log_of_a_successor_has_is_made_once() {
    let (mut pair, client, ino, _) = about_to_rename();
    pair.die_before(A, |effect| sends(effect, "Committed"));
    let link = pair.send(client, Request::Link { ino, dir: IN_B, name: name("link") });
    assert!(pair.is_answered(link) && pair.is_dead(A));
    pair.replace(A);
    assert!(pair.trace(&MESSAGES).contains(&"B to A: Again".into()));
    assert_eq!(pair.attr(client, ino).nlink, 2);
}

#[test]
fn a_change_that_is_sent_twice_is_made_once() {
    let (mut pair, client, ino, _) = about_to_rename();
    pair.hold_messages(|body| is_message(body, "Commit"));
    let link = pair.send(client, Request::Link { ino, dir: IN_B, name: name("link") });
    assert!(pair.is_answered(link));
    pair.lose(B);
    pair.stop_holding_messages();
    pair.start_successor(B);
    assert!(pair.trace(&MESSAGES).contains(&"B to A: Again".into()));
    assert_eq!(pair.attr(client, ino).nlink, 2, "the Commit came before the Again");
}
