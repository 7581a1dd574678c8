//! The supervisor itself: events in, effects out.
//!
//! ```text
//! starting -> opening -> serving -> expelling -> last checkpoint -> closing -> ended
//!     |          |           |              |               ^
//!     +----------+-----------+--------------+---------------+  a cell is lost; stop while starting
//! ```
//!
//! A stop first expels all clients, so that nothing is acknowledged after the last checkpoint and
//! unlinked open files are gone by then: only so may the superblock say "clean".
//!
//! A cell that is lost while the fleet serves or stops gets a successor (`loss.rs`). One that is lost
//! before that ends the fleet: what was synced is in the last checkpoint and the logs, which the next
//! start replays. One that is lost while cells end has only ended sooner: all of it is on the device.

use std::collections::BTreeSet;
use std::time::Duration;

use warren_base::limits::CELLS_MAX;
use warren_base::{CellId, ClientId, Epoch, Errno, Instant, MapVersion, Timestamp};
use warren_disk::CopiesState;
use warren_proto::Wire;
use warren_proto::control::{Order, Report, Written};

use crate::admission::{Admission, send};
use crate::alarm::Alarms;
use crate::barrier::Barrier;
use crate::event::{Applicant, ConnectionNo, Effect, Event, Failure};
use crate::fleet::{CellState, Fleet};
use crate::ledger::Ledger;
use crate::loss::Losses;
use crate::recorder::{Begun, Progress, Recorder};
use crate::recovery::{Next, Recovery};
use crate::status::{CellStatus, ClientStatus, Status};
use stop::Stopping;

pub use adoption::Estate;

/// Between the end of a checkpoint and the start of the next that nobody asked for: what a power
/// failure may take of what nobody synced, as ext4's commit interval.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);

/// How long a cell may take to end when it has nothing left to write.
pub const STOP_WAIT: Duration = Duration::from_secs(2);

/// How long cells may take to write what they have when the fleet ends without a checkpoint: the dirty part of a cache of
/// a GiB at 50 MB a second.
pub const SAVE_WAIT: Duration = Duration::from_secs(20);

/// How long clients may take to go and cells to write the last checkpoint, before one of them is
/// said to hang. A command that waits for the end of a fleet waits longer.
pub const STOP_MAX: Duration = Duration::from_secs(100);

/// What a supervisor is started with.
pub struct Config {
    /// Epoch of each cell, indexed by its number.
    pub epochs: Vec<Epoch>,
    pub map_version: MapVersion,
    /// Owner of every shard, indexed by its number.
    pub owners: Vec<CellId>,
    pub ledger: Ledger,
    /// The pool was not left in order: replay its logs, write a checkpoint and end. The cells are as many
    /// as its logs.
    pub recover: bool,
    /// How the two superblocks stood when the pool was opened.
    pub copies: CopiesState,
}

/// How far the fleet is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Stage {
    /// Cells open their shards, and recover if need be.
    Starting,
    /// The superblock is being told that the pool is in use.
    Opening,
    Serving,
    /// A stop was asked for; clients go.
    Expelling,
    /// The last checkpoint waits for its turn, or (`started`) is under way.
    LastCheckpoint {
        started: bool,
    },
    /// Cells end. The time that they have begins when the last flush is done.
    Closing {
        until: Option<Instant>,
    },
    Ended,
}

pub struct Supervisor {
    pub(crate) fleet: Fleet,
    map_version: MapVersion,
    owners: Vec<CellId>,
    pub(crate) admission: Admission,
    pub(crate) losses: Losses,
    pub(crate) alarms: Alarms,
    pub(crate) barrier: Barrier,
    pub(crate) recorder: Recorder,
    pub(crate) stage: Stage,
    recovery: Option<Recovery>,
    /// A superblock copy to bring up to date before anything else.
    behind: Option<usize>,
    next_checkpoint: Instant,
    last_checkpoint: Option<Timestamp>,
    checkpoints: u64,
    checkpoints_failed: u64,
    /// When the cells must be done with all that a stop asks of them.
    stop_by: Option<Instant>,
    failure: Option<Failure>,
    stopping: Stopping,
}

