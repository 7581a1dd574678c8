//! Recovery: how a cell processes the log that it finds.
//!
//! After a power failure (or the end of the whole fleet) the log comes from the device:
//!
//! ```text
//! load -> LogEnd -> Ends of all logs -> LogCut, until no cut moves -> Replay up to the cut
//!      -> Replayed -> Claimed: chunks that logs have claimed are given to no other shard
//!      -> send decided transactions to all cells, and receive theirs -> Ready
//! ```
//!
//! If only the process ended, its image is whole. The successor replays it to its end at once, and
//! takes the dirty pages from the frames. The rest is the same from "send" on (`core/peers.rs`).
//!
//! The steps of a shard that was given up are skipped, because they depend on lost state. Each step
//! changes one shard's tree, so the other trees reach their state. A shard in which a step cannot
//! be made is given up (`give_up.rs`).
//!
//! Invariants:
//! * Nothing is served before every transaction that a peer has decided is made here too, because
//!   its keys are not locked any more. Nor before every cell has made the transactions that were
//!   decided here.
//! * A request that was executed according to the log is answered from there: its record was made,
//!   but its reply may not have been sent.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, Errno, Ino, Lsn, ShardId, TxnId};
use warren_disk::{KeptRecords, RawRecord, read_record};
use warren_proto::control::Report;
use warren_proto::{Asked, Cause, Change, PeerRequest, Step};

use crate::apply::{Mode, apply, make_again};
use crate::caretaker::Held;
use crate::chunks::free::Chunks;
use crate::config::{LogConfig, Recovery};
use crate::driver::Driver;
use crate::event::SlotRef;
use crate::fleet::Fleet;
use crate::give_up::give_up;
use crate::log::OpLog;
use crate::log::record::parse;
use crate::recovery::early::Early;
use crate::recovery::frames::{InheritedFrames, clear_unmade};
use crate::recovery::kept::KeptReplay;
use crate::recovery::scan::Scan;
use crate::run::wait::{Stop, Wait, Waits};
use crate::run::work::Work;
use crate::session::Sessions;
use crate::shards::Shards;
use crate::turn::Turn;
use crate::txn::participant::Participants;

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Reading the log from the device.
    Loading,
    /// Agreeing with the other cells which part of each log counts.
    Cutting,
    Replaying,
    /// Waiting for the supervisor's list of claimed chunks.
    Claiming,
    /// Decisions are exchanged with the other cells.
    Exchanging,
    Done,
}

#[derive(Debug)]
pub(crate) struct Replay {
    kind: Recovery,
    phase: Phase,
    scan: Scan,
    /// Where the next record to replay begins, and where the log is cut.
    at: Lsn,
    cut: Lsn,
    /// The record that is being replayed, with the number of steps made.
    record: Option<(RawRecord, Vec<Step>, Cause)>,
    made: usize,
    claimed: Vec<u64>,
    /// Records of a shard that was given up, which are replayed before the log.
    kept: Option<KeptReplay>,
    pub(crate) frames: InheritedFrames,
    pub(crate) early: Early,
    /// Transactions decided here that some cell may not have made, and the slot that may wait for
    /// each.
    decided: BTreeMap<TxnId, (SlotRef, Vec<Change>)>,
    /// Parts of other cells' transactions that a caretaker was sent.
    owed: Vec<(TxnId, Vec<Change>)>,
    /// In a caretaker: what clients have open and locked.
    pub(crate) held: Held,
    /// Cells that have not sent all their decisions.
    undecided: BTreeSet<CellId>,
}

