//! Other cells: their requests, replies and decisions, their ends and successors.
//!
//! Order of events at a cell that lives on:
//!
//! ```text
//! Lost    everything that the dead cell had sent is handled; nothing more is sent to it;
//!         transactions that it takes part in are aborted and wait, without locks -> LossHandled
//! Joined  the successor is sent what was decided here, then AllSaid; the waiting tasks continue
//! AllSaid from the successor: what its predecessor had locked here and not decided is released
//! ```
//!
//! Invariants:
//! * What the dead cell had locked here stays locked until its successor has sent its decisions.
//!   This includes the shape of the tree, which is released only when every cell has made the
//!   changes.
//! * A cell that recovers serves no client before every other cell has sent its decisions.

use warren_base::{CellId, Epoch, TxnId};
use warren_proto::control::Report;
use warren_proto::{PeerReply, PeerRequest};

use crate::caretaker::owe;
use crate::core::Core;
use crate::core::streams::{end_posts, inherit_streams};
use crate::count::count;
use crate::driver::Driver;
use crate::durable::{harden_again, harden_for, hardened};
use crate::fleet::Fleet;
use crate::give_up::retain_served;
use crate::run::wait::WaitKey;
use crate::run::work::Work;
use crate::supply::pool::poll_pool;
use crate::turn::Turn;
use crate::txn::coordinator::Outcome;

impl Core {
    /// Another cell requests something of this one.
    pub(super) fn peer_request(&mut self, from: CellId, request: PeerRequest, turn: &mut Turn<'_>) {
        if self.replay.is_early(from, &request, turn.log) {
            return;
        }
        let shards = &mut self.shards;
        match request {
            PeerRequest::Harden { lsn } => harden_for(from, lsn, turn),
            PeerRequest::Again { txn, changes } if turn.log.is_kept() => {
                owe(&mut self.participants, from, (txn, changes), turn);
            }
            PeerRequest::Again { txn, changes } => {
                let changes = retain_served(shards, changes);
                self.participants.make_missing(shards, from, (txn, changes), turn);
            }
            // It is needed only if the first one was lost, which came on the same lane.
            PeerRequest::AllSaid { is_repeated: true } => {
                if self.replay.awaits_all_of(from) {
                    turn.report(Report::LostMessage { cell: from });
                    self.all_said(from, turn);
                }
            }
            PeerRequest::AllSaid { is_repeated: false } => self.all_said(from, turn),
            PeerRequest::Prepare { txn, client, is_privileged, keys } => {
                let of = (txn, client, is_privileged);
                self.participants.receive_prepare(shards, from, of, keys, turn);
            }
            PeerRequest::Peek { txn, ino } => {
                turn.waits.start(Work::Peek { from, txn, ino });
            }
            PeerRequest::Commit { txn, changes } => {
                let changes = retain_served(shards, changes);
                self.participants.receive_commit(
                    shards,
                    from,
                    (txn, changes),
                    turn.waits,
                    &mut turn.driver,
                );
            }
            PeerRequest::Count { ask } => {
                let count = count(shards, turn.chunks);
                turn.driver.send_reply(from, PeerReply::Counted { ask, count });
            }
            PeerRequest::Clean { ask, is_privileged } => {
                if is_privileged {
                    turn.chunks.release_reserve();
                    poll_pool(shards, turn);
                }
                self.cleaner.asked(from, ask);
            }
            PeerRequest::Abort { txn } if txn.cell == from => self.leave(txn, turn),
            PeerRequest::Abort { .. } => turn.driver.suspect(from),
            PeerRequest::Inquire { number, about } => self.inquired(from, (number, about), turn),
            PeerRequest::Probe { trial } => {
                turn.driver.send_reply(from, PeerReply::Probed { trial })
            }
        }
    }

    /// Another cell answers.
    pub(super) fn peer_reply(&mut self, from: CellId, reply: PeerReply, turn: &mut Turn<'_>) {
        let outcome = match reply {
            PeerReply::Committed { txn } => {
                self.coordinator.acknowledged(&mut self.shards, from, txn, turn);
                return self.end_recovery_if_complete(turn);
            }
            PeerReply::Unknown { number, missing } => {
                return self.repeat_lost(from, (number, missing), turn);
            }
            PeerReply::Probed { trial } => return turn.report(Report::Answered { trial }),
            PeerReply::Hardened { lsn, result } => return hardened(from, lsn, result, turn),
            PeerReply::Counted { ask, count } => {
                return self.counting.counted(&self.tasks, from, ask, count, turn.waits);
            }
            PeerReply::Cleaned { ask, chunks } => {
                return self.cleaner.answered(from, ask, chunks, turn);
            }
            PeerReply::Prepared { txn, values } => (txn, Outcome::Prepared(values)),
            PeerReply::Peeked { txn, ino, value } => (txn, Outcome::Peeked(ino, value)),
            PeerReply::Refused { txn, errno } => (txn, Outcome::Refused(errno)),
        };
        self.coordinator.answered(from, outcome, &mut self.tasks, turn);
    }

