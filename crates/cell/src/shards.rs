//! The cell's shards, handed out to the tasks that run in their affinity (Waffinity 4).
//!
//! Between tasks the cell is in `Serial`, and no shard is handed out. A task runs in the affinity
//! that its work names. In `Names(shard)` it is handed that shard, by value, and can reach no
//! other. In `Volume` or `Serial` it reaches all. A task that needs more has changed nothing yet,
//! and runs again in the coarser affinity (the paper's slow path).
//!
//! A shard that was given up is handed to no task (`give_up.rs`). The cell knows only the chunks
//! that it has claimed.
//!
//! For now one thread runs a cell's tasks, so the scheduler never blocks. Its grants are those that
//! several threads would need.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Index;

use warren_affinity::{Affinity, Lent, Owned, Scheduler, Shape};
use warren_base::{Errno, ShardId};

use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shard::space::Space;

pub(crate) struct Shards {
    scheduler: Scheduler<()>,
    /// Each is the state of its affinity.
    owned: Owned<Box<Shard>>,
    /// The number of shards of the volume, and the shards that are here.
    count: u16,
    ids: Vec<ShardId>,
    running: Affinity,
    /// The shard that the running task was handed.
    held: Option<Lent<Box<Shard>>>,
    given_up: BTreeMap<ShardId, GivenUp>,
    /// Shards of any cell that are known not to be served.
    unserved: BTreeSet<ShardId>,
}

/// A shard is whole: another thread could be handed it.
const _: fn() = || {
    const fn is_send<T: Send>() {}
    is_send::<Shard>();
};

/// The remains of a shard that was given up.
#[derive(Debug)]
struct GivenUp {
    /// The chunks that it has claimed and released.
    space: Space,
    errno: Errno,
    /// Chunks that it has claimed for its log records.
    kept_in: Vec<u64>,
    record: Mark,
}

/// Whether its root slot records that it was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    Missing,
    /// The checkpoint that is being written records it.
    Written,
    Durable,
}

impl Shards {
    /// The shards of a cell, of the `count` that the volume has. `lost` are those that are not
    /// served, and that no checkpoint keeps or records.
    pub(crate) fn new(
        count: usize,
        shards: impl Iterator<Item = Shard>,
        lost: &BTreeSet<ShardId>,
    ) -> Self {
        let mut own: BTreeMap<ShardId, Box<Shard>> =
            shards.map(|shard| (shard.id, Box::new(shard))).collect();
        let ids = own.keys().copied().collect();
        let count = count as u16;
        let shape = Shape { files: 1, stripes: 1, ranges: 1, ..Shape::of(count) };
        let scheduler = Scheduler::new(shape, warren_affinity::Limits::default());
        let owned = Owned::new(shape, |affinity| match affinity {
            Affinity::Names(id) => own.remove(&id),
            _ => None,
        });
        let gone = |id: &ShardId| {
            let (space, errno) = (Space::default(), Errno::EIO);
            (*id, GivenUp { space, errno, kept_in: Vec::new(), record: Mark::Durable })
        };
        let given_up = lost.iter().map(gone).collect();
        Self {
            scheduler,
            owned,
            count,
            ids,
            running: Affinity::Serial,
            held: None,
            given_up,
            unserved: BTreeSet::new(),
        }
    }

    /// Begins to run in `affinity`, which gets its shard.
    pub(crate) fn enter(&mut self, affinity: Affinity) {
        assert_eq!(self.running, Affinity::Serial, "one task at a time");
        assert!(self.scheduler.try_run_now(affinity), "nothing else runs");
        self.held = self.owned.hand_out(affinity);
        self.running = affinity;
    }

    /// Ends what [`Self::enter`] began.
    pub(crate) fn leave(&mut self) {
        if let Some(shard) = self.held.take() {
            self.owned.give_back(shard);
        }
        self.scheduler.done(self.running);
        self.running = Affinity::Serial;
    }

    /// The affinity of a shard. Clients, peers and disks may name shards that do not exist.
    #[inline]
    fn affinity_of(&self, id: ShardId) -> Option<Affinity> {
        (id.0 < self.count).then_some(Affinity::Names(id))
    }

    /// Whether the shard is this cell's, handed out or not, or given up.
    #[inline]
    pub(crate) fn contains_key(&self, id: &ShardId) -> bool {
        let is_here = self.affinity_of(*id).is_some_and(|affinity| self.owned.has(affinity));
        is_here || self.is_given_up(*id)
    }

    /// Whether the shard is this cell's and is no longer served.
    #[inline]
    pub(crate) fn is_given_up(&self, id: ShardId) -> bool {
        !self.given_up.is_empty() && self.given_up.contains_key(&id)
    }

    /// Whether the shard is this cell's and may be handed out, or is.
    #[inline]
    pub(crate) fn serves(&self, id: ShardId) -> bool {
        self.contains_key(&id) && !self.is_given_up(id)
    }

    /// Removes the shard, which is no longer served. `None` if it was not served before.
    pub(crate) fn give_up(&mut self, id: ShardId) -> Option<Box<Shard>> {
        let shard = self.owned.remove_below(self.running, self.affinity_of(id)?)?;
        self.ids.retain(|own| *own != id);
        Some(shard)
    }

