//! Repairs of pools whose records were changed at random, field by field, behind right checksums:
//! one repair is enough, wherever it was interrupted before.

use super::repair::is_damage;
use super::*;
use crate::Mend;
use warren_base::ACL_DEFAULT;
use warren_base::limits::FILE_SIZE_MAX;
use warren_disk::{Kind, Owed};

/// Pools that are forged in a run of the tests.
const POOLS: u64 = 3000;

const OTHER: Ino = Ino(1 << 48 | 10);
const SUBDIR: Ino = Ino(1 << 48 | 11);
const ORPHAN: Ino = Ino(1 << 48 | 12);
const LINKED: Ino = Ino(4);

/// An access control list: `user::rw-`, `group::r--` and `other::---`.
fn legal_list() -> Vec<u8> {
    let mut list = vec![2, 0, 0, 0];
    for (kind, rights) in [(1_u16, 6_u16), (4, 4), (32, 0)] {
        list.extend_from_slice(&[kind.to_le_bytes(), rights.to_le_bytes()].concat());
        list.extend_from_slice(&[0xff; 4]);
    }
    list
}

impl Draft {
    /// A pool with a record of every kind, and relations of every kind between them.
    fn rich() -> Self {
        let mut draft = Self::new();
        let list = legal_list();
        draft.shards[1].list(DIR, ACL_DEFAULT, &list);
        draft.shards[0].list(FILE, ACL_ACCESS, &list);
        draft.share_and_allocate();
        let one = &mut draft.shards[1];
        one.inode(SUBDIR, FileKind::Directory, 2, DIR);
        one.part(SUBDIR, 1, 0);
        one.entry(SUBDIR, "linked", LINKED, FileKind::Regular);
        one.entry(DIR, "sub", SUBDIR, FileKind::Directory);
        one.entry(DIR, "other", OTHER, FileKind::Regular);
        one.part(DIR, 3, 1);
        one.inode(ORPHAN, FileKind::Regular, 0, Ino(0));
        one.records.insert(Key::orphan(ORPHAN), Value::Orphan);
        let hash = name_hash(SECRET, b"user.long");
        let long = [Xattr::new(b"user.long", &[1; 2300])];
        one.records.insert(Key::xattr(OTHER, hash), Value::Xattrs(long.into()));
        for (piece, len) in [(0, 2000), (1, 300)] {
            let key = Key::xattr_piece(OTHER, hash, piece);
            one.records.insert(key, Value::XattrPiece(vec![1; len].into()));
        }
        let zero = &mut draft.shards[0];
        zero.inode(LINKED, FileKind::Regular, 2, Ino(0));
        zero.entry(Ino::ROOT, "linked", LINKED, FileKind::Regular);
        zero.part(Ino::ROOT, 5, 1);
        draft
    }

    /// A file in shard 1 with blocks that share their place, and with unwritten ones.
    fn share_and_allocate(&mut self) {
        let one = &mut self.shards[1];
        let file = one.inode(OTHER, FileKind::Regular, 1, Ino(0));
        (file.size, file.blocks) = (3 * BLOCK_SIZE as u64, 7);
        let start = one.take_block();
        let bytes = vec![start.0 as u8; BLOCK_SIZE];
        let checksums: Box<[u32]> = [block_checksum(&bytes)].into();
        self.blocks.insert(start, bytes.into());
        for at in [0, 2] {
            let extent = Extent { start, checksums: checksums.clone() };
            one.records.insert(Key::extent(OTHER, at), Value::Extent(Box::new(extent)));
        }
        one.records.insert(Key::extent(OTHER, 8), Value::Unwritten(5));
        one.records.insert(Key::owed(), Value::Owed(Owed { blocks: 5, extents: 1 }));
        let run = SharedRun { first: (start.0 % CHUNK_BLOCKS) as u8, blocks: 1, others: 1 };
        one.records.insert(Key::shared(one.chunk), Value::Shared([run].into()));
    }

    /// Changes a record of one of the shards.
    fn forge(&mut self, rng: &mut Rng) {
        let shard = &mut self.shards[rng.below(2) as usize];
        let nth = rng.below(shard.records.len() as u64) as usize;
        let (key, value) = shard.records.iter().nth(nth).expect("a record");
        let (key, mut value) = (*key, value.clone());
        match rng.below(8) {
            0 => drop(shard.records.remove(&key)),
            1 if key.ino != 0 => {
                // A record under the key of another of its kind.
                let to = Key { ino: any_ino(rng).0, ..key };
                shard.records.insert(to, value);
            }
            2 if !matches!(key.kind, Kind::Inode | Kind::Part | Kind::Owed) => {
                shard.records.remove(&key);
                let to = Key { sub: key.sub ^ 1 << rng.below(12), ..key };
                shard.records.insert(to, value);
            }
            _ => {
                forge_value(&mut value, rng);
                shard.records.insert(key, value);
            }
        }
    }

    /// The records of both shards, without those of their space.
    fn all_records(&self) -> [BTreeMap<Key, Value>; 2] {
        [0, 1].map(|shard| {
            let mut records = self.records(shard);
            records.retain(|key, _| key.ino != 0);
            records
        })
    }
}

fn any_ino(rng: &mut Rng) -> Ino {
    let own = [Ino::ROOT, FILE, LINK, LINKED, DIR, INNER, OTHER, SUBDIR, ORPHAN];
    match rng.below(12) {
        9 => Ino(1 << 48 | 500),
        10 => Ino(2 << 48 | 7),
        11 => Ino(9 << 48 | 7),
        n => own[n as usize],
    }
}

fn any_kind(rng: &mut Rng) -> FileKind {
    let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Fifo];
    kinds[rng.below(4) as usize]
}

