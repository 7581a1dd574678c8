//! The program's view of signals.
//!
//! SIGSYS must never be blocked in the kernel, and its handler is ours. So SIGSYS is removed from
//! every mask that the program hands to the kernel, and the program sees what it believes:
//!
//! * its own handler of SIGSYS, which is kept here and called for each SIGSYS that is not caused by
//!   dispatch (`kill`, a seccomp filter);
//! * SIGSYS as blocked, if it has blocked it. A SIGSYS that is sent then stays pending until the
//!   thread unblocks it.
//!
//! Handlers return through our restorer, which lies in the stub page.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::abi::{
    Context, EFAULT, SA_ONSTACK, SA_RESETHAND, SA_RESTORER, SET_SIZE, SIG_BLOCK, SIG_DFL, SIG_IGN,
    SIG_MAX, SIG_SETMASK, SIG_UNBLOCK, SIGSYS, SIGSYS_BIT, SYS_USER_DISPATCH, SigAction, SigInfo,
    nr, reg,
};
use crate::call::SystemCall;
use crate::frame::{Frame, Next};
use crate::raw;
use crate::site::SYSCALL;
use crate::state::{is_filtered, process};
use crate::stub;
use crate::threads::Threads;
use crate::{deferral, probe};

/// Details of the program's signal handlers that the kernel does not have in its place.
pub(crate) struct Handlers {
    /// The program's own restorers, by signal. 0 where it has set none.
    restorers: [AtomicUsize; SIG_MAX + 1],
    /// Signals whose handlers run with SIGSYS blocked, as the program believes.
    with_sigsys: AtomicU64,
}

/// The last actions of SIGSYS. A new one is written beside the current one, so that a reader never
/// sees a mixture, unless it is interrupted for that many changes.
pub(crate) struct SigsysActions {
    slots: [[AtomicUsize; 4]; SLOTS],
    current: AtomicUsize,
    last: AtomicUsize,
}
const SLOTS: usize = 16;

/// `mov $15,%rax; syscall`, the restorer of every C library.
const PLAIN_RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// `rt_sigaction`.
pub(crate) fn action(frame: &mut Frame) -> Next {
    let [signal, new, old, size, ..] = frame.call.args;
    if signal == 0 || signal > SIG_MAX || size != SET_SIZE {
        return Next::Pass;
    }
    if new != 0 && !probe::readable(new, size_of::<SigAction>()) {
        return frame.done(-EFAULT);
    }
    // SAFETY: readable just now.
    let new = (new != 0).then(|| unsafe { (new as *const SigAction).read_unaligned() });
    let result = if signal == SIGSYS { own_action(new, old) } else { other(signal, new, old) };
    frame.done(result)
}

/// Whether `rt_sigaction` sets a handler that runs on the alternate stack of its thread.
pub(crate) fn sets_handler_on_stack(call: &SystemCall) -> bool {
    let new = call.args[1];
    // SAFETY: it can be read.
    let action = || unsafe { (new as *const SigAction).read_unaligned() };
    probe::readable(new, size_of::<SigAction>()) && action().flags & SA_ONSTACK != 0
}

fn other(signal: usize, new: Option<SigAction>, old: usize) -> isize {
    let before = Handlers::here().restorers[signal].load(Relaxed);
    let handler = deferral::handler(signal);
    let had_sigsys = Handlers::here().with_sigsys.load(Relaxed) & bit(signal) != 0;
    let passed = new.map(|new| {
        let mut passed = new;
        passed.mask &= !SIGSYS_BIT;
        if has_plain_restorer(&new) {
            passed.restorer = stub::restorer();
        }
        if has_own_memory() { deferral::wrapped(signal, passed) } else { passed }
    });
    let at = passed.as_ref().map_or(0, |passed| &raw const *passed as usize);
    // SAFETY: the kernel checks `old`, and the new action is the program's, but for what is ours.
    let result = unsafe { stub::call(nr::RT_SIGACTION, [signal, at, old, SET_SIZE]) };
    if result != 0 {
        return result;
    }
    // A child that shares the memory has its own actions. What is remembered here are the parent's.
    if let Some(new) = new.filter(|_| has_own_memory()) {
        Handlers::here().restorers[signal].store(new.restorer, Relaxed);
        match new.mask & SIGSYS_BIT {
            0 => Handlers::here().with_sigsys.fetch_and(!bit(signal), Relaxed),
            _ => Handlers::here().with_sigsys.fetch_or(bit(signal), Relaxed),
        };
    }
    if old != 0 {
        let old = old as *mut SigAction;
        // SAFETY: the kernel has just written there.
        unsafe {
            let mut seen = deferral::unwrapped(old.read_unaligned(), handler);
            if seen.restorer == stub::restorer() && before != 0 {
                seen.restorer = before;
            }
            if had_sigsys {
                seen.mask |= SIGSYS_BIT;
            }
            old.write_unaligned(seen);
        }
    }
    result
}

