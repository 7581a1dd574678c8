//! I/O of cells and supervisor, and what goes wrong with it: errors, rot, and a cache that loses what a flush
//! should have made durable.
//!
//! A write takes effect when it is done, a read sees what is there when it is done, a flush is for what was
//! done when it was asked for, and what is under way together is unordered. A failed flush is told, once each,
//! to whoever has the device's file open (as Linux does: `errseq_t`).

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
                // One that fails may have written all the same.
                if !fails || self.rng.chance(1, 2) {
                    let bytes = self.host(id).bytes_of(done);
                    self.disk.write(done.block, &bytes);
                }
                if !fails {
                    return Ok(());
                }
                self.count("a write failed");
                Err(Errno::EIO)
            }
            Doing::Flush(mark) => {
                self.flush(mark, fails);
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

    fn flush(&mut self, mark: usize, fails: bool) {
        if !fails {
            return self.disk.flush(mark);
        }
        self.count("a flush failed");
        self.disk.fail(&mut self.rng);
        if self.flush_failed_at.is_none() {
            self.flush_failed_at = Some(self.place());
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

    /// What is under way of a supervisor that is killed gets to the device, or not. A flush that would fail
    /// does. Whoever takes over flushes, and hears of it from the open file that was kept for it.
    pub(super) fn let_supervisors_io_land(&mut self) -> Result<(), Errno> {
        for request in std::mem::take(&mut self.supervisor.in_flight).into_values() {
            let is_flush = matches!(request.doing, SupervisorDoing::Flush(_));
            if (is_flush && request.fails) || self.rng.chance(1, 2) {
                // Nobody hears of a write.
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
        match doing {
            SupervisorDoing::Write((block, bytes)) => {
                if !fails || self.rng.chance(1, 2) {
                    self.disk.write(block, &bytes);
                }
                if !fails {
                    return Ok(());
                }
                self.count("a write of the supervisor failed");
                Err(Errno::EIO)
            }
            SupervisorDoing::Flush(mark) => {
                self.flush(mark, fails);
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
