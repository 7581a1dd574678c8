//! Transactions over several cells: two-phase locking in one global order, then one decision.
//!
//! The cell that executes a request coordinates. Order of events:
//!
//! 1. The operation, run on this cell's state alone, meets a key of another cell.
//! 2. Every key that it touched is locked, in the order of [`LockKey`]. Keys of other cells are
//!    locked by `Prepare`, whose answer contains their values. A participant locks with a name the
//!    inode of the same shard to which it leads, if that is free. If a missing key turns out to
//!    come before one that is held, it is locked if it is this cell's and free. Otherwise
//!    everything is released and taken again in order.
//! 3. The operation runs again. If it touched only held keys, its outcome stands. This cell's
//!    changes are made, and the others receive theirs with `Commit`. The keys at other cells stay
//!    locked until their changes are made, so no client sees half of them.
//! 4. The client is answered, and this cell's keys are released, when no *entry* of another cell
//!    waits for its change any more. A change of an entry does not lock the rest of its directory.
//!    So a later operation on the same directory could come before it in that cell's log, and alone
//!    survive a power failure. An inode that is changed is locked whole, so nothing can come before
//!    that change.
//!
//! Revocation: a cell that locks a key for writing revokes its leases then, and grants none until
//! the lock is released.
//!
//! ```text
//! coordinator  acquiring ⇄ run again ──▶ decided: Commit is sent ──▶ answered ──▶ finished
//!                  └──▶ released: Abort is sent
//! participant  locking ──▶ prepared ──Commit──▶ applied: Committed is sent
//!                  └──────────┴──Abort──▶ released
//! ```

pub(crate) mod coordinator;
pub(crate) mod participant;
