//! Repairs that need only one inode's records.
//!
//! Repeating them on the same shard gives the same result: the survey uses the repaired records,
//! and the writing computes them again.

use super::mend::Mend;
use super::records::{
    Records, Shard, add_entry, add_xattr, blank, counted, drop_overlapping, file_blocks,
    put_file_blocks, put_owed, put_shared,
};
use super::repairer::Repairer;
use crate::lists::is_legal;
use crate::pieces::{Pieces, first_piece};
use crate::rules::kind_that_has;
use std::collections::BTreeSet;
use warren_base::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use warren_base::{FileKind, Ino, InodeFlags, ShardId};
use warren_disk::{Dentry, Key, Kind, Part, TARGET_PIECE, Value, Xattr, name_hash};

const ROOT_MODE: u16 = 0o755;
const GROUP_RIGHTS: u16 = 0o070;

impl Repairer<'_> {
    pub(super) fn mend(&mut self, found: &mut Shard) {
        let shard = found.shard;
        let mut group = Records::new();
        let mut all = std::mem::take(&mut found.records).into_iter().peekable();
        while let Some((key, value)) = all.next() {
            group.insert(key, value);
            if all.peek().is_none_or(|(next, _)| next.ino != key.ino) {
                self.mend_inode(shard, Ino(key.ino), &mut group);
                // `append` would rebuild the whole map.
                found.records.extend(std::mem::take(&mut group));
            }
        }
        if shard == Ino::ROOT.shard() {
            self.mend_root(&mut found.records);
        }
        if put_owed(&mut found.records) | put_shared(&mut found.records) {
            self.mends.add(Mend::Counts(shard));
        }
    }

    fn mend_inode(&mut self, shard: ShardId, ino: Ino, group: &mut Records) {
        if ino == Ino(0) {
            return self.mend_own(shard, group);
        } else if ino.shard() != shard || ino.sequence() == 0 {
            self.mends.add(Mend::Dropped { ino, why: "it cannot be in this shard" });
            return group.clear();
        }
        let Some(kind) = self.kind_of(ino, group) else {
            self.mends.add(Mend::Dropped { ino, why: "its attributes are lost" });
            return group.clear();
        };
        self.drop_misplaced(ino, kind, group);
        self.rehash_xattrs(ino, group);
        let mut mends = drop_illegal_lists(ino, kind, group);
        mends.append(&mut mend_pieces(ino, self.superblock.secret, group));
        mends.into_iter().for_each(|mend| self.mends.add(mend));
        self.mend_flags(ino, group);
        match kind {
            FileKind::Directory => self.mend_directory(ino, group),
            FileKind::Symlink => self.mend_symlink(ino, group),
            _ => self.mend_extents(ino, group),
        }
    }

    /// The shard's own records: chunks that exist on the device, and its own orphans.
    fn mend_own(&mut self, shard: ShardId, group: &mut Records) {
        let chunks = self.superblock.layout.chunks();
        group.retain(|key, _| {
            let foreign = key.kind == Kind::Orphan && Ino(key.sub).shard() != shard;
            let nowhere = key.kind == Kind::Chunk && key.sub >= chunks;
            if foreign {
                self.mends.add(Mend::NoOrphan { ino: Ino(key.sub) });
            } else if nowhere {
                self.mends.add(Mend::NoChunk { shard, chunk: key.sub });
            }
            !foreign && !nowhere
        });
    }

    /// The kind of the inode. If its attributes are lost, its records decide, and it gets new
    /// attributes.
    fn kind_of(&mut self, ino: Ino, group: &mut Records) -> Option<FileKind> {
        if let Some(Value::Inode(inode)) = group.get(&Key::inode(ino)) {
            return Some(inode.kind);
        }
        let telling = |key: &&Key| !matches!(key.kind, Kind::Xattr | Kind::XattrPiece);
        let kind = kind_that_has(group.keys().find(telling)?.kind);
        self.mends.add(Mend::Invented { ino, kind });
        let mut inode = blank(kind);
        if kind == FileKind::Symlink {
            inode.size = target_len(ino, group).0;
        }
        group.insert(Key::inode(ino), Value::Inode(Box::new(inode)));
        Some(kind)
    }

    fn drop_misplaced(&mut self, ino: Ino, kind: FileKind, group: &mut Records) {
        group.retain(|key, _| {
            let special =
                matches!(key.kind, Kind::Part | Kind::Entry | Kind::Target | Kind::Extent);
            let right = !special || kind_that_has(key.kind) == kind;
            if !right {
                let (what, why) = ("a record", "files of its kind have none such");
                self.mends.add(Mend::RecordDropped { ino, what, why });
            }
            right
        });
    }

    fn mend_directory(&mut self, ino: Ino, group: &mut Records) {
        self.rehash_entries(ino, group);
        let (entries, subdirs) = counted(ino, group);
        let part = match group.get(&Key::part(ino, 0)) {
            Some(Value::Part(part)) => **part,
            _ => Part::default(),
        };
        let right = Part { entries, subdirs, ..part };
        if part != right || !group.contains_key(&Key::part(ino, 0)) {
            self.mends
                .add(Mend::SetRight { ino, what: "the numbers of entries and subdirectories" });
            group.insert(Key::part(ino, 0), Value::Part(Box::new(right)));
        }
    }

    /// A name under another name's hash would never be found.
    fn rehash_entries(&mut self, ino: Ino, group: &mut Records) {
        let secret = self.superblock.secret;
        let strays = take_strays(group, Kind::Entry, |sub, value| match value {
            Value::Entries(bucket) => {
                let (right, wrong) =
                    split(bucket, |dentry: &Dentry| name_hash(secret, &dentry.name) == sub);
                (!wrong.is_empty()).then(|| (boxed(right).map(Value::Entries), wrong))
            }
            _ => None,
        });
        for dentry in strays {
            let name = dentry.name.clone();
            let mend = match add_entry(group, secret, ino, dentry.clone()) {
                true => Mend::Rehashed { ino, name },
                false => {
                    let why = "another has its name";
                    Mend::Unlinked { dir: ino, name, ino: dentry.ino, why }
                }
            };
            self.mends.add(mend);
        }
    }

    fn rehash_xattrs(&mut self, ino: Ino, group: &mut Records) {
        let secret = self.superblock.secret;
        let strays = take_strays(group, Kind::Xattr, |sub, value| match value {
            Value::Xattrs(bucket) => {
                let (right, wrong) =
                    split(bucket, |xattr: &Xattr| name_hash(secret, &xattr.name) == sub);
                (!wrong.is_empty()).then(|| (boxed(right).map(Value::Xattrs), wrong))
            }
            _ => None,
        });
        for xattr in strays {
            let name = xattr.name.clone();
            self.mends.add(match add_xattr(group, secret, ino, xattr) {
                true => Mend::Rehashed { ino, name },
                false => {
                    let (what, why) = ("an attribute", "another has its name");
                    Mend::RecordDropped { ino, what, why }
                }
            });
        }
    }

    /// The flags of an inode say which attributes it has.
    fn mend_flags(&mut self, ino: Ino, group: &mut Records) {
        let buckets = group.values().filter_map(|value| match value {
            Value::Xattrs(bucket) => Some(bucket),
            _ => None,
        });
        let names = buckets.flat_map(|bucket| bucket.iter().map(|xattr| &xattr.name));
        let has = names.fold(InodeFlags::empty(), |flags, name| flags | InodeFlags::of_xattr(name));
        let Some(Value::Inode(inode)) = group.get_mut(&Key::inode(ino)) else { return };
        if inode.flags & InodeFlags::OF_XATTRS != has {
            inode.flags = inode.flags.difference(InodeFlags::OF_XATTRS).union(has);
            self.mends.add(Mend::SetRight { ino, what: "the flags of its attributes" });
        }
    }

    /// A target with a missing piece would lead elsewhere.
    fn mend_symlink(&mut self, ino: Ino, group: &mut Records) {
        let (len, whole) = target_len(ino, group);
        let Some(Value::Inode(inode)) = group.get_mut(&Key::inode(ino)) else { return };
        if !whole || len == 0 || inode.size > len {
            self.mends.add(Mend::Dropped { ino, why: "the symlink's target is incomplete" });
            group.clear();
        } else if inode.size != len {
            inode.size = len;
            self.mends.add(Mend::SetRight { ino, what: "the length of the symlink's target" });
        }
    }

    fn mend_extents(&mut self, ino: Ino, group: &mut Records) {
        self.drop_impossible_blocks(ino, group);
        let (any_dropped, unwritten) = drop_overlapping(ino, group);
        if any_dropped {
            let (what, why) = ("an unwritten extent", "another extent has its place");
            self.mends.add(Mend::RecordDropped { ino, what, why });
        }
        let blocks = file_blocks(group);
        let end = blocks.last().map_or(0, |(at, ..)| at + 1);
        let Some(Value::Inode(inode)) = group.get_mut(&Key::inode(ino)) else { return };
        if end > inode.size.div_ceil(BLOCK_SIZE as u64) {
            inode.size = (end * BLOCK_SIZE as u64).min(FILE_SIZE_MAX);
            self.mends
                .add(Mend::SetRight { ino, what: "the size, which ended before its blocks," });
        }
        let allocated = blocks.len() as u64 + unwritten;
        if inode.blocks != allocated {
            inode.blocks = allocated;
            self.mends.add(Mend::SetRight { ino, what: "the number of blocks" });
        }
    }

    /// Blocks outside the device, beyond the largest file, or at a position that another extent
    /// has.
    fn drop_impossible_blocks(&mut self, ino: Ino, group: &mut Records) {
        let layout = self.superblock.layout;
        // The last block of the longest file is not whole.
        let last = FILE_SIZE_MAX / BLOCK_SIZE as u64;
        let all = file_blocks(group);
        let (mut kept, mut end) = (Vec::with_capacity(all.len()), 0);
        for &(at, block, checksum) in &all {
            let why = if at < end {
                "another block has its place"
            } else if !layout.is_allocatable(block) {
                "it would lie where no file data can lie"
            } else if at > last {
                "no file is so long"
            } else {
                kept.push((at, block, checksum));
                end = at + 1;
                continue;
            };
            self.mends.add(Mend::DataLost { ino, file_block: at, why });
        }
        if kept.len() != all.len() {
            put_file_blocks(ino, group, &kept);
        }
    }

    /// The root directory must exist.
    fn mend_root(&mut self, records: &mut Records) {
        let root = Ino::ROOT;
        let is_directory = matches!(records.get(&Key::inode(root)),
            Some(Value::Inode(inode)) if inode.kind == FileKind::Directory);
        if is_directory {
            return;
        }
        records.retain(|key, _| key.ino != root.0);
        let mut inode = blank(FileKind::Directory);
        inode.mode = ROOT_MODE;
        records.insert(Key::inode(root), Value::Inode(Box::new(inode)));
        records.insert(Key::part(root, 0), Value::Part(Box::default()));
        self.mends.add(Mend::Invented { ino: root, kind: FileKind::Directory });
    }
}

