//! `warren fsck`: checks a pool and repairs it. Exit codes are the bits of fsck(8).
//!
//! Order: open and lock the pool; replay its logs if it was not left in order (with `-n` in
//! memory); check. If something is wrong and the user consents: replay as much as possible of logs
//! that could not be replayed before, then the log records that are kept for shards that were given
//! up, plan the repair, write it, and check once more. Each of these is one checkpoint, so an
//! interrupted one leaves a pool that the next run repairs in the same way.
//! With `--online` nothing is locked, replayed or changed.

mod bar;
mod check;
mod online;
mod report;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::flag;
use warren_base::Errno;
use warren_disk::BlockWrite;
use warren_fsck::{Mend, Options, Repair, RepairError};
use warren_runtime::{Blocks, OfflinePool, Purpose};

use crate::arguments::Fsck;
use crate::failure::{
    CODE_FSCK_ERRORS_LEFT, CODE_FSCK_INTERRUPTED, CODE_FSCK_OPERATIONAL, CODE_FSCK_REPAIRED,
    Failure,
};
use crate::output;
use bar::Bar;
use check::{check_pool, reader};
use report::{Logs, Mends, Outcome};

/// Neighbouring blocks that are written at once.
const RUN_BLOCKS: usize = 256;

/// The way in which a repair is decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Consent {
    /// `-n`
    Never,
    /// `-y`
    Given,
    /// `-p`
    IfHarmless,
    /// The user at the terminal is asked.
    Ask,
    /// There is no terminal.
    NoTerminal,
}

pub(crate) fn perform(arguments: &Fsck) -> Result<ExitCode, Failure> {
    end_when_interrupted().map_err(|error| {
        let line = format!("cannot listen for signals: {error}; free some memory");
        Failure::new(CODE_FSCK_OPERATIONAL, line)
    })?;
    let outcome = if arguments.online {
        online::check(&arguments.pool, arguments.contents)
    } else {
        check_and_repair(&arguments.pool, arguments.contents, consent(arguments))
    };
    let outcome = outcome.map_err(|failure| failure.with_code(CODE_FSCK_OPERATIONAL))?;
    outcome.print(&arguments.pool, arguments.json)?;
    Ok(ExitCode::from(exit_code(&outcome)))
}

/// Makes a signal end the process at once from now on, with its own exit bit.
fn end_when_interrupted() -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let always = Arc::new(AtomicBool::new(true));
        flag::register_conditional_shutdown(signal, CODE_FSCK_INTERRUPTED.into(), always)?;
    }
    Ok(())
}

fn consent(arguments: &Fsck) -> Consent {
    let has_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    match arguments {
        Fsck { no_changes: true, .. } => Consent::Never,
        Fsck { yes: true, .. } => Consent::Given,
        Fsck { preen: true, .. } => Consent::IfHarmless,
        _ if has_terminal && !arguments.json => Consent::Ask,
        _ => Consent::NoTerminal,
    }
}

fn exit_code(outcome: &Outcome) -> u8 {
    let repaired = if outcome.repair.is_some() { CODE_FSCK_REPAIRED } else { 0 };
    let left = if outcome.is_sound() { 0 } else { CODE_FSCK_ERRORS_LEFT };
    repaired | left
}

fn check_and_repair(path: &Path, contents: bool, consent: Consent) -> Result<Outcome, Failure> {
    let purpose = match consent {
        Consent::Never | Consent::NoTerminal => Purpose::Check,
        _ => Purpose::Repair,
    };
    let pool = warren_log::say_if_slow(&output::awaits_writers(path), || {
        OfflinePool::open(path, purpose)
    })?;
    let mut bar = Bar::new();
    let logs = replay(&pool, purpose, &mut bar);
    let wanted = Options { contents, ..Options::default() };
    let first = check_pool(path, &pool, wanted.clone(), &mut bar)?;
    let mut outcome = Outcome::new(first, logs);
    if outcome.is_sound() || outcome.is_past_repair() {
        return Ok(outcome);
    }
    bar.clear();
    if !is_agreed(&outcome, consent)? {
        outcome.refused = match consent {
            Consent::NoTerminal => {
                Some("no terminal to ask at; -y repairs, -n only checks".to_owned())
            }
            Consent::IfHarmless => Some("the repair would lose something; -y repairs".to_owned()),
            _ => None,
        };
        return Ok(outcome);
    }
    let mut mends = Mends::default();
    if outcome.has_logs_left() {
        (outcome.logs, mends) = replay_partly(path, &pool, &mut bar)?;
    }
    replay_kept(&pool, &mut mends, &mut bar);
    let mut repair = match plan_repair(&pool, &mut bar) {
        Ok(repair) => repair,
        Err(error) => {
            outcome.refused = Some(format!("{error}; restore it from a copy"));
            return Ok(outcome);
        }
    };
    mends.add(&mut repair);
    write(path, &pool, repair)?;
    outcome.before = Some(std::mem::take(&mut outcome.report));
    let paths_of = mends.list.iter().filter_map(Mend::ino).collect();
    outcome.report = check_pool(path, &pool, Options { paths_of, ..wanted }, &mut bar)?;
    outcome.repair = Some(mends);
    Ok(outcome)
}

