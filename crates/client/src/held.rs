//! Files that a client holds: handles that it keeps after the last close, with the attributes and
//! the data that it has copied.
//!
//! A cell grants a lease with a handle ([`warren_proto::Opened::kept`]): while the word holds, the
//! client may use the handle for another open of the inode. It marks the inode as idle in its
//! segment while it uses no handle of it, and a cell that closes kept handles clears the word
//! before it looks at the mark (decision 30).
//!
//! Here a file has one entry, and the entry owns one of the words for marks. So no two threads ever
//! write the same mark, and opens and closes need no lock: they change the state of the entry.
//!
//! ```text
//!            insert                   acquire: mark removed, word loaded
//!  Empty ─────────────▶ Used, n opens ◀────────────────────────────────── Idle, marked
//!    ▲                      └──────────────────────────────────────────────▲ │
//!    │                        release of the last: mark written              │ remove
//!    └───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! On the way between `Used` and `Idle` an entry is `Changing`, and no other thread uses it. One
//! that is interrupted there, and never goes on, leaves it so for ever: the file is then opened by
//! other means, and its handle stays open while the client lives.
//!
//! The copies of an entry are read like a seqlock, and written by one thread at a time. Attributes
//! are guarded by the lease of the attributes; data by that lease, which every change of data
//! revokes, and by that of the handle, which a writer revokes whose kernel may change pages without
//! a request. The caller keeps data in rooms, of which there may be fewer than entries.

use core::ops::Deref;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use warren_base::{CellId, Ino};
use warren_proto::slot::IDLE_WAYS;
use warren_proto::{Attr, Capability, Handle};

use crate::guard::{Guard, Words};
use crate::path_cache::{ATTR_WORDS, load_attr, store_attr};

/// Words of an entry.
pub const HELD_WORDS: usize = 24;

const STATE: usize = 0;
const INO: usize = 1;
const OPEN: usize = 2;
const CAPABILITY: usize = 3;
const KEPT: usize = 4;
const VERSION: usize = 6;
const HEADER: usize = 7;
const GUARD: usize = 8;
const ATTR: usize = 10;
const _: () = assert!(ATTR + ATTR_WORDS <= HELD_WORDS && HELD_WORDS.is_multiple_of(8));

/// In the header: what is copied, and in which room the data are.
const KIND: u64 = 3;
const ATTRIBUTES: u64 = 1;
const WITH_DATA: u64 = 2;
const DISPLACED: u64 = 3;
const ROOM_SHIFT: u32 = 32;

const COUNT: u64 = 0xff_ffff;
const PHASE_SHIFT: u32 = 24;
const GENERATION: u64 = 1 << 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
enum Phase {
    Empty = 0,
    Idle = 1,
    Changing = 2,
    Used = 3,
}

/// The marks of idle inodes in the client's segment.
pub trait Marks {
    /// The first of the [`IDLE_WAYS`] words that may mark the inode.
    fn line(&self, ino: Ino) -> usize;

    /// Writes a word: an inode, or `None`. A full fence follows.
    fn set(&self, word: usize, ino: Option<Ino>);
}

/// The number of an entry, and of the word that marks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held(pub u32);

/// The copies that an entry has.
#[derive(Clone, Debug)]
pub struct Copied {
    version: u64,
    /// The guard of `attr`.
    pub guard: Guard,
    pub attr: Attr,
    pub data: Data,
}

/// Whether all of a file's data have been copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    Absent,
    /// They were, and their room was needed for another file.
    Displaced,
    /// They are in this room.
    In(u32),
}

/// The room for a new handle of an inode, or what must be closed for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Nothing.
    Free,
    /// This handle, which is not used any more: the caller closes it.
    Close(Unused),
    /// Open files.
    Taken,
}

/// A handle that is not used any more, and the cell that has granted it. The caller closes it
/// there, unless the cell has done so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unused {
    pub handle: Handle,
    pub cell: CellId,
}

/// The files of a client, in memory that the caller provides, zeroed at first.
pub struct HeldFiles<S> {
    words: S,
}

impl<S: Deref<Target = [AtomicU64]>> HeldFiles<S> {
    /// `words` has an entry for each word for marks.
    pub fn new(words: S) -> Self {
        Self { words }
    }

    fn entry(&self, Held(at): Held) -> &[AtomicU64] {
        &self.words[at as usize * HELD_WORDS..][..HELD_WORDS]
    }

