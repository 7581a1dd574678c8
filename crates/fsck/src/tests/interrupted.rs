//! Cuts the power at any write of a repair. The result is the old pool, which still needs a repair,
//! or the new one; never a pool that opens with stale content.

use super::repair::is_damage;
use super::*;
use warren_disk::{BlockWrite, Owner, ROOT_SLOT_SIZE, SlotState};

/// The unit that a device writes atomically.
const SECTOR: usize = 512;

/// The records of each shard, and the owners of all chunks.
type Contents = (Vec<BTreeMap<Key, Value>>, Vec<(u64, Owner)>);

impl Draft {
    /// Whether a fleet opens the pool, judged by what it reads before any tree.
    fn may_be_opened(&self) -> bool {
        let superblock = self.superblock_now();
        let (layout, generation) = (superblock.layout, superblock.generation);
        let pages = [0, 1].map(|copy| &self.blocks[&layout.region_page(copy, 0)][..]);
        let map = RegionMap::load(&superblock, pages);
        let tables = [0, 1].map(|copy| &self.blocks[&layout.log_table(copy)][..]);
        let is_sure = |shard: u16| {
            let chosen = RootSlot::choose(self.slots(shard), &superblock, ShardId(shard));
            chosen.is_ok_and(|chosen| {
                let is_last = chosen.root.generation == generation;
                is_last || !matches!(chosen.spare_state, SlotState::Bad(_))
            })
        };
        map.is_ok_and(|map| map.bad_pages().iter().all(|page| !page.in_doubt))
            && LogTable::choose(tables, generation, layout.logs_max()).is_ok()
            && (0..layout.shards()).all(is_sure)
    }

    fn slots(&self, shard: u16) -> [&[u8]; 2] {
        [0, 1].map(|slot| {
            let place = self.superblock.layout.root_slot(ShardId(shard), slot);
            &self.blocks[&place.block][place.offset..][..ROOT_SLOT_SIZE]
        })
    }

    fn put_slot(&mut self, shard: u16, slot: usize, bytes: &[u8]) {
        let place = self.superblock.layout.root_slot(ShardId(shard), slot);
        let block = self.blocks.get_mut(&place.block).unwrap();
        block[place.offset..][..ROOT_SLOT_SIZE].copy_from_slice(bytes);
    }

    /// A shard's slot of the first checkpoint, as if it were of another.
    fn slot_of(&self, shard: u16, generation: u64) -> Box<[u8]> {
        RootSlot { generation, ..RootSlot::decode(self.slots(shard)[0]).unwrap() }.encode()
    }

    /// The content of the trees apart from block positions, and the owner of each chunk.
    fn contents(&self) -> Contents {
        let superblock = self.superblock_now();
        let layout = superblock.layout;
        let pages = [0, 1].map(|copy| &self.blocks[&layout.region_page(copy, 0)][..]);
        let map = RegionMap::load(&superblock, pages).unwrap();
        let without_space = |shard| {
            let mut records = self.records(shard);
            records.retain(|key, _| key.ino != 0);
            records
        };
        ((0..layout.shards()).map(without_space).collect(), map.iter().collect())
    }

    /// Writes some sectors of some of these blocks.
    pub(super) fn write_some(&mut self, stage: &[BlockWrite], rng: &mut Rng) {
        for (block, bytes) in stage {
            let before = self.blocks.entry(*block).or_insert_with(|| vec![0; BLOCK_SIZE].into());
            let whole = rng.chance(1, 2);
            for (old, new) in before.chunks_mut(SECTOR).zip(bytes.chunks(SECTOR)) {
                if whole || rng.chance(1, 2) {
                    old.copy_from_slice(new);
                }
            }
        }
    }
}

