//! Mounts of which all processes are stopped. Other mounts wait for what their fronts answer, and
//! none of their own processes can resume them, so the supervisor resumes their keepers.
//!
//! A keeper that is stopped beside a front that runs harms nothing: the front resumes it.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, pidfd_send_signal};
use tracing::{info, warn};
use warren_base::Instant;

use crate::clock;
use crate::process::open_pidfd;
use crate::silence;

/// The time between two looks at all mounts. A look takes some 20 us a mount.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The supervisor's looks at the mounts.
#[derive(Default)]
pub(super) struct MountLooks {
    next: Instant,
    /// The keepers of mounts that were stopped at the last look, and at how many before that.
    stopped: BTreeMap<u32, u32>,
}

impl MountLooks {
    /// Resumes those of the mount keepers whose mounts are stopped at two looks in a row.
    pub(super) fn look(&mut self, keepers: impl Iterator<Item = u32>) {
        let now = clock::monotonic();
        if now < self.next {
            return;
        }
        self.next = now + LOOK_EVERY;
        let before = std::mem::take(&mut self.stopped);
        for keeper in keepers.filter(|keeper| silence::is_mount_stopped(*keeper)) {
            let looks = before.get(&keeper).map_or(0, |looks| looks.saturating_add(1));
            self.stopped.insert(keeper, looks);
            if looks > 0 {
                resume(keeper, looks == 1);
            }
        }
    }
}

/// Resumes the process, if it is still that of a mount that is stopped. `is_first`: it was not
/// tried before.
fn resume(keeper: u32, is_first: bool) {
    let Some(pid) = i32::try_from(keeper).ok().and_then(Pid::from_raw) else { return };
    let Ok(process) = open_pidfd(pid) else { return };
    if !silence::is_mount_stopped(keeper) {
        return;
    }
    match pidfd_send_signal(process, Signal::CONT) {
        Ok(()) => info!(pid = keeper, "a mount whose processes were stopped is resumed"),
        Err(error) if is_first => {
            let why = "resume it (kill -CONT), or end it; other mounts may wait for it";
            warn!(pid = keeper, %error, "a mount whose processes are stopped cannot be resumed: {why}");
        }
        Err(_) => {}
    }
}
