//! Delegations of directories: their client alone changes names there, and in all directories that
//! it makes there (decision 84).
//!
//! A client gets one with the reply to a change of names: of the directory that it has made, or of
//! one in which it has changed two names while no other client did. A `Create` has to ask for it
//! ([`AccessMode::SOLE`]). The delegation brings numbers for the inodes that the client will make.
//! Older inodes become members when the client looks their names up. If the client changes
//! something there with a request in a slot, the cell ends the lease. Its reply brings another
//! lease, which holds for the members so far, too.

use warren_base::{ClientId, Errno, Ino, InodeFlags};
use warren_proto::stream::{Delegated, DelegatedTree, Numbered, Numbers};
use warren_proto::{
    AccessMode, Answer, Attr, FileKind, Lease, LeaseKey, LockKey, LockMode, NAME_COST, Request,
    Step,
};

use crate::budget::Need;
use crate::delegate::{end, fits, make_room, open_stream, take_numbers_back};
use crate::plant::Plant;
use crate::recall::recall;
use crate::run::wait::Stop;
use crate::shard::Shard;
use crate::shard::lease::State;
use crate::shards::Shards;
use crate::turn::Turn;

/// Changes of names that a client may post between two replies, from the most for which blocks are
/// set aside to the least that pays. A tree has as many numbers for new inodes, and twice the
/// credit, because data are written, too.
const CHANGES: [u32; 4] = [256, CHANGES_WANTED, 16, 4];
/// For so many the shard takes more chunks, while most of them are free. A client that has used
/// them up goes on: it gets so many more that it does not wait for the next ones.
const CHANGES_WANTED: u32 = 64;
const MORE_WANTED: u32 = CHANGES[0];
/// It is tried with the second change in a row, with the 4th, the 8th and so on, and with one of so
/// many, because a look at all copies of fronts takes its time.
const TRIED_EACH: u32 = 64;
/// Each number comes with a lease. So many take at most one part in so many of the client's words,
/// or they would displace those of other copies.
const WORDS_PART: u32 = 16;
/// Names of a directory that are recalled at once.
const RECALLED_MAX: usize = 256;
/// A tree with more credit than this, of which records are not executed, gets no more.
const EXTENDED_MAX: u32 = 8 * CHANGES_WANTED * NAME_COST;
/// A directory with more names is delegated only to a client that has made it: its client has to
/// list the names.
const NAMES_MAX: u64 = 4096;
/// The rules of new inodes in such directories need more than the attributes.
const UNPREDICTABLE: InodeFlags = InodeFlags::SETTABLE
    .union(InodeFlags::ACL)
    .union(InodeFlags::DEFAULT_ACL)
    .union(InodeFlags::CAPABILITY);

