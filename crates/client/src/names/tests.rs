use std::cell::Cell;

use warren_base::{CellId, Errno, FileKind};
use warren_proto::{AccessMode, CreateFlags, DirEntry, Lease, NewInode, RenameFlags};

use super::*;

const DIR: Ino = Ino(9);
const STAMP: u64 = 7;

/// One word.
struct Word(Cell<u64>);

impl Words for Word {
    fn load(&self, _: CellId, _: u32) -> u64 {
        self.0.get()
    }
}

fn name(name: &str) -> FileName {
    FileName::new(name.as_bytes()).expect("a legal name")
}

fn lease(stamp: u64) -> Option<Guard> {
    Guard::new(CellId(0), Lease { word: 0, stamp })
}

fn entries(names: &[&str]) -> DirEntries {
    let entry = |(cookie, of): (u64, &&str)| DirEntry {
        ino: Ino(1),
        kind: FileKind::Regular,
        cookie,
        name: name(of),
    };
    (1..).zip(names).map(entry).collect()
}

fn create(of: &str) -> Request {
    let (new, access) = (NewInode::regular(0o644), AccessMode::READ);
    Request::Create { dir: DIR, name: name(of), new, flags: CreateFlags::EXCLUSIVE, access }
}

fn unlink(of: &str) -> Request {
    Request::Unlink { dir: DIR, name: name(of) }
}

/// The names of a directory, until its first page is requested.
fn asking() -> (KnownNames, Page) {
    let mut known = KnownNames::new(3);
    assert_eq!(known.missed(DIR), None);
    let page = known.missed(DIR).expect("the second miss");
    assert_eq!(known.missed(DIR), None, "it is requested already");
    (known, page)
}

fn whole(names: &[&str]) -> (KnownNames, Word) {
    let (mut known, page) = asking();
    known.listed(page, &entries(names), true, lease(STAMP));
    (known, Word(Cell::new(STAMP)))
}

fn is_absent(known: &mut KnownNames, word: &Word, of: &str) -> bool {
    known.is_absent(DIR, &name(of), word)
}

#[test]
fn a_name_is_absent_if_it_was_not_listed_and_while_the_lease_lasts() {
    let (mut known, word) = whole(&["a", "b"]);
    assert!(!is_absent(&mut known, &word, "a"));
    assert!(is_absent(&mut known, &word, "c"));
    assert!(!known.is_absent(Ino(10), &name("c"), &word), "another directory");
    word.0.set(0);
    assert!(!is_absent(&mut known, &word, "c"));
    word.0.set(STAMP);
    assert!(!is_absent(&mut known, &word, "c"), "it was forgotten");
    assert_eq!(known.names, 0);
}

#[test]
fn own_changes_are_followed() {
    let (mut known, word) = whole(&["a"]);
    known.begin(&create("b"));
    assert!(!is_absent(&mut known, &word, "b"), "also while it is under way");
    known.end(&create("b"), &Err(Errno::EIO));
    assert!(!is_absent(&mut known, &word, "b"), "it may have happened");
    known.begin(&unlink("b"));
    known.end(&unlink("b"), &Err(Errno::ENOENT));
    assert!(!is_absent(&mut known, &word, "b"), "nothing was removed");
    known.begin(&unlink("b"));
    assert!(!is_absent(&mut known, &word, "b"));
    known.end(&unlink("b"), &Ok(Reply::Done));
    assert!(is_absent(&mut known, &word, "b"));
}

#[test]
fn a_rename_removes_a_name_only_if_it_changed_something() {
    let rename = |flags| {
        let (from, from_name) = (DIR, name("a"));
        Request::Rename { from, from_name, dir: DIR, name: name("b"), flags }
    };
    for (flags, answer, is_gone) in [
        (RenameFlags::empty(), Ok(Reply::Done), true),
        (RenameFlags::empty(), Ok(Reply::Unchanged), false),
        (RenameFlags::EXCHANGE, Ok(Reply::Done), false),
    ] {
        let (mut known, word) = whole(&["a"]);
        assert!(is_absent(&mut known, &word, "b"));
        known.begin(&rename(flags));
        known.end(&rename(flags), &answer);
        assert_eq!(is_absent(&mut known, &word, "a"), is_gone);
        assert!(!is_absent(&mut known, &word, "b"));
        assert!(known.under_way.is_empty());
    }
}

#[test]
fn a_name_that_may_have_been_created_meanwhile_stays() {
    for create_first in [false, true] {
        let (mut known, word) = whole(&["a"]);
        let (first, second) =
            if create_first { (create("a"), unlink("a")) } else { (unlink("a"), create("a")) };
        known.begin(&first);
        known.begin(&second);
        known.end(&create("a"), &Ok(Reply::Done));
        known.end(&unlink("a"), &Ok(Reply::Done));
        assert!(!is_absent(&mut known, &word, "a"));
    }
}

