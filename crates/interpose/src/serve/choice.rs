//! Whether the kernel or the fleet answers a path that is not known here.
//!
//! The kernel may have its names in a cache that all processes share, and then answers in a
//! microsecond. If it has not, it asks the mount's front, and two processes are woken. A request to
//! the fleet lies between the two, depending on whether the cell's processor is free. A program
//! that looks at each of its files once, as many do, is served best by the cheaper of the two; one
//! that comes back to a path by the fleet, because then the path is known.
//!
//! So the first call by a path takes the way that has been cheaper lately, and the second asks the
//! fleet. Now and then the other one is tried. A request may bring what the next calls need, so the
//! mean of the fleet is that of all calls which may ask it, whether they do or not.
//!
//! Requests for paths that come back must pay. A program that goes round more files than there are
//! leases for always finds the copy gone that it needs, and on some machines a request wakes a cell
//! that sleeps. So an account is kept, in cycles: a request takes from it what it has cost more
//! than the kernel, and a call that is answered without a request puts in what the kernel would
//! have cost. While it is empty, such paths take the cheaper way as well.
//!
//! A file that the kernel opens is read and closed through the front as well, and one that is
//! served is not. So an open through the kernel counts twice.

use core::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::counts::Counts;

use super::{clock, facts};

/// A call counts for this many cycles at most. One that took longer was interrupted.
const COST_MAX: u64 = 1_000_000;
/// A mean moves by this part of the difference.
const PART: u64 = 8;
/// One path of `TRIED` times the ratio of the costs takes the dearer way. The ratio counts as
/// `RATIO_MAX` at most.
const TRIED: usize = 32;
const RATIO_MAX: u64 = 32;
/// The account holds this many cycles at first and at most: some milliseconds.
const BUDGET: i64 = 40_000_000;
/// This part of what the kernel costs is put in by a call that goes to the kernel because the
/// account is empty, so that the fleet is tried again.
const TRIAL: i64 = 64;
/// Bits for the paths that have been used, and the paths after which all are forgotten.
const BITS: usize = 1 << 16;
const PATHS_MAX: usize = BITS / 8;

/// The mean cost of recent calls in this way, in cycles. 0 if there was none.
struct Cost(AtomicU64);

/// The choice for calls of one kind. A call through the kernel counts `WEIGHT` times.
pub(crate) struct Choice<const WEIGHT: u64> {
    kernel: Cost,
    fleet: Cost,
    used: [AtomicU64; BITS / 64],
    paths: AtomicUsize,
    account: Account,
}

/// The choices of the process.
pub(crate) struct Choices {
    /// For calls that ask for attributes.
    pub attributes: Choice<1>,
    /// For calls that open files.
    pub opens: Choice<2>,
}

impl Cost {
    fn note(&self, cycles: u64) {
        let cycles = cycles.clamp(1, COST_MAX);
        let mean = match self.0.load(Relaxed) {
            0 => cycles,
            mean => mean - mean / PART + cycles / PART,
        };
        self.0.store(mean.max(1), Relaxed);
    }

    fn mean(&self) -> i64 {
        self.0.load(Relaxed).cast_signed()
    }
}

impl<const WEIGHT: u64> Choice<WEIGHT> {
    /// Runs a call through the kernel.
    pub(crate) fn through_kernel<R>(&self, call: impl FnOnce() -> R) -> R {
        let (result, cycles) = clock::timed(call);
        self.kernel.note(cycles.saturating_mul(WEIGHT));
        result
    }

    /// Runs a call that may ask the fleet; `asked` says of its result whether it has.
    pub(crate) fn through_fleet<R>(
        &self,
        call: impl FnOnce() -> R,
        asked: impl FnOnce(&R) -> bool,
    ) -> R {
        let (result, cycles) = clock::timed(call);
        self.fleet.note(cycles);
        // If it is not known what the kernel costs, nothing is known to be lost.
        if self.kernel.mean() > 0 && asked(&result) {
            self.account.take(cycles.min(COST_MAX).cast_signed() - self.kernel.mean());
        }
        result
    }

