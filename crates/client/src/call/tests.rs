//! Calls against a tiny file system of two cells that grants and revokes leases.

use std::collections::BTreeMap;

use warren_base::{ClientId, Rng, ShardId, Timestamp};
use warren_proto::{
    AccessMode, Attr, Capabilities, CapabilityKey, CreateFlags, DirEntry, FileName, Handle, Lease,
    LeaseKey, Neighbour, NewInode, Opened, RenameFlags,
};

use super::*;
use crate::{Path, PathOp};

const KEY: CapabilityKey = CapabilityKey([1, 2]);

/// Shards 0 and 1, with one cell each.
#[derive(Default)]
struct Tree {
    names: BTreeMap<(Ino, FileName), (Ino, FileKind)>,
    attrs: BTreeMap<Ino, Attr>,
    targets: BTreeMap<Ino, Vec<u8>>,
    words: BTreeMap<(CellId, u32), u64>,
    granted: BTreeMap<LeaseKey, (CellId, u32)>,
    stamp: u64,
    messages: u32,
    grants_nothing: bool,
    /// The next answers are this.
    moved: Option<MapVersion>,
}

impl Words for Tree {
    fn load(&self, cell: CellId, word: u32) -> u64 {
        self.words.get(&(cell, word)).copied().unwrap_or(0)
    }
}

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).expect("a legal name")
}

fn ino(shard: u16, n: u64) -> Ino {
    Ino::new(ShardId(shard), n)
}

/// A reference to an inode that the client has reached.
fn at(ino: Ino) -> InodeRef {
    match ino {
        Ino::ROOT => InodeRef::ROOT,
        ino => InodeRef { ino, capability: KEY.capability(ClientId(1), ino) },
    }
}

fn capabilities(request: &Request) -> Capabilities {
    let (inode, other) = request.named();
    let of = |ino: Option<Ino>| ino.map_or(Capability::NONE, |ino| at(ino).capability);
    Capabilities { inode: of(inode), other: of(other) }
}

impl Tree {
    fn new() -> Self {
        let mut tree = Self::default();
        tree.inode(Ino::ROOT, FileKind::Directory);
        tree
    }

    fn inode(&mut self, ino: Ino, kind: FileKind) {
        let zero = Timestamp(0);
        let attr = Attr {
            ino,
            kind,
            mode: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            flags: warren_base::InodeFlags::empty(),
        };
        self.attrs.insert(ino, attr);
    }

    fn add(&mut self, dir: Ino, text: &str, ino: Ino, kind: FileKind) {
        self.inode(ino, kind);
        self.revoke(&LeaseKey::Name(dir, name(text)));
        self.names.insert((dir, name(text)), (ino, kind));
    }