#[test]
fn two_removals_of_a_name_do_not_hide_what_was_created_between_them() {
    let (mut known, word) = whole(&["a"]);
    known.begin(&unlink("a"));
    // It is carried out, but its answer comes late.
    known.begin(&create("a"));
    known.end(&create("a"), &Ok(Reply::Done));
    for _ in 0..2 {
        known.begin(&unlink("a"));
        known.end(&unlink("a"), &Err(Errno::EACCES));
    }
    known.begin(&unlink("a"));
    known.end(&unlink("a"), &Ok(Reply::Done));
    assert!(!is_absent(&mut known, &word, "a"), "the first one may have been answered");
    known.end(&unlink("a"), &Ok(Reply::Done));
    assert!(!is_absent(&mut known, &word, "a"), "the first one");
    known.begin(&unlink("a"));
    known.end(&unlink("a"), &Ok(Reply::Done));
    assert!(is_absent(&mut known, &word, "a"));
}

#[test]
fn names_under_way_when_the_listing_begins_count() {
    let mut known = KnownNames::new(3);
    known.begin(&create("late"));
    known.missed(DIR);
    let page = known.missed(DIR).expect("the second miss");
    known.end(&create("late"), &Ok(Reply::Done));
    known.listed(page, &entries(&[]), true, lease(STAMP));
    let word = Word(Cell::new(STAMP));
    assert!(!is_absent(&mut known, &word, "late"));
    assert!(is_absent(&mut known, &word, "other"));
}

#[test]
fn a_listing_continues_with_each_miss_under_one_lease() {
    let (mut known, first) = asking();
    let word = Word(Cell::new(STAMP));
    known.listed(first, &entries(&["a", "b"]), false, lease(STAMP));
    assert!(!is_absent(&mut known, &word, "x"), "it may be on the next page");
    let second = known.missed(DIR).expect("the next page");
    assert_eq!(second.cookie, 2);
    known.listed(second, &entries(&[]), true, lease(STAMP));
    assert!(is_absent(&mut known, &word, "x"));

    let (mut known, first) = asking();
    known.listed(first, &entries(&["a"]), false, lease(STAMP));
    let second = known.missed(DIR).expect("the next page");
    known.listed(second, &entries(&[]), true, lease(STAMP + 1));
    assert!(known.dirs.is_empty(), "names may have been added to the first page");
}

#[test]
fn a_page_of_an_earlier_listing_is_ignored() {
    let (mut known, old) = asking();
    known.not_listed(old);
    known.missed(DIR);
    let new = known.missed(DIR).expect("the second miss");
    known.listed(old, &entries(&[]), true, lease(STAMP));
    let word = Word(Cell::new(STAMP));
    assert!(!is_absent(&mut known, &word, "x"));
    known.listed(new, &entries(&["x"]), true, lease(STAMP));
    assert!(!is_absent(&mut known, &word, "x"));
    assert!(is_absent(&mut known, &word, "y"));
}

#[test]
fn nothing_is_learned_while_requests_of_a_predecessor_are_under_way() {
    let mut known = KnownNames::new(3);
    known.wait_for(2);
    for _ in 0..2 {
        assert!(known.missed(DIR).is_none() && known.missed(DIR).is_none());
        known.waited();
    }
    known.missed(DIR);
    assert!(known.missed(DIR).is_some());
}

#[test]
fn a_page_without_a_lease_or_without_progress_ends_the_listing() {
    let page_of = |names: &[&str], end, lease| {
        let (mut known, page) = asking();
        known.listed(page, &entries(names), end, lease);
        known.dirs.len()
    };
    assert_eq!(page_of(&["a"], false, lease(STAMP)), 1);
    assert_eq!(page_of(&["a"], false, None), 0);
    assert_eq!(page_of(&["a"], false, lease(0)), 0, "an acknowledged lease");
    assert_eq!(page_of(&[], false, lease(STAMP)), 0);
}

#[test]
fn the_oldest_directories_make_room() {
    let mut known = KnownNames::new(3);
    for dir in 1..=DIRS_MAX as u64 + 5 {
        known.missed(Ino(dir));
    }
    assert!(known.dirs.len() <= DIRS_MAX && known.order.len() == known.dirs.len());
    assert!(!known.dirs.contains_key(&Ino(1)));
    let many: Vec<String> = (0..NAMES_OF_ONE_MAX + 1).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let last = Ino(DIRS_MAX as u64 + 5);
    let page = known.missed(last).expect("the second miss");
    known.listed(page, &entries(&many), true, lease(STAMP));
    assert!(!known.dirs.contains_key(&last) && known.names == 0);
}
