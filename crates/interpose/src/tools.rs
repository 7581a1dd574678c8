//! Developers' tools that run or watch a program, and what is left to them.
//!
//! * valgrind is recognised by its client request. The program is left alone, because dispatch
//!   would catch valgrind's own calls.
//! * rr is recognised by its variable. The program is left alone, because rr catches the calls
//!   itself.
//! * strace, gdb and ltrace call `ptrace`, or the child that they trace does. What that child
//!   executes is left alone.
//! * AddressSanitizer has its runtime in the loader's list, and gets the first place (`loader.rs`).
//!
//! A tracer that attaches to a program later sees our SIGSYS with each call by dispatch.

use crate::abi::{PTRACE_SEIZE, PTRACE_TRACEME};
use crate::scan;
use crate::state::{Life, has_threads};

/// rr sets it in all programs that it records or replays.
const RR: &[u8] = b"RUNNING_UNDER_RR=";

/// `VG_USERREQ__RUNNING_ON_VALGRIND` of `valgrind.h`.
const RUNNING_ON_VALGRIND: usize = 0x1001;

/// Why the program is left alone, if this variable shows that rr runs it.
pub(crate) fn recorder(variable: &[u8]) -> Option<&'static str> {
    variable.starts_with(RR).then_some("aside: rr runs it")
}

/// Why the program is left alone, if valgrind runs it.
pub(crate) fn emulator() -> Option<&'static str> {
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let depth: usize;
    // SAFETY: a processor rotates rdi by 128 bits and exchanges rbx with itself, which changes
    // the flags alone. Valgrind answers the request in rdx.
    unsafe {
        core::arch::asm!(
            "rolq $3, %rdi",
            "rolq $13, %rdi",
            "rolq $61, %rdi",
            "rolq $51, %rdi",
            "xchgq %rbx, %rbx",
            in("rax") &raw const request,
            inlateout("rdx") 0_usize => depth,
            options(att_syntax, nostack),
        );
    }
    (depth > 0).then_some("aside: valgrind runs it")
}

/// The program calls `ptrace`. A request of another kind is of a tracer that attaches to what runs
/// already, such as a leak checker.
pub(crate) fn on_ptrace(request: usize) {
    match request {
        PTRACE_TRACEME => {
            Life::here().traces.set(true);
            // The first stop that the tracer waits for is that of the next program.
            if !has_threads() {
                scan::patch_all();
            }
        }
        PTRACE_SEIZE => Life::here().traces.set(true),
        _ => {}
    }
}
