//! Whether a process hangs, as far as can be seen from outside (Hive 4.3, clock monitoring).
//!
//! A process that works increases a number, its *beats*. The watcher looks at regular intervals. If
//! there is work and the beats stand still, it also looks at the state of the process in the kernel
//! and the processor time that it got, because a process that is not given a processor does not
//! hang:
//!
//! ```text
//! stopped by a signal            for STOPPED_MAX
//! computes, in user mode         for COMPUTES_MAX of its own processor time
//! sleeps, or is being traced     for SLEEPS_MAX
//! blocked in the kernel (D)      never: it waits for a device or for memory
//! ready to run, and not running  never: the machine is busy
//! ```
//!
//! A watcher that was itself kept from looking forgets what it saw before: the whole machine may
//! have stood still.

use std::time::Duration;

use warren_base::Instant;
use warren_proto::Wire;

/// The time between two looks. It is the greater part of the time until a stop is detected, and
/// costs a watcher 20 wake-ups a second.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A longer time between two looks means that the watcher itself did not run.
pub(crate) const LATE: Duration = Duration::from_millis(200);

/// A job-control stop is rarely shorter if a person asks for it. If a whole fleet is resumed
/// process by process, all run again within this time.
const STOPPED_MAX: Duration = Duration::from_millis(100);

/// Most steps of a process take less than 10 ms, or 200 ms if it is built without optimization. A
/// few may take longer in a cell with a log or a cache of many GiB: see [`LONGER`].
const COMPUTES_MAX: Duration = Duration::from_secs(1);

/// A successor may do again what its predecessor was killed for. If that was no loop, it ends when
/// the successor has more time: each has four times as long as the one before, up to 64 s.
const LONGER: u32 = 2;
const LONGER_MAX: u32 = 3 * LONGER;

/// Twice the longest sleep of a cell, which ends by itself.
pub(crate) const SLEEPS_MAX: Duration = Duration::from_secs(2);

/// A process of which it was said that it hangs, and that is still there, is named again after
/// this time.
const AGAIN: Duration = Duration::from_secs(1);

/// Why a process is thought to hang.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Wire)]
pub enum Hint {
    Stopped,
    Computes,
    Sleeps,
    /// It beats. A cell accuses it of not answering.
    Silent,
}

impl Hint {
    /// For the sentence "it was killed because it ...".
    pub const fn text(self) -> &'static str {
        match self {
            Self::Stopped => "was stopped",
            Self::Computes => "computed and did nothing else",
            Self::Sleeps => "slept beside its work",
            Self::Silent => "answered no other cell",
        }
    }
}

/// The state of a process in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// By a signal.
    Stopped,
    /// It sleeps and can be woken, or a debugger holds it.
    Sleeps,
    /// It runs or could run.
    Runs,
    /// It waits in the kernel, for a device or for memory.
    Blocked,
}

/// A process as the kernel shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessState {
    pub condition: Condition,
    /// The processor time that it has had in user mode.
    pub ran: Duration,
}

/// The work that waits for a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// It may sleep.
    None,
    /// It starts, or its beats are not known.
    Start,
    /// It works, and may sleep for a device.
    Waits,
    Some,
}

/// The result of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    Nothing,
    Hangs(Hint),
    /// It seemed to hang, and it beats again, or nothing is known of it any more.
    Moves,
}

/// A standstill.
#[derive(Debug)]
struct Still {
    condition: Condition,
    work: Work,
    /// Since when it has been in this condition.
    since: Instant,
    /// The processor time that it had had when the standstill began.
    ran: Duration,
}

/// For how long a process may compute.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    /// Binary orders of magnitude by which it may compute for longer than usual.
    longer: u32,
    /// It was last said to hang because it computed.
    pub has_computed: bool,
}

impl Patience {
    pub(crate) fn of_successor(self) -> Self {
        let longer = if self.has_computed { (self.longer + LONGER).min(LONGER_MAX) } else { 0 };
        Self { longer, has_computed: false }
    }

    pub(crate) fn computes_max(self) -> Duration {
        COMPUTES_MAX * (1 << self.longer)
    }
}

/// The watch over one process.
#[derive(Debug, Default)]
pub struct Watch {
    last: Instant,
    beats: u64,
    still: Option<Still>,
    /// When it was last said to hang, unless it has moved since.
    named: Option<Instant>,
    patience: Patience,
}

impl Watch {
    /// The watch over the successor of the process.
    pub fn of_successor(&self) -> Self {
        Self { patience: self.patience.of_successor(), ..Self::default() }
    }

