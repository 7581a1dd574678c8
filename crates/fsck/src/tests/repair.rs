//! Repairs every kind of damage: after one repair the pool has no fault, and still has all content
//! that could be kept.

use super::*;
use crate::{Mend, Repair, RepairError, footing, repair};
use std::collections::BTreeSet;
use warren_base::ACL_DEFAULT;
use warren_base::limits::FILE_SIZE_MAX;
use warren_disk::{Kind, Owed, Owner, ROOT_SLOT_SIZE};

impl Draft {
    pub(super) fn work_out_repair(&self) -> Result<Repair, RepairError> {
        let mut read = |block: BlockNo, into: &mut [u8]| {
            let bytes = self.blocks.get(&block).ok_or(ReadError(Errno::EIO))?;
            into.copy_from_slice(bytes);
            Ok(())
        };
        repair(DEVICE_BLOCKS, &mut read, &mut |_| {})
    }

    /// Repairs the pool and asserts that it has no fault then.
    pub(super) fn repaired(&mut self) -> Vec<Mend> {
        let repair = self.work_out_repair().expect("a repair");
        let trail: Vec<String> = repair.mends.iter().map(Mend::to_string).collect();
        let mends = repair.mends.clone();
        self.blocks.extend(repair.into_stages().into_iter().flatten());
        let wrong: Vec<_> = self.findings().into_iter().filter(is_damage).collect();
        assert_eq!(wrong, [], "after {trail:#?}");
        self.assert_mended(&trail);
        mends
    }

    /// A further repair finds nothing that it could mend, and would change no record.
    pub(super) fn assert_mended(&self, trail: &[String]) {
        let again = self.work_out_repair().expect("a further repair").mends;
        let again: Vec<String> = again.iter().map(Mend::to_string).collect();
        assert_eq!(again, [""; 0], "after {trail:#?}");
    }

    /// Computes the basis for a replay of logs, if there were any: asserts only that this ends.
    fn look_for_footing(&self) {
        let copies = [0, 1].map(|copy| &self.blocks[&BlockNo(copy)][..]);
        let Ok((superblock, _)) = Superblock::choose(copies[0], copies[1]) else { return };
        let (generation, layout) = (superblock.generation, superblock.layout);
        let table = LogTable { generation, incarnation: 1, starts: vec![Lsn(0)] };
        let mut with_logs = self.blocks.clone();
        with_logs.insert(layout.log_table(0), table.encode());
        let mut read = |block: BlockNo, into: &mut [u8]| {
            let bytes = with_logs.get(&block).ok_or(ReadError(Errno::EIO))?;
            into.copy_from_slice(bytes);
            Ok(())
        };
        drop(footing(DEVICE_BLOCKS, &mut read, &mut |_| {}));
    }

    /// Repairs the pool if that is possible; then only data may be damaged.
    pub(super) fn repair_whatever_it_is(&mut self) {
        self.look_for_footing();
        let Ok(repair) = self.work_out_repair() else { return };
        let trail: Vec<String> = repair.mends.iter().map(Mend::to_string).collect();
        self.blocks.extend(repair.into_stages().into_iter().flatten());
        let is_wrong = |finding: &Finding| is_damage(finding) && !finding.is_lost_data();
        let wrong: Vec<_> = self.findings().into_iter().filter(is_wrong).collect();
        assert_eq!(wrong, [], "after {trail:#?}");
        self.assert_mended(&trail);
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        self.check().findings
    }

    pub(super) fn superblock_now(&self) -> Superblock {
        Superblock::choose(&self.blocks[&BlockNo(0)], &self.blocks[&BlockNo(1)]).unwrap().0
    }

    /// A shard's tree in the last checkpoint.
    fn tree(&self, shard: ShardId) -> Tree {
        let superblock = self.superblock_now();
        let slots = [0, 1].map(|slot| {
            let place = superblock.layout.root_slot(shard, slot);
            &self.blocks[&place.block][place.offset..][..ROOT_SLOT_SIZE]
        });
        let root = RootSlot::choose(slots, &superblock, shard).unwrap().root;
        Tree::open(shard, root.root, root.height)
    }

    /// All records of a shard.
    pub(super) fn records(&self, shard: u16) -> BTreeMap<Key, Value> {
        let mut tree = self.tree(ShardId(shard));
        loop {
            let mut records = BTreeMap::new();
            let absent = tree.range(Key::MIN, Key::MAX, |key, value| {
                records.insert(*key, value.clone());
                std::ops::ControlFlow::Continue(())
            });
            match absent {
                Ok(()) => return records,
                Err(absent) => tree.load(absent.0, &self.blocks[&absent.0.block]).unwrap(),
            }
        }
    }

    fn value(&self, ino: Ino, key: &Key) -> Option<Value> {
        let mut tree = self.tree(ino.shard());
        loop {
            match tree.get(key) {
                Ok(value) => return value.cloned(),
                Err(absent) => tree.load(absent.0, &self.blocks[&absent.0.block]).unwrap(),
            }
        }
    }

    fn inode(&self, ino: Ino) -> Option<Inode> {
        match self.value(ino, &Key::inode(ino)) {
            Some(Value::Inode(inode)) => Some(*inode),
            _ => None,
        }
    }

