//! Fills trees with the records that changes make, and measures every change: none takes more than
//! its budget, and the worst cases occur.

use warren_base::{BlockNo, ClientId, Epoch, Ino, Lsn, Rng, ShardId, Timestamp};
use warren_disk::{
    Dentry, Extent, FileKind, Key, RecordPlace, RootSlot, Value, Xattr, XattrValue, seal_record,
};
use warren_proto::{
    AccessMode, ByteRange, Cause, Cover, FileName, Handle, LockFlavour, LockOwner, LockSpec,
    LockType, NewInode, Run, Step, Wire,
};

use super::*;
use crate::shard::lease::ShardLeases;
use crate::shard::{Shard, new_inode};

const NOW: Timestamp = Timestamp(7);
const SECRET: u64 = 3;

struct Bench {
    shard: Shard,
    rng: Rng,
    next_block: u64,
    generation: u64,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let leases = ShardLeases::new(Epoch(1), SECRET);
        let root = RootSlot::empty([0; 16], ShardId(0));
        let shard = Shard::open(&root, 3, Vec::new(), leases);
        Self { shard, rng: Rng::new(seed), next_block: 1, generation: 0 }
    }

    /// A checkpoint: no node is dirty any more.
    fn write_out(&mut self) {
        self.generation += 1;
        let first = self.next_block;
        self.next_block += self.shard.tree.dirty_nodes() as u64;
        let places: Vec<_> = (first..self.next_block).map(BlockNo).collect();
        self.shard.tree.write_out(self.generation, &places);
        self.shard.tree.take_displaced();
    }

    /// Makes a change, usually in a tree without dirty nodes. Returns how many blocks of its need
    /// are left.
    fn left(&mut self, need: impl Fn(Budget) -> u64, make: impl FnOnce(&mut Shard)) -> u64 {
        if self.rng.chance(7, 8) {
            self.write_out();
        }
        let need = need(self.shard.budget());
        let before = self.shard.tree.dirty_nodes();
        make(&mut self.shard);
        let taken = self.shard.tree.dirty_nodes().saturating_sub(before) as u64;
        need.checked_sub(taken).unwrap_or_else(|| panic!("{taken} of {need} blocks"))
    }

    fn below(&mut self, bound: u64) -> usize {
        self.rng.below(bound) as usize
    }

    /// A record of any kind that a change inserts, but for a bucket of attributes.
    fn record(&mut self) -> (Key, Value) {
        let ino = Ino(1 + self.rng.below(500));
        let sub = self.rng.next_u64() >> 8;
        match self.below(4) {
            0 => (Key::extent(ino, sub >> 16), self.extent(EXTENT_BLOCKS_MAX)),
            1 => (Key::target(ino, sub % 4), Value::Target(vec![1; TARGET_PIECE].into())),
            2 => (Key::orphan(Ino(sub)), Value::Orphan),
            _ => {
                let name = vec![b'x'; 1 + self.below(NAME_MAX as u64)].into();
                let dentry = Dentry { name, ino, kind: FileKind::Regular };
                (Key::entry(ino, sub), Value::Entries([dentry].into()))
            }
        }
    }

    fn extent(&mut self, blocks: usize) -> Value {
        let start = BlockNo(self.rng.below(1 << 20));
        Value::Extent(Box::new(Extent { start, checksums: vec![0; blocks].into() }))
    }
}

/// Puts an inode with all that belongs to it into the shard.
fn make_inode(shard: &mut Shard, ino: Ino, new: &NewInode) {
    let inode = new_inode(new, 0, 0, Ino::ROOT, NOW);
    shard.put_record(Key::inode(ino), Value::Inode(Box::new(inode)));
    for (piece, bytes) in new.target.chunks(TARGET_PIECE).enumerate() {
        shard.put_record(Key::target(ino, piece as u64), Value::Target(bytes.into()));
    }
}

#[test]
fn a_new_record_takes_no_more_than_its_way_once_more_and_a_root() {
    let mut bench = Bench::new(1);
    let mut least_left = u64::MAX;
    for _ in 0..6000 {
        let (key, value) = bench.record();
        let left = bench.left(Budget::insertion, |shard| shard.put_record(key, value));
        least_left = least_left.min(left);
    }
    assert!(bench.shard.tree.height() >= 3);
    assert_eq!(least_left, 0, "the worst case never occurred");
}

