//! `open` and `openat` of files that can be served.

use linux_raw_sys::general::{
    O_ACCMODE, O_APPEND, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_LARGEFILE, O_NOCTTY, O_NOFOLLOW,
    O_NONBLOCK, O_PATH, O_TRUNC,
};
use warren_base::{Errno, FileKind};
use warren_client::Held;
use warren_proto::{Attr, InodeRef, Rules};

use crate::fleet::files::{self as fleet, OpenFile, Reached};
use crate::fleet::{self as client, Client, Found, Place};
use crate::state::children;
use crate::stub;

use super::super::choice::Choices;
use super::super::facts::Admission;
use super::super::identity::READ;
use super::super::lock::Room;
use super::super::why::Why;
use super::super::{admission, answer, clock, cwd, proc};
use super::table::{Object, PATH_MAX};
use super::{parked, placeholder, places, record_locks, score, table};

/// Larger files have their data in the kernel's cache, where they need no second copy.
pub(super) const SERVED_MAX: u64 = 128 << 10;

/// Reading is no flag.
const ALLOWED: u32 = HARMLESS | O_DIRECTORY;
/// A place in the tree, which cannot be read, is served for directories. Other flags mean nothing
/// to the kernel beside O_PATH.
const ALLOWED_OF_PLACES: u32 = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
/// Flags that mean nothing here, or are the number's.
pub(super) const HARMLESS: u32 = O_NONBLOCK | O_NOCTTY | O_LARGEFILE | O_NOFOLLOW | O_CLOEXEC;

/// A file to be opened.
#[derive(Clone, Copy)]
pub(in super::super) struct Opening<'a> {
    /// Its path as the program has named it, and its place as the client walks it.
    pub path: &'a [u8],
    pub place: Place<'a>,
    /// The descriptor at which a relative path begins, if it is not the working directory.
    pub descriptor: Option<usize>,
    pub flags: u32,
    /// The mode of a new file.
    pub mode: u32,
}

impl Opening<'_> {
    pub(super) fn closes_on_exec(&self) -> bool {
        self.flags & O_CLOEXEC != 0
    }

    /// The path of the directory at whose descriptor the path begins.
    pub(super) fn base_of_descriptor<'a>(&self, room: &'a mut [u8; PATH_MAX]) -> &'a [u8] {
        let Some(descriptor) = self.descriptor.filter(|_| self.is_relative()) else { return &[] };
        match table::find(descriptor) {
            Some(directory) => directory.path(room),
            None => proc::target_of(descriptor, room).unwrap_or_default(),
        }
    }

    /// Whether it is to be written, or made.
    pub(super) fn writes(&self) -> bool {
        self.flags & (O_ACCMODE | O_CREAT | O_TRUNC) != 0
    }

    fn is_relative(&self) -> bool {
        !self.path.starts_with(b"/")
    }

    pub(super) fn kept<'a>(&'a self, base: &'a [u8], epoch: u64) -> table::Opening<'a> {
        let start = (self.is_relative() && base.is_empty()).then_some(self.place.start.ino);
        // The kernel keeps these flags, and forces one.
        let kept = O_ACCMODE | O_APPEND | O_NONBLOCK | O_NOFOLLOW | O_DIRECTORY | O_PATH;
        let forced = if self.flags & O_PATH != 0 { 0 } else { O_LARGEFILE };
        let flags = self.flags & kept | forced;
        let closes_on_exec = self.closes_on_exec();
        table::Opening { base, path: self.path, start, flags, closes_on_exec, epoch, offset: 0 }
    }
}

