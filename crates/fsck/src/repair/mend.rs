//! The mends of a repair, one line each.

use thiserror::Error;
use warren_base::{BlockNo, FileKind, Ino, InodeNumbers, ShardId};
use warren_disk::NodeError;

/// The most mends that are kept by name; the others are counted.
pub(super) const MENDS_MAX: usize = 10_000;

/// A change that a repair made, as one line with the place.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Mend {
    #[error("block {block}: its bit {bit} had flipped and was flipped back")]
    Corrected { block: BlockNo, bit: usize },
    #[error("shard {shard}: tree node at block {block} is lost, with what it led to: {error}")]
    NodeLost { shard: ShardId, block: BlockNo, error: NodeError },
    #[error(
        "shard {shard}: tree node at block {block} is lost, with what it led to: it cannot be read"
    )]
    NodeUnreadable { shard: ShardId, block: BlockNo },
    #[error("shard {0}: neither root slot can be read, all that it held is lost")]
    ShardLost(ShardId),
    #[error("shard {0}: a root slot that may have been the newer is discarded")]
    SlotGivenUp(ShardId),
    #[error("shard {0}: is served again")]
    Served(ShardId),
    #[error(
        "shard {shard}: {replayed} of the log records kept for it were replayed, {left} could not be"
    )]
    KeptReplayed { shard: ShardId, replayed: u64, left: u64 },
    #[error("shard {shard}: {records} log records kept for it are discarded: {why}")]
    KeptDiscarded { shard: ShardId, records: u64, why: Box<str> },
    #[error("region map: page {0} is made anew from what the trees refer to")]
    RegionPage(u64),
    #[error("chunk {chunk}: belongs to shard {to} from now on")]
    ChunkOwner { chunk: u64, to: ShardId },
    #[error("shard {0}: its tree is written anew")]
    TreeWritten(ShardId),
    #[error(
        "shard {shard}: its record of chunk {chunk}, which the device does not have, is dropped"
    )]
    NoChunk { shard: ShardId, chunk: u64 },
    #[error(
        "shard {shard}: {blocks} blocks were recorded as used, but nothing refers to them; freed"
    )]
    Leaked { shard: ShardId, blocks: u64 },
    #[error("shard {shard}: {blocks} blocks were used but recorded as free; recorded")]
    Recorded { shard: ShardId, blocks: u64 },
    #[error("shard {0}: its counts of inodes and blocks, or its next sequence, are set right")]
    Counts(ShardId),
    #[error("inode {ino}: {why}; its records are dropped")]
    Dropped { ino: Ino, why: &'static str },
    #[error("inode {ino}: its attributes were lost; it is a {kind:?} of root's from now on")]
    Invented { ino: Ino, kind: FileKind },
    #[error("inode {ino}: {what} dropped: {why}")]
    RecordDropped { ino: Ino, what: &'static str, why: &'static str },
    #[error("inode {ino}: {what} set right")]
    SetRight { ino: Ino, what: &'static str },
    #[error("inode {ino}: block {file_block} of the file is lost: {why}")]
    DataLost { ino: Ino, file_block: u64, why: &'static str },
    #[error(
        "inode {ino}: block {file_block} of the file, which had another use too, is copied to block {to}"
    )]
    Copied { ino: Ino, file_block: u64, to: BlockNo },
    #[error("inode {ino}: the name {:?} moved to where it is looked for", name.escape_ascii().to_string())]
    Rehashed { ino: Ino, name: Box<[u8]> },
    #[error("directory {dir}: entry {:?} removed: {why}", name.escape_ascii().to_string())]
    Unlinked { dir: Ino, name: Box<[u8]>, ino: Ino, why: &'static str },
    #[error("directory {dir}: entry {:?} says that inode {ino} is a {kind:?}, as it is", name.escape_ascii().to_string())]
    EntryKind { dir: Ino, name: Box<[u8]>, ino: Ino, kind: FileKind },
    #[error("inode {ino}: no name led to it; it is in /lost+found")]
    Found { ino: Ino },
    #[error("inode {ino}: has neither a name nor a link; it is reclaimed at the next start")]
    Reclaimed { ino: Ino },
    #[error("inode {ino}: is no orphan; its record as one is dropped")]
    NoOrphan { ino: Ino },
}

impl Mend {
    /// The line, with the inode numbers that programs see.
    pub fn text(&self, numbers: InodeNumbers) -> String {
        let mut shown = self.clone();
        shown.for_each_ino(|ino| *ino = Ino(numbers.number(*ino)));
        shown.to_string()
    }

    /// Changes each inode that the line names. The first is the one whose path locates the change.
    fn for_each_ino(&mut self, mut change: impl FnMut(&mut Ino)) {
        match self {
            Self::Dropped { ino, .. }
            | Self::Invented { ino, .. }
            | Self::RecordDropped { ino, .. }
            | Self::SetRight { ino, .. }
            | Self::DataLost { ino, .. }
            | Self::Copied { ino, .. }
            | Self::Rehashed { ino, .. }
            | Self::Found { ino }
            | Self::Reclaimed { ino }
            | Self::NoOrphan { ino } => change(ino),
            Self::Unlinked { dir, ino, .. } | Self::EntryKind { dir, ino, .. } => {
                [dir, ino].into_iter().for_each(change);
            }
            _ => {}
        }
    }

    /// The inode whose path locates the change, if it is at an inode.
    pub fn ino(&self) -> Option<Ino> {
        let mut first = None;
        self.clone().for_each_ino(|ino| first = first.or(Some(*ino)));
        first
    }
}

/// The changes so far.
#[derive(Default)]
pub(super) struct Mends {
    pub list: Vec<Mend>,
    pub count: u64,
    /// A shard is being read again: its faults were reported.
    pub reported: bool,
    pub further: u64,
}

impl Mends {
    pub(super) fn add(&mut self, mend: Mend) {
        self.count += 1;
        if !self.reported && self.list.len() < MENDS_MAX {
            self.list.push(mend);
        } else if !self.reported {
            self.further += 1;
        }
    }
}
