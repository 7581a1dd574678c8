//! All inodes and all names that a check has read.

use std::collections::{BTreeMap, BTreeSet};
use warren_base::{FileKind, Ino};
use warren_disk::Dentry;

/// All inodes and all names of the pool.
#[derive(Default)]
pub(crate) struct Names {
    pub(super) inodes: BTreeMap<Ino, InodeFacts>,
    pub(super) links: BTreeMap<Ino, Links>,
    /// Entries with another kind than an earlier entry of the same inode.
    pub(super) odd: Vec<(Ino, Link)>,
    pub(super) orphans: BTreeSet<Ino>,
}

/// The facts that a check keeps of an inode.
#[derive(Clone, Copy)]
pub(crate) struct InodeFacts {
    pub kind: FileKind,
    pub nlink: u32,
    pub parent: Ino,
    /// Subdirectories and entries that were found in it.
    pub entries: u64,
}

/// The place and the content of an entry.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) dir: Ino,
    pub(super) hash: u64,
    pub(super) kind: FileKind,
}

/// The first entry that leads to an inode, and how many there are.
#[derive(Clone, Copy)]
pub(super) struct Links {
    pub(super) first: Link,
    pub(super) count: u32,
}

impl Names {
    pub(crate) fn add_inode(&mut self, ino: Ino, facts: InodeFacts) {
        self.inodes.insert(ino, facts);
    }

    pub(crate) fn add_entry(&mut self, dir: Ino, hash: u64, dentry: &Dentry) {
        let link = Link { dir, hash, kind: dentry.kind };
        let links = self.links.entry(dentry.ino).or_insert(Links { first: link, count: 0 });
        links.count = links.count.saturating_add(1);
        if links.first.kind != link.kind {
            self.odd.push((dentry.ino, link));
        }
    }

    pub(crate) fn add_orphan(&mut self, ino: Ino) {
        self.orphans.insert(ino);
    }

    /// Directories whose chain of parents does not end at the root.
    pub(crate) fn detached(&self) -> Vec<Ino> {
        let mut attached = BTreeSet::from([Ino::ROOT]);
        let mut detached = BTreeSet::new();
        for (ino, facts) in &self.inodes {
            if facts.kind != FileKind::Directory {
                continue;
            }
            let mut climbed = BTreeSet::new();
            let mut at = *ino;
            let is_attached = loop {
                if attached.contains(&at) {
                    break true;
                } else if detached.contains(&at) || !climbed.insert(at) {
                    break false;
                }
                match self.inodes.get(&at) {
                    Some(facts) if facts.kind == FileKind::Directory => at = facts.parent,
                    _ => break false,
                }
            };
            let chain = if is_attached { &mut attached } else { &mut detached };
            // `append` would rebuild the whole set.
            chain.extend(climbed);
        }
        let reported = |ino: &Ino| {
            let facts = self.inodes.get(ino);
            facts.is_some_and(|facts| facts.kind == FileKind::Directory)
                && !self.orphans.contains(ino)
        };
        detached.into_iter().filter(reported).collect()
    }
}