    fn symlink(&mut self, dir: Ino, text: &str, ino: Ino, target: &str) {
        self.add(dir, text, ino, FileKind::Symlink);
        self.targets.insert(ino, target.into());
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Attr)) {
        self.revoke(&LeaseKey::Attr(ino));
        change(self.attrs.get_mut(&ino).expect("an inode"));
    }

    /// A new mode of a directory revokes its names too.
    fn set_mode(&mut self, dir: Ino, mode: u16) {
        self.change(dir, |attr| attr.mode = mode);
        let is_its = |key: &&LeaseKey| matches!(key, LeaseKey::Name(of, _) if *of == dir);
        for key in self.granted.keys().filter(is_its).cloned().collect::<Vec<_>>() {
            self.revoke(&key);
        }
    }

    fn exchange(&mut self, a: &str, b: &str) {
        for text in [a, b] {
            self.revoke(&LeaseKey::Name(Ino::ROOT, name(text)));
        }
        let keys = [a, b].map(|text| (Ino::ROOT, name(text)));
        let [old_a, old_b] = keys.clone().map(|key| self.names[&key]);
        let [a, b] = keys;
        self.names.extend([(a, old_b), (b, old_a)]);
    }

    fn revoke(&mut self, key: &LeaseKey) {
        if let Some(at) = self.granted.remove(key) {
            self.words.insert(at, 0);
        }
    }

    fn revoke_all(&mut self) {
        self.granted.clear();
        self.words.values_mut().for_each(|word| *word = 0);
    }

    fn grant(&mut self, cell: CellId, key: LeaseKey) -> Option<Lease> {
        if self.grants_nothing {
            return None;
        }
        if let Some(&(_, word)) = self.granted.get(&key) {
            return Some(Lease { word, stamp: self.words[&(cell, word)] });
        }
        self.stamp += 1;
        let word = self.stamp as u32;
        self.words.insert((cell, word), self.stamp);
        self.granted.insert(key, (cell, word));
        Some(Lease { word, stamp: self.stamp })
    }

    fn attr(&mut self, cell: CellId, ino: Ino) -> Option<(Attr, Option<Lease>)> {
        let attr = *self.attrs.get(&ino)?;
        Some((attr, self.grant(cell, LeaseKey::Attr(ino))))
    }

    fn lookup(&mut self, cell: CellId, dir: Ino, name: &FileName) -> Answer {
        match self.attrs.get(&dir) {
            None => return Err(Errno::ESTALE),
            Some(attr) if attr.kind != FileKind::Directory => return Err(Errno::ENOTDIR),
            Some(attr) if attr.mode & 1 == 0 => return Err(Errno::EACCES),
            Some(_) => {}
        }
        let lease = self.grant(cell, LeaseKey::Name(dir, name.clone()));
        match self.names.get(&(dir, name.clone())).copied() {
            Some((ino, kind)) => {
                let near = ino.shard() == dir.shard();
                let attr = if near { self.attr(cell, ino) } else { None };
                Ok(Reply::Entry(Entry { ino, kind, lease, attr }))
            }
            None => lease.map(Reply::Absent).ok_or(Errno::ENOENT),
        }
    }

    /// Asserts that the request has the capability of each inode that it names.
    fn answer(&mut self, send: &Send) -> Answered {
        assert_eq!(send.header.capabilities, capabilities(&send.request), "{:?}", send.request);
        let answer = self.execute(send);
        let granted = match &answer {
            Ok(Reply::Entry(entry) | Reply::Created { entry, .. }) => at(entry.ino).capability,
            Ok(Reply::Listing { parent, .. }) => at(*parent).capability,
            _ => Capability::NONE,
        };
        let changed = match send.request {
            Request::Open { ino, access } if access.contains(AccessMode::KEEP) => {
                let lease = self.grant(send.cell, LeaseKey::Attr(ino)).expect("a lease");
                vec![(self.attrs[&ino], lease)]
            }
            _ => Vec::new(),
        };
        Answered { answer, granted, changed, delegated: None }
    }

    fn execute(&mut self, send: &Send) -> Answer {
        self.messages += 1;
        if let Some(version) = self.moved {
            return Ok(Reply::Moved(version));
        }
        let cell = send.cell;
        assert!(send.request.shard().is_none_or(|shard| shard.0 == cell.0));
        match &send.request {
            Request::Lookup { dir, name } => self.lookup(cell, *dir, name),
            Request::Neighbours { dir, name } => self.neighbours(cell, *dir, name),
            Request::GetAttr { ino } => {
                let (attr, lease) = self.attr(cell, *ino).ok_or(Errno::ESTALE)?;
                Ok(Reply::Attr { attr, lease })
            }
            Request::ReadLink { ino } => {
                let target = self.targets.get(ino).ok_or(Errno::EINVAL)?;
                Ok(Reply::Target(target.as_slice().into()))
            }
            Request::Open { ino, .. } => {
                let attr = *self.attrs.get(ino).ok_or(Errno::ESTALE)?;
                let handle = Handle { ino: *ino, open: 1 };
                Ok(Reply::Opened(Opened {
                    handle,
                    attr,
                    keep_pages: false,
                    direct: false,
                    kept: None,
                }))
            }
            Request::Create { dir, name, flags, .. } if flags.contains(CreateFlags::EXISTING) => {
                self.open_name(cell, *dir, name)
            }
            Request::Create { dir, name, flags, .. } => self.create(*dir, name, *flags),
            Request::ReadDir { dir, cookie, .. } => self.list(*dir, *cookie),
            Request::Unlink { dir, name } => {
                self.names.remove(&(*dir, name.clone())).ok_or(Errno::ENOENT)?;
                Ok(Reply::Done)
            }
            _ => Ok(Reply::Done),
        }
    }

    /// All names of the directory.
    fn neighbours(&mut self, cell: CellId, dir: Ino, text: &FileName) -> Answer {
        let Reply::Entry(entry) = self.lookup(cell, dir, text)? else {
            return self.lookup(cell, dir, text);
        };
        let names = self.names.keys().filter(|(of, name)| *of == dir && name != text);
        let names: Vec<_> = names.map(|(_, name)| name.clone()).collect();
        let capability = at(entry.ino).capability;
        let mut found = vec![Neighbour { name: text.clone(), entry, capability }];
        for name in names {
            if let Reply::Entry(entry) = self.lookup(cell, dir, &name)? {
                found.push(Neighbour { name, entry, capability: at(entry.ino).capability });
            }
        }
        Ok(Reply::Neighbours(found))
    }

    fn open_name(&mut self, cell: CellId, dir: Ino, name: &FileName) -> Answer {
        match self.lookup(cell, dir, name)? {
            Reply::Entry(entry @ Entry { kind: FileKind::Regular, attr: Some((attr, _)), .. }) => {
                let handle = Handle { ino: entry.ino, open: 3 };
                let opened = Opened { handle, attr, keep_pages: false, direct: false, kept: None };
                Ok(Reply::Created { entry, opened: Some(Box::new(opened)) })
            }
            other => Ok(other),
        }
    }

    fn create(&mut self, dir: Ino, name: &FileName, flags: CreateFlags) -> Answer {
        let key = (dir, name.clone());
        if flags.contains(CreateFlags::EXCLUSIVE) && self.names.contains_key(&key) {
            return Err(Errno::EEXIST);
        }
        let (ino, kind) = self.names.get(&key).copied().unwrap_or_else(|| {
            self.stamp += 1;
            let ino = ino(dir.shard().0, 1000 + self.stamp);
            self.inode(ino, FileKind::Regular);
            self.names.insert(key, (ino, FileKind::Regular));
            (ino, FileKind::Regular)
        });
        let attr = self.attrs[&ino];
        let entry = Entry { ino, kind, lease: None, attr: None };
        if kind == FileKind::Symlink || ino.shard() != dir.shard() {
            return Ok(Reply::Entry(entry));
        }
        let handle = Handle { ino, open: 2 };
        let opened = Some(Opened { handle, attr, keep_pages: false, direct: false, kept: None });
        Ok(Reply::Created { entry, opened: opened.map(Box::new) })
    }

    /// Returns two entries per page.
    fn list(&self, dir: Ino, cookie: u64) -> Answer {
        let all: Vec<DirEntry> = (self.names.iter().filter(|((d, _), _)| *d == dir))
            .enumerate()
            .map(|(n, ((_, name), (ino, kind)))| DirEntry {
                ino: *ino,
                kind: *kind,
                cookie: n as u64 + 1,
                name: name.clone(),
            })
            .skip(cookie as usize)
            .collect();
        let end = all.len() <= 2;
        let entries = all.into_iter().take(2).collect();
        Ok(Reply::Listing { parent: Ino::ROOT, entries, end, lease: None })
    }
}

