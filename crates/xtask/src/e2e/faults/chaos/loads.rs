//! The programs that work while things break. Each of them knows the outcome of all it does.
//!
//! `cases/faults/acknowledged.py` remembers the answer to every call. `cases/programs/projects.py`
//! runs git, sqlite3 or make again and again, and compares what they leave with what they were
//! given.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;

use crate::cargo::interposer;
use crate::e2e::harness::ground::Ground;
use crate::e2e::harness::process;

/// A program ends when it is told to. This limit ends what hangs.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Load {
    /// System calls, one by one.
    Calls,
    Git,
    Sqlite,
    Make,
}

/// The loads that run third-party programs.
pub(super) const PROJECTS: [Load; 3] = [Load::Git, Load::Sqlite, Load::Make];

impl Load {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Git => "git",
            Self::Sqlite => "sqlite",
            Self::Make => "make",
        }
    }
}

/// A program that works until it is told to end.
pub(super) struct Program {
    pub load: Load,
    name: String,
    child: Child,
    enough: PathBuf,
    log: PathBuf,
}

impl Program {
    /// `name` is new in the round.
    pub(super) fn start(
        ground: &Ground,
        (load, name, seed): (Load, String, u64),
        mount: &Path,
        (is_interposed, may_be_full): (bool, bool),
    ) -> Result<Self> {
        let place = mount.join(&name);
        std::fs::create_dir(&place).context("cannot make a directory")?;
        let (enough, log) =
            (ground.path(&format!("{name}.enough")), ground.path(&format!("{name}.log")));
        let _absent = std::fs::remove_file(&enough);
        let words = File::create(&log).context("cannot make a log")?;
        let mut command = Command::new("python3");
        if is_interposed {
            command.env("LD_PRELOAD", interposer(&ground.root));
        }
        if may_be_full {
            command.env("MAY_BE_FULL", "1");
        }
        match load {
            Load::Calls => command.arg(ground.case("faults/acknowledged.py")),
            _ => command.arg(ground.case("programs/projects.py")).arg(load.name()),
        };
        let child = command
            .arg(PATIENCE.as_secs().to_string())
            .arg(seed.to_string())
            .arg(&enough)
            .current_dir(place)
            .stdin(Stdio::null())
            .stdout(words.try_clone().context("cannot share a log")?)
            .stderr(words)
            .process_group(0)
            .spawn()
            .context("cannot start a program")?;
        Ok(Self { load, name, child, enough, log })
    }

    /// The group of it and its children.
    pub(super) fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Tells it to end.
    pub(super) fn end(&self) -> Result<()> {
        File::create(&self.enough).context("cannot end a program").map(drop)
    }

    /// Waits for its end. Returns its operations, and how many milliseconds the longest took.
    pub(super) fn ended(mut self) -> Result<(u64, u64)> {
        let (status, late) = process::wait(&mut self.child, PATIENCE)?;
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        ensure!(!late && status.success(), "{}: {status}: {}", self.name, process::tail(&said));
        let numbers = said.split_whitespace().filter_map(|word| word.parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        ensure!(numbers.len() == 2, "{}: it said {said:?}", self.name);
        Ok((numbers[0], numbers[1]))
    }
}

/// The processes of these groups.
pub(super) fn processes(groups: &[Pid]) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_one = |pid: &Pid| group_of(*pid).is_some_and(|group| groups.contains(&group));
    pids.filter_map(Pid::from_raw).filter(is_one).collect()
}

/// The process group, if it is one of this namespace: then it is not 0.
fn group_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // State, parent, group.
    let group = stat.rsplit_once(") ")?.1.split(' ').nth(2)?;
    Pid::from_raw(group.parse().ok()?)
}
