//! Load on all processors: on each a process that computes all the time, at the priority of the
//! benchmark.

use std::ffi::OsString;
use std::process::{ExitCode, Stdio};

use rustix::process::Signal;

use crate::error::{BenchError, system};
use crate::machine;
use crate::process::{Served, this_program};

/// The role of such a process. Its argument is the processor.
pub(crate) const ROLE: &str = "__bench-spin";

pub(super) struct Load {
    _processes: Vec<Served>,
}

impl Load {
    pub(super) fn start() -> Result<Self, BenchError> {
        let start = |cpu: usize| {
            let mut command = this_program();
            command.arg(ROLE).arg(cpu.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
            Served::start(&mut command).map_err(system("start a load"))
        };
        let processes = machine::processors()?.into_iter().map(start).collect::<Result<_, _>>()?;
        Ok(Self { _processes: processes })
    }
}

/// The main function of such a process. It ends by a signal.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let cpu = arguments.first().and_then(|word| word.to_str()?.parse().ok());
    let pinned = cpu.map(|cpu| machine::pin(None, cpu));
    if tied.is_err() || !matches!(pinned, Some(Ok(()))) {
        return ExitCode::FAILURE;
    }
    loop {
        std::hint::spin_loop();
    }
}
