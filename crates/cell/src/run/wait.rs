//! The events that tasks wait for, and the order in which woken tasks run.
//!
//! Invariants: a task runs only if something has woken it; tasks run in the order in which they
//! were woken; waking a task that need not run does no harm.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;
use warren_base::{CellId, ClientId, Errno, FixedState, Ino, ShardId};
use warren_disk::BlockPtr;
use warren_proto::LockKey;

use crate::event::IoId;
use crate::frames::{PageNo, Placed};
use crate::run::work::Work;

/// Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct TaskId(pub(crate) u64);

/// Why a task stops.
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

/// A condition that a task needs before it can continue.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    /// A node of a tree has to be read.
    Node(ShardId, BlockPtr),
    /// Pages have to be read; those without a place are being read already.
    Pages(ShardId, Vec<(PageNo, Option<Placed>)>),
    /// A transaction holds the key.
    Key(LockKey),
    /// Another shard of this cell is needed: a coarser affinity.
    Coarser,
    /// A key or inode of another cell is needed: this takes a transaction.
    Remote,
    /// An inode of another cell has to be looked at.
    Peek(Ino),
    /// A successor of a lost cell. The task holds nothing meanwhile.
    Joined(CellId),
    /// Leases are being recalled.
    Recall,
    /// All frames are in use.
    Frames,
    /// The shard needs another chunk of free blocks.
    Space(ShardId),
    /// The host is allocating chunks.
    Allocated,
    /// Some cell makes room, or none can.
    Cleaning,
    /// A checkpoint that starts from now on.
    Checkpoint,
    /// The op log up to the point that the task has noted.
    Durable,
    /// Records of a client's stream have to be executed. The task holds no locks meanwhile.
    Stream(ClientId),
    /// A checkpoint that frees some of the op log.
    LogRoom,
    /// Already registered with what will wake it (a lock, a peer's answer).
    Registered,
    /// Nothing: the task lets other tasks run, and then continues.
    Yield,
    /// Nothing: the task lets the cell take in new events, and then continues.
    Turn,
}

/// The event that wakes a task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum WaitKey {
    Io(IoId),
    Recall,
    Frames,
    Chunk(ShardId),
    Allocated,
    /// All cells have cleaned since this cell's question, or since its next one.
    Cleaning,
    NextCleaning,
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
    /// Records of the client's stream are executed.
    Stream(ClientId),
    /// The time at which a read is tried again.
    Reading,
}

/// Signals that a task receives with its wake-up.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Signals {
    /// The event that it waited for has failed.
    pub(crate) failed: Option<Errno>,
    /// The pool of free chunks was empty.
    pub(crate) no_chunk: bool,
    /// No cell can make room.
    pub(crate) no_room: bool,
    /// It was granted the file lock that it waited for.
    pub(crate) granted: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Waits {
    queues: HashMap<WaitKey, Vec<TaskId>, FixedState>,
    ready: VecDeque<TaskId>,
    signals: BTreeMap<TaskId, Signals>,
    /// Tasks that will be started.
    started: Vec<(TaskId, Work)>,
    next: u64,
    /// The next wake-up is lost, on purpose.
    #[cfg(feature = "plants")]
    loses: bool,
}

impl Waits {
    pub(crate) fn new_id(&mut self) -> TaskId {
        self.next += 1;
        TaskId(self.next)
    }

    /// Starts a task. It runs after those that were woken before.
    pub(crate) fn start(&mut self, work: Work) -> TaskId {
        let id = self.new_id();
        self.started.push((id, work));
        self.wake(id);
        id
    }

    /// Tasks that were started since the last call. They are woken already.
    pub(crate) fn take_started(&mut self) -> Vec<(TaskId, Work)> {
        std::mem::take(&mut self.started)
    }

    pub(crate) fn wait_for(&mut self, key: WaitKey, id: TaskId) {
        self.queues.entry(key).or_default().push(id);
    }

    /// Lets a task run again.
    pub(crate) fn wake(&mut self, id: TaskId) {
        self.ready.push_back(id);
    }

    #[inline]
    pub(crate) fn wake_all(&mut self, key: WaitKey) {
        if !self.queues.is_empty() {
            self.wake_queue(key);
        }
    }

    fn wake_queue(&mut self, key: WaitKey) {
        self.ready.extend(self.queues.remove(&key).into_iter().flatten());
    }

    /// The signals that a task receives with its next run.
    pub(crate) fn signal(&mut self, id: TaskId) -> &mut Signals {
        self.signals.entry(id).or_default()
    }

    /// The signals that the task received since it last ran.
    pub(crate) fn signals_of(&self, id: TaskId) -> Signals {
        self.signals.get(&id).copied().unwrap_or_default()
    }

    pub(crate) fn take_signals(&mut self, id: TaskId) -> Signals {
        if self.signals.is_empty() {
            return Signals::default();
        }
        self.signals.remove(&id).unwrap_or_default()
    }

    /// Wakes a task that waited for something that failed.
    pub(crate) fn fail(&mut self, id: TaskId, errno: Errno) {
        self.signal(id).failed = Some(errno);
        self.wake(id);
    }

    /// Wakes the tasks that waited for something that failed.
    pub(crate) fn fail_all(&mut self, key: WaitKey, errno: Errno) {
        for id in self.take_queue(key) {
            self.fail(id, errno);
        }
    }

    /// Moves every task that waits for `from` to `to`.
    pub(crate) fn requeue(&mut self, from: WaitKey, to: WaitKey) {
        let moved = self.take_queue(from);
        self.queues.entry(to).or_default().extend(moved);
    }

    /// The tasks that waited for this. The caller wakes them.
    pub(crate) fn take_queue(&mut self, key: WaitKey) -> Vec<TaskId> {
        self.queues.remove(&key).unwrap_or_default()
    }

    /// All tasks that wait for an event or will run, with the event.
    pub(crate) fn all(&self) -> impl Iterator<Item = (TaskId, Option<WaitKey>)> + '_ {
        let queued = self.queues.iter();
        let queued = queued.flat_map(|(key, ids)| ids.iter().map(|id| (*id, Some(*key))));
        queued.chain(self.ready.iter().map(|id| (*id, None)))
    }

    /// The tasks that wait for this.
    pub(crate) fn tasks_in_queue(&self, key: WaitKey) -> &[TaskId] {
        self.queues.get(&key).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn is_waited_for(&self, key: WaitKey) -> bool {
        self.queues.contains_key(&key)
    }

    pub(crate) fn waiting_for(&self, key: WaitKey) -> usize {
        self.queues.get(&key).map_or(0, Vec::len)
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn next_ready(&mut self) -> Option<TaskId> {
        #[cfg(feature = "plants")]
        if self.loses && self.ready.pop_front().is_some() {
            self.loses = false;
        }
        self.ready.pop_front()
    }

    #[cfg(feature = "plants")]
    pub(crate) const fn lose_next(&mut self) {
        self.loses = true;
    }

    /// Whether a wake-up was lost since the last call of [`Self::lose_next`]. No further one is.
    #[cfg(feature = "plants")]
    pub(crate) const fn has_lost(&mut self) -> bool {
        !std::mem::replace(&mut self.loses, false)
    }
}
