//! What a task remembers between its runs.

use warren_base::{ClientId, Lsn};

use crate::frames::PageNo;

/// A task runs from its start whenever something that it waited for has come. It remembers its
/// requests here, so that it makes each only once.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskState {
    /// The client on whose behalf it runs.
    pub(crate) client: Option<ClientId>,
    /// Other tasks wait for its locks, so it must not wait for a checkpoint.
    pub(crate) holds_locks: bool,
    /// Pages that stay in the cache until the task runs again.
    pub(crate) pinned: Vec<PageNo>,
    /// A checkpoint that it waited for is durable.
    pub(crate) checkpointed: bool,
    /// The pool of free chunks was empty.
    pub(crate) no_chunk: bool,
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
}
