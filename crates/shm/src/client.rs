//! Requests: the client segment, from both sides. Layout: [`warren_proto::slot`].
//!
//! Order of a submission: body, line, the word with `seq` (release), then the cell's doorbell bit
//! is flipped (release). Order of a take: doorbell (acquire), the word with `seq` (acquire), every
//! other word of the line once, checks, body once. The client may be hostile and rewrite all of it
//! meanwhile. Then the cell reads some mixture of what the client wrote, which is still only the
//! client's own request.
//!
//! A bit rings by *changing*, so no second writer has to clear it. It may ring for a request that
//! was taken already (by a successor that looked at all slots), or whose slot has since been used
//! for another cell: then `take` returns `None`. For that, the word with a request's number also
//! names its cell.
//!
//! A process that continues a client (a front after its predecessor's death) cannot know which
//! changes the cell has seen, and its own change may undo one that was not. So it first counts
//! itself in the doorbell's line, which rings for all slots at once.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

use warren_base::limits::{BODY_MAX, CELLS_MAX};
use warren_base::{CellId, Ino, MapVersion, SlotNo};
use warren_proto::slot::request::{
    GID, INLINE, INLINE_MAX, MAP_VERSION, PAYLOAD_LEN, POSTED, THREAD, UID,
};
use warren_proto::slot::{DOORBELLS, IDLE, IDLE_WAYS, LATE, LINE, LINES, Posted, STARTS, Shape};
use warren_proto::{Capabilities, Malformed, RequestHeader};

use crate::map::{ReadMap, Region, WriteMap};
use crate::memory::{Load, Store};
use crate::processor::Presence;
use crate::segment::{SegmentError, SegmentKind, check, stamp};

/// Bytes of a payload that are prefetched: about as many lines as a core can have in flight.
pub(crate) const PREFETCH_MAX: usize = 4096;

fn line(slot: SlotNo, shape: Shape) -> usize {
    assert!(usize::from(slot.0) < shape.slots(), "{slot:?} of {shape:?}");
    LINES + usize::from(slot.0) * LINE
}

fn doorbell(cell: CellId) -> usize {
    assert!(usize::from(cell.0) < CELLS_MAX, "{cell:?}");
    DOORBELLS + usize::from(cell.0) * LINE
}

fn posted(memory: &impl Load, line: usize, order: Ordering) -> Posted {
    Posted::unpack(memory.load64(line + POSTED, order))
}

fn payload(slot: SlotNo, shape: Shape, offset: usize, len: usize) -> usize {
    let lane = shape.payload();
    assert!(offset <= lane && len <= lane - offset, "payload {offset}+{len} of {lane}");
    shape.request_area(slot) + BODY_MAX + offset
}

/// The client's side. Threads share it; one thread at a time uses a slot.
pub struct ClientWriter<W = WriteMap> {
    pub(crate) memory: W,
    pub(crate) shape: Shape,
}

