//! The budget of a change: its worst-case needs in blocks of a shard, in bytes of the log and in
//! bytes of a reply, and the [`Reservation`] that states that the change has them.
//!
//! A change is admitted first: [`crate::supply::claim::reserve`] fetches chunks and waits for room
//! in the log. Then the change is made within its reservation (`Shard::change`). Nothing waits in
//! between, so the blocks that were free at admission are free when the change is made.
//!
//! A full shard must still execute requests that free blocks, and those that need blocks only for a
//! time. So some blocks are kept back, in two steps:
//!
//! ```text
//! 0 ...... frees ...... keeps ............................... free blocks that nothing is promised
//!   |  unlink, rmdir   |  rename within a shard, truncate,   |  create, link, write, ...
//!   |                  |  attributes, punch, write to blocks |
//!   |                  |  that are allocated                 |
//! ```
//!
//! The blocks that a change takes from this reserve return with a checkpoint: it writes the dirty
//! nodes to new blocks, and then the old blocks are free.

use warren_base::limits::{BLOCK_SIZE, BODY_MAX, NAME_MAX, PROMISED_WRITE, XATTR_VALUE_MAX};
use warren_disk::{
    EXTENT_BLOCKS_MAX, HEIGHT_MAX, INTERNAL_RECORD, LOG_BLOCKS_MIN, NODE_CAPACITY, RECORD_HEADER,
    RECORD_MAX, RECORD_OVERHEAD, SHARED_RECORD_MAX, TARGET_PIECE, XATTR_PIECE,
};
use warren_proto::{Change, DIR_ENTRY_BYTES, LockKey, LockMode, NAME_COST};

// Blocks of a shard.

/// Blocks that writing one dirty page may take: its own, and a leaf of the tree, which may be clean
/// until then, and which may split: a page in the middle of an extent leaves three.
const BLOCKS_PER_PAGE: u64 = 3;
/// Blocks that all dirty pages of a shard may take in addition: the nodes above the leaves of one
/// run of extents, with those that splits add. The pages of other files usually find these nodes
/// dirty, since each write has changed its inode, which lies below the same nodes.
const NODES_PER_WAY: u64 = 8;
/// Leaves that a node above them holds at least, since splits leave it half full: so many pages
/// that split their leaves split such a node, too.
const LEAVES_PER_NODE: u64 = 64;
/// Unwritten blocks for which the shard keeps one block more: for the nodes that their extents may
/// come to need. A write in the middle of an unwritten extent adds two records of at most 31 bytes,
/// so that a leaf which is half full splits after 33 such writes. The split of a leaf that is full
/// already is kept back for each unwritten extent ([`Budget::kept_from_growth`]).
const OWED_PER_NODE: u64 = 16;
/// Pages of the longest write that never fails for lack of space if all its blocks are allocated.
pub(crate) const REWRITE_PAGES: u64 = (PROMISED_WRITE / BLOCK_SIZE) as u64 + 1;
/// Blocks of a file that are allocated in one run.
pub(crate) const ALLOCATE_BATCH: u64 = 1 << 16;
/// Chunks whose records one leaf holds at least, because splits leave leaves half full.
const CHUNKS_PER_LEAF: u64 = 64;
/// Extents whose records one leaf holds at least, and chunks with shared blocks, for the same
/// reason.
const EXTENTS_PER_LEAF: u64 = 7;
const SHARED_PER_LEAF: u64 = 7;
/// Extents whose blocks are shared in one run.
pub(crate) const SHARE_BATCH: usize = 256;
/// Blocks that a shard must have left for an update of an access time. Nothing waits for this
/// update, so it takes no block that another change may need.
const ATIME_ROOM_MIN: u64 = 32;
/// Records of an inode that are freed in one run. Leaves that become empty vanish, so only the path
/// to them and a neighbour of each node on it become dirty.
pub(crate) const REAP_BATCH: usize = 128;

// Bytes of the log.

