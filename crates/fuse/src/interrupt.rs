//! Requests that wait for a lock, and the interrupts that end them.
//!
//! The kernel sends at most one `INTERRUPT` for a request, and the front can read it before the
//! request is registered here. Such an interrupt is kept as *early*. Only requests for locks are
//! registered, because all others end soon. An interrupt of another request is kept too, without
//! use, until newer ones replace it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_base::{Errno, SlotNo};

/// At most so many early interrupts are kept. An interrupt is early for microseconds, so that a few
/// for each thread suffice.
const EARLY_MAX: usize = 256;

/// Where a request for a lock waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockWait {
    /// At a cell. It was sent from this slot.
    InSlot(SlotNo),
    /// In the front, which retries it, because no slot may be kept for it.
    Deferred,
}

#[derive(Default, Debug)]
struct Table {
    waiting: BTreeMap<u64, LockWait>,
    early: VecDeque<u64>,
}

#[derive(Default, Debug)]
pub(crate) struct Interrupts {
    table: Mutex<Table>,
}

impl Interrupts {
    /// Request `unique` begins to wait. EINTR if an early interrupt names it.
    pub(crate) fn begin(&self, unique: u64, waiting: LockWait) -> Result<(), Errno> {
        let mut table = self.lock();
        if let Some(index) = table.early.iter().position(|&early| early == unique) {
            table.early.remove(index);
            return Err(Errno::EINTR);
        }
        table.waiting.insert(unique, waiting);
        Ok(())
    }

    /// Request `unique` waits no more. False if it was not waiting, because another thread ended
    /// it.
    pub(crate) fn end(&self, unique: u64) -> bool {
        self.lock().waiting.remove(&unique).is_some()
    }

    /// Returns where request `unique` waits; the caller must end the wait there. A deferred request
    /// has stopped waiting on return.
    pub(crate) fn interrupt(&self, unique: u64) -> Option<LockWait> {
        let mut table = self.lock();
        let waiting = table.waiting.get(&unique).copied();
        match waiting {
            Some(LockWait::InSlot(_)) => {}
            Some(LockWait::Deferred) => {
                table.waiting.remove(&unique);
            }
            None => {
                if table.early.len() == EARLY_MAX {
                    table.early.pop_front();
                }
                table.early.push_back(unique);
            }
        }
        waiting
    }

    pub(crate) fn is_waiting(&self, unique: u64) -> bool {
        self.lock().waiting.contains_key(&unique)
    }

    /// The slots of requests that wait.
    pub(crate) fn slots(&self) -> Vec<SlotNo> {
        let in_slot = |waiting: &LockWait| match waiting {
            LockWait::InSlot(slot) => Some(*slot),
            LockWait::Deferred => None,
        };
        self.lock().waiting.values().filter_map(in_slot).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_that_is_read_before_its_request_is_not_lost() {
        let interrupts = Interrupts::default();
        assert_eq!(interrupts.interrupt(8), None);
        assert_eq!(interrupts.begin(8, LockWait::Deferred), Err(Errno::EINTR));
        assert_eq!(interrupts.begin(8, LockWait::Deferred), Ok(()), "it counts once");
    }

    #[test]
    fn a_deferred_request_is_ended_by_its_interrupt_or_its_reply_but_not_both() {
        let interrupts = Interrupts::default();
        interrupts.begin(2, LockWait::Deferred).unwrap();
        assert_eq!(interrupts.interrupt(2), Some(LockWait::Deferred));
        assert!(!interrupts.end(2));
        interrupts.begin(4, LockWait::Deferred).unwrap();
        assert!(interrupts.end(4));
    }

    #[test]
    fn early_interrupts_are_bounded_and_the_newest_are_kept() {
        let interrupts = Interrupts::default();
        (0..=EARLY_MAX as u64).for_each(|unique| assert_eq!(interrupts.interrupt(unique), None));
        assert_eq!(interrupts.begin(0, LockWait::Deferred), Ok(()));
        assert_eq!(interrupts.begin(1, LockWait::Deferred), Err(Errno::EINTR));
    }
}
