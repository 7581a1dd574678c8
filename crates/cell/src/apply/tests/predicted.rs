//! A shard shows the inodes that the rules compute for random changes of names. Changes of one
//! inode come in the order of their times, as a client that predicts them makes them.

use warren_base::Rng;
use warren_proto::{Attr, InodeValue};
use warren_rules::names::predict;

use super::*;

const SEEDS: u64 = 20;
const CHANGES: u64 = 400;

/// A shard, and the inodes that it should show.
struct Scenario {
    seed: u64,
    rng: Rng,
    room: Room,
    now: i64,
    values: BTreeMap<Ino, InodeValue>,
    names: BTreeMap<(Ino, FileName), (Ino, FileKind)>,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let (values, names) = (BTreeMap::new(), BTreeMap::new());
        let mut scenario =
            Self { seed, rng: Rng::new(seed), room: Room::new(Mode::Live), now: 1, values, names };
        scenario.make_inode(FileKind::Directory);
        scenario
    }

    fn pick(&mut self, keep: impl Fn(&InodeValue) -> bool) -> Option<Attr> {
        let found: Vec<Attr> =
            self.values.values().filter(|value| keep(value)).map(|value| value.attr).collect();
        (!found.is_empty()).then(|| *self.rng.pick(&found))
    }

    fn pick_dir(&mut self) -> Attr {
        self.pick(|value| value.attr.kind == FileKind::Directory && value.attr.nlink > 0)
            .expect("the first one stays")
    }

    /// A name that may exist, with the inode and kind to which it leads.
    fn pick_name(&mut self, dir: Ino) -> (FileName, Option<(Ino, FileKind)>) {
        let name = name(&format!("n{}", self.rng.below(8)));
        let found = self.names.get(&(dir, name.clone())).copied();
        (name, found)
    }

    /// The present time, or an earlier one for an inode that is no directory.
    fn time(&mut self, of: Attr) -> Timestamp {
        let is_earlier = of.kind != FileKind::Directory && self.rng.chance(1, 4);
        Timestamp(if is_earlier { self.rng.below(self.now as u64) as i64 } else { self.now })
    }

    /// Makes the change of the shard and of the value, and compares them. `gone`: the kind of the
    /// removed or replaced entry.
    fn make(&mut self, change: Change, gone: Option<FileKind>) {
        let ino = change.home();
        match predict::created(&change) {
            Some(value) => assert!(self.values.insert(ino, value).is_none()),
            None => predict::apply(&change, self.values.get_mut(&ino).expect("it exists"), gone),
        }
        let mut step = Step::Change(change);
        self.room.make(&mut step);
        let shown = self.room.shard.inode_value(ino).expect("it is in memory");
        assert_eq!(shown.as_ref(), self.values.get(&ino), "{step:?}, seed {}", self.seed);
    }

    fn make_inode(&mut self, kind: FileKind) {
        let ino = Ino(self.values.len() as u64 + 1);
        let parent = if ino == Ino(1) { ino } else { self.pick_dir().ino };
        let mut new = NewInode { mode: self.rng.below(1 << 16) as u16, ..new(kind) };
        new.rdev = self.rng.below(3) as u32;
        if kind == FileKind::Symlink {
            new.target = vec![b'a'; 1 + self.rng.below(3000) as usize].into();
        }
        let (uid, gid, now) = (3, 4, Timestamp(self.now));
        let change = match kind == FileKind::Regular && self.rng.chance(1, 3) {
            true => Change::NewOrphan { ino, new, uid, gid, now },
            false => Change::NewInode { ino, new, uid, gid, parent, now },
        };
        self.make(change, None);
    }

    fn change_entry(&mut self) {
        let dir = self.pick_dir().ino;
        let (name, found) = self.pick_name(dir);
        let (gone, now) = (found.map(|(_, kind)| kind), Timestamp(self.now));
        let Attr { ino, kind, .. } = self.pick(|_| true).expect("the first one stays");
        if self.rng.chance(1, 3) {
            self.names.remove(&(dir, name.clone()));
            return self.make(Change::RemoveEntry { dir, name, now }, gone);
        }
        if found.is_none() {
            self.names.insert((dir, name.clone()), (ino, kind));
            return self.make(Change::AddEntry { dir, name, ino, kind, now }, None);
        }
        self.names.insert((dir, name.clone()), (ino, kind));
        self.make(Change::ReplaceEntry { dir, name, ino, kind, now }, gone);
    }

    /// A directory loses its links only if it is empty.
    fn change_links(&mut self) {
        let may_lose = |value: &InodeValue| {
            value.attr.kind != FileKind::Directory
                || value.entries == 0 && value.attr.nlink > 0 && value.attr.ino != Ino(1)
        };
        let is_dir = |value: &InodeValue| value.attr.kind == FileKind::Directory;
        let (lost, gained) = (self.pick(may_lose), self.pick(|value| !is_dir(value)));
        if let Some(lost) = lost.filter(|_| self.rng.chance(1, 2)) {
            let now = self.time(lost);
            self.make(Change::RemoveLink { ino: lost.ino, now }, None);
        } else if let Some(gained) = gained {
            let now = self.time(gained);
            self.make(Change::AddLink { ino: gained.ino, now }, None);
        }
    }

    fn inherit(&mut self) {
        let Attr { ino, kind, .. } = self.pick(|_| true).expect("the first one stays");
        let is_dir = kind == FileKind::Directory;
        let access = self.rng.chance(1, 2).then(list);
        let default = (is_dir && self.rng.chance(1, 2)).then(list);
        let flags = *self.rng.pick(&[InodeFlags::NODUMP, InodeFlags::NOATIME, InodeFlags::APPEND]);
        self.make(Change::Inherit { ino, access, default, flags }, None);
    }

    /// Sets times that differ from those of all changes.
    fn set_times(&mut self) {
        let Attr { ino, mode, uid, gid, flags, .. } =
            self.pick(|_| true).expect("the first one stays");
        let time = Timestamp(self.rng.below(1 << 40) as i64);
        let (atime, mtime, ctime) = (time, time, Timestamp(self.now));
        let attributes = Attributes { mode, uid, gid, atime, mtime, ctime, flags };
        self.room.make(&mut Step::SetAttr { ino, attributes });
        let attr = &mut self.values.get_mut(&ino).expect("it exists").attr;
        (attr.atime, attr.mtime, attr.ctime) = (atime, mtime, ctime);
    }

    fn change(&mut self) {
        self.now += self.rng.below(3) as i64;
        match self.rng.below(16) {
            0 | 1 => {
                let kind = *self.rng.pick(&FileKind::ALL);
                self.make_inode(kind);
            }
            2 => self.inherit(),
            3 => self.set_times(),
            4 => {
                let (ino, parent) = (self.pick_dir().ino, self.pick_dir().ino);
                self.make(Change::SetParent { ino, parent, now: Timestamp(self.now) }, None);
            }
            5 | 6 => {
                let touched = self.pick(|_| true).expect("the first one stays");
                let now = self.time(touched);
                self.make(Change::Touch { ino: touched.ino, now }, None);
            }
            7 | 8 => self.change_links(),
            _ => self.change_entry(),
        }
    }
}

/// A list that gives user 12 the right to read.
fn list() -> Acl {
    let no_id = u32::MAX;
    let entries = [(1, 6, no_id), (2, 4, 12), (4, 4, no_id), (16, 6, no_id), (32, 0, no_id)];
    let entry = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let bytes = [2_u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat();
    Acl::from_xattr(&bytes).expect("a legal list").expect("entries")
}

#[test]
fn a_shard_shows_what_the_rules_compute_for_random_changes() {
    for seed in 0..SEEDS {
        let mut scenario = Scenario::new(seed);
        for _ in 0..CHANGES {
            scenario.change();
        }
        for (ino, value) in &scenario.values {
            let shown = scenario.room.shard.inode_value(*ino).expect("it is in memory");
            assert_eq!(shown.as_ref(), Some(value), "seed {seed}");
        }
    }
}