    /// The other cell's transaction is over here.
    fn leave(&mut self, txn: TxnId, turn: &mut Turn<'_>) {
        if let Some(task) = self.participants.leave(&mut self.shards, txn, turn) {
            self.tasks.remove(task);
        }
    }

    /// The cell's process is gone, and all messages that it had sent were handled.
    pub(super) fn peer_lost(&mut self, lost: CellId, epoch: Epoch, turn: &mut Turn<'_>) {
        turn.fleet.peers.lose(lost);
        turn.chunks.peer_lost();
        turn.log.depends.forget_peer(lost);
        self.replay.early.forget_peer(lost);
        self.overdue.forget(lost);
        // A transaction that still takes its locks cannot be decided. The successor sends its
        // request again.
        for txn in self.participants.txns_of(lost, true) {
            self.leave(txn, turn);
        }
        self.tasks.retain_work(|work| !matches!(work, Work::Peek { from, .. } if *from == lost));
        for id in self.tasks.find_by_txn(|txn| txn.rests_on(lost)) {
            let mut task = self.tasks.remove(id).expect("just listed");
            self.coordinator.abort(&mut self.shards, &mut task.state, turn);
            turn.waits.wait_for(WaitKey::Joined(lost), id);
            self.tasks.park(task);
        }
        turn.report(Report::LossHandled { lost, epoch });
    }

    /// Asks a cell whether it still answers. This cell itself answers at once.
    pub(super) fn probe_peer(
        &self,
        cell: CellId,
        trial: u64,
        fleet: &Fleet,
        driver: &mut Driver<'_>,
    ) {
        if cell == fleet.volume.id {
            return driver.report(Report::Answered { trial });
        }
        if fleet.peers.is_lost(cell) {
            return;
        }
        driver.send_request(cell, PeerRequest::Probe { trial });
        driver.report(Report::Asked { trial });
    }

    /// A successor of the lost cell starts.
    pub(super) fn peer_joined(&mut self, cell: CellId, turn: &mut Turn<'_>) {
        turn.fleet.peers.join(cell);
        turn.chunks.peer_joined(cell);
        poll_pool(&mut self.shards, turn);
        self.counting.ask_again(cell, turn);
        self.cleaner.peer_joined(cell, turn);
        harden_again(cell, turn.log, &mut turn.driver);
        if turn.log.image.is_open() {
            self.coordinator.send_again(cell, &mut turn.driver);
            self.coordinator.send_all_said(turn);
        }
        turn.waits.wake_all(WaitKey::Joined(cell));
    }

    /// A cell was sent acknowledgements of all transactions that it, or a predecessor, has decided.
    /// Other transactions of a predecessor did not happen. A living cell sends this only
    /// to a recovering cell, at which it has no transactions.
    fn all_said(&mut self, from: CellId, turn: &mut Turn<'_>) {
        for txn in self.participants.txns_of(from, false) {
            self.leave(txn, turn);
        }
        self.replay.received_all_of(from);
        self.end_recovery_if_complete(turn);
    }

    /// The supervisor knows which free chunks the logs have claimed. This cell must not give them
    /// away.
    pub(super) fn chunks_claimed(&mut self, chunks: &[u64], turn: &mut Turn<'_>) {
        if self.replay.is_claiming() {
            turn.chunks.exclude(chunks);
            poll_pool(&mut self.shards, turn);
            self.exchange_decisions(turn);
        }
    }

    /// Sends the decisions of this cell, and waits for those of the others.
    pub(super) fn exchange_decisions(&mut self, turn: &mut Turn<'_>) {
        let decided = self.replay.begin_exchange(turn.sessions);
        turn.fleet.peers.send_decisions_to_all();
        self.coordinator.resume(&mut self.shards, decided, turn);
        for owed in self.replay.take_owed() {
            self.participants.make_owed(owed, turn.fleet, turn.waits);
        }
        self.take_in_early(turn);
        self.end_recovery_if_complete(turn);
    }

    /// Takes in messages that came too early, except those that are still too early.
    fn take_in_early(&mut self, turn: &mut Turn<'_>) {
        for (from, request) in self.replay.early.take_requests() {
            self.peer_request(from, request, turn);
        }
    }

    /// Ends the recovery when every cell has sent its decisions, they are made here, and every cell
    /// has made those that were sent to it.
    pub(super) fn end_recovery_if_complete(&mut self, turn: &mut Turn<'_>) {
        let is_made = self.participants.has_made_all_again() && !self.coordinator.has_recovered();
        if !self.replay.has_all_decisions() || !is_made {
            return;
        }
        self.replay.end();
        turn.fleet.readiness.recovered();
        inherit_streams(turn);
        for client in self.replay.early.take_expelled() {
            if end_posts(&mut self.shards, client, turn) {
                self.expel(client, turn);
            }
        }
        let orphans = self.shards.values().filter_map(|shard| shard.orphans().ok()).flatten();
        for ino in orphans {
            turn.waits.start(Work::Reap { ino });
        }
        turn.want_checkpoint();
        turn.report_if_ready();
        self.take_in_early(turn);
    }
}
