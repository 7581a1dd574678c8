//! A case: a program that is run alone and with the library, and must do the same.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Report, exists, run};
use crate::image::Image;
use crate::product::{Product, WAYS};

pub(crate) enum Outcome {
    Passed(String),
    Skipped(String),
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(note) => write!(f, "passed {note}"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
            Self::Failed(why) => write!(f, "FAILED: {why}"),
        }
    }
}

/// A C program or a script.
pub(crate) struct Case {
    source: PathBuf,
}

/// Programs that are measured or checked elsewhere.
const NO_CASES: [&str; 2] = ["cost", "environment"];
/// Prints how the output must look otherwise.
const LINES_SHOWN: usize = 6;

pub(crate) fn sources(directory: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(directory)
}

/// Compiles a C program, with its assembly if it has some. None without a compiler.
pub(crate) fn compile(product: &Product, name: &str) -> Option<PathBuf> {
    let program = product.scratch.join(name);
    let source = sources("c").join(format!("{name}.c"));
    let assembly = sources("c").join(format!("{name}_call.S"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Werror", "-pthread", "-o"]).arg(&program).arg(source);
    gcc.args(assembly.exists().then_some(assembly));
    let compiled = exists("gcc").then(|| gcc.status())?;
    assert!(compiled.is_ok_and(|status| status.success()), "{name} cannot be compiled");
    Some(program)
}

impl Case {
    pub(crate) fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for (directory, extension) in [("c", "c"), ("scripts", "sh")] {
            for entry in std::fs::read_dir(sources(directory)).expect("the cases") {
                let source = entry.expect("an entry").path();
                if source.extension().is_some_and(|it| it == extension) {
                    cases.push(Self { source });
                }
            }
        }
        cases.retain(|case| !NO_CASES.contains(&case.name()));
        cases.sort_by(|a, b| a.source.cmp(&b.source));
        cases
    }

    pub(crate) fn name(&self) -> &str {
        self.source.file_stem().and_then(|stem| stem.to_str()).expect("a name")
    }

    fn is_script(&self) -> bool {
        self.source.extension().is_some_and(|extension| extension == "sh")
    }

    /// The program that the script needs, if it is not there.
    fn missing(&self) -> Option<String> {
        let text = std::fs::read_to_string(&self.source).expect("the case");
        let needs = text.lines().find_map(|line| line.strip_prefix("# needs: "))?;
        needs.split(' ').find(|program| !exists(program)).map(str::to_owned)
    }

    pub(crate) fn run(&self, product: &Product, rounds: usize) -> Outcome {
        let program = if self.is_script() {
            if let Some(missing) = self.missing() {
                return Outcome::Skipped(format!("no {missing}"));
            }
            self.source.clone()
        } else {
            let Some(program) = compile(product, self.name()) else {
                return Outcome::Skipped("no gcc".to_owned());
            };
            program
        };
        let rounds = if self.is_script() { 1 } else { rounds };
        match self.compare(product, &program, rounds) {
            Ok(shares) => Outcome::Passed(shares),
            Err(why) => Outcome::Failed(why),
        }
    }

    /// The shares of the calls, by way of loading.
    fn compare(&self, product: &Product, program: &Path, rounds: usize) -> Result<String, String> {
        let output = product.scratch.join("output");
        let alone = run(&mut self.command(product, program), &output);
        let mut shares = String::new();
        for (way, has_image) in [(WAYS[0], false), (WAYS[1], false), (WAYS[0], true)] {
            let image = if has_image { Image::new() } else { Image::none() };
            let name = if has_image { "an image" } else { way };
            let mut report = Report::default();
            for round in 0..rounds {
                let report_path = product.scratch.join("report");
                let _ = std::fs::remove_file(&report_path);
                let mut command = self.command(product, program);
                command.env(way, &product.library).env("WARREN_REPORT", &report_path);
                image.set(&mut command);
                let seen = run(&mut command, &output);
                if seen != alone {
                    let lines = seen.output.lines().zip(alone.output.lines());
                    let differing: Vec<_> =
                        lines.filter(|(a, b)| a != b).take(LINES_SHOWN).collect();
                    return Err(format!(
                        "{name}, round {round}: status {}, alone {}, {} bytes, alone {}: \
                         {differing:#?}",
                        seen.status,
                        alone.status,
                        seen.output.len(),
                        alone.output.len()
                    ));
                }
                report = Report::read(&report_path);
                if report.processes == 0 {
                    return Err(format!("{name}: no process has written a report"));
                }
            }
            let share = report.dispatched * 1000 / report.passed.max(1);
            shares += &format!(
                "({name}: {} processes, {} calls, {}.{} % by dispatch) ",
                report.processes,
                report.passed,
                share / 10,
                share % 10
            );
        }
        Ok(shares)
    }

    /// The command, in an empty directory if it is a script.
    fn command(&self, product: &Product, program: &Path) -> Command {
        if !self.is_script() {
            return Command::new(program);
        }
        let directory = product.scratch.join("directory");
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).expect("an empty directory");
        let mut command = Command::new("sh");
        command.arg(program).current_dir(directory).env("SHARED", &product.scratch);
        command
    }
}
