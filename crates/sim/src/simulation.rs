//! Virtual time: the one queue of future events, the one generator of all decisions, the order of
//! events and their trace.
//!
//! Without delays (`Pace::default()`) and without faults, events happen one after the other, in the
//! order of their causes.

mod queue;
pub(crate) mod trace;
pub(crate) mod wall;

use std::fmt;

use warren_base::{Instant, Rng, Timestamp};
use warren_cell::{Clock, Plant};

use queue::EventQueue;
use trace::Trace;
use wall::{EPOCH, WallClock};

/// The slowest message and I/O, in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Pace {
    pub message: u64,
    pub io: u64,
}

/// The chances of faults.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// In 1,000: a message or an I/O takes long.
    pub stall: u64,
    /// In 1,000: an I/O of a serving cell fails, or a block is read damaged.
    pub cell_read: u64,
    pub cell_write: u64,
    pub cell_flush: u64,
    pub rot: u64,
    /// In 1,000: an I/O of the supervisor fails.
    pub supervisor_write: u64,
    pub supervisor_flush: u64,
    /// In 10,000: a message between cells is damaged; a cell, or the supervisor, is killed at an
    /// event.
    pub damage: u64,
    /// In 10,000: a cell's process is stopped before an event, and continues later.
    pub pauses: u64,
    pub kills: u64,
    pub deaths: u64,
    /// In 100: a cell that is killed has damaged pages of its cache.
    pub wild: u64,
}

/// The course of one run. `E` are its events.
pub(crate) struct Simulation<E> {
    pub rng: Rng,
    pub now: Instant,
    pub wall_clock: WallClock,
    pub queue: EventQueue<E>,
    pub trace: Trace,
    pub pace: Pace,
    pub faults: Faults,
    /// A fault of the code that is planted.
    pub plant: Option<Plant>,
    /// The last place in the order of events that was given out.
    pub places: u64,
    /// The first rule that was broken.
    pub failure: Option<String>,
}

impl<E> Simulation<E> {
    pub(crate) fn new(rng: Rng, trace: Trace) -> Self {
        Self {
            rng,
            now: Instant(1),
            wall_clock: WallClock::default(),
            queue: EventQueue::new(),
            trace,
            pace: Pace::default(),
            faults: Faults::default(),
            plant: None,
            places: 0,
            failure: None,
        }
    }

    /// Advances to the next event, and removes it from the queue.
    pub(crate) fn advance(&mut self) -> Option<E> {
        let (at, event) = self.queue.next()?;
        self.now = at;
        Some(event)
    }

    /// Whether no event is left at this time.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queue.next_at().is_none_or(|at| at > self.now)
    }

    pub(crate) fn plan(&mut self, nanos: u64, event: E) {
        self.plan_at(Instant(self.now.0 + nanos), event);
    }

    pub(crate) fn plan_at(&mut self, at: Instant, event: E) {
        self.queue.plan(at, event);
    }

    /// The next place in the order of events.
    pub(crate) fn place(&mut self) -> u64 {
        self.take_places(1)
    }

    /// Takes the next so many places. Returns the first.
    pub(crate) fn take_places(&mut self, count: u64) -> u64 {
        let first = self.places + 1;
        self.places += count;
        first
    }

    /// The time of a clock without steps: [`WallClock::window`] makes of it what cells see.
    pub(crate) fn wall(&self) -> Timestamp {
        Timestamp(EPOCH.0 + self.now.0 as i64)
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock { monotonic: self.now, wall: self.wall_clock.at(self.now) }
    }

    pub(crate) fn message_delay(&mut self) -> u64 {
        self.delay(self.pace.message)
    }

    pub(crate) fn io_delay(&mut self) -> u64 {
        self.delay(self.pace.io)
    }

    fn delay(&mut self, slowest: u64) -> u64 {
        if slowest == 0 {
            return 0;
        }
        let usual = 1 + self.rng.below(slowest);
        if self.is_drawn(self.faults.stall, 1000) {
            self.count("a stall");
            return usual * 50;
        }
        usual
    }

    /// Draws whether a fault with this chance happens. One without a chance takes no draw.
    pub(crate) fn is_drawn(&mut self, chance: u64, of: u64) -> bool {
        chance > 0 && self.rng.chance(chance, of)
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        self.trace.count(what);
    }

    pub(crate) fn note(&mut self, text: &dyn fmt::Debug) {
        self.trace.note(self.now, text);
    }

    pub(crate) fn fail(&mut self, rule: String) {
        self.failure.get_or_insert(rule);
    }
}
