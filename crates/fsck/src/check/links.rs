//! Compares names with inodes: links, kinds, parents, and whether everything is reachable from the
//! root.

use super::checker::Checker;
use super::names::{InodeFacts, Link, Links, Names};
use crate::finding::Finding;
use std::collections::BTreeMap;
use warren_base::{FileKind, Ino};

/// A directory's own links: its name and its `.`.
const DIRECTORY_LINKS: u32 = 2;

/// The longest path that is reported, as Linux's `PATH_MAX`: no program could use a longer one.
const PATH_MAX: usize = 4096;

impl Checker<'_> {
    /// The checks of names that need the whole pool. All trees must have been read completely.
    pub(super) fn check_names(&mut self) {
        let names = std::mem::take(&mut self.names);
        for (ino, links) in &names.links {
            self.check_entry(&names, *ino, links.first);
        }
        for (ino, link) in &names.odd {
            self.check_entry(&names, *ino, *link);
        }
        for (ino, facts) in &names.inodes {
            self.check_links(&names, *ino, facts);
        }
        for ino in &names.orphans {
            self.check_orphan(&names, *ino);
        }
        for ino in names.detached() {
            self.report.add(Finding::Detached { ino });
        }
        let root = names.inodes.get(&Ino::ROOT);
        if root.is_none_or(|root| root.kind != FileKind::Directory) {
            self.report.add(Finding::NoRoot);
        }
        self.names = names;
    }

    /// The paths of the inodes that findings name, and of those asked for.
    pub(super) fn find_paths(&mut self) {
        let mut inos = std::mem::take(&mut self.options.paths_of);
        inos.extend(self.report.findings.iter().filter_map(Finding::ino));
        // Each directory is looked up once, even if many paths go through it.
        let mut known = BTreeMap::new();
        for ino in inos {
            if let Some(path) = self.path_of(ino, &mut known) {
                self.report.paths.insert(ino, path);
            }
        }
    }

    fn path_of(
        &mut self,
        ino: Ino,
        known: &mut BTreeMap<Ino, Option<Box<[u8]>>>,
    ) -> Option<Box<[u8]>> {
        let (mut names, mut len) = (Vec::new(), 0);
        let mut at = ino;
        while at != Ino::ROOT {
            let Links { first: Link { dir, hash, .. }, .. } = *self.names.links.get(&at)?;
            let name = match known.get(&at) {
                Some(name) => name.clone()?,
                None => known.entry(at).or_insert(self.entry_name(dir, hash, at)).clone()?,
            };
            len += 1 + name.len();
            // A circle has no path.
            if len >= PATH_MAX {
                return None;
            }
            names.push(name);
            at = dir;
        }
        names.push(Box::default());
        names.reverse();
        let path = names.join(&b'/');
        Some(if path.is_empty() { [b'/'].into() } else { path.into() })
    }

    /// Compares one entry with its inode.
    fn check_entry(&mut self, names: &Names, ino: Ino, link: Link) {
        let is = names.inodes.get(&ino).map(|facts| facts.kind);
        if is == Some(link.kind) {
            return;
        }
        let Link { dir, hash, kind: says } = link;
        let name = self.entry_name(dir, hash, ino).unwrap_or_default();
        self.report.add(match is {
            None => Finding::Dangling { dir, name, ino },
            Some(is) => Finding::EntryKind { dir, name, ino, says, is },
        });
    }

    fn check_links(&mut self, names: &Names, ino: Ino, facts: &InodeFacts) {
        let links = names.links.get(&ino);
        let found = links.map_or(0, |links| links.count);
        let is_orphan = names.orphans.contains(&ino);
        if found == 0 && !is_orphan && ino != Ino::ROOT {
            self.report.add(Finding::Unreachable { ino });
        } else if facts.kind == FileKind::Directory {
            self.check_directory(ino, facts, links, is_orphan);
        } else if facts.nlink != found {
            self.report.add(Finding::Links { ino, recorded: facts.nlink, found });
        }
    }

    fn check_directory(
        &mut self,
        ino: Ino,
        facts: &InodeFacts,
        links: Option<&Links>,
        is_orphan: bool,
    ) {
        // The links from its subdirectories are counted in its parts.
        let (recorded, found) = (facts.nlink, DIRECTORY_LINKS);
        // A removed directory has no links, although it had its name and its `.`.
        if recorded != if is_orphan { 0 } else { found } {
            self.report.add(Finding::DirectoryLinks { ino, recorded, found });
        }
        let names = links.map_or(0, |links| links.count);
        let names_right = u32::from(ino != Ino::ROOT && !is_orphan);
        if names != names_right {
            self.report.add(Finding::DirectoryNames { ino, names });
        }
        let parent = if ino == Ino::ROOT { Some(ino) } else { links.map(|links| links.first.dir) };
        if let Some(found) = parent
            && found != facts.parent
        {
            self.report.add(Finding::Parent { ino, recorded: facts.parent, found });
        }
    }

    fn check_orphan(&mut self, names: &Names, ino: Ino) {
        let why = match names.inodes.get(&ino) {
            None => "it does not exist",
            Some(_) if names.links.contains_key(&ino) => "a name leads to it",
            Some(facts) if facts.entries > 0 => "it is a directory with entries",
            Some(_) => {
                self.report.add(Finding::Orphan { ino });
                return;
            }
        };
        self.report.add(Finding::BadOrphan { ino, why });
    }
}