struct Client {
    cache: Cache,
    map: ShardMap,
    uid: u32,
}

impl Client {
    fn new() -> Self {
        let map = ShardMap::new(MapVersion(1), vec![CellId(0), CellId(1)]);
        Self { cache: Cache::new(64), map, uid: 0 }
    }

    fn call(&self, op: Op) -> Call {
        let credentials = Credentials { uid: self.uid, gid: self.uid, ..Credentials::default() };
        Call::new(op, Caller { credentials: Arc::new(credentials), near: CellId(0) })
    }

    /// Runs the call to its end. `between` runs at every point where other calls may run.
    fn run(&mut self, tree: &mut Tree, op: Op, mut between: impl FnMut(&mut Tree, u32)) -> Answer {
        let mut call = self.call(op);
        let mut input = None;
        for turn in 0..10_000 {
            match call.step(&mut self.cache, &self.map, tree, input.take()) {
                Step::Send(send) => {
                    self.cache.begin(&send.request);
                    between(tree, turn);
                    let answered = tree.answer(&send);
                    between(tree, turn);
                    self.cache.end(&send.request, &answered);
                    input = Some(answered);
                }
                Step::Yield => between(tree, turn),
                Step::AwaitMap(version) => {
                    self.map = ShardMap::new(version, vec![CellId(0), CellId(1)]);
                    tree.moved = None;
                }
                Step::Done(answered) => return answered.answer,
            }
        }
        panic!("the call never ends");
    }

