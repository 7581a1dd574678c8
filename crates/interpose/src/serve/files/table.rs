//! The program's descriptors of files that are served here.
//!
//! Each has a number that the kernel has given out for a placeholder, so that numbers, limits and
//! inheritance are the kernel's own. A call that is not seen here finds the placeholder, which
//! cannot be read, written or opened.
//!
//! ```text
//! state    bit 0 open    bit 1 frozen    bit 2 directory    bit 3 written    bit 4 returned
//!          bits 8.. number of the held file    bits 32.. generation
//! offset   bits 0..48 offset    bits 48..63 low bits of the generation    bit 63 frozen
//! ```
//!
//! A file that is frozen is about to become the kernel's: its offset is taken, and calls wait until
//! that is done. Reading moves the offset by one exchange, so that threads that read from one
//! descriptor get each byte once.

use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};

use warren_base::Ino;
use warren_client::{Guard, Held};
use warren_proto::{Capability, Handle, InodeRef};

use super::super::descriptors;
use super::super::facts;
use super::super::lock::{relax, undisturbed};
use super::passing;
use super::pin::pin;
use super::places::{self, DESCRIPTORS};
use crate::abi::{O_CLOEXEC, nr};
use crate::fleet::files::OpenFile;
use crate::fleet::written::WrittenFile;
use crate::state::is_child;
use crate::stub;

const OPEN: u64 = 1;
const FROZEN: u64 = 2;
const DIRECTORY: u64 = 4;
const WRITTEN: u64 = 8;
/// A child has taken it, so the kernel has it. What it holds at its cell is not closed yet.
const RETURNED: u64 = 16;
const HELD_SHIFT: u32 = 8;
const GENERATION_SHIFT: u32 = 32;
const OFFSET_BITS: u32 = 48;
/// Offsets are below.
pub(crate) const OFFSET_END: u64 = 1 << (OFFSET_BITS - 1);
/// The bit in the offset of a frozen file, which moves no more.
const TAKEN: u64 = 1 << 63;
const WORD: usize = size_of::<u64>();
/// The longest path that is kept.
const PATH_WORDS: usize = 48;
pub(crate) const PATH_MAX: usize = PATH_WORDS * WORD;

pub(crate) struct File {
    state: AtomicU64,
    offset: AtomicU64,
    /// The number of a directory's place, which duplicates share.
    place: AtomicUsize,
    /// The handle of a file that is written, and the guard of its lease.
    open: AtomicU64,
    guard: [AtomicU64; 2],
    ino: AtomicU64,
    capability: AtomicU64,
    client: AtomicU32,
    /// The admission of the process when the file was opened: what is held belongs to its client.
    admission: AtomicUsize,
    flags: AtomicU32,
    closes_on_exec: AtomicBool,
    /// See [`super::parked`].
    epoch: AtomicU64,
    /// What was watched when no watcher was found, see [`super::watchers`].
    watches: AtomicU64,
    /// Where a relative path begins, or 0.
    start: AtomicU64,
    path_length: AtomicUsize,
    path: [AtomicU64; PATH_WORDS],
}

/// A file for each number.
pub(crate) struct Files([File; DESCRIPTORS]);

/// What is true of the files.
pub(crate) struct Table {
    /// A child of `vfork` has begun to take files: those that are frozen.
    is_lent: AtomicBool,
    /// Files have arrived.
    has_returned: AtomicBool,
    /// No higher number was ever open.
    highest: AtomicUsize,
}

/// A file that was open when it was looked up.
#[derive(Clone, Copy)]
pub(crate) struct Served {
    pub number: usize,
    state: u64,
    file: &'static File,
}

/// What is open.
pub(crate) enum Object {
    File(OpenFile),
    Written(WrittenFile),
    /// A directory, and the number of its place.
    Directory(InodeRef, usize),
}

impl Object {
    pub(crate) fn ino(&self) -> Ino {
        match self {
            Self::File(OpenFile { node, .. })
            | Self::Written(WrittenFile { node, .. })
            | Self::Directory(node, _) => node.ino,
        }
    }

    /// It did not get into the table.
    pub(crate) fn forget(&self) {
        if let Self::Directory(_, place) = self {
            places::leave(*place);
        }
    }
}

