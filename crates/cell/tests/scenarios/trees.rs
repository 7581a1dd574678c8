//! **Trees.** A client that alone changes names of a directory gets a delegation of it, with
//! numbers for new inodes. It predicts the outcome of each change by the rules of the cell, and
//! posts it. Here the library of a client makes random changes in a tree, some posted and some in
//! slots, while another client looks: what the other sees is what the first has predicted, and no
//! record fails.
//!
//! The code: `delegate/trees.rs`, `session/numbers.rs`, `op/execute.rs`; `trees.rs` of the crate
//! `client`; `names` of the crate `rules`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use warren_base::{CellId, ClientId, Errno, Ino, MapVersion, Rng, ShardId, Timestamp};
use warren_cell::Planted;
use warren_client::{
    Cache, Call, Caller, Missing, NamePost, Op, Path, PathOp, Send, ShardMap, Step, Words,
};
use warren_proto::{
    AccessMode, Answer, Answered, Attr, Capabilities, CreateFlags, Credentials, FileKind, Handle,
    InodeRef, NewInode, Position, RenameFlags, Reply, Request, SetAttr,
};

use crate::client::write;
use crate::image::name;
use crate::pair::*;
use crate::posts::{Posted, SOLE};

const SEEDS: u64 = 60;
const CHANGES: u64 = 150;
const SECOND: Duration = Duration::from_secs(1);

/// The lease words of a client.
struct OfClient<'a>(&'a Pair, ClientId);

impl Words for OfClient<'_> {
    fn load(&self, cell: CellId, word: u32) -> u64 {
        self.0.word(cell, self.1, word)
    }
}

