//! The end of a fleet without a checkpoint: what a cell does so that the next start finds what it
//! has answered.
//!
//! ```text
//! Save -> every file is covered (its dirty pages placed, or in the log) -> the log is committed to its end -> Stopped
//! ```
//!
//! The other cells do the same, so none is asked to make durable what this log rests on; where one
//! could not, the recovery cuts the logs to what is consistent (decision 8). Whatever keeps the
//! cell from it (a device that fails, a log that is held for a checkpoint or is full) costs what
//! was not synced, and never the end.

use warren_base::Ino;

use crate::data::cover::cover_file;
use crate::run::wait::{Stop, Wait};
use crate::shards::Shards;
use crate::turn::Turn;

/// Goes on with it. It runs again after every commit, until one has found nothing new.
pub(crate) fn save(shards: &mut Shards, turn: &mut Turn<'_>) -> Result<(), Stop> {
    if turn.log.image.is_open() && !turn.log.commits.is_held() {
        while turn.log_has_room()
            && let Some(ino) = first_uncovered(shards, turn)
        {
            match cover_file(shards.own(ino.shard()), ino, turn) {
                Ok(()) => turn.seal(),
                Err(Stop::Fail(_)) => break,
                Err(wait) => return Err(wait),
            }
        }
        if !turn.log.is_written() {
            turn.log.commits.want(turn.log.image.end());
            return Err(Stop::Wait(Wait::Durable));
        }
    }
    turn.report_stopped();
    Ok(())
}

/// A file of which no record says what it holds.
fn first_uncovered(shards: &Shards, turn: &Turn<'_>) -> Option<Ino> {
    let files = || shards.values().find_map(|shard| shard.behind.first());
    let fixed = || shards.values().find_map(|shard| shard.behind.first_fixed());
    turn.cache.first_uncovered().or_else(files).or_else(fixed)
}
