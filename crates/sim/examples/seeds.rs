//! Runs seeds of the simulator without the whole command: `seeds sim|crash COUNT [FIRST]`. Fails if
//! a seed fails.

use std::process::ExitCode;

use warren_sim::{Failure, Options, Summary, crash};

fn run(arguments: &[String]) -> Option<Result<Summary, Failure>> {
    let count = arguments.get(1)?.parse().ok()?;
    let first = arguments.get(2).map_or(Some(1), |first| first.parse().ok())?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    match arguments.first()?.as_str() {
        "sim" => Some(warren_sim::run_many(Options::new(first), count, threads, &|_| {})),
        "crash" => {
            let options = crash::Options::default();
            Some(crash::run_many(first, count, options, threads, &|_| {}))
        }
        _ => None,
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        None => ExitCode::from(2),
        Some(Ok(_)) => ExitCode::SUCCESS,
        Some(Err(failure)) => panic!("{failure}"),
    }
}
