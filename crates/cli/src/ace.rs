//! `warren ace`: the systematic crash campaign.

mod real;

use std::process::ExitCode;
use std::thread;

use warren_sim::ace::{Campaign, Options, Sequence, Summary, pairs, replacements, singles};

use crate::arguments::Ace;
use crate::failure::{CODE_FAILURE, Failure};
use crate::output;

pub(crate) fn perform(arguments: &Ace) -> Result<ExitCode, Failure> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or(cores).max(1);
    let options = Options { no_flush: arguments.no_flush, plant: None };
    let summary = match arguments.real {
        Some(count) => real::run(&random_sequences(arguments.seed, count), options)?,
        None => {
            let mut sequences = singles();
            sequences.extend(replacements());
            sequences.extend(pairs(arguments.seed, arguments.pairs));
            run(&sequences, options, threads)
        }
    };
    output::print(format_args!("{summary}"));
    // If a campaign without flushes finds nothing, it is defective.
    let passed = summary.is_sound() != arguments.no_flush;
    Ok(ExitCode::from(if passed { 0 } else { CODE_FAILURE }))
}

/// So many sequences. In one of five a file replaces another.
fn random_sequences(seed: u64, count: usize) -> Vec<Sequence> {
    let all = replacements();
    let first = seed as usize % all.len();
    // A step without a common divisor with what they vary.
    let of_all = (0..count / 5).map(|at| all[(first + 7 * at) % all.len()].clone());
    let mut sequences: Vec<Sequence> = of_all.collect();
    sequences.extend(pairs(seed, count - sequences.len()));
    sequences
}

/// Each thread runs every n-th sequence, so that all have as much to do.
fn run(sequences: &[Sequence], options: Options, threads: usize) -> Summary {
    let part = |first: usize| -> Vec<Sequence> {
        sequences.iter().skip(first).step_by(threads).cloned().collect()
    };
    let mut summary = Summary::default();
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || Campaign::new(options).run(&part(first))))
            .collect();
        for thread in running {
            match thread.join() {
                Ok(part) => summary.add(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    summary
}
