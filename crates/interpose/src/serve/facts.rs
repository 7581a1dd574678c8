//! The facts that answers rest on while the process is admitted: the mount and the identity.
//!
//! The facts of an admission are written before it is published, and not changed. A reader keeps a
//! reference, and asks before it answers whether the admission is still the same. There are
//! [`SLOTS`] places, so a place is written again eight admissions later. A process has no more than
//! [`ADMISSIONS_MAX`].

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
};

use warren_proto::{Attr, InodeRef};

use super::identity::Identity;
use super::kernel::{BASIC_STATS, BTIME, MNT_ID, MNT_ID_UNIQUE, MOUNT_ROOT, Statx};
use super::mountinfo::Options;
use super::name::Prefix;
use crate::fleet::Client;

const SLOTS: usize = 8;
/// Admissions of a process, counted with those of its parents.
pub(crate) const ADMISSIONS_MAX: usize = 1024;

pub(crate) struct Facts {
    pub prefix: Prefix,
    pub identity: Identity,
    pub mount: MountFacts,
}

/// The kernel adds these to the attributes of a file on this mount.
#[derive(Clone, Copy)]
pub(crate) struct MountFacts {
    /// Major and minor number.
    pub device: (u32, u32),
    pub id: u64,
    /// The id of the mount that is never used again. `None` if the kernel has no such ids.
    pub unique_id: Option<u64>,
    pub has_btime: bool,
    pub attributes_mask: u64,
    pub block_size: u32,
    pub options: Options,
    /// The options without rules that the fleet has added.
    pub asked: Options,
    /// The directory that is mounted.
    pub root: InodeRef,
}

impl MountFacts {
    /// Asks the kernel for the root of the mount, whose path is a string at `path`.
    pub(crate) fn learn(path: usize, root: &Statx, options: Options) -> Option<Self> {
        let unique = Statx::of_path(None, path, BASIC_STATS | BTIME | MNT_ID_UNIQUE)?;
        // Other attributes, or other facts, are none of FUSE.
        let attributes = root.0.stx_attributes;
        if attributes != MOUNT_ROOT || root.mask() & !BTIME != BASIC_STATS | MNT_ID {
            return None;
        }
        Some(Self {
            device: root.device(),
            id: root.mount_id(),
            unique_id: (unique.mask() & MNT_ID_UNIQUE != 0).then(|| unique.mount_id()),
            has_btime: root.mask() & BTIME != 0,
            attributes_mask: root.0.stx_attributes_mask,
            block_size: root.0.stx_blksize,
            options,
            asked: options,
            root: InodeRef::ROOT,
        })
    }

    /// Whether these are the attributes of the same root.
    pub(crate) fn agrees(&self, root: &Statx, attr: &Attr) -> bool {
        let Statx(seen) = root;
        let mut times = [
            (seen.stx_mtime, attr.mtime),
            (seen.stx_ctime, attr.ctime),
            (seen.stx_btime, attr.btime),
        ];
        if !self.has_btime {
            times[2] = times[0];
        }
        let mode = attr.kind.mode_bits() | u32::from(attr.mode);
        root.ino() == attr.ino
            && (seen.stx_uid, seen.stx_gid) == (attr.uid, attr.gid)
            && u32::from(seen.stx_mode) == mode
            && times
                .iter()
                .all(|(seen, time)| (seen.tv_sec, seen.tv_nsec) == (time.seconds(), time.nanos()))
    }
}

/// The facts of the last admissions, by their numbers.
pub(crate) struct Slots([UnsafeCell<Facts>; SLOTS]);

// SAFETY: a slot is written under the lock, while no admission refers to it.
unsafe impl Sync for Slots {}

/// The numbers of admissions.
pub(crate) struct Admissions {
    /// The number of the admission that is current, or 0.
    current: AtomicUsize,
    last: AtomicUsize,
}

/// An admission that was current when it was looked up.
#[derive(Clone, Copy)]
pub(crate) struct Admission {
    number: usize,
    pub facts: &'static Facts,
}

pub(crate) fn current() -> Option<Admission> {
    let number = Admissions::here().current.load(Acquire);
    // SAFETY: a published slot is not written, until eight admissions later.
    let facts = unsafe { &*Slots::here().0[number % SLOTS].get() };
    (number != 0).then_some(Admission { number, facts })
}

impl Admission {
    pub(crate) fn is_current(&self) -> bool {
        Admissions::here().current.load(SeqCst) == self.number
    }
}

pub(crate) fn is_any_current() -> bool {
    Admissions::here().current.load(Relaxed) != 0
}

/// The number of admissions so far.
pub(crate) fn admissions() -> usize {
    Admissions::here().last.load(Relaxed)
}

/// Makes the facts current, when none are.
pub(crate) fn publish(_: &mut Client, prefix: &Prefix, identity: Identity, mount: MountFacts) {
    let number = Admissions::here().last.load(Relaxed) + 1;
    let slot = Slots::here().0[number % SLOTS].get();
    // SAFETY: the holder of the lock lends its token, and no current admission has this slot.
    let facts = unsafe { &mut *slot };
    facts.prefix.copy(prefix);
    facts.identity = identity;
    facts.mount = mount;
    Admissions::here().last.store(number, Relaxed);
    Admissions::here().current.store(number, SeqCst);
}

/// Makes no facts current any more.
pub(crate) fn withdraw() {
    Admissions::here().current.swap(0, AcqRel);
}
