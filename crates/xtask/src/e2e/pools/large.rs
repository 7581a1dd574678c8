//! Large objects: a file of many times the cache, a sparse one, a long name, a deep tree. All of it
//! is there after a restart with another number of cells, and the fleet's memory stays within its
//! bound.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use warren_base::Rng;

use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::survivors::survivors;

/// Bytes of the large file, in CI and in long runs.
const LARGE: u64 = 600 << 20;
const LARGE_FULL: u64 = 10 << 30;
const PART: usize = 1 << 20;
/// Bytes of the sparse file, of which a few are written.
const SPARSE: u64 = 1 << 40;
const DEPTH: usize = 1_000;
const NAME_MAX: usize = 255;
/// Small files, in directories of this many, in CI and in long runs.
const SMALL: usize = 10_000;
const SMALL_FULL: usize = 300_000;
const SMALL_IN_ONE: usize = 1_000;

/// The cells' caches together, and the memory that a fleet may have in addition.
const CACHE: u64 = 128 << 20;
const BESIDE_CACHE: u64 = 256 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if ground.options.wants("large") {
        tally.case(&format!("large ({cells} cells)"), || large(ground, cells));
    }
}

fn large(ground: &Ground, cells: u16) -> Result<Verdict> {
    let name = format!("large-{cells}");
    let cache = ["--cache", &format!("{}MiB", CACHE >> 20)];
    let fleet = Fleet::start_with(ground, &name, "16G", cells, &cache)?;
    let (size, small) = if ground.options.full { (LARGE_FULL, SMALL_FULL) } else { (LARGE, SMALL) };
    fleet.during(|fleet| {
        let peak = while_watched(|| {
            make(&fleet.mounted, size, ground.seed)?;
            make_small(&fleet.mounted, small)
        })?;
        println!("{} MiB written, at most {} MiB of memory", size >> 20, peak >> 20);
        ensure!(
            peak <= CACHE + BESIDE_CACHE,
            "the fleet took {} MiB with a cache of {} MiB",
            peak >> 20,
            CACHE >> 20
        );
        Ok(Verdict::Passed)
    })?;
    let fleet = Fleet::resume(ground, &name, cells % 3 + 1)?;
    let verdict = fleet.during(|fleet| {
        check(&fleet.mounted, size, ground.seed)?;
        check_small(&fleet.mounted, small)?;
        Ok(Verdict::Passed)
    })?;
    fs::remove_file(ground.path(&name)).context("cannot remove the pool")?;
    Ok(verdict)
}

fn part(seed: u64, number: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ number);
    let mut bytes = Vec::with_capacity(PART);
    (0..PART / 8).for_each(|_| bytes.extend_from_slice(&rng.next_u64().to_le_bytes()));
    bytes
}

fn deepest(mounted: &Path) -> PathBuf {
    std::iter::repeat_n("d", DEPTH).fold(mounted.join("deep"), |path, name| path.join(name))
}

fn make(mounted: &Path, size: u64, seed: u64) -> Result<()> {
    let sparse = File::create(mounted.join("sparse")).context("the sparse file")?;
    sparse.set_len(SPARSE).context("the sparse file's length")?;
    sparse.write_all_at(b"middle", SPARSE / 2).context("within the sparse file")?;
    sparse.write_all_at(b"end", SPARSE - 3).context("the end of the sparse file")?;
    fs::create_dir_all(deepest(mounted)).context("the deep tree")?;
    fs::write(deepest(mounted).join("bottom"), "bottom").context("the bottom of the tree")?;
    fs::write(mounted.join("n".repeat(NAME_MAX)), "long").context("the long name")?;
    let mut file = File::create(mounted.join("large")).context("the large file")?;
    for number in 0..size / PART as u64 {
        file.write_all(&part(seed, number)).with_context(|| format!("part {number}"))?;
    }
    file.sync_all().context("syncing the large file")
}

fn small(mounted: &Path, number: usize) -> PathBuf {
    mounted.join(format!("small-{}", number / SMALL_IN_ONE)).join(number.to_string())
}

fn make_small(mounted: &Path, count: usize) -> Result<()> {
    for number in 0..count {
        let path = small(mounted, number);
        if number % SMALL_IN_ONE == 0 {
            fs::create_dir(path.parent().context("a directory")?).context("a directory")?;
        }
        fs::write(&path, number.to_string()).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn check_small(mounted: &Path, count: usize) -> Result<()> {
    for number in 0..count {
        let path = small(mounted, number);
        let found = fs::read(&path).with_context(|| path.display().to_string())?;
        ensure!(found == number.to_string().as_bytes(), "{} is wrong", path.display());
    }
    Ok(())
}

fn check(mounted: &Path, size: u64, seed: u64) -> Result<()> {
    let file = File::open(mounted.join("large"))?;
    ensure!(file.metadata()?.len() == size, "the large file's size is wrong");
    let mut found = vec![0; PART];
    for number in 0..size / PART as u64 {
        file.read_exact_at(&mut found, number * PART as u64)?;
        ensure!(found == part(seed, number), "part {number} of the large file is wrong");
    }
    let sparse = File::open(mounted.join("sparse"))?;
    let found = sparse.metadata()?;
    ensure!(found.len() == SPARSE, "the sparse file has {} bytes", found.len());
    ensure!(found.blocks() <= 64, "the sparse file takes {} sectors", found.blocks());
    for (at, bytes) in [(0, &[0; 6][..]), (SPARSE / 2, b"middle"), (SPARSE - 6, b"\0\0\0end")] {
        let mut found = [0; 6];
        sparse.read_exact_at(&mut found, at)?;
        ensure!(found == bytes, "byte {at} of the sparse file: {found:?}");
    }
    ensure!(fs::read(deepest(mounted).join("bottom"))? == b"bottom", "the deep tree is wrong");
    ensure!(fs::read(mounted.join("n".repeat(NAME_MAX)))? == b"long", "the long name is wrong");
    Ok(())
}

/// The most memory that all processes of the fleet had together during the work.
fn while_watched(work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let (peak, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(memory(), Ordering::Relaxed);
                std::thread::sleep(LOOK_EVERY);
            }
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        watcher.join().expect("it does not panic");
        worked
    })?;
    ensure!(peak.load(Ordering::Relaxed) > 0, "no memory of the fleet was seen");
    Ok(peak.load(Ordering::Relaxed))
}

/// Bytes of all processes of Warren's. Shared memory counts once.
fn memory() -> u64 {
    let of = |pid: u32| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        kib.unwrap_or(0) << 10
    };
    survivors().into_keys().map(of).sum()
}
