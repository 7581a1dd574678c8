//! Checkpoints: the supervisor routes between the barrier, the committer and the stages.
//!
//! ```text
//! Drain to all cells -> all Drained -> Write to all cells -> all Written -> committer
//!     -> Switched to all cells; or Failed, if a cell or the device has failed
//! ```
//!
//! The opening of the pool and the last flush go through the committer as well.

use warren_base::{CellId, Errno, Instant};
use warren_proto::control::{Order, Written};

use super::{SAVE_WAIT, STOP_WAIT, Supervisor};
use crate::committer::{Begun, Progress};
use crate::count;
use crate::event::{Effect, Failure};
use crate::stage::Stage;
use crate::turn::Turn;

impl Supervisor {
    pub(super) fn open(&mut self, number: u64, turn: &mut Turn<'_>) {
        let cells = self.fleet.all().iter().count();
        self.committer.open(number, cells, turn.effects);
    }

    /// The pool is marked as in use: log records count from now on.
    pub(super) fn opened(&mut self, turn: &mut Turn<'_>) {
        self.stage = Stage::Serving;
        turn.push(Effect::FleetReady);
        self.restart_interval(turn);
    }

    /// Whether a checkpoint can start: all cells take part.
    pub(super) fn may_drain(&self) -> bool {
        self.barrier.is_idle() && self.fleet.are_all_ready()
    }

    /// Whether a checkpoint before the last one must start now.
    pub(super) fn wants_checkpoint(&self, now: Instant) -> bool {
        let is_due = || self.stage == Stage::Serving && self.schedule.is_due(now);
        self.barrier.is_requested()
            || self.growth.wants_checkpoint()
            || self.stop.wants_trial(self.stage)
            || (self.committer.broken().is_none() && is_due())
    }

    pub(super) fn drain(&mut self, turn: &mut Turn<'_>) {
        let number = self.barrier.start(self.fleet.all());
        self.stop.checkpoint_started(self.stage, number);
        self.growth.announce(number, self.fleet.all(), turn.effects);
        turn.send(self.fleet.all(), &Order::Drain { number });
    }

    pub(super) fn all_drained(&mut self, turn: &mut Turn<'_>) {
        if self.committer.broken().is_some() {
            return self.checkpoint_failed(Errno::EIO, turn);
        }
        let number = self.barrier.number();
        self.barrier.write(self.fleet.all());
        let count = self.losses.is_uncounted();
        turn.send(self.fleet.all(), &Order::Write { number, count });
    }

    pub(super) fn written(
        &mut self,
        from: CellId,
        number: u64,
        result: Result<Written, Errno>,
        turn: &mut Turn<'_>,
    ) {
        match self.barrier.written(from, number, result) {
            None => {}
            Some(Ok(())) => {
                // Here and not in `begin_recording`, which a successor of this supervisor repeats:
                // chunks must be handed out once.
                self.count_chunks(turn);
                self.begin_recording(turn);
            }
            Some(Err(errno)) => self.checkpoint_failed(errno, turn),
        }
    }

    /// Hands out the free chunks that no cell has, if the samples of the cells show them.
    fn count_chunks(&mut self, turn: &mut Turn<'_>) {
        let written = self.barrier.parts().expect("all cells have written");
        if !self.losses.is_uncounted() {
            return;
        }
        if let Some(missing) = count::missing(self.committer.ledger(), written) {
            self.losses.counted();
            // Any cell will do: a cell without free chunks asks all others.
            count::hand_out(&missing, written[0].0, turn.effects);
        }
    }

    /// Records what all cells have written.
    pub(super) fn begin_recording(&mut self, turn: &mut Turn<'_>) {
        let number = self.barrier.number();
        // The log of a cell that is taken out is to be replayed.
        let clean = self.is_last() && self.outages.is_empty();
        let written = self.barrier.parts().expect("all cells have written");
        let grown = self.growth.committed_by(number, &self.ledger().superblock().layout);
        match self.committer.begin(number, clean, (written, &self.owners), grown, turn.effects) {
            Ok(Begun::NothingChanged) => self.checkpoint_done(turn),
            Ok(Begun::Writing) => {}
            Err(errno) => self.checkpoint_failed(errno, turn),
        }
    }

