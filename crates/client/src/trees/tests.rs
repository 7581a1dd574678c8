use alloc::boxed::Box;

use warren_base::{Errno, Timestamp};
use warren_proto::stream::{Numbered, Numbers};
use warren_proto::{AccessMode, Answer, Handle, NewInode, RenameFlags, SetAttr};

use super::*;
use crate::guard::Words;
use crate::tree::Missing;

const CELL: CellId = CellId(1);
const DIR: Ino = Ino(5);
const NOW: Timestamp = Timestamp(100);
const STAMP: u64 = 7;

/// All words have this stamp.
struct Same(u64);

impl Words for Same {
    fn load(&self, _: CellId, _: u32) -> u64 {
        self.0
    }
}

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).expect("a legal name")
}

fn who(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, ..Credentials::default() }
}

fn numbers(first: u64, count: u64) -> Numbers {
    let each = |at| Numbered { capability: Capability(at), opens: Lease { word: 9, stamp: at } };
    Numbers { first: Ino(first), each: (1..=count).map(each).collect() }
}

/// The delegation of a directory with so many names.
fn delegated(entries: u64, stamp: u64, continues: bool) -> Delegated {
    let new = names::predict::new_inode(DIR, &NewInode::directory(0o755), 10, 10, Ino(1), NOW);
    let (continues, numbers) = (continues.then_some(STAMP), numbers(50, 2));
    let tree = DelegatedTree { root: DIR, entries, continues, has_made: false, numbers };
    let lease = Lease { word: 3, stamp };
    Delegated { attr: new.attr, lease, credit: 100, tree: Some(Box::new(tree)) }
}

fn create(text: &str) -> Request {
    let (new, access) = (NewInode::regular(0o644), AccessMode::WRITE | AccessMode::SOLE);
    let flags = CreateFlags::OPEN | CreateFlags::EXCLUSIVE;
    Request::Create { dir: DIR, name: name(text), new, flags, access }
}

fn unlink(text: &str) -> Request {
    Request::Unlink { dir: DIR, name: name(text) }
}

/// Keeps what comes with the reply to a request that has failed: it shows no new name.
fn keep(trees: &mut Trees, delegated: &Delegated) {
    let (request, answered) = (create("other"), Answered::from(Err(Errno::EEXIST)));
    let tree = delegated.tree.as_deref().expect("a tree");
    trees.keep(CELL, (&request, &answered), delegated, tree);
}

fn tree_of(entries: u64) -> Trees {
    let mut trees = Trees::default();
    keep(&mut trees, &delegated(entries, STAMP, false));
    trees
}

/// Posts the change, and returns its answer. `None` if it must be requested.
fn post(trees: &mut Trees, request: &Request) -> Option<Answer> {
    let post = trees.plan(request, (&who(10), NOW), &Same(STAMP))?;
    if post.answer.is_ok() {
        trees.note_published(&post);
    }
    Some(post.answer)
}

