//! One file, and one directory, in two mounts of one fleet: each mount reads what the other has
//! written, with many writers at the same time, and no call waits for ever.
//!
//! Threads work in both mounts on the same pages. Each thread knows what every read must return:
//! under record locks, after a message from a thread of the other mount, and through mappings. This
//! test has its own `main`, because a mount's processes run the same program. It needs root and
//! `/dev/fuse`. Without them it prints a note and passes. `--full` works longer. The name of a case
//! runs that case alone.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod mapping;
mod mounter;
mod mounting;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use mapping::Mapping;
use mounter::{mount_until_signalled, mounter};
use mounting::{Scratch, enter_mount_namespace, play_role};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, getcwd, kill_process};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use warren_fuse::Watchdog;
use warren_runtime::{Lifetime, start_fleet};

const POOL_BYTES: u64 = 1 << 30;
const CELLS: u16 = 2;
/// The time for which each case runs.
const WORK: Duration = Duration::from_secs(3);
const WORK_FULL: Duration = Duration::from_secs(60);
/// No call may take longer.
const CALL_MAX: Duration = Duration::from_secs(5);
const PAGE: usize = 4096;

type Case = fn(&CaseRun);

const CASES: &[(&str, Case)] = &[
    ("record_locks", record_locks),
    ("messages", messages),
    ("whole_pages", whole_pages),
    ("opposite_files", opposite_files),
    ("mapped_and_written", mapped_and_written),
    ("mapped_and_synced", mapped_and_synced),
    ("mapped_and_truncated", mapped_and_truncated),
    ("truncated_under_a_mapping", truncated_under_a_mapping),
    ("changed_names", changed_names),
];

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = play_role(&args, mount_until_signalled) {
        return code;
    }
    if args.iter().any(|arg| arg == "--list") || !enter_mount_namespace() {
        return ExitCode::SUCCESS;
    }
    let work = if args.iter().any(|arg| arg == "--full") { WORK_FULL } else { WORK };
    let wanted: Vec<_> =
        CASES.iter().filter(|(name, _)| args.iter().any(|arg| arg == name)).collect();
    let cases = if wanted.is_empty() { CASES.iter().collect() } else { wanted };
    let scratch = Scratch::new("warren-two-mounts", POOL_BYTES);
    let serve = warren_runtime::ServeOptions {
        cache_bytes: 64 << 20,
        ..warren_runtime::ServeOptions::new(&scratch.pool, CELLS)
    };
    let fleet = start_fleet(&serve, Lifetime::WithStarter).expect("a fleet");
    let mounts = ["one", "two"].map(|name| scratch.mount_point(name));
    let limit = work * 3 * cases.len() as u32 + CALL_MAX;
    let keepers = mounts.each_ref().map(|dir| {
        let keeper = mounter(&scratch.pool, dir);
        (keeper, Watchdog::abort_after(dir, limit).expect("watchdog"))
    });
    let mut failed = false;
    for (name, case) in cases {
        let run = CaseRun::new(mounts.clone(), name, work);
        let start = Instant::now();
        let passed = std::panic::catch_unwind(|| case(&run)).is_ok() && run.is_sound();
        let (rounds, slowest) = (run.rounds.load(Ordering::Relaxed), run.slowest());
        let verdict = if passed { "ok" } else { "FAILED" };
        println!(
            "test {name} ... {verdict} ({rounds} rounds, slowest call {slowest:?}, {:?})",
            start.elapsed()
        );
        failed |= !passed;
    }
    for (mut keeper, _watchdog) in keepers {
        kill_process(Pid::from_child(&keeper), Signal::TERM).expect("kill");
        failed |= !keeper.wait().expect("wait").success();
    }
    fleet.stop().expect("stop");
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// One run of a case: what its threads share.
struct CaseRun {
    mounts: [PathBuf; 2],
    name: String,
    until: Instant,
    rounds: AtomicU64,
    slowest_ns: AtomicU64,
    failed: AtomicBool,
}

