//! Shared memory as the protocols see it: 32- and 64-bit words with an order, bytes without one.
//!
//! Offsets are bytes from the start of the segment. They are always the caller's own (a peer's
//! index is checked before it becomes an offset), so one out of range or unaligned is a bug and
//! panics. A word is always accessed with the same width.

use std::sync::atomic::Ordering;
use std::time::Duration;

/// Why a wait on a word ended. None of them says that the word changed: look again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// Somebody woke us, or the word had changed already.
    Woken,
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Memory that may be read. Somebody else may be writing it at any time.
pub trait Load {
    /// Bytes of it.
    fn size(&self) -> usize;

    fn load32(&self, at: usize, order: Ordering) -> u32;

    fn load64(&self, at: usize, order: Ordering) -> u64;

    /// Copies bytes `at..` out, each byte read once, in no order. What is torn by a writer is
    /// simply the wrong bytes.
    fn copy_out(&self, at: usize, into: &mut [u8]);

    /// Fetches bytes that will be copied out soon, while something else is done. A hint: it does nothing
    /// that can be told but by a clock.
    fn prefetch(&self, _at: usize, _len: usize) {}

    /// Sleeps while the word holds `expected`, at most `timeout`.
    fn wait32(&self, at: usize, expected: u32, timeout: Option<Duration>) -> Waited;

    /// A full (sequentially consistent) fence.
    fn fence();

    /// Breathes in a loop that waits for somebody else.
    fn pause();
}

/// Memory of which we are the one writer.
pub trait Store: Load {
    fn store32(&self, at: usize, value: u32, order: Ordering);

    fn store64(&self, at: usize, value: u64, order: Ordering);

    /// Fetches the line at `at` to be stored to soon. A hint, as [`Load::prefetch`].
    fn prefetch_own(&self, _at: usize) {}

    /// Flips the bits of `mask`, atomically among the threads of the one writing process.
    fn xor64(&self, at: usize, mask: u64, order: Ordering);

    /// Adds, atomically among the threads of the one writing process, in no order.
    fn add64(&self, at: usize, by: u64);

    /// Copies bytes in, in no order. A later release store publishes them.
    fn copy_in(&self, at: usize, from: &[u8]);

    fn zero(&self, at: usize, len: usize);

    /// Wakes everybody who sleeps on the word.
    fn wake32(&self, at: usize);
}