/// A client that posts what it can, and the names as they have to be.
struct Scenario {
    pair: Pair,
    rng: Rng,
    client: ClientId,
    other: ClientId,
    cache: Cache,
    caller: Caller,
    map: ShardMap,
    names: BTreeMap<(Ino, String), (Ino, FileKind)>,
    dirs: Vec<Ino>,
    opened: Vec<Handle>,
    posted: u64,
    requested: u64,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        Self::with(Pair::alone(), seed)
    }

    fn with(mut pair: Pair, seed: u64) -> Self {
        // Every second client is that of a user without privileges.
        let uid = if seed % 2 == 1 { 1000 } else { 0 };
        let (client, other) = (pair.client_of(uid), pair.client());
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        assert!(pair.call(other, Request::SetAttr { ino: IN_A, handle: None, set }).is_ok());
        let credentials = Arc::new(Credentials { uid, ..Credentials::default() });
        let caller = Caller { credentials, near: A };
        let owners = [0, 1, 2].map(|n| pair.home(Ino::new(ShardId(n), 1)));
        let map = ShardMap::new(MapVersion(1), owners.to_vec());
        let (rng, cache) = (Rng::new(seed), Cache::new(100));
        let (names, opened) = (BTreeMap::new(), Vec::new());
        let (posted, requested) = (0, 0);
        let mut it = Self {
            pair,
            rng,
            client,
            other,
            cache,
            caller,
            map,
            names,
            dirs: Vec::new(),
            opened,
            posted,
            requested,
        };
        it.mkdir(IN_A, "top");
        it
    }

    fn now(&self) -> Timestamp {
        self.pair.clock().wall
    }

    /// Makes a request as the library does: posts it if that is possible.
    fn ask(&mut self, request: Request) -> Answer {
        let capabilities = KEY.all_for(self.client, &request);
        self.perform(Op::Ino(request, capabilities))
    }

    fn perform(&mut self, op: Op) -> Answer {
        let mut call = Call::new(op, self.caller.clone());
        let mut input = None;
        loop {
            let words = OfClient(&self.pair, self.client);
            match call.step(&mut self.cache, &self.map, &words, input.take()) {
                Step::Send(Send { request, .. }) => input = Some(self.send(&request)),
                Step::Yield => {}
                Step::AwaitMap(_) => panic!("the map does not change"),
                Step::Done(answered) => return answered.answer,
            }
        }
    }

    fn send(&mut self, request: &Request) -> Answered {
        if let Some(answered) = self.post_names(request).or_else(|| self.post_file(request, b"")) {
            self.posted += 1;
            return answered;
        }
        self.requested += 1;
        self.cache.begin(request);
        let call = self.pair.send(self.client, request.clone());
        let answer = self.pair.answer(call).unwrap_or_else(|| panic!("{request:?}"));
        let delegated = self.pair.delegated(call).map(Box::new);
        let granted = self.pair.granted(call);
        let answered = Answered { answer, granted, changed: Vec::new(), delegated };
        self.cache.end(request, &answered);
        answered
    }

    fn post_names(&mut self, request: &Request) -> Option<Answered> {
        if !request.changes_names() {
            return None;
        }
        let post = match self.plan_names(request) {
            Some(post) => post,
            None if self.learn(request) => self.plan_names(request)?,
            None => return None,
        };
        if post.answer.is_ok() {
            self.publish(request, post.time, post.new, b"");
            self.cache.note_names(&post);
        }
        assert!(post.guard.holds(&OfClient(&self.pair, self.client)), "nothing else happens");
        Some(post.answered())
    }

    fn plan_names(&mut self, request: &Request) -> Option<NamePost> {
        let words = OfClient(&self.pair, self.client);
        let who = (&*self.caller.credentials, self.now());
        self.cache.plan_names(request, who, &words)
    }

    /// Asks for what the plan of the change needs.
    fn learn(&mut self, request: &Request) -> bool {
        for _ in 0..2 {
            match self.cache.missing(request) {
                None => return true,
                Some(Missing::Names(dir)) => self.list(dir),
                Some(Missing::Name(dir, name)) => {
                    let _ = self.ask(Request::Neighbours { dir, name });
                }
            }
        }
        self.cache.missing(request).is_none()
    }

    /// Posts a change of a file, if that is possible.
    fn post_file(&mut self, request: &Request, bytes: &[u8]) -> Option<Answered> {
        let words = OfClient(&self.pair, self.client);
        let who = (&*self.caller.credentials, self.now());
        let post = self.cache.plan_post(request, bytes.len(), SOLE, who, &words)?;
        self.publish(request, post.time, None, bytes);
        self.cache.note_published(&post);
        Some(Answered::from(Ok(post.reply)))
    }

    fn publish(&mut self, request: &Request, time: Timestamp, new: Option<Ino>, bytes: &[u8]) {
        let record = self.pair.record(self.client, request.clone(), bytes);
        self.pair.stream(self.client).publish(Posted { time, new, ..record });
    }

    /// Lists the directory, if it is delegated and not all of its names are known.
    fn list(&mut self, dir: Ino) {
        while let Some(cookie) = self.cache.next_page(dir) {
            let page = Request::ReadDir { dir, cookie, bytes_max: 4096, leased: false };
            assert!(self.ask(page).is_ok());
        }
    }

    fn mkdir(&mut self, dir: Ino, text: &str) {
        let flags = CreateFlags::empty();
        self.make(dir, text, NewInode::directory(0o755), flags);
    }

    fn make(&mut self, dir: Ino, text: &str, new: NewInode, flags: CreateFlags) {
        let kind = new.kind;
        let key = (dir, text.to_string());
        let create = Request::Create { dir, name: name(text), new, flags, access: SOLE };
        let answer = self.ask(create);
        if self.names.contains_key(&key) && flags.contains(CreateFlags::EXCLUSIVE) {
            assert_eq!(answer, Err(Errno::EEXIST));
        }
        let Ok(Reply::Created { entry, opened }) = answer else {
            assert!(self.names.contains_key(&key), "{text}: {answer:?}");
            return;
        };
        self.opened.extend(opened.map(|opened| opened.handle));
        let before = self.names.insert(key, (entry.ino, kind));
        assert!(before.is_none_or(|before| before.0 == entry.ino), "{text} is new");
        if kind == FileKind::Directory {
            self.dirs.push(entry.ino);
        }
    }

    /// The other client makes a file.
    fn make_by_other(&mut self, dir: Ino, text: &str) {
        // The directory may be made by a record.
        self.pair.look_at(self.client);
        let handle = self.pair.create(self.other, dir, text);
        self.names.insert((dir, text.to_string()), (handle.ino, FileKind::Regular));
        let set = SetAttr { uid: Some(self.caller.credentials.uid), ..SetAttr::default() };
        let give = Request::SetAttr { ino: handle.ino, handle: None, set };
        assert!(self.pair.call(self.other, give).is_ok());
        assert!(self.pair.call(self.other, Request::Close { handle }).is_ok());
    }

    fn remove(&mut self, dir: Ino, text: &str) {
        let key = (dir, text.to_string());
        let found = self.names.get(&key).copied();
        let (dir, name) = (dir, name(text));
        let is_directory = matches!(found, Some((_, FileKind::Directory)));
        let request = match is_directory {
            true => Request::Rmdir { dir, name },
            false => Request::Unlink { dir, name },
        };
        let expected = match found {
            None => Err(Errno::ENOENT),
            Some((ino, _)) if self.names.keys().any(|(of, _)| *of == ino) => Err(Errno::ENOTEMPTY),
            Some(_) => Ok(Reply::Done),
        };
        assert_eq!(self.ask(request), expected, "{text}");
        if let (Ok(_), Some((ino, _))) = (expected, found) {
            self.names.remove(&key);
            self.dirs.retain(|dir| *dir != ino);
        }
    }

    fn rename(&mut self, from: (Ino, &str), to: (Ino, &str)) {
        let [source, target] = [from, to].map(|(dir, text)| (dir, text.to_string()));
        let (from_name, flags) = (name(from.1), RenameFlags::empty());
        let request =
            Request::Rename { from: from.0, from_name, dir: to.0, name: name(to.1), flags };
        let answer = self.ask(request);
        match answer {
            Ok(Reply::Done) => {
                let moved = self.names.remove(&source).expect("it was there");
                let replaced = self.names.insert(target, moved);
                self.dirs.retain(|dir| replaced.is_none_or(|(ino, _)| ino != *dir));
            }
            Ok(other) => assert_eq!(other, Reply::Unchanged),
            Err(_) => {}
        }
    }

    /// Gives the inode of the name another one.
    fn link(&mut self, of: (Ino, String), to: (Ino, &str)) {
        let target = (to.0, to.1.to_string());
        let Some(&(ino, kind)) = self.names.get(&of) else { return };
        let answer = self.ask(Request::Link { ino, dir: to.0, name: name(to.1) });
        match answer {
            Ok(Reply::Entry(entry)) => {
                assert_eq!(entry.ino, ino);
                assert!(
                    self.names.insert(target, (ino, kind)).is_none() && kind != FileKind::Directory
                );
            }
            Err(Errno::EEXIST) => assert!(self.names.contains_key(&target)),
            Err(errno) => assert!(errno == Errno::EPERM, "{errno:?}"),
            other => panic!("{other:?}"),
        }
    }

    /// A change that the generator draws.
    fn change(&mut self) {
        let dir = *self.rng.pick(&self.dirs);
        let is_outside = self.rng.chance(1, 20);
        let other_dir = if is_outside { IN_A } else { *self.rng.pick(&self.dirs) };
        let [text, new_text] = [0; 2].map(|_| format!("n{}", self.rng.below(12)));
        let open = CreateFlags::OPEN;
        match self.rng.below(13) {
            0..=2 => self.make(dir, &text, NewInode::regular(0o644), open | CreateFlags::EXCLUSIVE),
            3 => self.make(dir, &text, NewInode::regular(0o600), open),
            4 if self.dirs.len() < 6 => self.mkdir(dir, &text),
            5 => self.make(dir, &text, NewInode::symlink(b"to"), CreateFlags::empty()),
            6 | 7 if dir != IN_A => self.remove(dir, &text),
            8 => self.rename((dir, &text), (other_dir, &new_text)),
            9 => self.change_file(),
            10 => self.change_mode((dir, text)),
            11 => self.link((dir, text), (other_dir, &new_text)),
            _ => self.close(),
        }
    }

    fn change_file(&mut self) {
        if self.opened.is_empty() {
            return;
        }
        let handle = *self.rng.pick(&self.opened);
        let bytes = vec![b'x'; self.rng.below(5000) as usize + 1];
        let request = write(handle, Position::End);
        match self.post_file(&request, &bytes) {
            Some(_) => self.posted += 1,
            None => {
                self.requested += 1;
                self.cache.begin(&request);
                let call = self.pair.submit(self.client, request.clone(), &bytes);
                self.pair.drive();
                let answer = self.pair.answer(call);
                // A file without a name that is open twice cannot be written so.
                let is_busy = answer == Some(Err(Errno::EBUSY));
                let is_written = matches!(answer, Some(Ok(Reply::Written { .. })));
                assert!(is_written || is_busy, "{answer:?}");
            }
        }
    }

    fn change_mode(&mut self, key: (Ino, String)) {
        let Some(&(ino, kind)) = self.names.get(&key) else { return };
        let mode = Some(0o600 + self.rng.below(8) as u16 * 8);
        if kind == FileKind::Regular {
            let set = SetAttr { mode, ..SetAttr::default() };
            assert!(self.ask(Request::SetAttr { ino, handle: None, set }).is_ok());
        }
    }

    fn close(&mut self) {
        if !self.opened.is_empty() {
            let at = self.rng.below(self.opened.len() as u64) as usize;
            let handle = self.opened.swap_remove(at);
            assert_eq!(self.ask(Request::Close { handle }), Ok(Reply::Done));
        }
    }

    /// The client looks a name up by its path, as each call by path does.
    fn stat(&mut self) {
        let dir = *self.rng.pick(&self.dirs);
        let text = format!("n{}", self.rng.below(12));
        let capability = KEY.capability(self.client, dir);
        let start = InodeRef { ino: dir, capability };
        let path = Path { start, ..Path::no_follow(text.as_bytes()) };
        let answer = self.perform(Op::At(path, PathOp::Stat));
        let found = answer.map(|reply| match reply {
            Reply::Attr { attr, .. } => attr.ino,
            other => panic!("{other:?}"),
        });
        let expected = self.names.get(&(dir, text.clone())).map(|(ino, _)| *ino);
        assert_eq!(found, expected.ok_or(Errno::ENOENT), "{text} in {dir:?}");
    }

    /// Another client looks at everything. It sees what the first one has predicted.
    fn look(&mut self) {
        let mut attrs: Vec<(Ino, Attr)> = Vec::new();
        for ino in self.names.values().map(|(ino, _)| *ino) {
            let get = Op::Ino(Request::GetAttr { ino }, Capabilities::default());
            let mut call = Call::new(get, self.caller.clone());
            let words = OfClient(&self.pair, self.client);
            loop {
                match call.step(&mut self.cache, &self.map, &words, None) {
                    Step::Done(Answered { answer: Ok(Reply::Attr { attr, .. }), .. }) => {
                        attrs.push((ino, attr));
                        break;
                    }
                    Step::Yield => {}
                    _ => break,
                }
            }
        }
        for dir in self.dirs.clone() {
            let mut found = self.pair.list(self.other, dir);
            found.sort();
            let names = self.names.keys().filter(|(of, _)| *of == dir);
            let names: Vec<String> = names.map(|(_, text)| text.clone()).collect();
            assert_eq!(found, names, "{dir:?}");
        }
        for (ino, attr) in attrs {
            assert_eq!(self.pair.attr(self.other, ino), attr);
        }
        assert_eq!(self.pair.outcome(self.client).errno, None, "no record fails");
    }
}

