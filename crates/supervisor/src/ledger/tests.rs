//! Which pools are opened. A pool is refused if its newest state may be in a damaged block.

use std::collections::BTreeMap;

use warren_base::Timestamp;
use warren_disk::SlotPlace;
use warren_disk::format::{FormatOptions, image};

use super::*;

const CELL: CellId = CellId(0);

/// A pool after checkpoint 3, in which shard 1 got a chunk and shard 0 a new root slot.
struct Pool {
    superblock: Superblock,
    blocks: BTreeMap<BlockNo, Box<[u8]>>,
}

impl Pool {
    fn new() -> Self {
        let options = FormatOptions {
            size_bytes: 64 << 20,
            shards: 4,
            log_bytes: warren_disk::format::log_suggested(64 << 20),
            uuid: [3; 16],
            secret: 1,
            now: Timestamp(1),
            uid: 0,
            gid: 0,
            label: String::new(),
            reserved: false,
            kept_percent: None,
        };
        let blocks: BTreeMap<_, _> = image(&options).expect("a pool").into_iter().collect();
        let superblock = Superblock::decode(&blocks[&BlockNo(0)]).expect("a superblock");
        let mut pool = Self { superblock, blocks };
        let opening = pool.load().expect("a new pool").opening(2, 1);
        pool.commit(&opening);
        let ledger = pool.load().expect("an opened pool");
        let root = ledger.root(ShardId(0)).expect("the root directory's");
        let root = ShardRoot {
            shard: ShardId(0),
            root: root.root.map(|root| (root.block, root.checksum)),
            height: root.height,
            next_sequence: 7,
            inodes: 1,
            blocks: 1,
        };
        let claimed = vec![(pool.superblock.layout.reserved_chunks() + 1, ShardId(1))];
        let written = Written { roots: vec![root], claimed, ..Written::default() };
        let attempt =
            ledger.attempt(3, false, (&[(CELL, written)], &[CELL; 4]), None).expect("legal");
        let attempt = attempt.expect("something changed");
        pool.commit(&attempt);
        pool
    }

    /// One more checkpoint, which changes no root slot and no page of the map.
    fn go_on(&mut self) {
        let opening = self.load().expect("a sound pool").opening(4, 1);
        self.commit(&opening);
    }

    fn commit(&mut self, attempt: &Attempt) {
        self.blocks.extend(attempt.writes());
        self.superblock = attempt.superblock().clone();
    }

    fn load(&self) -> Result<Ledger, LedgerError> {
        let layout = self.superblock.layout;
        let read = |start: BlockNo, blocks: u64| -> Vec<u8> {
            (0..blocks).flat_map(|n| self.blocks[&start.offset(n)].to_vec()).collect()
        };
        let [a, b] = [0, 1].map(|copy| read(layout.region_page(copy, 0), layout.region_pages()));
        let slots = read(layout.roots_start(), 2 * layout.roots_blocks());
        let tables = [0, 1].map(|copy| read(layout.log_table(copy), 1));
        let tables = [&tables[0][..], &tables[1]];
        Ledger::load(self.superblock.clone(), [&a, &b], &slots, tables)
    }

    /// The error of opening after a byte was changed.
    fn rotten(&mut self, block: BlockNo, at: usize) -> Option<LedgerError> {
        self.blocks.get_mut(&block).expect("a block")[at] ^= 1;
        let error = self.load().err();
        self.blocks.get_mut(&block).expect("a block")[at] ^= 1;
        error
    }
}

#[test]
fn a_pool_whose_map_may_be_old_is_not_opened() {
    let mut pool = Pool::new();
    assert_eq!(pool.load().err(), None);
    let layout = pool.superblock.layout;
    let (older, newer) = (layout.region_page(0, 0), layout.region_page(1, 0));
    let in_doubt = LedgerError::Region(RegionError::InDoubt(newer));
    assert_eq!(pool.rotten(newer, 3000), Some(in_doubt));
    assert_eq!(pool.rotten(older, 3000), None, "the newer copy is complete");
    // The generation of an unreadable block is unknown.
    pool.blocks.insert(newer, vec![0xEE; BLOCK_SIZE].into());
    assert_eq!(pool.load().err(), Some(in_doubt));
}