/// Bytes that stay free for records that cannot wait: the parts of decided transactions (half of
/// the reserve), reclaiming, and a snapshot of the session.
const LOG_RESERVE: u64 = 256 << 10;
/// Bytes that a dirty page needs when it is placed: at worst a record of its own.
const LOG_PER_PAGE: u64 = 104;
/// Bytes that a transaction under way may still need: its decision or its changes here, with names,
/// the target of a symlink and an answer, and the record of its end.
const LOG_PER_TXN: u64 = BODY_MAX as u64;
/// Bytes of the record of a lock that is granted to a waiting request.
const LOG_PER_GRANT: u64 = 96;
/// Bytes of the longest step of a session's snapshot, with its share of a record's header.
const SESSION_STEP: u64 = 64;
/// Steps of one record of a session's snapshot.
pub(crate) const SESSION_BATCH: usize = 512;
/// Bytes of a record that holds one answer of a predecessor, beside the answer.
pub(crate) const ANSWER_OVERHEAD: u64 = 64;
/// Pages that get places in one run. Their runs, at worst of one page each, leave room in a record
/// for the next step.
pub(crate) const WRITE_BACK_BATCH: usize = 1024;
/// Pages that an `fsync` logs instead of writing them to their places. With more pages, two writes
/// cost less than the log's space.
pub(crate) const INLINE_PAGES: usize = 8;
/// Bytes of the log that these pages take, with the description of each.
pub(crate) const INLINE_MAX: u64 = INLINE_PAGES as u64 * (BLOCK_SIZE as u64 + 64);

// Bytes of a reply's body.

/// Bytes of a reply for the entries of a listing.
pub(crate) const LISTING_MAX: usize = BODY_MAX - 64;
pub(crate) const LISTING_ENTRY: usize = DIR_ENTRY_BYTES;
/// Bytes of a neighbour of a name, beside the name: its length, the inode and its kind, the lease
/// on the name, attributes with a lease, the capability. Each of these but the last may be absent.
pub(crate) const NEIGHBOUR: usize = 1 + (8 + 1) + (1 + LEASE) + (1 + ATTR + 1 + LEASE) + 8;
const LEASE: usize = 4 + 8;
const ATTR: usize = 76;
/// Keys of one recall.
pub(crate) const RECALL_KEYS: usize = 24;

const _: () = {
    // No record but a bucket of attributes is larger than half a leaf, so a leaf splits in two.
    assert!(2 * (RECORD_OVERHEAD + TARGET_PIECE + 2) <= NODE_CAPACITY);
    assert!(2 * (RECORD_OVERHEAD + XATTR_PIECE) <= NODE_CAPACITY);
    assert!(2 * (RECORD_OVERHEAD + 16 + 4 * EXTENT_BLOCKS_MAX) <= NODE_CAPACITY);
    assert!(2 * (RECORD_OVERHEAD + 16 + NAME_MAX) <= NODE_CAPACITY);
    assert!(2 * CHUNKS_PER_LEAF as usize * (RECORD_OVERHEAD + 8) <= NODE_CAPACITY);
    const EXTENT: usize = RECORD_OVERHEAD + 8 + 4 * EXTENT_BLOCKS_MAX;
    assert!(2 * EXTENTS_PER_LEAF as usize * EXTENT <= NODE_CAPACITY);
    assert!(2 * SHARED_PER_LEAF as usize * (RECORD_OVERHEAD + SHARED_RECORD_MAX) <= NODE_CAPACITY);
    assert!(2 * LEAVES_PER_NODE as usize * INTERNAL_RECORD <= NODE_CAPACITY);
    assert!(ATIME_ROOM_MIN >= HEIGHT_MAX as u64);

    // The smallest log holds two snapshots, because the last one stays in it until the next is
    // durable. The rest is larger than the reserve.
    let log = LogBudget { bytes: LOG_BLOCKS_MIN * BLOCK_SIZE as u64 };
    assert!(LOG_RESERVE <= log.bytes / 2);
    assert!(2 * (log.session() + log.unanswered()) < log.bytes - LOG_RESERVE);
    // A checkpoint begins a block and makes a record before the snapshot. Half of the reserve
    // belongs to transactions.
    assert!((RECORD_MAX + BLOCK_SIZE) as u64 <= LOG_RESERVE / 2);
    assert!(16 * LOG_PER_TXN <= LOG_RESERVE / 2);
    // One record holds a batch of a snapshot, or a file in line. A batch of write-back fits the
    // half that `Record::takes_another_step` leaves.
    assert!(RECORD_HEADER + SESSION_BATCH * SESSION_STEP as usize <= RECORD_MAX);
    assert!(RECORD_HEADER as u64 + 64 + INLINE_MAX <= RECORD_MAX as u64);
    assert!(RECORD_HEADER + 64 + WRITE_BACK_BATCH * (8 + 8 + 4 + 4) <= RECORD_MAX / 2);

    assert!(RECALL_KEYS * (1 + 8 + 1 + NAME_MAX) + 64 <= BODY_MAX);
    assert!(LISTING_ENTRY + NAME_MAX <= LISTING_MAX);
    assert!(NEIGHBOUR + NAME_MAX <= LISTING_MAX);
};

