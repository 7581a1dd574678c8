//! Tasks: requests that could not be finished on arrival, and what each waits for.
//!
//! A task holds no partial change. It runs from its start whenever something that it waited for has
//! come. It either finishes in one run, or returns what is missing: prefetch, then execute.

use std::collections::BTreeMap;

use warren_base::{ClientId, ShardId, SlotNo};
use warren_proto::Answer;

use crate::event::SlotRef;
use crate::run::state::TaskState;
use crate::run::txn::Txn;
use crate::run::wait::TaskId;
use crate::run::work::Work;

#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) work: Work,
    pub(crate) state: TaskState,
}

impl Task {
    #[inline]
    pub(crate) fn new(id: TaskId, work: Work) -> Self {
        let client = match work {
            Work::Request { from, .. } => Some(from.client),
            Work::Prepare { client, .. } => Some(client),
            _ => None,
        };
        let state = TaskState { id, client, ..TaskState::default() };
        Self { work, state }
    }

    /// Whether it is a request that changes only opens and locks.
    pub(crate) fn is_of_session(&self) -> bool {
        let Work::Request { request, .. } = &self.work else { return false };
        request.may_log() && !request.is_change()
    }

    /// Whether other cells take part in it.
    pub(crate) fn is_of_txn(&self) -> bool {
        self.state.txn.is_some() || self.state.decided.is_some()
    }

    /// Whether other tasks wait for its locks, so that it must not wait for a checkpoint.
    pub(crate) fn holds_locks(&self) -> bool {
        matches!(self.work, Work::Prepare { .. } | Work::Commit { .. } | Work::Again { .. })
            || self.state.txn.as_ref().is_some_and(|txn| txn.holds_any())
    }

    /// Whether no part of its work can be refused. If it cannot read a shard, the shard is given
    /// up.
    pub(crate) const fn must_go_on(&self) -> bool {
        let work = &self.work;
        matches!(
            work,
            Work::Commit { .. }
                | Work::Again { .. }
                | Work::Fix
                | Work::Replay
                | Work::OpenShard { .. }
        )
    }

    /// The one shard that its work needs, as far as is known before it runs. `None` if it needs all
    /// shards.
    pub(crate) fn shard(&self) -> Option<ShardId> {
        match &self.work {
            Work::Request { request, .. } if self.state.txn.is_none() => request.shard(),
            Work::Peek { ino, .. } | Work::Reap { ino } => Some(ino.shard()),
            Work::OpenShard { shard } | Work::Clean { shard } => Some(*shard),
            Work::Request { .. }
            | Work::Prepare { .. }
            | Work::Commit { .. }
            | Work::Again { .. }
            | Work::Recover
            | Work::Replay
            | Work::Examine
            | Work::Fix
            | Work::Save => None,
        }
    }

    /// The slot and the number of the request that it executes.
    #[inline]
    pub(crate) fn request(&self) -> Option<(SlotRef, u32)> {
        match self.work {
            Work::Request { from, header, .. } => Some((from, header.seq)),
            _ => None,
        }
    }

    pub(crate) fn slot(&self) -> Option<SlotRef> {
        match self.work {
            Work::Request { from, .. } => Some(from),
            _ => None,
        }
    }
}

/// All tasks that wait.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    waiting: BTreeMap<TaskId, Task>,
    by_slot: BTreeMap<SlotRef, TaskId>,
    /// The number of tasks that wait for file locks.
    lock_waiters: usize,
}

impl Tasks {
    /// The tasks that wait for anything but a file lock.
    pub(crate) fn live(&self) -> usize {
        self.waiting.len() - self.lock_waiters
    }

    pub(crate) const fn lock_waiters(&self) -> usize {
        self.lock_waiters
    }

    /// Keeps a task until it is woken.
    pub(crate) fn park(&mut self, task: Task) {
        let id = task.state.id;
        if let Some(slot) = task.slot() {
            self.by_slot.insert(slot, id);
        }
        self.lock_waiters += usize::from(task.state.awaits_lock);
        let old = self.waiting.insert(id, task);
        assert!(old.is_none());
    }

    /// The slot, the number and the answer of a request whose transaction is decided.
    pub(crate) fn decided(&self, id: TaskId) -> Option<(SlotRef, u32, &Answer)> {
        let task = self.waiting.get(&id)?;
        let (answer, _) = task.state.decided.as_ref()?.answer.as_ref()?;
        match task.work {
            Work::Request { from, header, .. } => Some((from, header.seq, answer)),
            _ => None,
        }
    }

    /// All tasks that wait.
    pub(crate) fn all(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        self.waiting.iter().map(|(id, task)| (*id, task))
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&Task> {
        self.waiting.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.waiting.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: TaskId) -> Option<Task> {
        let task = self.waiting.remove(&id)?;
        self.lock_waiters -= usize::from(task.state.awaits_lock);
        if let Some(slot) = task.slot()
            && self.by_slot.get(&slot) == Some(&id)
        {
            self.by_slot.remove(&slot);
        }
        Some(task)
    }

    /// Drops waiting tasks whose work `keep` rejects. None of them answers a slot.
    pub(crate) fn retain_work(&mut self, keep: impl Fn(&Work) -> bool) {
        self.waiting.retain(|_, task| task.slot().is_some() || keep(&task.work));
    }

    /// The waiting tasks with a transaction for which `wanted` holds.
    pub(crate) fn find_by_txn(&self, wanted: impl Fn(&Txn) -> bool) -> Vec<TaskId> {
        let is_wanted = |task: &Task| task.state.txn.as_ref().is_some_and(|txn| wanted(txn));
        self.waiting.iter().filter(|(_, task)| is_wanted(task)).map(|(id, _)| *id).collect()
    }

    /// The waiting tasks that work in the shard, as far as they name it.
    pub(crate) fn find_by_shard(&self, shard: ShardId) -> Vec<TaskId> {
        let is_there = |task: &Task| match &task.work {
            Work::Prepare { keys, .. } => keys.iter().any(|(key, _)| key.shard() == shard),
            Work::Request { .. } => {
                task.shard() == Some(shard)
                    || task.state.txn.as_ref().is_some_and(|txn| txn.touches(shard))
            }
            _ => task.shard() == Some(shard),
        };
        self.waiting.iter().filter(|(_, task)| is_there(task)).map(|(id, _)| *id).collect()
    }

    /// The task that will answer this slot.
    pub(crate) fn find_by_slot(&self, slot: SlotRef) -> Option<TaskId> {
        if self.by_slot.is_empty() { None } else { self.by_slot.get(&slot).copied() }
    }

    /// The waiting tasks that a client's requests started.
    pub(crate) fn find_by_client(&self, client: ClientId) -> Vec<TaskId> {
        let slots = [0, u16::MAX].map(|slot| SlotRef { client, slot: SlotNo(slot) });
        self.by_slot.range(slots[0]..=slots[1]).map(|(_, id)| *id).collect()
    }
}
