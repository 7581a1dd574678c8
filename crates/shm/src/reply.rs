//! Replies and lease words: the cell-to-client segment, from both sides. Layout:
//! [`warren_proto::slot`].
//!
//! Order of a reply: payload, body, line, `seq` (release), full fence, load the request line's
//! `parked`; if set, wake. Order of a wait: spin on `seq`; then `parked` = 1, full fence, load
//! `seq`, sleep while it is the old one. One of the two fences comes first: either the cell sees
//! that the client is parked, or the client sees the reply. So no wake-up is lost, and an
//! unnecessary one costs no system call.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use warren_base::limits::BODY_MAX;
use warren_base::{CellId, Epoch, Errno, Ino, Instant, SlotNo};
use warren_proto::Malformed;
use warren_proto::slot::reply::{BODY_LEN, ERRNO, INLINE, INLINE_MAX, PAYLOAD_LEN, SEQ};
use warren_proto::slot::{LINE, LINES, Shape, WATCHED, WORDS};

use crate::client::{ClientReader, ClientWriter, PREFETCH_MAX};
use crate::clock::now;
use crate::map::{ReadMap, Region, WriteMap};
use crate::memory::{Load, Store, Waited};
use crate::processor::Processor;
use crate::segment::{SegmentError, SegmentKind, check, header, stamp};

/// Polls of the word between two reads of the clock.
const LOOKS_PER_CLOCK: u32 = 16;

fn line(slot: SlotNo, shape: Shape) -> usize {
    assert!(usize::from(slot.0) < shape.slots(), "{slot:?} of {shape:?}");
    LINES + usize::from(slot.0) * LINE
}

fn payload(slot: SlotNo, shape: Shape, offset: usize, len: usize) -> usize {
    let lane = shape.payload();
    assert!(offset <= lane && len <= lane - offset, "payload {offset}+{len} of {lane}");
    shape.reply_area(slot) + BODY_MAX + offset
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
    pub(crate) memory: W,
    shape: Shape,
    inherited: bool,
}

impl<W: Store> ReplyWriter<W> {
    /// Opens a segment that is long enough for the shape. Replies and lease words of a predecessor
    /// stay. The client's doorbell is not watched yet, whatever a predecessor did.
    pub fn new(memory: W, shape: Shape, cell: CellId, epoch: Epoch) -> Result<Self, SegmentError> {
        let needed = shape.cell_segment_len();
        if memory.size() < needed {
            return Err(SegmentError::TooShort { len: memory.size() as u64, needed });
        }
        let inherited = check(&memory, SegmentKind::Replies, needed).is_ok();
        memory.store32(WATCHED, 0, Relaxed);
        stamp(&memory, SegmentKind::Replies, shape.slots() as u32, u32::from(cell.0), epoch.0);
        Ok(Self { memory, shape, inherited })
    }

    /// Whether a predecessor had opened the segment.
    pub fn is_inherited(&self) -> bool {
        self.inherited
    }

    /// The cell looks at the client's doorbell from now on.
    pub fn watch(&self) {
        self.memory.store32(WATCHED, 1, Release);
    }

    /// The client must also ring the cell's bell from now on. The caller looks at the doorbell once
    /// more after this.
    pub fn unwatch(&self) {
        self.memory.store32(WATCHED, 0, Release);
        W::fence();
    }

    /// Fills `offset..` of the slot's payload lane. Must precede the reply.
    pub fn write_payload(&self, slot: SlotNo, offset: usize, bytes: &[u8]) {
        line(slot, self.shape);
        self.memory.copy_in(payload(slot, self.shape, offset, bytes.len()), bytes);
    }

    /// Zeroes `len` bytes of the slot's payload lane.
    pub fn zero_payload(&self, slot: SlotNo, offset: usize, len: usize) {
        line(slot, self.shape);
        self.memory.zero(payload(slot, self.shape, offset, len), len);
    }

    /// Answers request `seq` of the slot, and wakes the client if it sleeps. Returns where the
    /// client's thread was when it sent the request or fell asleep.
    pub fn reply<R: Load>(
        &self,
        client: &ClientReader<R>,
        slot: SlotNo,
        seq: u32,
        header: ReplyHeader,
        body: &[u8],
    ) -> Processor {
        self.publish(slot, seq, header, body);
        W::fence();
        let thread = client.thread(slot);
        if thread.sleeps {
            self.memory.wake32(line(slot, self.shape) + SEQ);
        }
        thread.at
    }

