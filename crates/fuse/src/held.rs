//! Who may hold record locks, so that a `close` without any costs no message to a cell.
//!
//! Every `close` gives up all record locks of the process on the file (`FLUSH` names the owner). A
//! lock of an open file description (`F_OFD_SETLK`) looks the same, its owner being the description;
//! the kernel does not tell us when that goes, but by the time of its `RELEASE` every process that
//! locked through it has flushed, so what owners are left are descriptions.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_base::Ino;
use warren_proto::LockOwner;

#[derive(Default, Debug)]
pub struct HeldLocks {
    /// For each inode, owners and the open file that they locked through.
    owners: Mutex<BTreeMap<Ino, Vec<(LockOwner, u64)>>>,
}

impl HeldLocks {
    /// `owner` may hold locks on `ino` from now on, taken through `open`.
    pub fn note(&self, ino: Ino, owner: LockOwner, open: u64) {
        let mut owners = self.lock();
        let held = owners.entry(ino).or_default();
        if !held.contains(&(owner, open)) {
            held.push((owner, open));
        }
    }

    /// `owner` closes a descriptor: whether it may hold locks, which it does not any more.
    pub fn flush(&self, ino: Ino, owner: LockOwner) -> bool {
        !self.take(ino, |(held, _)| held == owner).is_empty()
    }

    /// `open` has no descriptor left: the owners that held locks through it and only through it.
    pub fn release(&self, ino: Ino, open: u64) -> Vec<LockOwner> {
        self.take(ino, |(_, through)| through == open)
    }

    fn take(&self, ino: Ino, gone: impl Fn((LockOwner, u64)) -> bool) -> Vec<LockOwner> {
        let mut owners = self.lock();
        let Some(held) = owners.get_mut(&ino) else { return Vec::new() };
        let taken = held.iter().filter(|&&entry| gone(entry)).map(|&(owner, _)| owner).collect();
        held.retain(|&entry| !gone(entry));
        if held.is_empty() {
            owners.remove(&ino);
        }
        taken
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ino, Vec<(LockOwner, u64)>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(5);

    #[test]
    fn who_never_locked_has_nothing_to_give_up() {
        let held = HeldLocks::default();
        held.note(INO, LockOwner(1), 10);
        assert!(!held.flush(INO, LockOwner(2)));
        assert!(!held.flush(Ino(6), LockOwner(1)));
        assert!(held.flush(INO, LockOwner(1)));
        assert!(!held.flush(INO, LockOwner(1)));
    }

    #[test]
    fn an_open_file_description_keeps_its_locks_until_released() {
        let held = HeldLocks::default();
        held.note(INO, LockOwner(1), 10);
        held.note(INO, LockOwner(99), 10);
        assert!(held.flush(INO, LockOwner(1)), "the process closes");
        assert_eq!(held.release(INO, 10), [LockOwner(99)]);
        assert!(held.release(INO, 10).is_empty());
    }
}
