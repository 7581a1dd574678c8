//! A small pool with every kind of structure is sound; each planted fault is found by name, and
//! nothing else is reported.

use crate::check::names;
use crate::{Finding, Options, ReadError, Report, Severity, check};
use std::collections::BTreeMap;
use warren_base::Timestamp;
use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS, POOL_BLOCKS_MAX};
use warren_base::{ACL_ACCESS, BlockNo, Errno, Ino, InodeFlags, InodeNumbers, Lsn, Rng, ShardId};
use warren_disk::format::{FormatOptions, image};
use warren_disk::{
    BlockPtr, Dentry, Extent, FileKind, Inode, Key, LogTable, NodeError, Part, RegionError,
    RegionMap, RootSlot, SharedRun, Superblock, Tree, Value, Xattr, block_checksum, name_hash,
};

mod flips;
mod forged;
mod interrupted;
mod repair;

const SECRET: u64 = 99;
const DEVICE_BLOCKS: u64 = (64 << 20) / BLOCK_SIZE as u64;
const FILE: Ino = Ino(2);
const LINK: Ino = Ino(3);
const DIR: Ino = Ino(1 << 48 | 1);
const INNER: Ino = Ino(1 << 48 | 2);
/// The shards of a pool, and the numbers that programs see.
const SHARDS: u16 = 4;
const NUMBERS: InodeNumbers = InodeNumbers::new(true, SHARDS as u32);

/// One shard before it is written: its records, and the one chunk that it owns.
#[derive(Clone)]
struct ShardDraft {
    shard: ShardId,
    chunk: u64,
    used: u64,
    records: BTreeMap<Key, Value>,
    slot_inodes: u64,
    next_sequence: u64,
}

/// A pool before it is written.
#[derive(Clone)]
struct Draft {
    blocks: BTreeMap<BlockNo, Box<[u8]>>,
    superblock: Superblock,
    region: RegionMap,
    shards: [ShardDraft; 2],
    /// Roots, once written.
    roots: Vec<BlockPtr>,
}

impl ShardDraft {
    fn new(shard: u16, chunk: u64) -> Self {
        Self {
            shard: ShardId(shard),
            chunk,
            used: 0,
            records: BTreeMap::new(),
            slot_inodes: 0,
            next_sequence: 1,
        }
    }

    fn take_block(&mut self) -> BlockNo {
        let n = self.used.trailing_ones();
        self.used |= 1 << n;
        BlockNo(self.chunk * CHUNK_BLOCKS + u64::from(n))
    }

    fn inode(&mut self, ino: Ino, kind: FileKind, nlink: u32, parent: Ino) -> &mut Inode {
        self.slot_inodes += 1;
        self.next_sequence = self.next_sequence.max(ino.sequence() + 1);
        let time = Timestamp(5);
        let inode = Inode {
            kind,
            mode: 0o644,
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
            parent,
            flags: InodeFlags::empty(),
        };
        let value = Value::Inode(Box::new(inode));
        match self.records.entry(Key::inode(ino)).or_insert(value) {
            Value::Inode(inode) => inode,
            _ => panic!("not an inode"),
        }
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        match self.records.get_mut(&Key::inode(ino)) {
            Some(Value::Inode(inode)) => change(inode),
            _ => panic!("no such inode"),
        }
    }

    /// Gives the inode this access control list.
    fn list(&mut self, ino: Ino, name: &[u8], value: &[u8]) {
        let bucket = [Xattr::new(name, value)].into();
        self.records.insert(Key::xattr(ino, name_hash(SECRET, name)), Value::Xattrs(bucket));
        self.change(ino, |inode| inode.flags |= InodeFlags::of_xattr(name));
    }

    fn part(&mut self, ino: Ino, entries: u64, subdirs: u32) {
        let part = Part { entries, subdirs, ..Part::default() };
        self.records.insert(Key::part(ino, 0), Value::Part(Box::new(part)));
    }

    fn entry(&mut self, dir: Ino, name: &str, ino: Ino, kind: FileKind) {
        let dentry = Dentry { name: name.as_bytes().into(), ino, kind };
        let key = Key::entry(dir, name_hash(SECRET, name.as_bytes()));
        assert!(self.records.insert(key, Value::Entries(Box::new([dentry]))).is_none());
    }

