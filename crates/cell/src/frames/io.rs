//! I/O under way: the purpose of each, and the consequence of its end.

use std::collections::BTreeMap;
use std::time::Duration;

use hashbrown::HashMap;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno, FixedState, Instant, Lsn, ShardId};
use warren_disk::{BlockPtr, BlockWrite};

use crate::event::{FrameNo, IoId};
use crate::frames::PageNo;

#[derive(Debug)]
pub(crate) enum Purpose {
    LoadNode {
        shard: ShardId,
        pointer: BlockPtr,
        frame: FrameNo,
    },
    /// The pages of consecutive blocks from `block` on.
    LoadPages {
        block: BlockNo,
        pages: Vec<(PageNo, FrameNo, u32)>,
    },
    /// The record that names their places begins at `lsn`.
    WritePages {
        pages: Vec<(PageNo, FrameNo, BlockNo)>,
        lsn: Lsn,
    },
    WriteNodes {
        frames: Vec<FrameNo>,
    },
    WriteLog,
    /// Blocks of the log up to here.
    ReadLog {
        upto: Lsn,
    },
    WriteThrough,
    Flush,
    /// Allocates blocks of free chunks.
    Reserve,
    Discard,
}

#[derive(Debug, Default)]
pub(crate) struct Io {
    pub(crate) next: u64,
    pub(crate) live: BTreeMap<IoId, Purpose>,
    pub(crate) node_loads: HashMap<BlockNo, IoId, FixedState>,
    /// Tree nodes that wait for frames to be written from.
    pub(crate) node_writes: Vec<BlockWrite>,
    pub(crate) node_frames: usize,
    /// Writes under way, and the first failure since the last call of [`Self::take_write_error`].
    pub(crate) writes: usize,
    pub(crate) write_error: Option<Errno>,
    /// Blocks that could not be read and that tasks need: since when, and after how many attempts.
    unread: BTreeMap<BlockNo, (Instant, u32)>,
    /// When the device last completed a request.
    last_success: Instant,
}

/// How to treat a block that could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unread {
    /// Read it again: the device may recover soon, or a bit was lost in transfer.
    Again,
    /// The block cannot be read, or its contents are damaged. Other blocks can be read.
    Damaged,
    /// The device completes no request.
    Dead,
}

/// Attempts to read a block that a task needs: if the device refuses the read, and if it returns
/// damaged contents. And the pause between two attempts.
const REFUSED_MAX: u32 = 50;
const DAMAGED_MAX: u32 = 5;
pub(crate) const READ_PAUSE: Duration = Duration::from_millis(100);

impl Io {
    pub(crate) fn new_id(&mut self) -> IoId {
        self.next += 1;
        IoId(self.next)
    }

    /// The device has completed a request.
    pub(crate) fn succeeded(&mut self, now: Instant) {
        self.last_success = now;
    }

    /// The device has refused to read the block, or has returned contents that do not belong there.
    pub(crate) fn unread(&mut self, block: BlockNo, is_refused: bool, now: Instant) -> Unread {
        let (since, times) = self.unread.entry(block).or_insert((now, 0));
        *times += 1;
        if *times < if is_refused { REFUSED_MAX } else { DAMAGED_MAX } {
            return Unread::Again;
        }
        let since = *since;
        self.unread.remove(&block);
        let is_dead = is_refused && self.last_success <= since;
        if is_dead { Unread::Dead } else { Unread::Damaged }
    }

    /// The block was read.
    pub(crate) fn read(&mut self, block: BlockNo) {
        if !self.unread.is_empty() {
            self.unread.remove(&block);
        }
    }

    pub(crate) fn start_log_write(&mut self, io: IoId) {
        self.live.insert(io, Purpose::WriteLog);
    }

    pub(crate) fn start_write_through(&mut self, io: IoId) {
        self.live.insert(io, Purpose::WriteThrough);
    }

    pub(crate) fn start_log_read(&mut self, io: IoId, upto: Lsn) {
        self.live.insert(io, Purpose::ReadLog { upto });
    }

    pub(crate) fn start_reserve(&mut self, io: IoId) {
        self.live.insert(io, Purpose::Reserve);
    }

    pub(crate) fn start_discard(&mut self, io: IoId) {
        self.live.insert(io, Purpose::Discard);
    }

    pub(crate) fn start_flush(&mut self, io: IoId) {
        self.live.insert(io, Purpose::Flush);
    }

    /// Whether every write that was begun is over.
    pub(crate) fn writes_are_done(&self) -> bool {
        self.writes == 0 && self.node_writes.is_empty()
    }

    /// Whether a tree node is being written.
    pub(crate) const fn writes_nodes(&self) -> bool {
        self.node_frames > 0
    }

    /// Drops the queued nodes whose writes have not begun: their checkpoint has failed.
    pub(crate) fn forget_queued_nodes(&mut self) {
        self.node_writes.clear();
    }

    pub(crate) fn writes_under_way(&self) -> usize {
        self.writes
    }

    /// The first failure of a write since the last call.
    pub(crate) fn take_write_error(&mut self) -> Option<Errno> {
        self.write_error.take()
    }

    pub(crate) fn queue_nodes(&mut self, nodes: Vec<BlockWrite>) {
        self.node_writes.extend(nodes);
        // Nodes are taken from the end, so contiguous blocks come out in ascending order.
        self.node_writes.sort_by_key(|(block, _)| std::cmp::Reverse(*block));
    }
}

const _: () = assert!(BLOCK_SIZE == 4096);
