//! The end of a fleet without a checkpoint: the log of each cell is written to the device, for the
//! next start to replay.
//!
//! Live cells write it themselves (`Order::Save`), with the data of their files. A cell without a
//! successor cannot, but its frames hold the image of its log, and a block of the image is a block
//! of the log. So the supervisor writes its records from there, and records of other logs that
//! depend on them remain valid. The data of its files that no record names is lost, as after a
//! power failure.
//!
//! Invariants:
//! * Nothing is written before every process of that cell is gone and its submitted I/O has ended
//!   (its lock as a writer is free).
//! * A record is written only if the data that it names is on the device: the log ends before the
//!   first record whose data is not.
//! * No log becomes shorter than it is on the device, because all of it may have been promised
//!   durable: neither because data that a record names cannot be read, nor because the log itself
//!   cannot.
//! * If a cell's successors ended by themselves, the state that they took over may have ended them,
//!   and would end the next start's replay as well. It is not written to the device.

use std::time::Duration;

use tracing::{error, warn};
use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Errno, Instant, Lsn};
use warren_device::PoolFile;
use warren_disk::{LogArea, RawRecord, read_record};
use warren_proto::{Reader, Run, Step, Wire};
use warren_supervisor::{CellState, Failure};

use super::cell_process::Ended;
use super::start::{frames_of_a_cell, log_area};
use super::state::SupervisorLoop;
use crate::clock;
use crate::error::FleetError;
use crate::message::path_of;
use crate::pool::blocks::Blocks;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The time in which the submitted I/O of dead cells must end, longer than was ever seen; and the
/// pause between two checks.
const LANDING_WAIT: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Whether a fleet with this failure has valid logs.
pub(super) const fn leaves_logs(failure: Failure) -> bool {
    matches!(
        failure,
        Failure::NoSuccessor { .. }
            | Failure::Alarms { .. }
            | Failure::CellExited { .. }
            | Failure::CellHangs { .. }
            | Failure::Unreadable { .. }
            | Failure::BrokenLog { .. }
            | Failure::TakenOut { .. }
    )
}

/// A log in a cell's frames.
struct Image {
    area: LogArea,
    bytes: Vec<u8>,
}

impl Image {
    fn copy(&self, at: Lsn, into: &mut [u8]) {
        let (mut at, mut rest) = (at, into);
        while !rest.is_empty() {
            let (block, offset) = self.area.place(at);
            let len = rest.len().min(BLOCK_SIZE - offset);
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&self.bytes[block as usize * BLOCK_SIZE + offset..][..len]);
            (at, rest) = (Lsn(at.0 + len as u64), later);
        }
    }
}

impl SupervisorLoop<'_> {
    /// Writes the logs of all cells to the device where they are not there yet. Failures are
    /// logged; that log is lost.
    pub(super) fn save_logs(&mut self) {
        // After a failed flush nothing on the device can be relied on.
        if self.memory.judge_flush(self.pool.flush()).is_err() {
            return;
        }
        let deadline = clock::monotonic() + LANDING_WAIT;
        let mut written = 0;
        for cell in (0..self.plan.cells).map(CellId) {
            match self.save_log(cell, deadline) {
                Ok(blocks) => written += blocks,
                Err(error) => error!("the log of cell {cell} cannot be saved: {error}"),
            }
        }
        if written > 0 {
            match self.memory.judge_flush(self.pool.flush()) {
                Ok(()) => warn!("{written} blocks of logs were written at the end"),
                Err(errno) => error!("the logs cannot be saved: {errno}"),
            }
        }
    }

    /// Returns the number of blocks written.
    fn save_log(&self, cell: CellId, deadline: Instant) -> Result<u64, FleetError> {
        let process = &self.cells[cell];
        let has_stopped = self.core.status().cells[usize::from(cell.0)].state == CellState::Stopped;
        if !process.exited || !(has_stopped || process.ended == Ended::FromOutside) {
            return Ok(0);
        }
        let own = PoolFile::from_fd(self.pool.reopen()?, &path_of(&self.plan.pool))?;
        while !own.try_lock_as_writer(cell.0)? {
            if clock::monotonic() >= deadline {
                return Err(FleetError::Died("its process, which still writes,".into()));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        let ledger = self.core.ledger();
        let (area, logs) = (log_area(ledger, cell, &self.plan), ledger.logs());
        let start = logs.starts[usize::from(cell.0)];
        let mut bytes = vec![0; area.bytes() as usize];
        let first = u64::from(frames_of_a_cell(&self.plan));
        self.memory.read_frames(cell, first, &mut bytes)?;
        let log = SavedLog { blocks: &self.pool, area, start, incarnation: logs.incarnation };
        let pool = path_of(&self.plan.pool);
        log.complete(&mut Image { area, bytes }).map_err(|errno| FleetError::PoolIo {
            pool,
            doing: "write a log to it",
            errno,
        })
    }
}

/// The log of a cell on the device.
struct SavedLog<'a> {
    blocks: &'a dyn Blocks,
    area: LogArea,
    start: Lsn,
    incarnation: u64,
}

