//! The calls of the clients: each sequential, in a directory of its own.

use std::collections::BTreeSet;
use std::rc::Rc;

use warren_base::limits::{BLOCK_SIZE, XATTR_SHORT_MAX, XATTR_VALUE_MAX};
use warren_base::{CellId, Errno, Ino, Rng, ShardId};
use warren_cell::{Backing, SlotRef};
use warren_proto::slot::Shape;
use warren_proto::{
    AccessMode, Answer, CreateFlags, Credentials, FileKind, FileName, Handle, NewInode, Position,
    RangeChange, RangeCopy, RangeKind, RenameFlags, Reply, Request, RequestHeader, Rules, SetAttr,
    XattrMode, XattrName,
};
use warren_supervisor::{Applicant, ConnectionNo, Event as SupervisorEvent};

use super::damage::{excuses, is_unsure};
use super::mix::{Kind, Mix};
use super::model::{Effect, Model, Name, ObjectNo, ROOT};
use super::{Own, POOL_BYTES, World};
use crate::fleet::incident::{changes, takes_space};
use crate::fleet::{MAP_VERSION, notify_supervisor};
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

impl World {
    pub(super) fn plan_step(&mut self, client: usize) {
        let think = match self.fleet.sim.rng.chance(1, 8) {
            true => self.fleet.sim.rng.below(self.mix.think),
            false => self.fleet.sim.rng.below(self.mix.think.min(2000)),
        };
        self.plan(think, Own::Step { client });
    }

    pub(super) fn begin_operation(&mut self, at: usize) {
        if !self.is_working || self.is_stopping || self.looks_again(at) {
            return;
        }
        let World { clients, mix, fleet, .. } = self;
        let client = &mut clients[at];
        client.operations += 1;
        let stamp = (at as u64 + 1) << 32 | client.operations;
        let model = client.model.as_ref().expect("a client that works has one");
        let mut chooser = Chooser { model, mix, rng: &mut fleet.sim.rng, stamp };
        let planned = (0..TRIES).find_map(|_| chooser.draw());
        let Some(Planned { request, payload, effect }) = planned else {
            return self.plan_step(at);
        };
        self.operations += 1;
        self.send(at, request, &payload, Some(effect));
    }

    pub(super) fn send(
        &mut self,
        at: usize,
        request: Request,
        payload: &[u8],
        effect: Option<Effect>,
    ) {
        let asked = (self.fleet.sim.place(), self.fleet.sim.now);
        let client = &mut self.clients[at];
        client.seq += 1;
        client.asked = asked;
        client.under_way = Some((request.clone(), effect));
        let (slot, seq) = (client.slot(), client.seq);
        self.fleet.lanes.put_request(slot, payload);
        let cell = match request.shard() {
            Some(shard) => self.fleet.owner(shard),
            None => CellId(self.fleet.sim.rng.below(self.fleet.cells.len() as u64) as u16),
        };
        let payload_len = payload.len() as u32;
        let header =
            RequestHeader { seq, map_version: MAP_VERSION, payload_len, ..Default::default() };
        self.fleet.plan_request(cell, slot, header, request);
    }

    pub(super) fn connect(&mut self, at: usize) {
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
        notify_supervisor(self, SupervisorEvent::Connect { connection, applicant });
    }

    pub(super) fn client_answered(&mut self, from: CellId, to: SlotRef, seq: u32, answer: Answer) {
        let at = self.clients.iter().position(|client| client.id == to.client);
        let at = at.expect("an answer for a client");
        let client = &mut self.clients[at];
        if client.seq != seq {
            let asked = client.seq;
            return self
                .fleet
                .sim
                .fail(format!("{to:?} was answered {seq} while {asked} was asked"));
        }
        let Some((request, effect)) = client.under_way.take() else {
            return self.fleet.sim.fail(format!("{to:?} was answered twice: {answer:?}"));
        };
        self.answered_at = self.fleet.sim.now;
        let Some(effect) = effect else {
            self.clients[at].answer = Some((from, answer));
            return;
        };
        if matches!(effect, Effect::Look) {
            return self.looked(at, from, &request, answer);
        }
        self.doubt();
        match answer {
            Ok(reply) => self.succeeded(at, &effect, &reply),
            Err(errno) => self.refused(at, from, &request, errno),
        }
        self.plan_step(at);
    }

