//! The changes of which every operation on names consists.
//!
//! Each touches one shard, so that a transaction is a list of changes for each of its shards, and
//! (when there is an op log) a record is such a list.

use warren_base::{Ino, ShardId, Timestamp};

use crate::{FileKind, FileName, NewInode, Wire};

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Change {
    /// An inode comes into being with one link (a directory with two). `parent` is what a
    /// directory's `..` leads to.
    NewInode { ino: Ino, new: NewInode, uid: u32, gid: u32, parent: Ino, now: Timestamp },
    /// `dir` gains an entry. Its times and counts follow.
    AddEntry { dir: Ino, name: FileName, ino: Ino, kind: FileKind, now: Timestamp },
    /// `dir` loses an entry. Its times and counts follow.
    RemoveEntry { dir: Ino, name: FileName, now: Timestamp },
    /// An entry leads elsewhere from now on.
    ReplaceEntry { dir: Ino, name: FileName, ino: Ino, kind: FileKind, now: Timestamp },
    /// One link more.
    AddLink { ino: Ino, now: Timestamp },
    /// One link less; an empty directory loses all. Without links an inode lives only while open.
    RemoveLink { ino: Ino, now: Timestamp },
    /// A directory was moved.
    SetParent { ino: Ino, parent: Ino, now: Timestamp },
    /// Only the change time (a rename touches what it moves).
    Touch { ino: Ino, now: Timestamp },
}

impl Change {
    /// The inode whose shard the change is made in.
    pub const fn home(&self) -> Ino {
        match self {
            Self::AddEntry { dir, .. }
            | Self::RemoveEntry { dir, .. }
            | Self::ReplaceEntry { dir, .. } => *dir,
            Self::NewInode { ino, .. }
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
