//! Calls that clients may post, and calls of other clients on what was posted.

use warren_base::{CellId, Ino, Rng};
use warren_client::{Op, Path, PathOp};
use warren_proto::stream::StreamPos;
use warren_proto::{
    AccessMode, Capabilities, CreateFlags, FileKind, FileName, Handle, InodeRef, NewInode,
    Position, RenameFlags, Request, SetAttr, SetTime,
};

use super::World;
use super::client::Client;
use super::event::At;
use super::kept::keeps;
use super::posting::{CROWD, Member, Posts};
use super::program::Drawn;
use crate::history::KEY;

/// Files that a slot has open when it creates another one of its own.
const OWN_MAX: usize = 3;
/// One call in so many creates one, if the slot has none.
const CREATE_IN: u64 = 8;
/// Names of such files. A file that others have used is not delegated in the rest of a run.
const OWN_NAMES: u64 = 32;
/// One change in so many is a look at a file of another client instead.
const LOOK_IN: u64 = 8;
/// Bytes by which a write is at most longer than the one before, over which it is, or bytes behind
/// that one.
const NEXT_MAX: u64 = 3000;
/// Directories of its own in which a client works, and one call on names in so many that makes
/// another one.
const DIRS_MAX: usize = 6;
const MKDIR_IN: u64 = 16;
/// Names in a directory: few, so that they are made and removed again and again.
pub(super) const NAMES: u64 = 6;
/// Names of directories in the root in which clients work. One that others have used is not
/// delegated in the rest of a run.
const DIR_NAMES: u64 = 256;
const MODES: [u16; 8] = [0o644, 0o666, 0o600, 0o6755, 0o777, 0o777, 0o1777, 0o2777];

/// Lets clients that are no fronts ask to use files and directories alone, so that they may post.
pub(super) fn request_alone(world: &mut World, at: At, op: &mut Op) {
    let is_front = world.clients[at.client].front.is_some();
    if is_front
        || !world.posts.may_happen()
        || keeps(&world.swarm) && world.fleet.sim.rng.chance(1, 2)
    {
        return;
    }
    let access = match op {
        Op::Ino(Request::Open { access, .. }, _) if access.contains(AccessMode::WRITE) => access,
        Op::Ino(Request::Create { access, .. }, _) | Op::At(_, PathOp::Create { access, .. }) => {
            access
        }
        _ => return,
    };
    access.remove(AccessMode::KEEP | AccessMode::DATA);
    access.insert(AccessMode::SOLE);
}

/// Other clients may use the members whose records are executed. In some runs all calls do.
pub(super) fn learn_members(world: &mut World) {
    let streams = &world.fleet.lanes.streams;
    for member in &mut world.members {
        let is_made = |&(cell, end): &(CellId, StreamPos)| {
            !streams.outcome((cell, member.client)).executed.is_before(end)
        };
        if member.record.is_some_and(|record| is_made(&record)) {
            member.record = None;
            if world.posts.crowd == CROWD {
                world.known.add(member.ino, member.kind);
            }
        }
    }
}

/// Often draws a change of what the client alone uses, or a call on what another one does.
pub(super) fn draw_change(world: &mut World, at: At) -> Option<Drawn> {
    let Posts { eager, names, .. } = world.posts;
    if eager == 0 || !world.fleet.sim.rng.chance(eager, 100) {
        return None;
    }
    if world.fleet.sim.rng.chance(names, 100) {
        return Some(draw_names(world, at));
    }
    let own = own_files(world, at);
    if own.is_empty() && world.fleet.sim.rng.chance(1, CREATE_IN) {
        return draw_own_file(world, at);
    }
    if own.is_empty() || world.fleet.sim.rng.chance(1, LOOK_IN) {
        return draw_look(world, at);
    }
    Some(draw_file(world, at, &own))
}

fn plain(request: Request) -> Drawn {
    (Op::Ino(request, Capabilities::default()), Vec::new())
}

