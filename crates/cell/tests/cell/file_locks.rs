//! Advisory locks on files of several shards of one cell.

use warren_base::{ClientId, Errno, Ino};
use warren_cell::Event;
use warren_proto::control::Order;
use warren_proto::{
    AccessMode, Answer, ByteRange, FileKind, Handle, LockFlavour, LockOwner, LockSpec, LockType,
    Reply, Request,
};

use crate::bench::*;

const OTHER: ClientId = ClientId(9);
/// A file of shard 1. [`FILE`] is in shard 0.
const FAR: Ino = Ino(1 << 48 | 2);

fn bench() -> Bench {
    let mut image = Image::new();
    image.inode(FAR, FileKind::Regular, 1);
    image.entry(DIR, "far", FAR, FileKind::Regular);
    let mut bench = Bench::new(&image, false);
    bench.admit(OTHER);
    bench
}

fn open(bench: &mut Bench, client: ClientId) -> [Handle; 2] {
    [FILE, FAR].map(|ino| {
        let access = AccessMode::READ | AccessMode::WRITE;
        match bench.ask_as(client, Request::Open { ino, access }) {
            Some(Ok(Reply::Opened(opened))) => opened.handle,
            other => panic!("{other:?}"),
        }
    })
}

/// Requests a record lock, and waits for it.
fn lock(bench: &mut Bench, client: ClientId, handle: Handle, lock: LockType) -> Option<Answer> {
    let (flavour, owner, range) = (LockFlavour::Record, LockOwner(1), ByteRange::ALL);
    let spec = LockSpec { flavour, owner, lock, range, pid: 1 };
    bench.ask_as(client, Request::Lock { handle, spec, wait: true })
}

#[test]
fn a_circle_of_waits_over_two_shards_is_refused() {
    let mut bench = bench();
    let (own, others) = (open(&mut bench, CLIENT), open(&mut bench, OTHER));
    let exclusive = LockType::Exclusive;
    assert_eq!(lock(&mut bench, CLIENT, own[0], exclusive), Some(Ok(Reply::Done)));
    assert_eq!(lock(&mut bench, OTHER, others[1], exclusive), Some(Ok(Reply::Done)));
    assert_eq!(lock(&mut bench, CLIENT, own[1], exclusive), None);
    let refused = lock(&mut bench, OTHER, others[0], LockType::Shared);
    assert_eq!(refused, Some(Err(Errno::EDEADLK)));
    assert_eq!(bench.tasks(), (0, 1));
    assert_eq!(lock(&mut bench, OTHER, others[1], LockType::Unlock), Some(Ok(Reply::Done)));
    let answers: Vec<Answer> = std::mem::take(&mut bench.answers).into_values().collect();
    assert_eq!(answers, [Ok(Reply::Done)], "the first has both");
    assert_eq!(lock(&mut bench, OTHER, others[0], LockType::Shared), None, "no circle any more");
}

#[test]
fn a_client_that_is_expelled_releases_its_locks_in_all_shards() {
    for dies in [false, true] {
        let mut bench = bench();
        bench.grants = false;
        let (own, others) = (open(&mut bench, CLIENT), open(&mut bench, OTHER));
        for handle in others {
            let locked = lock(&mut bench, OTHER, handle, LockType::Exclusive);
            assert_eq!(locked, Some(Ok(Reply::Done)));
        }
        if dies {
            bench.take_over();
            bench.admit(OTHER);
        }
        for handle in own {
            assert_eq!(lock(&mut bench, CLIENT, handle, LockType::Shared), None);
        }
        bench.apply(Event::Order(Order::Expel { client: OTHER }));
        let answers: Vec<Answer> = std::mem::take(&mut bench.answers).into_values().collect();
        assert_eq!(answers, vec![Ok(Reply::Done); 2]);
    }
}
