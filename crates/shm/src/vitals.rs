//! Vitals: the state of a cell's process, written by it, read by all others.
//!
//! ```text
//! 0        header          magic, version, cell, epoch
//! 4096     u32 thread      whether the cell sleeps, or is about to (ring its WakeFd), and where;
//! whether other processors are idle
//! 4160     u64 heartbeat   grows while the cell's loop turns, from 0 on (clock monitoring)
//! 4224     u32 spinners    threads of the cell that are awake: each takes a core
//! 4288     u64 counters    one for each [`Counter`]
//! 4544     u64 lost        failed flushes of the cell, checked (0: none yet)
//! 4608     u64 running     the request in execution: bit 63, slot << 32, client (0: none)
//! 4616     u64 sequence    its number
//! 4624     u64, u64        the same for the request with which the last process died; the upper
//! half of the second word: how many in a row died with it
//! 4672     u64 watches     bits that are set below; in the upper half how often one has changed
//! 8192     512 Ki bits     of watched inodes, each in the place of its hash
//! 73728    4 Mi bits       of what a front's kernel may have, each in the place of its hash
//! ```
//!
//! Order of parking: asleep, full fence, look once more at every bell and ring, sleep,
//! awake. Order of waking: bell or tail, full fence, load `thread`, write the [`WakeFd`] if
//! it is set. So either the cell sees the bell or the waker sees the flag.
//!
//! The counters are hints for the balancer: nothing that must be right depends on them. On `lost`
//! it does: a failed flush of one cell may lose writes of another, and only the process that
//! flushed receives the error. A successor continues the count. So that a stray store does not look
//! like a lost flush, the word has the count in its lower half and its complement in the upper one;
//! any other word is invalid and makes the cell suspect. Readers act only on a count that has
//! grown, because a successor that finds no count begins at zero.
//!
//! An inode is watched if a program waits for the kernel to tell it of changes (inotify). Clients
//! that make changes without a kernel leave those of watched inodes to it. Two inodes may share a
//! bit, and a bit may stay set when a cell dies: the kernel then has more to do. A bit is set
//! before the count grows, and both before the watching client is answered.
//!
//! The bit of a name, of attributes or of pages is set before a front is granted them, and stays
//! set: from these marks a successor knows what no kernel has.
//!
//! [`WakeFd`]: crate::WakeFd

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use warren_base::{CellId, ClientId, Epoch, Ino, SlotNo};
use warren_proto::slot::LINE;

use crate::map::{ReadMap, Region, WriteMap};
use crate::memory::{Load, Store};
use crate::processor::{Presence, Processor};
use crate::segment::{SegmentError, SegmentKind, check, header, stamp};

const THREAD: usize = 4096;
const HEARTBEAT: usize = THREAD + LINE;
const SPINNERS: usize = HEARTBEAT + LINE;
const COUNTERS: usize = SPINNERS + LINE;
const LOST_FLUSHES: usize = COUNTERS + 4 * LINE;
const RUNNING: usize = LOST_FLUSHES + LINE;
const DIED_WITH: usize = RUNNING + 16;
/// Set in a word that names a request.
const NAMES: u64 = 1 << 63;

const WATCHES: usize = RUNNING + LINE;
const WATCHED: usize = 8192;
/// The number of bits is two to this power.
const WATCHED_SHIFT: u32 = 19;

const MARKS: usize = WATCHED + (1 << WATCHED_SHIFT) / 8;
const MARKS_SHIFT: u32 = 22;

/// Bytes of a vitals segment.
pub const VITALS_LEN: usize = MARKS + (1 << MARKS_SHIFT) / 8;

