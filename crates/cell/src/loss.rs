//! Other cells that are lost, and their successors (design 12).
//!
//! Order of events at a cell that lives on:
//!
//! ```text
//! Lost    everything that the dead had sent is handled; nothing more is sent to it; transactions that it
//!         takes part in are given up and wait, holding nothing -> Heard
//! Joined  what it was told of decided transactions is said again, then that this is all; what waited
//!         goes on
//! AllSaid from the successor: what its predecessor had locked here and not decided is released
//! ```
//!
//! Invariants:
//! * What the dead cell had locked here stays locked until its successor has said what was decided: also
//!   the shape of the tree, which is released only when everybody has made the changes.
//! * Whoever recovers serves nobody before every other cell has said what it decided.

use std::collections::BTreeSet;

use warren_base::{CellId, Epoch, TxnId};
use warren_proto::PeerRequest;
use warren_proto::control::Report;

use crate::cell::Core;
use crate::chunks::supply::poll_pool;
use crate::event::{Effect, Memory};
use crate::log::durable::harden_again;
use crate::peer::send_request;
use crate::run::wait::WaitKey;
use crate::run::work::Work;
use crate::turn::Turn;

/// What this cell knows of the others.
#[derive(Debug)]
pub(crate) struct Peers {
    all: BTreeSet<CellId>,
    lost: BTreeSet<CellId>,
    /// Cells that recover and have to be told what was decided here.
    untold: BTreeSet<CellId>,
}

impl Peers {
    pub(crate) fn new(all: BTreeSet<CellId>) -> Self {
        Self { all, lost: BTreeSet::new(), untold: BTreeSet::new() }
    }

    pub(crate) fn is_lost(&self, cell: CellId) -> bool {
        self.lost.contains(&cell)
    }

    /// Whether the cell recovers, and was not told yet that this cell has said all.
    pub(crate) fn is_untold(&self, cell: CellId) -> bool {
        self.untold.contains(&cell)
    }

    /// Everybody has to be told: this cell recovers.
    pub(crate) fn tell_all(&mut self) {
        self.untold = self.all.clone();
    }

    pub(crate) fn all(&self) -> Vec<CellId> {
        self.all.iter().copied().collect()
    }
}

impl Core {
    /// The cell's process is gone, and all that it had sent was handled.
    pub(crate) fn peer_lost<M: Memory>(
        &mut self,
        lost: CellId,
        epoch: Epoch,
        turn: &mut Turn<'_, M>,
    ) {
        self.peers.lost.insert(lost);
        turn.chunks.peer_lost();
        turn.log.forget_asking(lost);
        self.replay.forget_early(lost);
        self.drop_tasks_for(lost, turn);
        for id in self.tasks.with_txn(|txn| txn.rests_on(lost)) {
            let mut task = self.tasks.remove(id).expect("just listed");
            self.release_txn(&mut task, turn);
            task.txn = None;
            turn.waits.wait_for(WaitKey::Joined(lost), id);
            self.tasks.park(id, task);
        }
        turn.effects.push(Effect::Report(Report::Heard { lost, epoch }));
    }

    /// Drops what the lost cell alone has asked for: its successor asks again. A transaction that is still
    /// taking its locks cannot be decided.
    fn drop_tasks_for<M: Memory>(&mut self, lost: CellId, turn: &mut Turn<'_, M>) {
        let locking = |(txn, participant): (&TxnId, &crate::txn::Participant)| {
            (txn.cell == lost && participant.is_locking()).then_some(*txn)
        };
        let undecided: Vec<TxnId> = self.participants.iter().filter_map(locking).collect();
        undecided.into_iter().for_each(|txn| self.leave_txn(txn, turn));
        self.tasks.retain_work(|work| !matches!(work, Work::Peek { from, .. } if *from == lost));
    }

    /// A successor of the lost cell starts.
    pub(crate) fn peer_joined<M: Memory>(&mut self, cell: CellId, turn: &mut Turn<'_, M>) {
        self.peers.lost.remove(&cell);
        turn.chunks.peer_joined(cell);
        poll_pool(&mut self.shards, turn);
        self.count_again(cell, turn);
        harden_again(cell, turn);
        self.peers.untold.insert(cell);
        if !self.replay.needs_image() {
            self.say_again(cell, turn);
            self.say_all(turn);
        }
        turn.waits.wake_all(WaitKey::Joined(cell));
    }

    /// Tells everybody who may have to know, once nothing that was decided keeps this cell from it.
    pub(crate) fn say_all<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        if self.peers.untold.is_empty() || self.replay.needs_image() {
            return;
        }
        let told = |cell: &CellId| !self.peers.is_lost(*cell) && !self.keeps_untold(*cell);
        let told: Vec<CellId> = self.peers.untold.iter().copied().filter(told).collect();
        for cell in told {
            self.peers.untold.remove(&cell);
            send_request(cell, PeerRequest::AllSaid, turn);
        }
    }

    /// Whether `cell` may not be told yet that all was said: it holds the shape of the tree for a
    /// transaction that others have not made, or may do so for one that a predecessor has decided.
    fn keeps_untold(&self, cell: CellId) -> bool {
        self.committing.values().any(|commit| commit.keeps_untold(cell))
    }
}