fn split<T: Clone>(bucket: &[T], right: impl FnMut(&T) -> bool) -> (Vec<T>, Vec<T>) {
    bucket.iter().cloned().partition(right)
}

fn boxed<T>(bucket: Vec<T>) -> Option<Box<[T]>> {
    (!bucket.is_empty()).then(|| bucket.into())
}

/// Removes attributes of whose values a piece is missing, and pieces of no attribute.
fn mend_pieces(ino: Ino, secret: u64, group: &mut Records) -> Vec<Mend> {
    let pieces = Pieces::of(ino, secret, group);
    if pieces.are_right() {
        return Vec::new();
    }
    // Of two attributes whose pieces would have the same keys, the first keeps them.
    let mut kept = BTreeSet::new();
    let broken = take_strays(group, Kind::Xattr, |_, value| match value {
        Value::Xattrs(bucket) => {
            let (right, wrong) = split(bucket, |xattr: &Xattr| {
                let first = first_piece(ino, secret, &xattr.name);
                !xattr.is_in_pieces() || pieces.is_whole(&first) && kept.insert(first)
            });
            (!wrong.is_empty()).then(|| (boxed(right).map(Value::Xattrs), wrong))
        }
        _ => None,
    });
    let dropped = |what, why| Mend::RecordDropped { ino, what, why };
    let mut mends: Vec<_> =
        broken.iter().map(|_| dropped("an attribute", "its value is incomplete")).collect();
    let before = group.len();
    group.retain(|key, _| key.kind != Kind::XattrPiece || kept.contains(&key.piece().0));
    if group.len() < before {
        mends.push(dropped("a piece of a value", "no attribute has it"));
    }
    mends
}

