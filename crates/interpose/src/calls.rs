//! What becomes of each call: the hook first, then the calls that need care.
//!
//! A call needs care if it would undo what this library rests on (signals, children, exec,
//! sandboxes), if it changes memory whose contents we remember, or if it ends the process.

use crate::abi::nr;
use crate::call::Verdict;
use crate::exec;
use crate::frame::{Frame, Next};
use crate::hook::hook;
use crate::serve::{clock, memory};
use crate::{image, object, report, sandbox, signal, thread, tools};

/// Numbers from here on need no care.
const NUMBERS: usize = 448;

static NEEDS_CARE: [bool; NUMBERS] = {
    let careful = [
        nr::MMAP,
        nr::MPROTECT,
        nr::MUNMAP,
        nr::MREMAP,
        nr::BRK,
        nr::MADVISE,
        nr::PROCESS_MADVISE,
        nr::SHMAT,
        nr::SHMDT,
        nr::REMAP_FILE_PAGES,
        nr::PKEY_MPROTECT,
        nr::TRUNCATE,
        nr::FTRUNCATE,
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
        nr::PTRACE,
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
    let verdict = hook(&frame.call);
    if let Verdict::Served(result) | Verdict::Made(result) = verdict {
        return frame.done(result);
    }
    let next = match NEEDS_CARE.get(frame.call.number) {
        Some(true) => care(frame),
        _ => Next::Pass,
    };
    match (verdict, next) {
        (Verdict::Wait, Next::Pass) => frame.resume = clock::cycles() as usize,
        // However little time it takes, it counts.
        (Verdict::Change, Next::Pass) => frame.resume = 0,
        _ => return next,
    }
    Next::Wait
}

#[cold]
#[inline(never)]
fn care(frame: &mut Frame) -> Next {
    match frame.call.number {
        nr::MUNMAP if frame.is_in(frame.call.args[0], frame.call.args[1]) => return frame.done(0),
        nr::MMAP | nr::MPROTECT | nr::MUNMAP | nr::MREMAP => {
            object::forget_changed(&frame.call);
            image::forget_changed(&frame.call);
            return change_memory(frame);
        }
        nr::BRK | nr::MADVISE | nr::PROCESS_MADVISE | nr::SHMAT | nr::SHMDT => {
            return change_memory(frame);
        }
        nr::PKEY_MPROTECT => {
            image::forget_changed(&frame.call);
            return change_memory(frame);
        }
        nr::REMAP_FILE_PAGES | nr::TRUNCATE | nr::FTRUNCATE => {
            return change_memory(frame);
        }
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
        nr::PTRACE => tools::on_ptrace(frame.call.args[0]),
        _ => {}
    }
    Next::Pass
}

/// A call that may take a page away, or the right to use it.
fn change_memory(frame: &mut Frame) -> Next {
    match memory::change(&frame.call) {
        Some(result) => frame.done(result),
        None => Next::Pass,
    }
}