    pub(super) fn lookup(&self, dir: Ino, name: &str) -> Option<Ino> {
        let key = Key::entry(dir, name_hash(SECRET, name.as_bytes()));
        match self.value(dir, &key) {
            Some(Value::Entries(bucket)) => {
                bucket.iter().find(|dentry| &*dentry.name == name.as_bytes()).map(|d| d.ino)
            }
            _ => None,
        }
    }

    fn found(&self, ino: Ino) -> bool {
        let dir = self.lookup(Ino::ROOT, "lost+found").expect("lost+found");
        self.lookup(dir, &format!("#{}", NUMBERS.number(ino))) == Some(ino)
    }
}

pub(super) fn is_damage(finding: &Finding) -> bool {
    finding.severity() == crate::Severity::Damage
}

/// The pool, damaged before it was written and then repaired.
fn mended(plant: impl FnOnce(&mut Draft)) -> (Draft, Vec<Mend>) {
    let mut draft = Draft::new();
    plant(&mut draft);
    draft.write();
    let mends = draft.repaired();
    (draft, mends)
}

/// The pool, damaged on disk and then repaired.
fn healed(spoil: impl FnOnce(&mut Draft)) -> (Draft, Vec<Mend>) {
    let mut draft = Draft::new();
    draft.write();
    spoil(&mut draft);
    let mends = draft.repaired();
    (draft, mends)
}

fn flip(draft: &mut Draft, block: BlockNo, at: usize, bit: u32) {
    draft.blocks.get_mut(&block).unwrap()[at] ^= 1 << bit;
}

#[test]
fn a_sound_pool_stays_as_it_is() {
    let (draft, mends) = mended(|_| {});
    assert_eq!(mends, []);
    assert_eq!(draft.superblock_now().generation, 2);
    assert_eq!(draft.inode(FILE).unwrap().nlink, 2);
}

#[test]
fn counts_are_set_right() {
    let (draft, _) = mended(|draft| draft.shards[0].change(FILE, |inode| inode.nlink = 1));
    assert_eq!(draft.inode(FILE).unwrap().nlink, 2);
    let (draft, _) = mended(|draft| draft.shards[0].change(Ino::ROOT, |inode| inode.nlink = 3));
    assert_eq!(draft.inode(Ino::ROOT).unwrap().nlink, 2);
    mended(|draft| draft.shards[0].part(Ino::ROOT, 3, 1));
    let (_, mends) = mended(|draft| draft.shards[1].slot_inodes = 7);
    assert_eq!(mends, [Mend::Counts(ShardId(1))]);
    mended(|draft| draft.shards[0].next_sequence = 3);
    let (draft, _) = mended(|draft| draft.shards[0].change(FILE, |inode| inode.blocks = 2));
    assert_eq!(draft.inode(FILE).unwrap().blocks, 3);
}

#[test]
fn names_are_set_right() {
    let ghost = Ino(2 << 48 | 9);
    let (draft, mends) = mended(|draft| {
        draft.shards[0].entry(Ino::ROOT, "ghost", ghost, FileKind::Regular);
        draft.shards[0].part(Ino::ROOT, 5, 1);
    });
    assert_eq!(draft.lookup(Ino::ROOT, "ghost"), None);
    let named = |mend: &Mend| matches!(mend, Mend::Unlinked { name, .. } if **name == *b"ghost");
    assert!(mends.iter().any(named), "what is lost is named: {mends:?}");
    mended(|draft| {
        draft.shards[1].records.remove(&Key::entry(DIR, name_hash(SECRET, b"inner")));
        draft.shards[1].entry(DIR, "inner", INNER, FileKind::Socket);
    });
    let (draft, _) = mended(|draft| {
        draft.shards[0].records.remove(&Key::entry(Ino::ROOT, name_hash(SECRET, b"link")));
        draft.shards[0].part(Ino::ROOT, 3, 1);
    });
    assert!(draft.found(LINK));
    let (draft, _) = mended(|draft| {
        let key = Key::entry(Ino::ROOT, name_hash(SECRET, b"link"));
        let bucket = draft.shards[0].records.remove(&key).unwrap();
        draft.shards[0].records.insert(Key::entry(Ino::ROOT, 4), bucket);
    });
    assert_eq!(draft.lookup(Ino::ROOT, "link"), Some(LINK));
}

#[test]
fn an_inode_with_neither_name_nor_link_comes_to_its_end() {
    let file = Ino(1 << 48 | 3);
    let (draft, mends) = mended(|draft| {
        draft.shards[1].inode(file, FileKind::Regular, 0, Ino(0));
    });
    assert!(mends.contains(&Mend::Reclaimed { ino: file }));
    assert_eq!(draft.findings(), [Finding::Orphan { ino: file }]);
    let (draft, _) = mended(|draft| {
        draft.shards[1].records.insert(Key::orphan(INNER), Value::Orphan);
        draft.shards[1].records.insert(Key::orphan(Ino(1 << 48 | 77)), Value::Orphan);
    });
    assert_eq!(draft.findings(), []);
}

