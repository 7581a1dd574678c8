//! The working directory, as far as relative paths need it.
//!
//! It is found when a relative path is first used, and forgotten with each `chdir`, which is made
//! here. A counter before and one behind the call show whether it is under way: a directory that
//! was found meanwhile is not kept. If a handler jumps out of the call, the counters differ from
//! then on, and relative paths go to the kernel.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use warren_base::Ino;
use warren_proto::{Capability, InodeRef};

use crate::abi::{PAGE, nr};
use crate::call::SystemCall;
use crate::fleet::{self, Found};
use crate::stub;

use super::facts::Facts;
use super::kernel::{MNT_ID, Statx};
use super::lock::{PATH, Room};

/// After a failure, so many relative paths go to the kernel before it is tried again.
const PATHS_BEFORE_RETRY: usize = 256;
const _: () = assert!(PATH == PAGE);

static BEGUN: AtomicUsize = AtomicUsize::new(0);
static ENDED: AtomicUsize = AtomicUsize::new(0);

/// What was found: twice the count of `chdir` for which it holds, and 1 if it is outside. Odd
/// versions are being written.
static VERSION: AtomicUsize = AtomicUsize::new(0);
static FOUND_AT: AtomicUsize = AtomicUsize::new(usize::MAX);
static INO: AtomicU64 = AtomicU64::new(0);
static CAPABILITY: AtomicU64 = AtomicU64::new(0);
static RETRY: AtomicUsize = AtomicUsize::new(0);

/// Where relative paths begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Directory {
    Inside(InodeRef),
    /// It is not in the mount, or it is not to be looked for now.
    Elsewhere,
    Unknown,
}

/// `chdir` and `fchdir`.
pub(crate) fn change(call: &SystemCall) -> isize {
    BEGUN.fetch_add(1, AcqRel);
    // SAFETY: the program makes this call.
    let result = unsafe { stub::call(call.number, call.args) };
    ENDED.fetch_add(1, AcqRel);
    result
}

/// The count of `chdir`, if none is under way.
fn quiet() -> Option<usize> {
    let ended = ENDED.load(Acquire);
    (BEGUN.load(Acquire) == ended).then_some(ended)
}

pub(crate) fn known() -> Directory {
    let Some(count) = quiet() else { return Directory::Elsewhere };
    let version = VERSION.load(Acquire);
    let found = FOUND_AT.load(Acquire);
    let (ino, capability) = (INO.load(Acquire), CAPABILITY.load(Acquire));
    if !version.is_multiple_of(2) || VERSION.load(Acquire) != version || found >> 1 != count {
        let wait = RETRY.load(Relaxed);
        if wait == 0 {
            return Directory::Unknown;
        }
        RETRY.store(wait - 1, Relaxed);
        return Directory::Elsewhere;
    }
    if found & 1 != 0 {
        return Directory::Elsewhere;
    }
    Directory::Inside(InodeRef { ino: Ino(ino), capability: Capability(capability) })
}

/// Finds it. Called under the lock, with a mount that is as the facts say.
pub(crate) fn find(facts: &Facts, room: &mut Room) -> Directory {
    let Some(count) = quiet() else { return Directory::Elsewhere };
    let found = resolve(facts, room);
    if quiet() != Some(count) {
        return Directory::Elsewhere;
    }
    RETRY.store(if found == Directory::Unknown { PATHS_BEFORE_RETRY } else { 0 }, Relaxed);
    VERSION.fetch_add(1, AcqRel);
    FOUND_AT.store(usize::MAX, Release);
    if let Directory::Inside(inode) = found {
        INO.store(inode.ino.0, Release);
        CAPABILITY.store(inode.capability.0, Release);
    }
    match found {
        Directory::Inside(_) => FOUND_AT.store(count << 1, Release),
        Directory::Elsewhere => FOUND_AT.store(count << 1 | 1, Release),
        Directory::Unknown => {}
    }
    VERSION.fetch_add(1, AcqRel);
    found
}

/// Unknown if it is in the mount, but cannot be named.
fn resolve(facts: &Facts, room: &mut Room) -> Directory {
    let here = c".".as_ptr() as usize;
    let Some(stat) = Statx::of(here, MNT_ID) else { return Directory::Unknown };
    if stat.mount_id() != facts.mount.id || stat.device() != facts.mount.device {
        return Directory::Elsewhere;
    }
    let Some(path) = path(&mut room.path) else { return Directory::Unknown };
    let Some(rest) = facts.prefix.rest(path) else { return Directory::Unknown };
    match fleet::directory(&mut room.client, rest) {
        Found::Is((inode, attr)) if attr.ino == stat.ino() => Directory::Inside(inode),
        _ => Directory::Unknown,
    }
}

/// The path of the working directory.
pub(crate) fn path(room: &mut [u8; PATH]) -> Option<&[u8]> {
    let args = [room.as_mut_ptr() as usize, room.len()];
    // SAFETY: the kernel writes into `room`.
    let length = usize::try_from(unsafe { stub::call(nr::GETCWD, args) }).ok()?;
    // With its final zero. A path that does not lead here from the root begins with a word.
    room.get(..length.checked_sub(1)?).filter(|path| path.starts_with(b"/"))
}

/// The capability was that of an admission that has ended.
pub(crate) fn forget() {
    VERSION.fetch_add(1, AcqRel);
    FOUND_AT.store(usize::MAX, Release);
    RETRY.store(0, Relaxed);
    VERSION.fetch_add(1, AcqRel);
}

/// In a child of `fork`: a thread of the parent may have been in `chdir` or in `find`. A child that
/// forks in the middle of either has jumped out of it.
pub(crate) fn after_fork() {
    VERSION.store(0, Relaxed);
    FOUND_AT.store(usize::MAX, Relaxed);
    RETRY.store(0, Relaxed);
    ENDED.store(BEGUN.load(Relaxed), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_known_between_two_changes() {
        let inside = InodeRef { ino: Ino(9), capability: Capability(3) };
        forget();
        assert_eq!(known(), Directory::Unknown);
        let count = quiet().expect("no chdir is under way");
        INO.store(9, Relaxed);
        CAPABILITY.store(3, Relaxed);
        FOUND_AT.store(count << 1, Relaxed);
        assert_eq!(known(), Directory::Inside(inside));
        let call = SystemCall { number: nr::CHDIR, args: [0; 6], return_address: 0 };
        assert!(change(&call) < 0);
        assert_eq!(known(), Directory::Unknown, "a chdir has been tried");
        FOUND_AT.store(quiet().expect("none is under way") << 1, Relaxed);
        BEGUN.fetch_add(1, Relaxed);
        assert_eq!(known(), Directory::Elsewhere, "a chdir is under way");
        ENDED.fetch_add(1, Relaxed);
        FOUND_AT.store(quiet().expect("none is under way") << 1 | 1, Relaxed);
        assert_eq!(known(), Directory::Elsewhere);
        forget();
        RETRY.store(1, Relaxed);
        assert_eq!((known(), known()), (Directory::Elsewhere, Directory::Unknown));
    }
}
