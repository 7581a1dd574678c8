//! Which arguments of which calls are descriptors (Linux 6.18,
//! `arch/x86/entry/syscalls/syscall_64.tbl` and the signatures in `include/linux/syscalls.h`).

use crate::abi::nr;
use crate::call::SystemCall;

use super::super::memory;

/// Calls that name descriptors in memory, give them to others, or make a child with a copy of the
/// table: all files that they may name go to the kernel first. So do all before a call that is not
/// known here.
pub(super) const ALL: u8 = 0x80;
/// Through these, paths lead to descriptors; those in `/proc` if they contain [`OF_DESCRIPTORS`].
const TO_DESCRIPTORS: [&[u8]; 2] = [b"/dev/fd", b"/dev/std"];
const PROC: &[u8] = b"/proc/";
const OF_DESCRIPTORS: &[u8] = b"/fd";
/// Longer arrays of `poll` are not looked at.
const POLLED_MAX: usize = 256;
/// The word of a `struct msghdr`.
const CONTROL_LENGTH: usize = 5;
/// FICLONE, FICLONERANGE, FIDEDUPERANGE; LOOP_SET_FD, LOOP_CHANGE_FD, LOOP_CONFIGURE: they name a
/// second descriptor.
pub(super) const FICLONE: u32 = 0x4004_9409;
pub(super) const NAME_OTHERS: [u32; 6] =
    [FICLONE, 0x4020_940d, 0xc018_9436, 0x4c00, 0x4c06, 0x4c0a];
/// Numbers from here on are not known.
const NUMBERS: usize = 472;

static DESCRIPTORS: [u8; NUMBERS] = {
    let mut table = [0; NUMBERS];
    // The first argument.
    set(
        &mut table,
        1,
        &[
            0, 1, 3, 5, 8, 16, 17, 18, 19, 20, 32, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 54,
            55, 72, 73, 74, 75, 77, 78, 81, 91, 93, 138, 187, 190, 193, 196, 199, 217, 221, 232,
            245, 254, 255, 257, 258, 259, 260, 261, 262, 263, 267, 268, 269, 277, 278, 280, 281,
            282, 285, 286, 287, 288, 289, 295, 296, 299, 300, 303, 304, 306, 308, 313, 322, 327,
            328, 332, 424, 425, 427, 428, 431, 432, 433, 434, 437, 438, 439, 440, 441, 442, 443,
            445, 446, 451, 452, 463, 464, 465, 466, 467, 468, 469,
        ],
    );
    // The first two.
    set(&mut table, 0b11, &[33, 40, 276, 292]);
    // The first and the third.
    set(&mut table, 0b101, &[233, 264, 265, 275, 316, 326, 429]);
    set(&mut table, 0b10, &[266]);
    set(&mut table, 0b1000, &[298, 320]);
    // The fifth, and the first with the fourth.
    set(&mut table, 0b1_0000, &[9]);
    set(&mut table, 0b1001, &[301]);
    set(
        &mut table,
        ALL,
        &[
            nr::POLL,
            nr::PPOLL,
            nr::SELECT,
            nr::PSELECT6,
            nr::SENDMSG,
            nr::SENDMMSG,
            nr::UNSHARE,
            nr::FORK,
            nr::VFORK,
            nr::IO_URING_ENTER,
            // kcmp, pidfd_getfd, io_setup, io_submit, io_uring_setup, io_uring_register, bpf,
            // ptrace
            312,
            438,
            206,
            209,
            425,
            427,
            321,
            101,
        ],
    );
    table
};

const fn set(table: &mut [u8; NUMBERS], bits: u8, numbers: &[usize]) {
    let mut at = 0;
    while at < numbers.len() {
        table[numbers[at]] = bits;
        at += 1;
    }
}

/// Whether a call that names descriptors in memory may name this one. The kernel reads the memory
/// again, but a program that changes it meanwhile cannot know what the kernel sees.
pub(super) fn may_name(call: &SystemCall, number: usize) -> bool {
    let [first, second, third, fourth, ..] = call.args;
    match call.number {
        nr::POLL | nr::PPOLL => is_polled(first, second as u32 as usize, number),
        nr::SELECT | nr::PSELECT6 => {
            let is_in = |set: usize| set != 0 && is_selected(set, number);
            (number as u64) < (first as u32).into()
                && [second, third, fourth].into_iter().any(is_in)
        }
        // The socket, and descriptors among the control data.
        nr::SENDMSG => {
            let sends = |message: [i64; 7]| message[CONTROL_LENGTH] != 0;
            first as u32 as usize == number || memory::words(second).is_none_or(sends)
        }
        _ => true,
    }
}

/// In an array of `struct pollfd`.
fn is_polled(array: usize, count: usize, number: usize) -> bool {
    const POLLED: usize = 8;
    let is_at = |at| {
        memory::words::<1>(array + at * POLLED).is_none_or(|[it]| it as u32 as usize == number)
    };
    count > POLLED_MAX || !memory::is_range(array, count * POLLED) || (0..count).any(is_at)
}

