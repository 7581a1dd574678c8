//! What a task remembers between its runs.

use warren_base::{ClientId, Lsn};

use crate::frames::PageNo;

/// A task is run from its start whenever something has come that it waited for. It must not ask
/// twice for what can be asked for once, so it remembers that.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskState {
    /// The client on whose behalf it runs.
    pub(crate) client: Option<ClientId>,
    /// Other tasks wait for what it holds, so that it must not wait for a checkpoint.
    pub(crate) holds_locks: bool,
    /// Pages that stay in the cache until the task runs again.
    pub(crate) pinned: Vec<PageNo>,
    /// A checkpoint that it waited for is durable.
    pub(crate) checkpointed: bool,
    /// The pool of free chunks was empty.
    pub(crate) no_chunk: bool,
    /// What the task waited for is its own now (a lock).
    pub(crate) granted: bool,
    /// The lock that it was granted is in the log.
    pub(crate) is_grant_logged: bool,
    /// It waits for a file lock, or did. From then on until it is answered it is no live task
    /// ([`crate::Cell::live_tasks`]).
    pub(crate) awaits_lock: bool,
    /// The point of the op log whose durability it waits for.
    pub(crate) durable: Option<Lsn>,
}
