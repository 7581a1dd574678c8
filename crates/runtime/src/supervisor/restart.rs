//! A cell is lost, and a successor takes its place.
//!
//! ```text
//! exit notice -> reports that it had sent -> its mailbox is closed -> the core applies CellExited
//! Restart     -> mailbox, process, CellStart, links -> Admit of every client -> Begin
//! Joined      -> every other cell: its end of the link, then the order
//! ```
//!
//! Invariant: a new process of a cell is requested only after the previous one has been reaped, so
//! that no other process maps the frames. The successor itself waits for the I/O that its
//! predecessor had submitted to the kernel.

use tracing::{error, info, warn};
use warren_base::{CellId, Epoch};
use warren_log::LIFE;
use warren_supervisor::{Event, Misdeed, Verdict};

use super::cell_process::Ended;
use super::start::{FIRST_EPOCH, Starter};
use super::state::SupervisorLoop;
use crate::clock;
use crate::error::{ErrorKind, FleetError, system};
use crate::message::Beginning;

/// Has a cell killed that this process cannot work with.
pub(super) fn end_misbehaving(
    it: &mut SupervisorLoop<'_>,
    cell: CellId,
    how: Misdeed,
) -> Result<(), FleetError> {
    let epoch = it.cells[cell].epoch;
    it.apply(Event::Misbehaves { cell, epoch, how })
}

/// Resumes a cell that is stopped and would have no successor.
pub(super) fn resume(it: &mut SupervisorLoop<'_>, cell: CellId, epoch: Epoch) {
    let process = &it.cells[cell];
    if process.epoch == epoch && process.alive {
        it.keeper.resume_process(process.token);
        warn!(target: LIFE, "cell {cell} was stopped and cannot be replaced now; it is resumed");
    }
}

