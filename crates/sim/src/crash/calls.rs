//! The calls of the clients: each sequential, in a directory of its own.

use std::collections::BTreeSet;
use std::rc::Rc;

use warren_base::limits::{BLOCK_SIZE, XATTR_SHORT_MAX, XATTR_VALUE_MAX};
use warren_base::{CellId, Errno, Ino, Rng, ShardId};
use warren_cell::{Backing, SlotRef};
use warren_proto::slot::Shape;
use warren_proto::{
    AccessMode, Answer, CreateFlags, Credentials, FileKind, FileName, Handle, NewInode, Position,
    RangeChange, RangeCopy, RangeKind, RenameFlags, Reply, Request, Rules, SetAttr, XattrMode,
    XattrName,
};
use warren_supervisor::{Applicant, ConnectionNo, Event as SupervisorEvent};

use super::damage::{excuses, is_unsure};
use super::mix::{Kind, Mix};
use super::model::{Effect, Model, Name, ObjectNo, ROOT};
use super::wild::{continue_look, doubt_files, looks_again};
use super::{POOL_BYTES, World};
use crate::fleet::incident::{changes, takes_space};
use crate::fleet::notify_supervisor;
use crate::outage::shards_of;

/// Objects of a client, and its open files.
const OBJECTS_MAX: usize = 40;
const OPEN_MAX: usize = 8;
/// The longest file: that of a client that always appends.
const FILE_MAX: usize = 1 << 20;
/// The draws of a client until its call is possible.
const TRIES: usize = 20;

/// A request, its payload, and its effect.
struct Planned {
    request: Request,
    payload: Vec<u8>,
    effect: Effect,
}

fn file_name(name: &[u8]) -> FileName {
    FileName::new(name).expect("a legal name")
}

fn xattr_name(name: &[u8]) -> XattrName {
    XattrName::new(name).expect("a legal name")
}

pub(super) fn begin_operation(world: &mut World, at: usize) {
    if !world.is_working || world.is_stopping || looks_again(world, at) {
        return;
    }
    let World { clients, mix, fleet, .. } = world;
    let client = &mut clients[at];
    client.operations += 1;
    let stamp = (at as u64 + 1) << 32 | client.operations;
    let model = client.model.as_ref().expect("a client that works has one");
    let mut chooser = Chooser { model, mix, rng: &mut fleet.sim.rng, stamp };
    let planned = (0..TRIES).find_map(|_| chooser.draw());
    let Some(Planned { request, payload, effect }) = planned else {
        return world.plan_step(at);
    };
    world.operations += 1;
    world.send(at, request, &payload, Some(effect));
}

pub(super) fn connect(world: &mut World, at: usize) {
    // Like a front's kernel, the client may name every inode.
    let credentials = Credentials { checked_by_kernel: true, ..Credentials::default() };
    let applicant = Applicant {
        credentials,
        pid: 1000 + at as u32,
        front: false,
        privileged: true,
        shape: Shape::large(1),
        rules: Rules::empty(),
        mounted: Box::default(),
    };
    let connection = ConnectionNo(at as u64);
    notify_supervisor(world, SupervisorEvent::Connect { connection, applicant });
}

pub(super) fn client_answered(
    world: &mut World,
    from: CellId,
    to: SlotRef,
    seq: u32,
    answer: Answer,
) {
    let at = world.clients.iter().position(|client| client.id == to.client);
    let at = at.expect("an answer for a client");
    let client = &mut world.clients[at];
    if client.seq != seq {
        let asked = client.seq;
        return world.fleet.sim.fail(format!("{to:?} was answered {seq} while {asked} was asked"));
    }
    let Some((request, effect)) = client.under_way.take() else {
        return world.fleet.sim.fail(format!("{to:?} was answered twice: {answer:?}"));
    };
    world.answered_at = world.fleet.sim.now;
    let Some(effect) = effect else {
        world.clients[at].answer = Some((from, answer));
        return;
    };
    if matches!(effect, Effect::Look) {
        return continue_look(world, at, from, &request, answer);
    }
    doubt_files(world);
    match answer {
        Ok(reply) => note_success(world, at, &effect, &reply),
        Err(errno) => note_refusal(world, at, from, &request, errno),
    }
    world.plan_step(at);
}

