//! A cell without work: it spins a little, then sleeps. And its looks at the bell, which ends its
//! sleep, and which clients ring whose doorbells it does not look at.
//!
//! ```text
//! no work -> spin, looking at doorbells -> parked = 1, one more turn -> sleep -> parked = 0
//! ```

use std::time::Duration;

use warren_base::Instant;
use warren_shm::{Counter, Processor};

use super::{CellLoop, NextLook, ORDERS_EVERY, spin};
use crate::bell::Rings;
use crate::error::FleetError;

/// The interval at which a busy loop reads its bell, if there are clients whose doorbells it does
/// not look at.
const BELL_EVERY: Duration = ORDERS_EVERY;

/// The same after a ring, because further ones are likely.
const BELL_SOON: Duration = Duration::from_micros(10);

/// The longest sleep. If a faulty peer makes a cell lose a ring, the cell is late but never stuck.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A client writes to the bell right after it has rung its doorbell, unless it is interrupted. What
/// the cell retries after a sleep is late by this time, if a ring was lost.
const BELL_LATE: Duration = Duration::from_millis(1);

/// Looks at clients' doorbells between two turns of a spinning cell. They are few, because only
/// turns look for peers' messages and finished I/O, which must not wait longer.
const LOOKS_A_SPIN: usize = 8;

impl CellLoop {
    /// Spins between two turns until a client rings or all looks at the doorbells are made, so that
    /// a new request waits neither for the rest of an idle turn nor for the clock. The next turn
    /// uses the time that was read before, at most some hundred ns ago.
    pub(super) fn watch_doorbells(&self) {
        let looks = LOOKS_A_SPIN / self.memory.active_clients().max(1);
        for _ in 0..=looks {
            std::hint::spin_loop();
            if self.memory.is_rung() {
                break;
            }
        }
    }

    /// Whether the loop has spun long enough and must sleep.
    pub(super) fn is_spun(&mut self, now: Instant, spun: Duration) -> bool {
        if self.memory.is_beside_client() && !self.leave(now) {
            return true;
        }
        if spun < spin::SHORT {
            return false;
        }
        let cells = 1 + self.peers.spinners() as usize;
        spun >= self.idling.spin.limit(cells + self.memory.busy_clients())
    }

    /// Goes to another processor. The client is told before, so that it does not go to sleep for
    /// the answer and is then woken beside the cell again.
    fn leave(&mut self, now: Instant) -> bool {
        if !self.idling.moves.are_due(now) {
            return false;
        }
        self.vitals.depart();
        let has_left = self.idling.moves.leave(now);
        self.idling.shown = None;
        self.show_processor();
        has_left
    }

    /// Keeps it true in the vitals where the cell runs, and whether other processors are idle,
    /// which clients take into account.
    pub(super) fn show_processor(&mut self) {
        let is_roomy = self.idling.moves.is_roomy();
        let shown = Some((Processor::current(), is_roomy));
        if self.idling.shown != shown {
            self.idling.shown = shown;
            self.vitals.unpark(is_roomy);
        }
    }

    /// Reads the bell, if there are clients that must ring it, and looks at doorbells of clients
    /// that were not active lately. Returns whether any of them has rung.
    pub(super) fn look_around(&mut self, now: Instant) -> bool {
        let mut has_rung = false;
        if self.memory.has_idle_clients() {
            let rings = self.disk.drain_bell();
            has_rung = !rings.is_empty();
            self.memory.call(rings);
        }
        has_rung |= self.memory.look_around(now);
        self.idling.moves.look_for_room(now);
        self.next_look.bell = now + if has_rung { BELL_SOON } else { BELL_EVERY };
        has_rung
    }

    pub(super) fn park(&mut self, now: Instant) -> Result<(), FleetError> {
        self.vitals.park();
        self.vitals.set_spinners(0);
        self.next_look = NextLook::AT_ONCE;
        let outcome = self.turn(now).and_then(|(worked, now)| {
            if worked || self.take_rest_of_posted(now)? {
                return Ok(());
            }
            let limit = self.wake.map_or(SLEEP_MAX, |at| (at - now).min(SLEEP_MAX));
            self.sleep(limit.min(self.retry_after()).min(self.sleep_while_posted(now)))
        });
        self.vitals.set_spinners(1);
        self.idling.shown = None;
        self.show_processor();
        self.next_look = NextLook::AT_ONCE;
        outcome
    }

    /// Sleeps, and then looks at the clients that have rung. After a whole sleep these are all
    /// clients: a ring may have been lost.
    fn sleep(&mut self, limit: Duration) -> Result<(), FleetError> {
        let begun = self.clocks.look().monotonic;
        self.disk.sleep(limit)?;
        let now = self.clocks.look().monotonic;
        let rings = self.disk.drain_bell();
        self.memory.call(if now - begun >= SLEEP_MAX { Rings::ALL } else { rings });
        let rung = self.memory.look_at_idle();
        let is_whole = now - begun >= limit;
        if is_whole && rings.is_empty() && !rung.is_empty() && self.is_bell_silent()? {
            self.vitals.add(Counter::LostRings, rung.len() as u64);
        }
        self.memory.activate_rung(rung, now);
        Ok(())
    }

    /// Whether no byte comes within [`BELL_LATE`]. The cell still sleeps for its clients, and the
    /// idle ones are not watched yet. So a client whose doorbell was seen writes its byte, unless
    /// it is lost. A wait that something else ends proves nothing.
    fn is_bell_silent(&mut self) -> Result<bool, FleetError> {
        let begun = self.clocks.look().monotonic;
        self.disk.sleep(BELL_LATE)?;
        let is_whole = self.clocks.look().monotonic - begun >= BELL_LATE;
        let rings = self.disk.drain_bell();
        self.memory.call(rings);
        Ok(is_whole && rings.is_empty())
    }

    /// The limit of a sleep while messages wait for room: a peer and the supervisor do not ring
    /// when they have room again.
    fn retry_after(&self) -> Duration {
        if self.peers.is_backed_up() {
            Duration::from_micros(100)
        } else if self.supervisor.is_backed_up() {
            Duration::from_millis(1)
        } else {
            Duration::MAX
        }
    }
}
