//! The faults of a device so far, and a flush that failed: which processes know of it.

/// Counts of faults by the process whose I/O they hit, and the places in the order of events of the
/// first failed flush and of the supervisor's first flush since, which reports it.
#[derive(Default)]
pub(crate) struct DeviceFaults {
    pub cells: u64,
    pub supervisor: u64,
    failed_at: Option<u64>,
    known_at: Option<u64>,
    /// A log is full, and the device refuses the checkpoints that would make room.
    pub is_stuck: bool,
}

impl DeviceFaults {
    /// Whether a flush or a write of the supervisor has failed, or a log stays full: then the fleet
    /// refuses changes.
    pub(crate) const fn may_be_read_only(&self) -> bool {
        self.supervisor > 0 || self.has_lost_flush() || self.is_stuck
    }

    /// Whether a flush has failed.
    pub(crate) const fn has_lost_flush(&self) -> bool {
        self.failed_at.is_some()
    }

    pub(super) fn flush_fails(&mut self, place: u64) {
        self.failed_at.get_or_insert(place);
    }

    pub(super) fn supervisor_flushes(&mut self, place: u64) {
        if self.has_lost_flush() {
            self.known_at.get_or_insert(place);
        }
    }

    /// Whether a sync that was requested at this place must have failed: a checkpoint was finished
    /// although the supervisor had received the error of a failed flush. (A checkpoint for which
    /// nothing is left to be written flushes nothing, and what it confirms was durable before.)
    pub(crate) fn must_sync_fail(&self, asked_at: u64, switched_at: u64) -> bool {
        self.failed_at.is_some_and(|failed_at| failed_at < asked_at)
            && self.known_at.is_some_and(|known_at| known_at < switched_at)
    }
}
