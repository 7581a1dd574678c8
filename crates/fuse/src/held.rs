//! Who may hold record locks, so that a `close` without any costs no message to a cell.
//!
//! Every `close` gives up all record locks of the process on the file (`FLUSH` names the owner). A
//! lock of an open file description (`F_OFD_SETLK`) looks the same, its owner being the description;
//! the kernel does not tell us when that goes, but by the time of its `RELEASE` every process that
//! locked through it has flushed, so what owners are left are descriptions.

//!
//! What is noted is in the ledger too, where a successor finds it, until the cell has released.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warren_base::{Errno, Ino};
use warren_proto::LockOwner;

use crate::ledger::{HeldAt, Holder, Ledger};

/// An owner and the open file that it locked through.
#[derive(Clone, Copy, Debug)]
struct Held {
    owner: LockOwner,
    open: u64,
    at: HeldAt,
}

/// An owner whose locks are to be released, and that afterwards is to be [`HeldLocks::forget`]ten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Releasing {
    pub owner: LockOwner,
    at: HeldAt,
}

pub struct HeldLocks {
    ledger: Arc<Ledger>,
    owners: Mutex<BTreeMap<Ino, Vec<Held>>>,
}

impl HeldLocks {
    /// With what the ledger knows.
    pub fn new(ledger: Arc<Ledger>) -> Self {
        let mut owners: BTreeMap<Ino, Vec<Held>> = BTreeMap::new();
        for (at, Holder { ino, owner, open }) in ledger.holders() {
            owners.entry(ino).or_default().push(Held { owner, open, at });
        }
        Self { ledger, owners: Mutex::new(owners) }
    }

    /// `owner` may hold locks on `ino` from now on, taken through `open`. ENOLCK if too many may.
    pub fn note(&self, ino: Ino, owner: LockOwner, open: u64) -> Result<(), Errno> {
        let mut owners = self.lock();
        let held = owners.entry(ino).or_default();
        if !held.iter().any(|held| held.owner == owner && held.open == open) {
            let at = self.ledger.hold(Holder { ino, owner, open })?;
            held.push(Held { owner, open, at });
        }
        Ok(())
    }

    /// `owner` closes a descriptor: what it may hold, which it does not any more.
    pub fn flush(&self, ino: Ino, owner: LockOwner) -> Vec<Releasing> {
        self.take(ino, |held| held.owner == owner)
    }

    /// `open` has no descriptor left: the owners that held locks through it and only through it.
    pub fn release(&self, ino: Ino, open: u64) -> Vec<Releasing> {
        self.take(ino, |held| held.open == open)
    }

    /// The cell has released the locks. Whoever took one since was noted anew.
    pub fn forget(&self, released: &[Releasing]) {
        released.iter().for_each(|released| self.ledger.let_go(released.at));
    }

    fn take(&self, ino: Ino, gone: impl Fn(&Held) -> bool) -> Vec<Releasing> {
        let mut owners = self.lock();
        let Some(held) = owners.get_mut(&ino) else { return Vec::new() };
        let releasing = |held: &Held| Releasing { owner: held.owner, at: held.at };
        let taken = held.iter().filter(|held| gone(held)).map(releasing).collect();
        held.retain(|held| !gone(held));
        if held.is_empty() {
            owners.remove(&ino);
        }
        taken
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ino, Vec<Held>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(5);

    fn held() -> (Arc<Ledger>, HeldLocks) {
        let ledger = Arc::new(Ledger::create().unwrap());
        (Arc::clone(&ledger), HeldLocks::new(ledger))
    }

    #[test]
    fn only_holders_pay_for_a_close_and_once() {
        let (_, held) = held();
        held.note(INO, LockOwner(1), 10).unwrap();
        held.note(INO, LockOwner(1), 10).unwrap();
        assert!(held.flush(INO, LockOwner(2)).is_empty());
        assert!(held.flush(Ino(6), LockOwner(1)).is_empty());
        assert_eq!(held.flush(INO, LockOwner(1)).len(), 1);
        assert!(held.flush(INO, LockOwner(1)).is_empty());
    }

    #[test]
    fn an_open_file_description_keeps_its_locks_until_released() {
        let (_, held) = held();
        held.note(INO, LockOwner(1), 10).unwrap();
        held.note(INO, LockOwner(99), 10).unwrap();
        assert_eq!(held.flush(INO, LockOwner(1)).len(), 1, "the process closes");
        let left = held.release(INO, 10);
        assert_eq!(left.iter().map(|left| left.owner).collect::<Vec<_>>(), [LockOwner(99)]);
        assert!(held.release(INO, 10).is_empty());
    }

    #[test]
    fn a_successor_releases_what_its_predecessor_had_begun_to() {
        let (ledger, held) = held();
        held.note(INO, LockOwner(1), 10).unwrap();
        held.note(INO, LockOwner(2), 11).unwrap();
        let releasing = held.flush(INO, LockOwner(1));
        // Killed here: the kernel sends the close again.
        let heir = HeldLocks::new(Arc::clone(&ledger));
        assert_eq!(heir.flush(INO, LockOwner(1)), releasing);
        heir.forget(&releasing);
        let heir = HeldLocks::new(ledger);
        assert!(heir.flush(INO, LockOwner(1)).is_empty());
        assert_eq!(heir.flush(INO, LockOwner(2)).len(), 1);
    }
}
