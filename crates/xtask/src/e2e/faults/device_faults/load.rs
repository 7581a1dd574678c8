//! Programs that record their calls.
//!
//! Each has a directory and changes files in it, one call after the other, most followed by an
//! `fsync`. For each file it keeps every state (name, content) that the pool may hold: from the
//! last that an `fsync` made durable to the last that a call has made. A call that is refused with
//! EROFS or ENOSPC has changed nothing. If a call fails with another error, or the fleet ends
//! during it, its effect is unknown. Then the file is not used until the pool is checked again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use warren_base::Rng;

use super::states::{Figures, Outcome, PAGE, Remembered};
use super::watch::Watch;
use crate::e2e::harness::survivors::dies_soon;

const FILES_MAX: usize = 14;
/// Longer than what a page, or an inode, holds.
const CONTENT_MAX: u64 = 60_000;
/// Files that are made before all faults, and pages of each: together more than a cache.
const SHELF: u64 = 64;
const SHELVED_PAGES: u64 = 64;
/// Bytes that identify the file of a content.
const HEADER: usize = 16;
const MAGIC: u64 = 0x7761_7272_656e_2121;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind<'a> {
    Change,
    /// A read of a file in this directory.
    Read(&'a Path),
}

/// One program.
pub(super) struct Program {
    number: usize,
    rng: Rng,
    change: u64,
    files: BTreeMap<u64, Remembered>,
    pub figures: Figures,
    pub watch: Arc<Watch>,
    /// An open file that outlives a call, with its number.
    open: Option<(u64, File)>,
    /// Files of the shelf that are open all the time.
    shelf: Vec<(u64, File)>,
    /// Whether the directory itself is durable.
    is_settled: bool,
    /// Whether the fleet is gone.
    is_alone: bool,
    /// Whether a change was refused because the fleet is read-only.
    pub saw_read_only: bool,
}

impl Program {
    pub(super) fn new(number: usize, seed: u64) -> Self {
        Self {
            number,
            rng: Rng::new(seed ^ number as u64),
            change: 0,
            files: BTreeMap::new(),
            figures: Figures::default(),
            watch: Arc::default(),
            open: None,
            shelf: Vec::new(),
            is_settled: false,
            is_alone: false,
            saw_read_only: false,
        }
    }

    fn place(&self, mounted: &Path) -> PathBuf {
        mounted.join(format!("program-{}", self.number))
    }

    /// A new fleet starts.
    pub(super) fn begin(&mut self, mounted: &Path) -> Result<()> {
        self.watch = Arc::default();
        (self.is_alone, self.saw_read_only, self.open) = (false, false, None);
        if !self.is_settled {
            fs::create_dir_all(self.place(mounted)).context("cannot make a directory")?;
            File::open(mounted)?.sync_all().context("cannot sync a directory")?;
            self.is_settled = true;
        }
        for number in (0..SHELF).step_by(2) {
            let file =
                File::open(mounted.join("shelf").join(number.to_string())).context("shelf")?;
            self.shelf.push((number, file));
        }
        Ok(())
    }

    /// Works until the case ends it, or the fleet is gone.
    pub(super) fn work(&mut self, mounted: &Path) -> Result<()> {
        let place = self.place(mounted);
        while !self.is_alone && !self.watch.is_over.load(Ordering::Relaxed) {
            self.step(&place).with_context(|| format!("program {}", self.number))?;
        }
        self.open = None;
        Ok(())
    }

    fn step(&mut self, place: &Path) -> Result<()> {
        self.change += 1;
        let known: Vec<u64> = self.known().collect();
        let draw = self.rng.below(16);
        let Some(id) = (!known.is_empty()).then(|| *self.rng.pick(&known)) else {
            return self.create(place).map(drop);
        };
        match draw {
            0..=2 if self.files.len() < FILES_MAX => self.create(place).map(drop),
            0..=2 | 15 if known.len() > 3 => self.unlink(place, id),
            3..=6 => self.write(place, id, false),
            7..=8 => self.write(place, id, true),
            9 => self.rename(place, id),
            10..=11 => self.replace(place, id),
            12 => self.truncate(place, id),
            13 => self.look_at(place, id),
            _ => self.look_at_shelf(place),
        }
    }