/// Interrupts a repair of the pool as damaged by `spoil`, again and again.
fn interrupted(what: &str, spoil: impl FnOnce(&mut Draft)) {
    let mut draft = Draft::new();
    draft.write();
    draft.go_on();
    spoil(&mut draft);
    assert!(!draft.may_be_opened(), "{what}");
    let stages = draft.work_out_repair().unwrap().into_stages();
    let mut done = draft.clone();
    done.blocks.extend(stages.iter().flatten().cloned());
    assert!(done.may_be_opened(), "{what}");
    let contents = done.contents();
    let mut rng = Rng::new(7);
    for n in 0..40 * stages.len() {
        let stage = n % stages.len();
        let mut cut = draft.clone();
        cut.blocks.extend(stages[..stage].iter().flatten().cloned());
        cut.write_some(&stages[stage], &mut rng);
        let at = format!("{what}: cut {n}, in stage {stage}");
        if cut.may_be_opened() {
            assert!(cut.superblock_now() == done.superblock_now(), "{at}, opens as of the past");
            assert_eq!(cut.contents(), contents, "{at}");
        }
        cut.repaired();
        assert!(cut.may_be_opened(), "{at}");
        assert_eq!(cut.contents(), contents, "{at}");
    }
}

fn rotten_page(draft: &mut Draft, copy: usize) {
    let page = draft.superblock.layout.region_page(copy, 0);
    draft.blocks.insert(page, vec![5; BLOCK_SIZE].into());
}

fn rotten_table(draft: &mut Draft, copy: usize) {
    let table = draft.superblock.layout.log_table(copy);
    draft.blocks.insert(table, vec![5; BLOCK_SIZE].into());
}

const ROTTEN: [u8; ROOT_SLOT_SIZE] = [5; ROOT_SLOT_SIZE];

/// A stale map would give away chunks that have owners.
#[test]
fn no_map_of_the_past_counts() {
    interrupted("the newer copy", |draft| rotten_page(draft, 1));
    interrupted("both copies", |draft| (0..2).for_each(|copy| rotten_page(draft, copy)));
    interrupted("a copy that lies in wait", |draft| {
        rotten_page(draft, 0);
        draft.region.release(21);
        let writes = draft.region.write_out(3);
        draft.blocks.extend(writes);
        assert!(draft.blocks[&draft.superblock.layout.region_page(1, 0)].starts_with(b"WReg"));
    });
    interrupted("an owner that cannot be, and what lies in wait beside it", |draft| {
        let layout = draft.superblock.layout;
        let page = draft.blocks.get_mut(&layout.region_page(0, 0)).unwrap();
        bend(page, &[(32 + 2 * 40, 99)]);
        seal(page, 8);
        draft.region.release(21);
        let writes = draft.region.write_out(3);
        draft.blocks.extend(writes);
    });
    interrupted("an owner that cannot be, beside a copy in doubt", |draft| {
        let layout = draft.superblock.layout;
        let page = draft.blocks.get_mut(&layout.region_page(0, 0)).unwrap();
        bend(page, &[(32 + 2 * 40, 99)]);
        seal(page, 8);
        rotten_page(draft, 1);
    });
    interrupted("an owner that cannot be, and the map of the past", |draft| {
        let layout = draft.superblock.layout;
        draft.region.release(21);
        let writes = draft.region.write_out(1);
        draft.blocks.extend(writes);
        let page = draft.blocks.get_mut(&layout.region_page(0, 0)).unwrap();
        bend(page, &[(8, 2), (32 + 2 * 40, 99)]);
        seal(page, 8);
    });
}

