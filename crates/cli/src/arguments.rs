//! The command line.

mod bench;
mod pool;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use warren_base::limits::CELLS_MAX;
use warren_log::Target;
use warren_runtime::Clients;

use crate::{clients, size};

pub(crate) use bench::{
    Bench, BenchApps, BenchBeside, BenchClient, BenchClients, BenchFsync, BenchHive, BenchMicro,
    BenchOn, BenchPaper, BenchRecovery, BenchScale, BenchSpace, BenchStops, BenchTask,
};
pub(crate) use pool::{Grow, Mkfs, Rejoin};

const EXAMPLES: &str = "\
Examples:
  warren run -- bash -c 'git clone /src/project && make -C project -j'
        run a command on Warren; its pool is made at the first use
  warren mkfs --size 100G /data/pool && warren mount /data/pool /mnt
        make a pool and mount it
  warren status          the state of every fleet of this machine
  warren umount /mnt && warren stop /data/pool && warren fsck /data/pool

Exit codes:
  0 success            1 failure              2 wrong usage
  3 not a pool, or a damaged one              4 the pool, or a mount, is in use
  5 permission denied  6 no FUSE              7 no such file
  8 no fleet serves the pool
  9 stop, run (if the command's own is 0), umount: the fleet continues to serve, because its last
    checkpoint failed or a cell is taken out
  run: the command's own; 128 + signal if it was killed, 126 or 127 if it could not be run
  fsck: the bits of fsck(8): 0 sound, 1 errors repaired, 4 errors left, 8 could not be checked,
        16 wrong usage, 32 interrupted";

/// A user-level POSIX file system, served by a fleet of small processes.
#[derive(Parser)]
#[command(name = "warren", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub task: Task,
}

#[derive(Subcommand)]
pub(crate) enum Task {
    /// Make a pool in a file or on a block device
    Mkfs(Mkfs),
    /// Make a pool larger, while it is served or not
    Grow(Grow),
    /// Serve a pool in the foreground until stopped
    Serve(Serve),
    /// Mount a pool, starting its fleet if none serves it
    Mount(Mount),
    /// Unmount a directory
    Umount(Umount),
    /// Run a command inside a mount
    Run(Run),
    /// Show the fleet of a pool, or all fleets
    Status(Status),
    /// Stop the fleet of a pool after a last checkpoint
    Stop(Stop),
    /// Take a cell in again that was taken out, because its processes ended again and again
    Rejoin(Rejoin),
    /// Check a pool and repair it
    Fsck(Fsck),
    /// Inspect a pool
    #[command(subcommand)]
    Debug(Debug),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Documents(Documents),
    /// Run the simulator
    #[cfg(feature = "sim")]
    Sim(Sim),
    /// Cut the power at every flush of short sequences of operations
    #[cfg(feature = "sim")]
    Ace(Ace),
    /// Measure the cost of calls
    Bench(Bench),
}

/// The numbers of cells that a fleet may have.
pub(crate) const CELLS: RangeInclusive<u16> = 1..=CELLS_MAX as u16;

/// The options of a fleet's start.
#[derive(Args, Clone)]
pub(crate) struct FleetSize {
    /// Server processes, 1 to 64; may differ from start to start [default: 2, or 1 on one core]
    #[arg(long, value_parser = cells())]
    pub cells: Option<u16>,
    /// Threads of each cell; only 1 for now
    #[arg(long, default_value_t = 1, value_parser = threads)]
    pub threads: u16,
    /// Memory for file data and tree nodes, all cells together [default: 256MiB]
    #[arg(long, value_parser = size::parse)]
    pub cache: Option<u64>,
    /// Users that the fleet admits besides root and the user who starts it: USER, :GROUP or all
    #[arg(long, value_name = "WHO", value_parser = clients::parse)]
    pub clients: Option<Clients>,
    /// Where faults, starts and ends of processes are logged: stderr, journal or a FILE, which is
    /// rotated
    #[arg(long, value_name = "WHERE", default_value = "stderr", value_parser = log())]
    pub log: Target,
}

