//! One turn of the cell: an event is taken in, and its results are sent.
//!
//! [`Shared`] is the state that the shards of a cell share. A [`Turn`] lends it, piece by piece, to
//! the code that runs in the turn, with the memory and the list of effects of the driver. State of
//! one shard is not here: a task is handed its shard beside the turn.

use std::fmt;

use warren_base::{ClientId, Errno, TxnId};
use warren_proto::control::Report;
use warren_proto::{Cause, Change, Lease, LeaseKey, Rules, Step};

use crate::chunks::free::Chunks;
use crate::config::{CellConfig, LogConfig, Recovery};
use crate::driver::Driver;
use crate::event::FrameNo;
use crate::fleet::{Fleet, Volume};
use crate::frames::cache::Cache;
use crate::lease::marks::{Marked, is_marked};
use crate::log::OpLog;
use crate::log::record::After;
use crate::plant::Plant;
use crate::run::wait::Waits;
use crate::session::Sessions;
use crate::shard::lease::ShardLeases;

/// The state that all shards of the cell share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) fleet: Fleet,
    pub(crate) log: OpLog,
    pub(crate) cache: Cache,
    pub(crate) chunks: Chunks,
    pub(crate) sessions: Sessions,
    pub(crate) waits: Waits,
}

/// The state that the code of one turn may reach, beside the shard that it was handed.
pub(crate) struct Turn<'a> {
    pub(crate) driver: Driver<'a>,
    pub(crate) fleet: &'a mut Fleet,
    /// The op log, and the record of the steps that were made and are not in it yet.
    pub(crate) log: &'a mut OpLog,
    pub(crate) cache: &'a mut Cache,
    pub(crate) chunks: &'a mut Chunks,
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) waits: &'a mut Waits,
}

/// A record that was begun. Who begins one has to seal it, with the cause of its steps.
#[must_use]
pub(crate) struct Begun(());

impl Begun {
    /// Logs the record. One without steps is logged only if it `decides`, and has a cause only
    /// then.
    #[inline]
    pub(crate) fn seal(self, decides: bool, cause: impl FnOnce() -> Cause, turn: &mut Turn<'_>) {
        let Self(()) = self;
        if decides || !turn.log.record.is_empty() {
            turn.seal_as(&cause());
        }
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("driver", &self.driver).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(config: &CellConfig) -> Self {
        let LogConfig { area, incarnation, start, recovery, .. } = config.log;
        let is_recovered = recovery == Recovery::None;
        let image = FrameNo(config.frames);
        let table = FrameNo(config.frames + area.blocks as u32);
        let first = config.map.iter().copied().min().unwrap_or(config.id);
        Self {
            fleet: Fleet::new(config, is_recovered),
            log: {
                let mut log = OpLog::new(area, image, (incarnation, start), is_recovered);
                if recovery == Recovery::Caretaker {
                    log.keep();
                }
                log
            },
            cache: Cache::new(table, config.frames),
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
            sessions: Sessions::new(config.epoch, config.capabilities.clone(), config.plant),
            waits: Waits::default(),
        }
    }

    pub(crate) fn turn<'a>(&'a mut self, driver: Driver<'a>) -> Turn<'a> {
        // If the log has no room and no successor follows this cell, the log is kept for lasting
        // changes.
        let omits_session =
            self.log.commits.is_last() && self.log.room(self.cache.frames.dirty_pages()) == 0;
        self.log.record.omit_session(omits_session);
        Turn {
            driver,
            fleet: &mut self.fleet,
            log: &mut self.log,
            cache: &mut self.cache,
            chunks: &mut self.chunks,
            sessions: &mut self.sessions,
            waits: &mut self.waits,
        }
    }
}

impl Turn<'_> {
    /// Whether a rule is broken on purpose.
    #[inline]
    pub(crate) fn plants(&self, plant: Plant) -> bool {
        self.fleet.plants(plant)
    }

    /// Marks an object on which an acknowledged lease is granted.
    pub(crate) fn mark(&mut self, key: LeaseKey) -> Marked {
        if self.plants(Plant::GrantUnmarked) {
            return Marked::without_mark(key);
        }
        Marked::new(key, self.fleet.volume.secret, self.driver.memory)
    }

    /// Whether a process of this cell may have granted an acknowledged lease on the object.
    pub(crate) fn is_marked(&self, key: &LeaseKey) -> bool {
        is_marked(key, self.fleet.volume.secret, self.driver.memory)
    }

    /// Grants a word lease. A client that holds it already gets the same word and stamp again.
    pub(crate) fn grant(
        &mut self,
        leases: &mut ShardLeases,
        key: LeaseKey,
        client: ClientId,
    ) -> Lease {
        leases.words.grant(key, client, &mut self.sessions.leases.stamps, self.driver.memory)
    }

