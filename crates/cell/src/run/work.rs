//! The work of tasks.

use std::sync::Arc;

use warren_base::{CellId, ClientId, Ino, ShardId, TxnId};
use warren_proto::{Change, Credentials, LockKey, LockMode, Request, RequestHeader};

use crate::event::SlotRef;

/// The work of a task.
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
        is_privileged: bool,
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
    /// The same after a recovery, in which nothing is prepared.
    Again {
        from: CellId,
        txn: TxnId,
        changes: Vec<Change>,
    },
    /// Begins a recovery, when all shards are open.
    Recover,
    /// Replays the op log.
    Replay,
    /// Examines the data that a caretaker's log names.
    Examine,
    /// Frees the records and blocks of an inode without links and opens.
    Reap {
        ino: Ino,
    },
    /// Empties closed chunks of the shard.
    Clean {
        shard: ShardId,
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