    /// Whether a call by this path is to go to the kernel. A second call by the path is not.
    #[cold]
    pub(crate) fn is_kernels(&self, path: &[u8]) -> bool {
        let bit = hash(path) as usize % BITS;
        let mask = 1 << (bit % 64);
        let comes_back = self.used[bit / 64].fetch_or(mask, Relaxed) & mask != 0;
        if comes_back && self.account.pays(Counts::here().served.load(Relaxed), self.kernel.mean())
        {
            return false;
        }
        let paths = self.paths.fetch_add(1, Relaxed) + 1;
        if !comes_back && paths.is_multiple_of(PATHS_MAX) {
            self.forget();
        }
        match [&self.kernel, &self.fleet].map(|way| way.0.load(Relaxed)) {
            [0, _] => true,
            [_, 0] => false,
            [kernel, fleet] => {
                let ratio = (kernel.max(fleet) / kernel.min(fleet)).min(RATIO_MAX);
                (kernel < fleet) != paths.is_multiple_of(TRIED * ratio as usize)
            }
        }
    }

    fn forget(&self) {
        self.used.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// In a child of `fork`, which knows no path.
    fn begin_again(&self) {
        self.forget();
        self.account.spent.store(0, Relaxed);
        self.account.answered.store(0, Relaxed);
    }
}

/// The account for requests that cost more than the kernel would (see the head of this file).
struct Account {
    /// The budget without the balance.
    spent: AtomicI64,
    /// The number of answered calls when the account was last brought up to date.
    answered: AtomicU64,
}

impl Account {
    /// A request has cost so much more than the kernel would have.
    fn take(&self, cycles: i64) {
        self.spent.fetch_add(cycles.max(0), Relaxed);
        // It will be counted as an answer, too.
        self.answered.fetch_add(1, Relaxed);
    }

    /// A path comes back. Returns whether it may be asked for.
    fn pays(&self, answered: u64, kernel: i64) -> bool {
        let gained = answered.saturating_sub(self.answered.swap(answered, Relaxed));
        let gained = i64::try_from(gained).unwrap_or(i64::MAX).saturating_mul(kernel);
        let spent = self.spent.load(Relaxed).saturating_sub(gained).max(0);
        let pays = spent < BUDGET;
        self.spent.store(if pays { spent } else { spent - kernel / TRIAL }, Relaxed);
        pays
    }
}

impl Choices {
    /// In a child of `fork`. Nothing was chosen before the first admission.
    pub(crate) fn begin_again(&self) {
        if facts::admissions() > 0 {
            self.attributes.begin_again();
            self.opens.begin_again();
        }
    }
}

/// Hashes by FNV-1a. Two paths that share a bit only take the other way.
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
    fn paths_that_come_back_are_asked_for_while_that_pays() {
        let account = Account { spent: AtomicI64::new(0), answered: AtomicU64::new(0) };
        assert!(account.pays(0, 1000));
        account.take(BUDGET + 1500);
        assert!(!account.pays(1, 1000), "the request itself is no gain");
        assert!(account.pays(4, 1000), "three were answered without one");
        account.take(BUDGET);
        let refused = (0..).take_while(|_| !account.pays(5, 1000)).count();
        assert!((1..BUDGET as usize).contains(&refused), "it is tried again");
        assert!(account.pays(1 << 40, 1000) && account.spent.load(Relaxed) == 0);
    }

    #[test]
    fn the_first_call_takes_the_cheaper_way_and_the_second_asks_the_fleet() {
        let path = |n: u32| n.to_le_bytes();
        let choice = &Choices::here().attributes;
        let is_kernels = |path: &[u8]| choice.is_kernels(path);
        let kernels = |from: u32| (from..from + 320).filter(|n| is_kernels(&path(*n))).count();
        assert!(is_kernels(&path(0)), "what it costs is not known");
        assert!(!is_kernels(&path(0)), "again");
        choice.kernel.note(1000);
        assert!(!is_kernels(&path(1)), "what the other costs is not known");
        choice.fleet.note(2000);
        assert!((300..320).contains(&kernels(1000)), "now and then the other");
        for _ in 0..100 {
            choice.fleet.note(500);
        }
        assert!((1..20).contains(&kernels(2000)));
        choice.forget();
        assert!((1..20).contains(&kernels(2000)), "they were forgotten");
        choice.fleet.note(u64::MAX);
        assert!(choice.fleet.0.load(Relaxed) <= COST_MAX);
    }
}