    /// Revokes all word leases on `key`.
    pub(crate) fn revoke(&mut self, leases: &mut ShardLeases, key: &LeaseKey) {
        leases.words.revoke(key, &mut self.sessions.leases.stamps, self.driver.memory);
    }

    pub(crate) fn report(&mut self, report: Report) {
        self.driver.report(report);
    }

    /// Reports that the cell can serve, once it can.
    pub(crate) fn report_if_ready(&mut self) {
        if self.chunks.is_open() && self.fleet.readiness.becomes_ready() {
            let Volume { id: cell, epoch, map_version: map, .. } = self.fleet.volume;
            self.report(Report::Ready { cell, epoch, map });
        }
    }

    /// The log cannot be read, so the state of the shards is unknown.
    pub(crate) fn log_is_broken(&mut self, errno: Errno) {
        let cell = self.fleet.volume.id;
        self.report(Report::BrokenLog { cell, errno });
    }

    pub(crate) fn report_stopped(&mut self) {
        self.report(Report::Stopped { cell: self.fleet.volume.id });
    }

    /// Asks for a checkpoint that starts from now on.
    pub(crate) fn want_checkpoint(&mut self) {
        self.fleet.want_checkpoint(&mut self.driver);
    }

    /// A transaction of this cell has begun to take locks.
    pub(crate) fn begin_txn(&mut self, txn: TxnId) {
        if self.fleet.checkpoints.begin_txn(txn) {
            self.log.begin_txn();
        }
    }

    /// The transaction is over for every cell that matters.
    pub(crate) fn end_txn(&mut self, txn: TxnId) {
        if self.fleet.checkpoints.end_txn(txn) {
            self.log.end_txn();
        }
        self.report_if_drained();
    }

    /// Reports that no transaction is left, and no record that clients had posted, once that is so
    /// in a checkpoint.
    pub(crate) fn report_if_drained(&mut self) {
        if !self.sessions.streams.has_barrier() && self.fleet.checkpoints.drained() {
            let (cell, number) = (self.fleet.volume.id, self.fleet.checkpoints.number());
            self.report(Report::Drained { cell, number });
        }
    }

    /// Whether the log has room for a checkpoint. ENOSPC only if many checkpoints have failed.
    pub(crate) fn check_log(&self) -> Result<(), Errno> {
        let session = self.sessions.opens.count() + self.sessions.lock_index.count();
        if self.log.may_checkpoint(session) { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    /// Notes a step that is being made.
    pub(crate) fn note(&mut self, step: &Step) {
        self.log.record.note(step);
    }

    /// Notes a change that was made, which is a step.
    pub(crate) fn note_change(&mut self, change: &Change) {
        self.log.record.note_change(change);
    }

    /// Whether changes are refused: all, or those that this client has asked for.
    pub(crate) fn is_read_only(&self, client: Option<ClientId>) -> bool {
        let rules = client.map_or(Rules::empty(), |client| self.sessions.clients.rules(client));
        self.log.commits.is_last() || rules.contains(Rules::READ_ONLY)
    }

    /// Whether the log has room for records that can wait.
    pub(crate) fn log_has_room(&self) -> bool {
        self.log_room(self.cache.frames.dirty_pages()) > 0
    }

    /// Bytes that may still be logged if so many pages are dirty.
    pub(crate) fn log_room(&self, dirty: usize) -> u64 {
        self.log.room(dirty)
    }

    /// Begins a record. The steps that were made before are the cell's own.
    #[inline]
    pub(crate) fn begin_record(&mut self) -> Begun {
        self.seal();
        Begun(())
    }

    /// Logs the steps that the cell itself has made since the last record, if there are any.
    #[inline]
    pub(crate) fn seal(&mut self) {
        if !self.log.record.is_empty() {
            self.seal_as(&Cause::Cell);
        }
    }

    /// Logs the steps made so far as one record with this cause.
    pub(crate) fn seal_as(&mut self, cause: &Cause) {
        if self.log.record.is_to_log(cause) {
            self.log.append(cause, self.driver.memory);
        }
        self.settle();
    }

    /// Does the actions that wait for the record of the steps made so far. A replayed step is
    /// already in the log.
    pub(crate) fn settle(&mut self) {
        for after in self.log.record.take_after() {
            match after {
                After::Untag(frame) => self.cache.table.clear(frame, self.driver.memory),
                After::Release(frame) => {
                    self.cache.table.clear(frame, self.driver.memory);
                    self.cache.frames.give(frame);
                }
            }
        }
    }
}
