//! Ranges that calls allocate, free or copy, and searches for data.

use warren_base::Rng;
use warren_base::limits::BLOCK_SIZE;
use warren_proto::{Handle, RangeChange, RangeCopy, RangeKind, Request};

use crate::swarm::Swarm;

pub(super) fn fallocate(handle: Handle, swarm: &Swarm, uid: u32, rng: &mut Rng) -> Request {
    fallocate_within(swarm.reach, handle, uid, rng)
}

/// Few ranges begin and end with blocks.
pub(super) fn fallocate_within(reach: u64, handle: Handle, uid: u32, rng: &mut Rng) -> Request {
    let block = BLOCK_SIZE as u64;
    let kind = *rng.pick(&[RangeKind::Allocate, RangeKind::PunchHole, RangeKind::Zero]);
    let keep_size = kind == RangeKind::PunchHole || rng.chance(1, 2);
    let (mut offset, mut length) = (rng.below(reach), rng.below(reach) / 4 + 1);
    if rng.chance(1, 3) {
        (offset, length) = (offset - offset % block, length.next_multiple_of(block));
    }
    let change = RangeChange { kind, keep_size, offset, length };
    Request::Fallocate { handle, change, kill_privileges: uid != 0 }
}

/// Most copies are of whole blocks.
pub(super) fn copy(
    (source, handle): (Handle, Handle),
    reach: u64,
    uid: u32,
    rng: &mut Rng,
) -> Request {
    let block = BLOCK_SIZE as u64;
    let at = |rng: &mut Rng| match rng.below(4) {
        0 | 1 => 0,
        2 => block * rng.below(reach.div_ceil(block)),
        _ => rng.below(reach),
    };
    let (from, to) = (at(rng), at(rng));
    let length = if rng.chance(1, 2) { u64::MAX } else { rng.below(reach) + 1 };
    let length = if rng.chance(1, 2) { length } else { length.saturating_add(block) };
    let copy = RangeCopy { from, to, length: length.min(reach) };
    Request::CopyRange { handle, source, copy, kill_privileges: uid != 0 }
}

pub(super) fn find_data(handle: Handle, reach: u64, rng: &mut Rng) -> Request {
    let (offset, hole) = (rng.below(reach), rng.chance(1, 2));
    Request::FindData { handle, offset, hole }
}
