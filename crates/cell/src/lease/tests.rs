use warren_proto::FileName;

use super::*;

const KEY: LeaseKey = LeaseKey::Attr(Ino::ROOT);
const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);

#[test]
fn a_recall_is_over_when_it_was_acknowledged() {
    let mut leases = Leases::new(Epoch(1), 7, Planted::NONE);
    assert!(leases.hold(KEY, A));
    assert!(leases.recall(&KEY, Some(A)));
    assert!(!leases.recall(&KEY, Some(B)));
    let (number, keys) = leases.take_recall(A, RecallClass::Other).unwrap();
    assert_eq!(keys, [KEY]);
    assert!(!leases.hold(KEY, B), "no grant while it is recalled");
    assert!(!leases.listens(A, RecallClass::Other, number + 1));
    assert!(leases.listens(A, RecallClass::Other, number));
    assert!(leases.recall(&KEY, None));
}

#[test]
fn the_client_of_a_recall_is_known() {
    let mut leases = Leases::new(Epoch(1), 7, Planted::NONE);
    assert!(leases.hold(KEY, A) && leases.hold(KEY, B));
    assert!(!leases.recall(&KEY, Some(A)));
    assert!(leases.is_recalled_from(&KEY, B) && !leases.is_recalled_from(&KEY, A));
    leases.take_recall(B, RecallClass::Other).unwrap();
    assert!(leases.is_recalled_from(&KEY, B), "until it has acknowledged");
}

#[test]
fn what_was_read_during_a_recall_is_recalled_again() {
    let mut leases = Leases::new(Epoch(1), 7, Planted::NONE);
    assert!(leases.hold(KEY, A));
    assert!(!leases.recall(&KEY, None));
    let (number, _) = leases.take_recall(A, RecallClass::Other).unwrap();
    leases.hold_again(KEY, A);
    assert!(leases.listens(A, RecallClass::Other, number));
    assert!(!leases.recall(&KEY, None));
    let (number, _) = leases.take_recall(A, RecallClass::Other).unwrap();
    assert!(leases.listens(A, RecallClass::Other, number));
    assert!(leases.recall(&KEY, None));
}

#[test]
fn what_a_predecessor_may_have_granted_is_recalled_once() {
    let mut leases = Leases::new(Epoch(2), 7, Planted::NONE);
    leases.inherit(A);
    assert!(leases.has_acknowledged());
    assert!(leases.recall(&KEY, Some(A)), "what a client itself changes is not recalled from it");
    assert!(!leases.recall(&KEY, Some(B)));
    let (number, keys) = leases.take_recall(A, RecallClass::Other).unwrap();
    assert_eq!(keys, [KEY]);
    assert!(!leases.listens(A, RecallClass::Other, 1), "a predecessor's number");
    assert!(leases.listens(A, RecallClass::Other, number));
    assert!(leases.recall(&KEY, Some(B)));
    assert!(!leases.recall(&LeaseKey::Attr(Ino(9)), Some(B)), "of another object");
    assert!(leases.hold(KEY, A) && !leases.recall(&KEY, Some(B)), "granted anew");
}

#[test]
fn pages_of_a_predecessor_do_not_hold_up_attributes() {
    let mut leases = Leases::new(Epoch(2), 7, Planted::NONE);
    leases.inherit(A);
    assert!(!leases.recall(&LeaseKey::Pages(Ino::ROOT), None) && !leases.recall(&KEY, None));
    assert!(!leases.listens(A, RecallClass::Other, 0));
    assert_eq!(leases.take_recall(A, RecallClass::Other).unwrap().1, [KEY]);
    assert!(leases.take_recall(A, RecallClass::Other).is_none(), "not before it listens for pages");
}

#[test]
fn names_of_a_predecessor_are_dropped_together() {
    let name = |name: &[u8]| LeaseKey::Name(Ino::ROOT, FileName::new(name).unwrap());
    let mut leases = Leases::new(Epoch(2), 7, Planted::NONE);
    leases.inherit(A);
    assert!(!leases.recall(&name(b"a"), None));
    let (number, _) = leases.take_recall(A, RecallClass::Other).unwrap();
    assert!(leases.listens(A, RecallClass::Other, number));
    assert!(leases.recall(&name(b"a"), None) && leases.recall(&name(b"b"), None));
    assert!(!leases.recall(&KEY, None), "attributes are not names");
    leases.forget_client(A);
    assert!(leases.recall(&KEY, None));
}

#[test]
fn attributes_are_not_behind_pages() {
    let mut leases = Leases::new(Epoch(1), 7, Planted::NONE);
    let pages = LeaseKey::Pages(Ino::ROOT);
    assert!(leases.hold(KEY, A) && leases.hold(pages.clone(), A));
    assert!(!leases.recall(&pages, None));
    assert!(leases.take_recall(A, RecallClass::Other).is_none(), "not before it listens for pages");
    let (number, keys) = leases.take_recall(A, RecallClass::Pages).unwrap();
    assert_eq!(keys, std::slice::from_ref(&pages));
    leases.hold_again(pages.clone(), A);
    assert!(!leases.recall(&KEY, None));
    let (other, keys) = leases.take_recall(A, RecallClass::Other).unwrap();
    assert_eq!(keys, [KEY], "seed 54000007573");
    assert!(leases.listens(A, RecallClass::Other, other) && leases.recall(&KEY, None));
    assert!(!leases.recall(&pages, None), "the pages are not dropped yet");
    assert!(leases.listens(A, RecallClass::Pages, number) && !leases.recall(&pages, None));
    let (number, _) = leases.take_recall(A, RecallClass::Pages).unwrap();
    assert!(leases.listens(A, RecallClass::Pages, number) && leases.recall(&pages, None));
}

#[test]
fn what_was_overtaken_is_settled_by_the_last_acknowledgement() {
    let mut leases = Leases::new(Epoch(1), 7, Planted::NONE);
    let (ino, pages) = (Ino::ROOT, LeaseKey::Pages(Ino::ROOT));
    assert!(leases.hold(pages.clone(), A) && leases.hold(pages.clone(), B));
    assert!(!leases.overtakes(ino, A), "its own are not recalled");
    assert!(!leases.recall(&pages, Some(B)) && !leases.recall(&pages, Some(A)));
    assert!(!leases.overtakes(ino, A), "no task waits for them");
    assert!(leases.await_pages(ino, Some(B)) && !leases.await_pages(ino, Some(B)));
    assert!(leases.overtakes(ino, A) && leases.has_overtaken(ino, A));
    leases.listens(B, RecallClass::Pages, 0);
    let (number, _) = leases.take_recall(B, RecallClass::Pages).unwrap();
    leases.hold_again(pages.clone(), B);
    leases.listens(B, RecallClass::Pages, number);
    assert!(leases.has_overtaken(ino, A), "it has read during the recall");
    let (number, _) = leases.take_recall(B, RecallClass::Pages).unwrap();
    leases.listens(B, RecallClass::Pages, number);
    assert!(!leases.has_overtaken(ino, A));
}

#[test]
fn what_a_predecessor_let_overtake_is_recalled_by_a_lock() {
    let mut leases = Leases::new(Epoch(2), 7, Planted::NONE);
    let pages = LeaseKey::Pages(Ino::ROOT);
    leases.inherit(A);
    assert!(leases.recall_inherited(&pages, |client| client == B));
    assert!(!leases.recall_inherited(&pages, |client| client == A));
    let (number, _) = leases.take_recall(A, RecallClass::Pages).unwrap();
    leases.listens(A, RecallClass::Pages, number);
    assert!(leases.recall_inherited(&pages, |client| client == A));
}
