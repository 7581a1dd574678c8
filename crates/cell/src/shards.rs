//! The cell's shards, handed out to the tasks that run in their affinity (Waffinity; design 5).
//!
//! Between tasks the cell is in `Serial` and everything rests. A task runs in the affinity that its
//! work asks for: in `Names(shard)` it is handed that shard, by value, and can reach no other; in
//! `Volume` or `Serial` it reaches all. One that finds it needs more has changed nothing yet and
//! runs again in the coarser affinity (the paper's slow path).
//!
//! One thread runs a cell's tasks for now, so the scheduler never finds its way barred; what it
//! hands out and counts is what several threads will ask it for.

use std::fmt;
use std::ops::Index;

use warren_affinity::{Affinity, Counters, Scheduler, Shape};
use warren_base::ShardId;

use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;

pub(crate) struct Shards {
    scheduler: Scheduler<()>,
    /// By number. Empty for another cell's shard, and for the one that is handed out.
    resting: Vec<Option<Box<Shard>>>,
    ids: Vec<ShardId>,
    running: Affinity,
    held: Option<Box<Shard>>,
}

impl Shards {
    /// The shards of a cell, of the `count` that the volume has.
    pub(crate) fn new(count: usize, shards: impl Iterator<Item = Shard>) -> Self {
        let mut resting: Vec<_> = (0..count).map(|_| None).collect();
        let mut ids = Vec::new();
        for shard in shards {
            ids.push(shard.id);
            let slot = usize::from(shard.id.0);
            resting[slot] = Some(Box::new(shard));
        }
        ids.sort_unstable();
        let shape = Shape { files: 1, stripes: 1, ..Shape::of(count as u16) };
        let scheduler = Scheduler::new(shape, warren_affinity::Limits::default());
        Self { scheduler, resting, ids, running: Affinity::Serial, held: None }
    }

    /// Begins to run in `affinity`, which gets its shard.
    pub(crate) fn enter(&mut self, affinity: Affinity) {
        assert_eq!(self.running, Affinity::Serial, "one task at a time");
        assert!(self.scheduler.try_run_now(affinity), "nothing else runs");
        if let Affinity::Names(id) = affinity {
            self.held = self.resting[usize::from(id.0)].take();
        }
        self.running = affinity;
    }

    /// Ends what [`Self::enter`] began.
    pub(crate) fn leave(&mut self) {
        if let Affinity::Names(id) = self.running {
            self.resting[usize::from(id.0)] = self.held.take();
        }
        self.scheduler.done(self.running);
        self.running = Affinity::Serial;
    }

    /// Whether the shard is this cell's, handed out or not.
    pub(crate) fn contains_key(&self, id: &ShardId) -> bool {
        let is_handed_out = matches!(self.running, Affinity::Names(own) if own == *id);
        is_handed_out || self.resting.get(usize::from(id.0)).is_some_and(Option::is_some)
    }

    /// A shard of this cell that the running task was handed.
    pub(crate) fn get(&self, id: &ShardId) -> Option<&Shard> {
        match self.running {
            Affinity::Names(own) if own == *id => self.held.as_deref(),
            Affinity::Names(_) => None,
            _ => self.resting.get(usize::from(id.0))?.as_deref(),
        }
    }

    pub(crate) fn get_mut(&mut self, id: &ShardId) -> Option<&mut Shard> {
        match self.running {
            Affinity::Names(own) if own == *id => self.held.as_deref_mut(),
            Affinity::Names(_) => None,
            _ => self.resting.get_mut(usize::from(id.0))?.as_deref_mut(),
        }
    }

    /// The shard, if it is this cell's. The task has to run in a coarser affinity if it was not
    /// handed the shard.
    pub(crate) fn local(&self, id: ShardId) -> Result<Option<&Shard>, Stop> {
        match self.get(&id) {
            None if self.contains_key(&id) => Err(Stop::Wait(Wait::Coarser)),
            shard => Ok(shard),
        }
    }

    /// A shard of this cell that the caller was handed.
    pub(crate) fn own(&mut self, id: ShardId) -> &mut Shard {
        self.get_mut(&id).expect("a handler reaches only what it was handed")
    }

    pub(crate) fn ids(&self) -> &[ShardId] {
        &self.ids
    }

    /// All shards, for a task that runs where they all may be reached.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Shard> {
        assert!(
            !matches!(self.running, Affinity::Names(_)),
            "a handler reached beyond its affinity"
        );
        self.resting.iter().flatten().map(|shard| &**shard)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        assert!(
            !matches!(self.running, Affinity::Names(_)),
            "a handler reached beyond its affinity"
        );
        self.resting.iter_mut().flatten().map(|shard| &mut **shard)
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.scheduler.counters()
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
