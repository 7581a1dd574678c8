//! A review finds what waits for too long in a cell, over all machines (decision 83): tasks that
//! nothing can wake, and requests to other cells that were lost.

use std::collections::BTreeSet;

use warren_base::{CellId, TxnId};
use warren_pool::{Inquiry as OfChunks, SearchNo};
use warren_proto::control::Report;
use warren_proto::{Asked, PeerReply, PeerRequest};

use crate::core::Core;
use crate::core::streams::end_unused_delegations;
use crate::durable::harden_again;
use crate::fleet::Fleet;
use crate::frames::cache::Cache;
use crate::log::OpLog;
use crate::overdue::Inquiry;
use crate::run::task::Task;
use crate::run::wait::{TaskId, WaitKey};
use crate::run::work::Work;
use crate::session::Sessions;
use crate::supply::pool::poll_pool;
use crate::turn::{Shared, Turn};

impl Core {
    /// Whether anything waits.
    pub(crate) fn may_wait(&self, shared: &Shared) -> bool {
        self.tasks.live() > 0
            || !self.replay.is_done()
            || self.participants.undecided().next().is_some()
            || self.coordinator.unacknowledged().next().is_some()
            || warren_pool::unanswered(&shared.chunks.pool).next().is_some()
            || shared.log.depends.open_asks().next().is_some()
            || shared.sessions.streams.has_any()
    }

    /// Looks for tasks that nothing can wake, and asks other cells for what is overdue. Called when
    /// no task is ready to run.
    pub(super) fn review(&mut self, turn: &mut Turn<'_>) {
        let lost = self.lost_tasks(turn);
        if !lost.is_empty() {
            // They may have executed their requests, and a checkpoint may have freed the records of
            // that. So they must answer before a successor comes, which would execute the requests
            // again. If the fleet is read-only no successor follows at all.
            lost.into_iter().for_each(|task| turn.waits.wake(task));
            self.run_ready(turn);
            turn.report(Report::LostWakeup);
        }
        end_unused_delegations(&mut self.shards, turn);
        self.run_ready(turn);
        let asked = self.open_asks(turn);
        for Inquiry { to, number, about, is_silent } in self.overdue.review(asked) {
            turn.driver.send_request(to, PeerRequest::Inquire { number, about });
            if is_silent {
                turn.report(Report::Silent { cell: to });
            }
        }
    }

    /// Other living cells were asked these, and have not answered. Cells that recover are asked
    /// only for what a recovery waits for, and ask only for that: they work on all else afterwards.
    fn open_asks(&self, turn: &Turn<'_>) -> BTreeSet<(CellId, Asked)> {
        let decided = self.coordinator.unacknowledged().chain(self.replay.open_asks());
        let chunks = warren_pool::unanswered(&turn.chunks.pool).map(
            |(cell, OfChunks { oldest, search })| {
                (cell, Asked::Chunks { oldest, search: search.0 })
            },
        );
        let mut asked: BTreeSet<_> = decided.chain(chunks).collect();
        if self.replay.is_done() {
            let others = self.asked_while_serving(turn.fleet, turn.log);
            asked.extend(others.filter(|(cell, _)| !turn.fleet.peers.is_recovering(*cell)));
        }
        asked.retain(|(cell, _)| !turn.fleet.peers.is_lost(*cell));
        asked
    }

