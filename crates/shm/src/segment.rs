//! A segment: a sealed memfd and its writer's mapping.
//!
//! Order of creation: memfd, mode 0600 (a memfd is created with 0777, and a read-only descriptor
//! could be reopened for writing through `/proc/self/fd`), size, seals. SHRINK, so that a peer
//! cannot kill a reader by truncating the file under its mapping; GROW and SEAL, so that this does
//! not change; never FUTURE_WRITE, which would lock out a successor. Memory is allocated when a
//! page is first touched.
//!
//! A descriptor from a peer is trusted only after the kernel has reported its size and seals.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering::Relaxed;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create, open,
};
use rustix::io::Errno;
use warren_proto::slot::{MAGIC, VERSION};

use crate::map::{ReadMap, WriteMap};
use crate::memory::{Load, Store};

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Why a segment cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    #[error("cannot create shared memory `{name}` of {len} bytes: {errno}")]
    Create { name: String, len: usize, errno: Errno },
    #[error("cannot map shared memory: {0}")]
    Map(Errno),
    #[error("a peer's shared memory is not sealed against shrinking and growing")]
    Unsealed,
    #[error("a peer's shared memory has {len} bytes and needs {needed}")]
    TooShort { len: u64, needed: usize },
    #[error("a peer's shared memory is no {0:?} segment of this version of Warren")]
    Foreign(SegmentKind),
}

/// The kind of a segment; a word of its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum SegmentKind {
    Client = 1,
    Replies = 2,
    Peer = 3,
    Vitals = 4,
    ShardMap = 5,
}

/// Offsets in every segment's header.
pub(crate) mod header {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const KIND: usize = 12;
    /// Slots of a client; in a peer's segment, the receiving cell.
    pub(crate) const EXTRA: usize = 16;
    pub(crate) const CELL: usize = 20;
    pub(crate) const EPOCH: usize = 24;
}

/// Writes a segment's header, magic last.
pub(crate) fn stamp<W: Store>(memory: &W, kind: SegmentKind, extra: u32, cell: u32, epoch: u32) {
    memory.store32(header::VERSION, VERSION, Relaxed);
    memory.store32(header::KIND, kind as u32, Relaxed);
    memory.store32(header::EXTRA, extra, Relaxed);
    memory.store32(header::CELL, cell, Relaxed);
    memory.store32(header::EPOCH, epoch, Relaxed);
    memory.store64(header::MAGIC, MAGIC, core::sync::atomic::Ordering::Release);
}

/// Whether a segment is long enough and its header names this kind.
pub(crate) fn check<R: Load>(
    memory: &R,
    kind: SegmentKind,
    needed: usize,
) -> Result<(), SegmentError> {
    if memory.size() < needed {
        return Err(SegmentError::TooShort { len: memory.size() as u64, needed });
    }
    let genuine = memory.load64(header::MAGIC, core::sync::atomic::Ordering::Acquire) == MAGIC
        && memory.load32(header::VERSION, Relaxed) == VERSION
        && memory.load32(header::KIND, Relaxed) == kind as u32;
    if genuine { Ok(()) } else { Err(SegmentError::Foreign(kind)) }
}

/// A segment of which this process is the writer (or which it makes for the writer).
pub struct Segment {
    fd: OwnedFd,
    map: WriteMap,
}

impl Segment {
    /// Makes a segment of `len` zero bytes and maps it. `name` shows in `/proc/PID/maps`.
    pub fn create(name: &str, len: usize) -> Result<Self, SegmentError> {
        let failed = |errno| SegmentError::Create { name: name.to_owned(), len, errno };
        let fd = sealed_memfd(name, len).map_err(failed)?;
        let map = WriteMap::new(fd.as_fd(), len).map_err(failed)?;
        Ok(Self { fd, map })
    }

    /// Takes over a segment that another process made.
    pub fn adopt(fd: OwnedFd) -> Result<Self, SegmentError> {
        let map = map_writable(fd.as_fd())?;
        Ok(Self { fd, map })
    }

    pub fn map(&self) -> &WriteMap {
        &self.map
    }

    /// The writer's descriptor, only for the keeper and a successor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn into_parts(self) -> (OwnedFd, WriteMap) {
        (self.fd, self.map)
    }

    /// A descriptor for readers. It is reopened, because a duplicate would share the right to
    /// write.
    pub fn read_only_fd(&self) -> Result<OwnedFd, SegmentError> {
        reopen_read_only(self.fd())
    }
}

