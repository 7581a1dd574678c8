//! The kernel's description of a file: `statx`, and the structures that `stat` and `statx` fill.

pub(crate) use linux_raw_sys::general::{
    STATX_BASIC_STATS as BASIC_STATS, STATX_BTIME as BTIME, STATX_MNT_ID as MNT_ID,
    STATX_MNT_ID_UNIQUE as MNT_ID_UNIQUE, STATX_TYPE as TYPE,
};

use linux_raw_sys::general::{S_IFMT, S_IFREG, S_IFSOCK, STATX_ATTR_MOUNT_ROOT, statx};
use warren_base::Ino;

use crate::abi::{
    AT_EMPTY_PATH, AT_FDCWD, AT_NO_AUTOMOUNT, AT_STATX_DONT_SYNC, AT_STATX_FORCE_SYNC,
    AT_SYMLINK_NOFOLLOW, nr,
};
use crate::inode_numbers::ino_of;
use crate::stub;

/// A look mounts nothing.
const FLAGS: usize = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT;

pub(crate) const MOUNT_ROOT: u64 = STATX_ATTR_MOUNT_ROOT as u64;

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Statx(pub(crate) statx);

const _: () = assert!(size_of::<Statx>() == 256, "it has no padding");

impl Statx {
    pub(crate) const fn new() -> Self {
        // SAFETY: zeros are a legal value.
        Self(unsafe { core::mem::zeroed() })
    }

    pub(crate) fn words(&self) -> &[u64; size_of::<Self>() / size_of::<u64>()] {
        // SAFETY: the kernel's structure is aligned to words, and has no padding.
        unsafe { &*(&raw const self.0).cast() }
    }

    /// The attributes of the file at a path that may begin at a descriptor. `path` is the address
    /// of a string. A link is not followed.
    pub(crate) fn of_path(descriptor: Option<usize>, path: usize, mask: u32) -> Option<Self> {
        Self::at(descriptor.unwrap_or(AT_FDCWD), path, FLAGS, mask)
    }

    /// The attributes of an open file, as the kernel has them: the file system is not asked.
    pub(crate) fn of_descriptor(descriptor: usize, mask: u32) -> Option<Self> {
        Self::at(descriptor, c"".as_ptr() as usize, AT_EMPTY_PATH | AT_STATX_DONT_SYNC, mask)
    }

    /// The attributes of an open file, as the file system has them now.
    pub(crate) fn asked_for(descriptor: usize, mask: u32) -> Option<Self> {
        Self::at(descriptor, c"".as_ptr() as usize, AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, mask)
    }

    fn at(descriptor: usize, path: usize, flags: usize, mask: u32) -> Option<Self> {
        let mut found = Self::new();
        let args = [descriptor, path, flags, mask as usize, &raw mut found.0 as usize];
        // SAFETY: the kernel checks the path, and writes into `found`.
        let result = unsafe { stub::call(nr::STATX, args) };
        (result == 0).then_some(found)
    }

    pub(crate) fn mask(&self) -> u32 {
        self.0.stx_mask
    }

    /// The inode, if it is one of the mount.
    pub(crate) fn ino(&self) -> Ino {
        ino_of(self.0.stx_ino)
    }

    pub(crate) fn is_regular(&self) -> bool {
        self.kind() == S_IFREG
    }

    pub(crate) fn is_socket(&self) -> bool {
        self.kind() == S_IFSOCK
    }

    fn kind(&self) -> u32 {
        u32::from(self.0.stx_mode) & S_IFMT
    }

    pub(crate) fn mount_id(&self) -> u64 {
        self.0.stx_mnt_id
    }

    /// Major and minor number.
    pub(crate) fn device(&self) -> (u32, u32) {
        (self.0.stx_dev_major, self.0.stx_dev_minor)
    }
}

/// Two numbers in one word, the first one at the lower address.
pub(crate) const fn pair(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}