/// What an open file holds at its cell.
pub(crate) struct AtCell {
    pub held: Option<Held>,
    pub handle: Option<Handle>,
}

/// How a file was opened.
pub(crate) struct Opening<'a> {
    /// An absolute path that leads to where the other one begins, or nothing.
    pub base: &'a [u8],
    pub path: &'a [u8],
    /// Where the path begins if it is relative and has no base.
    pub start: Option<Ino>,
    pub flags: u32,
    pub closes_on_exec: bool,
    /// Before it got its number.
    pub epoch: u64,
    pub offset: u64,
}

/// Whether files may be open: the mount is pinned.
#[inline]
pub(crate) fn are_any() -> bool {
    pin().is_set()
}

/// The file behind a descriptor, if it is served here. Waits while it becomes the kernel's.
pub(crate) fn find(number: usize) -> Option<Served> {
    let file = Files::here().0.get(number)?;
    for turn in 0.. {
        let state = file.state.load(Acquire);
        match state & (OPEN | FROZEN) {
            OPEN => return Some(Served { number, state, file }),
            0 => return None,
            _ if !Table::here().is_lent.load(Acquire) => relax(turn),
            // A child's descriptors are not these.
            _ if is_child() => return None,
            _ => arrive(),
        }
    }
    None
}

/// From now on files that are frozen are taken by a child.
pub(super) fn begin_lending() {
    Table::here().is_lent.store(true, Release);
}

pub(super) fn is_lent() -> bool {
    Table::here().is_lent.load(Acquire)
}

/// What children have taken is under the numbers of this process from now on. What is frozen and
/// was not sent is served again: a child was killed. This takes no lock, because a handler may have
/// made the child at any point of a call.
#[cold]
pub(super) fn arrive() {
    undisturbed(|| {
        descriptors::with_whole_limit(|| {
            while let Some(number) = passing::next() {
                let file = frozen(number);
                if file.is_some() {
                    // So there is room for what comes.
                    stub::close(number);
                }
                let opened = passing::receive();
                if let (Some(opened), true) = (opened, opened != Some(number)) {
                    if let Some(file) = &file {
                        put(opened, file);
                    }
                    stub::close(opened);
                }
                if let Some(file) = file {
                    let state = file.state & !OPEN | RETURNED;
                    file.file.state.store(state, Release);
                    Table::here().has_returned.store(true, Release);
                }
            }
        });
        unfreeze_all();
        Table::here().is_lent.store(false, Release);
    });
}

/// Puts a descriptor under the number of a file.
pub(super) fn put(opened: usize, file: &Served) -> isize {
    let flags = if file.closes_on_exec() { O_CLOEXEC } else { 0 };
    // SAFETY: it duplicates a descriptor of ours to the number of the placeholder.
    unsafe { stub::call(nr::DUP3, [opened, file.number, flags]) }
}

pub(super) fn has_returned() -> bool {
    Table::here().has_returned.load(Acquire)
}

/// Files that have arrived, which are not in the table any more.
pub(super) fn take_returned() -> impl Iterator<Item = Served> {
    Table::here().has_returned.store(false, Release);
    Files::here().0[..=Table::here().highest.load(Relaxed)].iter().enumerate().filter_map(
        |(number, file)| {
            let state = file.state.load(Acquire);
            let served = Served { number, state, file };
            let is_returned = state & RETURNED != 0;
            if is_returned {
                file.state.store(state & !RETURNED, Release);
                served.leave();
            }
            is_returned.then_some(served)
        },
    )
}

/// Whether a file can have this number.
pub(crate) fn has(number: usize) -> bool {
    number < DESCRIPTORS
}

