//! The budget of a change: what it needs at worst, in blocks of a shard, in bytes of the log and in
//! bytes of a reply, and the [`Reservation`] that says that it has them.
//!
//! A change is admitted first ([`crate::chunks::claim::reserve`], which fetches chunks and waits for
//! room in the log) and made then, within its reservation (`Shard::change`). Nothing waits in
//! between, so what was free when the change was admitted is free when it is made.
//!
//! A full shard must still do what makes room, or what takes it only for a time. So some blocks are
//! kept back, twice:
//!
//! ```text
//! 0 ...... frees ...... keeps ............................... free blocks that nothing is promised
//!   |  unlink, rmdir   |  rename within a shard, truncate,   |  create, link, write, ...
//!   |                  |  attributes                         |
//! ```
//!
//! What a change takes of them is back when a checkpoint has written the nodes that it made dirty,
//! since the blocks of the old ones are then free.

use warren_base::limits::{BLOCK_SIZE, BODY_MAX, NAME_MAX};
use warren_disk::{
    EXTENT_BLOCKS_MAX, HEIGHT_MAX, INTERNAL_RECORD, LOG_BLOCKS_MIN, NODE_CAPACITY, RECORD_HEADER,
    RECORD_MAX, RECORD_OVERHEAD, TARGET_PIECE,
};
use warren_proto::{Change, LockKey, LockMode};

// Blocks of a shard.

/// Blocks that writing one dirty page may take: its own, and a leaf of the tree, which may be clean
/// until then, and which may split: a page in the middle of an extent leaves three.
const BLOCKS_PER_PAGE: u64 = 3;
/// Blocks that all dirty pages of a shard may take beside that: the nodes above the leaves of one
/// run of extents, with those that splits add. The pages of other files mostly find theirs dirty,
/// since each write has changed its inode, which lies below the same nodes.
const NODES_PER_WAY: u64 = 8;
/// Leaves that a node above them holds at least, since splits leave it half full: so many pages
/// that split their leaves split such a node, too.
const LEAVES_PER_NODE: u64 = 64;
/// Chunks whose records one leaf holds at least, since splits leave leaves half full.
const CHUNKS_PER_LEAF: u64 = 64;
/// Blocks that a shard must have left for an access time to be brought up to date. Nothing waits
/// for that, so it takes no block that another change may want.
const ATIME_ROOM_MIN: u64 = 32;
/// Records of an inode that are freed in one go. The leaves that they leave empty vanish, so only
/// the way to them and a neighbour of each node on it become dirty.
pub(crate) const REAP_BATCH: usize = 128;

// Bytes of the log.

/// Bytes that stay free for what cannot wait: the parts of decided transactions (a half of it),
/// reclaiming, and a snapshot of the session.
const LOG_RESERVE: u64 = 4 * RECORD_MAX as u64;
/// Bytes that a dirty page will want when it is placed: at worst a record of its own.
const LOG_PER_PAGE: u64 = 104;
/// Bytes that a transaction under way may still want: what it decides or makes here, with names,
/// the target of a symlink and an answer, and that it is over.
const LOG_PER_TXN: u64 = BODY_MAX as u64;
/// Bytes of the record of a lock that is granted to a request that waited.
const LOG_PER_GRANT: u64 = 96;
/// Bytes of the longest step of a session's snapshot, with its share of a record's header.
const SESSION_STEP: u64 = 64;
/// Steps of one record of a session's snapshot.
pub(crate) const SESSION_BATCH: usize = 512;
/// Bytes of a record that holds one answer of a predecessor, beside the answer.
pub(crate) const ANSWER_OVERHEAD: u64 = 64;
/// Pages that get places in one go: their runs, each of one page at worst, leave room in a record
/// for the next step.
pub(crate) const WRITE_BACK_BATCH: usize = 1024;
/// Pages that an `fsync` logs rather than writing them to their place: with more, two writes cost
/// less than the log's space.
pub(crate) const INLINE_PAGES: usize = 8;
/// Bytes of the log that these take, with what is said of each.
pub(crate) const INLINE_MAX: u64 = INLINE_PAGES as u64 * (BLOCK_SIZE as u64 + 64);

