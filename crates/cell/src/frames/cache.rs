//! The buffer cache, as it is lent to a turn.

use crate::event::FrameNo;
use crate::frames::Frames;
use crate::frames::io::Io;
use crate::frames::table::FrameTable;

/// The buffer cache of a cell, as far as its shards share it.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) frames: Frames,
    pub(crate) table: FrameTable,
    pub(crate) io: Io,
}

impl Cache {
    /// A cache of `count` frames, whose table lies in the frames from `table` on.
    pub(crate) fn new(table: FrameNo, count: u32) -> Self {
        let (frames, table) = (Frames::new(count), FrameTable::new(table, count));
        Self { frames, table, io: Io::default() }
    }
}
