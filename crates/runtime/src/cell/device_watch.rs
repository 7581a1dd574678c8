//! Whether the device completes anything (Hive 4.3: a device that does not answer is a hint).
//!
//! No process is killed for it: a successor would wait for the same device, and for what its
//! predecessor has in flight there (decision 9). The log and the status name it.

use std::time::Duration;

use warren_base::Instant;

/// A disk that spins up, or a path of a network device that is replaced, takes longer. Then it is
/// worth a line.
const SILENT_MAX: Duration = Duration::from_secs(2);

/// When the next review of the cell is, and what the last one has seen of the device.
#[derive(Debug, Default)]
pub(super) struct Reviews {
    pub next: Instant,
    pub device: DeviceWatch,
}

/// The device as the last look has found it.
#[derive(Debug, Default)]
pub(super) struct DeviceWatch {
    completed: u64,
    /// Since when it has had something in flight and completed nothing. `None`: it answers.
    since: Option<Instant>,
    is_named: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Noticed {
    /// It has completed nothing for so long.
    Silent(Duration),
    /// It has completed something after so long.
    Answers(Duration),
}

impl DeviceWatch {
    /// A look, with what is in flight and how much was ever completed. Returns what is to be
    /// logged.
    pub(super) fn look(
        &mut self,
        now: Instant,
        in_flight: usize,
        completed: u64,
    ) -> Option<Noticed> {
        let answers = std::mem::replace(&mut self.completed, completed) != completed;
        if in_flight == 0 || answers {
            let since = self.since.take();
            self.since = (in_flight > 0).then_some(now);
            let was_named = std::mem::take(&mut self.is_named);
            return since.filter(|_| was_named).map(|since| Noticed::Answers(now - since));
        }
        let silent = now - *self.since.get_or_insert(now);
        if silent < SILENT_MAX || std::mem::replace(&mut self.is_named, true) {
            return None;
        }
        Some(Noticed::Silent(silent))
    }

    /// For how long it has completed nothing, if that is long.
    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        self.since.filter(|_| self.is_named).map_or(Duration::ZERO, |since| now - since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_once_that_completes_nothing_and_when_it_answers_again() {
        let mut watch = DeviceWatch::default();
        let at = |second| Instant(1) + Duration::from_secs(second);
        assert_eq!(watch.look(at(0), 1, 5), None);
        assert_eq!(watch.look(at(1), 1, 6), None);
        assert_eq!(watch.look(at(2), 9, 6), None);
        assert_eq!(watch.silent_for(at(2)), Duration::ZERO);
        assert_eq!(watch.look(at(3), 9, 6), Some(Noticed::Silent(Duration::from_secs(2))));
        assert_eq!(watch.look(at(4), 9, 6), None);
        assert_eq!(watch.silent_for(at(5)), Duration::from_secs(4));
        assert_eq!(watch.look(at(6), 8, 7), Some(Noticed::Answers(Duration::from_secs(5))));
        assert_eq!(watch.silent_for(at(6)), Duration::ZERO);
        assert_eq!(watch.look(at(9), 8, 7), Some(Noticed::Silent(Duration::from_secs(3))));
    }

    #[test]
    fn a_device_without_work_is_not_silent() {
        let mut watch = DeviceWatch::default();
        for second in 0..100 {
            assert_eq!(watch.look(Instant(0) + Duration::from_secs(second), 0, 5), None);
        }
        assert_eq!(watch.look(Instant(0) + Duration::from_secs(100), 1, 5), None);
    }
}