#[test]
fn directories_become_a_tree() {
    let (draft, _) = mended(|draft| draft.shards[1].change(DIR, |inode| inode.parent = FILE));
    assert_eq!(draft.inode(DIR).unwrap().parent, Ino::ROOT);
    let (a, b) = (Ino(1 << 48 | 8), Ino(1 << 48 | 9));
    let (draft, _) = mended(|draft| {
        for (ino, other) in [(a, b), (b, a)] {
            draft.shards[1].inode(ino, FileKind::Directory, 2, other);
            draft.shards[1].part(ino, 1, 1);
            draft.shards[1].entry(ino, "other", other, FileKind::Directory);
        }
    });
    assert!(draft.found(a));
    assert_eq!(draft.lookup(a, "other"), Some(b));
    let (draft, _) = mended(|draft| {
        draft.shards[1].entry(DIR, "again", DIR, FileKind::Directory);
        draft.shards[1].entry(DIR, "root", Ino::ROOT, FileKind::Directory);
        draft.shards[1].part(DIR, 3, 2);
    });
    assert_eq!(draft.lookup(DIR, "again"), None);
    assert_eq!(draft.lookup(Ino::ROOT, "dir"), Some(DIR));
}

#[test]
fn what_is_left_of_an_inode_is_kept() {
    let (draft, _) = mended(|draft| drop(draft.shards[1].records.remove(&Key::part(DIR, 0))));
    assert_eq!(draft.lookup(DIR, "inner"), Some(INNER));
    let (draft, mends) = mended(|draft| {
        draft.shards[1].records.remove(&Key::inode(DIR));
        draft.shards[1].slot_inodes = 1;
    });
    assert!(mends.contains(&Mend::Invented { ino: DIR, kind: FileKind::Directory }));
    let inode = draft.inode(DIR).unwrap();
    assert_eq!((inode.mode, inode.uid, inode.parent), (0o700, 0, Ino::ROOT));
    assert_eq!(draft.lookup(DIR, "inner"), Some(INNER));
    let (draft, _) = mended(|draft| drop(draft.shards[0].records.remove(&Key::inode(FILE))));
    let inode = draft.inode(FILE).unwrap();
    assert_eq!((inode.size, inode.nlink, inode.mode), (5 * BLOCK_SIZE as u64, 2, 0o600));
    let (draft, _) = mended(|draft| drop(draft.shards[0].records.remove(&Key::target(LINK, 0))));
    assert_eq!((draft.inode(LINK), draft.lookup(Ino::ROOT, "link")), (None, None));
    let (draft, _) = mended(|draft| drop(draft.shards[0].records.remove(&Key::inode(Ino::ROOT))));
    assert_eq!(draft.inode(Ino::ROOT).unwrap().mode, 0o700, "its entries are left");
    assert_eq!(draft.lookup(Ino::ROOT, "dir"), Some(DIR));
    let (draft, _) =
        mended(|draft| draft.shards[0].records.retain(|key, _| key.ino != Ino::ROOT.0));
    assert!(draft.found(DIR) && draft.found(FILE) && draft.found(LINK));
    mended(|draft| draft.shards[0].part(FILE, 0, 0));
    let stray = Ino(1 << 48 | 40);
    mended(|draft| {
        let xattr = Xattr::new(b"user.b", b"");
        let key = Key::xattr(stray, name_hash(SECRET, b"user.b"));
        draft.shards[1].records.insert(key, Value::Xattrs(Box::new([xattr])));
    });
}

#[test]
fn the_number_of_blocks_is_that_of_the_extents() {
    for wrong in [0, 2, 4, u64::MAX] {
        let (draft, _) = mended(|draft| draft.shards[0].change(FILE, |inode| inode.blocks = wrong));
        assert_eq!(draft.inode(FILE).unwrap().blocks, 3);
    }
}

#[test]
fn flags_say_which_attributes_an_inode_has() {
    let wrong = InodeFlags::ACL | InodeFlags::NODUMP;
    let (draft, _) = mended(|draft| draft.shards[0].change(FILE, |inode| inode.flags = wrong));
    assert_eq!(draft.inode(FILE).unwrap().flags, InodeFlags::NODUMP);
}

#[test]
fn a_list_that_cannot_be_read_goes_with_the_rights_of_the_group() {
    // `user::rw-`, `group::r--` and `other::---`.
    let entries = [(1_u16, 6_u16), (4, 4), (32, 0)];
    let mut legal = vec![2, 0, 0, 0];
    for (kind, rights) in entries {
        legal.extend_from_slice(&[kind.to_le_bytes(), rights.to_le_bytes()].concat());
        legal.extend_from_slice(&[0xff; 4]);
    }
    let lists = |draft: &Draft| {
        let names = [ACL_ACCESS, ACL_DEFAULT].map(|name| Key::xattr(DIR, name_hash(SECRET, name)));
        names.map(|key| draft.records(1).contains_key(&key))
    };
    let mut cut = legal.clone();
    cut.pop();
    let (draft, mends) = mended(|draft| {
        draft.shards[1].list(DIR, ACL_ACCESS, &cut);
        draft.shards[1].list(DIR, ACL_DEFAULT, &legal);
        draft.shards[1].change(DIR, |inode| inode.mode = 0o770);
    });
    let (what, why) = ("an access control list", "it cannot be read");
    assert!(mends.contains(&Mend::RecordDropped { ino: DIR, what, why }), "{mends:?}");
    assert_eq!((lists(&draft), draft.inode(DIR).unwrap().mode), ([false, true], 0o700));
    let (draft, mends) = mended(|draft| {
        draft.shards[1].list(DIR, ACL_ACCESS, &legal);
        draft.shards[1].list(DIR, ACL_DEFAULT, b"\x03\0\0\0");
        draft.shards[1].change(DIR, |inode| inode.mode = 0o770);
    });
    assert!(mends.contains(&Mend::RecordDropped { ino: DIR, what, why }), "{mends:?}");
    assert_eq!((lists(&draft), draft.inode(DIR).unwrap().mode), ([true, false], 0o770));
}

