//! **Predictions.** A client that does not wait for the reply to a change predicts the attributes
//! after it. This client waits, and compares: random writes and changes of attributes have exactly
//! the predicted result, or fail with the predicted error.
//!
//! The code: `predict.rs`, `set_attr.rs` and `write.rs` of the crate `rules`; `data/write.rs` and
//! `inode/attributes.rs`.

use std::time::Duration;

use warren_base::{ClientId, Ino, InodeFlags, Rng, Timestamp};
use warren_proto::{
    AccessMode, Attr, Credentials, Handle, InodeValue, Position, Reply, Request, SetAttr, SetTime,
    XattrMode, XattrName,
};
use warren_rules::set_attr::check_set;
use warren_rules::write::check_flags;
use warren_rules::{permission, predict};

use crate::bytes::PAGE;
use crate::client::write;
use crate::pair::*;

const SEEDS: u64 = 40;
const CHANGES: u64 = 100;
/// Changes begin within so many pages.
const PAGES: u64 = 6;
const WRITE: AccessMode = AccessMode::WRITE;

/// A user who has the file open, also to append.
struct User {
    who: Credentials,
    client: ClientId,
    handle: Handle,
    appending: Handle,
}

struct Scenario {
    rng: Rng,
    pair: Pair,
    ino: Ino,
    users: Vec<User>,
    attr: Attr,
    is_dense: bool,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut pair = Pair::alone();
        let root = pair.client();
        let ino = pair.create(root, IN_A, "file").ino;
        let set = SetAttr { mode: Some(0o666), uid: Some(1000), ..SetAttr::default() };
        assert!(pair.call(root, Request::SetAttr { ino, handle: None, set }).is_ok());
        let user = |uid| {
            let client = pair.client_of(uid);
            let handle = pair.open_as(client, ino, WRITE);
            let appending = pair.open_as(client, ino, WRITE | AccessMode::APPEND);
            let who = Credentials { uid, ..Credentials::default() };
            User { who, client, handle, appending }
        };
        let users = [0, 1000, 1001].map(user).into();
        let attr = pair.attr(root, ino);
        Self { rng: Rng::new(seed), pair, ino, users, attr, is_dense: true }
    }

    /// Returns a place in the file, often at the beginning of a page or of the file.
    fn place(&mut self) -> u64 {
        let place = self.rng.below(PAGES * PAGE as u64);
        match self.rng.below(4) {
            0 => 0,
            1 => place / PAGE as u64 * PAGE as u64,
            2 => place.min(self.attr.size),
            _ => place,
        }
    }

    fn some<T>(&mut self, value: T) -> Option<T> {
        self.rng.chance(1, 5).then_some(value)
    }

    fn set_time(&mut self) -> Option<SetTime> {
        let time = Timestamp(self.rng.below(100) as i64);
        let time = if self.rng.chance(1, 2) { SetTime::Now } else { SetTime::At(time) };
        self.some(time)
    }

    fn draw_set(&mut self) -> SetAttr {
        let mode = *self.rng.pick(&[0o6777, 0o6767, 0o2640, 0o666]);
        let (uid, gid) = (1000 + self.rng.below(2) as u32, self.rng.below(2) as u32);
        let flags = [InodeFlags::APPEND, InodeFlags::IMMUTABLE, InodeFlags::NODUMP];
        let (flags, size) = (*self.rng.pick(&flags), self.place());
        // Flags that forbid changes soon go again.
        let is_kept = self.attr.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        let is_removed = is_kept && self.rng.chance(1, 2);
        if is_removed {
            return SetAttr { flags: Some(InodeFlags::empty()), ..SetAttr::default() };
        }
        SetAttr {
            mode: self.some(mode),
            uid: self.some(uid),
            gid: self.some(gid),
            size: self.some(size),
            atime: self.set_time(),
            mtime: self.set_time(),
            kill_privileges: self.rng.chance(1, 8),
            flags: self.some(flags),
        }
    }

    /// Compares the attributes with those that were predicted for a change at that time.
    fn compare(
        &mut self,
        what: &str,
        predict: impl FnOnce(&Attr, bool, Timestamp) -> (Attr, bool),
    ) {
        let attr = self.pair.attr(self.users[0].client, self.ino);
        let (mut predicted, is_dense) = predict(&self.attr, self.is_dense, attr.ctime);
        if !is_dense {
            predicted.blocks = attr.blocks;
        }
        assert_eq!(attr, predicted, "{what} of {:?}", self.attr);
        assert!(attr == self.attr || attr.ctime > self.attr.ctime, "{what} takes place now");
        (self.attr, self.is_dense) = (attr, is_dense);
    }

    fn change_attributes(&mut self) {
        let (set, user) = (self.draw_set(), self.rng.below(3) as usize);
        let User { client, ref who, .. } = self.users[user];
        let who = who.clone();
        let inode = InodeValue { attr: self.attr, parent: Ino(0), entries: 0, acl: None };
        let checked = check_set(&set, &inode, false, &who);
        let answer = self.pair.call(client, Request::SetAttr { ino: self.ino, handle: None, set });
        let what = format!("{set:?} by {}", who.uid);
        if checked.is_ok() {
            self.compare(&what, |attr, is_dense, now| {
                predict::set(attr, is_dense, &set, &who, now)
            });
        }
        assert_eq!(answer.map(|_| ()), checked, "{what} of {:?}", inode.attr);
    }

    fn write(&mut self) {
        let user = self.rng.below(3) as usize;
        let appends = self.rng.chance(1, 3);
        let offset = if appends { self.attr.size } else { self.place() };
        let len = 1 + self.rng.below(3 * PAGE as u64) as usize;
        let User { client, ref who, handle, appending } = self.users[user];
        let who = who.clone();
        let (handle, access, position) = match appends {
            true => (appending, WRITE | AccessMode::APPEND, Position::End),
            false => (handle, WRITE, Position::At(offset)),
        };
        let checked = check_flags(self.attr.flags, access, position);
        let call = self.pair.submit(client, write(handle, position), &vec![1; len]);
        self.pair.drive();
        let answer = self.pair.answer(call).expect("it is answered");
        let what = format!("a write of {len} bytes at {offset} by {}", who.uid);
        assert_eq!(answer.map(|_| ()), checked, "{what}");
        if checked.is_ok() {
            let strips = permission::is_bound(&who).then_some(&who);
            let range = (offset, len as u64);
            self.compare(&what, |attr, is_dense, now| {
                predict::written(attr, is_dense, range, strips, now)
            });
        }
    }

    /// Root gives the file capabilities, unless a flag forbids it.
    fn set_capability(&mut self) {
        let name = XattrName::new(b"security.capability").expect("a name");
        let (ino, value, mode) = (self.ino, Box::default(), XattrMode::Any);
        let set = Request::SetXattr { ino, name, value, mode, kill_set_gid: false };
        let answer = self.pair.call(self.users[0].client, set);
        assert_eq!(answer.is_ok(), permission::check_unflagged(&self.attr).is_ok());
        if answer == Ok(Reply::Done) {
            self.attr = self.pair.attr(self.users[0].client, ino);
            assert!(self.attr.flags.contains(InodeFlags::CAPABILITY));
        }
    }
}

#[test]
fn the_cell_makes_what_was_predicted() {
    let (mut dense, mut changes) = (0, 0);
    for seed in 0..SEEDS {
        let mut scenario = Scenario::new(seed);
        for _ in 0..CHANGES {
            scenario.pair.wait(Duration::from_millis(1));
            match scenario.rng.below(8) {
                0 => scenario.set_capability(),
                1..4 => scenario.change_attributes(),
                _ => scenario.write(),
            }
            dense += u64::from(scenario.is_dense);
            changes += 1;
        }
    }
    assert!(dense > changes / 4 && dense < changes * 3 / 4, "{dense} of {changes} are dense");
}
