//! Numbers on the command line that have limits.

use clap::builder::RangedI64ValueParser;
use warren_base::limits::SHARDS_MAX;
use warren_bench::REPETITIONS_MAX;
use warren_bench::scale::PROGRAMS_MAX;
use warren_disk::KEPT_PERCENT_MAX;

/// Programs of a benchmark that work at once.
pub(crate) fn programs() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(PROGRAMS_MAX))
}

/// Rounds, or calls in each, of a benchmark.
pub(crate) fn repetitions() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(REPETITIONS_MAX))
}

/// The number of shards.
pub(crate) fn shards() -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX))
}

/// The percentage that is kept for root.
pub(crate) fn root_percent() -> RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(0..=i64::from(KEPT_PERCENT_MAX))
}
