//! The arguments of `warren bench beside`.

use std::path::PathBuf;

use clap::Args;
use warren_bench::beside::Operation;

use crate::numbers::repetitions;

#[derive(Args)]
pub(crate) struct BenchBeside {
    /// Directory of the temporary pool, like /dev/shm to keep it in memory [default: the temporary
    /// directory]
    #[arg(long)]
    pub directory: Option<PathBuf>,
    /// Rounds that are counted
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Milliseconds for which a victim is observed alone, and beside attackers, in a round
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub millis: Option<u64>,
    /// The attacks, with their names in the JSON report [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub attacks: Vec<Operation>,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
}