#[test]
fn a_directory_keeps_its_times_when_its_counts_are_set_right() {
    let (mtime, ctime) = (Timestamp(77), Timestamp(78));
    let (draft, _) = mended(|draft| {
        let part = Part { entries: 9, subdirs: 3, mtime, ctime };
        draft.shards[1].records.insert(Key::part(DIR, 0), Value::Part(Box::new(part)));
    });
    let part = Part { entries: 1, subdirs: 0, mtime, ctime };
    assert_eq!(draft.records(1)[&Key::part(DIR, 0)], Value::Part(Box::new(part)));
}

/// The rest of a target would lead elsewhere. A length that is too short is set right.
#[test]
fn a_symlink_without_the_end_of_its_target_is_removed() {
    let (draft, mends) =
        mended(|draft| drop(draft.shards[0].records.remove(&Key::target(LINK, 1))));
    let why = "the symlink's target is incomplete";
    assert!(mends.contains(&Mend::Dropped { ino: LINK, why }), "{mends:?}");
    assert_eq!((draft.inode(LINK), draft.lookup(Ino::ROOT, "link")), (None, None));
    assert!(!draft.records(0).keys().any(|key| key.ino == LINK.0));
    let (draft, _) = mended(|draft| draft.shards[0].change(LINK, |inode| inode.size = 3));
    assert_eq!(draft.inode(LINK).unwrap().size, 1500);
    assert_eq!(draft.lookup(Ino::ROOT, "link"), Some(LINK));
}

#[test]
fn a_root_of_which_nothing_is_left_is_open_to_all_users() {
    let (draft, mends) =
        mended(|draft| draft.shards[0].records.retain(|key, _| key.ino != Ino::ROOT.0));
    let invented = Mend::Invented { ino: Ino::ROOT, kind: FileKind::Directory };
    assert!(mends.contains(&invented), "{mends:?}");
    let root = draft.inode(Ino::ROOT).unwrap();
    assert_eq!((root.mode, root.uid, root.nlink, root.parent), (0o755, 0, 2, Ino::ROOT));
}

/// The other name comes first in every order.
#[test]
fn a_directory_with_two_names_keeps_that_in_its_parent() {
    let sub = Ino(1 << 48 | 9);
    let (draft, mends) = mended(|draft| {
        draft.shards[1].inode(sub, FileKind::Directory, 2, DIR);
        draft.shards[1].part(sub, 0, 0);
        draft.shards[1].entry(DIR, "sub", sub, FileKind::Directory);
        draft.shards[1].part(DIR, 2, 1);
        draft.shards[0].entry(Ino::ROOT, "again", sub, FileKind::Directory);
        draft.shards[0].part(Ino::ROOT, 5, 2);
    });
    let why = "a directory has one name";
    let unlinked = Mend::Unlinked { dir: Ino::ROOT, name: name("again"), ino: sub, why };
    assert!(mends.contains(&unlinked), "{mends:?}");
    let names = (draft.lookup(DIR, "sub"), draft.lookup(Ino::ROOT, "again"));
    assert_eq!(names, (Some(sub), None));
    assert_eq!(draft.inode(sub).unwrap().parent, DIR);
}

/// The entries of a directory are not removed with it, whatever its record or its links say.
#[test]
fn a_directory_with_entries_and_no_name_is_found_again() {
    for is_orphan in [true, false] {
        let (draft, mends) = mended(|draft| {
            draft.shards[0].records.remove(&Key::entry(Ino::ROOT, name_hash(SECRET, b"dir")));
            draft.shards[0].part(Ino::ROOT, 3, 0);
            draft.shards[1].change(DIR, |inode| inode.nlink = 0);
            if is_orphan {
                draft.shards[1].records.insert(Key::orphan(DIR), Value::Orphan);
            }
        });
        assert!(mends.contains(&Mend::Found { ino: DIR }), "{mends:?}");
        assert!(draft.found(DIR) && !draft.records(1).contains_key(&Key::orphan(DIR)));
        let inode = draft.inode(DIR).unwrap();
        let lost_found = draft.lookup(Ino::ROOT, "lost+found").unwrap();
        assert_eq!((inode.nlink, inode.parent), (2, lost_found));
        assert_eq!(draft.lookup(DIR, "inner"), Some(INNER));
    }
}