#[test]
fn random_changes_have_the_predicted_outcomes() {
    let (mut posted, mut requested) = (0, 0);
    for seed in 0..SEEDS {
        let mut it = Scenario::new(seed);
        for _ in 0..CHANGES {
            it.change();
            it.stat();
            match it.rng.below(200) {
                0..=4 => it.look(),
                5 => it.pair.wait(2 * SECOND),
                6..=10 => it.pair.look_at(it.client),
                11..=20 => {
                    let (dir, text) = (*it.rng.pick(&it.dirs), format!("n{}", it.rng.below(12)));
                    if !it.names.contains_key(&(dir, text.clone())) {
                        it.make_by_other(dir, &text);
                    }
                }
                _ => {}
            }
        }
        it.look();
        (posted, requested) = (posted + it.posted, requested + it.requested);
    }
    assert!(posted > 1000, "{posted} posted, {requested} requested");
}

/// A program is killed, or its cell, at any moment: everything that has returned is there.
#[test]
fn what_is_posted_survives_the_client_and_the_cell() {
    for seed in 0..SEEDS {
        let mut it = Scenario::new(seed);
        for _ in 0..it.rng.below(CHANGES / 2) + 1 {
            it.change();
        }
        let (dies, is_cell) = (it.rng.chance(1, 2), it.rng.chance(1, 2));
        if is_cell {
            it.pair.lose(A);
            it.pair.start_successor(A);
        }
        if dies {
            it.pair.disconnect(it.client);
        }
        let names = it.names.clone();
        for dir in it.dirs.clone() {
            let mut found = it.pair.list(it.other, dir);
            found.sort();
            let expected = names.keys().filter(|(of, _)| *of == dir);
            let expected: Vec<String> = expected.map(|(_, text)| text.clone()).collect();
            assert_eq!(found, expected, "{dir:?} of seed {seed}");
        }
        if !dies {
            assert_eq!(it.pair.outcome(it.client).errno, None, "no record fails");
            (0..20).for_each(|_| it.change());
            it.look();
        }
    }
}

