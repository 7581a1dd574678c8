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
//! parent   its next call, or look at that file ─▶ what was sent, under the parent's number
//! ```
//!
//! So both have one open file with one offset, as after any `vfork`. All of this is for processes
//! with one thread: nothing else runs in this memory beside the child. The child takes no lock,
//! because it may be killed inside. A file that it has frozen and not sent is served again.
//!
//! Before a child gives up what it needs for that (rights, descriptors of ours), it takes all.

use crate::abi::{
    CLONE_FILES, EIO, EMFILE, F_GETFD, F_SETFD, FD_CLOEXEC, PR_SET_SECCOMP, RLIMIT_NOFILE,
    SEEK_SET, borrows_memory,
};
use crate::call::{SystemCall, Verdict};
use crate::state::{self, has_threads, is_child};
use crate::stub;
use crate::syscalls::{Class, OnFile};

use super::super::descriptors;
use super::super::lock::{PATH, Room, undisturbed};
use super::super::{admission, why};
use super::table::{self, Served};
use super::{arguments, handover, passing, placeholder, takeover};

/// More files than this do not stay: what is sent must fit the socket's buffer.
const FILES_MAX: usize = 128;

/// Hands over the files that a child must find, before the program makes a child that has a copy of
/// its descriptors.
pub(super) fn before_child(call: &SystemCall, flags: usize) {
    let may_stay = |file: &Served| file.closes_on_exec() && !file.is_directory();
    if borrows_memory(flags) && !has_threads() {
        handover::hand_over_wanted_before(call, |file| !may_stay(file));
        let left = table::among(0, usize::MAX).count();
        if left == 0 || left <= FILES_MAX && ready() {
            return;
        }
    }
    handover::hand_over_wanted_before(call, |_| true);
}

/// The program is about to make a child that has a copy of its descriptors, with these flags.
/// Signals are blocked until it is made. Returns whether it must be noted that it is
/// (`state::CHILDREN`).
///
/// The kernel has taken over what the child must find, but another thread, or a handler, may have
/// opened a file since. From here on none is opened, so that the child has no placeholder but those
/// of files that stay.
pub(crate) fn begin_child(flags: usize) -> bool {
    let has_copy = flags & CLONE_FILES == 0 && (!borrows_memory(flags) || has_threads());
    if !has_copy || is_child() {
        return false;
    }
    state::begin_child();
    if table::has_files() {
        handover::hand_over_wanted(|_| true);
    }
    true
}

/// Makes the sockets, if they are not there.
fn ready() -> bool {
    passing::is_ready() || admission::waiting(|_| passing::make()).flatten().is_some()
}

/// A call of a child of `vfork`, before the kernel makes it. Returns the call's result if the
/// kernel cannot have a file that it names.
pub(in super::super) fn in_child(call: &SystemCall) -> Option<Verdict> {
    let gives_up = gives_up(call);
    for file in table::unfrozen() {
        let is_named = is_named(call, file.number);
        let is_wanted = is_named || gives_up && !closes(call, file.number);
        if !is_wanted || !placeholder::is_at(file.number) {
            continue;
        }
        why::count_handover(call.number);
        // The kernel was to have all files of a process with threads. What it could not have then
        // it cannot have now, and other threads use the table meanwhile.
        let lent = if has_threads() { None } else { undisturbed(|| lend(&file)) };
        if let Err(errno) = lent.unwrap_or(Err(-EIO))
            && is_named
        {
            return Some(Verdict::Made(errno));
        }
    }
    None
}

/// Whether the kernel must have the file for this call.
fn is_named(call: &SystemCall, number: usize) -> bool {
    let [_, second, third, ..] = call.args;
    match call.row().file {
        OnFile::Close | OnFile::CloseRange => false,
        OnFile::Control if second == F_GETFD => false,
        OnFile::Control if second == F_SETFD && third & FD_CLOEXEC != 0 => false,
        OnFile::Child => true,
        _ => arguments::may_reach(call, number),
    }
}

/// Whether a child may be unable to take files after this call: it has other rights, another limit
/// of descriptors, a filter of its calls, or not the descriptors of ours.
fn gives_up(call: &SystemCall) -> bool {
    let [first, second, third, ..] = call.args;
    let [number, end] = [first, second].map(|number| number as u32 as usize);
    match call.row().class {
        Class::Close => descriptors::hides(number),
        Class::CloseRange => descriptors::hides_among(number, end),
        Class::Duplicate => descriptors::hides(end),
        Class::Limit => first == RLIMIT_NOFILE,
        Class::Limits => second == RLIMIT_NOFILE && third != 0,
        Class::Control => first == PR_SET_SECCOMP,
        Class::Filter | Class::Rights => true,
        _ => false,
    }
}

