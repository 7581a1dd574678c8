//! Ranges that calls allocate or free, and searches for data.

use warren_base::Rng;
use warren_base::limits::BLOCK_SIZE;
use warren_proto::{Handle, RangeChange, RangeKind, Request};

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

pub(super) fn find_data(handle: Handle, reach: u64, rng: &mut Rng) -> Request {
    let (offset, hole) = (rng.below(reach), rng.chance(1, 2));
    Request::FindData { handle, offset, hole }
}
