//! A cell is lost, and a successor takes its place.
//!
//! ```text
//! exit notice -> what it had said -> its mailbox is closed -> the core is told
//! Restart     -> mailbox, process, CellStart, links -> Admit of every client -> Begin
//! Joined      -> every other cell: its end of the link, then the order
//! ```
//!
//! Invariant: a process of a cell is asked for only when the one before has been reaped, so nobody else
//! maps the frames. What that one had given the kernel, the successor waits for itself.

use std::fmt;

use tracing::{info, warn};
use warren_base::{CellId, Epoch};
use warren_log::LIFE;
use warren_proto::Wire;
use warren_supervisor::Event;

use super::post::Ended;
use super::start::{Beginning, Starter};
use super::{FIRST_EPOCH, Shell};
use crate::clock;
use crate::error::{ErrorKind, FleetError, system};
use crate::message::ToKeeper;

impl Shell<'_> {
    /// The keeper could not start a process.
    pub(super) fn not_spawned(&mut self, token: u32, errno: i32) -> Result<(), FleetError> {
        let error = system("start a cell")(std::io::Error::from_raw_os_error(errno));
        let Some(post) = self.cells.iter_mut().find(|post| post.token == token) else {
            return Ok(());
        };
        if post.epoch == FIRST_EPOCH {
            return Err(error);
        }
        post.last_words = Some(error);
        self.cell_exited(token, "", Ended::FromOutside)
    }

    /// A cell's process has been reaped. `how` it ended says why, if it did not say so itself.
    pub(super) fn cell_exited(
        &mut self,
        token: u32,
        how: &str,
        ended: Ended,
    ) -> Result<(), FleetError> {
        let is_it = |post: &super::CellPost| post.token == token && !post.exited;
        let Some(at) = self.cells.iter().position(is_it) else { return Ok(()) };
        let cell = CellId(at as u16);
        // What it said before it ended comes first.
        while self.cells[at].alive && self.hear_cell(cell.0)? {}
        let post = &mut self.cells[at];
        post.last_words
            .get_or_insert_with(|| FleetError::reported(ErrorKind::Other, how.as_bytes()));
        (post.alive, post.exited, post.ended) = (false, true, ended);
        post.pauses.begin(clock::monotonic());
        let epoch = post.epoch;
        self.mailboxes.leave(cell);
        let by_itself = ended == Ended::ByItself;
        self.apply(Event::CellExited { cell, epoch, by_itself })
    }

    /// Ends this process of a cell, which still speaks, unless it is gone already.
    pub(super) fn condemn(&mut self, cell: CellId, epoch: Epoch, verdict: impl fmt::Display) {
        let post = &mut self.cells[usize::from(cell.0)];
        if post.epoch == epoch && post.alive {
            let line = format!("it {verdict}");
            post.last_words = Some(FleetError::reported(ErrorKind::Other, line.as_bytes()));
            self.kill(cell);
        }
    }

    /// Ends cells that have written what cannot be where failed flushes are counted.
    pub(super) fn end_bad_vitals(&mut self) {
        let bad: Vec<CellId> = self.memory.have_bad_vitals().collect();
        for cell in bad {
            let epoch = self.cells[usize::from(cell.0)].epoch;
            self.condemn(cell, epoch, "was killed because its vitals cannot be");
        }
    }

    /// Ends a cell with which there is no speaking. Its exit notice follows.
    pub(super) fn kill(&mut self, cell: CellId) {
        let post = &mut self.cells[usize::from(cell.0)];
        post.alive = false;
        let kill = ToKeeper::Kill { token: post.token };
        // A keeper that is gone takes this process with it.
        let _ = self.keeper.send(kill.to_bytes(), Vec::new());
    }

    /// Starts a successor. If that fails it is as if it had ended at once.
    pub(super) fn restart(&mut self, cell: CellId, epoch: Epoch) {
        let post = &self.cells[usize::from(cell.0)];
        assert!(post.exited, "a cell has one process at a time");
        match &post.last_words {
            Some(error) => {
                warn!(target: LIFE, "cell {cell} ended ({error}); a successor takes over");
            }
            None => warn!(target: LIFE, "cell {cell} ended; a successor takes over"),
        }
        if let Err(error) = self.start_successor(cell, epoch) {
            let post = &mut self.cells[usize::from(cell.0)];
            post.epoch = epoch;
            (post.last_words, post.ended) = (Some(error), Ended::FromOutside);
            self.mailboxes.leave(cell);
            self.pending.push_back(Event::CellExited { cell, epoch, by_itself: false });
        } else if self.link_successor(cell).is_err() {
            self.kill(cell);
        } else {
            self.beginning.push(cell);
        }
    }

    fn start_successor(&mut self, cell: CellId, epoch: Epoch) -> Result<(), FleetError> {
        self.mailboxes.enter(cell)?;
        self.memory.renew(cell, epoch);
        let old = &mut self.cells[usize::from(cell.0)];
        // If the start fails the next one has it.
        let own_device = old.next_device.try_clone().map_err(system("share the pool device"))?;
        let devices = [own_device, self.pool.reopen()?];
        let ledger = self.core.ledger();
        let mut starter = Starter {
            keeper: self.keeper,
            plan: &self.plan,
            pool: &self.pool,
            memory: &self.memory,
            mailboxes: &mut self.mailboxes,
            capabilities: &self.capabilities,
            next_token: &mut self.next_token,
        };
        let mut post = starter.start(cell, epoch, Beginning::Successor, devices, ledger)?;
        post.pauses = old.pauses;
        post.pauses.restarts += 1;
        *old = post;
        Ok(())
    }

    /// Links it with every cell whose process is there. Theirs are given to them when they are told.
    fn link_successor(&mut self, cell: CellId) -> Result<(), FleetError> {
        for at in 0..self.cells.len() {
            let other = CellId(at as u16);
            if other == cell || self.cells[at].exited {
                continue;
            }
            let mut starter = Starter {
                keeper: self.keeper,
                plan: &self.plan,
                pool: &self.pool,
                memory: &self.memory,
                mailboxes: &mut self.mailboxes,
                capabilities: &self.capabilities,
                next_token: &mut self.next_token,
            };
            let [own, theirs] = starter.link(cell, other, &self.cells)?;
            self.cells[usize::from(cell.0)].open_door(own);
            self.cells[at].doors.insert(cell, theirs);
        }
        Ok(())
    }

    /// The cell says that it serves.
    pub(super) fn serves(&mut self, cell: CellId) {
        let post = &mut self.cells[usize::from(cell.0)];
        post.last_words = None;
        if let Some(pause) = post.pauses.end(clock::monotonic()) {
            let (ms, epoch) = (pause.as_millis(), post.epoch);
            warn!(target: LIFE, "cell {cell} serves again after {ms} ms (epoch {epoch})");
        } else {
            info!(target: LIFE, "cell {cell} serves");
        }
    }
}
