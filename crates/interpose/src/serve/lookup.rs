//! A call by path, answered if it can be.
//!
//! Order: the arguments, the path, its start, the age of the last look at the mount, then what the
//! client knows without a request. Only if that is not enough, the lock is taken. Whatever is not
//! certain is left to the kernel, and so is each failure that is not one of paths.

use warren_base::Errno;
use warren_proto::{Attr, InodeRef};

use crate::call::{SystemCall, Verdict};
use crate::fleet::{self, Found, Place};
use crate::state::is_child;

use super::choice::Choices;
use super::cwd::{self, Directory};
use super::facts::{self, Admission};
use super::files::{self, Opening};
use super::lock::Room;
use super::name::Name;
use super::request::{Named, Request, Want};
use super::survey::{self, Phase};
use super::why::{self, Why};
use super::{admission, answer, clock, kernel_dirs, memory, statfs, watchers, xattrs};

/// Errors that paths have. For others the kernel is asked. A name that is too long is one of them,
/// because the kernel first looks whether its directory may be searched and still has a name.
const OF_PATHS: [Errno; 4] = [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP, Errno::EACCES];

/// Decides a call by path. `opens`: it may wait for another process.
pub(crate) fn on_call(call: &SystemCall, opens: bool) -> Verdict {
    let served = match facts::current() {
        _ if is_child() => Err(Why::Child),
        Some(admission) => serve(call, &admission),
        None => {
            let named = || Request::decode(call).ok().map(|request| request.named);
            return unserved(call, not_admitted(call, named), opens);
        }
    };
    let why = match served {
        Ok(result) => return Verdict::Served(result),
        Err(why) => why,
    };
    why::count(why);
    if let Some(failed) = files::before_kernel(call) {
        return failed;
    }
    let verdict = match (why, opens) {
        (Why::FirstUse, true) => {
            Verdict::Made(Choices::here().opens.through_kernel(|| make_waiting(call)))
        }
        (Why::FirstUse, false) => {
            Verdict::Made(Choices::here().attributes.through_kernel(|| call.make()))
        }
        (_, true) => Verdict::Wait,
        (_, false) => Verdict::Pass,
    };
    unserved(call, verdict, opens)
}

/// A file that the kernel opens may be served later.
fn unserved(call: &SystemCall, verdict: Verdict, opens: bool) -> Verdict {
    // A file that a child of `vfork` opens is not in this process.
    if opens && !is_child() { files::adoption::open(call, verdict) } else { verdict }
}

/// A call that counts as one that waited, however little time it took.
fn make_waiting(call: &SystemCall) -> isize {
    let result = call.make();
    clock::note_wait();
    result
}

/// Serves a call. This takes more of the program's stack, so it has a frame of its own.
#[inline(never)]
fn serve(call: &SystemCall, admission: &Admission) -> Result<isize, Why> {
    let request = Request::decode(call)?;
    let mut name = Name::new();
    name.copy(request.named.path)?;
    let (path, descriptor) = (name.bytes(), request.named.descriptor);
    let place = place((path, descriptor), request.follow_last, admission)?;
    let room = (request.buffer, request.size);
    match request.want {
        Want::Open { flags, mode } => {
            watchers::leave(place, admission)?;
            return files::open(&Opening { path, place, descriptor, flags, mode }, admission);
        }
        Want::ReadLink => return read_link(place, room, admission),
        Want::GetXattr(name) => return xattrs::get_at(place, (name, room), admission),
        Want::ListXattr => return xattrs::list_at(place, room, admission),
        Want::StatMount => return stat_mount(place, request.buffer, admission),
        Want::Stat | Want::Statx(_) | Want::Access(_) => {}
    }
    let is_fresh = clock::is_fresh();
    let known = if is_fresh { fleet::known(&place) } else { None };
    let found = match known {
        Some(found) => found,
        None => {
            let begins_here = files::begins_here(descriptor, place.path);
            if is_fresh && !begins_here && Choices::here().attributes.is_kernels(place.path) {
                return Err(Why::FirstUse);
            }
            walk(place, admission, is_fresh || begins_here)?
        }
    };
    if !admission.is_current() {
        return Err(Why::Lost);
    }
    match found {
        Ok(attr) => answer::give(&attr, &request, admission),
        Err(errno) => fail(errno),
    }
}

