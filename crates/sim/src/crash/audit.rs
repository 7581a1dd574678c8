//! After a power cut: reads every client's directory and compares it with the allowed states.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Errno, Ino};
use warren_proto::{
    AccessMode, Attr, FileKind, FileName, Position, ReadFlags, Reply, Request, XattrName,
};

use super::damage::shard;
use super::model::{
    Effect, Entries, Model, Object, ObjectNo, OperationNo, ROOT, Versions, Xattrs, is_of_versions,
};
use super::pump::pump;
use super::{Halt, World};

/// Bytes read at once.
const PIECE: usize = 48 * 1024;

/// The objects that the damaged shard keeps from being read.
#[derive(Default)]
struct Unread {
    objects: BTreeSet<ObjectNo>,
    /// Only such objects lead there, so it may not be there; it must if all versions do.
    maybe: BTreeSet<ObjectNo>,
    required: BTreeSet<ObjectNo>,
}

/// One client's tree, as far as it was read.
struct Reading {
    may_be: Model,
    /// The objects that were found.
    found: BTreeMap<ObjectNo, Object>,
    names: BTreeMap<ObjectNo, u32>,
    links: BTreeMap<ObjectNo, u32>,
    /// For each directory, the first operation that may have left it so.
    versions: BTreeMap<ObjectNo, OperationNo>,
    /// Directories are last, so that they are read first.
    todo: Vec<ObjectNo>,
    unread: Unread,
}

/// Reads everything back. The clients continue with the result.
pub(super) fn read_back(world: &mut World) -> Result<(), Halt> {
    for at in 0..world.auditor() {
        let Some(may_be) = world.clients[at].model.clone() else { continue };
        let mut reading = Reading {
            may_be,
            found: BTreeMap::new(),
            names: BTreeMap::new(),
            links: BTreeMap::new(),
            versions: BTreeMap::new(),
            todo: Vec::new(),
            unread: Unread::default(),
        };
        look_for_unsure(&mut reading);
        reading.todo.push(ROOT);
        while let Some(object) = reading.todo.pop() {
            let read = match is_to_read(world, object, &mut reading) {
                Ok(true) => read_object(world, object, &mut reading),
                other => other.map(|_| ()),
            };
            match read {
                Err(Halt::Unreadable) => leave_out(object, &mut reading),
                read => {
                    let what = || format!("client {at}, object {object}");
                    read.map_err(|halt| halt.within(&what()))?;
                }
            }
        }
        add_unread(&mut reading);
        if !reading.unread.objects.is_empty() {
            world.fleet.sim.count("a tree read back but for a damaged shard");
        }
        let is_sure = |object: &ObjectNo| !reading.may_be.object(*object).unsure;
        for (object, links) in reading.links.iter().filter(|(object, _)| is_sure(object)) {
            let names = reading.names.get(object).copied().unwrap_or(0);
            if *links != names {
                let text = format!("client {at}, object {object}: {links} links, {names} names");
                return Err(Halt::Broken(text));
            }
        }
        world.clients[at].model = Some(Model::recovered(reading.found));
    }
    world.fleet.sim.count("a tree read back");
    Ok(())
}

