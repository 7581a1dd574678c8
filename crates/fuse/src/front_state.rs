//! The state of a front that must survive its process, in a segment that the mount keeper holds.
//!
//! ```text
//!      0   page     version, features that the kernel negotiated at INIT
//!   4096   64 pages one for each slot: the last kernel request that made a change through it
//! 266240   page     inodes whose pages the kernel must still drop
//! 270336   1 MiB    owners that may hold record locks: a state word, inode, owner, open file
//! 1318912  5 MiB    open files and handles: see `open_tables`
//! 6565888  2 pages  what each thread does: see `thread_table`
//! ```
//!
//! **Exactly once.** The front turns a kernel request into one or more requests to cells. Those
//! that change something are its *steps*; the page of the slot records their answers in order. The
//! kernel sends a request that a dead front did not answer again. The next front executes it from
//! its start on the same slot, and a recorded step is not sent again but has the recorded answer. A
//! front may die after the cell has answered a step and before the answer is recorded. The answer
//! is then still in the slot's lane, and [`SlotRecord::recover`] records it.
//!
//! ```text
//! page of a slot     0 unique (0: none)   8 state   16 answers, each u32 length, i32 errno, reply
//! state              length of the answers, whether a step is in progress, and (upper half) the
//!                    sequence number of the slot's last request before that step
//! ```
//!
//! Every change becomes valid by the store of one word, so that a kill between any two stores
//! leaves the old or the new state.

mod open_tables;
mod thread_table;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_base::limits::SLOTS_MAX;
use warren_base::{Errno, Ino, SlotNo};
use warren_proto::{Answer, LockOwner, Reply, Wire};
use warren_shm::{Load, Segment, SegmentError, Store};

use crate::abi;
use open_tables::OPEN_TABLES_LEN;
pub(crate) use open_tables::{
    HANDLES_MAX, HeldHandle, KeptLease, KernelOpen, OPENS_MAX, OpenTables,
};
use thread_table::THREAD_TABLE_LEN;
pub(crate) use thread_table::{STARTER, ThreadTable};

const VERSION: u64 = 3;
const PAGE: usize = 4096;

const AT_VERSION: usize = 0;
const AT_NEGOTIATED: usize = 8;
const SLOTS: usize = PAGE;
const DROPS: usize = SLOTS + SLOTS_MAX * PAGE;
const DROPS_MAX: usize = PAGE / 8;
const OWNERS: usize = DROPS + PAGE;
const OWNER_ENTRY: usize = 32;
/// At most so many entries of lock owners; more get ENOLCK.
const OWNERS_MAX: usize = (1 << 20) / OWNER_ENTRY;
const OPENS: usize = OWNERS + OWNERS_MAX * OWNER_ENTRY;
const THREADS: usize = OPENS + OPEN_TABLES_LEN;
const LEN: usize = THREADS + THREAD_TABLE_LEN;

/// Offsets within the page of a slot.
const UNIQUE: usize = 0;
const STATE: usize = 8;
const ANSWERS: usize = 16;
const ANSWERS_MAX: usize = PAGE - ANSWERS;
const ANSWER_HEADER: usize = 8;

/// Offsets within the entry of a lock owner.
const OWNER_STATE: usize = 0;
const OWNER_INO: usize = 8;
const OWNER_OWNER: usize = 16;
const OWNER_OPEN: usize = 24;

/// Features that the kernel negotiated at `INIT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Negotiated {
    /// It can drop all names at once.
    pub drops_names: bool,
    /// It can send requests again that a dead front did not answer.
    pub resends: bool,
}

impl Negotiated {
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

/// The state word of a slot's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Progress {
    answers_len: usize,
    /// A step is in progress. Before it the slot's last request had this sequence number.
    step_after: Option<u32>,
}

impl Progress {
    const STEP: u64 = 1 << 31;

    fn pack(self) -> u64 {
        let step = self.step_after.map_or(0, |seq| Self::STEP | u64::from(seq) << 32);
        self.answers_len as u64 | step
    }

    fn unpack(word: u64) -> Self {
        let step_after = (word & Self::STEP != 0).then_some((word >> 32) as u32);
        Self { answers_len: (word as usize & 0xffff).min(ANSWERS_MAX), step_after }
    }
}

/// The place of an [`OwnerEntry`] in the segment.
pub(crate) type OwnerIndex = usize;

/// An owner that may hold record locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OwnerEntry {
    pub ino: Ino,
    pub owner: LockOwner,
    pub open: u64,
}

pub(crate) struct FrontState {
    segment: Segment,
    /// Unused entries of lock owners.
    free_owners: Mutex<Vec<OwnerIndex>>,
    /// Serialises the search for an unused entry of a page drop.
    drops: Mutex<()>,
}

