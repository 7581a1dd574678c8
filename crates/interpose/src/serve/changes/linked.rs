//! Attributes of what a descriptor leads to, named by its link in `/proc`. So the C library changes
//! the mode of a file if a link at the end of its path is not to be followed: it opens the file as
//! a place (`O_PATH`), looks at it, and changes `/proc/self/fd/N`.

use warren_base::FileKind;
use warren_proto::SetAttr;

use crate::fleet::{self, Found, Place, names, watches};

use super::super::facts::Admission;
use super::super::kernel::{MNT_ID, Statx};
use super::super::lock::Room;
use super::super::loss::Loss;
use super::super::name::Name;
use super::super::why::Why;
use super::super::{admission, files, memory, proc};

/// The descriptor whose link the path at this address names.
pub(super) fn descriptor_of(path: usize) -> Option<usize> {
    if !memory::starts_with(path, proc::OF_LINKS) {
        return None;
    }
    let mut name = Name::new();
    name.copy(path).ok()?;
    let number = proc::number(name.bytes().get(proc::OF_LINKS.len()..)?)?;
    i32::try_from(number).ok().and_then(|number| usize::try_from(number).ok())
}

/// The kernel says which inode it is, and its path, by which the client finds the same one.
pub(super) fn set(
    descriptor: usize,
    set: SetAttr,
    admission: &Admission,
) -> Result<Found<()>, Why> {
    let takes_rights = Loss::of_set(&set) != Loss::Nothing;
    if takes_rights && files::holds_numbers() && admission.facts.identity.uid != 0 {
        return Err(Why::Open);
    }
    if let Some(node) = files::directory_of(descriptor) {
        return admission::under_lock(admission, |room| match watches::state() {
            0 => Ok(names::set(&mut room.client, node, set)),
            _ => Err(Why::Watched),
        });
    }
    let found = Statx::of_descriptor(descriptor, MNT_ID).ok_or(Why::Kernel)?;
    if found.mount_id() != admission.facts.mount.id {
        return Err(Why::Outside);
    }
    admission::under_lock(admission, |Room { path, client, .. }| {
        let path = proc::target_of(descriptor, path).ok_or(Why::Kernel)?;
        let path = admission.facts.prefix.rest(path).ok_or(Why::Outside)?;
        let place = Place { path, start: admission.facts.mount.root, follow_last: false };
        if watches::concern(client, place) {
            return Err(Why::Watched);
        }
        match fleet::stat(client, place).0 {
            Found::Is((node, attr))
                if node.ino == found.ino() && attr.kind != FileKind::Symlink =>
            {
                Ok(names::set(client, node, set))
            }
            _ => Err(Why::Kernel),
        }
    })
}
