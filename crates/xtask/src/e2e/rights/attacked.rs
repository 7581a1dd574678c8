//! An honest program's work while a hostile client does what it can (`crate::hostile`).
//!
//! Two honest programs, root's and another user's, must find all their data right. No process may
//! end or grow without bound. When the hostile client is gone, everything that it held must be gone
//! too.
//!
//! The duration of their calls is printed three times: with nothing beside them, beside the hostile
//! client, and beside an honest load (`crate::hostile::load`) of as many threads, which sends as
//! many requests and uses as much CPU time. The slowdown beside that load is due to the machine.
//! The rest of the slowdown beside the hostile client is due to its attacks.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, fcntl_lock, flock};

use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process;
use crate::e2e::harness::survivors::{await_no_survivors, survivors};
use crate::hostile;

/// Files in a directory that only root may search, and their modes.
const CLOSED_FILES: &[(&str, u32)] =
    &[("readable", 0o644), ("writable", 0o666), ("program", 0o4755), ("directory/prey", 0o644)];

/// The duration of the attack; the honest program starts after it and ends before it.
const ATTACK: Duration = Duration::from_secs(8);
const ATTACK_FULL: Duration = Duration::from_secs(60);

/// The time for which the honest programs work before it and beside the honest load, for
/// comparison.
const BEFORE: Duration = Duration::from_secs(2);
const BEFORE_FULL: Duration = Duration::from_secs(15);

/// The time for which the honest load continues after the programs beside it.
const LOAD_MORE: Duration = Duration::from_secs(1);

/// A user other than root and the hostile client's.
const ORDINARY_USER: u32 = 12_345;

/// Private memory that a process of the fleet may have at any time. Memory that clients and cells
/// share is not counted: the segments of the admitted clients bound it.
const PRIVATE_MAX: u64 = 1 << 30;

/// The time in which the fleet must release everything of a client that is gone.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if ground.options.wants("hostile_client") {
        tally.case(&format!("hostile_client ({cells} cells)"), || {
            // A mount's processes may outlive for a moment the command that has ended it.
            await_no_survivors()?;
            // The client is admitted, because the case tests what it can do then.
            let options = ["--clients", "all"];
            let fleet =
                Fleet::start_with(ground, &format!("hostile-{cells}"), "4G", cells, &options)?;
            fleet.during(|fleet| attacked(ground, fleet))
        });
    }
}

fn attacked(ground: &Ground, fleet: &Fleet) -> Result<Verdict> {
    let full = ground.options.full;
    let (attack, before) = if full { (ATTACK_FULL, BEFORE_FULL) } else { (ATTACK, BEFORE) };
    let forbidden = prepare(&fleet.mounted)?;
    let closed = close_in(&fleet.mounted)?;
    let lock = Locked::take(&fleet.mounted)?;
    let quiet = honest_work(ground, fleet, "before", before)?;
    let had = Possessions::of_fleet()?;
    // The attackers name inodes as clients do.
    let numbers = fleet.inode_numbers()?;
    let [forbidden, closed] = [forbidden, closed]
        .map(|seen| seen.into_iter().map(|number| numbers.ino(number).0).collect::<Vec<_>>());
    let mut hostile = set_loose(ground, fleet, attack, &forbidden, &closed)?;
    let beside = honest_work(ground, fleet, "beside", attack - Duration::from_secs(2));
    let during = Possessions::of_fleet();
    let (status, killed) = process::wait(&mut hostile, attack + PATIENCE)?;
    let said = fs::read_to_string(ground.path("hostile.log")).unwrap_or_default();
    let beside = beside?;
    println!("{}", process::tail(&said));
    ensure!(!killed && status.success(), "the hostile client: {status}: {}", process::tail(&said));
    had.must_be_the_processes_of(&during?)?;
    lock.must_be_held()?;
    as_prepared(&fleet.mounted)?;
    let shown = fleet.status()?;
    ensure!(!shown.contains("LOST CHANGE"), "the device has not failed:\n{shown}");
    closed_in(&fleet.mounted)?;
    await_all_given_back(&had)?;
    let loaded = loaded_work(ground, fleet, before, &Effort::of_hostile(&said, attack)?)?;
    compare(&quiet, &loaded, &beside);
    Ok(Verdict::Passed)
}

