//! **Leases.** A client may use a copy of an earlier reply while it holds the lease that came with
//! it.
//!
//! A *word lease* is revoked by a store into a word of the client's memory: the word no longer
//! holds the stamp of the grant. The cell waits for no client. The store comes before the reply to
//! the change, so that no client can see the change and then use an old copy.
//!
//! An *acknowledged lease* is held by a FUSE front, because its kernel cannot read words. The cell
//! *recalls* it: the front listens (`AwaitRecall`), drops its copies of the keys of the recall, and
//! acknowledges the recall with its next `AwaitRecall`. The change waits for that. Recalls of pages
//! are a class of their own, because dropping a page may wait for a read or a write.
//!
//! The code: `shard/lease.rs`, `shard/lease/words.rs`, `lease.rs`, `lease/recalls.rs`, `recall.rs`.

use warren_base::{ClientId, Errno, Ino};
use warren_cell::Effect;
use warren_proto::{Lease, LeaseKey, Position, Reply, Request, SetAttr, SetTime};

use crate::bytes::page;
use crate::client::{Call, create, read, rename};
use crate::image::name;
use crate::pair::*;

fn set_mode(ino: Ino, mode: u16) -> Request {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    Request::SetAttr { ino, handle: None, set }
}

/// The front listens for a class of recalls, and acknowledges this recall.
fn listen(pair: &mut Pair, front: ClientId, pages: bool, acknowledged: u64) -> Call {
    let call = pair.submit_to(A, front, Request::AwaitRecall { pages, acknowledged }, &[]);
    pair.drive();
    call
}

/// The recall that a call of [`listen`] was answered with.
fn recalled(pair: &Pair, call: Call) -> (u64, Vec<LeaseKey>) {
    match pair.answer(call) {
        Some(Ok(Reply::Recall { number, keys, .. })) => (number, keys),
        other => panic!("no recall: {other:?}"),
    }
}

#[test]
fn a_name_is_leased_revoked_and_leased_again() {
    let mut pair = Pair::alone();
    let (reader, writer) = (pair.client(), pair.client());
    let ino = pair.create(writer, IN_A, "file").ino;
    let (found, first) = pair.look(reader, IN_A, "file");
    assert_eq!(found, Some(ino));
    assert_eq!(pair.look(reader, IN_A, "file").1, first, "the client holds this lease already");
    assert!(pair.is_valid(A, reader, first));
    pair.unlink(writer, IN_A, "file");
    assert!(!pair.is_valid(A, reader, first));
    let (found, second) = pair.look(reader, IN_A, "file");
    assert_eq!(found, None);
    assert!(pair.is_valid(A, reader, second));
    assert_ne!(first.stamp, second.stamp, "a stamp is never used twice");
}

#[test]
fn a_name_that_does_not_exist_is_leased_too() {
    let mut pair = Pair::alone();
    let (reader, writer) = (pair.client(), pair.client());
    let (found, lease) = pair.look(reader, IN_A, "file");
    assert_eq!(found, None);
    pair.create(writer, IN_A, "another");
    assert!(pair.is_valid(A, reader, lease));
    pair.create(writer, IN_A, "file");
    assert!(!pair.is_valid(A, reader, lease));
}

#[test]
fn attributes_are_leased_until_they_change() {
    let mut pair = Pair::alone();
    let (reader, writer) = (pair.client(), pair.client());
    let file = pair.create(writer, IN_A, "file");
    let (_, lease) = pair.attr_with_lease(reader, file.ino);
    let lease = lease.expect("a lease");
    pair.read(writer, file, 0, 10);
    assert!(pair.is_valid(A, reader, lease), "nothing has changed");
    pair.write(writer, file, 0, b"text");
    assert!(!pair.is_valid(A, reader, lease), "the size has");
}

#[test]
fn a_lease_is_revoked_before_the_reply_to_the_change() {
    let mut pair = Pair::alone();
    let (reader, writer) = (pair.client(), pair.client());
    pair.create(writer, IN_A, "file");
    let (_, lease) = pair.look(reader, IN_A, "file");
    pair.die_before(A, |effect| matches!(effect, Effect::Reply { .. }));
    pair.send(writer, Request::Unlink { dir: IN_A, name: name("file") });
    assert!(pair.is_dead(A), "the reply was not sent");
    assert!(!pair.is_valid(A, reader, lease));
}

