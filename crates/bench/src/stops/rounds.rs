//! The times of the rounds in one directory through one mount, in nanoseconds of the monotonic
//! clock, and the wait after a stop that they show.

/// The rounds since the programs were started last.
#[derive(Default)]
pub(super) struct Rounds {
    /// Beginnings and ends.
    ended: Vec<(u64, u64)>,
    /// The beginning of the round that has not ended.
    begun_ns: Option<u64>,
}

/// The wait since a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Wait {
    /// A round that began after the stop has ended.
    pub is_back: bool,
    /// The time to the end of that round, or the longest of one of the other rounds, if that is
    /// longer. Rounds count from the stop on, and the one that has not ended counts so far.
    pub ns: u64,
}

impl Rounds {
    pub(super) fn forget(&mut self) {
        self.ended.clear();
    }

    pub(super) fn begin(&mut self, now_ns: u64) {
        assert_eq!(self.begun_ns, None, "one round at a time");
        self.begun_ns = Some(now_ns);
    }

    pub(super) fn end(&mut self, now_ns: u64) {
        let begun_ns = self.begun_ns.take().expect("a round has begun");
        self.ended.push((begun_ns, now_ns));
    }

    pub(super) fn is_resting(&self) -> bool {
        self.begun_ns.is_none()
    }

    pub(super) fn wait(&self, stop_ns: u64, now_ns: u64) -> Wait {
        let current = self.begun_ns.map(|begun_ns| (begun_ns, now_ns));
        let times = self.ended.iter().copied().chain(current);
        let times = times.filter(|&(_, end)| end > stop_ns);
        let longest = times.map(|(begin, end)| end - begin.max(stop_ns)).max().unwrap_or(0);
        let first = self.ended.iter().find(|&&(begin, _)| begin >= stop_ns);
        let back = first.map_or(0, |&(_, end)| end - stop_ns);
        Wait { is_back: first.is_some(), ns: longest.max(back) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(ended: &[(u64, u64)], begun_ns: Option<u64>) -> Rounds {
        Rounds { ended: ended.to_vec(), begun_ns }
    }

    #[test]
    fn a_directory_is_back_after_a_round_that_began_after_the_stop() {
        let before = [(10, 20), (30, 40)];
        assert_eq!(rounds(&before, None).wait(50, 90), Wait { is_back: false, ns: 0 });
        // The round that was interrupted shows a wait, and no more.
        let held = [(10, 20), (30, 70)];
        assert_eq!(rounds(&held, None).wait(50, 90), Wait { is_back: false, ns: 20 });
        assert_eq!(rounds(&before, Some(45)).wait(50, 90), Wait { is_back: false, ns: 40 });
        let back = [(30, 70), (75, 80)];
        assert_eq!(rounds(&back, None).wait(50, 90), Wait { is_back: true, ns: 30 });
    }

    #[test]
    fn a_later_round_that_takes_longer_is_the_wait() {
        let later = [(55, 60), (65, 165), (170, 172)];
        assert_eq!(rounds(&later, None).wait(50, 180), Wait { is_back: true, ns: 100 });
        assert_eq!(rounds(&later, Some(175)).wait(50, 400), Wait { is_back: true, ns: 225 });
        // A round before the stop is none of its waits.
        assert_eq!(rounds(&[(0, 49), (51, 53)], None).wait(50, 60).ns, 3);
    }

    #[test]
    fn a_round_begins_and_ends() {
        let mut rounds = Rounds::default();
        rounds.begin(5);
        assert!(!rounds.is_resting());
        rounds.end(9);
        assert!(rounds.is_resting());
        assert_eq!(rounds.wait(5, 20), Wait { is_back: true, ns: 4 });
        rounds.forget();
        assert_eq!(rounds.wait(5, 20), Wait::default());
    }
}
