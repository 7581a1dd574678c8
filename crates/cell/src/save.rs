//! The end of a fleet without a checkpoint. The cell makes its acknowledged changes durable, so
//! that the next start finds them.
//!
//! ```text
//! Save -> every file is covered (its dirty pages placed, or in the log)
//!      -> the log is committed to its end -> Stopped
//! ```
//!
//! The other cells do the same, so this cell asks none to make durable what its log depends on. If
//! one of them could not, the recovery cuts the logs to a consistent state (decision 8). If
//! something prevents the save (a device that fails, a log that is on hold for a checkpoint or
//! full), changes that were not synced are lost, but the cell still stops.

use warren_base::Ino;

use crate::data::cover::cover_file;
use crate::run::wait::{Stop, Wait};
use crate::shards::Shards;
use crate::turn::Turn;

/// Continues the save. It runs again after every commit, until a run has found nothing new.
pub(crate) fn save(shards: &mut Shards, turn: &mut Turn<'_>) -> Result<(), Stop> {
    if turn.log.image.is_open() && !turn.log.commits.is_held() {
        while turn.log_has_room()
            && let Some(ino) = first_uncovered(shards)
        {
            match cover_file(shards.shard(ino.shard()), ino, turn) {
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

/// The first file whose contents no record covers.
fn first_uncovered(shards: &Shards) -> Option<Ino> {
    let pages = shards.values().find_map(|shard| shard.pages.first_uncovered());
    let files = || shards.values().find_map(|shard| shard.behind.first());
    let fixed = || shards.values().find_map(|shard| shard.behind.first_fixed());
    pages.or_else(files).or_else(fixed)
}