/// The client has forgotten a name that it has moved out of the tree, also if the directory where
/// the inode is now is not delegated.
#[test]
fn a_tree_that_something_was_moved_out_of_ends() {
    let mut it = Scenario::new(0);
    let top = it.dirs[0];
    let (file, flags) = (NewInode::regular(0o644), CreateFlags::EXCLUSIVE);
    it.make(top, "moved", file.clone(), flags);
    it.rename((top, "moved"), (IN_A, "here"));
    it.make(top, "new", file, flags);
    it.remove(top, "moved");
    it.look();
}

#[test]
fn the_mode_of_a_delegated_directory_is_changed_by_a_record() {
    let mut it = Scenario::new(0);
    let (ino, before) = (it.dirs[0], it.posted);
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    assert!(it.ask(Request::SetAttr { ino, handle: None, set }).is_ok());
    assert_eq!(it.posted, before + 1);
    it.look();
    assert_eq!(it.pair.attr(it.other, ino).mode, 0o700);
}

/// The times of a directory do not go back. A client whose clock was set back uses the directory's
/// time, which is further ahead than a record's time may be.
#[test]
fn names_change_after_the_clock_was_set_back() {
    let mut it = Scenario::new(0);
    let top = it.dirs[0];
    let (file, flags) = (NewInode::regular(0o644), CreateFlags::EXCLUSIVE);
    it.pair.wait(SECOND);
    it.make(top, "before", file.clone(), flags);
    it.look();
    it.pair.set_back = 60 * SECOND;
    it.pair.replace(A);
    let before = it.posted;
    for n in 0..4 {
        it.make(top, &format!("after{n}"), file.clone(), flags);
        it.list(top);
    }
    assert!(it.posted > before);
    it.look();
}