    fn quiet(&mut self, tree: &mut Tree, op: Op) -> Answer {
        self.run(tree, op, |_, _| {})
    }

    /// The inode that a path leads to.
    fn stat(&mut self, tree: &mut Tree, path: &str) -> Result<Ino, Errno> {
        self.quiet(tree, stat(path)).map(ino_of)
    }
}

fn stat(path: &str) -> Op {
    Op::At(Path::new(path.as_bytes()), PathOp::Stat)
}

fn ino_of(reply: Reply) -> Ino {
    match reply {
        Reply::Attr { attr, .. } => attr.ino,
        other => panic!("no attributes: {other:?}"),
    }
}

/// `/d` (other cell) with the file `f`.
fn two_levels() -> Tree {
    let mut tree = Tree::new();
    tree.add(Ino::ROOT, "d", ino(1, 5), FileKind::Directory);
    tree.add(ino(1, 5), "f", ino(1, 6), FileKind::Regular);
    tree
}

#[test]
fn valid_copies_need_no_message() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    assert_eq!(client.stat(&mut tree, "/d/f"), Ok(ino(1, 6)));
    assert_eq!(client.stat(&mut tree, "/d/none"), Err(Errno::ENOENT));
    let before = tree.messages;
    assert_eq!(client.stat(&mut tree, "/d/f"), Ok(ino(1, 6)));
    assert_eq!(client.stat(&mut tree, "/d/../d/./f"), Ok(ino(1, 6)));
    assert_eq!(client.stat(&mut tree, "/d/none"), Err(Errno::ENOENT));
    assert_eq!(tree.messages, before);
}

/// `/d` with the files `f0` to `f9`.
fn ten_files() -> Tree {
    let mut tree = Tree::new();
    tree.add(Ino::ROOT, "d", ino(1, 5), FileKind::Directory);
    (0..10).for_each(|n| tree.add(ino(1, 5), &format!("f{n}"), ino(1, 10 + n), FileKind::Regular));
    tree
}

#[test]
fn a_client_that_looks_at_many_names_gets_their_neighbours() {
    let (mut tree, mut client) = (ten_files(), Client::new());
    for n in 0..10 {
        assert_eq!(client.stat(&mut tree, &format!("/d/f{n}")), Ok(ino(1, 10 + n)));
    }
    assert_eq!(tree.messages, 1 + 3 + 1, "the directory, three names, one with the others");
    tree.change(ino(1, 17), |attr| attr.size += 1);
    assert_eq!(client.stat(&mut tree, "/d/f7"), Ok(ino(1, 17)));
    assert_eq!(tree.messages, 6, "its attributes");
}

#[test]
fn a_front_gets_no_neighbours() {
    let (mut tree, mut client) = (ten_files(), Client::new());
    for n in 0..10 {
        let path = format!("/d/f{n}");
        let mut call = client.call(stat(&path));
        let kernels = Credentials { checked_by_kernel: true, ..Credentials::default() };
        call.caller.credentials = Arc::new(kernels);
        let mut input = None;
        loop {
            match call.step(&mut client.cache, &client.map, &tree, input.take()) {
                Step::Send(send) => {
                    assert!(!matches!(send.request, Request::Neighbours { .. }));
                    input = Some(tree.answer(&send));
                }
                Step::Done(_) => break,
                _ => {}
            }
        }
    }
}

#[test]
fn neighbours_of_another_name_are_refused() {
    let (mut tree, mut client) = (ten_files(), Client::new());
    for n in 0..3 {
        client.stat(&mut tree, &format!("/d/f{n}")).expect("it is there");
    }
    let mut call = client.call(stat("/d/f5"));
    let mut input = None;
    let answer = loop {
        match call.step(&mut client.cache, &client.map, &tree, input.take()) {
            Step::Send(send) => {
                let mut answered = tree.answer(&send);
                if let Ok(Reply::Neighbours(found)) = &mut answered.answer {
                    found.remove(0);
                }
                input = Some(answered);
            }
            Step::Done(answered) => break answered.answer,
            _ => {}
        }
    };
    assert_eq!(answer, Err(Errno::EPROTO));
}

