//! The arguments of `warren bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use warren_bench::apps::Workload;
use warren_bench::beside;
use warren_bench::micro::Operation;
use warren_bench::paper::hive::Experiment;
use warren_bench::space::BYTES_MIN;
use warren_bench::stops;
use warren_bench::{ContenderName, LOG_BYTES_MAX};

use crate::numbers::{programs, repetitions};
use crate::size;

#[derive(Args)]
pub(crate) struct Bench {
    /// Directory of the pools, the mount points, the files under loop devices and the files to
    /// compare with; /dev/shm keeps them in memory [default: the temporary directory]
    #[arg(long, global = true)]
    pub directory: Option<PathBuf>,
    /// Report in JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub what: BenchTask,
}

#[derive(Subcommand)]
pub(crate) enum BenchTask {
    /// Whole programs (tar, git, make, sqlite3, ...), on a mount and on other file systems; needs
    /// root
    Apps(BenchApps),
    /// The slowdown of clients beside those of another user, by operation; needs root
    Beside(BenchBeside),
    /// One client and one cell, in memory, compared with the same calls on other file systems
    Client(BenchClient),
    /// The cost of many idle clients: the latency of others, memory, descriptors, admissions
    Clients(BenchClients),
    /// Append and fsync by one and by several writers, compared with a file system and the bare
    /// device
    Fsync(BenchFsync),
    /// A program's calls by path, on a mount and on other file systems; needs root
    Micro(BenchMicro),
    /// The experiments of a paper, with the paper's numbers beside those measured; needs root
    #[command(subcommand)]
    Paper(BenchPaper),
    /// The time that clients wait after a kill of a cell and of a fleet, with full logs
    Recovery(BenchRecovery),
    /// Many programs at once, on fleets of several sizes and on other file systems; needs root
    Scale(BenchScale),
    /// Whether what df shows can be written, and what writing costs on a pool that is nearly full,
    /// beside ext4; needs root
    Space(BenchSpace),
    /// The time that programs wait after a process was stopped (SIGSTOP): of the fleet, of a mount,
    /// or another program; needs root
    Stops(BenchStops),
}

#[derive(Args)]
pub(crate) struct BenchApps {
    /// Rounds that are counted
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Number of cells
    #[arg(long, value_parser = super::cells())]
    pub cells: Option<u16>,
    /// Measure only these workloads, separated by commas
    #[arg(long, value_name = "WORKLOADS", value_delimiter = ',')]
    pub only: Vec<Workload>,
    /// Measure only these contenders, separated by commas [default: all but passthrough_ll]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub contenders: Vec<ContenderName>,
    /// Write the report as a page with plots to this file, too
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct BenchMicro {
    /// Rounds that are counted
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Calls per batch; short operations have a multiple, long ones a part
    #[arg(long, value_parser = repetitions())]
    pub calls: Option<u32>,
    /// Measure only these operations, separated by commas
    #[arg(long, value_name = "OPERATIONS", value_delimiter = ',')]
    pub only: Vec<Operation>,
    /// Measure only these contenders, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub contenders: Vec<ContenderName>,
    /// Measure a second time with all processors busy, in a fifth of the rounds
    #[arg(long)]
    pub busy: bool,
}

#[derive(Args)]
pub(crate) struct BenchBeside {
    /// Rounds that are counted
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Milliseconds for which a victim is observed alone, and beside attackers, in a round
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub millis: Option<u64>,
    /// The attacks, with their names in the JSON report [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub attacks: Vec<beside::Operation>,
}

#[derive(Args)]
pub(crate) struct BenchClients {
    /// Number of cells
    #[arg(long, value_parser = super::cells())]
    pub cells: Option<u16>,
    /// Idle clients
    #[arg(long, value_parser = repetitions())]
    pub idle: Option<u32>,
    /// Rounds that are counted
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Calls per batch
    #[arg(long, value_parser = repetitions())]
    pub calls: Option<u32>,
    /// Seconds for which the idle fleet is watched
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: Option<u64>,
}

#[derive(Args)]
pub(crate) struct BenchScale {
    /// Rounds that are counted
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Calls per batch of a program; short operations have a multiple, long ones a part
    #[arg(long, value_parser = repetitions())]
    pub calls: Option<u32>,
    /// Measure only these operations, separated by commas
    #[arg(long, value_name = "OPERATIONS", value_delimiter = ',')]
    pub only: Vec<Operation>,
    /// Measure only these contenders, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub contenders: Vec<ContenderName>,
    /// Programs at once, several numbers separated by commas [default: powers of two up to the
    /// number of processors]
    #[arg(long, value_delimiter = ',', value_parser = programs())]
    pub programs: Vec<u32>,
    /// Cells of Warren's fleets, several numbers separated by commas [default: powers of two up to
    /// half of the processors, at most 8]
    #[arg(long, value_delimiter = ',', value_parser = super::cells())]
    pub cells: Vec<u16>,
}

#[derive(Subcommand)]
pub(crate) enum BenchPaper {
    /// Hive, SOSP 1995: tables 5.2, 7.2, 7.3 and 7.4, sections 3.1, 4.1, 4.2 and 6
    Hive(BenchHive),
}

#[derive(Args)]
pub(crate) struct BenchHive {
    /// Only these experiments, separated by commas: requests (sections 4.1 and 6), latency (tables
    /// 5.2 and 7.3), pmake (table 7.2), writable (section 4.2), faults (table 7.4, section 3.1)
    #[arg(long, value_name = "EXPERIMENTS", value_delimiter = ',')]
    pub only: Vec<Experiment>,
    /// Rounds of pmake that are counted; the short measurements have four times as many
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Injected faults of each class [default: as many as in the paper]
    #[arg(long, value_parser = repetitions())]
    pub faults: Option<u32>,
    /// Seed of the times, victims and addresses of faults
    #[arg(long)]
    pub seed: Option<u64>,
}

#[derive(Args)]
pub(crate) struct BenchRecovery {
    /// Number of cells
    #[arg(long, value_parser = super::cells())]
    pub cells: Option<u16>,
    /// Size of all logs together in MiB
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=LOG_BYTES_MAX >> 20))]
    pub log_mib: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum BenchOn {
    /// A file, compared with files of the same file system
    File,
    /// A loop device, compared with ext4 on another one, over two files; needs root
    Loop,
    /// A zram device, which is memory, compared with ext4 on another one; needs root
    Zram,
}

