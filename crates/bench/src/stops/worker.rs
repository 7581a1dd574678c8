//! The processes of programs: *workers* repeat rounds in all directories through one mount, a
//! *holder* has a file of each directory open. They call the C library, so that they can also run
//! with the library between it and the kernel.
//!
//! A worker has a thread for each directory. It replies to these lines:
//!
//! ```text
//! run            the threads begin rounds, one after another           0 0
//! look <stop>    the wait since then                                   <directories back> <ns>
//! rest           the threads end their rounds, and all is compared     0 0
//! ```
//!
//! Instead of that it replies `failed <why>` after a failure, which ends the rounds of its thread.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::place::{HELD, HELD_CONTENTS, Place, names};
use super::rounds::Rounds;
use crate::micro::worker::now_ns;

/// The role of a worker. Its arguments are the number of its mount and all mounts, its own first.
pub(crate) const ROLE: &str = "__bench-stops-worker";

/// The role of a holder. Its arguments are [`WRITES`] or [`WAITS`], and a mount.
pub(crate) const ROLE_HOLDER: &str = "__bench-stops-holder";
/// It writes to its files all the time, or does nothing with them.
pub(super) const WRITES: &str = "writes";
pub(super) const WAITS: &str = "waits";

/// The pause of a thread after a round, so that all together leave time to the processes that
/// replace another.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// The pause of a holder after it has written to all its files.
const HOLDER_PAUSE: Duration = Duration::from_millis(1);

/// A reply of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// Directories that are back, and the longest wait of all in nanoseconds.
    Wait(usize, u64),
    Failed(String),
}

impl FromStr for Reply {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        if let Some(why) = line.strip_prefix("failed ") {
            return Ok(Self::Failed(why.trim_end().to_owned()));
        }
        let (back, ns) = line.trim_end().split_once(' ').ok_or(())?;
        Ok(Self::Wait(back.parse().map_err(drop)?, ns.parse().map_err(drop)?))
    }
}

/// The threads share this.
struct Work {
    places: Vec<Place>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    runs: bool,
    /// By directory: the rounds, and the number of the next.
    rounds: Vec<(Rounds, u64)>,
    failed: Option<String>,
}

impl Work {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the state")
    }

    /// The rounds in one directory, until one fails.
    fn repeat(&self, at: usize) {
        loop {
            let stopped = |state: &mut State| !state.runs;
            let waited = self.changed.wait_while(self.state(), stopped);
            let mut state = waited.expect("no thread panics with the state");
            let (rounds, number) = &mut state.rounds[at];
            rounds.begin(now_ns());
            let number = *number;
            drop(state);
            let done = self.places[at].round(number);
            let mut state = self.state();
            if let Err(why) = done {
                state.failed.get_or_insert(why);
                return;
            }
            state.rounds[at].0.end(now_ns());
            state.rounds[at].1 += 1;
            drop(state);
            self.changed.notify_all();
            thread::sleep(PAUSE);
        }
    }

    fn run(&self) {
        let mut state = self.state();
        state.rounds.iter_mut().for_each(|(rounds, _)| rounds.forget());
        state.runs = true;
        drop(state);
        self.changed.notify_all();
    }

    /// The number of directories that are back, and the longest wait.
    fn look(&self, stop_ns: u64) -> Reply {
        let (state, now_ns) = (self.state(), now_ns());
        let waits = state.rounds.iter().map(|(rounds, _)| rounds.wait(stop_ns, now_ns));
        let (back, ns) = waits
            .fold((0, 0), |(back, ns), wait| (back + usize::from(wait.is_back), wait.ns.max(ns)));
        Reply::Wait(back, ns)
    }

    fn rest(&self) -> Result<(), String> {
        let mut state = self.state();
        state.runs = false;
        let is_busy = |state: &mut State| {
            state.failed.is_none() && state.rounds.iter().any(|(rounds, _)| !rounds.is_resting())
        };
        let waited = self.changed.wait_while(state, is_busy);
        let state = waited.expect("no thread panics with the state");
        if let Some(why) = &state.failed {
            return Err(why.clone());
        }
        let done: Vec<u64> = state.rounds.iter().map(|(_, number)| *number).collect();
        drop(state);
        self.places.iter().zip(done).try_for_each(|(place, rounds)| place.check(rounds))
    }

    /// `None` if the line is no order.
    fn perform(&self, line: &str) -> Option<Reply> {
        let mut words = line.split(' ');
        let reply = match (words.next()?, words.next()) {
            ("run", None) => {
                self.run();
                Reply::Wait(0, 0)
            }
            ("look", Some(stop_ns)) => self.look(stop_ns.parse().ok()?),
            ("rest", None) => self.rest().map_or_else(Reply::Failed, |()| Reply::Wait(0, 0)),
            _ => return None,
        };
        let failed = self.state().failed.clone();
        Some(failed.map_or(reply, Reply::Failed))
    }
}

/// The main function of a worker.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let [mount, mounts @ ..] = arguments else { return ExitCode::FAILURE };
    let Some(mount) = mount.to_str().and_then(|it| it.parse().ok()) else {
        return ExitCode::FAILURE;
    };
    let _tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let mounts: Vec<PathBuf> = mounts.iter().map(PathBuf::from).collect();
    let places = match Place::all(&mounts, mount) {
        Ok(places) => places,
        Err(error) => {
            reply(&Reply::Failed(error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    let rounds = places.iter().map(|_| (Rounds::default(), 0)).collect();
    let state = Mutex::new(State { rounds, ..State::default() });
    let work = Arc::new(Work { places, state, changed: Condvar::new() });
    for at in 0..work.places.len() {
        let work = Arc::clone(&work);
        thread::spawn(move || work.repeat(at));
    }
    for line in io::stdin().lock().lines() {
        let answered = line.ok().and_then(|line| work.perform(&line));
        if !answered.is_some_and(|it| reply(&it)) {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// False if the benchmark has ended.
fn reply(reply: &Reply) -> bool {
    let mut out = io::stdout();
    let written = match reply {
        Reply::Wait(back, ns) => writeln!(out, "{back} {ns}"),
        Reply::Failed(why) => writeln!(out, "failed {}", warren_log::escaped(why)),
    };
    written.and_then(|()| out.flush()).is_ok()
}

/// The main function of a holder. It writes a line when it has all files.
pub(crate) fn hold(arguments: &[OsString]) -> ExitCode {
    let [what, mount] = arguments else { return ExitCode::FAILURE };
    let _tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let Ok(files) = held_files(Path::new(mount)) else { return ExitCode::FAILURE };
    if !reply(&Reply::Wait(files.len(), 0)) {
        return ExitCode::FAILURE;
    }
    if what == WAITS {
        loop {
            thread::park();
        }
    }
    // A holder that was resumed may have lost its files, which is its own end alone.
    while files.iter().all(|file| file.write_all_at(HELD_CONTENTS, 0).is_ok()) {
        thread::sleep(HOLDER_PAUSE);
    }
    ExitCode::FAILURE
}

/// Opens and locks the file of each directory, and writes to it.
fn held_files(mount: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    for name in names(mount)? {
        let file = OpenOptions::new().write(true).open(mount.join(name).join(HELD))?;
        file.lock()?;
        file.write_all_at(HELD_CONTENTS, 0)?;
        files.push(file);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_as_they_are_written() {
        assert_eq!("24 1500\n".parse(), Ok(Reply::Wait(24, 1500)));
        assert_eq!("failed a b\n".parse(), Ok(Reply::Failed("a b".to_owned())));
        assert!("24".parse::<Reply>().is_err() && "".parse::<Reply>().is_err());
    }
}
