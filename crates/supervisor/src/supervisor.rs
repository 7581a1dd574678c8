//! The supervisor: receives events, routes them to its machines and turns their outcomes into
//! effects. The stages of the fleet stand in `stage`.
//!
//! A cell that is lost while the fleet serves or stops gets a successor (`loss`). A cell that is
//! lost earlier ends the fleet: synced data is in the last checkpoint and in the logs, which the
//! next start replays. A cell that is lost while cells end has only ended sooner, because all its
//! data is on the device.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_base::limits::CELLS_MAX;
use warren_base::{CellId, ClientId, Epoch, Errno, Instant, MapVersion, ShardId, Timestamp};
use warren_disk::CopiesState;
use warren_proto::control::{Order, Report};
use warren_proto::slot::Shape;

use crate::admission::Admissions;
use crate::alarm::{Alarms, Process};
use crate::barrier::Barrier;
use crate::committer::Committer;
use crate::detector::Detector;
use crate::event::{Applicant, ConnectionNo, Effect, Event, Failure, Verdict};
use crate::fault::Faults;
use crate::fleet::{CellState, Fleet};
use crate::growth::Growth;
use crate::harmed::{Discarded, PostFailed};
use crate::ledger::Ledger;
use crate::loss::{Ended, Losses};
use crate::outage::Outages;
use crate::recovery::{Next, Recovery};
use crate::schedule::Schedule;
use crate::stage::Stage;
use crate::status::GivenUp;
use crate::stop::{Loss, Stop};
use crate::turn::Turn;

pub use adoption::Predecessor;

/// The time in which a cell must end when it has nothing left to write.
pub const STOP_WAIT: Duration = Duration::from_secs(2);

/// The time in which cells must write their dirty data when the fleet ends without a checkpoint:
/// the dirty part of a cache of a GiB at 50 MB a second.
pub(crate) const SAVE_WAIT: Duration = Duration::from_secs(20);

/// The configuration with which a supervisor is started.
pub struct Config {
    /// Epoch of each cell, indexed by its number.
    pub epochs: Vec<Epoch>,
    pub map_version: MapVersion,
    /// Owner of every shard, indexed by its number.
    pub owners: Vec<CellId>,
    pub ledger: Ledger,
    /// The supervisor of a recovery: its cells, one for each log, replay the logs. It records a
    /// checkpoint, marks the pool clean and ends.
    pub recover: bool,
    /// The state of the two superblocks when the pool was opened.
    pub copies: CopiesState,
}

