//! `mkfs`: the blocks of a new pool.
//!
//! Shard 0 holds the root directory and owns one chunk, for the one node of its tree; the other
//! shards are empty. It is checkpoint 1.
//!
//! Order of writing, so that an interrupted `mkfs` leaves no pool rather than half of one: zero
//! blocks 0 and 1, flush; all blocks of [`image`] but the last two, flush; the last two (the
//! superblocks), flush.

use crate::inode::{Inode, Part};
use crate::key::Key;
use crate::layout::{Layout, ROOT_SLOT_SIZE};
use crate::log::{LOG_BLOCKS_MIN, LogTable};
use crate::region::RegionMap;
use crate::root_slot::RootSlot;
use crate::superblock::{LABEL_MAX, Superblock, Uuid};
use crate::tree::Tree;
use crate::value::Value;
use crate::{BlockPtr, BlockWrite};
use thiserror::Error;
use warren_base::FileKind;
use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS, POOL_BLOCKS_MAX, SHARDS_DEFAULT, SHARDS_MAX};
use warren_base::{BlockNo, Ino, InodeFlags, ShardId, Timestamp};

/// Bytes of the smallest pool: a few dozen chunks besides the metadata.
pub const SIZE_MIN: u64 = 32 << 20;

/// Bytes of the largest pool.
pub const SIZE_MAX: u64 = POOL_BLOCKS_MAX * BLOCK_SIZE as u64;

const ROOT_MODE: u16 = 0o755;
const FIRST_GENERATION: u64 = 1;

/// The parameters of a new pool.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    pub size_bytes: u64,
    pub shards: u16,
    /// Bytes of the region of the op logs; [`log_suggested`] is the default.
    pub log_bytes: u64,
    pub uuid: Uuid,
    /// Seed of the name hashes, from a good source of randomness.
    pub secret: u64,
    pub now: Timestamp,
    /// Owner of the root directory.
    pub uid: u32,
    pub gid: u32,
    pub label: String,
    /// The host has allocated all of its file, and keeps it allocated.
    pub reserved: bool,
    /// The part of the pool that only root and the fleet's owner may fill, at most
    /// [`KEPT_PERCENT_MAX`]. `None`: a sixteenth.
    ///
    /// [`KEPT_PERCENT_MAX`]: crate::KEPT_PERCENT_MAX
    pub kept_percent: Option<u8>,
}

/// Why a pool cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FormatError {
    #[error("{size} bytes are too few for a pool, which needs {SIZE_MIN}")]
    TooSmall { size: u64 },
    #[error("a pool has 1 to {SHARDS_MAX} shards, not {0}")]
    BadShards(u16),
    #[error("{shards} shards need {needed} bytes, one chunk each; the device has {size}")]
    TooManyShards { shards: u16, size: u64, needed: u64 },
    #[error("the label has {0} bytes, more than {LABEL_MAX}")]
    LabelTooLong(usize),
    #[error("{size} bytes are more than a pool can have")]
    TooLarge { size: u64 },
    #[error("the op logs need {LOG_MIN} to {max} bytes on this device, not {size}")]
    BadLog { size: u64, max: u64 },
}

/// Bytes of a device for each shard: what a shard keeps back, and the rest of its last chunk, are
/// at most one part in a hundred of that.
const BYTES_A_SHARD: u64 = 32 << 20;
/// Shards of a small device, as long as each has some chunks: so many cells can serve it.
const SHARDS_FEW: u16 = 8;

/// The number of shards that suits a device: the default, or fewer so that little of a small device
/// is kept back by its shards.
pub fn shards_suggested(size_bytes: u64) -> u16 {
    let chunks = size_bytes / BLOCK_SIZE as u64 / CHUNK_BLOCKS;
    let fitting = |count: u64| u16::try_from(count).unwrap_or(u16::MAX);
    let few = fitting(chunks / 8).clamp(1, SHARDS_FEW);
    fitting(size_bytes / BYTES_A_SHARD).clamp(few, SHARDS_DEFAULT)
}

/// Bytes of the smallest region of op logs: their table, and the log of one cell.
pub const LOG_MIN: u64 = (2 + LOG_BLOCKS_MIN) * BLOCK_SIZE as u64;
/// Bytes of the region of op logs on a large device.
const LOG_USUAL: u64 = 64 << 20;

