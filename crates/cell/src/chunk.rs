//! Where a shard's blocks come from: chunks out of the distributed pool that the cells share.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, Errno, ShardId};
use warren_pool::{Algorithm, Effect as PoolEffect, Get, Pool, PoolMessage, Ticket, Tuning};

use crate::cell::{Cell, Out};
use crate::event::{Effect, Memory, PeerMessage};
use crate::task::{Stop, Task, Wait, WaitKey};

/// The cell's shard of the pool of free chunks.
#[derive(Debug)]
pub(crate) struct Chunks {
    pool: Pool<u64>,
    /// Chunks that can be added only when the other cells know this one.
    early: Vec<u64>,
    waiting: BTreeMap<Ticket, ShardId>,
}

impl Chunks {
    /// The lowest cell creates the pool, the others join it there. `free` is what this cell brings.
    pub(crate) fn new(id: CellId, cells: &BTreeSet<CellId>, free: Vec<u64>) -> Self {
        let (algorithm, tuning) = (Algorithm::Bulk, Tuning::default());
        let first = cells.first().copied().unwrap_or(id);
        let pool = if first == id {
            Pool::create(id, algorithm, tuning)
        } else {
            Pool::join(id, first, algorithm, tuning)
        };
        let mut chunks = Self { pool, early: free, waiting: BTreeMap::new() };
        chunks.add_early();
        chunks
    }

    /// Whether the pool has all that this cell brought.
    pub(crate) fn is_open(&self) -> bool {
        self.early.is_empty() && self.pool.is_member()
    }

    /// Free chunks at this cell.
    pub(crate) fn local(&self) -> u64 {
        self.pool.local_size() + self.early.len() as u64
    }

    fn add_early(&mut self) {
        if self.pool.is_member() {
            for chunk in std::mem::take(&mut self.early) {
                self.add(chunk);
            }
        }
    }

    fn add(&mut self, chunk: u64) {
        if let Err(refused) = self.pool.add(chunk) {
            self.early.push(refused.0);
        }
    }
}

impl Cell {
    /// Whether `need` blocks of the shard's can be promised now. If not, a chunk is fetched; if there is
    /// none, a checkpoint may free some; only then it is ENOSPC.
    pub(crate) fn ensure_room(
        &mut self,
        id: ShardId,
        need: u64,
        task: &mut Task,
    ) -> Result<(), Stop> {
        loop {
            let dirty = self.cache.dirty_pages_of(id);
            let shard = self.shards.get_mut(&id).expect("asked for an owned shard");
            if shard.room(dirty) >= need {
                return Ok(());
            }
            if std::mem::take(&mut task.no_chunk) {
                if task.holds_locks() || std::mem::replace(&mut task.checkpointed, true) {
                    return Err(Errno::ENOSPC.into());
                }
                return Err(Stop::Wait(Wait::Checkpoint));
            }
            match self.chunks.pool.get() {
                Get::Got(chunk) => shard.space.claim(chunk),
                Get::Pending(ticket) => {
                    self.chunks.waiting.insert(ticket, id);
                    return Err(Stop::Wait(Wait::Space(id)));
                }
            }
        }
    }

    /// A chunk that a checkpoint cannot do without, if one is at hand.
    pub(crate) fn claim_spare(&mut self, id: ShardId) -> bool {
        if self.chunks.pool.local_size() == 0 {
            return false;
        }
        let Get::Got(chunk) = self.chunks.pool.get() else { return false };
        self.shards.get_mut(&id).expect("asked for an owned shard").space.claim(chunk);
        true
    }

    /// Chunks that are nobody's any more.
    pub(crate) fn give_chunks<M: Memory>(&mut self, chunks: Vec<u64>, out: &mut Out<'_, M>) {
        chunks.into_iter().for_each(|chunk| self.chunks.add(chunk));
        self.poll_pool(out);
    }

    pub(crate) fn pool_message<M: Memory>(
        &mut self,
        from: CellId,
        message: PoolMessage<u64>,
        out: &mut Out<'_, M>,
    ) {
        self.chunks.pool.handle(from, message);
        self.poll_pool(out);
    }

    /// Carries out what the pool wants done.
    pub(crate) fn poll_pool<M: Memory>(&mut self, out: &mut Out<'_, M>) {
        while let Some(effect) = self.chunks.pool.poll() {
            match effect {
                PoolEffect::Send { to, message } => {
                    out.effects.push(Effect::Send { to, message: PeerMessage::Pool(message) });
                }
                PoolEffect::Resolved { ticket, element } => self.chunk_resolved(ticket, element),
                PoolEffect::Ready => {
                    self.chunks.add_early();
                    self.report_if_ready(out);
                }
                PoolEffect::JoinFailed { .. }
                | PoolEffect::Left
                | PoolEffect::LastLeft { .. }
                | PoolEffect::Lost { .. } => {}
            }
        }
    }

    fn chunk_resolved(&mut self, ticket: Ticket, element: Option<u64>) {
        let shard = self.chunks.waiting.remove(&ticket);
        match (element, shard) {
            (Some(chunk), Some(shard)) => {
                self.shards.get_mut(&shard).expect("asked for an owned shard").space.claim(chunk);
                self.tasks.wake_all(WaitKey::Chunk(shard));
            }
            (Some(chunk), None) => self.chunks.add(chunk),
            (None, Some(shard)) => {
                for id in self.tasks.queue(WaitKey::Chunk(shard)) {
                    if let Some(task) = self.tasks.get_mut(id) {
                        task.no_chunk = true;
                    }
                }
                self.tasks.wake_all(WaitKey::Chunk(shard));
            }
            (None, None) => {}
        }
    }
}
