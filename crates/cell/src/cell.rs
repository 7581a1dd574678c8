//! The cell: what it owns, and how an event becomes effects.
//!
//! Order within one [`Cell::apply`]: the event is taken in; a request that needs nothing is
//! executed at once; then every woken task runs, until none is left. A task that has to wait is
//! parked with the thing that it waits for, and has changed nothing.

use warren_proto::Answer;

use crate::caretaker::examine::Examination;
use crate::checkpoint::Checkpoint;
use crate::clean::Cleaner;
use crate::config::{CellConfig, Recovery};
use crate::core::Core;
use crate::count::Counting;
use crate::driver::Driver;
use crate::event::{Clock, Effect, Event, Memory, SlotRef};
use crate::overdue::Overdue;
use crate::recovery::replay::Replay;
use crate::run::task::Tasks;
use crate::shard::Shard;
use crate::shard::lease::ShardLeases;
use crate::shards::Shards;
use crate::turn::Shared;
use crate::txn::coordinator::Coordinator;
use crate::txn::participant::Participants;

/// The state of one server process. The module documentation describes the order of its steps.
#[derive(Debug)]
pub struct Cell {
    core: Core,
    shared: Shared,
}

impl Cell {
    /// A cell that begins to open its shards. It reports [`Report::Ready`] when all are open.
    pub fn new(mut config: CellConfig, now: Clock, effects: &mut Vec<Effect>) -> Self {
        if config.log.recovery == Recovery::Caretaker {
            config.lost = config.roots.iter().map(|(id, _)| *id).collect();
        }
        let shared = Shared::new(&config);
        let others = shared.fleet.peers.all().into_iter().collect();
        let mut replay = Replay::new(&config.log, others);
        replay.begin_with(&config.kept, &config.owned_chunks);
        let mut owned = config.owned_chunks;
        let own = config.roots.iter().filter_map(|(id, _)| owned.get(id)).flatten().copied();
        let examination = Examination::new(own.collect());
        let served = config.roots.iter().filter(|(id, _)| !config.lost.contains(id));
        let open = served.map(|(id, root)| {
            let leases = ShardLeases::new(config.epoch, config.secret);
            Shard::open(root, config.secret, owned.remove(id).unwrap_or_default(), leases)
        });
        let shards = Shards::new(config.map.len(), open, &config.lost);
        let core = Core {
            tasks: Tasks::default(),
            coordinator: Coordinator::new(config.epoch),
            participants: Participants::default(),
            counting: Counting::default(),
            cleaner: Cleaner::new(config.space.eager_cleaning),
            checkpoint: Checkpoint::new(config.nodes_max),
            replay,
            examination,
            overdue: Overdue::default(),
            shards,
        };
        let mut cell = Self { core, shared };
        cell.core.shards.values_mut().for_each(|shard| shard.space.plant(config.plant));
        cell.core.start_opening(&cell.shared.fleet.readiness, &mut cell.shared.waits);
        // The tasks run with the first event, so a tick is requested at once.
        effects.push(Effect::Wake(now.monotonic));
        cell
    }

    /// Plants a fault in a cell that runs.
    #[cfg(feature = "plants")]
    pub const fn plant(&mut self, plant: crate::plant::Plant) {
        self.shared.fleet.volume.plant = crate::plant::Planted::of(Some(plant));
    }

    /// Loses a wake-up of a task in the next event, as a fault of the cell might.
    #[cfg(feature = "plants")]
    pub const fn lose_wakeup(&mut self) {
        self.shared.waits.lose_next();
    }

    /// Whether the wake-up that was to be lost was lost. Later ones are not.
    #[cfg(feature = "plants")]
    pub const fn has_lost_wakeup(&mut self) -> bool {
        self.shared.waits.has_lost()
    }

    /// Takes one event in. Appends effects in the order in which the driver must carry them out.
    pub fn apply(
        &mut self,
        now: Clock,
        event: Event,
        memory: &mut dyn Memory,
        effects: &mut Vec<Effect>,
    ) {
        self.core.take_in(event, &mut self.shared, Driver { now, memory, effects });
    }

    /// Adds checksums of so many of the pages that were changed and have none, with which a
    /// successor finds damaged ones. For a cell that has nothing else to do. Returns whether there
    /// are more.
    pub fn add_checksums(&mut self, most: usize, memory: &mut dyn Memory) -> bool {
        self.shared.cache.table.add_checksums(most, memory)
    }

    /// Whether the driver may offer requests of clients. It may always offer orders and peers'
    /// messages.
    pub const fn is_ready(&self) -> bool {
        self.shared.fleet.readiness.is_ready()
    }

    /// The number of replayed log records, of those that the cell was given ([`CellConfig::kept`]).
    pub fn kept_replayed(&self) -> u64 {
        self.core.replay.kept_replayed()
    }

    /// Chunks that the cleaner has emptied.
    pub const fn chunks_emptied(&self) -> u64 {
        self.core.cleaner.emptied
    }

    /// Steps from a directory to its parent that moves of directories have taken.
    pub const fn steps_up(&self) -> u64 {
        self.core.coordinator.steps_up
    }

    /// Requests and messages that wait for something other than file locks. A client that releases
    /// a lock must find a free task even if many clients wait for locks.
    pub fn live_tasks(&self) -> usize {
        self.core.tasks.live()
    }

    /// Whether anything waits, so that the driver must call for reviews ([`Event::Review`]).
    pub fn may_wait(&self) -> bool {
        self.core.may_wait(&self.shared)
    }

    /// Requests that wait for file locks. Each occupies a slot of its client, and counts for its
    /// user together with the locks that are held.
    pub const fn lock_waiters(&self) -> usize {
        self.core.tasks.lock_waiters()
    }

    /// Files that clients other than fronts have open for writing.
    pub fn files_written(&self) -> u64 {
        self.shared
            .sessions
            .opens
            .written(|client| !self.shared.sessions.clients.acknowledges(client))
    }

    /// Requests that were executed and wait for other cells before they are answered.
    pub fn decided(&self) -> impl Iterator<Item = (SlotRef, u32, &Answer)> {
        self.core.coordinator.unanswered().filter_map(|id| self.core.tasks.decided(id))
    }

    /// Answers of a predecessor that no client has requested again, in the order in which they were
    /// logged. Their clients have them, or are gone.
    pub fn unanswered(&self) -> impl Iterator<Item = (SlotRef, u32, &Answer)> {
        self.shared.sessions.answers.all()
    }
}