impl FrontState {
    pub(crate) fn create() -> Result<Self, SegmentError> {
        let segment = Segment::create("warren-front", LEN)?;
        segment.map().store64(AT_VERSION, VERSION, Release);
        Ok(Self::new(segment))
    }

    /// Takes over the state of a predecessor.
    pub(crate) fn adopt(fd: OwnedFd) -> Result<Self, SegmentError> {
        let segment = Segment::adopt(fd)?;
        let len = segment.map().size();
        if len < LEN || segment.map().load64(AT_VERSION, Acquire) != VERSION {
            return Err(SegmentError::TooShort { len: len as u64, needed: LEN });
        }
        let state = Self::new(segment);
        state.threads().clear();
        Ok(state)
    }

    fn new(segment: Segment) -> Self {
        let map = segment.map();
        let is_free = |at: &OwnerIndex| map.load64(owner_at(*at) + OWNER_STATE, Acquire) == 0;
        let free = (0..OWNERS_MAX).rev().filter(is_free).collect();
        Self { segment, free_owners: Mutex::new(free), drops: Mutex::default() }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    /// `None` before the kernel's `INIT`.
    pub(crate) fn negotiated(&self) -> Option<Negotiated> {
        Negotiated::unpack(self.segment.map().load64(AT_NEGOTIATED, Acquire))
    }

    pub(crate) fn set_negotiated(&self, negotiated: Negotiated) {
        self.segment.map().store64(AT_NEGOTIATED, negotiated.pack(), Release);
    }

    /// The kernel's open files.
    pub(crate) fn opens(&self) -> OpenTables<'_> {
        OpenTables { map: self.segment.map(), start: OPENS }
    }

    /// The table in which each thread of the front says what it does.
    pub(crate) fn threads(&self) -> ThreadTable<'_> {
        ThreadTable { map: self.segment.map(), start: THREADS }
    }

    pub(crate) fn record(&self, slot: SlotNo) -> SlotRecord<'_> {
        assert!(usize::from(slot.0) < SLOTS_MAX, "{slot:?}");
        SlotRecord { state: self, at: SLOTS + usize::from(slot.0) * PAGE }
    }

    /// The slot on which request `unique` took a step or began one.
    pub(crate) fn slot_of(&self, unique: u64) -> Option<SlotNo> {
        let wanted = unique & !abi::UNIQUE_RESEND;
        (0..SLOTS_MAX as u16).map(SlotNo).find(|slot| self.record(*slot).unique() == wanted)
    }

    /// Records that the kernel must drop the pages of `ino`. Returns the index of the entry, or
    /// `None` if all entries are in use.
    pub(crate) fn add_page_drop(&self, ino: Ino) -> Option<usize> {
        let _alone = self.drops.lock().unwrap_or_else(PoisonError::into_inner);
        let map = self.segment.map();
        let index = (0..DROPS_MAX).find(|at| map.load64(DROPS + at * 8, Acquire) == 0)?;
        map.store64(DROPS + index * 8, ino.0, Release);
        Some(index)
    }

    pub(crate) fn remove_page_drop(&self, index: usize) {
        assert!(index < DROPS_MAX);
        self.segment.map().store64(DROPS + index * 8, 0, Release);
    }

    /// The entries that a predecessor left.
    pub(crate) fn page_drops(&self) -> Vec<(usize, Ino)> {
        let at = |index: usize| (index, Ino(self.segment.map().load64(DROPS + index * 8, Acquire)));
        (0..DROPS_MAX).map(at).filter(|(_, ino)| ino.0 != 0).collect()
    }

    /// ENOLCK if all entries are in use.
    pub(crate) fn add_lock_owner(&self, entry: OwnerEntry) -> Result<OwnerIndex, Errno> {
        let index = self.free_owners().pop().ok_or(Errno::ENOLCK)?;
        let (map, at) = (self.segment.map(), owner_at(index));
        map.store64(at + OWNER_INO, entry.ino.0, Release);
        map.store64(at + OWNER_OWNER, entry.owner.0, Release);
        map.store64(at + OWNER_OPEN, entry.open, Release);
        map.store64(at + OWNER_STATE, 1, Release);
        Ok(index)
    }

    pub(crate) fn remove_lock_owner(&self, index: OwnerIndex) {
        self.segment.map().store64(owner_at(index) + OWNER_STATE, 0, Release);
        self.free_owners().push(index);
    }

    pub(crate) fn lock_owners(&self) -> Vec<(OwnerIndex, OwnerEntry)> {
        let map = self.segment.map();
        let is_used = |index: &OwnerIndex| map.load64(owner_at(*index) + OWNER_STATE, Acquire) != 0;
        let word = |index: OwnerIndex, field: usize| map.load64(owner_at(index) + field, Acquire);
        let entry = |index: OwnerIndex| OwnerEntry {
            ino: Ino(word(index, OWNER_INO)),
            owner: LockOwner(word(index, OWNER_OWNER)),
            open: word(index, OWNER_OPEN),
        };
        (0..OWNERS_MAX).filter(is_used).map(|index| (index, entry(index))).collect()
    }

    fn free_owners(&self) -> MutexGuard<'_, Vec<OwnerIndex>> {
        self.free_owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn owner_at(index: OwnerIndex) -> usize {
    assert!(index < OWNERS_MAX);
    OWNERS + index * OWNER_ENTRY
}