/// Only a directory has a list for its new files: no cell can read another inode with its flag.
#[test]
fn a_directory_that_became_a_file_loses_the_list_for_its_files() {
    let list = [2, 0, 0, 0];
    let (draft, mends) = mended(|draft| {
        draft.shards[1].list(DIR, ACL_DEFAULT, &list);
        draft.shards[1].change(DIR, |inode| {
            (inode.kind, inode.parent) = (FileKind::Regular, Ino(0));
            inode.flags = InodeFlags::NODUMP;
        });
    });
    let (what, why) = ("an access control list", "files of its kind have none such");
    assert!(mends.contains(&Mend::RecordDropped { ino: DIR, what, why }), "{mends:?}");
    let inode = draft.inode(DIR).unwrap();
    let found = (inode.kind, inode.flags, inode.mode, inode.nlink, inode.parent);
    assert_eq!(found, (FileKind::Regular, InodeFlags::NODUMP, 0o644, 1, Ino(0)));
    let of_dir = draft.records(1).into_keys().filter(|key| key.ino == DIR.0);
    assert_eq!(of_dir.collect::<Vec<_>>(), [Key::inode(DIR)]);
    assert!(draft.found(INNER), "its entry is lost");
    assert_eq!(draft.lookup(Ino::ROOT, "dir"), Some(DIR));
}

#[test]
fn the_last_block_of_the_largest_file_is_kept() {
    let last = FILE_SIZE_MAX / BLOCK_SIZE as u64;
    for (size, expected) in [(FILE_SIZE_MAX, FILE_SIZE_MAX), (9, FILE_SIZE_MAX)] {
        let (draft, mends) = mended(|draft| {
            let extent = draft.shards[0].records.remove(&Key::extent(FILE, 4)).unwrap();
            draft.shards[0].records.insert(Key::extent(FILE, last), extent);
            draft.shards[0].change(FILE, |inode| (inode.size, inode.nlink) = (size, 1));
        });
        let is_lost = |mend: &Mend| matches!(mend, Mend::DataLost { .. });
        assert!(!mends.iter().any(is_lost), "{mends:?}");
        let inode = draft.inode(FILE).unwrap();
        assert_eq!((inode.size, inode.blocks, inode.nlink), (expected, 3, 2));
        assert!(draft.records(0).contains_key(&Key::extent(FILE, last)));
    }
}

/// Shard 1's file refers to a block of shard 0 that cannot be read, so it cannot be copied.
#[test]
fn a_block_that_cannot_be_copied_is_not_counted() {
    let file = Ino(1 << 48 | 3);
    let (draft, mends) = mended(|draft| {
        let inode = draft.shards[1].inode(file, FileKind::Regular, 1, Ino(0));
        (inode.size, inode.blocks) = (7 * BLOCK_SIZE as u64, 4);
        let extent = Extent { start: BlockNo(20 * CHUNK_BLOCKS + 50), checksums: [7].into() };
        draft.shards[1].records.insert(Key::extent(file, 0), Value::Extent(Box::new(extent)));
        draft.shards[1].records.insert(Key::extent(file, 2), Value::Unwritten(3));
        let owed = Owed { blocks: 3, extents: 1 };
        draft.shards[1].records.insert(Key::owed(), Value::Owed(owed));
        draft.shards[1].entry(DIR, "other", file, FileKind::Regular);
        draft.shards[1].part(DIR, 2, 0);
    });
    let why = "it cannot be read";
    assert!(mends.contains(&Mend::DataLost { ino: file, file_block: 0, why }), "{mends:?}");
    let inode = draft.inode(file).unwrap();
    assert_eq!((inode.size, inode.blocks), (7 * BLOCK_SIZE as u64, 3));
    assert_eq!(draft.records(1)[&Key::extent(file, 2)], Value::Unwritten(3));
}

/// The first keeps its place, and the shard owes what is left.
#[test]
fn of_unwritten_extents_that_overlap_the_first_is_kept() {
    let (draft, mends) = mended(|draft| {
        for (at, blocks) in [(8, 5), (10, 2), (13, 4)] {
            draft.shards[0].records.insert(Key::extent(FILE, at), Value::Unwritten(blocks));
        }
        let owed = Owed { blocks: 11, extents: 3 };
        draft.shards[0].records.insert(Key::owed(), Value::Owed(owed));
        draft.shards[0].change(FILE, |inode| inode.blocks = 14);
    });
    let (what, why) = ("an unwritten extent", "another extent has its place");
    assert!(mends.contains(&Mend::RecordDropped { ino: FILE, what, why }), "{mends:?}");
    let records = draft.records(0);
    let unwritten = [8, 10, 13].map(|at| records.get(&Key::extent(FILE, at)).cloned());
    assert_eq!(unwritten, [Some(Value::Unwritten(5)), None, Some(Value::Unwritten(4))]);
    assert_eq!(records[&Key::owed()], Value::Owed(Owed { blocks: 9, extents: 2 }));
    assert_eq!(draft.inode(FILE).unwrap().blocks, 12);
}

