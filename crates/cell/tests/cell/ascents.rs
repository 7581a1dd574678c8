//! The way from a directory up to the root. Images and peers may make it as long as they like, or a
//! circle.

use warren_base::limits::DEPTH_MAX;
use warren_base::{Errno, Ino};
use warren_cell::PeerBody;
use warren_pool::PoolMessage;
use warren_proto::{
    Answer, Attr, FileKind, InodeValue, PeerReply, PeerRequest, RenameFlags, Reply, Request,
};

use crate::bench::*;

/// Directories of shard 2, which is the peer's, have numbers from here on.
const THERE: u64 = 2 << 48 | 1;

/// A sixth of the steps that `DEPTH_MAX` allows.
const DEEP: u64 = 20_000;

fn into_dir() -> Request {
    let (from, from_name, flags) = (Ino::ROOT, name("sub"), RenameFlags::empty());
    Request::Rename { from, from_name, dir: DIR, name: name("sub"), flags }
}

/// Returns a bench with `/sub`, a directory of this cell.
fn bench_with_sub(image: &mut Image, peers: bool) -> Bench {
    let sub = Ino(1 << 48 | 3);
    image.inode(sub, FileKind::Directory, 2);
    image.part(sub, 0, 0);
    image.entry(Ino::ROOT, "sub", sub, FileKind::Directory);
    image.part(Ino::ROOT, 5, 2);
    let mut bench = Bench::new(image, peers);
    if peers {
        bench.hear(PeerBody::Pool(PoolMessage::Hello));
        bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    }
    bench.sent.clear();
    bench
}

fn directory_there(ino: Ino, parent: Ino) -> InodeValue {
    let Ok(Reply::Attr { attr, .. }) =
        Bench::new(&Image::new(), false).call(Request::GetAttr { ino: DIR })
    else {
        panic!("no attributes")
    };
    InodeValue { attr: Attr { ino, ..attr }, parent, entries: 1, acl: None }
}

/// Sends a request, and answers each peek at an inode of the peer's with the parent that `parent`
/// returns. Returns the answer and the number of peeks.
fn with_peer(
    bench: &mut Bench,
    request: Request,
    parent: impl Fn(Ino) -> Option<Ino>,
) -> (Option<Answer>, u64) {
    let like = directory_there(Ino(THERE), Ino::ROOT);
    let (answer, mut peeks) = (bench.ask(request), 0);
    loop {
        let mut is_asked = false;
        for body in std::mem::take(&mut bench.sent) {
            if let PeerBody::Request(PeerRequest::Peek { txn, ino }) = body {
                (is_asked, peeks) = (true, peeks + 1);
                assert!(peeks < 100_000, "asked for {ino:?} again and again");
                let attr = Attr { ino, ..like.attr };
                let value =
                    parent(ino).map(|parent| InodeValue { attr, parent, entries: 1, acl: None });
                bench.hear(PeerBody::Reply(PeerReply::Peeked { txn, ino, value }));
            }
        }
        if !is_asked {
            let last = bench.answers.pop_last().map(|(_, answer)| answer);
            return (answer.or(last), peeks);
        }
    }
}

#[test]
fn a_circle_of_directories_is_an_error() {
    for around in [DIR, Ino(1 << 48 | 5)] {
        let mut image = Image::new();
        image.inode(around, FileKind::Directory, 2);
        image.part(around, 0, 0);
        image.change(DIR, |inode| inode.parent = around);
        image.change(around, |inode| inode.parent = DIR);
        let mut bench = bench_with_sub(&mut image, false);
        assert_eq!(bench.call(into_dir()), Err(Errno::EIO));
        // The failed rename holds nothing, so other requests continue.
        assert!(bench.call(create(Ino::ROOT, "other", FileKind::Directory)).is_ok());
        let (from, dir, flags) = (Ino::ROOT, around, RenameFlags::empty());
        let (from_name, name) = (name("other"), name("x"));
        let rename = Request::Rename { from, from_name, dir, name, flags };
        assert_eq!(bench.call(rename), Err(Errno::EIO));
    }
}

/// A thousand of the peer's directories, the last of which leads back to the first.
#[test]
fn a_circle_over_cells_is_an_error() {
    let mut image = Image::new();
    image.change(DIR, |inode| inode.parent = Ino(THERE));
    let mut bench = bench_with_sub(&mut image, true);
    let around = |ino: Ino| Some(Ino(THERE + (ino.0 - THERE + 1) % 1000));
    let (answer, peeks) = with_peer(&mut bench, into_dir(), around);
    assert_eq!(answer, Some(Err(Errno::EIO)));
    assert!(peeks < 4000, "{peeks}");
}