/// Replays the logs, which hold what the last checkpoint lacks. If that fails, the check uses the
/// checkpoint alone.
fn replay(pool: &OfflinePool, purpose: Purpose, bar: &mut Bar) -> Logs {
    match pool.has_logs() {
        // The check will find the reason.
        Err(_) => return Logs::Unknown,
        Ok(false) => return Logs::None,
        Ok(true) => bar.begin("replaying the logs"),
    }
    match (pool.replay(), purpose) {
        (Ok(()), Purpose::Repair) => Logs::Replayed,
        (Ok(()), _) => Logs::ReplayedInMemory,
        (Err(error), _) => Logs::Failed(error.to_string()),
    }
}

/// Repairs the parts of the checkpoint that the logs depend on, then replays the logs except what
/// depends on damaged shards. Returns the repairs.
fn replay_partly(path: &Path, pool: &OfflinePool, bar: &mut Bar) -> Result<(Logs, Mends), Failure> {
    bar.begin("checking what the logs depend on");
    let mut read = reader(pool);
    let footing =
        warren_fsck::footing(pool.len_blocks(), &mut read, &mut |progress| bar.show(progress));
    bar.clear();
    let mut mends = Mends::default();
    let (footing, mut checkpoint) = match footing {
        Ok(footing) => footing,
        Err(error) => return Ok((Logs::Failed(error.to_string()), mends)),
    };
    mends.add(&mut checkpoint);
    write(path, pool, checkpoint)?;
    bar.begin("replaying the logs");
    let logs = match pool.replay_on(&footing) {
        Ok(cut) => Logs::replayed_on(&footing, &cut),
        Err(error) => Logs::Failed(error.to_string()),
    };
    bar.clear();
    Ok((logs, mends))
}

/// Replays the log records that are kept for shards that were given up. The repair frees their
/// chunks, so those that cannot be replayed are lost.
fn replay_kept(pool: &OfflinePool, mends: &mut Mends, bar: &mut Bar) {
    bar.begin("looking for log records that were kept");
    let mut read = reader(pool);
    let kept =
        warren_fsck::kept_logs(pool.len_blocks(), &mut read, &mut |progress| bar.show(progress));
    bar.clear();
    // The planning of the repair finds the reason of an error.
    for kept in kept.unwrap_or_default() {
        let (shard, records) = (kept.shard, kept.count);
        let replayed = match kept.against {
            Some(why) => Err(why.to_owned()),
            None if !pool.superblock().is_ok_and(|superblock| superblock.clean) => {
                Err("the logs are discarded".to_owned())
            }
            None => pool.replay_kept(&kept).map_err(|error| error.to_string()),
        };
        match replayed {
            Ok(replayed) => {
                let left = records - replayed;
                mends
                    .list
                    .extend([Mend::Served(shard), Mend::KeptReplayed { shard, replayed, left }]);
            }
            Err(why) => {
                mends.list.push(Mend::KeptDiscarded { shard, records, why: why.into() });
            }
        }
    }
}

fn is_agreed(outcome: &Outcome, consent: Consent) -> Result<bool, Failure> {
    match consent {
        Consent::Never | Consent::NoTerminal => Ok(false),
        Consent::Given => Ok(true),
        Consent::IfHarmless => Ok(outcome.is_harmless()),
        Consent::Ask => {
            outcome.print_findings();
            ask("Repair? All losses will be reported. [y/N] ")
        }
    }
}

fn ask(question: &str) -> Result<bool, Failure> {
    let failed = |error| Failure::io(Path::new("the terminal"), "use it", &error);
    output::print(format_args!("{question}"));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn plan_repair(pool: &OfflinePool, bar: &mut Bar) -> Result<Repair, RepairError> {
    bar.begin("planning the repair");
    let mut read = reader(pool);
    let repair =
        warren_fsck::repair(pool.len_blocks(), &mut read, &mut |progress| bar.show(progress));
    bar.clear();
    repair
}

/// Writes the stages of a repair in their order.
fn write(path: &Path, pool: &OfflinePool, repair: Repair) -> Result<(), Failure> {
    let mut stages = repair.into_stages().into_iter();
    let written = stages.try_for_each(|stage| write_stage(pool, stage));
    written.map_err(|errno| {
        let line = format!("{}: cannot write the repair: {errno}; run it again", path.display());
        Failure::new(CODE_FSCK_OPERATIONAL, line)
    })
}

/// Writes blocks in any order, neighbours together, and flushes them.
fn write_stage(pool: &OfflinePool, mut stage: Vec<BlockWrite>) -> Result<(), Errno> {
    stage.sort_by_key(|(block, _)| *block);
    let follows = |a: &BlockWrite, b: &BlockWrite| a.0.offset(1) == b.0;
    for run in stage.chunk_by(follows).flat_map(|run| run.chunks(RUN_BLOCKS)) {
        let bytes: Vec<u8> = run.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        pool.write(run[0].0, &bytes)?;
    }
    pool.flush()
}

#[cfg(test)]
mod tests;
