//! The op log: what this cell did, in order (design 9). Its image lies in frames that outlive the process;
//! the device gets it when somebody asks for durability.
//!
//! Order of events for a task: its steps are made and noted; when it stops running they are *sealed* into
//! one record with what caused them; then what may only happen behind the record (a frame forgotten, a
//! tail zeroed); then the effects of the same event, replies and messages among them.
//!
//! Order of a commit:
//!
//! ```text
//! idle -> settling: the block is padded; data that its records name is still being written
//!      -> data flush, if any such data was -> log written -> log flush: durable up to there
//! ```
//!
//! A log that goes to the device in one write is written through: one effect is both of the last steps. It makes
//! nothing else durable.
//!
//! A commit waits a little for those who were there at the end of the last one and are on their way back with
//! their next request ([`Crowd`]), so that writers in step share one flush, instead of the quickest having one
//! for itself.
//!
//! Invariants:
//! * What is durable is a prefix, and whoever is told so has all of it: also what the prefix rests on in
//!   other logs.
//! * A block of the device's copy is written once, until its place comes round again.

pub(crate) mod durable;
pub(crate) mod record;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use warren_base::limits::{BLOCK_SIZE, BODY_MAX, PEER_MESSAGE_MAX};
use warren_base::{CellId, Errno, Instant, Lsn};
use warren_disk::{LogArea, RECORD_ALIGN, RECORD_MAX, seal_record};
use warren_proto::{Cause, Step};

use crate::event::{Effect, FrameNo, IoId, Memory};
use crate::log::record::Record;

/// Bytes that stay free for what cannot wait: the parts of decided transactions, reclaiming, and a
/// snapshot of the session.
const RESERVE: u64 = 4 * RECORD_MAX as u64;
/// Bytes that a dirty page will want when it is placed: at worst a record of its own.
const PER_DIRTY_PAGE: u64 = 104;
/// Bytes that a transaction under way may still want: what it decides or makes here, with names, the target of
/// a symlink and an answer, and that it is over.
const PER_TXN: u64 = BODY_MAX as u64;
/// Bytes of the longest step of a session's snapshot, with its share of a record's header.
const SESSION_STEP: u64 = 64;
/// Bytes of the record of a lock that is granted to a request that waited.
pub(crate) const PER_GRANT: u64 = 96;
/// Blocks of one write of the log.
const WRITE_MAX: u64 = 256;
/// Points in other logs that are kept apart for each cell; beyond, the last ones become one.
const DEPENDS_MAX: usize = 256;
/// Pairs of a Hardened reply that fit a message.
const FRONTIER_MAX: usize = PEER_MESSAGE_MAX / 16;

const _: () = {
    assert!(RESERVE <= warren_disk::LOG_BLOCKS_MIN * BLOCK_SIZE as u64 / 2);
    assert!(warren_base::limits::CELLS_MAX <= FRONTIER_MAX);
};

/// Where a commit stands. `goal` is the end of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Commit {
    Idle,
    Settling {
        goal: Lsn,
    },
    DataFlush {
        goal: Lsn,
        io: IoId,
    },
    Writing {
        goal: Lsn,
        left: usize,
        failed: Option<Errno>,
    },
    LogFlush {
        goal: Lsn,
        io: IoId,
    },
    /// Both in one.
    WritingThrough {
        goal: Lsn,
    },
    /// A flush that nobody waits for: pages may be evicted after it.
    PlainFlush {
        io: IoId,
    },
}

/// Who waits for commits. A writer alone never waits for anybody.
#[derive(Clone, Copy, Default, Debug)]
struct Crowd {
    /// How many waited when the last commit was over, for it or for the next.
    size: usize,
    /// When the commit that is under way was begun, and how long the last one took.
    begun: Instant,
    took: Duration,
    /// Until when the next commit waits for them to be that many again.
    patience: Option<Instant>,
}

/// The longest wait for a crowd. It is less where a commit takes less: at most its half.
const PATIENCE_MAX: Duration = Duration::from_millis(1);

impl Crowd {
    /// Whether the next commit should still wait; asks to be woken when it should not any more, each time, as
    /// whatever else asks replaces that.
    fn is_awaited(&mut self, here: usize, now: Instant, effects: &mut Vec<Effect>) -> bool {
        if here >= self.size {
            self.patience = None;
            return false;
        }
        let until = *self.patience.get_or_insert(now + (self.took / 2).min(PATIENCE_MAX));
        if now < until {
            effects.push(Effect::Wake(until));
        }
        now < until
    }