    /// The shard's cell has given it up: nothing new is placed there.
    pub(crate) fn avoid(&mut self, id: ShardId) {
        self.unserved.insert(id);
    }

    /// The shard's cell serves it again.
    pub(crate) fn trust(&mut self, id: ShardId) {
        self.unserved.remove(&id);
    }

    /// Whether something new may be placed in the shard, as far as is known here.
    pub(crate) fn may_grow(&self, id: ShardId) -> bool {
        !self.unserved.contains(&id)
    }

    /// Keeps the chunks of a shard that was given up for this reason.
    pub(crate) fn keep_space(&mut self, id: ShardId, space: Space, errno: Errno) {
        let gone = GivenUp { space, errno, kept_in: Vec::new(), record: Mark::Missing };
        self.given_up.insert(id, gone);
    }

    /// The space of a shard of this cell, given up or not.
    pub(crate) fn space_mut(&mut self, id: ShardId) -> Option<&mut Space> {
        if self.is_given_up(id) {
            return self.given_up.get_mut(&id).map(|gone| &mut gone.space);
        }
        self.get_mut(&id).map(|shard| &mut shard.space)
    }

    /// The chunks for the log records of a shard that was given up. A checkpoint that failed leaves
    /// them to the next.
    pub(crate) fn log_chunks(&mut self, id: ShardId) -> &mut Vec<u64> {
        &mut self.given_up.get_mut(&id).expect("given up").kept_in
    }

    /// The shards that were given up and that no checkpoint records yet, with the reason.
    pub(crate) fn newly_given_up(&self) -> impl Iterator<Item = (ShardId, Errno)> {
        let missing = self.given_up.iter().filter(|(_, gone)| gone.record == Mark::Missing);
        missing.map(|(id, gone)| (*id, gone.errno))
    }

    /// Returns the shards that were given up and that no checkpoint records yet. The checkpoint
    /// being written now records them.
    pub(crate) fn take_unrecorded(&mut self) -> Vec<ShardId> {
        let missing = self.given_up.iter_mut().filter(|(_, gone)| gone.record == Mark::Missing);
        missing
            .map(|(id, gone)| {
                gone.record = Mark::Written;
                *id
            })
            .collect()
    }

    /// The checkpoint that was being written is durable, or it has failed.
    pub(crate) fn note_recorded(&mut self, is_durable: bool) {
        let written = self.given_up.values_mut().filter(|gone| gone.record == Mark::Written);
        written.for_each(|gone| {
            gone.record = if is_durable { Mark::Durable } else { Mark::Missing };
            if is_durable { drop(gone.space.switched()) } else { gone.space.failed() }
        });
    }

    /// A shard of this cell that the running task was handed.
    #[inline(always)]
    pub(crate) fn get(&self, id: &ShardId) -> Option<&Shard> {
        match &self.held {
            Some(held) => (held.affinity() == Affinity::Names(*id)).then(|| &***held),
            None => self.get_resting(*id),
        }
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: &ShardId) -> Option<&mut Shard> {
        let shard = self.affinity_of(*id)?;
        match &mut self.held {
            Some(held) => (held.affinity() == shard).then(|| &mut ***held),
            None if matches!(self.running, Affinity::Names(_)) => None,
            None => self.owned.below_mut(self.running, shard).map(|shard| &mut **shard),
        }
    }

    /// A shard that is in its slot, for a task in a coarse affinity.
    fn get_resting(&self, id: ShardId) -> Option<&Shard> {
        let shard = self.affinity_of(id)?;
        if matches!(self.running, Affinity::Names(_)) {
            return None;
        }
        self.owned.below(self.running, shard).map(|shard| &**shard)
    }

    /// The shard, if it is this cell's. The task has to run in a coarser affinity if it was not
    /// handed the shard; EIO if the shard was given up.
    #[inline(always)]
    pub(crate) fn local(&self, id: ShardId) -> Result<Option<&Shard>, Stop> {
        match self.get(&id) {
            None => self.local_elsewhere(id),
            shard => Ok(shard),
        }
    }

    fn local_elsewhere(&self, id: ShardId) -> Result<Option<&Shard>, Stop> {
        if self.is_given_up(id) {
            return Err(Errno::EIO.into());
        }
        if self.contains_key(&id) { Err(Stop::Wait(Wait::Coarser)) } else { Ok(None) }
    }

    /// A shard of this cell that the caller was handed.
    pub(crate) fn shard(&mut self, id: ShardId) -> &mut Shard {
        self.get_mut(&id).expect("a handler reaches only what it was handed")
    }

    pub(crate) fn ids(&self) -> &[ShardId] {
        &self.ids
    }

    /// All shards, for a task that runs in an affinity that may reach them all.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Shard> {
        self.owned.all(self.running).map(|shard| &**shard)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.owned.all_mut(self.running).map(|shard| &mut **shard)
    }
}

impl Index<&ShardId> for Shards {
    type Output = Shard;

    fn index(&self, id: &ShardId) -> &Shard {
        self.get(id).expect("a handler reaches only what it was handed")
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards").field("ids", &self.ids).field("running", &self.running).finish()
    }
}
