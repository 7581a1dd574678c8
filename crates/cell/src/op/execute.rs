//! Carrying out operations on names: plan, get ready, make the changes, answer.

use std::borrow::Cow;

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{
    AccessMode, Answer, Attr, Change, Credentials, Entry, FileKind, FileName, Handle, Lease,
    NameRequest, Neighbour, Opened, Reply,
};

use crate::budget::Reservation;
use crate::change::{changed_inode, make, prepare};
use crate::data::cover::cover_replacement;
use crate::data::read::data_at_hand;
use crate::delegate::{Use, cover, settle};
use crate::event::SlotRef;
use crate::inode::grant::{grant_attr, grant_name, grant_names};
use crate::inode::open::{check_opens, open_now, ready_to_open};
use crate::op;
use crate::op::plan::{self, Plan, PlannedReply};
use crate::op::view::{Seen, View};
use crate::plant::Plant;
use crate::run::answer::Finished;
use crate::run::state::TaskState;
use crate::run::txn::Txn;
use crate::run::wait::{Stop, Wait, Waits};
use crate::run::work::Work;
use crate::shard::lease::Delegation;
use crate::shards::Shards;
use crate::turn::Turn;
use crate::txn::coordinator::Coordinator;

/// A request on names, and who has sent it.
pub(crate) struct NameCall<'a> {
    pub(crate) from: SlotRef,
    pub(crate) request: NameRequest<'a>,
    pub(crate) who: &'a Credentials,
    /// A record makes the inode with this number.
    pub(crate) new: Option<Ino>,
    pub(crate) is_posted: bool,
}

/// The file that takes a name which led elsewhere before.
const fn replaced_by(change: &Change) -> Option<Ino> {
    match change {
        Change::ReplaceEntry { ino, kind: FileKind::Regular, .. } => Some(*ino),
        _ => None,
    }
}

pub(crate) fn run_on_names(
    shards: &mut Shards,
    coordinator: &mut Coordinator,
    call: &NameCall<'_>,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    loop {
        if state.txn.as_ref().is_some_and(|txn| txn.is_acquiring()) {
            coordinator.acquire(shards, state, turn)?;
        }
        let txn = state.txn.as_deref();
        let mut view =
            View::new(shards, (&mut turn.fleet.volume, turn.driver.now.wall), call.who, txn);
        view.number(call.new);
        let others_post = turn.sessions.streams.has_any() && !call.is_posted;
        if others_post {
            view.note_inodes();
        }
        let planned = op::plan(&mut view, &call.request);
        let inodes = view.take_inodes();
        coordinator.steps_up += u64::from(view.steps());
        if let Some(seen) = view.into_seen()
            && !hold_touched(shards, coordinator, state, seen, planned.as_ref().err(), turn)?
        {
            continue;
        }
        match planned {
            Ok(ref plan) if turn.is_read_only(state.client) && !plan.changes.is_empty() => {
                return Err(Errno::EROFS.into());
            }
            Ok(mut plan) => {
                if turn.plants(Plant::DropDefaultAcl) {
                    plan.changes.retain(|change| !matches!(change, Change::Inherit { .. }));
                }
                if others_post {
                    ready_to_show(shards, state, &mut plan.reply, turn)?;
                }
                if call.is_posted {
                    check_covered(shards, call, &plan, turn)?;
                }
                let room = get_ready(shards, state, &plan.changes, turn)?;
                return carry_out(shards, coordinator, call, state, (&mut plan, room), turn);
            }
            // No client posts this under a delegation.
            Err(Stop::Wait(Wait::Remote)) if call.is_posted => {
                return Err(Errno::EAGAIN.into());
            }
            Err(Stop::Wait(Wait::Remote)) if state.txn.is_none() => {
                // A transaction locks and changes any shard.
                coordinator.begin(state, turn);
                return Err(Stop::Wait(Wait::Coarser));
            }
            Err(stop @ Stop::Fail(_)) => {
                ready_to_refuse(shards, state, &inodes, turn)?;
                return Err(stop);
            }
            Err(stop) => return Err(stop),
        }
    }
}

