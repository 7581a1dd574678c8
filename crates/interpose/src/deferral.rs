//! No handler of the program runs while its thread works under the lock (`serve::lock`).
//!
//! Blocking all signals takes two system calls, which cost more than a change that is posted. So a
//! process with one thread blocks them there only when it has to: before a system call of ours, and
//! when a signal comes. Every handler of the program is entered by [`warren_on_signal`]. Under the
//! lock it blocks all signals in what it has interrupted, and sends the signal again to its thread,
//! which gets it when the work is done:
//!
//! ```text
//!            begin          end
//!   OUTSIDE ──────▶ OPEN ──────────▶ OUTSIDE
//!                    │                  ▲
//!     a signal, or a call of ours       │ end: the mask is as before
//!                    ▼                  │
//!                 BLOCKED ──────────────┘
//! ```
//!
//! The default action of a signal runs no code of the program: it may end the process, as SIGKILL
//! may. A handler that the kernel forgets with the first signal (`SA_RESETHAND`) cannot be
//! deferred, nor can one of SIGSYS, whose action is ours. A program that has set one has its
//! signals blocked each time, as one with threads has.

use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
    compiler_fence,
};

use crate::abi::{
    Context, SA_RESETHAND, SIG_DFL, SIG_IGN, SIG_MAX, SIGSYS_BIT, SigAction, SigInfo, nr,
};
use crate::raw;
use crate::state::{Flag, has_threads, is_child};

const OUTSIDE: u32 = 0;
const OPEN: u32 = 1;
const BLOCKED: u32 = 2;

#[repr(C)]
pub(crate) struct Deferral {
    pub(crate) phase: AtomicU32,
    /// A handler was set that cannot be deferred.
    has_other: Flag,
    /// The mask before, in the phase BLOCKED.
    before: AtomicU64,
    /// The program's handlers, by signal.
    pub(crate) handlers: [AtomicUsize; SIG_MAX + 1],
}

// SAFETY: `entry.rs` defines it.
unsafe extern "C" {
    /// The handler of each signal for which the program has set one. It leaves the stack to the
    /// program's handler as the kernel has made it.
    fn warren_on_signal();
}

fn entry() -> usize {
    warren_on_signal as *const () as usize
}

/// The action that the kernel gets instead of the program's. The handler is remembered.
pub(crate) fn wrapped(signal: usize, new: SigAction) -> SigAction {
    if matches!(new.handler, SIG_DFL | SIG_IGN) {
        return new;
    }
    if new.flags & SA_RESETHAND != 0 {
        Deferral::here().has_other.set(true);
        return new;
    }
    // What the kernel has may be an earlier action with our entry. Either handler is right then.
    Deferral::here().handlers[signal].store(new.handler, SeqCst);
    SigAction { handler: entry(), ..new }
}

/// The program has set a handler that is not entered here.
pub(crate) fn note_other() {
    Deferral::here().has_other.set(true);
}

/// The handler of the program that was entered here until now.
pub(crate) fn handler(signal: usize) -> usize {
    Deferral::here().handlers[signal].load(Relaxed)
}

/// The action as the program has set it, with this handler.
pub(crate) fn unwrapped(seen: SigAction, handler: usize) -> SigAction {
    if seen.handler == entry() { SigAction { handler, ..seen } } else { seen }
}

impl Deferral {
    /// Begins work during which handlers are deferred. False if signals have to be blocked instead:
    /// nothing was done.
    pub(crate) fn begin(&self) -> bool {
        if has_threads()
            || self.has_other.get()
            || self.phase.load(Relaxed) != OUTSIDE
            || is_child()
        {
            return false;
        }
        self.phase.store(OPEN, Relaxed);
        compiler_fence(SeqCst);
        true
    }

    /// The work is done. Signals that were deferred arrive now.
    pub(crate) fn end(&self) {
        compiler_fence(SeqCst);
        // A signal in between is not deferred any more, or was before.
        if self.phase.swap(OUTSIDE, Relaxed) == BLOCKED {
            raw::set_mask(self.before.load(Relaxed));
        }
    }

    /// Blocks all signals, if that is to be done before a system call of ours.
    #[inline]
    pub(crate) fn block(&self) {
        if self.phase.load(Relaxed) == OPEN {
            self.block_now();
        }
    }

    #[cold]
    fn block_now(&self) {
        let before = raw::set_mask(u64::MAX);
        // A signal that came just before has blocked them.
        if self.phase.load(Relaxed) == OPEN {
            self.before.store(before, Relaxed);
            self.phase.store(BLOCKED, Relaxed);
        }
    }
}

/// A signal has come under the lock.
///
/// # Safety
/// The arguments are those of a handler, which was entered by the kernel.
pub(crate) unsafe extern "C" fn defer(signal: i32, info: *mut SigInfo, context: *mut Context) {
    // The way back from the handler may be dispatched.
    let all = !SIGSYS_BIT;
    raw::set_mask(all);
    let deferral = Deferral::here();
    // SAFETY: the kernel has put it on the stack, for handlers to change.
    let interrupted = unsafe { &mut (*context).mask };
    // Another signal may have interrupted this function before, and have found the mask of a
    // handler. The signal that came first is deferred last.
    deferral.before.store(*interrupted, Relaxed);
    deferral.phase.store(BLOCKED, Relaxed);
    *interrupted = all;
    let (process, thread) = (raw::process(), raw::thread());
    let signal = signal as usize;
    // SAFETY: the kernel reads what it has written.
    let sent =
        unsafe { raw::call(nr::RT_TGSIGQUEUEINFO, [process, thread, signal, info as usize]) };
    if sent != 0 {
        // No more can be queued.
        // SAFETY: the thread is to have the signal.
        unsafe { raw::call(nr::TGKILL, [process, thread, signal]) };
    }
}