/// A program passes a descriptor on to another, which uses the kernel, before the file's record is
/// executed.
#[test]
fn a_front_claims_a_file_that_was_made_by_a_record() {
    let mut it = Scenario::new(0);
    let top = it.dirs[0];
    let flags = CreateFlags::EXCLUSIVE | CreateFlags::OPEN;
    let before = it.posted;
    it.make(top, "passed", NewInode::regular(0o644), flags);
    assert_eq!(it.posted, before + 1);
    let (ino, client) = (it.opened[0].ino, it.client);
    let capability = KEY.capability(client, ino);
    let front = it.pair.front();
    let claimed = it.pair.call(front, Request::Claim { client, ino, capability });
    assert!(matches!(claimed, Ok(Reply::Attr { .. })), "{claimed:?}");
}

/// A transaction that locks a name which a record changes gives up, and the record is executed.
#[test]
fn a_transaction_gives_way_to_records() {
    let mut it = Scenario::with(Pair::new(), 0);
    for n in 0..8 {
        it.mkdir(IN_A, &format!("dir{n}"));
    }
    let at_home = |ino: &&Ino| it.pair.home(**ino) == A;
    let ino = *it.dirs.iter().find(at_home).expect("a directory of the first cell");
    let (file, flags) = (NewInode::regular(0o644), CreateFlags::EXCLUSIVE);
    for n in 0..4 {
        it.make(ino, &format!("n{n}"), file.clone(), flags);
    }
    assert!(it.posted > 0);
    let (from_name, flags) = (name("n3"), RenameFlags::empty());
    let rename = Request::Rename { from: ino, from_name, dir: IN_B, name: name("x"), flags };
    let call = it.pair.send(it.other, rename);
    it.pair.wait(2 * SECOND);
    assert_eq!(it.pair.answer(call), Some(Ok(Reply::Done)));
    assert_eq!(it.pair.outcome(it.client).errno, None);
}

