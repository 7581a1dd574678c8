//! The progress of a shard in emptying its closed chunks.

use std::collections::BTreeMap;

use warren_base::BlockNo;
use warren_disk::Key;

use crate::frames::PageNo;

/// ```text
/// idle ──chunks are closed──▶ walking ──all records were seen──▶ walked
///  ▲                                                               │ a checkpoint fixes its state
///  └──── the checkpoint is over: the rest is opened ──── departing ◀┘
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum Cleaning {
    #[default]
    Idle,
    Walking(Walk),
    /// The blocks that could be moved were. The emptied chunks leave with the next checkpoint.
    Walked,
    /// They leave with the checkpoint that is being written.
    Departing,
}

/// A walk over the records of the shard.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Walk {
    /// The records after this key have not been examined.
    pub(crate) after: Option<Key>,
    /// The pages that are being moved, with their places.
    pub(crate) batch: Vec<(PageNo, BlockNo)>,
    /// The shared blocks of which one place was moved since the last checkpoint: that page, and its
    /// new place. Blocks that become free are used again only after a checkpoint, so a page that
    /// has this place still has the data of the block.
    pub(crate) moved: BTreeMap<BlockNo, (PageNo, BlockNo)>,
    /// The number of waits for a shared block to be durable in its new place, since the last one
    /// was.
    pub(crate) waits: u32,
}
