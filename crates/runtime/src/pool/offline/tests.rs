//! Pools with valid logs and a damaged structure: as much as possible is replayed, and the report
//! names what is given up.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{CellId, ClientId, Ino, Lsn, Rng, ShardId, SlotNo, Timestamp, TxnId};
use warren_disk::format::{FormatOptions, LOG_MIN, image};
use warren_disk::{
    Absent, BlockWrite, KeptRecords, Key, LogTable, RECORD_HEADER, ROOT_SLOT_SIZE, RecordPlace,
    RegionMap, RootSlot, Tree, Value, block_checksum, seal_record,
};
use warren_fsck::{Finding, NoFooting, Options, ReadError, Report};
use warren_proto::{
    Cause, Change, Cover, Executed, FileKind, FileName, InlinePage, NewInode, Run, Step, Wire,
};
use warren_supervisor::Failure;

use super::*;

const BYTES: u64 = 64 << 20;
const DEVICE_BLOCKS: u64 = BYTES / BLOCK_SIZE as u64;
/// Shards 0 and 2 belong to cell 0, shards 1 and 3 to cell 1.
const SHARDS: u16 = 4;
const CELLS: usize = 2;
/// The unit that a device writes atomically.
const SECTOR: usize = 512;
const NOW: Timestamp = Timestamp(7);

/// A device in memory.
#[derive(Clone, Default)]
struct Device {
    blocks: RefCell<BTreeMap<BlockNo, Box<[u8]>>>,
    unreadable: BTreeSet<BlockNo>,
    /// The number of writes during which writes still fail, and that every n-th of them does.
    failing: RefCell<(u32, u32)>,
    /// The writes, grouped by flushes.
    trail: RefCell<Vec<Vec<BlockWrite>>>,
}

impl Blocks for Device {
    fn len_blocks(&self) -> u64 {
        DEVICE_BLOCKS
    }

    fn read(&self, block: BlockNo, into: &mut [u8]) -> Result<(), Errno> {
        into.fill(0);
        lay_over(&self.blocks.borrow(), block, into);
        let end = block.offset((into.len() / BLOCK_SIZE) as u64);
        match self.unreadable.range(block..end).next() {
            Some(_) => Err(Errno::EIO),
            None => Ok(()),
        }
    }

    fn write(&self, block: BlockNo, bytes: &[u8]) -> Result<(), Errno> {
        let (left, one_in) = *self.failing.borrow();
        self.failing.borrow_mut().0 = left.saturating_sub(1);
        if left > 0 && left.is_multiple_of(one_in) {
            return Err(Errno::EIO);
        }
        for (at, bytes) in (block.0..).map(BlockNo).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            self.set_block(at, bytes.into());
            self.trail.borrow_mut().last_mut().expect("one is begun").push((at, bytes.into()));
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        self.trail.borrow_mut().push(Vec::new());
        Ok(())
    }
}

/// The result of repairing a pool with logs.
#[derive(Debug)]
struct Repaired {
    /// The shards that the replay left out and the cells whose logs were cut, or why no log was
    /// replayed.
    logs: Result<(BTreeSet<ShardId>, CutLogs), String>,
    /// For each shard of which log records were kept, how many were replayed and how many not.
    kept: BTreeMap<ShardId, (u64, u64)>,
    report: Report,
}

impl Device {
    fn new() -> Self {
        let options = FormatOptions {
            size_bytes: BYTES,
            shards: SHARDS,
            log_bytes: CELLS as u64 * LOG_MIN,
            uuid: [1; 16],
            secret: 5,
            now: NOW,
            uid: 0,
            gid: 0,
            label: String::new(),
            reserved: false,
            kept_percent: None,
        };
        let device = Self { trail: RefCell::new(vec![Vec::new()]), ..Self::default() };
        device.put_all(image(&options).expect("a pool"));
        device
    }

    fn set_block(&self, block: BlockNo, bytes: Box<[u8]>) {
        self.blocks.borrow_mut().insert(block, bytes);
    }

    fn put_all(&self, writes: Vec<BlockWrite>) {
        self.blocks.borrow_mut().extend(writes);
    }

    fn block(&self, block: BlockNo) -> Vec<u8> {
        self.blocks.borrow().get(&block).map_or(vec![0; BLOCK_SIZE], |bytes| bytes.to_vec())
    }

    fn superblock(&self) -> Superblock {
        Superblock::choose(&self.block(BlockNo(0)), &self.block(BlockNo(1))).expect("one").0
    }

    /// The path of an inode to which no name led.
    fn found(&self, ino: Ino) -> String {
        format!("/lost+found/#{}", self.superblock().inode_numbers().number(ino))
    }

