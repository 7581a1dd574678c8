//! Attributes of an inode, as `stat` returns and `chmod`, `chown`, `utimensat`, `truncate` set
//! them.

use alloc::vec::Vec;

use warren_base::{FileKind, Ino, InodeFlags, Timestamp};

use crate::Wire;
use crate::wire::wire_flags;

wire_flags!(InodeFlags);

/// The result of `stat`. `mode` is the 12 permission bits; `blocks` counts 4 KiB blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileKind,
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    pub flags: InodeFlags,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum SetTime {
    /// The cell's clock when it executes the change.
    Now,
    At(Timestamp),
}

/// Attributes to change. An attribute that is `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
pub struct SetAttr {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Clear the set-id bits, as a write or chown by an unprivileged caller does.
    pub kill_privileges: bool,
    /// The new values of the flags in [`InodeFlags::SETTABLE`]; the others stay.
    pub flags: Option<InodeFlags>,
}
