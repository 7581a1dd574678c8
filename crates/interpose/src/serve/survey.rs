//! The reasons for an admission: the mounts that the process uses, and what its calls there cost.
//!
//! Most processes are short or use no mount of ours, and pay for counting only. Of the others,
//! every sixteenth path is examined, by a call that takes a microsecond. A slow call counts for
//! several, so that a process whose calls all go through a front is noticed soon.

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use crate::state::Flag;

use super::name::Prefix;

/// Calls by path before paths are examined, and the part of them that is.
const SURVEY_AFTER: u32 = 32;
const EXAMINED: u32 = 16;
/// A call counts for one more for each so many cycles that it took, up to half a part. Local file
/// systems take less, and a front more.
const SLOW: u64 = 40_000;
const SLOW_MAX: u64 = EXAMINED as u64 / 2;
/// Calls by path in a mount may cost this much before the fleet is asked: about as much as an
/// admission, which takes a millisecond on an idle machine and seven on a busy one, where the calls
/// take longer as well. So a process pays at most about twice what it would have paid at best,
/// whether its calls are cheap (the kernel has the names) or dear. In cycles: half a millisecond to
/// three.
const ADMIT_AFTER: u64 = 3_000_000;
/// A call counts for this many cycles at most. A longer one has waited for something else.
const CALL_MAX: u64 = ADMIT_AFTER / 10;
/// After each failure the survey needs this many times as many calls.
const PATIENCE: u32 = 8;
const FAILURES_MAX: u32 = 4;
/// Mounts that are looked after, until one is used.
const CANDIDATES: usize = 8;
/// After so many calls with paths on file systems that have no disk and are not known to be ours,
/// all mounts are looked at.
const OTHERS_MAX: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Young = 0,
    Looking = 1,
    Never = 2,
}

/// The counters of the process so far.
pub(crate) struct Survey {
    phase: AtomicU8,
    /// Never, and children neither.
    is_forever: AtomicBool,
    /// All mounts are looked at, or were: the candidates are all that there are.
    pub has_all: Flag,
    calls: AtomicU32,
    failures: AtomicU32,
    others: AtomicU32,
    /// The cost of calls by relative paths, and on files that may be ours.
    relative_cycles: AtomicU64,
}

/// The mounts that are looked after, and the program's `XDG_RUNTIME_DIR`.
pub(crate) struct Candidates {
    found: [Candidate; CANDIDATES],
    pub runtime_dir: Prefix,
}

pub(super) struct Candidate {
    pub prefix: Prefix,
    /// The cost of its calls.
    cycles: AtomicU64,
}

pub(crate) fn phase() -> Phase {
    match Survey::here().phase.load(Relaxed) {
        0 => Phase::Young,
        1 => Phase::Looking,
        _ => Phase::Never,
    }
}

/// A call by path of a young process, which took so many cycles. Returns whether its path is to be
/// examined.
pub(super) fn count_young(cycles: u64) -> bool {
    let survey = Survey::here();
    let weight = 1 + (cycles / SLOW).min(SLOW_MAX) as u32;
    let before = survey.calls.fetch_add(weight, Relaxed);
    let calls = before.wrapping_add(weight);
    calls >= survey.patience(SURVEY_AFTER) && before / EXAMINED != calls / EXAMINED
}

/// The counter for the cost of calls by this path, while mounts are looked after. `None` for a path
/// outside of all.
pub(super) fn purse_of(path: &[u8]) -> Option<&'static AtomicU64> {
    if path.starts_with(b"/") {
        Candidates::here().of(path).map(|candidate| &candidate.cycles)
    } else {
        Some(relative_purse())
    }
}

pub(super) fn relative_purse() -> &'static AtomicU64 {
    &Survey::here().relative_cycles
}

/// A call has cost so many cycles. Returns whether the fleet is to be asked now.
pub(super) fn pay(purse: &AtomicU64, cycles: u64) -> bool {
    let cycles = cycles.min(CALL_MAX);
    let price = ADMIT_AFTER * u64::from(Survey::here().patience(1));
    let is_paid = purse.fetch_add(cycles, Relaxed) + cycles >= price;
    if is_paid {
        purse.store(0, Relaxed);
    }
    is_paid
}

impl Survey {
    fn patience(&self, calls: u32) -> u32 {
        calls * PATIENCE.pow(self.failures.load(Relaxed).min(FAILURES_MAX))
    }

    /// Counts a call with a path on a file system that has no disk and is not known to be ours.
    /// Returns whether it is time to look at all mounts.
    pub(super) fn note_other(&self) -> bool {
        self.others.fetch_add(1, Relaxed) + 1 >= OTHERS_MAX
    }