    fn change(&self, block: BlockNo, change: impl FnOnce(&mut [u8])) {
        let mut bytes = self.block(block);
        change(&mut bytes);
        self.set_block(block, bytes.into());
    }

    /// The block and the bytes of a shard's valid root slot, and the slot.
    fn slot(&self, shard: u16) -> (BlockNo, Range<usize>, RootSlot) {
        let superblock = self.superblock();
        let places = [0, 1].map(|slot| superblock.layout.root_slot(ShardId(shard), slot));
        let slots = places.map(|at| self.block(at.block)[at.offset..][..ROOT_SLOT_SIZE].to_vec());
        let slots = [&slots[0][..], &slots[1]];
        let chosen = RootSlot::choose(slots, &superblock, ShardId(shard)).expect("a slot");
        let place = places[1 - chosen.spare];
        let bytes = place.offset..place.offset + ROOT_SLOT_SIZE;
        (place.block, bytes, chosen.root)
    }

    /// Flips a bit of a shard's root slot that counts, or of both.
    fn flip_slots(&self, shard: u16, both: bool) {
        let (block, bytes, _) = self.slot(shard);
        let places = [0, 1].map(|slot| self.superblock().layout.root_slot(ShardId(shard), slot));
        let hit = places
            .into_iter()
            .filter(|place| both || (place.block == block && place.offset == bytes.start));
        hit.for_each(|place| self.change(place.block, |block| flip(&mut block[place.offset..])));
    }

    /// The valid page of the map.
    fn page(&self) -> BlockNo {
        let layout = self.superblock().layout;
        let generation = |copy| {
            let page = self.block(layout.region_page(copy, 0));
            u64::from_le_bytes(page[8..16].try_into().expect("8 bytes"))
        };
        layout.region_page(usize::from(generation(1) > generation(0)), 0)
    }

    fn free_chunk(&self, n: u64) -> u64 {
        self.superblock().layout.reserved_chunks() + 10 + n
    }

    /// The power fails under a fleet whose cells have logged this since the last checkpoint.
    fn leave_logs(&self, logs: [&[&[Step]]; CELLS]) {
        let records = logs.map(|log| log.iter().map(|steps| (*steps, Cause::Cell)).collect());
        self.leave_records(records);
    }

    /// The same, with the cause of each record.
    fn leave_records(&self, logs: [Vec<(&[Step], Cause)>; CELLS]) {
        let old = self.superblock();
        let (layout, generation) = (old.layout, old.generation + 1);
        let superblock = Superblock { generation, clean: false, ..old.clone() };
        let tables = [0, 1].map(|copy| self.block(layout.log_table(copy)));
        let tables = [&tables[0][..], &tables[1]];
        let (_, spare) = LogTable::choose(tables, old.generation, layout.logs_max()).expect("one");
        let starts = vec![Lsn(0); CELLS];
        let table = LogTable { generation, incarnation: generation, starts };
        self.set_block(layout.log_table(spare), table.encode());
        for (cell, records) in logs.into_iter().enumerate() {
            let area = layout.log_area(cell, CELLS);
            let (mut log, mut end) = (Vec::new(), Lsn(0));
            for (steps, cause) in records {
                let mut record = vec![0; RECORD_HEADER];
                steps.iter().for_each(|step| step.encode(&mut record));
                cause.encode(&mut record);
                let lsn = Lsn(log.len() as u64);
                let place = RecordPlace { lsn, last: Some(end), durable: Some(lsn) };
                seal_record(&mut record, place, generation, steps.len() as u16);
                end = Lsn(lsn.0 + record.len() as u64);
                log.extend(record);
                // Each record is a commit of its own, which ends with a block.
                log.resize(log.len().next_multiple_of(BLOCK_SIZE), 0);
            }
            let blocks = log.chunks(BLOCK_SIZE).map(Box::from);
            self.put_all((area.start.0..).map(BlockNo).zip(blocks).collect());
        }
        self.put_all(superblock.commit().into());
    }

