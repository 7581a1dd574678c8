//! The machine as a running cell sees it. Its process may be killed at any store.

use std::ops::Range;
use std::panic::resume_unwind;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, ClientId, Errno, Ino};
use warren_cell::{FrameNo, Memory, NoRecord, Record, SlotRef};
use warren_proto::stream::StreamPos;

use super::process::Killed;
use super::streams::StreamOutcome;
use super::{CellHost, Fleet, Surroundings};

pub(super) struct SharedMemory<'a, W> {
    pub world: &'a mut W,
    pub cell: CellId,
    /// Stores after which the cell's process is killed.
    pub stores_left: Option<u64>,
}

impl<W: Surroundings> SharedMemory<'_, W> {
    fn host(&mut self) -> &mut CellHost {
        let cell = self.cell;
        self.world.fleet_mut().host_mut(cell)
    }

    /// A store begins: the process may be killed before it.
    fn store_begins(&mut self) {
        if let Some(left) = &mut self.stores_left {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => resume_unwind(Box::new(Killed)),
            }
        }
    }

    /// A cell that is killed often dies also when the log has a record and its outcome is not
    /// stored.
    fn may_die(&mut self) {
        let (cell, fleet) = (self.cell, self.world.fleet_mut());
        let kills = fleet.sim.faults.kills;
        if kills > 0 && fleet.may_be_lost(cell) && fleet.sim.rng.chance(kills, 1000) {
            fleet.sim.count("a cell killed before an outcome");
            resume_unwind(Box::new(Killed));
        }
    }

    /// A cell that has reported the release of a client must not access its memory any more.
    fn must_know(&mut self, client: ClientId) {
        let (cell, fleet) = (self.cell, self.world.fleet_mut());
        if fleet.lanes.is_closed(cell, client) {
            fleet.sim.fail(format!("{cell} touches memory of {client}, which it has let go"));
        }
    }
}

impl<W: Surroundings> Memory for SharedMemory<'_, W> {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.world.fleet().host(self.cell).frame(frame)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.store_begins();
        self.host().frame_mut(frame)
    }

    fn payload_to_frame(&mut self, from: SlotRef, offset: usize, frame: FrameNo, at: Range<usize>) {
        self.store_begins();
        self.must_know(from.client);
        let Fleet { cells, lanes, .. } = self.world.fleet_mut();
        let frame = cells[usize::from(self.cell.0)].frame_mut(frame);
        match lanes.streams.payload(self.cell, from) {
            Some(posted) => frame[at.clone()].copy_from_slice(&posted[offset..][..at.len()]),
            None => lanes.read_request(from, offset, &mut frame[at]),
        }
    }

    fn frame_to_payload(&mut self, frame: FrameNo, at: Range<usize>, to: SlotRef, offset: usize) {
        self.store_begins();
        self.must_know(to.client);
        let Fleet { cells, lanes, .. } = self.world.fleet_mut();
        let frame = cells[usize::from(self.cell.0)].frame(frame);
        lanes.reply_mut(self.cell, to, offset, at.len()).copy_from_slice(&frame[at]);
    }

    fn read_payload(&mut self, from: SlotRef, into: &mut [u8]) {
        self.store_begins();
        self.must_know(from.client);
        self.world.fleet().lanes.read_request(from, 0, into);
    }

    fn write_payload(&mut self, to: SlotRef, bytes: &[u8]) {
        self.store_begins();
        self.must_know(to.client);
        let lanes = &mut self.world.fleet_mut().lanes;
        lanes.reply_mut(self.cell, to, 0, bytes.len()).copy_from_slice(bytes);
    }

    fn zero_payload(&mut self, to: SlotRef, offset: usize, len: usize) {
        self.store_begins();
        self.must_know(to.client);
        let cell = self.cell;
        self.world.fleet_mut().lanes.reply_mut(cell, to, offset, len).fill(0);
    }

    fn store_word(&mut self, client: ClientId, word: u32, stamp: u64) {
        self.store_begins();
        self.must_know(client);
        self.world.store_word(self.cell, client, word, stamp);
    }

    fn mark(&mut self, hash: u64) {
        self.store_begins();
        let cell = self.cell;
        self.world.fleet_mut().lanes.mark(cell, hash);
    }

    fn is_marked(&self, hash: u64) -> bool {
        self.world.fleet().lanes.is_marked(self.cell, hash)
    }

    fn is_idle(&self, client: ClientId, ino: Ino) -> bool {
        self.world.fleet().lanes.is_idle(client, ino)
    }

    fn stream_end(&mut self, client: ClientId) -> StreamPos {
        let cell = self.cell;
        self.world.fleet_mut().lanes.streams.fix((cell, client))
    }

    fn stream_executed(&self, client: ClientId) -> StreamPos {
        self.world.fleet().lanes.streams.outcome((self.cell, client)).executed
    }

    fn read_record(
        &mut self,
        client: ClientId,
        at: StreamPos,
        _end: StreamPos,
    ) -> Result<Record, NoRecord> {
        self.must_know(client);
        let cell = self.cell;
        self.world.fleet_mut().lanes.streams.read((cell, client), at)
    }

    fn store_outcome(
        &mut self,
        client: ClientId,
        executed: StreamPos,
        errno: Option<Errno>,
        value: u64,
    ) {
        self.store_begins();
        self.may_die();
        self.must_know(client);
        let (cell, outcome) = (self.cell, StreamOutcome { executed, errno, value });
        let fleet = self.world.fleet_mut();
        if !fleet.lanes.streams.store((cell, client), outcome, fleet.event_began) {
            let rule = format!("{client} went on after a record that {cell} refuses: {errno:?}");
            fleet.sim.fail(rule);
        }
        fleet.sim.count(match errno {
            None => "a record executed",
            Some(Errno::EAGAIN) => "a record skipped",
            Some(_) => "a record refused",
        });
    }

    fn repeat_outcome(&mut self, client: ClientId, executed: StreamPos) {
        self.store_begins();
        self.may_die();
        self.must_know(client);
        let cell = self.cell;
        let fleet = self.world.fleet_mut();
        fleet.lanes.streams.repeat_outcome((cell, client), executed);
        fleet.sim.count("a record contained in the one before");
    }

    fn watch_stream(&mut self, client: ClientId, is_watched: bool) {
        let cell = self.cell;
        self.world.fleet_mut().lanes.streams.watch((cell, client), is_watched);
    }
}
