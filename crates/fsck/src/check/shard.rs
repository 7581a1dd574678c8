//! One shard: its tree from the root down, and its records in order.
//!
//! All records of an inode are adjacent, so rules about several of them are checked when the next
//! inode begins. A node that cannot be read leaves a gap; the inodes at both its ends are not
//! judged.

use super::checker::Checker;
use super::names::InodeFacts;
use crate::finding::Finding;
use crate::lists::is_legal;
use crate::pieces::Pieces;
use crate::rules::{Bounds, kind_that_has};
use warren_base::limits::BLOCK_SIZE;
use warren_base::{FileKind, Ino, InodeFlags, ShardId};
use warren_disk::{
    BlockPtr, DecodedBody, DecodedNode, Dentry, Extent, Inode, Key, Kind, Owed, Part, RootSlot,
    TARGET_PIECE, Value, name_hash,
};

/// The walk through a shard's tree.
struct Walk {
    shard: ShardId,
    next_sequence: u64,
    inodes: u64,
    used_blocks: u64,
    /// The debt of the shard to unwritten extents, by its record, and as counted.
    recorded_owed: Owed,
    owed: Owed,
    file: Option<File>,
    /// A node before the next record was not read.
    gap: bool,
    complete: bool,
}

/// The facts about the inode whose records are being read.
struct File {
    ino: Ino,
    inode: Option<Inode>,
    part: Option<Part>,
    entries: u64,
    subdirs: u32,
    /// The end of its last block with a place.
    extent_end: u64,
    /// The end of its last extent.
    allocated_end: u64,
    extent_blocks: u64,
    target_len: u64,
    target_whole: bool,
    /// A kind of record that only one kind of file has.
    special: Option<Key>,
    /// Which attributes it has.
    flags: InodeFlags,
    pieces: Pieces,
    /// Part of it was not read.
    doubtful: bool,
}

