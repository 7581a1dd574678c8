//! Two mounts of one fleet and one file in both: what a write was answered for, the other mount reads, however
//! many write at the same time, and nobody waits for ever.
//!
//! Threads work in both mounts on the same pages. Each knows what every read must bring: under record
//! locks, after a message from the other mount's thread, and through mappings. This test has a `main` of its own
//! because it is also the program that a mount's process runs. It needs root and `/dev/fuse`: without them
//! it says so and passes. `--full` works longer; the name of a case runs that one alone.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod mapping;
mod mounting;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use mapping::Mapping;
use mounting::{MOUNTER, Scratch, enter_mount_namespace, mount_until_signalled, mounter};
use rustix::process::{Pid, Signal, kill_process};
use warren_fuse::Watchdog;
use warren_runtime::{Lifetime, start_fleet};

const POOL_BYTES: u64 = 1 << 30;
const CELLS: u16 = 2;
/// How long each case works.
const WORK: Duration = Duration::from_secs(3);
const WORK_FULL: Duration = Duration::from_secs(60);
/// No call may take longer.
const CALL_MAX: Duration = Duration::from_secs(5);
const PAGE: usize = 4096;

type Case = fn(&Ground);

const CASES: &[(&str, Case)] = &[
    ("record_locks", record_locks),
    ("messages", messages),
    ("whole_pages", whole_pages),
    ("opposite_files", opposite_files),
    ("mapped_and_written", mapped_and_written),
    ("mapped_and_synced", mapped_and_synced),
    ("mapped_and_cut", mapped_and_cut),
    ("cut_under_a_mapping", cut_under_a_mapping),
];

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
        let ground = Ground::new(mounts.clone(), name, work);
        let start = Instant::now();
        let passed = std::panic::catch_unwind(|| case(&ground)).is_ok() && ground.is_sound();
        let (rounds, slowest) = (ground.rounds.load(Ordering::Relaxed), ground.slowest());
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

/// What the threads of one case share.
struct Ground {
    mounts: [PathBuf; 2],
    name: String,
    until: Instant,
    rounds: AtomicU64,
    slowest_ns: AtomicU64,
    failed: AtomicBool,
}

impl Ground {
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

    /// A file of the case, as `side` has it.
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

    fn goes_on(&self) -> bool {
        Instant::now() < self.until && !self.failed.load(Ordering::Relaxed)
    }

    /// One call, whose time counts.
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

