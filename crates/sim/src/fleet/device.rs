//! The device, and the I/O of cells and supervisor on it, with its faults: errors, damaged blocks,
//! and a cache that loses what a flush should have made durable.
//!
//! A write takes effect when it ends, a read returns the contents at its end, a flush covers the
//! writes that were finished when it was submitted, and I/O in flight is unordered. Drivers report
//! a failed flush, once each, to all processes that run then (decision 14).

pub(crate) mod disk;
mod faults;
pub(crate) mod sparse;

use std::collections::BTreeMap;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, Epoch, Errno};
use warren_cell::{FrameNo, IoId, Plant};
use warren_disk::BlockWrite;
use warren_supervisor::IoId as SupervisorIo;

use super::happening::{Happening, Sim};
use super::host::CellHost;
use super::incident::Incidents;
use disk::Disk;
pub(crate) use faults::DeviceFaults;

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

impl InFlight {
    fn bytes(&self, host: &CellHost) -> Vec<u8> {
        self.taken_early.clone().unwrap_or_else(|| host.gather(&self.frames))
    }
}

/// An I/O of the supervisor in flight.
struct Supervised {
    doing: SupervisorDoing,
    fails: bool,
}

enum SupervisorDoing {
    Write(BlockWrite),
    /// A flush of the writes up to a mark.
    Flush(usize),
}

/// The device of a fleet, and all I/O in flight.
pub(crate) struct Device {
    pub disk: Disk,
    in_flight: BTreeMap<(CellId, Epoch, IoId), InFlight>,
    supervised: BTreeMap<SupervisorIo, Supervised>,
    /// Failed flushes that were reported on the open file of each cell, and of the supervisor
    /// (`None`).
    errors_seen: BTreeMap<Option<CellId>, u64>,
    pub faults: DeviceFaults,
}

impl Device {
    pub(super) fn new(disk: Disk) -> Self {
        Self {
            disk,
            in_flight: BTreeMap::new(),
            supervised: BTreeMap::new(),
            errors_seen: BTreeMap::new(),
            faults: DeviceFaults::default(),
        }
    }

    /// A process opens the device: a cell, or the supervisor. No earlier flush is reported to it.
    pub(super) fn open(&mut self, by: Option<CellId>) {
        self.errors_seen.insert(by, self.disk.errors);
    }

    /// I/O in flight does not fail any more.
    pub(super) fn heal(&mut self) {
        self.in_flight.values_mut().for_each(|request| request.fault = None);
        self.supervised.values_mut().for_each(|request| request.fails = false);
    }

    /// All processes vanish. Returns their writes in flight.
    pub(super) fn vanish(&mut self, cells: &[CellHost]) -> Vec<(BlockNo, Vec<u8>)> {
        let is_write = |doing| matches!(doing, Doing::Write | Doing::WriteThrough);
        let of_cells = std::mem::take(&mut self.in_flight).into_iter();
        let of_cells = of_cells.filter(|(_, request)| is_write(request.doing));
        let of_cells = of_cells.map(|((cell, ..), request)| {
            (request.block, request.bytes(&cells[usize::from(cell.0)]))
        });
        let supervised = std::mem::take(&mut self.supervised).into_values();
        let supervised = supervised.filter_map(|request| match request.doing {
            SupervisorDoing::Write((block, bytes)) => Some((block, bytes.into_vec())),
            SupervisorDoing::Flush(_) => None,
        });
        of_cells.chain(supervised).collect()
    }

    fn of_cell(&self, id: CellId) -> impl Iterator<Item = &InFlight> {
        let first = (id, Epoch(0), IoId(0));
        let all = self.in_flight.range(first..).take_while(move |((cell, ..), _)| *cell == id);
        all.map(|(_, request)| request)
    }

    /// Whether no I/O of any process of the cell is in flight.
    pub(super) fn is_idle(&self, id: CellId) -> bool {
        self.of_cell(id).next().is_none()
    }

    /// Whether an I/O in flight uses the frame of the cell.
    pub(super) fn uses(&self, id: CellId, frame: FrameNo) -> bool {
        self.of_cell(id).any(|request| request.frames.contains(&frame))
    }

    pub(super) fn submit<H>(
        &mut self,
        sim: &mut Sim<H>,
        host: &CellHost,
        io: IoId,
        doing: Doing,
        (block, frames): (BlockNo, Vec<FrameNo>),
    ) {
        sim.count(match doing {
            Doing::Read => "block read by a cell",
            Doing::Write | Doing::WriteThrough => "block written by a cell",
            Doing::Flush(_) => "a flush by a cell",
            Doing::Reserve(_) => "blocks reserved by a cell",
            Doing::Discard(_) => "blocks discarded by a cell",
        });
        let fault = draw_fault(sim, host, doing);
        let early = matches!(doing, Doing::Write | Doing::WriteThrough) && sim.rng.chance(1, 2);
        let taken_early = early.then(|| host.gather(&frames));
        let request = InFlight { doing, block, frames, taken_early, fault };
        let (cell, epoch) = (host.id, host.epoch);
        let before = self.in_flight.insert((cell, epoch, io), request);
        assert!(before.is_none(), "an I/O number was used twice");
        let delay = sim.io_delay();
        sim.plan(delay, Happening::CellIo { cell, epoch, io });
    }

