//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use warren_base::limits::{CELLS_MAX, SHARDS_MAX};
use warren_bench::{LOG_BYTES_MAX, REPETITIONS_MAX};
use warren_log::Target;
use warren_runtime::Clients;

use crate::{clients, size};

const EXAMPLES: &str = "\
Examples:
  warren run -- bash -c 'git clone /src/project && make -C project -j'
        run a command on Warren; its pool is made at the first use
  warren mkfs --size 100G /data/pool && warren mount /data/pool /mnt
        make a pool and mount it
  warren status          what every fleet of this machine does
  warren umount /mnt && warren stop /data/pool && warren fsck /data/pool

Exit codes:
  0 success            1 failure              2 wrong usage
  3 not a pool, or a damaged one              4 the pool is in use
  5 permission denied  6 no FUSE              7 no such file
  8 no fleet serves the pool
  run: the command's own; 128 + signal if it was killed, 126 or 127 if it could not be run
  fsck: the bits of fsck(8): 0 sound, 1 errors repaired, 4 errors left, 8 could not be checked,
        16 wrong usage, 32 interrupted";

/// A user-level POSIX file system, served by a fleet of small processes.
#[derive(Parser)]
#[command(name = "warren", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub task: Task,
}

#[derive(Subcommand)]
pub enum Task {
    /// Make a pool in a file or on a block device
    Mkfs(Mkfs),
    /// Serve a pool in the foreground until stopped
    Serve(Serve),
    /// Mount a pool, starting its fleet if none serves it
    Mount(Mount),
    /// Unmount a directory
    Umount(Umount),
    /// Run a command inside a mount
    Run(Run),
    /// Show what serves a pool, or all fleets
    Status(Status),
    /// Stop the fleet of a pool after a last checkpoint
    Stop(Stop),
    /// Check a pool and repair it
    Fsck(Fsck),
    /// Look into a pool
    #[command(subcommand)]
    Debug(Debug),
    /// Run the simulator
    #[cfg(feature = "sim")]
    Sim(Sim),
    /// Cut the power at every flush of short sequences of operations
    #[cfg(feature = "sim")]
    Ace(Ace),
    /// Measure what calls cost
    Bench(Bench),
}

#[derive(Args)]
pub struct Mkfs {
    /// Bytes of the pool, like 10G; of a block device or an existing file its own size if not given
    #[arg(long, short, value_parser = size::parse)]
    pub size: Option<u64>,
    /// Slices of the name space that can be served apart
    #[arg(long, value_parser = shards())]
    pub shards: Option<u16>,
    /// Bytes of the op logs, like 64M: the more, the fewer checkpoints, and the longer a recovery
    #[arg(long, value_parser = size::parse)]
    pub log_size: Option<u64>,
    /// A name for people, at most 64 bytes
    #[arg(long, default_value = "")]
    pub label: String,
    /// Have the host allocate all of the file now, and keep it: else it does as the pool fills
    #[arg(long)]
    pub reserve: bool,
    /// Overwrite whatever is there
    #[arg(long, short)]
    pub force: bool,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
    /// A file, which is made sparse, or a block device
    pub pool: PathBuf,
}

/// How a fleet is started.
#[derive(Args, Clone)]
pub struct FleetSize {
    /// Server processes, 1 to 64; may differ from start to start [default: 2, or 1 on one core]
    #[arg(long, value_parser = cells())]
    pub cells: Option<u16>,
    /// Threads of each cell; for now 1
    #[arg(long, default_value_t = 1, value_parser = threads)]
    pub threads: u16,
    /// Bytes of file data and tree nodes that all cells together keep in memory
    #[arg(long, default_value = "256MiB", value_parser = size::parse)]
    pub cache: u64,
    /// Who may use the fleet besides root and the user who starts it: USER, :GROUP or all
    #[arg(long, value_name = "WHO", value_parser = clients::parse)]
    pub clients: Option<Clients>,
    /// Where faults, starts and ends of processes are recorded: stderr, journal or a FILE, which is rotated
    #[arg(long, value_name = "WHERE", default_value = "stderr", value_parser = log())]
    pub log: Target,
}