#[test]
fn a_new_mode_of_a_directory_revokes_the_names_in_it() {
    let mut pair = Pair::alone();
    let (reader, owner) = (pair.client(), pair.client());
    pair.create(owner, IN_A, "file");
    let (_, lease) = pair.look(reader, IN_A, "file");
    assert!(pair.call(owner, set_mode(IN_A, 0o700)).is_ok());
    assert!(!pair.is_valid(A, reader, lease));
}

/// Lists a directory; returns the lease on its names.
fn list_leased(pair: &mut Pair, client: ClientId, dir: Ino) -> Lease {
    let list = Request::ReadDir { dir, cookie: 0, bytes_max: 8000, leased: true };
    match pair.call(client, list) {
        Ok(Reply::Listing { lease: Some(lease), .. }) => lease,
        other => panic!("no lease: {other:?}"),
    }
}

#[test]
fn the_names_of_a_directory_are_leased_until_another_client_changes_them() {
    let mut pair = Pair::alone();
    let (reader, front, writer) = (pair.client(), pair.front(), pair.client());
    let lease = list_leased(&mut pair, reader, IN_A);
    let of_front = list_leased(&mut pair, front, IN_A);
    pair.create(reader, IN_A, "own");
    assert!(pair.is_valid(A, reader, lease), "it knows what it has changed itself");
    assert!(!pair.is_valid(A, front, of_front), "a front has a word, too");
    pair.unlink(reader, IN_A, "own");
    assert!(pair.is_valid(A, reader, lease));
    pair.create(writer, IN_A, "other");
    assert!(!pair.is_valid(A, reader, lease));
    let again = list_leased(&mut pair, reader, IN_A);
    pair.unlink(writer, IN_A, "other");
    assert!(!pair.is_valid(A, reader, again));
}

#[test]
fn a_rename_over_two_cells_revokes_the_names_of_both_directories() {
    let mut pair = Pair::new();
    let (reader, writer) = (pair.client(), pair.client());
    pair.create(writer, IN_A, "file");
    for (from, to) in [(IN_A, IN_B), (IN_B, IN_A)] {
        let mut list_both = |client| {
            [(A, IN_A), (B, IN_B)].map(|(cell, dir)| (cell, list_leased(&mut pair, client, dir)))
        };
        let (leases, own) = (list_both(reader), list_both(writer));
        pair.rename(writer, (from, "file"), (to, "file"));
        assert!(leases.iter().all(|(cell, lease)| !pair.is_valid(*cell, reader, *lease)));
        assert!(own.iter().all(|(cell, lease)| pair.is_valid(*cell, writer, *lease)));
    }
}

#[test]
fn a_rename_over_two_cells_revokes_at_both() {
    let mut pair = Pair::new();
    let (reader, writer) = (pair.client(), pair.client());
    pair.create(writer, IN_A, "file");
    let (_, old) = pair.look(reader, IN_A, "file");
    let (_, new) = pair.look(reader, IN_B, "moved");
    pair.rename(writer, (IN_A, "file"), (IN_B, "moved"));
    assert!(!pair.is_valid(A, reader, old));
    assert!(!pair.is_valid(B, reader, new));
}

#[test]
fn a_change_waits_until_a_front_has_dropped_its_copy() {
    let mut pair = Pair::alone();
    let (front, writer) = (pair.front(), pair.client());
    let file = pair.create(writer, IN_A, "file");
    pair.attr(front, file.ino);
    let listening = listen(&mut pair, front, false, 0);
    let change = pair.send(writer, set_mode(file.ino, 0o600));
    let (number, keys) = recalled(&pair, listening);
    assert_eq!(keys, [LeaseKey::Attr(file.ino)]);
    assert!(!pair.is_answered(change));
    assert_eq!(pair.attr(front, file.ino).mode, 0o644, "requests of the front go on");
    assert_eq!(pair.attr_with_lease(front, file.ino).1, None, "no grant during a recall");
    listen(&mut pair, front, false, number);
    assert!(pair.answer(change).is_some_and(|answer| answer.is_ok()));
    assert_eq!(pair.attr(front, file.ino).mode, 0o600);
}

