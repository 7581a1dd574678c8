//! The op log: what this cell did, in order (design 9). Its image lies in frames that outlive the
//! process; the device receives it when a client or a cell asks for durability.
//!
//! Order of events for a task: its steps are made and noted; when it stops running they are
//! appended as one record with what caused them; then what may only happen behind the record (a
//! frame released, a tail zeroed); then the effects of the same event, replies and messages among
//! them.
//!
//! | part | owns |
//! | --- | --- |
//! | `record` | the steps of a record that is being made |
//! | `image` | the bytes, and where records begin and end |
//! | `depend` | what the log rests on in other cells' logs |
//! | `commit` | how far it is durable, and the commit under way |
//! | `durable` | no state: carries commits out |

pub(crate) mod commit;
pub(crate) mod depend;
pub(crate) mod durable;
pub(crate) mod image;
pub(crate) mod record;

use std::ops::Range;

use warren_base::Lsn;
use warren_base::limits::{BLOCK_SIZE, BODY_MAX};
use warren_disk::{LogArea, RECORD_MAX};
use warren_proto::Cause;

use crate::event::{FrameNo, Memory};
use crate::log::commit::Commits;
use crate::log::depend::Depends;
use crate::log::image::Image;
use crate::log::record::Record;

/// Bytes that stay free for what cannot wait: the parts of decided transactions, reclaiming, and a
/// snapshot of the session.
const RESERVE: u64 = 4 * RECORD_MAX as u64;
/// Bytes that a dirty page will want when it is placed: at worst a record of its own.
const PER_DIRTY_PAGE: u64 = 104;
/// Bytes that a transaction under way may still want: what it decides or makes here, with names,
/// the target of a symlink and an answer, and that it is over.
const PER_TXN: u64 = BODY_MAX as u64;
/// Bytes of the longest step of a session's snapshot, with its share of a record's header.
const SESSION_STEP: u64 = 64;
/// Bytes of the record of a lock that is granted to a request that waited.
pub(crate) const PER_GRANT: u64 = 96;

const _: () = assert!(RESERVE <= warren_disk::LOG_BLOCKS_MIN * BLOCK_SIZE as u64 / 2);

#[derive(Debug)]
pub(crate) struct OpLog {
    pub(crate) image: Image,
    pub(crate) depends: Depends,
    pub(crate) commits: Commits,
    /// The last snapshot of the session: that of the last checkpoint, or of one that failed since.
    snapshot: Range<Lsn>,
    /// The memory of the last record, for the next.
    buffer: Vec<u8>,
    /// Transactions that are under way here, at their coordinator or elsewhere.
    txns: usize,
    /// A checkpoint was asked for that will free some of the log.
    is_checkpoint_asked: bool,
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
            image: Image::new(area, first, (incarnation, start), is_open),
            depends: Depends::default(),
            commits: Commits::new(start),
            snapshot: start..start,
            buffer: Vec::new(),
            txns: 0,
            is_checkpoint_asked: false,
        }
    }

    /// Where the last snapshot of the session begins, if nothing was logged since.
    pub(crate) fn snapshot(&self) -> Option<Lsn> {
        (self.snapshot.end == self.image.end()).then_some(self.snapshot.start)
    }

    /// The session as it is now is logged anew, from `start` on.
    pub(crate) fn snapshot_taken(&mut self, start: Lsn) {
        self.snapshot = start..self.image.end();
    }

    /// A recovery has read the log up to `end`: records may be appended behind that.
    pub(crate) fn resume(&mut self, end: Lsn, memory: &mut dyn Memory) {
        self.image.resume(end, memory);
        self.commits.resume();
    }

    /// Bytes that may still be logged, with room for what `dirty` pages and the transactions under
    /// way will want.
    pub(crate) fn room(&self, dirty: usize) -> u64 {
        let session = self.session_bytes() + self.unanswered_bytes();
        // A few are in the reserve.
        let txns = (PER_TXN * self.txns as u64).saturating_sub(RESERVE / 2);
        let promised = RESERVE + session + txns + PER_DIRTY_PAGE * dirty as u64;
        self.image.area().bytes().saturating_sub(self.image.used() + promised)
    }

    /// Whether a checkpoint can still log what it has to: so many open files and held locks, and a
    /// record before these. Checkpoints that fail have taken what was kept for it.
    pub(crate) fn may_checkpoint(&self, session: usize) -> bool {
        let snapshot = SESSION_STEP * session as u64 + self.unanswered_bytes();
        let needed = (RECORD_MAX + BLOCK_SIZE) as u64 + snapshot;
        self.image.used() + needed <= self.image.area().bytes()
    }

    /// Bytes that are kept free for a snapshot of the session. The last one is in the log as well
    /// until the next is durable, so twice this and twice [`Self::unanswered_bytes`] leave some of
    /// what is not in the reserve.
    const fn session_bytes(&self) -> u64 {
        (self.image.area().bytes() - RESERVE) / 4
    }

    /// Bytes that are kept free for answers that a predecessor may not have given: those of the
    /// requests that were under way when it died.
    pub(crate) const fn unanswered_bytes(&self) -> u64 {
        (self.image.area().bytes() - RESERVE) / 16
    }

    /// Open files and held locks of a cell, together: what a snapshot of the session has room for.
    pub(crate) const fn session_max(&self) -> usize {
        (self.session_bytes() / SESSION_STEP) as usize
    }

    /// Whether a checkpoint is to be asked for that frees some of the log: once, when it is half
    /// full.
    fn needs_checkpoint(&mut self) -> bool {
        let is_half_full = 2 * self.image.used() > self.image.area().bytes();
        is_half_full && !std::mem::replace(&mut self.is_checkpoint_asked, true)
    }

    /// An empty record. `omits_session`: what is open and locked need not be in it, because no
    /// successor takes over from this cell.
    pub(crate) fn open_record(&mut self, omits_session: bool) -> Record {
        Record::in_buffer(std::mem::take(&mut self.buffer), omits_session)
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

    /// Whether everything up to `lsn`, and all that it rests on, is durable.
    pub(crate) fn is_durable(&self, lsn: Lsn) -> bool {
        self.commits.durable() >= lsn && self.depends.are_durable(lsn)
    }

    /// Whether all of it is durable by itself, whatever it rests on.
    pub(crate) fn is_written(&self) -> bool {
        self.commits.durable() >= self.image.end()
    }

    /// Puts a record into the log. Returns it without its steps; what waits for it may be done now.
    pub(crate) fn append(
        &mut self,
        mut record: Record,
        cause: Cause,
        memory: &mut dyn Memory,
    ) -> Record {
        self.depends.name_in(&mut record, self.image.end());
        self.image.append(&mut record, &cause, memory);
        record.emptied()
    }

    /// Where the log of a checkpoint begins, whose state is fixed now.
    pub(crate) fn begin_anew(&mut self, memory: &mut dyn Memory) -> Lsn {
        self.depends.begin_anew();
        self.image.pad(memory)
    }

    fn pad(&mut self, memory: &mut dyn Memory) -> Lsn {
        self.image.pad(memory)
    }

    /// Everything before `lsn` is in the trees that the superblock names.
    fn free(&mut self, lsn: Lsn) {
        self.image.free(lsn);
        self.commits.reached(lsn);
        self.depends.free(lsn);
        self.is_checkpoint_asked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::{BlockNo, ClientId, Ino, Timestamp};
    use warren_disk::{RECORD_HEADER, seal_record};
    use warren_proto::{
        ByteRange, Cover, LockFlavour, LockOwner, LockSpec, LockType, Run, Step, Wire,
    };

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
