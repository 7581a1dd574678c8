//! The limit of events of one place in the code.
//!
//! A client that is refused a million times, or a device that fails at every read, must not push
//! all other events out of the log. Each place may log so many events in a window. The rest are
//! counted, and the count is logged with the first event of the process after the window. Events
//! about the start and end of processes are never held back: each costs a process, and the
//! supervisor limits them.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// At most 70,000 lines a day for one place: at 200 bytes each, the files have room for several
/// days of it.
pub(crate) const EVENTS_A_WINDOW: u32 = 8;
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

struct Window {
    until: Instant,
    passed: u32,
    /// Events held back in this window, and the last of them.
    held_back: u64,
    sample: String,
}

/// The number of events that were held back, and the text of one of them.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct HeldBack {
    pub count: u64,
    pub sample: String,
}

pub(crate) struct Limits<Place>(HashMap<Place, Window>);

impl<Place: Eq + Hash> Limits<Place> {
    pub(crate) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Whether the event of this place may be logged now.
    pub(crate) fn admits(&mut self, place: Place, now: Instant, text: &str) -> bool {
        let fresh =
            || Window { until: now + WINDOW, passed: 0, held_back: 0, sample: String::new() };
        let window = self.0.entry(place).or_insert_with(fresh);
        if window.until <= now {
            *window = fresh();
        }
        let admits = window.passed < EVENTS_A_WINDOW;
        if admits {
            window.passed += 1;
        } else {
            window.held_back += 1;
            text.clone_into(&mut window.sample);
        }
        admits
    }

    /// The events held back in windows that are over. Must be called before [`Self::admits`].
    pub(crate) fn over(&mut self, now: Instant) -> Vec<HeldBack> {
        let over = |window: &&mut Window| window.until <= now && window.held_back > 0;
        let taken = |window: &mut Window| {
            let count = std::mem::take(&mut window.held_back);
            HeldBack { count, sample: std::mem::take(&mut window.sample) }
        };
        self.0.values_mut().filter(over).map(taken).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_holds_nothing_else_back() {
        let (mut limits, start) = (Limits::new(), Instant::now());
        let passed = (0..1000).filter(|_| limits.admits("refused", start, "client 7")).count();
        assert_eq!(passed, EVENTS_A_WINDOW as usize);
        assert!(limits.admits("another place", start, ""));
        assert_eq!(limits.over(start), []);
        let later = start + WINDOW;
        let count = 1000 - u64::from(EVENTS_A_WINDOW);
        assert_eq!(limits.over(later), [HeldBack { count, sample: "client 7".into() }]);
        assert_eq!(limits.over(later), []);
        assert!(limits.admits("refused", later, "client 7"));
    }
}
