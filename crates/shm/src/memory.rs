//! The interface of shared memory for the protocols: 32- and 64-bit words with an ordering, bytes
//! without one.
//!
//! Offsets are bytes from the start of the segment. They always come from this process (a peer's
//! index is checked before it becomes an offset), so one that is out of range or unaligned is a bug
//! and panics. A word is always accessed with the same width.

use core::sync::atomic::Ordering;
use core::time::Duration;

/// Why a wait on a word ended. None of them means that the word has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// A wake-up, or the word had changed already.
    Woken,
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Memory that this process may read. Another process may write it at any time.
pub trait Load {
    /// The number of bytes.
    fn size(&self) -> usize;

    fn load32(&self, at: usize, order: Ordering) -> u32;

    fn load64(&self, at: usize, order: Ordering) -> u64;

    /// Copies bytes `at..` out, each byte read once, in no order. Bytes torn by a writer are simply
    /// wrong.
    fn copy_out(&self, at: usize, into: &mut [u8]);

    /// Prefetches bytes that will be copied out soon. A hint without any effect but on time.
    fn prefetch(&self, _at: usize, _len: usize) {}

    /// Sleeps while the word holds `expected`, at most `timeout`.
    fn wait32(&self, at: usize, expected: u32, timeout: Option<Duration>) -> Waited;

    /// A full (sequentially consistent) fence.
    fn fence();

    /// A pause in a loop that waits for another process.
    fn pause();
}

/// Memory of which this process is the only writer.
pub trait Store: Load {
    fn store32(&self, at: usize, value: u32, order: Ordering);

    fn store64(&self, at: usize, value: u64, order: Ordering);

    /// Prefetches the line at `at` for a store. A hint, like [`Load::prefetch`].
    fn prefetch_own(&self, _at: usize) {}

    /// Flips the bits of `mask`, atomically among the threads of the one writing process.
    fn xor64(&self, at: usize, mask: u64, order: Ordering);

    /// Adds, atomically among the threads of the one writing process, with relaxed order.
    fn add64(&self, at: usize, by: u64);

    /// Copies bytes in, in no order. A later release store publishes them.
    fn copy_in(&self, at: usize, from: &[u8]);

    fn zero(&self, at: usize, len: usize);

    /// Zeroes whole pages, and gives their memory back where that is possible. Each word changes at
    /// once; all processes see it before this returns.
    fn discard(&self, at: usize, len: usize) {
        for at in (at..at + len).step_by(8) {
            if self.load64(at, Ordering::Relaxed) != 0 {
                self.store64(at, 0, Ordering::Release);
            }
        }
    }

    /// Wakes all threads that sleep on the word.
    fn wake32(&self, at: usize);
}
