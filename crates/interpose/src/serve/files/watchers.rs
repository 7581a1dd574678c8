//! Open files that programs watch: the kernel has them from the first call on that a watcher sees.

use crate::fleet::{Place, watches};
use crate::syscalls::OnFile;

use super::super::admission;
use super::super::cwd::{self, Directory};
use super::super::facts::Admission;
use super::super::lock::Room;
use super::table::{PATH_MAX, Served};

/// Whether the call on this file may be served: no watcher sees it, or there is none.
#[inline]
pub(super) fn may_serve(operation: OnFile, file: &Served) -> bool {
    let watched = watches::state();
    watched == file.watches() || watched == 0 || operation.is_unwatched() || has_none(file, watched)
}

/// Looks for watchers of the file, and keeps that there are none.
#[cold]
fn has_none(file: &Served, watched: u64) -> bool {
    let Some(admission) = admission::current() else { return false };
    let concerns = admission::waiting(|Room { client, .. }| {
        let mut room = [0; PATH_MAX];
        place(file, &mut room, &admission)
            .is_none_or(|place| watches::concern_inode(client, file.node().ino, place))
    });
    let has_none = concerns == Some(false);
    if has_none {
        file.set_watches(watched);
    }
    has_none
}

/// The place at which the file was opened, as far as that is known.
fn place<'a>(
    file: &Served,
    room: &'a mut [u8; PATH_MAX],
    admission: &Admission,
) -> Option<Place<'a>> {
    let path = file.path(room);
    let (path, start) = match (path, file.start(), cwd::known()) {
        ([], ..) => return None,
        ([b'/', ..], None, _) => (admission.facts.prefix.rest(path)?, admission.facts.mount.root),
        (_, Some(ino), Directory::Inside(start)) if start.ino == ino => (path, start),
        _ => return None,
    };
    Some(Place { path, start, follow_last: true })
}
