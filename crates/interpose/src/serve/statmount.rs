//! The kernel's description of one mount (`statmount`, Linux 6.8). Mountinfo, which has the text of
//! all mounts, takes ten times as long and more.
//!
//! A process with a seccomp filter does without: the filter may end it for a call that few know.

use core::mem::offset_of;

use linux_raw_sys::general::{
    MNT_ID_REQ_SIZE_VER0, STATMOUNT_FS_SUBTYPE, STATMOUNT_FS_TYPE, STATMOUNT_MNT_POINT,
    STATMOUNT_MNT_ROOT, statmount,
};

use crate::abi::{PR_GET_SECCOMP, nr};
use crate::stub;

use super::kernel::{MNT_ID_UNIQUE, Statx};
use super::lock::TEXT;

const NEEDED: u64 = (STATMOUNT_MNT_ROOT | STATMOUNT_MNT_POINT | STATMOUNT_FS_TYPE) as u64;
/// Kernels older than this part of the call leave it out.
const SUBTYPE: u64 = STATMOUNT_FS_SUBTYPE as u64;
/// In the answer: the mask of what is there, and the strings.
const MASK: usize = offset_of!(statmount, mask);
const STRINGS: usize = size_of::<statmount>();

/// The kernel's answer about a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen<'a> {
    /// A mount of ours, at this path.
    Ours(&'a [u8]),
    Other,
    /// The kernel does not say.
    Unknown,
}

/// The mount of a file, if the `statx` was asked for its unique number.
pub(crate) fn of<'a>(found: &Statx, text: &'a mut [u8; TEXT]) -> Seen<'a> {
    if found.mask() & MNT_ID_UNIQUE == 0 || is_filtered() {
        return Seen::Unknown;
    }
    // `struct mnt_id_req`: its size, the mount, and what is asked for.
    let request = [u64::from(MNT_ID_REQ_SIZE_VER0), found.mount_id(), NEEDED | SUBTYPE];
    let args = [request.as_ptr() as usize, text.as_mut_ptr() as usize, TEXT, 0];
    // SAFETY: the kernel reads `request`, and writes at most `TEXT` bytes into `text`.
    if unsafe { stub::call(nr::STATMOUNT, args) } != 0 {
        return Seen::Unknown;
    }
    parse(text).unwrap_or(Seen::Unknown)
}

fn is_filtered() -> bool {
    // SAFETY: it changes nothing.
    unsafe { stub::call(nr::PRCTL, [PR_GET_SECCOMP]) != 0 }
}

/// Parses a `struct statmount`. `None` if a field that is needed is not there.
fn parse(text: &[u8]) -> Option<Seen<'_>> {
    let mask = u64::from_ne_bytes(*text.get(MASK..)?.first_chunk()?);
    let string = |at: usize| {
        let place = u32::from_ne_bytes(*text.get(at..)?.first_chunk()?);
        let rest = text.get(STRINGS + place as usize..)?;
        Some(&rest[..rest.iter().position(|byte| *byte == 0)?])
    };
    if mask & NEEDED != NEEDED {
        return None;
    }
    if string(offset_of!(statmount, fs_type))? != b"fuse" {
        return Some(Seen::Other);
    }
    if mask & SUBTYPE == 0 {
        return None;
    }
    let is_ours = string(offset_of!(statmount, fs_subtype))? == b"warren";
    if !is_ours || string(offset_of!(statmount, mnt_root))?.ends_with(b"//deleted") {
        return Some(Seen::Other);
    }
    string(offset_of!(statmount, mnt_point)).map(Seen::Ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_mounts_are_not_ours() {
        let mut text = [0; TEXT];
        for path in [c"/proc", c"/"] {
            let found =
                Statx::of_path(None, path.as_ptr() as usize, MNT_ID_UNIQUE).expect("it is there");
            // The number and the call came with the same kernel.
            let is_said = found.mask() & MNT_ID_UNIQUE != 0 && !is_filtered();
            assert_eq!(
                of(&found, &mut text),
                if is_said { Seen::Other } else { Seen::Unknown },
                "{path:?}"
            );
        }
    }

    #[test]
    fn a_mount_of_ours_is_known_by_its_kind() {
        let text = |kind: &str, sub: &str, root: &str| {
            let mut text = vec![0; STRINGS];
            text[MASK..MASK + 8].copy_from_slice(&(NEEDED | SUBTYPE).to_ne_bytes());
            for (at, string) in [
                (offset_of!(statmount, fs_type), kind),
                (offset_of!(statmount, fs_subtype), sub),
                (offset_of!(statmount, mnt_root), root),
                (offset_of!(statmount, mnt_point), "/mnt/a b"),
            ] {
                let place = (text.len() - STRINGS) as u32;
                text[at..at + 4].copy_from_slice(&place.to_ne_bytes());
                text.extend(string.bytes().chain([0]));
            }
            text
        };
        let ours = text("fuse", "warren", "/");
        assert_eq!(parse(&ours), Some(Seen::Ours(b"/mnt/a b")));
        assert_eq!(parse(&text("fuse", "other", "/")), Some(Seen::Other));
        assert_eq!(parse(&text("ext4", "warren", "/")), Some(Seen::Other));
        assert_eq!(parse(&text("fuse", "warren", "/a//deleted")), Some(Seen::Other));
        let mut older = ours.clone();
        older[MASK..MASK + 8].copy_from_slice(&NEEDED.to_ne_bytes());
        assert_eq!(parse(&older), None, "it may be ours");
        for length in 0..ours.len() - 1 {
            assert!(!matches!(parse(&ours[..length]), Some(Seen::Other)), "cut at {length}");
        }
        assert_eq!(parse(&[0; STRINGS]), None);
    }
}
