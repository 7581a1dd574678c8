//! I/O of cells and supervisor, and what goes wrong with it: errors, rot, and a cache that loses
//! what a flush should have made durable.

use std::collections::BTreeMap;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, Epoch, Errno};
use warren_cell::{Event, FrameNo, IoId};
use warren_disk::BlockWrite;
use warren_supervisor::{Event as Heard, IoId as SupervisorIo};

use super::fleet::Happening;
use super::{Phase, World};

/// An I/O of a cell under way.
pub struct InFlight {
    write: bool,
    block: BlockNo,
    frames: Vec<FrameNo>,
    /// A device may read the frames of a write at any time until it is done.
    taken_early: Option<Vec<u8>>,
    result: Result<(), Errno>,
    /// The bit of a read's first block that comes wrong.
    rot: Option<usize>,
    /// A write that a flush follows.
    through: bool,
    /// Of a flush: what was done before this place in the device's order becomes durable.
    flush: Option<u64>,
}

/// An I/O of the supervisor under way.
pub enum Supervised {
    Write(BlockWrite, Result<(), Errno>),
    /// Makes durable what was done before this place in the device's order.
    Flush(u64, Result<(), Errno>),
}

impl World {
    fn is_device_faulty(&self) -> bool {
        self.phase == Phase::Safety && self.lives == 1 && self.admitted
    }

    pub(super) fn submit(
        &mut self,
        id: CellId,
        io: IoId,
        write: bool,
        block: BlockNo,
        frames: Vec<FrameNo>,
    ) {
        self.count(if write { "block written by a cell" } else { "block read by a cell" });
        // Whoever cannot read what he takes over ends the fleet: that is no fault to survive.
        let faulty = self.is_device_faulty() && self.cells[usize::from(id.0)].slots.is_ready;
        let mut result = Ok(());
        if faulty && self.rng.chance(self.swarm.io_error, 1000) {
            self.io_failed = true;
            self.count(if write { "a write failed" } else { "a read failed" });
            result = Err(Errno::EIO);
        }
        let mut rot = None;
        if faulty && !write && self.rng.chance(self.swarm.rot, 1000) {
            self.io_failed = true;
            self.count("a block read was rotten");
            rot = Some(self.rng.below(8 * BLOCK_SIZE as u64) as usize);
        }
        let host = &self.cells[usize::from(id.0)];
        let early = write && self.rng.chance(1, 2);
        let taken_early = early.then(|| host.gather(&frames));
        let through = false;
        let request =
            InFlight { write, block, frames, taken_early, result, rot, through, flush: None };
        self.begin_io(id, io, request);
    }

    /// The write that was just begun is one that a flush follows.
    pub(super) fn flush_behind(&mut self, id: CellId, io: IoId) {
        let host = &mut self.cells[usize::from(id.0)];
        let request = host.in_flight.get_mut(&(host.epoch, io));
        request.expect("it was just begun").through = true;
    }

    /// Flushes of cells fail in the crash campaign only, where everything can be lost.
    pub(super) fn submit_flush(&mut self, id: CellId, io: IoId) {
        self.count("a flush by a cell");
        let request = InFlight {
            write: true,
            block: BlockNo(0),
            frames: Vec::new(),
            taken_early: None,
            result: Ok(()),
            rot: None,
            through: false,
            flush: Some(self.disk.position()),
        };
        self.begin_io(id, io, request);
    }

    fn begin_io(&mut self, cell: CellId, io: IoId, request: InFlight) {
        let host = &mut self.cells[usize::from(cell.0)];
        let epoch = host.epoch;
        let before = host.in_flight.insert((epoch, io), request);
        assert!(before.is_none(), "an I/O number was used twice");
        let delay = self.io_delay();
        self.plan(delay, Happening::CellIo { cell, epoch, io });
    }

    /// No I/O fails any more, not even what is under way.
    pub(super) fn heal_device(&mut self) {
        for request in self.cells.iter_mut().flat_map(|host| host.in_flight.values_mut()) {
            (request.result, request.rot) = (Ok(()), None);
        }
        for io in self.supervisor.in_flight.values_mut() {
            match io {
                Supervised::Write(_, result) | Supervised::Flush(_, result) => *result = Ok(()),
            }
        }
    }

