//! Advisory file locks, as requests take and release them.

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{AccessMode, ByteRange, Handle, LockFlavour, LockSpec, LockType, Reply, Step};

use crate::event::{Effect, Memory, SlotRef};
use crate::filelock::LockOutcome;
use crate::inode::answer::{Finished, done};
use crate::inode::open::{check_opens, descriptor};
use crate::recall::drop_old_pages;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, TaskId, Wait};
use crate::shard::Shard;
use crate::turn::Turn;

pub(crate) fn test_lock<M: Memory>(
    shard: &Shard,
    handle: Handle,
    client: ClientId,
    spec: &LockSpec,
    turn: &Turn<'_, M>,
) -> Result<Finished, Stop> {
    descriptor(shard, handle, client)?;
    done(Reply::LockHolder(turn.file_locks.test(handle.ino, client, spec)))
}

/// Locks or unlocks. A lock that was granted to a request that waited is logged before anything
/// that the request may still wait for: other owners were refused for it, so a successor must know
/// it. And so such a request cannot be cancelled any more, nor when a successor executes it again.
pub(crate) fn lock_file<M: Memory>(
    (id, from, uid): (TaskId, SlotRef, u32),
    shard: &mut Shard,
    state: &mut TaskState,
    handle: Handle,
    (spec, wait): (LockSpec, bool),
    turn: &mut Turn<'_, M>,
) -> Result<Finished, Stop> {
    let (ino, client) = (handle.ino, state.client.expect("a request"));
    if !state.granted {
        check_lock(descriptor(shard, handle, client)?, &spec)?;
        if wait && turn.file_locks.holds(ino, client, spec) {
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
    let grows = spec.lock != LockType::Unlock || turn.file_locks.splits(ino, client, spec);
    if grows && (check_opens(uid, turn).is_err() || !turn.file_locks.has_room(ino, uid)) {
        return Err(Errno::ENOLCK.into());
    }
    let gives_up = turn.file_locks.gives_up(ino, client, spec);
    let outcome = turn.file_locks.lock(ino, (client, uid), spec, wait.then_some(id));
    match outcome {
        Ok(LockOutcome::Granted) => turn.note(&Step::Locked { ino, client, spec, uid }),
        Ok(LockOutcome::Waits) | Err(Errno::EAGAIN) if gives_up => {
            let spec = LockSpec { lock: LockType::Unlock, ..spec };
            turn.note(&Step::Locked { ino, client, spec, uid });
        }
        _ => {}
    }
    // A lock that was given up or made weaker lets others go on, whatever became of this one.
    grant_file_locks(turn);
    match outcome {
        Ok(LockOutcome::Granted) => done(Reply::Done),
        Ok(LockOutcome::Waits) => {
            state.awaits_lock = true;
            turn.effects.push(Effect::AwaitsLock { from });
            Err(Stop::Wait(Wait::Registered))
        }
        // Something was done: the answer goes into its record.
        Err(errno) if gives_up => Ok(Some((Err(errno), 0))),
        Err(errno) => Err(errno.into()),
    }
}

/// Lets requests go on whose locks can be granted now, as far as the log has room: each logs its
/// lock at once, and what runs before it may take the other half.
pub(crate) fn grant_file_locks<M: Memory>(turn: &mut Turn<'_, M>) {
    let room = turn.log_room(turn.cache.dirty_pages());
    let max = (room / 2 / crate::log::PER_GRANT).max(room.min(1));
    for id in turn.file_locks.grant(max as usize) {
        turn.waits.signal(id).granted = true;
        turn.waits.wake(id);
    }
}

pub(crate) fn release_file_locks<M: Memory>(
    ino: Ino,
    (client, uid): (ClientId, u32),
    owner: warren_proto::LockOwner,
    turn: &mut Turn<'_, M>,
) {
    if !turn.file_locks.release(ino, client, LockFlavour::Record, owner) {
        return;
    }
    let (flavour, lock, range) = (LockFlavour::Record, LockType::Unlock, ByteRange::ALL);
    let spec = LockSpec { flavour, owner, lock, range, pid: 0 };
    turn.note(&Step::Locked { ino, client, spec, uid });
    grant_file_locks(turn);
}

/// The log had no room for the records of all that could be granted.
pub(crate) fn grant_more_file_locks<M: Memory>(turn: &mut Turn<'_, M>) {
    grant_file_locks(turn);
    if turn.file_locks.is_to_grant() && !turn.waits.has_ready() {
        turn.want_checkpoint();
    }
}

/// A record lock is for who may read or write what it covers, as it locks out others that do.
fn check_lock(access: AccessMode, spec: &LockSpec) -> Result<(), Errno> {
    let needed = match (spec.flavour, spec.lock) {
        (LockFlavour::Record, LockType::Shared) => AccessMode::READ,
        (LockFlavour::Record, LockType::Exclusive) => AccessMode::WRITE,
        _ => AccessMode::empty(),
    };
    if access.contains(needed) { Ok(()) } else { Err(Errno::EBADF) }
}
