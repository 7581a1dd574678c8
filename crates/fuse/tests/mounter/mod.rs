//! A process of a test that does the same as `warren mount`.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::process::Signal;
use warren_fuse::keep_mount;

use crate::mounting::{MOUNTER, front};

/// The main function of a process with the role [`MOUNTER`]: keeps a mount until a signal.
pub(crate) fn mount_until_signalled(pool: &Path, dir: &Path) -> ExitCode {
    // The mount must not survive a test that fails.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).expect("prctl");
    let (admission, config) = front(pool);
    let ready = std::io::stdout().as_fd().try_clone_to_owned().expect("standard output");
    match keep_mount(admission, dir, &config, Some(ready)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts such a process, and waits until it has mounted.
pub(crate) fn mounter(pool: &Path, dir: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([MOUNTER.as_ref(), pool.as_os_str(), dir.as_os_str()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut ready = [0];
    child.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("readiness");
    child
}
