//! What an operation on names comes to: changes, and an answer.

use warren_base::Ino;
use warren_proto::{AccessMode, Attr, Change, FileName, Reply};

/// What an operation on names comes to.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Insertions before removals: see [`crate::shard::Shard::replace_extents`] for why.
    pub(crate) changes: Vec<Change>,
    pub(crate) reply: PlannedReply,
}

/// The answer, as far as it does not depend on carrying out the plan.
#[derive(Debug)]
pub(crate) enum PlannedReply {
    Reply(Reply),
    /// A name leads to this inode; its attributes, if they are at hand.
    Entry {
        dir: Ino,
        name: FileName,
        ino: Ino,
        kind: warren_proto::FileKind,
        attr: Option<Attr>,
    },
    /// A name leads nowhere.
    Absent {
        dir: Ino,
        name: FileName,
    },
    /// The same for a new inode or (`found`) an existing one, which is to be opened if `open` says
    /// so.
    Created {
        dir: Ino,
        name: FileName,
        attr: Attr,
        found: bool,
        open: Option<AccessMode>,
    },
}

impl Plan {
    pub(super) fn reply(reply: PlannedReply) -> Self {
        Self { changes: Vec::new(), reply }
    }

    pub(super) fn done(changes: Vec<Change>) -> Self {
        Self { changes, reply: PlannedReply::Reply(Reply::Done) }
    }
}
