//! The age of the last look at the mount.
//!
//! An answer rests on the mount and on the path that leads to it, and other processes may change
//! both. So a look at them ([`super::admission`]) is valid for [`RENEW_CYCLES`], and only until a
//! call returns that may have waited for another process: that process may have changed the mount
//! and then woken this one. Such a call counts if it has taken [`LONG_CYCLES`]. A call that waits
//! takes longer, because two processes are switched. What another process has sent may also have
//! been there already: so a read of a pipe or a socket always counts, and a read of a file does
//! not. A call of this process that may change the path above the mount counts when it is over.
//!
//! The cycle counter needs no call and no page of the kernel. It runs at one to five cycles a
//! nanosecond, and the durations here are bounds, so its rate is not measured.

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// One millisecond or less.
const RENEW_CYCLES: u64 = 1_000_000;
/// Two to ten microseconds: more than most reads of cached data take, and less than it takes to
/// wait for another process that unmounts something.
pub(crate) const LONG_CYCLES: u64 = 10_000;

/// The last look, and what has made it invalid.
pub(crate) struct Clock {
    /// The number of calls that may have waited for another process. The entry counts here too.
    pub waits: AtomicU64,
    /// `waits` plus one, and the cycles at the begin of the last look.
    seen_waits: AtomicU64,
    seen_at: AtomicU64,
    /// When the fleet was last seen alive.
    alive_at: AtomicU64,
}

/// The beginning of a look.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    waits: u64,
    at: u64,
}

pub(crate) fn cycles() -> u64 {
    // SAFETY: every x86-64 has it. A process that forbids it to itself serves nothing and has no
    // call that waits.
    unsafe { _rdtsc() }
}

/// Runs `work`. Returns how many cycles it has taken as well.
pub(crate) fn timed<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let begun = cycles();
    let result = work();
    (result, cycles().wrapping_sub(begun))
}

/// The program waits for another process now.
pub(crate) fn note_wait() {
    Clock::here().waits.fetch_add(1, AcqRel);
}

pub(crate) fn now() -> Moment {
    Moment { waits: Clock::here().waits.load(Acquire), at: cycles() }
}

/// A look that began at this moment has found the mount as it was.
pub(crate) fn renew(moment: Moment) {
    Clock::here().seen_at.store(moment.at, Relaxed);
    Clock::here().seen_waits.store(moment.waits.wrapping_add(1), Release);
}

/// Whether the fleet lives. It is asked once in a while, also if calls have waited: until another
/// fleet serves the pool, which starts and replays logs first, no file changes.
pub(crate) fn is_fleet_alive(moment: Moment, ask: impl FnOnce() -> bool) -> bool {
    if moment.at.wrapping_sub(Clock::here().alive_at.load(Relaxed)) < RENEW_CYCLES {
        return true;
    }
    let is_alive = ask();
    if is_alive {
        Clock::here().alive_at.store(moment.at, Relaxed);
    }
    is_alive
}

/// A new client: its fleet has just answered, and the one before may have been another.
pub(crate) fn forget_fleet() {
    Clock::here().alive_at.store(0, Relaxed);
}

/// Whether the last look is still valid. A counter that goes backwards makes it invalid.
pub(crate) fn is_fresh() -> bool {
    Clock::here().seen_waits.load(Acquire) == Clock::here().waits.load(Acquire).wrapping_add(1)
        && cycles().wrapping_sub(Clock::here().seen_at.load(Relaxed)) < RENEW_CYCLES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_valid_until_a_wait_or_for_a_while() {
        assert!(!is_fresh());
        renew(now());
        let before = now();
        note_wait();
        assert!(!is_fresh());
        renew(before);
        assert!(!is_fresh(), "the look began before the wait");
        let long_ago = cycles().wrapping_sub(RENEW_CYCLES);
        renew(Moment { at: long_ago, ..now() });
        assert!(!is_fresh());
        renew(Moment { at: u64::MAX, ..now() });
        assert!(!is_fresh(), "a counter that runs backwards");
    }

    #[test]
    fn a_fleet_is_asked_once_in_a_while() {
        let at = |at| Moment { waits: 0, at };
        forget_fleet();
        assert!(!is_fleet_alive(at(RENEW_CYCLES), || false));
        assert!(is_fleet_alive(at(RENEW_CYCLES), || true));
        assert!(is_fleet_alive(at(2 * RENEW_CYCLES - 1), || false), "it is not asked");
        assert!(!is_fleet_alive(at(2 * RENEW_CYCLES), || false));
    }
}