impl<W: Store> ClientWriter<W> {
    /// Opens a segment that is long enough for the shape. Requests that a predecessor (a front
    /// before its restart) left in it stay.
    pub fn new(memory: W, shape: Shape) -> Result<Self, SegmentError> {
        let needed = shape.client_segment_len(0);
        if memory.size() < needed {
            return Err(SegmentError::TooShort { len: memory.size() as u64, needed });
        }
        stamp(&memory, SegmentKind::Client, shape.slots() as u32, 0, 0);
        Ok(Self { memory, shape })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The number of the slot's last request. A front continues from it after a restart.
    pub fn last_seq(&self, slot: SlotNo) -> u32 {
        posted(&self.memory, line(slot, self.shape), Relaxed).seq
    }

    /// Marks the inode as idle: a cell may close the handles of it that the client has kept.
    /// Returns the inode that was marked in its place, if there was one.
    ///
    /// The caller must load the lease word of its handles after this.
    pub fn mark_idle(&self, ino: Ino) -> Option<Ino> {
        let free = self.find_mark(ino, ino).or_else(|| self.find_mark(ino, Ino(0)));
        // If all words of the line are in use, any of them will do.
        let any = || self.shape.idle_at(ino).nth(ino.0 as usize % IDLE_WAYS).expect("a way");
        let at = free.unwrap_or_else(any);
        let before = Ino(self.memory.load64(at, Relaxed));
        self.memory.store64(at, ino.0, Release);
        W::fence();
        Some(before).filter(|before| before.0 != 0 && *before != ino)
    }

    /// The client uses the inode again. The caller must load the lease word of its handles after
    /// this.
    pub fn mark_used(&self, ino: Ino) {
        if let Some(at) = self.find_mark(ino, ino) {
            self.memory.store64(at, 0, Release);
        }
        W::fence();
    }

    /// Writes one word for marks: for a client that has a word of its own for each inode.
    pub fn set_mark(&self, word: usize, ino: Option<Ino>) {
        let word = word & (self.shape.lanes().idle_words() - 1);
        self.memory.store64(IDLE + word * 8, ino.map_or(0, |ino| ino.0), Release);
        W::fence();
    }

    /// Where the line of `ino` marks this inode; 0 for a free word.
    fn find_mark(&self, ino: Ino, marked: Ino) -> Option<usize> {
        self.shape.idle_at(ino).find(|at| self.memory.load64(*at, Relaxed) == marked.0)
    }

    /// Fills `offset..` of the slot's payload lane. Must precede the submission.
    pub fn write_payload(&self, slot: SlotNo, offset: usize, bytes: &[u8]) {
        line(slot, self.shape);
        self.memory.copy_in(payload(slot, self.shape, offset, bytes.len()), bytes);
    }

    /// Prefetches, both at a time, the two cache lines that a submission to `cell` writes and that
    /// the cell has read.
    pub fn prepare(&self, cell: CellId, slot: SlotNo) {
        self.memory.prefetch_own(line(slot, self.shape));
        self.memory.prefetch_own(doorbell(cell));
    }

    /// Publishes a request for `cell`. `header.seq` differs from the slot's last one (it grows by
    /// one). The cell notices it only when its bell is rung.
    pub fn submit(&self, cell: CellId, slot: SlotNo, header: &RequestHeader, body: &[u8]) {
        assert!(body.len() <= BODY_MAX && header.payload_len as usize <= self.shape.payload());
        let line = line(slot, self.shape);
        let memory = &self.memory;
        let body_at =
            if body.len() <= INLINE_MAX { line + INLINE } else { self.shape.request_area(slot) };
        memory.copy_in(body_at, body);
        memory.store32(line + MAP_VERSION, header.map_version.0, Relaxed);
        memory.store32(line + UID, header.uid, Relaxed);
        memory.store32(line + GID, header.gid, Relaxed);
        memory.store32(line + PAYLOAD_LEN, header.payload_len, Relaxed);
        memory.store32(line + THREAD, Presence::of_this(false).pack(), Relaxed);
        let posted = Posted { seq: header.seq, cell: cell.0, body_len: body.len() as u16 };
        memory.store64(line + POSTED, posted.pack(), Release);
    }

    /// This process continues the client: all slots ring. It must precede its own rings, and
    /// [`crate::WakeFd`] must follow. Nothing else may ring meanwhile.
    pub fn ring_all(&self, cell: CellId) {
        let at = doorbell(cell) + STARTS;
        self.memory.store64(at, self.memory.load64(at, Relaxed).wrapping_add(1), Release);
    }

    /// Rings the cell's bell for the slot. If the cell may be asleep, [`crate::WakeFd`] must
    /// follow.
    pub fn ring(&self, cell: CellId, slot: SlotNo) {
        line(slot, self.shape);
        self.memory.xor64(doorbell(cell), 1 << slot.0, Release);
    }

    /// Announces that the slot's thread sleeps, or no longer.
    pub(crate) fn set_parked(&self, slot: SlotNo, parked: bool) {
        let word = Presence::of_this(parked).pack();
        self.memory.store32(line(slot, self.shape) + THREAD, word, Relaxed);
    }

    /// Counts an answer to the slot's request that a sleeping thread found by its own time-out: it
    /// was not woken.
    pub(crate) fn count_late(&self, slot: SlotNo) {
        let cell = CellId(posted(&self.memory, line(slot, self.shape), Relaxed).cell);
        self.memory.add64(doorbell(cell) + LATE, 1);
    }
}

impl ClientWriter {
    pub fn region(&self) -> Region {
        self.memory.region()
    }