/// Handles of the slot whose files are delegated to the client.
fn own_files(world: &World, at: At) -> Vec<Handle> {
    let client = &world.clients[at.client];
    let held = client.slots[at.slot].holdings.handles.iter().map(|(handle, _)| *handle);
    held.filter(|held| client.cache.is_delegated(held.ino)).collect()
}

/// Draws a change of one of the files.
fn draw_file(world: &mut World, at: At, own: &[Handle]) -> Drawn {
    let client = &world.clients[at.client];
    let holdings = &client.slots[at.slot].holdings;
    let is_root = client.credentials.uid == 0;
    let (swarm, now) = (&world.swarm, world.fleet.sim.wall());
    let (reach, longest) = (swarm.reach, swarm.write_max);
    if let Some(last) = world.fleet.lanes.streams.last_write(client.id)
        && own.contains(&last.0)
        && world.fleet.sim.rng.chance(2, 3)
    {
        return draw_next_write(world, last, is_root);
    }
    let rng = &mut world.fleet.sim.rng;
    let handle = *rng.pick(own);
    let may_close = !holdings.locks_by(handle);
    let set = SetAttr { kill_privileges: rng.chance(1, 3), ..SetAttr::default() };
    let times = [None, Some(SetTime::Now), Some(SetTime::At(now))];
    let set = match rng.below(16) {
        0 if may_close => return plain(Request::Close { handle }),
        1 => SetAttr { mode: Some(*rng.pick(&[0o600, 0o644, 0o6755])), ..set },
        2 => SetAttr { atime: *rng.pick(&times), mtime: *rng.pick(&times), ..set },
        3 => SetAttr { size: Some(rng.below(reach)), ..set },
        4 => SetAttr { uid: is_root.then_some(1000), gid: Some(1000), ..set },
        _ => {
            let at_end = rng.chance(1, 2);
            let position = if at_end { Position::End } else { Position::At(rng.below(reach)) };
            let bytes = vec![rng.below(256) as u8; rng.below(longest + 1) as usize];
            let (kill_privileges, write_back, direct) = (!is_root, false, false);
            let write = Request::Write { handle, position, kill_privileges, write_back, direct };
            return (Op::Ino(write, Capabilities::default()), bytes);
        }
    };
    plain(Request::SetAttr { ino: handle.ino, handle: Some(handle), set })
}

/// Draws a write behind the last one that the client has posted, or over it.
fn draw_next_write(
    world: &mut World,
    (handle, position, len): (Handle, Position, usize),
    is_root: bool,
) -> Drawn {
    let rng = &mut world.fleet.sim.rng;
    let more = rng.below(NEXT_MAX) as usize;
    let (position, len) = match position {
        Position::At(offset) if rng.chance(1, 2) => (Position::At(offset), len + more),
        Position::At(offset) => (Position::At(offset + len as u64), more),
        _ => (Position::End, more),
    };
    let bytes = vec![rng.below(256) as u8; len];
    let (kill_privileges, write_back, direct) = (!is_root, false, false);
    let write = Request::Write { handle, position, kill_privileges, write_back, direct };
    (Op::Ino(write, Capabilities::default()), bytes)
}

/// Draws the creation of a file that may be the client's own.
fn draw_own_file(world: &mut World, at: At) -> Option<Drawn> {
    if world.slot(at).holdings.handles.len() >= OWN_MAX {
        return None;
    }
    let name = format!("p{}", world.fleet.sim.rng.below(OWN_NAMES));
    let name = FileName::new(name.as_bytes()).expect("a legal name");
    let (dir, new, flags) = (Ino::ROOT, NewInode::regular(0o666), CreateFlags::OPEN);
    let access = AccessMode::READ | AccessMode::WRITE;
    Some(plain(Request::Create { dir, name, new, flags, access }))
}

