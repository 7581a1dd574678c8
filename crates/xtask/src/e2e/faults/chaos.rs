//! Faults of many kinds at once, beside programs that check every answer.
//!
//! ```text
//! round: cells, mounts, programs with and without the library are drawn
//!   wave: break one thing after the other ──▶ wait ──▶ heal in another order ──▶ all cells serve
//!         (after FoundationDB's swizzle)
//!   the programs end, each with the files that it remembers
//!   stop, fsck, another number of cells, the same files
//! ```
//!
//! A short run is a case like others; `cargo xtask chaos --minutes N` goes on with new rounds for
//! so long. What is drawn follows from the seed, what happens does not.

mod breaker;
mod damage;
mod failing;
mod fault;
mod host;
mod ledger;
mod loads;
mod marked;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use warren_base::Rng;

use super::device_faults;
use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process;
use crate::e2e::harness::survivors::end_survivors;
use breaker::{Breaker, Scene};
use host::Host;
use ledger::Ledger;
use loads::{Load, PROJECTS, Program};
use marked::Marked;

/// Waves of the short run, and of each round of a long one.
const WAVES: u32 = 4;
const WAVES_LONG: u32 = 25;

/// Projects beside the programs that check every call.
const PROJECTS_LONG: u64 = 2;

/// One long round in so many has a host that may be full, or a device that fails.
const FULL_IN: u64 = 4;
const FAILING_IN: u64 = 4;

const CELLS_MAX: u64 = 4;
const MOUNTS_MAX: u64 = 3;

/// The longest that a call may take beyond the time in which the run itself held a process that it
/// needs. Judged in long runs alone, because it depends on the machine.
const CALL_MAX: Duration = Duration::from_secs(5);

/// Reading all files of a pool takes less.
const PATIENCE: Duration = Duration::from_secs(600);

/// The counts of all rounds.
#[derive(Default)]
struct Totals {
    rounds: u32,
    ledger: Ledger,
    /// Operations of programs by their kind, and how many milliseconds the longest took.
    done: BTreeMap<Load, (u64, u64)>,
    /// The longest that something was held.
    held: Duration,
    /// Bytes that were lost over a restart.
    bytes_lost: u64,
    failing: Failing,
}

/// The counts of fleets on devices that fail.
#[derive(Default)]
struct Failing {
    fleets: u32,
    read_only: u32,
    ended: u32,
}

impl Failing {
    fn add(&mut self, more: &device_faults::Totals) {
        self.fleets += more.rounds;
        self.read_only += more.read_only;
        self.ended += more.ended;
    }
}

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if !ground.options.wants("chaos") {
        return;
    }
    tally.case(&format!("chaos ({cells} cells)"), || {
        let minutes = ground.options.minutes.map(u64::from);
        let until = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
        let mut totals = Totals::default();
        totals.ledger.is_verbose = ground.options.keep;
        let mut rounds = 0_u64;
        let worked = loop {
            let mut rng = Rng::new(ground.seed ^ rounds << 32);
            let drawn = 1 + rng.below(CELLS_MAX) as u16;
            let cells = if rounds == 0 { cells } else { drawn };
            if let Err(error) = round(ground, rng, (rounds, cells), &mut totals) {
                break Err(error.context(format!("round {rounds} with {cells} cells")));
            }
            rounds += 1;
            if until.is_none_or(|until| Instant::now() >= until) {
                break Ok(Verdict::Passed);
            }
        };
        println!("{totals}");
        if worked.is_err() {
            end_survivors();
        }
        worked
    });
}

fn round(
    ground: &Ground,
    mut rng: Rng,
    (number, cells): (u64, u16),
    totals: &mut Totals,
) -> Result<()> {
    let is_long = ground.options.minutes.is_some();
    if is_long && rng.chance(1, FAILING_IN) {
        let done = failing::round(ground, rng, (number, cells), &mut totals.ledger)?;
        totals.failing.add(&done.totals);
        totals.held = totals.held.max(done.held);
        totals.rounds += 1;
        return Ok(());
    }
    let host = (is_long && rng.chance(1, FULL_IN))
        .then(|| Host::mount(ground, format!("host-{number}")))
        .transpose()?;
    let place = host.as_ref().map(|host| format!("{}/", host.name)).unwrap_or_default();
    let name = format!("{place}chaos-{number}");
    let fleet = Fleet::start(ground, &name, "4G", cells)?;
    let pool = fleet.pool.clone();
    let restarted_with = 1 + rng.below(CELLS_MAX) as u16;
    let mut noted = String::new();
    fleet.during(|fleet| {
        let mounts = mounts(ground, fleet, 1 + rng.below(MOUNTS_MAX), &name)?;
        let programs = programs(ground, &mut rng, &mounts, host.is_some())?;
        // On a host that may be full its calls could fail.
        let marked = host.is_none().then(|| Marked::start(ground, fleet, rng.next_u64()));
        let marked = marked.transpose()?;
        let groups = programs.iter().map(Program::group).collect();
        let waves = if is_long { WAVES_LONG } else { WAVES };
        let hits = marked.as_ref().map(|marked| &*marked.hits);
        let scene = Scene { fleet, host: host.as_ref(), failing: None, hits };
        let (broken, held) = Breaker::new(scene, groups, rng, &mut totals.ledger).run(waves);
        totals.held = totals.held.max(held);
        let marked = marked.map(Marked::end).transpose();
        let ended = totals.end(programs, is_long.then_some(CALL_MAX + held));
        totals.ledger.lost(marked?.unwrap_or_default());
        broken.and(ended)?;
        for mount in mounts.iter().skip(1) {
            fleet.warren(&["umount"], &[mount])?.expect_success("umount")?;
        }
        noted = sums(ground, fleet)?;
        Ok(Verdict::Passed)
    })?;
    let again = Fleet::resume(ground, &name, restarted_with)?;
    again.during(|fleet| {
        let found = sums(ground, fleet)?;
        totals.bytes_lost += bytes_lost(&noted, &found);
        ensure!(found == noted, "files have changed over the restart");
        Ok(Verdict::Passed)
    })?;
    totals.rounds += 1;
    totals.ledger.round_passed();
    std::fs::remove_file(pool).context("cannot remove a pool")
}

