//! Fronts are killed (`kill -9`) again and again under load, and then fronts, cells and supervisors
//! in turn. The mounts stay, no call fails or takes long, and every change is executed once.
//!
//! Threads work in two mounts of one fleet. Each thread knows the result of every call, so that a
//! create, rename or append that is executed twice shows at once. What one mount has acknowledged
//! must be visible in the other. This test has its own `main`, because the processes of a fleet and
//! of a mount run the same program. It needs root and `/dev/fuse`. Without them it prints a note
//! and passes. `--full` kills more processes. `--mixed KILLS` kills that many processes of all
//! kinds and does nothing else. `--cells N` sets the number of cells, and `--one-mount` uses one
//! mount.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod mapping;
mod mounter;
mod mounting;

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mapping::Mapping;
use mounter::{mount_until_signalled, mounter};
use mounting::{Scratch, enter_mount_namespace, play_role};
use rustix::fs::{FlockOperation, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use warren_fuse::Watchdog;

const POOL_BYTES: u64 = 1 << 30;
const CELLS: u16 = 3;
const KILLS: u32 = 24;
const KILLS_FULL: u32 = 200;
/// The same for fronts, cells and supervisors in turn.
const MIXED: u32 = 24;
const MIXED_FULL: u32 = 200;
/// The time limits of each kill, and of the rest of the test.
const LIMIT_PER_KILL: Duration = Duration::from_millis(1500);
const LIMIT_BASE: Duration = Duration::from_secs(40);
/// The longest pause before a cell or a supervisor is killed.
const PAUSE_MAX_MS: u64 = 400;
/// The time in which a killed process must be replaced.
const RESTART_MAX: Duration = Duration::from_secs(20);
/// No round of a worker may take longer, and so no call.
const CALL_MAX: Duration = Duration::from_secs(5);
const PAGE: usize = 4096;
/// The role of a process that does the same as `warren serve`.
const SERVER: &str = "server";

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = play_role(&args, mount_until_signalled) {
        return code;
    }
    if let [role, pool, cells] = args.as_slice()
        && role == SERVER
    {
        return serve_until_signalled(Path::new(pool), number(cells));
    }
    if args.iter().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    if !enter_mount_namespace() {
        return ExitCode::SUCCESS;
    }
    let value = |option: &str| args.windows(2).find(|pair| pair[0] == option).map(|pair| &pair[1]);
    let is_given = |option: &str| args.iter().any(|arg| arg == option);
    let cells = value("--cells").map_or(CELLS, |cells| number(cells));
    let mounts = if is_given("--one-mount") { 1 } else { 2 };
    let plan = |kills, victims| Plan { kills, victims, cells, mounts };
    match (value("--mixed"), is_given("--full")) {
        (Some(kills), _) => run(&plan(number(kills), ALL)),
        (None, true) => [plan(KILLS_FULL, FRONTS), plan(MIXED_FULL, ALL)].iter().for_each(run),
        (None, false) => [plan(KILLS, FRONTS), plan(MIXED, ALL)].iter().for_each(run),
    }
    ExitCode::SUCCESS
}

fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(arg: &OsStr) -> T {
    arg.to_str().expect("a number").parse().expect("a number")
}

/// The kind of process that is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Front,
    Cell,
    Supervisor,
}

const FRONTS: &[Victim] = &[Victim::Front];
const ALL: &[Victim] =
    &[Victim::Front, Victim::Front, Victim::Front, Victim::Cell, Victim::Cell, Victim::Supervisor];

/// The number of processes to kill, their kinds (by their weights), and the load meanwhile.
struct Plan {
    kills: u32,
    victims: &'static [Victim],
    cells: u16,
    mounts: usize,
}

impl Plan {
    fn victims_name(&self) -> &'static str {
        if self.victims == FRONTS { "fronts" } else { "fronts, cells and supervisors" }
    }
}