    fn begins(&mut self, now: Instant) {
        (self.begun, self.patience) = (now, None);
    }

    fn ends(&mut self, here: usize, now: Instant) {
        (self.size, self.took) = (here, now - self.begun);
    }
}

/// Records between `first` and `last` rest on another cell's log, up to `there` at the most.
#[derive(Clone, Copy, Debug)]
struct Rest {
    first: Lsn,
    last: Lsn,
    there: Lsn,
}

/// Something that waits until the log is durable up to a point.
#[derive(Clone, Copy, Debug)]
struct Asked {
    by: CellId,
    lsn: Lsn,
}

#[derive(Debug)]
pub(crate) struct OpLog {
    area: LogArea,
    /// Frame of the image's first block.
    first: FrameNo,
    pub(crate) incarnation: u64,
    start: Lsn,
    /// The last snapshot of the session: that of the last checkpoint, or of one that failed since.
    snapshot: Range<Lsn>,
    end: Lsn,
    /// Behind the last record: `end` but for padding, which a recovery does not find.
    last: Lsn,
    durable: Lsn,
    /// The memory of the last record, for the next.
    buffer: Vec<u8>,
    /// Transactions that are under way here, at their coordinator or elsewhere.
    txns: usize,
    commit: Commit,
    crowd: Crowd,
    /// Up to where somebody waits.
    wanted: Lsn,
    /// Records whose data is being written, and how many writes are left.
    placing: BTreeMap<Lsn, usize>,
    /// Writes of data were finished since the last flush was begun.
    data_written: bool,
    /// What records rest on in each other cell's log and is not known to be durable there, rising in all
    /// respects.
    depends: BTreeMap<CellId, VecDeque<Rest>>,
    /// Up to where other cells' logs were heard of and are not named in this one: the next record names them.
    heard: BTreeMap<CellId, Lsn>,
    /// Up to where each other cell's log is named in this one since the last checkpoint fixed its state, and up to
    /// where it is durable.
    named: BTreeMap<CellId, Lsn>,
    hardened: BTreeMap<CellId, Lsn>,
    /// Up to where a cell was asked to make its log durable.
    asked: BTreeMap<CellId, Lsn>,
    asking: Vec<Asked>,
    /// What a recovery has to read is read: records may be appended.
    is_open: bool,
    /// Nothing is committed until a checkpoint has replaced what a predecessor left half done.
    pub(crate) held: bool,
    /// That is so since the device has failed: the next to write is a checkpoint.
    pub(crate) faulty: bool,
    /// None will come any more.
    is_last: bool,
    /// Nor is there room for what sessions do.
    forgets_session: bool,
    /// What a flush that is under way may not make good: data written before it is lost.
    doomed: Option<Errno>,
    /// The checkpoint that is being written fixed its state after that, and so ends it.
    releasing: bool,
    /// A checkpoint was asked for that will free some of the log.
    checkpoint_wanted: bool,
}

impl OpLog {
    /// `is_open`: nothing is to be replayed first.
    pub(crate) fn new(
        area: LogArea,
        first: FrameNo,
        (incarnation, start): (u64, Lsn),
        is_open: bool,
    ) -> Self {
        Self {
            area,
            first,
            incarnation,
            start,
            snapshot: start..start,
            end: start,
            last: start,
            durable: start,
            buffer: Vec::new(),
            txns: 0,
            commit: Commit::Idle,
            crowd: Crowd::default(),
            wanted: start,
            placing: BTreeMap::new(),
            data_written: false,
            depends: BTreeMap::new(),
            heard: BTreeMap::new(),
            named: BTreeMap::new(),
            hardened: BTreeMap::new(),
            asked: BTreeMap::new(),
            asking: Vec::new(),
            is_open,
            held: false,
            faulty: false,
            is_last: false,
            forgets_session: false,
            doomed: None,
            releasing: false,
            checkpoint_wanted: false,
        }
    }

    pub(crate) const fn area(&self) -> LogArea {
        self.area
    }

    pub(crate) const fn start(&self) -> Lsn {
        self.start
    }

    pub(crate) const fn end(&self) -> Lsn {
        self.end
    }

    /// Behind the last record: what a message rests on.
    pub(crate) const fn last(&self) -> Lsn {
        self.last
    }

