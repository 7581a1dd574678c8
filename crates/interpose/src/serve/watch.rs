//! Calls of the program that change what answers rest on, and calls that may wait.

use crate::abi::{
    CLONE_FILES, CLONE_FS, CLONE_NEWPID, CLONE_THREAD, CLONE_VM, EBADF, EBUSY, ESPIPE, F_NOTIFY,
    F_SETLK, F_SETLKW, PR_CAP_AMBIENT, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP,
    PR_SET_SECUREBITS, PR_SET_TSC, RLIMIT_FSIZE, SEEK_CUR, borrows_memory, nr,
};
use crate::call::{SystemCall, Verdict};
use crate::state::{has_threads, is_child};
use crate::stub;
use crate::syscalls::Class;

use super::admission;
use super::descriptors;
use super::survey::{self, Phase, Survey};
use super::why::{self, Refusal};
use super::{changes, clock, cwd, files, memory, umask, watching};

/// The operations of `prctl` that change rights.
const OF_RIGHTS: [usize; 4] =
    [PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT];
const CLOSE_RANGE_UNSHARE: usize = 2;
/// `RLIM_INFINITY`.
const NO_LIMIT: i64 = -1;

/// A call of any class that is not served by its path.
#[cold]
#[inline(never)]
pub(crate) fn on_call(call: &SystemCall, class: Class) -> Verdict {
    match class {
        Class::Plain | Class::Path | Class::Open => return Verdict::Pass,
        Class::Names | Class::Above => return changes::on_call(call, class == Class::Above),
        Class::Wait => return Verdict::Wait,
        Class::Read => {
            if clock::is_fresh() && !is_file(call.args[0]) {
                clock::note_wait();
            }
            return Verdict::Wait;
        }
        Class::Sleep => {
            clock::note_wait();
            return Verdict::Wait;
        }
        // A child of `vfork` changes its own state.
        _ if is_child() => return Verdict::Pass,
        Class::Directory => {
            files::before_chdir();
            return Verdict::Made(cwd::change(call));
        }
        Class::Close if descriptors::hides(call.args[0] as u32 as usize) => {
            return Verdict::Made(-EBADF);
        }
        // The descriptor that it replaces must not be one that the client uses. The kernel says
        // EBUSY too, if the number is just being opened.
        Class::Duplicate if descriptors::hides(call.args[1] as u32 as usize) => {
            if !admission::end() {
                return Verdict::Made(-EBUSY);
            }
        }
        Class::CloseRange => return close_range(call),
        Class::Fcntl => {
            match call.args[1] as u32 as usize {
                F_SETLK | F_SETLKW => files::before_record_lock(call.args[0] as u32 as usize),
                F_NOTIFY => {
                    files::stop();
                    changes::stop();
                }
                _ => {}
            }
            return Verdict::Wait;
        }
        Class::Watch => {
            files::stop();
            changes::stop();
            if let Some(failed) = watching::before_watch(call) {
                return Verdict::Made(failed);
            }
        }
        Class::Unseen => files::stop(),
        Class::Limit if call.args[0] == RLIMIT_FSIZE => return limit_files(call, 1),
        Class::Limits if call.args[1] == RLIMIT_FSIZE && call.args[2] != 0 => {
            return limit_files(call, 2);
        }
        Class::Close | Class::Duplicate | Class::Limit | Class::Limits => {}
        Class::Umask => return Verdict::Made(umask::change(call)),
        Class::Mounts => admission::never(Refusal::OwnMount, false),
        Class::Rights => change_rights(),
        Class::Control => control(call),
        Class::Filter => admission::never(Refusal::Filter, false),
        Class::Keys => admission::never(Refusal::Keys, true),
    }
    Verdict::Pass
}

/// Whether the descriptor is of something that has positions, and so of no pipe, socket or
/// terminal. What another process has sent there may have been waiting, so that a read takes no
/// time.
fn is_file(descriptor: usize) -> bool {
    stub::seek(descriptor, 0, SEEK_CUR) != -ESPIPE
}

