//! A mount that the calling process serves, and that ends with it. A mount that must survive the
//! process that serves it has a [`crate::keeper`].

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use warren_log::Target;

use crate::channel::DevFuse;
use crate::connection::FleetConnection;
use crate::front::FrontOptions;
use crate::front_state::FrontState;
use crate::mount::{Mount, MountError, MountOptions};
use crate::workers::Workers;

/// The options of a mount, its front and its log.
#[derive(Clone, Debug)]
pub struct MountConfig {
    pub mount: MountOptions,
    pub front: FrontOptions,
    /// The target of the log of a mount that has a keeper.
    pub log: Target,
    /// The time in which the first front of a mount that has a keeper must serve.
    pub ready_max: Duration,
}

/// The usual [`MountConfig::ready_max`]. A front needs some 20 ms and waits for no cell, so this is
/// long on the busiest machine.
pub const READY_MAX: Duration = Duration::from_secs(30);

/// The time after which the users of a detached mount are cut off.
pub(crate) const DETACH_GRACE: Duration = Duration::from_millis(200);

/// A mount that is being served.
pub struct MountedFront {
    mount: Mount,
    workers: Workers,
}

/// Mounts on `dir` and starts to serve.
pub fn mount(
    fleet: Arc<dyn FleetConnection>,
    dir: &Path,
    config: &MountConfig,
) -> Result<MountedFront, MountError> {
    let (mount, device) = Mount::new(dir, &config.mount)?;
    let started = FrontState::create().map_err(io::Error::other).and_then(|state| {
        let channel = DevFuse::new(device)?;
        let options = FrontOptions { effects: mount.effects(), ..config.front };
        Workers::start(fleet, Arc::new(channel), Arc::new(state), options)
    });
    match started {
        Ok(workers) => Ok(MountedFront { mount, workers }),
        Err(error) => {
            // The first error is the cause.
            let _ = mount.unmount();
            Err(MountError::Serve(dir.into(), error))
        }
    }
}

impl MountedFront {
    /// The absolute path of the mount point.
    pub fn dir(&self) -> &Path {
        self.mount.dir()
    }

    /// Waits until it is unmounted.
    pub fn wait(self) {
        self.workers.wait_closed();
        self.workers.stop();
    }

    /// Unmounts it. After [`DETACH_GRACE`], programs that still use it get errors.
    pub fn unmount(self) -> io::Result<()> {
        let gone = self.mount.unmount();
        if !matches!(gone, Ok(true)) && !self.workers.is_closed() {
            std::thread::sleep(DETACH_GRACE);
        }
        self.workers.stop();
        gone.map(|_| ())
    }
}