/// A stale root leads to blocks that have been used again.
#[test]
fn no_root_of_the_past_counts() {
    interrupted("the newer slot", |draft| draft.put_slot(0, 1, &ROTTEN));
    interrupted("the only slot", |draft| draft.put_slot(1, 0, &ROTTEN));
    interrupted("both slots", |draft| {
        (0..2).for_each(|slot| draft.put_slot(1, slot, &ROTTEN));
    });
    interrupted("a slot that lies in wait", |draft| {
        draft.put_slot(1, 1, &draft.slot_of(1, 3));
        draft.put_slot(1, 0, &ROTTEN);
    });
    interrupted("two slots that lie in wait", |draft| {
        (0..2).for_each(|slot| draft.put_slot(1, slot, &draft.slot_of(1, 3)));
    });
    let flipped = |draft: &mut Draft, shard, slot: usize| {
        let mut bytes = draft.slots(shard)[slot].to_vec();
        bytes[48] ^= 4;
        draft.put_slot(shard, slot, &bytes);
    };
    interrupted("a flipped bit in the older slot", |draft| flipped(draft, 0, 1));
    interrupted("a flipped bit in the newer slot", |draft| flipped(draft, 0, 0));
    interrupted("a flipped bit in each slot", |draft| {
        (0..2).for_each(|slot| flipped(draft, 0, slot));
    });
    interrupted("a flipped bit beside a slot that lies in wait", |draft| {
        draft.put_slot(1, 1, &draft.slot_of(1, 3));
        flipped(draft, 1, 0);
    });
    interrupted("zeros", |draft| (0..2).for_each(|slot| draft.put_slot(1, slot, &[0; 512])));
    interrupted("slots of both shards, and the map", |draft| {
        draft.put_slot(0, 1, &ROTTEN);
        draft.put_slot(1, 0, &ROTTEN);
        rotten_page(draft, 1);
    });
}

/// A stale log table would replay logs whose changes are in the trees.
#[test]
fn no_log_table_of_the_past_counts() {
    interrupted("the newer copy", |draft| rotten_table(draft, 1));
    interrupted("both copies", |draft| (0..2).for_each(|copy| rotten_table(draft, copy)));
}

/// A repair uses blocks without a reference, and the discarded logs may name them.
#[test]
fn logs_that_are_given_up_stay_so() {
    let mut draft = Draft::new();
    draft.shards[0].change(FILE, |inode| inode.nlink = 1);
    draft.write();
    draft.superblock.clean = false;
    draft.go_on();
    let stages = draft.work_out_repair().unwrap().into_stages();
    let mut rng = Rng::new(8);
    for n in 0..40 * stages.len() {
        let stage = n % stages.len();
        let mut cut = draft.clone();
        cut.blocks.extend(stages[..stage].iter().flatten().cloned());
        cut.write_some(&stages[stage], &mut rng);
        let is_free = |(block, _): &(&BlockNo, _)| cut.superblock.layout.is_allocatable(**block);
        let untouched = cut.blocks.iter().filter(is_free).eq(draft.blocks.iter().filter(is_free));
        let is_clean = cut.superblock_now().clean;
        assert!(untouched || is_clean || !cut.may_be_opened(), "cut {n}, in stage {stage}");
        cut.repaired();
        assert!(cut.may_be_opened(), "cut {n}, in stage {stage}");
    }
}

#[test]
fn a_power_failure_leaves_the_old_pool_or_the_new() {
    let mut draft = Draft::new();
    draft.shards[0].change(FILE, |inode| inode.nlink = 1);
    draft.write();
    let before = draft.findings();
    let repair = draft.work_out_repair().unwrap();
    let mut rng = Rng::new(5);
    let writes: Vec<_> = repair.body.iter().chain(&repair.heads).cloned().collect();
    for _ in 0..200 {
        // Any of the writes before the superblock, in any order.
        let mut cut = draft.clone();
        cut.blocks.extend(writes.iter().filter(|_| rng.chance(1, 2)).cloned());
        assert_eq!(cut.findings(), before);
        assert_eq!(cut.repaired(), repair.mends, "a second repair does what the first would have");
    }
    let mut done = draft.clone();
    done.blocks.extend(writes);
    done.blocks.extend([repair.superblocks[0].clone()]);
    assert_eq!(done.findings().into_iter().filter(is_damage).collect::<Vec<_>>(), []);
}
