//! The reader's wait for the next message: it polls for some microseconds, then in the kernel.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warren_runtime::Loads;

use crate::channel::{Channel, Received};

/// The time for which the reader polls. Longer polling takes more processor time from the program
/// and the cell on a busy machine than it saves.
const SHORT: Duration = Duration::from_micros(5);

/// The time for which it polls beside a cell that sleeps, while processors are idle. The program
/// needs so long to wake up and to make its next call.
const LONG: Duration = Duration::from_micros(40);

/// After so many failed spins in a row the reader does not spin, until a message arrives within the
/// time that a spin would have taken.
const FAILED_SPINS_MAX: u32 = 16;

/// The time for which it is believed that a processor is idle, or not.
const ROOM_LASTS: Duration = Duration::from_millis(1);

/// Who else needs a processor while the reader spins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beside {
    /// The program: it is on the same one.
    Program,
    /// A cell, which was asked something for the last request, or several programs.
    Others,
    NoOther,
}

/// The message that the reader received, and the way in which it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// The message was there. More may be.
    AtOnce(usize),
    /// The reader waited for the message, so there was no other one.
    Awaited(usize),
    Closed,
}

pub(super) struct ReadWait {
    short: Spins,
    long: Spins,
    room: Room,
}

/// Spins of one length.
struct Spins {
    length: Duration,
    failed: AtomicU32,
}

/// Whether every thread that can run has a processor.
struct Room {
    loads: Loads,
    cores: usize,
    begin: Instant,
    /// When to look again, in nanoseconds since the beginning.
    next_look: AtomicU64,
    is_there: AtomicBool,
}

impl ReadWait {
    pub(super) fn new() -> Self {
        Self { short: Spins::new(SHORT), long: Spins::new(LONG), room: Room::new() }
    }

    /// Waits until `read` has received a message or the channel is closed.
    pub(super) fn wait(
        &self,
        channel: &dyn Channel,
        beside: Beside,
        mut read: impl FnMut() -> Received,
    ) -> Arrival {
        match read() {
            Received::Message(len) => return Arrival::AtOnce(len),
            Received::Closed => return Arrival::Closed,
            Received::Nothing => {}
        }
        let spins = match beside {
            Beside::Program => None,
            Beside::NoOther if self.room.is_there() => Some(&self.long),
            Beside::Others | Beside::NoOther => Some(&self.short),
        };
        let mut received = spins.map_or(Received::Nothing, |spins| spins.spin(&mut read));
        while received == Received::Nothing {
            let start = Instant::now();
            channel.wait(None);
            received = read();
            if received != Received::Nothing
                && let Some(spins) = spins
            {
                spins.would_have_taken(start.elapsed());
            }
        }
        match received {
            Received::Message(len) => Arrival::Awaited(len),
            Received::Closed | Received::Nothing => Arrival::Closed,
        }
    }
}

impl Spins {
    fn new(length: Duration) -> Self {
        Self { length, failed: AtomicU32::new(0) }
    }

    fn spin(&self, read: &mut impl FnMut() -> Received) -> Received {
        if self.failed.load(Ordering::Relaxed) >= FAILED_SPINS_MAX {
            return Received::Nothing;
        }
        let start = Instant::now();
        while start.elapsed() < self.length {
            let received = read();
            if received != Received::Nothing {
                self.failed.store(0, Ordering::Relaxed);
                return received;
            }
        }
        self.failed.fetch_add(1, Ordering::Relaxed);
        Received::Nothing
    }

    fn would_have_taken(&self, time: Duration) {
        if time < self.length {
            self.failed.store(0, Ordering::Relaxed);
        }
    }
}

impl Room {
    fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self {
            loads: Loads::open(),
            cores,
            begin: Instant::now(),
            next_look: AtomicU64::new(0),
            is_there: AtomicBool::new(false),
        }
    }

    fn is_there(&self) -> bool {
        let now = self.begin.elapsed().as_nanos() as u64;
        if now >= self.next_look.load(Ordering::Relaxed) {
            self.next_look.store(now + ROOM_LASTS.as_nanos() as u64, Ordering::Relaxed);
            let is_there = self.loads.runnable().is_some_and(|threads| threads <= self.cores);
            self.is_there.store(is_there, Ordering::Relaxed);
        }
        self.is_there.load(Ordering::Relaxed)
    }
}
