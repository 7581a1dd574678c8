//! Replies and lease words: the cell-to-client segment, from both sides. Layout:
//! [`warren_proto::slot`].
//!
//! Order of a reply: payload, body, line, `seq` (release), full fence, load the request line's
//! `parked`; if set, wake. Order of a wait: spin on `seq`; then `parked` = 1, full fence, load
//! `seq`, sleep while it is the old one. One of the two fences comes first: either the cell sees
//! that the client is parked, or the client sees the reply. So no wake-up is lost, and an
//! unnecessary one costs no system call.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use warren_base::limits::{BODY_MAX, LEASE_WORDS, PAYLOAD_MAX, SLOTS_MAX};
use warren_base::{CellId, Epoch, Errno, Ino, SlotNo};
use warren_proto::Malformed;
use warren_proto::slot::reply::{BODY_LEN, ERRNO, INLINE, INLINE_MAX, PAYLOAD_LEN, SEQ};
use warren_proto::slot::{AREA, LINE, LINES, REPLY_AREAS, WORDS, cell_segment_len, closed_at};

use crate::client::{ClientReader, ClientWriter, PREFETCH_MAX};
use crate::map::{ReadMap, WriteMap};
use crate::memory::{Load, Store, Waited};
use crate::segment::{SegmentError, SegmentKind, check, header, stamp};

/// Polls of the word between two reads of the clock.
const LOOKS_PER_CLOCK: u32 = 16;

fn line(slot: SlotNo, slots: usize) -> usize {
    assert!(usize::from(slot.0) < slots, "{slot:?} of {slots}");
    LINES + usize::from(slot.0) * LINE
}

fn area(slot: SlotNo) -> usize {
    REPLY_AREAS + usize::from(slot.0) * AREA
}

fn payload(slot: SlotNo, offset: usize, len: usize) -> usize {
    assert!(offset <= PAYLOAD_MAX && len <= PAYLOAD_MAX - offset, "payload {offset}+{len}");
    area(slot) + BODY_MAX + offset
}

fn word_at(word: u32) -> usize {
    assert!((word as usize) < LEASE_WORDS, "lease word {word}");
    WORDS + word as usize * 8
}

/// The contents of a reply besides its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyHeader {
    pub errno: Option<Errno>,
    /// Bytes in the reply's payload lane.
    pub payload_len: u32,
}

/// The cell's side.
pub struct ReplyWriter<W = WriteMap> {
    memory: W,
    slots: usize,
    inherited: bool,
}

impl<W: Store> ReplyWriter<W> {
    /// Opens a segment of at least `cell_segment_len(slots)` bytes. Replies and lease words of a
    /// predecessor stay.
    pub fn new(memory: W, slots: usize, cell: CellId, epoch: Epoch) -> Result<Self, SegmentError> {
        assert!((1..=SLOTS_MAX).contains(&slots), "{slots} slots");
        let needed = cell_segment_len(slots);
        if memory.size() < needed {
            return Err(SegmentError::TooShort { len: memory.size() as u64, needed });
        }
        let inherited = check(&memory, SegmentKind::Replies, needed).is_ok();
        stamp(&memory, SegmentKind::Replies, slots as u32, u32::from(cell.0), epoch.0);
        Ok(Self { memory, slots, inherited })
    }

