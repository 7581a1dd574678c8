//! Matches names and inodes over all shards: every inode gets as many links as it has names; one
//! without a name gets a name in `/lost+found`, or is deleted if it had no link; directories become
//! a tree.

use super::mend::Mend;
use super::names::{Census, Edit, Entry, Fact, LOST_FOUND, raise};
use super::outcome::RepairError;
use super::repairer::Repairer;
use std::collections::{BTreeMap, BTreeSet};
use warren_base::{FileKind, Ino};
use warren_disk::{Kind, Value};

const DIRECTORY_LINKS: u32 = 2;

impl Repairer<'_> {
    pub(super) fn decide_names(&mut self) -> Result<(), RepairError> {
        let mut census = std::mem::take(&mut self.census);
        let questionable = census.questionable();
        for (ino, entries) in self.entries_of(&questionable) {
            self.judge(&mut census, ino, &entries);
        }
        self.cut_circles(&mut census);
        self.judge_orphans(&mut census);
        let inodes: Vec<(Ino, Fact)> =
            census.inodes.iter().map(|(ino, fact)| (*ino, *fact)).collect();
        for (ino, fact) in inodes {
            self.settle(&mut census, ino, fact)?;
        }
        self.census = census;
        Ok(())
    }

    fn edit(&mut self, ino: Ino, edit: Edit) {
        self.dirty.insert(ino.shard());
        self.edits.entry(ino.shard()).or_default().push(edit);
    }

    /// All names of these inodes.
    fn entries_of(&mut self, inos: &BTreeSet<Ino>) -> BTreeMap<Ino, Vec<Entry>> {
        let mut entries = BTreeMap::<Ino, Vec<Entry>>::new();
        if inos.is_empty() {
            return entries;
        }
        for shard in self.shards() {
            let found = self.shard(shard);
            for (key, value) in found.records.iter().filter(|(key, _)| key.kind == Kind::Entry) {
                let Value::Entries(bucket) = value else { continue };
                let dir = Ino(key.ino);
                for dentry in bucket.iter().filter(|dentry| inos.contains(&dentry.ino)) {
                    let (name, ino, kind) = (dentry.name.clone(), dentry.ino, dentry.kind);
                    entries.entry(ino).or_default().push(Entry { dir, name, ino, kind });
                }
            }
        }
        entries
    }

    /// Removes entries without an inode, and all but one of a directory's; corrects the kind in the
    /// remaining entries.
    fn judge(&mut self, census: &mut Census, ino: Ino, entries: &[Entry]) {
        let Some(fact) = census.inodes.get(&ino).copied() else {
            let why = "what it led to is lost";
            return entries.iter().for_each(|entry| self.unlink(census, entry, why));
        };
        let kept = if ino == Ino::ROOT {
            None
        } else {
            let in_parent = entries.iter().position(|entry| entry.dir == fact.parent);
            Some(in_parent.unwrap_or(0))
        };
        for (at, entry) in entries.iter().enumerate() {
            if fact.kind == FileKind::Directory && kept != Some(at) {
                self.unlink(census, entry, "a directory has one name");
                continue;
            }
            let Entry { dir, kind, .. } = *entry;
            if let Some(links) = census.links.get_mut(&ino) {
                links.dir = dir;
            }
            if kind != fact.kind {
                let name = entry.name.clone();
                self.report(Mend::EntryKind { dir, name: name.clone(), ino, kind: fact.kind });
                self.edit(dir, Edit::EntryKind { dir, name, kind: fact.kind });
            }
        }
    }

    fn unlink(&mut self, census: &mut Census, entry: &Entry, why: &'static str) {
        let Entry { dir, ino, .. } = *entry;
        let name = entry.name.clone();
        if let Some(links) = census.links.get_mut(&ino) {
            links.count -= 1;
            if links.count == 0 {
                census.links.remove(&ino);
            }
        }
        if dir == Ino::ROOT && &*name == LOST_FOUND {
            census.lost_found = None;
        }
        self.report(Mend::Unlinked { dir, name: name.clone(), ino, why });
        self.edit(dir, Edit::Unlink { dir, name });
    }

    /// Removes the name of one directory from each circle; it is then handled as one without a
    /// name.
    fn cut_circles(&mut self, census: &mut Census) {
        let links = census.links.iter().filter(|(ino, _)| census.is_directory(**ino));
        let holders = links.map(|(ino, links)| (*ino, links.dir)).collect();
        let cut = census.circles(&holders);
        for (ino, entries) in self.entries_of(&cut) {
            // Of several names all but one were removed before.
            let holder = census.links.get(&ino).map(|links| links.dir);
            if let Some(entry) = entries.iter().find(|entry| Some(entry.dir) == holder) {
                self.unlink(census, entry, "the directory would be within itself");
            }
        }
    }

    fn judge_orphans(&mut self, census: &mut Census) {
        for ino in census.orphans.clone() {
            let fact = census.inodes.get(&ino);
            let none = fact.is_none_or(|fact| fact.kind == FileKind::Directory && fact.has_entries);
            if none || census.links.contains_key(&ino) {
                census.orphans.remove(&ino);
                self.report(Mend::NoOrphan { ino });
                self.edit(ino, Edit::DropOrphan { ino });
            }
        }
    }

    /// Gives an inode its number of links, or a name.
    fn settle(&mut self, census: &mut Census, ino: Ino, fact: Fact) -> Result<(), RepairError> {
        let is_directory = fact.kind == FileKind::Directory;
        let links = census.links.get(&ino).copied();
        let orphan = census.orphans.contains(&ino);
        let mut count = links.map_or(0, |links| links.count);
        let mut parent = links.map_or(fact.parent, |links| links.dir);
        if ino == Ino::ROOT {
            parent = ino;
        } else if count == 0 && !orphan {
            if fact.nlink == 0 && !fact.has_entries {
                self.report(Mend::Reclaimed { ino });
                self.edit(ino, Edit::AddOrphan { ino });
            } else {
                parent = self.put_into_lost_found(census, ino, fact.kind)?;
                count = 1;
            }
        }
        let gone = count == 0 && ino != Ino::ROOT;
        let nlink = match is_directory {
            true if gone => 0,
            true => DIRECTORY_LINKS,
            false => count,
        };
        if nlink != fact.nlink {
            self.report(Mend::SetRight { ino, what: "the number of links" });
            self.edit(ino, Edit::Links { ino, nlink });
        }
        if is_directory && !gone && parent != fact.parent {
            self.report(Mend::SetRight { ino, what: "the parent" });
            self.edit(ino, Edit::Parent { ino, dir: parent });
        }
        Ok(())
    }

    /// Returns the directory.
    fn put_into_lost_found(
        &mut self,
        census: &mut Census,
        ino: Ino,
        kind: FileKind,
    ) -> Result<Ino, RepairError> {
        let dir = match census.lost_found {
            Some(dir) if census.is_directory(dir) && dir != ino => dir,
            _ => self.make_lost_found(census)?,
        };
        self.report(Mend::Found { ino });
        let number = self.superblock.inode_numbers().number(ino);
        let name = format!("#{number}").into_bytes().into();
        self.edit(dir, Edit::Link { dir, name, ino, kind });
        Ok(dir)
    }

    fn make_lost_found(&mut self, census: &mut Census) -> Result<Ino, RepairError> {
        let shard = Ino::ROOT.shard();
        let sequence = census.next_sequence(&self.collect(shard));
        if sequence > Ino::SEQUENCE_MAX {
            return Err(RepairError::NoNumbers);
        }
        let dir = Ino::new(shard, sequence);
        raise(&mut census.present, dir);
        let kind = FileKind::Directory;
        let fact = Fact { kind, nlink: DIRECTORY_LINKS, parent: Ino::ROOT, has_entries: true };
        census.inodes.insert(dir, fact);
        census.lost_found = Some(dir);
        self.edit(dir, Edit::Directory { ino: dir });
        let name = LOST_FOUND.into();
        self.edit(Ino::ROOT, Edit::Link { dir: Ino::ROOT, name, ino: dir, kind });
        Ok(dir)
    }
}