#[test]
fn every_load_and_every_use_is_a_step() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    client.stat(&mut tree, "/d/f").expect("it is there");
    let mut call = client.call(stat("/d/f"));
    let mut yields = 0;
    while call.step(&mut client.cache, &client.map, &tree, None) == Step::Yield {
        yields += 1;
    }
    // The plan, three first loads, the use, two of three second loads; the call ends with the
    // third.
    assert_eq!(yields, 1 + 3 + 1 + 2);
}

#[test]
fn a_change_between_the_loads_is_seen_at_whatever_step() {
    for at in 0..12 {
        let (mut tree, mut client) = (two_levels(), Client::new());
        client.stat(&mut tree, "/d/f").expect("it is there");
        let mut changed = None;
        let answer = client.run(&mut tree, stat("/d/f"), |tree, turn| {
            if turn == at {
                tree.change(ino(1, 6), |attr| attr.size = 7);
                changed = Some(turn);
            }
        });
        let Ok(Reply::Attr { attr, .. }) = answer else { panic!("{answer:?}") };
        assert!(attr.size == 7 || changed.is_none_or(|turn| turn > 4), "changed at step {at}");
        let Ok(Reply::Attr { attr, .. }) = client.quiet(&mut tree, stat("/d/f")) else {
            panic!("it is there")
        };
        assert_eq!(attr.size, if changed.is_some() { 7 } else { 0 });
    }
}

#[test]
fn a_missing_name_under_a_stale_directory_does_not_count() {
    let (mut tree, mut client) = (Tree::new(), Client::new());
    tree.add(Ino::ROOT, "a", ino(1, 5), FileKind::Directory);
    tree.add(Ino::ROOT, "b", ino(0, 7), FileKind::Directory);
    assert_eq!(client.stat(&mut tree, "/a"), Ok(ino(1, 5)));
    tree.add(ino(0, 7), "x", ino(0, 8), FileKind::Regular);
    tree.exchange("a", "b");
    assert_eq!(client.stat(&mut tree, "/a/x"), Ok(ino(0, 8)));
    assert_eq!(client.stat(&mut tree, "/b/x"), Err(Errno::ENOENT));
}

/// Directories swap places all the time, and each of them always has `x`.
#[test]
fn a_name_that_always_exists_is_always_found() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut tree, mut client) = (Tree::new(), Client::new());
        for (text, dir) in [("a", ino(1, 5)), ("b", ino(0, 7))] {
            tree.add(Ino::ROOT, text, dir, FileKind::Directory);
            tree.add(dir, "x", ino(dir.shard().0, 20), FileKind::Regular);
        }
        client.uid = rng.below(2) as u32;
        tree.grants_nothing = rng.chance(1, 8);
        let rate = 1 + rng.below(10);
        for _ in 0..10 {
            let answer = client.run(&mut tree, stat("/a/x"), |tree, _| {
                if rng.chance(1, rate) {
                    tree.exchange("a", "b");
                }
                if rng.chance(1, 3 * rate) {
                    tree.change(Ino::ROOT, |attr| attr.size += 1);
                }
            });
            assert!(answer.is_ok(), "seed {seed}: {answer:?}");
        }
    }
}

#[test]
fn copies_that_never_hold_are_given_up() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    let answer = client.run(&mut tree, stat("/d/f"), |tree, _| tree.revoke_all());
    assert_eq!(answer.map(ino_of), Ok(ino(1, 6)));
}

#[test]
fn links_are_followed_forty_times() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    tree.symlink(ino(1, 5), "up", ino(1, 8), "../d/f");
    tree.symlink(Ino::ROOT, "abs", ino(0, 9), "/d/");
    tree.symlink(Ino::ROOT, "loop", ino(0, 10), "loop");
    assert_eq!(client.stat(&mut tree, "/abs/up"), Ok(ino(1, 6)));
    assert_eq!(client.stat(&mut tree, "/abs/up/"), Err(Errno::ENOTDIR));
    assert_eq!(client.stat(&mut tree, "/loop"), Err(Errno::ELOOP));
    let link = Op::At(Path::no_follow(b"abs"), PathOp::Stat);
    assert_eq!(client.quiet(&mut tree, link).map(ino_of), Ok(ino(0, 9)));
    let slash = Op::At(Path::no_follow(b"abs/"), PathOp::Stat);
    assert_eq!(client.quiet(&mut tree, slash).map(ino_of), Ok(ino(1, 5)));
    let open = Op::At(Path::no_follow(b"abs"), PathOp::Open(AccessMode::READ));
    assert_eq!(client.quiet(&mut tree, open), Err(Errno::ELOOP));
}

