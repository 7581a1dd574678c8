//! The measured program, which is a process of its own: it calls the C library as any program does,
//! so that it can also run with a library between it and the kernel. It executes what the lines on
//! its standard input order ([`super::order`]), and ends with that.
//!
//! ```text
//! calls   the functions of the C library        work   the operations, made of them
//! ```

mod calls;
mod work;

use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use super::order::{Order, Phase, Reply};
use work::Work;

/// The role of this process. Its arguments are a directory, the number of the program and the
/// calls that are asked for.
pub(crate) const ROLE: &str = "__bench-program";

/// The monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The main function of the process.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let [directory, number, calls] = arguments else { return ExitCode::FAILURE };
    let word = |word: &OsString| word.to_str()?.parse::<u32>().ok();
    let (Some(number), Some(calls)) = (word(number), word(calls)) else {
        return ExitCode::FAILURE;
    };
    // Without this it would end with its standard input.
    let _tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let mut work = match Work::new(Path::new(directory), number, calls) {
        Ok(work) => work,
        Err(error) => {
            reply(failed(&error));
            return ExitCode::FAILURE;
        }
    };
    let mut goes_on = reply(Reply::Done(0));
    let mut lines = std::io::stdin().lock().lines();
    while goes_on {
        let Some(Ok(line)) = lines.next() else { return ExitCode::SUCCESS };
        let Ok(order) = line.parse::<Order>() else { return ExitCode::FAILURE };
        let done = execute(&mut work, &order);
        goes_on = reply(done.map_or_else(|error| failed(&error), Reply::Done));
    }
    ExitCode::FAILURE
}

/// Returns the nanoseconds of a run.
fn execute(work: &mut Work, order: &Order) -> std::io::Result<u64> {
    match order.phase {
        Phase::Prepare => work.prepare(order.operation, order.calls).map(|()| 0),
        Phase::Clear => work.clear(order.operation, order.calls).map(|()| 0),
        Phase::Run => {
            while now_ns() < order.start_ns {
                std::hint::spin_loop();
            }
            // Programs that start together count from then, also one that gets a processor later.
            let start = if order.start_ns == 0 { now_ns() } else { order.start_ns };
            work.perform(order.operation, order.calls)?;
            Ok(now_ns() - start)
        }
    }
}

fn failed(error: &std::io::Error) -> Reply {
    Reply::Failed(error.raw_os_error().unwrap_or(0))
}

/// False if the benchmark has ended.
fn reply(reply: Reply) -> bool {
    let mut out = std::io::stdout();
    writeln!(out, "{reply}").and_then(|()| out.flush()).is_ok()
}
