//! The table of the files that a client holds, and room for copies of their data.
//!
//! Most programs read a file once, so a few rooms are used in turn: their memory is in the caches
//! of the processor, and need not be allocated again and again. There are more of them once files
//! are read again whose data have been displaced.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use warren_base::limits::OPEN_DATA_MAX;
use warren_client::{Data, Guard, HELD_WORDS, Held, HeldFiles};
use warren_proto::Attr;
use warren_transport::Connection;

use crate::arena;

/// Files of up to so many bytes are copied, each into a room of this length.
pub(super) const COPIED_MAX: u64 = OPEN_DATA_MAX;

/// Rooms at first: a mebibyte.
const ROOMS: u32 = 64;

pub(super) struct Files {
    pub held: HeldFiles<&'static [AtomicU64]>,
    rooms: Rooms,
}

/// Changed under the lock alone.
struct Rooms {
    start: usize,
    /// The entry that had each room last, and 1. 0 for none.
    owners: &'static [AtomicU64],
    /// The number of rooms that are used: it doubles when all of them have had an owner.
    count: AtomicU32,
    next: AtomicU32,
}

impl Files {
    pub(super) fn new(connection: &Connection) -> Option<Self> {
        let entries = connection.idle_words();
        let held = HeldFiles::new(arena::words(entries * HELD_WORDS)?);
        Some(Self { held, rooms: Rooms::new(entries)? })
    }

    /// Where the data of a room are.
    pub(super) fn data_in(&self, room: u32) -> usize {
        self.rooms.start + room as usize * COPIED_MAX as usize
    }

    /// Keeps the attributes of a file, under their lease, and all its data, which `fill` copies to
    /// an address.
    pub(super) fn keep(&self, held: Held, attr: &Attr, guard: Guard, fill: impl FnOnce(usize)) {
        let room = self.rooms.take(held, |owner, room| self.held.displace(owner, room));
        self.held.copy(held, attr, guard, Some((room, || fill(self.data_in(room)))));
    }

    /// The data of a file are read from its cell. If there was no room for them, more is used.
    pub(super) fn note_read(&self, data: Data) {
        if data == Data::Displaced {
            self.rooms.add();
        }
    }
}

impl Rooms {
    fn new(count: usize) -> Option<Self> {
        let start = arena::reserve(count * COPIED_MAX as usize)?;
        let owners = arena::words(count)?;
        let used = AtomicU32::new(ROOMS.min(count as u32));
        Some(Self { start, owners, count: used, next: AtomicU32::new(0) })
    }

    /// The next room, after `displace` for the entry that has it.
    fn take(&self, Held(entry): Held, displace: impl FnOnce(Held, u32)) -> u32 {
        let room = self.next.load(Relaxed);
        self.next.store((room + 1) % self.count.load(Relaxed), Relaxed);
        let owner = self.owners[room as usize].load(Relaxed);
        self.owners[room as usize].store(u64::from(entry) + 1, Relaxed);
        if let Some(owner) = owner.checked_sub(1) {
            displace(Held(owner as u32), room);
        }
        room
    }

    /// Twice as many, and the new ones next.
    fn add(&self) {
        let count = self.count.load(Relaxed);
        let more = (2 * count).min(self.owners.len() as u32);
        if more > count && self.owners[count as usize - 1].load(Relaxed) > 0 {
            self.count.store(more, Relaxed);
            self.next.store(count, Relaxed);
        }
    }
}

/// Returns up to `room` bytes of a file's data, from `offset` on. The file may have become shorter
/// since the offset was chosen.
pub(super) fn part(data: &[u8], offset: u64, room: usize) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let rest = data.get(start..).unwrap_or_default();
    &rest[..rest.len().min(room)]
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    #[test]
    fn rooms_are_used_in_turn_and_become_more() {
        let rooms = Rooms::new(100).expect("memory");
        let last = Cell::new(None);
        let take = |entry| {
            last.set(None);
            (rooms.take(Held(entry), |owner, room| last.set(Some((owner, room)))), last.get())
        };
        rooms.add();
        for entry in 0..ROOMS {
            assert_eq!(take(entry), (entry, None), "no more rooms are used than need be");
        }
        assert_eq!(take(70), (0, Some((Held(0), 0))));
        rooms.add();
        assert!((ROOMS..100).all(|entry| take(entry) == (entry, None)));
        assert_eq!(take(100), (0, Some((Held(70), 0))));
        rooms.add();
        assert_eq!(take(101), (1, Some((Held(1), 1))), "there are no more");
    }

    #[test]
    fn a_part_ends_with_the_data_and_with_the_room() {
        assert_eq!(part(b"data", 1, 2), b"at");
        assert_eq!(part(b"data", 1, 9), b"ata");
        for behind in [4, 5, 5000, u64::MAX] {
            assert_eq!(part(b"data", behind, 9), b"");
        }
    }
}
