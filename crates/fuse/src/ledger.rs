//! What must outlive the front's process, in a segment that its custodian holds.
//!
//! ```text
//!      0   page     version, what the kernel agreed to
//!   4096   64 pages one a slot: the kernel's request that last changed something through it
//! 266240   page     inodes whose pages the kernel is still to be told to drop
//! 270336   1 MiB    who may hold record locks: a state word, inode, owner, open file
//! ```
//!
//! **Executed once.** A request of the kernel's becomes one or more requests to cells. Of those that
//! change something the slot's page records the answers, in their order. The kernel sends a request
//! that a dead front left unanswered again; it is then run again, from its start, on the same slot: a step that is
//! recorded is not taken again but has the answer that it had. Between a cell's answer and its record the
//! answer is still in the slot's lane, so `settle` can complete the record.
//!
//! ```text
//! page of a slot     0 unique (0: none)   8 state   16 answers, each u32 length, i32 errno, reply
//! state              length of the answers, whether a step is being attempted, and (upper half) the
//!                    number of the slot's last request before that
//! ```
//!
//! Whatever is stored becomes valid by the store of one word, so a kill between any two stores
//! leaves either the old or the new.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_base::limits::SLOTS_MAX;
use warren_base::{Errno, Ino, SlotNo};
use warren_proto::{Answer, LockOwner, Reply, Wire};
use warren_shm::{Load, Segment, SegmentError, Store};

use crate::abi;

const VERSION: u64 = 1;
const PAGE: usize = 4096;

const AT_VERSION: usize = 0;
const AT_TERMS: usize = 8;
const SLOTS: usize = PAGE;
const OWED: usize = SLOTS + SLOTS_MAX * PAGE;
const OWED_MAX: usize = PAGE / 8;
const HELD: usize = OWED + PAGE;
const HELD_ENTRY: usize = 32;
/// Lock owners that are remembered; more get ENOLCK.
pub const HELD_MAX: usize = (1 << 20) / HELD_ENTRY;
const LEN: usize = HELD + HELD_MAX * HELD_ENTRY;

/// Offsets within the page of a slot.
const UNIQUE: usize = 0;
const STATE: usize = 8;
const ANSWERS: usize = 16;
const ANSWERS_MAX: usize = PAGE - ANSWERS;
const ANSWER_HEADER: usize = 8;

/// Offsets within an entry of who may hold locks.
const HELD_STATE: usize = 0;
const HELD_INO: usize = 8;
const HELD_OWNER: usize = 16;
const HELD_OPEN: usize = 24;

/// What the kernel agreed to at `INIT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// It can drop all names at once.
    pub drops_names: bool,
    /// It can send again what a dead front left unanswered.
    pub resends: bool,
}

impl Agreed {
    const PRESENT: u64 = 1;
    const DROPS_NAMES: u64 = 1 << 1;
    const RESENDS: u64 = 1 << 2;

    fn pack(self) -> u64 {
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        Self::PRESENT | bit(self.drops_names, Self::DROPS_NAMES) | bit(self.resends, Self::RESENDS)
    }

    fn unpack(word: u64) -> Option<Self> {
        (word & Self::PRESENT != 0).then_some(Self {
            drops_names: word & Self::DROPS_NAMES != 0,
            resends: word & Self::RESENDS != 0,
        })
    }
}

/// Of a slot: how far its record has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    answers_len: usize,
    /// A step is being attempted; before it the slot's last request had this number.
    attempt: Option<u32>,
}

impl State {
    const ATTEMPT: u64 = 1 << 31;

    fn pack(self) -> u64 {
        let attempt = self.attempt.map_or(0, |seq| Self::ATTEMPT | u64::from(seq) << 32);
        self.answers_len as u64 | attempt
    }

    fn unpack(word: u64) -> Self {
        let attempt = (word & Self::ATTEMPT != 0).then_some((word >> 32) as u32);
        Self { answers_len: (word as usize & 0xffff).min(ANSWERS_MAX), attempt }
    }
}

/// An owner that may hold record locks: its place in the segment.
pub type HeldAt = usize;

/// One of who may hold record locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    pub ino: Ino,
    pub owner: LockOwner,
    pub open: u64,
}

pub struct Ledger {
    segment: Segment,
    /// Free places of those who may hold locks.
    free: Mutex<Vec<HeldAt>>,
    /// Serialises the search for a place for an inode.
    owed: Mutex<()>,
}

