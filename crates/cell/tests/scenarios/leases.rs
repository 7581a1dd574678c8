//! **Leases.** A client may use a copy of an answer without asking again while it holds the lease that came with it.
//!
//! A *word lease* is revoked by a store into the client's memory: the word no longer holds the stamp of the grant. Nobody
//! is waited for; the store comes before the reply to the change, so that no client sees a change and then an old copy.
//!
//! An *acknowledged lease* is held by a front for its kernel, which cannot read words. It is *recalled*: the front listens
//! (`AwaitRecall`), drops what the recall names, and says so with the next `AwaitRecall`. A change waits for that. Recalls of
//! pages go on a lane of their own, because dropping a page may wait for a read or a write.
//!
//! The code: `lease.rs`.

use warren_base::{ClientId, Errno};
use warren_cell::Effect;
use warren_proto::{LeaseKey, Position, Reply, Request, SetAttr};

use crate::bytes::page;
use crate::client::{Call, create, read, rename};
use crate::image::name;
use crate::pair::*;

fn set_mode(ino: warren_base::Ino, mode: u16) -> Request {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    Request::SetAttr { ino, handle: None, set }
}

/// The front listens on a lane, having dropped what this recall named.
fn listen(pair: &mut Pair, front: ClientId, pages: bool, acknowledged: u64) -> Call {
    let call = pair.post_to(A, front, Request::AwaitRecall { pages, acknowledged }, &[]);
    pair.drive();
    call
}

/// The recall that a listening call was answered with.
fn recalled(pair: &Pair, call: Call) -> (u64, Vec<LeaseKey>) {
    match pair.answer(call) {
        Some(Ok(Reply::Recall { number, keys })) => (number, keys),
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
    assert_eq!(pair.look(reader, IN_A, "file").1, first, "it holds that one already");
    assert!(pair.is_valid(A, reader, first));
    pair.unlink(writer, IN_A, "file");
    assert!(!pair.is_valid(A, reader, first));
    let (found, second) = pair.look(reader, IN_A, "file");
    assert_eq!(found, None);
    assert!(pair.is_valid(A, reader, second));
    assert_ne!(first.stamp, second.stamp, "a stamp is never used twice");
}

#[test]
fn that_a_name_leads_nowhere_is_leased_too() {
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
fn a_lease_is_revoked_before_the_change_is_known() {
    let mut pair = Pair::alone();
    let (reader, writer) = (pair.client(), pair.client());
    pair.create(writer, IN_A, "file");
    let (_, lease) = pair.look(reader, IN_A, "file");
    pair.die_before(A, |effect| matches!(effect, Effect::Reply { .. }));
    pair.ask(writer, Request::Unlink { dir: IN_A, name: name("file") });
    assert!(pair.is_dead(A), "no client has heard of it");
    assert!(!pair.is_valid(A, reader, lease));
}

#[test]
fn who_may_search_a_directory_is_part_of_each_name_in_it() {
    let mut pair = Pair::alone();
    let (reader, owner) = (pair.client(), pair.client());
    pair.create(owner, IN_A, "file");
    let (_, lease) = pair.look(reader, IN_A, "file");
    assert!(pair.call(owner, set_mode(IN_A, 0o700)).is_ok());
    assert!(!pair.is_valid(A, reader, lease));
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
    let change = pair.ask(writer, set_mode(file.ino, 0o600));
    let (number, keys) = recalled(&pair, listening);
    assert_eq!(keys, [LeaseKey::Attr(file.ino)]);
    assert!(!pair.is_answered(change));
    assert_eq!(pair.attr(front, file.ino).mode, 0o644, "it may ask, and gets no lease");
    assert_eq!(pair.attr_with_lease(front, file.ino).1, None);
    listen(&mut pair, front, false, number);
    assert!(pair.answer(change).is_some_and(|answer| answer.is_ok()));
    assert_eq!(pair.attr(front, file.ino).mode, 0o600);
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
    let write = pair.ask_to_write(writer, file, 0, page(2));
    let (number, keys) = recalled(&pair, pages);
    assert_eq!(keys, [LeaseKey::Pages(file.ino)]);
    assert!(!pair.is_answered(write));
    assert_eq!(pair.read(front, handle, 0, 100), &[1; 100], "a read never waits for a recall");
    // It has read while it was recalled, so it is recalled once more.
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
fn a_front_that_hangs_up_is_waited_for_no_longer() {
    let mut pair = Pair::alone();
    let (front, writer) = (pair.front(), pair.client());
    let file = pair.create(writer, IN_A, "file");
    pair.attr(front, file.ino);
    let change = pair.ask(writer, set_mode(file.ino, 0o600));
    assert!(!pair.is_answered(change));
    pair.hang_up(front);
    assert!(pair.is_answered(change));
}

#[test]
fn a_lane_has_one_listener_and_none_but_fronts_listen() {
    let mut pair = Pair::alone();
    let (front, client) = (pair.front(), pair.client());
    let first = listen(&mut pair, front, false, 0);
    let second = listen(&mut pair, front, false, 0);
    assert_eq!(pair.answer(first), Some(Err(Errno::EINTR)));
    assert!(!pair.is_answered(second));
    let stranger = listen(&mut pair, client, false, 0);
    assert_eq!(pair.answer(stranger), Some(Err(Errno::EPERM)));
}

#[test]
fn a_successor_voids_words_and_recalls_what_a_front_may_have() {
    let mut pair = Pair::alone();
    let (front, client) = (pair.front(), pair.client());
    let file = pair.create(client, IN_A, "file");
    let (_, lease) = pair.look(client, IN_A, "file");
    pair.replace(A);
    assert!(!pair.is_valid(A, client, lease));
    // The front has never looked at the file. The successor does not know that.
    let change = pair.ask(client, set_mode(file.ino, 0o600));
    assert!(!pair.is_answered(change));
    let listening = listen(&mut pair, front, false, 0);
    let (number, keys) = recalled(&pair, listening);
    assert_eq!(keys, [LeaseKey::Attr(file.ino)]);
    listen(&mut pair, front, false, number);
    assert!(pair.is_answered(change));
    let again = pair.ask(client, set_mode(file.ino, 0o640));
    assert!(pair.is_answered(again), "it has dropped that for good");
}

#[test]
fn a_front_that_creates_is_not_asked_for_its_own_copies() {
    let mut pair = Pair::alone();
    let front = pair.front();
    let absent = Request::Lookup { dir: IN_A, name: name("file") };
    let _ = pair.call(front, absent);
    let made = pair.ask(front, create(IN_A, "file"));
    assert!(pair.is_answered(made));
    let moved = pair.ask(front, rename((IN_A, "file"), (IN_A, "moved")));
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    let ino = pair.lookup(front, IN_A, "moved").expect("it is there");
    let handle = pair.open(front, ino);
    let empty = pair.ask(front, read(handle, Position::At(0), 10));
    assert!(pair.bytes_of(empty).0.is_empty());
}
