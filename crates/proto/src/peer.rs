//! What cells say to each other: transactions over several cells, by two-phase locking and
//! two-phase commit.

use warren_base::{CellId, ClientId, Errno, Ino, Lsn, ShardId, TxnId};

use crate::{Attr, Change, FileKind, FileName, Wire};

/// What a transaction locks. The order of this type is the global order in which locks are taken.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub enum LockKey {
    /// The shape of the directory tree of the volume: held to move a directory.
    Tree,
    /// An inode; of a directory also its entries as a whole.
    Inode(Ino),
    /// One name in a directory.
    Name(Ino, FileName),
    /// A number for a new inode in a shard. Nobody else can want it, so it never waits.
    New(ShardId),
    /// That the log of the file's cell has its data, before the transaction gives it the name of something else. Locks
    /// nothing: the inode is locked.
    Logged(Ino),
}

impl LockKey {
    pub const fn shard(&self) -> ShardId {
        match self {
            Self::Tree => ShardId(0),
            Self::Inode(ino) | Self::Name(ino, _) | Self::Logged(ino) => ino.shard(),
            Self::New(shard) => *shard,
        }
    }

    /// Whether others may have to wait for it.
    pub const fn is_lock(&self) -> bool {
        !matches!(self, Self::New(_) | Self::Logged(_))
    }
}

/// Multi-granularity locking (Gray et al., 1976): whoever works on a name has an intention lock on
/// its directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub enum LockMode {
    IntentRead,
    IntentWrite,
    Read,
    Write,
}

impl LockMode {
    /// Whether two transactions may hold these on the same key at the same time.
    pub const fn compatible(self, other: Self) -> bool {
        use LockMode::{IntentRead, IntentWrite, Read, Write};
        match (self, other) {
            (Write, _) | (_, Write) => false,
            (IntentRead, _) | (_, IntentRead) => true,
            (IntentWrite, IntentWrite) | (Read, Read) => true,
            (IntentWrite, Read) | (Read, IntentWrite) => false,
        }
    }

    /// The weakest mode that allows what either allows.
    pub const fn join(self, other: Self) -> Self {
        use LockMode::{IntentRead, IntentWrite, Read, Write};
        match (self, other) {
            (IntentRead, x) | (x, IntentRead) => x,
            (IntentWrite, IntentWrite) => IntentWrite,
            (Read, Read) => Read,
            _ => Write,
        }
    }

    /// Whether holding `self` allows what `wanted` allows.
    pub fn covers(self, wanted: Self) -> bool {
        self.join(wanted) == self
    }
}

/// What a locked key was worth when it was locked, and is until it is released.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum KeyValue {
    Tree,
    /// The inode's attributes, for a directory also its parent and number of entries.
    Inode(Option<InodeValue>),
    Name(Option<(Ino, FileKind)>),
    New(Ino),
    Logged,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct InodeValue {
    pub attr: Attr,
    pub parent: Ino,
    pub entries: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum PeerRequest {
    /// Lock the keys in this order, then say what they are worth. `client` is who asked for it all:
    /// its own caches need not be told.
    Prepare { txn: TxnId, client: ClientId, keys: Vec<(LockKey, LockMode)> },
    /// Look without locking: what the asker holds keeps it from changing.
    Peek { txn: TxnId, ino: Ino },
    /// The transaction happened: make the changes, release the locks.
    Commit { txn: TxnId, changes: Vec<Change> },
    /// How full are your shards? `ask` comes back with the answer.
    Count { ask: u64 },
    /// The transaction did not happen (or starts again): release the locks.
    Abort { txn: TxnId },
    /// Make the log durable up to here: what the asker must make durable rests on it.
    Harden { lsn: Lsn },
    /// After a recovery: the transaction happened. Make the changes unless they are made already.
    Again { txn: TxnId, changes: Vec<Change> },
    /// After a recovery of either side: every transaction was named that the sender decided and that the
    /// receiver may not have made. Those that a predecessor of the sender began and that were not named did
    /// not happen.
    AllSaid,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum PeerReply {
    Prepared {
        txn: TxnId,
        values: Vec<(LockKey, KeyValue)>,
    },
    Peeked {
        txn: TxnId,
        ino: Ino,
        value: Option<InodeValue>,
    },
    /// Nothing is locked: the keys cannot be had (an unreadable block, no space).
    Refused {
        txn: TxnId,
        errno: Errno,
    },
    Committed {
        txn: TxnId,
    },
    Counted {
        ask: u64,
        count: Count,
    },
    /// The log is durable up to `lsn`; what it rests on there in other logs is not known to be.
    Hardened {
        lsn: Lsn,
        result: Result<Vec<(CellId, Lsn)>, Errno>,
    },
}

/// What a cell's shards hold, and what they could.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
pub struct Count {
    pub blocks_used: u64,
    /// Free in the shards' own chunks, and in the free chunks that lie at this cell.
    pub blocks_free: u64,
    /// Those of them that the host of the pool has allocated.
    pub blocks_allocated: u64,
    pub inodes: u64,
}

#[cfg(test)]
mod tests {
    use super::LockMode::{self, IntentRead, IntentWrite, Read, Write};

    const ALL: [LockMode; 4] = [IntentRead, IntentWrite, Read, Write];

    #[test]
    fn compatibility_is_symmetric_and_a_stronger_lock_excludes_no_less() {
        for a in ALL {
            for b in ALL {
                assert_eq!(a.compatible(b), b.compatible(a));
                for c in ALL {
                    assert!(!a.join(b).compatible(c) || (a.compatible(c) && b.compatible(c)));
                }
            }
        }
    }

    #[test]
    fn writing_a_name_excludes_listing_but_not_looking_up_another() {
        assert!(!IntentWrite.compatible(Read));
        assert!(IntentWrite.compatible(IntentRead));
        assert!(IntentWrite.compatible(IntentWrite));
        assert!(Write.covers(Read) && !Read.covers(IntentWrite));
    }
}