impl Ledger {
    pub fn create() -> Result<Self, SegmentError> {
        let segment = Segment::create("warren-front", LEN)?;
        segment.map().store64(AT_VERSION, VERSION, Release);
        Ok(Self::new(segment))
    }

    /// A predecessor's.
    pub fn adopt(fd: OwnedFd) -> Result<Self, SegmentError> {
        let segment = Segment::adopt(fd)?;
        let len = segment.map().size();
        if len < LEN || segment.map().load64(AT_VERSION, Acquire) != VERSION {
            return Err(SegmentError::TooShort { len: len as u64, needed: LEN });
        }
        Ok(Self::new(segment))
    }

    fn new(segment: Segment) -> Self {
        let map = segment.map();
        let is_free = |at: &HeldAt| map.load64(held(*at) + HELD_STATE, Acquire) == 0;
        let free = (0..HELD_MAX).rev().filter(is_free).collect();
        Self { segment, free: Mutex::new(free), owed: Mutex::default() }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    /// `None` before the kernel's `INIT`.
    pub fn agreed(&self) -> Option<Agreed> {
        Agreed::unpack(self.segment.map().load64(AT_TERMS, Acquire))
    }

    pub fn agree(&self, agreed: Agreed) {
        self.segment.map().store64(AT_TERMS, agreed.pack(), Release);
    }

    pub fn record(&self, slot: SlotNo) -> Record<'_> {
        assert!(usize::from(slot.0) < SLOTS_MAX, "{slot:?}");
        Record { ledger: self, at: SLOTS + usize::from(slot.0) * PAGE }
    }

    /// The slot through which request `unique` changed something, or tried to.
    pub fn slot_of(&self, unique: u64) -> Option<SlotNo> {
        let wanted = unique & !abi::UNIQUE_RESEND;
        (0..SLOTS_MAX as u16).map(SlotNo).find(|slot| self.record(*slot).unique() == wanted)
    }

    /// Remembers that the kernel is to drop the pages of `ino`. `None` if that is owed of too many.
    pub fn owe(&self, ino: Ino) -> Option<usize> {
        let _alone = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let map = self.segment.map();
        let place = (0..OWED_MAX).find(|at| map.load64(OWED + at * 8, Acquire) == 0)?;
        map.store64(OWED + place * 8, ino.0, Release);
        Some(place)
    }

    pub fn paid(&self, place: usize) {
        assert!(place < OWED_MAX);
        self.segment.map().store64(OWED + place * 8, 0, Release);
    }

    /// What a predecessor owed.
    pub fn owed(&self) -> Vec<(usize, Ino)> {
        let at = |place: usize| (place, Ino(self.segment.map().load64(OWED + place * 8, Acquire)));
        (0..OWED_MAX).map(at).filter(|(_, ino)| ino.0 != 0).collect()
    }

    /// ENOLCK if there are too many.
    pub fn hold(&self, holder: Holder) -> Result<HeldAt, Errno> {
        let place = self.free().pop().ok_or(Errno::ENOLCK)?;
        let (map, at) = (self.segment.map(), held(place));
        map.store64(at + HELD_INO, holder.ino.0, Release);
        map.store64(at + HELD_OWNER, holder.owner.0, Release);
        map.store64(at + HELD_OPEN, holder.open, Release);
        map.store64(at + HELD_STATE, 1, Release);
        Ok(place)
    }

    pub fn let_go(&self, place: HeldAt) {
        self.segment.map().store64(held(place) + HELD_STATE, 0, Release);
        self.free().push(place);
    }

    /// Everybody who may hold locks.
    pub fn holders(&self) -> Vec<(HeldAt, Holder)> {
        let map = self.segment.map();
        let is_held = |place: &HeldAt| map.load64(held(*place) + HELD_STATE, Acquire) != 0;
        let word = |place: HeldAt, field: usize| map.load64(held(place) + field, Acquire);
        let holder = |place: HeldAt| Holder {
            ino: Ino(word(place, HELD_INO)),
            owner: LockOwner(word(place, HELD_OWNER)),
            open: word(place, HELD_OPEN),
        };
        (0..HELD_MAX).filter(is_held).map(|place| (place, holder(place))).collect()
    }

