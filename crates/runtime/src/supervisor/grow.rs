//! The pool grows while its fleet serves: first its file, then the pool.
//!
//! ```text
//! request ─▶ file extended, blocks of new pages of the map allocated, durable ─▶ core ─▶ reply
//! ```
//!
//! A file that is longer than its pool is harmless. If the fleet ends in between, the next request
//! finds the file long enough.

use tracing::{info, warn};
use warren_base::Errno;
use warren_supervisor::{ConnectionNo, Event};
use warren_transport::control::ControlReply;

use super::state::SupervisorLoop;
use crate::error::FleetError;
use crate::message::path_of;
use crate::pool::grow::{extension, refusal};

pub(super) fn begin_growth(
    it: &mut SupervisorLoop<'_>,
    connection: ConnectionNo,
    blocks: u64,
) -> Result<(), FleetError> {
    match extend_pool(it, blocks) {
        Ok(()) => it.apply(Event::Grow { blocks }),
        Err(error) => {
            warn!(%error, "the pool does not grow");
            let (kind, line) = error.report();
            it.connections.send_last(connection, &ControlReply::Failed { kind, line });
            Ok(())
        }
    }
}

fn extend_pool(it: &mut SupervisorLoop<'_>, blocks: u64) -> Result<(), FleetError> {
    let path = path_of(&it.plan.pool);
    it.core.may_grow(blocks).map_err(|errno| refusal(&path, errno))?;
    let superblock = it.core.ledger().superblock();
    if superblock.layout.total_blocks() == blocks {
        return Ok(());
    }
    let runs = extension(&path, superblock, blocks)?;
    it.pool.extend(blocks, &runs)
}

/// Informs all clients that wait for it.
pub(super) fn growth_ended(it: &mut SupervisorLoop<'_>, result: Result<(), Errno>) {
    let blocks = it.core.ledger().superblock().layout.total_blocks();
    let reply = match result {
        Ok(()) => {
            info!(blocks, "the pool has grown");
            ControlReply::Grown
        }
        Err(errno) => {
            warn!(%errno, "the pool has not grown");
            let (kind, line) = refusal(&path_of(&it.plan.pool), errno).report();
            ControlReply::Failed { kind, line }
        }
    };
    let waiting: Vec<ConnectionNo> = it.connections.growing().collect();
    waiting.into_iter().for_each(|number| it.connections.send_last(number, &reply));
}
