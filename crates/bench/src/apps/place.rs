//! A contender with the inputs on it, and the runs of workloads there.
//!
//! ```text
//! <mount>/inputs      copied once                  <mount>/run-7       the directory of one run
//! <mount>/temporary   TMPDIR of all programs
//! ```
//!
//! What is done on a contender, also before the clock starts, is done by programs that are started
//! as the measured ones are. Checks look at it through the kernel.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::input::Inputs;
use super::plan::Plan;
use super::step::{Outputs, Step, execute};
use super::workload::Workload;
use crate::contender::{Contender, ContenderName};
use crate::error::{BenchError, system};
use crate::ground::Interruption;
use crate::process::Ended;

/// Programs get these variables and no others, so that no setting of the user changes the result.
const VARIABLES: [(&str, &str); 4] = [
    ("LC_ALL", "C"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
    ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
];

/// Where programs are executed, and with what.
pub(super) struct Place<'a> {
    /// The directory of the inputs and the runs.
    directory: PathBuf,
    /// For what programs print.
    outputs: PathBuf,
    /// `None` on the host's file system, where the inputs are made.
    contender: Option<Box<dyn Contender>>,
    interruption: &'a Interruption,
    runs: u32,
}

impl<'a> Place<'a> {
    /// Where the inputs are made.
    pub(super) fn on_host(
        scratch: &Path,
        interruption: &'a Interruption,
    ) -> Result<Self, BenchError> {
        let directory = scratch.join("host");
        let made = fs::create_dir(&directory).and_then(|()| fs::create_dir(directory.join(INPUTS)));
        made.map_err(system("make a directory"))?;
        let outputs = scratch.to_owned();
        Ok(Self { directory, outputs, contender: None, interruption, runs: 0 })
    }

    /// Copies the inputs that were made on the host.
    pub(super) fn new(
        contender: Box<dyn Contender>,
        host: &Self,
        interruption: &'a Interruption,
    ) -> Result<Self, BenchError> {
        let directory = contender.directory().to_owned();
        let outputs = host.outputs.clone();
        let place = Self { directory, outputs, contender: Some(contender), interruption, runs: 0 };
        let inputs = host.inputs().display().to_string();
        for step in
            [Step::new("mkdir temporary"), Step::new("cp -a").argument(&inputs).argument(INPUTS)]
        {
            place.perform(&place.directory, &step)?;
        }
        Ok(place)
    }

    pub(super) fn inputs(&self) -> PathBuf {
        self.directory.join(INPUTS)
    }

    pub(super) fn name(&self) -> Option<ContenderName> {
        self.contender.as_ref().map(|contender| contender.name())
    }

    /// Runs a workload once, and returns the nanoseconds of its timed programs.
    pub(super) fn run(&mut self, workload: Workload, inputs: &Inputs) -> Result<f64, BenchError> {
        self.runs += 1;
        let directory = self.directory.join(format!("run-{}", self.runs));
        let path = directory.display().to_string();
        self.perform(&self.directory, &Step::new("mkdir").argument(&path))?;
        let result = self.run_in(&directory, &Plan::of(workload, inputs));
        let removed = self.perform(&self.directory, &Step::new("rm -rf").argument(&path));
        let ns = result?;
        removed.map(|_| ns)
    }

    fn run_in(&self, directory: &Path, plan: &Plan) -> Result<f64, BenchError> {
        for step in &plan.before {
            self.perform(directory, step)?;
        }
        // What was written before is not written while the clock runs.
        let synced = File::open(directory).and_then(|it| Ok(rustix::fs::syncfs(it)?));
        synced.map_err(system("sync before a run"))?;
        let (ns, output) = self.perform_timed(directory, &plan.timed)?;
        for check in &plan.checks {
            let fault = check.fault(directory, &output, |step| self.perform(directory, step))?;
            if let Some(fault) = fault {
                return Err(BenchError::Failed(format!("wrong result: {fault}")));
            }
        }
        Ok(ns)
    }

    /// Executes a step that is not timed, and returns its output.
    pub(super) fn perform(&self, directory: &Path, step: &Step) -> Result<String, BenchError> {
        self.perform_timed(directory, std::slice::from_ref(step)).map(|(_, output)| output)
    }

    fn perform_timed(&self, directory: &Path, steps: &[Step]) -> Result<(f64, String), BenchError> {
        let outputs = Outputs::new(&self.outputs)?;
        let mut commands = Vec::new();
        for step in steps {
            let mut command = step.command()?;
            command.current_dir(directory).env_clear().envs(VARIABLES);
            command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
            command
                .env("HOME", directory)
                .env("GIT_CONFIG_GLOBAL", self.inputs().join("gitconfig"));
            if let Some(contender) = &self.contender {
                command.env("TMPDIR", self.directory.join("temporary"));
                contender.prepare(&mut command);
            }
            outputs.connect(&mut command)?;
            commands.push(command);
        }
        let start = Instant::now();
        for (command, step) in commands.iter_mut().zip(steps) {
            if let Ended::Badly(how) = execute(command, self.interruption)? {
                let messages = self.printed(Outputs::MESSAGES)?;
                let last = messages.lines().last().map_or(String::new(), |it| format!(": {it}"));
                return Err(BenchError::Failed(format!("`{}` {how}{last}", step.name())));
            }
        }
        let ns = start.elapsed().as_nanos() as f64;
        Ok((ns, self.printed(Outputs::OUTPUT)?.trim_end().to_owned()))
    }

    fn printed(&self, name: &str) -> Result<String, BenchError> {
        let bytes = fs::read(self.outputs.join(name)).map_err(system("read what was printed"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

const INPUTS: &str = "inputs";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::Scratch;

    #[test]
    fn a_failure_is_one_line_with_the_last_message() {
        let scratch = Scratch::new(&std::env::temp_dir()).expect("a directory");
        let interruption = Interruption::watch().expect("signals");
        let place = Place::on_host(scratch.path(), &interruption).expect("a place");
        let step = |line: &str| Step::new("sh -c").argument(line);
        let fails = step("echo first >&2; echo broken >&2; exit 3");
        let failed = place.perform(scratch.path(), &fails).expect_err("a failure");
        assert!(matches!(failed, BenchError::Failed(_)));
        let line = failed.to_string();
        assert!(line.ends_with("` ended with exit status: 3: broken"), "{line}");
        let alone = place.perform(scratch.path(), &step("echo $HOME $LC_ALL")).expect("output");
        assert_eq!(alone, format!("{} C", scratch.path().display()));
    }
}
