use warren_proto::stream::Numbers;
use warren_proto::{Lease, NewInode};

use super::*;

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
    let tree =
        DelegatedTree { root: DIR, entries, continues, has_made: false, numbers: numbers(50, 2) };
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
            continues: true,
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
fn a_lease_that_does_not_hold_ends_the_tree() {
    let mut trees = tree_of(0);
    assert!(trees.plan(&create("a"), (&who(10), NOW), &Same(STAMP + 1)).is_none());
    assert!(trees.find(DIR).is_none());
    let mut trees = tree_of(0);
    let (_, _, guard) = trees.find(DIR).expect("a tree");
    trees.lose(guard);
    assert!(trees.find(DIR).is_none());
}
