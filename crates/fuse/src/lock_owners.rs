//! The owners that may hold record locks, so that a `close` without locks costs no message.
//!
//! Every `close` releases all record locks of the process on the file: `FLUSH` names the owner. A
//! lock of an open file description (`F_OFD_SETLK`) has the description as its owner, and the
//! kernel does not say when that owner goes. But before the `RELEASE` of a description, every
//! process that locked through it has sent its `FLUSH`. Owners that are left then are descriptions.
//!
//! **The number of such an owner is used again** when its description is closed: it is the address
//! of the kernel's open file. The kernel queues the `RELEASE` of the old description before any
//! request of the new one, but another worker may handle it later, and would release the new one's
//! locks. So a worker notes a `RELEASE` while it reads it ([`LockOwners::reading`]), and an owner
//! locks only when none is noted for it.
//!
//! **A lock is free when the program that held it has ended**, although the kernel does not wait
//! for the answer to a `RELEASE`. So a request that finds a lock taken waits for the releases of
//! this inode that the kernel queued before, and tries once more ([`LockOwners::await_releases`]).
//!
//! An owner is also in the [`FrontState`] until the cell has released its locks, so that a
//! successor finds it there.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

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

#[derive(Default)]
struct Owners {
    by_inode: BTreeMap<Ino, Vec<Owner>>,
    /// The owners whose open file is being released: its inode, the owner, its number.
    releasing: Vec<(Ino, LockOwner, u64)>,
}

pub(crate) struct LockOwners {
    state: Arc<FrontState>,
    owners: Mutex<Owners>,
    released: Condvar,
    /// Held by a worker from before it reads a message until it has noted what it read.
    reads: RwLock<()>,
}

impl LockOwners {
    /// Starts with the owners that a predecessor left in `state`.
    pub(crate) fn new(state: Arc<FrontState>) -> Self {
        let mut owners = Owners::default();
        for (index, OwnerEntry { ino, owner, open }) in state.lock_owners() {
            owners.by_inode.entry(ino).or_default().push(Owner { owner, open, index });
        }
        let (owners, released, reads) = (Mutex::new(owners), Condvar::new(), RwLock::new(()));
        Self { state, owners, released, reads }
    }

    /// A worker begins to read a message. If that is a `RELEASE`, it calls [`Self::begin_release`]
    /// before it drops this.
    pub(crate) fn reading(&self) -> RwLockReadGuard<'_, ()> {
        self.reads.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A `RELEASE` of `open` was read, which also releases the `flock` of owner `flock`.
    /// [`Self::release`] and [`Self::end_release`] will follow.
    pub(crate) fn begin_release(&self, ino: Ino, open: u64, flock: Option<LockOwner>) {
        let Owners { by_inode, releasing } = &mut *self.lock();
        let of_open = by_inode.get(&ino).into_iter().flatten().filter(|it| it.open == open);
        releasing.extend(of_open.map(|it| it.owner).chain(flock).map(|owner| (ino, owner, open)));
    }

    /// The cell has released the locks that were taken through `open`.
    pub(crate) fn end_release(&self, ino: Ino, open: u64) {
        let mut owners = self.lock();
        if !owners.releasing.is_empty() {
            owners.releasing.retain(|(of, _, released)| (*of, *released) != (ino, open));
            self.released.notify_all();
        }
    }

    /// Waits until the cell has released what open files of `ino` held whose `RELEASE` the kernel
    /// queued before the request that calls this. Returns whether there was one.
    pub(crate) fn await_releases(&self, ino: Ino) -> bool {
        self.note_reads();
        let owners = self.lock();
        let of_inode = owners.releasing.iter().filter(|(of, ..)| *of == ino);
        let before: Vec<u64> = of_inode.map(|(.., open)| *open).collect();
        let is_left = |owners: &mut Owners| {
            owners.releasing.iter().any(|(of, _, open)| *of == ino && before.contains(open))
        };
        let waited = self.released.wait_while(owners, is_left);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        !before.is_empty()
    }