#[test]
fn a_create_goes_where_the_link_leads() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    tree.symlink(Ino::ROOT, "link", ino(0, 9), "d/new");
    let create = |flags| {
        let (new, access) = (NewInode::regular(0o644), AccessMode::WRITE);
        Op::At(Path::new(b"link"), PathOp::Create { new, flags, access })
    };
    assert!(client.quiet(&mut tree, create(CreateFlags::OPEN)).is_ok());
    assert!(tree.names.contains_key(&(ino(1, 5), name("new"))));
    let exclusive = client.quiet(&mut tree, create(CreateFlags::OPEN | CreateFlags::EXCLUSIVE));
    assert_eq!(exclusive, Err(Errno::EEXIST));
}

#[test]
fn a_create_that_finds_a_file_of_another_cell_opens_it_there() {
    let (mut tree, mut client) = (Tree::new(), Client::new());
    tree.add(Ino::ROOT, "far", ino(1, 6), FileKind::Regular);
    let (flags, access) = (CreateFlags::OPEN, AccessMode::READ);
    let op = PathOp::Create { new: NewInode::regular(0o644), flags, access };
    let answer = client.quiet(&mut tree, Op::At(Path::new(b"far"), op));
    let Ok(Reply::Created { entry, opened: Some(opened) }) = answer else { panic!("{answer:?}") };
    assert_eq!((entry.ino, opened.handle.ino), (ino(1, 6), ino(1, 6)));
}

#[test]
fn a_file_is_opened_by_its_name_in_one_message() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    tree.add(ino(1, 5), "g", ino(1, 7), FileKind::Regular);
    tree.add(Ino::ROOT, "far", ino(1, 9), FileKind::Regular);
    tree.symlink(Ino::ROOT, "link", ino(0, 11), "d/f");
    let open = |path: &str| Op::At(Path::new(path.as_bytes()), PathOp::OpenFile(AccessMode::READ));
    assert_eq!(client.stat(&mut tree, "/d"), Ok(ino(1, 5)));
    for (path, expected, messages) in [
        ("/d/f", Ok(ino(1, 6)), 1),
        // The name is known now.
        ("/d/f", Ok(ino(1, 6)), 1),
        ("/d/g", Ok(ino(1, 7)), 1),
        ("/far", Ok(ino(1, 9)), 2),
        ("/link", Ok(ino(1, 6)), 3),
        ("/d/none", Err(Errno::ENOENT), 1),
        ("/d/none", Err(Errno::ENOENT), 0),
        ("/d/f/", Err(Errno::ENOTDIR), 0),
    ] {
        tree.messages = 0;
        let answer = client.quiet(&mut tree, open(path));
        let opened = answer.map(|reply| reply.opened().expect("opened").handle.ino);
        assert_eq!((opened, tree.messages), (expected, messages), "{path}");
    }
    assert_eq!(client.stat(&mut tree, "/d/g"), Ok(ino(1, 7)));
    assert_eq!(tree.messages, 0, "its attributes have come with it");
}

#[test]
fn an_open_of_what_is_no_file_is_a_look_at_it() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    tree.symlink(Ino::ROOT, "link", ino(0, 11), "d/f");
    let open = |path| Op::At(path, PathOp::OpenFile(AccessMode::READ));
    for (path, expected) in [(Path::new(b"/d"), ino(1, 5)), (Path::no_follow(b"/link"), ino(0, 11))]
    {
        assert_eq!(client.quiet(&mut tree, open(path)).map(ino_of), Ok(expected));
    }
}

