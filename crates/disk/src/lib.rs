//! All structures of Warren on a pool device, typed; the copy-on-write B+tree; `mkfs`.
//!
//! The bits are in `docs/disk-format.md`, which changes with this crate. Bytes are decoded once,
//! into types that can hold only legal values. A damaged or hostile image leads to an error, never
//! to a panic, even if its checksums are valid.
//!
//! This crate is pure: it receives blocks and returns blocks. The owner of a shard decides where
//! blocks are placed.

#![forbid(unsafe_code)]

mod codec;
pub mod format;
mod inode;
mod kept;
mod key;
mod layout;
mod log;
mod node;
mod record;
mod region;
mod root_slot;
mod superblock;
mod tree;
mod value;

use warren_base::BlockNo;

pub use inode::{Inode, Part};
pub use kept::{KEPT_MAX, KeptRecords};
pub use key::{Key, Kind, NAME_HASH_BITS, name_hash};
pub use layout::{ChunkBounds, Layout, OWNERS_PER_PAGE, ROOT_SLOT_SIZE, SlotPlace};
pub use log::{
    FoundRecord, LOG_BLOCKS_MIN, LogArea, LogTable, LogTableError, RECORD_ALIGN, RECORD_HEADER,
    RECORD_MAX, RawRecord, RecordPlace, durable_behind, find_record, read_record, seal_record,
};
pub use node::{
    BlockPtr, DecodedBody, DecodedNode, HEIGHT_MAX, NodeError, ROOT_HEIGHT_MAX, block_checksum,
    restore_magic,
};
pub use record::{INTERNAL_RECORD, NODE_CAPACITY, RECORD_OVERHEAD, VALUE_MAX, ValueError};
pub use region::{BadPage, Owner, RegionError, RegionMap};
pub use root_slot::{ChosenRoot, RootSlot, RootSlotError, SlotState};
pub use superblock::{CopiesState, KEPT_PERCENT_MAX, Superblock, SuperblockError};
pub use tree::{Absent, Tree};
pub use value::{
    Dentry, EXTENT_BLOCKS_MAX, Extent, Owed, SHARED_MAX, SHARED_RECORD_MAX, SharedRun,
    TARGET_PIECE, Value, XATTR_PIECE, Xattr, XattrValue,
};
pub use warren_base::FileKind;

/// A block's number and its new 4096 bytes.
pub type BlockWrite = (BlockNo, Box<[u8]>);