/// Features that root may allow on a mount, if the fleet and the pool are also root's.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct Powers {
    /// Let programs on the mount run as their owner (set-user-ID, set-group-ID, file capabilities)
    #[arg(long)]
    pub suid: bool,
    /// Let programs open device nodes on the mount
    #[arg(long)]
    pub dev: bool,
}

/// The options for the way in which the command of `run` uses the mount.
#[derive(Args)]
pub(crate) struct Interpose {
    /// Do not load the library that answers calls by path without the kernel (LD_PRELOAD)
    #[arg(long)]
    pub no_interpose: bool,
    /// Append to FILE what the library has done in each process of the command
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub fleet: FleetSize,
    /// Let the users of --clients change nothing; they may use its mounts as these allow
    #[arg(long)]
    pub read_only_clients: bool,
    /// The pool
    #[arg(long)]
    pub pool: PathBuf,
}

#[derive(Args)]
pub(crate) struct Mount {
    #[command(flatten)]
    pub fleet: FleetSize,
    /// Serve the mount in the foreground
    #[arg(long, short)]
    pub foreground: bool,
    #[command(flatten)]
    pub powers: Powers,
    /// Options as of mount(8), separated by commas: ro, noexec, noatime, strictatime, nodiratime,
    /// sync, dirsync, nosymfollow and their opposites, suid, dev, allow_other, remount; and of the
    /// fleet: cells=N, cache=SIZE, clients=WHO, log=WHERE
    #[arg(short, value_name = "OPTIONS")]
    pub options: Vec<String>,
    pub pool: PathBuf,
    /// An existing directory
    pub directory: PathBuf,
}

#[derive(Args)]
pub(crate) struct Umount {
    /// Detach the mount now; it ends when nothing uses it any more
    #[arg(long, short)]
    pub lazy: bool,
    pub directory: PathBuf,
}

