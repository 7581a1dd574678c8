//! A mount that is served by this very process, and ends with it. A mount that is to outlive the
//! process that serves it has a [`crate::custodian`].

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use warren_log::Target;

use crate::channel::DevFuse;
use crate::courier::Post;
use crate::crew::Crew;
use crate::front::FrontOptions;
use crate::ledger::Ledger;
use crate::mount::{Mount, MountError, MountOptions};

/// What a mount is made with.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    pub mount: MountOptions,
    pub front: FrontOptions,
    /// Where the log of a mount that outlives the process goes.
    pub log: Target,
}

/// After detaching a mount that was in use, before its users are cut off.
pub const DETACH_GRACE: Duration = Duration::from_millis(200);

/// A mount that is being served.
pub struct MountedFront {
    mount: Mount,
    crew: Crew,
}

/// Mounts on `dir` and starts to serve.
pub fn mount(
    fleet: Arc<dyn Post>,
    dir: &Path,
    options: &ServeOptions,
) -> Result<MountedFront, MountError> {
    let (mount, device) = Mount::new(dir, &options.mount)?;
    let started = Ledger::create().map_err(io::Error::other).and_then(|ledger| {
        let channel = DevFuse::new(device)?;
        Crew::start(fleet, Arc::new(channel), Arc::new(ledger), options.front)
    });
    match started {
        Ok(crew) => Ok(MountedFront { mount, crew }),
        Err(error) => {
            // The error that matters is the first.
            let _ = mount.unmount();
            Err(MountError::Serve(dir.into(), error))
        }
    }
}

impl MountedFront {
    /// Where it is mounted, as an absolute path.
    pub fn dir(&self) -> &Path {
        self.mount.dir()
    }

    /// Waits until somebody unmounts it.
    pub fn wait(self) {
        self.crew.wait_closed();
        self.crew.stop();
    }

    /// Unmounts it. Who still uses it after a short grace gets errors from then on.
    pub fn unmount(self) -> io::Result<()> {
        let gone = self.mount.unmount();
        if !matches!(gone, Ok(true)) && !self.crew.is_closed() {
            std::thread::sleep(DETACH_GRACE);
        }
        self.crew.stop();
        gone.map(|_| ())
    }
}
