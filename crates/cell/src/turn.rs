//! One turn of the cell: an event is taken in, and its results are sent.
//!
//! [`Shared`] is the state that the shards of a cell share. A [`Turn`] lends it, piece by piece, to
//! the code that runs in the turn, with the memory and the list of effects of the driver. State of
//! one shard is not here: a task is handed its shard beside the turn.

use std::fmt;

use warren_base::{CellId, ClientId, Epoch, Errno, MapVersion, ShardId, TxnId};
use warren_proto::control::Report;
use warren_proto::{Cause, Change, LeaseKey, Rules, Step};

use crate::chunks::free::Chunks;
use crate::config::{CellConfig, LogConfig, Recovery};
use crate::event::{Clock, Effect, FrameNo, Memory};
use crate::frames::Frames;
use crate::frames::io::Io;
use crate::frames::table::FrameTable;
use crate::lease::ClientLeases;
use crate::lease::marks::{Marked, is_marked};
use crate::log::OpLog;
use crate::log::record::{After, Record};
use crate::peers::Peers;
use crate::phase::Checkpoints;
use crate::plant::{Plant, Planted};
use crate::run::wait::{TaskId, Waits};
use crate::session::answers::Answers;
use crate::session::capabilities::Capabilities;
use crate::session::clients::Clients;
use crate::shard::filelock::index::LockIndex;
use crate::shard::open::OpenCounts;

/// Values that do not change while the cell lives.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) id: CellId,
    /// Owner of every shard, indexed by shard number.
    pub(crate) map: Vec<CellId>,
    /// The pool's secret for hashing names.
    pub(crate) secret: u64,
    /// The user that runs the fleet.
    owner: u32,
    pub(crate) epoch: Epoch,
    pub(crate) map_version: MapVersion,
    /// A rule to break, for tests of the checkers.
    pub(crate) plant: Planted,
}

impl Volume {
    /// Whether the user may take reserved space: root, and who runs the fleet.
    pub(crate) const fn is_privileged(&self, uid: u32) -> bool {
        uid == warren_base::budget::ROOT || uid == self.owner
    }

    /// The owner of the shard; `None` if the volume has no such shard. Clients, peers and disks
    /// send numbers of inodes, and so of shards.
    pub(crate) fn owner(&self, shard: ShardId) -> Option<CellId> {
        self.map.get(usize::from(shard.0)).copied()
    }
}

/// How far the cell's start has come.
///
/// ```text
/// shards are opened ──▶ the log is recovered ──▶ the pool knows the cell's free chunks ──▶ ready
/// ```
#[derive(Debug)]
pub(crate) struct Readiness {
    /// Shards that are not open yet.
    opening: usize,
    is_recovered: bool,
    is_ready: bool,
}

impl Readiness {
    pub(crate) const fn new(shards: usize, is_recovered: bool) -> Self {
        Self { opening: shards, is_recovered, is_ready: false }
    }

    pub(crate) const fn shard_opened(&mut self) {
        self.opening -= 1;
    }

    pub(crate) const fn shards_are_open(&self) -> bool {
        self.opening == 0
    }

    pub(crate) const fn recovered(&mut self) {
        self.is_recovered = true;
    }

    /// Whether it is known which files are open and locked.
    pub(crate) const fn is_recovered(&self) -> bool {
        self.is_recovered
    }

    pub(crate) const fn is_ready(&self) -> bool {
        self.is_ready
    }
}

/// The state that all shards of the cell share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) volume: Volume,
    pub(crate) log: OpLog,
    pub(crate) frames: Frames,
    pub(crate) table: FrameTable,
    pub(crate) io: Io,
    pub(crate) chunks: Chunks,
    pub(crate) leases: ClientLeases,
    pub(crate) clients: Clients,
    pub(crate) capabilities: Capabilities,
    pub(crate) waits: Waits,
    pub(crate) opens: OpenCounts,
    pub(crate) lock_index: LockIndex<TaskId>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) peers: Peers,
    pub(crate) answers: Answers,
    pub(crate) readiness: Readiness,
}

