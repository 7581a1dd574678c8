//! The calls of programs: they conflict with each other, and are drawn by the seed's swarm.
//!
//! The harness knows all inodes that were ever made, so clients work on each other's files. It
//! forgets most removed ones, but not all: stale numbers must be refused.

use std::collections::BTreeSet;

use warren_base::{Ino, Rng, SlotNo, Timestamp};
use warren_client::{Op, Path, PathOp};
use warren_proto::{
    AccessMode, ByteRange, Capabilities, CreateFlags, FileKind, FileName, Handle, LockFlavour,
    LockOwner, LockSpec, LockType, NewInode, Position, ReadFlags, RenameFlags, Reply, Request,
    SetAttr,
};

use crate::swarm::{Cuts, Kind, Swarm};

mod attributes;
mod range;
pub(super) mod shared;

/// Inodes of a kind that are remembered: few, so that calls conflict.
const KNOWN_MAX: usize = 12;

/// Digits of a long name: about thirty such names exceed a page of a listing.
const LONG_NAME: usize = 240;

/// Handles a slot keeps open.
const HANDLES_MAX: usize = 4;

/// The harness's knowledge of the tree.
#[derive(Default)]
pub(super) struct Known {
    pub dirs: Vec<Ino>,
    pub files: Vec<Ino>,
    pub links: Vec<Ino>,
    /// The file whose pages several fronts use.
    pub shared: Option<Ino>,
    /// Names of directories, the one made or moved last at the end.
    nests: Vec<(Ino, FileName)>,
}

impl Known {
    pub(super) fn add(&mut self, ino: Ino, kind: FileKind) {
        let list = match kind {
            FileKind::Directory => &mut self.dirs,
            FileKind::Symlink => &mut self.links,
            _ => &mut self.files,
        };
        if !list.contains(&ino) {
            list.push(ino);
        }
        if list.len() > KNOWN_MAX {
            list.remove(0);
        }
    }

    /// Notes how a successful request changed names of directories.
    pub(super) fn note(&mut self, request: &Request) {
        match request {
            Request::Write { handle, .. } => self.shared = self.shared.or(Some(handle.ino)),
            Request::Create { dir, name, new, .. } if new.kind == FileKind::Directory => {
                self.nests.push((*dir, name.clone()));
            }
            Request::Rename { from, from_name, dir, name, flags } => {
                let moved = (*from, from_name.clone());
                if !flags.contains(RenameFlags::EXCHANGE) && self.nests.contains(&moved) {
                    self.nests.retain(|nest| *nest != moved);
                    self.nests.push((*dir, name.clone()));
                }
            }
            Request::Rmdir { dir, name } => {
                self.nests.retain(|nest| *nest != (*dir, name.clone()));
            }
            _ => {}
        }
        if self.nests.len() > KNOWN_MAX {
            self.nests.remove(0);
        }
    }

    /// `ino` is gone.
    pub(super) fn forget(&mut self, ino: Ino) {
        self.shared = self.shared.filter(|shared| *shared != ino);
        for list in [&mut self.dirs, &mut self.files, &mut self.links] {
            list.retain(|known| *known != ino);
        }
    }

    fn dir(&self, rng: &mut Rng) -> Ino {
        if self.dirs.is_empty() || rng.chance(1, 3) { Ino::ROOT } else { *rng.pick(&self.dirs) }
    }

    /// One of the `hot` files seen last.
    fn file(&self, rng: &mut Rng, hot: usize) -> Option<Ino> {
        let files = &self.files[self.files.len().saturating_sub(hot)..];
        (!files.is_empty()).then(|| *rng.pick(files))
    }

    fn any_inode(&self, rng: &mut Rng, hot: usize) -> Ino {
        match (rng.below(4), self.links.is_empty()) {
            (0, _) => self.dir(rng),
            (1, false) => *rng.pick(&self.links),
            _ => self.file(rng, hot).unwrap_or(Ino::ROOT),
        }
    }
}