    /// Runs the threads to their end. One that panics ends the others.
    fn run(&self, threads: Vec<Box<dyn FnOnce() + Send + '_>>) {
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

/// A lock of the open file description: threads share a process.
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

/// Two threads in each mount count in records of one file, several in a page and one across two, each under a
/// lock of the record alone. No count may be lost.
fn record_locks(ground: &Ground) {
    const RECORDS: u64 = 9;
    const LEN: u64 = 1000;
    ground.open(0, "counts").set_len(RECORDS * LEN).expect("ftruncate");
    let expected: [AtomicU64; RECORDS as usize] = Default::default();
    let count = |side: usize, seed: u64| {
        let file = ground.open(side, "counts");
        let mut chance = seed;
        while ground.goes_on() {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
            let record = (chance >> 33) % RECORDS;
            // The last bytes of it, so that one lies in two pages.
            let at = record * LEN + 92;
            ground.timed(|| lock(&file, libc::F_WRLCK, record * LEN, LEN));
            let count = ground.number(&file, at);
            let right = &expected[record as usize];
            assert_eq!(count, right.load(Ordering::SeqCst), "record {record} seen in mount {side}");
            ground.write(&file, &(count + 1).to_le_bytes(), at);
            right.store(count + 1, Ordering::SeqCst);
            ground.timed(|| lock(&file, libc::F_UNLCK, record * LEN, LEN));
            ground.rounds.fetch_add(1, Ordering::Relaxed);
        }
    };
    let count = &count;
    ground.run((1..=4_u64).map(|n| Box::new(move || count(n as usize % 2, n)) as _).collect());
    for side in 0..2 {
        let file = ground.open(side, "counts");
        for (record, right) in (0..).zip(&expected) {
            assert_eq!(ground.number(&file, record * LEN + 92), right.load(Ordering::SeqCst));
        }
    }
}

/// Passes a number to and fro between the mounts, until time is over.
fn pass<'a>(
    ground: &'a Ground,
    mut turn: impl FnMut(usize, u64) + Send + Clone + 'a,
) -> [Box<dyn FnOnce() + Send + 'a>; 2] {
    let (to_one, from_two) = channel();
    let (to_two, from_one) = channel();
    let mut other = turn.clone();
    let serve = |from: &Receiver<u64>, to: &Sender<u64>, turn: &mut dyn FnMut(u64)| {
        while let Ok(round) = from.recv()
            && ground.goes_on()
        {
            turn(round);
            ground.rounds.fetch_add(1, Ordering::Relaxed);
            // The other one may have come to its end.
            let _ = to.send(round + 1);
        }
    };
    to_one.send(1).expect("not yet dropped");
    [
        Box::new(move || serve(&from_two, &to_two, &mut |round| turn(0, round))),
        Box::new(move || serve(&from_one, &to_one, &mut |round| other(1, round))),
    ]
}

/// What is written in one mount the other reads once it was told so, without a lock, while the same pages
/// are written by others in both.
fn messages(ground: &Ground) {
    const LEN: u64 = 1000;
    const PAIRS: u64 = 4;
    ground.open(0, "words").set_len(3 * PAGE as u64).expect("ftruncate");
    let files = [0, 1].map(|side| ground.open(side, "words"));
    let files = &files;
    let threads = (0..PAIRS).flat_map(|pair| {
        pass(ground, move |side, round| {
            let at = pair * LEN + 500;
            let seen = ground.number(&files[side], at);
            assert_eq!(seen, round - 1, "word {pair} seen in mount {side}");
            ground.write(&files[side], &round.to_le_bytes(), at);
        })
    });
    ground.run(threads.collect());
}

/// The same with several pages at a time, of which the first and the last are others' too, in a file that is
/// opened each time.
fn whole_pages(ground: &Ground) {
    const LEN: usize = 2 * PAGE + 1900;
    ground.open(0, "pages").set_len(4 * LEN as u64).expect("ftruncate");
    let threads = (0..4_u64).flat_map(|pair| {
        pass(ground, move |side, round| {
            let at = pair * LEN as u64;
            let file = ground.timed(|| ground.open(side, "pages"));
            let mut seen = vec![0; LEN];
            ground.read(&file, &mut seen, at);
            let right = (round - 1) as u8;
            assert!(seen.iter().all(|byte| *byte == right), "piece {pair} seen in mount {side}");
            ground.write(&file, &[round as u8; LEN], at);
        })
    });
    ground.run(threads.collect());
}

/// Each mount was the first to write a file, and then both write both.
fn opposite_files(ground: &Ground) {
    let files: Vec<[File; 2]> = (0..6_usize)
        .map(|number| {
            let name = format!("f{number}");
            let first = ground.open(number % 2, &name);
            first.write_all_at(&[0; 2 * PAGE], 0).expect("pwrite");
            let second = ground.open(1 - number % 2, &name);
            if number % 2 == 0 { [first, second] } else { [second, first] }
        })
        .collect();
    let files = &files;
    let threads = (0..files.len()).flat_map(|number| {
        [100, 4000].into_iter().flat_map(move |at| {
            pass(ground, move |side, round| {
                let file = &files[number][side];
                assert_eq!(ground.number(file, at), round - 1, "file {number} in mount {side}");
                ground.write(file, &round.to_le_bytes(), at);
            })
        })
    });
    ground.run(threads.collect());
}

/// One mount stores through a mapping, the other writes beside it in the same page: neither is lost, and
/// what was stored is read by the other once that has written.
fn mapped_and_written(ground: &Ground) {
    let files = [0, 1].map(|side| ground.open(side, "page"));
    files[0].set_len(2 * PAGE as u64).expect("ftruncate");
    let mapping = Mapping::new(&files[0], 2 * PAGE);
    let (files, mapping) = (&files, &mapping);
    let threads = (0..2_usize).flat_map(|page| {
        pass(ground, move |side, round| {
            let (stored, written) = (page * PAGE + 64, page * PAGE + 128);
            if side == 0 {
                let seen = ground.timed(|| mapping.load(written));
                assert_eq!(seen, round - 1, "what was written, through the mapping");
                ground.timed(|| mapping.store(stored, round));
            } else {
                ground.write(&files[1], &round.to_le_bytes(), written as u64);
                let seen = ground.number(&files[1], stored as u64);
                assert_eq!(seen, round - 1, "what was stored");
            }
        })
    });
    ground.run(threads.collect());
}

/// One mount stores through a mapping and syncs, and the other reads it, while both write the same file.
fn mapped_and_synced(ground: &Ground) {
    let files = [0, 1].map(|side| ground.open(side, "page"));
    files[0].set_len(4 * PAGE as u64).expect("ftruncate");
    let mapping = Mapping::new(&files[0], 4 * PAGE);
    let (files, mapping) = (&files, &mapping);
    let mapped = pass(ground, move |side, round| {
        if side == 0 {
            ground.timed(|| mapping.store(64, round));
            ground.timed(|| mapping.sync());
        } else {
            assert_eq!(ground.number(&files[1], 64), round - 1, "what was synced");
        }
    });
    let written = (1..3_u64).flat_map(|page| {
        pass(ground, move |side, round| {
            let at = page * PAGE as u64 + 8;
            assert_eq!(ground.number(&files[side], at), round - 1, "page {page} in mount {side}");
            ground.write(&files[side], &round.to_le_bytes(), at);
        })
    });
    ground.run(written.chain(mapped).collect());
}

/// Both mounts have changed pages mapped and cut the file: the kernel writes none of them back meanwhile.
fn mapped_and_cut(ground: &Ground) {
    let files = [0, 1].map(|side| ground.open(side, "cut"));
    files[0].set_len(64 * PAGE as u64).expect("ftruncate");
    let mappings = files.each_ref().map(|file| Mapping::new(file, 2 * PAGE));
    let (files, mappings) = (&files, &mappings);
    let work = |side: usize, deed: usize| {
        let mut round = 0;
        while ground.goes_on() {
            round += 1;
            match deed {
                0 => ground.timed(|| mappings[side].store(side * PAGE, round)),
                1 => {
                    let pages = 32 + round % 32;
                    ground.timed(|| files[side].set_len(pages * PAGE as u64)).expect("ftruncate");
                }
                _ => ground.write(&files[side], &round.to_le_bytes(), 4 * PAGE as u64 + 8),
            }
            ground.rounds.fetch_add(1, Ordering::Relaxed);
            // Stores alone would leave the fleet no processor.
            std::thread::yield_now();
        }
    };
    let work = &work;
    let threads = (0..6).map(|n| Box::new(move || work(n % 2, n / 2)) as _);
    ground.run(threads.collect());
}

/// A file that was cut in one mount stays cut, though the other has stored behind its end as it knew it.
fn cut_under_a_mapping(ground: &Ground) {
    let files = [0, 1].map(|side| ground.open(side, "cut"));
    while ground.goes_on() {
        files[0].set_len(4 * PAGE as u64).expect("ftruncate");
        let mapping = Mapping::new(&files[0], 4 * PAGE);
        mapping.store(0, 7);
        mapping.store(3 * PAGE, 9);
        ground.timed(|| files[1].set_len(PAGE as u64)).expect("ftruncate");
        assert_eq!(ground.number(&files[1], 0), 7, "what was stored before the cut");
        ground.timed(|| files[1].set_len(4 * PAGE as u64)).expect("ftruncate");
        assert_eq!(ground.number(&files[1], 3 * PAGE as u64), 0, "what was cut off");
        assert_eq!(mapping.load(3 * PAGE), 0, "what was cut off, through the mapping");
        ground.timed(|| files[1].set_len(PAGE as u64)).expect("ftruncate");
        drop(mapping);
        let len = fs::metadata(ground.mounts[1].join(format!("{}-cut", ground.name)));
        assert_eq!(len.expect("stat").len(), PAGE as u64, "the file has grown again");
        ground.rounds.fetch_add(1, Ordering::Relaxed);
    }
}
