//! Logs with right checksums whose records no cell can have made. The shard is given up, and
//! nothing panics.

use warren_base::limits::{CHUNK_BLOCKS, FILE_SIZE_MAX};
use warren_base::{BlockNo, CellId, ClientId, Ino, Lsn, Rng, ShardId, SlotNo, Timestamp, TxnId};
use warren_proto::{
    Attributes, Cause, Change, Cover, Executed, FileKind, InlinePage, NewInode, RangeChange,
    RangeCopy, Reply, Request, Run, Step, XattrName,
};

use crate::bench::*;

const NOW: Timestamp = Timestamp(7);
const ABSENT: Ino = Ino(9);
/// A block of the first shard's chunk that is not used, and one that a file uses.
const FREE: BlockNo = BlockNo(4 * CHUNK_BLOCKS + 40);
const USED: BlockNo = BlockNo(4 * CHUNK_BLOCKS);

fn cover(size: u64) -> Cover {
    Cover { size, mode: 0o644, mtime: NOW, ctime: NOW, complete: true }
}

fn placed(ino: Ino, page: u64, block: BlockNo, count: usize) -> Step {
    let runs = vec![Run { page, block, checksums: vec![1; count] }];
    Step::Placed { ino, runs, cover: cover(20_000) }
}

fn inline(ino: Ino, page: u64) -> Step {
    let pages = vec![InlinePage { page, bytes: Box::new([1; 100]) }];
    Step::Inline { ino, pages, cover: cover(20_000) }
}

fn fallocated(ino: Ino, mode: u32, offset: u64, length: u64) -> Step {
    let change = RangeChange::of_mode(mode, offset, length).expect("a mode");
    Step::Fallocated { ino, change, size: 20_000, blocks: 9, mode: 0, now: NOW }
}

fn shared(ino: Ino, source: Ino, (from, to, length): (u64, u64, u64)) -> Step {
    let copy = RangeCopy { from, to, length };
    Step::Shared { ino, source, copy, size: 20_000, blocks: 9, mode: 0, now: NOW }
}

fn attributes() -> Attributes {
    Attributes {
        mode: 0o600,
        uid: 1,
        gid: 1,
        atime: NOW,
        mtime: NOW,
        ctime: NOW,
        flags: warren_base::InodeFlags::empty(),
    }
}

fn xattr(ino: Ino, len: usize) -> Step {
    let name = XattrName::new(b"user.x").expect("a name");
    Step::SetXattr { ino, name, value: Some(vec![1; len].into()), now: NOW }
}

fn is_broken(steps: Vec<Step>) -> bool {
    let bench = Bench::with_log(&Image::new(), &[(steps, Cause::Cell)]);
    assert_eq!(bench.is_ready(), !bench.is_broken, "it neither serves nor says why not");
    bench.is_broken || !bench.given_up.is_empty()
}

#[test]
fn blocks_behind_a_log_need_not_be_readable() {
    let linked = vec![(vec![Step::Change(Change::AddLink { ino: FILE, now: NOW })], Cause::Cell)];
    // More than fit a block.
    let long = vec![linked[0].clone(); 100];
    let serves = |records: &[(Vec<Step>, Cause)], unreadable: &[u64]| {
        let blocks: Vec<_> = unreadable.iter().map(|at| LOG.start.offset(*at)).collect();
        let mut bench = Bench::with_unreadable(&Image::new(), records, &blocks);
        assert_eq!(bench.is_ready(), !bench.is_broken);
        if !bench.is_ready() {
            return false;
        }
        match bench.call(Request::GetAttr { ino: FILE }) {
            Ok(Reply::Attr { attr, .. }) => assert_eq!(attr.nlink as usize, 2 + records.len()),
            other => panic!("{other:?}"),
        }
        true
    };
    assert!(serves(&linked, &[]) && serves(&long, &[]));
    // The log may continue in the block behind its last record.
    for (records, blocks) in [(&linked, 2), (&long, 3)] {
        for block in [0, 1, 2, 3, 17, 127] {
            assert_eq!(serves(records, &[block]), block >= blocks, "block {block}");
        }
    }
}

