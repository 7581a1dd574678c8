//! Transactions of a cell with a peer: when each participant and the client are answered.

use warren_base::{Ino, Lsn, Timestamp, TxnId};
use warren_cell::PeerBody;
use warren_pool::PoolMessage;
use warren_proto::{
    AccessMode, Attr, Change, FileKind, InodeValue, KeyValue, LockKey, Opened, PeerReply,
    PeerRequest, RenameFlags, Reply, Request,
};

use crate::bench::*;

/// A directory and a file of the peer's.
const THERE: Ino = Ino(2 << 48 | 1);
const FILE_THERE: Ino = Ino(2 << 48 | 2);

fn bench_with_peer() -> Bench {
    let mut bench = Bench::new(&Image::new(), true);
    bench.hear(PeerBody::Pool(PoolMessage::Hello));
    bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    bench
}

fn value(key: LockKey) -> (LockKey, KeyValue) {
    let value = match &key {
        LockKey::Inode(ino) => {
            let kind = if *ino == THERE { FileKind::Directory } else { FileKind::Regular };
            let time = Timestamp(5);
            let attr = Attr {
                ino: *ino,
                kind,
                mode: 0o755,
                nlink: 2,
                uid: 0,
                gid: 0,
                rdev: 0,
                size: 0,
                blocks: 0,
                atime: time,
                mtime: time,
                ctime: time,
                btime: time,
                flags: warren_base::InodeFlags::empty(),
            };
            KeyValue::Inode(Some(InodeValue { attr, parent: Ino::ROOT, entries: 0, acl: None }))
        }
        LockKey::Name(..) => KeyValue::Name(Some((FILE_THERE, FileKind::Regular))),
        LockKey::Logged(_) => KeyValue::Logged,
        LockKey::Tree | LockKey::New(_) => panic!("{key:?} is not asked for"),
    };
    (key, value)
}

/// The peer prepares every request. Returns the changes that it receives in the end.
fn prepare_all(bench: &mut Bench) -> (TxnId, Vec<Change>) {
    prepare_all_at(bench, Lsn(0))
}

/// The same, where the peer's log ends at `lsn`.
fn prepare_all_at(bench: &mut Bench, lsn: Lsn) -> (TxnId, Vec<Change>) {
    loop {
        let mut is_asked = false;
        for body in std::mem::take(&mut bench.sent) {
            match body {
                PeerBody::Request(PeerRequest::Prepare { txn, keys, .. }) => {
                    let keys = keys.into_iter().map(|(key, _)| key);
                    let values = keys.map(value).collect();
                    bench.hear_at(lsn, PeerBody::Reply(PeerReply::Prepared { txn, values }));
                    is_asked = true;
                }
                PeerBody::Request(PeerRequest::Commit { txn, changes }) => return (txn, changes),
                _ => {}
            }
        }
        assert!(is_asked, "nothing is decided");
    }
}

#[test]
fn a_change_of_another_cells_entry_is_answered_when_it_is_made() {
    let mut bench = bench_with_peer();
    let rename = Request::Rename {
        from: THERE,
        from_name: name("lost"),
        dir: Ino::ROOT,
        name: name("found"),
        flags: RenameFlags::empty(),
    };
    assert_eq!(bench.ask(rename), None);
    let (txn, changes) = prepare_all(&mut bench);
    assert!(changes.iter().any(Change::is_of_entry));
    assert!(bench.answers.is_empty(), "the peer may not have made it");
    let look = Request::Lookup { dir: Ino::ROOT, name: name("found") };
    assert_eq!(bench.ask(look), None, "no client sees it sooner");
    bench.hear(PeerBody::Reply(PeerReply::Committed { txn }));
    let answers: Vec<_> = std::mem::take(&mut bench.answers).into_values().collect();
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0], Ok(Reply::Done));
    assert!(matches!(answers[1], Ok(Reply::Entry(_))), "{answers:?}");
}

#[test]
fn a_change_of_another_cells_inode_is_answered_at_once() {
    let mut bench = bench_with_peer();
    let link = Request::Link { ino: FILE_THERE, dir: Ino::ROOT, name: name("l") };
    assert_eq!(bench.ask(link), None);
    let (_, changes) = prepare_all(&mut bench);
    assert!(!changes.is_empty() && !changes.iter().any(Change::is_of_entry));
    let answers: Vec<_> = std::mem::take(&mut bench.answers).into_values().collect();
    assert!(matches!(answers[..], [Ok(Reply::Entry(_))]), "{answers:?}");
}

/// The checkpoint frees the record that names the peer's log, so a later record must name it again.
/// Otherwise a recovery would keep a decision that depends on a lost part of the peer's log (crash
/// seed 52000005032).
#[test]
fn what_rests_on_a_peer_names_it_again_after_a_checkpoint() {
    let mut bench = bench_with_peer();
    let there = Lsn(4200);
    let opened = bench.call(Request::Open { ino: FILE, access: AccessMode::WRITE });
    let Ok(Reply::Opened(Opened { handle, .. })) = opened else { panic!("{opened:?}") };
    bench.hear_at(there, PeerBody::Request(PeerRequest::AllSaid { is_repeated: false }));
    bench.call(create(Ino::ROOT, "before", FileKind::Regular)).unwrap();
    bench.begin_checkpoint();
    bench.sent.clear();
    let link = Request::Link { ino: FILE_THERE, dir: Ino::ROOT, name: name("l") };
    assert_eq!(bench.ask(link), None);
    prepare_all_at(&mut bench, there);
    let fsync = Request::Fsync { ino: FILE, handle: Some(handle), data_only: false };
    assert_eq!(bench.ask(fsync), None, "the peer's log may not be durable");
    assert_eq!(bench.sent, [PeerBody::Request(PeerRequest::Harden { lsn: there })]);
}