/// Opens a file for reading. Its answer is the program's.
pub(super) fn open(opening: &Opening<'_>, admission: &Admission) -> Result<isize, Why> {
    let is_place = opening.flags & O_PATH != 0;
    if opening.flags & !(if is_place { ALLOWED_OF_PLACES } else { ALLOWED }) != 0 {
        return Err(Why::Flags);
    }
    // Each read must reach the cell.
    if admission.facts.mount.options.rules.contains(Rules::STRICT_ATIME) && !is_place {
        return Err(Why::Kernel);
    }
    let known = if clock::is_fresh() { client::known(&opening.place) } else { None };
    let file = match known {
        Some(Err(errno)) => return missing(errno, admission),
        Some(Ok(attr)) => {
            check(&attr, opening.flags, admission)?;
            score::pays().then_some(()).ok_or(Why::NoGain)?;
            if attr.kind == FileKind::Regular { fleet::acquire(attr.ino) } else { None }
        }
        None => None,
    };
    let file = match file {
        Some(file) if placeholder::is_ready() => file,
        other => {
            if let Some(file) = other {
                fleet::release(file.held);
            }
            return ask(opening, admission);
        }
    };
    let held = file.held;
    let given = finish(file, opening, admission);
    if given.is_err() && !fleet::release(held) {
        admission::waiting(|room| fleet::drop_held(&mut room.client, held));
    }
    given
}

/// Gives the file a number.
fn finish(file: OpenFile, opening: &Opening<'_>, admission: &Admission) -> Result<isize, Why> {
    let object = Object::File(file);
    match opening.descriptor {
        None => give_number(&object, (opening, &[]), admission),
        Some(_) => finish_at_descriptor(&object, opening, admission),
    }
}

#[cold]
fn finish_at_descriptor(
    object: &Object,
    opening: &Opening<'_>,
    admission: &Admission,
) -> Result<isize, Why> {
    let mut room = [0; PATH_MAX];
    let base = opening.base_of_descriptor(&mut room);
    give_number(object, (opening, base), admission)
}

/// A name that does not exist needs no file.
fn missing(errno: Errno, admission: &Admission) -> Result<isize, Why> {
    if errno == Errno::ENOENT && admission.is_current() {
        Ok(-(errno.raw() as isize))
    } else {
        Err(Why::Kernel)
    }
}

fn check(attr: &Attr, flags: u32, admission: &Admission) -> Result<(), Why> {
    match attr.kind {
        FileKind::Directory if flags & O_PATH != 0 => return Ok(()),
        FileKind::Directory => {}
        FileKind::Regular if flags & (O_PATH | O_DIRECTORY) == 0 => {
            if attr.size > SERVED_MAX {
                return Err(Why::Large);
            }
        }
        _ => return Err(Why::NoFile),
    }
    if record_locks::has(attr.ino) {
        return Err(Why::Locked);
    }
    if answer::needs_kernel(attr, READ, admission.facts) {
        return Err(Why::Kernel);
    }
    answer::access(attr, READ, admission.facts).map_err(|_| Why::Kernel)
}

/// Whether a path begins at a directory that is served. The kernel cannot walk it before it has
/// taken the directory over, which costs more than the walk.
#[cold]
pub(in super::super) fn begins_here(descriptor: Option<usize>, path: &[u8]) -> bool {
    let start = descriptor.filter(|_| !path.starts_with(b"/"));
    start.and_then(table::find).is_some_and(|start| start.is_directory())
}

/// Opens it at its cell. A path that is used for the first time takes the cheaper way. For a
/// directory that is to be listed that is the fleet: the kernel sends four requests for a listing,
/// and keeps none.
#[cold]
fn ask(opening: &Opening<'_>, admission: &Admission) -> Result<isize, Why> {
    admission::under_lock(admission, |room| {
        let is_fleets =
            opening.flags & O_DIRECTORY != 0 || begins_here(opening.descriptor, opening.path);
        if !is_fleets && Choices::here().opens.is_kernels(opening.place.path) {
            return Err(Why::FirstUse);
        }
        let _held = placeholder::ready(admission.facts).ok_or(Why::Kernel)?;
        if !score::pays() {
            return Err(Why::NoGain);
        }
        let asked = || match reach(&mut room.client, opening) {
            Found::Is(Reached::File(file, attr)) => {
                let held = file.held;
                check(&attr, opening.flags, admission)
                    .and_then(|()| finish(file, opening, admission))
                    .inspect_err(|_| drop_held(&mut room.client, held))
            }
            Found::Is(Reached::Other(node, attr)) => {
                check(&attr, opening.flags, admission)?;
                directory(node, opening, room, admission)
            }
            Found::Fails(errno) => missing(errno, admission),
            Found::Kernel => Err(Why::Kernel),
        };
        Choices::here().opens.through_fleet(asked, |_| true)
    })
}

