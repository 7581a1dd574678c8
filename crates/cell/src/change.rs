//! Making changes: first the cell gets everything that they need (*ready*), then it makes them in
//! one run.
//!
//! Order: nodes are read into memory, acknowledged leases are recalled, blocks are reserved for the
//! nodes that will become dirty. Then word leases are revoked, and the trees are changed. Nothing
//! waits in the second part.

pub(crate) mod attributes;
pub(crate) mod capability;

use warren_base::{ClientId, Ino};
use warren_proto::{Change, LeaseKey};

use crate::apply::{fetch_change, make_one};
use crate::budget::{Growth, Need, Reservation};
use crate::delegate::settle_change;
use crate::plant::Plant;
use crate::reap::unlinked;
use crate::recall::{recall, wait_for_names};
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shards::Shards;
use crate::supply::claim::reserve;
use crate::turn::Turn;

/// The leases whose copies the change makes wrong.
fn leases_of(change: &Change) -> [Option<LeaseKey>; 2] {
    match change {
        Change::NewInode { .. } | Change::NewOrphan { .. } | Change::Inherit { .. } => [None, None],
        Change::AddEntry { dir, name, .. }
        | Change::ReplaceEntry { dir, name, .. }
        | Change::RemoveEntry { dir, name, .. } => {
            [Some(LeaseKey::Name(*dir, name.clone())), Some(LeaseKey::Attr(*dir))]
        }
        Change::AddLink { ino, .. }
        | Change::RemoveLink { ino, .. }
        | Change::SetParent { ino, .. }
        | Change::Touch { ino, .. } => [Some(LeaseKey::Attr(*ino)), None],
    }
}

/// The inode whose attributes the change changes, unless it is that of a directory whose names
/// change.
pub(crate) const fn changed_inode(change: &Change) -> Option<Ino> {
    match change {
        Change::AddLink { ino, .. }
        | Change::RemoveLink { ino, .. }
        | Change::SetParent { ino, .. }
        | Change::Touch { ino, .. } => Some(*ino),
        _ => None,
    }
}

/// Prepares the changes, which all lie on this cell. Returns their room: `promised` if it was set
/// aside for them before.
pub(crate) fn prepare(
    shards: &mut Shards,
    changes: &[Change],
    client: Option<ClientId>,
    state: &mut TaskState,
    promised: Option<Reservation>,
    turn: &mut Turn<'_>,
) -> Result<Reservation, Stop> {
    if turn.sessions.streams.has_any() && promised.is_none() && !state.is_posted() {
        for ino in changes.iter().filter_map(changed_inode) {
            settle_change(shards.shard(ino.shard()), ino, state, turn)?;
        }
    }
    let mut free = true;
    for change in changes {
        fetch_change(&shards[&change.shard()], change, turn.fleet)?;
    }
    // Without a front no client holds such a lease, and the keys need not be built.
    if turn.sessions.leases.has_acknowledged() {
        for change in changes {
            for key in leases_of(change).iter().flatten() {
                free &= recall(shards.shard(change.shard()), key, client, turn);
            }
        }
    }
    if !free {
        // What was decided elsewhere is not refused.
        let front = client.filter(|_| promised.is_none());
        if let Some(front) = front.filter(|front| turn.sessions.clients.acknowledges(*front)) {
            give_way(shards, changes, front, turn)?;
        }
        return Err(Stop::Wait(Wait::Recall));
    }
    if let Some(promised) = promised {
        return Ok(promised);
    }
    let mut room = Reservation::empty();
    for (at, shard) in changes.iter().map(Change::shard).enumerate() {
        if changes[..at].iter().any(|before| before.shard() == shard) {
            continue;
        }
        let same = || changes[at..].iter().filter(|change| change.shard() == shard);
        let budget = shards[&shard].budget();
        let blocks = same().map(|change| budget.change(change)).sum();
        let need = Need { blocks, growth: Growth::of(same()) };
        room = room.and(reserve(shards.shard(shard), need, state, turn)?);
    }
    Ok(room)
}

/// EDEADLK if a front must not wait for the recalls that the changes need. Recalls of attributes
/// count too, because they may be behind recalls of names.
fn give_way(
    shards: &mut Shards,
    changes: &[Change],
    front: ClientId,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    let keys: Vec<LeaseKey> = changes.iter().flat_map(leases_of).flatten().collect();
    for change in changes.iter().filter(|change| change.is_of_entry()) {
        wait_for_names(
            shards.shard(change.shard()),
            change.home(),
            &keys,
            front,
            turn.sessions,
            turn.waits,
        )?;
    }
    Ok(())
}

