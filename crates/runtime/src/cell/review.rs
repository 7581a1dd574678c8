//! The review of a cell, once a second: what waits for too long, in the core and in the slots of
//! clients.

use std::time::Duration;

use tracing::warn;
use warren_cell::{Clock, Event};
use warren_shm::Counter;

use super::CellLoop;
use super::memory::Losses;
use crate::error::FleetError;

/// How often a cell looks for what waits for too long. What is found was there for one to two of
/// these times, which is longer than all but few waits last.
const REVIEW_EVERY: Duration = Duration::from_secs(1);

impl CellLoop {
    /// Looks for what waits for too long, if it is time.
    pub(super) fn review(&mut self, now: Clock) -> Result<(), FleetError> {
        if now.monotonic < self.next_review {
            return Ok(());
        }
        self.next_review = now.monotonic + REVIEW_EVERY;
        self.review_clients(now);
        if self.core.may_wait() { self.apply(now, Event::Review) } else { Ok(()) }
    }

    fn review_clients(&mut self, now: Clock) {
        let Losses { client: Some(client), rings, wakeups } = self.memory.review(now.monotonic)
        else {
            return;
        };
        self.vitals.add(Counter::LostRings, rings.into());
        self.vitals.add(Counter::LostWakeups, wakeups);
        let cell = self.cell;
        warn!(
            "cell {cell} lost rings of {rings} requests, and clients {wakeups} wake-ups (client {client}, perhaps others); all of them go on, late"
        );
    }
}
