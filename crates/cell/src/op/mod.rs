//! The operations on names. Each looks at what it needs through a [`View`], checks everything, and
//! returns the changes that would make it happen; nothing has been changed when it returns.
//!
//! Errors come in the order in which Linux's VFS finds them.

mod create;
mod list;
mod lookup;
mod remove;
mod rename;

use warren_base::Ino;
use warren_proto::{AccessMode, Attr, Change, FileName, Reply, Request};

use crate::run::wait::Stop;
use crate::view::View;

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
    /// The same for a new inode or (`found`) an existing one, which is to be opened if `open` says so.
    Created {
        dir: Ino,
        name: FileName,
        attr: Attr,
        found: bool,
        open: Option<AccessMode>,
    },
}

impl Plan {
    fn reply(reply: PlannedReply) -> Self {
        Self { changes: Vec::new(), reply }
    }

    fn done(changes: Vec<Change>) -> Self {
        Self { changes, reply: PlannedReply::Reply(Reply::Done) }
    }
}

/// What the request, which is on names, comes to, given what the view shows.
pub(crate) fn plan(view: &mut View<'_>, request: &Request) -> Result<Plan, Stop> {
    match request {
        Request::Lookup { dir, name } => lookup::lookup(view, *dir, name),
        Request::Create { dir, name, new, flags, access } => {
            create::create(view, *dir, name, new, *flags, *access)
        }
        Request::Link { ino, dir, name } => create::link(view, *ino, *dir, name),
        Request::Unlink { dir, name } => remove::unlink(view, *dir, name),
        Request::Rmdir { dir, name } => remove::rmdir(view, *dir, name),
        Request::Rename { from, from_name, dir, name, flags } => {
            rename::rename(view, (*from, from_name), (*dir, name), *flags)
        }
        Request::ReadDir { dir, cookie, bytes_max } => list::list(view, *dir, *cookie, *bytes_max),
        _ => unreachable!("asked only for requests on names"),
    }
}