/// EAGAIN if a record changes anything that is not delegated to its client. A successor does not
/// know what was, and lets no one else do anything meanwhile.
fn check_covered(
    shards: &Shards,
    call: &NameCall<'_>,
    plan: &Plan,
    turn: &Turn<'_>,
) -> Result<(), Errno> {
    if turn.plants(Plant::ExecuteUncovered) {
        return Ok(());
    }
    let client = call.from.client;
    let is_new = |ino: Ino| Some(ino) == call.new;
    let is_covered = |ino: Ino| {
        let delegations = shards.get(&ino.shard()).map(|shard| &shard.leases.delegations);
        let root = delegations.and_then(|it| it.find(it.root_of(ino)?));
        root.is_some_and(|root| root.client == client)
    };
    let may_change = |change: &Change| match changed_inode(change) {
        Some(ino) => is_new(ino) || is_covered(ino) || turn.sessions.streams.is_inherited(client),
        None => true,
    };
    let found = matches!(plan.reply, PlannedReply::Created { found: true, .. });
    if !found && plan.changes.iter().all(may_change) { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// The members of the client's tree after a record.
fn note_members(shards: &mut Shards, call: &NameCall<'_>, changes: &[Change], turn: &mut Turn<'_>) {
    for change in changes {
        let shard = shards.shard(change.shard());
        let delegations = &mut shard.leases.delegations;
        match change {
            Change::NewInode { ino, parent, .. } => {
                turn.sessions.numbers.note_use(call.from.client, *ino);
                if let Some(root) = delegations.tree_of(*parent) {
                    delegations.add_member(root, *ino);
                }
            }
            Change::RemoveLink { ino, .. } => {
                let inode = shard.inode(*ino).ok().flatten();
                let is_named = inode.is_some_and(|inode| inode.nlink > 0);
                if !is_named {
                    shard.leases.delegations.remove_member(*ino);
                }
            }
            _ => {}
        }
    }
}

/// Waits until what other clients have posted on these inodes is executed: the operation may fail
/// because of their modes, owners or names.
fn ready_to_refuse(
    shards: &mut Shards,
    state: &mut TaskState,
    inodes: &[Ino],
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    for ino in inodes {
        if let Some(shard) = shards.get_mut(&ino.shard()) {
            settle(shard, *ino, Use::Looks, state, turn)?;
        }
    }
    Ok(())
}

/// Waits until what other clients have posted on the inodes that the reply shows is executed. A
/// reply with several inodes has to show one moment: names that come with another show no
/// attributes that something posted may have overtaken, and none come with such attributes.
fn ready_to_show(
    shards: &mut Shards,
    state: &mut TaskState,
    reply: &mut PlannedReply,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if let PlannedReply::Neighbours(found) = reply {
        for other in found.iter_mut().skip(1) {
            other.attr.take_if(|attr| !shows_now(shards, attr.ino, state.client, turn));
        }
        if let Some(&plan::Neighbour { ino, kind, attr, .. }) = found.first()
            && attr.is_some_and(|_| !shows_now(shards, ino, None, turn))
        {
            *reply = PlannedReply::Entry { ino, kind, attr };
        }
    }
    let mut show = |attr: Option<Attr>, how: Use| {
        let Some(Attr { ino, .. }) = attr else { return Ok(()) };
        match shards.get_mut(&ino.shard()) {
            Some(shard) => settle(shard, ino, how, state, turn),
            None => Ok(()),
        }
    };
    match reply {
        PlannedReply::Entry { attr, .. } => show(*attr, Use::Looks),
        PlannedReply::Neighbours(found) => {
            found.iter().try_for_each(|found| show(found.attr, Use::Looks))
        }
        PlannedReply::Created { attr, found: true, open, .. } => {
            show(Some(*attr), if open.is_some() { Use::Opens } else { Use::Looks })
        }
        _ => Ok(()),
    }
}

/// Whether all that was posted on the inode up to now is executed. If `whose` is a client, only its
/// posts are looked at: of an inode that is delegated to another it is not known.
fn shows_now(shards: &Shards, ino: Ino, whose: Option<ClientId>, turn: &mut Turn<'_>) -> bool {
    let Some(shard) = shards.get(&ino.shard()) else { return true };
    let delegations = &shard.leases.delegations;
    let covering = delegations.covering(ino).into_iter().flatten();
    covering.filter_map(|ino| delegations.find(ino)).all(|&Delegation { client, .. }| {
        whose.is_none_or(|whose| whose == client)
            && turn.sessions.streams.is_past(client, turn.driver.memory.stream_end(client))
    })
}

/// Locks everything that a transaction's operation has touched, whether it returned a plan or
/// stopped. Returns false if the operation must run again under more locks.
fn hold_touched(
    shards: &mut Shards,
    coordinator: &mut Coordinator,
    state: &mut TaskState,
    seen: Seen,
    stop: Option<&Stop>,
    turn: &mut Turn<'_>,
) -> Result<bool, Stop> {
    if let Some(txn) = state.txn.as_mut().filter(|txn| txn.holds_tree()) {
        txn.ascents.extend(seen.ascents);
    }
    if let Some(Stop::Wait(Wait::Node(..) | Wait::Recall | Wait::Coarser | Wait::Turn)) = stop {
        return Ok(true);
    }
    if !coordinator.hold_all(shards, state, seen.touched, turn)? {
        return Ok(false);
    }
    match stop {
        Some(Stop::Wait(Wait::Peek(ino))) => {
            Err(coordinator.peek(state, *ino, turn.fleet, &mut turn.driver))
        }
        Some(Stop::Wait(Wait::Remote)) => {
            // Everything touched is locked, but a value is missing: the peer did not send it.
            Err(Stop::Fail(Errno::EPROTO))
        }
        _ => Ok(true),
    }
}

/// Prepares those changes that are made on this cell. Returns their room.
fn get_ready(
    shards: &mut Shards,
    state: &mut TaskState,
    changes: &[Change],
    turn: &mut Turn<'_>,
) -> Result<Reservation, Stop> {
    state.holds_locks = state.txn.as_ref().is_some_and(|txn| txn.holds_any());
    if changes.is_empty() {
        return Ok(Reservation::empty());
    }
    let own = own_changes(shards, state.txn.as_deref(), changes);
    let room = prepare(shards, &own, state.client, state, None, turn)?;
    if changes.iter().any(|change| replaced_by(change).is_some()) {
        cover_replacements(shards, changes, turn)?;
    }
    Ok(room)
}

/// Logs the data of this cell's files that take the names of others. Out of line, because most
/// operations replace nothing.
#[cold]
fn cover_replacements(
    shards: &mut Shards,
    changes: &[Change],
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    for change in changes {
        if let Some(ino) = replaced_by(change)
            && shards.contains_key(&ino.shard())
        {
            cover_replacement(shards.shard(ino.shard()), ino, turn)?;
        }
    }
    Ok(())
}

/// Returns the changes that are made on this cell: all, unless they are a transaction's.
fn own_changes<'a>(shards: &Shards, txn: Option<&Txn>, changes: &'a [Change]) -> Cow<'a, [Change]> {
    if txn.is_none() {
        return Cow::Borrowed(changes);
    }
    let is_own = |change: &&Change| shards.contains_key(&change.shard());
    changes.iter().filter(is_own).cloned().collect()
}

