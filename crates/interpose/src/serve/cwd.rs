//! The working directory, as far as relative paths need it.
//!
//! It is found when a relative path is first used, and forgotten with each `chdir`, which is made
//! here. A counter before and one behind the call show whether it is under way: a directory that
//! was found meanwhile is not kept. If a handler jumps out of the call, the counters differ from
//! then on, and relative paths go to the kernel.

use core::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
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
use super::versioned::Versioned;

/// After a failure, so many relative paths go to the kernel before it is tried again.
const PATHS_BEFORE_RETRY: usize = 256;
const _: () = assert!(PATH == PAGE);

/// The working directory, as far as it is known.
pub(crate) struct Cwd {
    /// Calls that change it: begun, and ended.
    begun: AtomicUsize,
    ended: AtomicUsize,
    /// The first word is 0 if nothing is known. Otherwise it is twice the count of `chdir` for
    /// which the directory holds, counted from 1, and 1 more if that is outside. The others are the
    /// inode and its capability.
    found: Versioned<3>,
    retry: AtomicUsize,
}

/// The directory where relative paths begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Directory {
    Inside(InodeRef),
    /// It is not in the mount, or it is not to be looked for now.
    Elsewhere,
    Unknown,
}

/// `chdir` and `fchdir`.
pub(crate) fn change(call: &SystemCall) -> isize {
    Cwd::here().begun.fetch_add(1, AcqRel);
    let result = call.make();
    Cwd::here().ended.fetch_add(1, AcqRel);
    result
}

/// The count of `chdir`, if none is under way.
fn quiet() -> Option<usize> {
    let ended = Cwd::here().ended.load(Acquire);
    (Cwd::here().begun.load(Acquire) == ended).then_some(ended)
}

pub(crate) fn known() -> Directory {
    let (cwd, Some(count)) = (Cwd::here(), quiet()) else { return Directory::Elsewhere };
    let found = cwd.found.get().filter(|[found_at, ..]| found_at >> 1 == count as u64 + 1);
    let Some([found_at, ino, capability]) = found else {
        let wait = cwd.retry.load(Relaxed);
        if wait == 0 {
            return Directory::Unknown;
        }
        cwd.retry.store(wait - 1, Relaxed);
        return Directory::Elsewhere;
    };
    if found_at & 1 != 0 {
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
    let retry = if found == Directory::Unknown { PATHS_BEFORE_RETRY } else { 0 };
    Cwd::here().note(found, count, retry);
    found
}

/// Finds the working directory. It is unknown if it is in the mount, but cannot be named.
fn resolve(facts: &Facts, room: &mut Room) -> Directory {
    let here = c".".as_ptr() as usize;
    let Some(stat) = Statx::of_path(None, here, MNT_ID) else { return Directory::Unknown };
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
    // The length has the zero. A path that does not lead here from the root begins with a word.
    room.get(..length.checked_sub(1)?).filter(|path| path.starts_with(b"/"))
}

impl Cwd {
    /// The capability was that of an admission that has ended.
    pub(crate) fn forget(&self) {
        self.note(Directory::Unknown, 0, 0);
    }

    /// Writes what was found after so many `chdir`. Under the lock.
    fn note(&self, found: Directory, count: usize, retry: usize) {
        self.retry.store(retry, Relaxed);
        let found_at = (count as u64 + 1) << 1;
        self.found.set(match found {
            Directory::Inside(inode) => [found_at, inode.ino.0, inode.capability.0],
            Directory::Elsewhere => [found_at | 1, 0, 0],
            Directory::Unknown => [0; 3],
        });
    }

    /// In a child of `fork`: a thread of the parent may have been in `chdir` or in `find`. A child
    /// that forks in the middle of either has jumped out of it.
    pub(crate) fn begin_again(&self) {
        self.forget();
        self.ended.store(self.begun.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_known_between_two_changes() {
        let inside = Directory::Inside(InodeRef { ino: Ino(9), capability: Capability(3) });
        let cwd = Cwd::here();
        cwd.forget();
        assert_eq!(known(), Directory::Unknown);
        let count = || quiet().expect("no chdir is under way");
        cwd.note(inside, count(), 0);
        assert_eq!(known(), inside);
        let call = SystemCall { number: nr::CHDIR, args: [0; 6], return_address: 0 };
        assert!(change(&call) < 0);
        assert_eq!(known(), Directory::Unknown, "a chdir has been tried");
        cwd.note(inside, count(), 0);
        cwd.begun.fetch_add(1, Relaxed);
        assert_eq!(known(), Directory::Elsewhere, "a chdir is under way");
        cwd.ended.fetch_add(1, Relaxed);
        assert_eq!(known(), Directory::Unknown, "it was");
        cwd.note(Directory::Elsewhere, count(), 0);
        assert_eq!(known(), Directory::Elsewhere);
        cwd.note(Directory::Unknown, count(), 1);
        assert_eq!((known(), known()), (Directory::Elsewhere, Directory::Unknown));
    }

    #[test]
    fn a_child_of_fork_knows_nothing_and_has_no_chdir_under_way() {
        // SAFETY: zeros are legal values of its words.
        let cwd: Cwd = unsafe { core::mem::zeroed() };
        cwd.note(Directory::Elsewhere, 0, 5);
        cwd.begun.fetch_add(1, Relaxed);
        cwd.begin_again();
        assert_eq!(cwd.begun.load(Relaxed), cwd.ended.load(Relaxed));
        assert_eq!((cwd.found.get(), cwd.retry.load(Relaxed)), (Some([0; 3]), 0));
    }
}
