//! What becomes of each call: the hook first, then the calls that need care.
//!
//! A call needs care if it would undo what this library rests on (signals, children, exec,
//! sandboxes), if it changes memory whose contents we remember, or if it ends the process.

use crate::abi::nr;
use crate::exec;
use crate::frame::{Frame, Next};
use crate::hook::{Verdict, hook};
use crate::{object, report, sandbox, signal, thread};

/// Numbers from here on need no care.
const NUMBERS: usize = 448;

static NEEDS_CARE: [bool; NUMBERS] = {
    let careful = [
        nr::MMAP,
        nr::MPROTECT,
        nr::MUNMAP,
        nr::MREMAP,
        nr::RT_SIGACTION,
        nr::RT_SIGPROCMASK,
        nr::RT_SIGRETURN,
        nr::RT_SIGSUSPEND,
        nr::PPOLL,
        nr::PSELECT6,
        nr::EPOLL_PWAIT,
        nr::EPOLL_PWAIT2,
        nr::IO_PGETEVENTS,
        nr::CLONE,
        nr::CLONE3,
        nr::FORK,
        nr::VFORK,
        nr::EXECVE,
        nr::EXECVEAT,
        nr::EXIT,
        nr::EXIT_GROUP,
        nr::PRCTL,
        nr::SECCOMP,
    ];
    let mut table = [false; NUMBERS];
    let mut at = 0;
    while at < careful.len() {
        table[careful[at]] = true;
        at += 1;
    }
    table
};

/// Called by the entry for every call of the program.
pub(crate) extern "C" fn on_call(frame: &mut Frame) -> Next {
    if let Verdict::Done(result) = hook(&mut frame.call) {
        return frame.done(result);
    }
    match NEEDS_CARE.get(frame.call.number) {
        Some(true) => care(frame),
        _ => Next::Pass,
    }
}

#[cold]
fn care(frame: &mut Frame) -> Next {
    match frame.call.number {
        nr::MUNMAP if frame.is_in(frame.call.args[0], frame.call.args[1]) => return frame.done(0),
        nr::MMAP | nr::MPROTECT | nr::MUNMAP | nr::MREMAP => object::forget_changed(&frame.call),
        nr::RT_SIGACTION => return signal::action(frame),
        nr::RT_SIGPROCMASK => return signal::mask(frame),
        nr::RT_SIGRETURN => return Next::SignalReturn,
        nr::RT_SIGSUSPEND => signal::call_with_mask(frame, 0),
        nr::PPOLL => signal::call_with_mask(frame, 3),
        nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 => signal::call_with_mask(frame, 4),
        nr::PSELECT6 | nr::IO_PGETEVENTS => signal::call_with_mask_pair(frame, 5),
        nr::CLONE | nr::FORK | nr::VFORK => return thread::create(frame),
        nr::CLONE3 => return thread::create_by_clone3(frame),
        nr::EXECVE => return exec::execute(frame, 2),
        nr::EXECVEAT => return exec::execute(frame, 3),
        nr::EXIT | nr::EXIT_GROUP => report::at_exit(frame.call.number),
        nr::PRCTL | nr::SECCOMP => return sandbox::enter(frame),
        _ => {}
    }
    Next::Pass
}
