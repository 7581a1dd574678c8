//! Answers to `stat` by whole path: one look-up instead of a walk.
//!
//! When a [`Call`](crate::Call) was answered from copies alone, its answer and the guards of all
//! copies on the way are kept here under a hash of the path. Later calls check the guards twice, as
//! a walk does, and are answered without one. A path with more than [`GUARDS_MAX`] copies on its
//! way is always walked.
//!
//! ```text
//! set     two entries; a path has its place in one set
//! entry   0 version, odd while it is written     1 hash (2 words)    3 guards' number, and errno
//!         4 attributes (10 words)               14 guards: cell and word, stamp
//! ```
//!
//! Look-ups allocate nothing, take no lock and may run in a signal handler that has interrupted any
//! other use. An entry is read like a seqlock: its version before and after must be the same even
//! number. A second writer of an entry writes nothing, so that no writer waits for another that its
//! own signal handler has interrupted.
//!
//! The hash has 128 bits and a secret seed, so paths are not compared.

use core::ops::Deref;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use warren_base::{Errno, FileKind, Ino, InodeFlags, Timestamp};
use warren_proto::Attr;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::guard::{Guard, Words};

/// The copies on the way of a path: of its names and the attributes at its end.
const GUARDS_MAX: usize = 12;

const VERSION: usize = 0;
const HASH: usize = 1;
const HEADER: usize = 3;
const ATTR: usize = 4;
pub(crate) const ATTR_WORDS: usize = 10;
const GUARDS: usize = ATTR + ATTR_WORDS;

/// Entries of a set.
const WAYS: usize = 2;

/// Words of an entry. The storage of a [`PathCache`] is an even multiple of this.
pub const ENTRY_WORDS: usize = 40;

const _: () = assert!(GUARDS + 2 * GUARDS_MAX <= ENTRY_WORDS && ENTRY_WORDS.is_multiple_of(8));

/// A path by its hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathKey(u128);

impl PathKey {
    /// A part of the hash.
    pub fn part(self) -> u64 {
        self.0 as u64
    }
}

/// An answer that was found, and how far its guards are checked: see [`Probe::step`].
#[derive(Clone, Debug)]
pub struct Probe {
    guards: [Option<Guard>; GUARDS_MAX],
    count: usize,
    answer: Result<Attr, Errno>,
    /// The next guard; the second round begins with `count`.
    next: usize,
}

/// The next action after a step of a [`Probe`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probed {
    /// Step again. Other calls may run in between.
    Going,
    /// A copy is not valid any more: the path must be walked.
    Stale,
    /// The answer was right at one instant during the steps.
    Answer(Result<Attr, Errno>),
}

/// The answers of a client, in memory that the caller provides, zeroed at first.
pub struct PathCache<S> {
    words: S,
    sets: usize,
    seed: u64,
}

impl<S: Deref<Target = [AtomicU64]>> PathCache<S> {
    /// `words` has room for at least two entries; `seed` is a secret.
    pub fn new(words: S, seed: u64) -> Self {
        let sets = words.len() / (WAYS * ENTRY_WORDS);
        assert!(sets > 0, "room for a set");
        Self { words, sets, seed }
    }

    /// The key of a path that starts at `start` if it is relative. `root` is what `/` names.
    pub fn key(&self, path: &[u8], root: Ino, start: Ino, follow_last: bool) -> PathKey {
        let mut place = [0; 17];
        place[..8].copy_from_slice(&root.0.to_le_bytes());
        place[8..16].copy_from_slice(&start.0.to_le_bytes());
        place[16] = follow_last.into();
        PathKey(xxh3_128_with_seed(path, xxh3_64_with_seed(&place, self.seed)))
    }

    /// Finds an answer, whose guards must then be checked.
    pub fn find(&self, key: PathKey) -> Option<Probe> {
        let entry = self.set(key).find(|entry| has_key(entry, key))?;
        let version = entry[VERSION].load(Acquire);
        if version == 0 || !version.is_multiple_of(2) || !has_key(entry, key) {
            return None;
        }
        let header = entry[HEADER].load(Relaxed);
        let (count, errno) = ((header as u8).into(), (header >> 32) as u32);
        let mut guards = [None; GUARDS_MAX];
        for (at, guard) in guards.iter_mut().enumerate().take(count) {
            *guard = Some(Guard::load(&entry[GUARDS + 2 * at..]));
        }
        let attr = if errno == 0 { load_attr(&entry[ATTR..]) } else { None };
        fence(Acquire);
        if entry[VERSION].load(Relaxed) != version {
            return None;
        }
        let answer = match Errno::from_raw(errno.cast_signed()) {
            Some(errno) => Err(errno),
            None => Ok(attr?),
        };
        Some(Probe { guards, count, answer, next: 0 })
    }

