//! An inode of the model, and the bounds of its times.
//!
//! The model does not know at which instant a cell read its clock, only the window of the call. So
//! a time is an interval, which every observation narrows to a point.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use warren_base::{ClientId, Errno, Ino, InodeFlags, Timestamp};
use warren_proto::{
    AccessMode, Attr, ByteRange, CAPABILITY, FileKind, LockFlavour, LockOwner, LockType, XattrName,
};

use super::content::Content;
use crate::fixed::Mix;
use crate::history::Window;

/// A name in a directory. Shared, because states are copied often.
pub type Name = Rc<[u8]>;

/// A time known to be in `from..=to`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimeBound {
    from: Timestamp,
    to: Timestamp,
}

impl TimeBound {
    pub fn exactly(at: Timestamp) -> Self {
        Self { from: at, to: at }
    }

    pub fn within(window: Window) -> Self {
        Self { from: window.from, to: window.to }
    }

    /// The time was set in `window`. Of two concurrent changes either may have read its clock last,
    /// whatever their order of effect, so overlapping bounds are joined.
    pub fn touch(&mut self, window: Window) {
        let new = Self::within(window);
        let overlap = window.steps || self.from <= new.to && new.from <= self.to;
        *self = if overlap { self.hull(new) } else { new };
    }

    /// The time was set in `window`, or not at all.
    pub fn may_touch(&mut self, window: Window) {
        *self = self.hull(Self::within(window));
    }

    /// A client observed the time. False if that was impossible.
    pub fn observe(&mut self, at: Timestamp) -> bool {
        let possible = self.from <= at && at <= self.to;
        *self = Self::exactly(at);
        possible
    }

    #[cfg(test)]
    pub fn earliest(self) -> Timestamp {
        self.from
    }

    fn hull(self, other: Self) -> Self {
        Self { from: self.from.min(other.from), to: self.to.max(other.to) }
    }
}

/// An open-file object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    pub client: ClientId,
    pub uid: u32,
    pub access: AccessMode,
    pub offset: u64,
    /// The client has kept it and does not use it. It ends with the inode's last name, or when a
    /// client that is not a front opens the inode to keep it.
    pub is_idle: bool,
}

/// The owner of a lock. The two flavours are independent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Holder {
    pub flavour: LockFlavour,
    pub client: ClientId,
    pub owner: LockOwner,
}

/// A lock that an owner holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub holder: Holder,
    pub range: ByteRange,
    pub lock: LockType,
    pub pid: u32,
}

/// The content of an inode besides attributes.
#[derive(Clone, Debug)]
pub enum Body {
    File(Content),
    Directory { parent: Ino, entries: BTreeMap<Name, Ino> },
    Symlink(Rc<[u8]>),
    Special,
}

#[derive(Clone, Debug)]
pub struct Inode {
    pub kind: FileKind,
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub atime: TimeBound,
    pub mtime: TimeBound,
    pub ctime: TimeBound,
    pub btime: TimeBound,
    pub body: Body,
    pub xattrs: Rc<BTreeMap<XattrName, Rc<[u8]>>>,
    /// The flags that `chattr` sets.
    pub flags: InodeFlags,
    pub opens: BTreeMap<u64, Open>,
    /// Sorted by holder and start. Ranges of one holder do not overlap, and ranges of one type do
    /// not touch.
    pub locks: Vec<Held>,
    /// Hash of everything above, when the inode was last changed.
    pub fingerprint: u64,
}

impl Inode {
    /// A new inode with one link.
    pub fn new(
        kind: FileKind,
        mode: u16,
        (uid, gid): (u32, u32),
        time: TimeBound,
        body: Body,
    ) -> Self {
        Self {
            kind,
            mode,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            body,
            xattrs: Rc::default(),
            flags: InodeFlags::empty(),
            opens: BTreeMap::new(),
            locks: Vec::new(),
            fingerprint: 0,
        }
    }

