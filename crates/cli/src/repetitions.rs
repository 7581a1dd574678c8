//! How often a benchmark repeats something, and at how many places at once.

use clap::builder::RangedI64ValueParser;
use warren_bench::REPETITIONS_MAX;
use warren_bench::scale::PROGRAMS_MAX;

/// Programs of a benchmark that work at once.
pub(crate) fn programs() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(PROGRAMS_MAX))
}

/// Rounds, or calls in each, of a benchmark.
pub(crate) fn repetitions() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(REPETITIONS_MAX))
}
