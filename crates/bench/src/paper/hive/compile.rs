//! *pmake*: the compilation of eleven files, four at a time, and the link of the program. What it
//! makes is compared with what the same made on the host's file system.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::c_program;
use crate::error::{BenchError, system};
use crate::ground::Interruption;
use crate::medium::find;
use crate::process::{Ended, Running};

/// As in the paper. One of the files is `main.c`.
pub(super) const FILES: u32 = 11;
const AT_ONCE: usize = 4;

/// A compilation that takes longer is taken for one that never ends.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The interval between two checks for a signal while a program runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Compilation {
    cc: PathBuf,
    diff: PathBuf,
    sources: PathBuf,
    /// The sources and what was made of them on the host.
    reference: PathBuf,
    /// The time that it took there.
    pub(super) took: Duration,
}

impl Compilation {
    /// Compiles on the host.
    pub(super) fn new(scratch: &Path, interruption: &Interruption) -> Result<Self, BenchError> {
        let (cc, diff) = (find("cc", "gcc")?, find("diff", "diffutils")?);
        let (sources, reference) = (scratch.join("sources"), scratch.join("reference"));
        c_program::make(&sources, FILES - 1).map_err(system("write the sources"))?;
        let mut compilation = Self { cc, diff, sources, reference, took: Duration::ZERO };
        compilation.place(&compilation.reference)?;
        let begun = Instant::now();
        compilation.run(&compilation.reference, &|_| {}, &|_| {}, interruption)?;
        compilation.took = begun.elapsed();
        Ok(compilation)
    }

    /// Makes a directory with the sources.
    pub(super) fn place(&self, at: &Path) -> Result<(), BenchError> {
        let copied = || {
            std::fs::create_dir(at)?;
            for entry in std::fs::read_dir(&self.sources)? {
                let entry = entry?;
                std::fs::copy(entry.path(), at.join(entry.file_name()))?;
            }
            Ok(())
        };
        copied().map_err(system::<std::io::Error>("copy the sources"))
    }

    /// Compiles and links in a directory with the sources. `prepare` completes each command, and
    /// `on_start` is called before each start of a compiler, with its number from 1 on.
    pub(super) fn run(
        &self,
        at: &Path,
        prepare: &dyn Fn(&mut Command),
        on_start: &dyn Fn(u32),
        interruption: &Interruption,
    ) -> Result<(), BenchError> {
        let until = Instant::now() + TIMEOUT;
        let command = |arguments: &[&str]| {
            let mut command = Command::new(&self.cc);
            command.args(arguments).current_dir(at).env_clear().env("LC_ALL", "C");
            command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            prepare(&mut command);
            Running::start(&mut command).map_err(system("start the compiler"))
        };
        let names: Vec<String> = (0..FILES).map(name).collect();
        let mut running = Vec::new();
        let mut waiting = names.iter().zip(1..);
        loop {
            while running.len() < AT_ONCE
                && let Some((name, number)) = waiting.next()
            {
                on_start(number);
                let (object, source) = (format!("{name}.o"), format!("{name}.c"));
                running.push(command(&["-O1", "-c", "-o", &object, &source])?);
            }
            if running.is_empty() {
                break;
            }
            let ended = await_any(&running, until, interruption)?;
            well(running.swap_remove(ended))?;
        }
        let objects: Vec<String> = names.iter().map(|name| format!("{name}.o")).collect();
        let mut link = vec!["-o", "program"];
        link.extend(objects.iter().map(String::as_str));
        finish(command(&link)?, until, interruption)
    }

    /// Fails if a directory in which it was compiled differs from that on the host.
    pub(super) fn compare(&self, at: &Path, interruption: &Interruption) -> Result<(), BenchError> {
        let mut command = Command::new(&self.diff);
        command.arg("-r").arg("-q").arg(&self.reference).arg(at);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let running = Running::start(&mut command).map_err(system("start diff"))?;
        match finish(running, Instant::now() + TIMEOUT, interruption) {
            Err(BenchError::Failed(_)) => {
                Err(BenchError::Failed("files differ from those of the host".to_owned()))
            }
            ended => ended,
        }
    }
}

/// The name of a file without its suffix.
fn name(number: u32) -> String {
    match number.checked_sub(1) {
        None => "main".to_owned(),
        Some(part) => format!("part_{part:02}"),
    }
}

pub(super) fn finish(
    running: Running,
    until: Instant,
    interruption: &Interruption,
) -> Result<(), BenchError> {
    let running = [running];
    await_any(&running, until, interruption)?;
    let [running] = running;
    well(running)
}

fn well(running: Running) -> Result<(), BenchError> {
    match running.reap()? {
        Ended::Well => Ok(()),
        Ended::Badly(how) => Err(BenchError::Failed(format!("a program {how}"))),
    }
}

/// Waits until one of the programs has ended, and returns its place.
fn await_any(
    running: &[Running],
    until: Instant,
    interruption: &Interruption,
) -> Result<usize, BenchError> {
    let timeout = Timespec::try_from(LOOK_EVERY).ok();
    loop {
        let mut ends: Vec<PollFd<'_>> =
            running.iter().map(|it| PollFd::new(it.end(), PollFlags::IN)).collect();
        // A signal ends it early, and is looked for below.
        let _ready = poll(&mut ends, timeout.as_ref());
        if let Some(at) = ends.iter().position(|end| end.revents().contains(PollFlags::IN)) {
            return Ok(at);
        }
        interruption.check()?;
        if Instant::now() >= until {
            let seconds = TIMEOUT.as_secs();
            return Err(BenchError::Stuck(format!("a program had not ended after {seconds} s")));
        }
    }
}