    /// Files that exist and whose state is known.
    fn known(&self) -> impl Iterator<Item = u64> {
        let files = self.files.iter();
        files.filter(|(_, file)| !file.is_unknown && file.name().is_some()).map(|(id, _)| *id)
    }

    /// Makes a call that may fail if the device does. An unexplained error is a failure of the
    /// case.
    fn call<T>(
        &mut self,
        name: &str,
        call: impl FnOnce() -> io::Result<T>,
    ) -> Result<Result<T, Outcome>> {
        let result = self.timed(name, call);
        self.judge(name, result, Kind::Change)
    }

    fn timed<T>(&mut self, name: &str, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.watch.set(Some(name.to_owned()));
        let begun = Instant::now();
        let result = call();
        let took = begun.elapsed();
        self.watch.set(None);
        self.figures.calls += 1;
        if took > self.figures.slowest {
            (self.figures.slowest, self.figures.slowest_call) = (took, name.to_owned());
        }
        result
    }

    fn judge<T>(
        &mut self,
        name: &str,
        result: io::Result<T>,
        kind: Kind<'_>,
    ) -> Result<Result<T, Outcome>> {
        let error = match result {
            Ok(result) => return Ok(Ok(result)),
            Err(error) => error,
        };
        // The fault was injected before the error came.
        let is_set = |flag: &AtomicBool| flag.load(Ordering::SeqCst);
        ensure!(is_set(&self.watch.may_fail), "{name} without a fault: {error}");
        let may_fail = is_set(&self.watch.reads_may_fail);
        match (Errno::from_io_error(&error), kind) {
            (Some(Errno::IO), Kind::Read(place)) if !may_fail && dies_soon(place) => {
                self.is_alone = true;
                Ok(Err(Outcome::Unknown))
            }
            (Some(errno @ (Errno::ROFS | Errno::IO)), Kind::Read(_)) if !may_fail => {
                bail!("{name}: {errno}, though no read of the device fails")
            }
            (Some(Errno::ROFS), _) => {
                self.saw_read_only = true;
                self.figures.refused += 1;
                // The fleet stays read-only for long, so the program need not retry as fast as it
                // can.
                std::thread::sleep(Duration::from_millis(1));
                Ok(Err(Outcome::Refused))
            }
            (Some(Errno::NOSPC), _) => {
                self.figures.refused += 1;
                Ok(Err(Outcome::Refused))
            }
            (Some(Errno::IO), _) => {
                self.figures.failed += 1;
                // As rarely as while the fleet is read-only.
                std::thread::sleep(Duration::from_millis(1));
                Ok(Err(Outcome::Unknown))
            }
            (Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV), _) => {
                self.is_alone = true;
                Ok(Err(Outcome::Unknown))
            }
            _ => bail!("{name}: {error}"),
        }
    }

    /// The result of a call that changes something.
    fn change_by(&mut self, name: &str, call: impl FnOnce() -> io::Result<()>) -> Result<Outcome> {
        Ok(self.call(name, call)?.err().unwrap_or(Outcome::Done))
    }

    fn fresh_name(&self) -> String {
        format!("f{}", self.change)
    }

    fn file(&mut self, id: u64) -> &mut Remembered {
        self.files.get_mut(&id).expect("a file that is remembered")
    }

    fn path(&self, place: &Path, id: u64) -> PathBuf {
        place.join(self.files[&id].name().expect("a known file has a name"))
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.rng.next_u64() as u8).collect()
    }

    /// True three times out of four.
    fn wants_sync(&mut self) -> bool {
        self.rng.chance(3, 4)
    }

    /// Creates a file with some content. Returns its number if it exists and its state is known.
    fn create(&mut self, place: &Path) -> Result<Option<u64>> {
        let (id, name) = (self.change, self.fresh_name());
        let path = place.join(&name);
        let made = self.call("create", || {
            File::options().read(true).write(true).create_new(true).open(&path)
        })?;
        let outcome = made.as_ref().err().copied().unwrap_or(Outcome::Done);
        if outcome == Outcome::Refused {
            return Ok(None);
        }
        let mut file = Remembered {
            contents: vec![(id, Vec::new())],
            names: vec![(0, None)],
            seen_from: 0,
            is_unknown: false,
            replaced_by: None,
            whole_as: None,
        };
        file.rename(id, Some(name), outcome);
        self.files.insert(id, file);
        let Ok(made) = made else { return Ok(None) };
        let len = self.rng.below(CONTENT_MAX);
        let mut content = header(id);
        content.extend(self.bytes(len));
        self.store(&made, id, 0, &content, "write to a new file")?;
        self.sync_if_wanted(&made, id)?;
        self.open = Some((id, made));
        Ok((!self.files[&id].is_unknown).then_some(id))
    }

    /// Writes, and records the file's new content.
    fn store(&mut self, file: &File, id: u64, at: u64, bytes: &[u8], name: &str) -> Result<()> {
        self.change += 1;
        let mut content = self.files[&id].content().to_vec();
        let end = at as usize + bytes.len();
        content.resize(content.len().max(end), 0);
        content[at as usize..end].copy_from_slice(bytes);
        let mut written = 0;
        let result = self.call(name, || {
            // A short write failed on its way, but its length is known.
            written = file.write_at(bytes, at)?;
            Ok(())
        })?;
        let outcome = match result.err() {
            None if written < bytes.len() => Outcome::Unknown,
            None => Outcome::Done,
            Some(outcome) => outcome,
        };
        let change = self.change;
        self.file(id).rewrite(change, content, outcome);
        Ok(())
    }

    fn sync_if_wanted(&mut self, file: &File, id: u64) -> Result<()> {
        if self.wants_sync() && self.call("fsync", || file.sync_all())?.is_ok() {
            self.figures.synced += 1;
            self.file(id).keep_content();
            self.file(id).keep_creation();
        }
        Ok(())
    }

    /// Everything that was done to names is durable, if the sync succeeded.
    fn sync_place(&mut self, place: &Path) -> Result<()> {
        if !self.wants_sync() {
            return Ok(());
        }
        let Ok(directory) = self.call("open a directory", || File::open(place))? else {
            return Ok(());
        };
        if self.call("fsync of a directory", || directory.sync_all())?.is_ok() {
            self.figures.synced += 1;
            self.files.values_mut().for_each(Remembered::keep_name);
            self.forget();
        }
        Ok(())
    }

    /// Forgets files that are durably gone.
    fn forget(&mut self) {
        self.files.retain(|_, file| !matches!(file.names.as_slice(), [(_, None)]));
    }

    /// Opens the file, which may have been open for long.
    fn opened(&mut self, place: &Path, id: u64) -> Result<Option<File>> {
        if let Some((open, file)) = self.open.take()
            && open == id
        {
            return Ok(Some(file));
        }
        let path = self.path(place, id);
        let opened = self.call("open", || File::options().read(true).write(true).open(&path))?;
        Ok(opened.ok())
    }

    fn write(&mut self, place: &Path, id: u64, appends: bool) -> Result<()> {
        let Some(file) = self.opened(place, id)? else { return Ok(()) };
        let len = self.files[&id].content().len() as u64;
        // A file whose first write was refused is empty.
        if len < HEADER as u64 {
            return self.store(&file, id, 0, &header(id), "write of a header");
        }
        let at = if appends { len } else { HEADER as u64 + self.rng.below(len) };
        let longest = if self.rng.chance(1, 2) { 200 } else { 20_000 };
        let span = (1 + self.rng.below(longest)).min((CONTENT_MAX + 4096).saturating_sub(at));
        if span > 0 && at <= len {
            let bytes = self.bytes(span);
            self.store(&file, id, at, &bytes, if appends { "append" } else { "write" })?;
        }
        self.sync_if_wanted(&file, id)?;
        self.open = Some((id, file));
        Ok(())
    }

    fn truncate(&mut self, place: &Path, id: u64) -> Result<()> {
        let Some(file) = self.opened(place, id)? else { return Ok(()) };
        let mut content = self.files[&id].content().to_vec();
        if content.len() > HEADER {
            let len = HEADER + self.rng.below((content.len() - HEADER) as u64) as usize;
            content.truncate(len);
            let outcome = self.change_by("truncate", || file.set_len(len as u64))?;
            let change = self.change;
            self.file(id).rewrite(change, content, outcome);
        }
        self.sync_if_wanted(&file, id)
    }

    fn rename(&mut self, place: &Path, id: u64) -> Result<()> {
        let (from, to) = (self.path(place, id), self.fresh_name());
        let outcome = self.change_by("rename", || fs::rename(&from, place.join(&to)))?;
        let change = self.change;
        self.file(id).rename(change, Some(to), outcome);
        self.sync_place(place)
    }

    /// A careful save: a new file takes the name of the old one.
    fn replace(&mut self, place: &Path, id: u64) -> Result<()> {
        let Some(new) = self.create(place)? else { return Ok(()) };
        let (from, to) = (self.path(place, new), self.path(place, id));
        self.change += 1;
        let change = self.change;
        let name = self.files[&id].name().cloned().expect("a known file has a name");
        let outcome = self.change_by("rename over a file", || fs::rename(from, to))?;
        if outcome != Outcome::Refused {
            self.file(id).replaced_by = self.files[&new].name().map(|before| (new, before.clone()));
            let whole_from = self.files[&new].contents.last().map_or(0, |(change, _)| *change);
            self.file(new).whole_as = Some((name.clone(), whole_from));
        }
        self.file(id).rename(change, None, outcome);
        self.file(new).rename(change, Some(name), outcome);
        self.sync_place(place)
    }

    fn unlink(&mut self, place: &Path, id: u64) -> Result<()> {
        let path = self.path(place, id);
        let outcome = self.change_by("unlink", || fs::remove_file(path))?;
        let change = self.change;
        self.file(id).rename(change, None, outcome);
        self.sync_place(place)
    }

    fn look_at(&mut self, place: &Path, id: u64) -> Result<()> {
        let path = self.path(place, id);
        let is_cold = self.rng.chance(1, 2);
        let result = self.timed("read", || read(&path, is_cold));
        let Ok(found) = self.judge("read", result, Kind::Read(place))? else { return Ok(()) };
        self.figures.read += 1;
        let name = self.files[&id].name().cloned().expect("a known file has a name");
        let file = &self.files[&id];
        ensure!(
            file.may_be(&name, &found, file.seen_from),
            "{name}: read {}, of {}",
            summary(&found),
            summary(file.content())
        );
        Ok(())
    }

    /// Files that were made before all faults can be read at any time.
    fn look_at_shelf(&mut self, place: &Path) -> Result<()> {
        let number = self.rng.below(SHELF);
        let at = self.rng.below(SHELVED_PAGES - 4) * PAGE as u64;
        let opened = self.shelf.iter().find(|(open, _)| *open == number).map(|(_, file)| file);
        let opened = opened.map(File::try_clone).transpose().context("cannot share a file")?;
        let path = place.with_file_name("shelf").join(number.to_string());
        let mut found = vec![0; 4 * PAGE];
        let result = self.timed("read of what is old", || {
            let file = opened.map_or_else(|| File::open(&path), Ok)?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
            file.read_exact_at(&mut found, at)
        });
        if self.judge("read of what is old", result, Kind::Read(place))?.is_ok() {
            self.figures.read += 1;
            let expected = shelved(number);
            let expected = &expected[at as usize..at as usize + found.len()];
            ensure!(found == expected, "shelf/{number} at {at}: read {}", summary(&found));
        }
        Ok(())
    }

    /// Reads everything while the fleet serves.
    pub(super) fn look_at_all(&mut self, mounted: &Path) -> Result<()> {
        let place = self.place(mounted);
        for id in self.known().collect::<Vec<_>>() {
            if !self.is_alone {
                self.look_at(&place, id)?;
            }
        }
        Ok(())
    }

    /// Whether a new file can be made durable.
    pub(super) fn probe(&mut self, mounted: &Path) -> Result<bool> {
        let place = self.place(mounted);
        self.change += 1;
        let synced = self.figures.synced;
        for _ in 0..8 {
            self.create(&place)?;
            self.change += 1;
            if self.figures.synced > synced || self.is_alone {
                break;
            }
        }
        Ok(self.figures.synced > synced)
    }

    /// Closes everything that would keep the mount in use.
    pub(super) fn close(&mut self) {
        self.open = None;
        self.shelf.clear();
    }

    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// The fleet has stopped and reported that all is written, so every change is durable.
    pub(super) fn settle(&mut self) {
        for file in self.files.values_mut() {
            file.keep_content();
            file.keep_name();
        }
        self.forget();
    }

    /// Compares the records with the pool, which was opened again, and continues from its state.
    pub(super) fn check(&mut self, mounted: &Path) -> Result<()> {
        let place = self.place(mounted);
        if !self.is_settled {
            return Ok(());
        }
        let mut seen = BTreeSet::new();
        let mut wrong = Vec::new();
        for entry in fs::read_dir(&place).context("the directory is lost")? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let content = fs::read(place.join(&name)).with_context(|| name.clone())?;
            match self.owner(&name, &content) {
                Some(id) if seen.insert(id) => self.is_found(id, name, content),
                Some(id) => wrong.push(format!("file {id} is there twice, also as {name}")),
                None => wrong.push(self.describe(&name, &content)),
            }
        }
        for (id, file) in self.files.iter().filter(|(id, _)| !seen.contains(id)) {
            if !file.may_be_gone(0) {
                wrong.push(format!(
                    "file {id} is lost: {:?}, {}",
                    file.names,
                    summary(file.content())
                ));
            }
            let Some((heir, before)) = &file.replaced_by else { continue };
            if self.files.get(heir).is_some_and(|heir| heir.name() == Some(before)) {
                wrong.push(format!(
                    "file {id} is gone, and file {heir}, which replaces it, is still {before}"
                ));
            }
        }
        ensure!(wrong.is_empty(), "program {}: {}", self.number, wrong.join("; "));
        self.files.retain(|id, _| seen.contains(id));
        Ok(())
    }

    /// The file to which this name and content may belong.
    fn owner(&self, name: &str, content: &[u8]) -> Option<u64> {
        let may_be = |(id, file): &(&u64, &Remembered)| {
            (content.is_empty() || content.starts_with(&header(**id)))
                && file.may_be(name, content, 0)
        };
        self.files.iter().find(may_be).map(|(id, _)| *id)
    }

    fn is_found(&mut self, id: u64, name: String, content: Vec<u8>) {
        let found = Remembered {
            contents: vec![(0, content)],
            names: vec![(0, Some(name))],
            seen_from: 0,
            is_unknown: false,
            replaced_by: None,
            whole_as: None,
        };
        let before = self.files.insert(id, found);
        assert!(before.is_some(), "only what is remembered is found");
    }

    fn describe(&self, name: &str, content: &[u8]) -> String {
        let header = content.first_chunk::<HEADER>();
        let id = header.map(|it| u64::from_le_bytes(*it.last_chunk().expect("half of it")));
        let found = format!("{name} holds {}, file {id:?}", summary(content));
        match id.and_then(|id| self.files.get(&id)) {
            Some(file) => {
                let states: Vec<_> =
                    file.contents.iter().map(|(change, it)| (change, summary(it))).collect();
                format!("{found}; it may be {:?} with {states:?}", file.names)
            }
            None => format!("{found}, which is not to be there"),
        }
    }
}