/// Draws a look at a file that another client alone uses.
fn draw_look(world: &mut World, at: At) -> Option<Drawn> {
    let others =
        world.clients.iter().enumerate().filter(|(n, other)| *n != at.client && !other.is_gone);
    let delegated = others.flat_map(|(_, other)| {
        let held = other.slots.iter().flat_map(|slot| &slot.holdings.handles);
        held.map(|(handle, _)| handle.ino).filter(|ino| other.cache.is_delegated(*ino))
    });
    let is_made = |it: &Member| it.record.is_none();
    let is_known = |ino: &Ino| world.members.iter().all(|it| it.ino != *ino || is_made(it));
    let delegated: Vec<Ino> = delegated.filter(is_known).collect();
    if delegated.is_empty() {
        return None;
    }
    let ino = *world.fleet.sim.rng.pick(&delegated);
    Some(plain(Request::GetAttr { ino }))
}

/// Draws a call in a directory that the client alone changes, or in one of another client.
fn draw_names(world: &mut World, at: At) -> Drawn {
    let Client { cache, id, .. } = &world.clients[at.client];
    let usable = world.members.iter().filter(|it| it.record.is_none() || it.client == *id);
    let (own, others): (Vec<Member>, Vec<Member>) =
        usable.copied().partition(|it| cache.is_delegated(it.ino));
    // Directories of the client that are not delegated yet: it gets one with the second change.
    let made = others.iter().filter(|it| it.client == *id && it.kind == FileKind::Directory);
    let made: Vec<Ino> = made.map(|it| it.ino).collect();
    let [own, others] = [own, others].map(Members::new);
    let crowd = world.posts.crowd;
    let opens = world.clients[at.client].slots[at.slot].holdings.handles.len() <= OWN_MAX;
    let rng = &mut world.fleet.sim.rng;
    if !others.dirs.is_empty() && rng.chance(1, crowd) {
        let dir = *rng.pick(&others.dirs);
        let held = world.clients[at.client].slots[at.slot].holdings.handles.iter();
        let is_others = |handle: &Handle| others.files.contains(&handle.ino);
        let held: Vec<Handle> = held.map(|(handle, _)| *handle).filter(is_others).collect();
        return match rng.below(6) {
            0 => change_names(world, at, (dir, dir), &others.files),
            1 | 2 if !held.is_empty() => draw_file(world, at, &held),
            _ => look_at_names(rng, dir, &others.files, opens),
        };
    }
    if own.dirs.is_empty() && !made.is_empty() && rng.chance(1, 2) {
        let dir = *rng.pick(&made[made.len().saturating_sub(3)..]);
        return change_names(world, at, (dir, dir), &own.files);
    }
    if own.dirs.is_empty() || own.dirs.len() < DIRS_MAX && rng.chance(1, MKDIR_IN) {
        let (new, flags, access) = (directory(rng), CreateFlags::EXCLUSIVE, AccessMode::SOLE);
        let (dir, name) = (Ino::ROOT, draw_name(rng, 'd', DIR_NAMES));
        return plain(Request::Create { dir, name, new, flags, access });
    }
    let dirs = (*rng.pick(&own.dirs), *rng.pick(&own.dirs));
    let handles = own_files(world, at);
    if !handles.is_empty() && world.fleet.sim.rng.chance(1, 4) {
        return draw_file(world, at, &handles);
    }
    change_names(world, at, dirs, &own.files)
}

/// Members, by kind.
struct Members {
    dirs: Vec<Ino>,
    files: Vec<Ino>,
}

impl Members {
    fn new(all: Vec<Member>) -> Self {
        let of =
            |kind: FileKind| all.iter().filter(|it| it.kind == kind).map(|it| it.ino).collect();
        Self { dirs: of(FileKind::Directory), files: of(FileKind::Regular) }
    }
}

pub(super) fn draw_name(rng: &mut Rng, first: char, count: u64) -> FileName {
    FileName::new(format!("{first}{}", rng.below(count)).as_bytes()).expect("a legal name")
}

fn directory(rng: &mut Rng) -> NewInode {
    NewInode::directory(*rng.pick(&[0o755, 0o777, 0o777, 0o777, 0o1777, 0o2777, 0o700]))
}

