//! A small pool, changed as the fuzzer says, with every checksum made right again: what is fuzzed
//! is what lies behind them.
//!
//! The input is a list of changes, eight bytes each:
//!
//! ```text
//!   0     1        2       4        5     8
//!   |block|how     |offset |value   |more |
//! ```

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{BlockNo, Errno, FileKind, Ino, InodeFlags, Lsn, ShardId, Timestamp};
use warren_disk::format::{FormatOptions, LOG_MIN, image};
use warren_disk::{
    Dentry, Extent, Inode, Key, LogTable, Part, ROOT_SLOT_SIZE, RegionMap, RootSlot, Superblock,
    Tree, Value, Xattr, block_checksum, name_hash,
};
use warren_fsck::{Finding, Options, ReadError, Report, Severity, check};

const SIZE: u64 = 64 << 20;
const SECRET: u64 = 99;
const CHUNKS: [u64; 2] = [20, 22];
const FILES: u64 = 150;
const NODE_COVERED: usize = 8;
const SUPERBLOCK_COVERED: usize = 12;
const SLOT_CRC: usize = 36;
/// A change of this many bytes.
const CHANGE: usize = 8;

pub type Blocks = BTreeMap<BlockNo, Box<[u8]>>;

/// The pool, and what has a checksum in it.
#[derive(Clone)]
pub struct Pool {
    pub blocks: Blocks,
    /// Nodes, children before parents, each with the place of its checksum above it.
    nodes: Vec<(BlockNo, BlockNo, usize)>,
    /// The blocks that may be changed.
    targets: Vec<BlockNo>,
}

impl Pool {
    pub fn new() -> Self {
        let options = FormatOptions {
            size_bytes: SIZE,
            shards: 4,
            log_bytes: LOG_MIN,
            uuid: [1; 16],
            secret: SECRET,
            now: Timestamp(1),
            uid: 0,
            gid: 0,
            label: String::new(),
            reserved: false,
            kept_percent: None,
        };
        let blocks: Blocks = image(&options).expect("a pool").into_iter().collect();
        let superblock = Superblock::decode(&blocks[&BlockNo(0)]).expect("a superblock");
        let mut pool = Self { blocks, nodes: Vec::new(), targets: Vec::new() };
        let mut region = RegionMap::new(superblock.layout);
        for (shard, records) in [records_of_root(), records_of_directory()].into_iter().enumerate()
        {
            region.claim(CHUNKS[shard], ShardId(shard as u16));
            pool.plant(&superblock, ShardId(shard as u16), records);
        }
        pool.blocks.extend(region.write_out(1));
        let layout = superblock.layout;
        let heads = [
            BlockNo(0),
            BlockNo(1),
            layout.region_page(0, 0),
            layout.region_page(1, 0),
            layout.root_slot(ShardId(0), 0).block,
            layout.root_slot(ShardId(0), 1).block,
            layout.log_table(0),
            layout.log_table(1),
        ];
        let nodes = pool.nodes.iter().map(|(node, ..)| *node);
        pool.targets = heads.into_iter().chain(nodes).collect();
        pool
    }

    fn plant(&mut self, superblock: &Superblock, shard: ShardId, records: BTreeMap<Key, Value>) {
        let first = CHUNKS[usize::from(shard.0)] * CHUNK_BLOCKS;
        let mut used = records.values().fold(0_u64, |used, value| match value {
            Value::Extent(extent) => {
                (0..extent.len()).fold(used, |used, n| used | 1 << (extent.start.0 + n - first))
            }
            _ => used,
        });
        let inodes = records.values().filter(|value| matches!(value, Value::Inode(_))).count();
        let mut tree = Tree::open(shard, None, 0);
        for (key, value) in records {
            tree.insert(key, value).expect("in memory");
        }
        let chunk = Key::chunk(first / CHUNK_BLOCKS);
        tree.insert(chunk, Value::Chunk(0)).expect("in memory");
        let places: Vec<_> = (0..tree.dirty_nodes())
            .map(|_| {
                let n = used.trailing_ones();
                used |= 1 << n;
                BlockNo(first + u64::from(n))
            })
            .collect();
        tree.insert(chunk, Value::Chunk(used)).expect("in memory");
        let (root, height, writes) = tree.write_out(1, &places);
        let slot = RootSlot {
            generation: 1,
            root,
            height,
            next_sequence: FILES + 100,
            inodes: inodes as u64,
            used_blocks: used.count_ones().into(),
            ..RootSlot::empty(superblock.uuid, shard)
        };
        let place = superblock.layout.root_slot(shard, 0);
        let block = self.blocks.get_mut(&place.block).expect("root slots");
        block[place.offset..][..ROOT_SLOT_SIZE].copy_from_slice(&slot.encode());
        let above = |node: BlockNo| above_of(&writes, node);
        let places = writes.iter().map(|(node, _)| {
            let (block, at) = above(*node).unwrap_or((place.block, place.offset + SLOT_CRC));
            (*node, block, at)
        });
        self.nodes.extend(places.collect::<Vec<_>>());
        self.blocks.extend(writes);
    }

