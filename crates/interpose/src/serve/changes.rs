//! Calls that change names, or attributes by path: `mkdir`, `unlink`, `rename`, `link`, `symlink`,
//! `chmod`, `chown`, `utimensat` and their kin (decision 41).
//!
//! Each is one request to the fleet, once the directories on its way are known. Fronts of the pool
//! take back what their kernels know of the names before the request is answered, as for any other
//! client.
//!
//! The kernel shows the path of the working directory (`getcwd`) by names of its own, and these
//! follow a change only if the kernel makes it. So it makes each change that may move or remove
//! that directory.

mod linked;
mod request;

use warren_base::{Errno, FileKind};
use warren_client::{Op, Path, PathOp};
use warren_proto::{AccessMode, CreateFlags, NewInode, RenameFlags, SetAttr};

use crate::call::{SystemCall, Verdict};
use crate::fleet::{self, Found, Place, names};
use crate::state::{Flag, is_child};

use super::facts::{self, Admission};
use super::lock::Room;
use super::lookup::{self, not_admitted};
use super::loss::Loss;
use super::name::{Name, ends_plainly};
use super::request::Named;
use super::why::{self, Why};
use super::{admission, cwd, files, umask, watchers, xattrs};
use request::{Request, Want};

/// Whether changes are served.
pub(crate) struct Changes {
    /// The process watches files: the kernel shows a watcher only the changes that it makes itself.
    is_watching: Flag,
}

/// Leaves changes to the kernel from now on, because the program watches files.
pub(super) fn stop() {
    Changes::here().is_watching.set(true);
}

/// A call of one of the classes `Names` and `Above`. The latter may also change where paths lead.
#[inline(never)]
pub(super) fn on_call(call: &SystemCall, above: bool) -> Verdict {
    let unserved = if above { Verdict::Change } else { Verdict::Pass };
    let served = match facts::current() {
        _ if is_child() => Err(Why::Child),
        Some(_) if Changes::here().is_watching.get() => Err(Why::Watched),
        Some(admission) => serve(call, &admission),
        None => {
            hand_over_lost(call);
            let named = || Request::decode(call).ok().map(|request| request.named);
            return match not_admitted(call, named) {
                Verdict::Pass => unserved,
                verdict => verdict,
            };
        }
    };
    match served {
        Ok(result) => return Verdict::Served(result),
        Err(why) => why::count(why),
    }
    hand_over_lost(call);
    files::before_kernel(call).unwrap_or(unserved)
}

/// Hands over files that a change may take away, before the kernel makes it.
fn hand_over_lost(call: &SystemCall) {
    if files::holds_numbers() && !is_child() {
        files::before_loss(Loss::of(call), None);
    }
}

fn serve(call: &SystemCall, admission: &Admission) -> Result<isize, Why> {
    if !admission.facts.mount.options.lets_change() {
        return Err(Why::Kernel);
    }
    let Request { named, want, follow } = Request::decode(call)?;
    if let Want::Set(set) = want
        && follow
        && let Some(descriptor) = linked::descriptor_of(named.path)
    {
        return linked::set(descriptor, set, admission)?.result().ok_or(Why::Kernel);
    }
    let mut name = Name::new();
    let first = place(named, follow, &mut name, admission)?;
    if let Want::Set(set) = want {
        keep_open(first, set, admission)?;
    }
    watchers::leave(first, admission)?;
    let change =
        |op| admission::under_lock(admission, |room| Ok(names::at(&mut room.client, first, op)));
    let found = match want {
        Want::Rename(to, flags) => {
            // Until a kernel looks up the new name of a directory, `..` of processes that are in
            // it leads to its old parent, and `getcwd` says its old path.
            let flags = flags | RenameFlags::FILES;
            change_two(first, to, admission, |from, to| Op::Rename { from, to, flags })?
        }
        Want::Link(to) => change_two(first, to, admission, |from, to| Op::Link { from, to })?,
        Want::MakeSymlink(target) => symlink(first, target, admission)?,
        Want::MakeDirectory(mode) => admission::under_lock(admission, |room| {
            let umask = umask::get(room).ok_or(Why::Kernel)?;
            let new = NewInode { umask, ..NewInode::directory(mode) };
            Ok(names::at(&mut room.client, first, create(new)))
        })?,
        Want::Unlink => change(PathOp::Unlink)?,
        Want::RemoveDirectory => admission::under_lock(admission, |room| {
            keep_ways(first, room)?;
            Ok(names::at(&mut room.client, first, PathOp::Rmdir))
        })?,
        Want::Set(set) => change(PathOp::SetAttr(set))?,
        Want::SetXattr(name, new) => xattrs::change_at(first, (name, new), admission)?,
    };
    found.result().ok_or(Why::Kernel)
}