/// Waits until everything that the hostile client held is gone.
fn await_all_given_back(had: &Possessions) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let after = Possessions::of_fleet()?;
        had.must_be_the_processes_of(&after)?;
        let left = had.grown_to(&after);
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "left by the hostile client: {}", left.join("; "));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Makes files and directories of root's alone, and a directory for all users. Returns the inode
/// numbers of the former.
fn prepare(mounted: &Path) -> Result<Vec<u64>> {
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    let making = "cannot prepare the mount";
    let open = mounted.join("open");
    fs::create_dir(&open).context(making)?;
    mode(&open, 0o1777).context(making)?;
    let mut forbidden = Vec::new();
    for n in 0..4 {
        let (directory, file) = (mounted.join(format!("d{n}")), mounted.join(format!("f{n}")));
        fs::create_dir(&directory).context(making)?;
        fs::write(&file, hostile::MARK.repeat(1000)).context(making)?;
        fs::write(directory.join("prey"), hostile::MARK).context(making)?;
        mode(&directory, 0o700).context(making)?;
        mode(&file, 0o600).context(making)?;
        mode(&directory.join("prey"), 0o600).context(making)?;
        for path in [&directory, &file, &directory.join("prey")] {
            forbidden.push(fs::metadata(path).context(making)?.ino());
        }
    }
    Ok(forbidden)
}

/// Checks that everything is as [`prepare`] left it.
fn as_prepared(mounted: &Path) -> Result<()> {
    let looking = "cannot look at the mount";
    let is_whole = |path: &Path, bytes: &[u8]| {
        let mode = fs::metadata(path).context(looking)?.mode() & 0o7777;
        let found = fs::read(path).context(looking)?;
        ensure!(mode == 0o600 && found == bytes, "{} was changed", path.display());
        Ok(())
    };
    for n in 0..4 {
        let directory = mounted.join(format!("d{n}"));
        is_whole(&mounted.join(format!("f{n}")), &hostile::MARK.repeat(1000))?;
        is_whole(&directory.join("prey"), hostile::MARK)?;
        let found = fs::metadata(&directory).context(looking)?;
        let names = fs::read_dir(&directory).context(looking)?.count();
        ensure!(found.mode() & 0o7777 == 0o700 && names == 1, "{}: {names}", directory.display());
    }
    Ok(())
}

/// Makes objects open to all users in a directory that only root may search: a file to read, a
/// program to run as root, a directory to list. Returns the inode numbers.
fn close_in(mounted: &Path) -> Result<Vec<u64>> {
    let making = "cannot prepare the mount";
    let mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).context(making)
    };
    let closed = mounted.join("closed");
    fs::create_dir_all(closed.join("directory")).context(making)?;
    fs::create_dir(closed.join("world")).context(making)?;
    for (name, its_mode) in CLOSED_FILES {
        fs::write(closed.join(name), hostile::MARK).context(making)?;
        mode(&closed.join(name), *its_mode)?;
    }
    mode(&closed.join("directory"), 0o755)?;
    mode(&closed.join("world"), 0o777)?;
    mode(&closed, 0o700)?;
    for (name, its_mode) in [
        (hostile::PROGRAM, hostile::PROGRAM_MODE.into()),
        (hostile::EXECUTABLE, 0o711),
        (hostile::LOCKED, 0o666),
    ] {
        fs::write(mounted.join(name), hostile::MARK).context(making)?;
        mode(&mounted.join(name), its_mode)?;
    }
    let names = ["directory", "world"].into_iter();
    let names = names.chain(CLOSED_FILES.iter().map(|(name, _)| *name));
    names.map(|name| Ok(fs::metadata(closed.join(name)).context(making)?.ino())).collect()
}

/// Checks that everything is as [`close_in`] left it, and that no device was made.
fn closed_in(mounted: &Path) -> Result<()> {
    let looking = "cannot look at the mount";
    let directory = mounted.join("closed");
    for (inside, names) in [("", 5), ("directory", 1), ("world", 0)] {
        let found = fs::read_dir(directory.join(inside)).context(looking)?.count();
        ensure!(found == names, "closed/{inside} has {found} names");
    }
    for (name, mode) in CLOSED_FILES {
        let found = fs::metadata(directory.join(name)).context(looking)?;
        let bytes = fs::read(directory.join(name)).context(looking)?;
        ensure!(bytes == hostile::MARK, "{name} was changed");
        ensure!(found.mode() & 0o7777 == *mode && found.nlink() == 1, "{name}: {found:?}");
    }
    for entry in fs::read_dir(mounted.join("open")).context(looking)? {
        let entry = entry.context(looking)?;
        let kind = entry.file_type().context(looking)?;
        let is_device = kind.is_block_device() || kind.is_char_device();
        ensure!(!is_device, "a device: {}", entry.path().display());
    }
    Ok(())
}

/// A file that root has locked, in both ways.
struct Locked(fs::File, PathBuf);