fn look_at_names(rng: &mut Rng, dir: Ino, files: &[Ino], opens: bool) -> Drawn {
    match rng.below(6) {
        0 => (Op::List(dir.into()), Vec::new()),
        1 => plain(Request::GetAttr { ino: dir }),
        2 if !files.is_empty() => plain(Request::GetAttr { ino: *rng.pick(files) }),
        3 if !files.is_empty() && opens => {
            let access = AccessMode::READ | AccessMode::WRITE;
            plain(Request::Open { ino: *rng.pick(files), access })
        }
        _ => plain(Request::Lookup { dir, name: draw_name(rng, 'n', NAMES) }),
    }
}

/// Draws a change of names in the first directory, or a rename to the second, or a change of the
/// attributes of one of the files.
fn change_names(world: &mut World, at: At, (dir, to): (Ino, Ino), files: &[Ino]) -> Drawn {
    let client = &world.clients[at.client];
    let (is_front, id) = (client.front.is_some(), client.id);
    let opens = client.slots[at.slot].holdings.handles.len() <= OWN_MAX;
    let rng = &mut world.fleet.sim.rng;
    let name = draw_name(rng, 'n', NAMES);
    let request = match rng.below(20) {
        0 | 1 => Request::Rmdir { dir, name },
        2..=4 => Request::Unlink { dir, name },
        5..=7 => {
            let none = RenameFlags::empty();
            let all = [none, none, none, RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
            let (flags, new_name) = (*rng.pick(&all), draw_name(rng, 'n', NAMES));
            Request::Rename { from: dir, from_name: name, dir: to, name: new_name, flags }
        }
        8 | 9 if !files.is_empty() => {
            let set = SetAttr { mode: Some(*rng.pick(&MODES)), ..SetAttr::default() };
            return plain(Request::SetAttr { ino: *rng.pick(files), handle: None, set });
        }
        10 => Request::Lookup { dir, name },
        11 if !files.is_empty() => Request::GetAttr { ino: *rng.pick(files) },
        12 if !files.is_empty() => Request::Link { ino: *rng.pick(files), dir, name },
        _ => create(rng, (dir, name), opens),
    };
    let path = |dir: Ino, name: &FileName| Path {
        start: InodeRef { ino: dir, capability: KEY.capability(id, dir) },
        ..Path::no_follow(name.as_bytes())
    };
    if is_front || rng.chance(1, 2) {
        return plain(request);
    }
    let op = match request {
        Request::Create { dir, name, new, flags, access } => {
            Op::At(path(dir, &name), PathOp::Create { new, flags, access })
        }
        Request::Unlink { dir, name } => Op::At(path(dir, &name), PathOp::Unlink),
        Request::Rmdir { dir, name } => Op::At(path(dir, &name), PathOp::Rmdir),
        Request::Rename { from, from_name, dir, name, flags } => {
            Op::Rename { from: path(from, &from_name), to: path(dir, &name), flags }
        }
        request => return plain(request),
    };
    (op, Vec::new())
}

fn create(rng: &mut Rng, (dir, name): (Ino, FileName), opens: bool) -> Request {
    let both = AccessMode::READ | AccessMode::WRITE;
    let exclusive = CreateFlags::EXCLUSIVE;
    let regular = NewInode::regular(*rng.pick(&MODES));
    let (new, flags, access) = match rng.below(10) {
        0 | 1 => (directory(rng), exclusive, AccessMode::SOLE),
        2 => (NewInode::symlink(b"n0"), exclusive, AccessMode::SOLE),
        3 if opens => (regular, CreateFlags::OPEN, both),
        4 if opens => (regular, CreateFlags::OPEN | CreateFlags::NAMELESS, both),
        5..=9 if opens => (regular, CreateFlags::OPEN | exclusive, both),
        _ => (regular, exclusive, AccessMode::empty()),
    };
    let new = NewInode { umask: *rng.pick(&[0, 0o22]), ..new };
    Request::Create { dir, name, new, flags, access }
}
