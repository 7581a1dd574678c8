//! The bell of a sleeping cell: a pipe whose reading end only the cell has.
//!
//! An eventfd is simpler but not enough. It has one end: a process that may ring it may also read
//! the count, or make the cell's own read block, and clients are hostile. With a pipe, every client
//! gets its own writing end, which is opened anew, so that the flags of the open file are also its
//! own. The worst that a client can do is to ring for nothing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::error::{FleetError, system};
use crate::link::retry;

/// The pipe's capacity in bytes: one page, the minimum. One byte in it is as good as many.
const PIPE_BYTES: usize = 4096;

/// Reads that empty the pipe, with a margin for what a hostile client writes meanwhile.
const DRAINS_MAX: u32 = 4;

/// Both ends, as the supervisor makes and keeps them.
#[derive(Debug)]
pub(crate) struct Bell {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> Result<Self, FleetError> {
        let doing = "make a bell";
        let (reader, writer) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(system(doing))?;
        fcntl_setpipe_size(&writer, PIPE_BYTES).map_err(system(doing))?;
        Ok(Self { reader, writer })
    }

    /// Takes over a bell that an earlier supervisor has made.
    pub(crate) fn adopt(reader: OwnedFd, writer: OwnedFd) -> Self {
        Self { reader, writer }
    }

    /// The writing end, for the next supervisor.
    pub(crate) fn writer(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }

    /// A new writing end for one process that rings.
    pub(crate) fn new_writer(&self) -> Result<OwnedFd, FleetError> {
        let path = format!("/proc/self/fd/{}", self.writer.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        open(path, flags, Mode::empty()).map_err(system("share a bell"))
    }

    /// The reading end, for the cell.
    pub(crate) fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Removes all rings so far.
pub(crate) fn drain(reader: &OwnedFd) {
    let mut bytes = [0; PIPE_BYTES];
    for _ in 0..DRAINS_MAX {
        // An error means that it is empty.
        if !matches!(retry(|| rustix::io::read(reader, &mut bytes)), Ok(n) if n == bytes.len()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_shm::WakeFd;

    #[test]
    fn a_new_writer_rings_and_cannot_silence() {
        let bell = Bell::new().expect("bell");
        let writer = bell.new_writer().expect("writer");
        assert!(rustix::io::read(&writer, &mut [0; 8]).is_err());
        let wake = WakeFd::from_fd(writer);
        for _ in 0..2 * PIPE_BYTES {
            wake.wake();
        }
        assert!(rustix::io::ioctl_fionread(bell.reader()).is_ok_and(|n| n > 0));
        let reader = bell.reader().try_clone_to_owned().expect("reader");
        drain(&reader);
        assert_eq!(rustix::io::ioctl_fionread(bell.reader()), Ok(0));
        wake.wake();
        assert_eq!(rustix::io::ioctl_fionread(bell.reader()), Ok(8));
    }
}