/// Blocks that are recorded as used may belong to a record that could not be read.
#[test]
fn blocks_that_are_recorded_as_used_are_written_last() {
    let recorded = 0xffff_ffff;
    let mut draft = Draft::new();
    draft.shards[0].change(FILE, |inode| inode.nlink = 1);
    draft.write();
    let mut leaking = Draft::new();
    leaking.shards[0].change(FILE, |inode| inode.nlink = 1);
    leaking.shards[0].used |= recorded;
    leaking.write();
    let written = |draft: &Draft| draft.work_out_repair().expect("a repair").body;
    assert!(written(&draft).iter().any(|(block, _)| block.0 % CHUNK_BLOCKS < 32), "the first free");
    assert!(written(&leaking).iter().all(|(block, _)| block.0 % CHUNK_BLOCKS >= 32));
}

/// However many files of a pool have the names that are given in `lost+found`.
#[test]
fn a_name_in_lost_found_that_is_taken_gets_a_number() {
    let lost = Ino(9);
    let number = NUMBERS.number(LINK);
    let (draft, _) = mended(|draft| {
        let zero = &mut draft.shards[0];
        zero.records.remove(&Key::entry(Ino::ROOT, name_hash(SECRET, b"link")));
        zero.entry(Ino::ROOT, "lost+found", lost, FileKind::Directory);
        zero.inode(lost, FileKind::Directory, 2, Ino::ROOT);
        zero.part(Ino::ROOT, 4, 2);
        let mut taken: Vec<String> = vec![format!("#{number}")];
        while taken[taken.len() - 1].len() < 255 {
            taken.push(format!("{}~", taken[taken.len() - 1]));
        }
        taken.push(format!("#{number}~1"));
        for name in &taken {
            zero.entry(lost, name, FILE, FileKind::Regular);
        }
        zero.part(lost, taken.len() as u64, 0);
        zero.change(FILE, |inode| inode.nlink += taken.len() as u32);
    });
    assert_eq!(draft.lookup(lost, &format!("#{number}~2")), Some(LINK));
    assert_eq!(draft.lookup(lost, &format!("#{number}")), Some(FILE));
}

/// An attribute of so many bytes, and pieces, each with its number and length.
fn put_long(draft: &mut Draft, name: &[u8], len: usize, pieces: &[(u64, usize)]) {
    let hash = name_hash(SECRET, name);
    let bucket = [Xattr::new(name, &vec![1; len])].into();
    let records = &mut draft.shards[1].records;
    records.insert(Key::xattr(INNER, hash), Value::Xattrs(bucket));
    for (piece, len) in pieces {
        let piece = Key::xattr_piece(INNER, hash, *piece);
        records.insert(piece, Value::XattrPiece(vec![1; *len].into()));
    }
}

/// Whether the pool has such an attribute, and how many pieces.
fn long_of(draft: &Draft, name: &[u8]) -> (bool, usize) {
    let is_piece = |key: &&Key| key.kind == Kind::XattrPiece;
    let records = draft.records(1);
    let has = records.contains_key(&Key::xattr(INNER, name_hash(SECRET, name)));
    (has, records.keys().filter(is_piece).count())
}

#[test]
fn values_have_all_their_pieces_and_pieces_have_a_value() {
    let name = b"user.long";
    let (draft, mends) = mended(|draft| put_long(draft, name, 2300, &[(0, 2000), (1, 300)]));
    assert_eq!((long_of(&draft, name), mends), ((true, 2), vec![]));
    let wrong: [&[(u64, usize)]; 6] = [
        &[],
        &[(0, 2000)],
        &[(1, 300)],
        &[(0, 1999), (1, 300)],
        &[(0, 2000), (2, 300)],
        &[(0, 300)],
    ];
    for pieces in wrong {
        let findings = planted(|draft| put_long(draft, name, 2300, pieces));
        assert_eq!(findings, [Finding::XattrPieces { ino: INNER }], "{pieces:?}");
        let (draft, mends) = mended(|draft| put_long(draft, name, 2300, pieces));
        assert_eq!(long_of(&draft, name), (false, 0), "{pieces:?}");
        assert!(matches!(mends[0], Mend::RecordDropped { ino: INNER, .. }));
    }
    // Pieces of no attribute, beside another that has its own.
    let (draft, _) = mended(|draft| {
        put_long(draft, name, 200, &[(0, 200)]);
        let stray = Key::xattr_piece(INNER, name_hash(SECRET, b"user.none"), 0);
        draft.shards[1].records.insert(stray, Value::XattrPiece([1].into()));
    });
    assert_eq!(long_of(&draft, name), (true, 1));
    // An orphan is being removed.
    let findings = planted(|draft| {
        put_long(draft, name, 200, &[]);
        draft.shards[1].change(INNER, |inode| inode.nlink = 0);
        draft.shards[1].records.insert(Key::orphan(INNER), Value::Orphan);
    });
    assert!(!findings.contains(&Finding::XattrPieces { ino: INNER }), "{findings:?}");
}