    /// Writes the shard's tree and returns its root slot.
    fn write(
        &mut self,
        superblock: &Superblock,
        blocks: &mut BTreeMap<BlockNo, Box<[u8]>>,
    ) -> RootSlot {
        let mut tree = Tree::open(self.shard, None, 0);
        for (key, value) in &self.records {
            tree.insert(*key, value.clone()).unwrap();
        }
        let chunk = Key::chunk(self.chunk);
        tree.insert(chunk, Value::Chunk(0)).unwrap();
        let places: Vec<_> = (0..tree.dirty_nodes()).map(|_| self.take_block()).collect();
        *tree.get_mut(&chunk).unwrap().unwrap() = Value::Chunk(self.used);
        let (root, height, writes) = tree.write_out(1, &places);
        blocks.extend(writes);
        RootSlot {
            uuid: superblock.uuid,
            shard: self.shard,
            generation: 1,
            root,
            height,
            next_sequence: self.next_sequence,
            given_up: false,
            inodes: self.slot_inodes,
            used_blocks: self.used.count_ones().into(),
        }
    }
}

impl Draft {
    /// `/dir/inner`, `/file` and `/file2` (one inode, three blocks with a hole), `/link`.
    fn new() -> Self {
        let options = FormatOptions {
            size_bytes: DEVICE_BLOCKS * BLOCK_SIZE as u64,
            shards: SHARDS,
            log_bytes: warren_disk::format::LOG_MIN,
            uuid: [1; 16],
            secret: SECRET,
            now: Timestamp(1),
            uid: 0,
            gid: 0,
            label: String::new(),
            reserved: false,
            kept_percent: None,
        };
        let blocks: BTreeMap<_, _> = image(&options).unwrap().into_iter().collect();
        let superblock = Superblock::decode(&blocks[&BlockNo(0)]).unwrap();
        let mut region = RegionMap::new(superblock.layout);
        let shards = [ShardDraft::new(0, 20), ShardDraft::new(1, 21)];
        for shard in &shards {
            region.claim(shard.chunk, shard.shard);
        }
        let mut draft = Self { blocks, superblock, region, shards, roots: Vec::new() };
        draft.fill();
        draft
    }

    fn fill(&mut self) {
        let [zero, one] = &mut self.shards;
        zero.inode(Ino::ROOT, FileKind::Directory, 2, Ino::ROOT);
        zero.part(Ino::ROOT, 4, 1);
        zero.entry(Ino::ROOT, "dir", DIR, FileKind::Directory);
        zero.entry(Ino::ROOT, "file", FILE, FileKind::Regular);
        zero.entry(Ino::ROOT, "file2", FILE, FileKind::Regular);
        zero.entry(Ino::ROOT, "link", LINK, FileKind::Symlink);
        let file = zero.inode(FILE, FileKind::Regular, 2, Ino(0));
        (file.size, file.blocks) = (5 * BLOCK_SIZE as u64 - 7, 3);
        for (at, len) in [(0, 2), (4, 1)] {
            let start = zero.take_block();
            let mut checksums = Vec::new();
            for n in 0..len {
                let block = if n == 0 { start } else { zero.take_block() };
                let bytes = vec![block.0 as u8; BLOCK_SIZE];
                checksums.push(block_checksum(&bytes));
                self.blocks.insert(block, bytes.into());
            }
            let extent = Extent { start, checksums: checksums.into() };
            zero.records.insert(Key::extent(FILE, at), Value::Extent(Box::new(extent)));
        }
        zero.inode(LINK, FileKind::Symlink, 1, Ino(0)).size = 1500;
        for (piece, len) in [(0, 1024), (1, 476)] {
            zero.records.insert(Key::target(LINK, piece), Value::Target(vec![b't'; len].into()));
        }
        one.inode(DIR, FileKind::Directory, 2, Ino::ROOT);
        one.part(DIR, 1, 0);
        one.entry(DIR, "inner", INNER, FileKind::Fifo);
        one.inode(INNER, FileKind::Fifo, 1, Ino(0));
        let xattr = Xattr::new(b"user.a", b"v");
        let key = Key::xattr(INNER, name_hash(SECRET, b"user.a"));
        one.records.insert(key, Value::Xattrs(Box::new([xattr])));
    }

