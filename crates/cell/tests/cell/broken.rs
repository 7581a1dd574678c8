//! A shard that cannot be served is given up alone.

use warren_base::{CellId, ClientId, Errno, Ino, Lsn, ShardId, Timestamp, TxnId};
use warren_cell::PeerBody;
use warren_disk::read_record;
use warren_proto::{
    AccessMode, ByteRange, Change, FileKind, Handle, LockFlavour, LockKey, LockMode, LockOwner,
    LockSpec, LockType, PeerReply, PeerRequest, Position, Reply, Request,
};

use crate::bench::*;

/// No such inode, in shard 1.
const ABSENT: Ino = Ino(1 << 48 | 9);
const TXN: TxnId = TxnId { cell: PEER, seq: 1 };

fn prepare(bench: &mut Bench, txn: TxnId, keys: &[LockKey]) {
    let keys = keys.iter().map(|key| (key.clone(), LockMode::Write)).collect();
    bench.hear(PeerBody::Request(PeerRequest::Prepare { txn, client: CLIENT, keys }));
}

/// A change comes that was decided and cannot be made: shard 1 is given up.
fn break_shard(bench: &mut Bench) {
    let txn = TxnId { seq: 100, ..TXN };
    prepare(bench, txn, &[LockKey::Inode(ABSENT)]);
    let changes = vec![Change::AddLink { ino: ABSENT, now: Timestamp(7) }];
    bench.hear(PeerBody::Request(PeerRequest::Again { txn, changes }));
    assert_eq!(bench.given_up.iter().map(|shard| shard.0).collect::<Vec<_>>(), [1]);
    let committed = PeerBody::Reply(PeerReply::Committed { txn });
    assert!(bench.sent.contains(&committed), "the coordinator need not ask again");
}

/// A new file of the client's, open for reading and writing.
fn file_in(bench: &mut Bench, dir: Ino, name: &str) -> Handle {
    let made = bench.call(create(dir, name, FileKind::Regular)).expect("room");
    let Reply::Created { entry, .. } = made else { panic!("{made:?}") };
    open(bench, CLIENT, entry.ino)
}

fn open(bench: &mut Bench, client: ClientId, ino: Ino) -> Handle {
    let access = AccessMode::READ | AccessMode::WRITE;
    let open = Request::Open { ino, access };
    match bench.ask_as(client, open) {
        Some(Ok(Reply::Opened(opened))) => opened.handle,
        other => panic!("{other:?}"),
    }
}

/// 100 bytes, at the start of the file.
fn write(handle: Handle) -> Request {
    let position = Position::At(0);
    Request::Write { handle, position, kill_privileges: false, write_back: false, direct: false }
}

/// Shard 1 answers EIO, shard 0 serves.
fn assert_one_serves(bench: &mut Bench, name: &str) {
    assert_eq!(bench.call(Request::GetAttr { ino: DIR }), Err(Errno::EIO));
    assert_eq!(bench.call(create(DIR, name, FileKind::Regular)), Err(Errno::EIO));
    assert!(bench.call(Request::GetAttr { ino: FILE }).is_ok());
    assert!(bench.call(create(Ino::ROOT, name, FileKind::Regular)).is_ok());
    assert!(bench.call(Request::ReadDir { dir: Ino::ROOT, cookie: 0, bytes_max: 1000 }).is_ok());
    assert!(matches!(bench.call(Request::StatFs), Ok(Reply::StatFs(_))));
}

#[test]
fn a_decided_change_that_cannot_be_made_gives_up_its_shard_alone() {
    let mut bench = Bench::new(&Image::new(), false);
    break_shard(&mut bench);
    assert_one_serves(&mut bench, "now");
    bench.take_over();
    assert_one_serves(&mut bench, "a successor knows it from the log");
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    assert_one_serves(&mut bench, "checkpoints go on");
    bench.take_over();
    assert_one_serves(&mut bench, "a successor knows it from the root slot");
    bench.cut_power();
    assert_one_serves(&mut bench, "a new fleet knows it too");
}

#[test]
fn what_waits_or_is_open_in_the_shard_ends_with_it() {
    let other = ClientId(2);
    let mut bench = Bench::new(&Image::new(), false);
    bench.admit(other);
    let handle = file_in(&mut bench, DIR, "there");
    let same = open(&mut bench, other, handle.ino);
    let lock = |handle, owner| {
        let (flavour, lock, range) = (LockFlavour::Record, LockType::Exclusive, ByteRange::ALL);
        let spec = LockSpec { flavour, owner: LockOwner(owner), lock, range, pid: 1 };
        Request::Lock { handle, spec, wait: true }
    };
    assert_eq!(bench.call(lock(handle, 1)), Ok(Reply::Done));
    assert_eq!(bench.ask_as(other, lock(same, 2)), None);
    let waiting = bench.seq;
    assert!(bench.call(write(handle)).is_ok());
    break_shard(&mut bench);
    assert_eq!(bench.answers.remove(&waiting), Some(Err(Errno::EIO)));
    assert_eq!(bench.tasks(), (0, 0));
    let fsync = Request::Fsync { ino: handle.ino, handle: Some(handle), data_only: false };
    for request in [write(handle), fsync] {
        assert_eq!(bench.call(request), Err(Errno::EIO));
    }
    // Its dirty page is in the way of no checkpoint.
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    assert_one_serves(&mut bench, "after a checkpoint");
}

