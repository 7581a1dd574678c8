//! Sandboxes: seccomp, and dispatch that the program wants for itself.
//!
//! A filter may forbid the calls that dispatch needs (`rt_sigreturn`, `prctl` in a child), and the
//! kernel kills the process for them. So the thread that installs one leaves dispatch first. Sites
//! that are patched are still seen, because they need no call of ours. The children are not
//! interposed further than that.
//!
//! Dispatch exists once in a thread. A program that asks for it gets EINVAL, as from a kernel that
//! does not have it.

use crate::abi::{
    EINVAL, PR_SET_SECCOMP, PR_SET_SYSCALL_USER_DISPATCH, SECCOMP_MODE_FILTER, SECCOMP_MODE_STRICT,
    SECCOMP_SET_MODE_FILTER, SECCOMP_SET_MODE_STRICT, nr,
};
use crate::frame::{Frame, Next};
use crate::state::{Life, is_filtered};
use crate::{dispatch, patch, report, stub};

/// `prctl` and `seccomp`.
pub(crate) fn enter(frame: &mut Frame) -> Next {
    let [first, second, third, ..] = frame.call.args;
    let is_strict = match (frame.call.number, first, second) {
        (nr::PRCTL, PR_SET_SYSCALL_USER_DISPATCH, _) => return frame.done(-EINVAL),
        (nr::PRCTL, PR_SET_SECCOMP, SECCOMP_MODE_STRICT)
        | (nr::SECCOMP, SECCOMP_SET_MODE_STRICT, _) => true,
        (nr::PRCTL, PR_SET_SECCOMP, SECCOMP_MODE_FILTER)
        | (nr::SECCOMP, SECCOMP_SET_MODE_FILTER, _) => false,
        _ => return Next::Pass,
    };
    if is_filtered() {
        return Next::Pass;
    }
    if is_strict || third != 0 {
        // Afterwards the filter may forbid it.
        report::write("filtered");
    }
    dispatch::disarm();
    Life::here().filtered.set(true);
    // Another thread may be patching, and the filter may be for all threads.
    patch::settle();
    // SAFETY: the program makes this call.
    let result = unsafe { stub::call(frame.call.number, frame.call.args) };
    if result != 0 {
        Life::here().filtered.set(false);
        dispatch::arm();
    }
    frame.done(result)
}