    fn write(&mut self) {
        let layout = self.superblock.layout;
        for draft in &mut self.shards {
            let slot = draft.write(&self.superblock, &mut self.blocks);
            self.roots.extend(slot.root);
            let place = layout.root_slot(slot.shard, 0);
            let block = self.blocks.get_mut(&place.block).unwrap();
            block[place.offset..][..512].copy_from_slice(&slot.encode());
        }
        // Copy 0, over the one that `image` made.
        self.blocks.extend(self.region.write_out(1));
        for copy in 0..2 {
            self.blocks.insert(BlockNo(copy), self.superblock.encode());
        }
    }

    /// A further checkpoint that changes nothing.
    fn go_on(&mut self) {
        self.superblock.generation += 1;
        let generation = self.superblock.generation;
        let table = LogTable { generation, incarnation: 0, starts: Vec::new() };
        // The first was in copy 0.
        let place = self.superblock.layout.log_table((generation as usize + 1) % 2);
        self.blocks.insert(place, table.encode());
        for copy in 0..2 {
            self.blocks.insert(BlockNo(copy), self.superblock.encode());
        }
    }

    fn check(&self) -> Report {
        let mut read = |block: BlockNo, into: &mut [u8]| {
            let bytes = self.blocks.get(&block).ok_or(ReadError(Errno::EIO))?;
            into.copy_from_slice(bytes);
            Ok(())
        };
        check(
            Options { contents: true, ..Options::default() },
            DEVICE_BLOCKS,
            &mut read,
            &mut |_| {},
        )
    }
}

/// Findings of a pool that was changed before it was written.
fn planted(plant: impl FnOnce(&mut Draft)) -> Vec<Finding> {
    let mut draft = Draft::new();
    plant(&mut draft);
    draft.write();
    draft.check().findings
}

/// Findings of a pool that was changed on disk.
fn spoiled(spoil: impl FnOnce(&mut Draft)) -> Vec<Finding> {
    let mut draft = Draft::new();
    draft.write();
    spoil(&mut draft);
    draft.check().findings
}

fn name(name: &str) -> Box<[u8]> {
    name.as_bytes().into()
}

#[test]
fn lines_have_the_numbers_that_programs_see() {
    let finding = Finding::Parent { ino: DIR, recorded: INNER, found: Ino::ROOT };
    assert_eq!(finding.text(NUMBERS), "directory 2: names 6 as its parent, but is in 1");
    let foreign = Finding::ForeignInode { shard: ShardId(0), ino: DIR, home: DIR.shard() };
    let line = "shard 0: has a record of inode 2, which belongs to shard 1";
    assert_eq!(foreign.text(NUMBERS), line);
    let overlap = Finding::Overlap { ino: INNER, by: Key::extent(INNER, 7) };
    let shown = Finding::Overlap { ino: Ino(6), by: Key::extent(Ino(6), 7) };
    assert_eq!(overlap.text(NUMBERS), shown.to_string());
    let mend = crate::Mend::Found { ino: INNER };
    assert_eq!(mend.text(NUMBERS), "inode 6: no name led to it; it is in /lost+found");
    assert_eq!(mend.text(InodeNumbers::STORED), mend.to_string());
}

#[test]
fn a_sound_pool_has_no_findings() {
    let mut draft = Draft::new();
    draft.write();
    let report = draft.check();
    assert_eq!(report.findings, []);
    assert!(report.is_sound() && !report.incomplete);
    assert_eq!((report.inodes, report.directories, report.used_blocks), (5, 2, 5));
}

#[test]
fn a_new_pool_is_sound() {
    let mut draft = Draft::new();
    draft.shards = [ShardDraft::new(0, 20), ShardDraft::new(1, 21)];
    draft.shards[0].inode(Ino::ROOT, FileKind::Directory, 2, Ino::ROOT);
    draft.shards[0].part(Ino::ROOT, 0, 0);
    draft.write();
    assert_eq!(draft.check().findings, []);
}