/// Opens a file. An object that is no file, or must be a directory, is only looked at.
fn reach(client: &mut Client, opening: &Opening<'_>) -> Found<Reached> {
    let place = opening.place;
    let known = match client::stat_over_copies(client, place) {
        None if opening.flags & (O_DIRECTORY | O_PATH) != 0 => Some(client::stat(client, place).0),
        known => known,
    };
    match known {
        None => fleet::open(client, place),
        Some(Found::Is((node, attr)))
            if attr.kind == FileKind::Regular && attr.size <= SERVED_MAX =>
        {
            match fleet::acquire(node.ino) {
                Some(file) => Found::Is(Reached::File(file, attr)),
                None => fleet::open(client, place),
            }
        }
        Some(Found::Is((node, attr))) => Found::Is(Reached::Other(node, attr)),
        Some(Found::Fails(errno)) => Found::Fails(errno),
        Some(Found::Kernel) => Found::Kernel,
    }
}

fn drop_held(client: &mut Client, held: Held) {
    if !fleet::release(held) {
        fleet::drop_held(client, held);
    }
}

/// Gives a directory a number. It has no handle, so that only its path leads to it later: an
/// absolute one, because the working directory may change.
fn directory(
    node: InodeRef,
    opening: &Opening<'_>,
    room: &mut Room,
    admission: &Admission,
) -> Result<isize, Why> {
    let mut of_descriptor = [0; PATH_MAX];
    let base = match opening.descriptor {
        _ if !opening.is_relative() => &[],
        Some(_) => opening.base_of_descriptor(&mut of_descriptor),
        None => cwd::path(&mut room.path).ok_or(Why::Relative)?,
    };
    if base.len() + 1 + opening.path.len() > PATH_MAX || opening.is_relative() && base.is_empty() {
        return Err(Why::Long);
    }
    let is_reached = !opening.is_relative()
        || begins_here(opening.descriptor, opening.path)
        || leads_to_start(base, opening, &mut room.client, admission);
    if !is_reached {
        return Err(Why::Relative);
    }
    let place = places::new().ok_or(Why::Kernel)?;
    give_number(&Object::Directory(node, place), (opening, base), admission)
}

/// Whether the program could walk from the mount's root to the directory of the kernel at which the
/// path begins. It may not search a directory above, or not any more.
fn leads_to_start(
    base: &[u8],
    opening: &Opening<'_>,
    client: &mut Client,
    admission: &Admission,
) -> bool {
    admission.facts.prefix.rest(base).is_some_and(|rest| {
        let found = client::directory(client, rest);
        matches!(found, Found::Is((start, _)) if start.ino == opening.place.start.ino)
    })
}

/// Gives the object a number. With the lock the caller holds the pin. Without the lock another
/// thread may close it meanwhile, and then the file is the kernel's.
fn give_number(
    object: &Object,
    (opening, base): (&Opening<'_>, &[u8]),
    admission: &Admission,
) -> Result<isize, Why> {
    let epoch = parked::epoch();
    let before = children();
    let number = match parked::reserve(opening.closes_on_exec()).map(usize::try_from) {
        Some(Ok(number)) => number,
        given => {
            object.forget();
            return Err(if given.is_some() { Why::Kernel } else { Why::Lost });
        }
    };
    if !table::add(number, object, &opening.kept(base, epoch)) {
        object.forget();
        parked::note_free();
        stub::close(number);
        return Err(Why::Kernel);
    }
    let Some(why) = ended(object, before, admission) else { return Ok(number as isize) };
    if let Some(file) = table::find(number)
        && file.take()
    {
        parked::note_free();
        stub::close(number);
        return Err(why);
    }
    // It has been handed over.
    Ok(number as isize)
}

/// Why a file that was just added to the table must not stay there, if that is so. Another thread
/// may have ended it before it could see the file: the client has ended, the program has locked the
/// file, watches files, or makes a child, or has made one since `before`, a number of children.
fn ended(object: &Object, before: Option<usize>, admission: &Admission) -> Option<Why> {
    if !admission.is_current() {
        return Some(Why::Lost);
    }
    if record_locks::has(object.ino()) {
        return Some(Why::Locked);
    }
    let is_seen = before.is_none() || children() != before;
    (score::is_stopped() || is_seen).then_some(Why::Kernel)
}
