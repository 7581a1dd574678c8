//! A command that is given a time to end, and its report.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TIME_MAX: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(2);

/// The visible effects of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub output: String,
    /// The exit status, or the negative number of the signal.
    pub status: i32,
}

/// Runs a command in a process group of its own. Its output goes to `output`.
pub(crate) fn run(command: &mut Command, output: &Path) -> Seen {
    let file = File::create(output).expect("a file for the output");
    let errors = file.try_clone().expect("a second descriptor");
    command.stdin(Stdio::null()).stdout(file).stderr(errors).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let end = Instant::now() + TIME_MAX;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
        }
        if Instant::now() > end {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-9", "--", &group]).status();
            let _ = child.wait();
            break i32::MIN;
        }
        std::thread::sleep(PAUSE);
    };
    let mut bytes = Vec::new();
    File::open(output).and_then(|mut file| file.read_to_end(&mut bytes)).expect("the output");
    Seen { output: String::from_utf8_lossy(&bytes).into_owned(), status }
}

/// Sums over the reports of all processes.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub processes: u64,
    pub passed: u64,
    pub patched: u64,
    pub dispatched: u64,
    pub text: String,
}

impl Report {
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut report = Self::default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let name = words.next();
            let number = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            match name {
                Some("warren") => report.processes += 1,
                Some("passed") => report.passed += number,
                Some("patched") => report.patched += number,
                Some("dispatched") => report.dispatched += number,
                _ => {}
            }
        }
        report.text = text;
        report
    }
}

/// Whether a program is on the machine.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}
