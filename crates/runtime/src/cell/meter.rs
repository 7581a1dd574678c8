//! The time that the cell spends for each user.
//!
//! The loop reads the clock between requests if others wait, and after each turn. What has passed
//! since the last reading was spent for the user whose request ran. If one event lets tasks of
//! several users run (a commit answers many), the clock is also read where the user changes. Time
//! in which no request runs is spent for no user.

use std::time::Duration;

use warren_base::Instant;

use crate::clock;

#[derive(Debug, Default)]
pub(super) struct Meter {
    /// The user for whom the cell works.
    running: Option<u32>,
    since: Instant,
    /// Earlier users since the last reading by the loop.
    spent: Vec<(u32, Duration)>,
    /// The user that got the last answer since then.
    answered: Option<u32>,
}

impl Meter {
    /// From now on, time is spent for this user.
    #[inline]
    pub(super) fn run(&mut self, uid: u32) {
        self.run_at(uid, clock::monotonic);
    }

    #[inline]
    fn run_at(&mut self, uid: u32, now: impl FnOnce() -> Instant) {
        match self.running {
            Some(running) if running == uid => return,
            Some(running) => {
                let now = now();
                self.spent.push((running, now - self.since));
                self.since = now;
            }
            None => {}
        }
        self.running = Some(uid);
    }

    #[inline]
    pub(super) fn answer(&mut self, uid: u32) {
        self.answered = Some(uid);
    }

    /// Calls `charge` with what was spent for each user until now, and begins anew. Returns the
    /// user that was answered last.
    #[inline]
    pub(super) fn read(
        &mut self,
        now: Instant,
        mut charge: impl FnMut(u32, Duration),
    ) -> Option<u32> {
        self.spent.drain(..).for_each(|(uid, time)| charge(uid, time));
        if let Some(uid) = self.running.take() {
            charge(uid, now - self.since);
        }
        self.since = now;
        self.answered.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_is_charged_for_the_time_that_its_requests_run() {
        let (mut meter, mut charged) = (Meter::default(), Vec::new());
        let mut read = |meter: &mut Meter, now: u64| {
            let answered =
                meter.read(Instant(now), |uid, time| charged.push((uid, time.as_nanos())));
            (std::mem::take(&mut charged), answered)
        };
        assert_eq!(read(&mut meter, 100), (vec![], None), "nothing has run");
        meter.run_at(7, || unreachable!("no other user has run"));
        meter.run_at(7, || unreachable!("the same user"));
        meter.answer(7);
        assert_eq!(read(&mut meter, 130), (vec![(7, 30)], Some(7)));
        assert_eq!(read(&mut meter, 190), (vec![], None), "the cell was idle");
        meter.run_at(7, || unreachable!("no other user has run"));
        meter.run_at(8, || Instant(200));
        assert_eq!(read(&mut meter, 240), (vec![(7, 10), (8, 40)], None));
    }
}