    /// A look at the process. `process` is called only if the beats stand still beside work. `None`
    /// of it: the kernel does not show the process, which proves nothing.
    pub fn look(
        &mut self,
        now: Instant,
        beats: u64,
        work: Work,
        process: impl FnOnce() -> Option<ProcessState>,
    ) -> Seen {
        let is_late = now - std::mem::replace(&mut self.last, now) > LATE;
        let moves = std::mem::replace(&mut self.beats, beats) != beats;
        if moves || work == Work::None || is_late {
            self.still = None;
            let was_named = self.named.take().is_some();
            return if was_named { Seen::Moves } else { Seen::Nothing };
        }
        let Some(ProcessState { condition, ran }) = process() else { return Seen::Nothing };
        let begun = Still { condition, work, since: now, ran };
        let still = match &mut self.still {
            Some(still) if still.work == work => still,
            place => place.insert(begun),
        };
        if still.condition != condition {
            (still.condition, still.since) = (condition, now);
        }
        let stands = now - still.since;
        let hint = match condition {
            Condition::Stopped if stands >= STOPPED_MAX => Hint::Stopped,
            Condition::Sleeps if work == Work::Some && stands >= SLEEPS_MAX => Hint::Sleeps,
            Condition::Runs
                if work != Work::Start
                    && ran.saturating_sub(still.ran) >= self.patience.computes_max() =>
            {
                Hint::Computes
            }
            _ => return Seen::Nothing,
        };
        if self.named.is_some_and(|at| now - at < AGAIN) {
            return Seen::Nothing;
        }
        self.named = Some(now);
        self.patience.has_computed = hint == Hint::Computes;
        Seen::Hangs(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process under watch, and the time.
    #[derive(Default)]
    struct Bench {
        watch: Watch,
        now: Instant,
        beats: u64,
        ran: Duration,
    }

    impl Bench {
        fn look(&mut self, work: Work, condition: Condition) -> Seen {
            self.now = self.now + LOOK_EVERY;
            let process = ProcessState { condition, ran: self.ran };
            self.watch.look(self.now, self.beats, work, || Some(process))
        }

        /// The time until the process is said to hang, if it is within ten seconds.
        fn until_hint(&mut self, work: Work, condition: Condition) -> Option<(Duration, Hint)> {
            let begun = self.now;
            (0..200).find_map(|_| match self.look(work, condition) {
                Seen::Hangs(hint) => Some((self.now - begun, hint)),
                _ => None,
            })
        }
    }

    #[test]
    fn a_stopped_process_with_work_hangs_and_one_without_does_not() {
        let mut bench = Bench::default();
        bench.look(Work::Some, Condition::Runs);
        assert_eq!(bench.until_hint(Work::None, Condition::Stopped), None);
        let (after, hint) = bench.until_hint(Work::Some, Condition::Stopped).expect("a hint");
        assert_eq!(hint, Hint::Stopped);
        assert!(after <= STOPPED_MAX + LOOK_EVERY, "{after:?}");
        // It is named again only if it stays.
        let (after, _) = bench.until_hint(Work::Some, Condition::Stopped).expect("a hint");
        assert!(after >= AGAIN, "{after:?}");
        bench.beats += 1;
        assert_eq!(bench.look(Work::Some, Condition::Runs), Seen::Moves);
        assert_eq!(bench.look(Work::Some, Condition::Runs), Seen::Nothing);
    }

    #[test]
    fn a_process_that_is_given_no_processor_does_not_hang() {
        let mut bench = Bench::default();
        for condition in [Condition::Runs, Condition::Blocked] {
            assert_eq!(bench.until_hint(Work::Some, condition), None, "{condition:?}");
        }
    }

    #[test]
    fn a_process_that_computes_hangs_after_its_own_time() {
        let mut bench = Bench::default();
        let mut looks = 0;
        loop {
            bench.ran += Duration::from_millis(1);
            looks += 1;
            if bench.look(Work::Some, Condition::Runs) == Seen::Hangs(Hint::Computes) {
                break;
            }
        }
        assert_eq!(looks, COMPUTES_MAX.as_millis() + 1);
    }

    #[test]
    fn the_successor_of_a_process_that_computed_may_compute_for_longer() {
        let mut bench = Bench::default();
        for times in [1, 4, 16, 64, 64] {
            // At the first look nothing is known.
            bench.look(Work::Some, Condition::Runs);
            bench.look(Work::Some, Condition::Runs);
            bench.ran += COMPUTES_MAX * times - Duration::from_millis(1);
            assert_eq!(bench.look(Work::Some, Condition::Runs), Seen::Nothing, "{times}");
            bench.ran += Duration::from_millis(1);
            assert_eq!(bench.look(Work::Some, Condition::Runs), Seen::Hangs(Hint::Computes));
            bench.watch = bench.watch.of_successor();
        }
        let (_, hint) = bench.until_hint(Work::Some, Condition::Stopped).expect("a hint");
        assert_eq!((hint, bench.watch.of_successor().patience.longer), (Hint::Stopped, 0));
    }

    #[test]
    fn a_process_that_starts_may_wait() {
        let mut bench = Bench { ran: COMPUTES_MAX * 2, ..Bench::default() };
        assert_eq!(bench.until_hint(Work::Start, Condition::Sleeps), None);
        assert_eq!(bench.until_hint(Work::Waits, Condition::Sleeps), None);
        assert!(bench.until_hint(Work::Start, Condition::Stopped).is_some());
        let sleeps = Bench::default().until_hint(Work::Some, Condition::Sleeps);
        assert!(sleeps.is_some_and(|(after, hint)| hint == Hint::Sleeps && after >= SLEEPS_MAX));
    }

    #[test]
    fn a_watcher_that_stood_still_itself_begins_anew() {
        let mut bench = Bench::default();
        for _ in 0..50 {
            bench.now = bench.now + LATE;
            assert_eq!(bench.look(Work::Some, Condition::Stopped), Seen::Nothing);
        }
    }

    #[test]
    fn what_was_seen_before_the_watcher_stood_still_is_void() {
        let mut bench = Bench::default();
        assert!(bench.until_hint(Work::Some, Condition::Stopped).is_some());
        bench.now = bench.now + LATE;
        assert_eq!(bench.look(Work::Some, Condition::Stopped), Seen::Moves);
    }

    #[test]
    fn time_before_the_start_has_ended_does_not_count() {
        let mut bench = Bench::default();
        assert_eq!(bench.until_hint(Work::Start, Condition::Sleeps), None);
        let (after, _) = bench.until_hint(Work::Some, Condition::Sleeps).expect("a hint");
        assert!(after >= SLEEPS_MAX, "{after:?}");
    }

    #[test]
    fn a_process_that_the_kernel_does_not_show_is_not_judged() {
        let mut watch = Watch::default();
        for look in 0..200 {
            let seen = watch.look(Instant(0) + LOOK_EVERY * look, 0, Work::Some, || None);
            assert_eq!(seen, Seen::Nothing);
        }
    }
}
