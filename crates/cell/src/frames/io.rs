//! I/O under way: what each is for, and what its end means.

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
    /// From `block` on.
    LoadPages {
        block: BlockNo,
        pages: Vec<(PageNo, FrameNo, u32)>,
    },
    /// The record that says where they lie begins at `lsn`.
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
    /// Of blocks of free chunks.
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
    /// Writes under way, and whether one has failed since it was asked.
    pub(crate) writes: usize,
    pub(crate) write_error: Option<Errno>,
    /// Since when the device has refused to read these blocks, for tasks that cannot do without.
    unread: BTreeMap<BlockNo, Instant>,
    /// Blocks that came damaged, and how often.
    damaged: BTreeMap<BlockNo, u32>,
    /// When the device did last what was asked.
    last_success: Instant,
}

/// What to do about a block that the device has refused to read, or that came damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unread {
    /// Try again: the device may be back soon.
    Again,
    /// The block cannot be read, others can.
    Damaged,
    /// The device does nothing.
    Dead,
}

/// How long a read is tried again that a task cannot do without, and how often.
const READ_WAIT: Duration = Duration::from_secs(5);
pub(crate) const READ_PAUSE: Duration = Duration::from_millis(100);
/// Reads of a block that a task cannot do without, until it counts as damaged on the device. What
/// was damaged on its way comes right with one of the next.
const DAMAGED_READS_MAX: u32 = 8;

impl Io {
    pub(crate) fn new_id(&mut self) -> IoId {
        self.next += 1;
        IoId(self.next)
    }

    /// The device has done what was asked.
    pub(crate) fn succeeded(&mut self, now: Instant) {
        self.last_success = now;
    }

    /// The device has refused to read the block.
    pub(crate) fn refused(&mut self, block: BlockNo, now: Instant) -> Unread {
        let since = *self.unread.entry(block).or_insert(now);
        if now < since + READ_WAIT {
            return Unread::Again;
        }
        self.unread.remove(&block);
        if self.last_success > since { Unread::Damaged } else { Unread::Dead }
    }

    /// The block was read, and is damaged.
    pub(crate) fn damaged(&mut self, block: BlockNo) -> Unread {
        let reads = self.damaged.entry(block).or_insert(0);
        *reads += 1;
        if *reads < DAMAGED_READS_MAX {
            return Unread::Again;
        }
        self.damaged.remove(&block);
        Unread::Damaged
    }

    /// The block was read.
    pub(crate) fn read(&mut self, block: BlockNo) {
        if !self.unread.is_empty() {
            self.unread.remove(&block);
        }
        if !self.damaged.is_empty() {
            self.damaged.remove(&block);
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

    /// Whether every write that was started is over.
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

    /// What went wrong with a write since this was last asked.
    pub(crate) fn take_write_error(&mut self) -> Option<Errno> {
        self.write_error.take()
    }

    pub(crate) fn queue_nodes(&mut self, nodes: Vec<BlockWrite>) {
        self.node_writes.extend(nodes);
        // From the end on: contiguous blocks come out in rising order.
        self.node_writes.sort_by_key(|(block, _)| std::cmp::Reverse(*block));
    }
}

const _: () = assert!(BLOCK_SIZE == 4096);
