//! Whether it pays to serve the program's files. A file that the kernel must have in the end was
//! opened twice.

use core::sync::atomic::{
    AtomicBool, AtomicI32,
    Ordering::{Relaxed, SeqCst},
};

/// The cost of a handover, in opens that were served to the end.
const HANDOVER: i32 = 32;
/// The loss above which files are left to the kernel, and the largest that is counted.
const SPARE: i32 = 4 * HANDOVER;
const LOST_MAX: i32 = SPARE + 2 * HANDOVER;

/// The cost of serving files minus its gain.
pub(crate) struct Score {
    /// In opens that were served to the end.
    lost: AtomicI32,
    is_stopped: AtomicBool,
}

/// Whether the next file is to be served. An open that is left to the kernel counts a little, so
/// that it is tried again.
pub(super) fn pays() -> bool {
    let lost = Score::here().lost.load(Relaxed);
    if Score::here().is_stopped.load(SeqCst) {
        return false;
    }
    if lost > SPARE {
        Score::here().lost.store(lost - 1, Relaxed);
    }
    lost <= SPARE
}

/// A file was served until it was closed.
pub(super) fn closed() {
    Score::here().lost.store((Score::here().lost.load(Relaxed) - 1).max(0), Relaxed);
}

/// The kernel had to have a file.
pub(super) fn handed_over() {
    Score::here().lost.store((Score::here().lost.load(Relaxed) + HANDOVER).min(LOST_MAX), Relaxed);
}

/// No file is opened or adopted here from now on. Files that are open stay. Returns whether that
/// was so before.
pub(super) fn stop() -> bool {
    Score::here().is_stopped.swap(true, SeqCst)
}

pub(super) fn is_stopped() -> bool {
    Score::here().is_stopped.load(SeqCst)
}

impl Score {
    /// In a child of `fork`, which has no record locks.
    pub(crate) fn forget(&self) {
        self.is_stopped.store(false, Relaxed);
        self.lost.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_the_kernel_must_have_are_left_to_it_and_tried_again() {
        Score::here().forget();
        let served = (0..1000).filter(|_| {
            let pays = pays();
            if pays {
                handed_over();
            }
            pays
        });
        assert!((10..50).contains(&served.count()));
        for _ in 0..1000 {
            if pays() {
                closed();
            }
        }
        assert!(pays() && Score::here().lost.load(Relaxed) == 0);
    }
}
