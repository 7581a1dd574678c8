//! Free chunks that go to shards, batches of chunks that the host reserves, and chunks that it gets
//! back.

use std::collections::BTreeSet;

use warren_base::{Errno, ShardId};

use crate::chunks::free::Chunks;
use crate::chunks::host::{AHEAD_MIN, BATCH, DISCARD_BATCH, runs};
use crate::event::IoId;

/// A batch that the host has reserved, or refused.
pub(crate) struct Batch {
    /// The shards that wait for it.
    pub(crate) waiting: BTreeSet<ShardId>,
    /// Whether any of its chunks was allocated.
    pub(crate) any_allocated: bool,
}

impl Chunks {
    /// A free chunk that may go to a shard at once.
    pub(crate) fn take_allocated(&mut self) -> Option<u64> {
        let Self { pool, host, .. } = self;
        let is_any = host.has_all();
        if !is_any && host.allocated.is_empty() {
            return None;
        }
        let chunk = pool.take_newest(1, |chunk| is_any || host.allocated.contains(chunk)).pop()?;
        host.allocated.remove(&chunk);
        host.wants_batch |= !is_any && host.allocated.len() < AHEAD_MIN;
        Some(chunk)
    }

    /// Reserves `first`, and the chunks here that would be next, for the shard.
    pub(crate) fn reserve_for(&mut self, shard: ShardId, first: u64) {
        self.host.waiting.insert(shard);
        if self.host.is_reserving() {
            return self.add(first);
        }
        self.host.batch.push(first);
        self.fill_batch();
    }

    /// The shard waits for the batch that is being reserved.
    pub(crate) fn await_batch(&mut self, shard: ShardId) {
        self.host.waiting.insert(shard);
    }

    /// Fills the batch with some of the chunks here. Other shards and cells may need the rest
    /// meanwhile.
    fn fill_batch(&mut self) {
        let Self { pool, host, .. } = self;
        let count = (pool.local_size() / 4).clamp(1, BATCH) as usize - host.batch.len().min(1);
        host.batch.extend(pool.take_newest(count, |chunk| !host.allocated.contains(chunk)));
    }

    /// Fills the batch if one is wanted soon. Returns false if no chunk is left for it.
    pub(crate) fn fill_wanted(&mut self) -> bool {
        if !std::mem::take(&mut self.host.wants_batch) || self.host.is_reserving() {
            return true;
        }
        self.fill_batch();
        !self.host.batch.is_empty()
    }

    /// The host has reserved a run of the batch, or refused it. Returns the batch if that was the
    /// last of it. If the host had no room for several chunks, it is asked for one.
    pub(crate) fn batch_reserved(&mut self, io: IoId, is_allocated: bool) -> Option<Batch> {
        let run = self.host.reserving.remove(&io).expect("it was begun");
        if is_allocated {
            self.host.allocated.extend(&run);
            self.host.any_allocated = true;
        }
        self.add_all(run);
        if self.host.is_reserving() {
            return None;
        }
        if !self.host.any_allocated && self.host.batch_len > 1 {
            self.host.batch = self.pool.take_newest(1, |_| true);
            if !self.host.batch.is_empty() {
                return None;
            }
        }
        let waiting = std::mem::take(&mut self.host.waiting);
        Some(Batch { waiting, any_allocated: self.host.any_allocated })
    }

    /// Whether allocated chunks are at hand, or there are none to allocate.
    pub(crate) fn is_stocked(&self) -> bool {
        let has_some = self.host.has_all() || !self.host.allocated.is_empty();
        has_some || self.pool.local_size() == 0
    }

    /// Takes out the allocated chunks that the host gets back now.
    pub(crate) fn take_surplus(&mut self) -> Vec<Vec<u64>> {
        let Self { pool, host, .. } = self;
        let surplus = host.allocated.len().saturating_sub(host.keep).min(DISCARD_BATCH);
        if surplus == 0 || !host.discarding.is_empty() || !host.takes_back {
            return Vec::new();
        }
        let chunks = pool.take_newest(surplus, |chunk| host.allocated.contains(chunk));
        for chunk in &chunks {
            host.forget(*chunk);
        }
        runs(chunks)
    }

    /// The host has taken a run of chunks back, or not. They are free again.
    pub(crate) fn discarded(&mut self, io: IoId, result: Result<(), Errno>) {
        let run = self.host.discarding.remove(&io).expect("it was begun");
        if result.is_err() {
            // The cell does not ask again, because it would do so at each checkpoint.
            self.host.takes_back = false;
        }
        if result == Err(Errno::EOPNOTSUPP) {
            self.host.allocated.extend(&run);
        }
        self.add_all(run);
    }

    pub(crate) fn add_all(&mut self, mut chunks: Vec<u64>) {
        // The pool hands out the newest first, and files should grow upwards.
        chunks.sort_unstable_by(|a, b| b.cmp(a));
        chunks.into_iter().for_each(|chunk| self.add(chunk));
    }
}
