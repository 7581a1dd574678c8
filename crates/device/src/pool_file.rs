//! The opened pool: a regular file or a block device.
//!
//! One fleet at a time has a pool, or one `mkfs`, or one `fsck`. Opening takes the lock (an `flock`
//! on a file; the kernel's exclusive claim, `O_EXCL`, on a block device). The lock belongs to the
//! open file: every process with a duplicate of the descriptor holds it, and it ends with the last
//! duplicate, so cells that outlive their supervisor keep other fleets out. Only a reader beside a
//! fleet takes no lock.
//!
//! Direct I/O is used where it works with 4 KiB blocks. Elsewhere (some file systems) the kernel's
//! page cache lies between, which costs memory and a copy and changes nothing else. The mode
//! belongs to the open file, so the process that opens it decides once for all that share the
//! descriptor.
//!
//! **Writers.** A process may be gone while I/O that it submitted is still on its way to the
//! device. So each process that writes by a queue has its own open file ([`PoolFile::reopen`]) with
//! a lock on it ([`PoolFile::lock_as_writer`]), on a byte far beyond any block. The kernel's
//! requests hold that open file, so the lock is released with the last of them and not before. A
//! writer's successor takes that lock first; a process that opens the pool waits for all of them.
//! Its own open file also gives each writer its own report of failed write-back.

mod writers;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags, fallocate,
    fcntl_getfl, fcntl_setfl, fdatasync, flock, fstat, fstatvfs, fsync, ftruncate, open, stat,
    statx,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use warren_base::BlockNo;
use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};

pub use self::writers::await_writers;
use self::writers::{set_writers_lock, writers_lock, writers_range};
use crate::transfer::{Action, Transfer};
use crate::{DeviceError, TraceWriter};

/// Blocks that one synchronous call moves at most.
const BOUNCE_BLOCKS: usize = 64;

/// A block in memory with the alignment for direct I/O.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Aligned([u8; BLOCK_SIZE]);

/// The pool device, open for reading and writing.
#[derive(Debug)]
pub struct PoolFile {
    fd: OwnedFd,
    path: PathBuf,
    len_blocks: u64,
    is_block_device: bool,
    /// Only in tests that request it.
    trace: Option<TraceWriter>,
}

impl PoolFile {
    /// Opens the pool for a fleet. [`DeviceError::Busy`] if another process has it.
    pub fn open_exclusive(path: &Path) -> Result<Self, DeviceError> {
        Self::open_and_claim(path, OFlags::RDWR)
    }

    /// Opens the pool to read it while no other process writes. [`DeviceError::Busy`] if another
    /// process has it.
    pub fn open_to_check(path: &Path) -> Result<Self, DeviceError> {
        Self::open_and_claim(path, OFlags::RDONLY)
    }

    /// Opens a pool to read it while a fleet may serve it. What is read may be of any moment.
    pub fn open_beside(path: &Path) -> Result<Self, DeviceError> {
        let failed = |errno| DeviceError::of(path, "open it", errno);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = open(path, flags, Mode::empty()).map_err(failed)?;
        let pool = Self::opened(fd, path)?;
        fcntl_setfl(&pool.fd, fcntl_getfl(&pool.fd).map_err(failed)? - OFlags::NONBLOCK)
            .map_err(failed)?;
        Ok(pool)
    }

