//! The entry and the Rust code behind it share these types: a call under way, and where a child
//! goes on. `entry.rs` reads the layouts by offset.

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicUsize;

use crate::call::SystemCall;

/// Words for copies of what a call's arguments point to.
pub(crate) const SCRATCH: usize = 16;

/// A call under way. It lies on the program's stack, below the red zone.
#[repr(C)]
pub(crate) struct Frame {
    pub call: SystemCall,
    /// The registers of the arguments, as the program has them back afterwards.
    pub kept: [usize; 6],
    pub stack_pointer: usize,
    pub flags: usize,
    pub vectors: [[u64; 2]; 16],
    pub result: isize,
    /// A [`Resume`], or its notes, for calls that return twice. With [`Next::Thread`]: 1 if the
    /// parent is counted in `VFORKS`. With [`Next::Wait`]: when the call began, in cycles.
    pub resume: usize,
    /// The signals that are blocked, and whether they are to be restored after the call: 1, or 3 if
    /// the parent is counted in `CHILDREN`.
    pub mask: u64,
    pub held: usize,
    /// Room for a mask or a structure that the kernel is to read in place of the program's: the
    /// argument of the call is then the address of this copy.
    pub scratch: [u64; SCRATCH],
}

/// The place where a child goes on that has no copy of its parent's stack.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Resume {
    pub kept: [usize; 6],
    pub return_address: usize,
    pub stack_pointer: usize,
    pub flags: usize,
    pub rbx: usize,
    /// Not 0 while a parent uses it (`thread.rs`).
    pub busy: AtomicUsize,
    /// Notes for the child ([`child`]).
    pub notes: usize,
    /// As in [`Frame`].
    pub mask: u64,
    pub held: usize,
}

/// Parents that wait for a child of `vfork`, at most. Beyond, `vfork` copies the memory.
pub(crate) const PARENTS: usize = 64;

/// The places where parents go on that wait for a child of `vfork`.
pub(crate) struct Parents(UnsafeCell<[Resume; PARENTS]>);

// SAFETY: a parent claims an element by its `busy`, and uses no other.
unsafe impl Sync for Parents {}

impl Parents {
    pub(crate) fn table(&self) -> *mut Resume {
        self.0.get().cast()
    }
}

/// The next step of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Next {
    /// Make the call.
    Pass = 0,
    /// Return `result`.
    Done = 1,
    /// Make the call. It returns twice, with a copy of the stack for the child.
    Fork = 2,
    /// Make the call. The child begins on a stack of its own, at a `Resume` there.
    Thread = 3,
    /// Make the call. The child runs on the same stack, while the parent waits.
    Vfork = 4,
    /// Leave the signal handler.
    SignalReturn = 5,
    /// Make the call, and note whether it has taken long.
    Wait = 6,
}

/// Bits of [`Resume::notes`].
pub(crate) mod child {
    /// The parent believes that SIGSYS is blocked.
    pub(crate) const SIGSYS_BLOCKED: usize = 1;
    /// The child has memory of its own.
    pub(crate) const FORKED: usize = 2;
    /// The child has lost its signal handlers.
    pub(crate) const NO_HANDLERS: usize = 4;
}

impl Frame {
    pub(crate) fn done(&mut self, result: isize) -> Next {
        self.result = result;
        Next::Done
    }

    /// Whether the call's own stack lies in this range. A thread of musl unmaps its stack before it
    /// exits, and its last call needs a stack here. So this stack stays.
    pub(crate) fn is_in(&self, start: usize, length: usize) -> bool {
        (&raw const *self as usize).wrapping_sub(start) < length
    }
}