/// The kernel's rights of this process, or of one of its threads, change with this call.
fn change_rights() {
    // Others do not depend on them.
    let of_rights = [Refusal::Ids, Refusal::Capabilities, Refusal::Groups];
    if survey::phase() == Phase::Never && !of_rights.contains(&why::refusal()) {
        return;
    }
    if has_threads() {
        admission::never(Refusal::Credentials, false);
    } else {
        admission::end();
        Survey::here().be_young();
    }
}

/// Sets the limit of the length of files, to which the argument `new` leads. A limit that is none,
/// which many programs set, changes nothing about files that are written here. The call gets a copy
/// of it, because another thread may change what the program has given.
fn limit_files(call: &SystemCall, new: usize) -> Verdict {
    let mut args = call.args;
    let Some(limits @ [NO_LIMIT, _]) = memory::words::<2>(args[new]) else {
        files::before_limits();
        return Verdict::Pass;
    };
    args[new] = limits.as_ptr() as usize;
    // SAFETY: the program makes this call, with the same limits.
    Verdict::Made(unsafe { stub::call(call.number, args) })
}

fn control(call: &SystemCall) {
    let [operation, value, ..] = call.args;
    match operation {
        PR_SET_SECCOMP => admission::never(Refusal::Filter, false),
        PR_SET_TSC if value != 1 => admission::never(Refusal::NoCycles, true),
        _ if OF_RIGHTS.contains(&operation) => change_rights(),
        _ => {}
    }
}

fn close_range(call: &SystemCall) -> Verdict {
    let [first, last, flags, ..] = call.args;
    let [first, last] = [first, last].map(|number| number as u32 as usize);
    if !descriptors::hides_among(first, last) {
        return Verdict::Pass;
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        admission::never(Refusal::Shared, false);
        return Verdict::Pass;
    }
    let mut result = 0;
    descriptors::around(first, last, |first, last| {
        if result == 0 {
            // SAFETY: the program makes this call, but for descriptors that it does not have.
            result = unsafe { stub::call(nr::CLOSE_RANGE, [first, last, flags]) };
        }
    });
    Verdict::Made(result)
}

/// The program is about to create a child or a thread with these flags.
pub(crate) fn on_clone(flags: usize) {
    if !is_plain(flags) && !is_child() {
        // A child with the same files or directories has a copy of this memory.
        admission::never(Refusal::Shared, flags & CLONE_VM == 0);
    }
    if flags & CLONE_FILES == 0 {
        // A child of a child of `vfork` may outlive it.
        files::pending::before_child(borrows_memory(flags) && !is_child());
    }
}

/// Whether these flags make a thread, or a child that shares neither files nor directories with
/// its parent, nor its memory while the parent runs.
fn is_plain(flags: usize) -> bool {
    const OF_THREADS: usize = CLONE_THREAD | CLONE_FS | CLONE_FILES;
    match flags & OF_THREADS {
        OF_THREADS => flags & CLONE_VM != 0,
        // Its number in its own name space may be that of this process.
        0 if borrows_memory(flags) => flags & CLONE_NEWPID == 0,
        0 => flags & CLONE_VM == 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::CLONE_VFORK;

    #[test]
    fn children_and_threads_of_a_usual_kind_are_plain() {
        const SPAWN: usize = CLONE_VM | CLONE_VFORK;
        const THREAD: usize = CLONE_VM | CLONE_THREAD | CLONE_FS | CLONE_FILES;
        for (flags, plain) in [
            (0, true),
            (SPAWN, true),
            (THREAD, true),
            (CLONE_NEWPID, true),
            (SPAWN | CLONE_NEWPID, false),
            (CLONE_VM, false),
            (CLONE_FILES, false),
            (CLONE_FS, false),
            (SPAWN | CLONE_FILES, false),
            (THREAD & !CLONE_FS, false),
        ] {
            assert_eq!(is_plain(flags), plain, "{flags:#x}");
        }
    }

    #[test]
    fn children_of_vfork_borrow_memory() {
        assert!(borrows_memory(CLONE_VM | CLONE_VFORK));
        assert!(!borrows_memory(CLONE_VFORK) && !borrows_memory(CLONE_VM) && !borrows_memory(0));
    }

    #[test]
    fn what_reads_may_wait_for_has_no_positions() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        use std::os::fd::AsRawFd;
        assert!(is_file(file.as_raw_fd() as usize) && !is_file(reader.as_raw_fd() as usize));
    }
}