#[derive(Args)]
#[command(after_help = crate::environment::OF_RUN)]
pub(crate) struct Run {
    #[command(flatten)]
    pub fleet: FleetSize,
    /// The pool [default: warren/pool in the user's data directory, made at the first use]
    #[arg(long)]
    pub pool: Option<PathBuf>,
    /// Size of the default pool if this run makes it, like 256M [default: 64GiB, sparse, of which
    /// 66MiB are allocated at once; 256M: 34MiB, 64M: 9MiB]
    #[arg(long, value_parser = size::parse, conflicts_with = "pool")]
    pub size: Option<u64>,
    /// Where to mount [default: a new directory, removed afterwards]
    #[arg(long)]
    pub mount: Option<PathBuf>,
    #[command(flatten)]
    pub powers: Powers,
    #[command(flatten)]
    pub interpose: Interpose,
    /// The command and its arguments, also behind `--`; its working directory is the mount's root
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct Status {
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
    /// The pool [default: all pools that are served here]
    pub pool: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Stop {
    /// Write back data that programs have stored through mappings, then cut off the programs that
    /// use its mounts
    #[arg(long)]
    pub force: bool,
    /// Stop even if the last checkpoint fails: what was not synced is lost
    #[arg(long)]
    pub discard: bool,
    pub pool: PathBuf,
}

#[derive(Args)]
pub(crate) struct Fsck {
    /// Change nothing; the logs of a pool that was not left in order are replayed in memory
    #[arg(short = 'n', long, conflicts_with_all = ["yes", "preen"])]
    pub no_changes: bool,
    /// Repair all damage without asking
    #[arg(short = 'y', long, conflicts_with = "preen")]
    pub yes: bool,
    /// Repair without asking if that loses nothing; otherwise repair nothing (-a is the same)
    #[arg(short = 'p', short_alias = 'a', long)]
    pub preen: bool,
    /// Accepted for fsck(8): everything is always checked
    #[arg(short = 'f', long = "force", hide = true)]
    pub _everything: bool,
    /// Check the last checkpoint of a pool that is served; changes nothing
    #[arg(long, conflicts_with_all = ["yes", "preen"])]
    pub online: bool,
    /// Also read all file data and compare checksums
    #[arg(long)]
    pub contents: bool,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
    pub pool: PathBuf,
}

#[derive(Args)]
pub(crate) struct Documents {
    /// Where to write them
    pub directory: PathBuf,
}

#[derive(Subcommand)]
pub(crate) enum Debug {
    /// Print structures as they are on the device; a served pool may change meanwhile
    Dump(Dump),
    /// Print which processes of a fleet's cells ended lately, why, and how they were replaced
    Fault(Faults),
    /// Print on which cells files depend: those of their directories, and their own
    Depends(Depends),
}

#[derive(Args)]
pub(crate) struct Depends {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Files and directories in mounts
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Faults {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    pub pool: PathBuf,
    /// Only this fault
    pub number: Option<u64>,
}

#[derive(Args)]
pub(crate) struct Dump {
    /// Print JSON, one structure a line
    #[arg(long)]
    pub json: bool,
    pub pool: PathBuf,
    #[command(subcommand)]
    pub subject: DumpSubject,
}

#[derive(Subcommand, Clone, Copy)]
pub(crate) enum DumpSubject {
    /// Both copies of the superblock
    Superblock,
    /// The root slots of a shard, or all used ones
    Slots { shard: Option<u16> },
    /// The owners of the chunks
    Map,
    /// The log tables, and the records that would be replayed
    Log,
    /// All nodes of a shard's tree
    Tree { shard: u16 },
    /// All records of the inode that programs see with this number
    Inode { ino: u64 },
    /// A block, decoded by its magic number
    Block { block: u64 },
}

#[cfg(feature = "sim")]
#[derive(Args)]
pub(crate) struct Sim {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of seeds, one after the other
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub seeds: u64,
    /// Operations a seed [default: 500]
    #[arg(long)]
    pub steps: Option<u32>,
    /// Cells [default: drawn from the seed]
    #[arg(long, value_parser = cells())]
    pub cells: Option<u16>,
    /// Cut the power at random moments, and check that synced data survives
    #[arg(long, conflicts_with_all = ["steps", "cells"])]
    pub crash: bool,
    /// Kill no cells
    #[arg(long, conflicts_with = "crash")]
    pub no_kills: bool,
    /// Damage one shard at a random moment, and see that only what needs it is refused
    #[arg(long)]
    pub damage: bool,
    /// Break one cell for a while, so that it is taken out, and taken in again later
    #[arg(long, conflicts_with = "damage")]
    pub outage: bool,
    /// Threads that run seeds [default: one per core]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(feature = "sim")]
#[derive(Args)]
pub(crate) struct Ace {
    /// Number of sequences of two operations, besides all sequences of one
    #[arg(long, default_value_t = 200, value_name = "COUNT")]
    pub pairs: usize,
    /// Seed that draws them
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Execute so many sequences of two operations on real fleets instead, whose processes record
    /// their writes and flushes; as root
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["pairs", "threads"])]
    pub real: Option<usize>,
    /// The device ignores flushes; the run passes if that is found
    #[arg(long)]
    pub no_flush: bool,
    /// Threads [default: one per core]
    #[arg(long)]
    pub threads: Option<usize>,
}

fn log() -> impl TypedValueParser<Value = Target> {
    OsStringValueParser::new().try_map(|word| Target::parse(&word))
}

fn cells() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(i64::from(*CELLS.start())..=i64::from(*CELLS.end()))
}

/// A cell runs its affinities in one thread for now, so any other number is refused.
fn threads(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(1) => Ok(1),
        _ => Err("a cell has one thread for now; give 1, and more --cells instead".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Arguments, Task};

    #[test]
    fn a_command_begins_with_the_first_word_that_is_no_option() {
        let parsed = |line: &str| {
            let arguments = Arguments::try_parse_from(line.split(' ')).ok()?;
            let Task::Run(run) = arguments.task else { return None };
            Some(run.command.join(" ".as_ref()).into_string().expect("text"))
        };
        for line in ["warren run make -j4 --pool x", "warren run -- make -j4 --pool x"] {
            assert_eq!(parsed(line).as_deref(), Some("make -j4 --pool x"), "{line}");
        }
        let behind = parsed("warren run --cells 2 --no-interpose make -- all");
        assert_eq!(behind.as_deref(), Some("make -- all"));
        for line in ["warren run", "warren run --", "warren run --unknown make", "warren run -j4"] {
            assert_eq!(parsed(line), None, "{line}");
        }
    }
}