/// Fills the shelf, which is never changed.
pub(super) fn fill_shelf(mounted: &Path) -> Result<()> {
    let shelf = mounted.join("shelf");
    fs::create_dir(&shelf).context("cannot make the shelf")?;
    for number in 0..SHELF {
        let file = File::create_new(shelf.join(number.to_string())).context("shelf")?;
        file.write_all_at(&shelved(number), 0).context("shelf")?;
        file.sync_all().context("shelf")?;
    }
    File::open(shelf)?.sync_all().context("shelf")
}

fn shelved(number: u64) -> Vec<u8> {
    let words = 0..SHELVED_PAGES * PAGE as u64 / 8;
    words.flat_map(|word| (number << 32 | word).to_le_bytes()).collect()
}

fn header(id: u64) -> Vec<u8> {
    [MAGIC.to_le_bytes(), id.to_le_bytes()].concat()
}

/// A short form of the content: its length, and a checksum of each page.
fn summary(content: &[u8]) -> String {
    let sum = |page: &[u8]| {
        page.iter().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)))
    };
    let sums: Vec<String> = content.chunks(PAGE).map(|page| format!("{:08x}", sum(page))).collect();
    format!("{} bytes ({})", content.len(), sums.join(" "))
}

fn read(path: &Path, is_cold: bool) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if is_cold {
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    let mut content = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}
