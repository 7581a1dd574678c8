//! Tasks: requests that could not be finished on arrival, and what each waits for.
//!
//! A task holds no half-done change. It is run from its start whenever what it waited for has come,
//! and either finishes in one go or says again what is missing (design 2: prefetch, then execute).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use warren_base::{CellId, ClientId, Errno, FixedState, Ino, Lsn, ShardId, SlotNo, TxnId};
use warren_disk::BlockPtr;
use warren_proto::{Answer, Change, Credentials, LockKey, LockMode, Request, RequestHeader};

use crate::cache::PageNo;
use crate::shard::Placed;
use crate::txn::Txn;
use crate::{IoId, SlotRef};

/// Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TaskId(pub(crate) u64);

/// Why a task does not go on now.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// It is finished, with this error.
    Fail(Errno),
    Wait(Wait),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Fail(errno)
    }
}

/// What has to come first.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    /// A node of a tree has to be read.
    Node(ShardId, BlockPtr),
    /// Pages have to be read; those without a place are being read already.
    Pages(Vec<(PageNo, Option<Placed>)>),
    /// A transaction holds the key.
    Key(LockKey),
    /// Another shard of this cell is needed: a coarser affinity.
    Coarser,
    /// A key or inode of another cell is needed: this takes a transaction.
    Remote,
    /// An inode of another cell has to be looked at.
    Peek(Ino),
    /// A successor of a lost cell. Nothing is held meanwhile.
    Joined(CellId),
    /// Leases are being recalled.
    Recall,
    /// All frames are in use.
    Frames,
    /// The shard needs another chunk of free blocks.
    Space(ShardId),
    /// The host is allocating chunks.
    Allocated,
    /// A checkpoint that starts from now on.
    Checkpoint,
    /// The op log up to [`Task::durable`].
    Durable,
    /// A checkpoint that frees some of the op log.
    LogRoom,
    /// Already registered with whoever will wake it (a lock, a peer's answer).
    Registered,
    /// Nothing: the task gives way to other tasks and goes on.
    Yield,
    /// Nothing: it gives way to all that has come meanwhile, and goes on.
    Turn,
}

/// What a task waits for, once that has a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum WaitKey {
    Io(IoId),
    Recall,
    Frames,
    Chunk(ShardId),
    Allocated,
    /// A checkpoint that has not started yet, and one that has.
    NextCheckpoint,
    Checkpoint(u64),
    /// Transactions may start again.
    Undrained,
    /// A successor of the cell.
    Joined(CellId),
    /// More of the op log is durable, or cannot be made so.
    Durable,
    /// There is room in the op log again.
    LogRoom,
    /// The next event.
    Turn,
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    Request {
        from: SlotRef,
        header: RequestHeader,
        request: Request,
        who: Arc<Credentials>,
    },
    Prepare {
        from: CellId,
        txn: TxnId,
        client: ClientId,
        keys: Vec<(LockKey, LockMode)>,
        next: usize,
    },
    Peek {
        from: CellId,
        txn: TxnId,
        ino: Ino,
    },
    Commit {
        from: CellId,
        txn: TxnId,
        changes: Vec<Change>,
    },
    /// The same after a recovery, for which nothing is prepared.
    Again {
        from: CellId,
        txn: TxnId,
        changes: Vec<Change>,
    },
    /// Begins a recovery, when all shards are open.
    Recover,
    /// Replays the op log.
    Replay,
    /// Frees what an inode without links and opens holds.
    Reap {
        ino: Ino,
    },
    /// Fixes the state that a checkpoint holds.
    Fix,
    /// Writes everything before the fleet ends without a checkpoint.
    Save,
    /// Reads a shard's chunk records, before anything else.
    OpenShard {
        shard: ShardId,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) work: Work,
    /// What it waited for went wrong.
    pub(crate) failed: Option<Errno>,
    pub(crate) txn: Option<Box<Txn>>,
    /// Pages that stay in the cache until the task runs again.
    pub(crate) pinned: Vec<PageNo>,
    /// A checkpoint that it waited for is durable.
    pub(crate) checkpointed: bool,
    /// The pool of free chunks was empty.
    pub(crate) no_chunk: bool,
    /// What the task was promised or told while it waited (a lock granted).
    pub(crate) granted: bool,
    /// The lock that it was granted is in the log.
    pub(crate) is_grant_logged: bool,
    /// It waits for a file lock, or did. From then on until it is answered it is no live task
    /// ([`crate::Cell::live_tasks`]).
    pub(crate) awaits_lock: bool,
    /// The point of the op log whose durability it waits for.
    pub(crate) durable: Option<Lsn>,
    pub(crate) decided: Option<Box<Decided>>,
}

