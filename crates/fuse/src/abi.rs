//! The part of the kernel's FUSE ABI, version 7.45, that the front uses: numbers and sizes from
//! `include/uapi/linux/fuse.h`. All integers are in the machine's byte order.

/// The ABI's major version. A kernel with another major version is refused.
pub const MAJOR: u32 = 7;
/// The newest minor version of the ABI whose messages this crate knows.
pub const MINOR: u32 = 45;
/// The oldest minor version that is served: `max_pages`, explicit invalidation, 64-bit flags in
/// `READ` and `WRITE` are all older.
pub const MINOR_MIN: u32 = 31;
/// The first minor version with [`NOTIFY_INC_EPOCH`].
pub const MINOR_EPOCH: u32 = 44;

/// Bytes of `fuse_in_header`.
pub const IN_HEADER: usize = 40;
/// Bytes of `fuse_write_in`.
pub const WRITE_IN: usize = 40;
/// Bytes of `fuse_out_header`.
pub const OUT_HEADER: usize = 16;
/// Bytes of `fuse_dirent` before the name.
pub const DIRENT: usize = 24;
/// Directory entries begin at multiples of this.
pub const DIRENT_ALIGN: usize = 8;

pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLKW: u32 = 33;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const RENAME2: u32 = 45;
    pub const SYNCFS: u32 = 50;
    pub const STATX: u32 = 52;
}

/// Flags of `INIT`. The upper 32 bits are in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// The request and the reply have `flags2`.
    pub const INIT_EXT: u64 = 1 << 30;
    /// A file that is open with [`super::FOPEN_DIRECT_IO`] can be mapped shared.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// The kernel supports `NOTIFY_RESEND`.
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// `fuse_setattr_in.valid`.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Reads and writes through this open bypass the page cache. Mappings still use it.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// The page cache keeps its pages of the file at this open.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;

pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// The page cache writes back. The caller is unknown.
pub const WRITE_CACHE: u32 = 1 << 0;
/// The write bypasses the page cache: only such a write names the owner of locks.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// The read bypasses the page cache.
pub const READ_LOCKOWNER: u32 = 1 << 1;
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
pub const LK_FLOCK: u32 = 1 << 0;

pub const NOTIFY_INVAL_INODE: i32 = 2;
/// The kernel must queue again all requests that were read and have no reply.
pub const NOTIFY_RESEND: i32 = 7;
pub const NOTIFY_INC_EPOCH: i32 = 8;

/// A bit of `unique`: the request may have been read before.
pub const UNIQUE_RESEND: u64 = 1 << 63;

/// A flag of `open`: the kernel opens the file to execute it (`__FMODE_EXEC`).
pub const FMODE_EXEC: u32 = 0x20;

/// The end of a lock's range that means "to the end of the file" (`OFFSET_MAX`).
pub const LOCK_END: u64 = i64::MAX as u64;