impl CaseRun {
    fn new(mounts: [PathBuf; 2], name: &str, work: Duration) -> Self {
        Self {
            mounts,
            name: name.to_owned(),
            until: Instant::now() + work,
            rounds: AtomicU64::new(0),
            slowest_ns: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    fn is_sound(&self) -> bool {
        !self.failed.load(Ordering::Relaxed) && self.slowest() < CALL_MAX
    }

    fn slowest(&self) -> Duration {
        Duration::from_nanos(self.slowest_ns.load(Ordering::Relaxed))
    }

    /// Opens a file of the case in the mount `side`.
    fn open(&self, side: usize, file: &str) -> File {
        let path = self.mounts[side].join(format!("{}-{file}", self.name));
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .expect("open")
    }

    fn is_running(&self) -> bool {
        Instant::now() < self.until && !self.failed.load(Ordering::Relaxed)
    }

    /// Makes a call and records how long it took.
    fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.slowest_ns.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    fn read(&self, file: &File, buffer: &mut [u8], at: u64) {
        self.timed(|| file.read_exact_at(buffer, at)).expect("pread");
    }

    fn write(&self, file: &File, bytes: &[u8], at: u64) {
        self.timed(|| file.write_all_at(bytes, at)).expect("pwrite");
    }

    fn number(&self, file: &File, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(file, &mut bytes, at);
        u64::from_le_bytes(bytes)
    }

    /// Runs the threads to their end. When one of them panics, the others end too.
    fn threads(&self, threads: Vec<Box<dyn FnOnce() + Send + '_>>) {
        std::thread::scope(|scope| {
            for thread in threads {
                scope.spawn(|| {
                    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(thread)).is_err() {
                        self.failed.store(true, Ordering::Relaxed);
                    }
                });
            }
        });
    }
}

/// Takes or releases a lock of the open file description, because the threads share a process.
fn lock(file: &File, kind: i32, start: u64, len: u64) {
    // SAFETY: all zeros is a valid `flock` structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_start = start.cast_signed();
    lock.l_len = len.cast_signed();
    // SAFETY: the descriptor is open, and the structure outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Two threads in each mount increment counters in records of one file. Several records are in a
/// page, and one is across two pages. Each thread locks only the record. No increment may be lost.
fn record_locks(run: &CaseRun) {
    const RECORDS: u64 = 9;
    const LEN: u64 = 1000;
    run.open(0, "counts").set_len(RECORDS * LEN).expect("ftruncate");
    let expected: [AtomicU64; RECORDS as usize] = Default::default();
    let count = |side: usize, seed: u64| {
        let file = run.open(side, "counts");
        let mut chance = seed;
        while run.is_running() {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            let record = (chance >> 33) % RECORDS;
            // Within the record, so that one counter is in two pages.
            let at = record * LEN + 92;
            run.timed(|| lock(&file, libc::F_WRLCK, record * LEN, LEN));
            let count = run.number(&file, at);
            let right = &expected[record as usize];
            assert_eq!(count, right.load(Ordering::SeqCst), "record {record} seen in mount {side}");
            run.write(&file, &(count + 1).to_le_bytes(), at);
            right.store(count + 1, Ordering::SeqCst);
            run.timed(|| lock(&file, libc::F_UNLCK, record * LEN, LEN));
            run.rounds.fetch_add(1, Ordering::Relaxed);
        }
    };
    let count = &count;
    run.threads((1..=4_u64).map(|n| Box::new(move || count(n as usize % 2, n)) as _).collect());
    for side in 0..2 {
        let file = run.open(side, "counts");
        for (record, right) in (0..).zip(&expected) {
            assert_eq!(run.number(&file, record * LEN + 92), right.load(Ordering::SeqCst));
        }
    }
}

/// Two threads, one in each mount, take turns until the time is over.
fn pass<'a>(
    run: &'a CaseRun,
    mut turn: impl FnMut(usize, u64) + Send + Clone + 'a,
) -> [Box<dyn FnOnce() + Send + 'a>; 2] {
    let (to_one, from_two) = channel();
    let (to_two, from_one) = channel();
    let mut other = turn.clone();
    let serve = |from: &Receiver<u64>, to: &Sender<u64>, turn: &mut dyn FnMut(u64)| {
        while let Ok(round) = from.recv()
            && run.is_running()
        {
            turn(round);
            run.rounds.fetch_add(1, Ordering::Relaxed);
            // The other thread may have ended.
            let _ = to.send(round + 1);
        }
    };
    to_one.send(1).expect("not yet dropped");
    [
        Box::new(move || serve(&from_two, &to_two, &mut |round| turn(0, round))),
        Box::new(move || serve(&from_one, &to_one, &mut |round| other(1, round))),
    ]
}

/// A thread in one mount writes and sends a message, and a thread in the other mount then reads it
/// without a lock. Other threads write to the same pages in both mounts.
fn messages(run: &CaseRun) {
    const LEN: u64 = 1000;
    const PAIRS: u64 = 4;
    run.open(0, "words").set_len(3 * PAGE as u64).expect("ftruncate");
    let files = [0, 1].map(|side| run.open(side, "words"));
    let files = &files;
    let threads = (0..PAIRS).flat_map(|pair| {
        pass(run, move |side, round| {
            let at = pair * LEN + 500;
            let seen = run.number(&files[side], at);
            assert_eq!(seen, round - 1, "word {pair} seen in mount {side}");
            run.write(&files[side], &round.to_le_bytes(), at);
        })
    });
    run.threads(threads.collect());
}

/// The same with several pages at a time, and the file is opened each time. Other threads write to
/// the first and the last page too.
fn whole_pages(run: &CaseRun) {
    const LEN: usize = 2 * PAGE + 1900;
    run.open(0, "pages").set_len(4 * LEN as u64).expect("ftruncate");
    let threads = (0..4_u64).flat_map(|pair| {
        pass(run, move |side, round| {
            let at = pair * LEN as u64;
            let file = run.timed(|| run.open(side, "pages"));
            let mut seen = vec![0; LEN];
            run.read(&file, &mut seen, at);
            let right = (round - 1) as u8;
            assert!(seen.iter().all(|byte| *byte == right), "piece {pair} seen in mount {side}");
            run.write(&file, &[round as u8; LEN], at);
        })
    });
    run.threads(threads.collect());
}

/// Each mount is the first writer of half of the files, and then both mounts write all files.
fn opposite_files(run: &CaseRun) {
    let files: Vec<[File; 2]> = (0..6_usize)
        .map(|number| {
            let name = format!("f{number}");
            let first = run.open(number % 2, &name);
            first.write_all_at(&[0; 2 * PAGE], 0).expect("pwrite");
            let second = run.open(1 - number % 2, &name);
            if number % 2 == 0 { [first, second] } else { [second, first] }
        })
        .collect();
    let files = &files;
    let threads = (0..files.len()).flat_map(|number| {
        [100, 4000].into_iter().flat_map(move |at| {
            pass(run, move |side, round| {
                let file = &files[number][side];
                assert_eq!(run.number(file, at), round - 1, "file {number} in mount {side}");
                run.write(file, &round.to_le_bytes(), at);
            })
        })
    });
    run.threads(threads.collect());
}

/// One mount stores through a mapping, and the other writes to the same page. Neither is lost, and
/// after its write the other mount reads what was stored.
fn mapped_and_written(run: &CaseRun) {
    let files = [0, 1].map(|side| run.open(side, "page"));
    files[0].set_len(2 * PAGE as u64).expect("ftruncate");
    let mapping = Mapping::new(&files[0], 2 * PAGE);
    let (files, mapping) = (&files, &mapping);
    let threads = (0..2_usize).flat_map(|page| {
        pass(run, move |side, round| {
            let (stored, written) = (page * PAGE + 64, page * PAGE + 128);
            if side == 0 {
                let seen = run.timed(|| mapping.load(written));
                assert_eq!(seen, round - 1, "what was written, read through the mapping");
                run.timed(|| mapping.store(stored, round));
            } else {
                run.write(&files[1], &round.to_le_bytes(), written as u64);
                let seen = run.number(&files[1], stored as u64);
                assert_eq!(seen, round - 1, "what was stored");
            }
        })
    });
    run.threads(threads.collect());
}

/// One mount stores through a mapping and syncs, and the other reads that. Both write to the file.
fn mapped_and_synced(run: &CaseRun) {
    let files = [0, 1].map(|side| run.open(side, "page"));
    files[0].set_len(4 * PAGE as u64).expect("ftruncate");
    let mapping = Mapping::new(&files[0], 4 * PAGE);
    let (files, mapping) = (&files, &mapping);
    let mapped = pass(run, move |side, round| {
        if side == 0 {
            run.timed(|| mapping.store(64, round));
            run.timed(|| mapping.sync());
        } else {
            assert_eq!(run.number(&files[1], 64), round - 1, "what was synced");
        }
    });
    let written = (1..3_u64).flat_map(|page| {
        pass(run, move |side, round| {
            let at = page * PAGE as u64 + 8;
            assert_eq!(run.number(&files[side], at), round - 1, "page {page} in mount {side}");
            run.write(&files[side], &round.to_le_bytes(), at);
        })
    });
    run.threads(written.chain(mapped).collect());
}

/// Both mounts have dirty mapped pages and truncate the file. No call may wait for ever.
fn mapped_and_truncated(run: &CaseRun) {
    let files = [0, 1].map(|side| run.open(side, "truncated"));
    files[0].set_len(64 * PAGE as u64).expect("ftruncate");
    let mappings = files.each_ref().map(|file| Mapping::new(file, 2 * PAGE));
    let (files, mappings) = (&files, &mappings);
    let work = |side: usize, action: usize| {
        let mut round = 0;
        while run.is_running() {
            round += 1;
            match action {
                0 => run.timed(|| mappings[side].store(side * PAGE, round)),
                1 => {
                    let pages = 32 + round % 32;
                    run.timed(|| files[side].set_len(pages * PAGE as u64)).expect("ftruncate");
                }
                _ => run.write(&files[side], &round.to_le_bytes(), 4 * PAGE as u64 + 8),
            }
            run.rounds.fetch_add(1, Ordering::Relaxed);
            // Stores do not block, and would leave the fleet no processor.
            std::thread::yield_now();
        }
    };
    let work = &work;
    let threads = (0..6).map(|n| Box::new(move || work(n % 2, n / 2)) as _);
    run.threads(threads.collect());
}

/// A file that one mount truncates stays truncated, although the other mount has stored behind the
/// new end.
fn truncated_under_a_mapping(run: &CaseRun) {
    let files = [0, 1].map(|side| run.open(side, "truncated"));
    while run.is_running() {
        files[0].set_len(4 * PAGE as u64).expect("ftruncate");
        let mapping = Mapping::new(&files[0], 4 * PAGE);
        mapping.store(0, 7);
        mapping.store(3 * PAGE, 9);
        run.timed(|| files[1].set_len(PAGE as u64)).expect("ftruncate");
        assert_eq!(run.number(&files[1], 0), 7, "what was stored before the truncation");
        run.timed(|| files[1].set_len(4 * PAGE as u64)).expect("ftruncate");
        assert_eq!(run.number(&files[1], 3 * PAGE as u64), 0, "what was truncated");
        assert_eq!(mapping.load(3 * PAGE), 0, "what was truncated, read through the mapping");
        run.timed(|| files[1].set_len(PAGE as u64)).expect("ftruncate");
        drop(mapping);
        let len = fs::metadata(run.mounts[1].join(format!("{}-truncated", run.name)));
        assert_eq!(len.expect("stat").len(), PAGE as u64, "the file has grown again");
        run.rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Both mounts change names of one directory: each change is seen in the other mount at once.
/// Other names of the directory lead where they led: to working directories, and to a file system
/// that is mounted there.
fn changed_names(run: &CaseRun) {
    const PAIRS: u64 = 3;
    let dirs = run.mounts.each_ref().map(|mount| mount.join(&run.name));
    let name = |side: usize, pair: u64, round: u64| dirs[side].join(format!("{pair}-{round}"));
    let mounted = dirs[0].join("mounted");
    for dir in [&dirs[0], &mounted, &dirs[0].join("working")] {
        fs::create_dir(dir).expect("mkdir");
    }
    mount("tmpfs", &mounted, "tmpfs", MountFlags::empty(), None).expect("mount");
    fs::write(mounted.join("file"), "kept").expect("a file of the mounted file system");
    for pair in 0..PAIRS {
        fs::write(name(0, pair, 0), "").expect("create");
    }
    let changes = (0..PAIRS).flat_map(|pair| {
        pass(run, move |side, round| {
            let name = |round| name(side, pair, round);
            let exists = |path: &Path| run.timed(|| path.try_exists()).expect("stat");
            let (before, now, next) = (name(round - 1), name(round), name(round + 1));
            assert!(exists(&before) && !exists(&now), "name {pair} in mount {side}");
            run.timed(|| fs::rename(&before, &now)).expect("rename");
            assert!(exists(&now) && !exists(&before) && !exists(&next), "name {pair} in {side}");
        })
    });
    let stays = |side: usize| {
        // SAFETY: no other thread uses the working directory of this thread.
        unsafe { unshare_unsafe(UnshareFlags::FS) }.expect("a working directory of its own");
        let working = dirs[side].join("working");
        std::env::set_current_dir(&working).expect("chdir");
        while run.is_running() {
            let path = run.timed(|| getcwd(Vec::new())).expect("getcwd");
            assert_eq!(path.to_bytes(), working.as_os_str().as_bytes());
            if side == 0 {
                let kept = run.timed(|| fs::read(mounted.join("file")));
                assert_eq!(kept.expect("a mounted file"), b"kept");
            }
            std::thread::yield_now();
        }
    };
    let stays = &stays;
    let looks = (0..2).map(|side| Box::new(move || stays(side)) as _);
    run.threads(changes.chain(looks).collect());
    unmount(&mounted, UnmountFlags::empty()).expect("unmount");
}