    /// Whether a predecessor had opened the segment.
    pub fn is_inherited(&self) -> bool {
        self.inherited
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Fills `offset..` of the slot's payload lane. Must precede the reply.
    pub fn write_payload(&self, slot: SlotNo, offset: usize, bytes: &[u8]) {
        line(slot, self.slots);
        self.memory.copy_in(payload(slot, offset, bytes.len()), bytes);
    }

    /// Zeroes `len` bytes of the slot's payload lane.
    pub fn zero_payload(&self, slot: SlotNo, offset: usize, len: usize) {
        line(slot, self.slots);
        self.memory.zero(payload(slot, offset, len), len);
    }

    /// Answers request `seq` of the slot, and wakes the client if it sleeps.
    pub fn reply<R: Load>(
        &self,
        client: &ClientReader<R>,
        slot: SlotNo,
        seq: u32,
        header: ReplyHeader,
        body: &[u8],
    ) {
        self.publish(slot, seq, header, body);
        W::fence();
        if client.parked(slot) {
            self.memory.wake32(line(slot, self.slots) + SEQ);
        }
    }

    fn publish(&self, slot: SlotNo, seq: u32, header: ReplyHeader, body: &[u8]) {
        assert!(body.len() <= BODY_MAX && header.payload_len as usize <= PAYLOAD_MAX);
        let line = line(slot, self.slots);
        let memory = &self.memory;
        let body_at = if body.len() <= INLINE_MAX { line + INLINE } else { area(slot) };
        memory.copy_in(body_at, body);
        memory.store32(line + ERRNO, header.errno.map_or(0, |e| e.raw() as u32), Relaxed);
        memory.store32(line + BODY_LEN, body.len() as u32, Relaxed);
        memory.store32(line + PAYLOAD_LEN, header.payload_len, Relaxed);
        memory.store32(line + SEQ, seq, Release);
    }

    /// The last request that was answered in the slot. A successor starts from it.
    pub fn last_seq(&self, slot: SlotNo) -> u32 {
        self.memory.load32(line(slot, self.slots) + SEQ, Relaxed)
    }

    /// Wakes clients that sleep though their answer is there: the predecessor died before it could.
    pub fn wake_parked<R: Load>(&self, client: &ClientReader<R>) {
        for slot in (0..self.slots as u16).map(SlotNo) {
            if client.parked(slot) {
                self.memory.wake32(line(slot, self.slots) + SEQ);
            }
        }
    }

    /// Stores a lease word; 0 revokes.
    pub fn store_word(&self, word: u32, stamp: u64) {
        self.memory.store64(word_at(word), stamp, Release);
    }

    /// All kept handles of the inode are closed.
    pub fn mark_closed(&self, ino: Ino) {
        self.memory.store64(closed_at(ino), ino.0, Release);
    }

    /// Revokes everything that a predecessor granted. It may have marked an inode as closed and not
    /// logged that, so these marks go too.
    pub fn clear_words(&self) {
        for at in (WORDS..REPLY_AREAS).step_by(8) {
            // Loading first does not allocate pages that were never touched.
            if self.memory.load64(at, Relaxed) != 0 {
                self.memory.store64(at, 0, Release);
            }
        }
    }
}

/// How a wait for a reply ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOutcome {
    /// [`ReplyReader::take`] will return it.
    Answered,
    /// The deadline passed. The cell may be dead, or slow.
    TimedOut,
    /// A signal handler ran (without `SA_RESTART`).
    Interrupted,
}

/// The client's side.
pub struct ReplyReader<R = ReadMap> {
    memory: R,
    slots: usize,
}