// Bytes of a reply's body.

/// What is left of it for the entries of a listing, and what an entry takes beside its name.
pub(crate) const LISTING_MAX: usize = BODY_MAX - 64;
pub(crate) const LISTING_ENTRY: usize = 8 + 1 + 8 + 1;
/// Keys of one recall.
pub(crate) const RECALL_KEYS: usize = 24;

const _: () = {
    // No record but a bucket of attributes is larger than half a leaf, so a leaf splits in two.
    assert!(2 * (RECORD_OVERHEAD + TARGET_PIECE + 2) <= NODE_CAPACITY);
    assert!(2 * (RECORD_OVERHEAD + 16 + 4 * EXTENT_BLOCKS_MAX) <= NODE_CAPACITY);
    assert!(2 * (RECORD_OVERHEAD + 16 + NAME_MAX) <= NODE_CAPACITY);
    assert!(2 * CHUNKS_PER_LEAF as usize * (RECORD_OVERHEAD + 8) <= NODE_CAPACITY);
    assert!(2 * LEAVES_PER_NODE as usize * INTERNAL_RECORD <= NODE_CAPACITY);
    assert!(ATIME_ROOM_MIN >= HEIGHT_MAX as u64);

    // The smallest log holds twice what is kept for a snapshot (the last one is in it until the
    // next is durable), and leaves some of what is not in the reserve.
    let log = LogBudget { bytes: LOG_BLOCKS_MIN * BLOCK_SIZE as u64 };
    assert!(LOG_RESERVE <= log.bytes / 2);
    assert!(2 * (log.session() + log.unanswered()) < log.bytes - LOG_RESERVE);
    // A checkpoint begins a block and makes a record before the snapshot: a half of the reserve is
    // transactions'.
    assert!((RECORD_MAX + BLOCK_SIZE) as u64 <= LOG_RESERVE / 2);
    assert!(16 * LOG_PER_TXN <= LOG_RESERVE / 2);
    // One record holds a batch of a snapshot, or a file in line. A batch of write-back fits the
    // half that `Record::takes_another_step` leaves.
    assert!(RECORD_HEADER + SESSION_BATCH * SESSION_STEP as usize <= RECORD_MAX);
    assert!(RECORD_HEADER as u64 + 64 + INLINE_MAX <= RECORD_MAX as u64);
    assert!(RECORD_HEADER + 64 + WRITE_BACK_BATCH * (8 + 8 + 4 + 4) <= RECORD_MAX / 2);

    assert!(RECALL_KEYS * (1 + 8 + 1 + NAME_MAX) + 64 <= BODY_MAX);
    assert!(LISTING_ENTRY + NAME_MAX <= LISTING_MAX);
};

/// What becomes of a shard's used blocks with a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    Frees,
    Keeps,
    Grows,
}

impl Growth {
    /// Of changes in one shard.
    pub(crate) fn of<'a>(changes: impl Iterator<Item = &'a Change>) -> Self {
        let (mut frees, mut records) = (false, 0);
        for change in changes {
            match change {
                Change::NewInode { .. } => return Self::Grows,
                Change::AddEntry { .. } => records += 1,
                Change::RemoveEntry { .. } => records -= 1,
                Change::RemoveLink { .. } => frees = true,
                Change::ReplaceEntry { .. }
                | Change::AddLink { .. }
                | Change::SetParent { .. }
                | Change::Touch { .. } => {}
            }
        }
        match (records > 0, frees) {
            (true, false) => Self::Grows,
            (_, true) => Self::Frees,
            (false, false) => Self::Keeps,
        }
    }
}

/// What a change needs: so many blocks, beside those that are kept back from its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) blocks: u64,
    pub(crate) growth: Growth,
}

/// Blocks for a change, in the shards that it lies in together, as far as it has not taken them.
/// Every step that is made live takes one.
#[must_use]
#[derive(Debug)]
pub(crate) struct Reservation {
    left: u64,
}