/// The effect of a change on the number of used blocks of a shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Growth {
    Frees,
    Keeps,
    Grows,
}

impl Growth {
    /// The growth of all these changes in one shard.
    pub(crate) fn of<'a>(changes: impl Iterator<Item = &'a Change>) -> Self {
        let (mut frees, mut records) = (false, 0);
        for change in changes {
            match change {
                Change::NewInode { .. } | Change::NewOrphan { .. } | Change::Inherit { .. } => {
                    return Self::Grows;
                }
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

/// The need of a change: blocks in addition to those that are kept back from its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) blocks: u64,
    pub(crate) growth: Growth,
}

impl Need {
    /// The need of both changes, made as one.
    pub(crate) fn with(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        let blocks = self.blocks + other.blocks;
        Self { blocks, growth: self.growth.max(other.growth) }
    }
}

/// Blocks for a change in all its shards that it has not taken yet. Every step that is made live
/// takes a reservation.
#[must_use]
#[derive(Debug)]
pub(crate) struct Reservation {
    left: u64,
}

impl Reservation {
    /// Nothing: for changes of the session, claims and pages in line, which make no node dirty.
    pub(crate) const fn empty() -> Self {
        Self { left: 0 }
    }

    /// For changes that are made even without room: a transaction that was decided before a
    /// recovery, or the end of an inode, which frees blocks where a checkpoint has made no room.
    pub(crate) const fn unbounded() -> Self {
        Self { left: u64::MAX }
    }

    /// The blocks that were set aside for a prepared transaction.
    pub(crate) fn of_promises(blocks: impl Iterator<Item = u64>) -> Self {
        Self { left: blocks.sum() }
    }

    /// Blocks that were set aside for a record before it was posted.
    pub(crate) const fn of_credit(blocks: u64) -> Self {
        Self { left: blocks }
    }

    /// The same for a change in several shards.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self { left: self.left.saturating_add(other.left) }
    }

    /// Blocks to be set aside for a transaction that is being prepared.
    pub(crate) const fn into_promise(self) -> u64 {
        self.left
    }

    /// The change has taken so many blocks. Taking more than was estimated harms nothing at once (a
    /// later checkpoint may find no block), so only tests fail on it.
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
    /// Unwritten extents of the shard.
    unwritten: u64,
}

impl Budget {
    /// The budget of a tree of this height, with so many unwritten extents.
    pub(crate) fn of(height: u8, unwritten: u64) -> Self {
        Self { way: u64::from(height).max(1), unwritten }
    }

    /// Reserves blocks for the change, if the shard has enough unpromised free blocks (`room`).
    pub(crate) fn admit(self, room: u64, need: Need) -> Option<Reservation> {
        let is_enough = room >= need.blocks + self.kept_back(need.growth);
        is_enough.then_some(Reservation { left: need.blocks })
    }

    /// Blocks that this change leaves to changes that free more.
    fn kept_back(self, growth: Growth) -> u64 {
        match growth {
            Growth::Frees => 0,
            Growth::Keeps => self.unlink(),
            Growth::Grows => self.kept_from_growth(),
        }
    }

    /// Blocks that a change leaves which takes blocks for good. The promise of `fallocate` needs
    /// them: see [`OWED_PER_NODE`] and [`REWRITE_PAGES`]. Writes to allocated blocks may make the
    /// tree higher: by two levels if many extents are unwritten, because each may become 64.
    pub(crate) fn kept_from_growth(self) -> u64 {
        let levels = 1 + u64::from(self.unwritten > EXTENT_BLOCKS_MAX as u64);
        let later = Self { way: self.way + levels, ..self };
        let rename = 5 * later.way + later.insertion();
        let keeps = [later.truncation(), later.punch().blocks, later.rewrite(REWRITE_PAGES).blocks];
        later.unlink() + keeps.into_iter().fold(rename, u64::max) + self.unwritten
    }

    /// Free blocks that no user can fill once the shard has a file: those that are kept back, and
    /// the worst case of a small write.
    pub(crate) fn unwritable(self) -> u64 {
        self.kept_from_growth() + self.write(1).blocks
    }

    /// Nodes that a new record may make dirty: its path, a split of each node on it, and a new
    /// root. The record of a large attribute may split its leaf in three.
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
            // Its records, including those of a long target, may fill more than one leaf.
            Change::NewInode { .. } => 2 * insertion + 2,
            // The inode, and its orphan record.
            Change::NewOrphan { .. } => 2 * insertion,
            // The leaf of the entry and that of the directory's part.
            Change::AddEntry { .. } => way + insertion,
            Change::RemoveEntry { .. } | Change::ReplaceEntry { .. } => 2 * way,
            // The same, of an inode that is there.
            Change::RemoveLink { .. } => way + insertion,
            Change::AddLink { .. } => 2 * way,
            // Two attributes, either of which may split a leaf in three.
            Change::Inherit { .. } => 2 * insertion,
            Change::SetParent { .. } | Change::Touch { .. } => way,
        }
    }

    /// The blocks that a change needs which another cell may decide under such a lock.
    pub(crate) fn change_under(self, key: &LockKey, mode: LockMode) -> u64 {
        let (way, insertion) = (self.way, self.insertion());
        match key {
            _ if mode != LockMode::Write => 0,
            LockKey::Tree | LockKey::Logged(_) => 0,
            LockKey::Inode(_) | LockKey::Name(..) => way + insertion,
            // An inode, with the lists that it inherits.
            LockKey::New(_) => 4 * insertion + 2,
        }
    }

    /// A change of attributes. A directory's time is in the record of its part.
    pub(crate) fn attributes(self) -> Need {
        Need { blocks: 2 * self.way, growth: Growth::Keeps }
    }

    /// The size and times of a file, before a write. Nothing more is needed until the pages are
    /// known.
    pub(crate) fn begin_write(self) -> Need {
        Need { blocks: self.way, growth: Growth::Keeps }
    }

    /// An update of an access time.
    pub(crate) fn atime(self) -> Need {
        Need { blocks: ATIME_ROOM_MIN, growth: Growth::Frees }
    }

    /// A change of an extended attribute. The paths of the inode and of the attribute share the
    /// root, so one node is left for a leaf that splits in three.
    pub(crate) fn xattr(self, growth: Growth) -> Need {
        Need { blocks: self.way + self.insertion(), growth }
    }

    /// The pieces of an attribute's value are replaced by so many new ones, which are neighbours:
    /// the paths to the ends of the old ones, a leaf for each new one, and a split of each node on
    /// both sides.
    pub(crate) fn xattr_pieces(self, added: u64) -> Need {
        let new = if added > 0 { added + 2 * self.insertion() } else { 0 };
        Need { blocks: 2 * self.way + new, growth: Growth::Keeps }
    }

    /// A truncation with the attributes that follow from it. It makes the page dirty that the new
    /// end cuts.
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

    /// So many pages that a client may write by posts, one or more at a time, while the tree grows.
    pub(crate) fn posts(self, pages: u64) -> Need {
        Self { way: self.way + 1, ..self }.write(pages)
    }

    /// So many changes of names that a client may post, with as many times the credit of one for
    /// data, while the tree grows.
    pub(crate) fn name_posts(self, changes: u64) -> Need {
        let later = Self { way: self.way + 1, ..self };
        // A new inode that inherits lists, and its name.
        let create = 5 * later.insertion() + 2 + later.way;
        let data = blocks_of_pages(2 * u64::from(NAME_COST));
        Need { blocks: changes * create.max(data), growth: Growth::Grows }
    }

    /// A write to pages that have blocks. The old blocks become free with a checkpoint.
    pub(crate) fn rewrite(self, pages: u64) -> Need {
        Need { growth: Growth::Keeps, ..self.write(pages) }
    }

    /// A hole in a file: the paths to the inode, to the start of the range and to a neighbour, a
    /// record more at its end, and the pages that the ends cut.
    pub(crate) fn punch(self) -> Need {
        let blocks = 3 * self.way + self.insertion() + blocks_of_pages(2);
        Need { blocks, growth: Growth::Keeps }
    }

    /// So many blocks of a file become unwritten, in `holes` places; otherwise as a hole.
    pub(crate) fn allocate(self, blocks: u64, holes: u64) -> Need {
        let extents = blocks / EXTENT_BLOCKS_MAX as u64 + holes;
        let nodes = extents / LEAVES_PER_NODE + extents / LEAVES_PER_NODE / LEAVES_PER_NODE;
        let blocks = blocks_of_owed(blocks) + extents + nodes + self.punch().blocks;
        Need { blocks, growth: Growth::Grows }
    }

    /// So many extents of another file, in so many chunks, become extents of this one too, in the
    /// place of `old` ones: the new ones are neighbours but for the old ones between them, whose
    /// leaves may split. The records of what is shared may come to need more nodes.
    pub(crate) fn share(self, extents: u64, old: u64, chunks: u64) -> Need {
        let leaves = extents / EXTENTS_PER_LEAF + 2 * extents.min(old);
        let nodes = leaves / LEAVES_PER_NODE + nodes_of_shared(chunks);
        let blocks = leaves + nodes + 3 * self.way + 2 * self.insertion();
        Need { blocks, growth: Growth::Grows }
    }

    /// The end of an inode, or a part of it.
    pub(crate) fn reap(self) -> Need {
        Need { blocks: self.unlink(), growth: Growth::Frees }
    }

    /// The blocks that dirty pages were promised when they were written, minus their own blocks,
    /// for the time when they get places.
    pub(crate) fn placing(self, pages: usize) -> Reservation {
        let nodes = NODES_PER_WAY.max(self.insertion()) + pages as u64 / LEAVES_PER_NODE;
        Reservation { left: (BLOCKS_PER_PAGE - 1) * pages as u64 + nodes }
    }
}