    /// A pool at a checkpoint with `/dir` (in shard 2) and `/one` (in shard 1), whose logs then add
    /// a file in each shard: `/zero` with a page in the log, `/dir/two` with a page in its place,
    /// `/more` and `/three`.
    fn with_logs() -> Self {
        let device = Self::new();
        let [a, b, c, d] = [0, 1, 2, 3].map(|n| device.free_chunk(n));
        device.leave_logs([
            &[
                &[Step::Claimed { shard: ShardId(2), chunk: a }, made(DIR)],
                &[named(Ino::ROOT, "dir", DIR), named(Ino::ROOT, "one", ONE)],
            ],
            &[&[Step::Claimed { shard: ShardId(1), chunk: b }, made(ONE)]],
        ]);
        let (ledger, copies) = blocks::load(&device, Path::new("pool")).expect("a pool");
        recovery::recover(&device, ledger, copies).expect("a recovery");
        let bytes = vec![2; BLOCK_SIZE];
        let checksums = vec![block_checksum(&bytes)];
        let block = BlockNo(c * CHUNK_BLOCKS + 5);
        device.set_block(block, bytes.into());
        let (size, complete) = (BLOCK_SIZE as u64, true);
        let cover = Cover { size, mode: 0o644, mtime: NOW, ctime: NOW, complete };
        let page = InlinePage { page: 0, bytes: vec![1; BLOCK_SIZE].into() };
        let runs = vec![Run { page: 0, block, checksums }];
        device.leave_logs([
            &[
                &[made(ZERO), named(Ino::ROOT, "zero", ZERO)],
                &[Step::Inline { ino: ZERO, pages: vec![page], cover }],
                &[Step::Claimed { shard: ShardId(2), chunk: c }, made(TWO), named(DIR, "two", TWO)],
                &[Step::Placed { ino: TWO, runs, cover }],
                &[named(Ino::ROOT, "more", MORE), named(Ino::ROOT, "three", THREE)],
            ],
            &[&[made(MORE)], &[Step::Claimed { shard: ShardId(3), chunk: d }, made(THREE)]],
        ]);
        device
    }

    /// The chunks with log records that are kept for the shard.
    fn kept_chunks(&self, shard: u16) -> Vec<u64> {
        let (ledger, _) = blocks::load(self, Path::new("pool")).expect("a pool");
        let mut chunks = ledger.chunks_of_shards().remove(&ShardId(shard)).unwrap_or_default();
        let first = |chunk: u64| self.block(BlockNo(chunk * CHUNK_BLOCKS));
        chunks.retain(|chunk| KeptRecords::blocks(&first(*chunk)).is_some());
        chunks
    }

    fn kept(&self, shard: u16) -> Vec<KeptRecords> {
        let bytes = |chunk: u64| {
            let blocks = BlockNo(chunk * CHUNK_BLOCKS).0..BlockNo((chunk + 1) * CHUNK_BLOCKS).0;
            blocks.flat_map(|block| self.block(BlockNo(block))).collect::<Vec<u8>>()
        };
        let secret = self.superblock().secret;
        let chunks = self.kept_chunks(shard).into_iter();
        chunks.filter_map(|chunk| KeptRecords::decode(&bytes(chunk), secret)).collect()
    }