/// The page of a slot. Only the thread that has the slot uses it.
#[derive(Clone, Copy)]
pub(crate) struct SlotRecord<'a> {
    state: &'a FrontState,
    at: usize,
}

impl SlotRecord<'_> {
    fn load(&self, field: usize) -> u64 {
        self.state.segment.map().load64(self.at + field, Acquire)
    }

    fn store(&self, field: usize, value: u64) {
        self.state.segment.map().store64(self.at + field, value, Release);
    }

    fn unique(&self) -> u64 {
        self.load(UNIQUE)
    }

    fn progress(&self) -> Progress {
        Progress::unpack(self.load(STATE))
    }

    fn set_progress(&self, answers_len: usize, step_after: Option<u32>) {
        self.store(STATE, Progress { answers_len, step_after }.pack());
    }

    /// The recorded answer to the step of request `unique` at `cursor`, and moves the cursor to the
    /// next step. `None` if the step is not recorded.
    pub(crate) fn replay(&self, unique: u64, cursor: &mut usize) -> Option<Answer> {
        if self.unique() != unique & !abi::UNIQUE_RESEND {
            return None;
        }
        let left = self.progress().answers_len.checked_sub(*cursor + ANSWER_HEADER)?;
        let mut header = [0; ANSWER_HEADER];
        let (map, at) = (self.state.segment.map(), self.at + ANSWERS + *cursor);
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

    /// Must be called before the next step of request `unique` is sent. `last_seq` is the sequence
    /// number of the slot's last request.
    pub(crate) fn begin_step(&self, unique: u64, last_seq: u32) {
        let unique = unique & !abi::UNIQUE_RESEND;
        let mut answers_len = 0;
        if self.unique() == unique {
            answers_len = self.progress().answers_len;
        } else {
            self.clear();
            self.set_progress(answers_len, None);
            self.store(UNIQUE, unique);
        }
        self.set_progress(answers_len, Some(last_seq));
    }

    /// Records the answer to the step in progress. An answer that says that the cell executed
    /// nothing is not recorded. Returns the cursor behind all recorded steps.
    pub(crate) fn end_step(&self, answer: &Answer) -> usize {
        let mut answers_len = self.progress().answers_len;
        if !matches!(answer, Err(Errno::EAGAIN) | Ok(Reply::Moved(_))) {
            answers_len = self.append(answers_len, answer);
        }
        self.set_progress(answers_len, None);
        answers_len
    }

    /// Stores an answer at `at`, behind the others. Returns the length of all answers.
    fn append(&self, at: usize, answer: &Answer) -> usize {
        let (mut errno, mut body) = match answer {
            Ok(reply) => (0, reply.to_bytes()),
            Err(errno) => (errno.raw(), Vec::new()),
        };
        if at + ANSWER_HEADER + body.len() > ANSWERS_MAX {
            // No valid answer to a change is so long, so the handler rejects this one with EIO too.
            (errno, body) = (Errno::EIO.raw(), Vec::new());
        }
        let end = at + ANSWER_HEADER + body.len();
        if end > ANSWERS_MAX {
            return at;
        }
        let map = self.state.segment.map();
        let mut header = [0; ANSWER_HEADER];
        header[..4].copy_from_slice(&(body.len() as u32).to_ne_bytes());
        header[4..].copy_from_slice(&errno.to_ne_bytes());
        map.copy_in(self.at + ANSWERS + at, &header);
        map.copy_in(self.at + ANSWERS + at + ANSWER_HEADER, &body);
        end
    }

    /// Ends the step during which a predecessor died. `last_seq` is the sequence number of the
    /// slot's last request, and `last` the answer to it, if it was sent.
    pub(crate) fn recover(&self, last_seq: u32, last: Option<&Answer>) {
        let Some(before) = self.progress().step_after else { return };
        let answer = last.filter(|_| last_seq != before).unwrap_or(&Err(Errno::EAGAIN));
        self.end_step(answer);
    }

    /// Removes the record of any request.
    pub(crate) fn clear(&self) {
        self.store(UNIQUE, 0);
    }
}

#[cfg(test)]
mod tests;
