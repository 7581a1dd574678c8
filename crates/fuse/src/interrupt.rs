//! Requests that wait for a lock, and the signals that end them.
//!
//! The kernel sends `INTERRUPT` at most once a request, and by a way of its own: it can be read
//! before the request that it names is registered here. Such a one is remembered as early. Only
//! lock requests register; all others end by themselves soon, and an `INTERRUPT` for them is
//! remembered in vain until newer ones displace it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_base::{Errno, SlotNo};

/// Early interrupts kept. One is early for microseconds, so a few a thread are plenty.
const EARLY_MAX: usize = 256;

/// Where a lock request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// At a cell, sent from this slot.
    InSlot(SlotNo),
    /// Here, to be tried again and again, for want of slots.
    Deferred,
}

#[derive(Default, Debug)]
struct Table {
    waiting: BTreeMap<u64, Waiting>,
    early: VecDeque<u64>,
}

#[derive(Default, Debug)]
pub struct Interrupts {
    table: Mutex<Table>,
}

impl Interrupts {
    /// `unique` begins to wait. EINTR if it was interrupted already.
    pub fn begin(&self, unique: u64, waiting: Waiting) -> Result<(), Errno> {
        let mut table = self.lock();
        if let Some(index) = table.early.iter().position(|&early| early == unique) {
            table.early.remove(index);
            return Err(Errno::EINTR);
        }
        table.waiting.insert(unique, waiting);
        Ok(())
    }

    /// `unique` waits no more. False if it did not wait: somebody else ended it.
    pub fn end(&self, unique: u64) -> bool {
        self.lock().waiting.remove(&unique).is_some()
    }

    /// Where `unique` waits, to be ended there. A deferred one does not wait any more on return.
    pub fn interrupt(&self, unique: u64) -> Option<Waiting> {
        let mut table = self.lock();
        let waiting = table.waiting.get(&unique).copied();
        match waiting {
            Some(Waiting::InSlot(_)) => {}
            Some(Waiting::Deferred) => {
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

    pub fn is_waiting(&self, unique: u64) -> bool {
        self.lock().waiting.contains_key(&unique)
    }

    /// The slots in which requests wait.
    pub fn slots(&self) -> Vec<SlotNo> {
        let in_slot = |waiting: &Waiting| match waiting {
            Waiting::InSlot(slot) => Some(*slot),
            Waiting::Deferred => None,
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
    fn an_interrupt_that_comes_before_its_request_is_not_lost() {
        let interrupts = Interrupts::default();
        assert_eq!(interrupts.interrupt(8), None);
        assert_eq!(interrupts.begin(8, Waiting::Deferred), Err(Errno::EINTR));
        assert_eq!(interrupts.begin(8, Waiting::Deferred), Ok(()), "it counts once");
    }

    #[test]
    fn a_deferred_request_is_ended_by_one_side_only() {
        let interrupts = Interrupts::default();
        interrupts.begin(2, Waiting::Deferred).unwrap();
        assert_eq!(interrupts.interrupt(2), Some(Waiting::Deferred));
        assert!(!interrupts.end(2));
        interrupts.begin(4, Waiting::Deferred).unwrap();
        assert!(interrupts.end(4));
    }

    #[test]
    fn early_interrupts_are_bounded_and_the_newest_stay() {
        let interrupts = Interrupts::default();
        (0..=EARLY_MAX as u64).for_each(|unique| assert_eq!(interrupts.interrupt(unique), None));
        assert_eq!(interrupts.begin(0, Waiting::Deferred), Ok(()));
        assert_eq!(interrupts.begin(1, Waiting::Deferred), Err(Errno::EINTR));
    }
}
