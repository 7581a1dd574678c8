//! Children: threads, forks, and children that borrow their parent's memory.
//!
//! Dispatch is not inherited, so a child switches it on before it returns to the program. The three
//! ways in which a child begins need three ways back to the program:
//!
//! | the child has | e.g. | the way back |
//! | --- | --- | --- |
//! | a copy of the memory | `fork` | as the parent, from the `Frame` |
//! | a stack of its own | `pthread_create`, `posix_spawn` | from a `Resume` on that stack |
//! | the parent's stack | `vfork` | both from a `Resume` in a table here |
//!
//! Signals are blocked until the child has dispatch, so that no handler of the program runs there
//! before.
//!
//! After `vfork` the child overwrites the stack below the program's rsp while the parent waits. So
//! the parent keeps nothing there. It holds the address of its `Resume` in rbx, which the kernel
//! preserves.

use core::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use linux_raw_sys::general::CLONE_CLEAR_SIGHAND;

use crate::abi::{
    CLONE_VFORK, CLONE_VM, E2BIG, SET_SIZE, SIG_BLOCK, SIGCHLD, SIGSYS_BIT, borrows_memory, nr,
};
use crate::dispatch::{self, Stack};
use crate::frame::{Frame, Next, PARENTS, Parents, Resume, SCRATCH, child};
use crate::serve::files::lending;
use crate::serve::watch;
use crate::state::{Life, is_filtered};
use crate::threads::Threads;
use crate::{exec, probe, process, raw, stub};

const RED_ZONE: usize = 128;
/// The first and the largest known size of `struct clone_args`, in words.
const CLONE_ARGS_MIN: usize = 8;
const WORD: usize = size_of::<u64>();
/// Words of `struct clone_args`.
const FLAGS: usize = 0;
const STACK: usize = 5;
const STACK_SIZE: usize = 6;

/// `clone`, `fork` and `vfork`.
pub(crate) fn create(frame: &mut Frame) -> Next {
    let (flags, stack) = match frame.call.number {
        nr::FORK => (0, 0),
        nr::VFORK => (CLONE_VM | CLONE_VFORK, 0),
        _ => (frame.call.args[0], frame.call.args[1]),
    };
    exec::free_left();
    watch::on_clone(flags);
    if stack == 0 {
        return on_same_stack(frame, flags, 0);
    }
    frame.call.args[1] = on_own_stack(frame, flags, 0, stack);
    Next::Thread
}

/// `clone3`, whose arguments are in memory.
pub(crate) fn create_by_clone3(frame: &mut Frame) -> Next {
    let [args, size, ..] = frame.call.args;
    if size < CLONE_ARGS_MIN * WORD || !size.is_multiple_of(WORD) {
        return Next::Pass;
    }
    if size > SCRATCH * WORD {
        return frame.done(-E2BIG);
    }
    if !probe::readable(args, size) {
        return Next::Pass;
    }
    for word in 0..size / WORD {
        // SAFETY: readable just now.
        frame.scratch[word] = unsafe { (args as *const u64).add(word).read_unaligned() };
    }
    let flags = frame.scratch[FLAGS];
    exec::free_left();
    watch::on_clone(flags as usize);
    let notes = if flags & CLONE_CLEAR_SIGHAND != 0 { child::NO_HANDLERS } else { 0 };
    let [stack, stack_size] = [STACK, STACK_SIZE].map(|word| frame.scratch[word] as usize);
    if stack == 0 {
        return on_same_stack(frame, flags as usize, notes);
    }
    let Some(top) = stack.checked_add(stack_size) else { return Next::Pass };
    let start = top.wrapping_sub(RED_ZONE + size_of::<Resume>()) & !15;
    if start <= stack || start > top {
        return Next::Pass;
    }
    let start = on_own_stack(frame, flags as usize, notes, top);
    frame.scratch[STACK_SIZE] = (start - stack) as u64;
    frame.call.args[0] = &raw const frame.scratch as usize;
    Next::Thread
}

