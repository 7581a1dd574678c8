//! I/O of cells and supervisor, and its faults: errors, damaged blocks, and a cache that loses what
//! a flush should have made durable.
//!
//! A write takes effect when it ends, a read returns the contents at its end, a flush covers the
//! writes that were finished when it was submitted, and I/O in flight is unordered. Drivers report
//! a failed flush, once each, to all processes that run then (decision 14).

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, Epoch, Errno};
use warren_cell::{FrameNo, IoId, Plant};
use warren_disk::BlockWrite;
use warren_supervisor::IoId as SupervisorIo;

use super::{CellHost, Fleet, Happening};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Read,
    Write,
    /// A write that is durable by itself, or followed by a flush.
    WriteThrough,
    /// A flush of the writes up to a mark.
    Flush(usize),
    /// The host allocates so many blocks, or takes them back.
    Reserve(u64),
    Discard(u64),
}

#[derive(Clone, Copy)]
enum Fault {
    Fails,
    /// This bit of a read's first block is flipped.
    Rot(usize),
}

/// An I/O of a cell in flight.
pub(super) struct InFlight {
    pub doing: Doing,
    block: BlockNo,
    frames: Vec<FrameNo>,
    /// A device may read the frames of a write at any time until it ends.
    taken_early: Option<Vec<u8>>,
    fault: Option<Fault>,
}

/// An I/O of the supervisor in flight.
pub(super) struct Supervised {
    doing: SupervisorDoing,
    fails: bool,
}

enum SupervisorDoing {
    Write(BlockWrite),
    /// A flush of the writes up to a mark.
    Flush(usize),
}

impl InFlight {
    pub(super) fn uses(&self, frame: FrameNo) -> bool {
        self.frames.contains(&frame)
    }

    pub(super) fn heal(&mut self) {
        self.fault = None;
    }
}

impl Supervised {
    pub(super) fn heal(&mut self) {
        self.fails = false;
    }

    pub(super) fn into_write(self) -> Option<(BlockNo, Vec<u8>)> {
        match self.doing {
            SupervisorDoing::Write((block, bytes)) => Some((block, bytes.into_vec())),
            SupervisorDoing::Flush(_) => None,
        }
    }
}

impl CellHost {
    pub(crate) fn writes_under_way(&self) -> impl Iterator<Item = (BlockNo, Vec<u8>)> {
        let is_write =
            |request: &&InFlight| matches!(request.doing, Doing::Write | Doing::WriteThrough);
        let writes = self.in_flight.values().filter(is_write);
        writes.map(|request| (request.block, self.bytes_of(request)))
    }

    fn bytes_of(&self, write: &InFlight) -> Vec<u8> {
        write.taken_early.clone().unwrap_or_else(|| self.gather(&write.frames))
    }
}

impl<H> Fleet<H> {
    pub(super) fn submit(
        &mut self,
        id: CellId,
        io: IoId,
        doing: Doing,
        block: BlockNo,
        frames: Vec<FrameNo>,
    ) {
        self.sim.count(match doing {
            Doing::Read => "block read by a cell",
            Doing::Write | Doing::WriteThrough => "block written by a cell",
            Doing::Flush(_) => "a flush by a cell",
            Doing::Reserve(_) => "blocks reserved by a cell",
            Doing::Discard(_) => "blocks discarded by a cell",
        });
        let fault = self.draw_fault(id, doing);
        let early =
            matches!(doing, Doing::Write | Doing::WriteThrough) && self.sim.rng.chance(1, 2);
        let host = self.host(id);
        let taken_early = early.then(|| host.gather(&frames));
        let request = InFlight { doing, block, frames, taken_early, fault };
        let epoch = host.epoch;
        let before = host.in_flight.insert((epoch, io), request);
        assert!(before.is_none(), "an I/O number was used twice");
        let delay = self.sim.io_delay();
        self.sim.plan(delay, Happening::CellIo { cell: id, epoch, io });
    }

    pub(super) fn submit_flush(&mut self, id: CellId, io: IoId) {
        let flush = Doing::Flush(self.disk.mark());
        self.submit(id, io, flush, BlockNo(0), Vec::new());
    }

