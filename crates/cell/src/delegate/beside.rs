//! Delegations that come with replies: of a file, or of a directory ([`super::trees`]).

use warren_base::{ClientId, Ino, InodeFlags};
use warren_proto::stream::Delegated;
use warren_proto::{AccessMode, Answer, FileKind, LeaseKey, LockKey, LockMode, Reply, Request};

use crate::delegate::trees::{continue_after_attributes, delegate_tree, extend_tree};
use crate::delegate::{end, fits, make_room, open_stream};
use crate::plant::Plant;
use crate::shard::Shard;
use crate::shard::lease::State;
use crate::shards::Shards;
use crate::turn::Turn;

/// Pages that a client may write by posts between two replies, from the most that is set aside to
/// the least that pays.
const CREDITS: [u32; 4] = [1024, 256, CREDIT_WANTED, 16];
/// For so many pages the shard takes more chunks, while most of them are free. A client that has
/// used them up writes on: it gets so many more that it does not wait for the next ones.
const CREDIT_WANTED: u32 = 64;
const MORE_WANTED: u32 = CREDITS[0];
/// A file with more credit than this, of which records are not executed, gets no more.
const EXTENDED_MAX: u32 = 1024;

/// The inode whose attributes the request may have changed, or which its client uses from now on.
fn used_inode(request: &Request, answer: &Answer) -> Option<Ino> {
    let Ok(reply) = answer else { return None };
    match request {
        Request::Create { .. } | Request::Open { .. } => {
            let opened = reply.opened()?;
            (!opened.direct).then_some(opened.handle.ino)
        }
        Request::Read { .. } | Request::GetAttr { .. } => request.inode(),
        _ if request.is_change() && request.on_names().is_none() => request.inode(),
        _ => None,
    }
}

/// Whether a client that makes such a request will probably post others. After an open it does if
/// it has done so lately.
fn is_wanted(request: &Request, client: ClientId, turn: &mut Turn<'_>) -> bool {
    let streams = &mut turn.sessions.streams;
    match request {
        Request::Create { .. } | Request::Open { .. } => {
            request.is_change() && streams.pays(client)
        }
        Request::Write { .. } | Request::SetAttr { handle: Some(_), .. } => {
            streams.note_use(client, true);
            true
        }
        _ => false,
    }
}

/// The delegation that comes with the reply to a client's request in a slot: a new one, or that
/// which the client has, with the attributes as they are now. Its lease is always a new one,
/// because another thread of the client may have posted while the request was under way. Then that
/// thread finds the old lease revoked, or the attributes show its record.
pub(crate) fn delegate_beside(
    shards: &mut Shards,
    (request, made): (&Request, Option<Ino>),
    answer: &Answer,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Box<Delegated>> {
    if let Request::Extend { ino } = request {
        let shard = shards.get_mut(&ino.shard())?;
        let is_tree = shard.leases.delegations.find(*ino)?.is_tree;
        let extend = if is_tree { extend_tree } else { extend_file };
        return extend(shard, *ino, client, turn);
    }
    if request.changes_names()
        && let Some(delegated) = delegate_tree(shards, (request, made), answer, client, turn)
    {
        return Some(delegated);
    }
    let ino = used_inode(request, answer)?;
    let shard = shards.get_mut(&ino.shard())?;
    if let Request::SetAttr { handle: None, .. } = request
        && let Some(delegated) = continue_after_attributes(shard, ino, request, client, turn)
    {
        return Some(delegated);
    }
    let may_have_it = match shard.leases.delegations.find(ino) {
        Some(it) => it.client == client,
        None => is_wanted(request, client, turn) && may_delegate(shard, ino, client, turn),
    };
    if !may_have_it {
        return None;
    }
    end(shard, ino, false, turn);
    let attr = match answer.as_ref().ok().and_then(Reply::opened) {
        Some(opened) => opened.attr,
        None => shard.inode_value(ino).ok().flatten()?.attr,
    };
    let is_plain = attr.kind == FileKind::Regular
        && attr.nlink > 0
        && !attr.flags.intersects(InodeFlags::SETTABLE | UNPREDICTABLE);
    if !is_plain || shard.leases.delegations.find(ino).is_some() {
        return None;
    }
    let credit = set_aside(shard, CREDIT_WANTED, turn)?;
    open_stream(client, turn)?;
    let blocks = shard.budget().posts(credit.into()).blocks;
    shard.leases.delegations.insert(ino, client, (credit, blocks), false);
    if !turn.plants(Plant::DelegateBesideCopies) {
        turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    }
    let lease = turn.grant(&mut shard.leases, LeaseKey::Delegate(ino), client);
    Some(Box::new(Delegated { attr, lease, credit, tree: None }))
}

/// Adds to the credit of a file, which the client has.
fn extend_file(
    shard: &mut Shard,
    ino: Ino,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Box<Delegated>> {
    let file = *shard.leases.delegations.find(ino)?;
    let may_extend = file.client == client && file.state == State::Standing;
    if !may_extend || file.credit > EXTENDED_MAX || !turn.log_has_room() {
        return None;
    }
    let credit = set_aside(shard, MORE_WANTED, turn)?;
    let attr = shard.inode_value(ino).ok().flatten()?.attr;
    // What its nodes take was set aside with the first credit.
    shard.leases.delegations.extend(ino, credit, 0);
    let lease = turn.grant(&mut shard.leases, LeaseKey::Delegate(ino), client);
    Some(Box::new(Delegated { attr, lease, credit, tree: None }))
}

/// Finds out how many pages fit the shard, and makes room for them if need be.
fn set_aside(shard: &mut Shard, wanted: u32, turn: &mut Turn<'_>) -> Option<u32> {
    let fits = |shard: &Shard, credit: u32| fits(shard, shard.budget().posts(credit.into()));
    make_room(shard, |shard| fits(shard, wanted), turn);
    CREDITS.into_iter().find(|credit| fits(shard, *credit))
}

/// Attributes whose changes depend on more than the attributes.
const UNPREDICTABLE: InodeFlags = InodeFlags::ACL.union(InodeFlags::CAPABILITY);

/// Whether the client alone uses the file, and writes it, and no kernel and no transaction has
/// anything of it.
fn may_delegate(shard: &Shard, ino: Ino, client: ClientId, turn: &Turn<'_>) -> bool {
    let writes = AccessMode::WRITE | AccessMode::SOLE;
    let leases = &shard.leases;
    shard.opens.only_client_of(ino) == Some(client)
        && shard.opens.has_open(ino, client, writes)
        && !turn.sessions.clients.acknowledges(client)
        && !turn.is_read_only(Some(client))
        && !turn.sessions.streams.is_broken(client)
        && leases.delegations.may_delegate(ino, turn.driver.now.monotonic)
        && !shard.locks.blocks(&LockKey::Inode(ino), LockMode::Write)
        && leases
            .delegations
            .root_of(ino)
            .is_none_or(|root| leases.delegations.find(root).is_some_and(|it| it.client == client))
        && [LeaseKey::Attr(ino), LeaseKey::Pages(ino)].iter().all(|key| {
            let is_inherited = !turn.sessions.leases.inherited.is_empty() && turn.is_marked(key);
            !leases.is_acknowledged(key, is_inherited, &turn.sessions.leases)
        })
}