    fn read_for(&self) -> impl FnMut(BlockNo, &mut [u8]) -> Result<(), ReadError> + '_ {
        |block, into| self.read(block, into).map_err(ReadError)
    }

    fn write_stages(&self, repair: warren_fsck::Repair) {
        for stage in repair.into_stages() {
            stage.iter().for_each(|(block, bytes)| self.write(*block, bytes).expect("memory"));
            self.flush().expect("memory");
        }
    }

    fn check(&self) -> Report {
        let paths_of = INODES.into_iter().collect();
        let options = Options { contents: true, paths_of };
        warren_fsck::check(options, DEVICE_BLOCKS, &mut self.read_for(), &mut |_| {})
    }

    /// Repairs the pool as `fsck -y` does.
    fn repair(&self) -> Repaired {
        let path = Path::new("pool");
        let loaded = blocks::load(self, path);
        let has_logs = !self.superblock().clean;
        let replayed = loaded.and_then(|(ledger, copies)| match recovery::is_needed(&ledger) {
            true => recovery::recover_whole(self, ledger, copies),
            false => Ok(()),
        });
        let logs = match replayed {
            Err(_) if has_logs => self.replay_what_can_be(path),
            _ => Ok(Default::default()),
        };
        let kept = self.replay_kept(path);
        let repair = warren_fsck::repair(DEVICE_BLOCKS, &mut self.read_for(), &mut |_| {});
        self.write_stages(repair.expect("a repair"));
        let report = self.check();
        assert!(report.is_sound() && !report.incomplete, "{:#?}", report.findings);
        let (ledger, _) = blocks::load(self, path).expect("a pool that opens");
        assert!(!recovery::is_needed(&ledger));
        Repaired { logs, kept, report }
    }

    fn replay_kept(&self, path: &Path) -> BTreeMap<ShardId, (u64, u64)> {
        let is_clean = self.superblock().clean;
        let found = warren_fsck::kept_logs(DEVICE_BLOCKS, &mut self.read_for(), &mut |_| {});
        let replay = |kept: &warren_fsck::KeptLog| match kept.against {
            None if is_clean => replay_kept(kept, self, path).unwrap_or(0),
            _ => 0,
        };
        let counts = |kept: warren_fsck::KeptLog| {
            let replayed = replay(&kept);
            (kept.shard, (replayed, kept.count - replayed))
        };
        found.expect("a pool").into_iter().map(counts).collect()
    }

    /// The recovery at the start of a fleet.
    fn start(&self) {
        let (ledger, copies) = blocks::load(self, Path::new("pool")).expect("a pool");
        recovery::recover(self, ledger, copies).expect("a recovery");
    }

    /// A pool with logs, which a start replayed without this shard, because a bit of its root had
    /// flipped or more.
    fn with_kept(shard: u16, spoil: fn(&mut [u8])) -> Self {
        let device = Self::with_logs();
        let root = device.slot(shard).2.root.expect("a tree");
        device.change(root.block, spoil);
        device.start();
        assert!(device.slot(shard).2.given_up && device.superblock().clean);
        device
    }

    /// Whether no shard has a chunk that its tree does not record.
    fn has_no_leaked_chunk(&self) -> bool {
        let (ledger, _) = blocks::load(self, Path::new("pool")).expect("a pool");
        let owned: usize = ledger.chunks_of_shards().values().map(Vec::len).sum();
        let slots = (0..SHARDS).filter_map(|shard| ledger.root(ShardId(shard)));
        let recorded: usize = slots.map(|slot| self.recorded_chunks(slot)).sum();
        owned == recorded
    }

    fn recorded_chunks(&self, slot: &RootSlot) -> usize {
        let mut tree = Tree::open(slot.shard, slot.root, slot.height);
        loop {
            let mut count = 0;
            let visit = |_: &Key, _: &Value| {
                count += 1;
                ControlFlow::Continue(())
            };
            match tree.range(Key::chunk(0), Key::chunk(u64::MAX), visit) {
                Ok(()) => return count,
                Err(Absent(node)) => tree.load(node, &self.block(node.block)).expect("a node"),
            }
        }
    }

    fn replay_what_can_be(&self, path: &Path) -> Result<(BTreeSet<ShardId>, CutLogs), String> {
        let footing = warren_fsck::footing(DEVICE_BLOCKS, &mut self.read_for(), &mut |_| {});
        let (footing, checkpoint) = footing.map_err(|error| error.to_string())?;
        self.write_stages(checkpoint);
        let cut = replay_on(&footing, self, path).map_err(|error| error.to_string())?;
        Ok((footing.lost, cut))
    }
}

const DIR: Ino = Ino(2 << 48 | 1);
const ONE: Ino = Ino(1 << 48 | 1);
const ZERO: Ino = Ino(2);
const TWO: Ino = Ino(2 << 48 | 2);
const MORE: Ino = Ino(1 << 48 | 2);
const THREE: Ino = Ino(3 << 48 | 1);
const INODES: [Ino; 6] = [DIR, ONE, ZERO, TWO, MORE, THREE];
const ALL: &[&str] = &["/dir", "/dir/two", "/more", "/one", "/three", "/zero"];
/// The paths at the last checkpoint.
const OLD: &[&str] = &["/dir", "/one"];

fn kind(ino: Ino) -> FileKind {
    if ino == DIR { FileKind::Directory } else { FileKind::Regular }
}

fn made(ino: Ino) -> Step {
    let new = NewInode { kind: kind(ino), ..NewInode::regular(0o755) };
    let parent = if ino == DIR { Ino::ROOT } else { Ino(0) };
    Step::Change(Change::NewInode { ino, new, uid: 0, gid: 0, parent, now: NOW })
}

fn named(dir: Ino, name: &str, ino: Ino) -> Step {
    let name = FileName::new(name.as_bytes()).expect("a name");
    Step::Change(Change::AddEntry { dir, name, ino, kind: kind(ino), now: NOW })
}

impl Repaired {
    fn paths(&self) -> Vec<String> {
        let mut paths: Vec<_> =
            self.report.paths.values().map(|path| path.escape_ascii().to_string()).collect();
        paths.sort_unstable();
        paths
    }

    /// Asserts that these shards were left out of the replay, and that everything else was
    /// replayed.
    fn is_without(&self, shards: &[u16], paths: &[&str]) {
        let lost = shards.iter().map(|shard| ShardId(*shard)).collect();
        assert_eq!(self.logs, Ok((lost, CutLogs::default())));
        assert_eq!(self.paths(), paths);
    }
}

fn cut<const N: usize>(damaged: [CellId; 1], depending: [CellId; N]) -> CutLogs {
    CutLogs { damaged: damaged.into(), depending: depending.into() }
}

fn flip(bytes: &mut [u8]) {
    bytes[300] ^= 4;
}