fn read_object(world: &mut World, object: ObjectNo, reading: &mut Reading) -> Result<(), Halt> {
    let expected = reading.may_be.object(object).clone();
    let ino = expected.ino.expect("bound when its name was seen");
    // Which of its versions was left is not known of what could not be read once.
    if expected.unsure && Some(ino.shard()) == shard(&world.fleet) {
        return Err(Halt::Unreadable);
    }
    let Reply::Attr { attr, .. } = call(world, Request::GetAttr { ino })? else {
        return broken("no attributes".into());
    };
    if attr.kind != expected.kind {
        return broken(format!("is a {:?}, was made as a {:?}", attr.kind, expected.kind));
    }
    let mode_fits = expected.mode.versions().any(|mode| *mode == attr.mode);
    if !mode_fits && attr.kind != FileKind::Symlink {
        return broken(format!("mode {:o}, not of {:?}", attr.mode, expected.mode));
    }
    let xattrs = read_xattrs(world, ino)?;
    if !expected.xattrs.versions().any(|known| **known == xattrs) {
        return broken(format!("attributes {xattrs:?}, not of {:?}", expected.xattrs));
    }
    let mut found = Object::new(attr.kind, Some(ino), attr.mode, &expected.target);
    found.xattrs = Versions::new(Rc::new(xattrs));
    match attr.kind {
        FileKind::Directory => {
            found.entries = Versions::new(Rc::new(read_dir(world, object, ino, reading)?));
        }
        FileKind::Symlink => {
            let target = call(world, Request::ReadLink { ino })?;
            if !matches!(&target, Reply::Target(target) if *target == expected.target) {
                return broken(format!("leads to {target:?}"));
            }
        }
        _ => {
            let contents = expected.contents(&reading.versions);
            let content = read_file(world, &attr, &contents, expected.is_doubtful)?;
            found.content = Versions::new(Rc::new(content));
        }
    }
    if attr.kind != FileKind::Directory {
        reading.links.insert(object, attr.nlink);
    }
    reading.found.insert(object, found);
    Ok(())
}

fn read_xattrs(world: &mut World, ino: Ino) -> Result<Xattrs, Halt> {
    let Reply::XattrNames(names) = call(world, Request::ListXattr { ino })? else {
        return broken("no list of attributes".into());
    };
    let mut xattrs = Xattrs::new();
    for name in names {
        let asked = XattrName::new(&name).map_err(|_| Halt::Broken("a bad name".into()))?;
        let value = match call(world, Request::GetXattr { ino, name: asked })? {
            Reply::Xattr(value) => value,
            Reply::LongXattr { len } => {
                world.fleet.sim.count("a long value came");
                payload(world, len as usize).into()
            }
            _ => return broken("no attribute".into()),
        };
        xattrs.insert(name, value);
    }
    Ok(xattrs)
}

/// Checks that the entries are one of the versions of the directory.
fn read_dir(
    world: &mut World,
    object: ObjectNo,
    dir: Ino,
    reading: &mut Reading,
) -> Result<Entries, Halt> {
    let listed = list_dir(world, dir)?;
    let expected = reading.may_be.object(object).clone();
    // An object that was being created did not exist before.
    let known: BTreeSet<Ino> =
        reading.may_be.objects.values().filter_map(|object| object.ino).collect();
    let matches = |version: &Rc<Entries>| {
        version.len() == listed.len()
            && version.iter().all(|(name, object)| {
                let object = reading.may_be.object(*object);
                listed.get(name).is_some_and(|(ino, kind)| {
                    object.kind == *kind
                        && object.ino.map_or(!known.contains(ino), |known| known == *ino)
                })
            })
    };
    let found = expected.entries.versions().rev().find(|version| matches(version)).cloned();
    reading.versions.extend(expected.entries.first(matches).map(|first| (object, first)));
    let Some(version) = found else {
        let mut text = format!("entries of {dir:?} are\n    {listed:?}\n  but may be");
        for version in expected.entries.versions() {
            text.push_str("\n   ");
            for (name, no) in version.iter() {
                let object = reading.may_be.object(*no);
                let (name, ino, kind) = (name.escape_ascii(), object.ino, object.kind);
                text.push_str(&format!(" {name}=({ino:?} {kind:?})"));
            }
        }
        return broken(text);
    };
    for (name, object) in version.iter() {
        let (ino, _) = listed[name];
        let asked = Request::Lookup { dir, name: FileName::new(name).expect("legal") };
        let is_damaged = |ino: Ino| Some(ino.shard()) == shard(&world.fleet);
        let may_fail = is_damaged(dir) || is_damaged(ino);
        match ask(world, asked)? {
            Err(Errno::EIO) if may_fail => {}
            Ok(Reply::Entry(entry)) if entry.ino == ino => {}
            other => return broken(format!("{} leads to {other:?}", name.escape_ascii())),
        }
        reading.unread.maybe.remove(object);
        let bound = reading.may_be.object_mut(*object);
        bound.ino = Some(ino);
        let names = reading.names.entry(*object).or_default();
        *names += 1;
        if *names == 1 {
            let is_dir = reading.may_be.object(*object).kind == FileKind::Directory;
            let place = if is_dir { reading.todo.len() } else { 0 };
            reading.todo.insert(place, *object);
        }
    }
    Ok((*version).clone())
}

