//! The attributes of directories as the front's own requests have left them.
//!
//! After each change of a directory the kernel asks for its attributes again, because the reply to
//! the change has no place for them. They come with the cell's reply and answer the kernel here.
//! The kernel has an acknowledged lease on them from then on. A copy is valid while its lease word
//! has its stamp; before a cell recalls the attributes from the kernel, it clears that word.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_base::{CellId, Ino};
use warren_proto::{Attr, Lease};

use crate::connection::FleetConnection;

/// At most so many copies. All of them are dropped when there are more.
const COPIES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Copy {
    attr: Attr,
    lease: Lease,
    cell: CellId,
}

#[derive(Default, Debug)]
pub(crate) struct DirCopies {
    copies: Mutex<HashMap<Ino, Copy>>,
}

impl DirCopies {
    /// Keeps what came with a reply of `cell`.
    pub(crate) fn keep(&self, changed: &[(Attr, Lease)], cell: Option<CellId>) {
        let Some(cell) = cell.filter(|_| !changed.is_empty()) else { return };
        let mut copies = self.lock();
        if copies.len() + changed.len() > COPIES_MAX {
            copies.clear();
        }
        let new = changed.iter().map(|&(attr, lease)| (attr.ino, Copy { attr, lease, cell }));
        copies.extend(new);
    }

    /// The directory's attributes, if there is a valid copy.
    pub(crate) fn get(&self, ino: Ino, fleet: &dyn FleetConnection) -> Option<(Attr, Lease)> {
        let mut copies = self.lock();
        let Copy { attr, lease, cell } = *copies.get(&ino)?;
        if fleet.load_word(cell, lease.word) != lease.stamp {
            copies.remove(&ino);
            return None;
        }
        Some((attr, lease))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Copy>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
