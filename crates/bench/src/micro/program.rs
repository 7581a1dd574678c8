//! A measured program, as the benchmark sees it.

use warren_base::Errno;

use super::operation::Operation;
use super::order::{Order, Phase, Reply};
use super::worker;
use crate::contender::traffic::TrafficPerCall;
use crate::contender::{Contender, ContenderName};
use crate::error::BenchError;
use crate::ground::Interruption;
use crate::process::Answering;

/// The time from the order to the common start of the programs.
const START_DELAY_NS: u64 = 1_000_000;

/// The additional time for each further program, so that all are awake by then.
const START_DELAY_EACH_NS: u64 = 100_000;

/// The programs on one contender.
pub(crate) struct Programs {
    contender: ContenderName,
    programs: Vec<Answering>,
}

impl Programs {
    /// Starts them. Each has names for batches of operations of which `calls` are asked for.
    pub(crate) fn start(
        on: &dyn Contender,
        count: u32,
        calls: u32,
        interruption: &Interruption,
    ) -> Result<Self, BenchError> {
        let start = |number: u32| {
            let mut command = on.program();
            command.arg(worker::ROLE).arg(on.directory()).arg(number.to_string());
            Answering::start(command.arg(calls.to_string()))
        };
        let programs = (0..count).map(start).collect::<Result<_, _>>()?;
        let mut started = Self { contender: on.name(), programs };
        for at in 0..started.programs.len() {
            started.receive(at, "prepare", interruption)?;
        }
        Ok(started)
    }

    /// Executes a batch, and returns the nanoseconds of a call.
    pub(super) fn batch(
        &mut self,
        operation: Operation,
        calls: u32,
        interruption: &Interruption,
    ) -> Result<f64, BenchError> {
        let calls = operation.batch(calls);
        let programs = self.taking_part(operation);
        self.phase(Phase::Prepare, operation, calls, programs, interruption)?;
        let times = self.phase(Phase::Run, operation, calls, programs, interruption)?;
        self.phase(Phase::Clear, operation, calls, programs, interruption)?;
        let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
        Ok(mean / f64::from(calls))
    }

    /// Executes a batch in each of so many programs at once. Returns the nanoseconds of the slowest
    /// divided by the calls of all.
    pub(crate) fn run_batches(
        &mut self,
        operation: Operation,
        calls: u32,
        programs: u32,
        interruption: &Interruption,
    ) -> Result<f64, BenchError> {
        let (calls, count) = (operation.batch(calls), programs as usize);
        self.phase(Phase::Prepare, operation, calls, count, interruption)?;
        let times = self.phase(Phase::Run, operation, calls, count, interruption)?;
        self.phase(Phase::Clear, operation, calls, count, interruption)?;
        let slowest = times.into_iter().max().unwrap_or(0);
        Ok(slowest as f64 / (f64::from(calls) * f64::from(programs)))
    }

    /// Executes a batch, and returns what a call made the contender's processes do. `None` if that
    /// is not known of the contender.
    pub(super) fn count(
        &mut self,
        on: &dyn Contender,
        operation: Operation,
        calls: u32,
        interruption: &Interruption,
    ) -> Result<Option<TrafficPerCall>, BenchError> {
        let (calls, programs) = (operation.batch(calls), self.taking_part(operation));
        self.phase(Phase::Prepare, operation, calls, programs, interruption)?;
        let before = on.traffic()?;
        self.phase(Phase::Run, operation, calls, programs, interruption)?;
        let after = on.traffic()?;
        self.phase(Phase::Clear, operation, calls, programs, interruption)?;
        let calls = calls * programs as u32;
        Ok(after.zip(before).map(|(after, before)| after.per_call(before, calls)))
    }

    /// By so many programs. Returns the time of each.
    fn phase(
        &mut self,
        phase: Phase,
        operation: Operation,
        calls: u32,
        programs: usize,
        interruption: &Interruption,
    ) -> Result<Vec<u64>, BenchError> {
        let delay = START_DELAY_NS + START_DELAY_EACH_NS * programs as u64;
        let starts_together = phase == Phase::Run && programs > 1;
        let start_ns = if starts_together { worker::now_ns() + delay } else { 0 };
        let order = Order { phase, operation, calls, start_ns };
        for program in &mut self.programs[..programs] {
            program.order(order);
        }
        (0..programs).map(|at| self.receive(at, operation.name(), interruption)).collect()
    }

    /// The number of programs that execute it at once.
    fn taking_part(&self, operation: Operation) -> usize {
        if operation.is_shared() { self.programs.len() } else { 1 }
    }

    fn receive(
        &mut self,
        at: usize,
        call: &'static str,
        interruption: &Interruption,
    ) -> Result<u64, BenchError> {
        let line = self.programs[at].reply(None, interruption)?;
        match line.and_then(|line| line.parse().ok()) {
            Some(Reply::Done(ns)) => Ok(ns),
            Some(Reply::Failed(number)) => {
                let errno = Errno::from_raw(number).unwrap_or(Errno::EIO);
                Err(BenchError::call(self.contender.name(), call, errno))
            }
            None => {
                let contender = self.contender;
                let why = format!("{contender}: the measured program ended during {call}");
                Err(BenchError::Unavailable(why))
            }
        }
    }
}