#[test]
fn wrong_counts_are_found() {
    assert_eq!(
        planted(|draft| draft.shards[0].change(FILE, |inode| inode.nlink = 1)),
        [Finding::Links { ino: FILE, recorded: 1, found: 2 }]
    );
    assert_eq!(
        planted(|draft| draft.shards[0].change(Ino::ROOT, |inode| inode.nlink = 3)),
        [Finding::DirectoryLinks { ino: Ino::ROOT, recorded: 3, found: 2 }]
    );
    let what = "the number of entries";
    assert_eq!(
        planted(|draft| draft.shards[0].part(Ino::ROOT, 3, 1)),
        [Finding::PartCount { ino: Ino::ROOT, what, recorded: 3, found: 4 }]
    );
    let what = "the number of inodes";
    assert_eq!(
        planted(|draft| draft.shards[1].slot_inodes = 7),
        [Finding::RootCount { shard: ShardId(1), what, recorded: 7, found: 2 }]
    );
    assert_eq!(
        planted(|draft| draft.shards[0].next_sequence = 3),
        [Finding::Sequence { ino: LINK, next_sequence: 3 }]
    );
}

#[test]
fn wrong_names_are_found() {
    let ghost = Ino(2 << 48 | 9);
    assert_eq!(
        planted(|draft| {
            draft.shards[0].entry(Ino::ROOT, "ghost", ghost, FileKind::Regular);
            draft.shards[0].part(Ino::ROOT, 5, 1);
        }),
        [Finding::Dangling { dir: Ino::ROOT, name: name("ghost"), ino: ghost }]
    );
    let (says, is) = (FileKind::Socket, FileKind::Fifo);
    assert_eq!(
        planted(|draft| {
            let key = Key::entry(DIR, name_hash(SECRET, b"inner"));
            draft.shards[1].records.remove(&key);
            draft.shards[1].entry(DIR, "inner", INNER, says);
        }),
        [Finding::EntryKind { dir: DIR, name: name("inner"), ino: INNER, says, is }]
    );
    assert_eq!(
        planted(|draft| {
            let key = Key::entry(Ino::ROOT, name_hash(SECRET, b"link"));
            draft.shards[0].records.remove(&key);
            draft.shards[0].part(Ino::ROOT, 3, 1);
        }),
        [Finding::Unreachable { ino: LINK }]
    );
    assert_eq!(
        planted(|draft| {
            let key = Key::entry(Ino::ROOT, name_hash(SECRET, b"link"));
            let bucket = draft.shards[0].records.remove(&key).unwrap();
            draft.shards[0].records.insert(Key::entry(Ino::ROOT, 4), bucket);
        }),
        [Finding::WrongHash { ino: Ino::ROOT, name: name("link") }]
    );
    assert_eq!(
        planted(|draft| draft.shards[1].list(INNER, ACL_ACCESS, b"\x02\0\0\0\x01\0")),
        [Finding::IllegalList { ino: INNER, name: ACL_ACCESS.into() }]
    );
    assert_eq!(
        planted(|draft| draft.shards[0].change(FILE, |inode| inode.flags |= InodeFlags::ACL)),
        [Finding::Flags { ino: FILE }]
    );
}

/// Half of the directories are children of the root, each under its own name; the others form pairs
/// that contain each other. The test would take hours if each were compared with all before it.
#[test]
fn many_directories_are_distinguished_from_many_that_are_detached() {
    const HALF: u64 = 100_000;
    let mut names = names::Names::default();
    let mut add = |number: u64, parent: u64| {
        let (kind, parent) = (FileKind::Directory, Ino(parent));
        let facts = names::InodeFacts { kind, nlink: 2, parent, entries: 1 };
        names.add_inode(Ino(number), facts);
    };
    (1..=HALF).for_each(|number| add(number, number / 2 + u64::from(number == 1)));
    (HALF + 1..=2 * HALF).for_each(|number| add(number, ((number - 1) ^ 1) + 1));
    assert!(names.detached().into_iter().map(|ino| ino.0).eq(HALF + 1..=2 * HALF));
}

#[test]
fn directories_that_do_not_form_a_tree_are_found() {
    assert_eq!(
        planted(|draft| draft.shards[1].change(DIR, |inode| inode.parent = FILE)),
        [
            Finding::Parent { ino: DIR, recorded: FILE, found: Ino::ROOT },
            Finding::Detached { ino: DIR }
        ]
    );
    // Two directories that contain each other and have no other parent.
    let (a, b) = (Ino(1 << 48 | 8), Ino(1 << 48 | 9));
    assert_eq!(
        planted(|draft| {
            for (ino, other) in [(a, b), (b, a)] {
                draft.shards[1].inode(ino, FileKind::Directory, 2, other);
                draft.shards[1].part(ino, 1, 1);
                draft.shards[1].entry(ino, "other", other, FileKind::Directory);
            }
        }),
        [Finding::Detached { ino: a }, Finding::Detached { ino: b }]
    );
    assert_eq!(
        planted(|draft| {
            draft.shards[1].entry(DIR, "again", DIR, FileKind::Directory);
            draft.shards[1].part(DIR, 2, 1);
            draft.shards[1].change(DIR, |inode| inode.nlink = 2);
        }),
        [Finding::DirectoryNames { ino: DIR, names: 2 }]
    );
}