impl Replay {
    /// `others` are the cells whose decisions are needed before a client is served.
    pub(crate) fn new(log: &LogConfig, others: BTreeSet<CellId>) -> Self {
        let LogConfig { start, recovery: kind, may_lose, .. } = *log;
        let phase = match kind {
            Recovery::None => Phase::Done,
            Recovery::Power => Phase::Loading,
            Recovery::Process | Recovery::Caretaker => Phase::Replaying,
        };
        Self {
            kind,
            phase,
            scan: Scan::new(start, may_lose),
            at: start,
            cut: start,
            record: None,
            made: 0,
            claimed: Vec::new(),
            kept: None,
            frames: InheritedFrames::new(kind.is_of_process()),
            early: Early::default(),
            decided: BTreeMap::new(),
            owed: Vec::new(),
            held: Held::default(),
            undecided: others,
        }
    }

    /// The log records that were kept for a shard are replayed first. The region map gives these
    /// chunks to shards.
    pub(crate) fn begin_with(&mut self, kept: &[KeptRecords], owned: &BTreeMap<ShardId, Vec<u64>>) {
        self.kept = KeptReplay::new(kept, owned);
    }

    /// The number of these records that were replayed.
    pub(crate) fn kept_replayed(&self) -> u64 {
        self.kept.as_ref().map_or(0, KeptReplay::replayed)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether the cell follows a process that died.
    pub(crate) fn is_of_process(&self) -> bool {
        self.kind.is_of_process()
    }

    fn mode(&self) -> Mode {
        if self.is_of_process() { Mode::Frames } else { Mode::Power }
    }
}

impl Replay {
    /// The shards are open: recovery begins.
    pub(crate) fn begin(&mut self, turn: &mut Turn<'_>) {
        match self.kind {
            Recovery::None => {}
            Recovery::Power => self.scan_log(turn),
            Recovery::Process | Recovery::Caretaker => {
                turn.waits.start(Work::Replay);
            }
        }
    }

    fn read_record(&self, limit: Lsn, log: &OpLog, driver: &Driver<'_>) -> Option<RawRecord> {
        let copy = |at, into: &mut [u8]| log.image.copy_out(at, into, driver.memory);
        read_record(self.at, limit, log.image.incarnation(), copy)
    }

    /// Examines the loaded part of the log, and reads on unless its end was found.
    fn scan_log(&mut self, turn: &mut Turn<'_>) {
        match self.scan.advance(turn) {
            Ok(None) => {}
            Ok(Some(end)) => {
                (self.phase, self.cut) = (Phase::Cutting, end);
                self.report_cut(turn.fleet, &mut turn.driver);
            }
            Err(errno) => turn.log_is_broken(errno),
        }
    }

    fn report_cut(&self, fleet: &Fleet, driver: &mut Driver<'_>) {
        let (cell, lsn) = (fleet.volume.id, self.cut);
        driver.report(Report::LogEnd { cell, lsn });
    }

    /// Blocks of the log up to `lsn` were read, or the read failed.
    pub(crate) fn log_loaded(&mut self, lsn: Lsn, result: Result<(), Errno>, turn: &mut Turn<'_>) {
        match self.scan.loaded(lsn, result) {
            Ok(()) => self.scan_log(turn),
            Err(errno) => turn.log_is_broken(errno),
        }
    }

    /// The known ends of all logs. This cell's log is cut where it depends on more than that.
    pub(crate) fn cut_log(&mut self, ends: &[Lsn], fleet: &Fleet, driver: &mut Driver<'_>) {
        if let Some(at) = self.scan.rests_beyond(ends) {
            self.cut = self.cut.min(at);
        }
        self.report_cut(fleet, driver);
    }

    /// All cells agree: records before the cut happened.
    pub(crate) fn start(&mut self, log: &OpLog, waits: &mut Waits) {
        self.phase = Phase::Replaying;
        self.at = log.image.start();
        waits.start(Work::Replay);
    }

