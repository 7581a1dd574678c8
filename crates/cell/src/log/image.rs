//! The image of the op log: its bytes in frames that outlive the process.
//!
//! ```text
//! start                 last    end
//!   |  records           |  pad  |        start: from where a recovery replays
//!   |                    |       |        last:  behind the last record, on which messages rest
//!   +-- block --+-- block --+----+        end:   where the next record begins
//! ```
//!
//! Invariants:
//! * A record counts only with its header, so the header is copied last.
//! * A block of the device's copy is written once, until its place is reused. So data that is still
//!   to be written begins in a new block.

use warren_base::Lsn;
use warren_base::limits::BLOCK_SIZE;
use warren_disk::{LogArea, RECORD_ALIGN, RECORD_HEADER, RecordPlace, seal_record};
use warren_proto::Cause;

use crate::event::{FrameNo, Memory};
use crate::log::record::Record;

#[derive(Debug)]
pub(crate) struct Image {
    area: LogArea,
    /// Frame of the first block.
    first: FrameNo,
    incarnation: u64,
    start: Lsn,
    end: Lsn,
    /// `end` without padding, which a recovery does not find.
    last: Lsn,
    /// Up to where the log is durable according to the last record.
    vouched: Lsn,
    /// Everything that a recovery has to read was read, so records may be appended.
    is_open: bool,
}

impl Image {
    pub(super) const fn new(
        area: LogArea,
        first: FrameNo,
        (incarnation, start): (u64, Lsn),
        is_open: bool,
    ) -> Self {
        Self { area, first, incarnation, start, end: start, last: start, vouched: Lsn(0), is_open }
    }

    pub(crate) const fn area(&self) -> LogArea {
        self.area
    }

    pub(crate) const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(crate) const fn start(&self) -> Lsn {
        self.start
    }

    pub(crate) const fn end(&self) -> Lsn {
        self.end
    }

    /// Behind the last record: the point that a message depends on.
    pub(crate) const fn last(&self) -> Lsn {
        self.last
    }

    /// Whether records may be appended: nothing in the image still has to be replayed.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Bytes from where a recovery would begin its replay.
    pub(crate) const fn used(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Continues behind the records that a recovery has read, in a new block. The bytes in between
    /// are no record, and must not look like the beginning of one.
    pub(super) fn resume(&mut self, end: Lsn, memory: &mut dyn Memory) {
        self.is_open = true;
        (self.last, self.end) = (end, end);
        self.pad(memory);
    }

    /// The frame that holds a byte of the image, and the byte in it.
    pub(crate) fn place(&self, lsn: Lsn) -> (FrameNo, usize) {
        let (block, at) = self.area.place(lsn);
        (FrameNo(self.first.0 + block as u32), at)
    }

    fn copy_in(&self, at: Lsn, bytes: &[u8], memory: &mut dyn Memory) {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let (frame, offset) = self.place(at);
            let (now, later) = rest.split_at(rest.len().min(BLOCK_SIZE - offset));
            memory.frame_mut(frame)[offset..offset + now.len()].copy_from_slice(now);
            (at, rest) = (Lsn(at.0 + now.len() as u64), later);
        }
    }

    /// Copies bytes of the image.
    pub(crate) fn copy_out(&self, at: Lsn, into: &mut [u8], memory: &dyn Memory) {
        let (mut at, mut rest) = (at, into);
        while !rest.is_empty() {
            let (frame, offset) = self.place(at);
            let len = rest.len().min(BLOCK_SIZE - offset);
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&memory.frame(frame)[offset..offset + len]);
            (at, rest) = (Lsn(at.0 + len as u64), later);
        }
    }

    /// Appends a record with its cause. The log is durable before `durable`.
    pub(super) fn append(
        &mut self,
        record: &mut Record,
        cause: &Cause,
        durable: Lsn,
        memory: &mut dyn Memory,
    ) {
        assert!(self.is_open, "a record over what is to be replayed");
        let (bytes, steps) = record.body(cause);
        let lsn = self.end;
        let place = RecordPlace { lsn, last: Some(self.last), durable: Some(durable) };
        seal_record(bytes, place, self.incarnation, steps);
        assert!(
            self.used() + bytes.len() as u64 <= self.area.bytes(),
            "the log's reserve was not enough"
        );
        // The header is copied last, because a record counts only with it.
        self.copy_in(Lsn(lsn.0 + RECORD_ALIGN as u64), &bytes[RECORD_ALIGN..], memory);
        self.copy_in(lsn, &bytes[..RECORD_ALIGN], memory);
        self.end = Lsn(lsn.0 + bytes.len() as u64);
        (self.last, self.vouched) = (self.end, durable);
    }

    /// Up to where the log is durable according to the last record.
    pub(super) const fn vouched(&self) -> Lsn {
        self.vouched
    }

    /// Whether an empty record fits into the last block, or much of the log is free.
    pub(super) fn takes_empty_record(&self) -> bool {
        let (_, at) = self.area.place(self.end);
        (at > 0 && at + 2 * RECORD_HEADER <= BLOCK_SIZE) || 2 * self.used() < self.area.bytes()
    }

    /// Fills the block with zeros, so that the following records lie in the next one. Returns where
    /// that begins.
    pub(super) fn pad(&mut self, memory: &mut dyn Memory) -> Lsn {
        let (frame, at) = self.place(self.end);
        if at > 0 {
            memory.frame_mut(frame)[at..].fill(0);
            self.end = Lsn(self.end.0 + (BLOCK_SIZE - at) as u64);
        }
        self.end
    }

    /// Everything before `lsn` is in the trees that the superblock names.
    pub(super) fn free(&mut self, lsn: Lsn) {
        assert!(self.start <= lsn && lsn <= self.end);
        self.start = lsn;
    }
}
