//! Changes of names and of attributes by path: one request each, once the directories are known.
//!
//! All of this is slow, under the lock.

use warren_base::Errno;
use warren_client::{Call, Op, Path, PathOp};
use warren_proto::InodeRef;

use super::client::{Found, Hot, hot, slow};

/// A path as the client walks it, and where it begins.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub path: &'a [u8],
    pub start: InodeRef,
}

impl Place<'_> {
    pub(super) fn path(&self, hot: &Hot, follow_last: bool) -> Path {
        let (root, start) = (hot.root, self.start);
        Path { root, start, follow_last, confined: true, ..Path::new(self.path) }
    }
}

/// An operation on the inode or the name at a path.
pub(crate) fn at(place: Place<'_>, follow_last: bool, op: PathOp) -> Found<()> {
    change(|hot| Op::At(place.path(hot, follow_last), op))
}

/// An operation on the inode or the name at one path, and the name at another.
pub(crate) fn between(
    from: (Place<'_>, bool),
    to: Place<'_>,
    op: impl FnOnce(Path, Path) -> Op,
) -> Found<()> {
    change(|hot| op(from.0.path(hot, from.1), to.path(hot, false)))
}

/// Makes the request. Its errors are the program's, as far as the kernel has the same ones. With
/// others the kernel makes the call, unless it may have been executed: then its result is lost with
/// the fleet.
fn change(op: impl FnOnce(&Hot) -> Op) -> Found<()> {
    let (Some(hot), Some(slow)) = (hot(), slow()) else { return Found::Kernel };
    let mut call = Call::new(op(hot), slow.caller.clone());
    match slow.slot.perform(&mut call, &mut slow.cache).answer {
        Ok(_) => Found::Is(()),
        Err(errno) => failed(errno, call.is_sent()),
    }
}

/// What a change that has failed means. `is_sent`: its request was sent, so that the paths are
/// good.
pub(super) fn failed<T>(errno: Errno, is_sent: bool) -> Found<T> {
    let is_plain = match errno {
        Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP => true,
        Errno::EEXIST
        | Errno::ENOTEMPTY
        | Errno::EISDIR
        | Errno::EINVAL
        | Errno::EPERM
        | Errno::EMLINK
        | Errno::ENOSPC
        | Errno::EIO => is_sent,
        _ => false,
    };
    if is_plain { Found::Fails(errno) } else { Found::Kernel }
}
