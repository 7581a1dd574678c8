//! Operations on names, as a type of their own.

use warren_base::Ino;

use crate::{AccessMode, CreateFlags, FileName, NewInode, RenameFlags, Request};

/// A request that is an operation on names. A cell plans such a request over a view of all the
/// inodes concerned, which may be on several cells; it executes any other request at once.
#[derive(Clone, Copy, Debug)]
pub enum NameRequest<'a> {
    Lookup {
        dir: Ino,
        name: &'a FileName,
    },
    Neighbours {
        dir: Ino,
        name: &'a FileName,
    },
    /// Opens what the name leads to ([`CreateFlags::EXISTING`]).
    OpenExisting {
        dir: Ino,
        name: &'a FileName,
        access: AccessMode,
    },
    Create {
        dir: Ino,
        name: &'a FileName,
        new: &'a NewInode,
        flags: CreateFlags,
        access: AccessMode,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: &'a FileName,
    },
    Unlink {
        dir: Ino,
        name: &'a FileName,
    },
    Rmdir {
        dir: Ino,
        name: &'a FileName,
    },
    Rename {
        from: (Ino, &'a FileName),
        to: (Ino, &'a FileName),
        flags: RenameFlags,
    },
    ReadDir {
        dir: Ino,
        cookie: u64,
        bytes_max: u32,
        leased: bool,
    },
}

impl<'a> NameRequest<'a> {
    /// The name to which the answer may add a lease.
    pub const fn leased_name(&self) -> Option<(Ino, &'a FileName)> {
        match *self {
            Self::Lookup { dir, name }
            | Self::Neighbours { dir, name }
            | Self::OpenExisting { dir, name, .. }
            | Self::Create { dir, name, .. }
            | Self::Link { dir, name, .. } => Some((dir, name)),
            Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::Rename { .. }
            | Self::ReadDir { .. } => None,
        }
    }

    /// The name that the request creates, unless it exists already.
    pub const fn created_name(&self) -> Option<(Ino, &'a FileName)> {
        match *self {
            Self::Create { flags, .. } if flags.contains(CreateFlags::NAMELESS) => None,
            Self::Create { dir, name, .. }
            | Self::Link { dir, name, .. }
            | Self::Rename { to: (dir, name), .. } => Some((dir, name)),
            _ => None,
        }
    }

    /// The access with which the request opens the file, if it opens one.
    pub const fn access(&self) -> Option<AccessMode> {
        match *self {
            Self::OpenExisting { access, .. } | Self::Create { access, .. } => Some(access),
            _ => None,
        }
    }
}

impl Request {
    /// The operation on names, if the request is one.
    pub const fn on_names(&self) -> Option<NameRequest<'_>> {
        Some(match *self {
            Self::Lookup { dir, ref name } => NameRequest::Lookup { dir, name },
            Self::Neighbours { dir, ref name } => NameRequest::Neighbours { dir, name },
            Self::Create { dir, ref name, ref new, flags, access } => {
                if flags.contains(CreateFlags::EXISTING) {
                    NameRequest::OpenExisting { dir, name, access }
                } else {
                    NameRequest::Create { dir, name, new, flags, access }
                }
            }
            Self::Link { ino, dir, ref name } => NameRequest::Link { ino, dir, name },
            Self::Unlink { dir, ref name } => NameRequest::Unlink { dir, name },
            Self::Rmdir { dir, ref name } => NameRequest::Rmdir { dir, name },
            Self::Rename { from, ref from_name, dir, ref name, flags } => {
                NameRequest::Rename { from: (from, from_name), to: (dir, name), flags }
            }
            Self::ReadDir { dir, cookie, bytes_max, leased } => {
                NameRequest::ReadDir { dir, cookie, bytes_max, leased }
            }
            _ => return None,
        })
    }
}
