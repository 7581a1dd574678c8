//! The owners that may hold record locks, so that a `close` without locks costs no message.
//!
//! Every `close` releases all record locks of the process on the file: `FLUSH` names the owner. A
//! lock of an open file description (`F_OFD_SETLK`) has the description as its owner, and the
//! kernel does not say when that owner goes. But before the `RELEASE` of a description, every
//! process that locked through it has sent its `FLUSH`. Owners that are left then are descriptions.
//!
//! An owner is also in the [`FrontState`] until the cell has released its locks, so that a
//! successor finds it there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warren_base::{Errno, Ino};
use warren_proto::LockOwner;

use crate::front_state::{FrontState, OwnerEntry, OwnerIndex};

/// An owner of an inode, and the open file through which it locked.
#[derive(Clone, Copy, Debug)]
struct Owner {
    owner: LockOwner,
    open: u64,
    index: OwnerIndex,
}

/// An owner whose locks the cell is to release. After that, call [`LockOwners::forget`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Releasing {
    pub owner: LockOwner,
    index: OwnerIndex,
}

pub(crate) struct LockOwners {
    state: Arc<FrontState>,
    owners: Mutex<BTreeMap<Ino, Vec<Owner>>>,
}

impl LockOwners {
    /// Starts with the owners that a predecessor left in `state`.
    pub(crate) fn new(state: Arc<FrontState>) -> Self {
        let mut owners: BTreeMap<Ino, Vec<Owner>> = BTreeMap::new();
        for (index, OwnerEntry { ino, owner, open }) in state.lock_owners() {
            owners.entry(ino).or_default().push(Owner { owner, open, index });
        }
        Self { state, owners: Mutex::new(owners) }
    }

    /// Adds an owner that may hold locks on `ino`, taken through `open`. ENOLCK if there are too
    /// many owners.
    pub(crate) fn add(&self, ino: Ino, owner: LockOwner, open: u64) -> Result<(), Errno> {
        let mut owners = self.lock();
        let of_inode = owners.entry(ino).or_default();
        if !of_inode.iter().any(|it| it.owner == owner && it.open == open) {
            let index = self.state.add_lock_owner(OwnerEntry { ino, owner, open })?;
            of_inode.push(Owner { owner, open, index });
        }
        Ok(())
    }

    /// `owner` closes a descriptor. Returns and removes its entries.
    pub(crate) fn flush(&self, ino: Ino, owner: LockOwner) -> Vec<Releasing> {
        self.remove(ino, |it| it.owner == owner)
    }

    /// The last descriptor of `open` is closed. Returns and removes the owners that locked
    /// through it.
    pub(crate) fn release(&self, ino: Ino, open: u64) -> Vec<Releasing> {
        self.remove(ino, |it| it.open == open)
    }

    /// The cell has released the locks. An owner that has locked since then has a new entry.
    pub(crate) fn forget(&self, released: &[Releasing]) {
        released.iter().for_each(|released| self.state.remove_lock_owner(released.index));
    }

    fn remove(&self, ino: Ino, is_gone: impl Fn(&Owner) -> bool) -> Vec<Releasing> {
        let mut owners = self.lock();
        let Some(of_inode) = owners.get_mut(&ino) else { return Vec::new() };
        let releasing = |it: &Owner| Releasing { owner: it.owner, index: it.index };
        let removed = of_inode.iter().filter(|it| is_gone(it)).map(releasing).collect();
        of_inode.retain(|it| !is_gone(it));
        if of_inode.is_empty() {
            owners.remove(&ino);
        }
        removed
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ino, Vec<Owner>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(5);

    fn owners() -> (Arc<FrontState>, LockOwners) {
        let state = Arc::new(FrontState::create().unwrap());
        (Arc::clone(&state), LockOwners::new(state))
    }

    #[test]
    fn only_the_first_close_of_a_lock_owner_releases() {
        let (_, owners) = owners();
        owners.add(INO, LockOwner(1), 10).unwrap();
        owners.add(INO, LockOwner(1), 10).unwrap();
        assert!(owners.flush(INO, LockOwner(2)).is_empty());
        assert!(owners.flush(Ino(6), LockOwner(1)).is_empty());
        assert_eq!(owners.flush(INO, LockOwner(1)).len(), 1);
        assert!(owners.flush(INO, LockOwner(1)).is_empty());
    }

    #[test]
    fn an_open_file_description_keeps_its_locks_until_released() {
        let (_, owners) = owners();
        owners.add(INO, LockOwner(1), 10).unwrap();
        owners.add(INO, LockOwner(99), 10).unwrap();
        assert_eq!(owners.flush(INO, LockOwner(1)).len(), 1, "the process closes");
        let left = owners.release(INO, 10);
        assert_eq!(left.iter().map(|left| left.owner).collect::<Vec<_>>(), [LockOwner(99)]);
        assert!(owners.release(INO, 10).is_empty());
    }

    #[test]
    fn a_successor_releases_what_its_predecessor_had_begun_to_release() {
        let (state, owners) = owners();
        owners.add(INO, LockOwner(1), 10).unwrap();
        owners.add(INO, LockOwner(2), 11).unwrap();
        let releasing = owners.flush(INO, LockOwner(1));
        // The front is killed here, and the kernel sends the close again.
        let successor = LockOwners::new(Arc::clone(&state));
        assert_eq!(successor.flush(INO, LockOwner(1)), releasing);
        successor.forget(&releasing);
        let successor = LockOwners::new(state);
        assert!(successor.flush(INO, LockOwner(1)).is_empty());
        assert_eq!(successor.flush(INO, LockOwner(2)).len(), 1);
    }
}
