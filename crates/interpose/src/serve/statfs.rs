//! `statfs` and `fstatfs`: what the fleet counts, in the form that the kernel gives it for this
//! mount. The kernel keeps no such answer: each of its own is a request to the mount's front.

use linux_raw_sys::general::FUSE_SUPER_MAGIC;
use warren_base::limits::{BLOCK_SIZE, NAME_MAX};
use warren_proto::StatFs;

use crate::fleet::{self, Client};

use super::facts::{Admission, MountFacts};
use super::why::Why;
use super::{admission, answer};

/// `struct statfs`, in words.
const WORDS: usize = 15;

/// `fstatfs` of a file that is served. `None` if the kernel must make the call.
pub(super) fn of_descriptor(buffer: usize) -> Option<isize> {
    let admission = admission::current()?;
    admission::under_lock(&admission, |room| give(&mut room.client, buffer, &admission)).ok()
}

pub(super) fn give(
    client: &mut Client,
    buffer: usize,
    admission: &Admission,
) -> Result<isize, Why> {
    let volume = fleet::volume(client).ok_or(Why::Kernel)?;
    answer::write_words(&words(&volume, &admission.facts.mount), buffer)
}

/// The kernel's layout. It leaves the id of a file system of FUSE empty.
fn words(volume: &StatFs, mount: &MountFacts) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[..7].copy_from_slice(&[
        FUSE_SUPER_MAGIC.into(),
        BLOCK_SIZE as u64,
        volume.blocks,
        volume.blocks_free,
        volume.blocks_available,
        volume.files,
        volume.files_free,
    ]);
    words[8..11].copy_from_slice(&[NAME_MAX as u64, BLOCK_SIZE as u64, mount.options.shown]);
    words
}
