//! The plan of a change of names: changes of inodes and directories, and an outcome.

use alloc::vec::Vec;

use warren_base::Ino;
use warren_proto::{AccessMode, Attr, Change, FileKind};

/// The result of planning, before it is carried out.
#[derive(PartialEq, Eq, Debug)]
pub struct Plan {
    /// Insertions come before removals, because a leaf of a cell's tree that lost its last record
    /// could vanish, together with the place of a new record.
    pub changes: Vec<Change>,
    pub outcome: Outcome,
}

/// The reply, as far as it does not depend on carrying out the plan. The cell adds leases and the
/// open file.
#[derive(PartialEq, Eq, Debug)]
pub enum Outcome {
    Done,
    /// Both names of a rename lead to the same inode, so both stay.
    Unchanged,
    /// The request's name, or the old name of a rename that leaves a whiteout, leads to this inode.
    /// `attr` holds its attributes, if they are at hand.
    Entry {
        ino: Ino,
        kind: FileKind,
        attr: Option<Attr>,
    },
    /// The request's name leads to a new inode or (`found`) an existing one, which is opened if
    /// `open` is set.
    Created {
        attr: Attr,
        found: bool,
        open: Option<AccessMode>,
    },
}

impl Plan {
    #[inline]
    pub(super) fn unchanged(outcome: Outcome) -> Self {
        Self { changes: Vec::new(), outcome }
    }

    #[inline]
    pub(super) fn done(changes: Vec<Change>) -> Self {
        Self { changes, outcome: Outcome::Done }
    }
}
