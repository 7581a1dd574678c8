//! How much room an operation needs, and how much it leaves to others.
//!
//! A full shard must still do what makes room, or what needs none for long. So some blocks are kept
//! back, twice:
//!
//! ```text
//! 0 ...... frees ...... keeps ............................... free blocks that nothing is promised
//!   |  unlink, rmdir   |  rename within a shard, truncate,   |  create, link, write, ...
//!   |                  |  attributes                         |
//! ```
//!
//! What an operation takes of them is back when a checkpoint has written the nodes that it made
//! dirty, since the blocks of the old ones are then free.

use warren_proto::{Change, LockKey, LockMode};

use crate::shard::{NODES_PER_WAY, PER_PAGE, Shard};

/// What becomes of a shard's used blocks with an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    Frees,
    Keeps,
    Grows,
}

impl Growth {
    /// Of changes in one shard.
    pub(crate) fn of<'a>(changes: impl Iterator<Item = &'a Change>) -> Self {
        let (mut frees, mut records) = (false, 0);
        for change in changes {
            match change {
                Change::NewInode { .. } => return Self::Grows,
                Change::AddEntry { .. } => records += 1,
                Change::RemoveEntry { .. } => records -= 1,
                Change::RemoveLink { .. } => frees = true,
                Change::ReplaceEntry { .. }
                | Change::AddLink { .. }
                | Change::SetParent { .. }
                | Change::Touch { .. } => {}
            }
        }
        match (records > 0, frees) {
            (true, false) => Self::Grows,
            (_, true) => Self::Frees,
            (false, false) => Self::Keeps,
        }
    }
}

impl Shard {
    /// Nodes from the root to a leaf.
    fn way(&self) -> u64 {
        u64::from(self.tree.height()).max(1)
    }

    /// Nodes that a new record may make dirty: its way, and a split of each node on it.
    fn insertion(&self) -> u64 {
        2 * self.way() + 1
    }

    /// Blocks that an operation leaves to those that free more.
    pub(crate) fn reserve(&self, growth: Growth) -> u64 {
        let unlink = 3 * self.way() + self.insertion();
        let rename = 5 * self.way() + self.insertion();
        match growth {
            Growth::Frees => 0,
            Growth::Keeps => unlink,
            Growth::Grows => unlink + rename.max(self.truncation()),
        }
    }

    /// Blocks of the nodes that the change may make dirty.
    pub(crate) fn nodes_of(&self, change: &Change) -> u64 {
        let (way, insertion) = (self.way(), self.insertion());
        match change {
            // Its records, those of a long target too, may fill more than a leaf.
            Change::NewInode { .. } => 2 * insertion + 2,
            // The entry's leaf and that of the directory's part.
            Change::AddEntry { .. } => way + insertion,
            Change::RemoveEntry { .. } | Change::ReplaceEntry { .. } => 2 * way,
            // The inode, and the record that it is an orphan.
            Change::RemoveLink { .. } => way + insertion,
            Change::AddLink { .. } | Change::SetParent { .. } | Change::Touch { .. } => way,
        }
    }

    /// What another cell may have decided to change under such a lock.
    pub(crate) fn nodes_under(&self, key: &LockKey, mode: LockMode) -> u64 {
        let (way, insertion) = (self.way(), self.insertion());
        match key {
            _ if mode != LockMode::Write => 0,
            LockKey::Tree | LockKey::Logged(_) => 0,
            LockKey::Inode(_) | LockKey::Name(..) => way + insertion,
            LockKey::New(_) => 2 * insertion + 2,
        }
    }

    pub(crate) fn nodes_of_inode(&self) -> u64 {
        self.way()
    }

    pub(crate) fn nodes_of_xattr(&self) -> u64 {
        self.way() + self.insertion()
    }

    /// The page that the new end cuts is dirty afterwards.
    pub(crate) fn truncation(&self) -> u64 {
        3 * self.way() + PER_PAGE + NODES_PER_WAY
    }

    pub(crate) fn nodes_of_write(&self, pages: u64) -> u64 {
        PER_PAGE * pages + NODES_PER_WAY + 2 * self.insertion()
    }
}