    /// The slot's payload lane, as long as the shape says, to be filled by a system call.
    pub fn payload_raw(&self, slot: SlotNo) -> *mut u8 {
        line(slot, self.shape);
        let lane = self.shape.payload();
        self.memory.raw(payload(slot, self.shape, 0, lane), lane)
    }
}

/// A malformed request, with the number for its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable {
    pub seq: u32,
    pub why: Malformed,
}

/// The bits of a cell's doorbell, as the cell has seen them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Doorbell {
    slots: u64,
    starts: u64,
}

/// The cell's side. Nothing in the segment is trusted.
pub struct ClientReader<R = ReadMap> {
    pub(crate) memory: R,
    pub(crate) shape: Shape,
}

impl<R: Load> ClientReader<R> {
    /// Opens the segment of a client that was admitted with this shape.
    pub fn new(memory: R, shape: Shape) -> Result<Self, SegmentError> {
        check(&memory, SegmentKind::Client, shape.client_segment_len(0))?;
        Ok(Self { memory, shape })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether a slot has rung since `last_seen`.
    #[inline]
    pub fn has_rung(&self, cell: CellId, last_seen: Doorbell) -> bool {
        let at = doorbell(cell);
        self.memory.load64(at, Relaxed) != last_seen.slots
            || self.memory.load64(at + STARTS, Relaxed) != last_seen.starts
    }

    /// The slots that have rung since `last_seen`, as bits; updates `last_seen`. Bits beyond the
    /// client's slots are ignored.
    #[inline]
    pub fn rung(&self, cell: CellId, last_seen: &mut Doorbell) -> u64 {
        let at = doorbell(cell);
        // In this order: of a process that has rung for all slots, later rings are changes.
        let starts = self.memory.load64(at + STARTS, Acquire);
        let seen = Doorbell { slots: self.memory.load64(at, Acquire), starts };
        let before = core::mem::replace(last_seen, seen);
        let changed =
            if seen.starts == before.starts { seen.slots ^ before.slots } else { u64::MAX };
        let rung = changed & (u64::MAX >> (u64::BITS as usize - self.shape.slots()));
        if rung != 0 {
            self.memory.prefetch(line(SlotNo(rung.trailing_zeros() as u16), self.shape), LINE);
        }
        rung
    }

    /// Whether the slot has a request for `cell` that is not the one numbered `last_seq`.
    pub fn waits(&self, cell: CellId, slot: SlotNo, last_seq: u32) -> bool {
        let posted = posted(&self.memory, line(slot, self.shape), Acquire);
        posted.seq != last_seq && posted.cell == cell.0
    }

    /// Whether the client has marked the inode as idle. The caller must have cleared the client's
    /// lease word before this.
    pub fn is_idle(&self, ino: Ino) -> bool {
        R::fence();
        self.shape.idle_at(ino).any(|at| self.memory.load64(at, Acquire) == ino.0)
    }

    /// The user that the slot's request names, if the client is a front.
    pub fn uid(&self, slot: SlotNo) -> u32 {
        self.memory.load32(line(slot, self.shape) + UID, Relaxed)
    }

    /// The slot's request, with its body copied to `body`. `None` if it is still the one numbered
    /// `last_seq`, or is not for `cell`.
    pub fn take(
        &self,
        cell: CellId,
        slot: SlotNo,
        last_seq: u32,
        body: &mut Vec<u8>,
    ) -> Result<Option<RequestHeader>, Unreadable> {
        let line = line(slot, self.shape);
        let memory = &self.memory;
        let Posted { seq, cell: addressee, body_len } = posted(memory, line, Acquire);
        if seq == last_seq || addressee != cell.0 {
            return Ok(None);
        }
        let unreadable = |why| Err(Unreadable { seq, why: Malformed::new(why) });
        let header = RequestHeader {
            seq,
            map_version: MapVersion(memory.load32(line + MAP_VERSION, Relaxed)),
            uid: memory.load32(line + UID, Relaxed),
            gid: memory.load32(line + GID, Relaxed),
            payload_len: memory.load32(line + PAYLOAD_LEN, Relaxed),
            // They are in the body.
            capabilities: Capabilities::default(),
        };
        if header.payload_len as usize > self.shape.payload() {
            return unreadable("payload longer than its lane");
        }
        // It arrives while the request is checked.
        let soon = (header.payload_len as usize).min(PREFETCH_MAX);
        memory.prefetch(payload(slot, self.shape, 0, soon), soon);
        let body_len = usize::from(body_len);
        if body_len > BODY_MAX {
            return unreadable("body longer than its lane");
        }
        body.clear();
        body.resize(body_len, 0);
        let body_at =
            if body_len <= INLINE_MAX { line + INLINE } else { self.shape.request_area(slot) };
        memory.copy_out(body_at, body);
        Ok(Some(header))
    }

    /// Copies `offset..` of the slot's payload lane. The client may be changing it, so only the
    /// copy may be used.
    pub fn copy_payload(&self, slot: SlotNo, offset: usize, into: &mut [u8]) {
        line(slot, self.shape);
        self.memory.copy_out(payload(slot, self.shape, offset, into.len()), into);
    }

    /// Answers of the cell that the client's threads found by their own time-outs, as it says.
    pub fn late(&self, cell: CellId) -> u64 {
        self.memory.load64(doorbell(cell) + LATE, Relaxed)
    }

    /// Where the slot's thread is, and whether it sleeps.
    pub(crate) fn thread(&self, slot: SlotNo) -> Presence {
        Presence::unpack(self.memory.load32(line(slot, self.shape) + THREAD, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use warren_base::Rng;
    use warren_base::limits::PAYLOAD_MAX;
    use warren_proto::slot::LaneSize;

    use super::*;
    use crate::restless::Restless;
    use crate::segment::{Segment, map_read_only};

    const SLOTS: usize = 3;

    fn shape() -> Shape {
        Shape::large(SLOTS)
    }

    const CELL: CellId = CellId(2);

    fn pair() -> (ClientWriter, ClientReader, WriteMap) {
        let segment = Segment::create("warren-test", shape().client_segment_len(0)).unwrap();
        let writer = ClientWriter::new(segment.map().clone(), shape()).unwrap();
        let fd = segment.read_only_fd().unwrap();
        let reader = ClientReader::new(map_read_only(fd.as_fd()).unwrap(), shape()).unwrap();
        (writer, reader, segment.map().clone())
    }

    fn header(seq: u32) -> RequestHeader {
        let map_version = MapVersion(9);
        RequestHeader { seq, map_version, uid: 1, gid: 2, payload_len: 3, ..Default::default() }
    }

    #[test]
    fn as_many_inodes_of_one_line_are_idle_as_it_has_words() {
        let (writer, reader, _) = pair();
        let line = |ino: &Ino| shape().idle_at(*ino).next();
        let same: Vec<Ino> =
            (1..).map(Ino).filter(|ino| line(ino) == line(&Ino(1))).take(9).collect();
        let (all, last) = (&same[..IDLE_WAYS], same[IDLE_WAYS]);
        assert!(all.iter().all(|ino| writer.mark_idle(*ino).is_none()));
        assert!(all.iter().all(|ino| reader.is_idle(*ino)) && !reader.is_idle(last));
        assert_eq!(writer.mark_idle(all[3]), None, "it is marked already");
        let displaced = writer.mark_idle(last).expect("there is no room");
        let marked = same.iter().filter(|ino| reader.is_idle(**ino));
        assert!(marked.eq(same.iter().filter(|ino| **ino != displaced)));
        writer.mark_used(last);
        assert!(!reader.is_idle(last));
        assert_eq!(writer.mark_idle(displaced), None, "it has the free word");
    }

    #[test]
    fn bodies_of_every_size_arrive() {
        let (writer, reader, _) = pair();
        let mut body = Vec::new();
        for (i, len) in [0, 1, INLINE_MAX, INLINE_MAX + 1, 500, BODY_MAX].into_iter().enumerate() {
            let sent: Vec<u8> = (0..len).map(|b| (b + i) as u8).collect();
            let seq = i as u32 + 1;
            writer.submit(CELL, SlotNo(2), &header(seq), &sent);
            let taken = reader.take(CELL, SlotNo(2), seq - 1, &mut body).unwrap();
            assert_eq!(taken, Some(header(seq)));
            assert_eq!(body, sent);
            assert_eq!(reader.take(CELL, SlotNo(2), seq, &mut body).unwrap(), None);
        }
        assert_eq!(reader.take(CELL, SlotNo(1), 0, &mut body).unwrap(), None);
    }

    #[test]
    fn a_request_is_taken_only_by_the_cell_that_it_is_for() {
        let (writer, reader, _) = pair();
        let mut body = Vec::new();
        writer.submit(CellId(1), SlotNo(0), &header(7), b"body");
        // A successor of cell 0, whose last answer in the slot had another number.
        assert!(!reader.waits(CellId(0), SlotNo(0), 6));
        assert_eq!(reader.take(CellId(0), SlotNo(0), 6, &mut body), Ok(None));
        assert!(reader.waits(CellId(1), SlotNo(0), 6) && !reader.waits(CellId(1), SlotNo(0), 7));
        assert_eq!(reader.take(CellId(1), SlotNo(0), 6, &mut body), Ok(Some(header(7))));
    }

    #[test]
    fn a_bell_rings_once_for_its_slot_and_cell() {
        let (writer, reader, _) = pair();
        let mut seen = [Doorbell::default(); 2];
        writer.ring(CellId(1), SlotNo(0));
        writer.ring(CellId(1), SlotNo(2));
        assert_eq!(reader.rung(CellId(0), &mut seen[0]), 0);
        assert_eq!(reader.rung(CellId(1), &mut seen[1]), 0b101);
        assert_eq!(reader.rung(CellId(1), &mut seen[1]), 0);
        writer.ring(CellId(1), SlotNo(2));
        assert_eq!(reader.rung(CellId(1), &mut seen[1]), 0b100);
    }

    /// Its own ring undoes one of its predecessor's that the cell has not seen.
    #[test]
    fn a_successor_rings_for_all_slots_of_one_cell() {
        let (writer, reader, _) = pair();
        let mut seen = [Doorbell::default(); 2];
        writer.ring(CellId(1), SlotNo(2));
        writer.ring_all(CellId(1));
        writer.ring(CellId(1), SlotNo(2));
        assert!(reader.has_rung(CellId(1), seen[1]) && !reader.has_rung(CellId(0), seen[0]));
        assert_eq!(reader.rung(CellId(0), &mut seen[0]), 0);
        assert_eq!(reader.rung(CellId(1), &mut seen[1]), 0b111, "there are three slots");
        assert_eq!(reader.rung(CellId(1), &mut seen[1]), 0);
        writer.ring(CellId(1), SlotNo(0));
        assert_eq!(reader.rung(CellId(1), &mut seen[1]), 0b1);
    }

    #[test]
    fn payloads_arrive_up_to_their_end() {
        let (writer, reader, _) = pair();
        writer.write_payload(SlotNo(2), PAYLOAD_MAX - 5, b"fghij");
        writer.write_payload(SlotNo(2), PAYLOAD_MAX - 10, b"abcde");
        let mut copy = [0; 10];
        reader.copy_payload(SlotNo(2), PAYLOAD_MAX - 10, &mut copy);
        assert_eq!(&copy, b"abcdefghij");
    }

    #[test]
    fn a_small_lane_ends_where_the_next_slot_begins() {
        let shape = Shape::new(2, LaneSize::Small).expect("legal");
        let segment = Segment::create("warren-test", shape.client_segment_len(0)).unwrap();
        let writer = ClientWriter::new(segment.map().clone(), shape).unwrap();
        let reader = ClientReader::new(map_read_only(segment.fd()).unwrap(), shape).unwrap();
        let lane = LaneSize::Small.payload();
        for slot in [SlotNo(0), SlotNo(1)] {
            writer.write_payload(slot, 0, &vec![1 + slot.0 as u8; lane]);
        }
        let (mut copy, mut body) = (vec![0; lane], Vec::new());
        reader.copy_payload(SlotNo(0), 0, &mut copy);
        assert!(copy.iter().all(|&byte| byte == 1));
        let too_long = lane as u32 + 1;
        for (payload_len, is_sound) in [(too_long - 1, true), (too_long, false), (1 << 20, false)] {
            writer.submit(CELL, SlotNo(1), &RequestHeader { seq: 1, ..Default::default() }, b"");
            segment.map().store32(LINES + LINE + PAYLOAD_LEN, payload_len, Relaxed);
            assert_eq!(reader.take(CELL, SlotNo(1), 0, &mut body).is_ok(), is_sound);
        }
    }

    #[test]
    fn hostile_lengths_and_bits_are_refused() {
        let (writer, reader, raw) = pair();
        writer.submit(CELL, SlotNo(0), &header(1), b"body");
        let mut body = Vec::new();
        let posted = |body_len| Posted { seq: 1, cell: CELL.0, body_len }.pack();
        for bad in [BODY_MAX as u16 + 1, u16::MAX] {
            raw.store64(LINES + POSTED, posted(bad), Relaxed);
            let refused = reader.take(CELL, SlotNo(0), 0, &mut body).expect_err("a bad length");
            assert_eq!(refused.seq, 1);
        }
        raw.store64(LINES + POSTED, posted(4), Relaxed);
        raw.store32(LINES + PAYLOAD_LEN, PAYLOAD_MAX as u32 + 1, Relaxed);
        assert!(reader.take(CELL, SlotNo(0), 0, &mut body).is_err());
        raw.store64(LINES + POSTED, u64::MAX, Relaxed);
        assert_eq!(reader.take(CELL, SlotNo(0), 0, &mut body), Ok(None), "no request");
        raw.store64(DOORBELLS, u64::MAX, Relaxed);
        assert_eq!(
            reader.rung(CellId(0), &mut Doorbell::default()),
            0b111,
            "there are three slots"
        );
    }

    #[test]
    fn a_segment_too_short_or_of_another_kind_is_refused() {
        let segment =
            Segment::create("warren-test", Shape::large(1).client_segment_len(0)).unwrap();
        assert!(ClientWriter::new(segment.map().clone(), Shape::large(2)).is_err());
        let map = map_read_only(segment.fd()).unwrap();
        assert!(matches!(
            ClientReader::new(map.clone(), Shape::large(1)),
            Err(SegmentError::Foreign(_))
        ));
        ClientWriter::new(segment.map().clone(), Shape::large(1)).unwrap();
        assert!(matches!(
            ClientReader::new(map.clone(), Shape::large(2)),
            Err(SegmentError::TooShort { .. })
        ));
        assert!(ClientReader::new(map, Shape::large(1)).is_ok());
    }

    /// A line's first word, and its others.
    fn restless_word(_: usize, rng: &mut Rng) -> u64 {
        let body_len = rng.below((BODY_MAX + BODY_MAX / 8) as u64) as u16;
        Posted { seq: 1 + rng.below(9) as u32, cell: CELL.0, body_len }.pack()
    }

    /// So a check and a use always see the same value, whatever the client writes meanwhile.
    #[test]
    fn nothing_of_a_request_is_loaded_twice() {
        let (mut taken, mut body) = (0, Vec::new());
        for seed in 0..2000 {
            let memory = Restless::new(seed, 2 * PAYLOAD_MAX, restless_word);
            let reader = ClientReader { memory, shape: shape() };
            if let Ok(Some(header)) = reader.take(CELL, SlotNo(1), 0, &mut body) {
                assert!(header.payload_len as usize <= PAYLOAD_MAX && body.len() <= BODY_MAX);
                taken += 1;
            }
        }
        assert!((100..1900).contains(&taken), "{taken}");
    }
}