    fn publish(&self, slot: SlotNo, seq: u32, header: ReplyHeader, body: &[u8]) {
        assert!(body.len() <= BODY_MAX && header.payload_len as usize <= self.shape.payload());
        let line = line(slot, self.shape);
        let memory = &self.memory;
        let body_at =
            if body.len() <= INLINE_MAX { line + INLINE } else { self.shape.reply_area(slot) };
        memory.copy_in(body_at, body);
        memory.store32(line + ERRNO, header.errno.map_or(0, |e| e.raw() as u32), Relaxed);
        memory.store32(line + BODY_LEN, body.len() as u32, Relaxed);
        memory.store32(line + PAYLOAD_LEN, header.payload_len, Relaxed);
        memory.store32(line + SEQ, seq, Release);
    }

    /// The last request that was answered in the slot. A successor starts from it.
    pub fn last_seq(&self, slot: SlotNo) -> u32 {
        self.memory.load32(line(slot, self.shape) + SEQ, Relaxed)
    }

    /// Wakes clients that sleep though their answer is there: the predecessor died before it could.
    pub fn wake_parked<R: Load>(&self, client: &ClientReader<R>) {
        for slot in (0..self.shape.slots() as u16).map(SlotNo) {
            if client.thread(slot).sleeps {
                self.memory.wake32(line(slot, self.shape) + SEQ);
            }
        }
    }

    /// Stores a lease word; 0 revokes.
    pub fn store_word(&self, word: u32, stamp: u64) {
        self.memory.store64(self.shape.word_at(word), stamp, Release);
    }

    /// All kept handles of the inode are closed.
    pub fn mark_closed(&self, ino: Ino) {
        self.memory.store64(self.shape.closed_at(ino), ino.0, Release);
    }

    /// Revokes everything that a predecessor granted. It may have marked an inode as closed and not
    /// logged that, so these marks go too. The memory of the tables is given back: to look at words
    /// that were never touched would allocate it.
    pub fn clear_words(&self) {
        self.memory.discard(WORDS, self.shape.words_end() - WORDS);
    }
}

/// The end of a wait for a reply.
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
    pub(crate) memory: R,
    shape: Shape,
}

impl<R: Load> ReplyReader<R> {
    pub fn new(memory: R, shape: Shape) -> Result<Self, SegmentError> {
        check(&memory, SegmentKind::Replies, shape.cell_segment_len())?;
        Ok(Self { memory, shape })
    }