    fn asked_while_serving<'a>(
        &'a self,
        fleet: &Fleet,
        log: &'a OpLog,
    ) -> impl Iterator<Item = (CellId, Asked)> + 'a {
        let undecided = self.participants.undecided();
        let harden = log.depends.open_asks();
        (self.coordinator.open_asks(&self.tasks))
            .chain(self.counting.open_asks())
            .chain(self.cleaner.unanswered(fleet.volume.id))
            .chain(harden.map(|(cell, lsn)| (cell, Asked::Harden { lsn })))
            .chain(undecided.map(|txn| (txn.cell, Asked::Decision { txn })))
    }

    /// Another cell has waited long for these.
    pub(super) fn inquired(
        &mut self,
        from: CellId,
        (number, about): (u64, Vec<Asked>),
        turn: &mut Turn<'_>,
    ) {
        let mut missing = Vec::new();
        for what in about {
            match what {
                // It comes later, or the sender asks again.
                what if !self.replay.answers(&what) => {}
                Asked::Chunks { oldest, search } => {
                    warren_pool::inquired(
                        &mut turn.chunks.pool,
                        from,
                        OfChunks { oldest, search: SearchNo(search) },
                    );
                }
                Asked::AllSaid => {
                    self.coordinator.repeat_all_said(from, turn.fleet, &mut turn.driver)
                }
                // Its abort may be under way still, and does no harm if it comes twice.
                Asked::Decision { txn } => {
                    if !self.coordinator.knows(txn) {
                        turn.driver.send_request(from, PeerRequest::Abort { txn });
                    }
                }
                what if self.will_answer(from, &what, turn.log) => {}
                what => missing.push(what),
            }
        }
        poll_pool(&mut self.shards, turn);
        turn.driver.send_reply(from, PeerReply::Unknown { number, missing });
    }

    /// Whether this cell works on what the other one waits for.
    fn will_answer(&self, to: CellId, what: &Asked, log: &OpLog) -> bool {
        match what {
            Asked::Txn { txn, .. } => {
                self.participants.is_locking(*txn)
                    || self.has_work(
                        |work| matches!(work, Work::Peek { txn: of, .. } if of == txn),
                    )
            }
            Asked::Commit { txn } => self.has_work(|work| {
                matches!(work, Work::Commit { txn: of, .. } | Work::Again { txn: of, .. } if of == txn)
            }),
            Asked::Clean { ask } => self.cleaner.will_answer(to, *ask),
            Asked::Harden { .. } => log.depends.will_answer(to),
            // These are answered at once.
            Asked::Count { .. }
            | Asked::Decision { .. }
            | Asked::AllSaid
            | Asked::Chunks { .. } => false,
        }
    }

    fn has_work(&self, is_it: impl Fn(&Work) -> bool) -> bool {
        self.tasks.all().any(|(_, task)| is_it(&task.work))
    }

    /// Another cell knows nothing of these. What is not answered yet was lost, and is repeated.
    pub(super) fn repeat_lost(
        &mut self,
        at: CellId,
        (number, missing): (u64, Vec<Asked>),
        turn: &mut Turn<'_>,
    ) {
        if !self.overdue.replied(at, number) {
            return;
        }
        let asked = self.open_asks(turn);
        let lost: BTreeSet<_> = missing.into_iter().map(|what| (at, what)).collect();
        let lost: Vec<Asked> = lost.intersection(&asked).map(|(_, what)| what.clone()).collect();
        if lost.is_empty() {
            return;
        }
        turn.report(Report::LostMessage { cell: at });
        for what in lost {
            match what {
                Asked::Txn { txn, .. } => self.begin_again(txn, turn),
                Asked::Commit { txn } => self.coordinator.repeat_commit(txn, at, &mut turn.driver),
                Asked::Count { .. } => self.counting.ask_again(at, turn),
                Asked::Clean { .. } => self.cleaner.ask_again(at, turn),
                Asked::Harden { .. } => harden_again(at, turn.log, &mut turn.driver),
                // Their answers are messages of their own.
                Asked::Decision { .. } | Asked::AllSaid | Asked::Chunks { .. } => {}
            }
        }
    }

    /// Takes the transaction back, which waits for a lost answer. Its operation runs again.
    fn begin_again(&mut self, txn: TxnId, turn: &mut Turn<'_>) {
        let Some(id) = self.coordinator.task_of(txn) else { return };
        let Some(mut task) = self.tasks.remove(id) else { return };
        self.coordinator.abort(&mut self.shards, &mut task.state, turn);
        self.tasks.park(task);
        turn.waits.wake(id);
    }

    /// Finds the tasks that wait for nothing that can come.
    fn lost_tasks(&self, turn: &Turn<'_>) -> Vec<TaskId> {
        let waiting = turn
            .waits
            .all()
            .filter(|(_, key)| key.is_none_or(|key| can_come(key, turn.fleet, turn.cache)));
        let mut live: BTreeSet<TaskId> = waiting.map(|(id, _)| id).collect();
        live.extend(self.shards.values().flat_map(|shard| shard.locks.waiting()));
        let lost = self
            .tasks
            .all()
            .filter(|(id, task)| !live.contains(id) && !self.is_awaited(*id, task, turn.sessions));
        lost.map(|(id, _)| id).collect()
    }

    /// Whether the task waits for another cell, or for a file lock of another client.
    fn is_awaited(&self, id: TaskId, task: &Task, sessions: &Sessions) -> bool {
        let asks = |txn: TxnId| self.coordinator.task_of(txn) == Some(id);
        let txn = task.state.txn.as_ref().filter(|txn| txn.awaited_cell().is_some());
        txn.is_some_and(|txn| asks(txn.id))
            || (task.state.decided.is_some() && self.coordinator.answers(id))
            || self.counting.is_counting(id)
            || sessions.lock_index.file_of(id).is_some()
    }
}

/// Whether the event can still come.
fn can_come(key: WaitKey, fleet: &Fleet, cache: &Cache) -> bool {
    match key {
        WaitKey::Io(io) => cache.io.is_live(io),
        WaitKey::Joined(cell) => fleet.peers.is_lost(cell),
        WaitKey::Undrained => fleet.checkpoints.is_drained(),
        // Each of these has its own owner, which wakes all that wait for it: a client, the
        // supervisor, another cell, the device or the next event.
        _ => true,
    }
}
