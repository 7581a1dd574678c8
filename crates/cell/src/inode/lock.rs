//! Advisory file locks: how requests take and release them.

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{
    AccessMode, ByteRange, Handle, LockFlavour, LockOwner, LockSpec, LockType, Reply, Step,
};

use crate::budget::LogBudget;
use crate::event::{Effect, SlotRef};
use crate::inode::open::check_opens;
use crate::recall::drop_old_pages;
use crate::run::answer::{Finished, done};
use crate::run::state::TaskState;
use crate::run::wait::{Stop, TaskId, Wait};
use crate::session::Sessions;
use crate::shard::Shard;
use crate::shard::filelock::LockOutcome;
use crate::shard::filelock::deadlock::would_deadlock;
use crate::shards::Shards;
use crate::turn::Turn;

pub(crate) fn test_lock(
    shard: &Shard,
    handle: Handle,
    client: ClientId,
    spec: &LockSpec,
) -> Result<Finished, Stop> {
    shard.opens.descriptor(handle, client)?;
    done(Reply::LockHolder(shard.file_locks.test(handle.ino, client, spec)))
}

/// Locks or unlocks. A lock that was granted to a waiting request is logged before anything else
/// that the request may wait for. Other owners were refused because of it, so a successor must know
/// it. Such a request can no longer be cancelled, not even when a successor executes it again.
pub(crate) fn lock_file(
    shards: &mut Shards,
    (from, uid): (SlotRef, u32),
    handle: Handle,
    (spec, wait): (LockSpec, bool),
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let (ino, client) = (handle.ino, state.client.expect("a request"));
    let shard = shards.get_mut(&ino.shard()).ok_or(Errno::ESTALE)?;
    if !state.granted {
        check_lock(shard.opens.descriptor(handle, client)?, &spec)?;
        if wait && shard.file_locks.holds(ino, client, spec) {
            (state.granted, state.is_grant_logged) = (true, true);
        }
    } else if !std::mem::replace(&mut state.is_grant_logged, true) {
        turn.note(&Step::Locked { ino, client, spec, uid });
    }
    if spec.lock != LockType::Unlock {
        drop_old_pages(ino, state, turn)?;
    }
    if state.granted {
        return done(Reply::Done);
    }
    let grows = spec.lock != LockType::Unlock || shard.file_locks.splits(ino, client, spec);
    if grows
        && (check_opens(uid, turn.log, turn.sessions).is_err()
            || !shard.file_locks.has_room(ino, uid))
    {
        return Err(Errno::ENOLCK.into());
    }
    let gives_up = shard.file_locks.gives_up(ino, client, spec);
    let waits_as = wait.then_some(state.id);
    let outcome = match lock_or_wait(shards, ino, (client, uid), spec, waits_as, turn.sessions) {
        Ok(outcome) => Ok(outcome),
        Err(Stop::Fail(errno)) => Err(errno),
        Err(stop) => return Err(stop),
    };
    match outcome {
        Ok(LockOutcome::Granted) => turn.note(&Step::Locked { ino, client, spec, uid }),
        Ok(LockOutcome::Blocked) | Err(Errno::EAGAIN) if gives_up => {
            let spec = LockSpec { lock: LockType::Unlock, ..spec };
            turn.note(&Step::Locked { ino, client, spec, uid });
        }
        _ => {}
    }
    // A lock that was released or weakened lets other requests continue, whether or not this one
    // succeeded.
    grant_file_locks([shards.shard(ino.shard())], turn);
    match outcome {
        Ok(LockOutcome::Granted) => done(Reply::Done),
        Ok(LockOutcome::Blocked) => {
            state.awaits_lock = true;
            turn.driver.effects.push(Effect::AwaitsLock { from });
            Err(Stop::Wait(Wait::Registered))
        }
        // Something was done, so the answer goes into its record.
        Err(errno) if gives_up => Ok(Some((Err(errno), 0))),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes, changes or releases the lock. If it is blocked and `wait` is given, the request waits as
/// that. Without `wait` it fails with EAGAIN, and with EDEADLK if the wait would never end. If this
/// has to run in a coarser affinity, nothing has changed.
fn lock_or_wait(
    shards: &mut Shards,
    ino: Ino,
    who: (ClientId, u32),
    spec: LockSpec,
    wait: Option<TaskId>,
    sessions: &mut Sessions,
) -> Result<LockOutcome, Stop> {
    let locks = &mut shards.shard(ino.shard()).file_locks;
    if locks.lock(ino, who, spec, &mut sessions.lock_index)? == LockOutcome::Granted {
        return Ok(LockOutcome::Granted);
    }
    let id = wait.ok_or(Errno::EAGAIN)?;
    if spec.flavour == LockFlavour::Record {
        let locks_of = |ino: Ino| {
            let shard = shards.local(ino.shard())?;
            Ok::<_, Stop>(shard.map(|shard| &shard.file_locks))
        };
        if would_deadlock((ino, who.0, spec), &sessions.lock_index, locks_of)? {
            return Err(Errno::EDEADLK.into());
        }
    }
    let locks = &mut shards.shard(ino.shard()).file_locks;
    locks.wait(ino, id, who, spec, &mut sessions.lock_index);
    Ok(LockOutcome::Blocked)
}

/// Grants locks to requests that can have them now, as far as the log has room.
pub(crate) fn grant_file_locks<'a>(
    shards: impl IntoIterator<Item = &'a mut Shard>,
    turn: &mut Turn<'_>,
) {
    let mut max = LogBudget::grants(turn.log_room(turn.cache.frames.dirty_pages()));
    for shard in shards {
        let granted = shard.file_locks.grant(max, &mut turn.sessions.lock_index);
        max -= granted.len();
        for id in granted {
            turn.waits.signal(id).granted = true;
            turn.waits.wake(id);
        }
    }
}

pub(crate) fn release_file_locks(
    shard: &mut Shard,
    ino: Ino,
    (client, uid): (ClientId, u32),
    owner: LockOwner,
    turn: &mut Turn<'_>,
) {
    if !shard.file_locks.release(
        ino,
        client,
        LockFlavour::Record,
        owner,
        &mut turn.sessions.lock_index,
    ) {
        return;
    }
    let (flavour, lock, range) = (LockFlavour::Record, LockType::Unlock, ByteRange::ALL);
    let spec = LockSpec { flavour, owner, lock, range, pid: 0 };
    turn.note(&Step::Locked { ino, client, spec, uid });
    grant_file_locks([shard], turn);
}

/// Continues with grants for which the log had no room.
pub(crate) fn grant_more_file_locks(shards: &mut Shards, turn: &mut Turn<'_>) {
    grant_file_locks(shards.values_mut(), turn);
    if turn.sessions.lock_index.is_to_grant() && !turn.waits.has_ready() {
        turn.want_checkpoint();
    }
}

/// The task stops waiting for a file lock, if it did.
pub(crate) fn cancel_lock(id: TaskId, shards: &mut Shards, sessions: &mut Sessions) {
    if let Some(ino) = sessions.lock_index.file_of(id) {
        shards.shard(ino.shard()).file_locks.cancel(id, &mut sessions.lock_index);
    }
}

/// A record lock needs the right to read or write its range, because it blocks owners that have
/// that right.
fn check_lock(access: AccessMode, spec: &LockSpec) -> Result<(), Errno> {
    let needed = match (spec.flavour, spec.lock) {
        (LockFlavour::Record, LockType::Shared) => AccessMode::READ,
        (LockFlavour::Record, LockType::Exclusive) => AccessMode::WRITE,
        _ => AccessMode::empty(),
    };
    if access.contains(needed) { Ok(()) } else { Err(Errno::EBADF) }
}
