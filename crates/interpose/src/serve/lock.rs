//! The lock of everything that is slow: looks at the mount, admissions, walks by the fleet.
//!
//! There is one. A call by path waits for it a millisecond at most, because the kernel can answer
//! as well; a call on a file that is served waits until it is free. It is taken with all signals
//! blocked or deferred ([`crate::deferral`]), and released before they are restored. So no handler
//! runs inside, and nothing is jumped out of or cancelled. SIGSYS may be blocked too: our own calls
//! need no dispatch, and no code of the program runs inside.
//!
//! The work runs on a stack of its own, because the program's may be small. The lowest page of that
//! stack cannot be used, so that an overflow ends the process. The stack is mapped at its first use
//! and is no variable: leak checkers and garbage collectors read all variables of all libraries.
//! They would fault on that page, and what the stack has left of the program's pointers would keep
//! its memory in use.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::abi::{PAGE, PROT_NONE, nr};
use crate::deferral::Deferral;
use crate::fleet::Client;
use crate::slow_lock::{SlowLock, TAKEN};
use crate::state::is_filtered;
use crate::stub;

const STACK: usize = 256 << 10;
/// A waiting thread yields this often. Then it sleeps, this long each time.
const YIELDS: usize = 64;
const PAUSE_NANOS: u64 = 50_000;
/// The text of a file in `/proc` that is read at once, or the longest line.
pub(crate) const TEXT: usize = 16 << 10;
/// The longest path, with its final zero.
pub(crate) const PATH: usize = 4096;

/// The lock lends this to its holder: memory, and the right to use the client.
pub(crate) struct Room {
    pub text: [u8; TEXT],
    pub path: [u8; PATH],
    pub client: Client,
}

/// The memory that is mapped for the holder of the lock. The stack is first, because an overflow
/// leaves it downwards.
#[repr(C, align(4096))]
struct Place {
    stack: [u8; STACK],
    room: Room,
}

/// The address of the [`Place`], which is never unmapped. 0 before it is mapped.
pub(crate) struct Mapped(AtomicUsize);

core::arch::global_asm!(
    r#"
    .pushsection .text.warren_on_stack,"ax",@progbits
    .globl warren_on_stack
    .hidden warren_on_stack
    .type warren_on_stack, @function
    warren_on_stack:
        .cfi_startproc
        pushq %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset 6, -16
        movq %rsp, %rbp
        .cfi_def_cfa_register 6
        movq %rdi, %rsp
        movq %rdx, %rdi
        callq *%rsi
        movq %rbp, %rsp
        popq %rbp
        .cfi_def_cfa 7, 8
        ret
        .cfi_endproc
    .popsection
    "#,
    options(att_syntax)
);

// SAFETY: the function is above.
unsafe extern "C" {
    /// Calls `work` with `job` on the stack that begins at `top`.
    ///
    /// # Safety
    /// The stack is mapped and aligned to 16 bytes, and no other code uses it.
    fn warren_on_stack(top: usize, work: extern "C" fn(*mut u8), job: *mut u8);
}

/// Runs `work` if the lock is free.
pub(crate) fn with<R>(work: impl FnOnce(&mut Room) -> R) -> Option<R> {
    with_as(TAKEN, work)
}

/// Like [`with`]. The lock's word becomes `state`: [`TAKEN`], or `AWAITED` if other threads may
/// sleep until the lock is free.
pub(crate) fn with_as<R>(state: u32, work: impl FnOnce(&mut Room) -> R) -> Option<R> {
    let locked = || {
        if !SlowLock::here().take(state) {
            return None;
        }
        let result = place().map(|place| on_stack(place, work));
        SlowLock::here().release();
        result
    };
    if is_filtered() || !Deferral::here().begin() {
        return undisturbed(locked)?;
    }
    let result = locked();
    Deferral::here().end();
    result
}

/// Runs `work` with all signals blocked, on the program's stack. `None` under a filter that forbids
/// that.
pub(crate) fn undisturbed<R>(work: impl FnOnce() -> R) -> Option<R> {
    if is_filtered() {
        return None;
    }
    let before = stub::set_mask(u64::MAX);
    let result = work();
    stub::set_mask(before);
    Some(result)
}

/// Lets another thread go on, also one of a lower priority.
pub(crate) fn relax(turn: usize) {
    if turn < YIELDS {
        return stub::yield_now();
    }
    // `struct timespec`
    let pause: [u64; 2] = [0, PAUSE_NANOS];
    // SAFETY: the kernel reads `pause`.
    unsafe { stub::call(nr::NANOSLEEP, [pause.as_ptr() as usize, 0]) };
}

struct Job<F, R> {
    place: *mut Place,
    work: Option<F>,
    result: Option<R>,
}

/// Called under the lock. `None` without memory, in a process that has never used the lock.
fn place() -> Option<*mut Place> {
    let mapped = match Mapped::here().0.load(Relaxed) {
        0 => map_place()?,
        mapped => mapped,
    };
    Some(mapped as *mut Place)
}

#[cold]
fn map_place() -> Option<usize> {
    let mapped = stub::map(size_of::<Place>(), 0)?;
    // SAFETY: the page is the lowest of our stack, and nothing is there.
    unsafe { stub::call(nr::MPROTECT, [mapped, PAGE, PROT_NONE]) };
    Mapped::here().0.store(mapped, Relaxed);
    Some(mapped)
}

fn on_stack<R, F: FnOnce(&mut Room) -> R>(place: *mut Place, work: F) -> R {
    let top = place as usize + STACK;
    let mut job = Job { place, work: Some(work), result: None };
    // SAFETY: the lock is held, so no other code uses the stack.
    unsafe { warren_on_stack(top, run::<R, F>, (&raw mut job).cast()) };
    match job.result {
        Some(result) => result,
        None => unreachable!("`run` sets it"),
    }
}

extern "C" fn run<R, F: FnOnce(&mut Room) -> R>(job: *mut u8) {
    // SAFETY: `on_stack` passes its job and waits.
    let job = unsafe { &mut *job.cast::<Job<F, R>>() };
    // SAFETY: the lock is held, and any bytes make a room: its client has none. `work` cannot keep
    // the reference.
    let room = unsafe { &mut (*job.place).room };
    job.result = job.work.take().map(|work| work(room));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_on_another_stack() {
        let here = 0_u8;
        let inside = with(|room| {
            room.path[0] = 1;
            let there = 0_u8;
            assert!(with(|_| ()).is_none(), "it is taken");
            (&raw const there as usize).abs_diff(&raw const here as usize)
        });
        assert!(inside.is_some_and(|distance| distance > STACK));
        assert_eq!(with(|room| room.path[0]), Some(1));
    }
}