    pub(super) fn submit_flush<H>(&mut self, sim: &mut Sim<H>, host: &CellHost, io: IoId) {
        let flush = Doing::Flush(self.disk.mark());
        self.submit(sim, host, io, flush, (BlockNo(0), Vec::new()));
    }

    pub(super) fn harden(&mut self, done: &InFlight) {
        self.disk.harden(done.block, done.frames.len());
    }

    /// Ends the I/O. `None` if it is late: I/O of a dead cell may take long.
    pub(super) fn take<H>(
        &mut self,
        sim: &mut Sim<H>,
        host: &CellHost,
        epoch: Epoch,
        io: IoId,
    ) -> Option<InFlight> {
        let is_late = !host.is_running(epoch) && sim.rng.chance(1, 2);
        if !is_late {
            return Some(self.in_flight.remove(&(host.id, epoch, io)).expect("it is done once"));
        }
        sim.count("I/O of a dead cell is late");
        let delay = 4 * sim.io_delay();
        sim.plan(delay, Happening::CellIo { cell: host.id, epoch, io });
        None
    }

    /// Carries out an I/O of a dead cell, or not.
    pub(super) fn let_land<H>(&mut self, sim: &mut Sim<H>, host: &mut CellHost, done: &InFlight) {
        let fails = matches!(done.fault, Some(Fault::Fails));
        if is_carried_out(sim, fails && matches!(done.doing, Doing::Flush(_))) {
            // No process receives the result.
            let _ = self.carry_out(sim, host, done);
        }
    }

    /// Carries out an I/O of a cell on the device, or on its frames.
    pub(super) fn carry_out<H>(
        &mut self,
        sim: &mut Sim<H>,
        host: &mut CellHost,
        done: &InFlight,
    ) -> Result<(), Errno> {
        let fails = matches!(done.fault, Some(Fault::Fails));
        self.faults.cells += u64::from(done.fault.is_some());
        match done.doing {
            Doing::Read if fails => {
                sim.count("a read failed");
                Err(Errno::EIO)
            }
            Doing::Read => {
                self.read(sim, host, done);
                Ok(())
            }
            Doing::Write | Doing::WriteThrough => {
                let bytes = done.bytes(host);
                if let Err(block) = self.disk.check_backed(done.block, bytes.len()) {
                    let id = host.id;
                    sim.fail(format!(
                        "cell {id} writes {block:?}, which the host has not allocated"
                    ));
                }
                self.write(sim, done.block, &bytes, fails.then_some("a write failed"))
            }
            Doing::Flush(mark) => {
                self.flush(sim, Some(host.id), mark, fails);
                Ok(())
            }
            Doing::Reserve(count) => {
                let reserved = self.disk.reserve(done.block, count, &mut sim.rng);
                if reserved.is_err() {
                    sim.count("the host is full");
                }
                reserved
            }
            Doing::Discard(count) => {
                let discarded = self.disk.discard(done.block, count);
                if discarded.is_err() {
                    sim.count("the host takes no blocks back");
                }
                discarded
            }
        }
    }

    fn read<H>(&self, sim: &mut Sim<H>, host: &mut CellHost, done: &InFlight) {
        for (at, frame) in (0..).zip(&done.frames) {
            host.frame_mut(*frame).copy_from_slice(self.disk.block(done.block.offset(at)));
        }
        if let Some(Fault::Rot(bit)) = done.fault {
            host.frame_mut(done.frames[0])[bit / 8] ^= 1 << (bit % 8);
            sim.count("a block read was rotten");
        }
    }

    /// Writes blocks. A write that fails may have written all or a part.
    fn write<H>(
        &mut self,
        sim: &mut Sim<H>,
        block: BlockNo,
        bytes: &[u8],
        failure: Option<&'static str>,
    ) -> Result<(), Errno> {
        let Some(failure) = failure else {
            self.disk.write(block, bytes);
            return Ok(());
        };
        sim.count(failure);
        self.disk.fail_write(block, bytes, &mut sim.rng);
        Err(Errno::EIO)
    }

    /// Flushes the cache. `by` is the cell that submitted it, or the supervisor.
    fn flush<H>(&mut self, sim: &mut Sim<H>, by: Option<CellId>, mark: usize, fails: bool) {
        if !fails {
            return self.disk.flush(mark);
        }
        sim.count("a flush failed");
        self.disk.fail(&mut sim.rng);
        if sim.plant == Some(Plant::HideLostFlush) {
            let others = self.errors_seen.iter_mut().filter(|(process, _)| **process != by);
            others.for_each(|(_, seen)| *seen = self.disk.errors);
        }
        self.faults.flush_fails(sim.place());
    }