/// Writes a `Resume` below the top of the child's stack, and returns where the child's stack
/// begins.
fn on_own_stack(frame: &mut Frame, flags: usize, notes: usize, top: usize) -> usize {
    if flags & CLONE_VM != 0 && flags & CLONE_VFORK == 0 {
        process::before_thread();
    }
    let forked = if flags & CLONE_VM == 0 { child::FORKED } else { 0 };
    frame.resume = usize::from(borrows_memory(flags));
    Life::here().vforks.fetch_add(frame.resume, AcqRel);
    let mut resume = resume(frame, flags, notes | forked);
    resume.stack_pointer = top;
    let start = top.wrapping_sub(RED_ZONE + size_of::<Resume>()) & !15;
    // SAFETY: the program gives this memory to the child, which has not started.
    unsafe { (start as *mut Resume).write(resume) };
    start
}

fn on_same_stack(frame: &mut Frame, flags: usize, notes: usize) -> Next {
    if flags & CLONE_VM == 0 {
        frame.resume = resume(frame, flags, notes).notes;
        return Next::Fork;
    }
    let table = Parents::here().table();
    for at in 0..PARENTS {
        // SAFETY: it is an element of the table, and `busy` may be used by all threads.
        let busy = unsafe { &(*table.add(at)).busy };
        if busy.load(Relaxed) == 0 && busy.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
            Life::here().vforks.fetch_add(1, AcqRel);
            let mut resume = resume(frame, flags, notes);
            *resume.busy.get_mut() = 1;
            // SAFETY: the element is claimed.
            unsafe { table.add(at).write(resume) };
            // SAFETY: as above.
            frame.resume = unsafe { table.add(at) } as usize;
            return Next::Vfork;
        }
    }
    copy_memory(frame, flags & !CLONE_VM, notes)
}

/// The child gets a copy of the memory, although it has asked for the memory itself.
fn copy_memory(frame: &mut Frame, flags: usize, notes: usize) -> Next {
    match frame.call.number {
        nr::VFORK => {
            frame.call.number = nr::CLONE;
            frame.call.args = [CLONE_VFORK | SIGCHLD, 0, 0, 0, 0, 0];
        }
        nr::CLONE => frame.call.args[0] &= !CLONE_VM,
        _ => {
            frame.scratch[FLAGS] &= !(CLONE_VM as u64);
            frame.call.args[0] = &raw const frame.scratch as usize;
        }
    }
    frame.resume = resume(frame, flags, notes).notes;
    Next::Fork
}

/// Blocks all signals until the call has returned in the parent, and the child has switched
/// dispatch on. No handler runs in a child that is not caught. After that, the kernel has all files
/// of which the child must not find placeholders.
fn hold_signals(frame: &mut Frame, flags: usize) {
    let all = !SIGSYS_BIT;
    let args = [SIG_BLOCK, &raw const all as usize, &raw mut frame.mask as usize, SET_SIZE];
    // SAFETY: both masks live longer than the call.
    let held = !is_filtered() && unsafe { stub::call(nr::RT_SIGPROCMASK, args) } == 0;
    let is_noted = held && lending::begin_child(flags);
    frame.held = usize::from(held) | usize::from(is_noted) << 1;
}

fn resume(frame: &mut Frame, flags: usize, notes: usize) -> Resume {
    hold_signals(frame, flags);
    let blocked = !is_filtered() && Threads::here().blocked.has(raw::thread());
    Resume {
        kept: frame.kept,
        return_address: frame.call.return_address,
        stack_pointer: frame.stack_pointer,
        flags: frame.flags,
        rbx: 0,
        busy: AtomicUsize::new(0),
        notes: notes | if blocked { child::SIGSYS_BLOCKED } else { 0 },
        mask: frame.mask,
        held: frame.held,
    }
}

/// The entry calls this in a child that begins at a `Resume`.
pub(crate) extern "C" fn on_child(resume: &Resume) {
    begin(resume.notes);
}

/// The entry calls this in a child with a copy of the stack.
pub(crate) extern "C" fn on_forked(frame: &Frame) {
    begin(frame.resume | child::FORKED);
}

fn begin(notes: usize) {
    if is_filtered() || !Life::here().interposed.get() {
        return;
    }
    if notes & child::FORKED != 0 {
        process::fork();
    }
    if notes & child::NO_HANDLERS != 0 {
        dispatch::install(Stack::Own);
    }
    let thread = raw::thread();
    Threads::here().blocked.replace(thread, notes & child::SIGSYS_BLOCKED != 0);
    Threads::here().pending.replace(thread, false);
    dispatch::arm();
}
