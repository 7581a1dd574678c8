//! The host of a pool in a sparse file: it allocates chunks until it is full, and other files use
//! it too.
//!
//! Allocations are durable with the next flush, like data. A power cut undoes some of the others.

use std::collections::BTreeMap;

use warren_base::{Errno, Rng};

#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// Allocated chunks, each with the number of the next write at that time.
    allocated: BTreeMap<u64, usize>,
    /// Chunks that it can still allocate.
    room: u64,
    /// Other files use it.
    is_shared: bool,
    /// It frees blocks that the pool gives back.
    takes_back: bool,
}

impl Host {
    pub(crate) fn new(room: u64) -> Self {
        Self { allocated: BTreeMap::new(), room, is_shared: false, takes_back: true }
    }

    pub(crate) const fn room(&self) -> u64 {
        self.room
    }

    pub(crate) fn has(&self, chunk: u64) -> bool {
        self.allocated.contains_key(&chunk)
    }

    /// It has room for so many chunks from now on, and other files use it too. It may free blocks
    /// that are discarded, or not.
    pub(crate) const fn share(&mut self, room: u64, takes_back: bool) {
        (self.room, self.is_shared, self.takes_back) = (room, true, takes_back);
    }

    /// Other files free some of the room, or take it.
    pub(crate) fn change_room(&mut self, rng: &mut Rng) {
        if self.is_shared && rng.chance(1, 20) {
            self.room = *rng.pick(&[0, 0, 1, 5, 40, 400]);
        }
    }

    /// Chunks that do not fit are left out, and some of the others may be.
    pub(crate) fn reserve(&mut self, chunk: u64, number: usize) -> Result<(), Errno> {
        if self.has(chunk) {
            return Ok(());
        }
        self.room = self.room.checked_sub(1).ok_or(Errno::ENOSPC)?;
        self.allocated.insert(chunk, number);
        Ok(())
    }

    /// Allocates without regard to the room.
    pub(crate) fn force(&mut self, chunk: u64) {
        self.allocated.entry(chunk).or_default();
    }

    /// EOPNOTSUPP if it keeps what it has allocated.
    pub(crate) fn discard(&mut self, chunk: u64) -> Result<(), Errno> {
        if !self.takes_back {
            return Err(Errno::EOPNOTSUPP);
        }
        self.room += u64::from(self.allocated.remove(&chunk).is_some());
        Ok(())
    }

    /// Allocations before the write of this number are durable.
    pub(crate) fn flush(&mut self, mark: usize) {
        self.allocated.values_mut().filter(|number| **number < mark).for_each(|number| *number = 0);
    }

    pub(crate) fn cut(&mut self, rng: &mut Rng) {
        let before = self.allocated.len();
        self.allocated.retain(|_, number| *number == 0 || rng.chance(1, 2));
        self.room += (before - self.allocated.len()) as u64;
        self.allocated.values_mut().for_each(|number| *number = 0);
    }
}
