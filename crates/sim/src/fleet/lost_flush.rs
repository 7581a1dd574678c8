//! A flush that failed, and who knows it.

/// The places in the order of events of the first failed flush of a fleet, and of the supervisor's
/// first flush since, with which it learned of that.
#[derive(Default)]
pub(crate) struct LostFlush {
    failed_at: Option<u64>,
    known_at: Option<u64>,
}

impl LostFlush {
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed_at.is_some()
    }

    pub(super) fn fails(&mut self, place: u64) {
        self.failed_at.get_or_insert(place);
    }

    pub(super) fn supervisor_flushes(&mut self, place: u64) {
        if self.has_failed() {
            self.known_at.get_or_insert(place);
        }
    }

    /// Whether a sync that was asked for at this place must have failed: a checkpoint was finished
    /// although the supervisor had learned of a failed flush. (One for which nothing is left to be
    /// written flushes nothing, and what it confirms was durable before.)
    pub(crate) fn must_sync_fail(&self, asked_at: u64, switched_at: u64) -> bool {
        self.failed_at.is_some_and(|failed_at| failed_at < asked_at)
            && self.known_at.is_some_and(|known_at| known_at < switched_at)
    }
}