    /// Returns when every message that was read before has been noted.
    fn note_reads(&self) {
        drop(self.reads.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Adds an owner that may hold locks on `ino`, taken through `open`. ENOLCK if there are too
    /// many owners.
    pub(crate) fn add(&self, ino: Ino, owner: LockOwner, open: u64) -> Result<(), Errno> {
        let mut owners = self.lock_unless_released(ino, owner, open);
        let of_inode = owners.by_inode.entry(ino).or_default();
        if !of_inode.iter().any(|it| it.owner == owner && it.open == open) {
            let index = self.state.add_lock_owner(OwnerEntry { ino, owner, open })?;
            of_inode.push(Owner { owner, open, index });
        }
        Ok(())
    }

    /// The owners, when no `RELEASE` that the kernel queued before the request of this owner will
    /// release locks of it.
    fn lock_unless_released(
        &self,
        ino: Ino,
        owner: LockOwner,
        open: u64,
    ) -> MutexGuard<'_, Owners> {
        let mut owners = self.lock();
        let of_inode = owners.by_inode.get(&ino).into_iter().flatten();
        let is_known = |it: &Owner| it.owner == owner && it.open != open;
        if of_inode.clone().any(is_known) {
            // A process that locks through two open files, or a description that is closed: then
            // its `RELEASE` was read before.
            drop(owners);
            self.note_reads();
            owners = self.lock();
        }
        let is_released = |owners: &mut Owners| {
            owners.releasing.iter().any(|(of, released, _)| (*of, *released) == (ino, owner))
        };
        self.released.wait_while(owners, is_released).unwrap_or_else(PoisonError::into_inner)
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
        let by_inode = &mut self.lock().by_inode;
        let Some(of_inode) = by_inode.get_mut(&ino) else { return Vec::new() };
        let releasing = |it: &Owner| Releasing { owner: it.owner, index: it.index };
        let removed = of_inode.iter().filter(|it| is_gone(it)).map(releasing).collect();
        of_inode.retain(|it| !is_gone(it));
        if of_inode.is_empty() {
            by_inode.remove(&ino);
        }
        removed
    }

    fn lock(&self) -> MutexGuard<'_, Owners> {
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
    fn a_number_used_again_locks_after_the_release_of_its_first_description() {
        let (_, owners) = owners();
        owners.add(INO, LockOwner(99), 10).unwrap();
        let reading = owners.reading();
        std::thread::scope(|scope| {
            let (added, is_added) = std::sync::mpsc::channel();
            let owners = &owners;
            scope.spawn(move || added.send(owners.add(INO, LockOwner(99), 11)).unwrap());
            owners.begin_release(INO, 10, None);
            drop(reading);
            let released = owners.release(INO, 10);
            assert_eq!(released.len(), 1);
            let early = is_added.recv_timeout(std::time::Duration::from_millis(50));
            assert!(early.is_err(), "the cell has not released its locks");
            owners.forget(&released);
            owners.end_release(INO, 10);
            is_added.recv().unwrap().unwrap();
        });
        assert_eq!(owners.release(INO, 11).len(), 1);
    }

    #[test]
    fn a_lock_that_is_taken_is_tried_again_after_the_releases_that_were_read() {
        let (_, owners) = owners();
        assert!(!owners.await_releases(INO));
        owners.begin_release(Ino(6), 9, Some(LockOwner(8)));
        assert!(!owners.await_releases(INO), "of another inode");
        let reading = owners.reading();
        std::thread::scope(|scope| {
            let (tried, is_tried) = std::sync::mpsc::channel();
            let owners = &owners;
            scope.spawn(move || tried.send(owners.await_releases(INO)).unwrap());
            owners.begin_release(INO, 10, Some(LockOwner(99)));
            drop(reading);
            let early = is_tried.recv_timeout(std::time::Duration::from_millis(50));
            assert!(early.is_err(), "the cell has not released the lock");
            owners.end_release(INO, 10);
            assert_eq!(is_tried.recv(), Ok(true));
        });
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
