//! The cell's frames: the buffer cache, its table, and the I/O that fills and empties them.

pub(crate) mod cache;
pub(crate) mod io;
pub(crate) mod pages;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod test_memory;
pub(crate) mod transfer;

use warren_base::{BlockNo, Ino};

/// A page of a file: the inode and the page's number in it.
pub(crate) type PageNo = (Ino, u64);

/// The place of a page of a file on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    pub(crate) block: BlockNo,
    pub(crate) checksum: u32,
}