    /// The answer for a path, if there is one and all its copies are valid.
    pub fn answer(&self, key: PathKey, words: &impl Words) -> Option<Result<Attr, Errno>> {
        let mut probe = self.find(key)?;
        loop {
            match probe.step(words) {
                Probed::Going => {}
                Probed::Stale => return None,
                Probed::Answer(answer) => return Some(answer),
            }
        }
    }

    /// Keeps an answer that copies under these guards have given.
    pub fn put(
        &self,
        key: PathKey,
        guards: impl ExactSizeIterator<Item = Guard>,
        answer: Result<&Attr, Errno>,
    ) {
        let count = guards.len();
        if count > GUARDS_MAX {
            return;
        }
        let entry = self.place(key);
        let version = entry[VERSION].load(Relaxed);
        let is_written = !version.is_multiple_of(2);
        if is_written
            || entry[VERSION].compare_exchange(version, version + 1, Acquire, Relaxed).is_err()
        {
            return;
        }
        fence(Release);
        for (at, half) in halves(key).into_iter().enumerate() {
            entry[HASH + at].store(half, Relaxed);
        }
        let errno = answer.err().map_or(0, Errno::raw).cast_unsigned();
        entry[HEADER].store(count as u64 | u64::from(errno) << 32, Relaxed);
        for (at, guard) in guards.enumerate() {
            guard.store(&entry[GUARDS + 2 * at..]);
        }
        if let Ok(attr) = answer {
            store_attr(&entry[ATTR..], attr);
        }
        entry[VERSION].store(version + 2, Release);
    }

    /// The entries that can have the key.
    fn set(&self, PathKey(hash): PathKey) -> impl Iterator<Item = &[AtomicU64]> {
        const SET_WORDS: usize = WAYS * ENTRY_WORDS;
        let at = (hash as u64 % self.sets as u64) as usize;
        self.words[at * SET_WORDS..(at + 1) * SET_WORDS].chunks_exact(ENTRY_WORDS)
    }

    /// Where an answer goes: to the entry that has the key, else to the one that was written less
    /// often.
    fn place(&self, key: PathKey) -> &[AtomicU64] {
        let rank = |entry: &&[AtomicU64]| (!has_key(entry, key), entry[VERSION].load(Relaxed));
        self.set(key).min_by_key(rank).expect("a set has entries")
    }
}

impl Probe {
    /// Loads one word. Each word is loaded twice, all for the first time before any for the second:
    /// so between the two rounds all copies were valid at once.
    pub fn step(&mut self, words: &impl Words) -> Probed {
        if self.count > 0 {
            let guard = self.guards[self.next % self.count];
            if !guard.is_some_and(|guard| guard.holds(words)) {
                return Probed::Stale;
            }
        }
        self.next += 1;
        if self.next < 2 * self.count { Probed::Going } else { Probed::Answer(self.answer) }
    }
}

/// Without a check of the version.
fn has_key(entry: &[AtomicU64], key: PathKey) -> bool {
    halves(key) == [entry[HASH].load(Relaxed), entry[HASH + 1].load(Relaxed)]
}

fn halves(PathKey(hash): PathKey) -> [u64; 2] {
    [hash as u64, (hash >> 64) as u64]
}

pub(crate) fn store_attr(words: &[AtomicU64], attr: &Attr) {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let fields: [u64; ATTR_WORDS] = [
        attr.ino.0,
        pair(attr.kind.mode_bits() | u32::from(attr.mode), attr.nlink),
        pair(attr.uid, attr.gid),
        pair(attr.rdev, attr.flags.bits().into()),
        attr.size,
        attr.blocks,
        attr.atime.0.cast_unsigned(),
        attr.mtime.0.cast_unsigned(),
        attr.ctime.0.cast_unsigned(),
        attr.btime.0.cast_unsigned(),
    ];
    for (word, field) in words.iter().zip(fields) {
        word.store(field, Relaxed);
    }
}

/// `None` for words that a writer is changing.
#[inline]
pub(crate) fn load_attr(words: &[AtomicU64]) -> Option<Attr> {
    let word = |at: usize| words[at].load(Relaxed);
    let pair = |at: usize| (word(at) as u32, (word(at) >> 32) as u32);
    let ((mode, nlink), (uid, gid), (rdev, flags)) = (pair(1), pair(2), pair(3));
    let time = |at: usize| Timestamp(word(at).cast_signed());
    Some(Attr {
        ino: Ino(word(0)),
        kind: FileKind::from_mode(mode)?,
        mode: mode as u16 & 0o7777,
        nlink,
        uid,
        gid,
        rdev,
        size: word(4),
        blocks: word(5),
        atime: time(6),
        mtime: time(7),
        ctime: time(8),
        btime: time(9),
        flags: InodeFlags::from_bits_truncate(flags as u8),
    })
}

#[cfg(test)]
mod tests;
