//! Lost wake-ups of tasks, which a review finds (decision 83).
//!
//! A task waits in a queue, and the owner of the queue wakes it with an event. A wake-up was lost
//! if the event cannot come any more: nothing is under way that would bring it, so the owner would
//! not have let the task wait. That depends on the state of the cell alone, and on no time.
//!
//! | queue | the event can come as long as |
//! | --- | --- |
//! | an I/O | it is under way |
//! | the successor of a cell | the cell is lost |
//! | the end of a drain, a checkpoint | that checkpoint is under way |
//! | the next checkpoint, room in the log | one was requested, or follows an abandoned one |
//! | a recall | something is being recalled from some client |
//! | a chunk | the pool searches for the shard, or the host allocates a batch |
//! | the host's allocation | a batch is being allocated, or wanted |
//! | a cleaning | this cell has a question, and its own part of it is in work |
//! | the durable log | a commit or checkpoint is under way or wanted, or a cell is asked or lost |
//! | frames | as for the durable log, or there is I/O, a write has failed, or another task may hold some |
//! | the next event, a pause before a read | always: the driver calls |

use std::collections::BTreeSet;

use crate::core::Core;
use crate::run::task::Task;
use crate::run::wait::{TaskId, WaitKey};
use crate::turn::Turn;

impl Core {
    /// Finds a task that waits for nothing that can come.
    pub(super) fn lost_task(&self, turn: &Turn<'_>) -> Option<TaskId> {
        let can_come = |key: Option<WaitKey>| key.is_none_or(|key| self.can_come(key, turn));
        let waiting = turn.waits.all().filter(|(_, key)| can_come(*key));
        let mut live: BTreeSet<TaskId> = waiting.map(|(id, _)| id).collect();
        live.extend(self.shards.values().flat_map(|shard| shard.locks.waiting()));
        let mut tasks = self.tasks.all();
        let lost =
            tasks.find(|(id, task)| !live.contains(id) && !is_awaited(self, *id, task, turn));
        lost.map(|(id, _)| id)
    }

    /// Whether the event can still come.
    fn can_come(&self, key: WaitKey, turn: &Turn<'_>) -> bool {
        let checkpoints = &turn.checkpoints;
        match key {
            WaitKey::Io(io) => turn.io.is_live(io),
            WaitKey::Joined(cell) => turn.peers.is_lost(cell),
            WaitKey::Undrained => checkpoints.is_drained(),
            WaitKey::Checkpoint(number) => {
                checkpoints.is_drained() && checkpoints.number() == number
            }
            WaitKey::NextCheckpoint => checkpoints.is_expected(),
            WaitKey::LogRoom => checkpoints.is_expected() || checkpoints.is_drained(),
            WaitKey::Recall => turn.leases.are_some_recalled(),
            WaitKey::Chunk(shard) => turn.chunks.brings_to(shard),
            WaitKey::Allocated => turn.chunks.host.is_reserving() || turn.chunks.host.has_work(),
            WaitKey::Cleaning => self.cleaner.will_be_answered(turn.volume.id),
            WaitKey::NextCleaning => self.cleaner.is_asking(),
            WaitKey::Durable => may_harden(turn),
            WaitKey::Frames => {
                let waiting = turn.waits.of_queue(WaitKey::Frames);
                let is_other = |id: TaskId| !waiting.contains(&id);
                turn.io.is_any_live()
                    || may_harden(turn)
                    || turn.log.commits.leaves_writes_to_checkpoints()
                    || self.tasks.all().any(|(id, _)| is_other(id))
            }
            // The driver calls at each event, and at the time that it was asked for.
            WaitKey::Turn | WaitKey::Reading => true,
        }
    }
}

/// Whether more of the log may become durable, here or at a cell on which it depends.
fn may_harden(turn: &Turn<'_>) -> bool {
    // The successor of a lost cell is asked again.
    turn.peers.are_some_lost()
        || !turn.log.commits.is_at_rest()
        || turn.frames.has_unflushed()
        || turn.log.depends.open_asks().next().is_some()
        || turn.checkpoints.is_expected()
        || turn.checkpoints.is_drained()
}

/// Whether the task waits for another cell, or for a file lock of another client.
fn is_awaited(core: &Core, id: TaskId, task: &Task, turn: &Turn<'_>) -> bool {
    let asks = |txn| core.coordinator.task_of(txn) == Some(id);
    let txn = task.txn.as_ref().filter(|txn| txn.awaited_cell().is_some());
    txn.is_some_and(|txn| asks(txn.id))
        || (task.decided.is_some() && core.coordinator.answers(id))
        || core.counting.waits(id)
        || (task.state.awaits_lock && !turn.waits.signals_of(id).granted)
}
