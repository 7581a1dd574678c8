//! The state that a task keeps between its runs.

use warren_base::{ClientId, Ino, Lsn, Timestamp, TxnId};
use warren_proto::stream::StreamPos;
use warren_proto::{Answer, Change};

use crate::frames::PageNo;
use crate::run::txn::Txn;
use crate::run::wait::{TaskId, Wait};

/// Cleanings that a task waits for without coming nearer to what it needs. Each of them has made
/// some chunk free, and others have taken it.
const CLEANINGS_MAX: u32 = 4;

/// A task's transaction that is decided, and the answer, which may have to wait for other cells.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) txn: TxnId,
    /// The changes of other cells.
    pub(crate) others: Vec<Change>,
    pub(crate) answer: Option<(Answer, u32)>,
}

/// The state of a task that concerns streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamState {
    /// Ends of streams up to which records have to be executed before the task may run.
    ends: Vec<(ClientId, StreamPos)>,
    /// For a record: the time that its client has chosen, and the blocks that are set aside.
    pub(crate) posted_at: Option<Timestamp>,
    pub(crate) credit: u64,
    /// The number of the inode that the record makes.
    pub(crate) new: Option<Ino>,
    /// The inode that the task has made.
    pub(crate) made: Option<Ino>,
}

/// A task runs from its start whenever something that it waited for has come. It remembers its
/// requests here, so that it makes each only once.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskState {
    pub(crate) id: TaskId,
    /// The client on whose behalf it runs.
    pub(crate) client: Option<ClientId>,
    /// Its user may take the space that is kept for root.
    pub(crate) is_privileged: bool,
    /// Other tasks wait for its locks, so it must not wait for a checkpoint.
    pub(crate) holds_locks: bool,
    /// Pages that stay in the cache until the task runs again.
    pub(crate) pinned: Vec<PageNo>,
    /// A checkpoint that it waited for is durable.
    pub(crate) checkpointed: bool,
    /// The pool of free chunks was empty.
    pub(crate) no_chunk: bool,
    /// The host was asked to allocate a chunk that is kept for root.
    pub(crate) asked_host: bool,
    /// The number of cleanings that it has waited for since it last came nearer to its need, and
    /// whether no cell could make room.
    pub(crate) cleanings: u32,
    pub(crate) no_room: bool,
    /// The fewest blocks that it has lacked when no chunk was left.
    pub(crate) short: Option<u64>,
    /// The task was granted the lock that it waited for.
    pub(crate) granted: bool,
    /// The lock that it was granted is in the log.
    pub(crate) is_grant_logged: bool,
    /// It waits for a file lock, or did. From then until it is answered it is no live task
    /// ([`crate::Cell::live_tasks`]).
    pub(crate) awaits_lock: bool,
    /// It has read through a handle that a client, which is not a front, may keep.
    pub(crate) reads_kept: bool,
    /// Bytes of a range that it has allocated.
    pub(crate) range_done: u64,
    /// The point of the op log whose durability it waits for.
    pub(crate) durable: Option<Lsn>,
    /// The transaction that it has become, until that is decided.
    pub(crate) txn: Option<Box<Txn>>,
    pub(crate) decided: Option<Box<Decided>>,
    pub(crate) streams: StreamState,
}

impl TaskState {
    /// Whether the task executes a record.
    pub(crate) const fn is_posted(&self) -> bool {
        self.streams.posted_at.is_some()
    }

    /// The end of the client's stream that the task has seen.
    pub(crate) fn end_of(&self, client: ClientId) -> Option<StreamPos> {
        self.streams.ends.iter().find(|(of, _)| *of == client).map(|(_, end)| *end)
    }

    /// The task may run when the client's stream is executed up to there.
    pub(crate) fn note_end(&mut self, client: ClientId, end: StreamPos) {
        self.streams.ends.retain(|(of, _)| *of != client);
        self.streams.ends.push((client, end));
    }

    /// The next wait of a task that has found no free chunk: for a checkpoint, which frees released
    /// blocks, then for chunks that cells empty. `None`: nothing helps. `are_certain`: no chunks
    /// were lost that may still be found. `short`: blocks that the task lacks, if it knows.
    pub(crate) fn wait_for_chunk(&mut self, are_certain: bool, short: Option<u64>) -> Option<Wait> {
        if !(self.checkpointed && are_certain) {
            self.checkpointed |= are_certain;
            return Some(Wait::Checkpoint);
        }
        let is_nearer = short.is_some_and(|short| self.short.is_some_and(|least| short < least));
        // What is lacked may go up and down, so only less than ever before is nearer.
        self.short = self.short.into_iter().chain(short).min();
        self.cleanings = if is_nearer { 1 } else { self.cleanings + 1 };
        let may_help = !self.no_room && self.cleanings <= CLEANINGS_MAX;
        may_help.then_some(Wait::Cleaning)
    }

    /// A part of the task's work is done. The next one may need space again.
    pub(crate) const fn begin_next_part(&mut self) {
        (self.cleanings, self.no_room, self.short) = (0, false, None);
    }
}
