//! A program whose pages name themselves, so that they are found, and damaged, in the frames of a
//! cell (decision 81).
//!
//! ```text
//! page: magic, file, page, version, and words that follow from these
//!
//! a version: written ──▶ damaged in its frame? ──▶ restored, or lost
//!                '──▶ synced: it, or a later one, is there for good
//! ```
//!
//! The program remembers the versions that each page may have. A descriptor may end with EIO, and a
//! page may go back to an older version, only if `warren status` names the file in a new
//! generation; and of the pages of that file only those go back that were damaged. No page goes
//! back behind a sync.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use warren_base::Rng;

use super::super::cell_memory::PAGE;
use super::fault::Fault;
use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::Ground;
use crate::e2e::harness::process::holds_within;

const FILES: u32 = 6;
const PAGES: u32 = 24;
const MAGIC: u64 = u64::from_le_bytes(*b"~marked~");
const WORD: usize = 8;

/// Between two steps a cell may sleep, and adds checksums before.
const STEP_EVERY: Duration = Duration::from_millis(1);
/// The time for which the fleet may be unable to answer, and the program to end: until a wave has
/// ended.
const PATIENCE: Duration = Duration::from_secs(120);
/// Discards that may follow each other while a file is compared.
const DISCARDS_MAX: u32 = 20;

/// The contents of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Mark {
    file: u32,
    pub page: u32,
    /// 0: the page was never written.
    version: u64,
}

impl Mark {
    fn bytes(self) -> Vec<u8> {
        if self.version == 0 {
            return vec![0; PAGE];
        }
        let place = u64::from(self.file) << 32 | u64::from(self.page);
        let mut rng = Rng::new(place ^ self.version << 16);
        let words = [MAGIC, place, self.version].into_iter();
        let words = words.chain(std::iter::repeat_with(|| rng.next_u64()));
        words.take(PAGE / WORD).flat_map(u64::to_le_bytes).collect()
    }

    /// The mark of a page that has all bytes of one.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.as_chunks::<WORD>().0.iter().map(|word| u64::from_le_bytes(*word));
        if words.next()? != MAGIC {
            return None;
        }
        let (place, version) = (words.next()?, words.next()?);
        let mark = Self { file: (place >> 32) as u32, page: place as u32, version };
        (mark.bytes() == bytes).then_some(mark)
    }
}

/// The damaged pages, each with its fault. They are noted before the damage happens.
#[derive(Default)]
pub(super) struct Hits(Mutex<BTreeMap<Mark, Fault>>);

impl Hits {
    pub(super) fn insert(&self, mark: Mark, fault: Fault) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(mark, fault);
    }

    fn get(&self, mark: Mark) -> Option<Fault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&mark).copied()
    }

    fn files(&self) -> BTreeSet<u32> {
        let hits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hits.keys().map(|mark| mark.file).collect()
    }
}

/// Bytes that were thrown away, by the fault that had damaged them.
pub(super) type Lost = BTreeMap<Fault, u64>;

/// The program, at work in a thread of its own.
pub(super) struct Marked {
    pub hits: Arc<Hits>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Lost>>,
}

impl Marked {
    /// Begins in a new directory of the fleet's mount.
    pub(super) fn start(ground: &Ground, fleet: &Fleet, seed: u64) -> Result<Self> {
        let place = fleet.mounted.join("marked");
        std::fs::create_dir(&place).context("cannot make a directory")?;
        let (hits, is_over) = (Arc::<Hits>::default(), Arc::<AtomicBool>::default());
        // Before the files are opened.
        let named = Named::start(ground, &fleet.pool)?;
        let files = (0..FILES).map(|number| MarkedFile::create(&place, number));
        let mut program = Worker {
            rng: Rng::new(seed),
            files: files.collect::<Result<_>>()?,
            version: 0,
            hits: hits.clone(),
            named,
            lost: Lost::new(),
        };
        let over = is_over.clone();
        let thread = std::thread::spawn(move || program.work(&over).map(|()| program.lost));
        Ok(Self { hits, is_over, thread })
    }

    /// Ends it. All cells serve, and nothing is held any more.
    pub(super) fn end(self) -> Result<Lost> {
        self.is_over.store(true, Ordering::Relaxed);
        let is_over = holds_within(PATIENCE, || Ok(self.thread.is_finished()))?;
        ensure!(is_over, "the program with marked pages hangs");
        self.thread.join().map_err(|_| anyhow::anyhow!("the program with marked pages panicked"))?
    }
}