fn created(answer: Option<Answer>) -> Ino {
    match answer {
        Some(Ok(Reply::Created { entry, opened: Some(opened) })) => {
            assert_eq!(opened.handle, Handle { ino: entry.ino, open: Handle::BORN });
            entry.ino
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_change_sees_those_before_it() {
    let mut trees = tree_of(0);
    assert_eq!(post(&mut trees, &unlink("a")), Some(Err(Errno::ENOENT)));
    assert_eq!(created(post(&mut trees, &create("a"))), Ino(50));
    assert_eq!(post(&mut trees, &create("a")), Some(Err(Errno::EEXIST)));
    let found = trees.name_for(&who(10), DIR, b"a").expect("it is known").0;
    let found = found.expect("it is there").0;
    assert_eq!((found.ino, found.capability), (Ino(50), Capability(1)));
    assert_eq!(trees.attr(Ino(50)).map(|(attr, _)| (attr.nlink, attr.uid)), Some((1, 10)));
    assert_eq!(post(&mut trees, &unlink("a")), Some(Ok(Reply::Done)));
    assert!(trees.name_for(&who(10), DIR, b"a").expect("it is known").0.is_none());
    assert_eq!(trees.attr(Ino(50)), None);
    assert_eq!(created(post(&mut trees, &create("a"))), Ino(51), "no number is used twice");
}

#[test]
fn numbers_and_credit_are_used_up_and_extended() {
    let mut trees = tree_of(0);
    created(post(&mut trees, &create("a")));
    created(post(&mut trees, &create("b")));
    assert_eq!(post(&mut trees, &create("c")), None, "there is no number");
    let more = |stamp| {
        let tree = DelegatedTree {
            root: DIR,
            entries: 0,
            continues: Some(STAMP),
            has_made: false,
            numbers: numbers(70, 2),
        };
        Delegated { tree: Some(Box::new(tree)), credit: 8, ..delegated(0, stamp, true) }
    };
    trees.extended(DIR, Some(&more(STAMP + 1)));
    assert_eq!(post(&mut trees, &create("c")), None, "it is for another lease");
    trees.extended(DIR, Some(&more(STAMP)));
    assert_eq!(created(post(&mut trees, &create("c"))), Ino(70));
    let mut trees = Trees::default();
    keep(&mut trees, &Delegated { credit: 16, ..delegated(0, STAMP, false) });
    created(post(&mut trees, &create("a")));
    assert_eq!(post(&mut trees, &unlink("a")), Some(Ok(Reply::Done)));
    assert_eq!(post(&mut trees, &create("a")), None, "there is no credit");
}

#[test]
fn names_of_an_older_directory_are_known_once_they_are_listed() {
    let mut trees = tree_of(2);
    assert_eq!(post(&mut trees, &create("a")), None);
    assert_eq!(trees.next_page(DIR), Some(0));
    let mut entries = DirEntries::new();
    entries.push(Ino(9), FileKind::Regular, 4, b"old").expect("there is room");
    trees.listed((DIR, 0), &entries, false);
    assert_eq!(trees.next_page(DIR), Some(4));
    trees.listed((DIR, 0), &entries, true);
    assert_eq!(trees.next_page(DIR), Some(4), "another page");
    trees.listed((DIR, 4), &DirEntries::new(), true);
    assert_eq!(trees.next_page(DIR), None);
    created(post(&mut trees, &create("a")));
    assert_eq!(post(&mut trees, &unlink("old")), None, "only its cell knows the inode");
    assert_eq!(trees.name_for(&who(10), DIR, b"old"), None);
    let mut trees = tree_of(2);
    trees.not_listed(DIR);
    assert_eq!((trees.next_page(DIR), post(&mut trees, &create("a"))), (None, None));
}

#[test]
fn a_caller_without_the_right_to_search_asks_the_cell() {
    let mut trees = tree_of(0);
    created(post(&mut trees, &create("a")));
    trees.node_mut(DIR).and_then(|node| node.value.as_mut()).expect("known").attr.mode = 0o700;
    assert!(trees.name_for(&who(10), DIR, b"a").is_some());
    assert_eq!(trees.name_for(&who(11), DIR, b"a"), None);
}

#[test]
fn a_request_pauses_the_tree_until_its_reply_continues_it() {
    let mut trees = tree_of(0);
    created(post(&mut trees, &create("a")));
    let request = create("b");
    trees.begin(&request);
    assert_eq!(post(&mut trees, &create("c")), None);
    let next = delegated(1, STAMP, true);
    let mut answered = Answered::from(Err(Errno::EIO));
    answered.delegated = Some(Box::new(next.clone()));
    trees.end(&request, &answered);
    keep(&mut trees, &next);
    assert_eq!(post(&mut trees, &unlink("a")), Some(Ok(Reply::Done)), "it is still a member");
    trees.begin(&request);
    trees.end(&request, &Answered::from(Err(Errno::EIO)));
    assert!(trees.find(DIR).is_none(), "nothing continues it");
}

#[test]
fn a_tree_is_not_continued_beside_another_request() {
    let mut trees = tree_of(0);
    let (first, second) = (create("a"), create("b"));
    trees.begin(&first);
    trees.begin(&second);
    let next = delegated(1, STAMP, true);
    let mut answered = Answered::from(Err(Errno::EIO));
    answered.delegated = Some(Box::new(next.clone()));
    trees.end(&first, &answered);
    keep(&mut trees, &next);
    assert!(trees.find(DIR).is_none());
}

#[test]
fn a_tree_is_continued_only_from_the_lease_before() {
    let mut trees = tree_of(0);
    let (first, second) = (create("a"), create("b"));
    trees.begin(&first);
    trees.begin(&second);
    let mut reply = |request: &Request, entries: u64, stamp: u64| {
        let mut next = delegated(entries, stamp, true);
        next.tree.as_mut().expect("a tree").continues = Some(stamp - 1);
        let mut answered = Answered::from(Err(Errno::EIO));
        answered.delegated = Some(Box::new(next.clone()));
        trees.end(request, &answered);
        keep(&mut trees, &next);
    };
    // The replies come in another order.
    reply(&second, 2, STAMP + 2);
    reply(&first, 0, STAMP + 1);
    let third = unlink("c");
    trees.begin(&third);
    let mut next = delegated(2, STAMP + 3, true);
    next.tree.as_mut().expect("a tree").continues = Some(STAMP + 2);
    trees.end(&third, &Answered::from(Ok(Reply::Done)));
    keep(&mut trees, &next);
    assert!(trees.find(DIR).is_some());
    assert_eq!(trees.next_page(DIR), Some(0), "the names are not known");
}

#[test]
fn a_lease_that_does_not_hold_ends_the_tree() {
    let mut trees = tree_of(0);
    assert!(trees.plan(&create("a"), (&who(10), NOW), &Same(STAMP + 1)).is_none());
    assert!(trees.find(DIR).is_none());
    let mut trees = tree_of(0);
    let (_, _, guard) = trees.find(DIR).expect("a tree");
    trees.lose(guard);
    assert!(trees.find(DIR).is_none());
}

/// The reply to a look-up of an older file of 10, whose attributes come under this lease.
fn older(ino: u64, lease: Option<Lease>) -> Entry {
    let new = names::predict::new_inode(Ino(ino), &NewInode::regular(0o644), 10, 10, DIR, NOW);
    let tree = Some(Lease { word: 3, stamp: STAMP });
    Entry { ino: Ino(ino), kind: FileKind::Regular, lease: tree, attr: Some((new.attr, lease)) }
}

#[test]
fn older_files_are_changed_once_they_were_looked_up() {
    let mut trees = tree_of(2);
    let tree = Some(Lease { word: 3, stamp: STAMP });
    let found = |trees: &mut Trees, text, entry| {
        trees.found(CELL, (DIR, &name(text)), &entry, Capability(9))
    };
    assert_eq!(post(&mut trees, &unlink("old")), None);
    assert_eq!(trees.missing(&unlink("old")), Some(Missing::Name(DIR, name("old"))));
    assert_eq!(trees.missing(&create("new")), Some(Missing::Names(DIR)));
    // While a file is being opened its size may change.
    let open = Request::Open { ino: Ino(8), access: AccessMode::WRITE };
    trees.begin(&open);
    assert!(found(&mut trees, "old", older(8, tree)));
    trees.end(&open, &Answered::from(Err(Errno::EACCES)));
    assert_eq!(post(&mut trees, &unlink("old")), None);
    let named = trees.name_for(&who(10), DIR, b"old").expect("it is known").0;
    assert_eq!(named.map(|(inode, _)| inode.ino), Some(Ino(8)));
    // Any other lease says that the file is no member.
    let mut trees = tree_of(2);
    assert!(found(&mut trees, "other", older(9, Some(Lease { word: 4, stamp: STAMP }))));
    assert_eq!((post(&mut trees, &unlink("other")), trees.missing(&unlink("other"))), (None, None));
    assert!(found(&mut trees, "old", older(8, tree)));
    assert_eq!(trees.attr(Ino(8)).map(|(attr, _)| attr.uid), Some(10));
    assert_eq!(post(&mut trees, &unlink("old")), Some(Ok(Reply::Done)));
    assert_eq!(trees.attr(Ino(8)), None);
    // A reply from before the present lease shows nothing.
    let mut trees = Trees::default();
    keep(&mut trees, &delegated(2, STAMP + 1, false));
    assert!(!found(&mut trees, "old", older(8, tree)));
}

#[test]
fn a_tree_that_was_forgotten_begins_again() {
    let mut trees = tree_of(0);
    created(post(&mut trees, &create("a")));
    trees.forget(DIR);
    keep(&mut trees, &delegated(1, STAMP, true));
    assert_eq!(post(&mut trees, &unlink("a")), None, "it is not known any more");
    assert_eq!(trees.missing(&create("b")), Some(Missing::Names(DIR)));
    trees.listed((DIR, 0), &DirEntries::new(), true);
    created(post(&mut trees, &create("b")));
}

fn set_mode(ino: Ino) -> Request {
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    Request::SetAttr { ino, handle: None, set }
}

#[test]
fn answers_may_be_older_than_posts_and_other_requests() {
    let mut trees = tree_of(0);
    let (look, change) = (Request::GetAttr { ino: DIR }, set_mode(Ino(8)));
    let sent = trees.moment();
    created(post(&mut trees, &create("a")));
    assert_ne!(Trees::end_of(&look, sent), trees.moment(), "a post has overtaken it");
    let sent = trees.moment();
    trees.begin(&look);
    trees.end(&look, &Answered::from(Err(Errno::EIO)));
    assert_eq!(Trees::end_of(&look, sent), trees.moment());
    trees.begin(&change);
    let during = trees.moment();
    trees.end(&change, &Answered::from(Err(Errno::EIO)));
    assert_eq!(Trees::end_of(&change, sent), trees.moment(), "nothing but itself");
    for sent in [sent, during] {
        assert_ne!(Trees::end_of(&look, sent), trees.moment(), "sent before, or meanwhile");
    }
    let sent = trees.moment();
    keep(&mut trees, &delegated(1, STAMP + 1, false));
    assert_ne!(Trees::end_of(&look, sent), trees.moment(), "another tree");
}

#[test]
fn a_member_that_comes_during_a_change_is_as_it_was_before() {
    let mut trees = tree_of(2);
    let (change, tree) = (set_mode(Ino(8)), Some(Lease { word: 3, stamp: STAMP }));
    trees.begin(&change);
    assert!(trees.found(CELL, (DIR, &name("old")), &older(8, tree), Capability(9)));
    trees.end(&change, &Answered::from(Err(Errno::EIO)));
    keep(&mut trees, &delegated(2, STAMP, true));
    assert_eq!(trees.attr(Ino(8)), None);
    assert_eq!(post(&mut trees, &unlink("old")), None);
}

#[test]
fn attributes_that_a_request_has_set_are_those_of_the_reply() {
    let mut trees = tree_of(0);
    let ino = created(post(&mut trees, &create("a")));
    let (change, mut attr) = (set_mode(ino), trees.attr(ino).expect("known").0);
    trees.begin(&change);
    trees.end(&change, &Answered::from(Err(Errno::EIO)));
    keep(&mut trees, &delegated(1, STAMP, true));
    assert_eq!(trees.attr(ino), None);
    attr.mode = 0o600;
    trees.note_set(&attr, Ino(77));
    assert_eq!(trees.attr(ino), None, "another tree");
    trees.note_set(&attr, DIR);
    assert_eq!(trees.attr(ino).map(|(attr, _)| attr.mode), Some(0o600));
    assert_eq!(post(&mut trees, &unlink("a")), Some(Ok(Reply::Done)));
}

/// A request in a slot, which succeeds. The reply brings the lease of the tree.
fn request(trees: &mut Trees, request: &Request) {
    trees.begin(request);
    let next = delegated(1, STAMP, true);
    let mut answered = Answered::from(Ok(Reply::Done));
    answered.delegated = Some(Box::new(next.clone()));
    trees.end(request, &answered);
    keep(trees, &next);
}

fn rename(from_name: &str, to: &str) -> Request {
    let (from_name, name) = (name(from_name), name(to));
    Request::Rename { from: DIR, from_name, dir: DIR, name, flags: RenameFlags::empty() }
}

#[test]
fn a_directory_without_a_known_name_may_be_what_a_request_has_moved() {
    let mut trees = tree_of(0);
    // The reply to a request in a directory of the tree that the client has not looked up.
    let below = Attr { ino: Ino(60), ..delegated(0, STAMP, true).attr };
    keep(&mut trees, &Delegated { attr: below, ..delegated(0, STAMP, true) });
    assert!(trees.attr(Ino(60)).is_some());
    request(&mut trees, &rename("below", "elsewhere"));
    assert_eq!(trees.attr(Ino(60)), None);
}

#[test]
fn a_file_that_a_request_has_linked_may_be_what_another_has_removed() {
    let mut trees = tree_of(0);
    let ino = created(post(&mut trees, &create("a")));
    let attr = trees.attr(ino).expect("known").0;
    request(&mut trees, &Request::Link { ino, dir: DIR, name: name("b") });
    assert_eq!(trees.attr(ino), None);
    trees.note_set(&Attr { nlink: 2, ..attr }, DIR);
    assert!(trees.attr(ino).is_some());
    request(&mut trees, &unlink("b"));
    assert_eq!(trees.attr(ino), None);
}

#[test]
fn the_names_in_a_directory_that_a_request_has_moved_are_not_known() {
    let mut trees = tree_of(0);
    let new = NewInode::directory(0o755);
    let (flags, access) = (CreateFlags::EXCLUSIVE, AccessMode::SOLE);
    let make = Request::Create { dir: DIR, name: name("below"), new, flags, access };
    let Some(Ok(Reply::Created { entry, .. })) = post(&mut trees, &make) else { panic!("posted") };
    let below = entry.ino;
    let Request::Create { name, new, flags, access, .. } = create("file") else { unreachable!() };
    let file = created(post(&mut trees, &Request::Create { dir: below, name, new, flags, access }));
    let attr = trees.attr(file).expect("known").0;
    request(&mut trees, &rename("below", "elsewhere"));
    assert_eq!(trees.attr(below), None);
    trees.note_set(&attr, DIR);
    assert!(trees.attr(file).is_some());
    request(&mut trees, &Request::Unlink { dir: below, name: FileName::new(b"file").unwrap() });
    assert_eq!(trees.attr(file), None);
}
