//! The part of a front's segment in which each of its threads says what it does, for the mount
//! keeper.
//!
//! ```text
//! row     64 bytes, one for each slot, and one for the thread that starts the front
//! row     0 u32 thread (0: unused)   8 state   16 unique of the kernel's request
//! state   2 bits activity, 30 bits how often it has changed, 32 bits how often work has begun
//! behind the rows: 8 kernel requests that ended several fronts
//! ```
//!
//! Each row has a cache line of its own, so that an update costs two stores.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use warren_base::SlotNo;
use warren_base::limits::SLOTS_MAX;
use warren_runtime::watch::{Activity, Said};
use warren_shm::{Load, Store, WriteMap};

use crate::abi;

const ROW: usize = 64;
const ROWS: usize = SLOTS_MAX + 1;
/// The row of the thread that starts the front.
pub(crate) const STARTER: usize = SLOTS_MAX;
const REFUSED: usize = ROWS * ROW;
const REFUSED_MAX: usize = 8;
pub(crate) const THREAD_TABLE_LEN: usize = 2 * 4096;
const _: () = assert!(REFUSED + REFUSED_MAX * 8 <= THREAD_TABLE_LEN);

const THREAD: usize = 0;
const STATE: usize = 8;
const UNIQUE: usize = 16;

/// The state of a row.
#[derive(Clone, Copy)]
struct State {
    activity: Activity,
    changes: u32,
    units: u32,
}

impl State {
    const CHANGES_SHIFT: u32 = 2;
    const CHANGES_MASK: u32 = u32::MAX >> Self::CHANGES_SHIFT;

    fn pack(self) -> u64 {
        let activity = match self.activity {
            Activity::Idle => 0,
            Activity::Works => 1,
            Activity::Asks => 2,
        };
        let changes = self.changes & Self::CHANGES_MASK;
        activity | u64::from(changes) << Self::CHANGES_SHIFT | u64::from(self.units) << 32
    }

    fn unpack(word: u64) -> Self {
        let activity = match word & 3 {
            1 => Activity::Works,
            2 => Activity::Asks,
            _ => Activity::Idle,
        };
        Self { activity, changes: word as u32 >> Self::CHANGES_SHIFT, units: (word >> 32) as u32 }
    }
}

/// A thread says this of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadRow {
    pub said: Said,
    /// The kernel's request that it serves. 0: none.
    pub unique: u64,
}

/// The table, which begins at `start` of the memory.
#[derive(Clone, Copy)]
pub(crate) struct ThreadTable<'a> {
    pub map: &'a WriteMap,
    pub start: usize,
}

impl ThreadTable<'_> {
    fn at(&self, row: usize) -> usize {
        assert!(row < ROWS, "{row}");
        self.start + row * ROW
    }

    /// The row of the thread that has this slot.
    pub(crate) fn row_of(slot: SlotNo) -> usize {
        usize::from(slot.0)
    }

    /// No thread of a predecessor works any more.
    pub(crate) fn clear(&self) {
        for row in 0..ROWS {
            self.map.store64(self.at(row) + THREAD, 0, Release);
        }
    }

    pub(crate) fn enter(&self, row: usize, thread: u32) {
        self.end(row);
        self.map.store64(self.at(row) + THREAD, u64::from(thread), Release);
    }

    pub(crate) fn leave(&self, row: usize) {
        self.map.store64(self.at(row) + THREAD, 0, Release);
    }

    /// The thread begins some work, for this request of the kernel or for none (0). Only the thread
    /// of the row calls this and the next three.
    pub(crate) fn begin(&self, row: usize, unique: u64) {
        self.map.store64(self.at(row) + UNIQUE, unique & !abi::UNIQUE_RESEND, Release);
        let before = self.state(row);
        self.set(
            row,
            State { activity: Activity::Works, units: before.units.wrapping_add(1), ..before },
        );
    }

    pub(crate) fn end(&self, row: usize) {
        self.set(row, State { activity: Activity::Idle, ..self.state(row) });
        self.map.store64(self.at(row) + UNIQUE, 0, Release);
    }

    /// Until it goes on, the thread waits for another process. False if it does not work.
    pub(crate) fn leave_work(&self, row: usize, activity: Activity) -> bool {
        let before = self.state(row);
        let works = before.activity == Activity::Works;
        if works {
            self.set(row, State { activity, ..before });
        }
        works
    }

    pub(crate) fn go_on(&self, row: usize) {
        self.set(row, State { activity: Activity::Works, ..self.state(row) });
    }

    fn state(&self, row: usize) -> State {
        State::unpack(self.map.load64(self.at(row) + STATE, Relaxed))
    }

    fn set(&self, row: usize, state: State) {
        let changes = state.changes.wrapping_add(1);
        self.map.store64(self.at(row) + STATE, State { changes, ..state }.pack(), Release);
    }

    /// The rows that are used.
    pub(crate) fn rows(&self) -> Vec<ThreadRow> {
        (0..ROWS).filter_map(|row| self.row(row)).collect()
    }

    fn row(&self, row: usize) -> Option<ThreadRow> {
        let load = |field: usize| self.map.load64(self.at(row) + field, Acquire);
        let thread = u32::try_from(load(THREAD)).ok().filter(|thread| *thread != 0)?;
        let number = load(STATE);
        let State { activity, units, .. } = State::unpack(number);
        let said = Said { thread, number, unit: u64::from(units), activity };
        Some(ThreadRow { said, unique: load(UNIQUE) })
    }

    /// From now on the request is answered with EIO. The oldest of these is forgotten.
    pub(crate) fn refuse(&self, unique: u64) {
        let at = |index: usize| self.start + REFUSED + index * 8;
        for index in (1..REFUSED_MAX).rev() {
            let word = self.map.load64(at(index - 1), Acquire);
            self.map.store64(at(index), word, Release);
        }
        self.map.store64(at(0), unique & !abi::UNIQUE_RESEND, Release);
    }

    pub(crate) fn is_refused(&self, unique: u64) -> bool {
        let wanted = unique & !abi::UNIQUE_RESEND;
        let word = |index: usize| self.map.load64(self.start + REFUSED + index * 8, Acquire);
        wanted != 0 && (0..REFUSED_MAX).any(|index| word(index) == wanted)
    }
}
