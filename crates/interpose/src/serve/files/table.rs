//! The program's descriptors of files that are served here.
//!
//! Each has a number that the kernel has given out for a placeholder, so that numbers, limits and
//! inheritance are the kernel's own. A call that is not seen here finds the placeholder, which
//! cannot be read, written or opened.
//!
//! A number has one of the states of [`super::descriptor`].

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use warren_base::Ino;
use warren_client::{Guard, Held};
use warren_proto::{Capability, Handle, InodeRef};

use super::super::descriptors;
use super::super::facts;
use super::super::lock::{relax, undisturbed};
use super::descriptor::{Descriptor, Kind, State, Word};
use super::passing;
use super::pin::pin;
use super::places::{self, DESCRIPTORS};
use crate::abi::{O_CLOEXEC, nr};
use crate::fleet::files::OpenFile;
use crate::fleet::written::WrittenFile;
use crate::state::is_child;
use crate::stub;

const WORD: usize = size_of::<u64>();
/// The longest path that is kept.
const PATH_WORDS: usize = 48;
pub(crate) const PATH_MAX: usize = PATH_WORDS * WORD;

pub(crate) struct File {
    state: State,
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
    /// Writes, less requests that have read the file while it was large.
    balance: AtomicI32,
    /// See [`super::parked`].
    epoch: AtomicU64,
    /// The state of the watches when no watcher was found, see [`super::watchers`].
    watches: AtomicU64,
    /// Where a relative path begins, or 0.
    start: AtomicU64,
    path_length: AtomicUsize,
    path: [AtomicU64; PATH_WORDS],
}

/// A file for each number.
pub(crate) struct Files([File; DESCRIPTORS]);

/// The state of the whole table.
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
    word: Word,
    kind: Kind,
    file: &'static File,
}

/// The object that is open.
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

/// An open file holds these at its cell.
pub(crate) struct AtCell {
    pub held: Option<Held>,
    pub handle: Option<Handle>,
}

/// The way in which a file was opened.
pub(crate) struct Opening<'a> {
    /// An absolute path that leads to where the other one begins, or nothing.
    pub base: &'a [u8],
    pub path: &'a [u8],
    /// Where the path begins if it is relative and has no base.
    pub start: Option<Ino>,
    pub flags: u32,
    pub closes_on_exec: bool,
    /// The epoch before it got its number.
    pub epoch: u64,
    pub offset: u64,
}

/// Whether files may be open: the mount is pinned.
#[inline]
pub(crate) fn has_files() -> bool {
    pin().is_set()
}

/// The file behind a descriptor, if it is served here. Waits while it becomes the kernel's.
pub(crate) fn find(number: usize) -> Option<Served> {
    let file = Files::here().0.get(number)?;
    for turn in 0.. {
        let word = file.state.load();
        match word.decode() {
            Descriptor::Open(kind) => return Some(Served { number, word, kind, file }),
            Descriptor::Free | Descriptor::Returned(_) => return None,
            Descriptor::Frozen(_) if !is_lent() => relax(turn),
            // A child's descriptors are not these.
            Descriptor::Frozen(_) if is_child() => return None,
            // A process whose calls are filtered does not receive it.
            Descriptor::Frozen(_) if !arrive() => return None,
            Descriptor::Frozen(_) => {}
        }
    }
    None
}

/// From now on a child takes the files that are frozen.
pub(super) fn begin_lending() {
    Table::here().is_lent.store(true, Release);
}

pub(super) fn is_lent() -> bool {
    Table::here().is_lent.load(Acquire)
}

/// Puts the files that children have taken under the numbers of this process. A frozen file that no
/// child has sent is served again: the child was killed. This takes no lock, because a handler may
/// have made the child at any point of a call. False under a filter that forbids it.
#[cold]
pub(super) fn arrive() -> bool {
    let arrived = undisturbed(|| {
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
                        replace_number(opened, file);
                    }
                    stub::close(opened);
                }
                if let Some(file) = file {
                    file.file.state.come_back(file.word);
                    Table::here().has_returned.store(true, Release);
                }
            }
        });
        unfreeze_all();
        Table::here().is_lent.store(false, Release);
    });
    arrived.is_some()
}

/// Puts a descriptor under the number of a file.
pub(super) fn replace_number(opened: usize, file: &Served) -> isize {
    let flags = if file.closes_on_exec() { O_CLOEXEC } else { 0 };
    // SAFETY: it duplicates a descriptor of ours to the number of the placeholder.
    unsafe { stub::call(nr::DUP3, [opened, file.number, flags]) }
}

pub(super) fn has_returned() -> bool {
    Table::here().has_returned.load(Acquire)
}

/// Takes the files that have arrived out of the table.
pub(super) fn take_returned() -> impl Iterator<Item = Served> {
    Table::here().has_returned.store(false, Release);
    all().filter_map(|(number, file)| {
        let word = file.state.load();
        let Descriptor::Returned(kind) = word.decode() else { return None };
        let served = Served { number, word, kind, file };
        file.state.end(word);
        served.leave();
        Some(served)
    })
}

/// The numbers that may have been open, and their files.
fn all() -> impl Iterator<Item = (usize, &'static File)> {
    Files::here().0[..=Table::here().highest.load(Relaxed)].iter().enumerate()
}