/// The delegation that comes with the reply to a change of names, which may have made an inode.
pub(super) fn delegate_tree(
    shards: &mut Shards,
    (request, made): (&Request, Option<Ino>),
    answer: &Answer,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Box<Delegated>> {
    let dir = request.inode()?;
    end_tree_of_other(shards, request, client, turn);
    let shard = shards.get_mut(&dir.shard())?;
    if let Some(root) = shard.leases.delegations.tree_of(dir) {
        return continue_tree(shard, (root, dir), (request, made), client, turn);
    }
    let is_wanted = match request {
        Request::Create { access, .. } => access.contains(AccessMode::SOLE),
        _ => turn.sessions.clients.stream_ring(client).is_some(),
    };
    if !is_wanted || answer.is_err() {
        return None;
    }
    if let Some(delegated) = delegate_changed(shard, dir, made, client, turn) {
        return Some(delegated);
    }
    let makes_directory =
        matches!(request, Request::Create { new, .. } if new.kind == FileKind::Directory);
    let made = made.filter(|_| makes_directory && turn.sessions.streams.pays(client))?;
    let shard = shards.get_mut(&made.shard())?;
    let may_delegate = may_delegate(shard, made, client, turn);
    may_delegate.then(|| grant(shard, (made, made), Before::Made, client, turn))?
}

/// Delegates a directory in which the client has changed several names in a row.
fn delegate_changed(
    shard: &mut Shard,
    dir: Ino,
    made: Option<Ino>,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Box<Delegated>> {
    let count = shard.leases.delegations.note_change(dir, client);
    let is_tried = count >= 2 && (count.is_power_of_two() || count.is_multiple_of(TRIED_EACH));
    if !is_tried || !may_delegate(shard, dir, client, turn) || !is_short(shard, dir) {
        return None;
    }
    if !has_no_front(shard, dir, turn) {
        recall_copies(shard, dir, client, turn);
        return None;
    }
    let delegated = grant(shard, (dir, dir), Before::None, client, turn)?;
    shard.leases.delegations.forget_changes(dir);
    add_made(shard, (dir, dir), made, Some(delegated))
}

/// The client has moved or linked an inode out of a tree: it forgets that tree.
fn end_tree_of_other(
    shards: &mut Shards,
    request: &Request,
    client: ClientId,
    turn: &mut Turn<'_>,
) {
    if let Some(other) = request.other_inode()
        && let Some(shard) = shards.get_mut(&other.shard())
        && let delegations = &shard.leases.delegations
        && let Some(root) = delegations.tree_of(other)
        && delegations.find(root).is_some_and(|tree| tree.client == client)
        && !stays_in(request, root, shard)
    {
        end(shard, root, false, turn);
    }
}

/// Whether the request moves or links an inode of the tree within it.
fn stays_in(request: &Request, root: Ino, shard: &Shard) -> bool {
    let is_in = |dir: Ino| shard.leases.delegations.tree_of(dir) == Some(root);
    match *request {
        Request::Rename { from, dir, .. } => is_in(from) && is_in(dir),
        Request::Link { dir, .. } => is_in(dir),
        _ => false,
    }
}

/// The client has changed the attributes of a member by a request in a slot.
pub(super) fn continue_after_attributes(
    shard: &mut Shard,
    ino: Ino,
    request: &Request,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Box<Delegated>> {
    let root = shard.leases.delegations.root_of(ino)?;
    let flags = shard.inode(ino).ok().flatten()?.flags;
    if flags.intersects(UNPREDICTABLE) {
        return None;
    }
    continue_tree(shard, (root, root), (request, None), client, turn)
}

/// The client has changed its tree by a request in a slot. It gets a new lease if it knows the
/// names afterwards.
fn continue_tree(
    shard: &mut Shard,
    (root, dir): (Ino, Ino),
    (request, made): (&Request, Option<Ino>),
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Box<Delegated>> {
    if shard.leases.delegations.find(root)?.client != client {
        return None;
    }
    let delegations = &shard.leases.delegations;
    let is_locked = shard.locks.has_locked(|ino| delegations.tree_of(ino) == Some(root));
    let is_known = match request {
        Request::Create { .. }
        | Request::Unlink { .. }
        | Request::Rmdir { .. }
        | Request::SetAttr { .. } => true,
        _ => stays_in(request, root, shard),
    };
    let continues = is_known
        && !is_locked
        && shard.leases.delegations.takes_members(root, CHANGES[0] as usize)
        && opens_few(turn)
        && is_plain(shard, root)
        && is_plain(shard, dir);
    end(shard, root, continues, turn);
    let is_paused = shard.leases.delegations.find(root)?.state == State::Paused;
    let delegated = is_paused.then(|| grant(shard, (root, dir), Before::Continues, client, turn));
    let Some(delegated) = delegated.flatten() else {
        // The client forgets what it has made there.
        end(shard, root, false, turn);
        return None;
    };
    add_made(shard, (root, dir), made, Some(delegated))
}

/// Adds to the credit and the numbers of a tree, which the client has.
pub(super) fn extend_tree(
    shard: &mut Shard,
    root: Ino,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Box<Delegated>> {
    let tree = *shard.leases.delegations.find(root)?;
    let may_extend = tree.client == client
        && tree.state == State::Standing
        && tree.credit <= EXTENDED_MAX
        && opens_few(turn)
        && shard.leases.delegations.takes_members(root, CHANGES[0] as usize);
    if !may_extend || !turn.log_has_room() {
        return None;
    }
    let changes = set_aside(shard, MORE_WANTED, turn)?;
    let attr = shard.inode_value(root).ok().flatten()?.attr;
    let count = count_numbers(changes, client, turn);
    let (first, count) = new_numbers(shard, root, count, client, turn).ok()?;
    let numbers = numbered(shard, (first, count), client, turn);
    let (credit, blocks) = credit_of(shard, changes);
    shard.leases.delegations.extend(root, credit, blocks);
    let lease = turn.grant(&mut shard.leases, LeaseKey::Delegate(root), client);
    let continues = Some(lease.stamp);
    let tree = DelegatedTree { root, entries: 0, continues, has_made: false, numbers };
    Some(Box::new(Delegated { attr, lease, credit, tree: Some(Box::new(tree)) }))
}

/// Finds out how many changes of names fit the shard, and makes room for them if need be.
fn set_aside(shard: &mut Shard, wanted: u32, turn: &mut Turn<'_>) -> Option<u32> {
    // Half of the room is left to all others.
    let fits = |shard: &Shard, changes: u32| {
        let need = shard.budget().name_posts(changes.into());
        fits(shard, Need { blocks: 2 * need.blocks, ..need })
    };
    make_room(shard, |shard| fits(shard, wanted), turn);
    CHANGES.into_iter().find(|changes| fits(shard, *changes))
}

/// The credit for so many changes, and the blocks that are set aside for it.
fn credit_of(shard: &Shard, changes: u32) -> (u32, u64) {
    let blocks = shard.budget().name_posts(changes.into()).blocks;
    (2 * changes * NAME_COST, blocks)
}

/// An inode that a request has made in the directory belongs to the tree, if it lies there.
fn add_made(
    shard: &mut Shard,
    (root, dir): (Ino, Ino),
    made: Option<Ino>,
    mut delegated: Option<Box<Delegated>>,
) -> Option<Box<Delegated>> {
    if let Some(Delegated { tree: Some(tree), .. }) = delegated.as_deref_mut()
        && let Some(made) = made
        && made.shard() == dir.shard()
        && shard.inode(made).ok().flatten().is_some_and(|it| it.kind != FileKind::Directory)
    {
        shard.leases.delegations.add_member(root, made);
        tree.has_made = true;
    }
    delegated
}

/// The lease of the tree to which the directory belongs, for the client that has it.
pub(crate) fn lease_of_tree(
    shard: &mut Shard,
    dir: Ino,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Lease> {
    let root = shard.leases.delegations.tree_of(dir)?;
    let tree = shard.leases.delegations.find(root)?;
    if tree.client != client || tree.state != State::Standing {
        return None;
    }
    Some(turn.grant(&mut shard.leases, LeaseKey::Delegate(root), client))
}

/// The client of a tree has looked up a name there, which leads to an inode with these attributes.
/// The inode becomes a member, if no one has it open and no front has a copy. Returns the lease of
/// the tree, under which the client has the attributes.
pub(crate) fn cover(
    shard: &mut Shard,
    dir: Ino,
    attr: &Attr,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Lease> {
    let &Attr { ino, kind, nlink, flags, .. } = attr;
    let lease = lease_of_tree(shard, dir, client, turn)?;
    let (key, delegations) = (LeaseKey::Attr(ino), &shard.leases.delegations);
    let root = delegations.tree_of(dir)?;
    let is_member = delegations.root_of(ino) == Some(root);
    let is_inherited = !turn.sessions.leases.inherited.is_empty() && turn.is_marked(&key);
    // Another name could be one of a directory that is not delegated.
    let may_cover = ino.shard() == shard.id
        && kind != FileKind::Directory
        && nlink == 1
        && !flags.intersects(UNPREDICTABLE)
        && (is_member || !delegations.covers(ino) && delegations.takes_members(root, 1))
        && delegations.may_delegate(ino, turn.driver.now.monotonic)
        && shard.opens.clients_of(ino).is_empty()
        && !shard.locks.blocks(&LockKey::Inode(ino), LockMode::Write)
        && !shard.leases.is_acknowledged(&key, is_inherited, &turn.sessions.leases);
    if !may_cover {
        return None;
    }
    if !is_member {
        shard.leases.delegations.add_member(root, ino);
        turn.revoke(&mut shard.leases, &key);
    }
    Some(lease)
}

/// Whether the rules of changes in the directory need no more than its attributes.
fn is_plain(shard: &Shard, dir: Ino) -> bool {
    let value: Result<_, Stop> = shard.inode_value(dir);
    value.ok().flatten().is_some_and(|value| {
        let Attr { kind, nlink, flags, .. } = value.attr;
        kind == FileKind::Directory && nlink > 0 && !flags.intersects(UNPREDICTABLE)
    })
}

/// Whether the directory can be delegated to the client, which is no front.
fn may_delegate(shard: &Shard, dir: Ino, client: ClientId, turn: &Turn<'_>) -> bool {
    let is_watched = |other| shard.opens.has_open(dir, other, AccessMode::WATCH);
    !turn.sessions.clients.acknowledges(client)
        && !turn.is_read_only(Some(client))
        && !turn.sessions.streams.is_broken(client)
        && !turn.sessions.streams.has_inherited()
        && !shard.leases.delegations.covers(dir)
        && shard.leases.delegations.may_delegate(dir, turn.driver.now.monotonic)
        && !shard.locks.blocks(&LockKey::Inode(dir), LockMode::Write)
        && !shard.opens.clients_of(dir).into_iter().any(is_watched)
        && turn.sessions.numbers.has_room(client, turn.log.budget().session_max())
        && opens_few(turn)
        && is_plain(shard, dir)
}

/// Whether there is room for the files that clients may open by posts, which is not refused.
fn opens_few(turn: &Turn<'_>) -> bool {
    turn.sessions.opens.count() < turn.log.budget().session_max() / 2
}

/// Whether a client can list all names of the directory.
fn is_short(shard: &Shard, dir: Ino) -> bool {
    let value = shard.inode_value(dir).ok().flatten();
    value.is_some_and(|value| value.entries <= NAMES_MAX)
}

/// Whether no front has, or may have, a copy of the directory's attributes or of a name there.
fn has_no_front(shard: &Shard, dir: Ino, turn: &Turn<'_>) -> bool {
    let leases = &turn.sessions.leases;
    !leases.has_acknowledged()
        || leases.inherited.is_empty()
            && !shard.leases.is_acknowledged(&LeaseKey::Attr(dir), false, leases)
            && !shard.leases.has_acknowledged_names(dir, leases)
}

/// Has fronts drop their copies of the directory, so that it may be delegated later.
fn recall_copies(shard: &mut Shard, dir: Ino, client: ClientId, turn: &mut Turn<'_>) {
    let mut keys = shard.leases.acknowledged_names(dir, RECALLED_MAX);
    keys.push(LeaseKey::Attr(dir));
    for key in keys {
        recall(shard, &key, Some(client), turn);
    }
}

/// The past of a tree that a client gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    None,
    /// The request has made the directory.
    Made,
    Continues,
}

/// Grants the tree of `root`. `dir` is the directory that the request has changed.
fn grant(
    shard: &mut Shard,
    (root, dir): (Ino, Ino),
    before: Before,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Box<Delegated>> {
    let standing = shard.leases.delegations.find(root).map(|it| it.stamp);
    let continues = standing.filter(|_| before == Before::Continues);
    let value = shard.inode_value(dir).ok().flatten()?;
    let changes = set_aside(shard, CHANGES_WANTED, turn)?;
    if !turn.log_has_room() {
        return None;
    }
    open_stream(client, turn)?;
    let numbers = number(shard, root, count_numbers(changes, client, turn), client, turn).ok()?;
    let (credit, blocks) = credit_of(shard, changes);
    shard.leases.delegations.insert(root, client, (credit, blocks), true);
    if !turn.plants(Plant::DelegateBesideCopies) {
        turn.revoke(&mut shard.leases, &LeaseKey::Attr(root));
        if before == Before::None && !turn.plants(Plant::KeepNames) {
            let stamps = &mut turn.sessions.leases.stamps;
            shard.leases.words.revoke_names(root, stamps, turn.driver.memory);
        }
    }
    let lease = turn.grant(&mut shard.leases, LeaseKey::Delegate(root), client);
    shard.leases.delegations.set_stamp(root, lease.stamp);
    let (entries, has_made) = (value.entries, false);
    let tree = DelegatedTree { root, entries, continues, has_made, numbers };
    Some(Box::new(Delegated { attr: value.attr, lease, credit, tree: Some(Box::new(tree)) }))
}

/// The count of numbers that a client gets for so many changes.
fn count_numbers(changes: u32, client: ClientId, turn: &Turn<'_>) -> u32 {
    let words = turn.sessions.leases.stamps.words_of(client) as u32;
    changes.min((words / WORDS_PART).max(1))
}

/// The numbers of the tree: those that are left, if they are many, else new ones.
fn number(
    shard: &mut Shard,
    root: Ino,
    wanted: u32,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Result<Numbers, Errno> {
    let left = turn.sessions.numbers.left(client, root);
    let range = match left.filter(|(_, left)| *left >= wanted / 2) {
        Some(left) => left,
        None => {
            take_numbers_back(shard, client, root, turn);
            new_numbers(shard, root, wanted, client, turn)?
        }
    };
    Ok(numbered(shard, range, client, turn))
}

/// So many numbers that no inode has. The log says whose they are.
fn new_numbers(
    shard: &mut Shard,
    root: Ino,
    count: u32,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Result<(Ino, u32), Errno> {
    let first = shard.next_ino()?;
    if first.sequence() + u64::from(count) > Ino::SEQUENCE_MAX {
        return Err(Errno::ENOSPC);
    }
    shard.use_sequence(Ino(first.0 + u64::from(count) - 1));
    turn.sessions.numbers.give(client, Some(root), first, count);
    if !turn.plants(Plant::ForgetNumbers) {
        turn.note(&Step::Numbered { client, first, count });
    }
    Ok((first, count))
}

/// The numbers with all that belongs to them.
fn numbered(
    shard: &mut Shard,
    (first, count): (Ino, u32),
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Numbers {
    let each = (0..u64::from(count)).map(|at| {
        let ino = Ino(first.0 + at);
        let opens = turn.grant(&mut shard.leases, LeaseKey::Opens(ino), client);
        Numbered { capability: turn.sessions.capabilities.capability(client, ino), opens }
    });
    Numbers { first, each: each.collect() }
}
