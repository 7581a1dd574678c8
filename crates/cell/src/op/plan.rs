//! The plan of an operation on names: changes, and an answer.

use warren_base::Ino;
use warren_proto::{AccessMode, Attr, Change, FileKind, FileName, Reply};
use warren_rules::names::{self, Outcome};

/// The result of an operation on names, before it is carried out.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Insertions come before removals, for the reason given in [`names::Plan`].
    pub(crate) changes: Vec<Change>,
    pub(crate) reply: PlannedReply,
}

/// The answer, as far as it does not depend on carrying out the plan.
#[derive(Debug)]
pub(crate) enum PlannedReply {
    Reply(Reply),
    /// The request's name leads to this inode. `attr` holds its attributes, if they are at hand.
    Entry {
        ino: Ino,
        kind: FileKind,
        attr: Option<Attr>,
    },
    /// The request's name, and names behind it.
    Neighbours(Vec<Neighbour>),
    /// The request's name does not exist.
    Absent,
    /// Entries of a directory. A lease on its names is added.
    LeasedListing {
        dir: Ino,
        reply: Reply,
    },
    /// The request's name leads to a new inode or (`found`) an existing one, which is opened if
    /// `open` is set.
    Created {
        attr: Attr,
        found: bool,
        open: Option<AccessMode>,
    },
}

/// A name, and the inode to which it leads, with its attributes if they are at hand.
#[derive(Debug)]
pub(crate) struct Neighbour {
    pub(crate) name: FileName,
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    pub(crate) attr: Option<Attr>,
}

impl Plan {
    pub(super) fn reply(reply: PlannedReply) -> Self {
        Self { changes: Vec::new(), reply }
    }
}

impl From<names::Plan> for Plan {
    #[inline]
    fn from(names::Plan { changes, outcome }: names::Plan) -> Self {
        let reply = match outcome {
            Outcome::Done => PlannedReply::Reply(Reply::Done),
            Outcome::Unchanged => PlannedReply::Reply(Reply::Unchanged),
            Outcome::Entry { ino, kind, attr } => PlannedReply::Entry { ino, kind, attr },
            Outcome::Created { attr, found, open } => PlannedReply::Created { attr, found, open },
        };
        Self { changes, reply }
    }
}