#[test]
fn its_log_records_are_kept_where_fsck_finds_them() {
    let mut bench = Bench::new(&Image::new(), false);
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    let handle = file_in(&mut bench, DIR, "kept");
    file_in(&mut bench, Ino::ROOT, "of another shard");
    break_shard(&mut bench);
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    let kept = bench.kept(1);
    assert_eq!((kept.shard, kept.cell), (ShardId(1), CellId(0)));
    let (mut at, mut named) = (kept.first, 0);
    let read = |at: Lsn, into: &mut [u8]| {
        let from = (at.0 - kept.first.0) as usize;
        into.copy_from_slice(&kept.records[from..from + into.len()]);
    };
    let end = Lsn(kept.first.0 + kept.records.len() as u64);
    while let Some(record) = read_record(at, end, kept.incarnation, read) {
        named += usize::from(record.body.windows(4).any(|bytes| bytes == b"kept"));
        at = record.end;
    }
    assert_eq!((at, named), (end, 1), "records follow each other here");
    // Another start does not take the chunk for free.
    bench.cut_power();
    assert_eq!(bench.kept(1), kept);
    assert_eq!(bench.call(Request::GetAttr { ino: handle.ino }), Err(Errno::EIO));
}

#[test]
fn a_transaction_with_a_part_there_is_refused_or_made_without_it() {
    let mut bench = Bench::new(&Image::new(), false);
    let prepared = TxnId { seq: 1, ..TXN };
    prepare(&mut bench, prepared, &[LockKey::Inode(FILE), LockKey::Inode(DIR)]);
    break_shard(&mut bench);
    let now = Timestamp(8);
    let changes = vec![Change::AddLink { ino: FILE, now }, Change::Touch { ino: DIR, now }];
    bench.hear(PeerBody::Request(PeerRequest::Commit { txn: prepared, changes }));
    assert_eq!(bench.sent.pop(), Some(PeerBody::Reply(PeerReply::Committed { txn: prepared })));
    match bench.call(Request::GetAttr { ino: FILE }) {
        Ok(Reply::Attr { attr, .. }) => assert_eq!(attr.nlink, 3),
        other => panic!("{other:?}"),
    }
    let late = TxnId { seq: 2, ..TXN };
    prepare(&mut bench, late, &[LockKey::Inode(FILE), LockKey::Inode(DIR)]);
    let refused = PeerReply::Refused { txn: late, errno: Errno::EIO };
    assert_eq!(bench.sent.pop(), Some(PeerBody::Reply(refused)));
    assert_eq!(bench.suspicions, 0);
}

#[test]
fn a_block_that_came_damaged_is_read_again_before_its_shard_is_given_up() {
    for (reads, is_given_up) in [(1, false), (14, false), (16, true)] {
        let mut bench = Bench::new(&Image::new(), false);
        assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
        // The roots of both shards are read in turn.
        bench.damaged_reads = reads;
        bench.cut_power();
        assert_eq!(!bench.given_up.is_empty(), is_given_up, "{reads} reads");
    }
}

#[test]
fn a_chunk_that_comes_when_its_shard_is_given_up_stays_free() {
    let mut bench = Bench::without_chunks(&Image::new());
    let waits = |bench: &mut Bench, n: u32| {
        bench.ask(create(DIR, &format!("file {n}"), FileKind::Regular)).is_none()
    };
    assert!((0..10_000).any(|n| waits(&mut bench, n)), "its chunk is full");
    let waiting = bench.seq;
    break_shard(&mut bench);
    assert_eq!(bench.answers.remove(&waiting), Some(Err(Errno::EIO)));
    bench.give_chunk(30);
    let handle = file_in(&mut bench, Ino::ROOT, "of another shard");
    assert!(bench.call(write(handle)).is_ok());
}

#[test]
fn a_checkpoint_gets_a_chunk_for_log_records_from_another_cell() {
    let mut bench = Bench::without_chunks(&Image::new());
    file_in(&mut bench, DIR, "kept");
    break_shard(&mut bench);
    assert_eq!(bench.ask(Request::Sync), None, "there is no chunk here");
    let sync = bench.seq;
    bench.give_chunk(30);
    assert_eq!(bench.answers.remove(&sync), Some(Ok(Reply::Done)));
    assert_eq!(bench.kept(1).shard, ShardId(1));
    assert!(bench.call(create(Ino::ROOT, "after", FileKind::Regular)).is_ok());
}
