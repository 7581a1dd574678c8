//! How far a shard has come with emptying its closed chunks.

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
    /// The records after this key have not been examined. `batch`: the pages that are being moved,
    /// with their places.
    Walking { after: Option<Key>, batch: Vec<(PageNo, BlockNo)> },
    /// The blocks that could be moved were. The emptied chunks leave with the next checkpoint.
    Walked,
    /// They leave with the checkpoint that is being written.
    Departing,
}