/// A task's transaction that is decided, and the answer, which may have to wait for other cells.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) txn: TxnId,
    pub(crate) answer: Option<(Answer, u32)>,
}

impl Task {
    #[inline]
    pub(crate) fn new(work: Work) -> Self {
        Self {
            work,
            failed: None,
            txn: None,
            pinned: Vec::new(),
            checkpointed: false,
            no_chunk: false,
            granted: false,
            is_grant_logged: false,
            awaits_lock: false,
            durable: None,
            decided: None,
        }
    }

    /// Whether it is a transaction that may try again after a checkpoint has freed space, or found what was
    /// lost.
    pub(crate) fn may_retry(&self, are_chunks_certain: bool) -> bool {
        self.txn.is_some() && !(self.checkpointed && are_chunks_certain)
    }

    /// Whether it is a request that changes only what is open and locked.
    pub(crate) fn is_of_session(&self) -> bool {
        let Work::Request { request, .. } = &self.work else { return false };
        request.may_log() && !request.is_change()
    }

    /// Whether other cells take part in it.
    pub(crate) fn is_of_txn(&self) -> bool {
        self.txn.is_some() || self.decided.is_some()
    }

    /// Whether others wait for it, so that it must not wait for a checkpoint.
    pub(crate) fn holds_locks(&self) -> bool {
        matches!(self.work, Work::Prepare { .. } | Work::Commit { .. } | Work::Again { .. })
            || self.txn.as_ref().is_some_and(|txn| txn.holds_any())
    }

    /// The one shard that its work needs, as far as can be told before it runs. `None` if it needs all.
    pub(crate) fn shard(&self) -> Option<ShardId> {
        match &self.work {
            Work::Request { request, .. } if self.txn.is_none() => request.shard(),
            Work::Peek { ino, .. } | Work::Reap { ino } => Some(ino.shard()),
            Work::OpenShard { shard } => Some(*shard),
            Work::Request { .. }
            | Work::Prepare { .. }
            | Work::Commit { .. }
            | Work::Again { .. }
            | Work::Recover
            | Work::Replay
            | Work::Fix
            | Work::Save => None,
        }
    }

    pub(crate) fn slot(&self) -> Option<SlotRef> {
        match self.work {
            Work::Request { from, .. } => Some(from),
            _ => None,
        }
    }

    /// The client on whose behalf it runs.
    pub(crate) fn client(&self) -> Option<ClientId> {
        match self.work {
            Work::Request { from, .. } => Some(from.client),
            Work::Prepare { client, .. } => Some(client),
            _ => None,
        }
    }
}

/// All tasks that wait, and the order in which woken ones run.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    waiting: BTreeMap<TaskId, Task>,
    by_slot: BTreeMap<SlotRef, TaskId>,
    queues: HashMap<WaitKey, Vec<TaskId>, FixedState>,
    ready: VecDeque<TaskId>,
    /// How many of those that wait do so for a file lock.
    lock_waiters: usize,
    next: u64,
}

impl Tasks {
    pub(crate) fn new_id(&mut self) -> TaskId {
        self.next += 1;
        TaskId(self.next)
    }

    /// Those that wait, but for file locks.
    pub(crate) fn live(&self) -> usize {
        self.waiting.len() - self.lock_waiters
    }

    pub(crate) const fn lock_waiters(&self) -> usize {
        self.lock_waiters
    }

    /// Keeps a task until it is woken.
    pub(crate) fn park(&mut self, id: TaskId, task: Task) {
        if let Some(slot) = task.slot() {
            self.by_slot.insert(slot, id);
        }
        self.lock_waiters += usize::from(task.awaits_lock);
        let old = self.waiting.insert(id, task);
        assert!(old.is_none());
    }

