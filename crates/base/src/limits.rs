//! Every limit of the system, in one place, with the relations between them checked at compile
//! time.

/// Bytes of a block of the pool device, of a page of file data and of a tree node.
pub const BLOCK_SIZE: usize = 4096;

/// Blocks of a chunk, the unit of free space that cells exchange: its used-bitmap is one `u64`.
pub const CHUNK_BLOCKS: u64 = 64;

/// Blocks of a pool: 64 TiB, for which the map of free space in memory takes half a GiB. A
/// superblock or a sparse file may claim more than any machine has.
pub const POOL_BLOCKS_MAX: u64 = 1 << 34;

/// Bytes of a name in a directory, as Linux's `NAME_MAX`.
pub const NAME_MAX: usize = 255;

/// Bytes of a symbolic link's target, as Linux's `PATH_MAX` less its terminating NUL.
pub const SYMLINK_MAX: usize = 4095;

/// Bytes of an extended attribute's value, as Linux's `XATTR_SIZE_MAX`.
pub const XATTR_VALUE_MAX: usize = 1 << 16;

/// Bytes of all names of an inode's extended attributes, each with a zero behind it, as Linux's
/// `XATTR_LIST_MAX`.
pub const XATTR_LIST_MAX: usize = 1 << 16;

/// Bytes of a value that a body holds, and a leaf of a tree with the attribute's name. The longest
/// access control list is not longer, so lists are never in pieces.
pub const XATTR_SHORT_MAX: usize = 2048;

/// Bytes of an extended attribute's name, as Linux's `XATTR_NAME_MAX`.
pub const XATTR_NAME_MAX: usize = 255;

/// The largest file offset, as Linux's `LLONG_MAX`.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// Bytes of a write that never fails for lack of space if all its blocks are allocated (decision
/// 58). It touches at most four blocks, wherever it begins.
pub const PROMISED_WRITE: usize = 3 * BLOCK_SIZE;

/// Hard links of an inode, as ext4's.
pub const LINK_MAX: u32 = 65_000;

/// Depth of a directory, as far as the move of a directory searches for itself among the ancestors
/// of its new place: ELOOP beyond. The directory tree does not change meanwhile, and an image or a
/// peer may claim any depth. A path of `PATH_MAX` bytes reaches depth 2048.
pub const DEPTH_MAX: u32 = 1 << 16;

/// Cells of a fleet: one bit each in a 64-bit set, twice the cores of the largest machine we tune
/// for.
pub const CELLS_MAX: usize = 64;

/// Default number of shards of a volume, and the maximum for `mkfs`.
pub const SHARDS_DEFAULT: u16 = 256;
pub const SHARDS_MAX: u16 = 4096;

/// Slots of a client: one bit each in a doorbell word.
pub const SLOTS_MAX: usize = 64;

/// Bytes of file data of one request, each way: the largest write that FUSE sends.
pub const PAYLOAD_MAX: usize = 1 << 20;

/// Bytes of the longest file whose data come with the reply to an open.
pub const OPEN_DATA_MAX: u64 = 16 << 10;

/// Bytes of a request's or reply's encoded body: two names and a symlink target fit.
pub const BODY_MAX: usize = 8192;

/// Bytes of a message between cells. A commit of a rename is the largest; pool transfers may fill
/// it.
pub const PEER_MESSAGE_MAX: usize = 16 * 1024;

/// Lease words of one client at one cell. If a word is needed for a second object, the first one
/// loses its lease, so this limits memory, not correctness.
pub const LEASE_WORDS: usize = 1 << 16;

/// Live tasks of a cell beyond which it takes no new requests: a little more than the slots of a
/// busy front.
pub const TASKS_MAX: usize = 1024;

/// Locks of an inode, and requests that wait for one: more than any program was seen to hold on a
/// file, and few enough for the snapshot of a session. Each user has a share (`budget`).
pub const LOCKS_OF_INODE_MAX: usize = 1 << 15;

/// Supplementary groups of a client, as Linux's `NGROUPS_MAX`.
pub const GROUPS_MAX: usize = 65_536;

const _: () = {
    assert!(BODY_MAX >= 2 * NAME_MAX + SYMLINK_MAX + 256);
    assert!(BODY_MAX >= XATTR_NAME_MAX + XATTR_SHORT_MAX + 256);
    assert!(XATTR_NAME_MAX + XATTR_SHORT_MAX + 128 < BLOCK_SIZE);
    assert!(PAYLOAD_MAX >= XATTR_VALUE_MAX && PAYLOAD_MAX >= XATTR_LIST_MAX);
    assert!(PAYLOAD_MAX.is_multiple_of(BLOCK_SIZE));
    assert!(SLOTS_MAX <= 64 && CELLS_MAX <= 64);
    assert!(TASKS_MAX > SLOTS_MAX);
    assert!(PEER_MESSAGE_MAX > BODY_MAX);
    assert!(CHUNK_BLOCKS == u64::BITS as u64);
    assert!(SHARDS_DEFAULT <= SHARDS_MAX);
};
