//! The kernel's description of a file: `statx`, and the structures that `stat` and `statx` fill.

pub(crate) use linux_raw_sys::general::{
    STATX_BASIC_STATS as BASIC_STATS, STATX_BTIME as BTIME, STATX_MNT_ID as MNT_ID,
    STATX_MNT_ID_UNIQUE as MNT_ID_UNIQUE, STATX_TYPE as TYPE,
};

use linux_raw_sys::general::{S_IFMT, S_IFREG, S_IFSOCK, STATX_ATTR_MOUNT_ROOT};
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

/// `struct statx`, in words.
///
/// ```text
///  0 mask, blksize     1 attributes        2 nlink, uid        3 gid, mode
///  4 ino               5 size              6 blocks            7 attributes_mask
///  8 atime 10 btime 12 ctime 14 mtime: seconds, nanoseconds
/// 16 rdev major, minor 17 dev major, minor 18 mnt_id           19 ...
/// ```
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Statx(pub(crate) [u64; 32]);

pub(crate) mod word {
    pub(crate) const MASK_BLKSIZE: usize = 0;
    pub(crate) const ATTRIBUTES: usize = 1;
    pub(crate) const NLINK_UID: usize = 2;
    pub(crate) const GID_MODE: usize = 3;
    pub(crate) const INO: usize = 4;
    pub(crate) const SIZE: usize = 5;
    pub(crate) const BLOCKS: usize = 6;
    pub(crate) const ATTRIBUTES_MASK: usize = 7;
    pub(crate) const ATIME: usize = 8;
    pub(crate) const BTIME: usize = 10;
    pub(crate) const CTIME: usize = 12;
    pub(crate) const MTIME: usize = 14;
    pub(crate) const RDEV: usize = 16;
    pub(crate) const DEV: usize = 17;
    pub(crate) const MNT_ID: usize = 18;
}

const _: () = assert!(size_of::<Statx>() == 256);

impl Statx {
    /// The attributes of the file at a path that may begin at a descriptor. `path` is the address of
    /// a string. A link is not followed.
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
        let mut found = Self([0; 32]);
        let args = [descriptor, path, flags, mask as usize, found.0.as_mut_ptr() as usize];
        // SAFETY: the kernel checks the path, and writes into `found`.
        let result = unsafe { stub::call(nr::STATX, args) };
        (result == 0).then_some(found)
    }

    pub(crate) fn mask(&self) -> u32 {
        self.0[word::MASK_BLKSIZE] as u32
    }

    pub(crate) fn block_size(&self) -> u32 {
        (self.0[word::MASK_BLKSIZE] >> 32) as u32
    }

    /// The inode, if it is one of the mount.
    pub(crate) fn ino(&self) -> Ino {
        ino_of(self.0[word::INO])
    }

    pub(crate) fn is_regular(&self) -> bool {
        self.kind() == S_IFREG
    }

    pub(crate) fn is_socket(&self) -> bool {
        self.kind() == S_IFSOCK
    }

    fn kind(&self) -> u32 {
        (self.0[word::GID_MODE] >> 32) as u32 & S_IFMT
    }

    pub(crate) fn mount_id(&self) -> u64 {
        self.0[word::MNT_ID]
    }

    /// Major and minor number.
    pub(crate) fn device(&self) -> (u32, u32) {
        (self.0[word::DEV] as u32, (self.0[word::DEV] >> 32) as u32)
    }
}

/// Two numbers in one word, the first one at the lower address.
pub(crate) const fn pair(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}
