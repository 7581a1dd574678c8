//! Whether it pays to serve the program's files. A file that the kernel must have in the end was
//! opened twice.

use core::sync::atomic::{
    AtomicBool, AtomicI32,
    Ordering::{Relaxed, SeqCst},
};

/// What a handover costs, in opens that were served to the end.
const HANDOVER: i32 = 32;
const BEST: i32 = 4 * HANDOVER;
const WORST: i32 = -2 * HANDOVER;

static SCORE: AtomicI32 = AtomicI32::new(BEST);
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Whether the next file is to be served. An open that is left to the kernel counts a little, so
/// that it is tried again.
pub(super) fn pays() -> bool {
    let score = SCORE.load(Relaxed);
    if STOPPED.load(SeqCst) {
        return false;
    }
    if score < 0 {
        SCORE.store(score + 1, Relaxed);
    }
    score >= 0
}

/// A file was served until it was closed.
pub(super) fn closed() {
    SCORE.store((SCORE.load(Relaxed) + 1).min(BEST), Relaxed);
}

/// The kernel had to have a file.
pub(super) fn handed_over() {
    SCORE.store((SCORE.load(Relaxed) - HANDOVER).max(WORST), Relaxed);
}

/// No file is served from now on. Returns whether that was so.
pub(super) fn stop() -> bool {
    STOPPED.swap(true, SeqCst)
}

pub(super) fn is_stopped() -> bool {
    STOPPED.load(SeqCst)
}

/// In a child of `fork`, which has no record locks.
pub(super) fn forget() {
    STOPPED.store(false, Relaxed);
    SCORE.store(BEST, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_the_kernel_must_have_are_left_to_it_and_tried_again() {
        forget();
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
        assert!(pays() && SCORE.load(Relaxed) == BEST);
    }
}
