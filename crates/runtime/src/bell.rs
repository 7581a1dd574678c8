//! The bell of a sleeping cell: a pipe whose reading end only the cell has.
//!
//! An eventfd is simpler but not enough. It has one end: a process that may ring it may also read
//! the count, or make the cell's own read block, and clients are hostile. With a pipe, every client
//! gets its own writing end, which is opened anew, so that the flags of the open file are also its
//! own. The worst that a client can do is to ring for nothing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use warren_shm::RingClass;

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

/// The classes of clients that have rung, as the bytes of a bell name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rings([u64; 4]);

impl Rings {
    pub(crate) const NONE: Self = Self([0; 4]);
    /// Also those whose bytes a full bell has lost.
    pub(crate) const ALL: Self = Self([u64::MAX; 4]);

    pub(crate) fn is_empty(self) -> bool {
        self == Self::NONE
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.0.iter_mut().zip(more.0).for_each(|(word, more)| *word |= more);
    }

    /// The rings that these bytes of a bell name.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut rings = Self::NONE;
        bytes.iter().for_each(|&byte| rings.add_byte(byte));
        // A full bell takes no more bytes.
        if bytes.len() < PIPE_BYTES { rings } else { Self::ALL }
    }

    /// Bytes that name no class of clients are of other senders.
    pub(crate) fn add_byte(&mut self, byte: u8) {
        if RingClass::named(byte).is_some() {
            self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
        }
    }

    /// The byte of the first class from `start` on, or else of the first one, if there is any.
    pub(crate) fn first_from(self, start: u8) -> Option<u8> {
        let from = |start: u8| {
            let first = usize::from(start / 64);
            (first..self.0.len()).find_map(|at| {
                let below = if at == first { (1 << (start % 64)) - 1 } else { 0 };
                let word = self.0[at] & !below;
                (word != 0).then(|| at as u8 * 64 + word.trailing_zeros() as u8)
            })
        };
        from(start).or_else(|| from(0))
    }

    pub(crate) fn remove_byte(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] &= !(1 << (byte % 64));
    }
}

/// Removes all rings so far, and returns which clients they name.
pub(crate) fn drain(reader: &OwnedFd) -> Rings {
    let (mut bytes, mut rings) = ([0; PIPE_BYTES], Rings::NONE);
    for _ in 0..DRAINS_MAX {
        // An error means that it is empty.
        let Ok(count) = retry(|| rustix::io::read(reader, &mut bytes)) else { return rings };
        rings.add(Rings::of(&bytes[..count]));
        if count < bytes.len() {
            return rings;
        }
    }
    rings
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::ClientId;
    use warren_shm::WakeFd;

    #[test]
    fn a_bell_names_clients_and_a_full_one_all() {
        let bell = Bell::new().expect("bell");
        let wake = WakeFd::from_fd(bell.new_writer().expect("writer"));
        let reader = bell.reader().try_clone_to_owned().expect("reader");
        assert!(drain(&reader).is_empty());
        wake.wake();
        assert!(drain(&reader).is_empty(), "no client");
        for client in [3, 300] {
            wake.call(ClientId(client));
        }
        let mut rings = drain(&reader);
        let [low, high] = [3, 300].map(|client| RingClass::of(ClientId(client)).byte());
        assert!(low < high);
        assert_eq!((rings.first_from(0), rings.first_from(low)), (Some(low), Some(low)));
        assert_eq!((rings.first_from(low + 1), rings.first_from(u8::MAX)), (Some(high), Some(low)));
        [low, high].into_iter().for_each(|byte| rings.remove_byte(byte));
        assert_eq!((rings.is_empty(), rings.first_from(7)), (true, None));
        (0..PIPE_BYTES).for_each(|_| wake.call(ClientId(3)));
        assert_eq!(drain(&reader), Rings::ALL);
    }

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
