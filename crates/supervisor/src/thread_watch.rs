//! Whether a process of several threads hangs that is not stopped: a thread in a loop, threads that
//! wait for each other, or work that no thread takes.
//!
//! Each thread says what it does, and a number that grows whenever that changes. If a thread works
//! and its number stands still, the kernel's view of all threads is compared with it:
//!
//! ```text
//! it computes, in user mode       hangs after 1 s of its own processor time
//! it sleeps                       hangs after SLEEPS_MAX, if nothing is left that could wake it
//! it waits for another process    never: that process has a watch of its own
//! blocked in the kernel (D)       never
//! ready to run, and not running   never
//! ```
//!
//! A thread that sleeps can be woken by one that has not finished its work since, and that is not
//! asleep in it itself: one that runs, is blocked or waits for another process. If there is none,
//! all that sleep wait for each other. Unread work beside threads that all sleep is the same.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_base::Instant;

use crate::watch::{Condition, Hint, LATE, LOOK_EVERY, Patience, ProcessState, SLEEPS_MAX};

/// Work usually takes less, and the kernel is not asked about it.
const SUSPECT: Duration = Duration::from_millis(100);

/// The time for which the states of several threads must stay the same, because the kernel does not
/// show all of them at one moment.
const STAYS: Duration = LOOK_EVERY.saturating_mul(4);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// It waits for work, or for what no other thread of the process waits for.
    Idle,
    /// It does something in its process alone, or waits for another thread of it.
    Works,
    /// It waits for another process.
    Asks,
}

/// A thread says this of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    pub thread: u32,
    /// Another number: the thread has done something.
    pub number: u64,
    /// Another number: it has finished some work.
    pub unit: u64,
    pub activity: Activity,
}

/// Since when a thread's numbers stand still.
#[derive(Debug)]
struct Still {
    number: u64,
    since: Instant,
    unit: u64,
    unit_since: Instant,
    /// The processor time that it had had when it was first looked at.
    ran: Option<Duration>,
    /// Since when it sleeps, as far as was seen.
    sleeps: Option<Instant>,
}

/// The watch over the threads of one process.
#[derive(Debug, Default)]
pub struct ThreadWatch {
    last: Instant,
    threads: BTreeMap<u32, Still>,
    /// Since when there is work that no thread has taken, and no thread did anything.
    unread: Option<Instant>,
    /// Since when there is no thread that could wake one of those that sleep.
    without_waker: Option<Instant>,
    patience: Patience,
}

impl ThreadWatch {
    /// The watch over the successor of the process.
    #[must_use]
    pub fn of_successor(&self) -> Self {
        Self { patience: self.patience.of_successor(), ..Self::default() }
    }

    /// A look at the process: what its threads say, and whether there is work that none has taken.
    /// `threads` is called only if something stands still. `None` of it: the kernel does not show
    /// the threads, which proves nothing. Returns why the process hangs, if it does.
    pub fn look(
        &mut self,
        now: Instant,
        said: &[Said],
        has_unread: bool,
        threads: impl FnOnce() -> Option<BTreeMap<u32, ProcessState>>,
    ) -> Option<Hint> {
        let is_late = now - std::mem::replace(&mut self.last, now) > LATE;
        let moves = self.note(now, said, is_late);
        if !has_unread || moves {
            self.unread = None;
        } else {
            self.unread.get_or_insert(now);
        }
        let stands = |since: Instant| now - since >= SUSPECT;
        let is_suspect =
            |it: &&Said| it.activity == Activity::Works && stands(self.threads[&it.thread].since);
        let suspects: Vec<u32> = said.iter().filter(is_suspect).map(|it| it.thread).collect();
        let seen =
            if suspects.is_empty() && !self.unread.is_some_and(stands) { None } else { threads() };
        let Some(seen) = seen else {
            self.without_waker = None;
            return None;
        };
        if self.computes(&suspects, &seen) {
            self.patience.has_computed = true;
            return Some(Hint::Computes);
        }
        self.sleeps(now, said, &suspects, &seen).then_some(Hint::Sleeps)
    }

    /// Notes who stands still. Returns whether any thread has done something.
    fn note(&mut self, now: Instant, said: &[Said], is_late: bool) -> bool {
        if is_late {
            self.threads.clear();
        }
        let before = self.threads.len();
        self.threads.retain(|thread, _| said.iter().any(|it| it.thread == *thread));
        let mut moves = is_late || self.threads.len() != before;
        for it in said {
            let before = self.threads.get(&it.thread);
            if before.is_some_and(|still| still.number == it.number) {
                continue;
            }
            let same_unit = before.filter(|still| still.unit == it.unit);
            let unit_since = same_unit.map_or(now, |still| still.unit_since);
            let (number, unit) = (it.number, it.unit);
            let still = Still { number, since: now, unit, unit_since, ran: None, sleeps: None };
            self.threads.insert(it.thread, still);
            moves = true;
        }
        moves
    }

    fn computes(&mut self, suspects: &[u32], seen: &BTreeMap<u32, ProcessState>) -> bool {
        let limit = self.patience.computes_max();
        suspects.iter().any(|thread| {
            let (Some(still), Some(state)) = (self.threads.get_mut(thread), seen.get(thread))
            else {
                return false;
            };
            let begun = *still.ran.get_or_insert(state.ran);
            state.condition == Condition::Runs && state.ran.saturating_sub(begun) >= limit
        })
    }

    fn sleeps(
        &mut self,
        now: Instant,
        said: &[Said],
        suspects: &[u32],
        seen: &BTreeMap<u32, ProcessState>,
    ) -> bool {
        let is_asleep = |thread: &u32| {
            seen.get(thread).is_some_and(|state| state.condition == Condition::Sleeps)
        };
        for thread in suspects {
            if let Some(still) = self.threads.get_mut(thread) {
                let since = still.sleeps.unwrap_or(now);
                still.sleeps = is_asleep(thread).then_some(since);
            }
        }
        let asleep = suspects.iter().filter_map(|it| self.threads.get(it)?.sleeps).min();
        let waits = [asleep, self.unread].into_iter().flatten().min();
        let waits = waits.filter(|since| now - *since >= SLEEPS_MAX);
        let stands = waits.is_some_and(|since| !self.has_waker(since, said, seen));
        if !stands {
            self.without_waker = None;
            return false;
        }
        now - *self.without_waker.get_or_insert(now) >= STAYS
    }

    /// Whether a thread could wake what waits since then.
    fn has_waker(&self, since: Instant, said: &[Said], seen: &BTreeMap<u32, ProcessState>) -> bool {
        let is_unread = self.unread.is_some_and(|unread| unread <= since);
        seen.iter().any(|(thread, state)| {
            let sleeps = state.condition == Condition::Sleeps;
            let Some(said) = said.iter().find(|it| it.thread == *thread) else { return !sleeps };
            let still = self.threads.get(thread);
            let has_finished = still.is_some_and(|still| still.unit_since > since);
            match said.activity {
                Activity::Asks => !has_finished,
                Activity::Works => !has_finished && !sleeps,
                // It holds nothing, but it may be about to read.
                Activity::Idle => is_unread && !sleeps,
            }
        })
    }
}

#[cfg(test)]
mod tests;
