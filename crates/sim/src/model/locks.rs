//! Advisory locks. A call that waits takes effect when it is granted, so in the model it is legal
//! only while no conflicting lock exists.

use warren_base::{Errno, Ino};
use warren_proto::{
    AccessMode, ByteRange, Handle, LockFlavour, LockOwner, LockSpec, LockType, Reply,
};

use super::inode::{Held, Holder, Inode};
use super::{Legal, Refusal, State, Step, UNEXPECTED_REPLY, expect_done};

impl State {
    pub(super) fn lock(
        &mut self,
        step: &Step<'_>,
        handle: Handle,
        spec: LockSpec,
        wait: bool,
    ) -> Legal {
        let ino = handle.ino;
        let holder = Holder { flavour: spec.flavour, client: step.client, owner: spec.owner };
        let must = self.descriptor(step, handle).and_then(|(inode, access)| {
            check_access(access, spec)?;
            check_range(spec)?;
            if first_in_the_way(inode, holder, spec).is_some() {
                Err(Errno::EAGAIN)
            } else {
                Ok(())
            }
        });
        match (must, &step.outcome.answer) {
            // A caller in a circle of waiters gets this error; the model does not know who waits.
            (Err(Errno::EAGAIN), Err(Errno::EDEADLK)) if wait => return Ok(()),
            (Err(Errno::EAGAIN), _) if wait => return Err(Refusal::Differs("a lock in the way")),
            (Err(Errno::EAGAIN), Err(Errno::EAGAIN)) if spec.flavour == LockFlavour::Flock => {
                // A conversion releases the old lock before it requests the new one.
                self.change(ino, |inode| inode.locks.retain(|held| held.holder != holder));
                return Ok(());
            }
            _ => {}
        }
        let Some((_, reply)) = step.settle(must)? else { return Ok(()) };
        self.change(ino, |inode| set_lock(&mut inode.locks, holder, spec));
        expect_done(reply)
    }

    pub(super) fn test_lock(&mut self, step: &Step<'_>, handle: Handle, spec: LockSpec) -> Legal {
        let holder = Holder { flavour: spec.flavour, client: step.client, owner: spec.owner };
        let must = self.descriptor(step, handle).and_then(|(inode, _)| {
            check_range(spec)?;
            if spec.lock == LockType::Unlock { Err(Errno::EINVAL) } else { Ok(inode) }
        });
        let Some((inode, reply)) = step.settle(must)? else { return Ok(()) };
        let Reply::LockHolder(got) = reply else { return Err(UNEXPECTED_REPLY) };
        let right = match got {
            None => first_in_the_way(inode, holder, spec).is_none(),
            Some(got) => {
                in_the_way(inode, holder, spec).any(|held| is_report_of(got, held, spec.range))
            }
        };
        if right { Ok(()) } else { Err(Refusal::Differs("the lock in the way")) }
    }

    pub(super) fn release_locks(&mut self, step: &Step<'_>, ino: Ino, owner: LockOwner) -> Legal {
        let Some((_, reply)) = step.settle(self.alive(ino).map(|_| ()))? else { return Ok(()) };
        let holder = Holder { flavour: LockFlavour::Record, client: step.client, owner };
        self.change(ino, |inode| inode.locks.retain(|held| held.holder != holder));
        expect_done(reply)
    }
}

/// `fcntl_setlk` requires a descriptor with the access that the lock denies to others.
fn check_access(access: AccessMode, spec: LockSpec) -> Result<(), Errno> {
    let needed = match (spec.flavour, spec.lock) {
        (LockFlavour::Record, LockType::Shared) => AccessMode::READ,
        (LockFlavour::Record, LockType::Exclusive) => AccessMode::WRITE,
        (LockFlavour::Flock, _) | (_, LockType::Unlock) => AccessMode::empty(),
    };
    if access.contains(needed) { Ok(()) } else { Err(Errno::EBADF) }
}

