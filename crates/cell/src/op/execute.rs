//! Carrying out operations on names: plan, get ready, make the changes, answer.

use std::borrow::Cow;

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{
    AccessMode, Answer, Attr, Change, Credentials, Entry, FileKind, FileName, Lease, Reply,
};

use crate::budget::Reservation;
use crate::change::{make, ready};
use crate::data::cover::cover_replacement;
use crate::inode::grant::{grant_attr, grant_name};
use crate::inode::open::{check_opens, open_now, ready_to_open};
use crate::op;
use crate::op::plan::{Plan, PlannedReply};
use crate::op::view::View;
use crate::run::task::Task;
use crate::run::wait::{Stop, TaskId, Wait};
use crate::run::work::Work;
use crate::shards::Shards;
use crate::turn::Turn;
use crate::txn::coordinator::Coordinator;

/// The file that a name leads to from now on which led elsewhere before.
const fn replaced_by(change: &Change) -> Option<Ino> {
    match change {
        Change::ReplaceEntry { ino, kind: FileKind::Regular, .. } => Some(*ino),
        _ => None,
    }
}

pub(crate) fn run_on_names(
    shards: &mut Shards,
    coordinator: &mut Coordinator,
    id: TaskId,
    task: &mut Task,
    turn: &mut Turn<'_>,
) -> Result<Answer, Stop> {
    loop {
        if task.txn.as_ref().is_some_and(|txn| txn.is_acquiring()) {
            coordinator.acquire(shards, (id, task), turn)?;
        }
        match plan(shards, coordinator, id, task, turn)? {
            Some(plan) => return carry_out(shards, coordinator, (id, task), plan, turn),
            None => continue,
        }
    }
}

/// What the request comes to, with the room for it; `None` if that has to be found out again, under
/// more locks.
fn plan(
    shards: &mut Shards,
    coordinator: &mut Coordinator,
    id: TaskId,
    task: &mut Task,
    turn: &mut Turn<'_>,
) -> Result<Option<(Plan, Reservation)>, Stop> {
    let Work::Request { from, request, who, .. } = &task.work else {
        unreachable!("only requests are on names");
    };
    let client = from.client;
    let mut view = View::new(shards, (turn.volume, turn.now.wall), who, task.txn.as_deref());
    let planned = op::plan(&mut view, request);
    let seen = view.into_seen();
    coordinator.steps_up += u64::from(seen.steps);
    if let Some(txn) = task.txn.as_mut().filter(|txn| txn.holds_tree()) {
        txn.ascents.extend(seen.ascents);
    }
    match planned {
        Err(Stop::Wait(Wait::Remote)) if task.txn.is_none() => {
            // A transaction locks and changes any shard.
            coordinator.begin(task, turn);
            return Err(Stop::Wait(Wait::Coarser));
        }
        Err(stop @ Stop::Wait(Wait::Node(..) | Wait::Recall | Wait::Coarser | Wait::Turn)) => {
            return Err(stop);
        }
        _ => {}
    }
    if task.txn.is_some() && !coordinator.hold_all(shards, (id, task), seen.touched, turn)? {
        return Ok(None);
    }
    match planned {
        Err(Stop::Wait(Wait::Peek(ino))) => Err(coordinator.peek((id, task), ino, turn)),
        Err(Stop::Wait(Wait::Remote)) => {
            // Everything touched is held, yet a value is missing: the peer did not send it.
            Err(Stop::Fail(Errno::EPROTO))
        }
        Ok(plan) if turn.log.commits.is_last() && !plan.changes.is_empty() => {
            Err(Errno::EROFS.into())
        }
        Ok(plan) => {
            let own = own_changes(shards, &plan.changes);
            task.state.holds_locks = task.holds_locks();
            let room = ready(shards, &own, Some(client), &mut task.state, None, turn)?;
            if plan.changes.iter().any(|change| replaced_by(change).is_some()) {
                cover_replacements(shards, &plan.changes, turn)?;
            }
            Ok(Some((plan, room)))
        }
        Err(stop) => Err(stop),
    }
}

