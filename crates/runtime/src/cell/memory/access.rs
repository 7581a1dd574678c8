//! The core's access to the memory that it shares with clients.
//!
//! The core names clients until it has reported that it has forgotten them, also those that are
//! silenced: what such a client had published before is still executed.

use std::ops::Range;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, ClientId, Errno, Ino, SlotNo};
use warren_cell::{FrameNo, Memory, NoRecord, Record, SlotRef};
use warren_proto::stream::StreamPos;
use warren_shm::WatchBit;

use super::{ClientMemory, KNOWN, SharedMemory};

impl ClientMemory {
    /// Copies `offset..` of the payload of the slot's request, or of the record read last.
    fn copy_payload(&self, cell: CellId, from: SlotNo, offset: usize, into: &mut [u8]) {
        if from == SlotNo::STREAM {
            let payload = self.stream.payload(offset, into.len());
            self.requests.copy_record_payload(cell, payload, offset, into);
        } else {
            self.requests.copy_payload(from, offset, into);
        }
    }
}

impl Memory for SharedMemory {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.frames.frame(frame.0)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.frames.frame_mut(frame.0)
    }

    fn payload_to_frame(&mut self, from: SlotRef, offset: usize, frame: FrameNo, at: Range<usize>) {
        let place = *self.places.get(&from.client).expect(KNOWN);
        let client = self.clients[place.0 as usize].as_ref().expect(KNOWN);
        let into = &mut self.frames.frame_mut(frame.0)[at];
        client.copy_payload(self.cell, from.slot, offset, into);
    }

    fn frame_to_payload(&mut self, frame: FrameNo, at: Range<usize>, to: SlotRef, offset: usize) {
        let bytes = &self.frames.frame(frame.0)[at];
        self.client(to.client).replies.write_payload(to.slot, offset, bytes);
    }

    fn read_payload(&mut self, from: SlotRef, into: &mut [u8]) {
        self.client(from.client).copy_payload(self.cell, from.slot, 0, into);
    }

    fn write_payload(&mut self, to: SlotRef, bytes: &[u8]) {
        self.client(to.client).replies.write_payload(to.slot, 0, bytes);
    }

    fn zero_payload(&mut self, to: SlotRef, offset: usize, len: usize) {
        self.client(to.client).replies.zero_payload(to.slot, offset, len);
    }

    fn executes(&mut self, request: Option<(SlotRef, u32)>) {
        if let Some((from, _)) = request
            && let Some(memory) = self.find(from.client)
        {
            let uid = memory.user_of(from.slot);
            self.meter.run(uid);
        }
        let Some(vitals) = &self.vitals else { return };
        match request {
            Some((from, seq)) => vitals.run(from.client, from.slot, seq),
            None => vitals.rest(),
        }
    }

    fn store_word(&mut self, client: ClientId, word: u32, stamp: u64) {
        self.client(client).replies.store_word(word, stamp);
    }

    fn is_idle(&self, client: ClientId, ino: Ino) -> bool {
        self.find(client).is_some_and(|memory| memory.requests.is_idle(ino))
    }

    fn mark_closed(&mut self, client: ClientId, ino: Ino) {
        self.client(client).replies.mark_closed(ino);
    }

    fn mark(&mut self, hash: u64) {
        if let Some(vitals) = &self.vitals {
            vitals.mark(hash);
        }
    }

    fn is_marked(&self, hash: u64) -> bool {
        self.vitals.as_ref().is_none_or(|vitals| vitals.is_marked(hash))
    }

    fn watch(&mut self, ino: Ino, is_watched: bool) {
        let bit = WatchBit::of(ino);
        let count = self.watched.entry(bit).or_default();
        *count = if is_watched { *count + 1 } else { count.saturating_sub(1) };
        let is_set = *count > 0;
        if !is_set {
            self.watched.remove(&bit);
        }
        if let Some(vitals) = &self.vitals {
            vitals.watch(bit, is_set, self.watched.len() as u32);
        }
    }

    fn stream_end(&mut self, client: ClientId) -> StreamPos {
        let cell = self.cell;
        let memory = self.client(client);
        let end = memory.requests.stream_end(cell);
        memory.replies.fix_records(end);
        end
    }

    fn stream_executed(&self, client: ClientId) -> StreamPos {
        self.client(client).replies.executed()
    }

    fn read_record(
        &mut self,
        client: ClientId,
        at: StreamPos,
        end: StreamPos,
    ) -> Result<Record, NoRecord> {
        self.read_posted(client, at, end)
    }

    fn store_outcome(
        &mut self,
        client: ClientId,
        executed: StreamPos,
        errno: Option<Errno>,
        value: u64,
    ) {
        self.client(client).replies.store_outcome(executed, errno, value);
        self.pass_culprit(client, executed);
    }

    fn repeat_outcome(&mut self, client: ClientId, executed: StreamPos) {
        self.client(client).replies.repeat_outcome(executed);
    }

    fn watch_stream(&mut self, client: ClientId, is_watched: bool) {
        self.watch_posted(client, is_watched);
    }
}
