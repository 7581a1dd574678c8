//! When the next checkpoint is due, and how the earlier ones went.

use std::time::Duration;

use warren_base::{Instant, Timestamp};
use warren_proto::Wire;

/// Time from the end of a checkpoint to the start of the next that the timer starts. A power
/// failure takes at most this much of what was not synced, as with ext4's commit interval.
pub(crate) const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Default, Wire)]
pub(crate) struct Schedule {
    next: Instant,
    last: Option<Timestamp>,
    succeeded: u64,
    failed: u64,
    /// When the first of those failed that have failed in a row.
    failing_since: Option<Timestamp>,
}

impl Schedule {
    /// Starts the interval anew.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.next = now + CHECKPOINT_INTERVAL;
    }

    pub(crate) const fn next(&self) -> Instant {
        self.next
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    pub(crate) const fn succeed(&mut self, wall: Timestamp) {
        self.succeeded += 1;
        self.failing_since = None;
        self.last = Some(wall);
    }

    pub(crate) fn fail(&mut self, wall: Timestamp) {
        self.failed += 1;
        self.failing_since.get_or_insert(wall);
    }

    /// When the last checkpoint succeeded.
    pub(crate) const fn last(&self) -> Option<Timestamp> {
        self.last
    }

    pub(crate) const fn succeeded(&self) -> u64 {
        self.succeeded
    }

    pub(crate) const fn failed(&self) -> u64 {
        self.failed
    }

    /// Since when each checkpoint has failed. As long as the device takes nothing, no successor of
    /// a cell would become ready.
    pub(crate) const fn failing_since(&self) -> Option<Timestamp> {
        self.failing_since
    }
}