#[test]
fn a_recall_says_whether_rights_change() {
    let mut pair = Pair::alone();
    let (front, root) = (pair.front(), pair.client());
    let file = pair.create(root, IN_A, "file");
    let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
    let group = SetAttr { gid: Some(7), ..SetAttr::default() };
    let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    let time = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let set_id = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
    let mut acknowledged = 0;
    let changes = [(owner, true), (mode, true), (time, false), (mode, false), (group, true)];
    // Changes of a file with a set-id bit may take it away.
    for (set, expected) in changes.into_iter().chain([(set_id, true), (time, true)]) {
        pair.attr(front, file.ino);
        let listening = listen(&mut pair, front, false, acknowledged);
        let change = pair.send(root, Request::SetAttr { ino: file.ino, handle: None, set });
        let Some(Ok(Reply::Recall { number, keys, rights })) = pair.answer(listening) else {
            panic!("no recall");
        };
        assert_eq!((keys, rights), (vec![LeaseKey::Attr(file.ino)], expected));
        assert!(!pair.is_answered(change));
        acknowledged = number;
        let next = listen(&mut pair, front, false, acknowledged);
        assert!(pair.answer(change).is_some_and(|answer| answer.is_ok()));
        pair.cancel(front, next);
    }
}

#[test]
fn a_write_waits_until_a_front_has_dropped_its_pages() {
    let mut pair = Pair::alone();
    let (front, writer) = (pair.front(), pair.client());
    let file = pair.file(writer, IN_A, "file", page(1));
    let handle = pair.open(front, file.ino);
    assert_eq!(pair.read(front, handle, 0, 100), &[1; 100]);
    let names = listen(&mut pair, front, false, 0);
    let pages = listen(&mut pair, front, true, 0);
    let write = pair.send_write(writer, file, 0, page(2));
    let (number, keys) = recalled(&pair, pages);
    assert_eq!(keys, [LeaseKey::Pages(file.ino)]);
    assert!(!pair.is_answered(write));
    assert_eq!(pair.read(front, handle, 0, 100), &[1; 100], "a read never waits for a recall");
    // The front has read during the recall, so its pages are recalled once more.
    let pages = listen(&mut pair, front, true, number);
    let (number, _) = recalled(&pair, pages);
    listen(&mut pair, front, true, number);
    if let Some(Ok(Reply::Recall { number, .. })) = pair.answer(names) {
        listen(&mut pair, front, false, number);
    }
    assert!(pair.is_answered(write));
    assert_eq!(pair.read(front, handle, 0, 100), &[2; 100]);
}

#[test]
fn a_change_does_not_wait_for_a_front_that_disconnected() {
    let mut pair = Pair::alone();
    let (front, writer) = (pair.front(), pair.client());
    let file = pair.create(writer, IN_A, "file");
    pair.attr(front, file.ino);
    let change = pair.send(writer, set_mode(file.ino, 0o600));
    assert!(!pair.is_answered(change));
    pair.disconnect(front);
    assert!(pair.is_answered(change));
}

#[test]
fn a_lane_has_one_listener_and_only_fronts_listen() {
    let mut pair = Pair::alone();
    let (front, client) = (pair.front(), pair.client());
    let first = listen(&mut pair, front, false, 0);
    let second = listen(&mut pair, front, false, 0);
    assert_eq!(pair.answer(first), Some(Err(Errno::EINTR)));
    assert!(!pair.is_answered(second));
    let refused = listen(&mut pair, client, false, 0);
    assert_eq!(pair.answer(refused), Some(Err(Errno::EPERM)));
}

#[test]
fn a_successor_voids_words_and_recalls_from_each_front() {
    let mut pair = Pair::alone();
    let (front, client) = (pair.front(), pair.client());
    let file = pair.create(client, IN_A, "file");
    let (_, lease) = pair.look(client, IN_A, "file");
    pair.replace(A);
    assert!(!pair.is_valid(A, client, lease));
    // The successor does not know which copies the front has: it may have any.
    let change = pair.send(client, set_mode(file.ino, 0o600));
    assert!(!pair.is_answered(change));
    let listening = listen(&mut pair, front, false, 0);
    let (number, keys) = recalled(&pair, listening);
    assert_eq!(keys, [LeaseKey::Attr(file.ino)]);
    listen(&mut pair, front, false, number);
    assert!(pair.is_answered(change));
    let again = pair.send(client, set_mode(file.ino, 0o640));
    assert!(pair.is_answered(again), "the front has dropped its copy");
}

#[test]
fn a_front_need_not_drop_copies_of_what_it_changes() {
    let mut pair = Pair::alone();
    let front = pair.front();
    assert_eq!(pair.lookup(front, IN_A, "file"), None);
    let made = pair.send(front, create(IN_A, "file"));
    assert!(pair.is_answered(made));
    let moved = pair.send(front, rename((IN_A, "file"), (IN_A, "moved")));
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    let ino = pair.lookup(front, IN_A, "moved").expect("it is there");
    let handle = pair.open(front, ino);
    let empty = pair.send(front, read(handle, Position::At(0), 10));
    assert!(pair.bytes_of(empty).0.is_empty());
}
