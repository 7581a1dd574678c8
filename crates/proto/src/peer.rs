//! Messages between cells: transactions over several cells, by two-phase locking and
//! two-phase commit.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;

use warren_base::{CellId, ClientId, Errno, Ino, Lsn, ShardId, TxnId};

use crate::{Acl, Attr, Change, FileKind, FileName, Wire};

/// A key that a transaction locks. The order of this type is the global order in which locks are
/// taken: inodes and names by their shards, then `Tree`, `New` and `Logged`. So one message locks
/// all inodes and names of a shard. `Tree` comes late because only a locked name tells that a
/// directory moves.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Wire)]
pub enum LockKey {
    /// The shape of the directory tree of the volume: locked to move a directory.
    Tree,
    /// An inode; of a directory also its entries as a whole.
    Inode(Ino),
    /// One name in a directory.
    Name(Ino, FileName),
    /// A number for a new inode in a shard. No other transaction can need it, so it never waits.
    New(ShardId),
    /// The data of the file must be in the log of its cell before the transaction replaces another
    /// file by it. It is no lock: the inode is locked.
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

    /// Whether another transaction may have to wait for it.
    pub const fn is_lock(&self) -> bool {
        !matches!(self, Self::New(_) | Self::Logged(_))
    }

    /// The place in the global order.
    fn place(&self) -> (u8, ShardId, u8, Ino, Option<&FileName>) {
        let shard = self.shard();
        match self {
            Self::Inode(ino) => (0, shard, 0, *ino, None),
            Self::Name(dir, name) => (0, shard, 1, *dir, Some(name)),
            Self::Tree => (1, shard, 0, Ino(0), None),
            Self::New(_) => (2, shard, 0, Ino(0), None),
            Self::Logged(ino) => (3, shard, 0, *ino, None),
        }
    }
}

impl Ord for LockKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialOrd for LockKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Multi-granularity locking (Gray et al., 1976): a transaction that locks a name has an intention
/// lock on its directory.
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

