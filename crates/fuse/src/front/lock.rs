//! Advisory locks, waiting for them, and interrupting who waits.
//!
//! A request that waits keeps a thread and a slot. So many may do so, but never all: what comes
//! after is deferred, that is, tried again and again by one thread for all of them. A lock that is
//! waited for ends with its process: the kernel's `INTERRUPT` becomes a `Cancel`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use warren_base::{Errno, Ino};
use warren_proto::{Handle, LockFlavour, LockSpec, LockType, Request, typed};

use super::{Call, Front, Outcome, Served};
use crate::courier::Courier;
use crate::interrupt::Waiting;
use crate::message::{Header, Operation};

/// Between a `Cancel` and looking whether it took effect.
const CANCEL_PAUSE: Duration = Duration::from_millis(1);

/// A lock that is to be tried again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deferred {
    pub unique: u64,
    identity: (u32, u32),
    ino: Ino,
    open: u64,
    spec: LockSpec,
}

impl Front {
    /// Tries a deferred lock. `None` if it still must wait, else what to answer.
    pub fn retry(&self, courier: &mut dyn Courier, lock: &Deferred) -> Option<Result<(), Errno>> {
        if !self.interrupts.is_waiting(lock.unique) {
            return Some(Err(Errno::EINTR));
        }
        let handle = Handle { ino: lock.ino, open: lock.open };
        let request = Request::Lock { handle, spec: lock.spec, wait: false };
        let record = self.ledger.record(courier.number());
        let noted = self.note_lock(lock.ino, lock.open, &lock.spec);
        let answer = noted.and_then(|()| {
            record.attempt(lock.unique, courier.last_seq());
            let answer = courier.call(lock.identity, &request, 0);
            record.conclude(&answer);
            answer
        });
        if answer == Err(Errno::EAGAIN) {
            return None;
        }
        if answer.is_ok() {
            self.note_again(lock.ino, lock.open, &lock.spec);
        }
        self.interrupts.end(lock.unique);
        Some(answer.map(|_| ()))
    }

    /// An owner counts as a holder before it is one, so that a close meanwhile releases.
    fn note_lock(&self, ino: Ino, open: u64, spec: &LockSpec) -> Result<(), Errno> {
        if spec.flavour == LockFlavour::Record && spec.lock != LockType::Unlock {
            self.held.note(ino, spec.owner, open)?;
        }
        Ok(())
    }

    /// And again after, because a close meanwhile forgot it. It had a place before; that there is none
    /// now takes a close and tens of thousands of other holders in between, and then the lock stays
    /// until the mount ends.
    fn note_again(&self, ino: Ino, open: u64, spec: &LockSpec) {
        let _ = self.note_lock(ino, open, spec);
    }
}

impl Deferred {
    /// The lock that `operation` waits for, if it is one.
    pub fn of(header: &Header, operation: &Operation) -> Option<Self> {
        let Operation::Lock { open, spec, wait: true } = *operation else { return None };
        let (unique, identity, ino) = (header.unique, header.identity(), header.ino);
        Some(Self { unique, identity, ino, open, spec })
    }
}

impl Call<'_> {
    pub(super) fn test_lock(&mut self, open: u64, spec: LockSpec) -> Served {
        let holder = self.call(typed::TestLock { handle: self.handle(open), spec })?;
        self.body.lock(holder.as_ref());
        Ok(())
    }

    pub(super) fn try_lock(&mut self, open: u64, spec: LockSpec) -> Served {
        self.lock(open, spec, false)
    }

    fn lock(&mut self, open: u64, spec: LockSpec, wait: bool) -> Served {
        let ino = self.header.ino;
        self.front.note_lock(ino, open, &spec)?;
        self.call(typed::Lock { handle: self.handle(open), spec, wait })?;
        self.front.note_again(ino, open, &spec);
        Ok(())
    }

    pub(super) fn wait_lock(&mut self, open: u64, spec: LockSpec) -> Result<Outcome, Errno> {
        match self.lock(open, spec, false) {
            Err(Errno::EAGAIN) => {}
            other => return other.map(|()| Outcome::Body),
        }
        let front = self.front;
        let unique = self.header.unique;
        if front.lock_waiters.fetch_add(1, Ordering::Relaxed) >= front.lock_waiters_max {
            front.lock_waiters.fetch_sub(1, Ordering::Relaxed);
            front.interrupts.begin(unique, Waiting::Deferred)?;
            // From now on the record is with whoever tries again.
            front.ledger.record(self.courier.number()).clear();
            let (identity, ino) = (self.header.identity(), self.header.ino);
            return Ok(Outcome::Deferred(Deferred { unique, identity, ino, open, spec }));
        }
        let waiting = Waiting::InSlot(self.courier.number());
        let served = front.interrupts.begin(unique, waiting).and_then(|()| {
            let served = self.lock(open, spec, true);
            front.interrupts.end(unique);
            served
        });
        front.lock_waiters.fetch_sub(1, Ordering::Relaxed);
        served.map(|()| Outcome::Body)
    }

    /// Ends the wait of `unique`. EAGAIN has the kernel say it again: the `Cancel` was too early.
    pub(super) fn interrupt(&mut self, unique: u64) -> Result<Outcome, Errno> {
        let slot = match self.front.interrupts.interrupt(unique) {
            Some(Waiting::InSlot(slot)) => slot,
            // Whoever tries it next finds it gone, and answers.
            Some(Waiting::Deferred) | None => return Ok(Outcome::Silent),
        };
        if let Some(seq) = self.front.fleet.in_flight(slot) {
            // The lock may have been granted in the meantime; both is well.
            let _ = self.call(typed::Cancel { slot, seq });
        }
        std::thread::sleep(CANCEL_PAUSE);
        if self.front.interrupts.is_waiting(unique) {
            Err(Errno::EAGAIN)
        } else {
            Ok(Outcome::Silent)
        }
    }
}