    /// A checkpoint fixes its state.
    pub(crate) const fn fixed(&mut self) {
        self.releasing = true;
    }

    /// That checkpoint is durable.
    pub(crate) const fn switched(&mut self) {
        self.held &= !self.releasing;
        self.faulty &= self.held;
    }

    /// Whether what has failed waits for a checkpoint. Where none comes any more, the frames that it takes are
    /// wanted all the same.
    pub(crate) const fn leaves_writes_to_checkpoints(&self) -> bool {
        self.faulty && !self.is_last
    }

    /// Whether no checkpoint comes any more.
    pub(crate) const fn is_last(&self) -> bool {
        self.is_last
    }

    /// No successor takes over from a cell whose log is the last one, so that what is open and locked need not be in it.
    pub(crate) const fn forget_session(&mut self, is_full: bool) {
        self.forgets_session = is_full;
    }

    /// Where the last snapshot of the session begins, if nothing was logged since.
    pub(crate) fn snapshot(&self) -> Option<Lsn> {
        (self.snapshot.end == self.end).then_some(self.snapshot.start)
    }

    /// The session as it is now is logged anew, from `start` on.
    pub(crate) fn snapshot_taken(&mut self, start: Lsn) {
        self.snapshot = start..self.end;
    }

    /// Goes on behind what a recovery has read, in a block of its own. What lies between is no record, and
    /// must not look like the beginning of one.
    pub(crate) fn resume<M: Memory>(&mut self, end: Lsn, memory: &mut M) {
        self.is_open = true;
        (self.last, self.end, self.wanted) = (end, end, self.durable);
        self.pad(memory);
        // What a predecessor has written may not be flushed.
        self.data_written = true;
    }

    /// The lost cell waits for nothing any more, and what it was asked has to be asked again.
    pub(crate) fn forget_asking(&mut self, lost: CellId) {
        self.asking.retain(|asked| asked.by != lost);
        self.asked.remove(&lost);
    }

    /// The frame that holds a byte of the image, and the byte in it.
    pub(crate) fn place(&self, lsn: Lsn) -> (FrameNo, usize) {
        let (block, at) = self.area.place(lsn);
        (FrameNo(self.first.0 + block as u32), at)
    }

    /// Bytes that may still be logged, with room for what `dirty` pages and the transactions under way will want.
    pub(crate) fn room(&self, dirty: usize) -> u64 {
        let used = self.end.0 - self.start.0;
        let session = self.session_bytes() + self.unanswered_bytes();
        // A few are in the reserve.
        let txns = (PER_TXN * self.txns as u64).saturating_sub(RESERVE / 2);
        let promised = RESERVE + session + txns + PER_DIRTY_PAGE * dirty as u64;
        self.area.bytes().saturating_sub(used + promised)
    }

    /// Whether a checkpoint can still log what it has to: so many open files and held locks, and a record
    /// before these. Checkpoints that fail have taken what was kept for it.
    pub(crate) fn may_checkpoint(&self, session: usize) -> bool {
        let snapshot = SESSION_STEP * session as u64 + self.unanswered_bytes();
        let needed = (RECORD_MAX + BLOCK_SIZE) as u64 + snapshot;
        self.end.0 - self.start.0 + needed <= self.area.bytes()
    }

    /// Bytes that are kept free for a snapshot of the session. The last one is in the log as well until the next is
    /// durable, so twice this and twice [`Self::unanswered_bytes`] leave some of what is not in the reserve.
    const fn session_bytes(&self) -> u64 {
        (self.area.bytes() - RESERVE) / 4
    }

    /// Bytes that are kept free for answers that a predecessor may not have given: those of the requests that
    /// were under way when it died.
    pub(crate) const fn unanswered_bytes(&self) -> u64 {
        (self.area.bytes() - RESERVE) / 16
    }

    /// Open files and held locks of a cell, together: what a snapshot of the session has room for.
    pub(crate) const fn session_max(&self) -> usize {
        (self.session_bytes() / SESSION_STEP) as usize
    }

    /// Whether a checkpoint should free some of the log.
    fn is_half_full(&self) -> bool {
        2 * (self.end.0 - self.start.0) > self.area.bytes()
    }

    /// Whether records may be appended: nothing that the image holds is still to be replayed.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// An empty record.
    pub(crate) fn open_record(&mut self) -> Record {
        Record::in_buffer(std::mem::take(&mut self.buffer), self.forgets_session)
    }