    /// Replays records until something has to be read first.
    pub(crate) fn run(
        &mut self,
        shards: &mut Shards,
        participants: &mut Participants,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        /// Records of one turn. I/O and messages of peers are taken in between two turns.
        const BATCH: usize = 256;
        if self.kind == Recovery::Process {
            self.frames.check(turn)?;
        }
        if let Some(kept) = &mut self.kept {
            kept.run(shards, turn)?;
        }
        for _ in 0..BATCH {
            if self.record.is_none() {
                let limit = match self.is_of_process() {
                    true => Lsn(turn.log.image.start().0 + turn.log.image.area().bytes()),
                    false => self.cut,
                };
                let Some(record) = self.read_record(limit, turn.log, &turn.driver) else {
                    return self.finish(shards, turn);
                };
                let (steps, cause) = parse(&record).ok_or(Errno::EIO)?;
                self.check_cause(&cause, turn.fleet)?;
                self.record = Some((record, steps, cause));
                self.made = 0;
            }
            self.replay_record(shards, participants, turn)?;
        }
        Err(Stop::Wait(Wait::Turn))
    }

    /// Checks that the other cells' changes of a transaction lie at other cells.
    fn check_cause(&self, cause: &Cause, fleet: &Fleet) -> Result<(), Stop> {
        let Cause::Decided { others, .. } = cause else { return Ok(()) };
        let is_theirs = |change: &Change| {
            fleet.volume.owner(change.shard()).is_some_and(|it| it != fleet.volume.id)
        };
        if others.iter().all(is_theirs) { Ok(()) } else { Err(Errno::EIO.into()) }
    }

    fn replay_record(
        &mut self,
        shards: &mut Shards,
        participants: &mut Participants,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let (record, mut steps, cause) = self.record.take().expect("the caller has put it there");
        let outcome = self.replay_steps(shards, &mut steps, turn);
        if outcome.is_err() {
            self.record = Some((record, steps, cause));
            return outcome;
        }
        self.at = record.end;
        if self.is_of_process() {
            self.cut = record.end;
        }
        self.frames.begin_record();
        for step in &steps {
            if turn.log.is_kept() {
                self.held.apply(step);
            }
            match step {
                Step::Fallocated { ino, change, .. } if self.is_of_process() => {
                    let shard = shards.get(&ino.shard());
                    if let Some(Ok(Some(inode))) = shard.map(|shard| shard.inode(*ino)) {
                        self.frames.dropped(*ino, change, inode.size);
                    }
                }
                Step::Shared { ino, copy, .. } if self.is_of_process() => {
                    self.frames.dropped_pages(*ino, copy);
                }
                Step::Discarded { ino, holes, replaced, .. } if self.is_of_process() => {
                    self.frames.note_discarded(*ino, holes, record.end);
                    self.frames.note_discarded(*ino, replaced, record.end);
                }
                Step::Claimed { chunk, .. } => self.claimed.push(*chunk),
                // A commit of a caretaker makes this record durable. Any other successor writes the
                // states of all cells to the device first.
                Step::Depends { cell, lsn }
                    if turn.log.is_kept() && turn.fleet.peers.has(*cell) =>
                {
                    turn.log.depends.depend_on(*cell, record.lsn, *lsn);
                }
                Step::Owed { txn, .. } if turn.log.is_kept() => {
                    participants.note_applied(*txn);
                }
                Step::Owed { txn, changes } => self.owed.push((*txn, changes.clone())),
                Step::Finished { txn } => {
                    if let Some((from, _)) = self.decided.remove(txn) {
                        turn.sessions.answers.note_wait(from, self.at);
                    }
                }
                _ => {}
            }
        }
        match cause {
            Cause::Cell => {}
            Cause::Request(executed) => drop(turn.sessions.answers.insert(executed, self.at)),
            Cause::Decided { txn, request, others } => {
                let from = turn.sessions.answers.insert(request, self.at);
                self.decided.insert(txn, (from, others));
            }
            Cause::Applied { txn } => drop(participants.note_applied(txn)),
        }
        Ok(())
    }

