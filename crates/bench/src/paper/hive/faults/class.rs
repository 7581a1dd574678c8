//! The classes of faults, with the paper's numbers.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// The cell is killed when the compiler is started.
    Creation,
    /// The cell is killed while a file moves between two cells, of which it is one: in place of the
    /// paper's search in a copy-on-write tree, which Warren does not have.
    Transaction,
    /// The cell is killed at a random time.
    Random,
    /// The cell is stopped by a signal at a random time, so that its memory stays. Not in the
    /// paper.
    Stopped,
    /// A pointer in the cell's memory is corrupted at a random time.
    Pointer,
}

/// A row of table 7.4: tests, and the latency until the last cell enters recovery, average and
/// maximum in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct PaperClass {
    pub tests: u32,
    pub average_ms: f64,
    pub most_ms: f64,
}

impl FaultClass {
    pub const ALL: [Self; 5] =
        [Self::Creation, Self::Transaction, Self::Random, Self::Stopped, Self::Pointer];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Creation => "killed in process creation",
            Self::Transaction => "killed in a transaction",
            Self::Random => "killed at random time",
            Self::Stopped => "stopped (SIGSTOP)",
            Self::Pointer => "corrupted pointer",
        }
    }

    /// The rows of the paper that it repeats.
    pub const fn paper(self) -> &'static [PaperClass] {
        const fn row(tests: u32, average_ms: f64, most_ms: f64) -> PaperClass {
            PaperClass { tests, average_ms, most_ms }
        }
        match self {
            Self::Creation => const { &[row(20, 16.0, 21.0)] },
            Self::Transaction => const { &[row(9, 10.0, 11.0)] },
            Self::Random => const { &[row(20, 21.0, 45.0)] },
            Self::Stopped => &[],
            Self::Pointer => const { &[row(8, 38.0, 65.0), row(12, 401.0, 760.0)] },
        }
    }

    /// As many faults as in the paper.
    pub(super) fn count(self) -> u32 {
        const STOPPED: u32 = 20;
        match self {
            Self::Stopped => STOPPED,
            class => class.paper().iter().map(|row| row.tests).sum(),
        }
    }
}