/// Logs what files of this cell hold that take the names of others. Out of line: most operations
/// replace nothing.
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
            cover_replacement(shards.own(ino.shard()), ino, turn)?;
        }
    }
    Ok(())
}

/// Those of the changes that are made on this cell: mostly all.
fn own_changes<'a>(shards: &Shards, changes: &'a [Change]) -> Cow<'a, [Change]> {
    let is_own = |change: &&Change| shards.contains_key(&change.shard());
    if changes.iter().all(|change| is_own(&change)) {
        return Cow::Borrowed(changes);
    }
    changes.iter().filter(is_own).cloned().collect()
}

fn carry_out(
    shards: &mut Shards,
    coordinator: &mut Coordinator,
    (id, task): (TaskId, &mut Task),
    (plan, room): (Plan, Reservation),
    turn: &mut Turn<'_>,
) -> Result<Answer, Stop> {
    let client = task.state.client.expect("a request");
    if let PlannedReply::Created { open: Some(_), .. } = &plan.reply {
        let Work::Request { who, .. } = &task.work else {
            unreachable!("only requests are on names")
        };
        check_opens(who.uid, turn)?;
    }
    let mut opening = Reservation::none();
    if let PlannedReply::Created { attr, found: true, open: Some(access), .. } = &plan.reply {
        let shard = shards.own(attr.ino.shard());
        opening = ready_to_open(shard, attr.ino, *access, &mut task.state, turn)?;
    }
    let own = own_changes(shards, &plan.changes);
    make(shards, &own, Some(client), room, turn);
    if task.txn.is_some() {
        let owned = |change: &Change| shards.contains_key(&change.shard());
        let remote = plan.changes.into_iter().filter(|change| !owned(change)).collect();
        coordinator.commit(shards, (id, task), remote, turn);
    }
    let Work::Request { who, .. } = &task.work else { unreachable!("only requests are on names") };
    Ok(answer(shards, plan.reply, opening, (client, who), turn))
}

fn answer(
    shards: &mut Shards,
    reply: PlannedReply,
    opening: Reservation,
    (client, who): (ClientId, &Credentials),
    turn: &mut Turn<'_>,
) -> Answer {
    match reply {
        PlannedReply::Reply(reply) => Ok(reply),
        PlannedReply::Absent { dir, name } => match lease_name(shards, dir, &name, client, turn) {
            Some(lease) => Ok(Reply::Absent(lease)),
            None => Err(Errno::ENOENT),
        },
        PlannedReply::Entry { dir, name, ino, kind, attr } => {
            Ok(Reply::Entry(entry(shards, (dir, &name), (ino, kind), attr, client, turn)))
        }
        PlannedReply::Created { dir, name, mut attr, found, open } => {
            // A client that went away meanwhile opens nothing more.
            let open = open.filter(|_| turn.clients.is_known(client));
            // What is new is empty: only a file that was found is emptied, with all that follows.
            let kept = if found { AccessMode::all() } else { !AccessMode::TRUNCATE };
            let opened = open.map(|access| {
                let shard = shards.own(attr.ino.shard());
                open_now(shard, attr.ino, access & kept, opening, (client, who), turn)
            });
            if let Some(opened) = &opened {
                attr = opened.attr;
            }
            let leads = (attr.ino, attr.kind);
            let entry = entry(shards, (dir, &name), leads, Some(attr), client, turn);
            Ok(Reply::Created { entry, opened: opened.map(Box::new) })
        }
    }
}

fn lease_name(
    shards: &Shards,
    dir: Ino,
    name: &FileName,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Option<Lease> {
    grant_name(shards.get(&dir.shard())?, dir, name, client, turn)
}

fn entry(
    shards: &Shards,
    (dir, name): (Ino, &FileName),
    (ino, kind): (Ino, FileKind),
    attr: Option<Attr>,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Entry {
    let lease = lease_name(shards, dir, name, client, turn);
    let attr = attr.map(|attr| {
        let shard = shards.get(&ino.shard());
        (attr, shard.and_then(|shard| grant_attr(shard, ino, client, turn)))
    });
    Entry { ino, kind, lease, attr }
}