#[test]
fn missing_and_misplaced_records_are_found() {
    let missing = planted(|draft| {
        draft.shards[1].records.remove(&Key::part(DIR, 0));
    });
    assert_eq!(missing, [Finding::NoPart { ino: DIR }]);
    let missing = planted(|draft| {
        draft.shards[0].records.remove(&Key::target(LINK, 0));
    });
    assert_eq!(missing, [Finding::Target { ino: LINK }]);
    let by = Key::part(FILE, 0);
    assert_eq!(
        planted(|draft| draft.shards[0].part(FILE, 0, 0)),
        [Finding::MisplacedRecord { ino: FILE, kind: FileKind::Regular, by }]
    );
    let stray = Ino(1 << 48 | 40);
    assert_eq!(
        planted(|draft| {
            draft.shards[1].part(stray, 0, 0);
            draft.shards[1].next_sequence = 50;
        }),
        [Finding::NoInode { ino: stray }]
    );
}

#[test]
fn extents_that_do_not_fit_the_file_are_found() {
    let size = BLOCK_SIZE as u64;
    assert_eq!(
        planted(|draft| draft.shards[0].change(FILE, |inode| inode.size = size)),
        [Finding::BeyondSize { ino: FILE, end_block: 5, size }]
    );
    assert_eq!(
        planted(|draft| draft.shards[0].change(FILE, |inode| inode.blocks = 2)),
        [Finding::Blocks { ino: FILE, recorded: 2, found: 3 }]
    );
    let by = Key::extent(FILE, 1);
    assert_eq!(
        planted(|draft| {
            let extent = draft.shards[0].records.remove(&Key::extent(FILE, 4)).unwrap();
            draft.shards[0].records.insert(by, extent);
        }),
        [Finding::Overlap { ino: FILE, by }]
    );
}

#[test]
fn space_that_does_not_add_up_is_found() {
    let (zero, one) = (ShardId(0), ShardId(1));
    assert_eq!(
        planted(|draft| draft.shards[0].used |= 1 << 40),
        [Finding::Leaked { shard: zero, block: BlockNo(20 * 64 + 40) }]
    );
    let by = Key::extent(FILE, 0);
    let foreign = planted(|draft| {
        draft.region = {
            let mut region = RegionMap::new(draft.superblock.layout);
            region.claim(20, zero);
            region
        }
    });
    assert_eq!(
        foreign,
        [
            Finding::ForeignBlock { shard: one, block: BlockNo(21 * 64), by: Key::MIN },
            Finding::ForeignChunk { shard: one, chunk: 21 },
        ]
    );
    let start = BlockNo(20 * 64);
    let shared = planted(|draft| {
        let checksums = [block_checksum(&[start.0 as u8; BLOCK_SIZE])].into();
        let twice = Value::Extent(Box::new(Extent { start, checksums }));
        draft.shards[0].records.insert(Key::extent(FILE, 3), twice);
        draft.shards[0].change(FILE, |inode| inode.blocks = 4);
    });
    let again = Key::extent(FILE, 3);
    assert_eq!(shared, [Finding::SharedBlock { shard: zero, block: start, by: again }]);
    let recorded = |others| {
        planted(move |draft| {
            let checksums = [block_checksum(&[start.0 as u8; BLOCK_SIZE])].into();
            let twice = Value::Extent(Box::new(Extent { start, checksums }));
            draft.shards[0].records.insert(Key::extent(FILE, 3), twice);
            draft.shards[0].change(FILE, |inode| inode.blocks = 4);
            let run = SharedRun { first: 0, blocks: 1, others };
            draft.shards[0].records.insert(Key::shared(20), Value::Shared(Box::new([run])));
        })
    };
    assert_eq!(recorded(1), []);
    let (shard, block) = (zero, start);
    assert_eq!(recorded(3), [Finding::Places { shard, block, recorded: 3, found: 1 }]);
    let outside = planted(|draft| {
        let extent = Extent { start: BlockNo(1), checksums: [0].into() };
        draft.shards[0].records.insert(by, Value::Extent(Box::new(extent)));
    });
    assert_eq!(outside[0], Finding::BlockOutOfRange { shard: zero, block: BlockNo(1), by });
}

