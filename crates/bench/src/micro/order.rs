//! The lines between the benchmark and the measured programs.
//!
//! ```text
//! benchmark  prepare create 100 0        program  done 0
//!            run create 100 0                     done 183000      nanoseconds of all calls
//!            clear create 100 0                   failed 28        the number of the error
//! ```
//!
//! The last number of an order is the time by the monotonic clock at which a run starts, in
//! nanoseconds, or 0: at once. A program that has started replies `done 0` without an order.

use std::fmt;
use std::str::FromStr;

use super::operation::Operation;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Make the files that the calls need. Not timed.
    Prepare,
    /// Make the calls, and report their time.
    Run,
    /// Remove the files that they left. Not timed.
    Clear,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Order {
    pub phase: Phase,
    pub operation: Operation,
    pub calls: u32,
    pub start_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// Nanoseconds.
    Done(u64),
    /// The number of an error.
    Failed(i32),
}

const PHASES: [(&str, Phase); 3] =
    [("prepare", Phase::Prepare), ("run", Phase::Run), ("clear", Phase::Clear)];

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = PHASES.iter().find(|(_, phase)| *phase == self.phase);
        let word = phase.map_or("", |(word, _)| word);
        write!(f, "{word} {} {} {}", self.operation, self.calls, self.start_ns)
    }
}

impl FromStr for Order {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [phase, operation, calls, start_ns] = words[..] else { return Err(()) };
        let (_, phase) = PHASES.into_iter().find(|(word, _)| *word == phase).ok_or(())?;
        let operation = operation.parse().map_err(drop)?;
        let calls = calls.parse().map_err(drop)?;
        Ok(Self { phase, operation, calls, start_ns: start_ns.parse().map_err(drop)? })
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(ns) => write!(f, "done {ns}"),
            Self::Failed(number) => write!(f, "failed {number}"),
        }
    }
}

impl FromStr for Reply {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        match line.trim_end().split_once(' ') {
            Some(("done", ns)) => ns.parse().map(Self::Done).map_err(drop),
            Some(("failed", number)) => number.parse().map(Self::Failed).map_err(drop),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        for (_, phase) in PHASES {
            let order = Order { phase, operation: Operation::StatMany, calls: 7, start_ns: 9 };
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for reply in [Reply::Done(0), Reply::Done(u64::MAX), Reply::Failed(28)] {
            assert_eq!(format!("{reply}\n").parse(), Ok(reply));
        }
        for line in ["", "run", "run create", "run create x 0", "run creates 1 0", "go create 1 0"]
        {
            assert_eq!(line.parse::<Order>(), Err(()), "{line}");
        }
        assert_eq!("done".parse::<Reply>(), Err(()));
    }
}