/// The bytes of op logs that suit a device: an eighth, up to the default.
pub fn log_suggested(size_bytes: u64) -> u64 {
    (size_bytes / 8).clamp(LOG_MIN, LOG_USUAL)
}

/// The blocks of a new pool, the superblocks last. All other blocks may contain anything.
pub fn image(options: &FormatOptions) -> Result<Vec<BlockWrite>, FormatError> {
    let layout = layout_of(options)?;
    let superblock = Superblock {
        uuid: options.uuid,
        secret: options.secret,
        generation: FIRST_GENERATION,
        layout,
        created: options.now,
        label: options.label.clone(),
        reserved: options.reserved,
        kept_percent: options.kept_percent,
        clean: true,
        dense_inos: true,
    };
    let mut region = RegionMap::new(layout);
    let chunk = layout.reserved_chunks();
    region.claim(chunk, ShardId(0));
    let (root, height, mut writes) = root_tree(options, chunk);
    writes.extend(region.write_out(FIRST_GENERATION));
    writes.extend(zeros(layout.region_page(1, 0), layout.region_pages()));
    writes.extend(root_slots(options, &layout, root, height));
    let table = LogTable { generation: FIRST_GENERATION, incarnation: 0, starts: Vec::new() };
    writes.push((layout.log_table(0), table.encode()));
    writes.extend(zeros(layout.log_table(1), 1));
    writes.extend([0, 1].map(|copy| (layout.superblock(copy), superblock.encode())));
    Ok(writes)
}

fn layout_of(options: &FormatOptions) -> Result<Layout, FormatError> {
    let (size, shards) = (options.size_bytes, options.shards);
    if size < SIZE_MIN {
        return Err(FormatError::TooSmall { size });
    } else if !(1..=SHARDS_MAX).contains(&shards) {
        return Err(FormatError::BadShards(shards));
    } else if options.label.len() > LABEL_MAX {
        return Err(FormatError::LabelTooLong(options.label.len()));
    }
    let log_max = size / 4;
    if !(LOG_MIN..=log_max).contains(&options.log_bytes) {
        return Err(FormatError::BadLog { size: options.log_bytes, max: log_max });
    }
    let log_blocks = options.log_bytes / BLOCK_SIZE as u64;
    let layout = Layout::new(size / BLOCK_SIZE as u64, shards, log_blocks);
    let layout = layout.ok_or(FormatError::TooLarge { size })?;
    let needed = layout.reserved_chunks() + u64::from(shards);
    if layout.chunks() < needed {
        let needed = needed * CHUNK_BLOCKS * BLOCK_SIZE as u64;
        return Err(FormatError::TooManyShards { shards, size, needed });
    }
    Ok(layout)
}

/// The tree of shard 0: the root directory and the chunk of the tree's only node.
fn root_tree(options: &FormatOptions, chunk: u64) -> (Option<BlockPtr>, u8, Vec<BlockWrite>) {
    let now = options.now;
    let inode = Inode {
        kind: FileKind::Directory,
        mode: ROOT_MODE,
        uid: options.uid,
        gid: options.gid,
        nlink: 2,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        generation: 0,
        parent: Ino::ROOT,
        flags: InodeFlags::empty(),
    };
    let part = Part { entries: 0, subdirs: 0, mtime: now, ctime: now };
    let mut tree = Tree::open(ShardId(0), None, 0);
    let records = [
        (Key::inode(Ino::ROOT), Value::Inode(Box::new(inode))),
        (Key::part(Ino::ROOT, 0), Value::Part(Box::new(part))),
        (Key::chunk(chunk), Value::Chunk(1)),
    ];
    for (key, value) in records {
        tree.insert(key, value).expect("a new tree is in memory");
    }
    tree.write_out(FIRST_GENERATION, &[BlockNo(chunk * CHUNK_BLOCKS)])
}

/// Both arrays of root slots. Slot 1 of each shard is older, and equal otherwise.
fn root_slots(
    options: &FormatOptions,
    layout: &Layout,
    root: Option<BlockPtr>,
    height: u8,
) -> Vec<BlockWrite> {
    let mut writes: Vec<_> = zeros(layout.roots_start(), 2 * layout.roots_blocks()).collect();
    for shard in (0..layout.shards()).map(ShardId) {
        let empty = RootSlot::empty(options.uuid, shard);
        let slot = match shard {
            ShardId(0) => RootSlot {
                root,
                height,
                next_sequence: Ino::ROOT.sequence() + 1,
                inodes: 1,
                used_blocks: 1,
                ..empty
            },
            _ => empty,
        };
        for (at, generation) in [FIRST_GENERATION, 0].into_iter().enumerate() {
            let place = layout.root_slot(shard, at);
            let (block, bytes) = &mut writes[(place.block.0 - layout.roots_start().0) as usize];
            assert_eq!(*block, place.block);
            let slot = RootSlot { generation, ..slot };
            bytes[place.offset..][..ROOT_SLOT_SIZE].copy_from_slice(&slot.encode());
        }
    }
    writes
}