/// Whether this is the process whose actions are remembered, and not a child that shares its
/// memory.
fn has_own_memory() -> bool {
    is_filtered() || raw::process() == process()
}

/// The thread, if it may be asked for: a filter may forbid it.
fn known_thread() -> Option<usize> {
    (!is_filtered()).then(raw::thread)
}

fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}

/// Whether the handler returns by a restorer that does nothing but `rt_sigreturn`.
fn has_plain_restorer(action: &SigAction) -> bool {
    if action.flags & SA_RESTORER == 0 || matches!(action.handler, SIG_DFL | SIG_IGN) {
        return false;
    }
    probe::readable(action.restorer, PLAIN_RESTORER.len())
        // SAFETY: readable just now, and bytes have no alignment.
        && unsafe { *(action.restorer as *const [u8; 9]) } == PLAIN_RESTORER
}

/// `rt_sigaction` of SIGSYS: the kernel's action stays ours.
fn own_action(new: Option<SigAction>, old: usize) -> isize {
    let seen = sigsys_action();
    if old != 0 {
        // The kernel finds out whether `old` can be written.
        // SAFETY: it only writes the current action to `old`.
        let result = unsafe { stub::call(nr::RT_SIGACTION, [SIGSYS, 0, old, SET_SIZE]) };
        if result != 0 {
            return result;
        }
        // SAFETY: the kernel has just written there.
        unsafe { (old as *mut SigAction).write_unaligned(seen) };
    }
    if let Some(new) = new.filter(|_| has_own_memory()) {
        if !matches!(new.handler, SIG_DFL | SIG_IGN) {
            deferral::note_other();
        }
        set_sigsys_action(&new);
    }
    0
}

fn sigsys_action() -> SigAction {
    let actions = SigsysActions::here();
    let words = &actions.slots[actions.current.load(Relaxed) % SLOTS];
    let [handler, flags, restorer, mask] = [0, 1, 2, 3].map(|at| words[at].load(Relaxed));
    SigAction { handler, flags, restorer, mask: mask as u64 }
}

fn set_sigsys_action(new: &SigAction) {
    let actions = SigsysActions::here();
    let slot = actions.last.fetch_add(1, Relaxed) + 1;
    let words = [new.handler, new.flags, new.restorer, new.mask as usize];
    for (word, new) in actions.slots[slot % SLOTS].iter().zip(words) {
        word.store(new, Relaxed);
    }
    actions.current.store(slot, core::sync::atomic::Ordering::Release);
}

/// `rt_sigprocmask`.
pub(crate) fn mask(frame: &mut Frame) -> Next {
    let [how, set, old, size, ..] = frame.call.args;
    if size != SET_SIZE || how > SIG_SETMASK {
        return Next::Pass;
    }
    let thread = known_thread();
    let was_blocked = thread.is_some_and(|thread| Threads::here().blocked.has(thread));
    let mut set_at = 0;
    let mut new = 0;
    if set != 0 {
        let Some(asked) = probe::word(set) else { return frame.done(-EFAULT) };
        new = asked & !SIGSYS_BIT;
        set_at = &raw const new as usize;
        let blocked = match how {
            SIG_BLOCK => was_blocked || asked & SIGSYS_BIT != 0,
            SIG_UNBLOCK => was_blocked && asked & SIGSYS_BIT == 0,
            _ => asked & SIGSYS_BIT != 0,
        };
        if let Some(thread) = thread {
            Threads::here().blocked.replace(thread, blocked);
        }
    }
    // SAFETY: the kernel checks `old`, and the mask is the program's, but for SIGSYS.
    let result = unsafe { stub::call(nr::RT_SIGPROCMASK, [how, set_at, old, SET_SIZE]) };
    core::hint::black_box(&new);
    if result == 0 && old != 0 && was_blocked {
        // SAFETY: the kernel has just written there.
        unsafe {
            let old = old as *mut u64;
            old.write_unaligned(old.read_unaligned() | SIGSYS_BIT);
        }
    }
    if let Some(thread) =
        thread.filter(|thread| was_blocked && !Threads::here().blocked.has(*thread))
        && Threads::here().pending.replace(thread, false)
    {
        send_to(thread);
    }
    frame.done(result)
}