/// The counters of a cell. Gauges are set, the others grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    /// Requests taken from clients.
    Requests,
    /// Messages taken from peers.
    PeerMessages,
    /// Nanoseconds at work, and nanoseconds asleep.
    BusyNs,
    ParkedNs,
    /// Live tasks now (gauge).
    Tasks,
    /// Requests that wait for file locks now (gauge).
    LockWaiters,
    /// Clients' requests that wait in their slots now (gauge).
    Queued,
    /// I/Os in flight now (gauge).
    Ios,
    /// Blocks read from and written to the device.
    BlocksRead,
    BlocksWritten,
    /// Writes of one or more blocks, and flushes.
    Writes,
    Flushes,
    /// Frames in use and dirty now (gauges).
    Frames,
    FramesDirty,
    /// Messages of peers that were dropped: without a capability of the inbox, and of an earlier
    /// epoch.
    Refused,
    Stale,
    /// Files that clients other than fronts have open for writing now (gauge).
    Written,
    /// The errno with which io_uring was refused to the cell, or zero if it has it (gauge).
    UringRefused,
    /// Requests of clients that the cell found without a ring, and answers that clients found
    /// without a wake-up.
    LostRings,
    LostWakeups,
    /// For how many nanoseconds the device has had I/Os and completed none, if that is long
    /// (gauge).
    DeviceSilentNs,
}

impl Counter {
    pub const ALL: [Self; 21] = [
        Self::Requests,
        Self::PeerMessages,
        Self::BusyNs,
        Self::ParkedNs,
        Self::Tasks,
        Self::LockWaiters,
        Self::Queued,
        Self::Ios,
        Self::BlocksRead,
        Self::BlocksWritten,
        Self::Writes,
        Self::Flushes,
        Self::Frames,
        Self::FramesDirty,
        Self::Refused,
        Self::Stale,
        Self::Written,
        Self::UringRefused,
        Self::LostRings,
        Self::LostWakeups,
        Self::DeviceSilentNs,
    ];

    fn at(self) -> usize {
        COUNTERS + self as usize * 8
    }
}

const _: () = {
    assert!(COUNTERS + Counter::ALL.len() * 8 <= LOST_FLUSHES);
    assert!(WATCHES + LINE <= WATCHED);
};

/// The place of an inode among the bits of watched inodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WatchBit(u32);

impl WatchBit {
    pub const fn of(ino: Ino) -> Self {
        let hash = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((hash >> (u64::BITS - WATCHED_SHIFT)) as u32)
    }

    /// The offset of its word, and the bit in it.
    const fn place(self) -> (usize, u64) {
        (WATCHED + self.0 as usize / 64 * 8, 1 << (self.0 % 64))
    }
}

/// The offset of the word of a mark, and the bit in it.
const fn place_of_mark(hash: u64) -> (usize, u64) {
    let bit = hash >> (u64::BITS - MARKS_SHIFT);
    (MARKS + bit as usize / 64 * 8, 1 << (bit % 64))
}

/// The word for a count.
const fn checked(count: u32) -> u64 {
    (!count as u64) << 32 | count as u64
}

/// The count of the word, if it is valid. Fresh memory counts as zero.
const fn count_of(word: u64) -> Option<u64> {
    match word as u32 {
        _ if word == 0 => Some(0),
        count if word == checked(count) => Some(count as u64),
        _ => None,
    }
}

/// The request with which processes of a cell have died, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Culprit {
    pub client: ClientId,
    pub slot: SlotNo,
    pub seq: u32,
    /// The number of such processes.
    pub deaths: u32,
}

/// The cell's side.
#[derive(Clone)]
pub struct VitalsWriter<W = WriteMap> {
    memory: W,
}

impl<W: Store> VitalsWriter<W> {
    pub fn new(memory: W, cell: CellId, epoch: Epoch) -> Result<Self, SegmentError> {
        if memory.size() < VITALS_LEN {
            let needed = VITALS_LEN;
            return Err(SegmentError::TooShort { len: memory.size() as u64, needed });
        }
        memory.store32(THREAD, 0, Relaxed);
        memory.store32(SPINNERS, 0, Relaxed);
        if memory.load64(HEARTBEAT, Relaxed) != 0 {
            memory.store64(HEARTBEAT, 0, Relaxed);
        }
        if count_of(memory.load64(LOST_FLUSHES, Relaxed)).is_none() {
            memory.store64(LOST_FLUSHES, checked(0), Relaxed);
        }
        stamp(&memory, SegmentKind::Vitals, 0, u32::from(cell.0), epoch.0);
        Ok(Self { memory })
    }

    pub fn beat(&self) {
        self.increase(HEARTBEAT, 1);
    }