    /// Whether the cell looks at the client's doorbell. Must follow the ring of the doorbell and a
    /// full fence.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.memory.load32(WATCHED, Relaxed) != 0
    }

    /// The epoch of the cell that writes now.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.memory.load32(header::EPOCH, Relaxed))
    }

    /// Whether request `seq` of the slot is answered.
    #[inline]
    pub fn answered(&self, slot: SlotNo, seq: u32) -> bool {
        self.memory.load32(line(slot, self.shape) + SEQ, Acquire) == seq
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
        let line = line(slot, self.shape);
        let memory = &self.memory;
        let errno = match memory.load32(line + ERRNO, Relaxed) as i32 {
            0 => None,
            raw => Some(Errno::from_raw(raw).ok_or(Malformed::new("no errno"))?),
        };
        let payload_len = memory.load32(line + PAYLOAD_LEN, Relaxed);
        let body_len = memory.load32(line + BODY_LEN, Relaxed) as usize;
        if payload_len as usize > self.shape.payload() || body_len > BODY_MAX {
            return Err(Malformed::new("reply longer than its lane"));
        }
        // It arrives while the answer is parsed.
        let soon = (payload_len as usize).min(PREFETCH_MAX);
        memory.prefetch(payload(slot, self.shape, 0, soon), soon);
        body.clear();
        body.resize(body_len, 0);
        let body_at =
            if body_len <= INLINE_MAX { line + INLINE } else { self.shape.reply_area(slot) };
        memory.copy_out(body_at, body);
        Ok(Some(ReplyHeader { errno, payload_len }))
    }

    /// Copies `offset..` of the reply's payload lane.
    pub fn copy_payload(&self, slot: SlotNo, offset: usize, into: &mut [u8]) {
        line(slot, self.shape);
        self.memory.copy_out(payload(slot, self.shape, offset, into.len()), into);
    }

    /// The stamp in the lease word. A client may use a copy of a reply if the word holds the copy's
    /// stamp both just before and just after the use.
    #[inline]
    pub fn load_word(&self, word: u32) -> u64 {
        self.memory.load64(self.shape.word_at(word), Acquire)
    }

    /// Whether the cell has closed all handles of the inode that the client had kept.
    pub fn is_closed(&self, ino: Ino) -> bool {
        self.memory.load64(self.shape.closed_at(ino), Acquire) == ino.0
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
        let (outcome, is_late) = self.sleep(slot, seq, deadline);
        requests.set_parked(slot, false);
        if is_late {
            requests.count_late(slot);
        }
        outcome
    }

    /// Polls for the answer to request `seq` during `spin`. Returns whether it has arrived. The
    /// clock is not read after its arrival.
    pub fn spin(&self, slot: SlotNo, seq: u32, spin: Duration) -> bool {
        Self::spin_for(spin, || self.answered(slot, seq))
    }

    /// Polls during `spin`. Returns whether it has come.
    pub(crate) fn spin_for(spin: Duration, is_there: impl Fn() -> bool) -> bool {
        if is_there() {
            return true;
        }
        if spin.is_zero() {
            return false;
        }
        let start = now();
        while now() - start < spin {
            for _ in 0..LOOKS_PER_CLOCK {
                R::pause();
                if is_there() {
                    return true;
                }
            }
        }
        false
    }

    /// `parked` must be set. Also returns whether the answer was there when the time was over: then
    /// the cell has not woken this thread, or was about to.
    fn sleep(&self, slot: SlotNo, seq: u32, deadline: Option<Instant>) -> (WaitOutcome, bool) {
        let word = line(slot, self.shape) + SEQ;
        let mut is_late = false;
        R::fence();
        loop {
            let current = self.memory.load32(word, Acquire);
            if current == seq {
                return (WaitOutcome::Answered, is_late);
            }
            let left = deadline.map(|deadline| deadline - now());
            if left.is_some_and(|left| left.is_zero()) {
                return (WaitOutcome::TimedOut, false);
            }
            match self.memory.wait32(word, current, left) {
                Waited::Woken => is_late = false,
                Waited::TimedOut => is_late = true,
                Waited::Interrupted if self.answered(slot, seq) => {
                    return (WaitOutcome::Answered, false);
                }
                Waited::Interrupted => return (WaitOutcome::Interrupted, false),
            }
        }
    }
}

impl ReplyReader {
    pub fn region(&self) -> Region {
        self.memory.region()
    }

    /// The slot's payload lane, as long as the shape says, for a system call to read.
    pub fn payload_raw(&self, slot: SlotNo) -> *const u8 {
        line(slot, self.shape);
        let lane = self.shape.payload();
        self.memory.raw(payload(slot, self.shape, 0, lane), lane)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use warren_base::limits::LEASE_WORDS;
    use warren_proto::RequestHeader;
    use warren_proto::slot::LaneSize;

    use super::*;
    use crate::client::Doorbell;
    use crate::segment::{Segment, map_read_only};

    const SLOTS: usize = 2;

    fn shape() -> Shape {
        Shape::large(SLOTS)
    }

    const SLOT: SlotNo = SlotNo(1);
    const OK: ReplyHeader = ReplyHeader { errno: None, payload_len: 0 };

    struct Pair {
        requests: ClientWriter,
        client: ClientReader,
        replies: ReplyWriter,
        reader: ReplyReader,
        raw: WriteMap,
        back: Segment,
    }

    fn pair() -> Pair {
        let out = Segment::create("warren-test", shape().client_segment_len(0)).unwrap();
        let back = Segment::create("warren-test", shape().cell_segment_len()).unwrap();
        let requests = ClientWriter::new(out.map().clone(), shape()).unwrap();
        let replies = ReplyWriter::new(back.map().clone(), shape(), CellId(3), Epoch(5)).unwrap();
        let client = ClientReader::new(map_read_only(out.fd()).unwrap(), shape()).unwrap();
        let reader = ReplyReader::new(map_read_only(back.fd()).unwrap(), shape()).unwrap();
        Pair { requests, client, replies, reader, raw: back.map().clone(), back }
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
        let deadline = Some(now() + Duration::from_millis(20));
        let outcome = p.reader.wait(&p.requests, SLOT, 1, Duration::ZERO, deadline);
        assert_eq!(outcome, WaitOutcome::TimedOut);
        assert!(Some(now()) >= deadline);
        assert!(!p.client.thread(SLOT).sleeps);
    }

    /// Memory in which each sleep lasts to its end, or until a wake-up. The answer comes meanwhile.
    struct Sleepy<'a> {
        pair: &'a Pair,
        memory: ReadMap,
        ends: Waited,
    }

