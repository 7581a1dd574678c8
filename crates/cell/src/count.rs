//! The use of the volume (`statfs`). Every cell counts its own shards, and the cell that received
//! the request adds up the counts (a broadcast, as Hare's for directories).

use std::collections::{BTreeMap, BTreeSet};

use warren_base::CellId;
use warren_base::limits::CHUNK_BLOCKS;
use warren_proto::{Asked, Count, PeerRequest, StatFs};

use crate::chunks::free::Chunks;
use crate::event::Effect;
use crate::run::task::Tasks;
use crate::run::wait::{Stop, TaskId, Wait, Waits};
use crate::shards::Shards;
use crate::turn::Turn;

/// A question to the other cells that not all have answered yet.
#[derive(Debug)]
struct Ask {
    open: BTreeSet<CellId>,
    sum: Count,
    /// Blocks that the host could still allocate.
    host: Option<u64>,
}

/// Questions, by the task that asks.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    asks: BTreeMap<TaskId, Ask>,
}

fn add(a: Count, b: Count) -> Count {
    Count {
        blocks_used: a.blocks_used.saturating_add(b.blocks_used),
        blocks_free: a.blocks_free.saturating_add(b.blocks_free),
        blocks_allocated: a.blocks_allocated.saturating_add(b.blocks_allocated),
        blocks_kept: a.blocks_kept.saturating_add(b.blocks_kept),
        blocks_reserved: a.blocks_reserved.saturating_add(b.blocks_reserved),
        inodes: a.inodes.saturating_add(b.inodes),
    }
}

/// The count of this cell's shards.
pub(crate) fn count(shards: &Shards, chunks: &Chunks) -> Count {
    let host = &chunks.host;
    let local = chunks.count_local();
    let allocated = if host.has_all() { local } else { host.allocated() };
    let free = Count {
        blocks_free: local * CHUNK_BLOCKS,
        blocks_allocated: allocated * CHUNK_BLOCKS,
        blocks_reserved: chunks.count_reserved() * CHUNK_BLOCKS,
        ..Count::default()
    };
    let shards = shards.values().map(|shard| {
        // Freed blocks count as free, although only the next checkpoint makes them available.
        let used = shard.space.used_blocks() + shard.pages.dirty_pages() + shard.owed_blocks();
        let free = shard.space.all_blocks().saturating_sub(used);
        Count {
            blocks_used: used,
            blocks_free: free,
            // A shard that is not used yet keeps blocks only once it has some.
            blocks_allocated: free.saturating_sub(shard.budget().unwritable()),
            blocks_kept: shard.budget().unwritable(),
            blocks_reserved: 0,
            inodes: shard.inodes,
        }
    });
    shards.fold(free, add)
}

impl Counting {
    /// Adds up the counts of all cells. The first call asks them, and the task runs again when they
    /// have answered.
    pub(crate) fn stat_fs(
        &mut self,
        shards: &Shards,
        (id, uid): (TaskId, u32),
        turn: &mut Turn<'_>,
    ) -> Result<StatFs, Stop> {
        let ask = self.asks.remove(&id).unwrap_or_else(|| {
            let open: BTreeSet<_> = turn
                .fleet
                .volume
                .map
                .iter()
                .copied()
                .filter(|c| *c != turn.fleet.volume.id)
                .collect();
            for to in &open {
                turn.driver.send_request(*to, PeerRequest::Count { ask: id.0 });
            }
            if !turn.chunks.host.has_all() {
                turn.driver.effects.push(Effect::MeasureHost);
            }
            let host = turn.chunks.host.has_all().then_some(u64::MAX);
            Ask { open, sum: Count::default(), host }
        });
        let Some(host) = ask.host.filter(|_| ask.open.is_empty()) else {
            self.asks.insert(id, ask);
            return Err(Stop::Wait(Wait::Registered));
        };
        let total = add(count(shards, turn.chunks), ask.sum);
        let of_host = total.blocks_allocated.saturating_add(host);
        let free = total.blocks_free.saturating_sub(total.blocks_kept).min(of_host);
        let reserved = if turn.fleet.volume.is_privileged(uid) { 0 } else { total.blocks_reserved };
        Ok(StatFs {
            blocks: total.blocks_used.saturating_add(free).min(turn.chunks.total_blocks()),
            blocks_free: free,
            blocks_available: free.saturating_sub(reserved),
            files: total.inodes.saturating_add(free),
            files_free: free,
        })
    }

    /// The cells that have not answered the task's question.
    pub(crate) fn open_asks(&self) -> impl Iterator<Item = (CellId, Asked)> + '_ {
        let asks = self.asks.iter();
        asks.flat_map(|(id, ask)| ask.open.iter().map(|cell| (*cell, Asked::Count { ask: id.0 })))
    }

    /// Whether the task waits for a count.
    pub(crate) fn is_counting(&self, task: TaskId) -> bool {
        let ask = self.asks.get(&task);
        ask.is_some_and(|ask| !ask.open.is_empty() || ask.host.is_none())
    }

    /// The successor of the cell must be asked again.
    pub(crate) fn ask_again(&self, cell: CellId, turn: &mut Turn<'_>) {
        let open = |(id, ask): (&TaskId, &Ask)| ask.open.contains(&cell).then_some(id.0);
        let asks: Vec<u64> = self.asks.iter().filter_map(open).collect();
        for ask in asks {
            turn.driver.send_request(cell, PeerRequest::Count { ask });
        }
    }

    /// A peer has sent its count.
    pub(crate) fn counted(
        &mut self,
        tasks: &Tasks,
        from: CellId,
        ask: u64,
        count: Count,
        waits: &mut Waits,
    ) {
        let id = TaskId(ask);
        let Some(ask) = self.asks.get_mut(&id) else { return };
        if ask.open.remove(&from) {
            ask.sum = add(ask.sum, count);
        }
        if ask.open.is_empty() && ask.host.is_some() {
            self.end_count(tasks, id, waits);
        }
    }

    /// The host has measured its room: so many blocks.
    pub(crate) fn host_counted(&mut self, tasks: &Tasks, blocks: u64, waits: &mut Waits) {
        let mut over = Vec::new();
        for (id, ask) in &mut self.asks {
            ask.host = Some(blocks);
            over.extend(ask.open.is_empty().then_some(*id));
        }
        over.into_iter().for_each(|id| self.end_count(tasks, id, waits));
    }

    fn end_count(&mut self, tasks: &Tasks, id: TaskId, waits: &mut Waits) {
        if tasks.get(id).is_some() {
            waits.wake(id);
        } else {
            // The client that asked is gone.
            self.asks.remove(&id);
        }
    }
}