    /// Names an attribute in `attr` that is wrong, times excluded. The system chooses size and
    /// blocks of a directory.
    pub fn attr_differs(&self, ino: Ino, attr: &Attr) -> Option<&'static str> {
        let checks = [
            ("st_ino", attr.ino == ino),
            ("the kind in st_mode", attr.kind == self.kind),
            ("st_mode", attr.mode == self.mode),
            ("st_nlink", attr.nlink == self.nlink),
            ("st_uid", attr.uid == self.uid),
            ("st_gid", attr.gid == self.gid),
            ("st_rdev", attr.rdev == self.rdev),
            ("st_size", self.is_directory() || attr.size == self.size()),
            ("the flags", attr.flags == self.all_flags()),
            ("st_blocks", self.blocks().is_none_or(|blocks| attr.blocks == blocks)),
        ];
        checks.into_iter().find(|(_, right)| !right).map(|(what, _)| what)
    }

    fn all_flags(&self) -> InodeFlags {
        let names = self.xattrs.keys().map(XattrName::as_bytes);
        names.fold(self.flags, |flags, name| flags | InodeFlags::of_xattr(name))
    }

    /// Sets or removes an attribute.
    pub fn set_xattr(&mut self, name: &[u8], value: Option<&[u8]>) {
        let name = XattrName::new(name).expect("a legal name");
        let xattrs = Rc::make_mut(&mut self.xattrs);
        match value {
            Some(value) => drop(xattrs.insert(name, Rc::from(value))),
            None => drop(xattrs.remove(&name)),
        }
    }

    /// A change of the data or the owner.
    pub fn lose_capability(&mut self) {
        self.set_xattr(CAPABILITY, None);
    }

    pub fn is_immutable(&self) -> bool {
        self.flags.contains(InodeFlags::IMMUTABLE)
    }

    pub fn only_grows(&self) -> bool {
        self.flags.contains(InodeFlags::APPEND)
    }

    /// `IS_APPEND` or `IS_IMMUTABLE`.
    pub fn check_unflagged(&self) -> Result<(), Errno> {
        if self.is_immutable() || self.only_grows() { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Checks flags as `may_open` does.
    pub fn check_open_flags(&self, access: AccessMode) -> Result<(), Errno> {
        let writes = access.intersects(AccessMode::WRITE | AccessMode::TRUNCATE);
        let appends = access.contains(AccessMode::APPEND) && !access.contains(AccessMode::TRUNCATE);
        let is_refused = self.is_immutable() || self.only_grows() && !appends;
        if writes && is_refused { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Names a time that is wrong, if there is one. `old_atime`: the access time may be an earlier
    /// one.
    pub fn observe_times(&mut self, attr: &Attr, old_atime: bool) -> Option<&'static str> {
        let checks = [
            ("st_atime", old_atime || self.atime.observe(attr.atime)),
            ("st_mtime", self.mtime.observe(attr.mtime)),
            ("st_ctime", self.ctime.observe(attr.ctime)),
            ("st_btime", self.btime.observe(attr.btime)),
        ];
        checks.into_iter().find(|(_, right)| !right).map(|(what, _)| what)
    }

    pub fn blocks(&self) -> Option<u64> {
        match &self.body {
            Body::File(content) => Some(content.blocks()),
            _ => None,
        }
    }

    /// The entries of a directory; ENOTDIR for any other inode.
    pub fn entries(&self) -> Result<&BTreeMap<Name, Ino>, Errno> {
        match &self.body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// The entries of an inode known to be a directory.
    pub fn entries_mut(&mut self) -> &mut BTreeMap<Name, Ino> {
        match &mut self.body {
            Body::Directory { entries, .. } => entries,
            _ => unreachable!("the caller has looked"),
        }
    }

    /// The bytes of an inode known to be a regular file.
    pub fn content_mut(&mut self) -> &mut Content {
        match &mut self.body {
            Body::File(content) => content,
            _ => unreachable!("the caller has looked"),
        }
    }

    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.size(),
            Body::Symlink(target) => target.len() as u64,
            Body::Directory { .. } | Body::Special => 0,
        }
    }

    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Whether it can still be reached.
    pub fn is_alive(&self) -> bool {
        self.nlink > 0 || self.opens.values().any(|open| !open.is_idle)
    }

    /// The last name is gone: a client's handles that are kept and not used are closed, if it uses
    /// no other handle of the inode.
    pub fn drop_idle(&mut self) {
        let in_use = self.opens.values().filter(|open| !open.is_idle);
        let users: Vec<ClientId> = in_use.map(|open| open.client).collect();
        self.opens.retain(|_, open| users.contains(&open.client));
    }

    pub fn compute_fingerprint(&self, ino: Ino) -> u64 {
        let mut mix = Mix::default();
        ino.hash(&mut mix);
        self.kind.hash(&mut mix);
        (self.mode, self.nlink, self.uid, self.gid, self.rdev).hash(&mut mix);
        (self.atime, self.mtime, self.ctime, self.btime).hash(&mut mix);
        match &self.body {
            Body::File(content) => mix.write_u64(content.fingerprint()),
            Body::Directory { parent, entries } => (parent, entries).hash(&mut mix),
            Body::Symlink(target) => target.hash(&mut mix),
            Body::Special => {}
        }
        (&self.xattrs, self.flags).hash(&mut mix);
        for (number, open) in &self.opens {
            (number, open.client, open.uid, open.access.bits()).hash(&mut mix);
            (open.offset, open.is_idle).hash(&mut mix);
        }
        for held in &self.locks {
            (held.holder.client, held.holder.owner, held.pid).hash(&mut mix);
            (held.range.start, held.range.end).hash(&mut mix);
            mix.write_u8(held.lock as u8);
            mix.write_u8(held.holder.flavour as u8);
        }
        mix.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(from: i64, to: i64) -> Window {
        Window { from: Timestamp(from), to: Timestamp(to), steps: false }
    }

    #[test]
    fn an_observation_outside_the_window_is_impossible() {
        let mut time = TimeBound::within(window(5, 9));
        assert!(time.observe(Timestamp(7)));
        assert!(!time.observe(Timestamp(8)));
    }

    #[test]
    fn a_later_change_replaces_the_bound_and_a_concurrent_one_widens_it() {
        let mut time = TimeBound::within(window(1, 3));
        time.touch(window(5, 9));
        assert_eq!(time, TimeBound::within(window(5, 9)));
        time.touch(window(8, 12));
        assert_eq!(time, TimeBound::within(window(5, 12)));
    }
}