#[test]
fn an_attribute_takes_no_more_than_its_need_though_it_splits_a_leaf_in_three() {
    let mut bench = Bench::new(2);
    let (mut split_in_three, ino) = (false, Ino(7));
    make_inode(&mut bench.shard, ino, &NewInode::regular(0o644));
    for _ in 0..2000 {
        let key = Key::xattr(ino, bench.rng.next_u64());
        let value = XattrValue::Inline(vec![1; 1 + bench.below(2048)].into());
        let xattr = Xattr { name: vec![b'x'; 1 + bench.below(NAME_MAX as u64)].into(), value };
        let insertion = bench.shard.budget().insertion();
        let need = |budget: Budget| budget.xattr(Growth::Grows).blocks;
        let left = bench.left(need, |shard| {
            shard.put_record(key, Value::Xattrs([xattr].into()));
            shard.inode_mut(ino).ctime = NOW;
        });
        split_in_three |= bench.shard.budget().xattr(Growth::Grows).blocks - left > insertion;
    }
    assert!(split_in_three, "the worst case never occurred");
}

#[test]
fn a_long_value_takes_no_more_than_its_pieces_need() {
    let mut bench = Bench::new(8);
    for _ in 0..4000 {
        let (key, value) = bench.record();
        bench.shard.put_record(key, value);
    }
    let names: Vec<_> = (0..60).map(|n| format!("user.{n}")).collect();
    (0..20).for_each(|n| make_inode(&mut bench.shard, Ino(n + 1), &NewInode::regular(0o644)));
    for _ in 0..3000 {
        let (ino, name) = (Ino(1 + bench.rng.below(20)), bench.rng.pick(&names).as_bytes());
        let len = *bench.rng.pick(&[0, 100, 129, 3000, 20_000, 65_536]);
        let value = vec![7; len];
        let new = (len > 0).then_some(&*value);
        let added = Xattr::new(name, &value).pieces();
        let growth = if len > 0 { Growth::Grows } else { Growth::Keeps };
        let need =
            |budget: Budget| budget.xattr(growth).with(Some(budget.xattr_pieces(added))).blocks;
        bench.left(need, |shard| shard.set_xattr(ino, name, new));
    }
    assert!(bench.shard.tree.height() >= 3);
}

#[test]
fn a_removal_finds_room_that_growth_leaves() {
    for height in 1..=HEIGHT_MAX as u8 {
        let budget = Budget::of(height, 0);
        let removal = budget.xattr(Growth::Keeps).with(Some(budget.xattr_pieces(0)));
        assert!(removal.blocks + budget.kept_back(Growth::Keeps) <= budget.kept_from_growth());
    }
}

#[test]
fn names_and_inodes_take_no_more_than_their_changes_need() {
    let mut bench = Bench::new(3);
    let names: Vec<_> = (0..1500)
        .map(|n| FileName::new(format!("{n:0>width$}", width = 4 + n % 250).as_bytes()).unwrap())
        .collect();
    let dir = Ino(3);
    make_inode(&mut bench.shard, dir, &NewInode::directory(0o755));
    let part = warren_disk::Part { entries: 0, subdirs: 0, mtime: NOW, ctime: NOW };
    bench.shard.put_record(Key::part(dir, 0), Value::Part(Box::new(part)));
    for (n, name) in names.iter().enumerate() {
        let (ino, kind) = (Ino(10 + n as u64), FileKind::Regular);
        let target = vec![b'x'; if n % 3 == 0 { 4095 } else { 0 }];
        let new = NewInode { target: target.into(), ..NewInode::regular(0o644) };
        let change =
            Change::NewInode { ino, new: new.clone(), uid: 0, gid: 0, parent: dir, now: NOW };
        bench.left(|budget| budget.change(&change), |shard| make_inode(shard, ino, &new));
        let change = Change::AddEntry { dir, name: name.clone(), ino, kind, now: NOW };
        bench.left(
            |budget| budget.change(&change),
            |shard| {
                shard.set_dentry(SECRET, dir, name, Some((ino, kind)));
                shard.part_mut(dir).entries += 1;
            },
        );
        let set_attr = |shard: &mut Shard| {
            shard.inode_mut(dir).mtime = NOW;
            shard.part_mut(dir).mtime = NOW;
        };
        bench.left(|budget| budget.attributes().blocks, set_attr);
    }
    for (n, name) in names.iter().enumerate() {
        let change = Change::RemoveEntry { dir, name: name.clone(), now: NOW };
        bench.left(
            |budget| budget.change(&change),
            |shard| {
                shard.set_dentry(SECRET, dir, name, None);
                shard.part_mut(dir).entries -= 1;
            },
        );
        let ino = Ino(10 + n as u64);
        let reap = |shard: &mut Shard| {
            for (key, _) in shard.belongings(ino, REAP_BATCH).unwrap() {
                shard.take_record(&key);
            }
            shard.take_record(&Key::inode(ino));
        };
        bench.left(|budget| budget.reap().blocks, reap);
    }
}