    /// One thread of one process writes the words, so a load and a store are enough. An atomic
    /// addition would wait until all earlier stores are visible, in each turn and for each request.
    #[inline]
    fn increase(&self, at: usize, by: u64) {
        let count = self.memory.load64(at, Relaxed).wrapping_add(by);
        self.memory.store64(at, count, Relaxed);
    }

    /// Announces sleep. Every bell and ring must be checked once more after this.
    pub fn park(&self) {
        self.memory.store32(THREAD, Presence::of_this(true).pack(), Release);
        W::fence();
    }

    /// The cell is awake again, or still, on this processor. `is_roomy`: others are idle.
    pub fn unpark(&self, is_roomy: bool) {
        let presence = Presence { is_roomy, ..Presence::of_this(false) };
        self.memory.store32(THREAD, presence.pack(), Release);
    }

    /// The cell is about to go to another processor.
    pub fn depart(&self) {
        let presence = Presence { at: Processor::NONE, sleeps: false, is_roomy: false };
        self.memory.store32(THREAD, presence.pack(), Release);
    }

    pub fn set_spinners(&self, spinners: u32) {
        self.memory.store32(SPINNERS, spinners, Relaxed);
    }

    pub fn add(&self, counter: Counter, by: u64) {
        self.increase(counter.at(), by);
    }

    pub fn set(&self, counter: Counter, value: u64) {
        self.memory.store64(counter.at(), value, Relaxed);
    }

    /// This request is executed from now on. If the process dies meanwhile, its successor knows the
    /// request.
    pub fn run(&self, client: ClientId, slot: SlotNo, seq: u32) {
        self.memory.store64(RUNNING + 8, u64::from(seq), Relaxed);
        let name = NAMES | u64::from(slot.0) << 32 | u64::from(client.0);
        self.memory.store64(RUNNING, name, Release);
    }

    /// No request is in execution.
    pub fn rest(&self) {
        self.memory.store64(RUNNING, 0, Release);
    }

    /// Called by a successor, once, before it executes anything. Returns the request with which its
    /// predecessor died, or, if that was executing none, the one with which an earlier process
    /// died.
    pub fn take_culprit(&self) -> Option<Culprit> {
        let load = |at| self.memory.load64(at, Relaxed);
        let (name, seq) = (load(RUNNING), load(RUNNING + 8) & u64::from(u32::MAX));
        let (known, counted) = (load(DIED_WITH), load(DIED_WITH + 8));
        if name & NAMES != 0 {
            let is_same = known == name && counted & u64::from(u32::MAX) == seq;
            let deaths = if is_same { (counted >> 32).saturating_add(1) } else { 1 };
            self.memory.store64(DIED_WITH, name, Relaxed);
            self.memory.store64(DIED_WITH + 8, deaths.min(u32::MAX.into()) << 32 | seq, Relaxed);
            self.rest();
        }
        let (name, counted) = (load(DIED_WITH), load(DIED_WITH + 8));
        (name & NAMES != 0).then_some(Culprit {
            client: ClientId(name as u32),
            slot: SlotNo((name >> 32) as u16),
            seq: counted as u32,
            deaths: (counted >> 32) as u32,
        })
    }

    /// Sets or clears a bit. `all` bits are set now.
    pub fn watch(&self, bit: WatchBit, is_set: bool, all: u32) {
        let (at, bit) = bit.place();
        let word = self.memory.load64(at, Relaxed);
        self.memory.store64(at, if is_set { word | bit } else { word & !bit }, Relaxed);
        let changes = (self.memory.load64(WATCHES, Relaxed) >> 32).wrapping_add(1);
        self.memory.store64(WATCHES, changes << 32 | u64::from(all), Release);
    }

    /// Marks an object as granted to a front, by its hash.
    pub fn mark(&self, hash: u64) {
        let (at, bit) = place_of_mark(hash);
        let word = self.memory.load64(at, Relaxed);
        if word & bit == 0 {
            self.memory.store64(at, word | bit, Relaxed);
        }
    }

    /// Whether this process or one before it may have marked the object.
    pub fn is_marked(&self, hash: u64) -> bool {
        let (at, bit) = place_of_mark(hash);
        self.memory.load64(at, Relaxed) & bit != 0
    }