    impl Load for Sleepy<'_> {
        fn size(&self) -> usize {
            self.memory.size()
        }

        fn load32(&self, at: usize, order: core::sync::atomic::Ordering) -> u32 {
            self.memory.load32(at, order)
        }

        fn load64(&self, at: usize, order: core::sync::atomic::Ordering) -> u64 {
            self.memory.load64(at, order)
        }

        fn copy_out(&self, at: usize, into: &mut [u8]) {
            self.memory.copy_out(at, into);
        }

        fn wait32(&self, _: usize, _: u32, _: Option<Duration>) -> Waited {
            self.pair.replies.publish(SLOT, 1, OK, b"");
            self.ends
        }

        fn fence() {
            ReadMap::fence();
        }

        fn pause() {
            ReadMap::pause();
        }
    }

    #[test]
    fn an_answer_that_a_time_out_finds_is_counted_and_one_that_wakes_is_not() {
        for (ends, late) in [(Waited::Woken, 0), (Waited::Interrupted, 0), (Waited::TimedOut, 1)] {
            let p = pair();
            let header = RequestHeader { seq: 1, ..Default::default() };
            p.requests.submit(CellId(3), SLOT, &header, b"");
            let memory = map_read_only(p.back.fd()).unwrap();
            let reader = ReplyReader::new(Sleepy { pair: &p, memory, ends }, shape()).unwrap();
            let deadline = Some(now() + Duration::from_secs(20));
            let outcome = reader.wait(&p.requests, SLOT, 1, Duration::ZERO, deadline);
            assert_eq!(outcome, WaitOutcome::Answered);
            assert_eq!((p.client.late(CellId(3)), p.client.late(CellId(2))), (late, 0));
        }
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
                let deadline = Some(now() + Duration::from_secs(20));
                let outcome = p.reader.wait(&p.requests, SLOT, seq, spin, deadline);
                assert_eq!(outcome, WaitOutcome::Answered);
                assert_eq!(p.reader.take(SLOT, seq, &mut body), Ok(Some(OK)));
                assert_eq!(body, seq.to_le_bytes());
            }
        });
    }

    fn serve(p: &Pair, trips: u32) {
        let (mut seen, mut last, mut body) = (Doorbell::default(), 0, Vec::new());
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
        let next = ReplyWriter::new(p.raw.clone(), shape(), CellId(3), Epoch(6)).unwrap();
        next.clear_words();
        assert_eq!((p.reader.load_word(0), p.reader.load_word(LEASE_WORDS as u32 - 1)), (0, 0));
        assert_eq!((next.last_seq(SLOT), p.reader.epoch()), (4, Epoch(6)));
    }

    #[test]
    fn a_word_beyond_a_small_table_is_one_within() {
        let shape = Shape::new(1, LaneSize::Small).expect("legal");
        let back = Segment::create("warren-test", shape.cell_segment_len()).unwrap();
        let replies = ReplyWriter::new(back.map().clone(), shape, CellId(0), Epoch(1)).unwrap();
        let reader = ReplyReader::new(map_read_only(back.fd()).unwrap(), shape).unwrap();
        let words = LaneSize::Small.words() as u32;
        for word in [0, words - 1, LEASE_WORDS as u32 - 1, u32::MAX] {
            replies.store_word(word, 7 + u64::from(word));
            assert_eq!(reader.load_word(word), 7 + u64::from(word));
            replies.mark_closed(Ino(1 + u64::from(word)));
        }
        assert_eq!(reader.load_word(words - 1), 7 + u64::from(u32::MAX), "the last one has it");
        assert_eq!(replies.last_seq(SlotNo(0)), 0, "nothing else was written");
    }

    #[test]
    fn cleared_words_take_no_memory() {
        let p = pair();
        let blocks = || rustix::fs::fstat(p.back.fd()).expect("stat").st_blocks;
        let before = blocks();
        for word in (0..LEASE_WORDS as u32).step_by(512) {
            p.replies.store_word(word, 1);
        }
        p.replies.mark_closed(Ino(9));
        assert!(blocks() >= before + 128 * 8, "a page each");
        p.replies.clear_words();
        assert_eq!(blocks(), before);
        assert_eq!((p.reader.load_word(512), p.reader.is_closed(Ino(9))), (0, false));
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
