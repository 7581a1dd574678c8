//! Free chunks that go to shards, and batches of chunks to reserve.

use warren_base::ShardId;

use super::{AHEAD_MIN, BATCH};
use crate::chunks::free::Chunks;

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
    pub(super) fn fill_batch(&mut self) {
        let Self { pool, host, .. } = self;
        let count = (pool.local_size() / 4).clamp(1, BATCH) as usize - host.batch.len().min(1);
        host.batch.extend(pool.take_newest(count, |chunk| !host.allocated.contains(chunk)));
    }

    pub(crate) fn add_all(&mut self, mut chunks: Vec<u64>) {
        // The pool hands out the newest first, and files should grow upwards.
        chunks.sort_unstable_by(|a, b| b.cmp(a));
        chunks.into_iter().for_each(|chunk| self.add(chunk));
    }
}