impl SavedLog<'_> {
    /// Writes the part of the image that the device lacks. Returns the number of blocks written.
    fn complete(&self, image: &mut Image) -> Result<u64, Errno> {
        // If the device's log cannot be read, its durable part is unknown, and nothing may be
        // overwritten.
        let mut there = vec![0; self.area.bytes() as usize];
        self.blocks.read(self.area.start, &mut there)?;
        let there = Image { area: self.area, bytes: there };
        let durable = self.end_of(&there, |_| true);
        let end = self.end_of(image, |record| self.is_complete(record));
        // Otherwise the padding of the last block would overwrite durable records.
        if end <= durable {
            return Ok(0);
        }
        self.write(image, &there, end)
    }

    /// The end of the wanted records in a row.
    fn end_of(&self, image: &Image, is_wanted: impl Fn(&RawRecord) -> bool) -> Lsn {
        let limit = Lsn(self.start.0 + self.area.bytes());
        let mut end = self.start;
        while let Some(record) =
            read_record(end, limit, self.incarnation, |at, into| image.copy(at, into))
            && is_wanted(&record)
        {
            end = record.end;
        }
        end
    }

    /// Whether all data that the record names is on the device.
    fn is_complete(&self, record: &RawRecord) -> bool {
        let mut reader = Reader::new(&record.body);
        (0..record.steps).all(|_| match Step::decode(&mut reader) {
            Ok(Step::Placed { runs, .. }) => runs.iter().all(|run| self.is_there(run)),
            Ok(_) => true,
            Err(_) => false,
        })
    }

    fn is_there(&self, run: &Run) -> bool {
        let mut bytes = vec![0; run.checksums.len() * BLOCK_SIZE];
        let is_read = self.blocks.read(run.block, &mut bytes).is_ok();
        let pages = bytes.chunks_exact(BLOCK_SIZE).zip(&run.checksums);
        is_read && pages.into_iter().all(|(page, sum)| crc32c::crc32c(page) == *sum)
    }

    /// Writes the blocks that differ on the device. The last one is padded, as in every commit. The
    /// one after it is emptied before: of a commit that was under way, the device may have it and
    /// none of those before, and then the record at its beginning would be valid again.
    fn write(&self, image: &mut Image, there: &Image, end: Lsn) -> Result<u64, Errno> {
        let mut written = 0;
        let (first, last) = (self.start.0 / BLOCK, end.0.div_ceil(BLOCK));
        let after = (last - first < self.area.blocks).then_some(last);
        for number in after.into_iter().chain(first..last) {
            let (place, _) = self.area.place(Lsn(number * BLOCK));
            let at = place as usize * BLOCK_SIZE;
            let bytes = &mut image.bytes[at..at + BLOCK_SIZE];
            let filled = end.0.saturating_sub(number * BLOCK).min(BLOCK);
            bytes[filled as usize..].fill(0);
            if there.bytes[at..at + BLOCK_SIZE] != *bytes {
                self.blocks.write(self.area.start.offset(place), bytes)?;
                written += 1;
            }
        }
        Ok(written)
    }
}

#[cfg(test)]
#[path = "save/tests.rs"]
mod tests;
