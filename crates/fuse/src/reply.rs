//! Replies: values become the bytes of the ABI's reply structures.

use std::time::Duration;

use warren_base::limits::{BLOCK_SIZE, NAME_MAX};
use warren_base::{Ino, InodeNumbers, Timestamp};
use warren_proto::{Attr, FileKind, Handle, LockSpec, LockType, StatFs};

use crate::abi;

/// The time for which the kernel may cache a leased object. A lease is recalled before its object
/// changes, so this only bounds the harm of a lost recall.
pub(crate) const LEASED: Duration = Duration::from_secs(24 * 60 * 60);

/// The time for which the kernel may cache an object. Without a lease it must not cache it.
pub(crate) const fn validity(leased: bool) -> Duration {
    if leased { LEASED } else { Duration::ZERO }
}

/// `st_blocks` counts these.
const SECTORS_PER_BLOCK: u64 = BLOCK_SIZE as u64 / 512;

/// Set in the kernel's handle of a file that bypasses the page cache. The number of an open begins
/// with a cell's epoch, which never reaches this bit.
pub(crate) const DIRECT_HANDLE: u64 = 1 << 63;

/// An open file as the kernel names it, and the handle of the cell behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KernelHandle {
    pub number: u64,
    pub handle: Handle,
    pub direct: bool,
}

/// An entry with its attributes: the reply to `LOOKUP` and to all requests that create.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NewEntry {
    pub attr: Attr,
    pub name_valid: Duration,
    pub attr_valid: Duration,
}

/// The body of a reply. Its memory is reused for the next reply.
#[derive(Default, Debug)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    /// The inode numbers that programs see. The kernel's node ids are not of these.
    numbers: InodeNumbers,
}