    fn replay_steps(
        &mut self,
        shards: &mut Shards,
        steps: &mut [Step],
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        let mode = self.mode();
        for step in &mut steps[self.made..] {
            let before = self.frames.places_before(step, shards)?;
            match (step.shard(), &step) {
                (Some(id), _) if shards.is_given_up(id) => pass_over(shards, id, step, turn.chunks),
                (Some(id), _) => match replay_step(shards, id, step, mode, turn) {
                    // The rest of the record is of other shards, and may be made.
                    Err(Stop::Fail(errno)) if shards.serves(id) => {
                        give_up(shards, id, errno, turn);
                        pass_over(shards, id, step, turn.chunks);
                    }
                    made => made?,
                },
                (None, Step::GivenUp { shard, errno }) => give_up(shards, *shard, *errno, turn),
                (None, _) if mode == Mode::Frames => self.remake_session(shards, step, turn)?,
                (None, _) => {}
            }
            self.frames.follow(step, &before);
            self.made += 1;
        }
        Ok(())
    }

    fn finish(&mut self, shards: &mut Shards, turn: &mut Turn<'_>) -> Result<(), Stop> {
        match self.kind {
            Recovery::Process => self.frames.take_back(shards, self.cut, turn)?,
            Recovery::Caretaker => clear_unmade(self.cut, turn.cache, &mut turn.driver),
            _ => shards.values_mut().for_each(|shard| shard.behind.clear()),
        }
        self.phase = Phase::Claiming;
        turn.log.resume(self.cut, turn.driver.memory);
        for (shard, errno) in shards.newly_given_up() {
            turn.note(&Step::GivenUp { shard, errno });
        }
        turn.seal();
        self.frames.log_discards(shards, turn);
        self.frames.write_again(shards, turn);
        for (cell, lsn) in self.early.take_points() {
            turn.log.depends.receive(cell, lsn);
        }
        if !turn.log.is_kept() {
            turn.log.commits.hold_after_recovery();
        }
        if !self.is_of_process() {
            let (cell, chunks) = (turn.fleet.volume.id, std::mem::take(&mut self.claimed));
            turn.driver.report(Report::Replayed { cell, chunks });
        }
        Ok(())
    }

