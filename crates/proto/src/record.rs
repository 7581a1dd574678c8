//! The contents of a record of the op log: the steps by which a task changed its cell, and their
//! cause.
//!
//! A cell's shards are a function of the last checkpoint and the steps that follow it. Steps of the
//! *session* (opens, offsets, locks) survive the death of a process but not a power failure.
//!
//! File data is not in [`Step::Wrote`]: the pages are in frames that outlive the process. After a
//! power failure, the contents of a file are decided by the steps that *cover* earlier writes
//! ([`Step::Placed`], [`Step::Inline`]): they contain the place of the bytes and the size of the
//! file. `docs/disk-format.md` describes how either kind of recovery reads each step.

use alloc::boxed::Box;
use alloc::vec::Vec;

use warren_base::{
    BlockNo, CellId, ClientId, Errno, Ino, InodeFlags, Lsn, ShardId, SlotNo, Timestamp, TxnId,
};

use crate::{
    AccessMode, Answer, Change, Handle, LockSpec, RangeChange, RangeCopy, Wire, XattrName,
};

/// Why the steps of a record were made.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Cause {
    /// The cell itself: write-back, reclaiming, a client's end.
    Cell,
    Request(Executed),
    /// A transaction that this cell decided, with the changes of its other participants.
    Decided {
        txn: TxnId,
        request: Executed,
        others: Vec<Change>,
    },
    /// This cell's part of another cell's transaction.
    Applied {
        txn: TxnId,
    },
}

/// A request that is done, and its answer without leases.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Executed {
    pub client: ClientId,
    pub slot: SlotNo,
    pub seq: u32,
    pub answer: Answer,
}

/// Consecutive pages of a file that lie in consecutive blocks.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Run {
    pub page: u64,
    pub block: BlockNo,
    /// A crc32c for each page.
    pub checksums: Vec<u32>,
}

/// The attributes of a file that includes the pages of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Cover {
    pub size: u64,
    pub mode: u16,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// All written pages are durable with this step.
    pub complete: bool,
}

/// A page of a file, whole.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct InlinePage {
    pub page: u64,
    pub bytes: Box<[u8]>,
}

/// Attributes as a step leaves them. `mtime` of a directory is that of its part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Attributes {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub flags: InodeFlags,
}

/// One change of a cell's state.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Step {
    /// The following records may depend on the other cell's log up to here.
    Depends {
        cell: CellId,
        lsn: Lsn,
    },
    /// A change of the name space.
    Change(Change),
    SetAttr {
        ino: Ino,
        attributes: Attributes,
    },
    Accessed {
        ino: Ino,
        atime: Timestamp,
    },
    /// `None` removes it.
    SetXattr {
        ino: Ino,
        name: XattrName,
        value: Option<Box<[u8]>>,
        now: Timestamp,
    },
    /// `blocks` is the new count of the inode, with the pages that are in frames.
    Truncate {
        ino: Ino,
        size: u64,
        blocks: u64,
        now: Timestamp,
    },
    /// Pages were written, in frames. `blocks` and `mode` are the new values of the inode.
    Wrote {
        ino: Ino,
        size: u64,
        blocks: u64,
        mode: u16,
        now: Timestamp,
    },
    /// Pages were written to the device.
    Placed {
        ino: Ino,
        runs: Vec<Run>,
        cover: Cover,
    },
    /// Pages are in this record.
    Inline {
        ino: Ino,
        pages: Vec<InlinePage>,
        cover: Cover,
    },
    /// An inode without links and opens is freed, with its blocks and attributes.
    Reaped {
        ino: Ino,
    },
    /// The shard has claimed a free chunk.
    Claimed {
        shard: ShardId,
        chunk: u64,
    },
    /// All other cells of the transaction have applied their changes.
    Finished {
        txn: TxnId,
    },
    /// Session: a file is open, on behalf of the user `uid`.
    Opened {
        handle: Handle,
        client: ClientId,
        access: AccessMode,
        offset: u64,
        uid: u32,
    },
    /// Session: it is closed.
    Closed {
        handle: Handle,
    },
    /// Session: the new offset of the open-file object.
    Moved {
        handle: Handle,
        offset: u64,
    },
    /// Session: a lock was taken, made weaker or released, on behalf of the user `uid`.
    Locked {
        ino: Ino,
        client: ClientId,
        spec: LockSpec,
        uid: u32,
    },
    /// Session: the cell has released all handles and locks of the client, which is gone.
    Expelled {
        client: ClientId,
    },
    /// Session: a predecessor has executed the request, and the client may not have received the
    /// answer.
    Unanswered {
        request: Executed,
    },
    /// The shard is given up: nothing of it is served any more, and no later step is of it.
    GivenUp {
        shard: ShardId,
        errno: Errno,
    },
    /// Blocks of a range of a file were allocated or freed. `size`, `blocks` and `mode` are the new
    /// values of the inode. The record before it covers the file.
    Fallocated {
        ino: Ino,
        change: RangeChange,
        size: u64,
        blocks: u64,
        mode: u16,
        now: Timestamp,
    },
    /// A range of the file got the blocks of a range of `source`, and shares them. `copy` is whole
    /// blocks; the rest are the new values of the inode. Records before it cover both files.
    Shared {
        ino: Ino,
        source: Ino,
        copy: RangeCopy,
        size: u64,
        blocks: u64,
        mode: u16,
        now: Timestamp,
    },
    /// Another cell has decided the transaction while this one served no shard. The process that
    /// serves them again makes this part of it before anything else.
    Owed {
        txn: TxnId,
        changes: Vec<Change>,
    },
    /// A process died, and pages that only its memory had were damaged. `generation` and `blocks`
    /// are the new values of the inode. Pages of which no version is left become `holes`. Those
    /// whose places have older bytes are `replaced` by these. Handles that are open end with EIO.
    Discarded {
        ino: Ino,
        generation: u32,
        blocks: u64,
        holes: Vec<u64>,
        replaced: Vec<u64>,
    },
    /// Session: the client may make inodes with so many numbers, beginning with the first, by posts
    /// ([`crate::stream::Numbers`]).
    Numbered {
        client: ClientId,
        first: Ino,
        count: u32,
    },
}

