//! I/O of cells and supervisor, and what goes wrong with it: errors, rot, and a cache that loses what a flush
//! should have made durable.
//!
//! A write takes effect when it is done, a read sees what is there when it is done, a flush is for what was
//! done when it was asked for, and what is under way together is unordered. A failed flush is told, once each,
//! to all processes that live then, as drivers see to (decision 14).

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, Epoch, Errno};
use warren_cell::{FrameNo, IoId, Plant};
use warren_disk::BlockWrite;
use warren_supervisor::IoId as SupervisorIo;

use super::{CellHost, Fleet, Happening};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    Read,
    Write,
    /// A write that is durable by itself, or when it is done, a flush.
    WriteThrough,
    /// Of what was done up to a mark.
    Flush(usize),
    /// The host allocates so many blocks, or takes them back.
    Reserve(u64),
    Discard(u64),
}

#[derive(Clone, Copy)]
enum Fault {
    Fails,
    /// This bit of a read's first block comes wrong.
    Rot(usize),
}

/// An I/O of a cell under way.
pub struct InFlight {
    pub doing: Doing,
    block: BlockNo,
    frames: Vec<FrameNo>,
    /// A device may read the frames of a write at any time until it is done.
    taken_early: Option<Vec<u8>>,
    fault: Option<Fault>,
}

/// An I/O of the supervisor under way.
pub struct Supervised {
    doing: SupervisorDoing,
    fails: bool,
}

enum SupervisorDoing {
    Write(BlockWrite),
    /// Of what was done up to a mark.
    Flush(usize),
}

impl InFlight {
    pub fn heal(&mut self) {
        self.fault = None;
    }
}

impl Supervised {
    pub fn heal(&mut self) {
        self.fails = false;
    }

    pub fn into_write(self) -> Option<(BlockNo, Vec<u8>)> {
        match self.doing {
            SupervisorDoing::Write((block, bytes)) => Some((block, bytes.into_vec())),
            SupervisorDoing::Flush(_) => None,
        }
    }
}

impl CellHost {
    pub fn writes_under_way(&self) -> impl Iterator<Item = (BlockNo, Vec<u8>)> {
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
        self.count(match doing {
            Doing::Read => "block read by a cell",
            Doing::Write | Doing::WriteThrough => "block written by a cell",
            Doing::Flush(_) => "a flush by a cell",
            Doing::Reserve(_) => "blocks reserved by a cell",
            Doing::Discard(_) => "blocks discarded by a cell",
        });
        let fault = self.draw_fault(id, doing);
        let early = matches!(doing, Doing::Write | Doing::WriteThrough) && self.rng.chance(1, 2);
        let host = self.host(id);
        let taken_early = early.then(|| host.gather(&frames));
        let request = InFlight { doing, block, frames, taken_early, fault };
        let epoch = host.epoch;
        let before = host.in_flight.insert((epoch, io), request);
        assert!(before.is_none(), "an I/O number was used twice");
        let delay = self.io_delay();
        self.plan(delay, Happening::CellIo { cell: id, epoch, io });
    }

    pub(super) fn submit_flush(&mut self, id: CellId, io: IoId) {
        let flush = Doing::Flush(self.disk.mark());
        self.submit(id, io, flush, BlockNo(0), Vec::new());
    }

    /// Whoever cannot read what he takes over ends the fleet: that is no fault to survive.
    fn draw_fault(&mut self, id: CellId, doing: Doing) -> Option<Fault> {
        if !self.host(id).slots.is_ready {
            return None;
        }
        let chance = match doing {
            Doing::Read => self.faults.cell_read,
            Doing::Write | Doing::WriteThrough => self.faults.cell_write,
            Doing::Flush(_) => self.faults.cell_flush,
            Doing::Reserve(_) | Doing::Discard(_) => return None,
        };
        if self.is_drawn(chance, 1000) {
            return Some(Fault::Fails);
        }
        let is_rotten = doing == Doing::Read && self.is_drawn(self.faults.rot, 1000);
        is_rotten.then(|| Fault::Rot(self.rng.below(8 * BLOCK_SIZE as u64) as usize))
    }

    /// Whether what is written through is made durable by a flush, which may fail. That says more of other writes
    /// than it has to.
    pub(super) fn draw_flush_behind(&mut self) -> bool {
        self.faults.cell_flush > 0 && self.rng.chance(1, 2)
    }

    pub(super) fn harden(&mut self, done: &InFlight) {
        self.disk.harden(done.block, done.frames.len());
    }

    /// The I/O is over. `None` if it is late: what a dead cell has under way may take long.
    pub(super) fn take_io(&mut self, id: CellId, epoch: Epoch, io: IoId) -> Option<InFlight> {
        let is_late = !self.is_running(id, epoch) && self.rng.chance(1, 2);
        let host = self.host(id);
        if !is_late {
            return Some(host.in_flight.remove(&(epoch, io)).expect("an I/O is done once"));
        }
        self.count("I/O of a dead cell is late");
        let delay = 4 * self.io_delay();
        self.plan(delay, Happening::CellIo { cell: id, epoch, io });
        None
    }

    /// Whether what a process had under way is carried out when it is dead. A flush that would fail is not: nobody
    /// would hear of that, and nothing is promised then (decision 14).
    fn lands_unheard(&mut self, is_failing_flush: bool) -> bool {
        if is_failing_flush {
            self.count("a flush left out that would have failed unheard");
        }
        !is_failing_flush && self.rng.chance(1, 2)
    }

