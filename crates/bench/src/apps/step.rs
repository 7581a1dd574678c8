//! One command of a workload: what is executed, and how its end is awaited.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{BenchError, system};
use crate::ground::Interruption;
use crate::medium::find;
use crate::process::{Ended, Running, this_program};

/// A run that takes longer is taken for one that never ends.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// The interval between two checks for a signal while a program runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A program and its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Step {
    program: Program,
    arguments: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Program {
    Installed(String),
    /// This program in a role.
    Own(&'static str),
}

impl Step {
    /// Words separated by spaces. The first is the program.
    pub(super) fn new(line: &str) -> Self {
        let mut words = line.split_ascii_whitespace().map(str::to_owned);
        let program = Program::Installed(words.next().unwrap_or_default());
        Self { program, arguments: words.collect() }
    }

    /// This program in that role, with words separated by spaces.
    pub(super) fn of_program(role: &'static str, line: &str) -> Self {
        let arguments = line.split_ascii_whitespace().map(str::to_owned).collect();
        Self { program: Program::Own(role), arguments }
    }

    /// Adds an argument that may have spaces.
    pub(super) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// A program of a package is started by its path: a search in PATH would make its start slower.
    pub(super) fn command(&self) -> Result<Command, BenchError> {
        let mut command = match &self.program {
            Program::Installed(program) => Command::new(find(program, "coreutils")?),
            Program::Own(role) => {
                let mut command = this_program();
                command.arg(role);
                command
            }
        };
        command.args(&self.arguments);
        Ok(command)
    }

    /// For messages: the line without the role.
    pub(super) fn name(&self) -> String {
        let words: Vec<&str> = match &self.program {
            Program::Installed(program) => {
                let after = self.arguments.iter().map(String::as_str);
                std::iter::once(program.as_str()).chain(after).collect()
            }
            Program::Own(_) => self.arguments.iter().map(String::as_str).collect(),
        };
        words.join(" ")
    }
}

/// Files for what programs print.
pub(super) struct Outputs {
    pub output: File,
    pub messages: File,
}

impl Outputs {
    pub(super) const OUTPUT: &str = "output";
    pub(super) const MESSAGES: &str = "messages";

    /// New and empty, in a directory.
    pub(super) fn new(directory: &Path) -> Result<Self, BenchError> {
        let make = |name: &str| {
            let path = directory.join(name);
            // What several programs write follows each other.
            let _none = std::fs::remove_file(&path);
            File::options().append(true).create(true).open(&path)
        };
        let made = || Ok::<_, std::io::Error>((make(Self::OUTPUT)?, make(Self::MESSAGES)?));
        let (output, messages) = made().map_err(system("make a file for messages"))?;
        Ok(Self { output, messages })
    }

    pub(super) fn connect(&self, command: &mut Command) -> Result<(), BenchError> {
        let duplicate = |file: &File| file.try_clone().map_err(system("duplicate a descriptor"));
        command.stdin(Stdio::null()).stdout(duplicate(&self.output)?);
        command.stderr(duplicate(&self.messages)?);
        Ok(())
    }
}

/// Executes it until it ends, in a process group of its own. Nothing of the group is left.
pub(super) fn execute(
    command: &mut Command,
    interruption: &Interruption,
) -> Result<Ended, BenchError> {
    let deadline = Instant::now() + RUN_TIMEOUT;
    let running = match Running::start(command) {
        Ok(running) => running,
        Err(error) => return Ok(Ended::Badly(format!("cannot be started: {error}"))),
    };
    let timeout = Timespec::try_from(LOOK_EVERY).ok();
    loop {
        let mut readable = [PollFd::new(running.end(), PollFlags::IN)];
        if matches!(poll(&mut readable, timeout.as_ref()), Ok(ready) if ready > 0) {
            return running.reap();
        }
        interruption.check()?;
        if Instant::now() >= deadline {
            let program = Path::new(command.get_program()).display().to_string();
            let seconds = RUN_TIMEOUT.as_secs();
            return Err(BenchError::Stuck(format!("{program} had not ended after {seconds} s")));
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::*;

    fn ended(line: &str) -> Ended {
        let interruption = Interruption::watch().expect("signals");
        let mut command = Step::new("sh -c").argument(line).command().expect("a shell");
        execute(&mut command, &interruption).expect("an end")
    }

    #[test]
    fn the_end_of_a_program_is_known() {
        assert_eq!(ended("exit 0"), Ended::Well);
        assert_eq!(ended("exit 3"), Ended::Badly("ended with exit status: 3".to_owned()));
        let missing = Step::new("no-such-program x").command().expect_err("missing").to_string();
        assert!(missing.starts_with("no-such-program: not in any directory"), "{missing}");
    }

    #[test]
    fn what_a_program_has_started_is_gone_after_it() {
        let file = std::env::temp_dir().join(format!("warren-group-{}", std::process::id()));
        assert_eq!(ended(&format!("sleep 100 & echo $! >{}", file.display())), Ended::Well);
        let number = std::fs::read_to_string(&file).expect("a number");
        let pid = Pid::from_raw(number.trim().parse().expect("a number")).expect("a process");
        let deadline = Instant::now() + Duration::from_secs(10);
        // It is killed, but may not be dead yet, or its new parent may not have reaped it.
        while std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
            .is_ok_and(|stat| !stat.contains(") Z "))
        {
            assert!(Instant::now() < deadline, "{pid:?} runs");
        }
        std::fs::remove_file(file).expect("cleanup");
    }

    #[test]
    fn arguments_with_spaces_stay_whole() {
        let step = Step::new("sqlite3 db").argument("select 1");
        assert_eq!(step.name(), "sqlite3 db select 1");
        assert_eq!(step.arguments, ["db", "select 1"]);
        assert_eq!(Step::of_program("__role", "varmail x").name(), "varmail x");
    }
}
