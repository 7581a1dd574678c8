//! A program that is killed: `xtask killed-program DIR ROUNDS-SO-FAR` makes one system call after
//! the other in a directory, and prints a line when each has returned. After a kill the directory
//! must be exactly as the lines say, or have in addition the one call that was under way (of a long
//! write: a part).
//!
//! The `n`th call, and the directory after `n` calls, are functions of `n`, so a killer needs to
//! keep only one number.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use warren_base::Rng;

/// The task's name.
pub(crate) const TASK: &str = "killed-program";

/// Calls until the first file is removed again.
const CYCLE: u64 = 4;
/// Bytes of the longest record: more than a page.
const RECORD_MAX: u64 = 6000;
/// The log file, which the program also keeps locked as long as it lives.
const LOG: &str = "log";
const LOCK: &str = "lock";
/// The time in which a program must be ready: the lock of its predecessor must be released.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest life of a program once it works.
const LIFE_MICROS_MAX: u64 = 10_000;

/// The `n`th call, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Append,
    Make(u64),
    Rename(u64),
    Remove(u64),
}

const fn call(n: u64) -> Call {
    let cycle = n / CYCLE;
    match n % CYCLE {
        0 => Call::Make(cycle),
        1 => Call::Append,
        2 => Call::Rename(cycle),
        // The remaining files show whether old names stay as they are.
        _ if cycle.is_multiple_of(8) => Call::Append,
        _ => Call::Remove(cycle),
    }
}

/// The bytes that the `n`th call appends, if it is an append.
fn record(n: u64) -> Vec<u8> {
    let mut rng = Rng::new(n);
    let len = 1 + rng.below(RECORD_MAX);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

fn made(cycle: u64) -> String {
    format!("made-{cycle}")
}

fn renamed(cycle: u64) -> String {
    format!("renamed-{cycle}")
}

/// The program: `DIR FIRST`. It continues with call `FIRST` until it is killed.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let [dir, first] = arguments else { bail!("usage: {TASK} DIR FIRST") };
    std::env::set_current_dir(dir).with_context(|| dir.clone())?;
    let lock = File::options().create(true).append(true).open(LOCK).context(LOCK)?;
    flock(&lock, FlockOperation::LockExclusive).context(LOCK)?;
    let log = File::options().create(true).append(true).open(LOG).context(LOG)?;
    let mut said = std::io::stdout();
    said.write_all(&0_u64.to_le_bytes())?;
    for n in first.parse()?.. {
        match call(n) {
            Call::Append => {
                let record = record(n);
                let written = (&log).write(&record)?;
                ensure!(written == record.len(), "a short write: {written} of {}", record.len());
            }
            Call::Make(cycle) => drop(File::create_new(made(cycle))?),
            Call::Rename(cycle) => fs::rename(made(cycle), renamed(cycle))?,
            Call::Remove(cycle) => fs::remove_file(renamed(cycle))?,
        }
        said.write_all(&(n + 1).to_le_bytes())?;
        said.flush()?;
    }
    Ok(true)
}

/// The directory after so many calls.
#[derive(Clone, Default)]
struct Expected {
    calls: u64,
    names: BTreeSet<String>,
    log_len: u64,
}

impl Expected {
    fn advance(&mut self) {
        match call(self.calls) {
            Call::Append => self.log_len += record(self.calls).len() as u64,
            Call::Make(cycle) => drop(self.names.insert(made(cycle))),
            Call::Rename(cycle) => {
                self.names.remove(&made(cycle));
                self.names.insert(renamed(cycle));
            }
            Call::Remove(cycle) => drop(self.names.remove(&renamed(cycle))),
        }
        self.calls += 1;
    }

    /// A difference of the directory, if there is any.
    fn difference(&self, dir: &Path) -> Result<Option<String>> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(dir)? {
            names.insert(entry?.file_name().to_string_lossy().into_owned());
        }
        names.remove(LOCK);
        names.remove(LOG);
        let log_len = fs::metadata(dir.join(LOG))?.len();
        if names == self.names && log_len == self.log_len {
            return Ok(None);
        }
        let more: Vec<_> = names.difference(&self.names).collect();
        let lacks: Vec<_> = self.names.difference(&names).collect();
        let expected = self.log_len;
        Ok(Some(format!("more: {more:?}, lacks: {lacks:?}, log of {log_len}, not {expected}")))
    }
}