fn carry_out(
    shards: &mut Shards,
    coordinator: &mut Coordinator,
    call: &NameCall<'_>,
    state: &mut TaskState,
    (plan, room): (&mut Plan, Reservation),
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let client = call.from.client;
    if let PlannedReply::Created { open: Some(_), .. } = &plan.reply
        && !call.is_posted
    {
        check_opens(call.who.uid, turn.log, turn.sessions)?;
    }
    let mut opening = Reservation::empty();
    if let PlannedReply::Created { attr, found: true, open: Some(access), .. } = &plan.reply {
        let shard = shards.shard(attr.ino.shard());
        opening = ready_to_open(shard, attr.ino, *access, state, turn)?;
    }
    if !plan.changes.is_empty() {
        let own = own_changes(shards, state.txn.as_deref(), &plan.changes);
        make(shards, (&own, state.txn.is_none()), Some(client), room, turn);
        state.streams.made = own.iter().find_map(|change| match change {
            Change::NewInode { ino, .. } => Some(*ino),
            _ => None,
        });
        if call.is_posted {
            note_members(shards, call, &own, turn);
        }
    }
    if state.txn.is_some() {
        let owned = |change: &Change| shards.contains_key(&change.shard());
        let changes = std::mem::take(&mut plan.changes);
        let remote = changes.into_iter().filter(|change| !owned(change)).collect();
        coordinator.commit(shards, state, remote, turn);
    }
    if call.is_posted {
        open_posted(shards, call, &plan.reply, turn);
        // Its client has predicted the reply.
        return Ok(Some((Ok(Reply::Done), 0)));
    }
    let answer = answer(shards, call, &mut plan.reply, opening, turn);
    let data = data_len(shards, call, &answer, turn);
    Ok(Some((answer, data)))
}

/// The data that come with the reply to a request that has opened a file: how many bytes.
fn data_len(
    shards: &Shards,
    &NameCall { from, request, .. }: &NameCall<'_>,
    answer: &Answer,
    turn: &mut Turn<'_>,
) -> u32 {
    let Some(access) = request.access() else { return 0 };
    let opened = answer.as_ref().ok().and_then(Reply::opened);
    let shard = opened.and_then(|opened| shards.get(&opened.handle.ino.shard()));
    let found = opened.zip(shard);
    found.map_or(0, |(opened, shard)| data_at_hand(shard, from, opened, access, turn))
}

/// Opens the file that a record has made, unless its client has disconnected meanwhile.
fn open_posted(
    shards: &mut Shards,
    call: &NameCall<'_>,
    reply: &PlannedReply,
    turn: &mut Turn<'_>,
) {
    let client = call.from.client;
    if let PlannedReply::Created { attr, open: Some(access), .. } = *reply
        && turn.sessions.clients.is_known(client)
    {
        let shard = shards.shard(attr.ino.shard());
        let handle = Handle { ino: attr.ino, open: Handle::BORN };
        let opening = (handle, access & !AccessMode::TRUNCATE);
        let _opened = open_now(shard, opening, Reservation::empty(), (client, call.who), turn);
    }
}

