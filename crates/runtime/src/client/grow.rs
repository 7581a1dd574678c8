//! `warren grow`: the fleet that serves the pool makes it larger, or this process does.

use std::path::Path;
use std::time::{Duration, Instant};

use warren_base::Errno;
use warren_device::DeviceError;
use warren_transport::control::{CONTROL_VERSION, ControlReply, ControlRequest};

use super::control;
use crate::error::FleetError;
use crate::message::STOP_TIMEOUT;
use crate::pool::grow::grow_offline;

/// The time for which a pool may be in use without a fleet that answers: one starts, or another
/// command has the pool for a moment.
const BUSY_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes a pool so many blocks large, and its file that long. A fleet that serves the pool does it.
pub fn grow(path: &Path, blocks: u64) -> Result<(), FleetError> {
    let until = Instant::now() + BUSY_TIMEOUT;
    loop {
        match grow_served(path, blocks) {
            Err(FleetError::NoFleet(_)) => {}
            outcome => return outcome,
        }
        match grow_offline(path, blocks) {
            Err(FleetError::Device(DeviceError::Busy(_))) if Instant::now() < until => {
                // Neither a lock on a file nor a socket that is about to be there can be awaited.
                std::thread::sleep(Duration::from_millis(50));
            }
            outcome => return outcome,
        }
    }
}

fn grow_served(path: &Path, blocks: u64) -> Result<(), FleetError> {
    let request = ControlRequest::Grow { version: CONTROL_VERSION, blocks };
    control::exchange(path, control::reply_deadline(), |call| {
        // It waits for a checkpoint, as a stop does.
        match control::ask(&mut call.link, &request, Instant::now() + STOP_TIMEOUT)?.0 {
            ControlReply::Grown => Ok(()),
            ControlReply::Failed { kind, line } => Err(FleetError::reported(kind, &line)),
            _ => Err(FleetError::Refused(Errno::EPROTO)),
        }
    })
}
