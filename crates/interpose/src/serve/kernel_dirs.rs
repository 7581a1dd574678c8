//! Directories in the mount that the program has open through the kernel: paths may begin there.
//!
//! The kernel is asked for the inode behind the descriptor each time, which costs no request. What
//! is kept is the capability for the inode, by its number.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use warren_base::Ino;
use warren_proto::{Capability, InodeRef};

use super::facts::{self, Admission};
use super::kernel::{MNT_ID, Statx};
use super::lock::Room;
use super::why::Why;
use super::{admission, proc};
use crate::fleet::{self, Found};

const PLACES: usize = 64;

/// An inode's capability, and the admission to which it belongs. Written under the lock.
struct Place {
    version: AtomicUsize,
    ino: AtomicU64,
    capability: AtomicU64,
    admission: AtomicUsize,
}

pub(crate) struct KernelDirs([Place; PLACES]);

impl Place {
    fn of(ino: Ino) -> &'static Self {
        &KernelDirs::here().0[ino.0 as usize % PLACES]
    }

    fn get(&self, ino: Ino) -> Option<Capability> {
        let version = self.version.load(Acquire);
        let is_its =
            self.ino.load(Acquire) == ino.0 && self.admission.load(Acquire) == facts::admissions();
        let capability = self.capability.load(Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Acquire) == version;
        (is_its && is_whole).then_some(Capability(capability))
    }

    fn store(&self, InodeRef { ino, capability }: InodeRef) {
        let version = self.version.load(Relaxed);
        self.version.store(version | 1, Release);
        self.ino.store(ino.0, Release);
        self.capability.store(capability.0, Release);
        self.admission.store(facts::admissions(), Release);
        self.version.store((version | 1).wrapping_add(1), Release);
    }
}

/// The directory behind a descriptor of the kernel, if it lies in the mount.
pub(super) fn get(descriptor: usize, admission: &Admission) -> Result<InodeRef, Why> {
    let stat = Statx::of_descriptor(descriptor, MNT_ID).ok_or(Why::Descriptor)?;
    let mount = &admission.facts.mount;
    if stat.mount_id() != mount.id || stat.device() != mount.device {
        return Err(Why::Descriptor);
    }
    match Place::of(stat.ino()).get(stat.ino()) {
        Some(capability) => Ok(InodeRef { ino: stat.ino(), capability }),
        None => admission::under_lock(admission, |room| {
            resolve(descriptor, stat.ino(), admission, room)
        }),
    }
}

/// Finds the directory by its path, which must lead to the same inode.
fn resolve(
    descriptor: usize,
    ino: Ino,
    admission: &Admission,
    room: &mut Room,
) -> Result<InodeRef, Why> {
    let path = proc::target_of(descriptor, &mut room.path).ok_or(Why::Descriptor)?;
    let rest = admission.facts.prefix.rest(path).ok_or(Why::Descriptor)?;
    match fleet::directory(&mut room.client, rest) {
        Found::Is((inode, _)) if inode.ino == ino => {
            Place::of(ino).store(inode);
            Ok(inode)
        }
        _ => Err(Why::Descriptor),
    }
}