/// Removes access control lists that no cell can read, and those for the files of a directory that
/// is none: no cell could read an inode with the flag of such a list. With an access list, the
/// rights of the group in the mode are what the list gives at most, so they go too.
fn drop_illegal_lists(ino: Ino, kind: FileKind, group: &mut Records) -> Vec<Mend> {
    let is_misplaced = |xattr: &Xattr| {
        let is_default = InodeFlags::of_xattr(&xattr.name) == InodeFlags::DEFAULT_ACL;
        is_default && kind != FileKind::Directory
    };
    let illegal = take_strays(group, Kind::Xattr, |_, value| match value {
        Value::Xattrs(bucket) => {
            let is_right = |xattr: &Xattr| is_legal(xattr) && !is_misplaced(xattr);
            let (right, wrong) = split(bucket, is_right);
            (!wrong.is_empty()).then(|| (boxed(right).map(Value::Xattrs), wrong))
        }
        _ => None,
    });
    if illegal.iter().any(|xattr| InodeFlags::of_xattr(&xattr.name) == InodeFlags::ACL)
        && let Some(Value::Inode(inode)) = group.get_mut(&Key::inode(ino))
    {
        inode.mode &= !GROUP_RIGHTS;
    }
    let what = "an access control list";
    let why = |xattr| match is_misplaced(xattr) {
        true => "files of its kind have none such",
        false => "it cannot be read",
    };
    illegal.iter().map(|xattr| Mend::RecordDropped { ino, what, why: why(xattr) }).collect()
}

/// Removes from all buckets of a kind the entries that `strays` reports as misplaced.
fn take_strays<T>(
    group: &mut Records,
    kind: Kind,
    mut strays: impl FnMut(u64, &Value) -> Option<(Option<Value>, Vec<T>)>,
) -> Vec<T> {
    let mut taken = Vec::new();
    let mut left = Vec::new();
    for (key, value) in group.iter().filter(|(key, _)| key.kind == kind) {
        if let Some((rest, mut wrong)) = strays(key.sub, value) {
            taken.append(&mut wrong);
            left.push((*key, rest));
        }
    }
    for (key, rest) in left {
        match rest {
            Some(value) => drop(group.insert(key, value)),
            None => drop(group.remove(&key)),
        }
    }
    taken
}

/// Bytes of a symlink's target, and whether its pieces follow each other.
fn target_len(ino: Ino, group: &Records) -> (u64, bool) {
    let pieces = group.range(Key::target(ino, 0)..=Key::target(ino, u64::MAX));
    pieces.fold((0, true), |(len, whole), (key, value)| match value {
        Value::Target(piece) => {
            let follows = key.sub * TARGET_PIECE as u64 == len;
            (len + piece.len() as u64, whole && follows)
        }
        _ => (len, whole),
    })
}
