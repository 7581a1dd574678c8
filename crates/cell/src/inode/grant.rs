//! Leases that come with an answer.

use warren_base::{ClientId, Ino};
use warren_proto::{FileName, Lease, LeaseKey, LockKey};

use crate::shard::Shard;
use crate::turn::Turn;

pub(crate) fn grant_name(
    shard: &mut Shard,
    dir: Ino,
    name: &FileName,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Lease> {
    let lock = || LockKey::Name(dir, name.clone());
    grant(shard, lock, LeaseKey::Name(dir, name.clone()), client, turn)
}

pub(crate) fn grant_attr(
    shard: &mut Shard,
    ino: Ino,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Lease> {
    let lock = || LockKey::Inode(ino);
    grant(shard, lock, LeaseKey::Attr(ino), client, turn)
}

/// Grants a lease on an object that was just looked up, unless a transaction may be changing it.
fn grant(
    shard: &mut Shard,
    lock: impl FnOnce() -> LockKey,
    key: LeaseKey,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Lease> {
    let locks = &shard.locks;
    if !locks.is_empty() && locks.is_changing(&lock()) {
        return None;
    }
    if turn.clients.acknowledges(client) {
        let is_held = shard.leases.hold(key, client, turn.leases);
        return is_held.then_some(Lease { word: 0, stamp: 0 });
    }
    Some(shard.leases.grant(key, client, turn.leases, turn.memory))
}
