//! Processes that a benchmark starts: this program in another role, or another program.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open,
    set_parent_process_death_signal,
};

use crate::error::{BenchError, system};
use crate::ground::Interruption;

/// The role of a process that becomes another program, and that ends with the benchmark. Its
/// arguments are the program and those of the program.
pub(crate) const ROLE_TIED: &str = "__bench-tied";

/// The time in which a process must end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_POLL: Duration = Duration::from_millis(2);

/// The interval between two checks for a signal while a program works.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Reply lines are short.
const LINE_MAX: usize = 512;

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

/// A child that replies to each line on its standard input with a line on its standard output. The
/// streams are closed before the process is ended.
pub(crate) struct Answering {
    orders: ChildStdin,
    replies: ChildStdout,
    process: Served,
}

impl Answering {
    pub(crate) fn start(command: &mut Command) -> Result<Self, BenchError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Served::start(command).map_err(system("start a program"))?;
        let child = process.child();
        let (orders, replies) = (child.stdin.take(), child.stdout.take());
        let (orders, replies) = orders.zip(replies).expect("both are pipes");
        Ok(Self { orders, replies, process })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn order(&mut self, line: impl Display) {
        // A program that has ended is noticed by its missing reply.
        let _ended = writeln!(self.orders, "{line}");
    }

    /// The next line, with its end. `None` if the program has ended.
    ///
    /// # Errors
    /// [`BenchError::Stuck`] if there is none until that time.
    pub(crate) fn reply(
        &mut self,
        until: Option<Instant>,
        interruption: &Interruption,
    ) -> Result<Option<String>, BenchError> {
        let timeout = Timespec::try_from(LOOK_EVERY).ok();
        let mut line = Vec::new();
        while !line.ends_with(b"\n") && line.len() < LINE_MAX {
            interruption.check()?;
            let mut readable = [PollFd::new(&self.replies, PollFlags::IN)];
            if !matches!(poll(&mut readable, timeout.as_ref()), Ok(ready) if ready > 0) {
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Err(BenchError::Stuck("a program does not reply".to_owned()));
                }
                continue;
            }
            let mut bytes = [0; LINE_MAX];
            match self.replies.read(&mut bytes) {
                Ok(0) => return interruption.check().map(|()| None),
                Ok(read) => line.extend(&bytes[..read]),
                Err(error) => return Err(system("read from a program")(error)),
            }
        }
        Ok(Some(String::from_utf8_lossy(&line).into_owned()))
    }
}

/// The child processes of a process. The kernel may not list them, so all are looked at.
pub(crate) fn children(process: u32) -> Result<Vec<u32>, BenchError> {
    let parent = format!("PPid:\t{process}\n");
    let entries = std::fs::read_dir("/proc").map_err(system("list the processes"))?;
    let numbers = entries.flatten().filter_map(|it| it.file_name().to_str()?.parse().ok());
    let is_child = |number: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{number}/status"));
        status.is_ok_and(|status| status.contains(&parent))
    };
    Ok(numbers.filter(is_child).collect())
}

/// The end of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Well,
    /// "ended with exit status: 1", for example.
    Badly(String),
}

/// A program in a process group of its own, and the processes that it has started. When it is
/// dropped they are gone.
pub(crate) struct Running {
    /// `None` when it is reaped.
    child: Option<Child>,
    end: OwnedFd,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command.process_group(0).spawn()?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(end) => Ok(Self { child: Some(child), end }),
            Err(os) => {
                let _ended = child.kill().and_then(|()| child.wait());
                Err(os.into())
            }
        }
    }

    /// A descriptor that is readable when the program has ended.
    pub(crate) fn end(&self) -> &OwnedFd {
        &self.end
    }

    /// The end of a program that has ended. What it has started is killed.
    pub(crate) fn reap(mut self) -> Result<Ended, BenchError> {
        let mut child = self.child.take().expect("a program is reaped once");
        kill_group(&child);
        let status = child.wait().map_err(system("wait for a program"))?;
        let badly = || Ended::Badly(format!("ended with {status}"));
        Ok(if status.success() { Ended::Well } else { badly() })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill_group(&child);
            // A drop cannot report an error.
            let _reaped = child.wait();
        }
    }
}

fn kill_group(child: &Child) {
    // As long as the program is not reaped, no other group has its number.
    let _ended = kill_process_group(Pid::from_child(child), Signal::KILL);
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
