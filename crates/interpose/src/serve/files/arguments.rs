//! Finds the descriptors that a call names: by its arguments, in memory, or by a path.

use linux_raw_sys::ioctl::{FICLONE, FICLONERANGE, FIDEDUPERANGE};
use linux_raw_sys::loop_device::{LOOP_CHANGE_FD, LOOP_CONFIGURE, LOOP_SET_FD};

use crate::call::SystemCall;
use crate::syscalls::{Names, OnFile};

use super::super::memory;

/// In `/dev`, names that begin so lead to descriptors; in `/proc`, paths that contain
/// [`OF_DESCRIPTORS`].
const IN_DEV: [&[u8]; 3] = [b"fd", b"std", b".."];
const OF_DESCRIPTORS: &[u8] = b"/fd";
/// Longer arrays of `poll` are not looked at.
const POLLED_MAX: usize = 256;
/// The word of a `struct msghdr`.
const CONTROL_LENGTH: usize = 5;
/// These requests of `ioctl` name a second descriptor.
const NAME_OTHERS: [u32; 6] =
    [FICLONE, FICLONERANGE, FIDEDUPERANGE, LOOP_SET_FD, LOOP_CHANGE_FD, LOOP_CONFIGURE];

/// The descriptors that a call reaches, if its arguments alone say which.
pub(super) fn listed(call: &SystemCall) -> Option<impl Iterator<Item = usize>> {
    let is_listed = matches!(call.row().names, Names::In(_)) && !names_others(call);
    (is_listed && !leads_to_descriptors(call)).then(|| call.descriptors())
}

/// Whether a call may reach this descriptor.
pub(super) fn may_reach(call: &SystemCall, number: usize) -> bool {
    names_others(call) || may_name(call, number) || leads_to_descriptors(call)
}

/// Whether the call names a descriptor beside the one of its file.
fn names_others(call: &SystemCall) -> bool {
    call.row().file == OnFile::Ioctl && NAME_OTHERS.contains(&(call.args[1] as u32))
}

/// Whether a call may name this descriptor. The kernel reads the memory again, but a program that
/// changes it meanwhile cannot know what the kernel sees.
fn may_name(call: &SystemCall, number: usize) -> bool {
    let [first, second, third, fourth, ..] = call.args;
    match call.row().names {
        Names::In(_) => call.descriptors().any(|named| named == number),
        Names::Polled => is_polled(first, second as u32 as usize, number),
        Names::Selected => {
            let is_in = |set: usize| set != 0 && is_selected(set, number);
            (number as u64) < (first as u32).into()
                && [second, third, fourth].into_iter().any(is_in)
        }
        // The socket, and descriptors among the control data.
        Names::Sent => {
            let sends = |message: [i64; 7]| message[CONTROL_LENGTH] != 0;
            first as u32 as usize == number || memory::words(second).is_none_or(sends)
        }
        // Descriptors outside of the range may be shared with another process afterwards.
        Names::Range | Names::Any => true,
    }
}

/// Whether the number is in an array of `struct pollfd`.
fn is_polled(array: usize, count: usize, number: usize) -> bool {
    const POLLED: usize = 8;
    let is_at = |at| {
        memory::words::<1>(array + at * POLLED).is_none_or(|[it]| it as u32 as usize == number)
    };
    count > POLLED_MAX || !memory::is_range(array, count * POLLED) || (0..count).any(is_at)
}

/// Whether the number is in an `fd_set`.
fn is_selected(set: usize, number: usize) -> bool {
    let word = memory::words::<1>(set.wrapping_add(number / 64 * 8));
    word.is_none_or(|[bits]| bits >> (number % 64) & 1 != 0)
}

/// Whether a path of the call may lead to a descriptor.
#[inline]
pub(super) fn leads_to_descriptors(call: &SystemCall) -> bool {
    call.paths().any(leads_to_descriptor)
}

/// Most paths are told by their first two bytes.
#[inline]
fn leads_to_descriptor(path: usize) -> bool {
    memory::byte(path) == Some(b'/')
        && matches!(memory::byte(path + 1), Some(b'p' | b'd' | b'/' | b'.'))
        && leads_from_root(path)
}

#[inline(never)]
fn leads_from_root(path: usize) -> bool {
    let Some(at) = memory::first_component(path) else { return false };
    if memory::starts_with(at, b"dev/") {
        let below = memory::first_component(at + b"dev".len());
        let begins = |at| IN_DEV.iter().any(|start| memory::starts_with(at, start));
        return below.is_some_and(begins);
    }
    memory::starts_with(at, b"proc/") && memory::contains(at + b"proc".len(), OF_DESCRIPTORS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::nr;

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
        assert!(leads(c"//proc/self/fd/3") && leads(c"/.//./proc/self/fd/3"));
        assert!(leads(c"/dev//fd/0") && leads(c"/dev/./fd/0") && leads(c"/dev/../proc/self/fd/0"));
        assert!(!leads(c"proc/self/fd/3") && !leads(c"/.proc/self/fd/3") && !leads(c"/dev/null"));
        assert!(!leads(c"/dev/shm/fd/3"), "a mount may lie there");
        assert!(!leads(c"/proc/self/cwd") && !leads(c"/proc/mounts") && !leads(c"/fd"));
    }
}