    /// What a dead cell had under way gets there, or not.
    pub(super) fn let_io_land(&mut self, id: CellId, done: &InFlight) {
        let fails = matches!(done.fault, Some(Fault::Fails));
        if self.lands_unheard(fails && matches!(done.doing, Doing::Flush(_))) {
            // Nobody hears of it.
            let _ = self.do_io(id, done);
        }
    }

    /// Something goes wrong for a cell that lives.
    pub(super) fn note_incident(&mut self, id: CellId, done: &InFlight) {
        match (done.fault, done.doing) {
            (None, _) => {}
            (Some(_), Doing::Read) => self.incidents.read_failed(id, self.places),
            (Some(_), _) => self.incidents.write_failed(Some(id), self.places),
        }
    }

    /// What an I/O of a cell does to the device, or to its frames.
    pub(super) fn do_io(&mut self, id: CellId, done: &InFlight) -> Result<(), Errno> {
        let fails = matches!(done.fault, Some(Fault::Fails));
        if done.fault.is_some() {
            self.cell_faults += 1;
        }
        match done.doing {
            Doing::Read if fails => {
                self.count("a read failed");
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
                    self.failure.get_or_insert(line);
                }
                self.write(done.block, &bytes, fails.then_some("a write failed"))
            }
            Doing::Flush(mark) => {
                self.flush(Some(id), mark, fails);
                Ok(())
            }
            Doing::Reserve(count) => {
                let reserved = self.disk.reserve(done.block, count, &mut self.rng);
                if reserved.is_err() {
                    self.count("the host is full");
                }
                reserved
            }
            Doing::Discard(count) => {
                self.disk.discard(done.block, count);
                Ok(())
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
            self.count("a block read was rotten");
        }
    }

    /// One that fails may have written all the same, or some of it.
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
        self.count(failure);
        self.disk.fail_write(block, bytes, &mut self.rng);
        Err(Errno::EIO)
    }

    /// `by` is the cell that asked for it, or the supervisor.
    fn flush(&mut self, by: Option<CellId>, mark: usize, fails: bool) {
        if !fails {
            return self.disk.flush(mark);
        }
        self.count("a flush failed");
        self.disk.fail(&mut self.rng);
        if self.plant == Some(Plant::HideLostFlush) {
            self.hide_lost_flush(by);
        }
        if self.flush_failed_at.is_none() {
            self.flush_failed_at = Some(self.place());
        }
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

    /// How a flush went, as a cell that has the device open hears it.
    pub(super) fn told_cell(&mut self, id: CellId) -> Result<(), Errno> {
        let errors = self.disk.errors;
        told(&mut self.host(id).errors_seen, errors)
    }

    pub(super) fn supervise_write(&mut self, io: SupervisorIo, write: BlockWrite) {
        let fails = self.is_drawn(self.faults.supervisor_write, 1000);
        self.supervise(io, Supervised { doing: SupervisorDoing::Write(write), fails });
    }

    pub(super) fn supervise_flush(&mut self, io: SupervisorIo) {
        let fails = self.is_drawn(self.faults.supervisor_flush, 1000);
        let doing = SupervisorDoing::Flush(self.disk.mark());
        self.supervise(io, Supervised { doing, fails });
    }

    fn supervise(&mut self, io: SupervisorIo, request: Supervised) {
        self.supervisor.in_flight.insert(io, request);
        let delay = self.io_delay();
        self.plan(delay, Happening::SupervisorIo { by: self.supervisor.number, io });
    }

    pub(super) fn supervisor_io_done(&mut self, io: SupervisorIo) -> Result<(), Errno> {
        let request = self.supervisor.in_flight.remove(&io).expect("an I/O is done once");
        let is_flush = matches!(request.doing, SupervisorDoing::Flush(_));
        self.do_supervised(request)?;
        if is_flush { self.told_supervisor() } else { Ok(()) }
    }

    /// What is under way of a supervisor that is killed gets to the device, or not. Whoever takes over flushes.
    pub(super) fn let_supervisors_io_land(&mut self) -> Result<(), Errno> {
        for request in std::mem::take(&mut self.supervisor.in_flight).into_values() {
            let is_flush = matches!(request.doing, SupervisorDoing::Flush(_));
            if self.lands_unheard(is_flush && request.fails) {
                // Nobody hears of it.
                let _ = self.do_supervised(request);
            }
        }
        if self.plant != Some(Plant::AdoptUnflushed) {
            self.disk.flush(self.disk.mark());
        }
        self.told_supervisor()
    }

    fn told_supervisor(&mut self) -> Result<(), Errno> {
        told(&mut self.supervisor.errors_seen, self.disk.errors)
    }

    fn do_supervised(&mut self, request: Supervised) -> Result<(), Errno> {
        let Supervised { doing, fails } = request;
        self.supervisor_faults += u64::from(fails);
        if fails {
            self.incidents.write_failed(None, self.places);
        }
        match doing {
            SupervisorDoing::Write((block, bytes)) => {
                let failure = fails.then_some("a write of the supervisor failed");
                self.write(block, &bytes, failure)
            }
            SupervisorDoing::Flush(mark) => {
                self.flush(None, mark, fails);
                Ok(())
            }
        }
    }
}

/// Each failed flush is told once.
fn told(seen: &mut u64, errors: u64) -> Result<(), Errno> {
    match std::mem::replace(seen, errors) == errors {
        true => Ok(()),
        false => Err(Errno::EIO),
    }
}