#[test]
fn places_and_ends_of_files_take_no_more_than_was_promised() {
    let mut bench = Bench::new(4);
    let ino = Ino(9);
    make_inode(&mut bench.shard, ino, &NewInode::regular(0o644));
    for round in 0..2500 {
        let (page, count) = (bench.rng.below(60_000), 1 + bench.below(200));
        let block = BlockNo(bench.rng.below(1 << 20));
        let run = Run { page, block, checksums: vec![0; count] };
        // The write has changed the inode.
        let place = |shard: &mut Shard| {
            shard.replace_extents(ino, page, page + count as u64 - 1, &[run]);
        };
        bench.left(|budget| budget.placing(count).left, place);
        bench.shard.inode_mut(ino).size = 60_200 * BLOCK_SIZE as u64;
        if round % 100 == 99 {
            let size = (30_000 + bench.rng.below(30_000)) * BLOCK_SIZE as u64;
            let need = |budget: Budget| budget.truncate().blocks - blocks_of_pages(1);
            bench.left(need, |shard| shard.truncate_extents(ino, size, NOW));
        }
    }
    assert!(bench.shard.tree.height() >= 2);
}

/// A page in the middle of an extent leaves three extents, so pages of a file of short extents
/// split the leaves that they lie in.
#[test]
fn pages_that_split_their_leaves_take_no_more_than_was_promised() {
    let mut most = 0;
    let kinds = (9..=41).step_by(8).flat_map(|blocks| (10..=40).map(move |step| (blocks, step)));
    for (blocks, step) in kinds {
        let mut bench = Bench::new(5);
        let ino = Ino(9);
        make_inode(&mut bench.shard, ino, &NewInode::regular(0o644));
        let pages = 100;
        for number in 0..pages * step {
            let extent = bench.extent(blocks);
            bench.shard.put_record(Key::extent(ino, (number * blocks) as u64), extent);
        }
        bench.write_out();
        bench.shard.inode_mut(ino).size = 1 << 40;
        for number in 0..pages {
            let page = (number * step * blocks + blocks / 2) as u64;
            let run = Run { page, block: BlockNo(1 << 30), checksums: vec![0] };
            bench.shard.replace_extents(ino, page, page, &[run]);
        }
        let taken = (pages + bench.shard.tree.dirty_nodes()) as u64;
        let promised = blocks_of_pages(pages as u64);
        assert!(taken <= promised, "{taken} of {promised} blocks, extents of {blocks}");
        most = most.max(taken);
    }
    assert!(most > 2 * 100 + NODES_PER_WAY, "{most} blocks: no leaf was split");
}

/// Bytes of a record of this step alone.
fn record_len(step: &Step) -> u64 {
    let mut record = vec![0; RECORD_HEADER];
    step.encode(&mut record);
    Cause::Cell.encode(&mut record);
    seal_record(&mut record, RecordPlace::of(Lsn(0)), 1, 1);
    record.len() as u64
}

fn locked() -> Step {
    let range = ByteRange::ALL;
    let (flavour, owner, lock) = (LockFlavour::Record, LockOwner(1), LockType::Exclusive);
    let spec = LockSpec { flavour, owner, lock, range, pid: 1 };
    Step::Locked { ino: Ino::ROOT, client: ClientId(1), spec, uid: 1 }
}

#[test]
fn a_page_placed_alone_takes_no_more_than_was_kept_for_it() {
    let (page, block) = (1, BlockNo(1));
    let runs = vec![Run { page, block, checksums: vec![1] }];
    let cover = Cover { size: 1, mode: 1, mtime: NOW, ctime: NOW, complete: true };
    assert_eq!(record_len(&Step::Placed { ino: Ino::ROOT, runs, cover }), LOG_PER_PAGE);
}

#[test]
fn a_lock_granted_alone_takes_no_more_than_was_kept_for_it() {
    assert!(record_len(&locked()) <= LOG_PER_GRANT);
}

#[test]
fn a_step_of_a_snapshot_takes_no_more_than_its_share() {
    let (handle, access) = (Handle { ino: Ino::ROOT, open: 1 }, AccessMode::all());
    let opened = Step::Opened { handle, client: ClientId(1), access, offset: 1, uid: 1 };
    for step in [opened, locked()] {
        let share = RECORD_HEADER as u64 + 16;
        let bytes = step.to_bytes().len() as u64 * SESSION_BATCH as u64 + share;
        assert!(bytes <= SESSION_STEP * SESSION_BATCH as u64, "{step:?}");
    }
}