/// The state that the code of one turn may reach, beside the shard that it was handed.
pub(crate) struct Turn<'a> {
    pub(crate) now: Clock,
    pub(crate) memory: &'a mut dyn Memory,
    /// Effects, in the order in which the driver must carry them out.
    pub(crate) effects: &'a mut Vec<Effect>,
    /// The steps that were made and are not in the log yet.
    pub(crate) record: Record,
    pub(crate) volume: &'a Volume,
    pub(crate) log: &'a mut OpLog,
    pub(crate) frames: &'a mut Frames,
    pub(crate) table: &'a mut FrameTable,
    pub(crate) io: &'a mut Io,
    pub(crate) chunks: &'a mut Chunks,
    pub(crate) leases: &'a mut ClientLeases,
    pub(crate) clients: &'a mut Clients,
    pub(crate) capabilities: &'a mut Capabilities,
    pub(crate) waits: &'a mut Waits,
    pub(crate) opens: &'a mut OpenCounts,
    pub(crate) lock_index: &'a mut LockIndex<TaskId>,
    pub(crate) checkpoints: &'a mut Checkpoints,
    pub(crate) peers: &'a mut Peers,
    pub(crate) answers: &'a mut Answers,
    pub(crate) readiness: &'a mut Readiness,
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(config: &CellConfig) -> Self {
        let LogConfig { area, incarnation, start, recovery, .. } = config.log;
        let is_recovered = recovery == Recovery::None;
        let image = FrameNo(config.frames);
        let table = FrameNo(config.frames + area.blocks as u32);
        let first = config.map.iter().copied().min().unwrap_or(config.id);
        let others = (0..config.cells).map(CellId).filter(|cell| *cell != config.id);
        Self {
            volume: Volume {
                id: config.id,
                map: config.map.clone(),
                secret: config.secret,
                owner: config.space.reserve.owner,
                epoch: config.epoch,
                map_version: config.map_version,
                plant: config.plant,
            },
            log: {
                let mut log = OpLog::new(area, image, (incarnation, start), is_recovered);
                if recovery == Recovery::Caretaker {
                    log.keep();
                }
                log
            },
            frames: Frames::new(config.frames),
            table: FrameTable::new(table, config.frames),
            io: Io::default(),
            chunks: Chunks::new(
                config.id,
                (first, config.cells),
                (config.bounds, config.total_blocks),
                config.free_chunks.clone(),
                (
                    recovery,
                    config.space.backing.as_planted(config.plant),
                    config.space.reserve.chunks,
                ),
            ),
            leases: ClientLeases::new(config.epoch, config.plant),
            clients: Clients::default(),
            capabilities: Capabilities::new(config.capabilities.clone()),
            waits: Waits::default(),
            opens: OpenCounts::new(config.epoch),
            lock_index: LockIndex::default(),
            checkpoints: Checkpoints::new(config.generation),
            peers: Peers::new(others.collect()),
            answers: Answers::default(),
            readiness: Readiness::new(config.roots.len() - config.lost.len(), is_recovered),
        }
    }

    pub(crate) fn turn<'a>(
        &'a mut self,
        now: Clock,
        memory: &'a mut dyn Memory,
        effects: &'a mut Vec<Effect>,
    ) -> Turn<'a> {
        // If the log has no room and no successor follows this cell, the log is kept for lasting
        // changes.
        let omits_session =
            self.log.commits.is_last() && self.log.room(self.frames.dirty_pages()) == 0;
        let record = self.log.open_record(omits_session);
        Turn {
            now,
            memory,
            effects,
            record,
            volume: &self.volume,
            log: &mut self.log,
            frames: &mut self.frames,
            table: &mut self.table,
            io: &mut self.io,
            chunks: &mut self.chunks,
            leases: &mut self.leases,
            clients: &mut self.clients,
            capabilities: &mut self.capabilities,
            waits: &mut self.waits,
            opens: &mut self.opens,
            lock_index: &mut self.lock_index,
            checkpoints: &mut self.checkpoints,
            peers: &mut self.peers,
            answers: &mut self.answers,
            readiness: &mut self.readiness,
        }
    }
}