#[test]
fn what_was_kept_for_a_shard_is_replayed_when_its_tree_can_be_read() {
    // The shard of a directory with a file whose page has its place, and that of a new file.
    for shard in [2, 1, 0] {
        let device = Device::with_kept(shard, flip);
        assert!(device.check().findings.iter().any(|it| matches!(it, Finding::Kept { .. })));
        let repaired = device.repair();
        let (replayed, left) = repaired.kept[&ShardId(shard)];
        assert!(replayed > 0 && left == 0 && repaired.kept.len() == 1, "{repaired:?}");
        repaired.is_without(&[], ALL);
        assert!(device.has_no_leaked_chunk());
        assert_eq!(device.repair().kept, BTreeMap::new(), "once");
    }
}

#[test]
fn several_shards_have_what_was_kept_replayed() {
    let device = Device::with_logs();
    for shard in [0, 1, 2] {
        let root = device.slot(shard).2.root.expect("a tree");
        device.change(root.block, flip);
    }
    device.start();
    let repaired = device.repair();
    assert!(repaired.kept.values().all(|(replayed, left)| *replayed > 0 && *left == 0));
    assert_eq!(repaired.kept.len(), 3);
    repaired.is_without(&[], ALL);
    assert!(device.has_no_leaked_chunk());
}

#[test]
fn what_was_kept_for_a_lost_tree_is_counted_and_discarded() {
    let device = Device::with_kept(2, |bytes| bytes.fill(9));
    let repaired = device.repair();
    assert_eq!(repaired.kept, [(ShardId(2), (0, 2))].into());
    repaired.is_without(&[], &["/more", "/one", "/three", "/zero"]);
    assert!(device.has_no_leaked_chunk());
}

/// A pool that a crash left after a shard had been given up: its logs are replayed, too.
#[test]
fn what_was_kept_is_replayed_beside_logs() {
    let device = Device::with_kept(2, flip);
    let four = Ino(4);
    device.leave_logs([&[&[made(four), named(Ino::ROOT, "four", four)]], &[]]);
    let repaired = device.repair();
    assert_eq!(repaired.kept, [(ShardId(2), (2, 0))].into());
    assert_eq!(repaired.logs, Ok(Default::default()));
    assert_eq!(repaired.report.inodes, 8);
    assert!(device.has_no_leaked_chunk());
}

/// A crash leaves a pool with logs in which a root slot has a flipped bit, and log records are kept
/// for the same shard or another. The slot's own shard has lost nothing if the bit flipped later.
#[test]
fn what_was_kept_is_replayed_beside_logs_and_flipped_slots() {
    let four = Ino(4);
    for (kept, of_slot) in [(1, false), (1, true), (2, false), (2, true)] {
        for (flipped, both) in (0..SHARDS).flat_map(|shard| [(shard, false), (shard, true)]) {
            let device = Device::with_logs();
            match of_slot {
                true => device.flip_slots(kept, both),
                false => {
                    let root = device.slot(kept).2.root.expect("a tree");
                    device.change(root.block, flip);
                }
            }
            device.start();
            if !(of_slot && flipped == kept) {
                device.flip_slots(flipped, both);
            }
            device.leave_logs([&[&[made(four), named(Ino::ROOT, "four", four)]], &[]]);
            let repaired = device.repair();
            let case = (kept, of_slot, flipped, both);
            let (replayed, left) = repaired.kept[&ShardId(kept)];
            assert!(
                replayed > 0 && left == 0 && repaired.kept.len() == 1,
                "{case:?}: {repaired:?}"
            );
            assert_eq!(repaired.logs, Ok(Default::default()), "{case:?}");
            assert_eq!(repaired.paths(), ALL, "{case:?}");
            assert!(device.has_no_leaked_chunk(), "{case:?}");
            assert_eq!(repaired.report.inodes, 8, "{case:?}");
            assert_eq!(device.repair().kept, BTreeMap::new(), "once: {case:?}");
        }
    }
}

/// A block that looks like kept records, in a chunk that holds data, is none.
#[test]
fn what_a_client_has_written_is_no_kept_record() {
    let device = Device::with_kept(2, flip);
    let superblock = device.superblock();
    let kept = device.kept(2).pop().expect("one");
    let data = BlockNo(device.free_chunk(2) * CHUNK_BLOCKS);
    let forged = KeptRecords { checkpoint: superblock.generation + 9, ..kept };
    device.set_block(data, forged.encode(superblock.secret ^ 1)[..BLOCK_SIZE].into());
    let repaired = device.repair();
    assert_eq!(repaired.kept, [(ShardId(2), (2, 0))].into());
    repaired.is_without(&[], ALL);
}