    /// Goes to another phase, unless another thread has found out meanwhile that there is to be
    /// none.
    pub(super) fn advance(&self, to: Phase) {
        let next = |phase| (phase != Phase::Never as u8).then_some(to as u8);
        // If it fails, it is never.
        let _phase = self.phase.fetch_update(SeqCst, SeqCst, next);
    }

    /// The process is never admitted. `forever`: nor are children that it forks.
    pub(super) fn give_up(&self, forever: bool) {
        if forever {
            self.is_forever.store(true, Release);
        }
        self.phase.store(Phase::Never as u8, Release);
    }

    /// An admission has failed, or has ended by itself. `is_passing`: the reason may pass.
    pub(super) fn fail(&self, is_passing: bool) {
        let failures = self.failures.fetch_add(1, Relaxed) + 1;
        if is_passing && failures < FAILURES_MAX {
            self.forget();
            self.advance(Phase::Young);
        } else {
            self.give_up(false);
        }
    }

    /// Mounts are looked for from the beginning.
    pub(super) fn be_young(&self) {
        self.forget();
        self.phase.store(Phase::Young as u8, Release);
    }

    fn forget(&self) {
        self.calls.store(0, Relaxed);
        self.others.store(0, Relaxed);
        self.has_all.set(false);
        Candidates::here().clear_from(0);
    }

    /// In a child of `fork`.
    pub(crate) fn begin_again(&self) {
        self.failures.store(0, Relaxed);
        self.relative_cycles.store(0, Relaxed);
        if !self.is_forever.load(Acquire) {
            self.be_young();
        }
    }
}

impl Candidates {
    pub(super) fn of(&self, path: &[u8]) -> Option<&Candidate> {
        self.found.iter().find(|candidate| candidate.prefix.rest(path).is_some())
    }

    /// Looks after the mount at this path. Returns whether there was room.
    pub(super) fn add(&self, at: &[u8]) -> bool {
        let is_there = |it: &Candidate| it.prefix.rest(at).is_some_and(|rest| rest == b"/");
        let is_free = |it: &Candidate| it.prefix.is_empty();
        let free = || self.found.iter().position(is_free);
        self.found.iter().any(is_there)
            || free().is_some_and(|number| self.set(number, at.iter().copied()))
    }

    /// Returns whether there is room for the path.
    pub(super) fn set(&self, number: usize, path: impl Iterator<Item = u8>) -> bool {
        let Some(candidate) = self.found.get(number) else { return false };
        candidate.cycles.store(0, Relaxed);
        candidate.prefix.set(path)
    }

    pub(super) fn clear_from(&self, number: usize) {
        self.found[number..].iter().for_each(|candidate| candidate.prefix.clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sixteenth_path_is_examined_after_the_first_calls_and_slow_calls_count_for_more() {
        Survey::here().be_young();
        let examined = |calls: u32, cycles| (0..calls).filter(|_| count_young(cycles)).count();
        assert_eq!(examined(SURVEY_AFTER - 1, 0), 0);
        assert_eq!(examined(10 * EXAMINED, 0), 10);
        let slow = 1 + SLOW_MAX as u32;
        assert_eq!(examined(EXAMINED, SLOW * SLOW_MAX), slow as usize);
    }

    #[test]
    fn a_process_is_never_admitted_after_some_failures_or_one_that_does_not_pass() {
        // SAFETY: zeros are legal values of its words.
        let survey = || unsafe { core::mem::zeroed::<Survey>() };
        let often = survey();
        let is_never = |survey: &Survey| survey.phase.load(Relaxed) == Phase::Never as u8;
        for failures in 1..=FAILURES_MAX {
            often.fail(true);
            assert_eq!(is_never(&often), failures == FAILURES_MAX);
        }
        assert_eq!(often.patience(1), PATIENCE.pow(FAILURES_MAX));
        let once = survey();
        once.fail(false);
        once.advance(Phase::Looking);
        assert!(is_never(&once));
        once.begin_again();
        assert!(!is_never(&once), "a child of fork begins again");
        once.give_up(true);
        once.begin_again();
        assert!(is_never(&once));
    }

    #[test]
    fn a_purse_is_empty_after_it_has_paid() {
        let purse = AtomicU64::new(0);
        let calls = (1..).find(|_| pay(&purse, u64::MAX));
        assert_eq!(calls, Some(ADMIT_AFTER / CALL_MAX));
        assert_eq!(purse.load(Relaxed), 0);
    }
}
