//! Files of which pages were damaged in the frames of a dead process. Before its next call the
//! client looks at them: through the handle that it has, and then through a new one.
//!
//! ```text
//! has a handle: read ──▶ EIO, if and only if a later process reports a loss: close
//!                    ──▶ open ──▶ read all ──▶ close
//! ```
//!
//! If no cell has reported it, the file must be as the client has left it. Otherwise each byte must
//! be that of an allowed version: a page that is lost may be older, and what was cut off since
//! stays so.

use warren_base::{CellId, Errno, Ino};
use warren_proto::{AccessMode, Answer, FileKind, Handle, Position, ReadFlags, Reply, Request};

use super::World;
use super::model::{Effect, LookAgain, ObjectNo, is_of_versions};

/// Bytes read at once.
const PIECE: u32 = 48 * 1024;

const fn read_at(handle: Handle, at: usize, len: u32) -> Request {
    let (position, flags) = (Position::At(at as u64), ReadFlags::empty());
    Request::Read { handle, position, len, flags }
}

/// Clients no longer know what is in the files of which pages were damaged.
pub(super) fn doubt_files(world: &mut World) {
    let wild = &world.fleet.incidents.wild;
    let is_wild = |ino: Ino| wild.damaged.contains(&ino) || wild.discarded.contains_key(&ino);
    let models = world.clients.iter_mut().filter_map(|client| client.model.as_mut());
    for object in models.flat_map(|model| model.objects.values_mut()) {
        object.is_doubtful |= object.ino.is_some_and(is_wild);
    }
}

/// Begins to look at a file that may have lost pages, if there is one.
pub(super) fn looks_again(world: &mut World, at: usize) -> bool {
    doubt_files(world);
    let Some(model) = &world.clients[at].model else { return false };
    let mut named = model.named_objects().into_iter();
    let is_wanted = |no: &ObjectNo| {
        let object = model.object(*no);
        object.is_doubtful && object.kind == FileKind::Regular
    };
    let Some(object) = named.find(is_wanted) else { return false };
    let (ino, handle) = (model.object(object).ino, model.object(object).handle);
    let ino = ino.expect("of a usable object");
    world.fleet.incidents.wild.damaged.remove(&ino);
    world.fleet.incidents.wild.spared.insert(ino);
    let looking = LookAgain { object, ino, handle, content: Vec::new(), is_done: false };
    world.clients[at].looking = Some(looking);
    let request = match handle {
        Some(handle) => read_at(handle, 0, 1),
        None => Request::Open { ino, access: AccessMode::READ },
    };
    world.send(at, request, &[], Some(Effect::Look));
    true
}

/// The next request about the file was answered.
pub(super) fn continue_look(
    world: &mut World,
    at: usize,
    from: CellId,
    request: &Request,
    answer: Answer,
) {
    let mut looking = world.clients[at].looking.take().expect("the client looks at a file");
    let LookAgain { object, ino, .. } = looking;
    let is_lost = world.fleet.incidents.wild.discarded.contains_key(&ino);
    let opens = Request::Open { ino, access: AccessMode::READ };
    let next = match (request, answer) {
        (Request::Read { handle, .. }, answer) if looking.handle == Some(*handle) => {
            let has_ended = world.fleet.incidents.wild.has_ended(*handle);
            match answer {
                Err(Errno::EIO) if has_ended => {
                    world.fleet.sim.count("a handle ended with EIO");
                    Request::Close { handle: *handle }
                }
                Ok(_) if !has_ended => opens,
                other => {
                    let rule = format!("{handle:?} has ended: {has_ended}; read: {other:?}");
                    return world.fleet.sim.fail(rule);
                }
            }
        }
        (Request::Close { .. }, Ok(_)) if looking.is_done => {
            return compare_content(world, at, object, ino, &looking.content, is_lost);
        }
        (Request::Close { .. }, Ok(_)) => {
            let model = world.clients[at].model.as_mut().expect("it works");
            model.object_mut(object).handle = None;
            opens
        }
        (Request::Open { .. }, Ok(Reply::Opened(opened))) => read_at(opened.handle, 0, PIECE),
        (Request::Read { handle, .. }, Ok(Reply::Read { len: 0 })) => {
            looking.is_done = true;
            Request::Close { handle: *handle }
        }
        (Request::Read { handle, .. }, Ok(Reply::Read { len })) => {
            let slot = world.clients[at].slot();
            looking.content.extend(world.fleet.lanes.reply(from, slot, len as usize));
            read_at(*handle, looking.content.len(), PIECE)
        }
        (request, other) => {
            return world.fleet.sim.fail(format!("a new look: {request:?}: {other:?}"));
        }
    };
    world.clients[at].looking = Some(looking);
    world.send(at, next, &[], Some(Effect::Look));
}

/// The whole file was read.
fn compare_content(
    world: &mut World,
    at: usize,
    no: ObjectNo,
    ino: Ino,
    content: &[u8],
    is_lost: bool,
) {
    world.fleet.incidents.wild.spared.remove(&ino);
    world.fleet.incidents.wild.discarded.remove(&ino);
    let model = world.clients[at].model.as_mut().expect("it works");
    let versions: Vec<_> = model.object(no).content.versions().cloned().collect();
    let now = model.object(no).content.now();
    let is_right = match is_lost {
        true => content.len() == now.len() && is_of_versions(content, &versions),
        false => **now == content,
    };
    model.settle_content(no, content);
    if !is_right {
        let rule = format!("{ino:?}, has lost pages: {is_lost}, has bytes of no version");
        return world.fleet.sim.fail(rule);
    }
    world.fleet.sim.count(if is_lost {
        "lost pages are older"
    } else {
        "damaged pages are restored"
    });
    world.plan_step(at);
}