/// Records that were kept before the tree was written again are obsolete.
#[test]
fn records_that_were_kept_before_an_earlier_repair_are_not_replayed() {
    let device = Device::with_kept(2, flip);
    let kept = device.kept(2).pop().expect("one");
    device.repair().is_without(&[], ALL);
    let chunk = device.free_chunk(30);
    let claimed = [Step::Claimed { shard: ShardId(2), chunk }];
    device.leave_logs([&[&claimed, &[Step::Reaped { ino: TWO }]], &[]]);
    let root = device.slot(2).2.root.expect("a tree");
    device.change(root.block, flip);
    device.start();
    let new = device.kept_chunks(2);
    assert_eq!(new.len(), 1);
    // The new ones are lost, and the old ones lie in the chunk that was claimed.
    rotten(&device, BlockNo(new[0] * CHUNK_BLOCKS));
    let secret = device.superblock().secret;
    let bytes = kept.encode(secret);
    for (at, block) in (0..).zip(bytes.chunks(BLOCK_SIZE)) {
        device.set_block(BlockNo(chunk * CHUNK_BLOCKS).offset(at), block.into());
    }
    let repaired = device.repair();
    assert_eq!(repaired.kept, BTreeMap::new());
    repaired.is_without(&[], ALL);
    assert!(device.has_no_leaked_chunk());
}

fn rotten(device: &Device, block: BlockNo) {
    device.set_block(block, vec![9; BLOCK_SIZE].into());
}

#[test]
fn logs_outlive_the_map() {
    let device = Device::with_logs();
    device.repair().is_without(&[], ALL);
    // Only the newer copy is damaged. The older one lacks the chunks of shards 1 and 2.
    let device = Device::with_logs();
    let newer = device.page();
    rotten(&device, newer);
    assert!(blocks::load(&device, Path::new("pool")).is_err());
    device.repair().is_without(&[], ALL);
    let device = Device::with_logs();
    let layout = device.superblock().layout;
    (0..2).for_each(|copy| rotten(&device, layout.region_page(copy, 0)));
    let repaired = device.repair();
    repaired.is_without(&[], ALL);
    let pages = [0, 1].map(|copy| device.block(layout.region_page(copy, 0)));
    let map = RegionMap::load(&device.superblock(), [&pages[0], &pages[1]]).expect("a map");
    assert!(
        map.owner(device.free_chunk(1))
            .is_some_and(|owner| { owner == warren_disk::Owner::Shard(ShardId(1)) })
    );
}