/// The client knows the attributes of what it has made only until another client changes them.
#[test]
fn another_client_writes_a_file_of_the_tree() {
    let mut it = Scenario::new(0);
    let top = it.dirs[0];
    let before = it.posted;
    it.make(top, "file", NewInode::regular(0o644), CreateFlags::EXCLUSIVE);
    assert_eq!(it.posted, before + 1);
    let ino = it.names[&(top, "file".to_string())].0;
    it.look();
    let handle = it.pair.open_as(it.other, ino, SOLE);
    it.pair.write(it.other, handle, 0, b"text");
    let attr = it.pair.attr(it.other, ino);
    assert_eq!(attr.size, 4);
    assert_eq!(it.ask(Request::GetAttr { ino }), Ok(Reply::Attr { attr, lease: None }));
}

/// A file of a tree that has a delegation of its own is renamed by a record of the tree.
#[test]
fn a_renamed_file_with_a_delegation_of_its_own_has_a_new_time() {
    let mut it = Scenario::new(1);
    let top = it.dirs[0];
    let open = CreateFlags::OPEN | CreateFlags::EXCLUSIVE;
    it.make(top, "old", NewInode::regular(0o644), open);
    let handle = it.opened[0];
    let ino = handle.ino;
    let request = write(handle, Position::End);
    it.cache.begin(&request);
    let sent = it.pair.submit(it.client, request.clone(), b"text");
    it.pair.drive();
    let delegated = it.pair.delegated(sent).expect("its own delegation");
    let answer = it.pair.answer(sent).expect("an answer");
    let answered = Answered { delegated: Some(Box::new(delegated)), ..Answered::from(answer) };
    let op = Op::Ino(request, Capabilities::default());
    let mut call = Call::new(op, it.caller.clone());
    let words = OfClient(&it.pair, it.client);
    let step = call.step(&mut it.cache, &it.map, &words, None);
    assert!(matches!(step, Step::Send(_)));
    call.step(&mut it.cache, &it.map, &words, Some(answered));
    it.pair.wait(SECOND / 2);
    it.rename((top, "old"), (top, "new"));
    let attr = it.pair.attr(it.other, ino);
    assert!(attr.ctime > attr.mtime);
    let Ok(Reply::Attr { attr: own, .. }) = it.ask(Request::GetAttr { ino }) else { panic!() };
    assert_eq!(own, attr);
}