#[test]
fn paths_without_a_last_name_are_refused_as_linux_does() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    let at = |path: &str, op| Op::At(Path::new(path.as_bytes()), op);
    let mkdir = |path| {
        let (flags, access) = (CreateFlags::empty(), AccessMode::empty());
        at(path, PathOp::Create { new: NewInode::directory(0o755), flags, access })
    };
    for (op, errno) in [
        (mkdir("/"), Errno::EEXIST),
        (mkdir("d/."), Errno::EEXIST),
        (at("d/.", PathOp::Rmdir), Errno::EINVAL),
        (at("d/..", PathOp::Rmdir), Errno::ENOTEMPTY),
        (at("/", PathOp::Rmdir), Errno::EBUSY),
        (at("d/", PathOp::Unlink), Errno::EISDIR),
        (at("d/f/", PathOp::Unlink), Errno::ENOTDIR),
        (at("", PathOp::Stat), Errno::ENOENT),
    ] {
        assert_eq!(client.quiet(&mut tree, op.clone()), Err(errno), "{op:?}");
    }
    assert!(client.quiet(&mut tree, mkdir("d/sub/")).is_ok());
    let (from, to) = (Path::new(b"d/f/"), Path::new(b"g"));
    let rename = Op::Rename { from, to, flags: RenameFlags::empty() };
    assert_eq!(client.quiet(&mut tree, rename), Err(Errno::ENOTDIR));
}

#[test]
fn losing_the_right_to_search_stops_walks_over_copies() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    client.uid = 7;
    assert_eq!(client.stat(&mut tree, "/d/f"), Ok(ino(1, 6)));
    tree.set_mode(ino(1, 5), 0o700);
    assert_eq!(client.stat(&mut tree, "/d/f"), Err(Errno::EACCES));
}

#[test]
fn a_walk_over_copies_needs_no_attributes_of_directories() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    client.uid = 7;
    assert_eq!(client.stat(&mut tree, "/d/f"), Ok(ino(1, 6)));
    for dir in [Ino::ROOT, ino(1, 5)] {
        tree.change(dir, |attr| attr.size += 1);
    }
    let before = tree.messages;
    assert_eq!(client.stat(&mut tree, "/d/f"), Ok(ino(1, 6)));
    assert_eq!(tree.messages, before);
}

#[test]
fn a_request_follows_its_shard() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    tree.moved = Some(MapVersion(4));
    assert_eq!(client.stat(&mut tree, "/d/f"), Ok(ino(1, 6)));
    assert_eq!(client.map.version(), MapVersion(4));
    tree.moved = Some(MapVersion(4));
    let sync = client.quiet(&mut tree, Op::Ino(Request::Sync, Capabilities::default()));
    assert_eq!(sync, Err(Errno::EIO), "requests to a cell that always replies Moved end");
}

#[test]
fn a_listing_is_all_pages() {
    let (mut tree, mut client) = (Tree::new(), Client::new());
    for n in 0..7 {
        tree.add(Ino::ROOT, &format!("n{n}"), ino(0, 10 + n), FileKind::Regular);
    }
    let answer = client.quiet(&mut tree, Op::List(at(Ino::ROOT)));
    let Ok(Reply::Listing { entries, end, .. }) = answer else { panic!("{answer:?}") };
    assert!(end && entries.len() == 7);
}

#[test]
fn attributes_that_come_with_a_reply_are_copies() {
    let mut tree = two_levels();
    let mut client = Client::new();
    let file = ino(1, 6);
    let look = || Op::Ino(Request::GetAttr { ino: file }, Capabilities::of(at(file).capability));
    for (access, asked) in [(AccessMode::KEEP, 1), (AccessMode::empty(), 2)] {
        (client.cache, tree.messages) = (Cache::new(64), 0);
        let request = Request::Open { ino: file, access: AccessMode::READ | access };
        let open = Op::Ino(request.clone(), capabilities(&request));
        client.quiet(&mut tree, open).expect("it is opened");
        assert_eq!(client.quiet(&mut tree, look()).map(ino_of), Ok(file));
        assert_eq!(tree.messages, asked, "{access:?}");
    }
    tree.change(file, |attr| attr.size = 7);
    let Ok(Reply::Attr { attr, .. }) = client.quiet(&mut tree, look()) else { panic!("no reply") };
    assert_eq!(attr.size, 7, "a copy that was void is not used");
}

#[test]
fn a_parent_above_the_start_is_requested() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    let path = Path { start: at(ino(1, 5)), ..Path::new(b"../d/f") };
    let answer = client.quiet(&mut tree, Op::At(path, PathOp::Stat));
    assert_eq!(answer.map(ino_of), Ok(ino(1, 6)));
}

