//! A shard that cannot be served is given up alone.

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{CellId, ClientId, Errno, Ino, Lsn, ShardId, Timestamp, TxnId};
use warren_cell::{Event, PeerBody};
use warren_disk::{KeptRecords, RECORD_HEADER, RawRecord, RecordPlace, seal_record};
use warren_proto::control::Order;
use warren_proto::{
    AccessMode, ByteRange, Cause, Change, FileKind, Handle, LockFlavour, LockKey, LockMode,
    LockOwner, LockSpec, LockType, PeerReply, PeerRequest, Position, Reader, Reply, Request, Step,
    Wire,
};

use crate::bench::*;

/// No such inode, in shard 1.
const ABSENT: Ino = Ino(1 << 48 | 9);
const TXN: TxnId = TxnId { cell: PEER, seq: 1 };

fn prepare(bench: &mut Bench, txn: TxnId, keys: &[LockKey]) {
    let keys = keys.iter().map(|key| (key.clone(), LockMode::Write)).collect();
    bench.hear(PeerBody::Request(PeerRequest::Prepare {
        txn,
        client: CLIENT,
        is_privileged: false,
        keys,
    }));
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
    write_at(handle, 0)
}

fn write_at(handle: Handle, at: u64) -> Request {
    let position = Position::At(at);
    Request::Write { handle, position, kill_privileges: false, write_back: false, direct: false }
}

/// Shard 1 answers EIO, shard 0 serves.
fn assert_one_serves(bench: &mut Bench, name: &str) {
    assert_eq!(bench.call(Request::GetAttr { ino: DIR }), Err(Errno::EIO));
    assert_eq!(bench.call(create(DIR, name, FileKind::Regular)), Err(Errno::EIO));
    assert!(bench.call(Request::GetAttr { ino: FILE }).is_ok());
    assert!(bench.call(create(Ino::ROOT, name, FileKind::Regular)).is_ok());
    assert!(
        bench
            .call(Request::ReadDir { dir: Ino::ROOT, cookie: 0, bytes_max: 1000, leased: false })
            .is_ok()
    );
    assert!(matches!(bench.call(Request::StatFs), Ok(Reply::StatFs(_))));
}

fn assert_both_serve(bench: &mut Bench, name: &str) {
    for dir in [Ino::ROOT, DIR] {
        assert!(bench.call(Request::GetAttr { ino: dir }).is_ok());
        assert!(bench.call(create(dir, name, FileKind::Regular)).is_ok());
    }
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
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
    assert_eq!((kept.part, kept.parts), (0, 1));
    let names_it = |record: &RawRecord| record.body.windows(4).any(|bytes| bytes == b"kept");
    assert_eq!(kept.raw_records().filter(names_it).count(), 1);
    // Another start does not take the chunk for free.
    bench.cut_power();
    assert_eq!(bench.kept(1), kept);
    assert_eq!(bench.call(Request::GetAttr { ino: handle.ino }), Err(Errno::EIO));
}

/// A shard with a file whose first page was synced, given up, with its log records kept.
fn with_kept() -> (Bench, KeptRecords) {
    let mut bench = Bench::new(&Image::new(), false);
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    for n in 0..MANY {
        let handle = file_in(&mut bench, DIR, &format!("synced {n}"));
        // The last needs another chunk.
        for page in 0..if n == MANY - 1 { CHUNK_BLOCKS + 1 } else { 1 } {
            let write = write_at(handle, page * BLOCK_SIZE as u64);
            assert!(bench.call(write).is_ok());
        }
        let fsync = Request::Fsync { ino: handle.ino, handle: Some(handle), data_only: false };
        assert_eq!(bench.call(fsync), Ok(Reply::Done));
    }
    let handle = file_in(&mut bench, DIR, "not synced");
    assert!(bench.call(write(handle)).is_ok());
    break_shard(&mut bench);
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    let kept = bench.kept(1);
    (bench, kept)
}

/// Files that are synced.
const MANY: u64 = 10;

