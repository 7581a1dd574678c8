//! The memory of a cell: its frames, and what it shares with its clients.
//!
//! It outlives the cell's process, like the segments of a real fleet. Only a power cut clears it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{ClientId, Errno, Ino, SlotNo};
use warren_cell::{FrameNo, Memory, NoRecord, Record, SlotRef};
use warren_proto::stream::StreamPos;

use crate::posts::{Outcome, Posted, Stream};

/// The bytes of a frame before the first store: neither zeros nor data.
const UNFILLED: u8 = 0xee;

pub(crate) type Frame = Box<[u8; BLOCK_SIZE]>;

/// The actions of a cell on the memory of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Store { word: u32, stamp: u64 },
    ReadEnd,
    Outcome(StreamPos),
}

pub(crate) struct Machine {
    frames: Vec<Frame>,
    /// File data of requests, by slot: written by the client.
    pub requests: BTreeMap<SlotRef, Vec<u8>>,
    /// File data of replies, by slot: written by the cell.
    pub replies: BTreeMap<SlotRef, Vec<u8>>,
    /// Lease words. A word that is not here is 0.
    pub words: BTreeMap<(ClientId, u32), u64>,
    /// Inodes that clients have marked as idle, and those whose kept handles the cell has closed.
    pub idle: BTreeSet<(ClientId, Ino)>,
    pub closed: BTreeSet<(ClientId, Ino)>,
    pub streams: BTreeMap<ClientId, Stream>,
    /// In their order.
    pub accesses: Vec<(ClientId, Access)>,
    /// A record that the client publishes when the cell has next cleared one of its words.
    pub late: Option<(ClientId, Posted)>,
}

impl Machine {
    pub(crate) fn new(frames: u32) -> Self {
        Self {
            frames: (0..frames).map(|_| Box::new([UNFILLED; BLOCK_SIZE])).collect(),
            requests: BTreeMap::new(),
            replies: BTreeMap::new(),
            words: BTreeMap::new(),
            idle: BTreeSet::new(),
            closed: BTreeSet::new(),
            streams: BTreeMap::new(),
            accesses: Vec::new(),
            late: None,
        }
    }

    /// The table of the frames, which follows the image of the log: 32 bytes for each frame.
    pub(crate) fn table(&mut self, frames: u32) -> &mut [Frame] {
        let first = self.frames.len() - (frames as usize * 32).div_ceil(BLOCK_SIZE);
        &mut self.frames[first..]
    }

    /// The bytes that a request has brought in its slot or its record.
    fn payload(&self, from: SlotRef) -> &[u8] {
        match from.slot {
            SlotNo::STREAM => self.streams[&from.client].payload(),
            _ => &self.requests[&from],
        }
    }

    fn reply(&mut self, to: SlotRef, len: usize) -> &mut Vec<u8> {
        let lane = self.replies.entry(to).or_default();
        lane.resize(lane.len().max(len), 0);
        lane
    }
}

impl Memory for Machine {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        &self.frames[frame.0 as usize]
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        &mut self.frames[frame.0 as usize]
    }

    fn payload_to_frame(&mut self, from: SlotRef, offset: usize, frame: FrameNo, at: Range<usize>) {
        let bytes = self.payload(from)[offset..offset + at.len()].to_vec();
        self.frames[frame.0 as usize][at].copy_from_slice(&bytes);
    }

    fn frame_to_payload(&mut self, frame: FrameNo, at: Range<usize>, to: SlotRef, offset: usize) {
        let bytes: Vec<u8> = self.frames[frame.0 as usize][at].into();
        let end = offset + bytes.len();
        self.reply(to, end)[offset..end].copy_from_slice(&bytes);
    }

    fn read_payload(&mut self, from: SlotRef, into: &mut [u8]) {
        into.copy_from_slice(&self.payload(from)[..into.len()]);
    }

    fn write_payload(&mut self, to: SlotRef, bytes: &[u8]) {
        self.reply(to, bytes.len())[..bytes.len()].copy_from_slice(bytes);
    }

    fn zero_payload(&mut self, to: SlotRef, offset: usize, len: usize) {
        self.reply(to, offset + len)[offset..offset + len].fill(0);
    }

    fn store_word(&mut self, client: ClientId, word: u32, stamp: u64) {
        self.words.insert((client, word), stamp);
        self.accesses.push((client, Access::Store { word, stamp }));
        if let Some((_, posted)) = self.late.take_if(|(of, _)| *of == client && stamp == 0) {
            self.streams.entry(client).or_default().publish(posted);
        }
    }

    fn is_idle(&self, client: ClientId, ino: Ino) -> bool {
        self.idle.contains(&(client, ino))
    }

    fn mark_closed(&mut self, client: ClientId, ino: Ino) {
        self.closed.insert((client, ino));
    }

    fn stream_end(&mut self, client: ClientId) -> StreamPos {
        self.accesses.push((client, Access::ReadEnd));
        self.streams.get(&client).map_or(StreamPos::default(), |stream| stream.end)
    }

    fn stream_executed(&self, client: ClientId) -> StreamPos {
        self.streams.get(&client).map_or(StreamPos::default(), |stream| stream.outcome.executed)
    }

    fn read_record(
        &mut self,
        client: ClientId,
        at: StreamPos,
        end: StreamPos,
    ) -> Result<Record, NoRecord> {
        self.streams.entry(client).or_default().read(at, end)
    }

    fn store_outcome(
        &mut self,
        client: ClientId,
        executed: StreamPos,
        errno: Option<Errno>,
        value: u64,
    ) {
        self.accesses.push((client, Access::Outcome(executed)));
        let stream = self.streams.entry(client).or_default();
        if !stream.loses_outcomes {
            stream.outcome = Outcome { executed, errno, value };
        }
    }

    fn repeat_outcome(&mut self, client: ClientId, executed: StreamPos) {
        self.streams.entry(client).or_default().outcome.executed = executed;
    }

    fn watch_stream(&mut self, client: ClientId, is_watched: bool) {
        self.streams.entry(client).or_default().is_watched = is_watched;
    }
}