    fn line(&self, ino: Ino, marks: &impl Marks) -> impl Iterator<Item = (Held, &[AtomicU64])> {
        let first = marks.line(ino) as u32;
        (first..first + IDLE_WAYS as u32).map(|at| (Held(at), self.entry(Held(at))))
    }

    fn find(&self, ino: Ino, marks: &impl Marks) -> Option<(Held, &[AtomicU64], u64)> {
        self.line(ino, marks).find_map(|(held, entry)| {
            let state = entry[STATE].load(Acquire);
            let is_its = phase(state) != Phase::Empty && entry[INO].load(Relaxed) == ino.0;
            is_its.then_some((held, entry, state))
        })
    }

    /// Opens the inode through a handle that is held. `None` if there is none that may be used.
    pub fn acquire(&self, ino: Ino, marks: &impl Marks, words: &impl Words) -> Option<Held> {
        let (held, entry, state) = self.find(ino, marks)?;
        let swap = |next| entry[STATE].compare_exchange(state, next, AcqRel, Relaxed).is_ok();
        match phase(state) {
            Phase::Used if state & COUNT < COUNT && swap(state + 1) => {
                if kept(entry).holds(words) {
                    return Some(held);
                }
                self.release(held, marks, words);
                None
            }
            Phase::Idle if swap(with(state, Phase::Changing, 1)) => {
                marks.set(held.0 as usize, None);
                let is_valid = kept(entry).holds(words);
                let next = if is_valid { (Phase::Used, 1) } else { (Phase::Idle, 0) };
                entry[STATE].store(with(state, next.0, next.1), Release);
                is_valid.then_some(held)
            }
            _ => None,
        }
    }