    pub(super) fn progress(&mut self, progress: Progress, turn: &mut Turn<'_>) {
        match progress {
            Progress::Pending => {}
            Progress::Committed if self.stage == Stage::Opening => self.opened(turn),
            Progress::Failed(errno) if self.stage == Stage::Opening => {
                self.fail(Failure::Opening { errno }, turn);
            }
            Progress::Committed => self.checkpoint_done(turn),
            Progress::Failed(errno) => self.checkpoint_failed(errno, turn),
            Progress::Sealed(result) => self.sealed(result, turn),
        }
    }

    pub(super) fn checkpoint_done(&mut self, turn: &mut Turn<'_>) {
        let number = self.barrier.number();
        self.schedule.succeed(turn.wall);
        let is_whole = self.outages.is_empty();
        turn.send(self.fleet.living(), &Order::Switched { number, is_whole });
        self.checkpoint_ended(number, Ok(()), turn);
    }

    fn checkpoint_failed(&mut self, errno: Errno, turn: &mut Turn<'_>) {
        let number = self.barrier.number();
        self.schedule.fail(turn.wall);
        let broken = self.committer.broken().is_some();
        turn.send(self.fleet.living(), &Order::Failed { number, errno, broken });
        if self.is_last() {
            if self.stop.last_checkpoint_failed(errno, turn.effects) {
                self.failure = self.failure.or(Some(Failure::LastCheckpoint { errno }));
            } else {
                self.stage = Stage::Serving;
            }
        }
        self.checkpoint_ended(number, Err(errno), turn);
    }

    fn checkpoint_ended(&mut self, number: u64, result: Result<(), Errno>, turn: &mut Turn<'_>) {
        self.barrier.end();
        let cells = (self.fleet.living(), self.fleet.all().iter().count());
        let ledger = self.committer.ledger();
        self.growth.checkpoint_ended(number, result, cells, ledger, turn.effects);
        if self.is_last() {
            self.close(Order::Stop, turn);
        } else {
            self.restart_interval(turn);
        }
        if self.stop.checkpoint_ended(number, result, self.stage, turn.effects) {
            self.begin_stop(turn);
        }
    }

    /// Aborts the checkpoint that waits for a lost cell, and requests another.
    pub(super) fn abort_checkpoint(&mut self, turn: &mut Turn<'_>) {
        let number = self.barrier.number();
        turn.send(self.fleet.living(), &Order::Abandoned { number });
        self.barrier.end();
        self.growth.abandoned();
        self.barrier.request();
        if self.is_last() {
            self.stage = Stage::LastCheckpoint { started: false };
        }
    }

    /// Whether the checkpoint under way is the last one.
    fn is_last(&self) -> bool {
        self.stage == (Stage::LastCheckpoint { started: true })
    }

    fn restart_interval(&mut self, turn: &mut Turn<'_>) {
        self.schedule.restart(turn.now);
        self.set_wake(turn);
    }

    pub(super) fn seal(&mut self, turn: &mut Turn<'_>) {
        let progress = self.committer.seal(turn.effects);
        self.progress(progress, turn);
    }

    fn sealed(&mut self, result: Result<(), Errno>, turn: &mut Turn<'_>) {
        // The time starts only now, because a driver that flushes delivers no reports meanwhile.
        let wait = match self.failure {
            // The cells have had the time of a stop, and have nothing left to write.
            None | Some(Failure::CellHangs { .. } | Failure::LastCheckpoint { .. }) => STOP_WAIT,
            Some(_) => SAVE_WAIT,
        };
        self.stage = Stage::Closing { until: Some(turn.now + wait) };
        self.set_wake(turn);
        if let Err(errno) = result {
            self.failure = self.failure.or(Some(Failure::LastFlush { errno }));
        }
    }
}
