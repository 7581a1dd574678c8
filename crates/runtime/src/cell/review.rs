//! The review of a cell, once a second: what waits for too long, in the core, at the device and in
//! the slots of clients.

use std::time::Duration;

use tracing::warn;
use warren_base::Instant;
use warren_cell::{Clock, Event};
use warren_shm::Counter;

use super::CellLoop;
use super::device_watch::Noticed;
use super::memory::{LoggedLosses, Losses};
use crate::error::FleetError;

/// The interval at which a cell looks for what waits for too long. A wait that is found has lasted
/// for one to two intervals, which is longer than all but few waits last.
const REVIEW_EVERY: Duration = Duration::from_secs(1);

impl CellLoop {
    /// Looks for what waits for too long, if it is time.
    pub(super) fn review(&mut self, now: Clock) -> Result<(), FleetError> {
        if now.monotonic < self.reviews.next {
            return Ok(());
        }
        self.reviews.next = now.monotonic + REVIEW_EVERY;
        self.review_device(now.monotonic);
        self.review_clients(now);
        if self.core.may_wait() { self.apply(now, Event::Review) } else { Ok(()) }
    }

    fn review_device(&mut self, now: Instant) {
        let cell = self.cell;
        match self.reviews.device.look(now, self.disk.in_flight(), self.disk.completed()) {
            Some(Noticed::Silent(time)) => {
                let seconds = time.as_secs();
                warn!("cell {cell}: the pool's device has completed nothing for {seconds} s");
            }
            Some(Noticed::Answers(time)) => {
                let seconds = time.as_secs();
                warn!("cell {cell}: the pool's device answers again after {seconds} s");
            }
            None => {}
        }
        let silent = self.reviews.device.silent_for(now);
        self.vitals.set(Counter::DeviceSilentNs, silent.as_nanos() as u64);
    }

    fn review_clients(&mut self, now: Clock) {
        let Losses { rings, wakeups, logged } = self.memory.review(now.monotonic);
        if rings > 0 {
            self.vitals.add(Counter::LostRings, rings.into());
        }
        if wakeups > 0 {
            self.vitals.add(Counter::LostWakeups, wakeups);
        }
        let cell = self.cell;
        for LoggedLosses { client, rings, wakeups } in logged {
            warn!(
                "cell {cell} lost rings of {rings} requests of client {client}, which lost {wakeups} wake-ups; all of them go on, late"
            );
        }
    }
}
