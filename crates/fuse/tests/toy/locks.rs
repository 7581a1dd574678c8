//! Record locks and `flock`, as far as the tests need them.

use std::collections::BTreeMap;

use warren_base::{Errno, Ino};
use warren_proto::{Answer, ByteRange, LockFlavour, LockSpec, LockType, Reply, Request};

#[derive(Default)]
pub(super) struct Locks {
    held: BTreeMap<Ino, Vec<LockSpec>>,
}

fn conflict(held: &LockSpec, wanted: &LockSpec) -> bool {
    held.flavour == wanted.flavour
        && held.owner != wanted.owner
        && held.range.overlaps(wanted.range)
        && (held.lock == LockType::Exclusive || wanted.lock == LockType::Exclusive)
}

/// The parts of `held` outside `range`.
fn remaining_parts(held: LockSpec, range: ByteRange) -> Vec<LockSpec> {
    let mut left = Vec::new();
    if held.range.start < range.start {
        let end = range.start - 1;
        left.push(LockSpec { range: ByteRange { start: held.range.start, end }, ..held });
    }
    if held.range.end > range.end {
        let start = range.end + 1;
        left.push(LockSpec { range: ByteRange { start, end: held.range.end }, ..held });
    }
    left
}

impl Locks {
    pub(super) fn execute(&mut self, request: &Request) -> Answer {
        match *request {
            Request::Lock { handle, spec, .. } => {
                let held = self.held.entry(handle.ino).or_default();
                let blocked = held.iter().any(|other| conflict(other, &spec));
                if spec.lock != LockType::Unlock && blocked {
                    return Err(Errno::EAGAIN);
                }
                let mine = |other: &LockSpec| {
                    (other.owner, other.flavour) == (spec.owner, spec.flavour)
                        && other.range.overlaps(spec.range)
                };
                let (replaced, mut kept): (Vec<_>, Vec<_>) = held.drain(..).partition(mine);
                kept.extend(replaced.into_iter().flat_map(|old| remaining_parts(old, spec.range)));
                if spec.lock != LockType::Unlock {
                    kept.push(spec);
                }
                *held = kept;
                Ok(Reply::Done)
            }
            Request::TestLock { handle, spec } => {
                let held = self.held.get(&handle.ino).map(Vec::as_slice).unwrap_or_default();
                let holder = held.iter().find(|other| conflict(other, &spec));
                Ok(Reply::LockHolder(holder.copied()))
            }
            Request::ReleaseLocks { ino, owner } => {
                if let Some(held) = self.held.get_mut(&ino) {
                    held.retain(|other| {
                        other.owner != owner || other.flavour == LockFlavour::Flock
                    });
                }
                Ok(Reply::Done)
            }
            _ => Err(Errno::ENOSYS),
        }
    }
}