#[test]
fn extents_are_made_to_fit() {
    let (draft, _) =
        mended(|draft| draft.shards[0].change(FILE, |inode| inode.size = BLOCK_SIZE as u64));
    assert_eq!(draft.inode(FILE).unwrap().size, 5 * BLOCK_SIZE as u64);
    let (_, mends) = mended(|draft| {
        let extent = draft.shards[0].records.remove(&Key::extent(FILE, 4)).unwrap();
        draft.shards[0].records.insert(Key::extent(FILE, 1), extent);
    });
    assert!(
        mends.iter().any(|mend| matches!(mend, Mend::DataLost { ino: FILE, file_block: 1, .. }))
    );
    mended(|draft| {
        let extent = Extent { start: BlockNo(1), checksums: [0].into() };
        draft.shards[0].records.insert(Key::extent(FILE, 0), Value::Extent(Box::new(extent)));
    });
    mended(|draft| {
        let extent = Extent { start: BlockNo(u64::MAX), checksums: [0, 1].into() };
        let far = Key::extent(FILE, u64::MAX);
        draft.shards[0].records.insert(far, Value::Extent(Box::new(extent)));
    });
}

#[test]
fn space_adds_up_again() {
    let (_, mends) = mended(|draft| draft.shards[0].used |= 1 << 40);
    assert!(mends.contains(&Mend::Leaked { shard: ShardId(0), blocks: 1 }));
    // The map does not record shard 1's chunk.
    let (draft, _) = mended(|draft| {
        let mut region = RegionMap::new(draft.superblock.layout);
        region.claim(20, ShardId(0));
        draft.region = region;
    });
    assert_eq!(draft.lookup(DIR, "inner"), Some(INNER));
    // The map gives shard 1's chunk to shard 2, which does not use it.
    mended(|draft| {
        draft.region.release(21);
        draft.region.claim(21, ShardId(2));
    });
}

/// A block is allocated twice, to data and to the tree's node: the node is intact, so the data is
/// lost.
#[test]
fn data_that_a_node_was_written_over_is_an_error() {
    let mut draft = Draft::new();
    draft.shards[0].used &= !1;
    draft.write();
    let repair = draft.work_out_repair().unwrap();
    let mends = repair.mends.clone();
    draft.blocks.extend(repair.into_stages().into_iter().flatten());
    let findings = draft.findings();
    let [Finding::Contents { ino: FILE, file_block: 0, block }] = findings[..] else {
        panic!("{findings:?}")
    };
    let copied = Mend::Copied { ino: FILE, file_block: 0, to: block };
    assert!(mends.contains(&copied));
}

#[test]
fn a_block_of_two_files_is_copied_for_the_later() {
    let other = Ino(1 << 48 | 3);
    let start = BlockNo(20 * 64);
    let share = |draft: &mut Draft| {
        let checksums = [block_checksum(&[start.0 as u8; BLOCK_SIZE])].into();
        let twice = Value::Extent(Box::new(Extent { start, checksums }));
        draft.shards[0].records.insert(Key::extent(FILE, 3), twice.clone());
        draft.shards[0].change(FILE, |inode| inode.blocks += 1);
        let inode = draft.shards[1].inode(other, FileKind::Regular, 1, Ino(0));
        (inode.size, inode.blocks) = (BLOCK_SIZE as u64, 1);
        draft.shards[1].records.insert(Key::extent(other, 0), twice);
        draft.shards[1].entry(DIR, "other", other, FileKind::Regular);
        draft.shards[1].part(DIR, 2, 0);
    };
    // `repaired` compares the contents of all blocks with their checksums.
    let (draft, mends) = mended(share);
    let copied = mends.iter().filter(|mend| matches!(mend, Mend::Copied { .. })).count();
    assert_eq!(copied, 2);
    let places: BTreeSet<_> = [draft.records(0), draft.records(1)]
        .iter()
        .flatten()
        .filter_map(|(_, value)| match value {
            Value::Extent(extent) => Some(extent.start),
            _ => None,
        })
        .collect();
    assert_eq!(places.len(), 4, "and the first has its own still");
    assert!(places.contains(&start));
}

#[test]
fn places_with_the_same_contents_share_their_block_and_are_counted() {
    let start = BlockNo(20 * 64);
    for recorded in [None, Some(1), Some(3)] {
        let share = |draft: &mut Draft| {
            let checksums = [block_checksum(&[start.0 as u8; BLOCK_SIZE])].into();
            let twice = Value::Extent(Box::new(Extent { start, checksums }));
            draft.shards[0].records.insert(Key::extent(FILE, 3), twice);
            draft.shards[0].change(FILE, |inode| inode.blocks += 1);
            if let Some(others) = recorded {
                let run = SharedRun { first: 0, blocks: 1, others };
                draft.shards[0].records.insert(Key::shared(20), Value::Shared(Box::new([run])));
            }
        };
        if recorded == Some(1) {
            let mut draft = Draft::new();
            share(&mut draft);
            draft.write();
            assert_eq!(draft.findings(), []);
            continue;
        }
        let (draft, mends) = mended(share);
        assert!(mends.contains(&Mend::Counts(ShardId(0))), "{mends:?}");
        let run = SharedRun { first: 0, blocks: 1, others: 1 };
        assert_eq!(draft.records(0)[&Key::shared(20)], Value::Shared(Box::new([run])));
    }
}