#[test]
fn logs_outlive_a_flipped_bit() {
    for bit in [3, 300, 20_000] {
        let device = Device::with_logs();
        let root = device.slot(2).2.root.expect("a tree");
        device.change(root.block, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        device.repair().is_without(&[], ALL);
    }
}

/// Without its tree, the log of a shard cannot be replayed. Names in other shards that led to its
/// inodes are gone, as if the shard had been lost later.
#[test]
fn only_the_steps_of_a_lost_shard_are_given_up() {
    let device = Device::with_logs();
    let (block, bytes, _) = device.slot(1);
    device.change(block, |slots| slots[bytes].fill(9));
    device.repair().is_without(&[1], &["/dir", "/dir/two", "/three", "/zero"]);
    let device = Device::with_logs();
    let root = device.slot(2).2.root.expect("a tree");
    rotten(&device, root.block);
    device.repair().is_without(&[2], &["/more", "/one", "/three", "/zero"]);
}

/// A transaction that cell 0 has decided and cell 1 has not executed yet. Its part in a lost shard
/// is given up, and its other parts are executed.
#[test]
fn a_decided_transaction_is_executed_except_in_a_lost_shard() {
    let device = Device::with_logs();
    let txn = TxnId { cell: CellId(0), seq: 1 };
    let (client, slot, answer) = (ClientId(1), SlotNo(0), Err(Errno::EEXIST));
    let request = Executed { client, slot, seq: 1, answer };
    let chunk = device.free_chunk(3);
    let change = |step| match step {
        Step::Change(change) => change,
        step => panic!("no change: {step:?}"),
    };
    let others = [made(MORE), made(THREE)].map(change).into();
    let decided = Cause::Decided { txn, request, others };
    let names = [named(Ino::ROOT, "more", MORE), named(Ino::ROOT, "three", THREE)];
    let claimed = [Step::Claimed { shard: ShardId(3), chunk }];
    device.leave_records([vec![(&names, decided)], vec![(&claimed, Cause::Cell)]]);
    let (block, bytes, _) = device.slot(1);
    device.change(block, |slots| slots[bytes].fill(9));
    device.repair().is_without(&[1], &["/dir", "/three"]);
}

/// A shard whose newer slot is lost has an old tree, on which no step may be executed.
#[test]
fn the_steps_of_a_shard_in_doubt_are_given_up() {
    let device = Device::with_logs();
    let (block, bytes, slot) = device.slot(0);
    assert!(slot.generation < device.superblock().generation);
    device.change(block, |slots| slots[bytes].fill(9));
    let repaired = device.repair();
    assert_eq!(repaired.logs, Ok(([ShardId(0)].into(), CutLogs::default())));
    // The root directory is as mkfs made it, so the inodes below it have no names.
    let (dir, one) = (device.found(DIR), device.found(ONE));
    let paths = repaired.paths();
    assert!(paths.contains(&dir) && paths.contains(&one) && paths.contains(&format!("{dir}/two")));
    assert!(!paths.contains(&"/zero".to_owned()), "it was of shard 0");
}

#[test]
fn stale_slots_of_a_lost_shard_are_ignored() {
    let device = Device::with_logs();
    let superblock = device.superblock();
    let (block, bytes, slot) = device.slot(1);
    device.change(block, |slots| slots[bytes].fill(9));
    // Slots of a checkpoint that never completed, whose number will be used again.
    for generation in [superblock.generation + 1, superblock.generation + 2] {
        let device = device.clone();
        let other = [0, 1].map(|slot| superblock.layout.root_slot(ShardId(1), slot));
        let other = other.into_iter().find(|place| place.block != block).expect("another");
        let waiting = RootSlot { generation, ..slot }.encode();
        device.change(other.block, |slots| {
            slots[other.offset..][..ROOT_SLOT_SIZE].copy_from_slice(&waiting);
        });
        device.repair().is_without(&[1], &["/dir", "/dir/two", "/three", "/zero"]);
    }
}

#[test]
fn logs_without_a_base_are_given_up() {
    let device = Device::with_logs();
    let layout = device.superblock().layout;
    (0..2).for_each(|copy| rotten(&device, layout.log_table(copy)));
    let repaired = device.repair();
    assert!(repaired.logs.is_err());
    assert_eq!(repaired.paths(), OLD);
    // With the map and a shard lost, the chunks of the shard are unknown.
    let device = Device::with_logs();
    let (block, bytes, _) = device.slot(1);
    device.change(block, |slots| slots[bytes].fill(9));
    rotten(&device, device.page());
    let repaired = device.repair();
    assert_eq!(repaired.logs, Err(NoFooting::Map(ShardId(1)).to_string()));
    assert_eq!(repaired.paths(), ["/dir"]);
}

/// A log is replayed up to an unreadable block. Records of the other log that depend on the rest
/// are gone.
#[test]
fn a_log_is_replayed_as_far_as_it_can_be_read() {
    let mut device = Device::with_logs();
    let area = device.superblock().layout.log_area(0, CELLS);
    device.unreadable.insert(area.start.offset(2));
    let repaired = device.repair();
    assert_eq!(repaired.logs, Ok((BTreeSet::new(), cut([CellId(0)], []))));
    let [more, three] = [MORE, THREE].map(|ino| device.found(ino));
    let paths = ["/dir".to_owned(), three, more, "/one".into(), "/zero".into()];
    assert_eq!(repaired.paths(), paths);
    // A block far behind the end of the log does not matter.
    let mut device = Device::with_logs();
    device.unreadable.insert(area.start.offset(20));
    device.repair().is_without(&[], ALL);
}

/// A flipped bit in a record that was durable is not the end of the log: nothing is replayed before
/// an administrator gives up what follows. In the last commit it cannot be told from a torn write.
#[test]
fn a_log_with_a_damaged_record_is_cut_only_by_a_repair() {
    let path = Path::new("pool");
    let load = |device: &Device| blocks::load(device, path).expect("a pool");
    let device = Device::with_logs();
    let area = device.superblock().layout.log_area(0, CELLS);
    device.change(area.start.offset(2), |bytes| bytes[40] ^= 4);
    let (ledger, copies) = load(&device);
    let refused = recovery::recover(&device, ledger, copies);
    let broken = Failure::BrokenLog { cell: CellId(0), errno: Errno::EUCLEAN };
    assert!(matches!(refused, Err(FleetError::DamagedLogs(failure)) if failure == broken));
    let repaired = device.repair();
    assert_eq!(repaired.logs, Ok((BTreeSet::new(), cut([CellId(0)], []))));
    let [more, three] = [MORE, THREE].map(|ino| device.found(ino));
    let paths = ["/dir".to_owned(), three, more, "/one".into(), "/zero".into()];
    assert_eq!(repaired.paths(), paths);

    let device = Device::with_logs();
    device.change(area.start.offset(5), |bytes| bytes[40] ^= 4);
    let (ledger, copies) = load(&device);
    assert!(recovery::recover(&device, ledger, copies).is_ok());
}

#[test]
fn a_log_that_depends_on_what_is_lost_is_cut_and_named() {
    let device = Device::new();
    let depends = Step::Depends { cell: CellId(0), lsn: Lsn(BLOCK_SIZE as u64 + 64) };
    device.leave_logs([
        &[
            &[made(ZERO), named(Ino::ROOT, "zero", ZERO)],
            &[named(Ino::ROOT, "one", ONE)],
            &[named(Ino::ROOT, "more", MORE)],
        ],
        &[&[made(ONE)], &[depends, made(MORE)]],
    ]);
    let area = device.superblock().layout.log_area(0, CELLS);
    device.change(area.start.offset(1), |bytes| bytes[40] ^= 4);
    let repaired = device.repair();
    assert_eq!(repaired.logs, Ok((BTreeSet::new(), cut([CellId(0)], [CellId(1)]))));
    assert_eq!(repaired.paths(), [device.found(ONE), "/zero".into()]);
}

/// A kind of damage to a pool, and the paths that are left.
type Spoil = (fn(&Device), &'static [&'static str]);

