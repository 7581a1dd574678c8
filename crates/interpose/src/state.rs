//! The state of the process as a whole.

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicUsize,
    Ordering::{Acquire, Relaxed, SeqCst},
};

use crate::raw;

/// A flag that any thread may set.
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, on: bool) {
        self.0.store(on, Relaxed);
    }
}

/// Whether the program has a seccomp filter: itself, or a child of `vfork`, which has its memory.
pub(crate) struct Filtered(AtomicU8);

impl Filtered {
    const PROCESS: u8 = 1;
    const CHILD: u8 = 2;

    pub(crate) fn get(&self) -> bool {
        match self.0.load(Relaxed) {
            0 => false,
            Self::CHILD if Life::here().vforks.load(Acquire) == 0 => {
                self.0.store(0, Relaxed);
                false
            }
            _ => true,
        }
    }

    pub(crate) fn set(&self, on: bool) {
        let filtered = if is_child() { Self::CHILD } else { Self::PROCESS };
        self.0.store(if on { filtered } else { 0 }, Relaxed);
    }
}

/// The state of the process.
pub(crate) struct Life {
    /// Dispatch is used in this process.
    pub interposed: Flag,
    /// The program has, or has had, more than one thread.
    pub threads: Flag,
    /// The program has a seccomp filter. From then on we make no call that the program does not
    /// make, because the filter may kill the process for it.
    pub filtered: Filtered,
    /// The program traces others, or is a child that is about to be traced. The programs that it
    /// executes are left alone. A child of `vfork` sets it for its parent, which is the tracer.
    pub traces: Flag,
    /// The report is to count the calls of this process.
    pub counted: Flag,
    /// A thread was put into one of the sets of `threads`.
    pub notes_threads: Flag,
    /// Parents that wait for a child of `vfork`, which shares their memory.
    pub vforks: AtomicUsize,
    /// Children with a copy of the descriptors: those that threads are making, and from bit 32 on
    /// those that were begun. Until they are made, no descriptor is given out for a placeholder,
    /// because the child would have it as well. The entry counts down by 1.
    pub children: AtomicUsize,
    process: AtomicUsize,
}

const BEGUN: usize = 1 << 32;

/// A thread is about to make a child.
pub(crate) fn begin_child() {
    Life::here().children.fetch_add(BEGUN + 1, SeqCst);
}

/// The number of children that were begun so far. `None` while one is being made.
#[inline]
pub(crate) fn children() -> Option<usize> {
    let children = Life::here().children.load(SeqCst);
    children.is_multiple_of(BEGUN).then_some(children)
}

impl Life {
    /// Begins the life of a child of `fork`, which has one thread.
    pub(crate) fn begin_again(&self) {
        set_process(raw::process());
        self.threads.set(false);
        self.vforks.store(0, Relaxed);
        self.children.store(0, Relaxed);
    }
}

pub(crate) fn has_threads() -> bool {
    Life::here().threads.get()
}

pub(crate) fn is_filtered() -> bool {
    Life::here().filtered.get()
}

pub(crate) fn is_counted() -> bool {
    Life::here().counted.get()
}

/// The process to which this memory belongs. A child of `vfork` is another one.
pub(crate) fn process() -> usize {
    Life::here().process.load(Relaxed)
}

pub(crate) fn set_process(process: usize) {
    Life::here().process.store(process, Relaxed);
}

/// Whether this is a child of `vfork`, which has its parent's memory, but its own descriptors.
pub(crate) fn is_child() -> bool {
    Life::here().vforks.load(Acquire) != 0 && raw::process() != process()
}