/// Adds a file under a number that the kernel has just given out. False if the number is too high,
/// or if the mount is not pinned, which cannot be while the caller holds the pin.
///
/// The file is in the table before this returns, for all threads. What ends the serving of files
/// (the end of the admission, record locks, children) is noted first and looks at the table then.
/// So a caller that looks afterwards whether it was noted misses nothing.
pub(crate) fn add(number: usize, open: &Object, opening: &Opening<'_>) -> bool {
    let Some(file) = Files::here().0.get(number).filter(|_| pin().join()) else { return false };
    let generation = (file.state.load(Relaxed) >> GENERATION_SHIFT).wrapping_add(1);
    let (kind, node, client) = match open {
        Object::File(open) => (u64::from(open.held.0) << HELD_SHIFT, open.node, open.client),
        Object::Written(open) => {
            file.open.store(open.handle.open, Relaxed);
            open.guard.store(&file.guard);
            (WRITTEN, open.node, open.client)
        }
        Object::Directory(node, place) => {
            file.place.store(*place, Relaxed);
            (DIRECTORY, *node, 0)
        }
    };
    let state = generation << GENERATION_SHIFT | kind | OPEN;
    file.client.store(client, Relaxed);
    file.ino.store(node.ino.0, Relaxed);
    file.capability.store(node.capability.0, Relaxed);
    file.admission.store(facts::admissions(), Relaxed);
    file.flags.store(opening.flags, Relaxed);
    file.closes_on_exec.store(opening.closes_on_exec, Relaxed);
    file.epoch.store(opening.epoch, Relaxed);
    file.watches.store(0, Relaxed);
    file.start.store(opening.start.map_or(0, |ino| ino.0), Relaxed);
    match opening.base {
        [] => file.set_path(opening.path),
        base => file.set_joined(base, opening.path),
    }
    file.offset.store(tagged(state, opening.offset), Relaxed);
    Table::here().highest.fetch_max(number, Relaxed);
    file.state.store(state, SeqCst);
    true
}

/// The open files with numbers in this range.
pub(crate) fn among(first: usize, last: usize) -> impl Iterator<Item = Served> {
    let last = last.min(Table::here().highest.load(Relaxed));
    let end = if are_any() { last.saturating_add(1) } else { 0 };
    (first..end).filter_map(find)
}

/// The same without those that become the kernel's. Does not wait.
pub(super) fn unfrozen() -> impl Iterator<Item = Served> {
    Files::here().0[..=Table::here().highest.load(Relaxed)].iter().enumerate().filter_map(
        |(number, file)| {
            let state = file.state.load(Acquire);
            (state & (OPEN | FROZEN) == OPEN).then_some(Served { number, state, file })
        },
    )
}

/// A file that is becoming the kernel's.
fn frozen(number: usize) -> Option<Served> {
    let file = Files::here().0.get(number)?;
    let state = file.state.load(Acquire);
    (state & FROZEN != 0).then_some(Served { number, state: state & !FROZEN, file })
}

/// What was being handed over, and is not any more: by another thread of the parent of a child of
/// `fork`, or by a child of `vfork`.
pub(super) fn unfreeze_all() {
    for file in &Files::here().0[..=Table::here().highest.load(Relaxed)] {
        file.offset.fetch_and(!TAKEN, Relaxed);
        file.state.fetch_and(!FROZEN, Relaxed);
    }
}

fn tagged(state: u64, offset: u64) -> u64 {
    ((state >> GENERATION_SHIFT) << OFFSET_BITS | offset) & !TAKEN
}

impl File {
    fn set_path(&self, path: &[u8]) {
        for (word, bytes) in self.path.iter().zip(path.chunks(WORD)) {
            let mut padded = [0; WORD];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Relaxed);
        }
        let fits = path.len() <= PATH_MAX;
        self.path_length.store(if fits { path.len() } else { 0 }, Relaxed);
    }

    #[cold]
    fn set_joined(&self, base: &[u8], path: &[u8]) {
        let mut joined = [0; PATH_MAX];
        let length = base.len() + 1 + path.len();
        if length <= PATH_MAX {
            joined[..base.len()].copy_from_slice(base);
            joined[base.len()] = b'/';
            joined[base.len() + 1..length].copy_from_slice(path);
        }
        self.set_path(joined.get(..length).unwrap_or_default());
    }
}

impl Served {
    /// Whether it is still this file, and not about to become the kernel's. After it was closed,
    /// what it held may be another file's.
    pub(crate) fn is_open(&self) -> bool {
        self.file.state.load(Acquire) == self.state
    }

    /// Returns the client's number of a file that is only read. `None` for others, and if the
    /// client that holds it has ended.
    pub(crate) fn held(&self) -> Option<Held> {
        let is_read = self.state & (DIRECTORY | WRITTEN) == 0;
        (is_read && self.is_here()).then_some(Held((self.state as u32) >> HELD_SHIFT))
    }