pub struct Supervisor {
    fleet: Fleet,
    map_version: MapVersion,
    owners: Vec<CellId>,
    admission: Admissions,
    losses: Losses,
    alarms: Alarms,
    detector: Detector,
    faults: Faults,
    barrier: Barrier,
    committer: Committer,
    schedule: Schedule,
    growth: Growth,
    stage: Stage,
    stop: Stop,
    recovery: Option<Recovery>,
    /// A superblock copy that must be brought up to date before any other write.
    behind: Option<usize>,
    /// The first failure, which the fleet ends with.
    failure: Option<Failure>,
    /// Since when the cells know that nothing can be recorded any more.
    broken_since: Option<Timestamp>,
    /// Shards that their cells do not serve.
    given_up: BTreeMap<ShardId, GivenUp>,
    outages: Outages,
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
            detector: Detector::default(),
            faults: Faults::default(),
            admission: Admissions::default(),
            barrier: Barrier::new(ledger.superblock().generation),
            committer: Committer::new(ledger),
            schedule: Schedule::default(),
            growth: Growth::default(),
            stage: Stage::Starting,
            stop: Stop::default(),
            behind: stale_copy(copies),
            failure: None,
            broken_since: None,
            given_up: BTreeMap::new(),
            outages: Outages::default(),
        }
    }

    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// The committed state on the device.
    pub const fn ledger(&self) -> &Ledger {
        self.committer.ledger()
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
        self.update_copy(&mut turn);
        self.route(event, &mut turn);
        self.advance(&mut turn);
    }

    fn update_copy(&mut self, turn: &mut Turn<'_>) {
        if let Some(copy) = self.behind.take() {
            self.committer.write_copy(copy, turn.effects);
        }
    }

    fn route(&mut self, event: Event, turn: &mut Turn<'_>) {
        match event {
            Event::Report { from, epoch, report } => {
                // The last reports of a lost cell may arrive after its exit notice.
                let is_lost = self.fleet.state(from) == CellState::Lost;
                if self.fleet.is_current(from, epoch) && !is_lost {
                    self.report(from, epoch, report, turn);
                }
            }
            Event::CellExited { cell, epoch, by_itself } => {
                if self.fleet.is_current(cell, epoch) {
                    self.exited((cell, epoch), by_itself, turn);
                }
            }
            Event::Hangs { cell, epoch, why } => self.accused((cell, epoch), why, turn),
            Event::Moves { cell, epoch } => self.detector.acquit((cell, epoch)),
            Event::Turns { cell, epoch } => self.detector.turned((cell, epoch)),
            Event::Misbehaves { cell, epoch, how } => {
                self.kill((cell, epoch), Verdict::Misbehaves { how }, turn.now, turn);
            }
            Event::Connect { connection, applicant } => self.connect(connection, applicant, turn),
            Event::Hangup { client } => self.hangup(client, turn),
            Event::Rule { client, rules } => {
                self.admission.rule(self.fleet.living(), client, rules, turn.effects);
            }
            Event::Rejoin { cell } => self.rejoin(cell, turn),
            Event::TryCheckpoint => {
                let loses = self.outages.stop_loses(self.committer.broken());
                self.stop.request_trial(self.stage, loses, turn.effects);
            }
            Event::TryStop => self.stop_requested(Loss::Refused, turn),
            Event::Stop => self.stop_requested(Loss::Reported, turn),
            Event::GiveUp => self.stop_requested(Loss::Accepted, turn),
            Event::Grow { blocks } => self.grow(blocks, turn),
            Event::FlushFailed { errno } => self.committer.break_off(errno),
            Event::IoDone { io, result } => {
                let progress = self.committer.io_done(io, result, turn.effects);
                self.progress(progress, turn);
            }
            Event::Tick => self.tick(turn),
        }
    }

    fn report(&mut self, from: CellId, epoch: Epoch, report: Report, turn: &mut Turn<'_>) {
        match report {
            Report::Ready { map, .. } => self.ready(from, map, turn),
            Report::Admitted { client } => self.admission.admitted(from, client, turn.effects),
            Report::Expelled { client } => self.admission.expelled(from, client, turn.effects),
            Report::WantCheckpoint { .. } => self.barrier.request(),
            Report::Drained { number, .. } => {
                if self.barrier.drained(from, number) {
                    self.all_drained(turn);
                }
            }
            Report::Written { number, result, .. } => self.written(from, number, result, turn),
            Report::LogEnd { lsn, .. } => {
                let all = self.fleet.all();
                let next = self.recovery.as_mut().and_then(|r| r.log_end(from, lsn, all));
                self.recover(next, turn);
            }
            Report::Replayed { chunks, .. } => {
                let next = self.recovery.as_mut().and_then(|r| r.replayed(from, chunks));
                self.recover(next, turn);
            }
            Report::Grown { cell } => self.growth.shared(cell, turn.effects),
            Report::LossHandled { lost, .. } => self.losses.acknowledged(from, lost),
            Report::GivenUp { shard, errno, .. } => {
                if self.given_up.insert(shard, GivenUp { errno, since: turn.wall }).is_none() {
                    turn.send(self.fleet.living(), &Order::GivenUp { shard });
                }
            }
            Report::Discarded { ino, generation, .. } => {
                self.faults.discarded.insert_once(ino, Discarded { generation }, turn.wall);
            }
            Report::PostFailed { ino, errno, .. } => {
                self.faults.posts_failed.insert(ino, PostFailed { errno }, turn.wall);
            }
            Report::Unreadable { errno, .. } => {
                self.fail(Failure::Unreadable { cell: from, errno }, turn);
            }
            Report::Stuck { errno, .. } => self.committer.break_off(errno),
            Report::BrokenLog { errno, .. } => {
                self.fail(Failure::BrokenLog { cell: from, errno }, turn);
            }
            Report::Asked { trial } => self.detector.asked(from, trial),
            Report::Answered { trial } => self.detector.answered(from, trial),
            Report::Silent { cell } => {
                let accused = self.fleet.process(cell).filter(|it| self.may_try(*it));
                let (by, living) = ((from, epoch), self.fleet.living());
                let sentence =
                    accused.and_then(|it| self.detector.accused_by(by, it, living, turn));
                if let Some((process, verdict)) = sentence {
                    self.kill(process, verdict, turn.now, turn);
                }
            }
            Report::LostWakeup if self.may_try((from, epoch)) => {
                self.kill((from, epoch), Verdict::LostWakeup, turn.now, turn);
            }
            Report::LostWakeup | Report::LostMessage { .. } => {}
            Report::Suspect { cell, epoch: of, why } => {
                self.suspected((from, epoch), (cell, of), why, turn);
            }
            Report::Stopped { .. } => {
                self.fleet.set(from, CellState::Stopped);
                if !self.stage.is_closing() {
                    self.fail(Failure::CellExited { cell: from, epoch }, turn);
                }
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
        self.losses.ready(from, turn.now);
        self.faults.successor_serves(from, turn.now);
        self.end_outage(from, turn);
        if self.stage != Stage::Starting || !self.fleet.are_all_ready() {
            return;
        }
        if self.recovery.is_some() {
            // No client was admitted, so only the checkpoint that marks the pool clean is left.
            self.stage = Stage::LastCheckpoint { started: false };
            return;
        }
        self.stage = Stage::Opening;
        let number = self.barrier.skip();
        self.open(number, turn);
    }

    fn recover(&mut self, next: Option<Next>, turn: &mut Turn<'_>) {
        let order = match next {
            None => return,
            Some(Next::Cut(ends)) => Order::Cut { ends },
            Some(Next::Replay) => Order::Replay,
            Some(Next::Claimed(chunks)) => match self.committer.ledger().wrongly_claimed(&chunks) {
                Some(chunk) => return self.fail(Failure::BrokenLogs { chunk }, turn),
                None => Order::Claimed { chunks },
            },
        };
        turn.send(self.fleet.all(), &order);
    }

    fn connect(&mut self, connection: ConnectionNo, applicant: Applicant, turn: &mut Turn<'_>) {
        let result = match self.stage {
            Stage::Starting | Stage::Opening => Err(Errno::EAGAIN),
            // It would be a dead mount soon.
            Stage::Serving if applicant.front && self.stop.is_ending() => Err(Errno::EAGAIN),
            Stage::Serving => {
                let cells = (self.fleet.all(), self.fleet.living());
                self.admission.connect(cells, connection, applicant, turn.effects)
            }
            _ => Err(Errno::EIO),
        };
        if let Err(errno) = result {
            turn.push(Effect::RefuseClient { connection, errno });
        }
    }

    fn hangup(&mut self, client: ClientId, turn: &mut Turn<'_>) {
        if !self.stage.is_closing() {
            let cells = (self.fleet.all(), self.fleet.living());
            self.admission.hangup(cells, client, turn.effects);
        }
    }

    fn kill(&mut self, process: Process, verdict: Verdict, noticed: Instant, turn: &mut Turn<'_>) {
        // The fleet may have become read-only during the trial.
        if let Verdict::Hangs { why, .. } = verdict
            && !self.may_try(process)
        {
            return self.accused(process, why, turn);
        }
        self.faults.sentenced(process, verdict, noticed);
        let (cell, epoch) = process;
        turn.push(Effect::Kill { cell, epoch, verdict });
    }

    fn exited(&mut self, (cell, epoch): Process, by_itself: bool, turn: &mut Turn<'_>) {
        let state = self.fleet.state(cell);
        if self.replaces_cells() && state.is_running() {
            return self.lose((cell, epoch), by_itself, turn);
        }
        if state == CellState::Lost {
            return;
        }
        self.fleet.set(cell, CellState::Exited);
        // A cell that was ordered to end may exit.
        if state != CellState::Stopped && !self.stage.is_closing() {
            self.fail(Failure::CellExited { cell, epoch }, turn);
        }
    }

    /// The process of a running cell is gone, and the fleet goes on.
    fn lose(&mut self, (cell, epoch): Process, by_itself: bool, turn: &mut Turn<'_>) {
        let was_ready = self.fleet.state(cell) == CellState::Ready;
        self.detector.gone((cell, epoch));
        self.faults.gone((cell, epoch), by_itself, (turn.now, turn.wall));
        self.fleet.set(cell, CellState::Lost);
        match self.losses.ended(cell, was_ready, by_itself, turn.now) {
            Ended::Served => {}
            Ended::Failed => self.set_wake(turn),
            Ended::TooOften => {
                self.take_out(cell, turn);
                if self.stage.is_closing() {
                    return;
                }
            }
        }
        let living = self.fleet.living();
        self.losses.lost(cell, living);
        self.growth.shared(cell, turn.effects);
        self.admission.lost(cell);
        turn.send(living, &Order::Lost { cell, epoch });
        if self.barrier.is_answering() {
            self.abort_checkpoint(turn);
        }
    }

    /// Starts successors of the cells whose loss all cells have acknowledged.
    fn restart_lost(&mut self, turn: &mut Turn<'_>) {
        let is_over = self.stage.is_closing() || self.stage == Stage::Ended;
        while !is_over
            && !self.barrier.is_recording()
            && let Some(cell) = self.losses.next_due(turn.now)
        {
            if self.committer.broken().is_some() {
                let epoch = self.fleet.epoch(cell);
                return self.fail(Failure::CellExited { cell, epoch }, turn);
            }
            let others = self.fleet.living();
            let epoch = self.fleet.restart(cell);
            self.faults.successor_starts(cell, turn.now);
            let is_caretaker = self.outages.starts(cell);
            turn.push(Effect::Restart { cell, epoch, is_caretaker });
            for lost in self.losses.start_successor(cell) {
                let order = Order::Lost { cell: lost, epoch: self.fleet.epoch(lost) };
                turn.push(Effect::Send { to: cell, order });
            }
            let of_others = self.outages.unserved(&self.owners, cell);
            for shard in of_others.into_iter().chain(self.given_up.keys().copied()) {
                turn.push(Effect::Send { to: cell, order: Order::GivenUp { shard } });
            }
            self.admission.introduce(cell, turn.effects);
            turn.send(others, &Order::Joined { cell, epoch });
        }
    }

    /// The pool is to grow, with the next checkpoint.
    fn grow(&mut self, blocks: u64, turn: &mut Turn<'_>) {
        match self.may_grow(blocks) {
            Ok(()) => {
                let layout = self.ledger().superblock().layout;
                self.growth.request(blocks, &layout, turn.effects);
            }
            Err(errno) => turn.push(Effect::Grown { result: Err(errno) }),
        }
    }

    /// Whether the pool can grow to so many blocks now, or has them. EAGAIN: the fleet has not
    /// started yet, or ends. EBUSY: the pool grows to another size. EROFS: nothing can be recorded.
    pub fn may_grow(&self, blocks: u64) -> Result<(), Errno> {
        match (self.stage, self.committer.broken()) {
            (Stage::Serving, None) => {
                self.growth.admits(blocks, &self.ledger().superblock().layout)
            }
            (Stage::Serving, Some(_)) => Err(Errno::EROFS),
            _ => Err(Errno::EAGAIN),
        }
    }

    fn stop_requested(&mut self, loss: Loss, turn: &mut Turn<'_>) {
        let loses = self.outages.stop_loses(self.committer.broken());
        if self.stop.request(loss, self.stage, loses, turn.effects) {
            self.begin_stop(turn);
        }
    }

    fn begin_stop(&mut self, turn: &mut Turn<'_>) {
        match self.stage {
            Stage::Starting => self.close(Order::Stop, turn),
            Stage::Serving => {
                self.stage = Stage::Expelling;
                self.stop.begin(turn.now);
                self.set_wake(turn);
                let cells = (self.fleet.all(), self.fleet.living());
                self.admission.expel_all(cells, turn.effects);
            }
            _ => {}
        }
    }

    /// Ends the fleet without another checkpoint. Its outcome is the first failure.
    fn fail(&mut self, failure: Failure, turn: &mut Turn<'_>) {
        self.failure = self.failure.or(Some(failure));
        if !self.stage.is_closing() {
            self.committer.halt();
            self.close(if self.replaces_cells() { Order::Save } else { Order::Stop }, turn);
        }
    }

    /// Whether lost cells get successors, and clients may have unsynced data that was acknowledged.
    const fn replaces_cells(&self) -> bool {
        self.stage.is_open() && self.recovery.is_none()
    }

    fn close(&mut self, order: Order, turn: &mut Turn<'_>) {
        self.stage = Stage::Closing { until: None };
        turn.send(self.fleet.living(), &order);
        self.seal(turn);
    }

    /// Does what has become possible or due.
    fn advance(&mut self, turn: &mut Turn<'_>) {
        for (process, verdict, began) in self.detector.verdicts(turn.now) {
            self.kill(process, verdict, began, turn);
        }
        self.restart_lost(turn);
        self.report_broken(turn);
        match self.stage {
            Stage::Serving if self.stop.take_early() => {
                self.begin_stop(turn);
                self.advance(turn);
            }
            Stage::Serving | Stage::Expelling if self.may_drain() => {
                if self.wants_checkpoint(turn.now) {
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

    /// Sends all cells the order to go read-only once nothing can be recorded any more.
    fn report_broken(&mut self, turn: &mut Turn<'_>) {
        let Some(errno) = self.committer.broken().filter(|_| self.stage.is_open()) else { return };
        if self.broken_since.is_none() {
            self.broken_since = Some(turn.wall);
            turn.send(self.fleet.living(), &Order::ReadOnly { errno });
        }
    }

    /// Finds cells that are late. It does so only here, because a driver delivers all reports that
    /// have arrived before a tick.
    fn tick(&mut self, turn: &mut Turn<'_>) {
        let deadline = match self.stage {
            Stage::Expelling | Stage::LastCheckpoint { .. } => self.stop.deadline(),
            Stage::Closing { until } => until,
            _ => None,
        };
        self.set_wake(turn);
        if deadline.is_none_or(|deadline| turn.now < deadline) {
            return;
        }
        if self.stage.is_closing() {
            let hangs = self.fleet.living().iter().next();
            let failure = hangs.map(|cell| Failure::CellHangs { cell });
            self.failure = self.failure.or(failure);
            self.end(turn);
            return;
        }
        let unready = || self.fleet.unready().iter().next();
        let waits_for = unready().or(self.barrier.waits_for()).or(self.admission.waits_for());
        if let Some(cell) = waits_for {
            self.fail(Failure::CellHangs { cell }, turn);
        }
    }

    fn end(&mut self, turn: &mut Turn<'_>) {
        self.stage = Stage::Ended;
        turn.push(Effect::Exit(self.stop.outcome(self.outages.failure(self.failure))));
    }

    /// Requests a tick at the next time at which something is due.
    fn set_wake(&self, turn: &mut Turn<'_>) {
        let end = match self.stage {
            Stage::Closing { until } => until,
            _ => self.stop.deadline(),
        };
        let own = self.losses.pauses_until().chain(self.detector.ends());
        let times = own.chain([self.schedule.next()]).chain(end);
        // What was due earlier waits for an event, not for the time.
        if let Some(at) = times.filter(|at| *at > turn.now).min() {
            turn.push(Effect::Wake(at));
        }
    }

    /// The number of the requested slots that the applicant can have now, or the reason why it
    /// cannot be a client.
    pub fn shape_for(&self, applicant: &Applicant) -> Result<Shape, Errno> {
        self.admission.shape_for(applicant)
    }

    /// Whether the cell has reported that it ends, or has ended.
    pub fn has_stopped(&self, cell: CellId) -> bool {
        matches!(self.fleet.state(cell), CellState::Stopped | CellState::Exited)
    }

    /// The process behind a client, as long as a cell may know the client.
    pub fn applicant(&self, client: ClientId) -> Option<&Applicant> {
        self.admission.applicant(client)
    }
}

/// The copy of the superblock that must be brought up to date.
const fn stale_copy(copies: CopiesState) -> Option<usize> {
    match copies {
        CopiesState::Agree => None,
        CopiesState::Behind(copy) | CopiesState::Bad(copy, _) => Some(copy),
    }
}

mod adoption;
mod checkpoint;
mod overview;
mod taken_out;
#[cfg(test)]
mod tests;
mod trials;
