//! Answers to requests in a directory that was removed and that the kernel still uses.

use warren_base::Ino;

use crate::message::Operation;

/// The reply to a request about a directory that was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnRemoved {
    Attr,
    Statx,
    Open,
    /// ENOENT: it has no names.
    Names,
    /// ENOENT: it gets none, nor does the other directory of the request, if that is meant.
    Change(Option<Ino>),
    /// ENODATA: it has none.
    Xattr,
    XattrNames {
        len: u32,
    },
    Stale,
}

impl OnRemoved {
    pub(crate) const fn of(operation: &Operation) -> Self {
        match operation {
            Operation::GetAttr { .. } => Self::Attr,
            Operation::Statx => Self::Statx,
            Operation::OpenDir => Self::Open,
            Operation::Lookup(_) | Operation::ReadDir { .. } => Self::Names,
            Operation::Symlink { .. }
            | Operation::Mknod(_)
            | Operation::Mkdir { .. }
            | Operation::Unlink(_)
            | Operation::Rmdir(_)
            | Operation::Link { .. }
            | Operation::Create(_)
            | Operation::TmpFile { .. } => Self::Change(None),
            Operation::Rename { new_dir, .. } => Self::Change(Some(*new_dir)),
            Operation::GetXattr { .. } => Self::Xattr,
            Operation::ListXattr { len } => Self::XattrNames { len: *len },
            _ => Self::Stale,
        }
    }
}
