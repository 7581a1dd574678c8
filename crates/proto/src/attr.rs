//! Attributes of an inode, as `stat` returns and `chmod`, `chown`, `utimensat`, `truncate` set them.

use warren_base::{Ino, Timestamp};

use crate::Wire;

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileKind {
    /// The `S_IFMT` bits of `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    /// The kind that the `S_IFMT` bits of `mode` name.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            _ => return None,
        })
    }
}

/// Everything `stat` returns. `mode` is the 12 permission bits; `blocks` counts 4 KiB blocks.
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
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum SetTime {
    /// The cell's clock when it executes the change.
    Now,
    At(Timestamp),
}

/// Attributes to change; what is `None` stays.
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
}
