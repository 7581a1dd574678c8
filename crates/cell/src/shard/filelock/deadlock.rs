//! Deadlocks among record locks, found by following owners from wait to wait, over the files of all
//! shards.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use warren_base::{ClientId, Ino};
use warren_proto::{LockFlavour, LockSpec};

use super::FileLocks;
use super::index::LockIndex;
use super::place::{Owner, Place};

/// Locks that one search examines. A longer circle of waits is not found; Linux finds no circle of
/// more than ten.
const STEPS_MAX: usize = 4096;

/// A request for a record lock: its inode, owner and lock.
type Request = (Ino, Owner, LockSpec);

/// Whether an owner for which `spec` would wait waits (directly or not) for the owner of `spec`.
///
/// `locks_of` lends the locks of an inode's shard; the search ends with its error. The search needs
/// only the shard of `ino` if no owner that blocks waits in another.
pub(crate) fn would_deadlock<'a, T: Copy + Ord + 'a, E>(
    (ino, client, spec): (Ino, ClientId, LockSpec),
    index: &LockIndex<T>,
    locks_of: impl Fn(Ino) -> Result<Option<&'a FileLocks<T>>, E>,
) -> Result<bool, E> {
    let own = (client, spec.owner);
    let (mut seen, mut steps, mut found) = (BTreeSet::new(), 0, false);
    let mut open = Vec::new();
    let mut next = Some((ino, own, spec));
    while let Some((ino, waiter, spec)) = next {
        let see = |owner: Owner| {
            steps += 1;
            found |= owner == own;
            if found || steps > STEPS_MAX {
                return ControlFlow::Break(());
            }
            if seen.insert(owner) {
                let places = index.waits_of(owner).take(STEPS_MAX);
                open.extend(places.filter(|place| place.flavour == LockFlavour::Record));
            }
            ControlFlow::Continue(())
        };
        let side = locks_of(ino)?.and_then(|locks| locks.side(ino, LockFlavour::Record));
        if side.is_some_and(|side| side.held().visit_blockers(waiter, &spec, see).is_break()) {
            return Ok(found);
        }
        next = next_request(&mut open, &locks_of)?;
    }
    Ok(false)
}

/// The request that waits at the last of the places.
fn next_request<'a, T: Copy + Ord + 'a, E>(
    open: &mut Vec<Place>,
    locks_of: impl Fn(Ino) -> Result<Option<&'a FileLocks<T>>, E>,
) -> Result<Option<Request>, E> {
    while let Some(place) = open.pop() {
        let waiter = locks_of(place.ino)?.and_then(|locks| locks.waiter(place));
        if let Some(waiter) = waiter {
            return Ok(Some((place.ino, waiter.owner(), waiter.spec)));
        }
    }
    Ok(None)
}
