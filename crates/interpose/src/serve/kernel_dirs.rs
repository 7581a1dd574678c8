//! Directories in the mount that the program has open through the kernel: paths may begin there.
//!
//! The kernel is asked for the inode behind the descriptor each time, which costs no request. What
//! is kept is the capability for the inode, by its number.

use warren_base::Ino;
use warren_proto::{Capability, InodeRef};

use super::facts::{self, Admission};
use super::kernel::{MNT_ID, Statx};
use super::lock::Room;
use super::versioned::Versioned;
use super::why::Why;
use super::{admission, proc};
use crate::fleet::{self, Found};

const PLACES: usize = 64;

/// An inode, its capability, and the admission to which that belongs.
struct Place(Versioned<3>);

pub(crate) struct KernelDirs([Place; PLACES]);

impl Place {
    fn of(ino: Ino) -> &'static Self {
        &KernelDirs::here().0[ino.0 as usize % PLACES]
    }

    fn get(&self, ino: Ino) -> Option<Capability> {
        let [of, capability, admission] = self.0.get()?;
        let is_its = of == ino.0 && admission == facts::admissions() as u64;
        is_its.then_some(Capability(capability))
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
            let InodeRef { ino, capability } = inode;
            Place::of(ino).0.set([ino.0, capability.0, facts::admissions() as u64]);
            Ok(inode)
        }
        _ => Err(Why::Descriptor),
    }
}