#[test]
fn a_page_torn_by_a_power_failure_is_accepted() {
    let mut pool = Pool::new();
    let newer = pool.superblock.layout.region_page(1, 0);
    pool.superblock.generation = 2;
    assert_eq!(pool.rotten(newer, 3000), None, "checkpoint 3 was not committed");
}

#[test]
fn a_shard_whose_root_slot_may_be_old_is_given_up() {
    let mut pool = Pool::new();
    let layout = pool.superblock.layout;
    let places = [0, 1].map(|slot| layout.root_slot(ShardId(0), slot));
    let lost = |pool: &mut Pool, place: &SlotPlace| {
        let byte = place.offset + 48;
        pool.blocks.get_mut(&place.block).expect("a block")[byte] ^= 1;
        let ledger = pool.load().expect("the other shards are sound");
        pool.blocks.get_mut(&place.block).expect("a block")[byte] ^= 1;
        let given_up = ledger.root(ShardId(0)).is_some_and(|root| root.given_up);
        assert_eq!(given_up, !ledger.unreadable().is_empty());
        ledger.unreadable().get(&ShardId(0)).copied()
    };
    let in_doubt = Some(RootSlotError::InDoubt);
    // No slot is newer than a slot of the last checkpoint.
    assert_eq!(lost(&mut pool, &places[0]), None);
    assert_eq!(lost(&mut pool, &places[1]), in_doubt);
    pool.go_on();
    for place in &places {
        assert_eq!(lost(&mut pool, place), in_doubt, "its age is unknown");
    }
}

/// A repair finds them as they were, and no later superblock makes one count.
#[test]
fn slots_of_a_lost_shard_stay_but_what_was_never_committed_is_blanked() {
    let mut pool = Pool::new();
    let layout = pool.superblock.layout;
    let [old, new] = [0, 1].map(|slot| layout.root_slot(ShardId(0), slot));
    // The superblock is that of the checkpoint before: the newer slot was never committed.
    pool.superblock.generation = 2;
    let byte = old.offset + 48;
    pool.blocks.get_mut(&old.block).expect("a block")[byte] ^= 1;
    let ledger = pool.load().expect("the other shards are sound");
    assert_eq!(ledger.unreadable().get(&ShardId(0)), Some(&RootSlotError::Lost));
    let slot = |pool: &Pool, place: &SlotPlace| {
        pool.blocks[&place.block][place.offset..][..ROOT_SLOT_SIZE].to_vec()
    };
    let before = slot(&pool, &old);
    pool.commit(&ledger.opening(4, 1));
    assert_eq!(slot(&pool, &old), before);
    assert_eq!(slot(&pool, &new), [0; ROOT_SLOT_SIZE]);
    assert!(pool.load().expect("sound").unreadable().contains_key(&ShardId(0)));
}