#[test]
fn a_deep_directory_costs_each_step_once() {
    let mut image = Image::new();
    image.change(DIR, |inode| inode.parent = Ino(THERE));
    let mut bench = bench_with_sub(&mut image, true);
    let last = THERE + DEEP - 1;
    let up = |ino: Ino| Some(if ino.0 == last { Ino::ROOT } else { Ino(ino.0 + 1) });
    let (answer, peeks) = with_peer(&mut bench, into_dir(), up);
    assert_eq!((answer, peeks), (Some(Ok(Reply::Done)), DEEP));
    assert!(bench.steps_up() < DEEP + 1000, "{} steps", bench.steps_up());
}

/// All directories are on one cell and in memory, and other requests do not wait long.
#[test]
fn a_deep_directory_on_one_cell_costs_each_step_once() {
    let mut bench = bench_with_sub(&mut Image::new(), false);
    let mut dir = DIR;
    for _ in 0..2000 {
        let answer = bench.call(create(dir, "d", FileKind::Directory));
        let Ok(Reply::Created { entry, .. }) = answer else { panic!("{answer:?}") };
        dir = entry.ino;
    }
    let Request::Rename { from, from_name, name, flags, .. } = into_dir() else { unreachable!() };
    let rename = Request::Rename { from, from_name, dir, name, flags };
    assert_eq!(bench.call(rename), Ok(Reply::Done));
    assert!((2000..3000).contains(&bench.steps_up()), "{} steps", bench.steps_up());
    // And a directory must not move below itself.
    let from_name = crate::bench::name("dir");
    let below = Request::Rename { from, from_name, dir, name: crate::bench::name("x"), flags };
    assert_eq!(bench.call(below), Err(Errno::EINVAL));
}

#[test]
fn a_way_without_end_is_given_up() {
    let mut image = Image::new();
    image.change(DIR, |inode| inode.parent = Ino(THERE));
    let mut bench = bench_with_sub(&mut image, true);
    let (answer, peeks) = with_peer(&mut bench, into_dir(), |ino| Some(Ino(ino.0 + 1)));
    assert_eq!((answer, peeks), (Some(Err(Errno::ELOOP)), u64::from(DEPTH_MAX)));
    assert_eq!(bench.call(create(Ino::ROOT, "other", FileKind::Fifo)).map(drop), Ok(()));
}

/// There are two ways up. The first ends at a missing inode, and this end is not looked up again
/// for each step of the second.
#[test]
fn two_ways_cost_each_step_once() {
    let mut image = Image::new();
    image.change(DIR, |inode| inode.parent = Ino(THERE));
    let (other, victim) = (Ino(1 << 48 | 5), Ino(1 << 48 | 6));
    for ino in [other, victim] {
        image.inode(ino, FileKind::Directory, 2);
        image.part(ino, 0, 0);
    }
    image.change(other, |inode| inode.parent = Ino(THERE + 1));
    image.change(victim, |inode| inode.parent = DIR);
    image.entry(DIR, "victim", victim, FileKind::Directory);
    image.part(DIR, 1, 1);
    let moved = Ino(1 << 48 | 7);
    image.inode(moved, FileKind::Directory, 2);
    image.part(moved, 0, 0);
    image.change(moved, |inode| inode.parent = other);
    image.entry(other, "moved", moved, FileKind::Directory);
    image.part(other, 1, 1);
    let mut bench = bench_with_sub(&mut image, true);
    let flags = RenameFlags::empty();
    let (from, from_name, name) = (other, name("moved"), name("victim"));
    let rename = Request::Rename { from, from_name, dir: DIR, name, flags };
    let up = |ino: Ino| match ino.0 - THERE {
        0 => None,
        100 => Some(Ino::ROOT),
        _ => Some(Ino(ino.0 + 1)),
    };
    let (answer, peeks) = with_peer(&mut bench, rename, up);
    assert_eq!((answer, peeks), (Some(Ok(Reply::Done)), 101));
}

/// The cell does not accept an answer to a question that it did not ask, and reports the sender.
#[test]
fn a_peer_that_answers_for_another_inode_is_suspected() {
    let mut image = Image::new();
    image.change(DIR, |inode| inode.parent = Ino(THERE));
    let mut bench = bench_with_sub(&mut image, true);
    assert_eq!(bench.ask(into_dir()), None);
    let [PeerBody::Request(PeerRequest::Peek { txn, .. })] = bench.sent[..] else {
        panic!("{:?}", bench.sent)
    };
    let value = Some(directory_there(Ino(THERE), Ino::ROOT));
    bench.hear(PeerBody::Reply(PeerReply::Peeked { txn, ino: Ino(THERE + 7), value }));
    assert_eq!((bench.answers.pop_last(), bench.suspicions), (None, 1));
}