/// Changes two names. This takes more of the program's stack, so it has a frame of its own.
#[inline(never)]
fn change_two(
    from: Place<'_>,
    to: Named,
    admission: &Admission,
    op: impl FnOnce(Path, Path) -> Op,
) -> Result<Found<()>, Why> {
    let mut name = Name::new();
    let to = place(to, false, &mut name, admission)?;
    watchers::leave(to, admission)?;
    admission::under_lock(admission, |room| Ok(names::between(&mut room.client, from, to, op)))
}

/// Fails if a directory at this place is the working directory, one above it, or open. The kernel
/// must make such a change: it remembers the path of the working directory, and could not take
/// over an open directory that has lost its name.
fn keep_ways(place: Place<'_>, room: &mut Room) -> Result<(), Why> {
    if cwd::path(&mut room.path).is_none_or(|path| contains(path, last(place.path))) {
        return Err(Why::Directory);
    }
    if !files::has_directories() {
        return Ok(());
    }
    match fleet::stat(&mut room.client, place).0 {
        Found::Is((node, _)) if files::has_directory(node.ino) => Err(Why::Open),
        _ => Ok(()),
    }
}

/// Hands over files that are open here, before a mode is set that takes rights from them.
fn keep_open(place: Place<'_>, set: SetAttr, admission: &Admission) -> Result<(), Why> {
    let loss = Loss::of_set(&set);
    let concerns = match loss {
        Loss::Nothing => false,
        Loss::Directories => files::has_directories(),
        Loss::All => files::holds_numbers(),
    };
    if !concerns || admission.facts.identity.uid == 0 {
        return Ok(());
    }
    let found =
        admission::under_lock(admission, |room| Ok(fleet::stat(&mut room.client, place).0))?;
    match found {
        Found::Is((node, attr)) => {
            files::before_loss(loss, Some((node.ino, attr.kind == FileKind::Directory)));
        }
        Found::Fails(_) => {}
        Found::Kernel => return Err(Why::Kernel),
    }
    Ok(())
}

/// Whether one of the names in a path is this one.
fn contains(path: &[u8], name: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|part| part == name)
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

#[inline(never)]
fn symlink(place: Place<'_>, target: usize, admission: &Admission) -> Result<Found<()>, Why> {
    let mut name = Name::new();
    name.copy(target)?;
    let target = name.bytes();
    if target.is_empty() {
        return Ok(Found::Fails(Errno::ENOENT));
    }
    admission::under_lock(admission, |room| {
        let new = NewInode::symlink(target);
        Ok(names::at(&mut room.client, place, create(new)))
    })
}

fn create(new: NewInode) -> PathOp {
    // It may be delegated.
    PathOp::Create { new, flags: CreateFlags::EXCLUSIVE, access: AccessMode::SOLE }
}

/// A path that ends in a slash, `.` or `..` has rules of its own, which the kernel knows.
fn place<'a>(
    named: Named,
    follow_last: bool,
    name: &'a mut Name,
    admission: &Admission,
) -> Result<Place<'a>, Why> {
    name.copy(named.path)?;
    let place = lookup::place((name.bytes(), named.descriptor), follow_last, admission)?;
    if ends_plainly(place.path) { Ok(place) } else { Err(Why::Flags) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_may_move_the_working_directory_is_the_kernels() {
        for (name, wanted) in [
            (&b"mnt"[..], true),
            (b"here", true),
            (b"her", false),
            (b"heree", false),
            (b"other", false),
        ] {
            assert_eq!(contains(b"/mnt/a/here", name), wanted);
        }
        assert_eq!(last(b"a/b/here"), b"here");
        assert_eq!(last(b"here"), b"here");
        assert_eq!(last(b"a/"), b"");
    }
}