/// A shell that asks for the files that `warren status` names as discarded. It is started before
/// this process has files open on the mount: a program that is executed with such files closes
/// them first, and waits for the front, while no process can read its state in `/proc`.
struct Named {
    shell: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Named {
    fn start(ground: &Ground, pool: &Path) -> Result<Self> {
        const SCRIPT: &str =
            r#"while read -r _; do "$0" status --json "$1" | tr '\n' ' '; echo; done"#;
        let mut command = Command::new("bash");
        command.args(["-c", SCRIPT]).arg(&ground.warren).arg(pool).stderr(Stdio::null());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().context("cannot start a shell")?;
        let questions = shell.stdin.take().context("a shell without an input")?;
        let answers = BufReader::new(shell.stdout.take().context("a shell without an output")?);
        Ok(Self { shell, questions, answers })
    }

    /// The generations of the files, by their inode numbers; `None` if the fleet does not answer.
    fn generations(&mut self) -> Option<BTreeMap<u64, u64>> {
        let mut answer = String::new();
        self.questions.write_all(b"\n").ok()?;
        self.answers.read_line(&mut answer).ok()?;
        generations(&answer)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ended = self.shell.kill();
        let _reaped = self.shell.wait();
    }
}

fn generations(json: &str) -> Option<BTreeMap<u64, u64>> {
    let (_, list) = json.split_once("\"discarded\":")?;
    let (list, _) = list.split_once(']')?;
    let numbers = list.split(|it: char| !it.is_ascii_digit()).filter_map(|it| it.parse().ok());
    let numbers: Vec<u64> = numbers.collect();
    // Inode, generation, time.
    Some(
        numbers.as_chunks::<3>().0.iter().map(|[ino, generation, _]| (*ino, *generation)).collect(),
    )
}

/// The versions that a page may have.
#[derive(Clone, Default)]
struct Versions {
    current: u64,
    /// The versions that were written since the last sync, and the version that it made durable.
    since_sync: Vec<u64>,
}

struct MarkedFile {
    number: u32,
    path: PathBuf,
    handle: File,
    ino: u64,
    /// The generation of the last discard that is known.
    generation: u64,
    pages: Vec<Versions>,
}

impl MarkedFile {
    fn create(place: &Path, number: u32) -> Result<Self> {
        let path = place.join(number.to_string());
        let handle = File::options().read(true).write(true).create_new(true).open(&path);
        let handle = handle.context("cannot make a file")?;
        handle.set_len(u64::from(PAGES) * PAGE as u64).context("cannot set a length")?;
        let ino = handle.metadata().context("no attributes")?.ino();
        let pages = vec![Versions { current: 0, since_sync: vec![0] }; PAGES as usize];
        Ok(Self { number, path, handle, ino, generation: 0, pages })
    }

    fn mark(&self, page: u32, version: u64) -> Mark {
        Mark { file: self.number, page, version }
    }

    /// Opens the file again, and drops what the kernel has of it.
    fn reopen(&mut self) -> io::Result<()> {
        self.handle = File::options().read(true).write(true).open(&self.path)?;
        fadvise(&self.handle, 0, None, Advice::DontNeed).map_err(io::Error::from)
    }

    fn read(&self, page: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; PAGE];
        self.handle.read_exact_at(&mut bytes, u64::from(page) * PAGE as u64)?;
        Ok(bytes)
    }
}

struct Worker {
    rng: Rng,
    files: Vec<MarkedFile>,
    /// The last version of all pages.
    version: u64,
    hits: Arc<Hits>,
    named: Named,
    lost: Lost,
}

impl Worker {
    fn work(&mut self, is_over: &AtomicBool) -> Result<()> {
        while !is_over.load(Ordering::Relaxed) {
            let at = self.rng.below(FILES.into()) as usize;
            self.step(at).with_context(|| format!("marked file {at}"))?;
            std::thread::sleep(STEP_EVERY);
        }
        (0..FILES as usize).try_for_each(|at| {
            self.compare(at, false).with_context(|| format!("marked file {at}, at last"))
        })?;
        self.judge_named()
    }

    fn step(&mut self, at: usize) -> Result<()> {
        let page = self.rng.below(PAGES.into()) as u32;
        match self.rng.below(16) {
            0 => self.sync(at),
            1 => self.compare(at, false),
            2..=5 => {
                let found = self.files[at].read(page);
                let current = self.files[at].pages[page as usize].current;
                match found {
                    Ok(found) if found == self.files[at].mark(page, current).bytes() => Ok(()),
                    Ok(_) => self.compare(at, false),
                    Err(error) => self.ended(at, &error),
                }
            }
            _ => self.write(at, page),
        }
    }

    fn write(&mut self, at: usize, page: u32) -> Result<()> {
        self.version += 1;
        let (file, version) = (&mut self.files[at], self.version);
        let bytes = file.mark(page, version).bytes();
        let written = file.handle.write_all_at(&bytes, u64::from(page) * PAGE as u64);
        file.pages[page as usize].since_sync.push(version);
        match written {
            Ok(()) => file.pages[page as usize].current = version,
            Err(error) => self.ended(at, &error)?,
        }
        Ok(())
    }

    fn sync(&mut self, at: usize) -> Result<()> {
        if let Err(error) = self.files[at].handle.sync_all() {
            return self.ended(at, &error);
        }
        for page in &mut self.files[at].pages {
            page.since_sync = vec![page.current];
        }
        Ok(())
    }

