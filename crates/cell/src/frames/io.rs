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
    /// The last blocks of the log before `goal`, written through.
    WriteThrough {
        goal: Lsn,
    },
    Flush,
    /// Reads or writes what the log of a caretaker's predecessors names.
    Examine,
    /// Reads a block that every pool has, to see whether the device still completes requests.
    Probe {
        frame: FrameNo,
    },
    /// Allocates blocks of free chunks.
    Reserve,
    Discard,
}

/// Frames that writes of tree nodes may take at a time.
const NODE_FRAMES_MAX: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Io {
    next: u64,
    live: BTreeMap<IoId, Purpose>,
    node_loads: HashMap<BlockNo, IoId, FixedState>,
    /// Tree nodes that wait for frames to be written from.
    node_writes: Vec<BlockWrite>,
    node_frames: usize,
    /// Writes under way, and the first failure since the last call of [`Self::take_write_error`].
    writes: usize,
    write_error: Option<Errno>,
    /// Blocks that could not be read and that tasks need: since when, and after how many attempts.
    unread: BTreeMap<BlockNo, (Instant, u32)>,
    /// The time at which the device last completed a request.
    last_success: Instant,
}

/// The treatment of a block that could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unread {
    /// Read it again: the device may recover soon, or a bit was lost in transfer.
    Again,
    /// The block cannot be read, or its contents are damaged, although the device has completed
    /// other requests meanwhile.
    Damaged,
    /// The device completes no request.
    Dead,
}

/// Attempts to read a block that a task needs: if the device refuses the read, and if it returns
/// damaged contents. And the pause after a refusal.
const REFUSED_MAX: u32 = 50;
const DAMAGED_MAX: u32 = 8;
pub(crate) const READ_PAUSE: Duration = Duration::from_millis(100);

impl Io {
    /// An I/O begins.
    pub(crate) fn begin(&mut self, purpose: Purpose) -> IoId {
        self.next += 1;
        let io = IoId(self.next);
        match &purpose {
            Purpose::LoadNode { pointer, .. } => drop(self.node_loads.insert(pointer.block, io)),
            Purpose::WritePages { .. } => self.writes += 1,
            Purpose::WriteNodes { frames } => {
                self.writes += 1;
                self.node_frames += frames.len();
            }
            _ => {}
        }
        self.live.insert(io, purpose);
        io
    }

    /// Whether the I/O is under way.
    pub(crate) fn is_live(&self, io: IoId) -> bool {
        self.live.contains_key(&io)
    }

    /// An I/O has ended. Returns what it was for.
    pub(crate) fn end(&mut self, io: IoId, result: Result<(), Errno>, now: Instant) -> Purpose {
        let purpose = self.live.remove(&io).expect("an I/O ends once");
        match &purpose {
            Purpose::LoadNode { pointer, .. } => drop(self.node_loads.remove(&pointer.block)),
            Purpose::WritePages { .. } => self.write_ended(result),
            Purpose::WriteNodes { frames } => {
                self.write_ended(result);
                self.node_frames -= frames.len();
            }
            _ => {}
        }
        if result.is_ok() {
            self.last_success = now;
        }
        purpose
    }

    fn write_ended(&mut self, result: Result<(), Errno>) {
        self.writes -= 1;
        if let Err(errno) = result {
            self.write_error.get_or_insert(errno);
        }
    }

    /// The I/O that reads the node at this block, if one does.
    pub(crate) fn load_of(&self, block: BlockNo) -> Option<IoId> {
        self.node_loads.get(&block).copied()
    }

    /// The device has refused to read the block, or has returned contents that do not belong there.
    pub(crate) fn judge(&mut self, block: BlockNo, is_refused: bool, now: Instant) -> Unread {
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

    /// Whether every write that was begun is over.
    pub(crate) fn writes_are_done(&self) -> bool {
        self.writes == 0 && self.node_writes.is_empty()
    }

    /// Whether a tree node is being written.
    pub(crate) const fn writes_nodes(&self) -> bool {
        self.node_frames > 0
    }

    /// Whether a tree node waits to be written, and a frame may be used for it.
    pub(crate) fn may_write_node(&self) -> bool {
        !self.node_writes.is_empty() && self.node_frames < NODE_FRAMES_MAX
    }

    /// The place of the next tree node that waits to be written.
    pub(crate) fn next_node(&self) -> Option<BlockNo> {
        self.node_writes.last().map(|(block, _)| *block)
    }

    /// Takes that node.
    pub(crate) fn take_node(&mut self) -> Option<BlockWrite> {
        self.node_writes.pop()
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