#[expect(clippy::type_complexity)]
fn list_dir(world: &mut World, dir: Ino) -> Result<BTreeMap<Box<[u8]>, (Ino, FileKind)>, Halt> {
    let (mut cookie, mut listed) = (0, BTreeMap::new());
    loop {
        let request = Request::ReadDir { dir, cookie, bytes_max: 4096, leased: false };
        let Reply::Listing { entries, end, .. } = call(world, request)? else {
            return broken("no listing".into());
        };
        for entry in entries.iter() {
            let name = entry.name.into();
            if listed.insert(name, (entry.ino, entry.kind)).is_some() {
                return broken(format!("{:?} is listed twice", entry.name));
            }
            cookie = entry.cookie;
        }
        if end || entries.is_empty() {
            return Ok(listed);
        }
    }
}

/// Checks that the content is one of the versions of the file. One that is `doubtful` may have
/// lost pages before the power was cut.
fn read_file(
    world: &mut World,
    attr: &Attr,
    versions: &[Rc<Vec<u8>>],
    is_doubtful: bool,
) -> Result<Vec<u8>, Halt> {
    let (ino, access) = (attr.ino, AccessMode::READ);
    let Reply::Opened(opened) = call(world, Request::Open { ino, access })? else {
        return broken("not opened".into());
    };
    let handle = opened.handle;
    let mut content = Vec::with_capacity(attr.size as usize);
    while (content.len() as u64) < attr.size {
        let position = Position::At(content.len() as u64);
        let request =
            Request::Read { handle, position, len: PIECE as u32, flags: ReadFlags::empty() };
        let Reply::Read { len } = call(world, request)? else {
            return broken("not read".into());
        };
        if len == 0 {
            return broken(format!("ends at {}, not at {}", content.len(), attr.size));
        }
        let read = payload(world, len as usize);
        content.extend_from_slice(&read);
    }
    call(world, Request::Close { handle })?;
    if !versions.iter().any(|version| **version == content) {
        let is_older = is_doubtful && is_of_versions(&content, versions);
        if !is_older && !is_patchwork(&content, versions) {
            return broken(describe(ino, &content, versions));
        }
        world.fleet.sim.count("a file between two versions");
    }
    Ok(content)
}

fn call(world: &mut World, request: Request) -> Result<Reply, Halt> {
    let is_damaged = request.shard().is_some_and(|of| Some(of) == shard(&world.fleet));
    ask(world, request.clone())?.map_err(|errno| match errno {
        Errno::EIO if is_damaged => Halt::Unreadable,
        errno => Halt::Broken(format!("{request:?}: {errno:?}")),
    })
}

fn ask(world: &mut World, request: Request) -> Result<Result<Reply, Errno>, Halt> {
    let at = world.auditor();
    world.send(at, request, &[], None);
    pump(world, |world| world.clients[at].answer.is_some())?;
    let (from, answer) = world.clients[at].answer.take().expect("it was waited for");
    world.answered_from = from;
    Ok(answer)
}

/// Whether the object is there and was not read. One to which only directories lead that cannot
/// be read need not be there.
fn is_to_read(world: &mut World, object: ObjectNo, reading: &mut Reading) -> Result<bool, Halt> {
    if reading.found.contains_key(&object) || reading.unread.objects.contains(&object) {
        return Ok(false);
    }
    if !reading.unread.maybe.contains(&object) {
        return Ok(true);
    }
    let ino = reading.may_be.object(object).ino.expect("known of what is looked at");
    match ask(world, Request::GetAttr { ino })? {
        // It is about to go.
        Ok(Reply::Attr { attr, .. }) if attr.nlink > 0 => Ok(true),
        Ok(_) | Err(Errno::ESTALE) if !reading.unread.required.contains(&object) => Ok(false),
        Ok(_) | Err(Errno::ESTALE) => broken("is gone, and was promised".into()),
        Err(_) => Ok(true),
    }
}