    /// A turn is over that has opened this record.
    pub(crate) fn close_record(&mut self, record: Record) {
        self.buffer = record.into_buffer();
    }

    /// A transaction is under way that this cell takes part in.
    pub(crate) const fn begin_txn(&mut self) {
        self.txns += 1;
    }

    pub(crate) const fn end_txn(&mut self) {
        self.txns -= 1;
    }

    /// What comes now may rest on another cell's log. That is told by the next record, whatever it is for: what
    /// leads to none changes nothing, and however much a cell hears, its log does not grow by it.
    pub(crate) fn depend(&mut self, cell: CellId, lsn: Lsn) {
        let known = |points: &BTreeMap<CellId, Lsn>| points.get(&cell).is_some_and(|at| *at >= lsn);
        if lsn == Lsn(0) || known(&self.named) || known(&self.hardened) || known(&self.heard) {
            return;
        }
        self.heard.insert(cell, lsn);
    }

    /// The record names what was heard of.
    fn name_heard(&mut self, record: &mut Record) {
        for (cell, lsn) in std::mem::take(&mut self.heard) {
            self.named.insert(cell, lsn);
            record.note(&Step::Depends { cell, lsn });
            self.await_point(cell, self.end, lsn);
        }
    }

    fn await_point(&mut self, cell: CellId, at: Lsn, lsn: Lsn) {
        if self.hardened.get(&cell).is_some_and(|durable| *durable >= lsn) {
            return;
        }
        let rests = self.depends.entry(cell).or_default();
        let full = rests.len() >= DEPENDS_MAX;
        match rests.back_mut() {
            Some(last) if full || last.there >= lsn => {
                (last.last, last.there) = (at, last.there.max(lsn));
            }
            _ => rests.push_back(Rest { first: at, last: at, there: lsn }),
        }
    }

    /// Whether everything up to `lsn`, and all that it rests on, is durable.
    pub(crate) fn is_durable(&self, lsn: Lsn) -> bool {
        let open = |rests: &VecDeque<Rest>| rests.front().is_some_and(|rest| rest.first < lsn);
        self.durable >= lsn && !self.depends.values().any(open)
    }

    /// Whether all of it is durable by itself, whatever it rests on.
    pub(crate) fn is_written(&self) -> bool {
        self.durable >= self.end
    }

    /// What records before `lsn` rest on in other logs.
    fn frontier(&self, lsn: Lsn) -> Vec<(CellId, Lsn)> {
        let farthest = |rests: &VecDeque<Rest>| {
            rests.iter().take_while(|rest| rest.first < lsn).map(|rest| rest.there).last()
        };
        self.depends.iter().filter_map(|(cell, rests)| Some((*cell, farthest(rests)?))).collect()
    }

    /// Whoever waits wants everything up to now.
    pub(crate) fn want(&mut self, lsn: Lsn) {
        self.wanted = self.wanted.max(lsn);
    }

    /// The record at `lsn` names data whose write begins.
    pub(crate) fn placing(&mut self, lsn: Lsn) {
        *self.placing.entry(lsn).or_default() += 1;
    }

    /// Such a write is over. One that failed is repeated elsewhere by a later record.
    pub(crate) fn placed(&mut self, lsn: Lsn, written: bool) {
        self.data_written |= written;
        if let Some(left) = self.placing.get_mut(&lsn) {
            *left -= 1;
            if *left == 0 {
                self.placing.remove(&lsn);
            }
        }
    }

