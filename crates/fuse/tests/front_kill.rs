//! Fronts are killed (`kill -9`) under load, again and again, and then fronts, cells and supervisors in turn. The mounts
//! stay, no call fails or takes long, and whatever changes something is executed once.
//!
//! Two mounts of one fleet are worked on by threads, each of which knows what every call must answer: a
//! create, rename or append that was executed twice shows at once. What one mount has acknowledged
//! the other must show. This test has a `main` of its own because it is also the program that a fleet's
//! and a mount's processes run. It needs root and `/dev/fuse`: without them it says so and passes.
//! `--full` kills more; `--mixed KILLS` kills that many of all kinds and nothing else, with `--cells N` and on one
//! mount with `--one-mount`.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod mapping;
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
use mounting::{MOUNTER, Scratch, enter_mount_namespace, mount_until_signalled, mounter};
use rustix::fs::{FlockOperation, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use warren_fuse::Watchdog;

const POOL_BYTES: u64 = 1 << 30;
const CELLS: u16 = 3;
const KILLS: u32 = 24;
const KILLS_FULL: u32 = 200;
/// Of fronts, cells and supervisors.
const MIXED: u32 = 24;
const MIXED_FULL: u32 = 200;
/// How long a kill may take, and all beside.
const LIMIT_OF_KILL: Duration = Duration::from_millis(1500);
const LIMIT_BESIDE: Duration = Duration::from_secs(40);
/// The longest that a fleet is left alone after a cell or a supervisor was killed.
const LULL_MAX_MS: u64 = 400;
/// How soon a front must be there again.
const BACK: Duration = Duration::from_secs(20);
/// No round of a worker may take longer, so no call either.
const CALL_MAX: Duration = Duration::from_secs(5);
const PAGE: usize = 4096;
/// The role of a process that does what `warren serve` does: its words are the test's.
const SERVER: &str = "server";

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = warren_runtime::dispatch(&args).or_else(|| warren_fuse::dispatch(&args)) {
        return code;
    }
    if let [role, pool, dir] = args.as_slice()
        && role == MOUNTER
    {
        return mount_until_signalled(Path::new(pool), Path::new(dir));
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

/// What is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Front,
    Cell,
    Supervisor,
}

const FRONTS: &[Victim] = &[Victim::Front];
const ALL: &[Victim] =
    &[Victim::Front, Victim::Front, Victim::Front, Victim::Cell, Victim::Cell, Victim::Supervisor];

/// How much, of which kinds, by their weights, and under which load.
struct Plan {
    kills: u32,
    victims: &'static [Victim],
    cells: u16,
    mounts: usize,
}

impl Plan {
    fn of_what(&self) -> &'static str {
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

/// The process of a mount, whose child is the front.
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

    /// The keeper's youngest child, once there is one other than `not`: the kernel may hold older ones until it has
    /// answered.
    fn front(&self, not: Option<Pid>) -> Pid {
        let id = self.keeper.id();
        let deadline = Instant::now() + BACK;
        loop {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
            let children = children.expect("the keeper is there");
            let child = children.split_whitespace().last().and_then(|pid| pid.parse().ok());
            if let Some(child) = child.and_then(Pid::from_raw).filter(|pid| Some(*pid) != not) {
                return child;
            }
            assert!(Instant::now() < deadline, "no front follows the one that was killed");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn unmount(mut self) {
        kill_process(Pid::from_child(&self.keeper), Signal::TERM).expect("kill");
        assert!(self.keeper.wait().expect("wait").success());
    }
}

/// Numbers for when to kill.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What all workers share.
struct Stage {
    mounts: [PathBuf; 2],
    stop: AtomicBool,
    calls: AtomicU64,
    critical: AtomicU32,
    failed: AtomicBool,
    /// What the mapped page counts.
    mapped: AtomicU64,
    /// The longest round of a worker, in microseconds.
    slowest: AtomicU64,
}

impl Stage {
    /// Goes on until told to stop. `work` is given the number of the round.
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
        assert!(round > 0, "it never came to work");
    }
}

type Worker = fn(&Stage);

const WORKERS: &[(&str, Worker)] = &[
    ("names", names),
    ("moves one", |stage| moves(stage, 0)),
    ("moves two", |stage| moves(stage, 1)),
    ("appends", appends),
    ("data", data),
    ("attributes", attributes),
    ("flock one", |stage| flock_holder(stage, 0)),
    ("flock two", |stage| flock_holder(stage, 1)),
    ("record lock one", |stage| record_lock_holder(stage, 0)),
    ("record lock two", |stage| record_lock_holder(stage, 1)),
    ("mapping one", |stage| mapped_count(stage, 0)),
    ("mapping two", |stage| mapped_count(stage, 1)),
    ("shared file one", |stage| shared_file(stage, 0)),
    ("shared file two", |stage| shared_file(stage, 1)),
    ("shared file three", |stage| shared_file(stage, 2)),
    ("shared file four", |stage| shared_file(stage, 3)),
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
    let limit = LIMIT_BESIDE + LIMIT_OF_KILL * *kills;
    let mounts: Vec<_> = dirs.iter().map(|dir| Mount::start(&scratch.pool, dir, limit)).collect();
    prepare(&dirs[0]);
    let stage = Arc::new(Stage {
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
            let stage = Arc::clone(&stage);
            let life = move || {
                let worked = std::panic::catch_unwind(|| worker(&stage));
                if worked.is_err() {
                    stage.failed.store(true, Ordering::Relaxed);
                    stage.stop.store(true, Ordering::Relaxed);
                }
            };
            std::thread::Builder::new().name(name.into()).spawn(life).expect("a thread")
        })
        .collect();
    let killed = kill_processes(plan, &mounts, fleet.id(), &stage, seed);
    stage.stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().expect("caught"));
    let (rounds, slowest) =
        (stage.calls.load(Ordering::Relaxed), stage.slowest.load(Ordering::Relaxed));
    println!("killed: {killed:?}; {rounds} rounds of work, the slowest {} ms", slowest / 1000);
    let failed = stage.failed.load(Ordering::Relaxed);
    if !failed {
        mounts.into_iter().for_each(Mount::unmount);
    }
    kill_process(Pid::from_child(&fleet), Signal::TERM).expect("kill");
    let ended = fleet.wait().expect("wait");
    assert!(!failed && ended.success(), "seed {seed}: see above");
    let all: u32 = killed.into_values().sum();
    assert_eq!(all, plan.kills, "seed {seed}: fewer were killed");
    println!("test {} are killed and no call fails ... ok", plan.of_what());
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

/// Kills, sometimes the next process as soon as it is there, and demands that some work was done. Returns how many of
/// which kind were killed.
fn kill_processes(
    plan: &Plan,
    mounts: &[Mount],
    keeper: u32,
    stage: &Stage,
    seed: u64,
) -> BTreeMap<&'static str, u32> {
    let mut chance = Chance(seed);
    let (mut last, mut killed) = ([None, None], BTreeMap::new());
    let mut number = 0;
    while number < plan.kills {
        let which = chance.below(plan.mounts as u64) as usize;
        let victim = plan.victims[chance.below(plan.victims.len() as u64) as usize];
        let (name, process) = match victim {
            Victim::Front => ("fronts", mounts[which].front(last[which])),
            Victim::Cell => ("cells", one_of(&mut chance, keeper, b"warren\0cell\0")),
            Victim::Supervisor => {
                ("supervisors", one_of(&mut chance, keeper, b"warren\0supervisor\0"))
            }
        };
        std::thread::sleep(match (victim, chance.below(4)) {
            (_, 0) => Duration::from_micros(chance.below(3_000)),
            (Victim::Front, _) => Duration::from_millis(chance.below(60)),
            _ => Duration::from_millis(chance.below(LULL_MAX_MS)),
        });
        if stage.stop.load(Ordering::Relaxed) {
            return killed;
        }
        match kill_process(process, Signal::KILL) {
            // It was killed last time, too.
            Err(Errno::SRCH) if victim != Victim::Front => continue,
            result => result.expect("kill"),
        }
        *killed.entry(name).or_default() += 1;
        if victim == Victim::Front {
            last[which] = Some(process);
        }
        number += 1;
        if number % 8 == 0 && !goes_on(stage, seed) {
            return killed;
        }
    }
    killed
}

/// Waits until work was done; false if a worker has failed.
fn goes_on(stage: &Stage, seed: u64) -> bool {
    let before = stage.calls.load(Ordering::Relaxed);
    let deadline = Instant::now() + BACK;
    while stage.calls.load(Ordering::Relaxed) < before + 100 {
        assert!(Instant::now() < deadline, "seed {seed}: work does not go on");
        if stage.stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// One of the keeper's children whose command line begins like this, once there is one.
fn one_of(chance: &mut Chance, keeper: u32, begins: &[u8]) -> Pid {
    let deadline = Instant::now() + BACK;
    loop {
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
        let children = children.expect("the keeper is there");
        let is_one = |pid: &&str| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(begins))
        };
        let found: Vec<&str> = children.split_whitespace().filter(is_one).collect();
        if !found.is_empty() {
            let pid = found[chance.below(found.len() as u64) as usize].parse().expect("a number");
            return Pid::from_raw(pid).expect("not 0");
        }
        assert!(Instant::now() < deadline, "none follows the one that was killed");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Whatever makes or removes a name succeeds exactly once.
fn names(stage: &Stage) {
    let dir = stage.mounts[0].join("names");
    stage.repeat(|round| {
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

/// In each mount a file goes from directory to directory, the same ones; each move is done once.
fn moves(stage: &Stage, mount: usize) {
    let dir =
        |round: u64| stage.mounts[mount].join("moves").join(["a", "b", "c"][round as usize % 3]);
    let name = |round: u64| format!("m{mount} {round}");
    fs::write(dir(0).join(name(0)), "moved").expect("write");
    stage.repeat(|round| {
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

/// No append is lost and none comes twice.
fn appends(stage: &Stage) {
    let path = stage.mounts[0].join("appended");
    let mut file = OpenOptions::new().append(true).create(true).open(&path).expect("open");
    let mut written = 0;
    stage.repeat(|round| {
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

/// What was written is read, whatever the size and the place.
fn data(stage: &Stage) {
    const SPAN: usize = 3 << 20;
    let path = stage.mounts[0].join("data");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.expect("open");
    let mut expected = vec![0_u8; SPAN];
    file.set_len(SPAN as u64).expect("ftruncate");
    let mut chance = Chance(17);
    stage.repeat(|round| {
        let len = 1 + chance.below(if round % 8 == 0 { 1 << 20 } else { 9000 }) as usize;
        let at = chance.below((SPAN - len) as u64) as usize;
        expected[at..at + len].fill(round as u8);
        file.write_all_at(&expected[at..at + len], at as u64).expect("pwrite");
        let from = chance.below((SPAN - len) as u64) as usize;
        let mut seen = vec![1; len];
        file.read_exact_at(&mut seen, from as u64).expect("pread");
        assert!(seen == expected[from..from + len], "round {round}, {len} bytes at {from}");
        if round % 32 == 31 {
            let cut = chance.below(SPAN as u64) as usize;
            expected[cut..].fill(0);
            file.set_len(cut as u64).expect("cut");
            file.set_len(SPAN as u64).expect("grow");
        }
    });
}

/// What must not be there yet is made, what must be there is removed, once.
fn attributes(stage: &Stage) {
    let file = File::open(stage.mounts[0].join("attributes")).expect("open");
    stage.repeat(|round| {
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

/// Counts in a file under a lock: if two were inside at a time, or one's count was lost, it shows.
fn count_locked(
    stage: &Stage,
    file: &File,
    lock: impl Fn(&File),
    unlock: impl Fn(&File),
    bit: u32,
) {
    stage.repeat(|_| {
        lock(file);
        assert_eq!(stage.critical.fetch_or(bit, Ordering::SeqCst) & bit, 0, "two hold one lock");
        let mut digits = [0; 20];
        let len = file.read_at(&mut digits, 0).expect("read");
        let count: u64 = std::str::from_utf8(&digits[..len]).unwrap().parse().expect("a number");
        file.write_all_at((count + 1).to_string().as_bytes(), 0).expect("write");
        assert_eq!(stage.critical.fetch_and(!bit, Ordering::SeqCst) & bit, bit);
        unlock(file);
    });
}

fn flock_holder(stage: &Stage, mount: usize) {
    let path = stage.mounts[mount].join("flocked");
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    let flock = |file: &File, operation| rustix::fs::flock(file, operation).expect("flock");
    let lock = |file: &File| flock(file, FlockOperation::LockExclusive);
    let unlock = |file: &File| flock(file, FlockOperation::Unlock);
    count_locked(stage, &file, lock, unlock, 1);
}

/// Locks of open file descriptions: threads share a process.
fn record_lock_holder(stage: &Stage, mount: usize) {
    let path = stage.mounts[mount].join("recorded");
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    let lock = |file: &File| ofd_lock(file, libc::F_WRLCK);
    let unlock = |file: &File| ofd_lock(file, libc::F_UNLCK);
    count_locked(stage, &file, lock, unlock, 2);
}

/// Counts in a page that is mapped in both mounts, under a lock, and syncs it before the other's turn.
fn mapped_count(stage: &Stage, mount: usize) {
    let path = stage.mounts[mount].join("mapped");
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    let mapping = Mapping::new(&file, PAGE);
    stage.repeat(|_| {
        ofd_lock(&file, libc::F_WRLCK);
        assert_eq!(stage.critical.fetch_or(4, Ordering::SeqCst) & 4, 0, "two hold one lock");
        let count = stage.mapped.load(Ordering::SeqCst);
        assert_eq!(mapping.load(128), count, "what was synced");
        mapping.store(128, count + 1);
        mapping.sync();
        stage.mapped.store(count + 1, Ordering::SeqCst);
        stage.critical.fetch_and(!4, Ordering::SeqCst);
        ofd_lock(&file, libc::F_UNLCK);
    });
}

/// One file is read and written in both mounts at once, so that kernels wait with pages locked when fronts are killed.
/// Each of four workers writes every fourth record and knows what is in it; pages hold records of all.
fn shared_file(stage: &Stage, worker: u64) {
    const RECORDS: u64 = 1024;
    const LEN: u64 = 1024 - 12;
    let path = stage.mounts[worker as usize % 2].join("shared");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.expect("open");
    let mut expected = vec![0_u8; RECORDS as usize];
    let mut chance = Chance(worker);
    stage.repeat(|round| {
        let record = chance.below(RECORDS / 4) * 4 + worker;
        let value = round as u8 | 1;
        file.write_all_at(&[value; LEN as usize], record * LEN).expect("pwrite");
        expected[record as usize] = value;
        let record = chance.below(RECORDS / 4) * 4 + worker;
        let mut seen = [0; LEN as usize];
        // It may lie behind the end still, in a hole.
        let len = file.read_at(&mut seen, record * LEN).expect("pread");
        let right = expected[record as usize];
        assert!(seen[..len].iter().all(|byte| *byte == right), "record {record}");
        assert!(right == 0 || len == LEN as usize, "record {record}");
        let mut all = [0; 20_000];
        file.read_at(&mut all, chance.below(RECORDS * LEN)).expect("pread");
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

/// What was acknowledged in one mount is seen in the other.
fn across(stage: &Stage) {
    let at = |mount: u64, name: &str| stage.mounts[mount as usize % 2].join("across").join(name);
    fs::write(at(0, "value"), "-").expect("write");
    stage.repeat(|round| {
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

/// Descriptors from before all kills still work, as do files opened with odd flags.
fn old_descriptors(stage: &Stage) {
    let dir = stage.mounts[1].join("old");
    let file = File::open(dir.join("file")).expect("open");
    let nameless =
        OpenOptions::new().read(true).write(true).create_new(true).open(dir.join("gone"));
    let nameless = nameless.expect("open");
    fs::remove_file(dir.join("gone")).expect("unlink");
    let directory = CString::new(dir.as_os_str().as_encoded_bytes()).expect("no NUL");
    stage.repeat(|round| {
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