/// What root may allow on a mount of a fleet and a pool of root's own.
#[derive(Args, Clone, Copy, Default)]
pub struct Powers {
    /// Let programs on the mount run as their owner (set-user-ID, set-group-ID, file capabilities)
    #[arg(long)]
    pub suid: bool,
    /// Let device nodes on the mount be opened
    #[arg(long)]
    pub dev: bool,
}

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub fleet: FleetSize,
    /// The pool
    #[arg(long)]
    pub pool: PathBuf,
}

#[derive(Args)]
pub struct Mount {
    #[command(flatten)]
    pub fleet: FleetSize,
    /// Serve the mount in the foreground
    #[arg(long, short)]
    pub foreground: bool,
    #[command(flatten)]
    pub powers: Powers,
    pub pool: PathBuf,
    /// An existing directory
    pub directory: PathBuf,
}

#[derive(Args)]
pub struct Umount {
    /// Detach it now and finish when nothing uses it any more
    #[arg(long, short)]
    pub lazy: bool,
    pub directory: PathBuf,
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub fleet: FleetSize,
    /// The pool [default: warren/pool in the user's data directory, made at the first use]
    #[arg(long)]
    pub pool: Option<PathBuf>,
    /// Where to mount [default: a new directory, removed afterwards]
    #[arg(long)]
    pub mount: Option<PathBuf>,
    #[command(flatten)]
    pub powers: Powers,
    /// The command and its arguments; its working directory is the mount's root
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct Status {
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
    /// The pool [default: all that are served here]
    pub pool: Option<PathBuf>,
}

#[derive(Args)]
pub struct Stop {
    /// Write back what programs have stored through mappings, then cut off those that use its mounts
    #[arg(long)]
    pub force: bool,
    /// Stop even if the last checkpoint fails: what was not synced is lost
    #[arg(long)]
    pub discard: bool,
    pub pool: PathBuf,
}

#[derive(Args)]
pub struct Fsck {
    /// Change nothing; logs of a pool that was not left in order are replayed in memory
    #[arg(short = 'n', long, conflicts_with_all = ["yes", "preen"])]
    pub no_changes: bool,
    /// Repair whatever is wrong without asking
    #[arg(short = 'y', long, conflicts_with = "preen")]
    pub yes: bool,
    /// Repair what costs nothing without asking, and nothing if there is more (-a is the same)
    #[arg(short = 'p', short_alias = 'a', long)]
    pub preen: bool,
    /// Check the last checkpoint of a pool that is being served; changes nothing
    #[arg(long, conflicts_with_all = ["yes", "preen"])]
    pub online: bool,
    /// Read all file data too and compare checksums
    #[arg(long)]
    pub contents: bool,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
    pub pool: PathBuf,
}

#[derive(Subcommand)]
pub enum Debug {
    /// Print structures as they lie on the device; a pool that is served may change meanwhile
    Dump(Dump),
}

#[derive(Args)]
pub struct Dump {
    /// Print JSON, one structure a line
    #[arg(long)]
    pub json: bool,
    pub pool: PathBuf,
    #[command(subcommand)]
    pub subject: DumpSubject,
}

#[derive(Subcommand, Clone, Copy)]
pub enum DumpSubject {
    /// Both copies of the superblock
    Superblock,
    /// The root slots of a shard, or of all that were used
    Slots { shard: Option<u16> },
    /// Who owns which chunks
    Map,
    /// The log tables, and the records that would be replayed
    Log,
    /// All nodes of a shard's tree
    Tree { shard: u16 },
    /// All records of an inode
    Inode { ino: u64 },
    /// A block, as what its magic says it is
    Block { block: u64 },
}

#[cfg(feature = "sim")]
#[derive(Args)]
pub struct Sim {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many seeds, one after the other
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub seeds: u64,
    /// Operations a seed [default: 500]
    #[arg(long)]
    pub steps: Option<u32>,
    /// Cells [default: drawn from the seed]
    #[arg(long, value_parser = cells())]
    pub cells: Option<u16>,
    /// Cut the power at random moments, and see that what was synced is there
    #[arg(long, conflicts_with_all = ["steps", "cells"])]
    pub crash: bool,
    /// Kill no cells
    #[arg(long, conflicts_with = "crash")]
    pub no_kills: bool,
    /// Damage one shard at a random moment, and see that only what needs it is refused
    #[arg(long)]
    pub damage: bool,
    /// Threads that run seeds [default: one a core]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(feature = "sim")]
#[derive(Args)]
pub struct Ace {
    /// Sequences of two operations, beside all of one
    #[arg(long, default_value_t = 200, value_name = "COUNT")]
    pub pairs: usize,
    /// Which of them: another number draws others
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Performs so many of the sequences of two operations on real fleets instead, whose processes record what
    /// they write and flush; as root
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["pairs", "threads"])]
    pub real: Option<usize>,
    /// The device ignores flushes: passes if that is found
    #[arg(long)]
    pub no_flush: bool,
    /// Threads [default: one a core]
    #[arg(long)]
    pub threads: Option<usize>,
}

