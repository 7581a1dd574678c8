//! The file of the image: its layout, and what is done with it.

use core::ffi::CStr;
use core::mem::size_of;

use crate::abi::{F_ADD_SEALS, F_GET_SEALS, LOCK_EX, LOCK_NB, O_NOCTTY, O_NONBLOCK, nr};
use crate::loader::BUILD_ID;
use crate::stub;

/// A new image begins with this, which the launcher writes.
pub(super) const MARK: [u8; 16] = *b"warren text new\n";
/// A filled image begins with this. Another layout has another number.
pub(super) const FILLED: [u8; 16] = *b"warren text 001\n";
/// From the trampolines to the text, less than a jump reaches. Objects that are mapped at the start
/// of a program lie near its libraries, and mostly take less.
pub(super) const DISTANCE: usize = 512 << 20;
/// The bytes of the trampolines: of a thousand sites. glibc has five hundred.
pub(super) const TRAMPOLINES: usize = 64 << 10;

/// These seals allow no more seals, no other length and no writing.
pub(super) const SEALS: usize = 0xf;

/// The first bytes of the image.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Header {
    pub mark: [u8; 16],
    pub build_id: [u8; BUILD_ID],
    /// Bytes of text, and of trampolines that are used, in pages.
    pub text: usize,
    pub trampolines: usize,
    /// The part of the text that has most of the sites: where it begins, and its length.
    pub dense: [usize; 2],
}

const _: () = assert!(size_of::<Header>() == 80);

/// A file that is closed at the end.
pub(super) struct Open(pub usize);

impl Open {
    pub(super) fn new(path: &CStr, flags: usize) -> Option<Self> {
        // The path may lead to another process's pipe by now, whose other end is not open, or to a
        // terminal.
        stub::open(path, flags | O_NONBLOCK | O_NOCTTY).map(Self)
    }

    /// Returns those of [`SEALS`] that the file has; `None` if it can have none.
    pub(super) fn seals(&self) -> Option<usize> {
        let seals = stub::control(self.0, F_GET_SEALS, 0);
        Some(usize::try_from(seals).ok()? & SEALS)
    }

    /// Takes the lock of the file, which ends with the process. False if another one has it.
    pub(super) fn lock(&self) -> bool {
        // SAFETY: the descriptor is open.
        unsafe { stub::call(nr::FLOCK, [self.0, LOCK_EX | LOCK_NB]) == 0 }
    }

    pub(super) fn seal(&self) {
        stub::control(self.0, F_ADD_SEALS, SEALS);
    }

    /// Reads all bytes of `room` from `offset` on.
    pub(super) fn read(&self, room: &mut [u8], offset: usize) -> Option<()> {
        let args = [self.0, room.as_mut_ptr() as usize, room.len(), offset];
        // SAFETY: the kernel writes into `room`.
        let read = unsafe { stub::call(nr::PREAD64, args) };
        (read == room.len() as isize).then_some(())
    }

    /// The length of the file, if it is this user's.
    pub(super) fn own_length(&self) -> Option<usize> {
        let stat = stub::stat(self.0)?;
        // SAFETY: it has no effect.
        let user = unsafe { stub::call(nr::GETEUID, []) };
        // The mode comes before the user.
        ((stat[3] >> 32) as isize == user).then_some(stat[6] as usize)
    }

    pub(super) fn header(&self) -> Option<Header> {
        let mut bytes = [0; size_of::<Header>()];
        self.read(&mut bytes, 0)?;
        // SAFETY: any bytes are a header.
        Some(unsafe { core::mem::transmute::<[u8; size_of::<Header>()], Header>(bytes) })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        stub::close(self.0);
    }
}