/// Makes the changes after [`prepare`], within their room. Counts stay within their range even if
/// a damaged image or a peer had them wrong. `is_whole`: the request changes nothing else.
pub(crate) fn make(
    shards: &mut Shards,
    (changes, is_whole): (&[Change], bool),
    client: Option<ClientId>,
    mut room: Reservation,
    turn: &mut Turn<'_>,
) {
    if turn.plants(Plant::RevokeAfterCommit) {
        turn.sessions.leases.late.push((changes.to_vec(), client));
    } else {
        revoke_all(shards, (changes, is_whole), client, turn);
    }
    for change in changes {
        // By reference: a step of its own would be a copy of the change.
        shards.shard(change.shard()).change(&mut room, |shard| make_one(shard, change, turn.fleet));
        turn.note_change(change);
    }
    for change in changes {
        if let Change::RemoveLink { ino, .. } = change {
            unlinked(shards.shard(ino.shard()), *ino, &mut room, turn);
        }
    }
}

/// Makes the revocations that [`Plant::RevokeAfterCommit`] has delayed.
#[inline]
pub(crate) fn revoke_late(shards: &mut Shards, turn: &mut Turn<'_>) {
    if !turn.sessions.leases.late.is_empty() {
        revoke_put_off(shards, turn);
    }
}

#[cold]
fn revoke_put_off(shards: &mut Shards, turn: &mut Turn<'_>) {
    for (changes, client) in std::mem::take(&mut turn.sessions.leases.late) {
        revoke_all(shards, (&changes, false), client, turn);
    }
}

fn revoke_all(
    shards: &mut Shards,
    (changes, is_whole): (&[Change], bool),
    client: Option<ClientId>,
    turn: &mut Turn<'_>,
) {
    for change in changes {
        // A shard that was given up meanwhile has no leases.
        let Some(Shard { leases, .. }) = shards.get_mut(&change.shard()) else { continue };
        for key in leases_of(change).iter().flatten() {
            if !turn.plants(Plant::ForgetRevoke) {
                turn.revoke(leases, key);
            }
        }
        if !change.is_of_entry() {
            continue;
        }
        leases.contended.note_change(change.home(), client, turn.driver.now.monotonic);
        if !turn.plants(Plant::KeepListings) {
            let stamps = &mut turn.sessions.leases.stamps;
            leases.words.revoke_listings(change.home(), client, stamps, turn.driver.memory);
        }
    }
    let front = client.filter(|client| turn.sessions.clients.acknowledges(*client));
    if let Some(front) = front {
        note_own_copies(shards, (changes, is_whole), front, turn);
    }
}

/// The kernel behind a front changes its own copies of names at the same time.
fn note_own_copies(
    shards: &mut Shards,
    (changes, is_whole): (&[Change], bool),
    front: ClientId,
    turn: &mut Turn<'_>,
) {
    let named = changes.iter().filter(|change| change.is_of_entry()).filter_map(|change| {
        let [name, _] = leases_of(change);
        Some((change, name?))
    });
    let named: Vec<(&Change, LeaseKey)> = named.collect();
    let now = turn.driver.now.monotonic;
    let may_hold = |name: &LeaseKey| {
        let shard = shards.get(&name.shard());
        shard.is_some_and(|shard| shard.leases.may_hold(name, front, &turn.sessions.leases))
    };
    let is_contended = |change: &Change| {
        let shard = shards.get(&change.shard());
        shard.is_some_and(|shard| shard.leases.contended.has(change.home(), now))
    };
    let has_copy = |change: &Change, name: &LeaseKey| match change {
        Change::RemoveEntry { .. } => false,
        // The reply to a request that creates a name comes with no lease on it, and a rename moves
        // the copy that the kernel has of the other name.
        _ if is_whole && is_contended(change) => {
            named.iter().any(|(_, other)| other != name && may_hold(other))
        }
        _ => true,
    };
    let copies: Vec<bool> = named.iter().map(|(change, name)| has_copy(change, name)).collect();
    for ((_, name), has_copy) in named.into_iter().zip(copies) {
        let Some(Shard { leases, .. }) = shards.get_mut(&name.shard()) else { continue };
        if has_copy {
            leases.hold_again(turn.mark(name), front, &mut turn.sessions.leases);
        } else {
            leases.dropped(&name, front, &mut turn.sessions.leases);
        }
    }
}