#[test]
fn what_a_cell_logs_is_replayed() {
    let truncate = |size| Step::Truncate { ino: FILE, size, blocks: 1, now: NOW };
    let steps = vec![
        Step::SetAttr { ino: DIR, attributes: attributes() },
        Step::Accessed { ino: FILE, atime: NOW },
        xattr(FILE, 60_000),
        truncate(5000),
        Step::Wrote { ino: FILE, size: 20_000, blocks: 2, mode: 0o644, now: NOW },
        placed(FILE, 3, FREE, 2),
        inline(FILE, 1),
        Step::Claimed { shard: ShardId(1), chunk: 25 },
        Step::Change(Change::AddLink { ino: FILE, now: NOW }),
    ];
    let mut bench = Bench::with_log(&Image::new(), &[(steps, Cause::Cell)]);
    assert!(bench.is_ready() && !bench.is_broken);
    match bench.call(Request::GetAttr { ino: FILE }) {
        Ok(Reply::Attr { attr, .. }) => assert_eq!((attr.size, attr.nlink), (20_000, 3)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_shard_of_which_a_log_says_what_no_cell_logs_is_given_up() {
    let sized = |size| Step::Truncate { ino: FILE, size, blocks: 0, now: NOW };
    let claimed = |chunk| Step::Claimed { shard: ShardId(0), chunk };
    let elsewhere = Ino(7 << 48 | 1);
    let add = Change::AddEntry {
        dir: FILE,
        name: name("x"),
        ino: LOST,
        kind: FileKind::Regular,
        now: NOW,
    };
    for step in [
        Step::SetAttr { ino: ABSENT, attributes: attributes() },
        Step::Accessed { ino: ABSENT, atime: NOW },
        Step::Accessed { ino: elsewhere, atime: NOW },
        xattr(ABSENT, 1),
        xattr(FILE, 65_537),
        Step::Truncate { ino: ABSENT, size: 0, blocks: 0, now: NOW },
        sized(FILE_SIZE_MAX + 1),
        placed(ABSENT, 0, FREE, 1),
        placed(FILE, 0, FREE, 0),
        placed(FILE, u64::MAX, FREE, 1),
        placed(FILE, 0, USED, 1),
        placed(FILE, 0, BlockNo(0), 1),
        placed(FILE, 0, BlockNo(5 * CHUNK_BLOCKS + 50), 1),
        placed(FILE, 0, BlockNo(u64::MAX), 2),
        inline(ABSENT, 0),
        inline(FILE, u64::MAX),
        fallocated(ABSENT, 3, 0, 1),
        fallocated(FILE, 3, 0, 0),
        fallocated(FILE, 3, FILE_SIZE_MAX, 1),
        fallocated(FILE, 3, u64::MAX, u64::MAX),
        fallocated(FILE, 0, 0, FILE_SIZE_MAX),
        shared(ABSENT, FILE, (0, 0, 4096)),
        shared(FILE, ABSENT, (0, 0, 4096)),
        shared(FILE, Ino::new(ShardId(1), 7), (0, 0, 4096)),
        shared(FILE, FILE, (0, 0, 0)),
        shared(FILE, FILE, (0, 0, FILE_SIZE_MAX)),
        shared(FILE, FILE, (0, u64::MAX, 4096)),
        shared(FILE, FILE, (u64::MAX, 0, u64::MAX)),
        claimed(0),
        claimed(4),
        claimed(5),
        claimed(CHUNKS),
        claimed(u64::MAX),
        Step::Change(Change::AddLink { ino: ABSENT, now: NOW }),
        Step::Change(Change::RemoveLink { ino: ABSENT, now: NOW }),
        Step::Change(add),
    ] {
        assert!(is_broken(vec![step.clone()]), "{step:?}");
    }
    assert!(is_broken(vec![placed(FILE, 8, FREE, 1), placed(FILE, 9, FREE, 1)]), "used twice");
}

/// Steps with anything that a record can name, some of it valid.
fn any_step(rng: &mut Rng) -> Step {
    let ino =
        *rng.pick(&[FILE, FILE, LOST, DIR, Ino::ROOT, ABSENT, Ino(1 << 48 | 5), Ino(u64::MAX)]);
    let number = *rng.pick(&[0, 1, 2, 5, 4096, 5000, FILE_SIZE_MAX, u64::MAX]);
    let block = BlockNo(rng.below(CHUNKS * CHUNK_BLOCKS));
    let other = *rng.pick(&[FILE, DIR, ABSENT]);
    let text = *rng.pick(&["file", "dir", "lost", "x"]);
    let (name, kind) = (name(text), *rng.pick(&[FileKind::Regular, FileKind::Directory]));
    match rng.below(21) {
        0 => Step::SetAttr { ino, attributes: attributes() },
        1 => Step::Accessed { ino, atime: NOW },
        2 => xattr(ino, rng.below(5000) as usize),
        3 | 4 => Step::Truncate { ino, size: number, blocks: number, now: NOW },
        5 => Step::Wrote { ino, size: number, blocks: number, mode: 0, now: NOW },
        6 | 7 => placed(ino, number, block, rng.below(4) as usize),
        8 => inline(ino, number),
        9 => Step::Reaped { ino },
        10 => Step::Claimed { shard: ShardId(rng.below(3) as u16), chunk: rng.below(CHUNKS + 2) },
        11 => {
            let new = NewInode { kind, ..NewInode::regular(0o644) };
            Step::Change(Change::NewInode { ino, new, uid: 0, gid: 0, parent: other, now: NOW })
        }
        12 => Step::Change(Change::AddEntry { dir: ino, name, ino: other, kind, now: NOW }),
        13 => Step::Change(Change::RemoveEntry { dir: ino, name, now: NOW }),
        14 => Step::Change(Change::ReplaceEntry { dir: ino, name, ino: other, kind, now: NOW }),
        15 => Step::Change(Change::RemoveLink { ino, now: NOW }),
        16 => Step::Change(Change::AddLink { ino, now: NOW }),
        17 => {
            let new = NewInode::regular(0o644);
            Step::Change(Change::NewOrphan { ino, new, uid: 0, gid: 0, now: NOW })
        }
        18 => fallocated(ino, *rng.pick(&[0, 1, 0x11, 3]), number, number / 2 + 1),
        19 => {
            let source = *rng.pick(&[FILE, DIR, ABSENT]);
            shared(ino, source, (number, *rng.pick(&[0, 4096, number]), number / 2 + 1))
        }
        _ => Step::Depends { cell: CellId(rng.below(3) as u16), lsn: Lsn(number) },
    }
}

fn any_cause(rng: &mut Rng) -> Cause {
    let txn = TxnId { cell: CellId(rng.below(2) as u16), seq: rng.below(9) };
    let (client, slot) = (ClientId(rng.below(3) as u32), SlotNo(rng.below(9) as u16));
    let request = Executed { client, slot, seq: 1, answer: Ok(Reply::Done) };
    let ino = *rng.pick(&[FILE, DIR, ABSENT, Ino(9 << 48 | 1), Ino(u64::MAX)]);
    match rng.below(4) {
        0 => Cause::Request(request),
        1 => {
            let others = vec![Change::Touch { ino, now: NOW }];
            Cause::Decided { txn, request, others }
        }
        2 => Cause::Applied { txn },
        _ => Cause::Cell,
    }
}

#[test]
fn whatever_a_log_says_is_replayed_or_refused() {
    let mut outcomes = [0, 0];
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let mut record = || {
            let steps = (0..=rng.below(3)).map(|_| any_step(&mut rng)).collect();
            (steps, any_cause(&mut rng))
        };
        let records: Vec<_> = (0..3).map(|_| record()).collect();
        let bench = Bench::with_log(&Image::new(), &records);
        outcomes[usize::from(bench.is_ready())] += 1;
        assert!(bench.is_ready() || bench.is_broken, "seed {seed}: {records:?}");
    }
    assert!(outcomes.iter().all(|times| *times > 100), "{outcomes:?}");
}
