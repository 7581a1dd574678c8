//! Flips a hundred random bits in each kind of structure. Every flip that matters is found, no
//! check or repair panics, and after the repair the pool is sound and has the names of all files.

use super::repair::is_damage;
use super::*;
use warren_disk::{LogTable, Owner};

const FLIPS: usize = 100;
/// Empty files beside the usual ones, so that the tree of shard 1 has inner nodes.
const FILES: u64 = 200;

fn pool() -> Draft {
    let mut draft = Draft::new();
    let file = |n| Ino(1 << 48 | (100 + n));
    for n in 0..FILES {
        draft.shards[1].inode(file(n), FileKind::Fifo, 1, Ino(0));
        draft.shards[1].entry(DIR, &format!("file {n}"), file(n), FileKind::Fifo);
    }
    draft.shards[1].part(DIR, 1 + FILES, 0);
    // More than one chunk.
    draft.shards[1].chunk = 22;
    draft.region.release(21);
    draft.region.claim(22, ShardId(1));
    draft.write();
    assert_eq!(draft.findings(), []);
    assert!(draft.region.iter().any(|(_, owner)| owner == Owner::Shard(ShardId(1))));
    draft
}

/// Flips bits of one of these bytes of one of these blocks. Returns how many flips were found.
fn flipped(sound: &Draft, blocks: &[BlockNo], bytes: std::ops::Range<usize>) -> usize {
    assert!(!blocks.is_empty());
    let mut rng = Rng::new(blocks[0].0);
    let mut found = 0;
    for _ in 0..FLIPS {
        let mut draft = sound.clone();
        let block = *rng.pick(blocks);
        let at = bytes.start + rng.below(bytes.len() as u64) as usize;
        draft.blocks.get_mut(&block).unwrap()[at] ^= 1 << rng.below(8);
        found += usize::from(!draft.check().is_sound());
        draft.repaired();
        assert_eq!(draft.lookup(Ino::ROOT, "file"), Some(FILE));
        assert_eq!(draft.lookup(DIR, "inner"), Some(INNER), "byte {at} of block {block}");
        assert_eq!(draft.check().inodes, 5 + FILES);
    }
    found
}

#[test]
fn of_superblocks_root_slots_and_region_map() {
    let sound = pool();
    let layout = sound.superblock.layout;
    assert_eq!(flipped(&sound, &[BlockNo(0), BlockNo(1)], 0..BLOCK_SIZE), FLIPS);
    let slots = layout.root_slot(ShardId(0), 0).block;
    let map = layout.region_page(0, 0);
    assert_eq!(flipped(&sound, &[slots], 0..4 * 512), FLIPS);
    let tables: Vec<_> = [0, 1].map(|copy| layout.log_table(copy)).into();
    let choose = |draft: &Draft| {
        LogTable::choose([&draft.blocks[&tables[0]], &draft.blocks[&tables[1]]], 1, 2).is_ok()
    };
    assert!(choose(&sound));
    assert_eq!(flipped(&sound, &tables[..1], 0..BLOCK_SIZE), FLIPS);
    assert_eq!(flipped(&sound, &[map], 0..BLOCK_SIZE), FLIPS);
    assert_eq!(flipped(&sound, &[layout.root_slot(ShardId(0), 1).block], 0..4 * 512), FLIPS);
    // The other copies were never written: their content is not valid, and the repair overwrites
    // it.
    flipped(&sound, &[layout.region_page(1, 0)], 0..BLOCK_SIZE);
    flipped(&sound, &tables[1..], 0..BLOCK_SIZE);
}

#[test]
fn of_tree_nodes() {
    let sound = pool();
    let nodes: Vec<_> =
        sound.blocks.iter().filter(|(_, bytes)| bytes.starts_with(b"WNod")).collect();
    // `image` left a node that is no longer valid.
    let counts = |block: &BlockNo| [20, 22].contains(&(block.0 / CHUNK_BLOCKS));
    for level in [0, 1] {
        let of_level = nodes.iter().filter(|(block, bytes)| bytes[28] == level && counts(block));
        let blocks: Vec<_> = of_level.map(|(block, _)| **block).collect();
        assert_eq!(flipped(&sound, &blocks, 0..BLOCK_SIZE), FLIPS, "level {level}");
    }
}

#[test]
fn of_data() {
    let sound = pool();
    let mut rng = Rng::new(10);
    for _ in 0..FLIPS {
        let mut draft = sound.clone();
        let block = BlockNo(20 * CHUNK_BLOCKS + rng.below(3));
        let at = rng.below(BLOCK_SIZE as u64) as usize;
        draft.blocks.get_mut(&block).unwrap()[at] ^= 1 << rng.below(8);
        let report = draft.check();
        let wrong: Vec<_> = report.findings.iter().filter(|finding| is_damage(finding)).collect();
        assert!(matches!(wrong[..], [Finding::Contents { ino: FILE, .. }]), "{wrong:?}");
        assert_eq!(&*report.paths[&FILE], b"/file");
        // The error remains, see `rotten_data_stays_an_error`.
        assert!(draft.work_out_repair().is_ok());
    }
}