fn note_success(world: &mut World, at: usize, effect: &Effect, reply: &Reply) {
    let (asked_at, _) = world.clients[at].asked;
    let must_fail =
        world.fleet.device.faults.must_sync_fail(asked_at, world.fleet.incidents.switched_at);
    if matches!(effect, Effect::Sync) && must_fail {
        return world.fleet.sim.fail("a sync is answered though a flush had failed".to_owned());
    }
    let model = world.clients[at].model.as_mut().expect("a client that works has one");
    let created = match (effect, reply) {
        (Effect::Create { .. }, Reply::Created { entry, .. }) => Some(entry.ino),
        _ => None,
    };
    if let (Effect::Open { object }, Reply::Opened(opened)) = (effect, reply) {
        model.object_mut(*object).handle = Some(opened.handle);
    }
    if let (Effect::Write { object, at: None, bytes }, Reply::Written { size, .. }) =
        (effect, reply)
    {
        let object = model.object(*object);
        let expected = object.content.now().len() + bytes.len();
        if *size != expected as u64 && !object.unsure {
            let rule = format!("an append ended at {size}, not at {expected}");
            return world.fleet.sim.fail(rule);
        }
    }
    model.apply(effect, created);
    match effect {
        Effect::Fsync { .. } => world.fleet.sim.count("fsync promised"),
        Effect::Sync => world.fleet.sim.count("sync promised"),
        Effect::Copy { .. } => world.fleet.sim.count("blocks were shared"),
        _ => {}
    }
}

/// Every request of a client is possible, unless the device fails for it, or space is short.
fn note_refusal(world: &mut World, at: usize, from: CellId, request: &Request, errno: Errno) {
    let (asked_at, _) = world.clients[at].asked;
    let model = world.clients[at].model.as_ref().expect("a client that works has one");
    let excused = match errno {
        Errno::EIO => {
            world.fleet.incidents.excuse_io(request, from, asked_at)
                || excuses(&world.fleet, model, request, &shards_out(world, asked_at))
                || has_lost_pages(world, request)
                || (*request == Request::Sync && world.outage.excuses(asked_at))
        }
        Errno::EROFS => changes(request) && world.fleet.device.faults.may_be_read_only(),
        Errno::EXDEV => matches!(request, Request::CopyRange { .. }),
        Errno::ENOSPC => {
            let may_be_full =
                is_space_short(world) || world.fleet.sizes.space.backing == Backing::OnDemand;
            may_be_full && takes_space(request)
        }
        _ => false,
    };
    let excused = excused || is_unsure(&world.fleet, model, request, errno);
    if !excused {
        return world.fleet.sim.fail(format!("client {at}: {request:?} was refused: {errno:?}"));
    }
    world.fleet.sim.count(match errno {
        Errno::EIO => "an operation failed",
        Errno::EROFS => "a change refused after a failed flush",
        Errno::ENOSPC => "no space",
        Errno::EXDEV => "a copy that shares no blocks",
        _ => "refused for what a damaged shard may hold",
    });
}

/// The shards of a cell that may have been out since this place in the order of events.
fn shards_out(world: &World, since: u64) -> BTreeSet<ShardId> {
    let cell = world.outage.cell().filter(|_| world.outage.excuses(since));
    cell.map(|cell| shards_of(&world.fleet, cell)).unwrap_or_default()
}

/// Whether pages of a file that the request names are lost.
fn has_lost_pages(world: &World, request: &Request) -> bool {
    let source = match request {
        Request::CopyRange { source, .. } => Some(source.ino),
        _ => None,
    };
    let named = [request.inode(), request.other_inode(), source];
    named.iter().flatten().any(|ino| world.fleet.incidents.wild.discarded.contains_key(ino))
}

/// Whether the clients' files fill a good part of the pool.
fn is_space_short(world: &World) -> bool {
    let models = world.clients.iter().filter_map(|client| client.model.as_ref());
    let blocks: usize = models.map(Model::blocks).sum();
    blocks as u64 * BLOCK_SIZE as u64 > POOL_BYTES / 4
}