/// One more than there are mounts check every call. In a long run projects are beside them, unless
/// the pool may be full.
fn programs(
    ground: &Ground,
    rng: &mut Rng,
    mounts: &[PathBuf],
    may_be_full: bool,
) -> Result<Vec<Program>> {
    let has_projects = ground.options.minutes.is_some() && !may_be_full;
    let projects = if has_projects { PROJECTS_LONG } else { 0 };
    let mut loads = vec![Load::Calls; mounts.len() + 1];
    loads.extend((0..projects).map(|_| *rng.pick(&PROJECTS)));
    let start = |(at, load): (usize, Load)| {
        let is_interposed = ground.options.interposed || rng.chance(1, 2);
        let name = format!("program{at}");
        Program::start(
            ground,
            (load, name, rng.below(1_000_000)),
            &mounts[at % mounts.len()],
            (is_interposed, may_be_full),
        )
    };
    loads.into_iter().enumerate().map(start).collect()
}

impl Totals {
    /// Ends the programs. None may have failed, nor have waited longer than `call_max` for a call.
    fn end(&mut self, programs: Vec<Program>, call_max: Option<Duration>) -> Result<()> {
        programs.iter().try_for_each(Program::end)?;
        let mut hurt = Vec::new();
        for program in programs {
            let load = program.load;
            match program.ended() {
                Ok((count, longest)) => {
                    let done = self.done.entry(load).or_default();
                    *done = (done.0 + count, done.1.max(longest));
                    let max = call_max.filter(|_| load == Load::Calls);
                    if max.is_some_and(|max| u128::from(longest) > max.as_millis()) {
                        hurt.push(format!("a call took {longest} ms"));
                    }
                }
                Err(error) => hurt.push(format!("{error:#}")),
            }
        }
        self.ledger.hurt(hurt.len() as u32);
        ensure!(hurt.is_empty(), "{}", hurt.join("\n"));
        Ok(())
    }
}

/// The bytes of files that are not there, or not as they were.
fn bytes_lost(noted: &str, found: &str) -> u64 {
    let found: BTreeSet<&str> = found.lines().collect();
    let lost = noted.lines().filter(|line| !found.contains(line));
    // Checksum, bytes, name.
    lost.filter_map(|line| line.split(' ').nth(1)?.parse::<u64>().ok()).sum()
}

/// The first is the fleet's own.
fn mounts(ground: &Ground, fleet: &Fleet, count: u64, name: &str) -> Result<Vec<PathBuf>> {
    let mut mounts = vec![fleet.mounted.clone()];
    for at in 1..count {
        let mount = ground.path(&format!("{name}.mounted{at}"));
        std::fs::create_dir_all(&mount).context("cannot make a mount point")?;
        fleet.mount(&mount)?;
        mounts.push(mount);
    }
    Ok(mounts)
}

/// Names and contents of all files.
fn sums(ground: &Ground, fleet: &Fleet) -> Result<String> {
    let mut command = Command::new("bash");
    let script = "find . -type f -print0 | sort -z | xargs -0 cksum; find . | sort";
    command.args(["-euo", "pipefail", "-c", script]).current_dir(&fleet.mounted);
    let outcome = process::run(command, &ground.path("run"), PATIENCE)?;
    Ok(outcome.expect_success("reading all files")?.stdout)
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.ledger)?;
        for (load, (count, longest)) in &self.done {
            writeln!(f, "{}: {count} done, the longest took {longest} ms", load.name())?;
        }
        let Failing { fleets, read_only, ended } = self.failing;
        writeln!(
            f,
            "{fleets} fleets on devices that failed: {read_only} became read-only, {ended} ended"
        )?;
        write!(
            f,
            "{} rounds; processes were held for up to {} ms; {} programs hurt, {} bytes lost over restarts",
            self.rounds,
            self.held.as_millis(),
            self.ledger.programs_hurt,
            self.bytes_lost
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_lost_with_a_file_that_differs_or_is_absent() {
        let noted = "17 100 ./a\n18 20 ./b c\n19 3 ./d\n.\n./a";
        assert_eq!(bytes_lost(noted, noted), 0);
        assert_eq!(bytes_lost(noted, "17 100 ./a\n99 20 ./b c\n.\n./a"), 23);
    }
}