    /// Counts a failed flush. All processes see it before this cell acts on it.
    pub fn lose_flush(&self) {
        // The cell is the only writer of the word.
        let lost = count_of(self.memory.load64(LOST_FLUSHES, Relaxed)).unwrap_or(0) as u32;
        self.memory.store64(LOST_FLUSHES, checked(lost.saturating_add(1)), Release);
        W::fence();
    }
}

/// The side of all other processes.
pub struct VitalsReader<R = ReadMap> {
    memory: R,
}

impl<R: Load> VitalsReader<R> {
    /// Opens a cell's vitals. The cell may not have started yet: see [`Self::is_open`].
    pub fn new(memory: R) -> Result<Self, SegmentError> {
        if memory.size() < VITALS_LEN {
            let needed = VITALS_LEN;
            return Err(SegmentError::TooShort { len: memory.size() as u64, needed });
        }
        Ok(Self { memory })
    }

    /// Whether the cell has opened the segment.
    pub fn is_open(&self) -> bool {
        check(&self.memory, SegmentKind::Vitals, VITALS_LEN).is_ok()
    }

    pub fn epoch(&self) -> Epoch {
        Epoch(self.memory.load32(header::EPOCH, Acquire))
    }

    pub fn heartbeat(&self) -> u64 {
        self.memory.load64(HEARTBEAT, Relaxed)
    }

    pub fn spinners(&self) -> u32 {
        self.memory.load32(SPINNERS, Relaxed)
    }

    pub fn counter(&self, counter: Counter) -> u64 {
        self.memory.load64(counter.at(), Relaxed)
    }

    /// Failed flushes of the cell and of its predecessors. `None` if the cell has written an
    /// invalid count.
    pub fn lost_flushes(&self) -> Option<u64> {
        count_of(self.memory.load64(LOST_FLUSHES, Acquire))
    }

    /// The number of bits of watched inodes that are set, in the lower half, and of changes of
    /// these bits.
    #[inline]
    pub fn watches(&self) -> u64 {
        self.memory.load64(WATCHES, Acquire)
    }

    /// Whether the inode may be watched.
    pub fn is_watched(&self, ino: Ino) -> bool {
        let (at, bit) = WatchBit::of(ino).place();
        self.memory.load64(at, Relaxed) & bit != 0
    }

    /// Where the cell is, and whether it must be woken to see what was just submitted (bell or
    /// tail).
    pub fn thread(&self) -> Presence {
        R::fence();
        Presence::unpack(self.memory.load32(THREAD, Relaxed))
    }
}

impl VitalsReader {
    pub fn region(&self) -> Region {
        self.memory.region()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Segment, map_read_only};

    #[test]
    fn all_readers_see_what_a_cell_writes() {
        let segment = Segment::create("warren-test", VITALS_LEN).unwrap();
        let reader = VitalsReader::new(map_read_only(segment.fd()).unwrap()).unwrap();
        assert!(!reader.is_open());
        let writer = VitalsWriter::new(segment.map().clone(), CellId(3), Epoch(8)).unwrap();
        writer.beat();
        writer.beat();
        writer.set_spinners(2);
        writer.lose_flush();
        for (i, counter) in Counter::ALL.into_iter().enumerate() {
            writer.set(counter, 100 + i as u64);
            writer.add(counter, 1);
        }
        assert!(reader.is_open());
        assert_eq!((reader.epoch(), reader.heartbeat(), reader.spinners()), (Epoch(8), 2, 2));
        for (i, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(reader.counter(counter), 101 + i as u64, "{counter:?}");
        }
        assert_eq!(reader.lost_flushes(), Some(1));
        VitalsWriter::new(segment.map().clone(), CellId(3), Epoch(9)).unwrap().lose_flush();
        assert_eq!(reader.lost_flushes(), Some(2), "a successor continues the count");
    }