/// A new read-only descriptor of a segment.
pub fn reopen_read_only(fd: BorrowedFd<'_>) -> Result<OwnedFd, SegmentError> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(SegmentError::Map)
}

fn sealed_memfd(name: &str, len: usize) -> Result<OwnedFd, Errno> {
    assert!(len > 0);
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    ftruncate(&fd, len as u64)?;
    fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// The length of a memfd that can neither shrink nor grow any more.
fn sealed_len(fd: BorrowedFd<'_>) -> Result<usize, SegmentError> {
    // A descriptor that is no memfd (a file that its owner can truncate, a FUSE file that never
    // answers) has no seals: EINVAL.
    let seals = fcntl_get_seals(fd).map_err(|_| SegmentError::Unsealed)?;
    if !seals.contains(SEALS) {
        return Err(SegmentError::Unsealed);
    }
    let len = fstat(fd).map_err(SegmentError::Map)?.st_size;
    match usize::try_from(len) {
        Ok(len) if len > 0 => Ok(len),
        _ => Err(SegmentError::TooShort { len: 0, needed: 1 }),
    }
}

/// Maps a peer's segment to read it.
pub fn map_read_only(fd: BorrowedFd<'_>) -> Result<ReadMap, SegmentError> {
    ReadMap::new(fd, sealed_len(fd)?).map_err(SegmentError::Map)
}

/// Maps a segment that another process made for this one, to write it.
pub fn map_writable(fd: BorrowedFd<'_>) -> Result<WriteMap, SegmentError> {
    WriteMap::new(fd, sealed_len(fd)?).map_err(SegmentError::Map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_writer_stores_the_reader_sees() {
        let segment = Segment::create("warren-test", 8192).unwrap();
        let fd = segment.read_only_fd().unwrap();
        let reader = map_read_only(fd.as_fd()).unwrap();
        segment.map().copy_in(4000, b"over a page's end, also when it is a long text to copy");
        let mut seen = [0; 18];
        reader.copy_out(4000, &mut seen);
        assert_eq!(&seen, b"over a page's end,");
    }

    #[test]
    fn a_reader_can_neither_write_nor_cut_nor_grow() {
        let segment = Segment::create("warren-test", 4096).unwrap();
        let fd = segment.read_only_fd().unwrap();
        assert!(matches!(map_writable(fd.as_fd()), Err(SegmentError::Map(Errno::ACCESS))));
        assert!(ftruncate(&fd, 0).is_err());
        assert_eq!(ftruncate(segment.fd(), 0), Err(Errno::PERM));
        assert_eq!(ftruncate(segment.fd(), 8192), Err(Errno::PERM));
        assert_eq!(fstat(segment.fd()).unwrap().st_mode & 0o777, 0o600);
    }

    #[test]
    fn memory_that_its_owner_could_cut_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("warren-test", flags).unwrap();
        ftruncate(&fd, 4096).unwrap();
        assert!(matches!(map_read_only(fd.as_fd()), Err(SegmentError::Unsealed)));
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(matches!(map_writable(fd.as_fd()), Err(SegmentError::Unsealed)));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(map_read_only(file.as_fd()), Err(SegmentError::Unsealed)));
    }

    #[test]
    fn an_empty_segment_is_refused() {
        let fd = memfd_create("warren-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let fd = fd.unwrap();
        fcntl_add_seals(&fd, SEALS).unwrap();
        assert!(matches!(map_read_only(fd.as_fd()), Err(SegmentError::TooShort { .. })));
    }

    #[test]
    fn a_successor_adopts() {
        let segment = Segment::create("warren-test", 4096).unwrap();
        segment.map().store64(8, 7, Relaxed);
        let (fd, map) = segment.into_parts();
        drop(map);
        let adopted = Segment::adopt(fd).unwrap();
        assert_eq!(adopted.map().load64(8, Relaxed), 7);
    }

    #[test]
    #[should_panic(expected = "outside of the segment")]
    fn an_offset_out_of_range_is_our_own_bug() {
        let segment = Segment::create("warren-test", 4096).unwrap();
        segment.map().load32(4096, Relaxed);
    }
}