    /// The result of a flush on the open file of a cell, or of the supervisor. Each failed flush is
    /// reported once.
    pub(super) fn flush_result(&mut self, by: Option<CellId>) -> Result<(), Errno> {
        match self.errors_seen.insert(by, self.disk.errors) == Some(self.disk.errors) {
            true => Ok(()),
            false => Err(Errno::EIO),
        }
    }

    /// Submits a write of the supervisor, or a flush. `by` is the supervisor's number.
    pub(super) fn supervise<H>(
        &mut self,
        sim: &mut Sim<H>,
        by: u64,
        io: SupervisorIo,
        write: Option<BlockWrite>,
    ) {
        let (doing, chance) = match write {
            Some(write) => (SupervisorDoing::Write(write), sim.faults.supervisor_write),
            None => (SupervisorDoing::Flush(self.disk.mark()), sim.faults.supervisor_flush),
        };
        let fails = sim.is_drawn(chance, 1000);
        self.supervised.insert(io, Supervised { doing, fails });
        let delay = sim.io_delay();
        sim.plan(delay, Happening::SupervisorIo { by, io });
    }

    /// Ends an I/O of the supervisor.
    pub(super) fn end_supervised<H>(
        &mut self,
        sim: &mut Sim<H>,
        incidents: &mut Incidents,
        io: SupervisorIo,
    ) -> Result<(), Errno> {
        let request = self.supervised.remove(&io).expect("an I/O is done once");
        let is_flush = matches!(request.doing, SupervisorDoing::Flush(_));
        self.carry_out_supervised(sim, incidents, request)?;
        if is_flush { self.flush_result(None) } else { Ok(()) }
    }

    /// The I/O in flight of a killed supervisor is carried out, or not. Its successor flushes.
    pub(super) fn let_supervised_land<H>(
        &mut self,
        sim: &mut Sim<H>,
        incidents: &mut Incidents,
    ) -> Result<(), Errno> {
        for request in std::mem::take(&mut self.supervised).into_values() {
            let is_flush = matches!(request.doing, SupervisorDoing::Flush(_));
            if is_carried_out(sim, is_flush && request.fails) {
                // No process receives the result.
                let _ = self.carry_out_supervised(sim, incidents, request);
            }
        }
        if sim.plant != Some(Plant::AdoptUnflushed) {
            self.disk.flush(self.disk.mark());
        }
        self.flush_result(None)
    }

    fn carry_out_supervised<H>(
        &mut self,
        sim: &mut Sim<H>,
        incidents: &mut Incidents,
        request: Supervised,
    ) -> Result<(), Errno> {
        let Supervised { doing, fails } = request;
        self.faults.supervisor += u64::from(fails);
        if fails {
            incidents.write_failed(None, sim.places);
        }
        match doing {
            SupervisorDoing::Write((block, bytes)) => {
                let failure = fails.then_some("a write of the supervisor failed");
                self.write(sim, block, &bytes, failure)
            }
            SupervisorDoing::Flush(mark) => {
                self.flush(sim, None, mark, fails);
                self.faults.supervisor_flushes(sim.place());
                Ok(())
            }
        }
    }
}

/// Draws a fault. Not before the cell serves: a cell that cannot read its predecessor's state ends
/// the fleet.
fn draw_fault<H>(sim: &mut Sim<H>, host: &CellHost, doing: Doing) -> Option<Fault> {
    if !host.slots.is_ready {
        return None;
    }
    let chance = match doing {
        Doing::Read => sim.faults.cell_read,
        Doing::Write | Doing::WriteThrough => sim.faults.cell_write,
        Doing::Flush(_) => sim.faults.cell_flush,
        Doing::Reserve(_) | Doing::Discard(_) => return None,
    };
    if sim.is_drawn(chance, 1000) {
        return Some(Fault::Fails);
    }
    let is_rotten = doing == Doing::Read && sim.is_drawn(sim.faults.rot, 1000);
    is_rotten.then(|| Fault::Rot(sim.rng.below(8 * BLOCK_SIZE as u64) as usize))
}

/// Draws whether a flush makes a write-through durable, which may fail. It then covers more writes
/// than it must.
pub(super) fn draw_flush_behind<H>(sim: &mut Sim<H>) -> bool {
    sim.faults.cell_flush > 0 && sim.rng.chance(1, 2)
}

/// Draws whether the I/O in flight of a dead process is carried out. A flush that would fail is
/// not: no process would receive the error, and nothing is promised then (decision 14).
fn is_carried_out<H>(sim: &mut Sim<H>, is_failing_flush: bool) -> bool {
    if is_failing_flush {
        sim.count("a failing flush of a dead process left out");
    }
    !is_failing_flush && sim.rng.chance(1, 2)
}

/// Notes a fault of a live cell.
pub(super) fn note_incident(incidents: &mut Incidents, id: CellId, done: &InFlight, at: u64) {
    match (done.fault, done.doing) {
        (None, _) => {}
        (Some(_), Doing::Read) => incidents.read_failed(id, at),
        (Some(_), _) => incidents.write_failed(Some(id), at),
    }
}
