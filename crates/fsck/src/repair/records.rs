//! The records of one shard, as a repair reads and changes them.

use std::collections::{BTreeMap, BTreeSet};
use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, FileKind, Ino, InodeFlags, ShardId, Timestamp};
use warren_disk::{
    Dentry, EXTENT_BLOCKS_MAX, Extent, Inode, Key, Kind, Owed, RootSlot, SHARED_MAX, SharedRun,
    VALUE_MAX, Value, Xattr, name_hash,
};

/// The mode of an inode whose attributes are lost; directories have another.
const INVENTED_MODE: u16 = 0o600;
const INVENTED_DIRECTORY_MODE: u16 = 0o700;

/// The records of one shard.
pub(super) type Records = BTreeMap<Key, Value>;

/// A block of a file: its number in the file, its place, its checksum.
pub(super) type FileBlock = (u64, BlockNo, u32);

/// A shard as far as it could be read.
pub(super) struct Shard {
    pub shard: ShardId,
    /// The valid slot.
    pub slot: Option<RootSlot>,
    /// The slot is known to be that of the last checkpoint that changed the shard.
    pub is_newest: bool,
    pub records: Records,
    /// Its readable nodes.
    pub nodes: BTreeSet<BlockNo>,
    /// Nodes that were readable after flipping one bit back, in their corrected form.
    pub corrected: BTreeMap<BlockNo, Box<[u8]>>,
    /// The checkpoint of the newest of these nodes.
    pub newest: u64,
    /// The slot or some node could not be read.
    pub incomplete: bool,
}

/// An inode of root's that no other user may use. The repair finds a directory's parent by its
/// name.
pub(super) fn blank(kind: FileKind) -> Inode {
    let directory = kind == FileKind::Directory;
    let time = Timestamp(0);
    Inode {
        kind,
        mode: if directory { INVENTED_DIRECTORY_MODE } else { INVENTED_MODE },
        uid: 0,
        gid: 0,
        nlink: if directory { 2 } else { 1 },
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        generation: 0,
        parent: if directory { Ino::ROOT } else { Ino(0) },
        flags: InodeFlags::empty(),
    }
}

/// Puts an entry into its bucket; false if its name exists or the bucket is full.
pub(super) fn add_entry(records: &mut Records, secret: u64, dir: Ino, dentry: Dentry) -> bool {
    let key = Key::entry(dir, name_hash(secret, &dentry.name));
    let mut bucket = match records.get(&key) {
        Some(Value::Entries(bucket)) => bucket.to_vec(),
        _ => Vec::new(),
    };
    if bucket.iter().any(|other| other.name == dentry.name) {
        return false;
    }
    bucket.push(dentry);
    insert(records, key, Value::Entries(bucket.into()))
}

pub(super) fn add_xattr(records: &mut Records, secret: u64, ino: Ino, xattr: Xattr) -> bool {
    let key = Key::xattr(ino, name_hash(secret, &xattr.name));
    let mut bucket = match records.get(&key) {
        Some(Value::Xattrs(bucket)) => bucket.to_vec(),
        _ => Vec::new(),
    };
    if bucket.iter().any(|other| other.name == xattr.name) {
        return false;
    }
    bucket.push(xattr);
    insert(records, key, Value::Xattrs(bucket.into()))
}

fn insert(records: &mut Records, key: Key, value: Value) -> bool {
    let fits = value.encoded_len() <= VALUE_MAX;
    if fits {
        records.insert(key, value);
    }
    fits
}

/// Entries of a directory, and those that lead to directories.
pub(super) fn counted(dir: Ino, records: &Records) -> (u64, u32) {
    let all = Key::entry(dir, 0)..=Key::entry(dir, u64::MAX);
    let buckets = records.range(all).filter_map(|(_, value)| match value {
        Value::Entries(bucket) => Some(bucket),
        _ => None,
    });
    buckets.flatten().fold((0, 0), |(entries, subdirs): (u64, u32), dentry| {
        let subdir = u32::from(dentry.kind == FileKind::Directory);
        (entries + 1, subdirs.saturating_add(subdir))
    })
}

/// All blocks of a file, by their extents.
pub(super) fn file_blocks(group: &Records) -> Vec<FileBlock> {
    let mut blocks = Vec::new();
    for (key, value) in group {
        if let Value::Extent(extent) = value {
            for (n, checksum) in (0..).zip(&extent.checksums) {
                let block = BlockNo(extent.start.0.saturating_add(n));
                blocks.push((key.sub.saturating_add(n), block, *checksum));
            }
        }
    }
    blocks
}