fn answer(
    shards: &mut Shards,
    &NameCall { from: SlotRef { client, .. }, ref request, who, .. }: &NameCall<'_>,
    reply: &mut PlannedReply,
    opening: Reservation,
    turn: &mut Turn<'_>,
) -> Answer {
    let leased = request.leased_name();
    match *reply {
        PlannedReply::Reply(ref mut reply) => Ok(std::mem::replace(reply, Reply::Done)),
        PlannedReply::LeasedListing { dir, ref mut reply } => {
            if let (Reply::Listing { lease, .. }, Some(shard)) =
                (&mut *reply, shards.get_mut(&dir.shard()))
            {
                *lease = grant_names(shard, dir, client, turn);
            }
            Ok(std::mem::replace(reply, Reply::Done))
        }
        PlannedReply::Absent => match lease_name(shards, leased, client, turn) {
            Some(lease) => Ok(Reply::Absent(lease)),
            None => Err(Errno::ENOENT),
        },
        PlannedReply::Entry { ino, kind, attr } => {
            Ok(Reply::Entry(entry(shards, leased, (ino, kind), attr, client, turn)))
        }
        PlannedReply::Neighbours(ref mut found) => {
            Ok(neighbours(shards, leased, std::mem::take(found), client, turn))
        }
        PlannedReply::Created { mut attr, found, open } => {
            // A client that has disconnected meanwhile opens nothing more.
            let open = open.filter(|_| turn.sessions.clients.is_known(client));
            // A new file is empty. Only an existing file is truncated, with all the consequences.
            let kept = if found { AccessMode::all() } else { !AccessMode::TRUNCATE };
            let opened = open.map(|access| {
                let shard = shards.shard(attr.ino.shard());
                let handle = turn.sessions.opens.new_handle(attr.ino);
                open_now(shard, (handle, access & kept), opening, (client, who), turn)
            });
            if let Some(opened) = &opened {
                attr = opened.attr;
            }
            let leads = (attr.ino, attr.kind);
            if attr.nlink == 0 && !found {
                return Ok(unnamed_reply(leads, opened, turn.waits));
            }
            let entry = entry(shards, leased, leads, Some(attr), client, turn);
            Ok(Reply::Created { entry, opened: opened.map(Box::new) })
        }
    }
}

/// The answer for a new file without a name. It ends if it could not be opened.
fn unnamed_reply((ino, kind): (Ino, FileKind), opened: Option<Opened>, waits: &mut Waits) -> Reply {
    if opened.is_none() {
        waits.start(Work::Reap { ino });
    }
    let entry = Entry { ino, kind, lease: None, attr: None };
    Reply::Created { entry, opened: opened.map(Box::new) }
}

/// The names, without those that may not be leased, because they may be changing.
fn neighbours(
    shards: &mut Shards,
    asked: Option<(Ino, &FileName)>,
    found: Vec<plan::Neighbour>,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Reply {
    let mut leased = Vec::<Neighbour>::with_capacity(found.len());
    for plan::Neighbour { name, ino, kind, attr } in found {
        let leased_name = match leased.first() {
            Some(Neighbour { name, .. }) if turn.plants(Plant::NeighboursOneLease) => name,
            _ => &name,
        };
        let leased_name = asked.map(|(dir, _)| (dir, leased_name));
        let entry = entry(shards, leased_name, (ino, kind), attr, client, turn);
        let is_first = leased.is_empty();
        if is_first || entry.lease.is_some() {
            let capability = turn.sessions.capabilities.capability(client, ino);
            leased.push(Neighbour { name, entry, capability });
        }
    }
    Reply::Neighbours(leased)
}

fn lease_name(
    shards: &mut Shards,
    leased: Option<(Ino, &FileName)>,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Lease> {
    let (dir, name) = leased?;
    grant_name(shards.get_mut(&dir.shard())?, dir, name, client, turn)
}

fn entry(
    shards: &mut Shards,
    leased: Option<(Ino, &FileName)>,
    (ino, kind): (Ino, FileKind),
    attr: Option<Attr>,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Entry {
    let lease = lease_name(shards, leased, client, turn);
    let attr = attr.map(|attr| {
        let lease = shards.get_mut(&ino.shard()).and_then(|shard| {
            let covered = leased.and_then(|(dir, _)| cover(shard, dir, &attr, client, turn));
            covered.or_else(|| grant_attr(shard, ino, client, turn))
        });
        (attr, lease)
    });
    Entry { ino, kind, lease, attr }
}