impl Step {
    /// Tag of [`Self::Change`]: the second variant.
    const CHANGE_TAG: u8 = 2;

    /// Encodes [`Self::Change`] of a change that the caller keeps.
    pub fn encode_change(change: &Change, out: &mut Vec<u8>) {
        out.push(Self::CHANGE_TAG);
        change.encode(out);
    }

    /// Whether the step changes only opens, offsets and locks.
    pub const fn is_of_session(&self) -> bool {
        matches!(
            self,
            Self::Opened { .. }
                | Self::Closed { .. }
                | Self::Moved { .. }
                | Self::Locked { .. }
                | Self::Expelled { .. }
                | Self::Numbered { .. }
        )
    }

    /// The inode whose attributes or data the step changes, if it is no change of names.
    pub const fn inode(&self) -> Option<Ino> {
        match self {
            Self::SetAttr { ino, .. }
            | Self::Accessed { ino, .. }
            | Self::SetXattr { ino, .. }
            | Self::Truncate { ino, .. }
            | Self::Wrote { ino, .. }
            | Self::Placed { ino, .. }
            | Self::Inline { ino, .. }
            | Self::Reaped { ino }
            | Self::Fallocated { ino, .. }
            | Self::Shared { ino, .. }
            | Self::Discarded { ino, .. } => Some(*ino),
            Self::Change(_)
            | Self::Claimed { .. }
            | Self::Depends { .. }
            | Self::Finished { .. }
            | Self::Opened { .. }
            | Self::Closed { .. }
            | Self::Moved { .. }
            | Self::Locked { .. }
            | Self::Expelled { .. }
            | Self::Numbered { .. }
            | Self::Unanswered { .. }
            | Self::GivenUp { .. }
            | Self::Owed { .. } => None,
        }
    }

    /// The shard whose tree the step changes, if it changes one.
    pub const fn shard(&self) -> Option<ShardId> {
        match (self, self.inode()) {
            (Self::Change(change), _) => Some(change.shard()),
            (Self::Claimed { shard, .. }, _) => Some(*shard),
            (_, Some(ino)) => Some(ino.shard()),
            (_, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_encoded_as_the_step_that_it_is() {
        let change = Change::Touch { ino: Ino::ROOT, now: Timestamp(1) };
        let mut encoded = Vec::new();
        Step::encode_change(&change, &mut encoded);
        assert_eq!(encoded, Step::Change(change).to_bytes());
    }
}
