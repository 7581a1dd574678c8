//! Advisory locks, and the interrupts of requests that wait for them.
//!
//! A request that waits for a lock keeps a thread and a slot. The number of such requests is
//! limited, so that threads and slots are left for others. A request over the limit is *deferred*:
//! the background thread retries the locks of all of them. When the caller gets a signal, the
//! kernel sends `INTERRUPT`, and the front sends a `Cancel` to the cell.

use std::sync::atomic::Ordering;
use std::time::Duration;

use warren_base::{Errno, Ino};
use warren_proto::{LockFlavour, LockSpec, LockType, Request, typed};

use super::deferred::DeferredLock;
use super::{Call, Front, Outcome, Served};
use crate::activity::rests;
use crate::connection::FleetSlot;
use crate::interrupt::LockWait;

/// Pause between a `Cancel` and the check whether it took effect.
const CANCEL_PAUSE: Duration = Duration::from_millis(1);

impl Front {
    /// Tries a deferred lock once. Returns what to reply, or `None` if the request still waits.
    pub(crate) fn retry(
        &self,
        slot: &mut dyn FleetSlot,
        lock: &DeferredLock,
    ) -> Option<Result<(), Errno>> {
        if !self.interrupts.is_waiting(lock.unique) {
            return Some(Err(Errno::EINTR));
        }
        let handle = match self.open_files.handle(lock.open) {
            Ok(handle) => handle,
            Err(errno) => {
                self.interrupts.end(lock.unique);
                return Some(Err(errno));
            }
        };
        let request = Request::Lock { handle, spec: lock.spec, wait: false };
        let record = self.state.record(slot.number());
        let added = self.add_lock_owner(lock.ino, lock.open, &lock.spec);
        let answer = added.and_then(|()| {
            record.begin_step(lock.unique, slot.last_seq());
            let answer = slot.call(lock.identity, &request, 0);
            record.end_step(&answer);
            answer
        });
        if answer == Err(Errno::EAGAIN) {
            return None;
        }
        if answer.is_ok() {
            self.add_lock_owner_again(lock.ino, lock.open, &lock.spec);
        }
        self.interrupts.end(lock.unique);
        Some(answer.map(|_| ()))
    }

    /// Must be called before the lock is requested, so that a close meanwhile releases the lock.
    fn add_lock_owner(&self, ino: Ino, open: u64, spec: &LockSpec) -> Result<(), Errno> {
        if spec.flavour == LockFlavour::Record && spec.lock != LockType::Unlock {
            self.lock_owners.add(ino, spec.owner, open)?;
        }
        Ok(())
    }

    /// Must be called after the lock was granted, because a close meanwhile removed the owner. It
    /// fails only if tens of thousands of other owners were added since the first call. The lock is
    /// then held until the mount ends.
    fn add_lock_owner_again(&self, ino: Ino, open: u64, spec: &LockSpec) {
        let _ = self.add_lock_owner(ino, open, spec);
    }
}

impl Call<'_> {
    pub(super) fn test_lock(&mut self, open: u64, spec: LockSpec) -> Served {
        let (ino, handle) = (self.header.ino, self.handle(open)?);
        let mut holder = self.call(typed::TestLock { handle, spec })?;
        if holder.is_some() && self.front.lock_owners.await_releases(ino) {
            holder = self.call(typed::TestLock { handle, spec })?;
        }
        self.body.lock(holder.as_ref());
        Ok(())
    }

    pub(super) fn try_lock(&mut self, open: u64, spec: LockSpec) -> Served {
        self.lock(open, spec, false)
    }

    fn lock(&mut self, open: u64, spec: LockSpec, wait: bool) -> Served {
        let (ino, handle) = (self.header.ino, self.handle(open)?);
        self.front.add_lock_owner(ino, open, &spec)?;
        match self.call(typed::Lock { handle, spec, wait }) {
            Err(Errno::EAGAIN) if self.front.lock_owners.await_releases(ino) => {
                self.call(typed::Lock { handle, spec, wait })?
            }
            answer => answer?,
        };
        self.front.add_lock_owner_again(ino, open, &spec);
        Ok(())
    }

    pub(super) fn wait_lock(&mut self, open: u64, spec: LockSpec) -> Result<Outcome, Errno> {
        match self.lock(open, spec, false) {
            Err(Errno::EAGAIN) => {}
            other => return other.map(|()| Outcome::BODY),
        }
        let front = self.front;
        let unique = self.header.unique;
        if front.lock_waiters.fetch_add(1, Ordering::Relaxed) >= front.lock_waiters_max {
            front.lock_waiters.fetch_sub(1, Ordering::Relaxed);
            front.interrupts.begin(unique, LockWait::Deferred)?;
            // From now on the record in the slot of the background thread counts.
            front.state.record(self.slot.number()).clear();
            return Ok(Outcome::Deferred(DeferredLock::new(&self.header, open, spec)));
        }
        let wait = LockWait::InSlot(self.slot.number());
        let served = front.interrupts.begin(unique, wait).and_then(|()| {
            let served = rests(|| self.lock(open, spec, true));
            front.interrupts.end(unique);
            served
        });
        front.lock_waiters.fetch_sub(1, Ordering::Relaxed);
        served.map(|()| Outcome::BODY)
    }

    /// Ends the wait of request `unique`. The `Cancel` can reach the cell before that request does.
    /// Then EAGAIN makes the kernel send the interrupt again.
    pub(super) fn interrupt(&mut self, unique: u64) -> Result<Outcome, Errno> {
        let slot = match self.front.interrupts.interrupt(unique) {
            Some(LockWait::InSlot(slot)) => slot,
            // The next attempt at a deferred lock finds that it was interrupted, and replies.
            Some(LockWait::Deferred) | None => return Ok(Outcome::NoReply),
        };
        if let Some(seq) = self.front.fleet.in_flight(slot) {
            // It fails if the lock was granted meanwhile, which ends the wait too.
            let _ = self.call(typed::Cancel { slot, seq });
        }
        std::thread::sleep(CANCEL_PAUSE);
        if self.front.interrupts.is_waiting(unique) {
            Err(Errno::EAGAIN)
        } else {
            Ok(Outcome::NoReply)
        }
    }
}
