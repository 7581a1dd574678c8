//! The cell: what it owns, and how an event becomes effects.
//!
//! Order within one [`Cell::apply`]: the event is taken in; a request that needs nothing is
//! executed at once; then every task that something woke is run, until none is left. A task that
//! has to wait is parked with what it waits for and has changed nothing.

use warren_affinity::Counters;
use warren_proto::Answer;

use crate::checkpoint::Checkpoint;
use crate::config::{CellConfig, LogConfig};
use crate::core::Core;
use crate::count::Counting;
use crate::event::{Clock, Effect, Event, Memory, SlotRef};
use crate::plant::Plant;
use crate::recovery::replay::Replay;
use crate::run::task::Tasks;
use crate::shard::Shard;
use crate::shards::Shards;
use crate::turn::Shared;
use crate::txn::coordinator::Coordinator;
use crate::txn::participant::Participants;

/// One server process's state. See the module documentation for how it moves.
#[derive(Debug)]
pub struct Cell {
    core: Core,
    shared: Shared,
}

impl Cell {
    /// A cell that starts to open its shards; it reports [`Report::Ready`] when all are.
    pub fn new(config: CellConfig, now: Clock, effects: &mut Vec<Effect>) -> Self {
        let shared = Shared::new(&config);
        let mut owned = config.owned_chunks;
        let served = config.roots.iter().filter(|(id, _)| !config.lost.contains(id));
        let open = served.map(|(id, root)| {
            Shard::open(*id, root.as_ref(), owned.remove(id).unwrap_or_default())
        });
        let shards = Shards::new(config.map.len(), open, &config.lost);
        let LogConfig { start, recovery, .. } = config.log;
        let others = shared.peers.all().into_iter().collect();
        let core = Core {
            tasks: Tasks::default(),
            coordinator: Coordinator::new(config.epoch),
            participants: Participants::default(),
            counting: Counting::default(),
            checkpoint: Checkpoint::new(config.nodes_max),
            replay: Replay::new(recovery, start, others),
            shards,
        };
        let mut cell = Self { core, shared };
        if config.plant == Some(Plant::ReuseBlocks) {
            cell.core.shards.values_mut().for_each(|shard| shard.space.forget_held());
        }
        cell.core.start_opening(&cell.shared.readiness, &mut cell.shared.waits);
        // The tasks run with the first event; a tick at once is one.
        effects.push(Effect::Wake(now.monotonic));
        cell
    }

    /// Plants a fault in a cell that runs.
    #[cfg(feature = "plants")]
    pub const fn plant(&mut self, plant: Plant) {
        self.shared.volume.plant = crate::plant::Planted::of(Some(plant));
    }

    /// Takes one event in. Effects are appended in the order in which they are to be carried out.
    pub fn apply(
        &mut self,
        now: Clock,
        event: Event,
        memory: &mut dyn Memory,
        effects: &mut Vec<Effect>,
    ) {
        let mut turn = self.shared.turn(now, memory, effects);
        self.core.take_in(event, &mut turn);
        let record = turn.record;
        self.shared.log.close_record(record);
    }

    /// Whether requests of clients can be offered. Orders and peers' messages always can.
    pub const fn is_ready(&self) -> bool {
        self.shared.readiness.is_ready()
    }

    /// How often each kind of affinity ran.
    pub fn affinities(&self) -> &Counters {
        self.core.shards.counters()
    }

    /// Steps from a directory to the one above that moves of directories have taken.
    pub const fn steps_up(&self) -> u64 {
        self.core.coordinator.steps_up
    }

    /// Requests and messages that wait for something, but for file locks: who gives a lock back
    /// must not find the tasks taken by those who wait for it.
    pub fn live_tasks(&self) -> usize {
        self.core.tasks.live()
    }

    /// Requests that wait for file locks. Each occupies a slot of its client, and counts for its
    /// user with the locks that are held.
    pub const fn lock_waiters(&self) -> usize {
        self.core.tasks.lock_waiters()
    }

    /// Requests that were executed and wait for other cells before they are answered.
    pub fn decided(&self) -> impl Iterator<Item = (SlotRef, u32, &Answer)> {
        self.core.coordinator.unanswered().filter_map(|id| self.core.tasks.decided(id))
    }

    /// Answers of a predecessor that were not asked for again, in the order in which they were
    /// logged: their clients have them, or are gone.
    pub fn unanswered(&self) -> impl Iterator<Item = (SlotRef, u32, &Answer)> {
        self.shared.answers.all()
    }
}
