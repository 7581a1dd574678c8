//! A cell that was taken out is taken in again.

use std::path::Path;
use std::time::{Duration, Instant};

use warren_base::Errno;
use warren_transport::control::{CONTROL_VERSION, ControlReply, ControlRequest, ErrorKind};

use super::control::{ask, exchange, reply_deadline, status};
use crate::error::FleetError;
use crate::status::TakenOutStatus;

/// The time in which the cell must serve, or be taken out again: its processes may end a dozen
/// times with growing pauses, and each may have a long log to replay.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The pause between two looks at the fleet, whose changes cannot be awaited.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Takes the cell in again, and waits until it serves its shards. An error if it is not taken out,
/// or if its processes still end.
pub fn rejoin(pool: &Path, cell: u16) -> Result<(), FleetError> {
    let failed = |line: String| FleetError::Reported { kind: ErrorKind::Other, line };
    let fleet = status(pool)?;
    if usize::from(cell) >= fleet.cells.len() {
        let last = fleet.cells.len().saturating_sub(1);
        return Err(failed(format!("there is no cell {cell}; the last is cell {last}")));
    }
    if outage(&fleet.harm.taken_out, cell).is_none() {
        return Err(failed(format!("cell {cell} is not taken out; there is nothing to do")));
    }
    let request = ControlRequest::Rejoin { version: CONTROL_VERSION, cell };
    exchange(pool, reply_deadline(), |call| match ask(&mut call.link, &request, call.until)?.0 {
        ControlReply::Rejoining => Ok(()),
        _ => Err(FleetError::Refused(Errno::EPROTO)),
    })?;
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        match outage(&status(pool)?.harm.taken_out, cell) {
            None => return Ok(()),
            Some(outage) if !outage.returns => {
                return Err(failed(format!(
                    "cell {cell} cannot be taken in, because its processes still end; its other \
                     cells are not harmed; see the fleet's log and `warren debug fault`"
                )));
            }
            Some(_) => std::thread::sleep(LOOK_AGAIN),
        }
    }
    Err(FleetError::NotReady(TIMEOUT.as_secs()))
}

fn outage(taken_out: &[TakenOutStatus], cell: u16) -> Option<&TakenOutStatus> {
    taken_out.iter().find(|outage| outage.cell == cell)
}
