//! The loop's looks at the streams of clients that may post.
//!
//! A post wakes no cell. A busy loop looks at some of the watched streams at each of its looks at
//! the supervisor's link, and at the others before it sleeps. While clients post, its sleeps are
//! short. The client rings the bell when its ring is half full, and the core reads the end of a
//! stream itself before it executes another request of the client or revokes a delegation.

use std::time::Duration;

use warren_base::Instant;
use warren_cell::Event;

use super::{CellLoop, Stage};
use crate::error::FleetError;

/// Streams that a busy loop looks at each time. A line that has not changed costs about a
/// nanosecond, one that is in no cache some hundred.
const STREAM_LOOKS: usize = 64;

/// The longest sleep while clients post: the time for which a record waits.
const SLEEP_WHILE_POSTED: Duration = Duration::from_millis(1);

impl CellLoop {
    /// Looks at some of the watched streams. Returns whether there were new records.
    pub(super) fn take_some_posted(&mut self, now: Instant) -> Result<bool, FleetError> {
        self.take_posted(now, STREAM_LOOKS)
    }

    /// Looks at the streams that the turn before a sleep has left out.
    pub(super) fn take_rest_of_posted(&mut self, now: Instant) -> Result<bool, FleetError> {
        let rest = self.memory.watched_streams().saturating_sub(STREAM_LOOKS);
        self.take_posted(now, rest)
    }

    /// Makes so many looks at the watched streams, in turn, and has the core execute new records.
    /// The clock is read behind the look, so that no record has a later time than its execution.
    fn take_posted(&mut self, now: Instant, looks: usize) -> Result<bool, FleetError> {
        let mut looks = looks.min(self.memory.watched_streams());
        let mut worked = false;
        while self.stage == Stage::Serving
            && let Some((client, user)) = self.memory.next_posted(now, &mut looks)
        {
            // The core names the user of each record of a front.
            if let Some(uid) = user {
                self.memory.meter().run(uid);
            }
            let clock = self.clocks.look();
            self.apply(clock, Event::Posted { client })?;
            worked = true;
        }
        Ok(worked)
    }

    /// The limit of a sleep: short while clients post.
    pub(super) fn sleep_while_posted(&self, now: Instant) -> Duration {
        if self.memory.has_busy_streams(now) { SLEEP_WHILE_POSTED } else { Duration::MAX }
    }
}
