//! A mount from its beginning to its end.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::channel::DevFuse;
use crate::courier::Post;
use crate::crew::Crew;
use crate::front::FrontOptions;
use crate::mount::{Mount, MountError, MountOptions};

/// What a mount is made with.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    pub mount: MountOptions,
    pub front: FrontOptions,
}

/// After detaching a mount that was in use, before its users are cut off.
const DETACH_GRACE: Duration = Duration::from_millis(200);

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
    let started = DevFuse::new(device)
        .and_then(|channel| Crew::start(fleet, Arc::new(channel), options.front));
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

/// Mounts on `dir`, writes a byte to `ready`, and serves until the mount is unmounted or a signal
/// (SIGTERM, SIGINT, SIGHUP) asks for the end. To be called while the process has one thread only.
pub fn serve_mount(
    fleet: Arc<dyn Post>,
    dir: &Path,
    options: &ServeOptions,
    ready: Option<OwnedFd>,
) -> Result<(), MountError> {
    let failed = |error| MountError::Serve(dir.into(), error);
    // Before there are threads, so that they inherit the mask.
    let signals = signal_descriptor().map_err(failed)?;
    let front = mount(fleet, dir, options)?;
    if let Some(ready) = ready {
        // Whoever waited may be gone by now, which is no reason to fail.
        let _ = std::fs::File::from(ready).write_all(b"\n");
    }
    let closed = eventfd(0, EventfdFlags::CLOEXEC).map_err(|os| failed(os.into()))?;
    let signalled = std::thread::scope(|scope| {
        scope.spawn(|| {
            front.crew.wait_closed();
            // It cannot fail short of 2^64 closes.
            let _ = rustix::io::write(&closed, &1_u64.to_ne_bytes());
        });
        let signalled = wait_either(&signals, &closed);
        if signalled {
            // Unmounting from here makes the crew close by itself, if nothing is in use.
            let gone = front.mount.unmount();
            if !matches!(gone, Ok(true)) {
                std::thread::sleep(DETACH_GRACE);
            }
            front.crew.close();
            return gone.map(|_| ());
        }
        Ok(())
    });
    front.crew.stop();
    signalled.map_err(failed)
}

/// Whether `signals` became readable, rather than `closed`.
fn wait_either(signals: &OwnedFd, closed: &OwnedFd) -> bool {
    loop {
        let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(closed, PollFlags::IN)];
        if poll(&mut fds, None).is_ok() {
            if !fds[1].revents().is_empty() {
                return false;
            }
            if !fds[0].revents().is_empty() {
                return true;
            }
        }
    }
}

/// Blocks the signals that end a mount and returns a descriptor that becomes readable by them.
#[expect(unsafe_code, reason = "no safe binding of signalfd and the signal mask")]
fn signal_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is used, and all pointers are to it.
    let fd = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        let error = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd.as_raw_fd() < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
