//! Files that stay served while a child of `vfork` runs.
//!
//! Such a child has its parent's memory and a copy of its descriptors, and the parent waits until
//! the child has started a program or ended. What closes on exec is closed then. So the child's
//! placeholder is not seen, unless the child uses it first: mostly it puts it under another number.
//!
//! ```text
//! parent   vfork ─▶ what does not close on exec, and directories ─▶ handover
//!                   the rest stays, and there is a pair of sockets
//! child    a call that names a file ─▶ the kernel's file with its offset, under the child's number
//!                                      └─ the same file, sent to the parent
//! parent   its next call ─▶ what was sent, under the parent's number
//! ```
//!
//! So both have one open file with one offset, as after any `vfork`. All of this is for processes
//! with one thread: nothing else runs in this memory beside the child. The child takes no lock,
//! because it may be killed inside. A file that it has frozen and not sent is served again.

use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use warren_base::Errno;

use crate::abi::{CLONE_VFORK, CLONE_VM, O_CLOEXEC, nr};
use crate::call::{SystemCall, Verdict};
use crate::state::THREADS;
use crate::stub;

use super::super::descriptors::{F_GETFD, F_SETFD, FD_CLOEXEC};
use super::super::lock::{PATH, undisturbed};
use super::super::{admission, why};
use super::table::{self, Served};
use super::{arguments, handover, passing, placeholder, takeover};

const EIO: isize = Errno::EIO.raw() as isize;

/// A child has begun to take files.
static IS_LENT: AtomicBool = AtomicBool::new(false);

/// Before the program makes a child that has a copy of its descriptors: what the child must find,
/// the kernel has from now on.
pub(super) fn before_child(call: &SystemCall, flags: usize) {
    let shares = flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM | CLONE_VFORK;
    let may_stay = |file: &Served| file.closes_on_exec() && !file.is_directory();
    if shares && !THREADS.get() {
        handover::those_before(call, |file| !may_stay(file));
        if table::among(0, usize::MAX).next().is_none() || ready() {
            return;
        }
    }
    handover::those_before(call, |_| true);
}

/// Makes the sockets, if they are not there.
fn ready() -> bool {
    passing::is_ready() || admission::waiting(|_| passing::make()).flatten().is_some()
}

/// A call of a child of `vfork`, before the kernel makes it. Returns the call's result if the
/// kernel cannot have a file that it names.
pub(in super::super) fn in_child(call: &SystemCall) -> Option<Verdict> {
    let [_, second, third, ..] = call.args;
    let named = arguments::descriptors(call.number);
    let is_wanted = |number: usize| match call.number {
        nr::CLOSE | nr::CLOSE_RANGE => false,
        nr::FCNTL if second == F_GETFD => false,
        nr::FCNTL if second == F_SETFD && third & FD_CLOEXEC != 0 => false,
        nr::CLONE | nr::CLONE3 => true,
        nr::IOCTL if arguments::NAME_OTHERS.contains(&(second as u32)) => true,
        _ if arguments::leads_to_one_descriptor(call) => true,
        _ if named == arguments::ALL => arguments::may_name(call, number),
        _ => call
            .args
            .iter()
            .enumerate()
            .any(|(at, argument)| named >> at & 1 != 0 && *argument as u32 as usize == number),
    };
    for file in table::unfrozen() {
        if is_wanted(file.number) && placeholder::is_at(file.number) {
            why::count_handover(call.number);
            if let Err(errno) = undisturbed(|| lend(&file)).unwrap_or(Err(-EIO)) {
                return Some(Verdict::Made(errno));
            }
        }
    }
    None
}

/// The kernel has the file in this child from now on, and soon in the parent.
fn lend(file: &Served) -> Result<(), isize> {
    IS_LENT.store(true, Release);
    let Some(offset) = file.freeze() else { return Ok(()) };
    let mut path = [0; PATH];
    let sent = takeover::reopen(file, &mut path).and_then(|opened| {
        // SAFETY: it moves the offset of a descriptor of ours.
        unsafe { stub::call(nr::LSEEK, [opened, offset as usize, 0]) };
        let sent = passing::send(file.number, opened);
        if sent.is_err() {
            stub::close(opened);
        }
        sent.map(|()| opened)
    });
    match sent {
        Ok(opened) => {
            // SAFETY: it duplicates a descriptor of ours to the number of the placeholder.
            let put = unsafe { stub::call(nr::DUP3, [opened, file.number, O_CLOEXEC]) };
            stub::close(opened);
            if put < 0 { Err(put) } else { Ok(()) }
        }
        Err(errno) => {
            file.unfreeze();
            Err(errno)
        }
    }
}

/// What children have taken is the kernel's in this process, too. Before any other use of the
/// table.
#[inline]
pub(in super::super) fn take_back() {
    if IS_LENT.load(Acquire) {
        admission::waiting(|_| {
            while let Some((number, opened)) = passing::receive() {
                if let Some(file) = table::frozen(number) {
                    // What fails is served again.
                    let _given = takeover::give(&file, opened);
                }
                stub::close(opened);
            }
            table::unfreeze_all();
            IS_LENT.store(false, Release);
        });
    }
}