/// The value of a key when it was locked, which it keeps until it is released.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum KeyValue {
    Tree,
    /// The inode's attributes, for a directory also its parent and number of entries.
    Inode(Option<InodeValue>),
    Name(Option<(Ino, FileKind)>),
    New(Ino),
    Logged,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct InodeValue {
    pub attr: Attr,
    pub parent: Ino,
    pub entries: u64,
    /// The list that decides over access, if the inode has one.
    pub acl: Option<Box<Acl>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum PeerRequest {
    /// Lock the keys in this order, then reply with their values. If a name that is locked for
    /// writing leads to an inode of the same shard, and nothing has locked that inode, it is locked
    /// for writing too, and the reply has its value. `client` has requested the operation: its own
    /// leases need not be revoked. `is_privileged`: the user may take reserved space.
    Prepare { txn: TxnId, client: ClientId, is_privileged: bool, keys: Vec<(LockKey, LockMode)> },
    /// Read without locking: a lock of the sender keeps the inode from changing.
    Peek { txn: TxnId, ino: Ino },
    /// The transaction is committed: make the changes, release the locks.
    Commit { txn: TxnId, changes: Vec<Change> },
    /// Count the blocks and inodes of the receiver's shards. The reply repeats `ask`.
    Count { ask: u64 },
    /// The transaction is aborted (or starts again): release the locks.
    Abort { txn: TxnId },
    /// Make the log durable up to here: records that the sender must make durable depend on it.
    Harden { lsn: Lsn },
    /// After a recovery: the transaction is committed. Make the changes unless they are made
    /// already.
    Again { txn: TxnId, changes: Vec<Change> },
    /// After a recovery of either side: the receiver has acknowledged all transactions that the
    /// sender has decided. All others that a predecessor of the sender began are aborted.
    /// `is_repeated`: the receiver has asked for it, because it may have been lost.
    AllSaid { is_repeated: bool },
    /// Empty sparse chunks, so that other cells can have them. The reply repeats `ask`.
    /// `is_privileged`: chunks that are kept for root are wanted, too.
    Clean { ask: u64, is_privileged: bool },
    /// The receiver may hang: if it does not, it replies at once. The reply repeats `trial`.
    Probe { trial: u64 },
    /// The sender has waited long for these. The receiver replies with those of which it knows
    /// nothing. Messages of one kind arrive in order, so these were lost, or their answers were.
    /// For a decision that it does not know it sends `Abort` again, and it repeats `AllSaid`. The
    /// reply repeats `number`: what was said before a later inquiry was sent proves nothing,
    /// because the sender may have repeated a request in between.
    Inquire { number: u64, about: Vec<Asked> },
}

/// A message to which the sender of [`PeerRequest::Inquire`] has no answer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Wire)]
pub enum Asked {
    /// A `Prepare` or a `Peek` of the transaction: the message with this number.
    Txn {
        txn: TxnId,
        message: u32,
    },
    /// A `Commit` or `Again`.
    Commit {
        txn: TxnId,
    },
    Count {
        ask: u64,
    },
    Clean {
        ask: u64,
    },
    Harden {
        lsn: Lsn,
    },
    /// The receiver coordinates the transaction. Its `Commit` or `Abort` has not come.
    Decision {
        txn: TxnId,
    },
    /// The sender recovers, and the receiver's `AllSaid` has not come.
    AllSaid,
    /// Free chunks: the oldest transfer that is not acknowledged, or 0, and the search whose
    /// question is not answered, or 0. The answer is a message of the pool.
    Chunks {
        oldest: u64,
        search: u64,
    },
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
    /// Nothing is locked, because the keys cannot be locked (an unreadable block, no space).
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
    /// The log is durable up to `lsn`. The records of other logs that it depends on may not be.
    Hardened {
        lsn: Lsn,
        result: Result<Vec<(CellId, Lsn)>, Errno>,
    },
    /// So many chunks are free at the cell, or become so with the next checkpoint that begins.
    Cleaned {
        ask: u64,
        chunks: u64,
    },
    Probed {
        trial: u64,
    },
    /// The receiver of `Inquire` knows nothing of these.
    Unknown {
        number: u64,
        missing: Vec<Asked>,
    },
}

/// The space of a cell's shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
pub struct Count {
    pub blocks_used: u64,
    /// Free in the shards' own chunks, and in the free chunks of this cell.
    pub blocks_free: u64,
    /// The part of `blocks_free` that the host of the pool has allocated, less what these shards
    /// keep.
    pub blocks_allocated: u64,
    /// Free blocks that the shards keep for their own needs, so that nothing can be written there.
    pub blocks_kept: u64,
    /// Free blocks that ordinary users must leave.
    pub blocks_reserved: u64,
    pub inodes: u64,
}

#[cfg(test)]
mod tests {
    use warren_base::{Ino, ShardId};

    use super::LockKey;
    use super::LockMode::{self, IntentRead, IntentWrite, Read, Write};
    use crate::FileName;

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
    fn the_inodes_and_names_of_a_shard_are_neighbours_in_the_order() {
        let name = |dir| LockKey::Name(dir, FileName::new(b"n").expect("a name"));
        let at = |shard, sequence| Ino::new(ShardId(shard), sequence);
        let keys = [
            LockKey::Inode(at(0, 1)),
            LockKey::Inode(at(0, 9)),
            name(at(0, 1)),
            LockKey::Inode(at(1, 1)),
            name(at(1, 1)),
            LockKey::Tree,
            LockKey::New(ShardId(0)),
            LockKey::Logged(at(0, 1)),
        ];
        assert!(keys.is_sorted());
    }

    #[test]
    fn writing_a_name_excludes_listing_but_not_looking_up_another() {
        assert!(!IntentWrite.compatible(Read));
        assert!(IntentWrite.compatible(IntentRead));
        assert!(IntentWrite.compatible(IntentWrite));
        assert!(Write.covers(Read) && !Read.covers(IntentWrite));
    }
}