#[derive(Args)]
pub(crate) struct BenchFsync {
    /// Medium of the pool and of the files to compare with
    #[arg(long, value_enum, value_name = "MEDIUM", default_value_t = BenchOn::File)]
    pub on: BenchOn,
    /// Rounds that are counted
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Appends of each writer per round
    #[arg(long, value_parser = repetitions())]
    pub calls: Option<u32>,
    /// Measure Warren alone
    #[arg(long)]
    pub alone: bool,
}

#[derive(Args)]
pub(crate) struct BenchClient {
    /// Rounds that are counted
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Calls per batch
    #[arg(long, value_parser = repetitions())]
    pub calls: Option<u32>,
    /// Show where the time of an operation goes
    #[arg(long)]
    pub breakdown: bool,
    /// Measure Warren alone
    #[arg(long)]
    pub alone: bool,
}

#[derive(Args)]
pub(crate) struct BenchSpace {
    /// Sizes of the pools, several separated by commas [default: 256M]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = bytes)]
    pub sizes: Vec<u64>,
    /// Cells of Warren's fleets, several numbers separated by commas [default: 1,4]
    #[arg(long, value_delimiter = ',', value_parser = super::cells())]
    pub cells: Vec<u16>,
    /// Seconds for which files come and go in each size; 0: not at all
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=100_000))]
    pub churn: Option<u64>,
}

#[derive(Args)]
pub(crate) struct BenchStops {
    /// Cells of the fleets, several numbers separated by commas [default: 1,2,4]
    #[arg(long, value_delimiter = ',', value_parser = super::cells())]
    pub cells: Vec<u16>,
    /// Mounts of a fleet, several numbers separated by commas [default: 1,2]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=8))]
    pub mounts: Vec<u16>,
    /// Programs of a mount, programs with the library, or programs that begin after the stop on an
    /// idle fleet, separated by commas: mount, interposed, idle [default: all]
    #[arg(long, value_name = "LOADS", value_delimiter = ',')]
    pub loads: Vec<stops::Load>,
    /// Processes that are stopped, separated by commas: cell, front, supervisor, keeper, mount (its
    /// keeper), client (a program with open files), none (for comparison) [default: all]
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub kinds: Vec<stops::Kind>,
    /// Stops of each kind in each combination of the others
    #[arg(long, value_name = "N", value_parser = repetitions())]
    pub times: Option<u32>,
    /// Seed of the moments, and of which process is stopped
    #[arg(long)]
    pub seed: Option<u64>,
}

/// The size of a pool that is measured.
fn bytes(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        small if small < BYTES_MIN => Err(format!("give {} or more", size::display(BYTES_MIN))),
        bytes => Ok(bytes),
    }
}