fn zeros(start: BlockNo, blocks: u64) -> impl Iterator<Item = BlockWrite> {
    (0..blocks).map(move |n| (start.offset(n), vec![0; BLOCK_SIZE].into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::CopiesState;
    use std::collections::BTreeMap;

    fn options() -> FormatOptions {
        FormatOptions {
            size_bytes: 256 << 20,
            shards: 256,
            log_bytes: log_suggested(256 << 20),
            uuid: [7; 16],
            secret: 8,
            now: Timestamp(9),
            uid: 1000,
            gid: 1001,
            label: "test".to_owned(),
            reserved: false,
            kept_percent: None,
        }
    }

    #[test]
    fn a_new_pool_opens_and_holds_the_root() {
        let writes = image(&options()).unwrap();
        let blocks: BTreeMap<_, _> = writes.iter().cloned().collect();
        assert_eq!(blocks.len(), writes.len());
        let (superblock, state) =
            Superblock::choose(&blocks[&BlockNo(0)], &blocks[&BlockNo(1)]).unwrap();
        assert_eq!(state, CopiesState::Agree);
        let layout = superblock.layout;
        let slots = [0, 1].map(|slot| {
            let place = layout.root_slot(ShardId(0), slot);
            &blocks[&place.block][place.offset..place.offset + ROOT_SLOT_SIZE]
        });
        let chosen = RootSlot::choose(slots, &superblock, ShardId(0)).unwrap();
        let root = chosen.root;
        let mut tree = Tree::open(ShardId(0), root.root, root.height);
        let ptr = root.root.unwrap();
        tree.load(ptr, &blocks[&ptr.block]).unwrap();
        let Ok(Some(Value::Inode(inode))) = tree.get(&Key::inode(Ino::ROOT)) else {
            panic!("no root directory")
        };
        assert_eq!((inode.uid, inode.gid, inode.nlink, inode.mode), (1000, 1001, 2, 0o755));
    }

    #[test]
    fn the_superblocks_come_last() {
        let writes = image(&options()).unwrap();
        let last: Vec<_> = writes[writes.len() - 2..].iter().map(|(block, _)| block.0).collect();
        assert_eq!(last, [0, 1]);
    }

    #[test]
    fn what_makes_no_pool_is_refused() {
        let refused = |change: &dyn Fn(&mut FormatOptions)| {
            let mut options = options();
            change(&mut options);
            image(&options).unwrap_err()
        };
        let size = SIZE_MIN - 1;
        assert_eq!(refused(&|o| o.size_bytes = size), FormatError::TooSmall { size });
        assert_eq!(refused(&|o| o.shards = 0), FormatError::BadShards(0));
        assert_eq!(refused(&|o| o.label = "x".repeat(65)), FormatError::LabelTooLong(65));
        let (size, max) = (LOG_MIN - 1, 64 << 20);
        assert_eq!(refused(&|o| o.log_bytes = size), FormatError::BadLog { size, max });
        let many = refused(&|o| (o.size_bytes, o.log_bytes) = (SIZE_MIN, LOG_MIN));
        assert!(matches!(many, FormatError::TooManyShards { shards: 256, .. }), "{many}");
    }

    #[test]
    fn suggested_shards_always_fit() {
        for size_bytes in [SIZE_MIN, 64 << 20, 1 << 30, 1 << 40] {
            let shards = shards_suggested(size_bytes);
            let log_bytes = log_suggested(size_bytes);
            let fitting = FormatOptions { size_bytes, shards, log_bytes, ..options() };
            assert!(layout_of(&fitting).is_ok());
        }
        let suggested = [32 << 20, 256 << 20, 2 << 30, 20 << 30].map(shards_suggested);
        assert_eq!(suggested, [8, 8, 64, SHARDS_DEFAULT]);
    }
}
