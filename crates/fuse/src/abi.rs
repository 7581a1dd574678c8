//! The part of the kernel's FUSE ABI, version 7.45, that the front uses: numbers and sizes from
//! `include/uapi/linux/fuse.h`. All integers are in the machine's byte order.

/// The ABI's major version. A kernel with another major version is refused.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version of the ABI whose messages this crate knows.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version that is served: `max_pages`, explicit invalidation, 64-bit flags in
/// `READ` and `WRITE` are all older.
pub(crate) const MINOR_MIN: u32 = 31;
/// The first minor version with [`NOTIFY_INC_EPOCH`].
pub(crate) const MINOR_EPOCH: u32 = 44;

/// Bytes of `fuse_in_header`.
pub(crate) const IN_HEADER: usize = 40;
/// Bytes of `fuse_write_in`.
pub(crate) const WRITE_IN: usize = 40;
/// Bytes of `fuse_out_header`.
pub(crate) const OUT_HEADER: usize = 16;
/// Bytes of `fuse_dirent` before the name.
pub(crate) const DIRENT: usize = 24;
/// Directory entries begin at multiples of this.
pub(crate) const DIRENT_ALIGN: usize = 8;

pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
}

/// Flags of `INIT`. The upper 32 bits are in `flags2`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// `LOOKUP` of `.` and `..` finds inodes that the kernel has forgotten.
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    /// The front applies the umask, which requests then name.
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const ABORT_ERROR: u64 = 1 << 21;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// `SETXATTR` has flags of its own.
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    /// The request and the reply have `flags2`.
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    /// A file that is open with [`super::FOPEN_DIRECT_IO`] can be mapped shared.
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// The kernel supports `NOTIFY_RESEND`.
    pub(crate) const HAS_RESEND: u64 = 1 << 39;
}

/// `fuse_setattr_in.valid`.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Reads and writes through this open bypass the page cache. Mappings still use it.
pub(crate) const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// The page cache keeps its pages of the file at this open.
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;

pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// The page cache writes back. The caller is unknown.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// The write bypasses the page cache: only such a write names the owner of locks.
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
/// The read bypasses the page cache.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
pub(crate) const LK_FLOCK: u32 = 1 << 0;

/// A flag of `SETXATTR`: an access control list clears the set-gid bit.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Commands of `ioctl` (`linux/fs.h`).
pub(crate) mod ioctl {
    pub(crate) const GETFLAGS: u32 = 0x8008_6601;
    pub(crate) const SETFLAGS: u32 = 0x4008_6602;
    pub(crate) const FSGETXATTR: u32 = 0x801c_581f;
    pub(crate) const FSSETXATTR: u32 = 0x401c_5820;
}

/// A flag of `fuse_getattr_in`: there is a file handle.
pub(crate) const GETATTR_FH: u32 = 1 << 0;

pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
/// A flag of that notice: the entry stays if it is found unchanged.
pub(crate) const EXPIRE_ONLY: u32 = 1 << 0;
/// The kernel must queue again all requests that were read and have no reply.
pub(crate) const NOTIFY_RESEND: i32 = 7;
pub(crate) const NOTIFY_INC_EPOCH: i32 = 8;
/// Since version 7.45. An older kernel refuses it.
pub(crate) const NOTIFY_PRUNE: i32 = 9;

/// A bit of `unique`: the request may have been read before.
pub(crate) const UNIQUE_RESEND: u64 = 1 << 63;

/// A flag of `open`: the kernel opens the file to execute it (`__FMODE_EXEC`).
pub(crate) const FMODE_EXEC: u32 = 0x20;

/// The end of a lock's range that means "to the end of the file" (`OFFSET_MAX`).
pub(crate) const LOCK_END: u64 = i64::MAX as u64;