    /// The same of a fleet that did not stop: there are logs to be replayed, which hold nothing.
    pub fn with_logs(mut self) -> Self {
        let superblock = Superblock::decode(&self.blocks[&BlockNo(0)]).expect("a superblock");
        let (generation, incarnation, starts) = (superblock.generation, 1, vec![Lsn(0)]);
        let table = LogTable { generation, incarnation, starts };
        self.blocks.insert(superblock.layout.log_table(0), table.encode());
        let superblock = Superblock { clean: false, ..superblock };
        self.blocks.extend([0, 1].map(|copy| (BlockNo(copy), superblock.encode())));
        self
    }

    /// Makes the changes that `input` lists, and all checksums right again.
    pub fn change(&mut self, input: &[u8]) {
        for change in input.chunks_exact(CHANGE) {
            let target = self.targets[usize::from(change[0]) % self.targets.len()];
            let at = usize::from(u16::from_le_bytes([change[2], change[3]])) % BLOCK_SIZE;
            let block = self.blocks.get_mut(&target).expect("a target");
            match change[1] % 4 {
                0 => block[at] = change[4],
                1 => block[at] ^= 1 << (change[4] % 8),
                2 => {
                    let end = (at + 4).min(BLOCK_SIZE);
                    block[at..end].copy_from_slice(&change[4..4 + end - at]);
                }
                _ => {
                    // Whole fields from elsewhere: as a lost or misdirected write would leave them.
                    let from = usize::from(u16::from_le_bytes([change[5], change[6]])) % BLOCK_SIZE;
                    let len = usize::from(change[4]).min(BLOCK_SIZE - at.max(from));
                    block.copy_within(from..from + len, at);
                }
            }
        }
        self.seal();
    }

    fn seal(&mut self) {
        for (node, above, at) in self.nodes.clone() {
            let crc = seal(&mut self.blocks.get_mut(&node).expect("a node")[..], NODE_COVERED);
            self.blocks.get_mut(&above).expect("what is above it")[at..at + 4]
                .copy_from_slice(&crc);
        }
        for target in &self.targets {
            let block = self.blocks.get_mut(target).expect("a target");
            let starts = |magic: &[u8], bytes: &[u8]| bytes.starts_with(magic);
            if starts(b"WARRENfs", block) {
                seal(block, SUPERBLOCK_COVERED);
            } else if starts(b"WReg", block) || starts(b"WLog", block) {
                seal(block, NODE_COVERED);
            } else {
                let slots = block.chunks_mut(ROOT_SLOT_SIZE).filter(|slot| starts(b"WRoo", slot));
                slots.for_each(|slot| {
                    seal(slot, NODE_COVERED);
                });
            }
        }
    }

    /// Blocks that were never written are zeros, as in a sparse file.
    pub fn read(&self, block: BlockNo, into: &mut [u8]) -> Result<(), Errno> {
        if block.0 >= SIZE / BLOCK_SIZE as u64 {
            return Err(Errno::EIO);
        }
        match self.blocks.get(&block) {
            Some(bytes) => into.copy_from_slice(bytes),
            None => into.fill(0),
        }
        Ok(())
    }

    /// Checks the pool, file data too.
    pub fn check(&self) -> Report {
        let mut read = |block, into: &mut [u8]| self.read(block, into).map_err(ReadError);
        let options = Options { contents: true, ..Options::default() };
        check(options, self.len_blocks(), &mut read, &mut |_| {})
    }

    pub fn len_blocks(&self) -> u64 {
        SIZE / BLOCK_SIZE as u64
    }

    pub fn run(&self, first: BlockNo, blocks: u64) -> Vec<u8> {
        let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
        for (n, into) in (0..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
            let _ = self.read(first.offset(n), into);
        }
        bytes
    }
}