impl Checker<'_> {
    pub(super) fn check_shard(&mut self, slot: &RootSlot) {
        let mut walk = Walk {
            shard: slot.shard,
            next_sequence: slot.next_sequence,
            inodes: 0,
            used_blocks: 0,
            recorded_owed: Owed::default(),
            owed: Owed::default(),
            file: None,
            gap: false,
            complete: true,
        };
        if let Some(root) = slot.root {
            let (level, generation) = (slot.height - 1, slot.generation);
            let bounds = Bounds { level, generation, lower: Key::MIN, upper: None };
            self.walk_node(&mut walk, root, bounds);
        }
        self.finish_file(&mut walk);
        if !walk.complete {
            self.space.lose(slot.shard);
            self.report.incomplete = true;
            return;
        }
        let counts = [
            ("the number of inodes", slot.inodes, walk.inodes),
            ("the number of used blocks", slot.used_blocks, walk.used_blocks),
            ("the number of unwritten blocks", walk.recorded_owed.blocks, walk.owed.blocks),
            ("the number of unwritten extents", walk.recorded_owed.extents, walk.owed.extents),
        ];
        for (what, recorded, found) in counts {
            if recorded != found {
                let shard = slot.shard;
                self.report.add(Finding::RootCount { shard, what, recorded, found });
            }
        }
    }

    fn walk_node(&mut self, walk: &mut Walk, ptr: BlockPtr, bounds: Bounds) {
        // A node that is reached a second time is not entered, so a tangled image costs no more
        // than a sound one.
        if !self.refer((ptr.block, true), walk.shard, bounds.lower) {
            walk.leave_gap();
            return;
        }
        let bytes = match self.reader.block(ptr.block) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.report.add(Finding::Unreadable { block: ptr.block, error });
                walk.leave_gap();
                return;
            }
        };
        match DecodedNode::decode(ptr, walk.shard, &bytes).and_then(|node| bounds.checked(node)) {
            Ok(node) => {
                self.report.nodes += 1;
                self.walk_records(walk, &node, bounds);
            }
            Err(error) => {
                self.report.add(Finding::Node { shard: walk.shard, block: ptr.block, error });
                walk.leave_gap();
            }
        }
    }

    fn walk_records(&mut self, walk: &mut Walk, node: &DecodedNode, bounds: Bounds) {
        let (keys, generation) = (&node.keys, node.generation);
        match &node.body {
            DecodedBody::Leaf(values) => {
                for (key, value) in keys.iter().zip(values) {
                    self.visit(walk, key, value);
                }
            }
            DecodedBody::Internal(children) => {
                for (at, child) in children.iter().enumerate() {
                    let upper = keys.get(at + 1).copied().or(bounds.upper);
                    let level = bounds.level - 1;
                    let below = Bounds { level, generation, lower: keys[at], upper };
                    self.walk_node(walk, *child, below);
                }
            }
        }
    }

    fn visit(&mut self, walk: &mut Walk, key: &Key, value: &Value) {
        match value {
            Value::Chunk(used) => {
                walk.used_blocks += u64::from(used.count_ones());
                if !self.space.record(&self.region, walk.shard, key.sub, *used) {
                    let (shard, chunk) = (walk.shard, key.sub);
                    self.report.add(Finding::ForeignChunk { shard, chunk });
                }
            }
            Value::Owed(owed) => walk.recorded_owed = *owed,
            Value::Shared(runs) => self.space.record_shared(walk.shard, key.sub, runs),
            Value::Orphan => {
                let (shard, ino) = (walk.shard, Ino(key.sub));
                if ino.shard() != shard {
                    self.report.add(Finding::ForeignInode { shard, ino, home: ino.shard() });
                }
                self.names.add_orphan(ino);
            }
            _ => {
                let ino = Ino(key.ino);
                if walk.file.as_ref().is_none_or(|file| file.ino != ino) {
                    self.begin_file(walk, ino);
                }
                self.visit_of_file(walk, key, value);
            }
        }
    }

    fn begin_file(&mut self, walk: &mut Walk, ino: Ino) {
        self.finish_file(walk);
        walk.file = Some(File::new(ino, std::mem::take(&mut walk.gap)));
        let next_sequence = walk.next_sequence;
        if ino.shard() != walk.shard {
            let (shard, home) = (walk.shard, ino.shard());
            self.report.add(Finding::ForeignInode { shard, ino, home });
        } else if !(1..next_sequence).contains(&ino.sequence()) {
            self.report.add(Finding::Sequence { ino, next_sequence });
        }
    }

    fn visit_of_file(&mut self, walk: &mut Walk, key: &Key, value: &Value) {
        let shard = walk.shard;
        let Some(file) = &mut walk.file else { return };
        if matches!(key.kind, Kind::Part | Kind::Entry | Kind::Target | Kind::Extent) {
            let misplaced = file.inode.filter(|inode| inode.kind != kind_that_has(key.kind));
            file.special = file.special.or(misplaced.map(|_| *key));
        }
        match value {
            Value::Inode(inode) => {
                walk.inodes += 1;
                file.inode = Some(**inode);
                if inode.generation > 0 {
                    let (ino, generation) = (file.ino, inode.generation);
                    self.report.add(Finding::Discarded { ino, generation });
                }
            }
            Value::Part(part) => file.part = Some(**part),
            Value::Target(piece) => file.add_piece(key, piece),
            Value::Xattrs(bucket) => {
                let names = bucket.iter().map(|xattr| &xattr.name);
                let flags = names.clone().map(|name| InodeFlags::of_xattr(name));
                file.flags |= flags.fold(InodeFlags::empty(), InodeFlags::union);
                let secret = self.superblock.secret;
                bucket.iter().for_each(|xattr| file.pieces.add_attribute(file.ino, secret, xattr));
                self.check_hashes(key, names);
                for xattr in bucket.iter().filter(|xattr| !is_legal(xattr)) {
                    let (ino, name) = (file.ino, xattr.name.clone());
                    self.report.add(Finding::IllegalList { ino, name });
                }
            }
            Value::Entries(bucket) => {
                file.add_entries(bucket);
                self.check_hashes(key, bucket.iter().map(|dentry| &dentry.name));
                for dentry in bucket {
                    self.names.add_entry(Ino(key.ino), key.sub, dentry);
                }
            }
            Value::XattrPiece(piece) => file.pieces.add_piece(key, piece),
            Value::Extent(extent) => {
                let overlaps = file.add_extent(key, extent);
                self.check_extent(shard, key, extent, overlaps);
            }
            Value::Unwritten(blocks) => {
                walk.owed.blocks += u64::from(*blocks);
                walk.owed.extents += 1;
                if file.add_unwritten(key, (*blocks).into()) {
                    self.report.add(Finding::Overlap { ino: Ino(key.ino), by: *key });
                }
            }
            Value::Chunk(_) | Value::Orphan | Value::Owed(_) | Value::Shared(_) => {}
        }
    }

    fn check_hashes<'n>(&mut self, key: &Key, names: impl Iterator<Item = &'n Box<[u8]>>) {
        for name in names {
            if name_hash(self.superblock.secret, name) != key.sub {
                let (ino, name) = (Ino(key.ino), name.clone());
                self.report.add(Finding::WrongHash { ino, name });
            }
        }
    }

    fn check_extent(&mut self, shard: ShardId, key: &Key, extent: &Extent, overlaps: bool) {
        if overlaps {
            self.report.add(Finding::Overlap { ino: Ino(key.ino), by: *key });
        }
        let mut sound = true;
        for n in 0..extent.len() {
            sound &= self.refer((extent.start.offset(n), false), shard, *key);
        }
        if sound && self.options.contents {
            self.check_contents(key, extent.start, &extent.checksums);
        }
    }

    /// All records of an inode have been read.
    fn finish_file(&mut self, walk: &mut Walk) {
        let Some(file) = walk.file.take() else { return };
        let ino = file.ino;
        let Some(inode) = file.inode else {
            if !file.doubtful {
                self.report.add(Finding::NoInode { ino });
            }
            return;
        };
        self.report.inodes += 1;
        let entries = file.entries;
        let (kind, nlink, parent) = (inode.kind, inode.nlink, inode.parent);
        self.names.add_inode(ino, InodeFacts { kind, nlink, parent, entries });
        if let Some(by) = file.special {
            self.report.add(Finding::MisplacedRecord { ino, kind, by });
        }
        if kind == FileKind::Directory {
            self.report.directories += 1;
        }
        if !file.doubtful {
            // An orphan may have lost some of its records already.
            if nlink > 0 && inode.flags & InodeFlags::OF_XATTRS != file.flags {
                self.report.add(Finding::Flags { ino });
            }
            if nlink > 0 && !file.pieces.are_right() {
                self.report.add(Finding::XattrPieces { ino });
            }
            match kind {
                FileKind::Directory => self.finish_directory(&file),
                FileKind::Symlink => self.finish_symlink(&file, &inode),
                _ => self.finish_extents(&file, &inode),
            }
        }
    }

    fn finish_directory(&mut self, file: &File) {
        let ino = file.ino;
        let Some(part) = file.part else {
            self.report.add(Finding::NoPart { ino });
            return;
        };
        let counts = [
            ("the number of entries", part.entries, file.entries),
            ("the number of subdirectories", part.subdirs.into(), file.subdirs.into()),
        ];
        for (what, recorded, found) in counts {
            if recorded != found {
                self.report.add(Finding::PartCount { ino, what, recorded, found });
            }
        }
    }

    fn finish_symlink(&mut self, file: &File, inode: &Inode) {
        if !file.target_whole || file.target_len == 0 || file.target_len != inode.size {
            self.report.add(Finding::Target { ino: file.ino });
        }
    }

    fn finish_extents(&mut self, file: &File, inode: &Inode) {
        let (ino, size) = (file.ino, inode.size);
        if file.extent_end > size.div_ceil(BLOCK_SIZE as u64) {
            self.report.add(Finding::BeyondSize { ino, end_block: file.extent_end, size });
        }
        let (recorded, found) = (inode.blocks, file.extent_blocks);
        // In a pool that was not left in order, pages may have been counted and not placed yet.
        let unplaced = if self.superblock.clean { 0 } else { size.div_ceil(BLOCK_SIZE as u64) };
        if recorded < found || recorded > found.saturating_add(unplaced) {
            self.report.add(Finding::Blocks { ino, recorded, found });
        }
    }
}