/// Sends SIGSYS to a thread of this process.
fn send_to(thread: usize) {
    // SAFETY: what the program has asked for.
    unsafe { stub::call(nr::TGKILL, [raw::process(), thread, SIGSYS]) };
}

/// A call whose argument `at` is a mask for its duration, followed by the size of the mask.
pub(crate) fn call_with_mask(frame: &mut Frame, at: usize) {
    let [mask, size] = [at, at + 1].map(|at| frame.call.args[at]);
    if let Some(copy) = without_sigsys(frame, mask, size) {
        frame.call.args[at] = copy;
    }
}

/// A call whose argument `at` points to a pointer to a mask and the size of the mask.
pub(crate) fn call_with_mask_pair(frame: &mut Frame, at: usize) {
    let pair = frame.call.args[at];
    if pair != 0
        && let Some(mask) = probe::word(pair)
        && let Some(size) = probe::word(pair + size_of::<u64>())
        && let Some(copy) = without_sigsys(frame, mask as usize, size as usize)
    {
        frame.scratch[1] = copy as u64;
        frame.scratch[2] = size;
        frame.call.args[at] = &raw const frame.scratch[1] as usize;
    }
}

/// The address of a copy of a mask without SIGSYS, if the mask has that.
fn without_sigsys(frame: &mut Frame, mask: usize, size: usize) -> Option<usize> {
    if mask == 0 || size != SET_SIZE {
        return None;
    }
    let mask = probe::word(mask).filter(|mask| mask & SIGSYS_BIT != 0)?;
    frame.scratch[0] = mask & !SIGSYS_BIT;
    Some(&raw const frame.scratch[0] as usize)
}

/// A SIGSYS that dispatch has not caused. Called in our handler.
///
/// # Safety
/// The arguments are those of a handler.
pub(crate) unsafe fn deliver(info: *mut SigInfo, context: *mut Context) {
    // SAFETY: the caller's.
    let (code, interrupted) = unsafe { ((*info).code, (*context).mask) };
    // The kernel forces this code. It never waits.
    let forced = (1..=SYS_USER_DISPATCH).contains(&code);
    // A filter may have trapped this very call, so it is not made for a forced SIGSYS.
    let thread = if forced { None } else { known_thread() };
    if let Some(thread) = thread.filter(|thread| Threads::here().blocked.has(*thread)) {
        Threads::here().pending.replace(thread, true);
        return;
    }
    let action = sigsys_action();
    match action.handler {
        SIG_IGN if !forced => return,
        SIG_DFL | SIG_IGN => {
            // SAFETY: the caller's.
            return die(forced.then_some(unsafe { &mut (*context).registers[reg::RIP] }));
        }
        _ => {}
    }
    if action.flags & SA_RESETHAND != 0 {
        set_sigsys_action(&SigAction::default());
    }
    let mask = (interrupted | action.mask) & !SIGSYS_BIT;
    // A filter that has caused this SIGSYS may trap setting the mask, too. So the handler of such a
    // signal runs with all signals blocked.
    if !(forced && is_filtered()) {
        stub::set_mask(mask);
    }
    // SAFETY: the program has registered this address as a handler of SIGSYS. One that takes only
    // the number ignores the other arguments.
    unsafe {
        let handler: extern "C" fn(i32, *mut SigInfo, *mut Context) =
            core::mem::transmute(action.handler);
        handler(SIGSYS as i32, info, context);
    }
}

/// Ends the process as SIGSYS does by default. If a call was trapped, it is made again, from `at`,
/// because a filter may trap `tgkill` as well.
fn die(at: Option<&mut usize>) {
    let default = SigAction::default();
    let address = &raw const default as usize;
    // SAFETY: `default` lives longer than the call.
    unsafe { stub::call(nr::RT_SIGACTION, [SIGSYS, address, 0, SET_SIZE]) };
    match at {
        Some(at) => *at -= SYSCALL.len(),
        None => send_to(raw::thread()),
    }
}
