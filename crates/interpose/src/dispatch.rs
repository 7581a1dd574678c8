//! Syscall User Dispatch (Linux 5.11): each `syscall` outside the stub page raises SIGSYS.
//!
//! The handler makes no call for the program. It lets the interrupted thread go on at the entry, as
//! a patched site would, so that a call by dispatch has the thread's own stack and signal mask.
//! Dispatch belongs to a thread, ends with exec, and is not inherited.

use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{
    AUDIT_ARCH_X86_64, Context, PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF,
    PR_SYS_DISPATCH_ON, SA_NODEFER, SA_ONSTACK, SA_RESTORER, SA_SIGINFO, SET_SIZE, SIGSYS,
    SIGSYS_BIT, SYS_USER_DISPATCH, SigAction, SigInfo, nr, reg,
};
use crate::counts::Counts;
use crate::{patch, serve, signal, stub};

/// The stack on which the handler of SIGSYS runs.
#[derive(Clone, Copy)]
pub(crate) enum Stack {
    /// The program has no handler on its alternate stack, so it may use that memory otherwise.
    Own = 0,
    /// The alternate stack, where the thread has one. The other may have little room.
    Alternate = SA_ONSTACK as isize,
}

/// Makes our handler the handler of SIGSYS.
pub(crate) fn install(stack: Stack) -> isize {
    let action = SigAction {
        handler: on_sigsys as *const () as usize,
        flags: SA_SIGINFO | SA_NODEFER | SA_RESTORER | stack as usize,
        restorer: stub::restorer(),
        mask: !SIGSYS_BIT,
    };
    let at = &raw const action as usize;
    // SAFETY: `action` lives longer than the call, and the handler is one of SIGSYS.
    unsafe { stub::call(nr::RT_SIGACTION, [SIGSYS, at, 0, SET_SIZE]) }
}

/// Switches dispatch on for this thread.
pub(crate) fn arm() -> isize {
    let (start, length) = stub::text();
    let args = [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start, length, 0];
    // SAFETY: from here on calls raise SIGSYS, which the handler answers.
    unsafe { stub::call(nr::PRCTL, args) }
}

/// Switches dispatch off for this thread.
pub(crate) fn disarm() {
    let args = [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, 0];
    // SAFETY: from here on calls go to the kernel.
    unsafe { stub::call(nr::PRCTL, args) };
}

extern "C" fn on_sigsys(_: i32, info: *mut SigInfo, context: *mut Context) {
    // SAFETY: the kernel passes both, and they are ours until the handler returns.
    let (cause, interrupted) = unsafe { (&*info, &mut *context) };
    if cause.code != SYS_USER_DISPATCH {
        // SAFETY: the arguments are those of this handler.
        unsafe { signal::deliver(info, context) };
        return;
    }
    Counts::here().dispatched.fetch_add(1, Relaxed);
    let registers = &mut interrupted.registers;
    if cause.arch != AUDIT_ARCH_X86_64 {
        return call_32(registers);
    }
    let behind = registers[reg::RIP];
    if registers[reg::RAX] == nr::RT_SIGRETURN {
        registers[reg::RIP] = stub::restorer();
        return;
    }
    patch::on_dispatch(behind, registers[reg::RAX]);
    registers[reg::RCX] = behind;
    registers[reg::RIP] = stub::entry();
}

/// A call by `int $0x80`. It is made here and now, and the hook does not see it: its numbers are
/// those of another architecture.
#[cold]
fn call_32(registers: &mut [usize; 23]) {
    let args = [reg::RBX, reg::RCX, reg::RDX, reg::RSI, reg::RDI, reg::RBP];
    let args = args.map(|register| registers[register]);
    serve::on_call_32();
    // SAFETY: the program makes this call.
    registers[reg::RAX] = unsafe { stub::call_32(registers[reg::RAX], &args) } as usize;
}