impl Locked {
    fn take(mounted: &Path) -> Result<Self> {
        let path = mounted.join(hostile::LOCKED);
        let file = fs::File::options().read(true).write(true).open(&path).context("no file")?;
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).context("no record lock")?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).context("no lock")?;
        Ok(Self(file, path))
    }

    fn must_be_held(&self) -> Result<()> {
        let other = fs::File::open(&self.1).context("no file")?;
        let taken = flock(&other, FlockOperation::NonBlockingLockShared);
        ensure!(taken.is_err(), "the lock of {:?} was lost", self.0);
        Ok(())
    }
}

fn set_loose(
    ground: &Ground,
    fleet: &Fleet,
    time: Duration,
    forbidden: &[u64],
    closed: &[u64],
) -> Result<Child> {
    let log = fs::File::create(ground.path("hostile.log")).context("cannot make a log")?;
    Command::new(std::env::current_exe().context("cannot name this program")?)
        .arg(hostile::TASK)
        .arg(socket_of(&fleet.pool)?)
        .args([ground.seed.to_string(), time.as_secs().to_string()])
        .args(forbidden.iter().map(u64::to_string))
        .arg("--")
        .args(closed.iter().map(u64::to_string))
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share a log")?)
        .stderr(log)
        .spawn()
        .context("cannot start the hostile client")
}

/// The socket of a fleet that root runs. Its name comes from the pool file's device and inode
/// numbers.
fn socket_of(pool: &Path) -> Result<PathBuf> {
    let found = fs::metadata(pool).context("no pool")?;
    Ok(PathBuf::from(format!("/run/warren/{:x}-{:x}.sock", found.dev(), found.ino())))
}

/// The work of the hostile client, for an honest load that does as much.
struct Effort {
    requests_per_second: u64,
    core_percent: u64,
}

impl Effort {
    /// From its last line: `hostile: N requests, N ms of CPU`.
    fn of_hostile(said: &str, time: Duration) -> Result<Self> {
        let last = said.lines().rfind(|line| line.ends_with(" ms of CPU")).context("no effort")?;
        let numbers: Vec<u64> = last.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [requests, cpu_ms] = numbers[..] else { anyhow::bail!("what is {last:?}?") };
        let requests_per_second = (requests / time.as_secs()).max(1);
        Ok(Self { requests_per_second, core_percent: cpu_ms / 10 / time.as_secs() })
    }
}

/// The same work beside an honest load.
fn loaded_work(ground: &Ground, fleet: &Fleet, time: Duration, effort: &Effort) -> Result<Both> {
    let log = fs::File::create(ground.path("load.log")).context("cannot make a log")?;
    let all = time + LOAD_MORE;
    let mut load = Command::new(std::env::current_exe().context("cannot name this program")?)
        .arg(hostile::load::TASK)
        .arg(socket_of(&fleet.pool)?)
        .args([all.as_secs().to_string(), hostile::THREADS.to_string()])
        .args([effort.requests_per_second.to_string(), effort.core_percent.to_string()])
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share a log")?)
        .stderr(log)
        .spawn()
        .context("cannot start the honest load")?;
    let beside = honest_work(ground, fleet, "loaded", time);
    let (status, killed) = process::wait(&mut load, all + PATIENCE)?;
    let said = fs::read_to_string(ground.path("load.log")).unwrap_or_default();
    println!("{}", process::tail(&said));
    ensure!(!killed && status.success(), "the honest load: {status}: {}", process::tail(&said));
    beside
}

/// Both ratios: to a quiet machine, and to an honest load of the same size.
fn compare(quiet: &Both, loaded: &Both, hostile: &Both) {
    let users = [("root", 0), ("another user", 1)];
    for (name, user) in users {
        let of = |both: &Both| both.0[user];
        let (quiet, loaded, hostile) = (of(quiet), of(loaded), of(hostile));
        for (what, ms) in [("median", Took::median as fn(&Took) -> f64), ("p95", Took::most)] {
            let (quiet, loaded, hostile) = (ms(&quiet), ms(&loaded), ms(&hostile));
            println!(
                "{name}, {what}: {hostile:.2} ms beside the hostile client, {:.2} times the {quiet:.2} of a quiet fleet, \
                 {:.2} times the {loaded:.2} beside an honest load",
                hostile / quiet,
                hostile / loaded,
            );
        }
    }
}

/// The durations of rounds of an honest program's work, in ms.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Took {
    median: f64,
    /// The 95th percentile.
    most: f64,
}

impl Took {
    /// Parses the output of the program.
    fn of(printed: &str) -> Result<Self> {
        let number = |word: &str| word.trim_end_matches(',').parse::<f64>().ok();
        let after = |name: &str| {
            let rest = printed.split_once(name).and_then(|(_, rest)| rest.split(' ').next());
            rest.and_then(number).with_context(|| format!("no {name:?} in {printed:?}"))
        };
        // A round may be shorter than the output can show.
        let at_least = |ms: f64| ms.max(0.01);
        Ok(Self { median: at_least(after("median ")?), most: at_least(after("up to ")?) })
    }