impl<R: Load> ReplyReader<R> {
    pub fn new(memory: R, slots: usize) -> Result<Self, SegmentError> {
        assert!((1..=SLOTS_MAX).contains(&slots), "{slots} slots");
        check(&memory, SegmentKind::Replies, cell_segment_len(slots))?;
        Ok(Self { memory, slots })
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The epoch of the cell that writes now.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.memory.load32(header::EPOCH, Relaxed))
    }

    /// Whether request `seq` of the slot is answered.
    #[inline]
    pub fn answered(&self, slot: SlotNo, seq: u32) -> bool {
        self.memory.load32(line(slot, self.slots) + SEQ, Acquire) == seq
    }

    /// The answer to request `seq`, with its body copied to `body`; `None` if there is none yet.
    pub fn take(
        &self,
        slot: SlotNo,
        seq: u32,
        body: &mut Vec<u8>,
    ) -> Result<Option<ReplyHeader>, Malformed> {
        if !self.answered(slot, seq) {
            return Ok(None);
        }
        let line = line(slot, self.slots);
        let memory = &self.memory;
        let errno = match memory.load32(line + ERRNO, Relaxed) as i32 {
            0 => None,
            raw => Some(Errno::from_raw(raw).ok_or(Malformed::new("no errno"))?),
        };
        let payload_len = memory.load32(line + PAYLOAD_LEN, Relaxed);
        let body_len = memory.load32(line + BODY_LEN, Relaxed) as usize;
        if payload_len as usize > PAYLOAD_MAX || body_len > BODY_MAX {
            return Err(Malformed::new("reply longer than its lane"));
        }
        // It arrives while the answer is parsed.
        let soon = (payload_len as usize).min(PREFETCH_MAX);
        memory.prefetch(payload(slot, 0, soon), soon);
        body.clear();
        body.resize(body_len, 0);
        let body_at = if body_len <= INLINE_MAX { line + INLINE } else { area(slot) };
        memory.copy_out(body_at, body);
        Ok(Some(ReplyHeader { errno, payload_len }))
    }

    /// Copies `offset..` of the reply's payload lane.
    pub fn copy_payload(&self, slot: SlotNo, offset: usize, into: &mut [u8]) {
        line(slot, self.slots);
        self.memory.copy_out(payload(slot, offset, into.len()), into);
    }

    /// The stamp in the lease word. A client may use a copy of a reply if the word holds the copy's
    /// stamp both just before and just after the use.
    #[inline]
    pub fn load_word(&self, word: u32) -> u64 {
        self.memory.load64(word_at(word), Acquire)
    }

    /// Whether the cell has closed all handles of the inode that the client had kept.
    pub fn is_closed(&self, ino: Ino) -> bool {
        self.memory.load64(closed_at(ino), Acquire) == ino.0
    }

    /// Waits for the answer to request `seq`: spins for `spin`, then sleeps until `deadline`.
    pub fn wait<W: Store>(
        &self,
        requests: &ClientWriter<W>,
        slot: SlotNo,
        seq: u32,
        spin: Duration,
        deadline: Option<Instant>,
    ) -> WaitOutcome {
        if self.spin(slot, seq, spin) {
            return WaitOutcome::Answered;
        }
        requests.set_parked(slot, true);
        let outcome = self.sleep(slot, seq, deadline);
        requests.set_parked(slot, false);
        outcome
    }

    /// Polls for the answer to request `seq` during `spin`. Returns whether it has arrived. The
    /// clock is not read after its arrival.
    pub fn spin(&self, slot: SlotNo, seq: u32, spin: Duration) -> bool {
        if self.answered(slot, seq) {
            return true;
        }
        if spin.is_zero() {
            return false;
        }
        let start = Instant::now();
        while start.elapsed() < spin {
            for _ in 0..LOOKS_PER_CLOCK {
                R::pause();
                if self.answered(slot, seq) {
                    return true;
                }
            }
        }
        false
    }

    /// `parked` must be set.
    fn sleep(&self, slot: SlotNo, seq: u32, deadline: Option<Instant>) -> WaitOutcome {
        let word = line(slot, self.slots) + SEQ;
        R::fence();
        loop {
            let current = self.memory.load32(word, Acquire);
            if current == seq {
                return WaitOutcome::Answered;
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return WaitOutcome::TimedOut;
            }
            match self.memory.wait32(word, current, left) {
                Waited::Woken | Waited::TimedOut => {}
                Waited::Interrupted if self.answered(slot, seq) => return WaitOutcome::Answered,
                Waited::Interrupted => return WaitOutcome::Interrupted,
            }
        }
    }
}

