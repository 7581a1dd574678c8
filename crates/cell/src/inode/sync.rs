//! `fsync` and `sync`.

use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, Reply};

use crate::data::cover::cover_file;
use crate::durable::harden;
use crate::fleet::Fleet;
use crate::plant::Plant;
use crate::recall::recall_inherited_pages;
use crate::run::answer::{Finished, done};
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait, WaitKey};
use crate::shard::Shard;
use crate::turn::Turn;

/// Waits for a checkpoint, which makes all cells durable. EIO while a cell is taken out: what was
/// not synced there is in its frames alone.
pub(crate) fn sync(state: &mut TaskState, fleet: &Fleet) -> Result<Finished, Stop> {
    await_checkpoint(state)?;
    if fleet.checkpoints.is_whole { done(Reply::Done) } else { Err(Errno::EIO.into()) }
}

fn await_checkpoint(state: &mut TaskState) -> Result<(), Stop> {
    let is_done = std::mem::replace(&mut state.checkpointed, true);
    if is_done { Ok(()) } else { Err(Stop::Wait(Wait::Checkpoint)) }
}

/// Makes the log durable up to every change of the file or directory so far. EIO while the client
/// has the file open since before pages of it were discarded, and the error of what it has posted,
/// once.
pub(crate) fn fsync(
    shard: &mut Shard,
    ino: Ino,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let client = state.client.expect("a request");
    if let Some(errno) = turn.sessions.failures.take(client, ino) {
        return Err(errno.into());
    }
    shard.living(ino)?;
    if state.checkpointed {
        return done(Reply::Done);
    }
    // The request names no handle.
    if shard.opens.has_open(ino, client, AccessMode::DISCARDED) {
        return Err(Errno::EIO.into());
    }
    if state.durable.is_none() && turn.sessions.clients.acknowledges(client) {
        // A program that has synced a mapping may notify other programs, and these must not see
        // older pages.
        recall_inherited_pages(ino, |other| other != client, turn)?;
        if shard.leases.has_overtaken(ino, client) {
            if turn.sessions.leases.recalls.await_pages(ino, Some(client)) {
                turn.waits.wake_all(WaitKey::Recall);
            }
            return Err(Stop::Wait(Wait::Recall));
        }
    }
    if state.durable.is_some_and(|lsn| turn.log.is_durable(lsn)) {
        return done(Reply::Done);
    }
    if turn.log.commits.is_held() {
        await_checkpoint(state)?;
        return done(Reply::Done);
    }
    let lsn = match state.durable {
        Some(lsn) => lsn,
        None => {
            if !turn.log_has_room() {
                return Err(Stop::Wait(Wait::LogRoom));
            }
            cover_file(shard, ino, turn)?;
            turn.seal();
            *state.durable.insert(turn.log.image.end())
        }
    };
    // This is done in each run, because an earlier attempt may have failed while the task waited
    // for something else.
    harden(lsn, turn.log, &mut turn.driver);
    let is_durable = turn.log.is_durable(lsn) || turn.plants(Plant::AnswerEarly);
    if is_durable { done(Reply::Done) } else { Err(Stop::Wait(Wait::Durable)) }
}