fn payload(world: &World, len: usize) -> Vec<u8> {
    world.fleet.lanes.reply(world.answered_from, world.clients[world.auditor()].slot(), len)
}

/// Makes the clients' directories, durably.
pub(super) fn set_up(world: &mut World) -> Result<(), Halt> {
    for at in 0..world.auditor() {
        let name = FileName::new(format!("client{at}").as_bytes()).expect("legal");
        let new = warren_proto::NewInode::directory(0o755);
        let (flags, access) = (warren_proto::CreateFlags::EXCLUSIVE, AccessMode::empty());
        let request = Request::Create { dir: Ino::ROOT, name, new, flags, access };
        let Reply::Created { entry, .. } = call(world, request)? else {
            return broken("not created".into());
        };
        world.clients[at].model = Some(Model::new(entry.ino, 0o755));
    }
    call(world, Request::Sync).map(|_| ())
}

/// Requests in flight at the power cut may have been executed.
pub(super) fn suppose_under_way(world: &mut World) {
    for client in &mut world.clients {
        let Some((_, Some(effect))) = client.under_way.take() else { continue };
        let model = client.model.as_mut().expect("a client that works has one");
        if !matches!(effect, Effect::Fsync { .. } | Effect::Sync) {
            model.apply(&effect, None);
        }
    }
}

/// Looks, by their numbers, at objects to which only directories lead that cannot be read.
fn look_for_unsure(reading: &mut Reading) {
    let objects = reading.may_be.objects.iter();
    let unsure = objects.filter(|(_, object)| object.unsure && object.ino.is_some());
    let is_dir = |no: &ObjectNo| reading.may_be.object(*no).kind == FileKind::Directory;
    let (dirs, files): (Vec<_>, Vec<_>) = unsure.map(|(no, _)| *no).partition(is_dir);
    reading.unread.maybe = dirs.iter().chain(&files).copied().collect();
    reading.todo = files.into_iter().chain(dirs).collect();
}

/// The object cannot be read. If it is a directory, what it may lead to is looked at by its number.
fn leave_out(object: ObjectNo, reading: &mut Reading) {
    reading.unread.objects.insert(object);
    let entries = reading.may_be.object(object).entries.clone();
    let children = |version: &Rc<Entries>| version.values().copied().collect::<BTreeSet<_>>();
    let all: BTreeSet<ObjectNo> = entries.versions().flat_map(children).collect();
    for child in all {
        let known = reading.may_be.object_mut(child);
        let was_unsure = std::mem::replace(&mut known.unsure, true);
        if known.ino.is_none() {
            continue;
        }
        let is_dir = known.kind == FileKind::Directory;
        let place = if is_dir { reading.todo.len() } else { 0 };
        reading.todo.insert(place, child);
        if !reading.names.contains_key(&child) {
            reading.unread.maybe.insert(child);
        }
        let names_it = |version: &Rc<Entries>| version.values().any(|named| *named == child);
        if !was_unsure && entries.versions().all(names_it) {
            reading.unread.required.insert(child);
        }
    }
}

/// An object that cannot be read stays as it was, as far as is known.
fn add_unread(reading: &mut Reading) {
    let Reading { may_be, found, unread, .. } = reading;
    for (no, object) in found.iter_mut() {
        object.unsure = may_be.object(*no).unsure;
    }
    let there: BTreeSet<ObjectNo> = found.keys().chain(&unread.objects).copied().collect();
    for no in &unread.objects {
        found.insert(*no, may_be.object(*no).unread(|child| there.contains(&child)));
    }
}

