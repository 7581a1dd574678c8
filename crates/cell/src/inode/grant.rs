//! Leases that come with an answer.

use warren_base::{ClientId, Ino};
use warren_proto::{Answer, FileName, Lease, LeaseKey, LeasedAttrs, LockKey, Reply, Request};

use crate::delegate::lease_of_tree;
use crate::plant::Plant;
use crate::shard::Shard;
use crate::shards::Shards;
use crate::turn::Turn;

pub(crate) fn grant_name(
    shard: &mut Shard,
    dir: Ino,
    name: &FileName,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Lease> {
    let lock = || LockKey::Name(dir, name.clone());
    if shard.leases.delegations.covers(dir) {
        // Only the client of the tree may keep names there, and knows which it changes itself.
        let is_changing = shard.locks.is_changing(&lock());
        return if is_changing { None } else { lease_of_tree(shard, dir, client, turn) };
    }
    grant(shard, lock, LeaseKey::Name(dir, name.clone()), client, turn)
}

pub(crate) fn grant_attr(
    shard: &mut Shard,
    ino: Ino,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Lease> {
    // While its client may post, no one has a copy that does not show what was posted.
    if shard.leases.delegations.covers(ino) && !turn.plants(Plant::DelegateBesideCopies) {
        return None;
    }
    let lock = || LockKey::Inode(ino);
    grant(shard, lock, LeaseKey::Attr(ino), client, turn)
}

/// Grants a lease on the names of a directory: a word, for a front too. While a transaction adds or
/// removes a name, it has a lock on the directory.
pub(crate) fn grant_names(
    shard: &mut Shard,
    dir: Ino,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Lease> {
    if shard.locks.is_changing(&LockKey::Inode(dir)) || shard.leases.delegations.covers(dir) {
        return None;
    }
    Some(turn.grant(&mut shard.leases, LeaseKey::Names(dir), client))
}

/// Grants the leases on attributes that come with an answer beside the reply.
pub(crate) fn grant_beside(
    shards: &mut Shards,
    (request, reads_kept): (&Request, bool),
    answer: &Answer,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> LeasedAttrs {
    match (request, answer) {
        (_, Err(_)) => Vec::new(),
        (Request::Open { ino, .. }, Ok(Reply::Opened(opened))) if opened.kept.is_some() => {
            grant_kept(shards, *ino, client, turn)
        }
        (Request::Read { handle, .. }, Ok(_)) if reads_kept => {
            grant_kept(shards, handle.ino, client, turn)
        }
        _ => grant_changed(shards, request, client, turn),
    }
}

/// Grants a client that is not a front a lease on the attributes of a file that it has opened to
/// keep it, unless it has one. Its copies of the data need it beside the lease on the opens of the
/// file, and an access time that a read has changed has ended the last one.
fn grant_kept(shards: &mut Shards, ino: Ino, client: ClientId, turn: &mut Turn<'_>) -> LeasedAttrs {
    let Some(shard) = shards.get_mut(&ino.shard()) else { return Vec::new() };
    if turn.sessions.clients.acknowledges(client)
        || shard.leases.words.holds(&LeaseKey::Attr(ino), client, &turn.sessions.leases.stamps)
    {
        return Vec::new();
    }
    let Ok(Some(value)) = shard.inode_value(ino) else { return Vec::new() };
    let lease = grant_attr(shard, ino, client, turn);
    lease.into_iter().map(|lease| (value.attr, lease)).collect()
}

/// Grants a front leases on the directories that its request has changed, with their attributes:
/// the request has made its copies wrong. The front keeps them itself, under words, for its kernel
/// that asks for them next. That kernel then has an acknowledged lease.
fn grant_changed(
    shards: &mut Shards,
    request: &Request,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> LeasedAttrs {
    if !turn.sessions.clients.acknowledges(client) {
        return Vec::new();
    }
    let (dir, other) = match *request {
        Request::Create { dir, .. }
        | Request::Link { dir, .. }
        | Request::Unlink { dir, .. }
        | Request::Rmdir { dir, .. } => (dir, None),
        Request::Rename { from, dir, .. } => (dir, Some(from).filter(|from| *from != dir)),
        _ => return Vec::new(),
    };
    let mut changed = Vec::new();
    for dir in std::iter::once(dir).chain(other) {
        let Some(shard) = shards.get_mut(&dir.shard()) else { continue };
        let Ok(Some(value)) = shard.inode_value(dir) else { continue };
        if value.attr.nlink > 0 && grant_attr(shard, dir, client, turn).is_some() {
            let lease = turn.grant(&mut shard.leases, LeaseKey::Attr(dir), client);
            changed.push((value.attr, lease));
        }
    }
    changed
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
    if turn.sessions.clients.acknowledges(client) {
        if let LeaseKey::Name(dir, _) = &key
            && shard.leases.contended.has(*dir, turn.driver.now.monotonic)
        {
            return None;
        }
        let is_held = shard.leases.hold(turn.mark(key), client, &mut turn.sessions.leases);
        return is_held.then_some(Lease { word: 0, stamp: 0 });
    }
    Some(turn.grant(&mut shard.leases, key, client))
}