/// The files and locks that a slot holds and must release.
#[derive(Default)]
pub(super) struct Holdings {
    pub handles: Vec<(Handle, AccessMode)>,
    pub locks: Vec<(Handle, LockSpec)>,
    /// Files of which the last lock was refused, but may have been granted: it is released like
    /// another, and nothing relies on it.
    doubtful: BTreeSet<Ino>,
}

impl Holdings {
    /// Notes a request that succeeded.
    pub(super) fn note(&mut self, request: &Request, reply: &Reply) {
        match (request, reply) {
            (Request::Create { access, .. } | Request::Open { access, .. }, reply) => {
                self.handles.extend(reply.opened().map(|opened| (opened.handle, *access)));
            }
            (Request::Close { handle }, _) => self.handles.retain(|(held, _)| held != handle),
            (Request::Lock { handle, spec, .. }, _) => {
                let whole = spec.lock == LockType::Unlock && spec.range == ByteRange::ALL;
                self.locks.retain(|(on, held)| {
                    !(on.ino == handle.ino
                        && (whole && held.flavour == spec.flavour || held == spec))
                });
                if spec.lock != LockType::Unlock {
                    self.locks.push((*handle, *spec));
                }
                self.doubtful.remove(&handle.ino);
            }
            _ => {}
        }
    }

    /// Notes a lock that was refused, but may have been granted.
    pub(super) fn note_doubtful(&mut self, handle: Handle, spec: LockSpec) {
        self.locks.push((handle, spec));
        self.doubtful.insert(handle.ino);
    }

    /// The next request that releases something.
    pub(super) fn release(&self) -> Option<Request> {
        if let Some((handle, spec)) = self.locks.last() {
            return Some(unlock(*handle, *spec));
        }
        self.handles.last().map(|(handle, _)| Request::Close { handle: *handle })
    }

    /// Whether the slot certainly has an exclusive lock on the whole file.
    pub(super) fn has_locked(&self, ino: Ino) -> bool {
        if self.doubtful.contains(&ino) {
            return false;
        }
        let records =
            |held: &&(Handle, LockSpec)| held.0.ino == ino && held.1.flavour == LockFlavour::Record;
        let last = self.locks.iter().rev().find(records);
        last.is_some_and(|(_, spec)| {
            spec.lock == LockType::Exclusive && spec.range == ByteRange::ALL
        })
    }

    /// Whether the handle was opened for reading.
    pub(super) fn may_read(&self, handle: Handle) -> bool {
        self.may(handle, AccessMode::READ)
    }

    fn may(&self, handle: Handle, wanted: AccessMode) -> bool {
        self.handles.iter().any(|(held, access)| *held == handle && access.contains(wanted))
    }

    /// Whether it is an unlock, by a handle that is open for something.
    pub(super) fn would_unlock(&self, handle: Handle, lock: LockType) -> bool {
        let some = AccessMode::READ | AccessMode::WRITE;
        let fits = |held: &(Handle, AccessMode)| held.0 != handle || held.1.intersects(some);
        lock == LockType::Unlock && self.handles.iter().all(fits)
    }

    /// Whether locks would remain after the close.
    pub(super) fn locks_by(&self, handle: Handle) -> bool {
        self.locks.iter().any(|(on, _)| on.ino == handle.ino)
    }
}

fn unlock(handle: Handle, spec: LockSpec) -> Request {
    let spec = LockSpec { lock: LockType::Unlock, range: ByteRange::ALL, ..spec };
    Request::Lock { handle, spec, wait: false }
}

/// Draws calls for one slot.
pub(super) struct Draw<'a> {
    pub swarm: &'a Swarm,
    pub known: &'a Known,
    pub holdings: &'a Holdings,
    pub slot: SlotNo,
    pub uid: u32,
    /// The client is a front, so its kernel has checked what the descriptor permits.
    pub front: bool,
    /// The client is one of those that change data.
    pub may_write: bool,
    pub now: Timestamp,
    pub rng: &'a mut Rng,
}

/// A call and the bytes it writes.
pub(super) type Drawn = (Op, Vec<u8>);