/// Blocks that so many dirty pages of a shard will need.
pub(crate) const fn blocks_of_pages(pages: u64) -> u64 {
    if pages == 0 {
        return 0;
    }
    BLOCKS_PER_PAGE * pages + pages / LEAVES_PER_NODE + NODES_PER_WAY
}

/// Blocks that so many unwritten blocks will need.
pub(crate) const fn blocks_of_owed(blocks: u64) -> u64 {
    blocks + blocks.div_ceil(OWED_PER_NODE)
}

/// An upper bound of the tree nodes that the records of so many chunks lie in, and the record of
/// what the shard owes.
pub(crate) const fn nodes_of_chunks(chunks: usize) -> u64 {
    chunks as u64 / CHUNKS_PER_LEAF + 3
}

/// An upper bound of the tree nodes that the records of so many chunks with shared blocks lie in.
pub(crate) const fn nodes_of_shared(chunks: u64) -> u64 {
    if chunks == 0 { 0 } else { chunks / SHARED_PER_LEAF + 3 }
}

/// The bytes of its log that a cell keeps free, by purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogBudget {
    /// Bytes of the whole log.
    pub(crate) bytes: u64,
}

impl LogBudget {
    /// Bytes that are kept free for records that cannot wait: the reserve, a snapshot of the
    /// session, and the needs of `txns` transactions under way and of `dirty` pages.
    pub(crate) fn kept_back(self, txns: usize, dirty: usize) -> u64 {
        // The reserve covers a few transactions.
        let txns = (LOG_PER_TXN * txns as u64).saturating_sub(LOG_RESERVE / 2);
        let pages = LOG_PER_PAGE * dirty as u64;
        LOG_RESERVE + self.session() + self.unanswered() + txns + pages
    }