/// In an `fd_set`.
fn is_selected(set: usize, number: usize) -> bool {
    let word = memory::words::<1>(set.wrapping_add(number / 64 * 8));
    word.is_none_or(|[bits]| bits >> (number % 64) & 1 != 0)
}

/// A bit for each argument that is a descriptor, or [`ALL`].
pub(super) fn descriptors(number: usize) -> u8 {
    DESCRIPTORS.get(number).copied().unwrap_or(ALL)
}

/// Whether the path of the call may lead to a descriptor.
pub(super) fn leads_to_descriptors(call: &SystemCall) -> bool {
    path(call.number).is_some_and(|at| {
        let path = call.args[at];
        TO_DESCRIPTORS.iter().any(|start| memory::starts_with(path, start))
            || memory::starts_with(path, PROC)
                && memory::contains(path + PROC.len() - 1, OF_DESCRIPTORS)
    })
}

/// The argument that is a path, if the call has one that may lead to a descriptor.
fn path(number: usize) -> Option<usize> {
    match number {
        nr::OPEN
        | nr::STAT
        | nr::LSTAT
        | nr::ACCESS
        | nr::READLINK
        | nr::CHDIR
        | nr::TRUNCATE
        | nr::EXECVE => Some(0),
        // link, creat, chmod, chown, lchown, utime, statfs, mount, xattrs, utimes
        86 | 85 | 90 | 92 | 94 | 132 | 137 | 165 | 188 | 189 | 191 | 192 | 194 | 195 | 197
        | 198 | 235 => Some(0),
        nr::OPENAT
        | nr::OPENAT2
        | nr::NEWFSTATAT
        | nr::STATX
        | nr::READLINKAT
        | nr::FACCESSAT
        | nr::FACCESSAT2
        | nr::EXECVEAT => Some(1),
        // inotify_add_watch, fchownat, futimesat, linkat, fchmodat, utimensat, name_to_handle_at,
        // open_tree, mount_setattr, fchmodat2, xattrs
        254 | 260 | 261 | 265 | 268 | 280 | 303 | 428 | 442 | 452 | 463 | 464 | 465 | 466 => {
            Some(1)
        }
        nr::FANOTIFY_MARK => Some(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_where_the_kernel_has_them() {
        assert_eq!(descriptors(nr::READ), 1);
        assert_eq!(descriptors(nr::MMAP), 1 << 4);
        assert_eq!(descriptors(nr::DUP3), 3);
        assert_eq!(descriptors(nr::SPLICE), 5);
        assert_eq!(descriptors(nr::GETPID), 0);
        assert_eq!(descriptors(nr::SENDMSG), ALL);
        assert_eq!((descriptors(NUMBERS), descriptors(usize::MAX)), (ALL, ALL));
        assert_eq!((path(nr::OPENAT), path(nr::READ)), (Some(1), None));
    }

    #[test]
    fn memory_names_descriptors() {
        let call = |number, args: [usize; 4]| {
            let [a, b, c, d] = args;
            SystemCall { number, args: [a, b, c, d, 0, 0], return_address: 0 }
        };
        let polled = [5_u64 | 1 << 32, u64::from(u32::MAX), 70];
        let array = polled.as_ptr() as usize;
        for number in [5, 70, 0, 71] {
            let is_named = number == 5 || number == 70;
            assert_eq!(may_name(&call(nr::POLL, [array, 3, 0, 0]), number), is_named);
        }
        assert!(!may_name(&call(nr::PPOLL, [array, 0, 0, 0]), 5));
        assert!(may_name(&call(nr::POLL, [8, 1, 0, 0]), 5), "it cannot be read");
        assert!(may_name(&call(nr::POLL, [array, 1 << 20, 0, 0]), 1), "too many");
        let set = [1_u64 << 5, 1 << 6];
        let set = set.as_ptr() as usize;
        let select = |end, number| may_name(&call(nr::SELECT, [end, 0, set, 0]), number);
        assert!(select(71, 5) && select(71, 70) && !select(70, 70) && !select(71, 6));
        let mut message = [0_u64; 7];
        let send = |message: &[u64; 7]| {
            may_name(&call(nr::SENDMSG, [3, message.as_ptr() as usize, 0, 0]), 5)
        };
        assert!(!send(&message) && may_name(&call(nr::SENDMSG, [5, 0, 0, 0]), 5));
        message[CONTROL_LENGTH] = 16;
        assert!(send(&message));
        assert!(may_name(&call(nr::FORK, [0; 4]), 5));
    }

    #[test]
    fn paths_lead_to_descriptors_through_proc_and_dev() {
        let leads = |path: &core::ffi::CStr| {
            let args = [path.as_ptr() as usize, 0, 0, 0, 0, 0];
            leads_to_descriptors(&SystemCall { number: nr::OPEN, args, return_address: 0 })
        };
        assert!(
            leads(c"/proc/self/fd/3") && leads(c"/proc/self/task/1/fdinfo") && leads(c"/proc/fd")
        );
        assert!(leads(c"/dev/stdin") && leads(c"/dev/fd/0"));
        assert!(!leads(c"/proc/self/cwd") && !leads(c"/proc/mounts") && !leads(c"/fd"));
    }
}