fn check_range(spec: LockSpec) -> Result<(), Errno> {
    if spec.range.start > spec.range.end { Err(Errno::EINVAL) } else { Ok(()) }
}

/// A system that does not join touching ranges may report a part of a lock.
fn is_report_of(got: &LockSpec, held: &Held, wanted: ByteRange) -> bool {
    let within = held.range.start <= got.range.start && got.range.end <= held.range.end;
    got.lock == held.lock && got.pid == held.pid && within && got.range.overlaps(wanted)
}

fn in_the_way(inode: &Inode, holder: Holder, spec: LockSpec) -> impl Iterator<Item = &Held> + '_ {
    inode.locks.iter().filter(move |held| {
        held.holder.flavour == holder.flavour
            && held.holder != holder
            && held.range.overlaps(spec.range)
            && spec.lock != LockType::Unlock
            && (held.lock == LockType::Exclusive || spec.lock == LockType::Exclusive)
    })
}

fn first_in_the_way(inode: &Inode, holder: Holder, spec: LockSpec) -> Option<&Held> {
    in_the_way(inode, holder, spec).next()
}

/// Replaces the holder's locks in the range, splits those that extend beyond it, and joins those
/// that touch.
fn set_lock(locks: &mut Vec<Held>, holder: Holder, spec: LockSpec) {
    let wanted = spec.range;
    let mut kept = Vec::with_capacity(locks.len() + 2);
    for held in locks.drain(..) {
        if held.holder != holder || !held.range.overlaps(wanted) {
            kept.push(held);
            continue;
        }
        if held.range.start < wanted.start {
            let range = ByteRange { start: held.range.start, end: wanted.start - 1 };
            kept.push(Held { range, ..held });
        }
        if held.range.end > wanted.end {
            let range = ByteRange { start: wanted.end + 1, end: held.range.end };
            kept.push(Held { range, ..held });
        }
    }
    if spec.lock != LockType::Unlock {
        kept.push(Held { holder, range: wanted, lock: spec.lock, pid: spec.pid });
    }
    kept.sort_by_key(|held| (held.holder, held.range.start));
    for held in kept {
        match locks.last_mut() {
            Some(last) if joins(last, &held) => last.range.end = held.range.end,
            _ => locks.push(held),
        }
    }
}

/// Whether `next`, which begins later, continues where `held` ends.
fn joins(held: &Held, next: &Held) -> bool {
    held.holder == next.holder
        && held.lock == next.lock
        && held.pid == next.pid
        && held.range.end.checked_add(1) == Some(next.range.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::ClientId;

    fn spec(start: u64, end: u64, lock: LockType) -> LockSpec {
        let range = ByteRange { start, end };
        LockSpec { flavour: LockFlavour::Record, owner: LockOwner(1), lock, range, pid: 1 }
    }

    fn ranges(locks: &[Held]) -> Vec<(u64, u64, LockType)> {
        locks.iter().map(|h| (h.range.start, h.range.end, h.lock)).collect()
    }

    #[test]
    fn locks_split_join_and_go() {
        use LockType::{Exclusive, Shared, Unlock};
        let holder =
            Holder { flavour: LockFlavour::Record, client: ClientId(1), owner: LockOwner(1) };
        let mut locks = Vec::new();
        set_lock(&mut locks, holder, spec(0, 99, Shared));
        set_lock(&mut locks, holder, spec(10, 19, Exclusive));
        assert_eq!(ranges(&locks), [(0, 9, Shared), (10, 19, Exclusive), (20, 99, Shared)]);
        set_lock(&mut locks, holder, spec(10, 19, Shared));
        assert_eq!(ranges(&locks), [(0, 99, Shared)]);
        set_lock(&mut locks, holder, spec(50, u64::MAX, Unlock));
        assert_eq!(ranges(&locks), [(0, 49, Shared)]);
        set_lock(&mut locks, holder, spec(0, u64::MAX, Unlock));
        assert!(locks.is_empty());
    }
}