    /// Draws a fault. Not before the cell serves: a cell that cannot read its predecessor's state
    /// ends the fleet.
    fn draw_fault(&mut self, id: CellId, doing: Doing) -> Option<Fault> {
        if !self.host(id).slots.is_ready {
            return None;
        }
        let chance = match doing {
            Doing::Read => self.sim.faults.cell_read,
            Doing::Write | Doing::WriteThrough => self.sim.faults.cell_write,
            Doing::Flush(_) => self.sim.faults.cell_flush,
            Doing::Reserve(_) | Doing::Discard(_) => return None,
        };
        if self.sim.is_drawn(chance, 1000) {
            return Some(Fault::Fails);
        }
        let is_rotten = doing == Doing::Read && self.sim.is_drawn(self.sim.faults.rot, 1000);
        is_rotten.then(|| Fault::Rot(self.sim.rng.below(8 * BLOCK_SIZE as u64) as usize))
    }

    /// Whether a flush makes a write-through durable, which may fail. It then covers more writes
    /// than it must.
    pub(super) fn draw_flush_behind(&mut self) -> bool {
        self.sim.faults.cell_flush > 0 && self.sim.rng.chance(1, 2)
    }

    pub(super) fn harden(&mut self, done: &InFlight) {
        self.disk.harden(done.block, done.frames.len());
    }

    /// Ends the I/O. `None` if it is late: I/O of a dead cell may take long.
    pub(super) fn take_io(&mut self, id: CellId, epoch: Epoch, io: IoId) -> Option<InFlight> {
        let is_late = !self.is_running(id, epoch) && self.sim.rng.chance(1, 2);
        let host = self.host(id);
        if !is_late {
            return Some(host.in_flight.remove(&(epoch, io)).expect("an I/O is done once"));
        }
        self.sim.count("I/O of a dead cell is late");
        let delay = 4 * self.sim.io_delay();
        self.sim.plan(delay, Happening::CellIo { cell: id, epoch, io });
        None
    }

    /// Whether the I/O in flight of a dead process is carried out. A flush that would fail is not:
    /// no process would receive the error, and nothing is promised then (decision 14).
    fn is_carried_out(&mut self, is_failing_flush: bool) -> bool {
        if is_failing_flush {
            self.sim.count("a failing flush of a dead process left out");
        }
        !is_failing_flush && self.sim.rng.chance(1, 2)
    }

    /// Carries out an I/O of a dead cell, or not.
    pub(super) fn let_io_land(&mut self, id: CellId, done: &InFlight) {
        let fails = matches!(done.fault, Some(Fault::Fails));
        if self.is_carried_out(fails && matches!(done.doing, Doing::Flush(_))) {
            // No process receives the result.
            let _ = self.do_io(id, done);
        }
    }

    /// Notes a fault of a live cell.
    pub(super) fn note_incident(&mut self, id: CellId, done: &InFlight) {
        match (done.fault, done.doing) {
            (None, _) => {}
            (Some(_), Doing::Read) => self.incidents.read_failed(id, self.sim.places),
            (Some(_), _) => self.incidents.write_failed(Some(id), self.sim.places),
        }
    }

    /// Carries out an I/O of a cell on the device, or on its frames.
    pub(super) fn do_io(&mut self, id: CellId, done: &InFlight) -> Result<(), Errno> {
        let fails = matches!(done.fault, Some(Fault::Fails));
        if done.fault.is_some() {
            self.io_faults.cells += 1;
        }
        match done.doing {
            Doing::Read if fails => {
                self.sim.count("a read failed");
                Err(Errno::EIO)
            }
            Doing::Read => {
                self.read(id, done);
                Ok(())
            }
            Doing::Write | Doing::WriteThrough => {
                let bytes = self.host(id).bytes_of(done);
                if let Err(block) = self.disk.check_backed(done.block, bytes.len()) {
                    let line =
                        format!("cell {id} writes {block:?}, which the host has not allocated");
                    self.sim.failure.get_or_insert(line);
                }
                self.write(done.block, &bytes, fails.then_some("a write failed"))
            }
            Doing::Flush(mark) => {
                self.flush(Some(id), mark, fails);
                Ok(())
            }
            Doing::Reserve(count) => {
                let reserved = self.disk.reserve(done.block, count, &mut self.sim.rng);
                if reserved.is_err() {
                    self.sim.count("the host is full");
                }
                reserved
            }
            Doing::Discard(count) => {
                let discarded = self.disk.discard(done.block, count);
                if discarded.is_err() {
                    self.sim.count("the host takes no blocks back");
                }
                discarded
            }
        }
    }

    fn read(&mut self, id: CellId, done: &InFlight) {
        let Self { cells, disk, .. } = self;
        let host = &mut cells[usize::from(id.0)];
        for (at, frame) in (0..).zip(&done.frames) {
            host.frame_mut(*frame).copy_from_slice(disk.block(done.block.offset(at)));
        }
        if let Some(Fault::Rot(bit)) = done.fault {
            host.frame_mut(done.frames[0])[bit / 8] ^= 1 << (bit % 8);
            self.sim.count("a block read was rotten");
        }
    }

