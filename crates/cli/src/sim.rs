//! `warren sim`: runs the simulator. It prints a failing seed with its error and the command to
//! repeat it; the first one ends the run.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use warren_sim::{Options, STEPS_DEFAULT, Summary, crash, rare, run_many};

use crate::arguments::Sim;
use crate::failure::{CODE_FAILURE, Failure, print_json};
use crate::output::{self, say};

/// The report of a run.
#[derive(Serialize, Default)]
struct Outcome {
    first_seed: u64,
    passed: u64,
    failed: u64,
    operations: u64,
    events: u64,
    /// The same for the same seeds, whatever the threads did.
    hash: String,
    coverage: Vec<(String, u64)>,
    /// Rare branches that the campaign should reach, and that none of these seeds has reached.
    never_reached: Vec<&'static str>,
    failed_seed: Option<u64>,
    rule: Option<String>,
}

pub(crate) fn perform(arguments: &Sim) -> Result<ExitCode, Failure> {
    let options = Options {
        seed: arguments.seed,
        steps: arguments.steps.map_or(STEPS_DEFAULT, u64::from),
        cells: arguments.cells,
        plant: None,
        kills: !arguments.no_kills,
        damage: arguments.damage,
        outage: arguments.outage,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or(cores);
    let done = AtomicU64::new(0);
    // A panic of simulated code is caught and reported as a finding.
    std::panic::set_hook(Box::new(|_| {}));
    let progress = |count| {
        done.fetch_max(count, Ordering::Relaxed);
    };
    let result = if arguments.crash {
        let damage = arguments.damage;
        let outage = arguments.outage;
        let options = crash::Options { sound_device: false, plant: None, damage, outage };
        crash::run_many(arguments.seed, arguments.seeds, options, threads, &progress)
    } else {
        run_many(options, arguments.seeds, threads, &progress)
    };
    let _ours = std::panic::take_hook();
    let (outcome, events) = match result {
        Ok(summary) => (passed(arguments, summary), String::new()),
        Err(failure) => {
            let seeds_done = done.load(Ordering::Relaxed);
            (failed(arguments.seed, seeds_done, &failure), failure.to_string())
        }
    };
    if arguments.json {
        print_json(&outcome)?;
    } else {
        print(&outcome, &events, arguments);
    }
    Ok(ExitCode::from(if outcome.failed == 0 { 0 } else { CODE_FAILURE }))
}

fn passed(arguments: &Sim, summary: Summary) -> Outcome {
    let rare = match (arguments.crash, arguments.damage) {
        _ if arguments.outage && arguments.crash => rare::CRASH_OUTAGES,
        _ if arguments.outage => rare::OUTAGES,
        (false, false) => rare::SIMULATION,
        (false, true) => rare::DAMAGED_SIMULATION,
        (true, false) => rare::CRASHES,
        (true, true) => rare::DAMAGED_CRASHES,
    };
    let coverage = summary.coverage.iter().map(|(what, times)| ((*what).to_owned(), *times));
    Outcome {
        first_seed: arguments.seed,
        never_reached: summary.never_reached(rare),
        passed: summary.runs,
        operations: summary.operations,
        events: summary.events,
        hash: format!("{:016x}", summary.hash),
        coverage: coverage.collect(),
        ..Outcome::default()
    }
}

fn failed(first_seed: u64, seeds_done: u64, failure: &warren_sim::Failure) -> Outcome {
    Outcome {
        first_seed,
        passed: seeds_done.saturating_sub(1),
        failed: 1,
        failed_seed: Some(failure.seed),
        rule: Some(failure.rule.clone()),
        ..Outcome::default()
    }
}

fn print(outcome: &Outcome, events: &str, arguments: &Sim) {
    if let Some(seed) = outcome.failed_seed {
        output::print(format_args!("{events}"));
        let mut again = format!("warren sim --seed {seed}");
        if let Some(steps) = arguments.steps {
            again += &format!(" --steps {steps}");
        }
        if let Some(cells) = arguments.cells {
            again += &format!(" --cells {cells}");
        }
        let flags = [
            (arguments.crash, " --crash"),
            (arguments.no_kills, " --no-kills"),
            (arguments.damage, " --damage"),
            (arguments.outage, " --outage"),
        ];
        for (given, flag) in flags {
            if given {
                again += flag;
            }
        }
        say!("again: {again}");
    } else {
        for (what, times) in &outcome.coverage {
            say!("{times:>12}  {what}");
        }
        for what in &outcome.never_reached {
            say!("{:>12}  {what}", 0);
        }
        say!("{} operations, {} events, hash {}", outcome.operations, outcome.events, outcome.hash);
    }
    say!("simulation: {} passed, {} failed", outcome.passed, outcome.failed);
}