#[test]
fn one_flipped_bit_of_a_node_costs_nothing() {
    let mut sound = Draft::new();
    sound.write();
    let records = [sound.records(0), sound.records(1)];
    let without_space = |records: &BTreeMap<Key, Value>| {
        let mut records = records.clone();
        records.retain(|key, _| key.ino != 0);
        records
    };
    for (at, bit) in [(0, 3), (2, 7), (5, 1), (9, 0), (17, 2), (25, 1), (27, 0), (40, 5), (4095, 7)]
    {
        let (draft, mends) = healed(|draft| flip(draft, draft.roots[1].block, at, bit));
        assert!(matches!(mends[0], Mend::Corrected { .. }), "{mends:?}");
        assert_eq!(without_space(&draft.records(0)), without_space(&records[0]));
        assert_eq!(without_space(&draft.records(1)), without_space(&records[1]));
    }
}

/// A node of another shard with a right checksum, and one that also has a flipped bit.
#[test]
fn nothing_is_said_to_be_corrected_that_is_lost() {
    for flipped in [false, true] {
        let (_, mends) = healed(|draft| {
            forge_root(draft, 0, &[(24, 9)]);
            if flipped {
                flip(draft, draft.roots[0].block, 50, 1);
            }
        });
        let block = BlockNo(20 * CHUNK_BLOCKS + 3);
        assert!(
            matches!(mends[0], Mend::NodeLost { block: lost, .. } if lost == block),
            "{mends:?}"
        );
        assert!(!mends.iter().any(|mend| matches!(mend, Mend::Corrected { .. })), "{mends:?}");
    }
}

#[test]
fn a_lost_tree_is_given_up_and_what_it_held_is_named() {
    let lost: [fn(&mut Draft); 3] = [
        |draft| drop(draft.blocks.insert(draft.roots[1].block, vec![7; BLOCK_SIZE].into())),
        |draft| drop(draft.blocks.remove(&draft.roots[1].block)),
        |draft| {
            let place = draft.superblock.layout.root_slot(ShardId(1), 0);
            draft.blocks.get_mut(&place.block).unwrap()[place.offset..][..512].fill(9);
        },
    ];
    for spoil in lost {
        let (draft, mends) = healed(spoil);
        let named = |mend: &Mend| matches!(mend, Mend::Unlinked { name, .. } if **name == *b"dir");
        assert!(mends.iter().any(named), "{mends:?}");
        assert_eq!(draft.lookup(Ino::ROOT, "file"), Some(FILE));
    }
    // Numbers are not used twice.
    let (draft, _) = healed(lost[2]);
    let place = draft.superblock.layout.root_slot(ShardId(1), 0);
    let slot = RootSlot::decode(&draft.blocks[&place.block][place.offset..][..512]).unwrap();
    assert_eq!(slot.next_sequence, DIR.sequence() + 1);
}

#[test]
fn what_may_have_been_newer_is_given_up() {
    // A shard's slot of checkpoint 2, rotten; so is a page of the map.
    let (_, mends) = healed(|draft| {
        draft.go_on();
        let place = draft.superblock.layout.root_slot(ShardId(0), 1);
        draft.blocks.get_mut(&place.block).unwrap()[place.offset..][..512].fill(3);
        let page = draft.superblock.layout.region_page(1, 0);
        draft.blocks.insert(page, vec![5; BLOCK_SIZE].into());
    });
    assert_eq!(mends[0], Mend::SlotGivenUp(ShardId(0)));
    let (draft, mends) = healed(|draft| {
        for copy in 0..2 {
            let page = draft.superblock.layout.region_page(copy, 0);
            draft.blocks.insert(page, vec![5; BLOCK_SIZE].into());
        }
    });
    assert!(mends.contains(&Mend::RegionPage(0)));
    let layout = draft.superblock.layout;
    let copies = [0, 1].map(|copy| &draft.blocks[&layout.region_page(copy, 0)][..]);
    let map = RegionMap::load(&draft.superblock_now(), copies).unwrap();
    assert_eq!(map.owner(21), Some(Owner::Shard(ShardId(1))));
}

#[test]
fn a_bad_superblock_is_written_anew_and_none_is_the_end() {
    healed(|draft| flip(draft, BlockNo(1), 50, 0));
    healed(|draft| flip(draft, BlockNo(0), 50, 0));
    let mut draft = Draft::new();
    draft.write();
    (0..2).for_each(|copy| flip(&mut draft, BlockNo(copy), 50, 0));
    assert_eq!(draft.work_out_repair().unwrap_err(), RepairError::NoSuperblock);
}

/// Rotten data has no second copy: it stays, and its reader gets EIO.
#[test]
fn rotten_data_stays_an_error() {
    let mut draft = Draft::new();
    draft.write();
    let block = BlockNo(20 * 64 + 1);
    flip(&mut draft, block, 9, 0);
    let repair = draft.work_out_repair().unwrap();
    assert_eq!(repair.mends, []);
    draft.blocks.extend(repair.into_stages().into_iter().flatten());
    assert_eq!(draft.findings(), [Finding::Contents { ino: FILE, file_block: 1, block }]);
}