#[test]
fn a_confined_walk_does_not_leave_its_mount() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    tree.symlink(ino(1, 5), "up", ino(1, 8), "../d/f");
    tree.symlink(ino(1, 5), "above", ino(1, 9), "../..");
    tree.symlink(Ino::ROOT, "abs", ino(0, 9), "/d/");
    let confined = |bytes: &[u8]| Path { confined: true, ..Path::new(bytes) };
    let below = |bytes| Path { start: at(ino(1, 5)), ..confined(bytes) };
    for (path, expected) in [
        (confined(b"d/up"), Ok(ino(1, 6))),
        (confined(b"d/.."), Ok(Ino::ROOT)),
        (confined(b"d/../.."), Err(Errno::EXDEV)),
        (confined(b"d/above/x"), Err(Errno::EXDEV)),
        (confined(b"abs/f"), Err(Errno::EXDEV)),
        (Path { follow_last: false, ..confined(b"abs") }, Ok(ino(0, 9))),
        (below(b"../d/f"), Ok(ino(1, 6))),
        (below(b"../../d"), Err(Errno::EXDEV)),
        // A part of the volume is mounted, and the start has been moved out of it.
        (Path { root: at(ino(0, 50)), ..below(b"..") }, Err(Errno::EXDEV)),
        (Path { root: at(ino(0, 50)), ..below(b"f") }, Ok(ino(1, 6))),
        (Path { root: at(ino(1, 5)), ..confined(b"/") }, Ok(ino(1, 5))),
    ] {
        let call = || Op::At(path.clone(), PathOp::Stat);
        assert_eq!(client.quiet(&mut tree, call()).map(ino_of), expected, "{path:?}");
        assert_eq!(client.quiet(&mut tree, call()).map(ino_of), expected, "{path:?} again");
    }
}

#[test]
fn a_link_that_the_kernel_may_refuse_to_follow_is_left_to_it() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    tree.symlink(Ino::ROOT, "link", ino(0, 9), "d");
    // The caller, the link's owner, the directory's owner, its mode.
    for (caller, link, dir, mode, refused) in [
        (0, 1, 0, 0o1777, true),
        (1, 1, 0, 0o1777, false),
        (0, 1, 1, 0o1777, false),
        (0, 1, 0, 0o777, false),
        (0, 1, 0, 0o1775, false),
    ] {
        client.uid = caller;
        tree.change(ino(0, 9), |attr| attr.uid = link);
        tree.change(Ino::ROOT, |attr| (attr.uid, attr.mode) = (dir, mode));
        let path = Path { confined: true, ..Path::new(b"link/f") };
        let answer = client.quiet(&mut tree, Op::At(path, PathOp::Stat)).map(ino_of);
        let expected = if refused { Err(Errno::EXDEV) } else { Ok(ino(1, 6)) };
        assert_eq!(answer, expected, "{caller} {link} {dir} {mode:o}");
    }
}

#[test]
fn an_inode_that_vanishes_before_it_is_opened_is_looked_for_again() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    client.stat(&mut tree, "/d/f").expect("it is there");
    let open = Op::At(Path::new(b"/d/f"), PathOp::Open(AccessMode::READ));
    let mut call = client.call(open);
    let mut input = None;
    let mut replaced = false;
    let answer = loop {
        match call.step(&mut client.cache, &client.map, &tree, input.take()) {
            Step::Send(send) => {
                if !replaced && matches!(send.request, Request::Open { .. }) {
                    tree.attrs.remove(&ino(1, 6));
                    tree.add(ino(1, 5), "f", ino(1, 60), FileKind::Regular);
                    replaced = true;
                }
                input = Some(tree.answer(&send));
            }
            Step::Yield => {}
            Step::AwaitMap(_) => unreachable!("nothing moves"),
            Step::Done(answered) => break answered.answer,
        }
    };
    let Ok(Reply::Opened(opened)) = answer else { panic!("{answer:?}") };
    assert_eq!(opened.handle.ino, ino(1, 60));
}

#[test]
fn a_request_on_two_inodes_presents_what_it_takes_for_both() {
    let (mut tree, mut client) = (two_levels(), Client::new());
    tree.add(Ino::ROOT, "e", ino(0, 7), FileKind::Directory);
    let [from, to] = ["/d/f", "/e/g"].map(|path| Path::new(path.as_bytes()));
    let link = Op::Link { from: from.clone(), to: to.clone() };
    assert_eq!(client.quiet(&mut tree, link), Ok(Reply::Done));
    let rename = Op::Rename { from, to, flags: RenameFlags::empty() };
    assert_eq!(client.quiet(&mut tree, rename), Ok(Reply::Done));
}
