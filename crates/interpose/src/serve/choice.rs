//! Whether the kernel or the fleet answers a path that is not known here.
//!
//! The kernel may have its names in a cache that all processes share, and then answers in a
//! microsecond. If it has not, it asks the mount's front, and two processes are woken. A request to
//! the fleet lies between the two, depending on whether the cell's processor is free. A program
//! that looks at each of its files once, as many do, is served best by the cheaper of the two; one
//! that comes back to a path by the fleet, because then the path is known.
//!
//! So the first call by a path takes the way that has been cheaper lately, and the second asks the
//! fleet. Now and then the other one is tried.
//!
//! Copies are few. A program that goes round more files than there are leases for always finds the
//! copy gone that it needs. So it is counted how many calls were answered without a request while
//! the fleet was asked [`WINDOW`] times for paths that came back. If there were too few to pay for
//! that, such paths take the cheaper way as well, until it is tried again.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::state::SERVED;

use super::clock;

/// What a call counts for at most, in cycles. One that took longer was interrupted.
const COST_MAX: u64 = 1_000_000;
/// A mean moves by this part of the difference.
const PART: u64 = 8;
/// Of so many paths one takes the dearer way.
const TRIED: usize = 32;
/// Requests for paths that come back, of a window: about as many as there are copies.
const WINDOW: usize = 4096;
/// What pays for a request: so many answers without one.
const GAIN_MIN: u64 = 2;
const PAUSE: usize = 1 << 17;
/// Bits for the paths that have been used, and the paths after which all are forgotten.
const BITS: usize = 1 << 16;
const PATHS_MAX: usize = BITS / 8;

/// The mean cost of recent calls in this way, in cycles. 0 if there was none.
struct Cost(AtomicU64);

static KERNEL: Cost = Cost(AtomicU64::new(0));
static FLEET: Cost = Cost(AtomicU64::new(0));
static USED: [AtomicU64; BITS / 64] = [const { AtomicU64::new(0) }; BITS / 64];
static PATHS: AtomicUsize = AtomicUsize::new(0);

impl Cost {
    fn note(&self, cycles: u64) {
        let cycles = cycles.clamp(1, COST_MAX);
        let mean = match self.0.load(Relaxed) {
            0 => cycles,
            mean => mean - mean / PART + cycles / PART,
        };
        self.0.store(mean.max(1), Relaxed);
    }
}

/// Runs a call through the kernel.
pub(crate) fn through_kernel<R>(call: impl FnOnce() -> R) -> R {
    timed(&KERNEL, call, |_| true)
}

/// Runs a call that may ask the fleet; `asked` says of its result whether it has.
pub(crate) fn through_fleet<R>(call: impl FnOnce() -> R, asked: impl FnOnce(&R) -> bool) -> R {
    timed(&FLEET, call, asked)
}

fn timed<R>(cost: &Cost, call: impl FnOnce() -> R, counts: impl FnOnce(&R) -> bool) -> R {
    let begun = clock::cycles();
    let result = call();
    let cycles = clock::cycles().wrapping_sub(begun);
    if counts(&result) {
        cost.note(cycles);
    }
    result
}

/// Whether a call by this path is to go to the kernel. A second call by the path is not.
#[cold]
pub(crate) fn is_kernels(path: &[u8]) -> bool {
    let bit = hash(path) as usize % BITS;
    let mask = 1 << (bit % 64);
    let comes_back = USED[bit / 64].fetch_or(mask, Relaxed) & mask != 0;
    if comes_back && GAIN.pays(SERVED.load(Relaxed)) {
        return false;
    }
    let paths = PATHS.fetch_add(1, Relaxed) + 1;
    if !comes_back && paths.is_multiple_of(PATHS_MAX) {
        forget();
    }
    match [&KERNEL, &FLEET].map(|way| way.0.load(Relaxed)) {
        [0, _] => true,
        [_, 0] => false,
        [kernel, fleet] => (kernel < fleet) != paths.is_multiple_of(TRIED),
    }
}

fn forget() {
    for word in &USED {
        word.store(0, Relaxed);
    }
}

/// Whether copies pay: see the head of this file.
struct Gain {
    /// Requests for paths that came back, and what had been answered when their window began.
    asked: AtomicUsize,
    answered: AtomicU64,
    /// So many paths that come back take the cheaper way before the fleet is asked again.
    pause: AtomicUsize,
}

static GAIN: Gain =
    Gain { asked: AtomicUsize::new(0), answered: AtomicU64::new(0), pause: AtomicUsize::new(0) };

impl Gain {
    /// A path comes back. Returns whether it is to be asked for.
    fn pays(&self, answered: u64) -> bool {
        let pause = self.pause.load(Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Relaxed);
            return false;
        }
        let asked = self.asked.fetch_add(1, Relaxed) + 1;
        if asked.is_multiple_of(WINDOW) {
            let before = self.answered.swap(answered, Relaxed);
            // The requests themselves were answers, too.
            if answered.saturating_sub(before) < (1 + GAIN_MIN) * WINDOW as u64 {
                self.pause.store(PAUSE, Relaxed);
            }
        }
        true
    }
}

/// In a child of `fork`, which knows no path.
pub(crate) fn after_fork() {
    forget();
}

/// FNV-1a. Two paths that share a bit only take the other way.
fn hash(path: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let mixed = path
        .iter()
        .fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_come_back_pay_only_if_others_are_known() {
        let gain = Gain {
            asked: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            pause: AtomicUsize::new(0),
        };
        let window = |answers: u64, begin: u64| {
            (1..=WINDOW as u64).filter(|n| gain.pays(begin + n * answers)).count()
        };
        assert_eq!(window(3, 0), WINDOW);
        assert_eq!(window(3, 3 * WINDOW as u64), WINDOW, "two known ones for each request");
        assert_eq!(window(1, 6 * WINDOW as u64), WINDOW);
        let paused = (0..PAUSE + 1).take_while(|_| !gain.pays(0)).count();
        assert_eq!(paused, PAUSE, "none was known");
    }

    #[test]
    fn the_first_call_takes_the_cheaper_way_and_the_second_asks_the_fleet() {
        let path = |n: u32| n.to_le_bytes();
        let kernels = |from: u32| (from..from + 320).filter(|n| is_kernels(&path(*n))).count();
        assert!(is_kernels(&path(0)), "what it costs is not known");
        assert!(!is_kernels(&path(0)), "again");
        KERNEL.note(1000);
        assert!(!is_kernels(&path(1)), "what the other costs is not known");
        FLEET.note(2000);
        assert!((300..320).contains(&kernels(1000)), "now and then the other");
        for _ in 0..100 {
            FLEET.note(500);
        }
        assert!((1..20).contains(&kernels(2000)));
        forget();
        assert!((1..20).contains(&kernels(2000)), "they were forgotten");
        FLEET.note(u64::MAX);
        assert!(FLEET.0.load(Relaxed) <= COST_MAX);
    }
}