    pub(super) fn cell_io_done(&mut self, id: CellId, epoch: Epoch, io: IoId) {
        let host = &mut self.cells[usize::from(id.0)];
        let done = host.in_flight.remove(&(epoch, io)).expect("an I/O is done once");
        if host.dead || host.epoch != epoch {
            // What a dead cell has under way may still get there, or not, and late.
            if self.rng.chance(1, 2) {
                self.count("I/O of a dead cell is late");
                self.cells[usize::from(id.0)].in_flight.insert((epoch, io), done);
                let delay = 4 * self.io_delay();
                return self.plan(delay, Happening::CellIo { cell: id, epoch, io });
            }
            if self.rng.chance(1, 2) {
                self.do_io(id, &done);
            }
            return self.start_successor(id);
        }
        if done.flush.is_some() && std::mem::take(&mut host.flush_failed) {
            return self.happen_to(id, Event::IoDone { io, result: Err(Errno::EIO) });
        }
        self.do_io(id, &done);
        if done.through && done.result.is_ok() {
            // By a flush, or by a device that makes durable what it is told to.
            if self.rng.chance(1, 2) {
                return self.submit_flush(id, io);
            }
            self.disk.harden(done.block, done.frames.len() as u64);
        }
        self.happen_to(id, Event::IoDone { io, result: done.result });
    }

    /// What an I/O of a cell does to the device, or to its frames.
    fn do_io(&mut self, id: CellId, done: &InFlight) {
        let host = &mut self.cells[usize::from(id.0)];
        if let Some(position) = done.flush {
            self.disk.flush(position);
        } else if done.result.is_ok() && done.write {
            let bytes = done.taken_early.clone().unwrap_or_else(|| host.gather(&done.frames));
            self.disk.write(done.block, &bytes);
        } else if done.result.is_ok() {
            for (at, frame) in done.frames.iter().enumerate() {
                self.disk.read(done.block.offset(at as u64), host.frame_mut(*frame).as_mut_slice());
            }
            if let Some(bit) = done.rot {
                host.frame_mut(done.frames[0])[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    pub(super) fn supervise_write(&mut self, io: SupervisorIo, write: BlockWrite) {
        let result = self.draw_supervised(self.swarm.supervisor_error);
        if result.is_err() {
            self.count("a write of the supervisor failed");
        }
        self.supervise(io, Supervised::Write(write, result));
    }

    pub(super) fn supervise_flush(&mut self, io: SupervisorIo) {
        let result = self.draw_supervised(self.swarm.flush_error);
        if result.is_err() {
            self.count("a flush failed");
        }
        self.supervise(io, Supervised::Flush(self.disk.position(), result));
    }

    fn draw_supervised(&mut self, chance: u64) -> Result<(), Errno> {
        if !self.is_device_faulty() || !self.rng.chance(chance, 1000) {
            return Ok(());
        }
        self.io_failed = true;
        self.supervisor_failed = true;
        Err(Errno::EIO)
    }

    fn supervise(&mut self, io: SupervisorIo, request: Supervised) {
        self.supervisor.in_flight.insert(io, request);
        let delay = self.io_delay();
        self.plan(delay, Happening::SupervisorIo { by: self.supervisor.number, io });
    }

    pub(super) fn supervisor_io_done(&mut self, io: SupervisorIo) {
        let request = self.supervisor.in_flight.remove(&io).expect("an I/O is done once");
        let result = self.do_supervised(request);
        self.tell_supervisor(Heard::IoDone { io, result });
    }

    /// What is under way of a supervisor that is killed gets to the device, or not. A flush that would fail
    /// does, and whoever takes over hears of it from the open file that was kept for it.
    pub(super) fn let_supervisors_io_land(&mut self) -> Result<(), Errno> {
        let mut flushed = Ok(());
        for (_, request) in std::mem::take(&mut self.supervisor.in_flight) {
            let is_flush = matches!(request, Supervised::Flush(..));
            let lands = matches!(request, Supervised::Flush(_, Err(_))) || self.rng.chance(1, 2);
            if lands {
                let result = self.do_supervised(request);
                flushed = if is_flush { flushed.and(result) } else { flushed };
            }
        }
        if flushed.is_ok() {
            self.disk.flush(self.disk.position());
        }
        flushed
    }

    fn do_supervised(&mut self, request: Supervised) -> Result<(), Errno> {
        let is_flush = matches!(request, Supervised::Flush(..));
        let result = match request {
            Supervised::Write((block, bytes), result) => {
                if result.is_ok() || self.rng.chance(1, 2) {
                    self.disk.write(block, &bytes);
                }
                result
            }
            Supervised::Flush(position, Ok(())) => {
                self.disk.flush(position);
                Ok(())
            }
            Supervised::Flush(position, Err(errno)) => {
                self.disk.lose(position, &mut self.rng);
                self.lost = true;
                // As the kernel does: whoever has the device open hears of it once.
                self.cells.iter_mut().for_each(|host| host.flush_failed = true);
                Err(errno)
            }
        };
        if is_flush && result.is_err() && self.flush_failed_at.is_none() {
            self.flush_failed_at = Some(self.place());
        }
        result
    }
}

pub type SupervisorInFlight = BTreeMap<SupervisorIo, Supervised>;