    /// Bytes that a checkpoint may log: so many open files and held locks, the answers of a
    /// predecessor, and before these a record and the end of a block.
    pub(crate) const fn checkpoint(self, session: usize) -> u64 {
        (RECORD_MAX + BLOCK_SIZE) as u64 + SESSION_STEP * session as u64 + self.unanswered()
    }

    /// Bytes that are kept free for a snapshot of the session.
    const fn session(self) -> u64 {
        (self.bytes - LOG_RESERVE) / 4
    }

    /// Bytes that are kept free for answers that a predecessor may not have sent: those of the
    /// requests that were under way when it died.
    pub(crate) const fn unanswered(self) -> u64 {
        (self.bytes - LOG_RESERVE) / 16
    }

    /// Bytes that long values of attributes leave free. Two clients that do nothing but set such
    /// values fill the log faster than checkpoints free it. What other users change and make
    /// durable goes on in these bytes while the values wait. A small log has none: there a value
    /// of the greatest length could wait for ever.
    pub(crate) const fn left_by_long_values(self) -> u64 {
        ((self.bytes - LOG_RESERVE) / 16).saturating_sub(XATTR_VALUE_MAX as u64)
    }

    /// The number of open files and held locks of a cell, together, for which a snapshot of the
    /// session has room.
    pub(crate) const fn session_max(self) -> usize {
        (self.session() / SESSION_STEP) as usize
    }

    /// Locks that may be granted to waiting requests if so many bytes are free. Each granted
    /// request logs its lock at once. Tasks that run before it may take the other half.
    pub(crate) fn grants(room: u64) -> usize {
        (room / 2 / LOG_PER_GRANT).max(room.min(1)) as usize
    }
}

#[cfg(test)]
mod tests;