impl Walk {
    fn leave_gap(&mut self) {
        self.gap = true;
        self.complete = false;
        if let Some(file) = &mut self.file {
            file.doubtful = true;
        }
    }
}

impl File {
    fn new(ino: Ino, doubtful: bool) -> Self {
        Self {
            ino,
            inode: None,
            part: None,
            entries: 0,
            subdirs: 0,
            extent_end: 0,
            allocated_end: 0,
            extent_blocks: 0,
            target_len: 0,
            target_whole: true,
            special: None,
            flags: InodeFlags::empty(),
            pieces: Pieces::default(),
            doubtful,
        }
    }

    /// Pieces are numbered without a gap, and only the last may be short.
    fn add_piece(&mut self, key: &Key, piece: &[u8]) {
        self.target_whole &= key.sub * TARGET_PIECE as u64 == self.target_len;
        self.target_len += piece.len() as u64;
    }

    fn add_entries(&mut self, bucket: &[Dentry]) {
        self.entries += bucket.len() as u64;
        let subdirs = bucket.iter().filter(|dentry| dentry.kind == FileKind::Directory).count();
        self.subdirs = self.subdirs.saturating_add(subdirs as u32);
    }

    /// Returns whether it overlaps the extent before.
    fn add_extent(&mut self, key: &Key, extent: &Extent) -> bool {
        self.extent_end = self.extent_end.max(key.sub + extent.len());
        self.add_unwritten(key, extent.len())
    }

    /// The same for an extent that may lie beyond the end of the file.
    fn add_unwritten(&mut self, key: &Key, blocks: u64) -> bool {
        let overlaps = key.sub < self.allocated_end;
        self.allocated_end = self.allocated_end.max(key.sub + blocks);
        self.extent_blocks += blocks;
        overlaps
    }
}