impl Turn<'_> {
    /// Whether a rule is broken on purpose.
    #[inline]
    pub(crate) fn plants(&self, plant: Plant) -> bool {
        self.volume.plant == Some(plant)
    }

    /// Marks an object on which an acknowledged lease is granted.
    pub(crate) fn mark(&mut self, key: LeaseKey) -> Marked {
        if self.plants(Plant::GrantUnmarked) {
            return Marked::without_mark(key);
        }
        Marked::new(key, self.volume.secret, self.memory)
    }

    /// Whether a process of this cell may have granted an acknowledged lease on the object.
    pub(crate) fn is_marked(&self, key: &LeaseKey) -> bool {
        is_marked(key, self.volume.secret, self.memory)
    }

    pub(crate) fn report(&mut self, report: Report) {
        self.effects.push(Effect::Report(report));
    }

    /// Reports that the cell can serve, once it can.
    pub(crate) fn report_if_ready(&mut self) {
        let is_started = self.readiness.shards_are_open() && self.readiness.is_recovered();
        if !self.readiness.is_ready && is_started && self.chunks.is_open() {
            self.readiness.is_ready = true;
            let Volume { id: cell, epoch, map_version: map, .. } = *self.volume;
            self.report(Report::Ready { cell, epoch, map });
        }
    }

    /// The log cannot be read, so the state of the shards is unknown.
    pub(crate) fn log_is_broken(&mut self, errno: Errno) {
        let cell = self.volume.id;
        self.report(Report::BrokenLog { cell, errno });
    }

    pub(crate) fn report_stopped(&mut self) {
        self.report(Report::Stopped { cell: self.volume.id });
    }

    /// Asks for a checkpoint that starts from now on.
    pub(crate) fn want_checkpoint(&mut self) {
        if self.checkpoints.ask() {
            self.report(Report::WantCheckpoint { cell: self.volume.id });
        }
    }

    /// A transaction of this cell has begun to take locks.
    pub(crate) fn txn_begins(&mut self, txn: TxnId) {
        if self.checkpoints.txn_begins(txn) {
            self.log.begin_txn();
        }
    }

    /// The transaction is over for every cell that matters.
    pub(crate) fn txn_ends(&mut self, txn: TxnId) {
        if self.checkpoints.txn_ends(txn) {
            self.log.end_txn();
        }
        self.report_if_drained();
    }

    /// Reports that no transaction is left, once that is so in a checkpoint.
    pub(crate) fn report_if_drained(&mut self) {
        if self.checkpoints.drained() {
            let (cell, number) = (self.volume.id, self.checkpoints.number());
            self.report(Report::Drained { cell, number });
        }
    }

    /// Whether the log has room for a checkpoint. ENOSPC only if many checkpoints have failed.
    pub(crate) fn check_log(&self) -> Result<(), Errno> {
        let session = self.opens.all() + self.lock_index.count();
        if self.log.may_checkpoint(session) { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    /// Notes a step that is being made.
    pub(crate) fn note(&mut self, step: &Step) {
        self.record.note(step);
    }

    /// Notes a change that was made, which is a step.
    pub(crate) fn note_change(&mut self, change: &Change) {
        self.record.note_change(change);
    }

    /// Whether changes are refused: all, or those that this client has asked for.
    pub(crate) fn is_read_only(&self, client: Option<ClientId>) -> bool {
        let rules = client.map_or(Rules::empty(), |client| self.clients.rules(client));
        self.log.commits.is_last() || rules.contains(Rules::READ_ONLY)
    }

    /// Whether the log has room for records that can wait.
    pub(crate) fn log_has_room(&self) -> bool {
        self.log_room(self.frames.dirty_pages()) > 0
    }

    /// Bytes that may still be logged if so many pages are dirty.
    pub(crate) fn log_room(&self, dirty: usize) -> u64 {
        self.log.room(dirty)
    }

    /// Logs the steps that the cell itself has made since the last record, if there are any.
    #[inline]
    pub(crate) fn seal(&mut self) {
        if !self.record.is_empty() {
            self.seal_as(&Cause::Cell);
        }
    }

    /// Logs the steps made so far as one record with this cause.
    pub(crate) fn seal_as(&mut self, cause: &Cause) {
        if self.record.is_to_log(cause) {
            self.log.append(&mut self.record, cause, self.memory);
        }
        self.settle();
    }

    /// Does the actions that wait for the record of the steps made so far. A replayed step is
    /// already in the log.
    pub(crate) fn settle(&mut self) {
        for after in self.record.take_after() {
            match after {
                After::Untag(frame) => self.table.clear(frame, self.memory),
                After::Release(frame) => {
                    self.table.clear(frame, self.memory);
                    self.frames.give(frame);
                }
            }
        }
    }
}