fn size(bench: &mut Bench, name_of: &str) -> Option<u64> {
    match bench.call(Request::Lookup { dir: DIR, name: crate::image::name(name_of) }) {
        Ok(Reply::Entry(entry)) => entry.attr.map(|(attr, _)| attr.size),
        Ok(Reply::Absent(_)) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn kept_records_are_replayed_and_their_chunks_are_free_again() {
    let (mut bench, kept) = with_kept();
    let before = bench.chunks(1);
    assert_eq!(bench.mend(1, kept.clone()), kept.raw_records().count() as u64);
    for n in 0..MANY - 1 {
        assert_eq!(size(&mut bench, &format!("synced {n}")), Some(100));
    }
    let large = CHUNK_BLOCKS * BLOCK_SIZE as u64 + 100;
    assert_eq!(size(&mut bench, &format!("synced {}", MANY - 1)), Some(large));
    assert_eq!(size(&mut bench, "not synced"), Some(0));
    assert!(bench.chunks(1).len() < before.len(), "those with the records have left");
    assert_both_serve(&mut bench, "after the repair");
}

#[test]
fn kept_records_are_replayed_up_to_a_step_that_cannot_be_made() {
    let absent = vec![Step::Wrote { ino: ABSENT, size: 1, blocks: 1, mode: 0, now: Timestamp(9) }];
    let foreign = vec![Step::Claimed { shard: ShardId(1), chunk: 19 }];
    for wrong in [absent, foreign] {
        let (mut bench, kept) = with_kept();
        let (mut records, half) = (Vec::new(), kept.raw_records().count() / 2);
        let mut put = |lsn: Lsn, steps: &[Step]| {
            let mut record = vec![0; RECORD_HEADER];
            steps.iter().for_each(|step| step.encode(&mut record));
            Cause::Cell.encode(&mut record);
            seal_record(&mut record, RecordPlace::of(lsn), kept.incarnation, steps.len() as u16);
            records.extend(record);
        };
        for (n, record) in kept.raw_records().enumerate() {
            let mut reader = Reader::new(&record.body);
            let steps = (0..record.steps).map(|_| Step::decode(&mut reader).expect("a step"));
            let steps: Vec<Step> = steps.collect();
            put(record.lsn, if n == half { &wrong } else { &steps });
        }
        let kept = KeptRecords { records, ..kept.clone() };
        assert_eq!(bench.mend(1, kept), half as u64);
        assert_eq!(size(&mut bench, "synced 0"), Some(100));
        assert_eq!(size(&mut bench, "not synced"), None);
        assert_both_serve(&mut bench, "after the repair");
    }
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
fn new_directories_are_placed_in_other_shards() {
    let mut bench = Bench::new(&Image::new(), false);
    let homes = |bench: &mut Bench, round: &str| {
        let mut made = |number: u32| {
            let text = format!("{round}{number}");
            match bench.call(create(Ino::ROOT, &text, FileKind::Directory)) {
                Ok(Reply::Created { entry, .. }) => entry.ino.shard(),
                other => panic!("{other:?}"),
            }
        };
        (0..20).map(&mut made).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(homes(&mut bench, "before").len(), 2);
    break_shard(&mut bench);
    // The supervisor sends this to every cell.
    bench.apply(Event::Order(Order::GivenUp { shard: ShardId(1) }));
    assert_eq!(homes(&mut bench, "after"), [ShardId(0)].into());
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

/// Checkpoints may fail for long, and the pool is everyone's.
#[test]
fn a_checkpoint_that_is_tried_again_claims_no_more_chunks_for_log_records() {
    let mut bench = Bench::new(&Image::new(), false);
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    file_in(&mut bench, DIR, "kept");
    break_shard(&mut bench);
    let before = bench.chunks(1).len();
    bench.refused = 5;
    for _ in 0..5 {
        assert_eq!(bench.call(Request::Sync), Err(Errno::EIO));
    }
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
    assert_eq!(bench.chunks(1).len(), before + 1);
    assert_eq!(bench.kept(1).shard, ShardId(1));
}
