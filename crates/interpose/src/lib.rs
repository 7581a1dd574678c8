//! The layer that catches every system call of an unmodified, dynamically linked program and hands
//! it to one function, [`hook::hook`].
//!
//! The library is loaded with `LD_AUDIT` or `LD_PRELOAD`. It is linked without any library, and
//! nothing here uses thread-local storage, or allocates outside of the client's lock. Decision 33
//! has the reasons. A call takes one of two ways:
//!
//! ```text
//!  program:  mov $nr,%eax ── patched: jmp ──▶ trampoline ──┐
//!            syscall ── dispatch: SIGSYS ──▶ handler ──────┤  rcx = address behind the call
//!                                                          ▼
//!                         stub page:  entry ──▶ calls::on_call ──▶ hook
//!                                       │            └──▶ care: signals, threads, exec, ...
//!                                       └── syscall, or the hook's result ──▶ program
//! ```
//!
//! Order of events: `start` finds out with which environment the program runs, installs the SIGSYS
//! handler and switches dispatch on. The first calls of each call site arrive by dispatch, and then
//! the site is patched. Before a program creates its first thread, all sites of its C library and
//! of its loader are patched.
//!
//! Invariants: the kernel never blocks SIGSYS in a thread that has dispatch; each `syscall` of ours
//! lies in the stub page; no `syscall` instruction of a program is ever overwritten.

#![cfg_attr(not(test), no_std)]

extern crate alloc;
#[cfg(all(panic = "unwind", not(test)))]
extern crate std;

mod abi;
mod arena;
mod call;
mod calls;
mod counts;
mod decode;
mod deferral;
mod dispatch;
mod elf;
mod entry;
mod exec;
mod fleet;
mod frame;
mod hook;
mod image;
mod inode_numbers;
mod loader;
mod maps;
mod memory;
mod number;
mod object;
mod patch;
mod probe;
mod proc;
mod process;
mod program;
mod raw;
mod report;
mod sandbox;
mod scan;
mod serve;
mod signal;
mod site;
mod slow_lock;
mod start;
mod state;
mod stub;
mod syscalls;
mod thread;
mod threads;
mod tools;
mod trampoline;

/// A defect of ours ends the process, because nothing may unwind into the program.
#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    stub::abort()
}

// Code of `alloc` was compiled to unwind, and names these. Nothing of ours unwinds: a panic aborts.
#[cfg(all(panic = "abort", not(test)))]
core::arch::global_asm!(
    ".pushsection .text.warren_no_unwind,\"ax\",@progbits",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    ".globl _Unwind_Resume",
    ".hidden _Unwind_Resume",
    "rust_eh_personality:",
    "_Unwind_Resume:",
    "ud2",
    ".popsection"
);