impl Reservation {
    /// For changes that make no node dirty: those of the session, claims, pages in line.
    pub(crate) const fn none() -> Self {
        Self { left: 0 }
    }

    /// For changes that are made whether there is room or not: a transaction was decided before a
    /// recovery, or the end of an inode frees blocks where a checkpoint has made no room.
    pub(crate) const fn unbounded() -> Self {
        Self { left: u64::MAX }
    }

    /// What was set aside for a prepared transaction.
    pub(crate) fn of_promises(blocks: impl Iterator<Item = u64>) -> Self {
        Self { left: blocks.sum() }
    }

    /// The same for a change in several shards.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self { left: self.left.saturating_add(other.left) }
    }

    /// Blocks to be set aside for a transaction that is being prepared.
    pub(crate) const fn into_promise(self) -> u64 {
        self.left
    }

    /// The change has taken so many blocks. A change that takes more than was estimated harms
    /// nothing at once (a checkpoint may find no block), so only tests are stopped by it.
    pub(crate) fn spend(&mut self, blocks: u64) {
        debug_assert!(blocks <= self.left, "{blocks} blocks of {} that are reserved", self.left);
        self.left = self.left.saturating_sub(blocks);
    }
}

/// The worst-case needs of changes in the tree of a shard, by its height.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Nodes from the root to a leaf.
    way: u64,
}

impl Budget {
    pub(crate) fn of_height(height: u8) -> Self {
        Self { way: u64::from(height).max(1) }
    }

    /// Room for the change, if the shard has so many free blocks that nothing is promised.
    pub(crate) fn admit(self, room: u64, need: Need) -> Option<Reservation> {
        let is_enough = room >= need.blocks + self.kept_back(need.growth);
        is_enough.then_some(Reservation { left: need.blocks })
    }

    /// Blocks that a change leaves to those that free more.
    fn kept_back(self, growth: Growth) -> u64 {
        let rename = 5 * self.way + self.insertion();
        match growth {
            Growth::Frees => 0,
            Growth::Keeps => self.unlink(),
            Growth::Grows => self.unlink() + rename.max(self.truncation()),
        }
    }

    /// Nodes that a new record may make dirty: its way, a split of each node on it, and a new root.
    /// A large attribute's may split its leaf in three.
    fn insertion(self) -> u64 {
        2 * self.way + 1
    }

    fn unlink(self) -> u64 {
        3 * self.way + self.insertion()
    }

    /// Blocks of the nodes that the change may make dirty.
    pub(crate) fn change(self, change: &Change) -> u64 {
        let (way, insertion) = (self.way, self.insertion());
        match change {
            // Its records, those of a long target too, may fill more than a leaf.
            Change::NewInode { .. } => 2 * insertion + 2,
            // The entry's leaf and that of the directory's part.
            Change::AddEntry { .. } => way + insertion,
            Change::RemoveEntry { .. } | Change::ReplaceEntry { .. } => 2 * way,
            // The inode, and the record that it is an orphan.
            Change::RemoveLink { .. } => way + insertion,
            Change::AddLink { .. } | Change::SetParent { .. } | Change::Touch { .. } => way,
        }
    }

    /// What another cell may have decided to change under such a lock.
    pub(crate) fn change_under(self, key: &LockKey, mode: LockMode) -> u64 {
        let (way, insertion) = (self.way, self.insertion());
        match key {
            _ if mode != LockMode::Write => 0,
            LockKey::Tree | LockKey::Logged(_) => 0,
            LockKey::Inode(_) | LockKey::Name(..) => way + insertion,
            LockKey::New(_) => 2 * insertion + 2,
        }
    }

    /// The attributes of an inode: a directory's time is in the record of its part.
    pub(crate) fn attributes(self) -> Need {
        Need { blocks: 2 * self.way, growth: Growth::Keeps }
    }

    /// The size and the times of a file that is to be written: all that is needed before the pages
    /// are known.
    pub(crate) fn begin_write(self) -> Need {
        Need { blocks: self.way, growth: Growth::Grows }
    }

