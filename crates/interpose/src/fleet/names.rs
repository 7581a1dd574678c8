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
    fn path(&self, hot: &Hot, follow_last: bool) -> Path {
        let (root, start) = (hot.root, self.start);
        Path { root, start, follow_last, confined: true, ..Path::new(self.path) }
    }
}

/// An operation on the inode or the name at a path.
pub(crate) fn at(place: Place<'_>, follow_last: bool, op: PathOp) -> Found<()> {
    change(|hot| Op::At(place.path(hot, follow_last), op)).0
}

/// An operation on the inode or the name at one path, and the name at another. If a walk fails, the
/// kernel makes the call: the other path may have an error that comes first.
pub(crate) fn between(
    from: (Place<'_>, bool),
    to: Place<'_>,
    op: impl FnOnce(Path, Path) -> Op,
) -> Found<()> {
    let (found, is_sent) = change(|hot| op(from.0.path(hot, from.1), to.path(hot, false)));
    if is_sent { found } else { Found::Kernel }
}

/// Makes the request. Errors that programs meet every day are theirs. With others the kernel makes
/// the call again, unless it may have been executed: then its result is lost with the fleet. Also
/// returns whether the request was sent: if not, a walk has failed.
fn change(op: impl FnOnce(&Hot) -> Op) -> (Found<()>, bool) {
    let (Some(hot), Some(slow)) = (hot(), slow()) else { return (Found::Kernel, false) };
    let mut call = Call::new(op(hot), slow.caller.clone());
    let found = match slow.slot.perform(&mut call, &mut slow.cache).answer {
        Ok(_) => Found::Is(()),
        Err(errno @ (Errno::ENOENT | Errno::EEXIST | Errno::ENOTEMPTY)) => Found::Fails(errno),
        Err(Errno::EIO | Errno::EPROTO) if call.is_sent() => Found::Fails(Errno::EIO),
        Err(_) => Found::Kernel,
    };
    (found, call.is_sent())
}