/// A supervisor takes over while a cell serves the shard, and one slot of it has become bad.
#[test]
fn a_shard_with_a_bad_slot_is_never_taken_for_unused() {
    for superblock in [2, 3] {
        let mut pool = Pool::new();
        let layout = pool.superblock.layout;
        let places = [0, 1].map(|slot| layout.root_slot(ShardId(0), slot));
        // The newest slot that counts is bad. The other one was never committed, or is older.
        let bad = &places[superblock - 2];
        pool.superblock.generation = superblock as u64;
        pool.blocks.get_mut(&bad.block).expect("a block")[bad.offset + 48] ^= 1;
        let mut ledger = pool.load().expect("the other shards are sound");
        assert!(ledger.unreadable().contains_key(&ShardId(0)));
        let root = ShardRoot {
            shard: ShardId(0),
            root: None,
            height: 0,
            next_sequence: 9,
            inodes: 1,
            blocks: 1,
        };
        let written = Written { roots: vec![root], ..Written::default() };
        let attempt =
            ledger.attempt(4, false, (&[(CELL, written)], &[CELL; 4]), None).expect("legal");
        let attempt = attempt.expect("something changed");
        let before = (pool.superblock.clone(), pool.blocks.clone());
        // The power is cut before the superblock is written, or the attempt fails.
        pool.blocks.extend(attempt.writes());
        assert!(pool.load().expect("sound").unreadable().contains_key(&ShardId(0)));
        // It is committed, and so is another one.
        (pool.superblock, pool.blocks) = before;
        pool.commit(&attempt);
        ledger.commit(attempt);
        assert_eq!(
            pool.load().expect("sound").root(ShardId(0)).map(|it| it.next_sequence),
            Some(9)
        );
        pool.commit(&ledger.opening(5, 1));
        assert_eq!(
            pool.load().expect("sound").root(ShardId(0)).map(|it| it.next_sequence),
            Some(9)
        );
    }
}

/// A bad slot beside a slot of the last checkpoint would be in doubt after any later checkpoint.
#[test]
fn a_bad_slot_that_is_the_older_is_never_in_doubt() {
    let mut pool = Pool::new();
    let older = pool.superblock.layout.root_slot(ShardId(0), 0);
    pool.blocks.get_mut(&older.block).expect("a block")[older.offset + 48] ^= 1;
    let opening = pool.load().expect("nothing is in doubt").opening(4, 1);
    pool.commit(&opening);
    assert_eq!(pool.load().err(), None);
}

#[test]
fn a_log_table_that_may_be_old_is_refused() {
    let mut pool = Pool::new();
    // Checkpoint 3 wrote copy 0; a checkpoint 4 that was never committed has overwritten it.
    let newer = pool.superblock.layout.log_table(0);
    let table = LogTable { generation: 4, incarnation: 2, starts: Vec::new() };
    pool.blocks.insert(newer, table.encode());
    assert_eq!(pool.load().err(), Some(LedgerError::Logs(LogTableError::InDoubt)));
}

#[test]
fn shards_have_the_chunks_of_the_map() {
    let pool = Pool::new();
    let first = pool.superblock.layout.reserved_chunks();
    let chunks = pool.load().expect("sound").chunks_of_shards();
    assert_eq!(chunks, [(ShardId(0), vec![first]), (ShardId(1), vec![first + 1])].into());
}

#[test]
fn a_chunk_that_is_taken_or_claimed_twice_is_wrongly_claimed() {
    let ledger = Pool::new().load().expect("sound");
    let free = (0..).find(|chunk| ledger.is_free(*chunk)).expect("a free chunk");
    assert_eq!(ledger.wrongly_claimed(&[free]), None);
    assert_eq!(ledger.wrongly_claimed(&[free, free]), Some(free));
    assert_eq!(ledger.wrongly_claimed(&[0]), Some(0), "the chunk of the superblock");
}

/// A device may return zeros for a block that it has lost.
#[test]
fn slots_of_zeros_are_bad() {
    let mut pool = Pool::new();
    let layout = pool.superblock.layout;
    let mut blank = |shard, slot| {
        let place = layout.root_slot(ShardId(shard), slot);
        pool.blocks.get_mut(&place.block).expect("a block")[place.offset..][..ROOT_SLOT_SIZE]
            .fill(0);
    };
    // The newer slot of shard 0, both of one that was used, and both of one that was not.
    for (shard, slot) in [(0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
        blank(shard, slot);
    }
    let ledger = pool.load().expect("shard 3 is sound");
    let lost = [RootSlotError::InDoubt, RootSlotError::Lost, RootSlotError::Lost];
    assert_eq!(ledger.unreadable(), &(0..3).map(ShardId).zip(lost).collect());
}