    /// An access time.
    pub(crate) fn atime(self) -> Need {
        Need { blocks: ATIME_ROOM_MIN, growth: Growth::Frees }
    }

    /// An extended attribute. The inode's way and the attribute's have the root in common, so one
    /// node is left for a leaf that splits in three.
    pub(crate) fn xattr(self, growth: Growth) -> Need {
        Need { blocks: self.way + self.insertion(), growth }
    }

    /// A truncation with the attributes that follow. The page that the new end cuts is dirty
    /// afterwards.
    pub(crate) fn truncate(self) -> Need {
        Need { blocks: self.truncation(), growth: Growth::Keeps }
    }

    fn truncation(self) -> u64 {
        3 * self.way + blocks_of_pages(1)
    }

    pub(crate) fn write(self, pages: u64) -> Need {
        let blocks = blocks_of_pages(pages) + 2 * self.insertion();
        Need { blocks, growth: Growth::Grows }
    }

    /// The end of an inode, or a part of it.
    pub(crate) fn reap(self) -> Need {
        Need { blocks: self.unlink(), growth: Growth::Frees }
    }

    /// What dirty pages that get places were promised when they were written, less their blocks.
    pub(crate) fn placing(self, pages: usize) -> Reservation {
        let nodes = NODES_PER_WAY.max(self.insertion()) + pages as u64 / LEAVES_PER_NODE;
        Reservation { left: (BLOCKS_PER_PAGE - 1) * pages as u64 + nodes }
    }
}

/// Blocks that so many dirty pages of a shard will want.
pub(crate) const fn blocks_of_pages(pages: u64) -> u64 {
    if pages == 0 {
        return 0;
    }
    BLOCKS_PER_PAGE * pages + pages / LEAVES_PER_NODE + NODES_PER_WAY
}

/// An upper bound of the tree nodes that the records of so many chunks lie in.
pub(crate) const fn nodes_of_chunks(chunks: usize) -> u64 {
    chunks as u64 / CHUNKS_PER_LEAF + 2
}

/// What the log of a cell keeps free, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogBudget {
    /// Bytes of the whole log.
    pub(crate) bytes: u64,
}

impl LogBudget {
    /// Bytes that are kept free for what may not wait: the reserve, a snapshot of the session, and
    /// what `txns` transactions under way and `dirty` pages will want.
    pub(crate) fn kept_back(self, txns: usize, dirty: usize) -> u64 {
        // A few transactions are in the reserve.
        let txns = (LOG_PER_TXN * txns as u64).saturating_sub(LOG_RESERVE / 2);
        let pages = LOG_PER_PAGE * dirty as u64;
        LOG_RESERVE + self.session() + self.unanswered() + txns + pages
    }

    /// Bytes that a checkpoint may log: so many open files and held locks, the answers of a
    /// predecessor, and a record and a block's end before these.
    pub(crate) const fn checkpoint(self, session: usize) -> u64 {
        (RECORD_MAX + BLOCK_SIZE) as u64 + SESSION_STEP * session as u64 + self.unanswered()
    }

    /// Bytes that are kept free for a snapshot of the session.
    const fn session(self) -> u64 {
        (self.bytes - LOG_RESERVE) / 4
    }

    /// Bytes that are kept free for answers that a predecessor may not have given: those of the
    /// requests that were under way when it died.
    pub(crate) const fn unanswered(self) -> u64 {
        (self.bytes - LOG_RESERVE) / 16
    }

    /// Open files and held locks of a cell, together: what a snapshot of the session has room for.
    pub(crate) const fn session_max(self) -> usize {
        (self.session() / SESSION_STEP) as usize
    }

    /// Locks that may be granted to requests that wait if so many bytes are free: each logs its
    /// lock at once, and what runs before it may take the other half.
    pub(crate) fn grants(room: u64) -> usize {
        (room / 2 / LOG_PER_GRANT).max(room.min(1)) as usize
    }
}

#[cfg(test)]
mod tests;