/// The recovery fails, and does no harm.
#[test]
fn a_recovery_on_a_device_that_refuses_writes_fails() {
    let load = |device: &Device| blocks::load(device, Path::new("pool")).expect("a pool");
    let mut failed = 0;
    for failing in [(u32::MAX, 1), (1, 1), (4, 1), (9, 3), (20, 1), (20, 5), (u32::MAX, 7)] {
        let device = Device::with_logs();
        device.failing.replace(failing);
        let (ledger, copies) = load(&device);
        let recovered = recovery::recover(&device, ledger, copies);
        device.failing.replace((0, 1));
        if let Err(error) = recovered {
            assert!(matches!(error, FleetError::Unrecovered(Errno::EIO)), "{failing:?}: {error}");
            let (ledger, copies) = load(&device);
            assert!(recovery::is_needed(&ledger));
            recovery::recover(&device, ledger, copies).expect("a recovery");
            failed += 1;
        }
        assert!(device.check().is_sound(), "{failing:?}");
    }
    assert!(failed > 1, "the device did not fail when it mattered");
}

/// The power fails at any write of the repair, which is then run again.
#[test]
fn an_interrupted_repair_comes_to_the_same() {
    let spoils: [Spoil; 4] = [
        (
            |device| {
                let root = device.slot(2).2.root.expect("a tree");
                device.change(root.block, flip);
                device.start();
            },
            ALL,
        ),
        (|device| rotten(device, device.page()), ALL),
        (
            |device| {
                let (block, bytes, _) = device.slot(1);
                device.change(block, |slots| slots[bytes].fill(9));
            },
            &["/dir", "/dir/two", "/three", "/zero"],
        ),
        (
            |device| {
                let root = device.slot(2).2.root.expect("a tree");
                rotten(device, root.block);
            },
            &["/more", "/one", "/three", "/zero"],
        ),
    ];
    let mut rng = Rng::new(3);
    for (spoil, paths) in spoils {
        let device = Device::with_logs();
        spoil(&device);
        device.trail.replace(vec![Vec::new()]);
        let before = device.clone();
        assert_eq!(device.repair().paths(), paths);
        let trail = device.trail.take();
        for (stage, writes) in trail.iter().enumerate() {
            for _ in 0..4 {
                let cut = before.clone();
                trail[..stage].iter().for_each(|stage| cut.put_all(stage.clone()));
                for (block, new) in writes {
                    let whole = rng.chance(1, 2);
                    cut.change(*block, |old| {
                        for (old, new) in old.chunks_mut(SECTOR).zip(new.chunks(SECTOR)) {
                            if whole || rng.chance(1, 2) {
                                old.copy_from_slice(new);
                            }
                        }
                    });
                }
                assert_eq!(cut.repair().paths(), paths, "stage {stage}");
            }
        }
    }
}

/// A start would write a block with the slots of several shards as a whole. Each of the two has the
/// newer slots of some.
#[test]
fn a_pool_with_root_slots_that_cannot_be_read_is_not_opened() {
    let mut device = Device::with_logs();
    let layout = device.superblock().layout;
    for slot in 0..2 {
        let block = layout.root_slot(ShardId(0), slot).block;
        device.unreadable.insert(block);
        let error = blocks::load(&device, Path::new("pool")).err().expect("in doubt");
        let line = "pool: cannot read its root slots: input/output error";
        assert_eq!(error.to_string(), line);
        device.unreadable.remove(&block);
        assert!(blocks::load(&device, Path::new("pool")).is_ok());
    }
}