/// Whether write-back of some of a file's pages can leave this content: every page is that of an
/// allowed version, and the length is that of one. Or the file grew as far as its pages of a later
/// version reach: then it ends with a block, is no longer than that version, and no shorter than
/// the one it grew from. If one version is promised, nothing else is allowed.
fn is_patchwork(content: &[u8], versions: &[Rc<Vec<u8>>]) -> bool {
    let len = content.len();
    let mut shortest = usize::MAX;
    let is_sized = versions.iter().any(|version| {
        shortest = shortest.min(version.len());
        let is_on_the_way =
            len.is_multiple_of(BLOCK_SIZE) && shortest <= len && len < version.len();
        len == version.len() || is_on_the_way
    });
    if !is_sized {
        return false;
    }
    let page_of = |bytes: &[u8], at: usize| {
        let mut page = [0; BLOCK_SIZE];
        let there = bytes.get(at..bytes.len().min(at + BLOCK_SIZE)).unwrap_or(&[]);
        page[..there.len()].copy_from_slice(there);
        page
    };
    (0..len).step_by(BLOCK_SIZE).all(|at| {
        let page = page_of(content, at);
        let end = (len - at).min(BLOCK_SIZE);
        let is_of = |version: &Rc<Vec<u8>>| {
            at < version.len() && page_of(version, at)[..end] == page[..end]
        };
        versions.iter().any(is_of)
    })
}

fn describe(ino: Ino, content: &[u8], versions: &[Rc<Vec<u8>>]) -> String {
    let mut text = format!("{ino:?} has {} bytes, which no version has:", content.len());
    for version in versions {
        let differ = content.iter().zip(version.iter()).position(|(a, b)| a != b);
        let until = content.iter().zip(version.iter()).rposition(|(a, b)| a != b);
        let there = differ.map(|at| &content[at..content.len().min(at + 8)]);
        text.push_str(&format!(
            "\n    {} bytes, differs from {differ:?} to {until:?}, there is {there:?}",
            version.len()
        ));
    }
    text
}

fn broken<T>(rule: String) -> Result<T, Halt> {
    Err(Halt::Broken(rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = BLOCK_SIZE;

    fn version(pages: &[u8], len: usize) -> Rc<Vec<u8>> {
        let mut bytes: Vec<u8> = pages.iter().flat_map(|byte| [*byte; PAGE]).collect();
        bytes.truncate(len);
        Rc::new(bytes)
    }

    fn full(pages: &[u8]) -> Rc<Vec<u8>> {
        version(pages, usize::MAX)
    }

    #[test]
    fn one_promised_version_is_exact() {
        let promised = [full(&[1, 2, 3])];
        for wrong in [&[][..], &[1], &[1, 2], &[1, 2, 3, 4], &[1, 0, 3]] {
            assert!(!is_patchwork(&full(wrong), &promised), "{wrong:?}");
        }
    }

    #[test]
    fn a_file_is_no_shorter_than_promised_unless_it_was_cut() {
        let grown = [full(&[1, 2]), full(&[1, 2, 3, 4])];
        assert!(!is_patchwork(&full(&[1]), &grown));
        assert!(!is_patchwork(&[], &grown));
        assert!(is_patchwork(&full(&[1, 2, 3]), &grown));
        let cut = [full(&[1, 2]), version(&[1], 100), full(&[1, 5, 6, 7])];
        assert!(is_patchwork(&full(&[1]), &cut));
        assert!(!is_patchwork(&[], &cut));
    }

    #[test]
    fn a_cut_that_nothing_followed_leaves_one_of_two_lengths() {
        let cut = [full(&[1, 2, 3, 4]), version(&[1, 2], PAGE + 1)];
        assert!(!is_patchwork(&full(&[1, 2]), &cut));
        assert!(!is_patchwork(&full(&[1, 2, 3]), &cut));
    }

    #[test]
    fn pages_are_those_of_versions_that_had_them() {
        let versions = [full(&[1, 1, 1]), full(&[2, 1, 1]), full(&[2, 1, 3])];
        assert!(is_patchwork(&full(&[1, 1, 3]), &versions));
        assert!(!is_patchwork(&full(&[1, 2, 3]), &versions));
        let grown = [full(&[]), full(&[1]), full(&[1, 2]), full(&[1, 2, 3])];
        assert!(!is_patchwork(&full(&[1, 0, 3]), &grown));
    }
}
