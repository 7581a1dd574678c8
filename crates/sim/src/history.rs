//! What clients asked and were answered, and when: the material of the linearizability checker.
//!
//! As in Herlihy and Wing's definition, a history is made of invocations and returns; a call without
//! a return was under way when the run ended, and may have happened or not. A *process* makes one
//! call at a time (a slot of a client).

use std::rc::Rc;

use bitflags::bitflags;
use warren_base::{ClientId, Ino, ShardId, Timestamp};
use warren_disk::name_hash;
use warren_proto::{Answer, Credentials, FileName, Request};

bitflags! {
    /// Errors that the harness may have caused while a call was under way. A call that ended in one
    /// of them is legal, and must have changed nothing.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Excuses: u8 {
        /// The pool was small enough to run out: ENOSPC, and short writes.
        const NO_SPACE = 1;
        /// The disk failed reads or writes: EIO.
        const IO = 2;
        /// The call was cancelled: EINTR.
        const CANCELLED = 4;
        /// The answer is a copy whose access time may be old: reads do not wait until it is gone.
        const OLD_ATIME = 8;
        /// A flush failed, or a write of the supervisor's, and the fleet takes no changes any more: EROFS.
        const READ_ONLY = 16;
        /// A shard is damaged: EIO, of calls that need it.
        const DAMAGED = 32;
    }
}

/// A shard that is damaged, and what says where a directory is made.
#[derive(Clone, Copy, Debug)]
pub struct DamagedShard {
    pub shard: ShardId,
    pub shards: u16,
    pub secret: u64,
}

impl DamagedShard {
    /// Whether a directory of this name is made there.
    pub fn takes(&self, dir: Ino, name: &FileName) -> bool {
        let hash = name_hash(self.secret ^ dir.0, name.as_bytes());
        hash % u64::from(self.shards) == u64::from(self.shard.0)
    }
}

/// What a process did.
#[derive(Clone, Debug)]
pub enum Action {
    Request(Request),
    /// A request that names an inode which its client has not reached.
    Forged(Request),
    /// Attributes of what a path leads to, answered from copies alone: all of the way at one instant.
    Stat {
        path: Rc<[u8]>,
        follow_last: bool,
    },
    /// The client of the process is gone: the cell of these shards closes what it had open there and
    /// releases its locks.
    Expel(Rc<[ShardId]>),
    /// The fleet stopped and started again: no opens, no locks, no unlinked files.
    Restart,
    /// A shard is damaged. Calls that need it may be refused from then on.
    Damage(DamagedShard),
}

/// What came back. `payload` is the file data of a read.
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

/// Wall-clock times between which a call took effect.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from: Timestamp,
    pub to: Timestamp,
}

/// One call of one process.
#[derive(Clone, Debug)]
pub struct Operation {
    pub process: usize,
    pub client: ClientId,
    pub credentials: Rc<Credentials>,
    pub action: Action,
    /// File data of a write.
    pub payload: Rc<[u8]>,
    /// Places in the order of all events. `returned` is [`NEVER`] of a call that did not return.
    pub invoked: u64,
    pub returned: u64,
    /// Where in the order of events the call most likely took effect. Only speed depends on it.
    pub hint: u64,
    pub window: Window,
    pub excuses: Excuses,
    /// Of a call that never returned: what it would have returned, had it happened; `None` if it
    /// cannot have happened.
    pub outcome: Option<Outcome>,
}

/// [`Operation::returned`] of a call that was under way when the run ended.
pub const NEVER: u64 = u64::MAX;
