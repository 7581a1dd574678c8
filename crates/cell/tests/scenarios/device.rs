//! The pool device, with a volatile write cache.
//!
//! A write that is done lies in the write cache. A flush makes durable what was in the cache when
//! it began. A power cut loses the cache. A flush that fails loses what it should have made
//! durable, as Linux drops dirty pages whose write has failed.
//!
//! ```text
//! Write ------> cached ----- Flush -----> durable
//! WriteThrough -------------------------> durable
//! ```
//!
//! [`Device::hold`] holds I/O of a kind, [`Device::fail`] makes the next I/O of a kind fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{BlockNo, Errno};

pub(crate) type Block = Vec<u8>;

/// A kind of I/O that a test holds or fails. `Data` writes are of file data and tree nodes, `Log`
/// writes of op logs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Read,
    Data,
    Log,
    Flush,
    Reserve,
}

/// An I/O that is not done.
pub(crate) enum Action {
    Read { block: BlockNo },
    Write { blocks: Vec<(BlockNo, Block)>, through: bool },
    Flush { cached: BTreeMap<BlockNo, Block> },
    Reserve { block: BlockNo, count: u64 },
    Discard { block: BlockNo, count: u64 },
}

pub(crate) struct Device {
    durable: BTreeMap<BlockNo, Block>,
    cached: BTreeMap<BlockNo, Block>,
    /// Blocks from here on belong to op logs.
    log_start: BlockNo,
    held: BTreeSet<Kind>,
    /// These operations will fail: the kind, the error, and how many of the kind succeed before.
    failing: VecDeque<(Kind, Errno, usize)>,
    /// Blocks that cannot be read.
    pub unreadable: BTreeSet<BlockNo>,
    /// The number of chunks that the host of a sparse pool has space for, and the allocated ones.
    pub host_room: u64,
    pub allocated: BTreeSet<u64>,
    /// Whether the host takes blocks back.
    pub takes_back: bool,
}

impl Device {
    pub(crate) fn new(durable: BTreeMap<BlockNo, Block>, log_start: BlockNo) -> Self {
        Self {
            durable,
            cached: BTreeMap::new(),
            log_start,
            held: BTreeSet::new(),
            failing: VecDeque::new(),
            unreadable: BTreeSet::new(),
            host_room: 0,
            allocated: BTreeSet::new(),
            takes_back: true,
        }
    }

    pub(crate) fn hold(&mut self, kind: Kind) {
        self.held.insert(kind);
    }

    pub(crate) fn release(&mut self) {
        self.held.clear();
    }

    pub(crate) fn holds(&self, action: &Action) -> bool {
        self.kind_of(action).is_some_and(|kind| self.held.contains(&kind))
    }

    /// The next I/O of this kind fails.
    pub(crate) fn fail(&mut self, kind: Kind, errno: Errno) {
        self.fail_after(kind, errno, 0);
    }

    /// An I/O of this kind fails after so many others.
    pub(crate) fn fail_after(&mut self, kind: Kind, errno: Errno, others: usize) {
        self.failing.push_back((kind, errno, others));
    }

    /// Carries the I/O out, all of it or nothing.
    pub(crate) fn finish(&mut self, action: Action) -> Result<(), Errno> {
        let kind = self.kind_of(&action);
        let failing = self.failing.iter().position(|(of, ..)| Some(*of) == kind);
        if let Some(at) = failing.filter(|at| self.failing[*at].2 == 0) {
            let (_, errno, _) = self.failing.remove(at).expect("just found");
            if let Action::Flush { cached } = action {
                self.cached.retain(|block, _| !cached.contains_key(block));
            }
            return Err(errno);
        } else if let Some(at) = failing {
            self.failing[at].2 -= 1;
        }
        match action {
            Action::Read { block } if self.unreadable.contains(&block) => Err(Errno::EIO),
            Action::Read { .. } => Ok(()),
            Action::Write { blocks, through: false } => {
                self.cached.extend(blocks);
                Ok(())
            }
            Action::Write { blocks, through: true } => {
                blocks.iter().for_each(|(block, _)| drop(self.cached.remove(block)));
                self.durable.extend(blocks);
                Ok(())
            }
            Action::Flush { cached } => {
                self.cached.retain(|block, bytes| cached.get(block) != Some(bytes));
                self.durable.extend(cached);
                Ok(())
            }
            Action::Reserve { block, count } => self.reserve(chunks(block, count)),
            Action::Discard { .. } if !self.takes_back => Err(Errno::EOPNOTSUPP),
            Action::Discard { block, count } => {
                self.host_room += count / CHUNK_BLOCKS;
                self.allocated.retain(|chunk| !chunks(block, count).contains(chunk));
                Ok(())
            }
        }
    }

    fn reserve(&mut self, chunks: std::ops::Range<u64>) -> Result<(), Errno> {
        let wanted = chunks.end - chunks.start;
        self.host_room = self.host_room.checked_sub(wanted).ok_or(Errno::ENOSPC)?;
        self.allocated.extend(chunks);
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        let cached = self.cached.clone();
        self.finish(Action::Flush { cached })
    }

    pub(crate) fn begin_flush(&self) -> Action {
        Action::Flush { cached: self.cached.clone() }
    }

    pub(crate) fn block(&self, block: BlockNo) -> Block {
        let known = self.cached.get(&block).or_else(|| self.durable.get(&block));
        known.cloned().unwrap_or_else(|| vec![0; BLOCK_SIZE])
    }

    /// Changes a bit of what the block holds.
    pub(crate) fn damage(&mut self, block: BlockNo) {
        let mut bytes = self.block(block);
        bytes[BLOCK_SIZE / 2] ^= 1;
        self.durable.insert(block, bytes);
    }

    /// Changes all bits of a block.
    pub(crate) fn wipe(&mut self, block: BlockNo) {
        let bytes = self.block(block).iter().map(|byte| !byte).collect();
        self.durable.insert(block, bytes);
    }

    /// The blocks of chunks that hold these bytes.
    pub(crate) fn find(&self, bytes: &[u8]) -> Vec<BlockNo> {
        let blocks: BTreeSet<_> = self.durable.keys().chain(self.cached.keys()).collect();
        let is_data = |block: &&BlockNo| **block < self.log_start && self.block(**block) == bytes;
        blocks.into_iter().filter(is_data).copied().collect()
    }

    /// The power is cut: the write cache is lost.
    pub(crate) fn cut_power(&mut self) {
        self.cached.clear();
        self.held.clear();
        self.failing.clear();
    }

    pub(crate) fn is_log(&self, block: BlockNo) -> bool {
        block >= self.log_start
    }

    fn kind_of(&self, action: &Action) -> Option<Kind> {
        match action {
            Action::Read { .. } => Some(Kind::Read),
            Action::Write { blocks, .. } if self.is_log(blocks[0].0) => Some(Kind::Log),
            Action::Write { .. } => Some(Kind::Data),
            Action::Flush { .. } => Some(Kind::Flush),
            Action::Reserve { .. } => Some(Kind::Reserve),
            Action::Discard { .. } => None,
        }
    }
}

fn chunks(block: BlockNo, count: u64) -> std::ops::Range<u64> {
    block.0 / CHUNK_BLOCKS..(block.0 + count) / CHUNK_BLOCKS
}
