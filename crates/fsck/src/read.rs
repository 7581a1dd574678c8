//! Reading blocks of a device that may be damaged.

use thiserror::Error;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno};

/// The device could not read a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct ReadError(pub Errno);

/// Replaces a block that cannot be read: it has no magic, and differs from the zeros of a block
/// that was never written.
pub(crate) const UNREADABLE: u8 = 0xEE;

/// The progress of a check or a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    pub shards_done: u16,
    pub shards: u16,
    pub blocks_read: u64,
}

/// Reads one block of the device.
pub(crate) type Read<'a> = &'a mut dyn FnMut(BlockNo, &mut [u8]) -> Result<(), ReadError>;

/// Reads blocks and counts them.
pub(crate) struct Reader<'a> {
    pub read: Read<'a>,
    pub blocks_read: u64,
}

impl Reader<'_> {
    pub(crate) fn block(&mut self, block: BlockNo) -> Result<Box<[u8]>, ReadError> {
        let mut bytes = vec![0; BLOCK_SIZE].into_boxed_slice();
        self.blocks_read += 1;
        (self.read)(block, &mut bytes)?;
        Ok(bytes)
    }

    /// The block, or [`UNREADABLE`] bytes.
    pub(crate) fn block_or_rot(&mut self, block: BlockNo) -> Box<[u8]> {
        self.block(block).unwrap_or_else(|_| vec![UNREADABLE; BLOCK_SIZE].into())
    }
}
