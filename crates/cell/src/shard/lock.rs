//! Locks that transactions over several cells hold on keys of this cell.
//!
//! An operation that lies on one cell runs in one go and holds nothing: it only waits while a
//! transaction blocks it. Transactions wait in the order in which they came. A transaction waits
//! only for a key that comes after all that it holds, in the order of [`LockKey`], so there is no
//! circle of waits.

use std::collections::{BTreeMap, VecDeque};

use warren_base::{Ino, TxnId};
use warren_proto::{LockKey, LockMode};

/// A waiter for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter<T> {
    /// A transaction, which will hold the lock.
    Txn(TxnId, LockMode, T),
    /// An operation, which runs again when the lock is released.
    Observer(T),
}

#[derive(Debug)]
struct Lock<T> {
    holders: Vec<(TxnId, LockMode)>,
    waiters: VecDeque<Waiter<T>>,
}

impl<T> Lock<T> {
    const fn new() -> Self {
        Self { holders: Vec::new(), waiters: VecDeque::new() }
    }

    /// Whether another transaction may hold it in this mode now. It does not pass those that wait.
    fn is_free(&self, mode: LockMode) -> bool {
        !self.waiters.iter().any(|waiter| matches!(waiter, Waiter::Txn(..)))
            && self.holders.iter().all(|(_, held)| held.compatible(mode))
    }
}

/// `T` names a waiting task.
#[derive(Debug)]
pub(crate) struct LockTable<T> {
    locks: BTreeMap<LockKey, Lock<T>>,
}

