//! The requests and answers of clients, with their times: the input of the linearizability checker.
//!
//! As in Herlihy and Wing's definition, a history consists of invocations and returns. A call
//! without a return was under way when the run ended, and may or may not have taken effect. A
//! *process* (a slot of a client) makes one call at a time.

use std::collections::BTreeSet;
use std::rc::Rc;

use bitflags::bitflags;
use warren_base::{ClientId, Ino, ShardId, Timestamp};
use warren_disk::name_hash;
use warren_proto::{Answer, CapabilityKey, Credentials, FileName, Handle, Request};

/// The key of all fleets' inode capabilities.
pub(crate) const KEY: CapabilityKey = CapabilityKey([0x7761_7272_656e, 0x006b_6579]);

bitflags! {
    /// Errors that the harness may have caused while a call was under way. A call that failed with
    /// one of them is legal, and must have changed nothing.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Excuses: u8 {
        /// The pool was small enough to run out: ENOSPC, and short writes.
        const NO_SPACE = 1;
        /// The disk failed reads or writes: EIO.
        const IO = 2;
        /// The call was cancelled: EINTR.
        const CANCELLED = 4;
        /// The answer is a copy whose access time may be old: reads do not wait for its recall.
        const OLD_ATIME = 8;
        /// A flush or a write of the supervisor failed, and the fleet has become read-only: EROFS.
        const READ_ONLY = 16;
        /// A shard is damaged: EIO, of calls that need it.
        const DAMAGED = 32;
    }
}

/// The shards that are damaged, or whose cell is taken out, and what says where a directory is
/// made.
#[derive(Clone, Debug)]
pub struct DamagedShards {
    pub these: Rc<BTreeSet<ShardId>>,
    /// All that the volume has.
    pub shards: u16,
    pub secret: u64,
}

impl DamagedShards {
    /// Whether the shard is one of them.
    pub fn has(&self, shard: ShardId) -> bool {
        self.these.contains(&shard)
    }

    /// Whether a directory of this name is made there.
    pub fn takes(&self, dir: Ino, name: &FileName) -> bool {
        let hash = name_hash(self.secret ^ dir.0, name.as_bytes());
        self.has(ShardId((hash % u64::from(self.shards)) as u16))
    }
}

/// An action of a process.
#[derive(Clone, Debug)]
pub enum Action {
    Request(Request),
    /// A request that names an inode which its client has not reached.
    Forged(Request),
    /// The attributes of the inode at the end of a path, answered from copies alone: the whole walk
    /// at one instant.
    Stat {
        path: Rc<[u8]>,
        follow_last: bool,
    },
    /// A front closes a file and keeps the handle, without a request.
    Keep(Handle),
    /// A front opens a file with a handle that it has kept, without a request.
    Reopen(Handle),
    /// The client of the process is gone: the cell of these shards closes its open files there and
    /// releases its locks.
    Expel(Rc<[ShardId]>),
    /// The fleet stopped and started again: no opens, no locks, no unlinked files.
    Restart,
    /// Shards are damaged, or their cell is taken out. Calls that need them may be refused.
    Damage(DamagedShards),
}

/// The result. `payload` is the file data of a read.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub answer: Answer,
    pub payload: Rc<[u8]>,
}

impl Outcome {
    pub fn of(answer: Answer) -> Self {
        Self { answer, payload: Rc::from([]) }
    }
}

/// The wall-clock times between which a call took effect.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from: Timestamp,
    pub to: Timestamp,
    /// The clock steps in this run. Then a change may leave a time as it was, because a directory
    /// keeps the later one.
    pub steps: bool,
}

/// One call of one process.
#[derive(Clone, Debug)]
pub struct Operation {
    pub process: usize,
    pub client: ClientId,
    pub credentials: Rc<Credentials>,
    pub action: Action,
    /// The file data of a write.
    pub payload: Rc<[u8]>,
    /// Positions in the order of all events. `returned` is [`NEVER`] for a call that did not
    /// return.
    pub invoked: u64,
    pub returned: u64,
    /// The position at which the call most likely took effect. It affects only the speed of the
    /// search. A call that did not return need not have taken effect. If it has, the first call
    /// that sees it is refused until it is placed. So it is tried last, unless it is known when it
    /// was executed: placed early, a lock that was never granted would be in the way of all later
    /// ones.
    pub hint: u64,
    pub window: Window,
    pub excuses: Excuses,
    /// For a call that never returned: its result if it took effect; `None` if it cannot have taken
    /// effect.
    pub outcome: Option<Outcome>,
}

impl Operation {
    /// An operation without an outcome: of no client, unless the caller names one.
    pub(crate) fn new(
        process: usize,
        action: Action,
        (invoked, returned): (u64, u64),
        wall: Timestamp,
    ) -> Self {
        Self {
            process,
            client: ClientId(0),
            credentials: Rc::default(),
            action,
            payload: Rc::from([]),
            invoked,
            returned,
            hint: if returned == NEVER { NEVER } else { invoked },
            window: Window { from: wall, to: wall, steps: false },
            excuses: Excuses::default(),
            outcome: None,
        }
    }
}

/// The calls of a run, and the processes that made them.
#[derive(Default)]
pub(crate) struct History {
    pub operations: Vec<Operation>,
    /// The highest number of a process. The restart has 0.
    processes: usize,
}

impl History {
    /// Returns the first of `count` unused process numbers.
    pub(crate) const fn new_processes(&mut self, count: usize) -> usize {
        let first = self.processes + 1;
        self.processes += count;
        first
    }
}

/// [`Operation::returned`] of a call that was under way when the run ended.
pub const NEVER: u64 = u64::MAX;
