//! A client that keeps no rule: `xtask hostile [--only NAME] SOCKET SEED SECONDS [INO...] [--
//! INO...]`.
//!
//! It runs as an unprivileged user, so it has few rights, and uses a fleet's socket and segments
//! directly. Several attackers work at once, each a thread with connections of its own, again and
//! again until the time is over:
//!
//! ```text
//! socket    connections that send nothing, nonsense, too much, or descriptors; many admissions
//! scribble  requests that are random, cut, bent, for the wrong cell, with decreasing numbers
//! flip      requests that change while the cell reads them
//! hoard     opens, locks and leases taken in bulk and never given back
//! crowd     as many clients as a user gets, whose slots all read holes, again and again
//! opens     files opened until the fleet refuses, which it must; locks the same
//! waiters   slots that wait for locks which the same user keeps
//! mute      every slot filled with requests that wait, then a disconnect
//! post      streams of posted requests: forged, bent, full
//! steal     forged inodes and handles: the hostile user may not read or change the first INOs
//! count     every request, by numbers of inodes that no permitted walk reaches (the second INOs
//!           among them), with no capability, a forged one, another client's; others' locks;
//!           device nodes
//! ```
//!
//! It succeeds only if it did all of that, and got nothing that was not its own.

mod attack;
mod connection;
mod count;
mod forge;
mod hoard;
pub(crate) mod load;
mod round;
mod stream;
mod user;

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use warren_base::{Ino, Rng};

use round::{Counts, Target};
use user::become_unprivileged;

pub(crate) use count::{EXECUTABLE, LOCKED, PROGRAM, PROGRAM_MODE};
pub(crate) use round::MARK;

/// The task's name.
pub(crate) const TASK: &str = "hostile";

/// Threads that work at once: one for each attacker, and one that changes requests after they were
/// sent.
pub(crate) const THREADS: usize = attack::ALL.len() + 1;

/// Attacks until the time is over. Fails if the fleet gave access that it must not give.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
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
    become_unprivileged()?;
    println!("hostile: seed {seed}");
    let mut rng = Rng::new(seed);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let wanted = |(name, _): &&(&str, _)| only.is_none_or(|only| only == *name);
        for (name, attack) in attack::ALL.iter().filter(wanted) {
            let (mut rng, target, results) = (rng.fork(), &target, &results);
            scope.spawn(move || {
                let result = attack::run_rounds(*attack, target, &mut rng);
                results.lock().expect("no attacker panics with it").push((*name, result));
            });
        }
    });
    let mut all = Counts::default();
    for (name, result) in results.into_inner().expect("no attacker panics with it") {
        let counts = result.with_context(|| name.to_owned())?;
        println!("hostile: {name}: {counts:?}");
        ensure!(counts.connections > 0, "{name} did nothing");
        ensure!(name != "post" || counts.aimed > 0, "no posted record was aimed at others");
        all.add(counts);
    }
    ensure!(all.admissions > 0 && all.answers > 0, "no request was answered: {all:?}");
    println!("hostile: {} requests, {} ms of CPU", all.requests, load::cpu_used().as_millis());
    Ok(true)
}