#[test]
fn a_block_that_is_used_but_free_is_found() {
    let found = planted(|draft| draft.shards[0].used &= !1);
    // The block is allocated again, for the tree's node.
    assert!(
        found.iter().any(|finding| matches!(finding, Finding::SharedBlock { .. })),
        "{found:?}"
    );
    let chunkless = planted(|draft| {
        draft.region.claim(22, ShardId(1));
        let extent = Extent { start: BlockNo(22 * 64 + 5), checksums: [0].into() };
        let file = Ino(1 << 48 | 3);
        let inode = draft.shards[1].inode(file, FileKind::Regular, 0, Ino(0));
        (inode.size, inode.blocks) = (1, 1);
        draft.shards[1].records.insert(Key::extent(file, 0), Value::Extent(Box::new(extent)));
        draft.shards[1].records.insert(Key::orphan(file), Value::Orphan);
        draft.superblock.clean = false;
    });
    let block = BlockNo(22 * 64 + 5);
    assert!(chunkless.contains(&Finding::NotRecorded { shard: ShardId(1), block }));
}

#[test]
fn a_file_that_has_lost_pages_is_named_and_is_no_damage() {
    let mut draft = Draft::new();
    draft.shards[0].change(LINK, |inode| inode.generation = 2);
    draft.write();
    let report = draft.check();
    assert_eq!(report.findings, [Finding::Discarded { ino: LINK, generation: 2 }]);
    assert!(report.is_sound() && report.paths.contains_key(&LINK));
}

#[test]
fn orphans_are_reclaimed_unless_they_are_none() {
    let file = Ino(1 << 48 | 3);
    let orphan = |draft: &mut Draft, clean| {
        draft.shards[1].inode(file, FileKind::Regular, 0, Ino(0));
        draft.shards[1].records.insert(Key::orphan(file), Value::Orphan);
        draft.superblock.clean = clean;
    };
    assert_eq!(planted(|draft| orphan(draft, false)), [Finding::Orphan { ino: file }]);
    assert_eq!(planted(|draft| orphan(draft, true)), [Finding::Orphan { ino: file }]);
    let named = planted(|draft| {
        draft.superblock.clean = false;
        draft.shards[1].records.insert(Key::orphan(INNER), Value::Orphan);
    });
    assert_eq!(named, [Finding::BadOrphan { ino: INNER, why: "a name leads to it" }]);
}

#[test]
fn rot_is_found_where_it_is() {
    let block = BlockNo(20 * 64 + 1);
    assert_eq!(
        spoiled(|draft| draft.blocks.get_mut(&block).unwrap()[9] ^= 1),
        [Finding::Contents { ino: FILE, file_block: 1, block }]
    );
    let mut root = BlockNo(0);
    let found = spoiled(|draft| {
        root = draft.roots[1].block;
        draft.blocks.get_mut(&root).unwrap()[100] ^= 1;
    });
    // Shard 1 is lost, and no fault is reported for any other shard.
    let error = NodeError::BadChecksum;
    assert_eq!(found, [Finding::Node { shard: ShardId(1), block: root, error }]);
    let error = ReadError(Errno::EIO);
    let found = spoiled(|draft| {
        draft.blocks.remove(&root);
    });
    assert_eq!(found, [Finding::Unreadable { block: root, error }]);
}

#[test]
fn one_superblock_is_enough_and_none_is_not() {
    let found = spoiled(|draft| draft.blocks.get_mut(&BlockNo(1)).unwrap()[50] ^= 1);
    assert!(matches!(found[..], [Finding::SuperblockCopy { copy: 1, .. }]));
    let mut behind = Draft::new();
    behind.write();
    let first = behind.blocks[&BlockNo(1)].clone();
    behind.go_on();
    behind.blocks.insert(BlockNo(1), first);
    let report = behind.check();
    assert_eq!(report.findings, [Finding::SuperblockBehind { copy: 1 }]);
    assert!(report.is_sound());
    let found = spoiled(|draft| {
        for copy in 0..2 {
            draft.blocks.insert(BlockNo(copy), vec![0; BLOCK_SIZE].into());
        }
    });
    assert!(matches!(found[..], [Finding::Superblock(_)]));
}