    fn copy_in<M: Memory>(&self, at: Lsn, bytes: &[u8], memory: &mut M) {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let (frame, offset) = self.place(at);
            let (now, later) = rest.split_at(rest.len().min(BLOCK_SIZE - offset));
            memory.frame_mut(frame)[offset..offset + now.len()].copy_from_slice(now);
            (at, rest) = (Lsn(at.0 + now.len() as u64), later);
        }
    }

    /// Copies bytes of the image.
    pub(crate) fn copy_out<M: Memory>(&self, at: Lsn, into: &mut [u8], memory: &M) {
        let (mut at, mut rest) = (at, into);
        while !rest.is_empty() {
            let (frame, offset) = self.place(at);
            let len = rest.len().min(BLOCK_SIZE - offset);
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&memory.frame(frame)[offset..offset + len]);
            (at, rest) = (Lsn(at.0 + len as u64), later);
        }
    }

    /// Puts a record into the log. Returns it without its steps; what waits for it may be done now.
    pub(crate) fn append<M: Memory>(
        &mut self,
        mut record: Record,
        cause: Cause,
        memory: &mut M,
    ) -> Record {
        assert!(self.is_open, "a record over what is to be replayed");
        self.name_heard(&mut record);
        let (bytes, steps) = record.body(&cause);
        let lsn = self.end;
        seal_record(bytes, lsn, self.incarnation, steps);
        assert!(
            self.end.0 + bytes.len() as u64 - self.start.0 <= self.area.bytes(),
            "the log's reserve was not enough"
        );
        // The header last: a record without it is none.
        self.copy_in(Lsn(lsn.0 + RECORD_ALIGN as u64), &bytes[RECORD_ALIGN..], memory);
        self.copy_in(lsn, &bytes[..RECORD_ALIGN], memory);
        self.end = Lsn(lsn.0 + bytes.len() as u64);
        self.last = self.end;
        record.emptied()
    }

    /// Where the log of a checkpoint begins, whose state is fixed now. What other cells' logs are rested on from
    /// here on is named again, because a recovery does not read the records that named it before.
    pub(crate) fn begin_anew<M: Memory>(&mut self, memory: &mut M) -> Lsn {
        self.named.clear();
        self.pad(memory)
    }

    /// Fills the block with zeros, so that what comes lies in the next one.
    pub(crate) fn pad<M: Memory>(&mut self, memory: &mut M) -> Lsn {
        let (frame, at) = self.place(self.end);
        if at > 0 {
            memory.frame_mut(frame)[at..].fill(0);
            self.end = Lsn(self.end.0 + (BLOCK_SIZE - at) as u64);
        }
        self.end
    }

    /// Everything before `lsn` is in the trees that the superblock names.
    pub(crate) fn free(&mut self, lsn: Lsn) {
        assert!(self.start <= lsn && lsn <= self.end);
        self.start = lsn;
        self.durable = self.durable.max(lsn);
        self.checkpoint_wanted = false;
        for rests in self.depends.values_mut() {
            rests.retain(|rest| rest.last >= lsn);
        }
    }
}

impl OpLog {
    /// Records rest on another log, as was found out later.
    fn rest_on(&mut self, cell: CellId, mut rest: Rest) {
        if self.hardened.get(&cell).is_some_and(|durable| *durable >= rest.there) {
            return;
        }
        let rests = self.depends.entry(cell).or_default();
        // All rises along the queue, so what comes to stand first takes in what it replaces.
        while let Some(known) = rests.pop_front_if(|known| known.there <= rest.there) {
            rest.first = rest.first.min(known.first);
            rest.last = rest.last.max(known.last);
        }
        if let Some(next) = rests.front_mut() {
            rest.first = rest.first.min(next.first);
            next.last = next.last.max(rest.last);
        }
        rests.push_front(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::{BlockNo, ClientId, Ino, Timestamp};
    use warren_disk::RECORD_HEADER;
    use warren_proto::Wire;
    use warren_proto::{ByteRange, Cover, LockFlavour, LockOwner, LockSpec, LockType, Run};

    #[test]
    fn a_page_placed_alone_takes_no_more_than_was_kept_for_it() {
        let (page, block, now) = (1, BlockNo(1), Timestamp(1));
        let runs = vec![Run { page, block, checksums: vec![1] }];
        let cover = Cover { size: 1, mode: 1, mtime: now, ctime: now, complete: true };
        let mut record = vec![0; RECORD_HEADER];
        Step::Placed { ino: Ino::ROOT, runs, cover }.encode(&mut record);
        Cause::Cell.encode(&mut record);
        seal_record(&mut record, Lsn(0), 1, 1);
        assert_eq!(record.len() as u64, PER_DIRTY_PAGE);
    }

    #[test]
    fn a_lock_granted_alone_takes_no_more_than_was_kept_for_it() {
        let range = ByteRange::ALL;
        let (flavour, owner, lock) = (LockFlavour::Record, LockOwner(1), LockType::Exclusive);
        let spec = LockSpec { flavour, owner, lock, range, pid: 1 };
        let mut record = vec![0; RECORD_HEADER];
        Step::Locked { ino: Ino::ROOT, client: ClientId(1), spec, uid: 1 }.encode(&mut record);
        Cause::Cell.encode(&mut record);
        seal_record(&mut record, Lsn(0), 1, 1);
        assert!(record.len() as u64 <= PER_GRANT, "{}", record.len());
    }
}