/// The damage in `report`, but for file data that is lost.
pub fn damage(report: &Report) -> Vec<&Finding> {
    let counts =
        |finding: &&Finding| finding.severity() == Severity::Damage && !finding.is_lost_data();
    report.findings.iter().filter(counts).collect()
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

/// The node that refers to `node`, and where in it.
fn above_of(writes: &[(BlockNo, Box<[u8]>)], node: BlockNo) -> Option<(BlockNo, usize)> {
    const HEADER: usize = 32;
    const RECORD: usize = 29;
    writes.iter().filter(|(_, bytes)| bytes[28] > 0).find_map(|(above, bytes)| {
        let count = usize::from(u16::from_le_bytes([bytes[26], bytes[27]]));
        let records = (0..count).map(|n| HEADER + n * RECORD + 17);
        let mut leading = records.filter(|at| bytes[*at..at + 8] == node.0.to_le_bytes());
        leading.next().map(|at| (*above, at + 8))
    })
}

fn seal(bytes: &mut [u8], covered: usize) -> [u8; 4] {
    let crc = crc32c::crc32c(&bytes[covered..]).to_le_bytes();
    bytes[covered - 4..covered].copy_from_slice(&crc);
    crc
}

fn inode(kind: FileKind, nlink: u32, parent: Ino, size: u64, blocks: u64) -> Value {
    let time = Timestamp(5);
    Value::Inode(Box::new(Inode {
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        nlink,
        rdev: 0,
        size,
        blocks,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        generation: 0,
        parent,
        flags: InodeFlags::empty(),
    }))
}

fn entry(dir: Ino, name: &str, ino: Ino, kind: FileKind) -> (Key, Value) {
    let dentry = Dentry { name: name.as_bytes().into(), ino, kind };
    let key = Key::entry(dir, name_hash(SECRET, name.as_bytes()));
    (key, Value::Entries(Box::new([dentry])))
}

fn part(dir: Ino, entries: u64, subdirs: u32) -> (Key, Value) {
    let part = Part { entries, subdirs, ..Part::default() };
    (Key::part(dir, 0), Value::Part(Box::new(part)))
}

const FILE: Ino = Ino(2);
const LINK: Ino = Ino(3);
const DIR: Ino = Ino(1 << 48 | 1);

/// The root, a file with a hole and two names, a symlink.
fn records_of_root() -> BTreeMap<Key, Value> {
    let zeros = block_checksum(&[0; BLOCK_SIZE]);
    let extent = |n: u64, len| {
        let start = BlockNo(CHUNKS[0] * CHUNK_BLOCKS + n);
        Value::Extent(Box::new(Extent { start, checksums: vec![zeros; len].into() }))
    };
    BTreeMap::from([
        (Key::inode(Ino::ROOT), inode(FileKind::Directory, 2, Ino::ROOT, 0, 0)),
        part(Ino::ROOT, 4, 1),
        entry(Ino::ROOT, "dir", DIR, FileKind::Directory),
        entry(Ino::ROOT, "file", FILE, FileKind::Regular),
        entry(Ino::ROOT, "file2", FILE, FileKind::Regular),
        entry(Ino::ROOT, "link", LINK, FileKind::Symlink),
        (Key::inode(FILE), inode(FileKind::Regular, 2, Ino(0), 4 * BLOCK_SIZE as u64, 3)),
        (Key::extent(FILE, 0), extent(0, 2)),
        (Key::extent(FILE, 3), extent(2, 1)),
        (Key::inode(LINK), inode(FileKind::Symlink, 1, Ino(0), 6, 0)),
        (Key::target(LINK, 0), Value::Target(b"target".as_slice().into())),
    ])
}

/// A directory with many fifos, one of which has an attribute; an orphan.
fn records_of_directory() -> BTreeMap<Key, Value> {
    let mut records = BTreeMap::new();
    for n in 0..FILES {
        let ino = Ino(DIR.0 + 1 + n);
        records.insert(Key::inode(ino), inode(FileKind::Fifo, 1, Ino(0), 0, 0));
        records.extend([entry(DIR, &format!("fifo {n}"), ino, FileKind::Fifo)]);
    }
    let orphan = Ino(DIR.0 + 1 + FILES);
    let xattr = Xattr::new(b"user.a", b"v");
    let key = Key::xattr(Ino(DIR.0 + 1), name_hash(SECRET, b"user.a"));
    records.extend([
        (Key::inode(DIR), inode(FileKind::Directory, 2, Ino::ROOT, 0, 0)),
        part(DIR, FILES, 0),
        (Key::inode(orphan), inode(FileKind::Regular, 0, Ino(0), 0, 0)),
        (Key::orphan(orphan), Value::Orphan),
        (key, Value::Xattrs(Box::new([xattr]))),
    ]);
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_changes_are_made_to_is_sound() {
        let pool = Pool::new();
        for sound in [pool.clone(), pool.with_logs()] {
            assert_eq!(damage(&sound.check()), Vec::<&Finding>::new());
        }
    }
}