/// Whether another client may use its copy of an absent name in a directory that was delegated
/// since.
fn is_copy_valid(plant: Planted) -> bool {
    let mut it = Scenario::with(Pair::with(Setup { cells: 1, plant, ..Setup::default() }), 0);
    let (found, lease) = it.pair.look(it.other, IN_A, "absent");
    assert!(found.is_none() && it.pair.is_valid(A, it.other, lease));
    for n in 0..3 {
        it.make(IN_A, &format!("n{n}"), NewInode::regular(0o644), CreateFlags::EXCLUSIVE);
        it.list(IN_A);
    }
    assert!(it.posted > 0, "the directory is delegated");
    it.pair.is_valid(A, it.other, lease)
}

#[test]
fn copies_of_names_end_when_a_directory_is_delegated() {
    assert!(!is_copy_valid(Planted::NONE));
    #[cfg(feature = "plants")]
    assert!(is_copy_valid(Planted::of(Some(warren_cell::Plant::KeepNames))));
}

/// A directory in which a program makes, renames and removes files and directories stays delegated
/// as long as that goes on.
#[test]
fn a_program_posts_as_long_as_it_runs() {
    const ROUNDS: u64 = 150;
    let mut it = Scenario::new(0);
    let top = it.dirs[0];
    for _ in 0..ROUNDS {
        let names: Vec<String> = (0..50).map(|n| format!("n{n}")).collect();
        for text in &names {
            let flags = CreateFlags::EXCLUSIVE | CreateFlags::OPEN;
            it.make(top, text, NewInode::regular(0o644), flags);
            it.close();
            it.rename((top, text), (top, &format!("{text}-new")));
            it.mkdir(top, text);
        }
        for text in &names {
            it.remove(top, &format!("{text}-new"));
            it.remove(top, text);
        }
    }
    // Each has a part of the credit that a reply brings.
    assert!(it.posted > 4 * it.requested, "{} posted, {} requested", it.posted, it.requested);
    assert!(it.posted > 200 * ROUNDS);
    it.look();
}

/// The files of a directory were made by another client. Once the client changes names there, it
/// knows all of them after a few requests.
#[test]
fn files_that_another_client_has_made_are_removed_and_renamed_by_records() {
    for seed in 0..4 {
        let mut it = Scenario::with(Pair::with(Setup { cells: 1, ..Setup::default() }), seed);
        let top = it.dirs[0];
        let all = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        it.pair.call(it.other, Request::SetAttr { ino: top, handle: None, set: all }).unwrap();
        it.pair.wait(3 * SECOND);
        let names: Vec<String> = (0..100).map(|n| format!("old{n}")).collect();
        for text in &names {
            it.make_by_other(top, text);
        }
        let (posted, requested) = (it.posted, it.requested);
        for (n, text) in names.iter().enumerate() {
            match n % 3 {
                0 => it.rename((top, text), (top, &format!("new{n}"))),
                1 => it.rename((top, text), (top, &names[n - 1])),
                _ => it.remove(top, text),
            }
        }
        let (posted, requested) = (it.posted - posted, it.requested - requested);
        assert!(posted > 70 && requested < 40, "{posted} posted, {requested} requested");
        it.look();
    }
}

/// A file that another client has open is no member: what the client does with it is requested.
#[test]
fn a_file_that_another_client_has_open_is_removed_by_a_request() {
    let mut it = Scenario::new(0);
    let top = it.dirs[0];
    for text in ["a", "b", "open", "c"] {
        it.make_by_other(top, text);
    }
    // The other client has ended the first delegation.
    it.pair.wait(2 * SECOND);
    let ino = it.names[&(top, "open".to_string())].0;
    let handle = it.pair.open_as(it.other, ino, AccessMode::WRITE);
    for text in ["a", "b", "open", "c"] {
        let posted = it.posted;
        it.remove(top, text);
        // The first two bring the tree.
        assert_eq!(it.posted > posted, text == "c", "{text}");
    }
    it.pair.write(it.other, handle, 0, b"text");
    assert_eq!(it.pair.attr(it.other, handle.ino).nlink, 0);
    it.look();
}
