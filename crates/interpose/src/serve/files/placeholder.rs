//! The descriptor of which all placeholders are duplicates, and the one that pins the mount.
//!
//! The first is an `O_PATH` descriptor of a kernel socket, so that opening it again through `/proc`
//! fails with ENXIO. It stays while the process is admitted. The second keeps the mount from being
//! unmounted while files are open here, as the kernel's open files do. It is closed with the last
//! file, or rather before the next call that may wait, because the program may open another one
//! first.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::abi::{AT_FDCWD, O_CLOEXEC, nr};
use crate::stub;

use super::super::answer::STAT_WORDS;
use super::super::descriptors::{self, OF_PIN, OF_PLACEHOLDER, RLIMIT_NOFILE};
use super::super::facts::Facts;
use super::super::kernel::{BASIC_STATS, Statx};
use super::super::proc;
use super::table;

const F_GETFL: usize = 3;
const O_PATH: usize = 0o1000_0000;
const AF_UNIX: usize = 1;
const SOCK_STREAM: usize = 1;
const NONE: usize = usize::MAX;

static TEMPLATE: AtomicUsize = AtomicUsize::new(NONE);
static PIN: AtomicUsize = AtomicUsize::new(NONE);
/// Of the mount. Set under the lock.
static DEVICE: AtomicU64 = AtomicU64::new(0);

pub(super) fn number() -> Option<usize> {
    Some(TEMPLATE.load(Acquire)).filter(|number| *number != NONE)
}

/// Whether a file may be opened.
pub(super) fn is_ready() -> bool {
    PIN.load(Acquire) != NONE
}

/// Opens both, as far as they are not there. Called under the lock.
pub(super) fn ready(facts: &Facts) -> Option<()> {
    if number().is_none() {
        TEMPLATE.store(descriptors::move_away(socket()?, OF_PLACEHOLDER)?, Release);
    }
    if is_ready() {
        return Some(());
    }
    let opened = open(facts.prefix.address())?;
    let (device, ino) = identity(opened)?;
    let pin = descriptors::move_away(opened, OF_PIN)?;
    if ino != facts.mount.root.ino.0 {
        // Something else is mounted there now.
        descriptors::show(OF_PIN);
        stub::close(pin);
        return None;
    }
    DEVICE.store(device, Relaxed);
    table::count();
    PIN.store(pin, Release);
    Some(())
}

fn socket() -> Option<usize> {
    // SAFETY: it makes a descriptor.
    let socket = unsafe { stub::call(nr::SOCKET, [AF_UNIX, SOCK_STREAM | O_CLOEXEC, 0]) };
    let socket = usize::try_from(socket).ok()?;
    let opened = open(proc::link_of(socket).as_ptr() as usize);
    stub::close(socket);
    opened
}

fn open(path: usize) -> Option<usize> {
    // SAFETY: the path is a string of ours.
    let opened = unsafe { stub::call(nr::OPENAT, [AT_FDCWD, path, O_PATH | O_CLOEXEC]) };
    usize::try_from(opened).ok()
}

/// The directory that is mounted, while files may be open.
pub(super) fn pin() -> Option<usize> {
    Some(PIN.load(Acquire)).filter(|number| *number != NONE)
}

/// Runs `open` where the process has as many descriptors as it may have: with a higher limit, or,
/// if there is none, without the template, which is made again when it is needed. Under the lock.
pub(super) fn with_one_more<R>(open: impl FnOnce() -> R) -> R {
    let mut limits = [0_u64; 2];
    let at = limits.as_mut_ptr() as usize;
    // SAFETY: the kernel writes into `limits`.
    unsafe { stub::call(nr::PRLIMIT64, [0, RLIMIT_NOFILE, 0, at]) };
    let higher = [limits[1].min(limits[0].saturating_add(1)), limits[1]];
    if higher == limits {
        forget_template();
        return open();
    }
    let set = |limits: &[u64; 2]| {
        // SAFETY: the kernel reads the limits.
        unsafe { stub::call(nr::PRLIMIT64, [0, RLIMIT_NOFILE, limits.as_ptr() as usize, 0]) }
    };
    set(&higher);
    let result = open();
    set(&limits);
    result
}

pub(super) fn device() -> u64 {
    DEVICE.load(Relaxed)
}

/// Whether the number leads to a placeholder still, also in a child, whose descriptors are others.
pub(super) fn is_at(number: usize) -> bool {
    // SAFETY: it changes nothing.
    let flags = unsafe { stub::call(nr::FCNTL, [number, F_GETFL, 0]) };
    let found = || Statx::of_descriptor(number, BASIC_STATS);
    usize::try_from(flags).is_ok_and(|flags| flags & O_PATH != 0)
        && found().is_some_and(|found| found.is_socket())
}

/// The device and the inode behind a descriptor.
pub(super) fn identity(descriptor: usize) -> Option<(u64, u64)> {
    let mut stat = [0_u64; STAT_WORDS];
    // SAFETY: the kernel writes into `stat`.
    let result = unsafe { stub::call(nr::FSTAT, [descriptor, stat.as_mut_ptr() as usize]) };
    (result == 0).then_some((stat[0], stat[1]))
}

/// The mount may be unmounted, unless files are open.
pub(super) fn unpin() {
    if !is_ready() || !table::is_one() {
        return;
    }
    let pin = PIN.swap(NONE, AcqRel);
    if pin != NONE {
        descriptors::show(OF_PIN);
        stub::close(pin);
        table::uncount();
    }
}

/// Closes both. The numbers that were duplicated stay.
pub(in super::super) fn forget() {
    unpin();
    forget_template();
}

fn forget_template() {
    let number = TEMPLATE.swap(NONE, AcqRel);
    if number != NONE {
        descriptors::show(OF_PLACEHOLDER);
        stub::close(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_cannot_be_opened() {
        let socket = socket().expect("a socket");
        let path = format!("/proc/self/fd/{socket}");
        let again = std::fs::File::open(path).expect_err("a socket");
        assert!(is_at(socket) && !is_at(0));
        stub::close(socket);
        assert!(!is_at(socket));
        assert_eq!(again.raw_os_error(), Some(6));
    }
}