impl ReplyReader {
    /// The slot's payload lane, `PAYLOAD_MAX` bytes, for a system call to read.
    pub fn payload_raw(&self, slot: SlotNo) -> *const u8 {
        line(slot, self.slots);
        self.memory.raw(payload(slot, 0, PAYLOAD_MAX), PAYLOAD_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use warren_proto::RequestHeader;
    use warren_proto::slot::client_segment_len;

    use super::*;
    use crate::segment::{Segment, map_read_only};

    const SLOTS: usize = 2;
    const SLOT: SlotNo = SlotNo(1);
    const OK: ReplyHeader = ReplyHeader { errno: None, payload_len: 0 };

    struct Pair {
        requests: ClientWriter,
        client: ClientReader,
        replies: ReplyWriter,
        reader: ReplyReader,
        raw: WriteMap,
    }

    fn pair() -> Pair {
        let out = Segment::create("warren-test", client_segment_len(SLOTS)).unwrap();
        let back = Segment::create("warren-test", cell_segment_len(SLOTS)).unwrap();
        let requests = ClientWriter::new(out.map().clone(), SLOTS).unwrap();
        let replies = ReplyWriter::new(back.map().clone(), SLOTS, CellId(3), Epoch(5)).unwrap();
        let client = ClientReader::new(map_read_only(out.fd()).unwrap(), SLOTS).unwrap();
        let reader = ReplyReader::new(map_read_only(back.fd()).unwrap(), SLOTS).unwrap();
        Pair { requests, client, replies, reader, raw: back.map().clone() }
    }

    #[test]
    fn replies_of_every_size_arrive() {
        let p = pair();
        let mut body = Vec::new();
        for (i, len) in [0, INLINE_MAX, INLINE_MAX + 1, BODY_MAX].into_iter().enumerate() {
            let sent: Vec<u8> = (0..len).map(|b| (b * 3 + i) as u8).collect();
            let seq = i as u32 + 1;
            let header = ReplyHeader { errno: Errno::from_raw(i as i32), payload_len: 7 };
            assert_eq!(p.reader.take(SLOT, seq, &mut body).unwrap(), None);
            p.replies.reply(&p.client, SLOT, seq, header, &sent);
            assert_eq!(p.reader.take(SLOT, seq, &mut body).unwrap(), Some(header));
            assert_eq!(body, sent);
        }
        assert_eq!(p.reader.epoch(), Epoch(5));
    }

    #[test]
    fn a_faulty_cell_is_an_error() {
        let p = pair();
        p.replies.reply(&p.client, SLOT, 1, OK, b"");
        let line = LINES + LINE;
        for (word, bad) in [(ERRNO, -1i32 as u32), (BODY_LEN, u32::MAX), (PAYLOAD_LEN, 1 << 21)] {
            let good = p.raw.load32(line + word, Relaxed);
            p.raw.store32(line + word, bad, Relaxed);
            assert!(p.reader.take(SLOT, 1, &mut Vec::new()).is_err());
            p.raw.store32(line + word, good, Relaxed);
        }
        assert_eq!(p.reader.take(SLOT, 1, &mut Vec::new()), Ok(Some(OK)));
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_unparks() {
        let p = pair();
        let deadline = Some(Instant::now() + Duration::from_millis(20));
        let outcome = p.reader.wait(&p.requests, SLOT, 1, Duration::ZERO, deadline);
        assert_eq!(outcome, WaitOutcome::TimedOut);
        assert!(Some(Instant::now()) >= deadline);
        assert!(!p.client.parked(SLOT));
    }

    /// A sleeping and a spinning client, many times: no round trip is lost.
    #[test]
    fn round_trips_between_threads() {
        const TRIPS: u32 = 2_000;
        let p = pair();
        thread::scope(|scope| {
            scope.spawn(|| serve(&p, TRIPS));
            let mut body = Vec::new();
            for seq in 1..=TRIPS {
                p.requests.submit(
                    CellId(3),
                    SLOT,
                    &RequestHeader { seq, ..Default::default() },
                    &seq.to_le_bytes(),
                );
                p.requests.ring(CellId(3), SLOT);
                let spin = if seq % 2 == 0 { Duration::from_micros(20) } else { Duration::ZERO };
                let deadline = Some(Instant::now() + Duration::from_secs(20));
                let outcome = p.reader.wait(&p.requests, SLOT, seq, spin, deadline);
                assert_eq!(outcome, WaitOutcome::Answered);
                assert_eq!(p.reader.take(SLOT, seq, &mut body), Ok(Some(OK)));
                assert_eq!(body, seq.to_le_bytes());
            }
        });
    }

    fn serve(p: &Pair, trips: u32) {
        let (mut seen, mut last, mut body) = (0, 0, Vec::new());
        while last < trips {
            if p.client.rung(CellId(3), &mut seen) == 0 {
                thread::yield_now();
                continue;
            }
            if let Some(header) = p.client.take(CellId(3), SLOT, last, &mut body).unwrap() {
                last = header.seq;
                p.replies.reply(&p.client, SLOT, last, OK, &body);
            }
        }
    }

    #[test]
    fn a_successor_clears_the_words_and_keeps_the_replies() {
        let p = pair();
        p.replies.store_word(0, 11);
        p.replies.store_word(LEASE_WORDS as u32 - 1, 12);
        p.replies.reply(&p.client, SLOT, 4, OK, b"kept");
        assert_eq!(p.reader.load_word(LEASE_WORDS as u32 - 1), 12);
        let next = ReplyWriter::new(p.raw.clone(), SLOTS, CellId(3), Epoch(6)).unwrap();
        next.clear_words();
        assert_eq!((p.reader.load_word(0), p.reader.load_word(LEASE_WORDS as u32 - 1)), (0, 0));
        assert_eq!((next.last_seq(SLOT), p.reader.epoch()), (4, Epoch(6)));
    }

    #[test]
    fn the_last_lease_word_does_not_reach_the_areas() {
        assert!(word_at(LEASE_WORDS as u32 - 1) + 8 <= area(SlotNo(0)));
    }

    #[test]
    fn payloads_and_zeroes_arrive() {
        let p = pair();
        p.replies.write_payload(SLOT, 10, b"0123456789");
        p.replies.zero_payload(SLOT, 12, 3);
        let mut copy = [0; 10];
        p.reader.copy_payload(SLOT, 10, &mut copy);
        assert_eq!(&copy, b"01\0\0\x0056789");
    }
}