impl SupervisorLoop<'_> {
    /// Handles the keeper's failure to start a process.
    pub(super) fn not_spawned(&mut self, token: u32, errno: i32) -> Result<(), FleetError> {
        let error = system("start a cell")(std::io::Error::from_raw_os_error(errno));
        let Some(process) = self.cells.by_token(token) else {
            return Ok(());
        };
        if process.epoch == FIRST_EPOCH {
            return Err(error);
        }
        process.last_error = Some(error);
        self.cell_exited(token, "", Ended::FromOutside)
    }

    /// Handles the end of a cell's process, which has been reaped. `how` is the reason, unless the
    /// cell reported one.
    pub(super) fn cell_exited(
        &mut self,
        token: u32,
        how: &str,
        ended: Ended,
    ) -> Result<(), FleetError> {
        let Some(cell) = self.cells.running(token) else { return Ok(()) };
        // Reports that it sent before its end come first.
        while self.cells[cell].alive && self.receive_from_cell(cell)? {}
        let process = &mut self.cells[cell];
        process
            .last_error
            .get_or_insert_with(|| FleetError::reported(ErrorKind::Other, how.as_bytes()));
        (process.alive, process.exited, process.ended) = (false, true, ended);
        process.pauses.begin(clock::monotonic());
        let epoch = process.epoch;
        self.mailboxes.leave(cell);
        let by_itself = ended == Ended::ByItself;
        self.apply(Event::CellExited { cell, epoch, by_itself })
    }

    /// Kills this process of a cell, unless that is under way or it is gone.
    pub(super) fn condemn(&mut self, cell: CellId, epoch: Epoch, verdict: Verdict) {
        let process = &mut self.cells[cell];
        if process.epoch == epoch && process.alive {
            let line = format!("it {verdict}");
            process.last_error = Some(FleetError::reported(ErrorKind::Other, line.as_bytes()));
            self.kill(cell);
        }
    }

    /// Has cells killed whose vitals have an impossible count of failed flushes.
    pub(super) fn end_bad_vitals(&mut self) {
        for cell in self.memory.have_bad_vitals().filter(|cell| self.cells[*cell].alive) {
            let epoch = self.cells[cell].epoch;
            self.pending.push_back(Event::Misbehaves { cell, epoch, how: Misdeed::Vitals });
        }
    }

    /// Kills a cell whose link does not work. Its exit notice follows.
    pub(super) fn kill(&mut self, cell: CellId) {
        let process = &mut self.cells[cell];
        process.alive = false;
        let token = process.token;
        self.keeper.kill(token);
    }

    /// Starts a successor, or a caretaker. If that fails the successor counts as lost.
    pub(super) fn restart(&mut self, cell: CellId, epoch: Epoch, is_caretaker: bool) {
        let process = &self.cells[cell];
        assert!(process.exited, "a cell has one process at a time");
        let why = process.last_error.as_ref().map(|error| format!(" ({error})"));
        let why = why.unwrap_or_default();
        let beginning = if is_caretaker { Beginning::Caretaker } else { Beginning::Successor };
        if is_caretaker {
            error!(target: LIFE, "cell {cell} is taken out, because it ended again and again{why}");
        } else {
            warn!(target: LIFE, "cell {cell} ended{why}; a successor takes over");
        }
        if let Err(error) = self.start_successor(cell, epoch, beginning) {
            let process = &mut self.cells[cell];
            process.epoch = epoch;
            (process.last_error, process.ended) = (Some(error), Ended::FromOutside);
            self.mailboxes.leave(cell);
            self.pending.push_back(Event::CellExited { cell, epoch, by_itself: false });
        } else if self.link_successor(cell).is_err() {
            self.kill(cell);
        } else {
            self.cells.begin_later(cell);
        }
    }

    fn start_successor(
        &mut self,
        cell: CellId,
        epoch: Epoch,
        beginning: Beginning,
    ) -> Result<(), FleetError> {
        self.mailboxes.enter(cell)?;
        self.memory.renew(cell, epoch);
        let old = &mut self.cells[cell];
        // If the start fails, the next successor gets it.
        let own_device = old.next_device.try_clone().map_err(system("share the pool device"))?;
        let devices = [own_device, self.pool.reopen()?];
        let ledger = self.core.ledger();
        let mut starter = Starter {
            keeper: &mut self.keeper,
            plan: &self.plan,
            pool: &self.pool,
            memory: &self.memory,
            mailboxes: &mut self.mailboxes,
            capabilities: &self.capabilities,
        };
        let beginning = (beginning, Vec::new());
        let mut process = starter.start(cell, epoch, beginning, devices, ledger)?;
        process.pauses = old.pauses;
        process.pauses.restarts += 1;
        *old = process;
        Ok(())
    }

    /// Links the successor with every cell whose process runs. These cells get their ends with
    /// `Joined`.
    fn link_successor(&mut self, cell: CellId) -> Result<(), FleetError> {
        for other in (0..self.plan.cells).map(CellId) {
            if other == cell || self.cells[other].exited {
                continue;
            }
            let mut starter = Starter {
                keeper: &mut self.keeper,
                plan: &self.plan,
                pool: &self.pool,
                memory: &self.memory,
                mailboxes: &mut self.mailboxes,
                capabilities: &self.capabilities,
            };
            let [own, theirs] = starter.link(cell, other, self.cells.as_slice())?;
            self.cells[cell].send_link(own);
            self.cells[other].links.insert(cell, theirs);
        }
        Ok(())
    }

    /// The cell has reported that it serves.
    pub(super) fn serves(&mut self, cell: CellId) {
        let is_out = self.core.status().taken_out.iter().any(|out| out.cell == cell);
        let process = &mut self.cells[cell];
        process.last_error = None;
        if is_out {
            process.pauses.end(clock::monotonic());
            error!(
                target: LIFE,
                "cell {cell} answers EIO from now on; remove the cause, then run `warren rejoin`"
            );
        } else if let Some(pause) = process.pauses.end(clock::monotonic()) {
            let (ms, epoch) = (pause.as_millis(), process.epoch);
            warn!(target: LIFE, "cell {cell} serves again after {ms} ms (epoch {epoch})");
        } else {
            info!(target: LIFE, "cell {cell} serves");
        }
    }
}
