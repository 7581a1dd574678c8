//! All inodes and names that a repair has read, and the changes of names that it decides on.

use super::records::Shard;
use std::collections::{BTreeMap, BTreeSet};
use warren_base::{FileKind, Ino, ShardId};
use warren_disk::Value;

pub(super) const LOST_FOUND: &[u8] = b"lost+found";

/// The changes to a shard's records after its inodes are repaired.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Edit {
    /// Removes an entry.
    Unlink {
        dir: Ino,
        name: Box<[u8]>,
    },
    /// Makes an entry, under the name with a number if the wanted one exists.
    Link {
        dir: Ino,
        name: Box<[u8]>,
        ino: Ino,
        kind: FileKind,
    },
    EntryKind {
        dir: Ino,
        name: Box<[u8]>,
        kind: FileKind,
    },
    Links {
        ino: Ino,
        nlink: u32,
    },
    Parent {
        ino: Ino,
        dir: Ino,
    },
    /// Makes an empty directory in the root.
    Directory {
        ino: Ino,
    },
    AddOrphan {
        ino: Ino,
    },
    DropOrphan {
        ino: Ino,
    },
}

/// The facts that a repair keeps of an inode.
#[derive(Clone, Copy)]
pub(super) struct Fact {
    pub kind: FileKind,
    pub nlink: u32,
    pub parent: Ino,
    pub has_entries: bool,
}

/// The first name that leads to an inode, and the number of its names.
#[derive(Clone, Copy)]
pub(super) struct Links {
    pub dir: Ino,
    pub kind: FileKind,
    pub count: u32,
    /// Its names disagree about its kind.
    pub odd: bool,
}

/// An entry in full.
#[derive(Clone)]
pub(super) struct Entry {
    pub dir: Ino,
    pub name: Box<[u8]>,
    pub ino: Ino,
    pub kind: FileKind,
}

/// All inodes and names of the pool.
#[derive(Default)]
pub(super) struct Census {
    pub inodes: BTreeMap<Ino, Fact>,
    pub links: BTreeMap<Ino, Links>,
    pub orphans: BTreeSet<Ino>,
    /// For each shard the highest sequence of an existing inode, and of an inode in a name.
    pub present: BTreeMap<ShardId, u64>,
    pub named: BTreeMap<ShardId, u64>,
    /// The inode of the root's entry `lost+found`.
    pub lost_found: Option<Ino>,
}

impl Census {
    pub(super) fn add(&mut self, found: &Shard) {
        for (key, value) in &found.records {
            let ino = Ino(key.ino);
            match value {
                Value::Inode(inode) => {
                    raise(&mut self.present, ino);
                    let (kind, nlink, parent) = (inode.kind, inode.nlink, inode.parent);
                    let fact = Fact { kind, nlink, parent, has_entries: false };
                    self.inodes.insert(ino, fact);
                }
                Value::Entries(bucket) => {
                    if let Some(fact) = self.inodes.get_mut(&ino) {
                        fact.has_entries = true;
                    }
                    bucket.iter().for_each(|dentry| {
                        raise(&mut self.named, dentry.ino);
                        self.add_name(ino, dentry.ino, dentry.kind);
                        if ino == Ino::ROOT && &*dentry.name == LOST_FOUND {
                            self.lost_found = Some(dentry.ino);
                        }
                    });
                }
                Value::Orphan => drop(self.orphans.insert(Ino(key.sub))),
                _ => {}
            }
        }
    }

    pub(super) fn add_name(&mut self, dir: Ino, ino: Ino, kind: FileKind) {
        let first = Links { dir, kind, count: 0, odd: false };
        let links = self.links.entry(ino).or_insert(first);
        links.count = links.count.saturating_add(1);
        links.odd |= links.kind != kind;
    }

    /// The lowest possible next sequence of a shard. Names of missing inodes count only if the
    /// newest slot is lost: a forged name could use all numbers up.
    pub(super) fn next_sequence(&self, found: &Shard) -> u64 {
        let present = self.present.get(&found.shard).copied().unwrap_or(0);
        let named = self.named.get(&found.shard).copied().unwrap_or(0);
        let known = found.slot.map_or(1, |slot| slot.next_sequence);
        known.max(present + 1).max(if found.is_newest { 1 } else { named + 1 })
    }

    pub(super) fn is_directory(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|fact| fact.kind == FileKind::Directory)
    }

    /// Inodes whose names must all be checked.
    pub(super) fn questionable(&self) -> BTreeSet<Ino> {
        let is_questionable = |(ino, links): &(&Ino, &Links)| match self.inodes.get(*ino) {
            None => true,
            Some(fact) if fact.kind != links.kind || links.odd => true,
            Some(fact) if fact.kind == FileKind::Directory => links.count > 1 || **ino == Ino::ROOT,
            Some(_) => false,
        };
        self.links.iter().filter(is_questionable).map(|(ino, _)| *ino).collect()
    }

    /// For each circle of directories one of them. `holders`: the directory that contains a
    /// directory's name.
    pub(super) fn circles(&self, holders: &BTreeMap<Ino, Ino>) -> BTreeSet<Ino> {
        let mut settled = BTreeSet::from([Ino::ROOT]);
        let mut cut = BTreeSet::new();
        for start in holders.keys() {
            let mut climbed = BTreeSet::new();
            let mut at = *start;
            loop {
                if settled.contains(&at) {
                    break;
                } else if !climbed.insert(at) {
                    cut.insert(circle_from(at, holders));
                    break;
                }
                match holders.get(&at) {
                    Some(above) => at = *above,
                    None => break,
                }
            }
            // `append` would rebuild the whole set.
            settled.extend(climbed);
        }
        cut
    }
}

pub(super) fn raise(sequences: &mut BTreeMap<ShardId, u64>, ino: Ino) {
    let known = sequences.entry(ino.shard()).or_default();
    *known = (*known).max(ino.sequence());
}

/// The lowest of the circle that `at` is in.
fn circle_from(at: Ino, holders: &BTreeMap<Ino, Ino>) -> Ino {
    let (mut lowest, mut next) = (at, holders[&at]);
    while next != at {
        lowest = lowest.min(next);
        next = holders[&next];
    }
    lowest
}