/// Starts programs in `dir` and kills them, again and again. Each continues where its predecessor
/// was killed. Returns how many calls were made.
pub(crate) fn kill_many(dir: &Path, kills: u32, seed: u64) -> Result<u64> {
    fs::create_dir(dir).context("cannot make the directory")?;
    let mut rng = Rng::new(seed);
    let mut expected = Expected::default();
    let mut checked = Checked::default();
    for kill in 0..kills {
        let said = one_life(dir, expected.calls, rng.below(LIFE_MICROS_MAX))?;
        let of_kill = || format!("kill {kill}: calls {}..{said} returned", expected.calls);
        ensure!(said >= expected.calls, "{}", of_kill());
        while expected.calls < said {
            expected.advance();
        }
        take_back_part(dir, &expected).with_context(|| format!("kill {kill}"))?;
        if let Some(without) = expected.difference(dir)? {
            // The call that was under way may have been made.
            expected.advance();
            if let Some(with) = expected.difference(dir)? {
                bail!("kill {kill}: after {said} calls {without}; after one more {with}");
            }
        }
        checked.advance(dir, expected.calls).with_context(|| format!("kill {kill}"))?;
    }
    ensure!(expected.calls > 0, "{kills} programs were killed before they did anything");
    Ok(expected.calls)
}

/// A write of several pages that did not return may be there in part, on any file system. The part
/// is compared and truncated.
fn take_back_part(dir: &Path, expected: &Expected) -> Result<()> {
    let log = File::options().read(true).write(true).open(dir.join(LOG))?;
    let record = record(expected.calls);
    let part = log.metadata()?.len().saturating_sub(expected.log_len);
    let is_part = (1..record.len() as u64).contains(&part);
    if is_part && matches!(call(expected.calls), Call::Append) {
        let mut found = vec![0; part as usize];
        log.read_exact_at(&mut found, expected.log_len)?;
        ensure!(record.starts_with(&found), "a part of record {} is wrong", expected.calls);
        log.set_len(expected.log_len)?;
    }
    Ok(())
}

/// The part of a log that has been compared.
#[derive(Default)]
struct Checked {
    calls: u64,
    bytes: u64,
}

impl Checked {
    /// Compares the records of the calls up to `calls`.
    fn advance(&mut self, dir: &Path, calls: u64) -> Result<()> {
        let log = File::open(dir.join(LOG))?;
        for n in (self.calls..calls).filter(|n| matches!(call(*n), Call::Append)) {
            let record = record(n);
            let mut found = vec![0; record.len()];
            log.read_exact_at(&mut found, self.bytes).with_context(|| format!("record {n}"))?;
            ensure!(found == record, "record {n} at byte {} is not what was written", self.bytes);
            self.bytes += record.len() as u64;
        }
        self.calls = calls;
        Ok(())
    }
}

/// Runs one program from its start until it is killed. Returns how many calls have returned,
/// including earlier ones.
fn one_life(dir: &Path, first: u64, micros: u64) -> Result<u64> {
    let mut program = Command::new(std::env::current_exe()?)
        .arg(TASK)
        .arg(dir)
        .arg(first.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a program")?;
    let said = hear_out(&mut program, first, micros);
    // Also if its output could not be read.
    let _gone = program.kill();
    let status = program.wait().context("cannot wait")?;
    let said = said?;
    ensure!(status.code().is_none(), "a program ended by itself, with {status}");
    Ok(said)
}

fn hear_out(program: &mut Child, first: u64, micros: u64) -> Result<u64> {
    let mut words = program.stdout.take().context("no words of a program")?;
    let begun = Instant::now();
    let mut ready = [0; 8];
    words.read_exact(&mut ready).context("a program ended before it worked")?;
    ensure!(begun.elapsed() < PATIENCE, "a lock of a killed program was not released in time");
    std::thread::sleep(Duration::from_micros(micros));
    program.kill().context("cannot kill a program")?;
    let mut rest = Vec::new();
    words.read_to_end(&mut rest).context("cannot hear a program")?;
    Ok(rest
        .chunks_exact(8)
        .last()
        .map_or(first, |word| u64::from_le_bytes(word.try_into().expect("8 bytes"))))
}