    /// Whether a cell of a fleet may write to the pool now. Takes no lock.
    pub fn has_writers(path: &Path) -> Result<bool, DeviceError> {
        let pool = Self::open_beside(path)?;
        let mut range = writers_range(libc::F_RDLCK, 0, 0);
        // SAFETY: the descriptor is open, and the kernel writes nothing but `range`, which outlives
        // the call.
        let rc = unsafe { libc::fcntl(pool.fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
        let error = std::io::Error::last_os_error();
        if rc != 0 {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            return Err(pool.failed("look for its writers", errno));
        }
        Ok(libc::c_int::from(range.l_type) != libc::F_UNLCK)
    }

    /// Makes a sparse pool file of zero blocks and locks it.
    pub fn create(path: &Path, blocks: u64) -> Result<Self, DeviceError> {
        let failed = |errno| DeviceError::of(path, "create it", errno);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        // The first process that locks it has it, and may make a pool of it.
        lock(&fd, path)?;
        let sized = |fd: &OwnedFd| {
            let bytes = blocks.checked_mul(BLOCK_SIZE as u64).ok_or(failed(Errno::FBIG))?;
            ftruncate(fd, bytes).map_err(failed)
        };
        let pool = sized(&fd).and_then(|()| Self::opened(fd, path));
        if pool.is_err() {
            // The first error is reported; a file left behind would only be in the way.
            let _ = rustix::fs::unlink(path);
        }
        pool
    }

    /// A pool whose descriptor came from another process and is shared with it. `path` is for
    /// messages.
    pub fn from_fd(fd: OwnedFd, path: &Path) -> Result<Self, DeviceError> {
        let (kind, bytes) = kind_and_len(fd.as_fd(), path)?;
        let len_blocks = bytes / BLOCK_SIZE as u64;
        if len_blocks == 0 {
            return Err(DeviceError::TooShort(path.to_owned()));
        }
        let trace = TraceWriter::wanted();
        let trace = trace.map_err(|source| {
            let path = path.to_owned();
            DeviceError::Io { path, doing: "trace its writes", source }
        })?;
        let is_block_device = kind == FileType::BlockDevice;
        Ok(Self { fd, path: path.to_owned(), len_blocks, is_block_device, trace })
    }

    /// A pool that was just opened.
    fn opened(fd: OwnedFd, path: &Path) -> Result<Self, DeviceError> {
        let pool = Self::from_fd(fd, path)?;
        direct_if_possible(pool.as_fd()).map_err(|errno| pool.failed("set it up", errno))?;
        Ok(pool)
    }

    /// Any descriptor as a pool of so many blocks.
    #[cfg(test)]
    pub(crate) fn of_descriptor(fd: OwnedFd, len_blocks: u64) -> Self {
        let (path, is_block_device) = (PathBuf::new(), false);
        Self { fd, path, len_blocks, is_block_device, trace: None }
    }

    #[cfg(test)]
    pub(crate) fn of_block_device(fd: OwnedFd, len_blocks: u64) -> Self {
        Self { is_block_device: true, ..Self::of_descriptor(fd, len_blocks) }
    }

    /// Another descriptor of the same open pool, and of its lock.
    pub fn try_clone(&self) -> Result<Self, DeviceError> {
        let io = |source| DeviceError::Io { path: self.path.clone(), doing: "share it", source };
        Ok(self.same_pool(self.fd.try_clone().map_err(io)?))
    }

    fn same_pool(&self, fd: OwnedFd) -> Self {
        let (path, trace) = (self.path.clone(), self.trace.clone());
        Self { fd, path, trace, ..*self }
    }

    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    pub(crate) fn trace(&self) -> Option<&TraceWriter> {
        self.trace.as_ref()
    }

    /// Does something and traces it, if there is a trace.
    fn traced(
        &self,
        begin: impl FnOnce(&TraceWriter) -> u64,
        perform: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let number = self.trace.as_ref().map(begin);
        let result = perform();
        if let (Some(trace), Some(number)) = (&self.trace, number) {
            trace.end(number, result.is_ok());
        }
        result
    }

    /// Another open file of the same pool, with its own offset and locks.
    pub fn reopen(&self) -> Result<Self, DeviceError> {
        let failed = |errno| self.failed("open it again", errno);
        let mode = fcntl_getfl(&self.fd).map_err(failed)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | (mode & OFlags::DIRECT);
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(self.same_pool(open(path, flags, Mode::empty()).map_err(failed)?))
    }

    /// Takes the writer's lock of this number on this open file. Waits for the I/O that an earlier
    /// writer of the same number has submitted.
    pub fn lock_as_writer(&self, number: u16) -> Result<(), DeviceError> {
        writers_lock(self.as_fd(), libc::F_WRLCK, i64::from(number), 1)
            .map_err(|errno| self.failed("wait for its earlier writers", errno))
    }

    /// The same, unless I/O of an earlier writer is still in flight. Returns whether it has the
    /// lock.
    pub fn try_lock_as_writer(&self, number: u16) -> Result<bool, DeviceError> {
        let set = libc::F_OFD_SETLK;
        match set_writers_lock(set, self.as_fd(), libc::F_WRLCK, i64::from(number), 1) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(self.failed("check for its earlier writers", errno)),
        }
    }

    /// The number of whole blocks of the device.
    pub fn len_blocks(&self) -> u64 {
        self.len_blocks
    }

    /// The file or device is at least that long by now. Takes no system call.
    pub fn grow(&mut self, len_blocks: u64) {
        self.len_blocks = self.len_blocks.max(len_blocks);
    }

    /// Measures the file or device again, which may have become longer.
    pub fn measure(&mut self) -> Result<u64, DeviceError> {
        let (_, bytes) = kind_and_len(self.fd.as_fd(), &self.path)?;
        self.len_blocks = bytes / BLOCK_SIZE as u64;
        Ok(self.len_blocks)
    }

    /// The length of the file or device now, in whole blocks. If it cannot be measured, the length
    /// that it had.
    pub fn len_now(&self) -> u64 {
        let measured = kind_and_len(self.fd.as_fd(), &self.path);
        measured.map_or(self.len_blocks, |(_, bytes)| bytes / BLOCK_SIZE as u64)
    }

    /// Makes the file so many blocks long, with a hole up to there, and has the host allocate these
    /// `runs` of it. If that fails the file is as long as before. [`DeviceError::TooShort`]: a
    /// block device has a size that cannot be changed here.
    pub fn extend(&mut self, blocks: u64, runs: &[(BlockNo, u64)]) -> Result<(), DeviceError> {
        let before = self.measure()?;
        if self.is_block_device {
            let fits = blocks <= before;
            return if fits { Ok(()) } else { Err(DeviceError::TooShort(self.path.clone())) };
        }
        let extended = self.extend_file(before, blocks, runs);
        if extended.is_err() && before < blocks {
            // The first error is reported. What was allocated beyond is freed with it.
            let _ = ftruncate(&self.fd, before * BLOCK_SIZE as u64);
        }
        self.measure()?;
        extended
    }

    fn extend_file(
        &mut self,
        before: u64,
        blocks: u64,
        runs: &[(BlockNo, u64)],
    ) -> Result<(), DeviceError> {
        let path = self.path.clone();
        let failed = |errno| match errno {
            Errno::FBIG => {
                let doing = "make it so long; choose a smaller size, or another file system";
                DeviceError::of(&path, doing, errno)
            }
            _ => DeviceError::of(&path, "make it longer", errno),
        };
        let bytes = blocks.checked_mul(BLOCK_SIZE as u64).ok_or(failed(Errno::FBIG))?;
        // Checked first, because a failed allocation may take the last room from others meanwhile.
        let needed: u64 = runs.iter().map(|(_, count)| count).sum();
        if before < blocks && self.host_room() < needed {
            return Err(failed(Errno::NOSPC));
        }
        if before < blocks {
            ftruncate(&self.fd, bytes).map_err(failed)?;
            self.len_blocks = blocks;
        }
        for &(block, count) in runs {
            if !self.allocate(block, count)? {
                self.put_zeros(block, count)?;
            }
        }
        // A flush need not make the length durable.
        retry_on_intr(|| fsync(&self.fd)).map_err(failed)
    }

    fn put_zeros(&self, block: BlockNo, count: u64) -> Result<(), DeviceError> {
        let zeros = vec![0; BOUNCE_BLOCKS * BLOCK_SIZE];
        (0..count).step_by(BOUNCE_BLOCKS).try_for_each(|done| {
            let part = (count - done).min(BOUNCE_BLOCKS as u64) as usize;
            self.write_untraced(block.offset(done), &zeros[..part * BLOCK_SIZE])
        })
    }

    /// Fills `into`, a whole number of blocks, from blocks `block..`. Synchronous.
    pub fn read_blocks(&self, block: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.check_range(block, into.len())?;
        let mut bounce = vec![Aligned([0; BLOCK_SIZE]); BOUNCE_BLOCKS.min(into.len() / BLOCK_SIZE)];
        let mut at = block.0 * BLOCK_SIZE as u64;
        for part in into.chunks_mut(BOUNCE_BLOCKS * BLOCK_SIZE) {
            let bytes = &mut bounce_bytes(&mut bounce)[..part.len()];
            self.transfer("read it", part.len(), |done| {
                pread(&self.fd, &mut bytes[done..], at + done as u64)
            })?;
            part.copy_from_slice(bytes);
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Writes `from`, a whole number of blocks, to blocks `block..`. Synchronous, but durable only
    /// after [`Self::flush`].
    pub fn write_blocks(&self, block: BlockNo, from: &[u8]) -> Result<(), DeviceError> {
        self.traced(|trace| trace.write(block, from, false), || self.write_untraced(block, from))
    }

    fn write_untraced(&self, block: BlockNo, from: &[u8]) -> Result<(), DeviceError> {
        self.check_range(block, from.len())?;
        let mut bounce = vec![Aligned([0; BLOCK_SIZE]); BOUNCE_BLOCKS.min(from.len() / BLOCK_SIZE)];
        let mut at = block.0 * BLOCK_SIZE as u64;
        for part in from.chunks(BOUNCE_BLOCKS * BLOCK_SIZE) {
            let bytes = &mut bounce_bytes(&mut bounce)[..part.len()];
            bytes.copy_from_slice(part);
            self.transfer("write it", part.len(), |done| {
                pwrite(&self.fd, &bytes[done..], at + done as u64)
            })?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Makes all earlier writes durable. After an error none of them can be relied on.
    pub fn flush(&self) -> Result<(), DeviceError> {
        self.traced(TraceWriter::flush, || {
            retry_on_intr(|| fdatasync(&self.fd)).map_err(|errno| self.failed("flush it", errno))
        })
    }

    /// Has the host allocate `count` blocks, so that no later write to them fails for lack of
    /// space. Their contents stay. A block device has its blocks already, and a host that cannot
    /// allocate is left alone.
    pub fn reserve(&self, block: BlockNo, count: u64) -> Result<(), DeviceError> {
        self.allocate(block, count).map(drop)
    }

    /// The same on every host: where it cannot allocate, blocks that read as zeros are written with
    /// zeros, because they may be holes. No other process may write to them meanwhile.
    pub fn fill(&self, block: BlockNo, count: u64) -> Result<(), DeviceError> {
        if self.allocate(block, count)? { Ok(()) } else { self.fill_holes(block, count) }
    }

    fn allocate(&self, block: BlockNo, count: u64) -> Result<bool, DeviceError> {
        self.ask_host(FallocateFlags::empty(), (block, count), "allocate its blocks")
    }

    /// Returns false if the host cannot do that.
    fn ask_host(
        &self,
        how: FallocateFlags,
        (block, count): (BlockNo, u64),
        doing: &'static str,
    ) -> Result<bool, DeviceError> {
        if self.is_block_device || count == 0 {
            return Ok(true);
        }
        let (at, len) = (block.0 * BLOCK_SIZE as u64, count * BLOCK_SIZE as u64);
        match retry_on_intr(|| fallocate(&self.fd, how, at, len)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(self.failed(doing, errno)),
        }
    }

    fn fill_holes(&self, block: BlockNo, count: u64) -> Result<(), DeviceError> {
        let mut bytes = vec![0; BOUNCE_BLOCKS * BLOCK_SIZE];
        for start in (0..count).step_by(BOUNCE_BLOCKS) {
            let part =
                &mut bytes[..(count - start).min(BOUNCE_BLOCKS as u64) as usize * BLOCK_SIZE];
            self.read_blocks(block.offset(start), part)?;
            for (at, found) in (start..).zip(part.chunks_exact(BLOCK_SIZE)) {
                if found.iter().all(|byte| *byte == 0) {
                    self.write_untraced(block.offset(at), found)?;
                }
            }
        }
        Ok(())
    }

    /// Returns `count` unused blocks to the host, if it takes them.
    pub fn discard(&self, block: BlockNo, count: u64) -> Result<(), DeviceError> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.ask_host(punch, (block, count), "give its free blocks back").map(drop)
    }

    /// Blocks that the host can still allocate for the pool. No limit for a block device, and for a
    /// host that reports none.
    pub fn host_room(&self) -> u64 {
        match fstatvfs(&self.fd) {
            Ok(host) if !self.is_block_device => {
                host.f_bavail.saturating_mul(host.f_frsize) / BLOCK_SIZE as u64
            }
            _ => u64::MAX,
        }
    }

    /// The damage that another process has done to the file, which should have so many blocks.
    pub fn harm(&self, blocks: u64) -> Option<&'static str> {
        let found = fstat(&self.fd).ok().filter(|_| !self.is_block_device)?;
        if found.st_nlink == 0 {
            return Some("deleted");
        }
        (found.st_size.unsigned_abs() / (BLOCK_SIZE as u64) < blocks).then_some("cut short")
    }

    /// The result of a request. A request to reserve blocks on a host that cannot allocate writes
    /// them. A failed one leaves none of them allocated, because the cell would not know of them.
    pub(crate) fn reserved_whole(
        &self,
        transfer: &Transfer,
        result: Result<(), warren_base::Errno>,
    ) -> Result<(), warren_base::Errno> {
        if transfer.action != Action::Reserve || self.is_block_device || result.is_ok() {
            return result;
        }
        let block = BlockNo(transfer.offset / BLOCK_SIZE as u64);
        let result = match result {
            Err(warren_base::Errno::EOPNOTSUPP) => self.reserve_by_writing(block, transfer.span),
            result => result,
        };
        if result.is_err() {
            // If this fails, too, the blocks stay allocated until they are used.
            let _ = self.discard(block, transfer.span / BLOCK_SIZE as u64);
        }
        result
    }

    fn reserve_by_writing(&self, block: BlockNo, bytes: u64) -> Result<(), warren_base::Errno> {
        // Such a host seldom takes blocks back, so those of a failed attempt would be lost to
        // others. A single chunk may be allocated already.
        let count = bytes / BLOCK_SIZE as u64;
        if count > CHUNK_BLOCKS && self.host_room() < count {
            return Err(warren_base::Errno::ENOSPC);
        }
        self.put_zeros(block, count).map_err(|error| match error {
            DeviceError::NoSpace(_) => warren_base::Errno::ENOSPC,
            _ => warren_base::Errno::EIO,
        })
    }

    /// Opens and locks the pool. A block device is claimed by opening it, so its kind must be known
    /// before. The opened file is checked again: the path may lead elsewhere by then, and opening a
    /// FIFO would wait for its other end.
    fn open_and_claim(path: &Path, access: OFlags) -> Result<Self, DeviceError> {
        let failed = |errno| DeviceError::of(path, "open it", errno);
        let kind = FileType::from_raw_mode(stat(path).map_err(failed)?.st_mode);
        let claim = match kind {
            FileType::RegularFile => OFlags::empty(),
            FileType::BlockDevice => OFlags::EXCL,
            _ => return Err(DeviceError::WrongKind(path.to_owned())),
        };
        let flags = access | claim | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = open(path, flags, Mode::empty()).map_err(failed)?;
        if FileType::from_raw_mode(fstat(&fd).map_err(failed)?.st_mode) != kind {
            return Err(DeviceError::WrongKind(path.to_owned()));
        }
        // The flag would make io_uring give up where it should wait.
        fcntl_setfl(&fd, fcntl_getfl(&fd).map_err(failed)? - OFlags::NONBLOCK).map_err(failed)?;
        if kind == FileType::RegularFile {
            lock(&fd, path)?;
        }
        await_writers(&fd, path)?;
        Self::opened(fd, path)
    }

    fn check_range(&self, block: BlockNo, bytes: usize) -> Result<(), DeviceError> {
        assert!(bytes.is_multiple_of(BLOCK_SIZE));
        match block.0.checked_add((bytes / BLOCK_SIZE) as u64) {
            Some(end) if end <= self.len_blocks => Ok(()),
            _ => Err(self.failed("reach a block beyond its end", Errno::IO)),
        }
    }

    fn transfer(
        &self,
        doing: &'static str,
        len: usize,
        mut step: impl FnMut(usize) -> rustix::io::Result<usize>,
    ) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < len {
            match retry_on_intr(|| step(done)).map_err(|errno| self.failed(doing, errno))? {
                0 => return Err(self.failed(doing, Errno::IO)),
                n => done += n,
            }
        }
        Ok(())
    }

    fn failed(&self, doing: &'static str, errno: Errno) -> DeviceError {
        DeviceError::of(&self.path, doing, errno)
    }
}

impl From<PoolFile> for OwnedFd {
    fn from(pool: PoolFile) -> Self {
        pool.fd
    }
}

impl AsFd for PoolFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn lock(fd: &OwnedFd, path: &Path) -> Result<(), DeviceError> {
    retry_on_intr(|| flock(fd, FlockOperation::NonBlockingLockExclusive))
        .map_err(|errno| DeviceError::of(path, "lock it", errno))
}

/// The kind of the pool's file, and its length in bytes.
fn kind_and_len(fd: BorrowedFd<'_>, path: &Path) -> Result<(FileType, u64), DeviceError> {
    let failed = |errno| DeviceError::of(path, "read its metadata", errno);
    let stat = fstat(fd).map_err(failed)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let len = match kind {
        FileType::RegularFile => u64::try_from(stat.st_size).unwrap_or(0),
        // The end of a block device is its size, on every kernel.
        FileType::BlockDevice => {
            rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(failed)?
        }
        _ => return Err(DeviceError::WrongKind(path.to_owned())),
    };
    Ok((kind, len))
}

/// Switches direct I/O on if it works with blocks and frames of 4 KiB.
fn direct_if_possible(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = fcntl_getfl(fd)?;
    if declared_unfit(fd) || fcntl_setfl(fd, flags | OFlags::DIRECT).is_err() {
        return fcntl_setfl(fd, flags - OFlags::DIRECT);
    }
    // The declared alignment is not always right, and old kernels declare none: try.
    let mut probe = [Aligned([0; BLOCK_SIZE])];
    match retry_on_intr(|| pread(fd, &mut *bounce_bytes(&mut probe), 0)) {
        Err(Errno::INVAL) => fcntl_setfl(fd, flags - OFlags::DIRECT),
        _ => Ok(()),
    }
}

/// Whether the kernel declares that direct I/O does not work, or not with 4 KiB.
fn declared_unfit(fd: BorrowedFd<'_>) -> bool {
    let Ok(found) = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return false;
    };
    let fits = |align: u32| (1..=BLOCK_SIZE as u32).contains(&align);
    found.stx_mask & StatxFlags::DIOALIGN.bits() != 0
        && !(fits(found.stx_dio_mem_align) && fits(found.stx_dio_offset_align))
}

fn bounce_bytes(blocks: &mut [Aligned]) -> &mut [u8] {
    let len = size_of_val(blocks);
    // SAFETY: `Aligned` is `repr(C)` around bytes with neither padding nor invalid values, and the
    // slice stays borrowed.
    unsafe { std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), len) }
}

#[cfg(test)]
#[path = "pool_file/tests.rs"]
mod tests;
