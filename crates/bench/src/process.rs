//! Processes that a benchmark starts: this program in another role, or another program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// The role of a process that becomes another program, and that ends with the benchmark. Its
/// arguments are the program and those of the program.
pub(crate) const ROLE_TIED: &str = "__bench-tied";

/// How long a process may take to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_POLL: Duration = Duration::from_millis(2);

/// The command of this program. Its first argument must be a role.
pub(crate) fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("warren");
    command
}

/// The main function of a process of [`ROLE_TIED`].
pub(crate) fn become_tied(arguments: &[OsString]) -> ExitCode {
    let Some((program, rest)) = arguments.split_first() else { return ExitCode::FAILURE };
    // An exec does not change it.
    if set_parent_process_death_signal(Some(Signal::TERM)).is_ok() {
        let error = Command::new(program).args(rest).exec();
        warren_log::say(&format!("{}: cannot run it: {error}", program.display()));
    }
    ExitCode::FAILURE
}

/// A child that ends when the value is dropped: by SIGTERM, and if that is not enough by SIGKILL.
pub(crate) struct Served {
    child: Child,
}

impl Served {
    /// Starts it in a process group of its own: the terminal's signals are for the benchmark, which
    /// then ends its processes in order.
    pub(crate) fn start(command: &mut Command) -> std::io::Result<Self> {
        Ok(Self { child: command.process_group(0).spawn()? })
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        // Not reaped yet, so no other process has its number.
        let _ended = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + END_TIMEOUT;
        while !self.has_ended() {
            if Instant::now() >= deadline {
                let _ended = self.child.kill();
                let _reaped = self.child.wait();
                return;
            }
            std::thread::sleep(END_POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_process_is_gone() {
        let mut served = Served::start(Command::new("sleep").arg("100")).expect("sleep");
        assert!(!served.has_ended());
        let pid = Pid::from_child(served.child());
        drop(served);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