fn serve_until_signalled(pool: &Path, cells: u16) -> ExitCode {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).expect("prctl");
    let options = warren_runtime::ServeOptions {
        cache_bytes: 64 << 20,
        ..warren_runtime::ServeOptions::new(pool, cells)
    };
    match warren_runtime::serve(&options, |_| println!()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The mount keeper's process, whose child is the front.
struct Mount {
    keeper: Child,
    _watchdog: Watchdog,
}

impl Mount {
    fn start(pool: &Path, dir: &Path, limit: Duration) -> Self {
        let keeper = mounter(pool, dir);
        let watchdog = Watchdog::abort_after(dir, limit).expect("watchdog");
        Self { keeper, _watchdog: watchdog }
    }

    /// The youngest child of the mount keeper, when it is another one than `not`. Older children
    /// may exist, of which the kernel holds a thread.
    fn front(&self, not: Option<Pid>) -> Pid {
        let id = self.keeper.id();
        let deadline = Instant::now() + RESTART_MAX;
        loop {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
            let children = children.expect("the mount keeper runs");
            let child = children.split_whitespace().last().and_then(|pid| pid.parse().ok());
            if let Some(child) = child.and_then(Pid::from_raw).filter(|pid| Some(*pid) != not) {
                return child;
            }
            assert!(Instant::now() < deadline, "no front replaces the one that was killed");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn unmount(mut self) {
        kill_process(Pid::from_child(&self.keeper), Signal::TERM).expect("kill");
        assert!(self.keeper.wait().expect("wait").success());
    }
}

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The state that all workers share.
struct Workload {
    mounts: [PathBuf; 2],
    stop: AtomicBool,
    calls: AtomicU64,
    critical: AtomicU32,
    failed: AtomicBool,
    /// The expected counter in the mapped page.
    mapped: AtomicU64,
    /// The longest round of a worker, in microseconds.
    slowest: AtomicU64,
}

impl Workload {
    /// Calls `work` with the number of the round until `stop` is set.
    fn repeat(&self, mut work: impl FnMut(u64)) {
        let mut round = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            work(round);
            let took = start.elapsed();
            self.slowest.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
            assert!(took < CALL_MAX, "a round took {took:?}");
            round += 1;
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
        assert!(round > 0, "no round was completed");
    }
}

type Worker = fn(&Workload);

const WORKERS: &[(&str, Worker)] = &[
    ("names", names),
    ("moves one", |load| moves(load, 0)),
    ("moves two", |load| moves(load, 1)),
    ("appends", appends),
    ("data", data),
    ("attributes", attributes),
    ("flock one", |load| flock_holder(load, 0)),
    ("flock two", |load| flock_holder(load, 1)),
    ("record lock one", |load| record_lock_holder(load, 0)),
    ("record lock two", |load| record_lock_holder(load, 1)),
    ("mapping one", |load| mapped_count(load, 0)),
    ("mapping two", |load| mapped_count(load, 1)),
    ("shared file one", |load| shared_file(load, 0)),
    ("shared file two", |load| shared_file(load, 1)),
    ("shared file three", |load| shared_file(load, 2)),
    ("shared file four", |load| shared_file(load, 3)),
    ("from one mount to the other", across),
    ("old descriptors", old_descriptors),
];

fn run(plan: &Plan) {
    let scratch = Scratch::new("warren-front-kill", POOL_BYTES);
    let dirs = &["one", "two"].map(|name| scratch.mount_point(name))[..plan.mounts];
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_nanos() as u64;
    let Plan { kills, cells, mounts, .. } = plan;
    println!("seed {seed}, {kills} kills, {cells} cells, {mounts} mounts");
    let mut fleet = Command::new(std::env::current_exe().expect("this program"))
        .args([SERVER.as_ref(), scratch.pool.as_os_str(), cells.to_string().as_ref()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut ready = [0];
    fleet.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("a fleet");
    let limit = LIMIT_BASE + LIMIT_PER_KILL * *kills;
    let mounts: Vec<_> = dirs.iter().map(|dir| Mount::start(&scratch.pool, dir, limit)).collect();
    prepare(&dirs[0]);
    let load = Arc::new(Workload {
        mounts: [&dirs[0], &dirs[dirs.len() - 1]].map(PathBuf::clone),
        stop: AtomicBool::new(false),
        calls: AtomicU64::new(0),
        critical: AtomicU32::new(0),
        failed: AtomicBool::new(false),
        mapped: AtomicU64::new(0),
        slowest: AtomicU64::new(0),
    });
    let workers: Vec<_> = WORKERS
        .iter()
        .map(|&(name, worker)| {
            let load = Arc::clone(&load);
            let run_worker = move || {
                let worked = std::panic::catch_unwind(|| worker(&load));
                if worked.is_err() {
                    load.failed.store(true, Ordering::Relaxed);
                    load.stop.store(true, Ordering::Relaxed);
                }
            };
            std::thread::Builder::new().name(name.into()).spawn(run_worker).expect("a thread")
        })
        .collect();
    let killed = kill_processes(plan, &mounts, fleet.id(), &load, seed);
    load.stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().expect("caught"));
    let (rounds, slowest) =
        (load.calls.load(Ordering::Relaxed), load.slowest.load(Ordering::Relaxed));
    println!("killed: {killed:?}; {rounds} rounds of work, the slowest {} ms", slowest / 1000);
    let failed = load.failed.load(Ordering::Relaxed);
    if !failed {
        mounts.into_iter().for_each(Mount::unmount);
    }
    kill_process(Pid::from_child(&fleet), Signal::TERM).expect("kill");
    let ended = fleet.wait().expect("wait");
    assert!(!failed && ended.success(), "seed {seed}: see above");
    let all: u32 = killed.into_values().sum();
    assert_eq!(all, plan.kills, "seed {seed}: fewer were killed");
    println!("test {} are killed and no call fails ... ok", plan.victims_name());
}

fn prepare(root: &Path) {
    for dir in ["names", "moves/a", "moves/b", "moves/c", "across", "old"] {
        fs::create_dir_all(root.join(dir)).expect("directory");
    }
    for (file, content) in
        [("flocked", "0"), ("recorded", "0"), ("old/file", "old content"), ("attributes", "")]
    {
        fs::write(root.join(file), content).expect("file");
    }
    fs::write(root.join("mapped"), [0; PAGE]).expect("file");
}

/// Kills processes, sometimes as soon as they have started, and checks that the workers make
/// progress. Returns the number of killed processes by kind.
fn kill_processes(
    plan: &Plan,
    mounts: &[Mount],
    fleet_keeper: u32,
    load: &Workload,
    seed: u64,
) -> BTreeMap<&'static str, u32> {
    let mut random = Random(seed);
    let (mut last, mut killed) = ([None, None], BTreeMap::new());
    let mut number = 0;
    while number < plan.kills {
        let which = random.below(plan.mounts as u64) as usize;
        let victim = plan.victims[random.below(plan.victims.len() as u64) as usize];
        let (name, process) = match victim {
            Victim::Front => ("fronts", mounts[which].front(last[which])),
            Victim::Cell => ("cells", pick_child(&mut random, fleet_keeper, b"warren\0cell\0")),
            Victim::Supervisor => {
                ("supervisors", pick_child(&mut random, fleet_keeper, b"warren\0supervisor\0"))
            }
        };
        std::thread::sleep(match (victim, random.below(4)) {
            (_, 0) => Duration::from_micros(random.below(3_000)),
            (Victim::Front, _) => Duration::from_millis(random.below(60)),
            _ => Duration::from_millis(random.below(PAUSE_MAX_MS)),
        });
        if load.stop.load(Ordering::Relaxed) {
            return killed;
        }
        match kill_process(process, Signal::KILL) {
            // It was killed in the last round and is not reaped yet.
            Err(Errno::SRCH) if victim != Victim::Front => continue,
            result => result.expect("kill"),
        }
        *killed.entry(name).or_default() += 1;
        if victim == Victim::Front {
            last[which] = Some(process);
        }
        number += 1;
        if number % 8 == 0 && !makes_progress(load, seed) {
            return killed;
        }
    }
    killed
}

/// Waits until the workers have made progress. False if a worker has failed.
fn makes_progress(load: &Workload, seed: u64) -> bool {
    let before = load.calls.load(Ordering::Relaxed);
    let deadline = Instant::now() + RESTART_MAX;
    while load.calls.load(Ordering::Relaxed) < before + 100 {
        assert!(Instant::now() < deadline, "seed {seed}: the workers make no progress");
        if load.stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A random child of the fleet's keeper whose command line begins with `begins`, when there is one.
fn pick_child(random: &mut Random, fleet_keeper: u32, begins: &[u8]) -> Pid {
    let deadline = Instant::now() + RESTART_MAX;
    loop {
        let children =
            fs::read_to_string(format!("/proc/{fleet_keeper}/task/{fleet_keeper}/children"));
        let children = children.expect("the fleet's keeper runs");
        let is_one = |pid: &&str| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(begins))
        };
        let found: Vec<&str> = children.split_whitespace().filter(is_one).collect();
        if !found.is_empty() {
            let pid = found[random.below(found.len() as u64) as usize].parse().expect("a number");
            return Pid::from_raw(pid).expect("not 0");
        }
        assert!(Instant::now() < deadline, "no process replaces the one that was killed");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Each creation and each removal of a name succeeds exactly once.
fn names(load: &Workload) {
    let dir = load.mounts[0].join("names");
    load.repeat(|round| {
        let name = |kind: &str| dir.join(format!("{kind}{round}"));
        let file = OpenOptions::new().write(true).create_new(true).open(name("f")).expect("create");
        fs::hard_link(name("f"), name("l")).expect("link");
        assert_eq!(file.metadata().expect("fstat").nlink(), 2);
        symlink("target", name("s")).expect("symlink");
        assert_eq!(fs::read_link(name("s")).expect("readlink"), Path::new("target"));
        fs::create_dir(name("d")).expect("mkdir");
        fs::remove_file(name("f")).expect("unlink");
        assert_eq!(file.metadata().expect("fstat").nlink(), 1);
        fs::remove_file(name("l")).expect("unlink of the link");
        fs::remove_file(name("s")).expect("unlink of the symlink");
        assert_eq!(fs::read_dir(&dir).expect("list").count(), 1);
        fs::remove_dir(name("d")).expect("rmdir");
    });
}

/// In each mount a file is renamed from directory to directory, exactly once each time. Both mounts
/// use the same directories.
fn moves(load: &Workload, mount: usize) {
    let dir =
        |round: u64| load.mounts[mount].join("moves").join(["a", "b", "c"][round as usize % 3]);
    let name = |round: u64| format!("m{mount} {round}");
    fs::write(dir(0).join(name(0)), "moved").expect("write");
    load.repeat(|round| {
        let (from, to) = (dir(round), dir(round + 1));
        let target = to.join(name(round + 1));
        fs::rename(from.join(name(round)), &target).expect("rename");
        assert_eq!(fs::read_to_string(&target).expect("read"), "moved");
        let is_own = |entry: &std::io::Result<fs::DirEntry>| {
            let name = entry.as_ref().expect("an entry").file_name();
            name.to_string_lossy().starts_with(&format!("m{mount} "))
        };
        assert_eq!(fs::read_dir(from).expect("list").filter(is_own).count(), 0);
    });
}

/// No append is lost or repeated.
fn appends(load: &Workload) {
    let path = load.mounts[0].join("appended");
    let mut file = OpenOptions::new().append(true).create(true).open(&path).expect("open");
    let mut written = 0;
    load.repeat(|round| {
        file.write_all(format!("{round:015}\n").as_bytes()).expect("append");
        written = (round + 1) * 16;
        assert_eq!(file.metadata().expect("fstat").len(), written, "an append");
        if round % 64 == 63 {
            file.sync_data().expect("fdatasync");
        }
    });
    let content = fs::read_to_string(&path).expect("read");
    assert_eq!(content.len() as u64, written);
    for (number, line) in content.lines().enumerate() {
        assert_eq!(line.parse::<usize>().ok(), Some(number));
    }
}

/// Reads return what was written, at random sizes and offsets.
fn data(load: &Workload) {
    const SPAN: usize = 3 << 20;
    let path = load.mounts[0].join("data");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.expect("open");
    let mut expected = vec![0_u8; SPAN];
    file.set_len(SPAN as u64).expect("ftruncate");
    let mut random = Random(17);
    load.repeat(|round| {
        let len = 1 + random.below(if round % 8 == 0 { 1 << 20 } else { 9000 }) as usize;
        let at = random.below((SPAN - len) as u64) as usize;
        expected[at..at + len].fill(round as u8);
        file.write_all_at(&expected[at..at + len], at as u64).expect("pwrite");
        let from = random.below((SPAN - len) as u64) as usize;
        let mut seen = vec![1; len];
        file.read_exact_at(&mut seen, from as u64).expect("pread");
        assert!(seen == expected[from..from + len], "round {round}, {len} bytes at {from}");
        if round % 32 == 31 {
            let cut = random.below(SPAN as u64) as usize;
            expected[cut..].fill(0);
            file.set_len(cut as u64).expect("truncate");
            file.set_len(SPAN as u64).expect("grow");
        }
    });
}

/// Creating an attribute that must not exist, and removing one that must exist, succeed once each.
fn attributes(load: &Workload) {
    let file = File::open(load.mounts[0].join("attributes")).expect("open");
    load.repeat(|round| {
        let value = round.to_ne_bytes();
        rustix::fs::fsetxattr(&file, c"user.once", &value, XattrFlags::CREATE).expect("setxattr");
        let mut seen = [0; 8];
        assert_eq!(rustix::fs::fgetxattr(&file, c"user.once", &mut seen), Ok(8));
        assert_eq!(seen, value);
        rustix::fs::fremovexattr(&file, c"user.once").expect("removexattr");
        let mode = 0o600 + (round % 8) as u32;
        rustix::fs::fchmod(&file, mode.into()).expect("fchmod");
        assert_eq!(file.metadata().expect("fstat").mode() & 0o7777, mode);
    });
}

/// Increments a counter in a file under a lock. Detects two holders at the same time and lost
/// increments.
fn count_locked(
    load: &Workload,
    file: &File,
    lock: impl Fn(&File),
    unlock: impl Fn(&File),
    bit: u32,
) {
    load.repeat(|_| {
        lock(file);
        assert_eq!(
            load.critical.fetch_or(bit, Ordering::SeqCst) & bit,
            0,
            "two workers hold one lock"
        );
        let mut digits = [0; 20];
        let len = file.read_at(&mut digits, 0).expect("read");
        let count: u64 = std::str::from_utf8(&digits[..len]).unwrap().parse().expect("a number");
        file.write_all_at((count + 1).to_string().as_bytes(), 0).expect("write");
        assert_eq!(load.critical.fetch_and(!bit, Ordering::SeqCst) & bit, bit);
        unlock(file);
    });
}

fn flock_holder(load: &Workload, mount: usize) {
    let path = load.mounts[mount].join("flocked");
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    let flock = |file: &File, operation| rustix::fs::flock(file, operation).expect("flock");
    let lock = |file: &File| flock(file, FlockOperation::LockExclusive);
    let unlock = |file: &File| flock(file, FlockOperation::Unlock);
    count_locked(load, &file, lock, unlock, 1);
}

/// Uses locks of open file descriptions, because the threads share a process.
fn record_lock_holder(load: &Workload, mount: usize) {
    let path = load.mounts[mount].join("recorded");
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    let lock = |file: &File| ofd_lock(file, libc::F_WRLCK);
    let unlock = |file: &File| ofd_lock(file, libc::F_UNLCK);
    count_locked(load, &file, lock, unlock, 2);
}

/// Increments a counter in a page that both mounts have mapped, under a lock, and syncs the page
/// before it releases the lock.
fn mapped_count(load: &Workload, mount: usize) {
    let path = load.mounts[mount].join("mapped");
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    let mapping = Mapping::new(&file, PAGE);
    load.repeat(|_| {
        ofd_lock(&file, libc::F_WRLCK);
        assert_eq!(load.critical.fetch_or(4, Ordering::SeqCst) & 4, 0, "two hold one lock");
        let count = load.mapped.load(Ordering::SeqCst);
        assert_eq!(mapping.load(128), count, "what was synced");
        mapping.store(128, count + 1);
        mapping.sync();
        load.mapped.store(count + 1, Ordering::SeqCst);
        load.critical.fetch_and(!4, Ordering::SeqCst);
        ofd_lock(&file, libc::F_UNLCK);
    });
}

/// Four workers read and write one file in both mounts, so that the kernel has pages locked when
/// fronts are killed. Each worker writes every fourth record and knows its content. A page has
/// records of all workers.
fn shared_file(load: &Workload, worker: u64) {
    const RECORDS: u64 = 1024;
    const LEN: u64 = 1024 - 12;
    let path = load.mounts[worker as usize % 2].join("shared");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.expect("open");
    let mut expected = vec![0_u8; RECORDS as usize];
    let mut random = Random(worker);
    load.repeat(|round| {
        let record = random.below(RECORDS / 4) * 4 + worker;
        let value = round as u8 | 1;
        file.write_all_at(&[value; LEN as usize], record * LEN).expect("pwrite");
        expected[record as usize] = value;
        let record = random.below(RECORDS / 4) * 4 + worker;
        let mut seen = [0; LEN as usize];
        // The record may still be behind the end of the file, or in a hole.
        let len = file.read_at(&mut seen, record * LEN).expect("pread");
        let right = expected[record as usize];
        assert!(seen[..len].iter().all(|byte| *byte == right), "record {record}");
        assert!(right == 0 || len == LEN as usize, "record {record}");
        let mut all = [0; 20_000];
        file.read_at(&mut all, random.below(RECORDS * LEN)).expect("pread");
    });
}

fn ofd_lock(file: &File, kind: i32) {
    use std::os::fd::AsRawFd;
    // SAFETY: all zeros is a valid `flock` structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    // SAFETY: the descriptor is open, and the structure outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// A change that one mount has acknowledged is visible in the other.
fn across(load: &Workload) {
    let at = |mount: u64, name: &str| load.mounts[mount as usize % 2].join("across").join(name);
    fs::write(at(0, "value"), "-").expect("write");
    load.repeat(|round| {
        let (here, there) = (round, round + 1);
        fs::write(at(here, "value"), round.to_string()).expect("write");
        let seen = fs::read_to_string(at(there, "value")).expect("read");
        assert_eq!(seen, round.to_string(), "what the other mount wrote");
        let name = format!("n{}", round % 3);
        let missing = fs::metadata(at(there, &name)).expect_err("not yet there");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        fs::create_dir(at(here, &name)).expect("mkdir");
        assert!(fs::metadata(at(there, &name)).expect("stat").is_dir());
        fs::remove_dir(at(here, &name)).expect("rmdir");
        let gone = fs::metadata(at(there, &name)).expect_err("removed");
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    });
}

/// Descriptors that were opened before all kills work, as do unlinked files and truncating opens.
fn old_descriptors(load: &Workload) {
    let dir = load.mounts[1].join("old");
    let file = File::open(dir.join("file")).expect("open");
    let nameless =
        OpenOptions::new().read(true).write(true).create_new(true).open(dir.join("gone"));
    let nameless = nameless.expect("open");
    fs::remove_file(dir.join("gone")).expect("unlink");
    let directory = CString::new(dir.as_os_str().as_encoded_bytes()).expect("no NUL");
    load.repeat(|round| {
        let mut content = [0; 11];
        file.read_exact_at(&mut content, 0).expect("read");
        assert_eq!(&content, b"old content");
        nameless.write_all_at(&round.to_ne_bytes(), round * 8 % 4096).expect("write");
        assert_eq!(nameless.metadata().expect("fstat").nlink(), 0);
        let opened = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_TRUNC)
            .create(true)
            .open(dir.join("cut"))
            .expect("open");
        assert_eq!(opened.metadata().expect("fstat").len(), 0);
        opened.write_all_at(b"something", 0).expect("write");
        rustix::fs::statvfs(directory.as_c_str()).expect("statfs");
    });
}