    #[test]
    fn no_flipped_bit_looks_like_a_lost_flush() {
        let segment = Segment::create("warren-test", VITALS_LEN).unwrap();
        let reader = VitalsReader::new(map_read_only(segment.fd()).unwrap()).unwrap();
        let writer = VitalsWriter::new(segment.map().clone(), CellId(3), Epoch(1)).unwrap();
        assert_eq!(reader.lost_flushes(), Some(0));
        for lost in 0..3 {
            let word = segment.map().load64(LOST_FLUSHES, Relaxed);
            for bit in 0..64 {
                segment.map().store64(LOST_FLUSHES, word ^ 1 << bit, Relaxed);
                assert_eq!(reader.lost_flushes(), None, "bit {bit} of {lost}");
            }
            segment.map().store64(LOST_FLUSHES, word, Relaxed);
            writer.lose_flush();
            assert_eq!(reader.lost_flushes(), Some(lost + 1));
        }
        segment.map().store64(LOST_FLUSHES, 7, Relaxed);
        VitalsWriter::new(segment.map().clone(), CellId(3), Epoch(2)).unwrap();
        assert_eq!(reader.lost_flushes(), Some(0), "a successor begins anew");
    }

    #[test]
    fn the_request_with_which_processes_die_is_found() {
        [SlotNo(63), SlotNo::STREAM].into_iter().for_each(expect_culprit);
    }

    fn expect_culprit(slot: SlotNo) {
        let segment = Segment::create("warren-test", VITALS_LEN).unwrap();
        let next =
            |epoch| VitalsWriter::new(segment.map().clone(), CellId(0), Epoch(epoch)).unwrap();
        let client = ClientId(7);
        assert_eq!(next(1).take_culprit(), None);
        for deaths in 1..4 {
            let writer = next(deaths);
            writer.run(ClientId(1), SlotNo(0), 1);
            writer.rest();
            writer.run(client, slot, u32::MAX);
            let seq = u32::MAX;
            assert_eq!(next(9).take_culprit(), Some(Culprit { client, slot, seq, deaths }));
            // A process that died without a request in execution forgets nothing.
            assert_eq!(next(9).take_culprit(), Some(Culprit { client, slot, seq, deaths }));
        }
        next(9).run(client, slot, 5);
        let other = next(9).take_culprit().unwrap();
        assert_eq!((other.seq, other.deaths), (5, 1));
    }

    #[test]
    fn watched_inodes_outlive_a_process() {
        let segment = Segment::create("warren-test", VITALS_LEN).unwrap();
        let reader = VitalsReader::new(map_read_only(segment.fd()).unwrap()).unwrap();
        let first = VitalsWriter::new(segment.map().clone(), CellId(0), Epoch(1)).unwrap();
        assert_eq!((reader.watches(), reader.is_watched(Ino(7))), (0, false));
        let last = WatchBit((1 << WATCHED_SHIFT) - 1);
        first.watch(WatchBit::of(Ino(7)), true, 1);
        first.watch(last, true, 2);
        assert_eq!(reader.watches(), 2 << 32 | 2);
        assert!(reader.is_watched(Ino(7)) && !reader.is_watched(Ino(8)));
        let next = VitalsWriter::new(segment.map().clone(), CellId(0), Epoch(2)).unwrap();
        assert!(reader.is_watched(Ino(7)));
        next.watch(WatchBit::of(Ino(7)), false, 0);
        assert_eq!((reader.watches(), reader.is_watched(Ino(7))), (3 << 32, false));
    }

    #[test]
    fn marks_outlive_a_process() {
        let segment = Segment::create("warren-test", VITALS_LEN).unwrap();
        let process =
            |epoch| VitalsWriter::new(segment.map().clone(), CellId(0), Epoch(epoch)).unwrap();
        process(1).mark(u64::MAX);
        let next = process(2);
        assert!(next.is_marked(u64::MAX) && !next.is_marked(u64::MAX / 2));
    }

    #[test]
    fn neighbours_have_bits_of_their_own() {
        let bits: std::collections::BTreeSet<_> =
            (1..20_000).map(|n| WatchBit::of(Ino(n))).collect();
        assert!(bits.len() > 19_500);
    }

    #[test]
    fn a_successor_is_awake() {
        let segment = Segment::create("warren-test", VITALS_LEN).unwrap();
        let reader = VitalsReader::new(map_read_only(segment.fd()).unwrap()).unwrap();
        let first = VitalsWriter::new(segment.map().clone(), CellId(0), Epoch(1)).unwrap();
        first.park();
        assert!(reader.thread().sleeps);
        VitalsWriter::new(segment.map().clone(), CellId(0), Epoch(2)).unwrap();
        assert!(!reader.thread().sleeps);
    }
}