    /// Repeats a step of a client's session, which is only in memory: an open file, its offset or a
    /// lock.
    pub(crate) fn remake_session(
        &self,
        shards: &mut Shards,
        step: &mut Step,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        match step {
            Step::Opened { handle, .. } | Step::Closed { handle } | Step::Moved { handle, .. } => {
                if let Some(shard) = shards.get_mut(&handle.ino.shard()) {
                    apply(shard, step, Mode::Frames, turn)?;
                }
            }
            Step::Locked { ino, client, spec, uid } => {
                // An earlier step has released the locks that blocked this one.
                if let Some(shard) = shards.get_mut(&ino.shard()) {
                    let locks = &mut shard.file_locks;
                    let _ = locks.lock(*ino, (*client, *uid), *spec, &mut turn.sessions.lock_index);
                }
            }
            Step::Expelled { client } => {
                turn.sessions.numbers.forget_client(*client);
                for shard in shards.values_mut() {
                    for handle in shard.opens.handles_of_client(*client) {
                        shard.opens.forget(handle, &mut turn.sessions.opens);
                    }
                }
                for ino in turn.sessions.lock_index.files_of(*client) {
                    let locks = &mut shards.shard(ino.shard()).file_locks;
                    locks.forget_client(ino, *client, &mut turn.sessions.lock_index);
                }
            }
            Step::Numbered { client, first, count } => {
                if let (Some(shard), Some(more)) =
                    (shards.get_mut(&first.shard()), count.checked_sub(1))
                {
                    shard.use_sequence(Ino(first.0 + u64::from(more)));
                    turn.sessions.numbers.give(*client, None, *first, *count);
                }
            }
            Step::Unanswered { request } => {
                turn.sessions.answers.insert(request.clone(), self.at);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Replay {
    /// Whether the log is replayed, and the claimed chunks are not known.
    pub(crate) fn is_claiming(&self) -> bool {
        self.phase == Phase::Claiming
    }

    /// Begins to exchange decisions with the other cells. Returns the decisions of a predecessor
    /// that some cells may not have made.
    pub(crate) fn begin_exchange(
        &mut self,
        sessions: &mut Sessions,
    ) -> BTreeMap<TxnId, Vec<Change>> {
        self.phase = Phase::Exchanging;
        let mut decided = BTreeMap::new();
        for (txn, (from, others)) in std::mem::take(&mut self.decided) {
            sessions.answers.note_wait(from, self.at);
            decided.insert(txn, others);
        }
        decided
    }

    /// Where the log ended that was found.
    pub(crate) const fn inherited_end(&self) -> Lsn {
        self.cut
    }

    /// The chunks that a caretaker's log has claimed.
    pub(crate) fn claimed(&self) -> &[u64] {
        &self.claimed
    }

    /// Takes the changes that a caretaker has logged as owed.
    pub(crate) fn take_owed(&mut self) -> Vec<(TxnId, Vec<Change>)> {
        std::mem::take(&mut self.owed)
    }

    /// A cell has sent all that it decided.
    pub(crate) fn received_all_of(&mut self, from: CellId) {
        self.undecided.remove(&from);
    }

    /// Whether every cell has sent all that it decided.
    pub(crate) fn has_all_decisions(&self) -> bool {
        self.phase == Phase::Exchanging && self.undecided.is_empty()
    }

    /// The cells whose `AllSaid` this cell waits for.
    pub(crate) fn open_asks(&self) -> impl Iterator<Item = (CellId, Asked)> + '_ {
        let cells = self.undecided.iter().filter(|_| self.phase == Phase::Exchanging);
        cells.map(|cell| (*cell, Asked::AllSaid))
    }

    pub(crate) fn awaits_all_of(&self, cell: CellId) -> bool {
        self.undecided.contains(&cell)
    }

    /// Whether this cell can say what it knows of that. Otherwise the message may be among the
    /// early ones, or this cell does not know its predecessor's decisions yet.
    pub(crate) fn answers(&self, what: &Asked) -> bool {
        match self.phase {
            Phase::Done => true,
            _ if matches!(what, Asked::Chunks { .. }) => true,
            Phase::Exchanging => matches!(what, Asked::Commit { .. } | Asked::AllSaid),
            Phase::Loading | Phase::Cutting | Phase::Replaying | Phase::Claiming => false,
        }
    }

    /// Whether a message has to wait. If so, it is kept: a message of recovery until the log is
    /// replayed, others until the recovery is over.
    pub(crate) fn is_early(&mut self, from: CellId, request: &PeerRequest, log: &OpLog) -> bool {
        let is_early = match request {
            PeerRequest::Probe { .. } | PeerRequest::Inquire { .. } => false,
            PeerRequest::Again { .. }
            | PeerRequest::AllSaid { .. }
            | PeerRequest::Harden { .. } => !log.image.is_open(),
            _ => !self.is_done(),
        };
        if is_early {
            self.early.keep_request(from, request.clone());
        }
        is_early
    }

    /// The recovery is over.
    pub(crate) fn end(&mut self) {
        self.phase = Phase::Done;
    }
}

/// Makes a step of a shard again.
fn replay_step(
    shards: &mut Shards,
    id: ShardId,
    step: &mut Step,
    mode: Mode,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if let Step::Claimed { chunk, .. } = step
        && shards.values().any(|shard| shard.space.has(*chunk))
    {
        return Err(Errno::EIO.into());
    }
    make_again(shards.get_mut(&id).ok_or(Errno::EIO)?, step, mode, turn)
}

/// Skips a step of a shard that was given up. But a chunk that it claims stays the shard's, because
/// data may lie there that its kept log records name.
fn pass_over(shards: &mut Shards, id: ShardId, step: &Step, chunks: &Chunks) {
    if let Step::Claimed { chunk, .. } = step
        && chunks.is_legal(*chunk)
        && let Some(space) = shards.space_mut(id)
    {
        space.claim(*chunk);
    }
}