    fn free(&self) -> MutexGuard<'_, Vec<HeldAt>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn held(place: HeldAt) -> usize {
    assert!(place < HELD_MAX);
    HELD + place * HELD_ENTRY
}

/// The page of a slot. One thread at a time has the slot.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    ledger: &'a Ledger,
    at: usize,
}

impl Record<'_> {
    fn load(&self, field: usize) -> u64 {
        self.ledger.segment.map().load64(self.at + field, Acquire)
    }

    fn store(&self, field: usize, value: u64) {
        self.ledger.segment.map().store64(self.at + field, value, Release);
    }

    fn unique(&self) -> u64 {
        self.load(UNIQUE)
    }

    fn state(&self) -> State {
        State::unpack(self.load(STATE))
    }

    /// The answer that the step of request `unique` at `cursor` had, and moves the cursor beyond
    /// it. `None` if that step was not taken yet.
    pub fn replay(&self, unique: u64, cursor: &mut usize) -> Option<Answer> {
        if self.unique() != unique & !abi::UNIQUE_RESEND {
            return None;
        }
        let left = self.state().answers_len.checked_sub(*cursor + ANSWER_HEADER)?;
        let mut header = [0; ANSWER_HEADER];
        let (map, at) = (self.ledger.segment.map(), self.at + ANSWERS + *cursor);
        map.copy_out(at, &mut header);
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let errno = i32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
        let mut body = vec![0; len.min(left)];
        map.copy_out(at + ANSWER_HEADER, &mut body);
        *cursor += ANSWER_HEADER + body.len();
        Some(match errno {
            0 => Reply::from_bytes(&body).map_err(|_| Errno::EIO),
            raw => Err(Errno::from_raw(raw).unwrap_or(Errno::EIO)),
        })
    }

    /// The next step of request `unique` is about to be taken; `last_seq` is the slot's last request.
    pub fn attempt(&self, unique: u64, last_seq: u32) {
        let unique = unique & !abi::UNIQUE_RESEND;
        let mut answers_len = 0;
        if self.unique() == unique {
            answers_len = self.state().answers_len;
        } else {
            self.clear();
            self.store(STATE, State { answers_len, attempt: None }.pack());
            self.store(UNIQUE, unique);
        }
        self.store(STATE, State { answers_len, attempt: Some(last_seq) }.pack());
    }

    /// The step was taken. An answer that says that nothing was executed is no step. Returns the
    /// cursor behind all steps.
    pub fn conclude(&self, answer: &Answer) -> usize {
        let mut answers_len = self.state().answers_len;
        if !matches!(answer, Err(Errno::EAGAIN) | Ok(Reply::Moved(_))) {
            answers_len = self.append(answers_len, answer);
        }
        self.store(STATE, State { answers_len, attempt: None }.pack());
        answers_len
    }

    /// Stores an answer behind the others; returns their length.
    fn append(&self, at: usize, answer: &Answer) -> usize {
        let (mut errno, mut body) = match answer {
            Ok(reply) => (0, reply.to_bytes()),
            Err(errno) => (errno.raw(), Vec::new()),
        };
        if at + ANSWER_HEADER + body.len() > ANSWERS_MAX {
            // No answer to a change is so long: whoever asked will not understand it either.
            (errno, body) = (Errno::EIO.raw(), Vec::new());
        }
        let end = at + ANSWER_HEADER + body.len();
        if end > ANSWERS_MAX {
            return at;
        }
        let map = self.ledger.segment.map();
        let mut header = [0; ANSWER_HEADER];
        header[..4].copy_from_slice(&(body.len() as u32).to_ne_bytes());
        header[4..].copy_from_slice(&errno.to_ne_bytes());
        map.copy_in(self.at + ANSWERS + at, &header);
        map.copy_in(self.at + ANSWERS + at + ANSWER_HEADER, &body);
        end
    }

    /// Completes the record that a dead predecessor left: `last` is the number of the slot's last
    /// request, and its answer, if it got out.
    pub fn settle(&self, last_seq: u32, last: Option<&Answer>) {
        let Some(before) = self.state().attempt else { return };
        let answer = last.filter(|_| last_seq != before).unwrap_or(&Err(Errno::EAGAIN));
        self.conclude(answer);
    }

    /// Whoever's record it was, it is nobody's now.
    pub fn clear(&self) {
        self.store(UNIQUE, 0);
    }
}

#[cfg(test)]
mod tests;
