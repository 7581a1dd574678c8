//! Tasks of a test run that compute, beside steps that mostly wait.
//!
//! The tests of fleets and mounts wait for most of their time: for processes that end, for time
//! limits, for a device. Builds, simulations and planted faults need the processors all the time.
//! So these run at the same time, as processes of a lower priority. What they print is kept until
//! they are joined.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, SendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cargo::target_directory;

/// The amount by which the priority is lower.
const NICE: &str = "10";

/// One task of this program.
pub(crate) struct Task {
    /// The name of the step.
    pub name: &'static str,
    pub arguments: Vec<String>,
}

/// The result of a task.
pub(crate) struct Done {
    pub name: &'static str,
    pub passed: Result<bool>,
    pub output: String,
    pub time: Duration,
}

/// Tasks that run one after the other.
pub(crate) struct Beside {
    thread: JoinHandle<()>,
    done: Receiver<Done>,
}

impl Task {
    pub(crate) fn new(name: &'static str, arguments: &[&str]) -> Self {
        Self { name, arguments: arguments.iter().map(|&word| word.to_owned()).collect() }
    }

    fn run(self, directory: &Path) -> Done {
        let start = Instant::now();
        let mut output = String::new();
        let passed = self.perform(directory, &mut output);
        Done { name: self.name, passed, output, time: start.elapsed() }
    }

    fn perform(&self, directory: &Path, output: &mut String) -> Result<bool> {
        let path = directory.join(format!("{}.output", self.name.replace(' ', "-")));
        let file =
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let own = std::env::current_exe().context("cannot name this program")?;
        let both = file.try_clone().context("cannot duplicate a descriptor")?;
        let status = Command::new("nice")
            .args(["-n", NICE])
            .arg(own)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(both)
            .status()
            .context("cannot run nice")?;
        // A test may print anything.
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        *output = String::from_utf8_lossy(&bytes).into_owned();
        Ok(status.success())
    }
}

impl Beside {
    /// Starts a task, and after it the others, which need it.
    pub(crate) fn start(root: &Path, needed: Task, others: Vec<Task>) -> Self {
        let directory = target_directory(root);
        let (sender, done) = mpsc::channel();
        let run_all = move || -> Result<(), SendError<Done>> {
            let first = needed.run(&directory);
            let has_passed = matches!(first.passed, Ok(true));
            sender.send(first)?;
            let others = others.into_iter().filter(|_| has_passed);
            others.map(|task| task.run(&directory)).try_for_each(|done| sender.send(done))
        };
        // The results are taken as long as this program runs.
        Self { thread: std::thread::spawn(|| run_all().unwrap_or_default()), done }
    }

    /// Waits for the next task. `None`: there are no more.
    pub(crate) fn next(&self) -> Option<Done> {
        self.done.recv().ok()
    }

    /// Waits for the remaining tasks.
    pub(crate) fn join(self) -> Vec<Done> {
        let remaining = self.done.iter().collect();
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        remaining
    }
}