impl Body {
    pub(crate) fn new(numbers: InodeNumbers) -> Self {
        Self { bytes: Vec::new(), numbers }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_ne_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_ne_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_ne_bytes());
    }

    pub(crate) fn zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    /// `fuse_entry_out`.
    pub(crate) fn entry(&mut self, entry: &NewEntry) {
        self.u64(entry.attr.ino.0);
        self.u64(generation(&entry.attr).into());
        self.u64(entry.name_valid.as_secs());
        self.u64(entry.attr_valid.as_secs());
        self.u32(entry.name_valid.subsec_nanos());
        self.u32(entry.attr_valid.subsec_nanos());
        self.attr(&entry.attr);
    }

    /// `fuse_entry_out` of a name that does not exist.
    pub(crate) fn absent(&mut self, valid: Duration) {
        self.zeros(16);
        self.u64(valid.as_secs());
        self.u64(0);
        self.u32(valid.subsec_nanos());
        self.zeros(4 + 88);
    }

    /// `fuse_attr_out`.
    pub(crate) fn attr_out(&mut self, attr: &Attr, valid: Duration) {
        self.u64(valid.as_secs());
        self.u32(valid.subsec_nanos());
        self.u32(0);
        self.attr(attr);
    }

    /// `fuse_attr`.
    fn attr(&mut self, attr: &Attr) {
        self.u64(self.numbers.number(attr.ino));
        self.u64(attr.size);
        self.u64(attr.blocks.saturating_mul(SECTORS_PER_BLOCK));
        for time in [attr.atime, attr.mtime, attr.ctime] {
            self.u64(time.seconds().cast_unsigned());
        }
        for time in [attr.atime, attr.mtime, attr.ctime] {
            self.u32(time.nanos());
        }
        self.u32(attr.kind.mode_bits() | u32::from(attr.mode));
        self.u32(attr.nlink);
        self.u32(attr.uid);
        self.u32(attr.gid);
        self.u32(attr.rdev);
        self.u32(BLOCK_SIZE as u32);
        self.u32(0);
    }

    /// `fuse_statx_out`.
    pub(crate) fn statx(&mut self, attr: &Attr, valid: Duration) {
        self.u64(valid.as_secs());
        self.u32(valid.subsec_nanos());
        self.zeros(4 + 16);
        self.u32(libc::STATX_BASIC_STATS | libc::STATX_BTIME);
        self.u32(BLOCK_SIZE as u32);
        self.u64(0);
        self.u32(attr.nlink);
        self.u32(attr.uid);
        self.u32(attr.gid);
        self.u16((attr.kind.mode_bits() | u32::from(attr.mode)) as u16);
        self.u16(0);
        self.u64(self.numbers.number(attr.ino));
        self.u64(attr.size);
        self.u64(attr.blocks.saturating_mul(SECTORS_PER_BLOCK));
        self.u64(0);
        for time in [attr.atime, attr.btime, attr.ctime, attr.mtime] {
            self.statx_time(time);
        }
        let (major, minor) = device_numbers(attr.rdev);
        self.u32(major);
        self.u32(minor);
        self.zeros(8 + 14 * 8);
    }

    fn statx_time(&mut self, time: Timestamp) {
        self.u64(time.seconds().cast_unsigned());
        self.u32(time.nanos());
        self.u32(0);
    }

    /// `fuse_open_out` of a directory, or of a file without cached pages.
    pub(crate) fn open(&mut self, open: u64) {
        self.open_out(open, 0);
    }

    /// `fuse_open_out` of a file. If the file bypasses the page cache, its handle has a mark.
    pub(crate) fn open_file(&mut self, handle: KernelHandle, keep_pages: bool) {
        let keep = if keep_pages { abi::FOPEN_KEEP_CACHE } else { 0 };
        let direct = if handle.direct { abi::FOPEN_DIRECT_IO } else { 0 };
        self.open_out(handle.number, keep | direct);
    }

    fn open_out(&mut self, handle: u64, flags: u32) {
        self.u64(handle);
        self.u32(flags);
        self.u32(0);
    }

    /// `fuse_write_out`, and `fuse_getxattr_out`, which has the same layout.
    pub(crate) fn count(&mut self, count: u32) {
        self.u32(count);
        self.u32(0);
    }

    /// `fuse_lseek_out`.
    pub(crate) fn offset(&mut self, offset: u64) {
        self.u64(offset);
    }

    /// `fuse_statfs_out`.
    pub(crate) fn statfs(&mut self, stat: &StatFs) {
        self.u64(stat.blocks);
        self.u64(stat.blocks_free);
        self.u64(stat.blocks_available);
        self.u64(stat.files);
        self.u64(stat.files_free);
        self.u32(BLOCK_SIZE as u32);
        self.u32(NAME_MAX as u32);
        self.u32(BLOCK_SIZE as u32);
        self.zeros(4 + 6 * 4);
    }

    /// `fuse_lk_out`: the conflicting lock, or none.
    pub(crate) fn lock(&mut self, holder: Option<&LockSpec>) {
        let kind = match holder.map(|holder| holder.lock) {
            Some(LockType::Shared) => libc::F_RDLCK,
            Some(LockType::Exclusive) => libc::F_WRLCK,
            Some(LockType::Unlock) | None => libc::F_UNLCK,
        };
        self.u64(holder.map_or(0, |holder| holder.range.start));
        self.u64(holder.map_or(0, |holder| holder.range.end.min(abi::LOCK_END)));
        self.u32(kind.cast_unsigned());
        self.u32(holder.map_or(0, |holder| holder.pid));
    }

    /// `fuse_dirent`. Adds nothing and returns false if the body would exceed `room` bytes.
    pub(crate) fn dirent(
        &mut self,
        ino: Ino,
        offset: u64,
        kind: FileKind,
        name: &[u8],
        room: usize,
    ) -> bool {
        let len = (abi::DIRENT + name.len()).next_multiple_of(abi::DIRENT_ALIGN);
        let end = self.bytes.len() + len;
        if end > room {
            return false;
        }
        self.u64(self.numbers.number(ino));
        self.u64(offset);
        self.u32(name.len() as u32);
        self.u32(kind.mode_bits() >> 12);
        self.bytes(name);
        self.bytes.resize(end, 0);
        true
    }

    /// `fuse_init_out`.
    pub(crate) fn init(&mut self, reply: &InitReply) {
        self.u32(abi::MAJOR);
        self.u32(abi::MINOR);
        self.u32(reply.max_readahead);
        self.u32(reply.flags as u32);
        self.u16(reply.max_background);
        self.u16(reply.max_background / 4 * 3);
        self.u32(reply.max_write);
        self.u32(1); // nanoseconds
        self.u16((reply.max_write as usize / BLOCK_SIZE) as u16);
        self.u16(0);
        self.u32((reply.flags >> 32) as u32);
        self.zeros(7 * 4);
    }
}

/// The version-independent parts of `fuse_init_out`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InitReply {
    pub flags: u64,
    pub max_readahead: u32,
    pub max_write: u32,
    pub max_background: u16,
}

