//! For tests: aborts the FUSE connection of a mount after a time limit, so that a front that does
//! not answer fails its test instead of blocking it for ever.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, io, thread};

use rustix::mount::{MountFlags, UnmountFlags};

const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The time limit of a connection. Dropping it cancels the limit.
#[derive(Debug)]
pub struct Watchdog {
    /// Dropped to cancel the limit.
    cancel: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Aborts the FUSE connection mounted on `dir` after `limit`.
    pub fn abort_after(dir: &Path, limit: Duration) -> io::Result<Self> {
        let connection = connection_of(dir)?;
        let dir = dir.to_path_buf();
        let (cancel, cancelled) = channel();
        let watch = move || {
            if cancelled.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                warren_log::say(&format!("aborting FUSE connection {connection}"));
                if abort(connection).is_err() {
                    // A forced unmount aborts too. If it fails, there is nothing else to try.
                    let _ =
                        rustix::mount::unmount(&dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
                }
            }
        };
        let thread = thread::Builder::new().name("watchdog".into()).spawn(watch)?;
        Ok(Self { cancel: Some(cancel), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.cancel.take();
        if let Some(thread) = self.thread.take() {
            // A panic in it was reported on standard error.
            let _ = thread.join();
        }
    }
}

/// The number of a connection is the device number of its mount. It is read from `mountinfo`,
/// because the mount may not answer.
fn connection_of(dir: &Path) -> io::Result<u64> {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo")?;
    let device = mounts
        .lines()
        .rev()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(4).is_some_and(|at| Path::new(at) == dir))
        .and_then(|fields| fields.get(2).map(|device| (*device).to_owned()))
        .ok_or_else(|| io::Error::other(format!("{} is not mounted", dir.display())))?;
    let (major, minor) = device.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
    let parse = |number: &str| number.parse::<u64>().map_err(io::Error::other);
    Ok(parse(major)? << 20 | parse(minor)?)
}

fn abort(connection: u64) -> io::Result<()> {
    let file = format!("{CONNECTIONS}/{connection}/abort");
    if fs::metadata(&file).is_err() {
        rustix::mount::mount("fusectl", CONNECTIONS, "fusectl", MountFlags::empty(), None)?;
    }
    fs::write(file, "1")
}