#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    pub what: BenchTask,
}

#[derive(Subcommand)]
pub enum BenchTask {
    /// One client and one cell, in memory, beside the same calls on other file systems
    Client(BenchClient),
    /// Append and fsync by one and by several, beside the same on a file system and on the bare device
    Fsync(BenchFsync),
    /// How long nobody is answered after a kill of a cell, and of a fleet, with full logs
    Recovery(BenchRecovery),
}

#[derive(Args)]
pub struct BenchRecovery {
    /// Where the temporary pools are made [default: the temporary directory]
    #[arg(long)]
    pub directory: Option<PathBuf>,
    /// Cells of the fleets
    #[arg(long, value_parser = cells())]
    pub cells: Option<u16>,
    /// MiB of all logs together
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=LOG_BYTES_MAX >> 20))]
    pub log_mib: Option<u64>,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum BenchOn {
    /// A file beside files of the same file system
    File,
    /// A loop device beside an ext4 on another, over two files; needs root
    Loop,
    /// A zram device, which is memory, beside an ext4 on another; needs root
    Zram,
}

#[derive(Args)]
pub struct BenchFsync {
    /// Where the temporary pool and the files to compare with are made, or the files under loop devices
    /// [default: the temporary directory]
    #[arg(long)]
    pub directory: Option<PathBuf>,
    /// What the pool lies on, and what it is compared with
    #[arg(long, value_enum, value_name = "MEDIUM", default_value_t = BenchOn::File)]
    pub on: BenchOn,
    /// Rounds that are counted
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Appends of each writer in a round
    #[arg(long, value_parser = repetitions())]
    pub calls: Option<u32>,
    /// Measure Warren alone
    #[arg(long)]
    pub alone: bool,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct BenchClient {
    /// Where the temporary pool and the files to compare with are made [default: the temporary directory]
    #[arg(long)]
    pub directory: Option<PathBuf>,
    /// Rounds that are counted
    #[arg(long, value_parser = repetitions())]
    pub rounds: Option<u32>,
    /// Calls of a batch
    #[arg(long, value_parser = repetitions())]
    pub calls: Option<u32>,
    /// Show where the time of an operation goes
    #[arg(long)]
    pub breakdown: bool,
    /// Measure Warren alone
    #[arg(long)]
    pub alone: bool,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
}

fn log() -> impl TypedValueParser<Value = Target> {
    OsStringValueParser::new().try_map(|word| Target::parse(&word))
}

fn cells() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=CELLS_MAX as i64)
}

/// Rounds, or calls in each, of a benchmark.
fn repetitions() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(REPETITIONS_MAX))
}

fn shards() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX))
}

/// A cell runs its affinities in one thread for now: any other number would be ignored.
fn threads(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(1) => Ok(1),
        _ => Err("a cell has one thread for now; give 1, and more --cells instead".into()),
    }
}