    pub(crate) fn wait_for(&mut self, key: WaitKey, id: TaskId) {
        self.queues.entry(key).or_default().push(id);
    }

    /// Lets a task run again (a needless wake-up does no harm).
    pub(crate) fn wake(&mut self, id: TaskId) {
        self.ready.push_back(id);
    }

    #[inline]
    pub(crate) fn wake_all(&mut self, key: WaitKey) {
        if !self.queues.is_empty() {
            self.ready.extend(self.queues.remove(&key).into_iter().flatten());
        }
    }

    /// Lets those run that waited for something that failed.
    pub(crate) fn fail_all(&mut self, key: WaitKey, errno: Errno) {
        self.fail_all_but(key, errno, |_| false);
    }

    /// Some of them only to see whether they can go on.
    pub(crate) fn fail_all_but(
        &mut self,
        key: WaitKey,
        errno: Errno,
        goes_on: impl Fn(&Task) -> bool,
    ) {
        for id in self.queues.remove(&key).into_iter().flatten() {
            if let Some(task) = self.waiting.get_mut(&id).filter(|task| !goes_on(task)) {
                task.failed = Some(errno);
            }
            self.ready.push_back(id);
        }
    }

    /// Moves everyone who waits for `from` to `to`.
    pub(crate) fn requeue(&mut self, from: WaitKey, to: WaitKey) {
        let moved = self.queues.remove(&from).unwrap_or_default();
        self.queues.entry(to).or_default().extend(moved);
    }

    pub(crate) fn is_waited_for(&self, key: WaitKey) -> bool {
        self.queues.contains_key(&key)
    }

    pub(crate) fn waiting_for(&self, key: WaitKey) -> usize {
        self.queues.get(&key).map_or(0, Vec::len)
    }

    pub(crate) fn queue(&self, key: WaitKey) -> Vec<TaskId> {
        self.queues.get(&key).cloned().unwrap_or_default()
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next task to run, taken out.
    pub(crate) fn next_ready(&mut self) -> Option<(TaskId, Task)> {
        loop {
            let id = self.ready.pop_front()?;
            if let Some(task) = self.remove(id) {
                return Some((id, task));
            }
        }
    }

    /// The slot, the number and the answer of a request whose transaction is decided.
    pub(crate) fn decided(&self, id: TaskId) -> Option<(SlotRef, u32, &Answer)> {
        let task = self.waiting.get(&id)?;
        let (answer, _) = task.decided.as_ref()?.answer.as_ref()?;
        match task.work {
            Work::Request { from, header, .. } => Some((from, header.seq, answer)),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.waiting.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: TaskId) -> Option<Task> {
        let task = self.waiting.remove(&id)?;
        self.lock_waiters -= usize::from(task.awaits_lock);
        if let Some(slot) = task.slot()
            && self.by_slot.get(&slot) == Some(&id)
        {
            self.by_slot.remove(&slot);
        }
        Some(task)
    }

    /// Drops waiting tasks whose work is not to be kept. None of them answers a slot.
    pub(crate) fn retain_work(&mut self, keep: impl Fn(&Work) -> bool) {
        self.waiting.retain(|_, task| task.slot().is_some() || keep(&task.work));
    }

    /// The waiting tasks that are such transactions.
    pub(crate) fn with_txn(&self, wanted: impl Fn(&Txn) -> bool) -> Vec<TaskId> {
        let is_wanted = |task: &Task| task.txn.as_ref().is_some_and(|txn| wanted(txn));
        self.waiting.iter().filter(|(_, task)| is_wanted(task)).map(|(id, _)| *id).collect()
    }

    /// The task that will answer this slot.
    pub(crate) fn of_slot(&self, slot: SlotRef) -> Option<TaskId> {
        if self.by_slot.is_empty() { None } else { self.by_slot.get(&slot).copied() }
    }

    /// The waiting tasks that a client's requests started.
    pub(crate) fn of_client(&self, client: ClientId) -> Vec<TaskId> {
        let slots = [0, u16::MAX].map(|slot| SlotRef { client, slot: SlotNo(slot) });
        self.by_slot.range(slots[0]..=slots[1]).map(|(_, id)| *id).collect()
    }
}
