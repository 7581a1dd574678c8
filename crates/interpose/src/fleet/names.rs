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

/// Makes the request. Errors that programs meet every day are theirs. With others the kernel makes
/// the call again, unless it may have been executed: then its result is lost with the fleet.
fn change(op: impl FnOnce(&Hot) -> Op) -> Found<()> {
    let (Some(hot), Some(slow)) = (hot(), slow()) else { return Found::Kernel };
    let mut call = Call::new(op(hot), slow.caller.clone());
    match slow.slot.perform(&mut call, &mut slow.cache).answer {
        Ok(_) => Found::Is(()),
        Err(errno @ (Errno::ENOENT | Errno::EEXIST | Errno::ENOTEMPTY)) => Found::Fails(errno),
        Err(Errno::EIO | Errno::EPROTO) if call.is_sent() => Found::Fails(Errno::EIO),
        Err(_) => Found::Kernel,
    }
}
