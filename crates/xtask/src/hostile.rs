//! A client that keeps no rule: `xtask hostile [--only NAME] SOCKET SEED SECONDS [INO...] [-- INO...]`.
//!
//! It acts as nobody, so that what it may do is little, and talks to a fleet's socket and segments
//! directly. Several attackers work at once, each a thread with connections of its own, again and
//! again until the time is over:
//!
//! ```text
//! door      connections that say nothing, nonsense, too much, or bring descriptors; admissions in bulk
//! scribble  requests that are random, cut, bent, for the wrong cell, with numbers going back
//! flip      requests that change while the cell reads them
//! hoard     opens, locks and leases taken in bulk and never given back
//! crowd     as many clients as a user gets, whose slots all read holes, again and again
//! opens     files opened until it is refused, which it must be; locks the same
//! waiters   slots that wait for locks which the same user keeps
//! mute      every slot filled with requests that wait, and a hang-up in the middle
//! steal     forged inodes and handles: the first INOs are what the hostile user may not read or change
//! count     every request, by numbers of inodes that no permitted walk leads to (the second INOs among
//!           them), with no capability, a forged one, another client's; others' locks; device nodes
//! ```
//!
//! It ends well only if it did all of that, and got nothing that was not its own.

mod attack;
mod count;
mod door;
mod forge;
mod hoard;
pub mod load;

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use warren_base::{Ino, Rng};

pub use count::{EXECUTABLE, LOCKED, PROGRAM, PROGRAM_MODE};

/// The task's name.
pub const TASK: &str = "hostile";

/// What stands in every file that the client must never see a byte of.
pub const MARK: &[u8] = b"for the eyes of the owner alone";

/// Threads that work at once: an attacker each, and one that changes what another has sent.
pub const THREADS: usize = attack::ALL.len() + 1;

/// Nobody's number, everywhere.
const NOBODY: u32 = 65_534;

/// Where, as whom and how long.
struct Target {
    socket: PathBuf,
    deadline: Instant,
    /// What only root may read and change: files of mode 0600 and directories of mode 0700.
    forbidden: Vec<Ino>,
    /// What lies in directories that only root may search, however open it is itself.
    closed: Vec<Ino>,
}

/// What was done, so that a run that did nothing is not taken for a success.
#[derive(Clone, Copy, Default, Debug)]
struct Deeds {
    connections: u64,
    admissions: u64,
    requests: u64,
    answers: u64,
}

impl Deeds {
    fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.admissions += other.admissions;
        self.requests += other.requests;
        self.answers += other.answers;
    }
}

/// Attacks until the time is over; fails if the fleet gave away what it must not.
pub fn run(arguments: &[String]) -> Result<bool> {
    let usage = "usage: xtask hostile [--only NAME] SOCKET SEED SECONDS [INO...] [-- INO...]";
    let (only, arguments) = match arguments {
        [option, only, rest @ ..] if option == "--only" => (Some(only.as_str()), rest),
        all => (None, all),
    };
    let [socket, seed, seconds, inos @ ..] = arguments else { anyhow::bail!("{usage}") };
    let mut inos = inos.split(|argument| argument == "--").map(|inos| {
        inos.iter().map(|ino| Ok(Ino(ino.parse().context(usage)?))).collect::<Result<Vec<_>>>()
    });
    let (forbidden, closed) = (inos.next(), inos.next());
    let seed: u64 = seed.parse().context(usage)?;
    let seconds = seconds.parse().context(usage)?;
    let target = Target {
        socket: socket.into(),
        deadline: Instant::now() + Duration::from_secs(seconds),
        forbidden: forbidden.transpose()?.unwrap_or_default(),
        closed: closed.transpose()?.unwrap_or_default(),
    };
    become_nobody()?;
    println!("hostile: seed {seed}");
    let mut rng = Rng::new(seed);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let wanted = |(name, _): &&(&str, _)| only.is_none_or(|only| only == *name);
        for (name, attack) in attack::ALL.iter().filter(wanted) {
            let (mut rng, target, results) = (rng.fork(), &target, &results);
            scope.spawn(move || {
                let result = attack::again_and_again(*attack, target, &mut rng);
                results.lock().expect("no attacker panics with it").push((*name, result));
            });
        }
    });
    let mut all = Deeds::default();
    for (name, result) in results.into_inner().expect("no attacker panics with it") {
        let deeds = result.with_context(|| name.to_owned())?;
        println!("hostile: {name}: {deeds:?}");
        ensure!(deeds.connections > 0, "{name} did nothing");
        all.add(deeds);
    }
    ensure!(all.admissions > 0 && all.answers > 0, "nobody was heard: {all:?}");
    println!("hostile: {} requests, {} ms of CPU", all.requests, load::cpu_used().as_millis());
    Ok(true)
}

/// Before any thread is started: ids are a thread's, and its children inherit them.
fn become_nobody() -> Result<()> {
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_groups(&[gid]).context("cannot leave root's groups")?;
    set_thread_res_gid(gid, gid, gid).context("cannot leave root's group")?;
    set_thread_res_uid(uid, uid, uid).context("cannot become nobody")
}