#[test]
fn a_device_that_is_too_short_is_found_before_anything_else() {
    let has = DEVICE_BLOCKS;
    // The map of the largest pool is half a GiB.
    for needs in [has + 1, POOL_BLOCKS_MAX] {
        let mut draft = Draft::new();
        draft.write();
        draft.superblock.layout =
            warren_disk::Layout::new(needs, 4, 2 + warren_disk::LOG_BLOCKS_MIN).unwrap();
        for copy in 0..2 {
            draft.blocks.insert(BlockNo(copy), draft.superblock.encode());
        }
        let report = draft.check();
        assert_eq!(report.findings, [Finding::TooShort { has, needs }]);
        assert!(report.incomplete, "nothing else was looked at");
    }
}

#[test]
fn rot_of_what_may_be_the_newer_copy_is_distinguished_from_rot_of_the_older() {
    let block = |draft: &Draft| draft.superblock.layout.region_page(1, 0);
    let newer = |draft: &mut Draft| {
        draft.go_on();
        draft.region.claim(30, ShardId(1));
        draft.region.release(30);
        let writes = draft.region.write_out(2);
        draft.blocks.extend(writes);
    };
    assert_eq!(spoiled(newer), []);
    let mut at = BlockNo(0);
    let found = spoiled(|draft| {
        newer(draft);
        at = block(draft);
        draft.blocks.get_mut(&at).unwrap()[2000] ^= 1;
    });
    assert_eq!(found, [Finding::Region(RegionError::InDoubt(at))]);
    let found = spoiled(|draft| {
        newer(draft);
        at = draft.superblock.layout.region_page(0, 0);
        draft.blocks.get_mut(&at).unwrap()[2000] ^= 1;
    });
    assert_eq!(found, [Finding::RegionPage { block: at }]);
    assert_eq!(found[0].severity(), Severity::Note, "a write that failed leaves such a page");
}

#[test]
fn a_node_later_than_its_root_is_found() {
    let mut block = BlockNo(0);
    let found = spoiled(|draft| {
        block = draft.roots[0].block;
        forge_root(draft, 0, &[(8, 2)]);
    });
    let error = NodeError::TooNew(2);
    assert_eq!(found, [Finding::Node { shard: ShardId(0), block, error }]);
}

#[test]
fn damage_to_any_block_never_goes_unnoticed() {
    let mut draft = Draft::new();
    draft.write();
    let layout = draft.superblock.layout;
    let slots = [ShardId(0), ShardId(1)].map(|shard| layout.root_slot(shard, 0).block);
    let nodes: Vec<_> = draft.roots.iter().map(|root| root.block).collect();
    let map = layout.region_page(0, 0);
    for block in [BlockNo(0), BlockNo(1), map].into_iter().chain(slots).chain(nodes) {
        for at in [0, 5, 20, 40, 100] {
            draft.blocks.get_mut(&block).unwrap()[at] ^= 0x10;
            assert!(!draft.check().is_sound(), "byte {at} of block {block}");
            draft.blocks.get_mut(&block).unwrap()[at] ^= 0x10;
        }
    }
    assert!(draft.check().is_sound());
}

#[test]
fn findings_fit_one_line_and_name_the_place() {
    let plants: [fn(&mut Draft); 5] = [
        |draft| draft.shards[0].entry(Ino::ROOT, "a\nb", Ino(77), FileKind::Regular),
        |draft| {
            draft.shards[1].records.remove(&Key::part(DIR, 0));
        },
        |draft| draft.shards[0].used |= 1 << 40,
        |draft| draft.shards[0].change(FILE, |inode| (inode.size, inode.blocks) = (1, 1)),
        |draft| draft.shards[1].change(DIR, |inode| inode.parent = FILE),
    ];
    let mut lines = std::collections::BTreeSet::new();
    for finding in plants.into_iter().flat_map(planted) {
        let line = finding.to_string();
        assert!(!line.contains('\n') && line.contains(|c: char| c.is_ascii_digit()), "{line}");
        lines.insert(line);
    }
    assert!(lines.len() >= 8, "{lines:?}");
}