/// Whether a file can have this number.
pub(crate) fn has(number: usize) -> bool {
    number < DESCRIPTORS
}

/// Adds a file under a number that the kernel has just given out. False if the number is too high,
/// or if the mount is not pinned, which cannot be while the caller holds the pin.
///
/// The file is in the table before this returns, for all threads. Events that end the serving of
/// files (the end of the admission, record locks, children) are noted first, and then look at the
/// table. So a caller that looks afterwards whether it was noted misses nothing.
pub(crate) fn add(number: usize, open: &Object, opening: &Opening<'_>) -> bool {
    let Some(file) = Files::here().0.get(number).filter(|_| pin().join()) else { return false };
    let (kind, node, client) = match open {
        Object::File(open) => (Kind::Read(open.held), open.node, open.client),
        Object::Written(open) => {
            file.open.store(open.handle.open, Relaxed);
            open.guard.store(&file.guard);
            (Kind::Written, open.node, open.client)
        }
        Object::Directory(node, place) => {
            file.place.store(*place, Relaxed);
            (Kind::Directory, *node, 0)
        }
    };
    file.client.store(client, Relaxed);
    file.ino.store(node.ino.0, Relaxed);
    file.capability.store(node.capability.0, Relaxed);
    file.admission.store(facts::admissions(), Relaxed);
    file.flags.store(opening.flags, Relaxed);
    file.closes_on_exec.store(opening.closes_on_exec, Relaxed);
    file.balance.store(0, Relaxed);
    file.epoch.store(opening.epoch, Relaxed);
    file.watches.store(0, Relaxed);
    file.start.store(opening.start.map_or(0, |ino| ino.0), Relaxed);
    match opening.base {
        [] => file.set_path(opening.path),
        base => file.set_joined(base, opening.path),
    }
    let word = file.state.next(kind);
    Table::here().highest.fetch_max(number, Relaxed);
    file.state.open(word, opening.offset);
    true
}

/// The open files with numbers in this range.
pub(crate) fn among(first: usize, last: usize) -> impl Iterator<Item = Served> {
    let last = last.min(Table::here().highest.load(Relaxed));
    let end = if has_files() { last.saturating_add(1) } else { 0 };
    (first..end).filter_map(find)
}

/// The open files without those that become the kernel's. Does not wait.
pub(super) fn unfrozen() -> impl Iterator<Item = Served> {
    all().filter_map(|(number, file)| {
        let word = file.state.load();
        let Descriptor::Open(kind) = word.decode() else { return None };
        Some(Served { number, word, kind, file })
    })
}

/// A file that is becoming the kernel's.
fn frozen(number: usize) -> Option<Served> {
    let file = Files::here().0.get(number)?;
    let word = file.state.load();
    let Descriptor::Frozen(kind) = word.decode() else { return None };
    Some(Served { number, word, kind, file })
}

/// Serves files again whose handover will never end. In a child of `fork`, a thread of the parent
/// had begun it. In a parent, a child of `vfork` had, and was killed.
pub(super) fn unfreeze_all() {
    all().for_each(|(_, file)| file.state.thaw());
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
        self.file.state.load() == self.word
    }

    /// Returns the client's number of a file that is only read. `None` for others, and if the
    /// client that holds it has ended.
    pub(crate) fn held(&self) -> Option<Held> {
        match self.kind {
            Kind::Read(held) if self.is_here() => Some(held),
            _ => None,
        }
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

    /// The parts that the file holds at its cell.
    pub(crate) fn at_cell(&self) -> AtCell {
        AtCell { held: self.held(), handle: self.handle() }
    }

    fn is_here(&self) -> bool {
        self.file.admission.load(Relaxed) == facts::admissions()
    }

    pub(crate) fn is_written(&self) -> bool {
        self.kind == Kind::Written
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
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

    /// The program has written the file so often since it was opened, or read it if that is less
    /// than 0. Returns the balance of both, at most `most`. Two threads may lose a count.
    pub(crate) fn count(&self, by: i32, most: i32) -> i32 {
        let balance = self.file.balance.load(Relaxed).saturating_add(by).min(most);
        self.file.balance.store(balance, Relaxed);
        balance
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
        self.file.state.offset(self.word)
    }

    /// Moves the offset, if it is still where it was.
    pub(crate) fn seek(&self, from: u64, to: u64) -> bool {
        self.file.state.seek(self.word, from, to)
    }

    /// Takes the file out of the table. False if another thread has done so, or makes it the
    /// kernel's.
    pub(crate) fn take(&self) -> bool {
        let taken = self.file.state.close(self.word);
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

    /// Makes all other calls wait, and returns the offset. `None` if the file is not open any more.
    pub(crate) fn freeze(&self) -> Option<u64> {
        self.file.state.freeze(self.word)
    }

    /// Takes a frozen file out of the table.
    pub(crate) fn end(&self) {
        self.leave();
        self.file.state.end(self.word);
    }

    /// Lets calls go on.
    pub(crate) fn unfreeze(&self) {
        self.file.state.unfreeze(self.word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_kept_with_where_they_begin() {
        // SAFETY: zeros are legal values of its words.
        let file: &'static File = Box::leak(Box::new(unsafe { core::mem::zeroed() }));
        let kind = Kind::Written;
        let file = Served { number: 7, word: file.state.next(kind), kind, file };
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