    /// A descriptor has ended.
    fn ended(&mut self, at: usize, error: &io::Error) -> Result<()> {
        let is_eio = Errno::from_io_error(error) == Some(Errno::IO);
        ensure!(is_eio && self.is_hit(at), "without damage: {error}");
        self.await_named(at)?;
        self.compare(at, true)
    }

    fn is_hit(&self, at: usize) -> bool {
        self.hits.files().contains(&self.files[at].number)
    }

    /// Waits until the fleet names the file in a new generation.
    fn await_named(&mut self, at: usize) -> Result<()> {
        let (file, named) = (&mut self.files[at], &mut self.named);
        let is_named = holds_within(PATIENCE, || {
            let generation = named.generations().and_then(|it| it.get(&file.ino).copied());
            let newer = generation.filter(|it| *it > file.generation);
            file.generation = newer.unwrap_or(file.generation);
            Ok(newer.is_some())
        })?;
        ensure!(is_named, "inode {} has lost pages and is not named", file.ino);
        Ok(())
    }

    /// Compares the whole file, as a new descriptor shows it. `is_named`: it is known already that
    /// the file has lost pages.
    fn compare(&mut self, at: usize, mut is_named: bool) -> Result<()> {
        for _ in 0..DISCARDS_MAX {
            match self.compare_once(at, &mut is_named)? {
                Ok(()) => return Ok(()),
                // A page was thrown away meanwhile.
                Err(error) => {
                    let is_eio = Errno::from_io_error(&error) == Some(Errno::IO);
                    ensure!(is_eio && self.is_hit(at), "without damage: {error}");
                }
            }
        }
        bail!("new descriptors end again and again")
    }

    /// The inner error is that of a call.
    fn compare_once(&mut self, at: usize, is_named: &mut bool) -> Result<io::Result<()>> {
        if let Err(error) = self.files[at].reopen() {
            return Ok(Err(error));
        }
        for page in 0..PAGES {
            let found = match self.files[at].read(page) {
                Ok(found) => found,
                Err(error) => return Ok(Err(error)),
            };
            let file = &self.files[at];
            let versions = &file.pages[page as usize];
            if found == file.mark(page, versions.current).bytes() {
                continue;
            }
            let older = versions.since_sync.iter().rev().copied();
            let version = older.into_iter().find(|it| file.mark(page, *it).bytes() == found);
            let hits = versions.since_sync.iter();
            let hit = hits.rev().find_map(|it| self.hits.get(file.mark(page, *it)));
            let is_newer = version.is_some_and(|it| it > versions.current);
            let Some(version) = version.filter(|_| is_newer || hit.is_some()) else {
                let (found, Versions { current, since_sync }) = (Mark::of(&found), versions);
                bail!("page {page}: found {found:?}, not version {current} of {since_sync:?}")
            };
            let versions = &mut self.files[at].pages[page as usize];
            versions.current = version;
            // A call that a discard has ended may have changed the page before.
            let Some(fault) = hit.filter(|_| !is_newer) else { continue };
            versions.since_sync.retain(|it| *it <= version);
            *self.lost.entry(fault).or_default() += PAGE as u64;
            if !std::mem::replace(is_named, true) {
                self.await_named(at)?;
            }
        }
        Ok(Ok(()))
    }

    /// Only files that were damaged may be named.
    fn judge_named(&mut self) -> Result<()> {
        let mut named = None;
        holds_within(PATIENCE, || {
            named = self.named.generations();
            Ok(named.is_some())
        })?;
        let hit = self.hits.files();
        let known = |ino: &u64| {
            self.files.iter().any(|file| file.ino == *ino && hit.contains(&file.number))
        };
        let strange = named.context("the fleet does not answer")?.into_keys().find(|it| !known(it));
        ensure!(strange.is_none(), "inode {strange:?} was not damaged and is named as discarded");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_differs_in_a_bit_is_not_marked() {
        let mark = Mark { file: 3, page: 9, version: 70 };
        let mut bytes = mark.bytes();
        assert_eq!(Mark::of(&bytes), Some(mark));
        for at in [0, 9, 17, PAGE - 1] {
            bytes[at] ^= 1;
            assert_eq!(Mark::of(&bytes), None, "byte {at}");
            bytes[at] ^= 1;
        }
        assert_eq!(Mark { version: 0, ..mark }.bytes(), vec![0; PAGE]);
    }

    #[test]
    fn generations_are_read_from_the_status() {
        let json = r#"{"discarded": [{"ino": 7, "generation": 2, "at": 99},{"ino":8,"generation":1,"at":3}], "x": 1}"#;
        assert_eq!(generations(json), Some(BTreeMap::from([(7, 2), (8, 1)])));
        assert_eq!(generations(r#"{"discarded":[]}"#), Some(BTreeMap::new()));
        assert_eq!(generations("{}"), None);
    }
}
