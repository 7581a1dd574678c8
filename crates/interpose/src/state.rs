//! What is true of the whole process.

use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, SeqCst},
};

use crate::stub;

/// A flag that any thread may set.
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

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
            Self::CHILD if VFORKS.load(Acquire) == 0 => {
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

/// Dispatch is used in this process.
pub(crate) static INTERPOSED: Flag = Flag::new();

/// The program has, or has had, more than one thread.
pub(crate) static THREADS: Flag = Flag::new();

/// The program has a seccomp filter. From then on we make no call that the program does not make,
/// because the filter may kill the process for it.
pub(crate) static FILTERED: Filtered = Filtered(AtomicU8::new(0));

/// The program traces others, or is a child that is about to be traced. The programs that it
/// executes are left alone. A child of `vfork` sets it for its parent, which is the tracer.
pub(crate) static TRACES: Flag = Flag::new();

/// The report is to count the calls of this process.
pub(crate) static COUNTED: Flag = Flag::new();

/// Parents that wait for a child of `vfork`, which shares their memory.
pub(crate) static VFORKS: AtomicUsize = AtomicUsize::new(0);

/// Children with a copy of the descriptors: those that threads are making, and from bit 32 on those
/// that were begun. Until they are made, no descriptor is given out for a placeholder, because the
/// child would have it as well. The entry counts down by 1.
pub(crate) static CHILDREN: AtomicUsize = AtomicUsize::new(0);
const BEGUN: usize = 1 << 32;

/// A thread is about to make a child.
pub(crate) fn begin_child() {
    CHILDREN.fetch_add(BEGUN + 1, SeqCst);
}

/// How many children were begun so far. None while one is being made.
#[inline]
pub(crate) fn children() -> Option<usize> {
    let children = CHILDREN.load(SeqCst);
    children.is_multiple_of(BEGUN).then_some(children)
}

/// How many calls the process has answered itself.
pub(crate) static SERVED: AtomicU64 = AtomicU64::new(0);

static PROCESS: AtomicUsize = AtomicUsize::new(0);

/// The process to which this memory belongs. A child of `vfork` is another one.
pub(crate) fn process() -> usize {
    PROCESS.load(Relaxed)
}

pub(crate) fn set_process(process: usize) {
    PROCESS.store(process, Relaxed);
}

/// Whether this is a child of `vfork`, which has its parent's memory, but its own descriptors.
pub(crate) fn is_child() -> bool {
    VFORKS.load(Acquire) != 0 && stub::process() != process()
}
