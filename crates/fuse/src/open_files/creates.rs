//! Creates under way, and files that became idle meanwhile.
//!
//! A cell that removes the last name of an idle inode closes all handles that the client keeps of
//! it. One of them may be the new handle of a create whose answer no thread has taken yet. So an
//! inode is marked as idle only when every create that was under way when its last open ended has
//! added its handle, or failed.

use std::collections::{BTreeSet, VecDeque};

use warren_base::Ino;

#[derive(Default, Debug)]
pub(super) struct Creates {
    running: BTreeSet<u64>,
    begun: u64,
    /// Files that wait for the creates that were begun before this number, in its order.
    waiting: VecDeque<(u64, Ino)>,
}

impl Creates {
    /// A create begins. Returns its number.
    pub(super) fn begin(&mut self) -> u64 {
        let number = self.begun;
        self.running.insert(number);
        self.begun += 1;
        number
    }

    pub(super) fn end(&mut self, number: u64) {
        self.running.remove(&number);
    }

    /// Whether the inode has to wait. [`Self::next_ready`] returns it later.
    pub(super) fn delays(&mut self, ino: Ino) -> bool {
        let waits = !self.running.is_empty();
        if waits {
            self.waiting.push_back((self.begun, ino));
        }
        waits
    }

    /// An inode that waits for no create any more.
    pub(super) fn next_ready(&mut self) -> Option<Ino> {
        let (begun, ino) = *self.waiting.front()?;
        let waits = self.running.first().is_some_and(|oldest| *oldest < begun);
        if waits {
            return None;
        }
        self.waiting.pop_front();
        Some(ino)
    }
}
