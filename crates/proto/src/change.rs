//! The changes that operations on names consist of.
//!
//! Each changes one shard, so that a transaction is a list of changes for each of its shards.

use warren_base::{Ino, InodeFlags, ShardId, Timestamp};

use crate::{Acl, FileKind, FileName, NewInode, Wire};

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Change {
    /// An inode is created with one link (a directory with two). `parent` is the inode of a
    /// directory's `..`.
    NewInode { ino: Ino, new: NewInode, uid: u32, gid: u32, parent: Ino, now: Timestamp },
    /// `dir` gains an entry. Its times and counts follow.
    AddEntry { dir: Ino, name: FileName, ino: Ino, kind: FileKind, now: Timestamp },
    /// `dir` loses an entry. Its times and counts follow.
    RemoveEntry { dir: Ino, name: FileName, now: Timestamp },
    /// An entry gets another inode.
    ReplaceEntry { dir: Ino, name: FileName, ino: Ino, kind: FileKind, now: Timestamp },
    /// One link more.
    AddLink { ino: Ino, now: Timestamp },
    /// One link less; an empty directory loses all. An inode without links exists only while open.
    RemoveLink { ino: Ino, now: Timestamp },
    /// A directory was moved.
    SetParent { ino: Ino, parent: Ino, now: Timestamp },
    /// Only the change time (a rename sets it for the inode that it moves).
    Touch { ino: Ino, now: Timestamp },
    /// A regular file is created without a link. It exists while it is open, or until it gets one.
    NewOrphan { ino: Ino, new: NewInode, uid: u32, gid: u32, now: Timestamp },
    /// A new inode gets the lists and the flags that it inherits from its directory.
    Inherit { ino: Ino, access: Option<Acl>, default: Option<Acl>, flags: InodeFlags },
}

impl Change {
    /// The inode whose shard the change is made in.
    pub const fn home(&self) -> Ino {
        match self {
            Self::AddEntry { dir, .. }
            | Self::RemoveEntry { dir, .. }
            | Self::ReplaceEntry { dir, .. } => *dir,
            Self::NewInode { ino, .. }
            | Self::NewOrphan { ino, .. }
            | Self::Inherit { ino, .. }
            | Self::AddLink { ino, .. }
            | Self::RemoveLink { ino, .. }
            | Self::SetParent { ino, .. }
            | Self::Touch { ino, .. } => *ino,
        }
    }

    pub const fn shard(&self) -> ShardId {
        self.home().shard()
    }

    /// Whether it changes an entry of a directory.
    pub const fn is_of_entry(&self) -> bool {
        matches!(self, Self::AddEntry { .. } | Self::RemoveEntry { .. } | Self::ReplaceEntry { .. })
    }
}
