//! Stores of programs in pages that they have mapped, and which of them a kernel writes back.

use warren_base::Ino;
use warren_base::limits::BLOCK_SIZE;
use warren_client::Op;
use warren_proto::{AccessMode, Capabilities, Position, Request};

use super::World;
use super::client::{Slot, SlotState, Whole};
use super::event::At;
use super::program::shared::SHARED_REACH;
use crate::swarm::Cuts;

/// A program stores in a page that it has mapped. Returns whether it did.
pub(super) fn store_in_mapping(world: &mut World, at: At) -> bool {
    let client = &mut world.clients[at.client];
    let Some(front) = &mut client.front else { return false };
    let may_store = world.swarm.stores && world.calls_left > 0 && world.audit.is_none();
    if !may_store || !world.fleet.sim.rng.chance(1, 4) {
        return false;
    }
    let holdings = &client.slots[at.slot].holdings;
    let both = AccessMode::READ | AccessMode::WRITE;
    let mapped = holdings.handles.iter().find(|(handle, access)| {
        Some(handle.ino) == world.known.shared
            && access.contains(both)
            && (world.swarm.cuts == Cuts::Freely || holdings.has_locked(handle.ino))
    });
    let Some((handle, _)) = mapped else { return false };
    let offset = world.fleet.sim.rng.below(SHARED_REACH);
    let bytes = world.fleet.sim.rng.next_u64().to_le_bytes();
    let is_done = front.kernel.store(*handle, offset, bytes);
    if is_done {
        world.fleet.sim.count("a program stored in a mapped page");
    }
    is_done
}

/// Notes whether the stores in mappings must be written back before the call. Programs unmap before
/// they release a lock; kernels write back before they close, sync, truncate or write.
pub(super) fn must_write_back(world: &mut World, at: At, op: &Op) -> bool {
    let Op::Ino(request, _) = op else { return false };
    let stored = |ino: &Ino| {
        world.clients[at.client].front.as_ref().is_some_and(|front| front.kernel.has_stored(*ino))
    };
    let ino = match request {
        Request::Fsync { ino, .. } => *ino,
        Request::CopyRange { source, .. } if stored(&source.ino) => source.ino,
        Request::CopyRange { handle, .. }
        | Request::Lock { handle, .. }
        | Request::Close { handle }
        | Request::Write { handle, .. }
        | Request::Fallocate { handle, .. } => handle.ino,
        Request::SetAttr { ino, set, .. } if set.size.is_some() => *ino,
        Request::Open { ino, access } if access.contains(AccessMode::TRUNCATE) => *ino,
        _ => return false,
    };
    let Some(front) = &mut world.clients[at.client].front else { return false };
    if !front.kernel.has_stored(ino) {
        return false;
    }
    front.written_back.insert(ino);
    true
}

/// The next page of the file that the front's kernel writes back, if a slot for that is free.
pub(super) fn next_write_back(
    world: &mut World,
    client: usize,
    ino: Ino,
) -> Option<(At, Whole, Vec<u8>)> {
    let of = &mut world.clients[client];
    let is_idle = |slot: &Slot| slot.state == SlotState::Finished;
    let idle = of.slots[of.programs..].iter().position(is_idle);
    let (idle, front) = (idle?, of.front.as_mut()?);
    let (page, stored, bytes) = front.kernel.next_stored(ino)?;
    let at = At { client, slot: of.programs + idle };
    let (start, position) = (page * BLOCK_SIZE as u64, Position::At(page * BLOCK_SIZE as u64));
    let (kill_privileges, write_back, direct) = (false, true, false);
    let handle = stored.handle;
    let write = Request::Write { handle, position, kill_privileges, write_back, direct };
    let op = Op::Ino(write, Capabilities::default());
    // If others meanwhile shrink and extend the file, the page brings the removed bytes back.
    let whole = world.swarm.cuts == Cuts::Freely;
    let slot = world.slot(at);
    slot.stored = Some(match whole {
        true => (position, bytes.as_slice().into()),
        false => (Position::At(start + stored.start as u64), stored.bytes.into()),
    });
    world.fleet.sim.count("a mapped page written back");
    let whole = Whole::new(op, world.fleet.sim.place(), world.fleet.sim.wall(), false);
    Some((at, whole, bytes))
}

/// Continues calls that waited for the write-back of mappings.
pub(super) fn go_on_deferred(world: &mut World, client: usize) {
    for slot in 0..world.clients[client].programs {
        let at = At { client, slot };
        let Slot { call, state, deferred, .. } = world.slot(at);
        if deferred.is_some() && call.is_none() && *state == SlotState::Waiting {
            world.think(at);
        }
    }
}
