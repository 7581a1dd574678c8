//! The shards of a volume before they are on a device, for both test binaries of this crate.
//!
//! An image is plain records. [`Image::write`] writes the tree of one shard, and returns its root
//! slot.

use std::collections::BTreeMap;

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{BlockNo, Ino, ShardId, Timestamp};
use warren_disk::{Dentry, Inode, Key, Part, RootSlot, Tree, Value, name_hash};
use warren_proto::{FileKind, FileName};

/// The pool's secret for hashing names.
pub(crate) const SECRET: u64 = 99;
/// Chunks below this number belong to no shard.
pub(crate) const RESERVED: u64 = 3;
/// The chunk of shard 0. Each shard has one chunk.
pub(crate) const FIRST_CHUNK: u64 = 4;

pub(crate) fn name(name: &str) -> FileName {
    FileName::new(name.as_bytes()).expect("a name")
}

pub(crate) fn entry_key(dir: Ino, name: &str) -> Key {
    Key::entry(dir, name_hash(SECRET, name.as_bytes()))
}

/// Everything in a vector is indexed by shard.
pub(crate) struct Image {
    pub records: Vec<BTreeMap<Key, Value>>,
    pub next_sequence: Vec<u64>,
    /// The chunk that the tree is written to.
    pub chunks: Vec<u64>,
    /// The region map.
    pub owned: BTreeMap<ShardId, Vec<u64>>,
    /// Blocks of the chunk that are in use before the tree is written.
    pub used: Vec<u64>,
}

impl Image {
    /// Shards without an inode.
    pub(crate) fn empty(shards: u16) -> Self {
        let count = usize::from(shards);
        let chunk = |shard: u16| FIRST_CHUNK + u64::from(shard);
        Self {
            records: vec![BTreeMap::new(); count],
            next_sequence: vec![10; count],
            chunks: (0..shards).map(chunk).collect(),
            owned: (0..shards).map(|shard| (ShardId(shard), vec![chunk(shard)])).collect(),
            used: vec![0; count],
        }
    }

    pub(crate) fn put(&mut self, shard: usize, key: Key, value: Value) {
        self.records[shard].insert(key, value);
    }

    pub(crate) fn inode(&mut self, ino: Ino, kind: FileKind, nlink: u32) {
        let time = Timestamp(5);
        let inode = Inode {
            kind,
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            generation: 0,
            parent: if kind == FileKind::Directory { Ino::ROOT } else { Ino(0) },
            flags: warren_base::InodeFlags::empty(),
        };
        self.put(usize::from(ino.shard().0), Key::inode(ino), Value::Inode(Box::new(inode)));
    }

    pub(crate) fn part(&mut self, dir: Ino, entries: u64, subdirs: u32) {
        let part = Part { entries, subdirs, ..Part::default() };
        self.put(usize::from(dir.shard().0), Key::part(dir, 0), Value::Part(Box::new(part)));
    }

    pub(crate) fn entry(&mut self, dir: Ino, name: &str, ino: Ino, kind: FileKind) {
        let bucket = [Dentry { name: name.as_bytes().into(), ino, kind }];
        let shard = usize::from(dir.shard().0);
        self.put(shard, entry_key(dir, name), Value::Entries(Box::new(bucket)));
    }

    /// Writes the tree of a shard, and returns its root slot.
    pub(crate) fn write(&self, shard: usize, device: &mut BTreeMap<BlockNo, Vec<u8>>) -> RootSlot {
        let mut tree = Tree::open(ShardId(shard as u16), None, 0);
        let chunk = Key::chunk(self.chunks[shard]);
        for (key, value) in &self.records[shard] {
            tree.insert(*key, value.clone()).expect("in memory");
        }
        tree.insert(chunk, Value::Chunk(0)).expect("in memory");
        let first = self.used[shard].trailing_ones() as usize;
        let places: Vec<_> = (first..first + tree.dirty_nodes())
            .map(|n| BlockNo(self.chunks[shard] * CHUNK_BLOCKS + n as u64))
            .collect();
        let used = places.iter().fold(self.used[shard], |used, at| used | 1 << (at.0 % 64));
        tree.insert(chunk, Value::Chunk(used)).expect("in memory");
        let (root, height, writes) = tree.write_out(1, &places);
        device.extend(writes.into_iter().map(|(block, bytes)| (block, bytes.into())));
        RootSlot {
            uuid: [0; 16],
            shard: ShardId(shard as u16),
            generation: 1,
            root,
            height,
            next_sequence: self.next_sequence[shard],
            given_up: false,
            inodes: 0,
            used_blocks: u64::from(used.count_ones()),
        }
    }
}