fn forge_value(value: &mut Value, rng: &mut Rng) {
    let number = [0, 1, 2, 3, 7, 1 << 20, u64::MAX][rng.below(7) as usize];
    match value {
        Value::Inode(inode) => forge_inode(inode, number, rng),
        Value::Part(part) => (part.entries, part.subdirs) = (number, rng.below(3) as u32),
        Value::Entries(bucket) => {
            let dentry = &mut bucket[0];
            match rng.below(3) {
                0 => dentry.ino = any_ino(rng),
                1 => dentry.kind = any_kind(rng),
                _ => dentry.name = [&dentry.name, &b"x"[..]].concat().into(),
            }
        }
        Value::Xattrs(bucket) => {
            let names = [ACL_ACCESS, ACL_DEFAULT, b"user.z", b"user.long"];
            let name = names[rng.below(4) as usize];
            let list = legal_list();
            let len = [0, list.len() - 1, list.len(), 2300][rng.below(4) as usize];
            let value: Vec<u8> = list.into_iter().chain([0; 2300]).take(len).collect();
            bucket[0] = Xattr::new(name, &value);
        }
        Value::Target(piece) | Value::XattrPiece(piece) => {
            let len = [1, piece.len() - 1, piece.len(), 1024][rng.below(4) as usize].max(1);
            *piece = vec![b't'; len.min(1024)].into();
        }
        Value::Extent(extent) => match rng.below(3) {
            0 => extent.start = BlockNo(number.min(u64::MAX - 64)),
            1 => extent.start = BlockNo((20 + rng.below(3)) * CHUNK_BLOCKS + rng.below(8)),
            _ => extent.checksums = vec![rng.next_u64() as u32; 1 + rng.below(3) as usize].into(),
        },
        Value::Unwritten(blocks) => *blocks = 1 + rng.below(64) as u8,
        Value::Owed(owed) => (owed.blocks, owed.extents) = (number, rng.below(3)),
        Value::Shared(runs) => {
            let run =
                SharedRun { first: rng.below(60) as u8, blocks: 2, others: 1 + number as u16 / 2 };
            *runs = [run].into();
        }
        Value::Chunk(used) => *used = number,
        Value::Orphan => {}
    }
}

fn forge_inode(inode: &mut Inode, number: u64, rng: &mut Rng) {
    match rng.below(7) {
        0 => inode.kind = any_kind(rng),
        1 => inode.nlink = number as u32,
        2 => inode.size = number.min(FILE_SIZE_MAX),
        3 => inode.blocks = number,
        4 if inode.kind == FileKind::Directory => inode.parent = any_ino(rng),
        5 => inode.flags ^= InodeFlags::of_xattr(ACL_ACCESS),
        _ => inode.mode = number as u16 & 0o7777,
    }
    // The rest of the rules of a single record: one that breaks them loses its whole node.
    let is_directory = inode.kind == FileKind::Directory;
    inode.parent = match inode.parent {
        _ if !is_directory => Ino(0),
        Ino(0) => DIR,
        parent => parent,
    };
    if !is_directory {
        inode.flags -= InodeFlags::DEFAULT_ACL;
    }
}

/// A pool that was forged `n` times with this seed, and the trail of what was done.
fn forged(seed: u64) -> (Draft, Rng) {
    let mut rng = Rng::new(seed);
    let mut draft = Draft::rich();
    (0..1 + rng.below(5)).for_each(|_| draft.forge(&mut rng));
    match rng.below(12) {
        0 => draft.shards[1].slot_inodes += 1,
        1 => draft.shards[0].next_sequence = 2,
        2 => draft.region.release(21),
        3 => draft.shards[0].used |= 1 << 40,
        _ => {}
    }
    draft.write();
    (draft, rng)
}

#[test]
fn a_rich_pool_is_sound() {
    let mut draft = Draft::rich();
    draft.write();
    assert_eq!(draft.findings(), [Finding::Orphan { ino: ORPHAN }]);
    assert_eq!(draft.work_out_repair().expect("a repair").mends, []);
}

#[test]
fn one_repair_of_a_forged_pool_is_enough() {
    let mut damaged = 0;
    for seed in 0..POOLS {
        let (mut draft, mut rng) = forged(seed);
        let before = draft.findings();
        damaged += u64::from(before.iter().any(is_damage));
        let repair = draft.work_out_repair();
        let repair = repair.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let trail: Vec<String> = repair.mends.iter().map(Mend::to_string).collect();
        let stages = repair.into_stages();
        // Interrupted in any stage, then done again.
        let stage = rng.below(stages.len() as u64) as usize;
        let mut cut = draft.clone();
        cut.blocks.extend(stages[..stage].iter().flatten().cloned());
        cut.write_some(&stages[stage], &mut rng);
        draft.blocks.extend(stages.into_iter().flatten());
        let again = cut.work_out_repair();
        let again = again.unwrap_or_else(|error| panic!("seed {seed}: cut, {error}"));
        cut.blocks.extend(again.into_stages().into_iter().flatten());
        for (what, pool) in [("done", &draft), ("interrupted and done", &cut)] {
            let wrong = |finding: &Finding| is_damage(finding) && !finding.is_lost_data();
            let wrong: Vec<_> = pool.findings().into_iter().filter(wrong).collect();
            assert_eq!(wrong, [], "seed {seed}, {what}: was {before:#?}, {trail:#?}");
            let mends = pool.work_out_repair().expect("a further repair").mends;
            assert_eq!(mends, [], "seed {seed}, {what}: was {before:#?}, {trail:#?}");
        }
        assert_eq!(cut.all_records(), draft.all_records(), "seed {seed}, cut in stage {stage}");
    }
    assert!(damaged > POOLS / 2, "{damaged}");
}