struct Chooser<'a> {
    model: &'a Model,
    mix: &'a Mix,
    rng: &'a mut Rng,
    /// Distinguishes the data of this operation from that of any other.
    stamp: u64,
}

impl Chooser<'_> {
    /// Draws a call; `None` if it is impossible.
    fn draw(&mut self) -> Option<Planned> {
        let (request, payload, effect) = match self.mix.kind(self.rng) {
            Kind::Create => self.create(FileKind::Regular)?,
            Kind::Mkdir => self.create(FileKind::Directory)?,
            Kind::Symlink => self.create(FileKind::Symlink)?,
            Kind::Link => self.link()?,
            Kind::Unlink => self.remove(false)?,
            Kind::Rmdir => self.remove(true)?,
            Kind::Rename => self.rename()?,
            Kind::Open => self.open()?,
            Kind::Close => {
                let (object, handle) = self.opened()?;
                (Request::Close { handle }, Vec::new(), Effect::Close { object })
            }
            Kind::Write => self.write(false)?,
            Kind::Append => self.write(true)?,
            Kind::Truncate => self.truncate()?,
            Kind::Fallocate => self.fallocate()?,
            Kind::CopyRange => self.copy()?,
            Kind::Chmod => {
                let object = self.any_object(|_| true)?;
                let mode = 0o600 | self.rng.below(0o200) as u16;
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                let request = Request::SetAttr { ino: self.ino(object), handle: None, set };
                (request, Vec::new(), Effect::Chmod { object, mode })
            }
            Kind::Xattr => self.xattr()?,
            Kind::FsyncFile => self.fsync(FileKind::Regular)?,
            Kind::FsyncDir => self.fsync(FileKind::Directory)?,
            Kind::Sync => (Request::Sync, Vec::new(), Effect::Sync),
        };
        Some(Planned { request, payload, effect })
    }

    fn ino(&self, object: ObjectNo) -> Ino {
        self.model.object(object).ino.expect("known for every usable object")
    }

    /// Any object with a name, of some kind.
    fn any_object(&mut self, is_wanted: impl Fn(FileKind) -> bool) -> Option<ObjectNo> {
        let mut found = self.model.named_objects();
        found.retain(|object| is_wanted(self.model.object(*object).kind));
        (!found.is_empty()).then(|| *self.rng.pick(&found))
    }

    fn dir(&mut self) -> ObjectNo {
        self.any_object(|kind| kind == FileKind::Directory).unwrap_or(ROOT)
    }

    fn opened(&mut self) -> Option<(ObjectNo, Handle)> {
        let opened = self.model.objects.iter().filter_map(|(no, o)| Some((*no, o.handle?)));
        let opened: Vec<_> = opened.collect();
        (!opened.is_empty()).then(|| *self.rng.pick(&opened))
    }

    fn name(&mut self) -> Name {
        format!("n{}", self.rng.below(6)).into_bytes().into()
    }

    fn free_name(&mut self, dir: ObjectNo) -> Option<Name> {
        let name = self.name();
        (!self.model.object(dir).entries.now().contains_key(&name)).then_some(name)
    }

    /// A directory, and an existing name in it.
    fn entry(&mut self) -> Option<(ObjectNo, Name, ObjectNo)> {
        let dir = self.dir();
        let entries: Vec<_> = self.model.object(dir).entries.now().iter().collect();
        if entries.is_empty() {
            return None;
        }
        let (name, object) = *self.rng.pick(&entries);
        Some((dir, name.clone(), *object))
    }

    fn create(&mut self, kind: FileKind) -> Option<(Request, Vec<u8>, Effect)> {
        if self.model.named_objects().len() >= OBJECTS_MAX {
            return None;
        }
        let dir = self.dir();
        let name = self.free_name(dir)?;
        let len = 1 + self.rng.below(1500) as usize;
        let new = match kind {
            FileKind::Directory => NewInode::directory(0o755),
            FileKind::Symlink => NewInode::symlink(&vec![b'a' + (self.stamp % 26) as u8; len]),
            _ => NewInode::regular(0o644),
        };
        let (mode, target) = (new.mode, new.target.clone());
        let request = Request::Create {
            dir: self.ino(dir),
            name: file_name(&name),
            new,
            flags: CreateFlags::EXCLUSIVE,
            access: AccessMode::empty(),
        };
        Some((request, Vec::new(), Effect::Create { dir, name, kind, mode, target }))
    }

    fn link(&mut self) -> Option<(Request, Vec<u8>, Effect)> {
        let object = self.any_object(|kind| kind == FileKind::Regular)?;
        let dir = self.dir();
        let name = self.free_name(dir)?;
        let (ino, dir_ino) = (self.ino(object), self.ino(dir));
        let request = Request::Link { ino, dir: dir_ino, name: file_name(&name) };
        Some((request, Vec::new(), Effect::Link { object, dir, name }))
    }

    fn remove(&mut self, directories: bool) -> Option<(Request, Vec<u8>, Effect)> {
        let (dir, name, object) = self.entry()?;
        let object = self.model.object(object);
        let is_dir = object.kind == FileKind::Directory;
        if is_dir != directories || !object.entries.now().is_empty() {
            return None;
        }
        let (ino, file) = (self.ino(dir), file_name(&name));
        let request = match is_dir {
            true => Request::Rmdir { dir: ino, name: file },
            false => Request::Unlink { dir: ino, name: file },
        };
        Some((request, Vec::new(), Effect::Remove { dir, name }))
    }

    fn rename(&mut self) -> Option<(Request, Vec<u8>, Effect)> {
        let (from, from_name, object) = self.entry()?;
        let (dir, name) = (self.dir(), self.name());
        if self.model.is_within(dir, object) {
            return None;
        }
        let is_dir = |object: ObjectNo| self.model.object(object).kind == FileKind::Directory;
        if let Some(there) = self.model.object(dir).entries.now().get(&name) {
            let is_empty = self.model.object(*there).entries.now().is_empty();
            if is_dir(*there) != is_dir(object) || !is_empty {
                return None;
            }
        }
        let request = Request::Rename {
            from: self.ino(from),
            from_name: file_name(&from_name),
            dir: self.ino(dir),
            name: file_name(&name),
            flags: RenameFlags::empty(),
        };
        Some((request, Vec::new(), Effect::Rename { from, from_name, dir, name }))
    }

    fn open(&mut self) -> Option<(Request, Vec<u8>, Effect)> {
        let opened = self.model.objects.values().filter(|object| object.handle.is_some()).count();
        let object = self.any_object(|kind| kind == FileKind::Regular)?;
        if opened >= OPEN_MAX || self.model.object(object).handle.is_some() {
            return None;
        }
        let access = AccessMode::READ | AccessMode::WRITE;
        let request = Request::Open { ino: self.ino(object), access };
        Some((request, Vec::new(), Effect::Open { object }))
    }

    fn write(&mut self, append: bool) -> Option<(Request, Vec<u8>, Effect)> {
        let Some((object, handle)) = self.opened() else { return self.open() };
        let longest = if self.rng.chance(1, 2) { self.mix.write_max } else { 64 };
        let len = 1 + self.rng.below(longest) as usize;
        let mut offset = self.rng.below(self.mix.reach);
        if self.rng.chance(1, 3) {
            offset -= offset % BLOCK_SIZE as u64;
        }
        let at = (!append).then_some(offset);
        if append && self.model.object(object).content.now().len() + len > FILE_MAX {
            return None;
        }
        let mut stamps = Rng::new(self.stamp);
        let bytes: Vec<u8> = (0..len).map(|_| stamps.next_u64() as u8 | 1).collect();
        let position = at.map_or(Position::End, Position::At);
        let request = Request::Write {
            handle,
            position,
            kill_privileges: false,
            write_back: false,
            direct: false,
        };
        let effect = Effect::Write { object, at, bytes: Rc::from(&bytes[..]) };
        Some((request, bytes, effect))
    }

    fn truncate(&mut self) -> Option<(Request, Vec<u8>, Effect)> {
        let object = match self.rng.chance(1, 4) {
            true => self.opened()?.0,
            false => self.any_object(|kind| kind == FileKind::Regular)?,
        };
        let now = self.model.object(object).content.now().len() as u64;
        let mut size = match self.rng.chance(1, 4) {
            true => self.rng.below(self.mix.reach),
            false => self.rng.below(now + 1),
        };
        if self.rng.chance(1, 4) {
            size -= size % BLOCK_SIZE as u64;
        }
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let request = Request::SetAttr { ino: self.ino(object), handle: None, set };
        Some((request, Vec::new(), Effect::Truncate { object, size }))
    }

    fn fallocate(&mut self) -> Option<(Request, Vec<u8>, Effect)> {
        let Some((object, handle)) = self.opened() else { return self.open() };
        let block = BLOCK_SIZE as u64;
        let kinds = [RangeKind::Allocate, RangeKind::PunchHole, RangeKind::Zero];
        let kind = *self.rng.pick(&kinds);
        let keep_size = kind == RangeKind::PunchHole || self.rng.chance(1, 2);
        let reach = self.mix.reach;
        let (mut offset, mut length) = (self.rng.below(reach), self.rng.below(reach) / 2 + 1);
        if self.rng.chance(1, 2) {
            (offset, length) = (offset - offset % block, length.next_multiple_of(block));
        }
        let change = RangeChange { kind, keep_size, offset, length };
        let request = Request::Fallocate { handle, change, kill_privileges: false };
        Some((request, Vec::new(), Effect::Fallocate { object, change }))
    }

    fn copy(&mut self) -> Option<(Request, Vec<u8>, Effect)> {
        let (Some((object, handle)), Some((from, source))) = (self.opened(), self.opened()) else {
            return self.open();
        };
        let size = |object| self.model.object(object).content.now().len() as u64;
        let block = BLOCK_SIZE as u64;
        let blocks = size(from).div_ceil(block);
        if blocks == 0 || handle == source {
            return None;
        }
        let (from_size, to_size) = (size(from), size(object));
        let at = block * self.rng.below(blocks);
        let to = block * self.rng.below(self.mix.reach.div_ceil(block));
        let length = self.rng.below(from_size - at) + 1;
        let length = if self.rng.chance(1, 2) { from_size - at } else { length };
        let copy = RangeCopy { from: at, to, length };
        let length = copy.shareable(from_size, to_size)?;
        let request = Request::CopyRange { handle, source, copy, kill_privileges: false };
        let copy = RangeCopy { length, ..copy };
        Some((request, Vec::new(), Effect::Copy { object, source: from, copy }))
    }

    fn xattr(&mut self) -> Option<(Request, Vec<u8>, Effect)> {
        let object = self.any_object(|kind| kind != FileKind::Symlink)?;
        let name: Name = format!("user.{}", self.rng.below(3)).into_bytes().into();
        let (ino, has) = (self.ino(object), xattr_name(&name));
        let exists = self.model.object(object).xattrs.now().contains_key(&name);
        if exists && self.rng.chance(1, 3) {
            let effect = Effect::SetXattr { object, name, value: None };
            return Some((Request::RemoveXattr { ino, name: has }, Vec::new(), effect));
        }
        let long = [XATTR_SHORT_MAX + 1, 5000, XATTR_VALUE_MAX];
        let is_long = self.rng.chance(1, 10);
        let len = if is_long { *self.rng.pick(&long) } else { self.rng.below(1000) as usize };
        let bytes = vec![self.stamp as u8; len];
        let effect = Effect::SetXattr { object, name, value: Some(bytes.clone().into()) };
        // A value that a body has no room for is in the payload.
        let (body, payload) = if is_long { (Vec::new(), bytes) } else { (bytes, Vec::new()) };
        let (value, mode, kill_set_gid) = (body.into(), XattrMode::Any, false);
        let request = Request::SetXattr { ino, name: has, value, mode, kill_set_gid };
        Some((request, payload, effect))
    }

    fn fsync(&mut self, kind: FileKind) -> Option<(Request, Vec<u8>, Effect)> {
        let object = match (kind, self.rng.chance(1, 3)) {
            (FileKind::Regular, true) => self.opened()?.0,
            _ => self.any_object(|known| known == kind)?,
        };
        let data_only = false;
        let request = Request::Fsync { ino: self.ino(object), handle: None, data_only };
        Some((request, Vec::new(), Effect::Fsync { object }))
    }
}