/// A call by the path that `named` finds, if that finds one.
#[cold]
#[inline(never)]
pub(super) fn not_admitted(call: &SystemCall, named: impl FnOnce() -> Option<Named>) -> Verdict {
    let phase = survey::phase();
    why::count(if phase == Phase::Never { Why::Never } else { Why::NotAdmitted });
    match phase {
        Phase::Never => {}
        Phase::Young => {
            let (result, cycles) = clock::timed(|| call.make());
            if survey::count_young(cycles)
                && let Some(named) = named()
            {
                admission::examine(named);
            }
            return Verdict::Made(result);
        }
        Phase::Looking => {
            let mut name = Name::new();
            let Some(named) = named().filter(|named| name.copy(named.path).is_ok()) else {
                return Verdict::Pass;
            };
            if let Some(purse) = survey::purse_of(name.bytes()) {
                let make = || Choices::here().attributes.through_kernel(|| call.make());
                let (result, cost) = clock::timed(make);
                admission::pay((name.bytes(), named.descriptor), purse, cost);
                return Verdict::Made(result);
            }
            if survey::count_young(0) {
                admission::examine(named);
            }
        }
    }
    Verdict::Pass
}

/// The place of a path, which may begin at a descriptor.
#[inline]
pub(super) fn place<'a>(
    (path, descriptor): (&'a [u8], Option<usize>),
    follow_last: bool,
    admission: &Admission,
) -> Result<Place<'a>, Why> {
    let start = match (path, descriptor) {
        ([], _) => return Err(Why::Empty),
        ([b'/', ..], _) => {
            let path = admission.facts.prefix.rest(path).ok_or(Why::Outside)?;
            return Ok(Place { path, start: admission.facts.mount.root, follow_last });
        }
        (_, Some(descriptor)) => match files::directory_of(descriptor) {
            Some(directory) => directory,
            None => kernel_dirs::get(descriptor, admission)?,
        },
        (_, None) => match cwd::known() {
            Directory::Inside(start) => start,
            Directory::Elsewhere => return Err(Why::Relative),
            Directory::Unknown => find_cwd(admission)?,
        },
    };
    Ok(Place { path, start, follow_last })
}

#[cold]
fn find_cwd(admission: &Admission) -> Result<InodeRef, Why> {
    let found = admission::under_lock(admission, |room| Ok(cwd::find(admission.facts, room)))?;
    match found {
        Directory::Inside(start) => Ok(start),
        Directory::Elsewhere | Directory::Unknown => Err(Why::Relative),
    }
}

/// Finds the attributes, by a request if the client lacks them. `is_fleets`: the choice is made.
#[cold]
fn walk(
    place: Place<'_>,
    admission: &Admission,
    is_fleets: bool,
) -> Result<Result<Attr, Errno>, Why> {
    admission::under_lock(admission, |room| {
        if let Some(known) = fleet::known(&place) {
            return Ok(known);
        }
        if !is_fleets && Choices::here().attributes.is_kernels(place.path) {
            return Err(Why::FirstUse);
        }
        let stat = || fleet::stat(&mut room.client, place);
        match Choices::here().attributes.through_fleet(stat, |(_, asked)| *asked).0 {
            Found::Is((_, attr)) => Ok(Ok(attr)),
            Found::Fails(errno) => Ok(Err(errno)),
            Found::Kernel => Err(Why::Kernel),
        }
    })
}

fn read_link(
    place: Place<'_>,
    (buffer, size): (usize, usize),
    admission: &Admission,
) -> Result<isize, Why> {
    admission::under_lock(admission, |room| match fleet::read_link(&mut room.client, place) {
        Found::Is(target) => {
            let target = &target[..target.len().min(size)];
            memory::give(target, buffer).map(|()| target.len() as isize).ok_or(Why::Pointer)
        }
        // Not a link.
        Found::Fails(Errno::EINVAL) => Ok(-(Errno::EINVAL.raw() as isize)),
        Found::Fails(errno) => fail(errno),
        Found::Kernel => Err(Why::Kernel),
    })
}

/// `statfs`, whose path must lead to something.
fn stat_mount(place: Place<'_>, buffer: usize, admission: &Admission) -> Result<isize, Why> {
    admission::under_lock(admission, |Room { client, .. }| match fleet::stat(client, place).0 {
        Found::Is(_) => statfs::give(client, buffer, admission),
        Found::Fails(errno) => fail(errno),
        Found::Kernel => Err(Why::Kernel),
    })
}

fn fail(errno: Errno) -> Result<isize, Why> {
    if OF_PATHS.contains(&errno) { Ok(-(errno.raw() as isize)) } else { Err(Why::Kernel) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_paths_are_answers() {
        for errno in OF_PATHS {
            assert_eq!(fail(errno), Ok(-(errno.raw() as isize)));
        }
        for errno in [Errno::EIO, Errno::ENAMETOOLONG, Errno::ESTALE, Errno::EPERM] {
            assert_eq!(fail(errno), Err(Why::Kernel));
        }
    }
}