impl Draw<'_> {
    pub(super) fn draw(&mut self) -> Drawn {
        if self.swarm.shares_pages
            && self.rng.chance(19, 20)
            && let Some(drawn) = self.share_pages()
        {
            return drawn;
        }
        loop {
            let kind = self.swarm.kind(self.rng);
            if let Some(drawn) = self.try_draw(kind) {
                return drawn;
            }
        }
    }

    fn try_draw(&mut self, kind: Kind) -> Option<Drawn> {
        if matches!(kind, Kind::Write | Kind::Append) {
            return self.write(kind == Kind::Append);
        }
        let request = match kind {
            Kind::List => return Some((Op::List(self.dir(kind).into()), Vec::new())),
            Kind::Lookup | Kind::GetAttr | Kind::ReadLink | Kind::StatFs => self.look_request(kind),
            Kind::CreateNameless if self.holdings.handles.len() >= HANDLES_MAX => return None,
            Kind::CreateFile
            | Kind::CreateNameless
            | Kind::OpenOrCreate
            | Kind::Mkdir
            | Kind::Symlink
            | Kind::Fifo
            | Kind::Link
            | Kind::Unlink
            | Kind::Rmdir
            | Kind::Rename
            | Kind::RenameNoReplace
            | Kind::Exchange
            | Kind::Whiteout => self.change_names(kind),
            Kind::Read
                if self.front && self.swarm.cuts == Cuts::UnderLocks && self.rng.chance(1, 2) =>
            {
                self.under_lock(kind)?
            }
            Kind::Fallocate if !self.may_write => return None,
            Kind::CopyRange if !self.may_write => return None,
            Kind::CopyRange => {
                let files = (self.handle()?, self.handle()?);
                range::copy(files, self.swarm.reach, self.uid, self.rng)
            }
            Kind::Fallocate => range::fallocate(self.handle()?, self.swarm, self.uid, self.rng),
            Kind::Open | Kind::Close | Kind::Read | Kind::Seek | Kind::FindData => {
                self.use_file(kind)?
            }
            Kind::Truncate if !self.may_write => return None,
            Kind::Truncate if self.cuts_others() => self.under_lock(kind)?,
            Kind::Truncate | Kind::Chmod | Kind::Chown | Kind::Utimens | Kind::Chattr => {
                self.set_attr(kind)
            }
            Kind::Xattr => return Some(self.xattr()),
            Kind::Acl => self.acl(),
            Kind::Lock | Kind::Flock | Kind::TestLock => self.lock(kind)?,
            Kind::StatPath | Kind::OpenPath | Kind::ChangePath | Kind::RenamePath => {
                return self.on_paths(kind).map(|op| (op, Vec::new()));
            }
            Kind::Fsync => self.fsync()?,
            Kind::Sync => Request::Sync,
            Kind::Write | Kind::Append => unreachable!("drawn above"),
        };
        Some((Op::Ino(request, Capabilities::default()), Vec::new()))
    }

    /// A front's kernel has the descriptor, so its request needs no handle.
    fn fsync(&mut self) -> Option<Request> {
        let held = if self.front { None } else { self.handle() };
        // Some requests have no handle, which must be refused.
        let handle = held.filter(|_| !self.rng.chance(1, 8));
        let ino = held.map_or_else(|| self.any_inode(), |handle| handle.ino);
        Some(Request::Fsync { ino, handle, data_only: false })
    }

    fn any_inode(&mut self) -> Ino {
        self.known.any_inode(self.rng, self.swarm.hot_files)
    }

    fn name(&mut self) -> FileName {
        let number = self.rng.below(self.swarm.names);
        let width = if self.swarm.long_names { LONG_NAME } else { 0 };
        FileName::new(format!("n{number:0width$}").as_bytes()).expect("a legal name")
    }

    fn look_request(&mut self, kind: Kind) -> Request {
        match kind {
            Kind::Lookup => Request::Lookup { dir: self.known.dir(self.rng), name: self.name() },
            // A kernel still uses a directory that was removed.
            Kind::GetAttr if self.front && self.rng.chance(1, 6) => {
                Request::GetRemoved { dir: self.known.dir(self.rng) }
            }
            Kind::GetAttr => Request::GetAttr { ino: self.any_inode() },
            Kind::ReadLink => Request::ReadLink { ino: self.any_inode() },
            _ => Request::StatFs,
        }
    }

    /// The directory for a call on names.
    fn dir(&mut self, kind: Kind) -> Ino {
        if self.swarm.long_names && self.rng.chance(4, 5) {
            return Ino::ROOT;
        }
        match self.known.dirs.last() {
            Some(deepest) if self.swarm.deep && kind == Kind::Mkdir && self.rng.chance(2, 3) => {
                *deepest
            }
            _ => self.known.dir(self.rng),
        }
    }

    /// The source of a rename: the name of a directory, if the mix moves directories across each
    /// other.
    fn source(&mut self, dir: Ino) -> (Ino, FileName) {
        if self.swarm.deep && !self.known.nests.is_empty() && self.rng.chance(2, 3) {
            return self.rng.pick(&self.known.nests).clone();
        }
        let from = if self.rng.chance(1, 3) { dir } else { self.known.dir(self.rng) };
        (from, self.name())
    }

    fn change_names(&mut self, kind: Kind) -> Request {
        let (dir, name) = (self.dir(kind), self.name());
        match kind {
            Kind::Link => Request::Link { ino: self.any_inode(), dir, name },
            Kind::Unlink => Request::Unlink { dir, name },
            Kind::Rmdir => Request::Rmdir { dir, name },
            Kind::Rename | Kind::RenameNoReplace | Kind::Exchange | Kind::Whiteout => {
                let (from, from_name) = self.source(dir);
                let flags = match kind {
                    Kind::RenameNoReplace => RenameFlags::NOREPLACE,
                    Kind::Whiteout => RenameFlags::WHITEOUT,
                    Kind::Exchange => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                Request::Rename { from, from_name, dir, name, flags }
            }
            _ => self.create(kind, dir, name),
        }
    }

    fn create(&mut self, kind: Kind, dir: Ino, name: FileName) -> Request {
        let mut flags = CreateFlags::EXCLUSIVE;
        let mut access = AccessMode::empty();
        let new = match kind {
            Kind::Mkdir => {
                NewInode::directory(*self.rng.pick(&[0o755, 0o777, 0o1777, 0o700, 0o6755]))
            }
            Kind::Symlink => NewInode::symlink(b"somewhere"),
            Kind::Fifo => self.special(),
            _ => NewInode::regular(*self.rng.pick(&[0o644, 0o666, 0o600, 0o6755, 0o711, 0])),
        };
        let new = NewInode { umask: *self.rng.pick(&[0, 0o22, 0o77]), ..new };
        if kind == Kind::OpenOrCreate {
            flags = CreateFlags::OPEN;
            access = self.access();
            // A kernel looks the name up first and opens an existing file by its number.
            access.set(AccessMode::TRUNCATE, access.contains(AccessMode::TRUNCATE) && !self.front);
        } else if kind == Kind::CreateNameless {
            flags = CreateFlags::OPEN | CreateFlags::NAMELESS;
            access = AccessMode::READ | AccessMode::WRITE;
        } else if kind == Kind::CreateFile && self.holdings.handles.len() < HANDLES_MAX {
            flags |= CreateFlags::OPEN;
            access = AccessMode::READ | AccessMode::WRITE;
        }
        Request::Create { dir, name, new, flags, access }
    }

    /// A pipe, or a device, which only root may make. A front's kernel has checked that.
    fn special(&mut self) -> NewInode {
        let (char, block) = (FileKind::CharDevice, FileKind::BlockDevice);
        let all = [(FileKind::Fifo, 0), (char, 0), (char, 0x103), (block, 0x700)];
        let (kind, rdev) = if self.front { all[0] } else { *self.rng.pick(&all) };
        NewInode { kind, rdev, ..NewInode::regular(0o666) }
    }

    fn access(&mut self) -> AccessMode {
        if self.rng.chance(1, 16) {
            // A front opens a file for no access to keep it.
            return if self.front { AccessMode::empty() } else { AccessMode::EXECUTE };
        }
        let (read, write) = (AccessMode::READ, AccessMode::WRITE);
        let all = [read, write, read | write, write | AccessMode::TRUNCATE, read | write];
        let mut access = *self.rng.pick(&all);
        access.set(AccessMode::APPEND, access.contains(write) && self.rng.chance(1, 8));
        if self.may_write { access } else { access - AccessMode::TRUNCATE }
    }

    /// A call on paths. A kernel walks paths itself, so a front makes no such calls.
    fn on_paths(&mut self, kind: Kind) -> Option<Op> {
        let room = self.holdings.handles.len() < HANDLES_MAX;
        if self.front || (kind == Kind::OpenPath && !room) {
            return None;
        }
        let path = self.path();
        let op = match kind {
            Kind::StatPath => PathOp::Stat,
            Kind::OpenPath if self.rng.chance(1, 4) => PathOp::Open(self.access()),
            Kind::OpenPath if self.rng.chance(1, 2) => PathOp::OpenFile(self.access()),
            Kind::OpenPath => PathOp::Create {
                new: NewInode::regular(0o644),
                flags: CreateFlags::OPEN,
                access: self.access(),
            },
            Kind::RenamePath => {
                let flags = *self.rng.pick(&[RenameFlags::empty(), RenameFlags::EXCHANGE]);
                return Some(Op::Rename { from: path, to: self.path(), flags });
            }
            _ => match self.rng.below(5) {
                0 => PathOp::Unlink,
                1 => PathOp::Rmdir,
                2 => {
                    let mode = Some(*self.rng.pick(&[0o755, 0o700, 0o311]));
                    PathOp::SetAttr(SetAttr { mode, ..SetAttr::default() })
                }
                _ => PathOp::Create {
                    new: NewInode::directory(0o755),
                    flags: CreateFlags::EXCLUSIVE,
                    access: AccessMode::empty(),
                },
            },
        };
        Some(Op::At(path, op))
    }

    fn path(&mut self) -> Path {
        let mut bytes = Vec::new();
        for _ in 0..1 + self.rng.below(4) {
            match self.rng.below(12) {
                0 => bytes.extend_from_slice(b"/.."),
                _ => bytes.extend([b"/", self.name().as_bytes()].concat()),
            }
        }
        if self.rng.chance(1, 10) {
            bytes.push(b'/');
        }
        if self.rng.chance(1, 4) { Path::no_follow(&bytes) } else { Path::new(&bytes) }
    }

    fn use_file(&mut self, kind: Kind) -> Option<Request> {
        if kind == Kind::Open {
            if self.holdings.handles.len() >= HANDLES_MAX {
                return None;
            }
            return Some(Request::Open { ino: self.any_inode(), access: self.access() });
        }
        let handle = self.handle()?;
        Some(match kind {
            Kind::Close if self.holdings.locks_by(handle) => return None,
            Kind::Close => Request::Close { handle },
            Kind::FindData => range::find_data(handle, self.swarm.reach, self.rng),
            Kind::Seek => Request::Seek { handle, position: self.rng.below(self.swarm.reach) },
            _ if self.front && !self.holdings.may_read(handle) => return None,
            _ => {
                let position = self.position();
                let len = self.rng.below(30_000) as u32;
                let mut flags = ReadFlags::empty();
                flags.set(ReadFlags::NO_ATIME, len.is_multiple_of(8));
                Request::Read { handle, position, len, flags }
            }
        })
    }

    fn handle(&mut self) -> Option<Handle> {
        let handles = &self.holdings.handles;
        (!handles.is_empty()).then(|| self.rng.pick(handles).0)
    }

    fn position(&mut self) -> Position {
        if self.rng.chance(1, 2) {
            Position::Current
        } else {
            Position::At(self.rng.below(self.swarm.reach))
        }
    }

    fn write(&mut self, append: bool) -> Option<Drawn> {
        let handle = self.handle().filter(|_| self.may_write)?;
        let position = if append { Position::End } else { self.position() };
        Some(self.write_at(handle, position))
    }

    fn write_at(&mut self, handle: Handle, position: Position) -> Drawn {
        let len = self.rng.below(self.swarm.write_max + 1) as usize;
        let pattern = self.rng.next_u64().to_le_bytes();
        let bytes: Vec<u8> = pattern.iter().copied().cycle().take(len).collect();
        let kill_privileges = self.uid != 0;
        let (write_back, direct) = (false, false);
        let write = Request::Write { handle, position, kill_privileges, write_back, direct };
        (Op::Ino(write, Capabilities::default()), bytes)
    }

    /// Whether a kernel shrinks files that other kernels change.
    fn cuts_others(&self) -> bool {
        self.front
            && self.swarm.fronts > 1
            && !self.swarm.one_writer
            && self.swarm.cuts != Cuts::Freely
    }

    /// Shrinks or reads a file while the slot has it locked, or takes the lock or releases it.
    fn under_lock(&mut self, kind: Kind) -> Option<Request> {
        if self.swarm.cuts != Cuts::UnderLocks {
            return None;
        }
        let handle = self.handle()?;
        let ino = handle.ino;
        let spec = self.whole();
        if !self.holdings.has_locked(ino) {
            if !self.holdings.may(handle, AccessMode::WRITE) {
                return None;
            }
            let alone = self.holdings.locks.iter().all(|(on, _)| on.ino == ino);
            return Some(Request::Lock { handle, spec, wait: alone });
        }
        if self.rng.chance(1, 4) {
            return Some(unlock(handle, spec));
        }
        if kind == Kind::Read {
            return self.use_file(kind);
        }
        let set = SetAttr {
            size: Some(self.rng.below(self.swarm.reach)),
            kill_privileges: self.uid != 0,
            ..SetAttr::default()
        };
        Some(Request::SetAttr { ino, handle: Some(handle), set })
    }

    /// A lock of the whole file.
    fn whole(&self) -> LockSpec {
        let (flavour, range, lock) = (LockFlavour::Record, ByteRange::ALL, LockType::Exclusive);
        let (owner, pid) = (LockOwner(u64::from(self.slot.0) + 1), 100 + u32::from(self.slot.0));
        LockSpec { flavour, owner, lock, range, pid }
    }

    /// Every slot is an owner of locks. It waits only while it holds no lock on another inode,
    /// because a circle of waiters over several cells is not detected.
    fn lock(&mut self, kind: Kind) -> Option<Request> {
        let handle = self.handle()?;
        let held = self.holdings.locks.clone();
        if !held.is_empty() && self.rng.chance(1, 2) {
            let (handle, spec) = *self.rng.pick(&held);
            return Some(unlock(handle, spec));
        }
        let lock = *self.rng.pick(&[LockType::Shared, LockType::Exclusive]);
        let owner = LockOwner(u64::from(self.slot.0) + 1);
        let pid = 100 + u32::from(self.slot.0);
        if kind == Kind::Flock {
            // A conversion first releases the old lock. If it waited, no answer would show when it
            // released it; so a slot that holds a lock does not wait.
            let (flavour, range) = (LockFlavour::Flock, ByteRange::ALL);
            let spec = LockSpec { flavour, owner, lock, range, pid };
            return Some(Request::Lock { handle, spec, wait: held.is_empty() });
        }
        let start = self.rng.below(20);
        let range = ByteRange { start, end: start + self.rng.below(20) };
        let spec = LockSpec { flavour: LockFlavour::Record, owner, lock, range, pid };
        if kind == Kind::TestLock {
            return Some(Request::TestLock { handle, spec });
        }
        let shared = lock == LockType::Shared;
        let needed = if shared { AccessMode::READ } else { AccessMode::WRITE };
        if self.front && !self.holdings.may(handle, needed) {
            return None;
        }
        let alone = held.iter().all(|(on, _)| on.ino == handle.ino);
        Some(Request::Lock { handle, spec, wait: alone && self.rng.chance(1, 2) })
    }
}
