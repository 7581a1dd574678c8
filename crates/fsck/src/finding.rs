//! The findings of `fsck`, one line each, with the place.

use crate::read::ReadError;
use thiserror::Error;
use warren_base::{BlockNo, CellId, FileKind, Ino, InodeNumbers, ShardId};
use warren_disk::{Key, LogTableError, NodeError, RegionError, RootSlotError, SuperblockError};

/// Whether a finding means that something is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Expected after a crash; the next mount repairs it.
    Note,
    Damage,
}

/// Something that is not as it must be.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Finding {
    #[error("block {block}: cannot be read: {error}")]
    Unreadable { block: BlockNo, error: ReadError },
    #[error("superblock: {0}")]
    Superblock(SuperblockError),
    #[error("superblock copy {copy}: {error}")]
    SuperblockCopy { copy: usize, error: SuperblockError },
    #[error("superblock copy {copy}: is of an earlier checkpoint than the other")]
    SuperblockBehind { copy: usize },
    #[error("the pool has {needs} blocks, but the device only {has}: its end is cut off")]
    TooShort { has: u64, needs: u64 },
    #[error("region map: {0}")]
    Region(RegionError),
    #[error("region map: the page at block {block} is damaged, its other copy counts")]
    RegionPage { block: BlockNo },
    #[error("log table: {0}")]
    LogTable(LogTableError),
    #[error("log table copy {copy}: {error}, the other counts")]
    LogTableCopy { copy: usize, error: LogTableError },
    #[error("shard {shard}: {error}")]
    RootSlot { shard: ShardId, error: RootSlotError },
    #[error("shard {shard}: root slot {slot}, which does not count: {error}")]
    RootSlotCopy { shard: ShardId, slot: usize, error: RootSlotError },
    #[error("shard {shard}: bit {bit} of block {block}, in its root slot {slot}, has flipped")]
    RootSlotBit { shard: ShardId, slot: usize, block: BlockNo, bit: usize },
    #[error("shard {shard}: was given up: what lies there is not served until it is repaired")]
    GivenUp { shard: ShardId },
    #[error(
        "shard {shard}: {bytes} bytes of the log of cell {cell} are kept for it from block {block} on"
    )]
    Kept { shard: ShardId, cell: CellId, block: BlockNo, bytes: usize },
    #[error("shard {shard}: tree node at block {block}: {error}")]
    Node { shard: ShardId, block: BlockNo, error: NodeError },
    #[error("shard {shard}: {what} is {recorded} in the root slot, {found} were found")]
    RootCount { shard: ShardId, what: &'static str, recorded: u64, found: u64 },

    #[error("shard {shard}: block {block} cannot be allocated, but {by:?} refers to it")]
    BlockOutOfRange { shard: ShardId, block: BlockNo, by: Key },
    #[error("shard {shard}: block {block} is in a chunk of another owner, but {by:?} refers to it")]
    ForeignBlock { shard: ShardId, block: BlockNo, by: Key },
    #[error("shard {shard}: block {block} has another use, but {by:?} refers to it")]
    SharedBlock { shard: ShardId, block: BlockNo, by: Key },
    #[error(
        "shard {shard}: block {block} is recorded as shared by {recorded} further places of files, {found} were found"
    )]
    Places { shard: ShardId, block: BlockNo, recorded: u32, found: u32 },
    #[error("shard {shard}: has a record of chunk {chunk}, which it does not own")]
    ForeignChunk { shard: ShardId, chunk: u64 },
    #[error("shard {shard}: block {block} is used but recorded as free")]
    NotRecorded { shard: ShardId, block: BlockNo },
    #[error("shard {shard}: block {block} is recorded as used, but nothing refers to it")]
    Leaked { shard: ShardId, block: BlockNo },

    #[error("shard {shard}: has a record of inode {ino}, which belongs to shard {home}")]
    ForeignInode { shard: ShardId, ino: Ino, home: ShardId },
    #[error("inode {ino}: its sequence is not below the shard's next, {next_sequence}")]
    Sequence { ino: Ino, next_sequence: u64 },
    #[error(
        "inode {ino}: has lost data that was not synced (generation {generation}): a cell has ended, and its memory was damaged"
    )]
    Discarded { ino: Ino, generation: u32 },
    #[error("inode {ino}: has records but no attributes")]
    NoInode { ino: Ino },
    #[error("inode {ino}: a {kind:?} has a record of {by:?}")]
    MisplacedRecord { ino: Ino, kind: FileKind, by: Key },
    #[error("inode {ino}: the record of {by:?} overlaps the one before it")]
    Overlap { ino: Ino, by: Key },
    #[error("inode {ino}: has blocks up to {end_block}, beyond its size of {size} bytes")]
    BeyondSize { ino: Ino, end_block: u64, size: u64 },
    #[error("inode {ino}: says it has {recorded} blocks, but its extents have {found}")]
    Blocks { ino: Ino, recorded: u64, found: u64 },
    #[error("inode {ino}: the symlink's target is incomplete")]
    Target { ino: Ino },
    #[error("inode {ino}: block {file_block} of the file, at block {block}, has a wrong checksum")]
    Contents { ino: Ino, file_block: u64, block: BlockNo },
    #[error(
        "inode {ino}: block {file_block} of the file, at block {block}, cannot be read: {error}"
    )]
    UnreadableContents { ino: Ino, file_block: u64, block: BlockNo, error: ReadError },
    #[error("inode {ino}: the name {:?} is kept under the hash of another", name.escape_ascii().to_string())]
    WrongHash { ino: Ino, name: Box<[u8]> },

    #[error("inode {ino}: the access control list {:?} cannot be read", name.escape_ascii().to_string())]
    IllegalList { ino: Ino, name: Box<[u8]> },
    #[error("inode {ino}: its flags do not say which attributes it has")]
    Flags { ino: Ino },
    #[error("inode {ino}: the pieces of its attributes' values are not those of the values")]
    XattrPieces { ino: Ino },

    #[error("directory {ino}: its part is missing")]
    NoPart { ino: Ino },
    #[error("directory {ino}: {what} is {recorded}, {found} were found")]
    PartCount { ino: Ino, what: &'static str, recorded: u64, found: u64 },
    #[error("directory {dir}: entry {:?} leads to inode {ino}, which does not exist", name.escape_ascii().to_string())]
    Dangling { dir: Ino, name: Box<[u8]>, ino: Ino },
    #[error("directory {dir}: entry {:?} says {says:?}, but inode {ino} is a {is:?}", name.escape_ascii().to_string())]
    EntryKind { dir: Ino, name: Box<[u8]>, ino: Ino, says: FileKind, is: FileKind },
    #[error("inode {ino}: has {recorded} links, but {found} names lead to it")]
    Links { ino: Ino, recorded: u32, found: u32 },
    #[error("directory {ino}: has {recorded} links instead of {found}")]
    DirectoryLinks { ino: Ino, recorded: u32, found: u32 },
    #[error("directory {ino}: {names} names lead to it")]
    DirectoryNames { ino: Ino, names: u32 },
    #[error("directory {ino}: names {recorded} as its parent, but is in {found}")]
    Parent { ino: Ino, recorded: Ino, found: Ino },
    #[error("inode {ino}: no name leads to it")]
    Unreachable { ino: Ino },
    #[error("directory {ino}: its parents do not lead to the root")]
    Detached { ino: Ino },
    #[error("the root directory is missing or is no directory")]
    NoRoot,
    #[error("inode {ino}: unlinked while open, to be reclaimed")]
    Orphan { ino: Ino },
    #[error("inode {ino}: recorded as an orphan, but {why}")]
    BadOrphan { ino: Ino, why: &'static str },
}

impl Finding {
    pub fn severity(&self) -> Severity {
        match self {
            Self::SuperblockBehind { .. }
            | Self::RegionPage { .. }
            | Self::LogTableCopy { .. }
            | Self::Kept { .. }
            | Self::Discarded { .. }
            | Self::Orphan { .. } => Severity::Note,
            _ => Severity::Damage,
        }
    }

    /// Whether its repair follows from the pool's content and removes nothing, so that no
    /// administrator must confirm it.
    pub fn is_harmless(&self) -> bool {
        match self {
            Self::SuperblockCopy { .. }
            | Self::RootCount { .. }
            | Self::Leaked { .. }
            | Self::Places { .. }
            | Self::PartCount { .. }
            | Self::Links { .. }
            | Self::DirectoryLinks { .. } => true,
            other => other.severity() == Severity::Note,
        }
    }

    /// Whether it is about file data, of which there is no second copy: no repair restores it.
    pub fn is_lost_data(&self) -> bool {
        matches!(self, Self::Contents { .. } | Self::UnreadableContents { .. })
    }

    /// The line, with the inode numbers that programs see.
    pub fn text(&self, numbers: InodeNumbers) -> String {
        let mut shown = self.clone();
        shown.for_each_ino(|ino| *ino = Ino(numbers.number(*ino)));
        shown.to_string()
    }

    /// Changes each inode that the line names.
    fn for_each_ino(&mut self, mut change: impl FnMut(&mut Ino)) {
        let change_key = |key: &mut Key, change: &mut dyn FnMut(&mut Ino)| {
            let mut ino = Ino(key.ino);
            change(&mut ino);
            key.ino = ino.0;
        };
        match self {
            Self::ForeignInode { ino, .. }
            | Self::Sequence { ino, .. }
            | Self::Discarded { ino, .. }
            | Self::NoInode { ino }
            | Self::BeyondSize { ino, .. }
            | Self::Blocks { ino, .. }
            | Self::Target { ino }
            | Self::Contents { ino, .. }
            | Self::UnreadableContents { ino, .. }
            | Self::WrongHash { ino, .. }
            | Self::IllegalList { ino, .. }
            | Self::Flags { ino }
            | Self::XattrPieces { ino }
            | Self::NoPart { ino }
            | Self::PartCount { ino, .. }
            | Self::Links { ino, .. }
            | Self::DirectoryLinks { ino, .. }
            | Self::DirectoryNames { ino, .. }
            | Self::Unreachable { ino }
            | Self::Detached { ino }
            | Self::Orphan { ino }
            | Self::BadOrphan { ino, .. } => change(ino),
            Self::Dangling { dir, ino, .. } | Self::EntryKind { dir, ino, .. } => {
                [dir, ino].into_iter().for_each(change);
            }
            Self::Parent { ino, recorded, found } => {
                [ino, recorded, found].into_iter().for_each(change);
            }
            Self::MisplacedRecord { ino, by, .. } | Self::Overlap { ino, by } => {
                change(ino);
                change_key(by, &mut change);
            }
            Self::ForeignBlock { by, .. }
            | Self::SharedBlock { by, .. }
            | Self::BlockOutOfRange { by, .. } => change_key(by, &mut change),
            _ => {}
        }
    }

    /// The inode that it concerns, if any that may have a path.
    pub fn ino(&self) -> Option<Ino> {
        match self {
            Self::Unreachable { .. }
            | Self::Detached { .. }
            | Self::Orphan { .. }
            | Self::BadOrphan { .. } => None,
            Self::EntryKind { ino, .. } => Some(*ino),
            _ => {
                let mut first = None;
                self.clone().for_each_ino(|ino| first = first.or(Some(*ino)));
                // The records of a shard itself have inode 0.
                first.filter(|ino| *ino != Ino(0))
            }
        }
    }
}