/// Whether the call closes the number.
fn closes(call: &SystemCall, number: usize) -> bool {
    let [first, second, ..] = call.args.map(|number| number as u32 as usize);
    match call.row().class {
        Class::Close => number == first,
        Class::CloseRange => (first..=second).contains(&number),
        _ => false,
    }
}

/// The kernel has the file in this child from now on, and soon in the parent.
fn lend(file: &Served) -> Result<(), isize> {
    table::begin_lending();
    let Some(offset) = file.freeze() else { return Ok(()) };
    descriptors::with_whole_limit(|| {
        let mut path = [0; PATH];
        let opened = match takeover::reopen(file, &mut path) {
            Err(errno) if errno == -EMFILE => {
                stub::close(file.number);
                takeover::reopen(file, &mut path)
            }
            opened => opened,
        };
        let opened = opened.inspect_err(|_| file.unfreeze())?;
        stub::seek(opened, offset as usize, SEEK_SET);
        // If it is sent, the parent takes it, also if the child does not get it.
        let sent = passing::send(file.number, opened).inspect_err(|_| file.unfreeze());
        if opened == file.number {
            return sent;
        }
        let put = if sent.is_ok() { table::replace_number(opened, file) } else { 0 };
        stub::close(opened);
        sent.and(if put < 0 { Err(put) } else { Ok(()) })
    })
}

/// Gives the files that children have taken to the kernel in this process, too. This comes before
/// any other use of the table.
#[inline]
pub(in super::super) fn take_back() {
    if table::is_lent() || table::has_returned() {
        take_back_now();
    }
}

#[cold]
#[inline(never)]
fn take_back_now() {
    if table::is_lent() {
        table::arrive();
    }
    if table::has_returned() {
        admission::waiting(|Room { client, .. }| {
            table::take_returned().for_each(|file| takeover::let_go(client, file.at_cell()));
        });
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::nr;

    const NUMBER: usize = 7;

    fn call(number: usize, [a, b, c]: [usize; 3]) -> SystemCall {
        SystemCall { number, args: [a, b, c, 0, 0, 0], return_address: 0 }
    }

    #[test]
    fn a_child_takes_what_its_call_uses() {
        let is_named = |number, args| is_named(&call(number, args), NUMBER);
        const F_SETFL: usize = 4;
        for (number, args, wanted) in [
            (nr::DUP2, [NUMBER, 1, 0], true),
            (nr::DUP2, [1, NUMBER, 0], true),
            (nr::WRITE, [NUMBER, 0, 0], true),
            (nr::WRITE, [1, NUMBER, NUMBER], false),
            (nr::CLOSE, [NUMBER, 0, 0], false),
            (nr::CLOSE_RANGE, [3, usize::MAX, 0], false),
            (nr::FCNTL, [NUMBER, F_GETFD, 0], false),
            (nr::FCNTL, [NUMBER, F_SETFD, FD_CLOEXEC], false),
            (nr::FCNTL, [NUMBER, F_SETFD, 0], true),
            (nr::FCNTL, [NUMBER, F_SETFL, 0], true),
            (nr::CLONE, [0, 0, 0], true),
            (nr::FORK, [0, 0, 0], true),
            (nr::EXECVE, [0, 0, 0], false),
            (nr::GETPID, [NUMBER, NUMBER, NUMBER], false),
            (usize::MAX, [0, 0, 0], true),
        ] {
            assert_eq!(is_named(number, args), wanted, "{number} {args:?}");
        }
    }

    #[test]
    fn a_child_takes_all_before_it_gives_up_what_that_needs() {
        let gives_up = |number, args| gives_up(&call(number, args));
        assert!(gives_up(nr::SETUID, [1, 0, 0]) && gives_up(nr::SECCOMP, [1, 0, 0]));
        assert!(gives_up(nr::PRCTL, [PR_SET_SECCOMP, 2, 0]) && !gives_up(nr::PRCTL, [15, 0, 0]));
        assert!(gives_up(nr::SETRLIMIT, [RLIMIT_NOFILE, 8, 0]));
        assert!(gives_up(nr::PRLIMIT64, [0, RLIMIT_NOFILE, 8]));
        assert!(!gives_up(nr::PRLIMIT64, [0, RLIMIT_NOFILE, 0]), "it only shows the limit");
        assert!(!gives_up(nr::CLOSE, [NUMBER, 0, 0]) && !gives_up(nr::DUP2, [1, NUMBER, 0]));
    }

    #[test]
    fn calls_close_the_numbers_that_they_say() {
        let closes = |number, args| closes(&call(number, args), NUMBER);
        assert!(closes(nr::CLOSE, [NUMBER, 0, 0]) && !closes(nr::CLOSE, [1, NUMBER, 0]));
        assert!(closes(nr::CLOSE_RANGE, [3, NUMBER, 0]) && !closes(nr::CLOSE_RANGE, [8, 9, 0]));
        assert!(!closes(nr::DUP2, [1, NUMBER, 0]));
    }
}