/// The time of an event, and where its effects go.
pub(crate) struct Turn<'a> {
    pub(crate) now: Instant,
    wall: Timestamp,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Supervisor {
    pub fn new(config: Config) -> Self {
        let Config { epochs, map_version, owners, ledger, recover, copies } = config;
        assert!((1..=CELLS_MAX).contains(&epochs.len()));
        assert_eq!(owners.len(), usize::from(ledger.superblock().layout.shards()));
        assert!(owners.iter().all(|owner| usize::from(owner.0) < epochs.len()));
        let fleet = Fleet::new(&epochs);
        let recovery = recover.then(|| Recovery::new(fleet.all()));
        Self {
            fleet,
            recovery,
            map_version,
            owners,
            losses: Losses::new(epochs.len()),
            alarms: Alarms::default(),
            admission: Admission::default(),
            barrier: Barrier::new(ledger.superblock().generation),
            recorder: Recorder::new(ledger),
            stage: Stage::Starting,
            behind: behind(copies),
            next_checkpoint: Instant::default(),
            last_checkpoint: None,
            checkpoints: 0,
            checkpoints_failed: 0,
            stop_by: None,
            failure: None,
            stopping: Stopping::default(),
        }
    }

    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// What is on the device.
    pub const fn ledger(&self) -> &Ledger {
        self.recorder.ledger()
    }

    pub fn apply(
        &mut self,
        now: Instant,
        wall: Timestamp,
        event: Event,
        effects: &mut Vec<Effect>,
    ) {
        if self.stage == Stage::Ended {
            return;
        }
        let mut turn = Turn { now, wall, effects };
        self.catch_up(&mut turn);
        match event {
            Event::Report { from, epoch, report } => {
                // What a lost cell had said last comes too late.
                let listens = self.fleet.state(from) != CellState::Lost;
                if self.fleet.is_current(from, epoch) && listens {
                    self.report(from, epoch, report, &mut turn);
                }
            }
            Event::CellExited { cell, epoch, by_itself } => {
                if self.fleet.is_current(cell, epoch) {
                    self.exited((cell, epoch), by_itself, &mut turn);
                }
            }
            Event::Connect { connection, applicant } => {
                self.connect(connection, applicant, &mut turn);
            }
            Event::Hangup { client } => self.hangup(client, &mut turn),
            Event::TryCheckpoint | Event::TryStop | Event::Stop | Event::GiveUp => {
                self.asked_to_stop(&event, &mut turn);
            }
            Event::FlushFailed { errno } => self.recorder.give_up(errno),
            Event::IoDone { io, result } => {
                let progress = self.recorder.io_done(io, result, turn.effects);
                self.progress(progress, &mut turn);
            }
            Event::Tick => self.tick(&mut turn),
        }
        self.advance(&mut turn);
    }

    fn catch_up(&mut self, turn: &mut Turn<'_>) {
        if let Some(copy) = self.behind.take() {
            self.recorder.write_copy(copy, turn.effects);
        }
    }

    fn report(&mut self, from: CellId, epoch: Epoch, report: Report, turn: &mut Turn<'_>) {
        match report {
            Report::Ready { map, .. } => self.ready(from, map, turn),
            Report::Admitted { client } => self.admission.admitted(from, client, turn.effects),
            Report::Expelled { client } => self.admission.expelled(from, client, turn.effects),
            Report::WantCheckpoint { .. } => self.barrier.wanted = true,
            Report::Drained { number, .. } => {
                if self.barrier.drained(from, number) {
                    self.all_drained(turn);
                }
            }
            Report::Written { number, result, .. } => {
                self.written(from, number, result, turn);
            }
            Report::LogEnd { lsn, .. } => {
                let all = self.fleet.all();
                let next = self.recovery.as_mut().and_then(|r| r.log_end(from, lsn, all));
                self.recover(next, turn);
            }
            Report::Replayed { chunks, .. } => {
                let next = self.recovery.as_mut().and_then(|r| r.replayed(from, chunks));
                self.recover(next, turn);
            }
            Report::Heard { lost, .. } => self.losses.heard(from, lost),
            Report::Broken { shard, errno, .. } => {
                self.fail(Failure::BrokenShard { shard, errno }, turn);
            }
            Report::Stuck { errno, .. } => self.recorder.give_up(errno),
            Report::BrokenLog { errno, .. } => {
                self.fail(Failure::BrokenLog { cell: from, errno }, turn);
            }
            Report::Suspect { cell, epoch: of, why } => {
                self.suspected((from, epoch), (cell, of), why, turn);
            }
            Report::Stopped { .. } if matches!(self.stage, Stage::Closing { .. }) => {
                self.fleet.set(from, CellState::Stopped);
            }
            Report::Stopped { .. } => {
                self.fleet.set(from, CellState::Stopped);
                self.fail(Failure::CellExited { cell: from, epoch }, turn);
            }
        }
    }

    fn ready(&mut self, from: CellId, map: MapVersion, turn: &mut Turn<'_>) {
        if self.fleet.state(from) != CellState::Starting {
            return;
        }
        if map != self.map_version {
            return self.fail(Failure::WrongMap { cell: from }, turn);
        }
        self.fleet.set(from, CellState::Ready);
        self.losses.recovered(from, turn.now);
        if self.stage != Stage::Starting || !self.fleet.are_all_ready() {
            return;
        }
        if self.recovery.is_some() {
            // Nobody was admitted: what is left to do is the checkpoint that the clean mark comes with.
            self.stage = Stage::LastCheckpoint { started: false };
            return;
        }
        self.stage = Stage::Opening;
        let number = self.barrier.skip();
        self.open(number, turn);
    }

    fn open(&mut self, number: u64, turn: &mut Turn<'_>) {
        let cells = self.fleet.all().iter().count();
        self.recorder.open(number, cells, turn.effects);
    }

    /// The pool is marked as in use: whatever is logged from now on counts.
    fn opened(&mut self, turn: &mut Turn<'_>) {
        self.stage = Stage::Serving;
        turn.effects.push(Effect::FleetReady);
        self.set_timer(turn);
    }

    fn recover(&mut self, next: Option<Next>, turn: &mut Turn<'_>) {
        let order = match next {
            None => return,
            Some(Next::Cut(ends)) => Order::Cut { ends },
            Some(Next::Replay) => Order::Replay,
            Some(Next::Claimed(chunks)) => match self.wrongly_claimed(&chunks) {
                Some(chunk) => return self.fail(Failure::BrokenLogs { chunk }, turn),
                None => Order::Claimed { chunks },
            },
        };
        send(self.fleet.all(), &order, turn.effects);
    }

    /// One of the chunks that was somebody's before, or is claimed twice.
    fn wrongly_claimed(&self, chunks: &[u64]) -> Option<u64> {
        let mut seen = BTreeSet::new();
        let mut is_right = |chunk: u64| self.recorder.ledger().is_free(chunk) && seen.insert(chunk);
        chunks.iter().copied().find(|chunk| !is_right(*chunk))
    }

    fn connect(&mut self, connection: ConnectionNo, applicant: Applicant, turn: &mut Turn<'_>) {
        let result = match self.stage {
            Stage::Starting | Stage::Opening => Err(Errno::EAGAIN),
            Stage::Serving => {
                let cells = (self.fleet.all(), self.fleet.living());
                self.admission.connect(cells, connection, applicant, turn.effects)
            }
            _ => Err(Errno::EIO),
        };
        if let Err(errno) = result {
            turn.effects.push(Effect::RefuseClient { connection, errno });
        }
    }

    fn hangup(&mut self, client: ClientId, turn: &mut Turn<'_>) {
        if !matches!(self.stage, Stage::Closing { .. }) {
            let cells = (self.fleet.all(), self.fleet.living());
            self.admission.hangup(cells, client, turn.effects);
        }
    }

    fn exited(&mut self, (cell, epoch): (CellId, Epoch), by_itself: bool, turn: &mut Turn<'_>) {
        let state = self.fleet.state(cell);
        let is_running = matches!(state, CellState::Ready | CellState::Starting);
        if self.is_served() && is_running {
            return self.lose((cell, epoch), by_itself, turn);
        }
        if state == CellState::Lost {
            return;
        }
        self.fleet.set(cell, CellState::Exited);
        // Of one that is told to end nothing is left to do.
        if state != CellState::Stopped && !matches!(self.stage, Stage::Closing { .. }) {
            self.fail(Failure::CellExited { cell, epoch }, turn);
        }
    }

    fn stop(&mut self, turn: &mut Turn<'_>) {
        match self.stage {
            Stage::Starting => self.close(Order::Stop, turn),
            Stage::Serving => {
                self.stage = Stage::Expelling;
                self.stop_by = Some(turn.now + STOP_MAX);
                self.set_alarm(turn);
                let cells = (self.fleet.all(), self.fleet.living());
                self.admission.expel_all(cells, turn.effects);
            }
            _ => {}
        }
    }

    /// Ends the fleet without another checkpoint. The first failure is the one that is told.
    pub(crate) fn fail(&mut self, failure: Failure, turn: &mut Turn<'_>) {
        self.failure = self.failure.or(Some(failure));
        if !matches!(self.stage, Stage::Closing { .. }) {
            self.recorder.halt();
            self.close(if self.is_served() { Order::Save } else { Order::Stop }, turn);
        }
    }

    /// Whether the fleet goes on without a cell that is lost, and something may have been acknowledged.
    fn is_served(&self) -> bool {
        let serves =
            matches!(self.stage, Stage::Serving | Stage::Expelling | Stage::LastCheckpoint { .. });
        serves && self.recovery.is_none()
    }

    fn close(&mut self, order: Order, turn: &mut Turn<'_>) {
        self.stage = Stage::Closing { until: None };
        send(self.fleet.living(), &order, turn.effects);
        self.seal(turn);
    }

    fn seal(&mut self, turn: &mut Turn<'_>) {
        let progress = self.recorder.seal(turn.effects);
        self.progress(progress, turn);
    }

    /// Whatever has become possible or due.
    fn advance(&mut self, turn: &mut Turn<'_>) {
        self.restart_lost(turn);
        self.tell_broken(turn);
        let stage = self.stage;
        match stage {
            Stage::Serving if self.is_stop_due() => {
                self.stop(turn);
                self.advance(turn);
            }
            Stage::Serving | Stage::Expelling if self.may_drain() => {
                let is_due = self.stage == Stage::Serving && turn.now >= self.next_checkpoint;
                if self.barrier.wanted
                    || self.wants_trial()
                    || (is_due && self.recorder.broken().is_none())
                {
                    self.drain(turn);
                } else if self.stage == Stage::Expelling && self.admission.is_empty() {
                    self.stage = Stage::LastCheckpoint { started: true };
                    self.drain(turn);
                }
            }
            Stage::Expelling if self.admission.is_empty() => {
                self.stage = Stage::LastCheckpoint { started: false };
            }
            Stage::LastCheckpoint { started: false } if self.may_drain() => {
                self.stage = Stage::LastCheckpoint { started: true };
                self.drain(turn);
            }
            Stage::Closing { until: Some(_) } if self.fleet.living().is_empty() => self.end(turn),
            _ => {}
        }
    }

    /// Judges who is late: only here, because a driver has heard everybody before a tick.
    fn tick(&mut self, turn: &mut Turn<'_>) {
        let stop_by = match self.stage {
            Stage::Expelling | Stage::LastCheckpoint { .. } => self.stop_by,
            Stage::Closing { until } => until,
            _ => None,
        };
        self.set_alarm(turn);
        if stop_by.is_none_or(|by| turn.now < by) {
            return;
        }
        if matches!(self.stage, Stage::Closing { .. }) {
            let hangs = self.fleet.living().iter().next();
            let failure = hangs.map(|cell| Failure::CellHangs { cell });
            self.failure = self.failure.or(failure);
            self.end(turn);
        } else if let Some(cell) = self.late() {
            self.fail(Failure::CellHangs { cell }, turn);
        }
    }

    /// A cell that the stop waits for.
    fn late(&self) -> Option<CellId> {
        let unready = || self.fleet.unready().iter().next();
        unready().or(self.barrier.waits_for()).or(self.admission.waits_for())
    }

    /// Whether a checkpoint can begin: every cell takes part.
    fn may_drain(&self) -> bool {
        self.barrier.is_idle() && self.fleet.are_all_ready()
    }

    fn end(&mut self, turn: &mut Turn<'_>) {
        self.stage = Stage::Ended;
        turn.effects.push(Effect::Exit(self.outcome()));
    }

    fn drain(&mut self, turn: &mut Turn<'_>) {
        let number = self.barrier.start(self.fleet.all());
        self.begin_trial(number);
        send(self.fleet.all(), &Order::Drain { number }, turn.effects);
    }

    fn all_drained(&mut self, turn: &mut Turn<'_>) {
        if self.recorder.broken().is_some() {
            return self.checkpoint_failed(Errno::EIO, turn);
        }
        let number = self.barrier.number();
        self.barrier.write(self.fleet.all());
        let count = self.losses.is_uncounted();
        send(self.fleet.all(), &Order::Write { number, count }, turn.effects);
    }

    fn written(
        &mut self,
        from: CellId,
        number: u64,
        result: Result<Written, Errno>,
        turn: &mut Turn<'_>,
    ) {
        match self.barrier.written(from, number, result) {
            None => {}
            Some(Ok(())) => {
                // Once: what is handed out is not handed out again when it is recorded again.
                self.count_chunks(turn);
                self.begin_recording(turn);
            }
            Some(Err(errno)) => self.checkpoint_failed(errno, turn),
        }
    }

    /// Records what all cells have written.
    fn begin_recording(&mut self, turn: &mut Turn<'_>) {
        let number = self.barrier.number();
        let clean = matches!(self.stage, Stage::LastCheckpoint { started: true });
        let written = self.barrier.parts().expect("all cells have written");
        match self.recorder.begin(number, clean, written, &self.owners, turn.effects) {
            Ok(Begun::NothingChanged) => self.checkpoint_done(turn),
            Ok(Begun::Writing) => {}
            Err(errno) => self.checkpoint_failed(errno, turn),
        }
    }

    fn progress(&mut self, progress: Progress, turn: &mut Turn<'_>) {
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

    fn sealed(&mut self, result: Result<(), Errno>, turn: &mut Turn<'_>) {
        // Not before: a driver that flushes hears nobody meanwhile.
        let wait = match self.failure {
            // A stop has waited for long enough, and has nothing left to write.
            None | Some(Failure::CellHangs { .. } | Failure::LastCheckpoint { .. }) => STOP_WAIT,
            Some(_) => SAVE_WAIT,
        };
        self.stage = Stage::Closing { until: Some(turn.now + wait) };
        self.set_alarm(turn);
        if let Err(errno) = result {
            self.failure = self.failure.or(Some(Failure::LastFlush { errno }));
        }
    }

    fn checkpoint_done(&mut self, turn: &mut Turn<'_>) {
        let number = self.barrier.number();
        self.checkpoints += 1;
        self.last_checkpoint = Some(turn.wall);
        send(self.fleet.living(), &Order::Switched { number }, turn.effects);
        self.checkpoint_ended(turn);
        self.trial_ended(number, Ok(()), turn);
    }

    fn checkpoint_failed(&mut self, errno: Errno, turn: &mut Turn<'_>) {
        let number = self.barrier.number();
        self.checkpoints_failed += 1;
        let broken = self.recorder.broken().is_some();
        send(self.fleet.living(), &Order::Failed { number, errno, broken }, turn.effects);
        if self.stage == (Stage::LastCheckpoint { started: true }) {
            self.last_checkpoint_failed(errno, turn);
        }
        self.checkpoint_ended(turn);
        self.trial_ended(number, Err(errno), turn);
    }

    fn checkpoint_ended(&mut self, turn: &mut Turn<'_>) {
        self.barrier.end();
        match self.stage {
            Stage::LastCheckpoint { started: true } => self.close(Order::Stop, turn),
            _ => self.set_timer(turn),
        }
    }

    fn set_timer(&mut self, turn: &mut Turn<'_>) {
        self.next_checkpoint = turn.now + CHECKPOINT_INTERVAL;
        self.set_alarm(turn);
    }

    /// Asks for a tick at the next time at which anything is due.
    pub(crate) fn set_alarm(&self, turn: &mut Turn<'_>) {
        let end = match self.stage {
            Stage::Closing { until } => until,
            _ => self.stop_by,
        };
        let times = self.losses.pauses_until().chain([self.next_checkpoint]).chain(end);
        // What was due before waits for something else than the time.
        if let Some(at) = times.filter(|at| *at > turn.now).min() {
            turn.effects.push(Effect::Wake(at));
        }
    }

    /// How many of the slots that it wants the applicant can have now, or why it cannot be a client.
    pub fn slots_for(&self, applicant: &Applicant) -> Result<u16, Errno> {
        self.admission.slots_for(applicant)
    }

    /// Who a client is, for as long as some cell may know it.
    pub fn applicant(&self, client: ClientId) -> Option<&Applicant> {
        self.admission.applicant(client)
    }

    pub fn status(&self) -> Status {
        let ledger = self.recorder.ledger();
        let shards = |cell| self.owners.iter().filter(|owner| **owner == cell).count();
        let cells = (self.fleet.iter())
            .map(|(cell, member)| CellStatus {
                cell,
                epoch: member.epoch,
                state: member.state,
                shards: shards(cell),
            })
            .collect();
        let clients = (self.admission.iter())
            .map(|(client, known)| ClientStatus {
                client,
                pid: known.applicant.pid,
                uid: known.applicant.credentials.uid,
                front: known.applicant.front,
                slots: known.applicant.slots,
                mounted: known.applicant.mounted.clone(),
                state: known.state,
            })
            .collect();
        Status {
            stage: self.stage,
            map_version: self.map_version,
            generation: ledger.superblock().generation,
            last_checkpoint: self.last_checkpoint,
            checkpoints: self.checkpoints,
            checkpoints_failed: self.checkpoints_failed,
            broken: self.recorder.broken(),
            broken_since: self.stopping.broken_since,
            chunks_free: ledger.regions().free_chunks(),
            cells,
            clients,
        }
    }
}

/// The copy of the superblock that is to be brought up to date.
const fn behind(copies: CopiesState) -> Option<usize> {
    match copies {
        CopiesState::Agree => None,
        CopiesState::Behind(copy) | CopiesState::Bad(copy, _) => Some(copy),
    }
}

mod adoption;
mod stop;
#[cfg(test)]
mod tests;