/// Removes unwritten extents of a file that lie where another extent lies. Returns whether there
/// were any, and how many unwritten blocks are left.
pub(super) fn drop_overlapping(ino: Ino, records: &mut Records) -> (bool, u64) {
    let placed: BTreeSet<u64> = file_blocks(records).into_iter().map(|(at, ..)| at).collect();
    let (mut end, mut left, mut doomed) = (0, 0, Vec::new());
    for (key, value) in records.range(Key::extent(ino, 0)..=Key::extent(ino, u64::MAX)) {
        let Value::Unwritten(blocks) = value else { continue };
        let after = key.sub.saturating_add((*blocks).into());
        if key.sub < end || placed.range(key.sub..after).next().is_some() {
            doomed.push(*key);
        } else {
            (end, left) = (after, left + u64::from(*blocks));
        }
    }
    doomed.iter().for_each(|key| drop(records.remove(key)));
    (!doomed.is_empty(), left)
}

/// Sets what the shard owes to its unwritten extents.
pub(super) fn put_owed(records: &mut Records) -> bool {
    let mut owed = Owed::default();
    for value in records.values() {
        if let Value::Unwritten(blocks) = value {
            owed.blocks += u64::from(*blocks);
            owed.extents += 1;
        }
    }
    let right = (owed != Owed::default()).then_some(Value::Owed(owed));
    let old = match right.clone() {
        Some(value) => records.insert(Key::owed(), value),
        None => records.remove(&Key::owed()),
    };
    old != right
}

/// For each block with several places in the shard's files, the places besides one.
pub(super) fn shared_blocks(records: &Records) -> BTreeMap<BlockNo, u16> {
    let mut places: Vec<BlockNo> = file_blocks(records).iter().map(|(_, at, _)| *at).collect();
    places.sort_unstable();
    let of_block = places.chunk_by(|a, b| a == b).filter(|same| same.len() > 1);
    of_block.map(|same| (same[0], u16::try_from(same.len() - 1).unwrap_or(SHARED_MAX))).collect()
}

/// Records which blocks of the shard's files are shared. Returns whether anything was wrong.
pub(super) fn put_shared(records: &mut Records) -> bool {
    let is_record = |key: &Key| key.kind == Kind::Shared;
    let mut right = Records::new();
    let shared: Vec<(BlockNo, u16)> = shared_blocks(records).into_iter().collect();
    let chunk_of = |block: BlockNo| block.0 / CHUNK_BLOCKS;
    for of_chunk in shared.chunk_by(|a, b| chunk_of(a.0) == chunk_of(b.0)) {
        let is_next = |a: &(BlockNo, u16), b: &(BlockNo, u16)| a.0.offset(1) == b.0 && a.1 == b.1;
        let run = |run: &[(BlockNo, u16)]| SharedRun {
            first: (run[0].0.0 % CHUNK_BLOCKS) as u8,
            blocks: run.len() as u8,
            others: run[0].1,
        };
        let runs = of_chunk.chunk_by(is_next).map(run).collect();
        right.insert(Key::shared(chunk_of(of_chunk[0].0)), Value::Shared(runs));
    }
    let old = records.iter().filter(|(key, _)| is_record(key));
    let was_wrong = !old.eq(right.iter());
    if was_wrong {
        records.retain(|key, _| !is_record(key));
        records.append(&mut right);
    }
    was_wrong
}

/// Sets the blocks of the file that have places, in as few extents as possible.
pub(super) fn put_file_blocks(ino: Ino, records: &mut Records, blocks: &[FileBlock]) {
    let all = Key::extent(ino, 0)..=Key::extent(ino, u64::MAX);
    let old = records.range(all).filter(|(_, value)| matches!(value, Value::Extent(_)));
    let old: Vec<Key> = old.map(|(key, _)| *key).collect();
    old.iter().for_each(|key| drop(records.remove(key)));
    let mut rest = blocks;
    while let Some(&(at, start, _)) = rest.first() {
        let follows = |(n, (file_block, block, _)): (u64, &FileBlock)| {
            *file_block == at + n && block.0 == start.0 + n
        };
        let run = (0..).zip(rest).take(EXTENT_BLOCKS_MAX).take_while(|pair| follows(*pair)).count();
        let checksums = rest[..run].iter().map(|(_, _, checksum)| *checksum).collect();
        let extent = Extent { start, checksums };
        records.insert(Key::extent(ino, at), Value::Extent(Box::new(extent)));
        rest = &rest[run..];
    }
}