/// The generation, which the kernel's file handles have beside the inode number. A number is used
/// again after a power failure that has taken its inode back, and by another pool; the time of
/// birth tells these inodes apart. The kernel gives its root the generation 0.
fn generation(attr: &Attr) -> u32 {
    if attr.ino == Ino::ROOT {
        return 0;
    }
    let seconds = attr.btime.seconds().cast_unsigned();
    let nanos = seconds.wrapping_mul(1_000_000_000).wrapping_add(attr.btime.nanos().into());
    (nanos ^ nanos >> 32) as u32
}

/// Major and minor number of `Attr::rdev`, which has the kernel's 32-bit encoding.
const fn device_numbers(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::ShardId;

    fn attr() -> Attr {
        Attr {
            ino: Ino(7),
            kind: FileKind::Regular,
            mode: 0o4755,
            nlink: 1,
            uid: 2,
            gid: 3,
            rdev: 0,
            size: 5,
            blocks: 1,
            atime: Timestamp(-1),
            mtime: Timestamp(0),
            ctime: Timestamp(0),
            btime: Timestamp(0),
            flags: warren_base::InodeFlags::empty(),
        }
    }

    /// Sizes of the structures, from the kernel's header.
    #[test]
    fn replies_have_the_sizes_of_the_kernels_structures() {
        let size = |build: &dyn Fn(&mut Body)| {
            let mut body = Body::default();
            build(&mut body);
            body.len()
        };
        let entry = NewEntry { attr: attr(), name_valid: LEASED, attr_valid: LEASED };
        let reply = InitReply { flags: 0, max_readahead: 0, max_write: 4096, max_background: 1 };
        assert_eq!(size(&|body| body.entry(&entry)), 128);
        assert_eq!(size(&|body| body.absent(LEASED)), 128);
        assert_eq!(size(&|body| body.attr_out(&attr(), LEASED)), 104);
        assert_eq!(size(&|body| body.statx(&attr(), LEASED)), 288);
        assert_eq!(size(&|body| body.open(1)), 16);
        assert_eq!(size(&|body| body.count(1)), 8);
        assert_eq!(size(&|body| body.offset(1)), 8);
        assert_eq!(size(&|body| body.statfs(&StatFs::default())), 80);
        assert_eq!(size(&|body| body.lock(None)), 24);
        assert_eq!(size(&|body| body.init(&reply)), 64);
    }

    /// The kernel's node is the inode as it is stored.
    #[test]
    fn programs_see_dense_numbers() {
        let mut body = Body::new(InodeNumbers::new(true, 8));
        let attr = Attr { ino: Ino::new(ShardId(5), 3), ..attr() };
        let word = |body: &Body, at: usize| {
            u64::from_ne_bytes(body.as_bytes()[at..at + 8].try_into().expect("eight bytes"))
        };
        let number = 2 * 8 + 5 + 1;
        body.entry(&NewEntry { attr, name_valid: LEASED, attr_valid: LEASED });
        assert_eq!((word(&body, 0), word(&body, 40)), (attr.ino.0, number));
        body.clear();
        body.attr_out(&attr, LEASED);
        assert_eq!(word(&body, 16), number);
        body.clear();
        body.statx(&attr, LEASED);
        assert_eq!(word(&body, 32 + 32), number);
        body.clear();
        assert!(body.dirent(attr.ino, 3, FileKind::Regular, b"x", 100));
        assert_eq!(word(&body, 0), number);
    }

    #[test]
    fn inodes_with_one_number_have_generations_of_their_own() {
        let born = |ino, nanos| Attr { ino: Ino(ino), btime: Timestamp(nanos), ..attr() };
        assert_eq!(generation(&born(7, 5)), generation(&born(7, 5)));
        assert_ne!(generation(&born(7, 5)), generation(&born(7, 6)));
        assert_ne!(generation(&born(7, 1 << 32)), generation(&born(7, 1 << 33)));
        assert_eq!(generation(&born(1, 5)), 0);
    }

    #[test]
    fn a_directory_entry_that_does_not_fit_is_not_added() {
        let mut body = Body::default();
        assert!(body.dirent(Ino(2), 3, FileKind::Directory, b"nine_char", 40));
        assert_eq!(body.len(), 40);
        assert!(!body.dirent(Ino(2), 4, FileKind::Directory, b"x", 71));
        assert_eq!(body.len(), 40);
    }

    #[test]
    fn device_numbers_are_decoded() {
        let (major, minor) = (0x123, 0x45678);
        let rdev = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
        assert_eq!(device_numbers(rdev), (major, minor));
    }
}