impl<T: Copy> LockTable<T> {
    pub(crate) fn new() -> Self {
        Self { locks: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Whether an operation that holds nothing must wait before it uses `key` in `mode`.
    pub(crate) fn blocks(&self, key: &LockKey, mode: LockMode) -> bool {
        !self.locks.is_empty()
            && self
                .locks
                .get(key)
                .is_some_and(|lock| lock.holders.iter().any(|(_, held)| !held.compatible(mode)))
    }

    /// Whether a transaction has locked one of these inodes, or a name there.
    pub(crate) fn has_locked(&self, inode: impl Fn(Ino) -> bool) -> bool {
        let mut held = self.locks.iter().filter(|(_, lock)| !lock.holders.is_empty());
        held.any(|(key, _)| match key {
            LockKey::Inode(ino) | LockKey::Name(ino, _) => inode(*ino),
            LockKey::Tree | LockKey::New(_) | LockKey::Logged(_) => false,
        })
    }

    /// Everything that waits for a key.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = T> + '_ {
        self.locks.values().flat_map(|lock| &lock.waiters).map(|waiter| match waiter {
            Waiter::Txn(_, _, task) | Waiter::Observer(task) => *task,
        })
    }

    /// Whether some transaction may change what `key` names: then no lease is granted on it.
    pub(crate) fn is_changing(&self, key: &LockKey) -> bool {
        self.blocks(key, LockMode::Read)
    }

    /// Locks `key` for `txn`, or puts `task` in the queue. A transaction that holds it in a
    /// weaker mode must not ask again (it would wait for itself).
    pub(crate) fn lock(&mut self, key: &LockKey, mode: LockMode, txn: TxnId, task: T) -> bool {
        let lock = self.locks.entry(key.clone()).or_insert_with(Lock::new);
        assert!(lock.holders.iter().all(|(holder, _)| *holder != txn));
        if !lock.is_free(mode) {
            lock.waiters.push_back(Waiter::Txn(txn, mode, task));
            return false;
        }
        lock.holders.push((txn, mode));
        true
    }

    /// Locks `key` for `txn` unless it would have to wait.
    pub(crate) fn try_lock(&mut self, key: &LockKey, mode: LockMode, txn: TxnId) -> bool {
        if self.locks.get(key).is_some_and(|lock| !lock.is_free(mode)) {
            return false;
        }
        let lock = self.locks.entry(key.clone()).or_insert_with(Lock::new);
        assert!(lock.holders.iter().all(|(holder, _)| *holder != txn));
        lock.holders.push((txn, mode));
        true
    }

    /// Whether `txn` has the lock that it asked for.
    pub(crate) fn is_held(&self, key: &LockKey, txn: TxnId) -> bool {
        let lock = self.locks.get(key);
        lock.is_some_and(|lock| lock.holders.iter().any(|(holder, _)| *holder == txn))
    }

    /// Wakes `task` when `key`, which blocks it, is released.
    pub(crate) fn observe(&mut self, key: &LockKey, task: T) {
        let lock = self.locks.get_mut(key).expect("a key that blocks is locked");
        lock.waiters.push_back(Waiter::Observer(task));
    }

    /// Releases `key`, which `txn` holds or waits for. Returns the tasks that continue:
    /// transactions hold the key now, observers run again.
    pub(crate) fn unlock(&mut self, key: &LockKey, txn: TxnId) -> Vec<T> {
        let Some(lock) = self.locks.get_mut(key) else { return Vec::new() };
        lock.holders.retain(|(holder, _)| *holder != txn);
        lock.waiters.retain(|waiter| !matches!(waiter, Waiter::Txn(id, ..) if *id == txn));
        let mut woken = Vec::new();
        let mut kept = VecDeque::new();
        let mut barred = false;
        for waiter in lock.waiters.drain(..) {
            match waiter {
                Waiter::Observer(task) => woken.push(task),
                Waiter::Txn(id, mode, task) => {
                    let free = lock.holders.iter().all(|(_, held)| held.compatible(mode));
                    if free && !barred {
                        lock.holders.push((id, mode));
                        woken.push(task);
                    } else {
                        barred = true;
                        kept.push_back(waiter);
                    }
                }
            }
        }
        lock.waiters = kept;
        if lock.holders.is_empty() && lock.waiters.is_empty() {
            self.locks.remove(key);
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::CellId;

    const KEY: LockKey = LockKey::Inode(Ino::ROOT);

    fn txn(seq: u64) -> TxnId {
        TxnId { cell: CellId(0), seq }
    }

    #[test]
    fn a_writer_in_the_queue_is_not_passed_by_readers() {
        let mut locks = LockTable::new();
        assert!(locks.lock(&KEY, LockMode::Read, txn(1), 1));
        assert!(!locks.lock(&KEY, LockMode::Write, txn(2), 2));
        assert!(!locks.lock(&KEY, LockMode::Read, txn(3), 3));
        assert_eq!(locks.unlock(&KEY, txn(1)), vec![2]);
        assert_eq!(locks.unlock(&KEY, txn(2)), vec![3]);
        assert_eq!(locks.unlock(&KEY, txn(3)), vec![]);
        assert!(locks.is_empty());
    }

    #[test]
    fn an_attempt_neither_waits_nor_passes_a_waiting_transaction() {
        let mut locks = LockTable::new();
        assert!(locks.try_lock(&KEY, LockMode::Read, txn(1)));
        assert!(!locks.try_lock(&KEY, LockMode::Write, txn(2)));
        assert!(!locks.lock(&KEY, LockMode::Write, txn(3), 3));
        assert!(!locks.try_lock(&KEY, LockMode::Read, txn(4)));
        assert_eq!(locks.unlock(&KEY, txn(1)), vec![3]);
        assert_eq!(locks.unlock(&KEY, txn(3)), vec![]);
        assert!(locks.is_empty());
    }

    #[test]
    fn observers_wait_only_for_holders_in_their_way() {
        let mut locks = LockTable::new();
        assert!(locks.lock(&KEY, LockMode::IntentWrite, txn(1), 1));
        assert!(!locks.blocks(&KEY, LockMode::IntentWrite));
        assert!(locks.blocks(&KEY, LockMode::Read));
        locks.observe(&KEY, 7);
        assert_eq!(locks.unlock(&KEY, txn(1)), vec![7]);
    }

    #[test]
    fn who_gives_up_waiting_lets_the_others_pass() {
        let mut locks = LockTable::new();
        assert!(locks.lock(&KEY, LockMode::Read, txn(1), 1));
        assert!(!locks.lock(&KEY, LockMode::Write, txn(2), 2));
        assert!(!locks.lock(&KEY, LockMode::Read, txn(3), 3));
        assert_eq!(locks.unlock(&KEY, txn(2)), vec![3]);
    }
}