    fn succeeded(&mut self, at: usize, effect: &Effect, reply: &Reply) {
        let (asked_at, _) = self.clients[at].asked;
        let must_fail =
            self.fleet.device.faults.must_sync_fail(asked_at, self.fleet.incidents.switched_at);
        if matches!(effect, Effect::Sync) && must_fail {
            return self.fleet.sim.fail("a sync is answered though a flush had failed".to_owned());
        }
        let model = self.clients[at].model.as_mut().expect("a client that works has one");
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
                return self.fleet.sim.fail(rule);
            }
        }
        model.apply(effect, created);
        match effect {
            Effect::Fsync { .. } => self.fleet.sim.count("fsync promised"),
            Effect::Sync => self.fleet.sim.count("sync promised"),
            Effect::Copy { .. } => self.fleet.sim.count("blocks were shared"),
            _ => {}
        }
    }

    /// Every request of a client is possible, unless the device fails for it, or space is short.
    fn refused(&mut self, at: usize, from: CellId, request: &Request, errno: Errno) {
        let (asked_at, _) = self.clients[at].asked;
        let model = self.clients[at].model.as_ref().expect("a client that works has one");
        let excused = match errno {
            Errno::EIO => {
                self.fleet.incidents.excuse_io(request, from, asked_at)
                    || excuses(&self.fleet, model, request, &self.out(asked_at))
                    || self.has_lost_pages(request)
                    || (*request == Request::Sync && self.outage.excuses(asked_at))
            }
            Errno::EROFS => changes(request) && self.fleet.device.faults.may_be_read_only(),
            Errno::EXDEV => matches!(request, Request::CopyRange { .. }),
            Errno::ENOSPC => {
                let may_be_full =
                    self.is_space_short() || self.fleet.sizes.space.backing == Backing::OnDemand;
                may_be_full && takes_space(request)
            }
            _ => false,
        };
        let excused = excused || is_unsure(&self.fleet, model, request, errno);
        if !excused {
            return self.fleet.sim.fail(format!("client {at}: {request:?} was refused: {errno:?}"));
        }
        self.fleet.sim.count(match errno {
            Errno::EIO => "an operation failed",
            Errno::EROFS => "a change refused after a failed flush",
            Errno::ENOSPC => "no space",
            Errno::EXDEV => "a copy that shares no blocks",
            _ => "refused for what a damaged shard may hold",
        });
    }

    /// The shards of a cell that may have been out since this place in the order of events.
    fn out(&self, since: u64) -> BTreeSet<ShardId> {
        let cell = self.outage.cell().filter(|_| self.outage.excuses(since));
        cell.map(|cell| shards_of(&self.fleet, cell)).unwrap_or_default()
    }

    /// Whether pages of a file that the request names are lost.
    fn has_lost_pages(&self, request: &Request) -> bool {
        let source = match request {
            Request::CopyRange { source, .. } => Some(source.ino),
            _ => None,
        };
        let named = [request.inode(), request.other_inode(), source];
        named.iter().flatten().any(|ino| self.fleet.incidents.wild.discarded.contains_key(ino))
    }

    /// Whether the clients' files fill a good part of the pool.
    fn is_space_short(&self) -> bool {
        let models = self.clients.iter().filter_map(|client| client.model.as_ref());
        let blocks: usize = models.map(Model::blocks).sum();
        blocks as u64 * BLOCK_SIZE as u64 > POOL_BYTES / 4
    }
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