    /// An open has ended. Returns whether the handle may be used again; if not, and nothing else
    /// uses it, the caller is to [`Self::remove`] it.
    pub fn release(&self, held: Held, marks: &impl Marks, words: &impl Words) -> bool {
        let entry = self.entry(held);
        let mut state = entry[STATE].load(Acquire);
        while state & COUNT > 1 {
            match entry[STATE].compare_exchange_weak(state, state - 1, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        let changing = with(state, Phase::Changing, 0);
        if let Err(now) = entry[STATE].compare_exchange(state, changing, AcqRel, Acquire) {
            // Another open has begun or ended meanwhile.
            return if now & COUNT > 0 { self.release(held, marks, words) } else { true };
        }
        marks.set(held.0 as usize, Some(Ino(entry[INO].load(Relaxed))));
        let is_valid = kept(entry).holds(words);
        entry[STATE].store(with(state, Phase::Idle, 0), Release);
        is_valid
    }

    /// Makes room for a new handle of the inode, before it is asked for. One thread at a time.
    pub fn make_room(&self, ino: Ino, marks: &impl Marks) -> Room {
        if let Some((held, ..)) = self.find(ino, marks) {
            return self.remove(held, marks).map_or(Room::Taken, Room::Close);
        }
        let mut idle = None;
        for (held, entry) in self.line(ino, marks) {
            match phase(entry[STATE].load(Acquire)) {
                Phase::Empty => return Room::Free,
                Phase::Idle => idle = idle.or(Some(held)),
                Phase::Changing | Phase::Used => {}
            }
        }
        idle.and_then(|held| self.remove(held, marks)).map_or(Room::Taken, Room::Close)
    }

    /// Removes an idle entry. One thread at a time.
    pub fn remove(&self, held: Held, marks: &impl Marks) -> Option<Unused> {
        let entry = self.entry(held);
        let state = entry[STATE].load(Acquire);
        let changing = with(state, Phase::Changing, 0);
        if phase(state) != Phase::Idle
            || entry[STATE].compare_exchange(state, changing, AcqRel, Relaxed).is_err()
        {
            return None;
        }
        marks.set(held.0 as usize, None);
        let unused = Unused { handle: handle(entry), cell: kept(entry).cell };
        forget_copies(entry);
        entry[STATE].store(with(state, Phase::Empty, 0).wrapping_add(GENERATION), Release);
        Some(unused)
    }

    /// A handle that the cell has granted, opened once. `None` if there is no room. One thread at a
    /// time.
    pub fn insert(
        &self,
        handle: Handle,
        capability: Capability,
        guard: Guard,
        marks: &impl Marks,
    ) -> Option<Held> {
        let is_empty =
            |(_, entry): &(Held, &[AtomicU64])| phase(entry[STATE].load(Acquire)) == Phase::Empty;
        let (held, entry) = self.line(handle.ino, marks).find(is_empty)?;
        let state = entry[STATE].load(Relaxed);
        forget_copies(entry);
        entry[INO].store(handle.ino.0, Relaxed);
        entry[OPEN].store(handle.open, Relaxed);
        entry[CAPABILITY].store(capability.0, Relaxed);
        guard.store(&entry[KEPT..]);
        entry[STATE].store(with(state, Phase::Used, 1), Release);
        Some(held)
    }

    /// The handle and the capability of an entry that is in use.
    pub fn handle(&self, held: Held) -> (Handle, Capability) {
        let entry = self.entry(held);
        (handle(entry), Capability(entry[CAPABILITY].load(Relaxed)))
    }

    /// Whether the entry's handle may still be used for opens.
    pub fn is_kept(&self, held: Held, words: &impl Words) -> bool {
        kept(self.entry(held)).holds(words)
    }

    /// The copies of an entry that is in use, if they are valid now.
    pub fn copied(&self, held: Held, words: &impl Words) -> Option<Copied> {
        let entry = self.entry(held);
        let version = entry[VERSION].load(Acquire);
        let header = entry[HEADER].load(Relaxed);
        if !version.is_multiple_of(2) {
            return None;
        }
        let data = match header & KIND {
            0 => return None,
            DISPLACED => Data::Displaced,
            WITH_DATA => Data::In((header >> ROOM_SHIFT) as u32),
            _ => Data::Absent,
        };
        let guard = Guard::load(&entry[GUARD..]);
        let attr = load_attr(&entry[ATTR..])?;
        let copied = Copied { version, guard, attr, data };
        self.still_holds(held, &copied, words).then_some(copied)
    }

    /// Whether they were valid all the time since they were taken.
    pub fn still_holds(&self, held: Held, copied: &Copied, words: &impl Words) -> bool {
        let entry = self.entry(held);
        fence(Acquire);
        entry[VERSION].load(Relaxed) == copied.version
            && copied.guard.holds(words)
            && (!matches!(copied.data, Data::In(_)) || kept(entry).holds(words))
    }

    /// Writes copies of an entry that is in use: attributes under their lease, and the file's data,
    /// which `fill` puts into a room that no other entry has. One thread at a time.
    pub fn copy(&self, held: Held, attr: &Attr, guard: Guard, data: Option<(u32, impl FnOnce())>) {
        let entry = self.entry(held);
        let version = entry[VERSION].load(Relaxed) & !1;
        entry[VERSION].store(version + 1, Relaxed);
        fence(Release);
        guard.store(&entry[GUARD..]);
        store_attr(&entry[ATTR..], attr);
        let header = data.as_ref().map_or(ATTRIBUTES, |(room, _)| with_data(*room));
        entry[HEADER].store(header, Relaxed);
        if let Some((_, fill)) = data {
            fill();
        }
        entry[VERSION].store(version + 2, Release);
    }

    /// The room is needed for another file. What the caller writes there next is seen only by those
    /// who see this. One thread at a time.
    pub fn displace(&self, held: Held, room: u32) {
        let entry = self.entry(held);
        if entry[HEADER].load(Relaxed) == with_data(room) {
            let version = entry[VERSION].load(Relaxed) & !1;
            entry[HEADER].store(DISPLACED, Relaxed);
            entry[VERSION].store(version + 2, Release);
            fence(Release);
        }
    }
}

fn with_data(room: u32) -> u64 {
    WITH_DATA | u64::from(room) << ROOM_SHIFT
}

fn phase(state: u64) -> Phase {
    match state >> PHASE_SHIFT & 3 {
        0 => Phase::Empty,
        1 => Phase::Idle,
        2 => Phase::Changing,
        _ => Phase::Used,
    }
}

fn with(state: u64, phase: Phase, count: u64) -> u64 {
    state & !(GENERATION - 1) | (phase as u64) << PHASE_SHIFT | count
}

fn kept(entry: &[AtomicU64]) -> Guard {
    Guard::load(&entry[KEPT..])
}

fn handle(entry: &[AtomicU64]) -> Handle {
    Handle { ino: Ino(entry[INO].load(Relaxed)), open: entry[OPEN].load(Relaxed) }
}

fn forget_copies(entry: &[AtomicU64]) {
    let version = entry[VERSION].load(Relaxed) & !1;
    entry[HEADER].store(0, Relaxed);
    entry[VERSION].store(version + 2, Release);
}

#[cfg(test)]
mod tests;