    /// A write that fails may have written all or a part.
    fn write(
        &mut self,
        block: BlockNo,
        bytes: &[u8],
        failure: Option<&'static str>,
    ) -> Result<(), Errno> {
        let Some(failure) = failure else {
            self.disk.write(block, bytes);
            return Ok(());
        };
        self.sim.count(failure);
        self.disk.fail_write(block, bytes, &mut self.sim.rng);
        Err(Errno::EIO)
    }

    /// `by` is the cell that submitted it, or the supervisor.
    fn flush(&mut self, by: Option<CellId>, mark: usize, fails: bool) {
        if !fails {
            return self.disk.flush(mark);
        }
        self.sim.count("a flush failed");
        self.disk.fail(&mut self.sim.rng);
        if self.plant == Some(Plant::HideLostFlush) {
            self.hide_lost_flush(by);
        }
        let place = self.sim.place();
        self.lost_flush.fails(place);
    }

    fn hide_lost_flush(&mut self, by: Option<CellId>) {
        let errors = self.disk.errors;
        for (id, host) in (0..).map(CellId).zip(&mut self.cells) {
            if by != Some(id) {
                host.errors_seen = errors;
            }
        }
        if by.is_some() {
            self.supervisor.errors_seen = errors;
        }
    }

    /// The result of a flush on a cell's open file of the device.
    pub(super) fn flush_result_of_cell(&mut self, id: CellId) -> Result<(), Errno> {
        let errors = self.disk.errors;
        flush_result(&mut self.host(id).errors_seen, errors)
    }

    pub(super) fn supervise_write(&mut self, io: SupervisorIo, write: BlockWrite) {
        let fails = self.sim.is_drawn(self.sim.faults.supervisor_write, 1000);
        self.supervise(io, Supervised { doing: SupervisorDoing::Write(write), fails });
    }

    pub(super) fn supervise_flush(&mut self, io: SupervisorIo) {
        let fails = self.sim.is_drawn(self.sim.faults.supervisor_flush, 1000);
        let doing = SupervisorDoing::Flush(self.disk.mark());
        self.supervise(io, Supervised { doing, fails });
    }

    fn supervise(&mut self, io: SupervisorIo, request: Supervised) {
        self.supervisor.in_flight.insert(io, request);
        let delay = self.sim.io_delay();
        self.sim.plan(delay, Happening::SupervisorIo { by: self.supervisor.number, io });
    }

    pub(super) fn supervisor_io_done(&mut self, io: SupervisorIo) -> Result<(), Errno> {
        let request = self.supervisor.in_flight.remove(&io).expect("an I/O is done once");
        let is_flush = matches!(request.doing, SupervisorDoing::Flush(_));
        self.do_supervised(request)?;
        if is_flush { self.flush_result_of_supervisor() } else { Ok(()) }
    }

    /// The I/O in flight of a killed supervisor is carried out, or not. Its successor flushes.
    pub(super) fn let_supervisors_io_land(&mut self) -> Result<(), Errno> {
        for request in std::mem::take(&mut self.supervisor.in_flight).into_values() {
            let is_flush = matches!(request.doing, SupervisorDoing::Flush(_));
            if self.is_carried_out(is_flush && request.fails) {
                // No process receives the result.
                let _ = self.do_supervised(request);
            }
        }
        if self.plant != Some(Plant::AdoptUnflushed) {
            self.disk.flush(self.disk.mark());
        }
        self.flush_result_of_supervisor()
    }

    fn flush_result_of_supervisor(&mut self) -> Result<(), Errno> {
        flush_result(&mut self.supervisor.errors_seen, self.disk.errors)
    }

    fn do_supervised(&mut self, request: Supervised) -> Result<(), Errno> {
        let Supervised { doing, fails } = request;
        self.io_faults.supervisor += u64::from(fails);
        if fails {
            self.incidents.write_failed(None, self.sim.places);
        }
        match doing {
            SupervisorDoing::Write((block, bytes)) => {
                let failure = fails.then_some("a write of the supervisor failed");
                self.write(block, &bytes, failure)
            }
            SupervisorDoing::Flush(mark) => {
                self.flush(None, mark, fails);
                let place = self.sim.place();
                self.lost_flush.supervisor_flushes(place);
                Ok(())
            }
        }
    }
}

/// Each failed flush is reported once.
fn flush_result(seen: &mut u64, errors: u64) -> Result<(), Errno> {
    match std::mem::replace(seen, errors) == errors {
        true => Ok(()),
        false => Err(Errno::EIO),
    }
}