/// Corrects the checksum of a structure, which covers the bytes from `covered` on.
fn seal(bytes: &mut [u8], covered: usize) -> [u8; 4] {
    let crc = crc32c::crc32c(&bytes[covered..]).to_le_bytes();
    bytes[covered - 4..covered].copy_from_slice(&crc);
    crc
}

fn bend(bytes: &mut [u8], changes: &[(usize, u8)]) {
    changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
}

/// Changes the root node of a draft's shard and the slot above it, and corrects all checksums.
fn forge_root(draft: &mut Draft, shard: usize, changes: &[(usize, u8)]) {
    let layout = draft.superblock.layout;
    let (root, place) = (draft.roots[shard], layout.root_slot(ShardId(shard as u16), 0));
    let node = draft.blocks.get_mut(&root.block).unwrap();
    bend(node, changes);
    let crc = seal(node, 8);
    let slot = &mut draft.blocks.get_mut(&place.block).unwrap()[place.offset..][..512];
    slot[36..40].copy_from_slice(&crc);
    seal(slot, 8);
}

/// Counts the pools, of 1,000 that `forge` has changed a little with right checksums, that the
/// check finds damaged. Checking and repairing must not panic, and a repaired pool may contain no
/// fault but rotten data. `forge` gets positions in `0..len` and the bytes to write there.
fn damaged_of_forged(len: u64, forge: impl Fn(&mut Draft, &[(usize, u8)])) -> usize {
    let mut draft = Draft::new();
    for n in 0..400 {
        let ino = Ino(1 << 48 | (100 + n));
        draft.shards[1].inode(ino, FileKind::Fifo, 0, Ino(0));
        draft.shards[1].records.insert(Key::orphan(ino), Value::Orphan);
    }
    draft.write();
    assert!(draft.check().is_sound() && draft.check().nodes > 5, "a tree of two levels");
    let sound = draft.blocks.clone();
    let mut rng = Rng::new(11);
    let damaged = (0..1000).filter(|n| {
        let changes: Vec<_> = (0..1 + rng.below(3))
            .map(|_| (rng.below(len) as usize, rng.next_u64() as u8))
            .collect();
        forge(&mut draft, &changes);
        let damaged = !draft.check().is_sound();
        if n % 8 == 0 {
            draft.repair_whatever_it_is();
        }
        draft.blocks.clone_from(&sound);
        damaged
    });
    damaged.count()
}

#[test]
fn a_forged_image_never_causes_a_panic() {
    let behind = |from: usize| {
        move |changes: &[(usize, u8)]| -> Vec<(usize, u8)> {
            changes.iter().map(|(at, byte)| (from + at, *byte)).collect()
        }
    };
    let (node, superblock) = (behind(8), behind(12));
    // Most bytes of a leaf matter; the others are times, owners and modes, which may have any
    // value.
    let leaf = damaged_of_forged(900, |draft, changes| forge_root(draft, 0, &node(changes)));
    assert!(leaf > 500, "{leaf}");
    let internal = damaged_of_forged(300, |draft, changes| forge_root(draft, 1, &node(changes)));
    assert!(internal > 500, "{internal}");
    let superblocks = damaged_of_forged(172, |draft, changes| {
        for copy in [BlockNo(0), BlockNo(1)] {
            let block = draft.blocks.get_mut(&copy).unwrap();
            bend(block, &superblock(changes));
            seal(block, 12);
        }
    });
    assert!(superblocks > 400, "{superblocks}");
    let slots = damaged_of_forged(80, |draft, changes| {
        let place = draft.superblock.layout.root_slot(ShardId(1), 0);
        let slot = &mut draft.blocks.get_mut(&place.block).unwrap()[place.offset..][..512];
        bend(slot, &node(changes));
        seal(slot, 8);
    });
    assert!(slots > 700, "{slots}");
    let map = damaged_of_forged(100, |draft, changes| {
        let page = draft.blocks.get_mut(&draft.superblock.layout.region_page(0, 0)).unwrap();
        bend(page, &node(changes));
        seal(page, 8);
    });
    assert!(map > 400, "{map}");
}
