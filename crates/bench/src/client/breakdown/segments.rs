//! The segments between one client and one cell, both ends in this thread, for one step at a time.

use std::os::fd::AsFd;

use warren_base::{CellId, Epoch, SlotNo};
use warren_proto::slot::Shape;
use warren_proto::{Beside, Capabilities, Reply, Request, RequestHeader};
use warren_shm::{
    ClientReader, ClientWriter, Doorbell, ReplyHeader, ReplyReader, ReplyWriter, Segment,
    SegmentError, VITALS_LEN, VitalsReader, VitalsWriter, map_read_only,
};

use crate::client::subject::IO_BYTES;
use crate::error::BenchError;

const SLOTS: usize = 1;
const SLOT: SlotNo = SlotNo(0);
const CELL: CellId = CellId(0);

pub(super) struct Segments {
    requests: ClientWriter,
    seen: ClientReader,
    replies: ReplyWriter,
    answers: ReplyReader,
    vitals: VitalsReader,
    bells_seen: Doorbell,
    seq: u32,
}

impl Segments {
    pub(super) fn new() -> Result<Self, BenchError> {
        Self::open().map_err(|error| BenchError::Fleet(error.into()))
    }

    fn open() -> Result<Self, SegmentError> {
        let out = Segment::create("warren-bench", Shape::large(SLOTS).client_segment_len(0))?;
        let back = Segment::create("warren-bench", Shape::large(SLOTS).cell_segment_len())?;
        let signs = Segment::create("warren-bench", VITALS_LEN)?;
        let requests = ClientWriter::new(out.map().clone(), Shape::large(SLOTS))?;
        let replies = ReplyWriter::new(back.map().clone(), Shape::large(SLOTS), CELL, Epoch(1))?;
        VitalsWriter::new(signs.map().clone(), CELL, Epoch(1))?;
        Ok(Self {
            requests,
            seen: ClientReader::new(
                map_read_only(out.read_only_fd()?.as_fd())?,
                Shape::large(SLOTS),
            )?,
            replies,
            answers: ReplyReader::new(
                map_read_only(back.read_only_fd()?.as_fd())?,
                Shape::large(SLOTS),
            )?,
            vitals: VitalsReader::new(map_read_only(signs.read_only_fd()?.as_fd())?)?,
            bells_seen: Doorbell::default(),
            seq: 0,
        })
    }

    pub(super) fn write_request(&mut self, body: &[u8]) {
        self.seq = self.seq.wrapping_add(1);
        let header = RequestHeader { seq: self.seq, ..Default::default() };
        self.requests.submit(CELL, SLOT, &header, body);
    }

    pub(super) fn ring(&self) {
        self.requests.ring(CELL, SLOT);
    }

    pub(super) fn look(&self) {
        std::hint::black_box(self.vitals.thread());
    }

    pub(super) fn look_at_bell(&mut self) {
        std::hint::black_box(self.seen.rung(CELL, &mut self.bells_seen));
    }

    pub(super) fn take(&self, body: &mut Vec<u8>) {
        let taken = self.seen.take(CELL, SLOT, self.seq.wrapping_sub(1), body);
        let mut presented = Capabilities::default();
        let _ = std::hint::black_box((taken, Request::from_body(body, &mut presented), presented));
    }

    pub(super) fn reply(&self, body: &[u8]) {
        let header = ReplyHeader { errno: None, payload_len: 0 };
        self.replies.reply(&self.seen, SLOT, self.seq, header, body);
    }

    pub(super) fn parse(&self, body: &mut Vec<u8>) {
        let taken = self.answers.take(SLOT, self.seq, body);
        let mut beside = Beside::default();
        let _ = std::hint::black_box((taken, Reply::from_body(body, &mut beside), beside));
    }

    pub(super) fn fill_lane(&self) {
        self.replies.write_payload(SLOT, 0, &[7; IO_BYTES]);
    }
}