    fn median(&self) -> f64 {
        self.median
    }

    fn most(&self) -> f64 {
        self.most
    }
}

/// The durations of root's program and of another user's.
struct Both([Took; 2]);

/// The work of root's and of another user's program at the same time: `before`, `beside` the
/// hostile client, or `loaded`.
fn honest_work(ground: &Ground, fleet: &Fleet, when: &str, time: Duration) -> Result<Both> {
    let open = fleet.mounted.join("open");
    let (roots, ordinary) = std::thread::scope(|scope| {
        let ordinary = || honest_program(ground, &open, Some(ORDINARY_USER), when, time);
        let ordinary = scope.spawn(ordinary);
        (honest_program(ground, &fleet.mounted, None, when, time), ordinary.join())
    });
    let roots = roots.context("root's program")?;
    println!("{when}, root: {roots}");
    let ordinary = ordinary.expect("it does not panic").context("another user's program")?;
    println!("{when}, another user: {ordinary}");
    Ok(Both([Took::of(&roots)?, Took::of(&ordinary)?]))
}

fn honest_program(
    ground: &Ground,
    place: &Path,
    user: Option<u32>,
    when: &str,
    time: Duration,
) -> Result<String> {
    let mut command = Command::new("python3");
    command
        .arg(ground.case("faults/honest.py"))
        .args([time.as_secs().to_string(), ground.seed.to_string(), format!("honest-{when}")])
        .current_dir(place);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let name = user.map_or("root".into(), |user| user.to_string());
    let run = ground.path(&format!("run-{name}"));
    fs::create_dir_all(&run).context("cannot make a place to run in")?;
    let outcome = process::run(command, &run, time + PATIENCE)?;
    let outcome = outcome.expect_success("the honest program")?;
    Ok(outcome.stdout.trim_end().to_owned())
}

/// The resources of each process of the fleet.
struct Possessions(Vec<Held>);

struct Held {
    pid: u32,
    descriptors: usize,
    mappings: usize,
    private: u64,
}

impl Possessions {
    fn of_fleet() -> Result<Self> {
        let held = survivors().into_keys().map(|pid| {
            let process = PathBuf::from(format!("/proc/{pid}"));
            let text = |name| fs::read_to_string(process.join(name)).context("a process is gone");
            let private = text("status")?
                .lines()
                .find_map(|line| {
                    line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok()
                })
                .map_or(0, |kib: u64| kib << 10);
            Ok(Held {
                pid,
                descriptors: fs::read_dir(process.join("fd")).context("a process is gone")?.count(),
                mappings: text("maps")?.matches("warren-client").count(),
                private,
            })
        });
        held.collect::<Result<_>>().map(Self)
    }

    fn must_be_the_processes_of(&self, later: &Self) -> Result<()> {
        let pids = |it: &Self| it.0.iter().map(|held| held.pid).collect::<Vec<_>>();
        ensure!(pids(self) == pids(later), "processes {:?} became {:?}", pids(self), pids(later));
        for held in &later.0 {
            let Held { pid, private, .. } = held;
            ensure!(*private <= PRIVATE_MAX, "process {pid} has {} MiB", private >> 20);
        }
        Ok(())
    }

    /// The resources of which there are more than before.
    fn grown_to(&self, later: &Self) -> Vec<String> {
        let mut grown = Vec::new();
        for (was, is) in self.0.iter().zip(&later.0) {
            if is.descriptors > was.descriptors || is.mappings > was.mappings {
                grown.push(format!(
                    "process {}: {} descriptors (were {}), {} clients' segments (were {})",
                    is.pid, is.descriptors, was.descriptors, is.mappings, was.mappings
                ));
            }
        }
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_programs_print_is_read() {
        let printed = "median 0.33 ms, 95 of 100 up to 2.1, slowest 177, 1042 rounds";
        assert_eq!(Took::of(printed).expect("numbers"), Took { median: 0.33, most: 2.1 });
        assert!(Took::of("only 3 rounds").is_err());
        let said =
            "hostile: count: Deeds { requests: 9 }\nhostile: 6000 requests, 12300 ms of CPU\n";
        let effort = Effort::of_hostile(said, Duration::from_secs(10)).expect("an effort");
        assert_eq!((effort.requests_per_second, effort.core_percent), (600, 123));
        assert!(Effort::of_hostile("hostile: seed 1", Duration::from_secs(1)).is_err());
    }
}