    /// The handle of a file that is written. `None` for others, and if the client that holds it has
    /// ended.
    pub(crate) fn handle(&self) -> Option<Handle> {
        let (ino, open) = (Ino(self.file.ino.load(Relaxed)), self.file.open.load(Relaxed));
        (self.is_written() && self.is_here()).then_some(Handle { ino, open })
    }

    /// The guard of the lease on a handle for writing.
    pub(crate) fn guard(&self) -> Guard {
        Guard::load(&self.file.guard)
    }

    /// What it holds at its cell.
    pub(crate) fn at_cell(&self) -> AtCell {
        AtCell { held: self.held(), handle: self.handle() }
    }

    fn is_here(&self) -> bool {
        self.file.admission.load(Relaxed) == facts::admissions()
    }

    pub(crate) fn is_written(&self) -> bool {
        self.state & WRITTEN != 0
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.state & DIRECTORY != 0
    }

    /// The place in a directory. Used under the lock.
    pub(crate) fn place(&self) -> &'static AtomicU64 {
        places::get(self.file.place.load(Relaxed))
    }

    /// The other descriptors of the same directory that share its place.
    pub(crate) fn duplicates(&self) -> impl Iterator<Item = Self> {
        let place = |served: &Self| served.file.place.load(Relaxed);
        let (number, own, is_any) = (self.number, place(self), self.is_directory());
        let end = if is_any { Table::here().highest.load(Relaxed) + 1 } else { 0 };
        let others = (0..end).filter(move |other| *other != number).filter_map(find);
        others.filter(move |other| other.is_directory() && place(other) == own)
    }

    /// A duplicate for the same directory.
    pub(crate) fn object(&self) -> Object {
        let place = self.file.place.load(Relaxed);
        places::share(place);
        Object::Directory(self.node(), place)
    }

    pub(crate) fn node(&self) -> InodeRef {
        let (ino, capability) = (&self.file.ino, &self.file.capability);
        InodeRef { ino: Ino(ino.load(Relaxed)), capability: Capability(capability.load(Relaxed)) }
    }

    pub(crate) fn client(&self) -> u32 {
        self.file.client.load(Relaxed)
    }

    pub(crate) fn flags(&self) -> u32 {
        self.file.flags.load(Relaxed)
    }

    pub(crate) fn closes_on_exec(&self) -> bool {
        self.file.closes_on_exec.load(Relaxed)
    }

    /// `fcntl` has changed it.
    pub(crate) fn set_closes_on_exec(&self, closes: bool) {
        self.file.closes_on_exec.store(closes, Relaxed);
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.file.epoch.load(Relaxed)
    }

    #[inline]
    pub(crate) fn watches(&self) -> u64 {
        self.file.watches.load(Relaxed)
    }

    pub(crate) fn set_watches(&self, watches: u64) {
        self.file.watches.store(watches, Relaxed);
    }

    pub(crate) fn start(&self) -> Option<Ino> {
        Some(Ino(self.file.start.load(Relaxed))).filter(|ino| ino.0 != 0)
    }

    /// Copies the path by which it was opened. Empty if it was too long.
    pub(crate) fn path<'a>(&self, to: &'a mut [u8]) -> &'a [u8] {
        let length = self.file.path_length.load(Relaxed).min(to.len());
        for (bytes, word) in to[..length].chunks_mut(WORD).zip(&self.file.path) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[..bytes.len()]);
        }
        &to[..length]
    }

    /// A relative path begins at `base` from now on. Called under the lock.
    pub(crate) fn set_base(&self, base: &[u8]) {
        let mut path = [0; PATH_MAX];
        self.file.set_joined(base, self.path(&mut path));
        self.file.start.store(0, Relaxed);
    }

    /// The file's offset. `None` if the file is not open any more, or becomes the kernel's.
    pub(crate) fn offset(&self) -> Option<u64> {
        let word = self.file.offset.load(Acquire);
        let offset = word & ((1 << OFFSET_BITS) - 1);
        (word == tagged(self.state, offset)).then_some(offset)
    }

    /// Moves the offset, if it is still where it was.
    pub(crate) fn seek(&self, from: u64, to: u64) -> bool {
        let [from, to] = [from, to].map(|offset| tagged(self.state, offset));
        self.file.offset.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    /// Takes the file out of the table. False if another thread has done so, or makes it the
    /// kernel's.
    pub(crate) fn take(&self) -> bool {
        let closed = self.state & !(OPEN | FROZEN);
        let taken = self.file.state.compare_exchange(self.state, closed, AcqRel, Relaxed).is_ok();
        if taken {
            self.leave();
        }
        taken
    }

    fn leave(&self) {
        if self.is_directory() {
            places::leave(self.file.place.load(Relaxed));
        }
        pin().leave();
    }

    /// Makes all other calls wait, and returns the offset. None if the file is not open any more.
    pub(crate) fn freeze(&self) -> Option<u64> {
        let frozen = self.state | FROZEN;
        self.file.state.compare_exchange(self.state, frozen, AcqRel, Relaxed).ok()?;
        Some(self.file.offset.fetch_or(TAKEN, AcqRel) & ((1 << OFFSET_BITS) - 1))
    }

    /// Takes a frozen file out of the table.
    pub(crate) fn end(&self) {
        self.leave();
        self.file.state.store(self.state & !(OPEN | FROZEN), Release);
    }

    /// Lets calls go on.
    pub(crate) fn unfreeze(&self) {
        self.file.offset.fetch_and(!TAKEN, Relaxed);
        self.file.state.store(self.state, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is not in the table, opened with this generation and offset.
    fn opened(generation: u64, offset: u64) -> Served {
        // SAFETY: zeros are legal values of its words.
        let file: &'static File = Box::leak(Box::new(unsafe { core::mem::zeroed() }));
        let state = generation << GENERATION_SHIFT | WRITTEN | OPEN;
        file.state.store(state, Relaxed);
        file.offset.store(tagged(state, offset), Relaxed);
        Served { number: 7, state, file }
    }

    #[test]
    fn the_offset_of_a_frozen_file_stays() {
        let file = opened(3, 100);
        assert_eq!((file.offset(), file.is_open()), (Some(100), true));
        assert!(file.seek(100, 200) && !file.seek(100, 300), "another thread has moved it");
        assert_eq!((file.freeze(), file.freeze()), (Some(200), None));
        assert!(!file.is_open() && file.offset().is_none() && !file.seek(200, 300));
        assert!(!file.take(), "the kernel takes it over");
        file.unfreeze();
        assert!(file.is_open() && file.seek(200, OFFSET_END - 1));
        assert_eq!(file.freeze(), Some(OFFSET_END - 1));
    }

    #[test]
    fn a_number_that_is_used_again_is_another_file() {
        let old = opened(1, 5);
        let state = 2 << GENERATION_SHIFT | OPEN;
        old.file.state.store(state, Relaxed);
        old.file.offset.store(tagged(state, 5), Relaxed);
        assert!(!old.is_open() && old.offset().is_none() && !old.seek(5, 6));
        assert!(old.freeze().is_none() && !old.take());
        let new = Served { state, ..old };
        assert_eq!((new.offset(), new.is_written()), (Some(5), false));
    }

    #[test]
    fn paths_are_kept_with_where_they_begin() {
        let file = opened(1, 0);
        let mut room = [0; PATH_MAX];
        for path in [&b"a"[..], b"exactly8", b"a/longer/path", &[b'x'; PATH_MAX]] {
            file.file.set_path(path);
            assert_eq!(file.path(&mut room), path);
        }
        file.file.set_path(&[b'x'; PATH_MAX + 1]);
        assert_eq!(file.path(&mut room), b"", "it is too long");
        file.file.set_path(b"b/c");
        file.file.start.store(42, Relaxed);
        assert_eq!(file.start(), Some(Ino(42)));
        file.set_base(b"/mnt/a");
        assert_eq!((file.path(&mut room), file.start()), (&b"/mnt/a/b/c"[..], None));
        file.file.set_path(&[b'x'; PATH_MAX - 2]);
        file.set_base(b"/mnt/a");
        assert_eq!(file.path(&mut room), b"", "both are too long");
    }
}
