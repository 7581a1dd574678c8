//! Changes of names and of attributes by path: one request each, once the directories are known, or
//! a post (decision 84).
//!
//! All of this is slow.

use warren_base::Errno;
use warren_client::{Call, Op, Path, PathOp};
use warren_proto::{Capabilities, InodeRef, Request, SetAttr};

use super::client::{Client, Found, Hot, hot};
use super::place::Place;

/// Carries out an operation at a path: on the inode there or on the name itself, as `op` says.
pub(crate) fn at(client: &mut Client, place: Place<'_>, op: PathOp) -> Found<()> {
    change(client, |hot| Op::At(place.path(hot.root), op)).0
}

/// Sets attributes of an inode that was found.
pub(crate) fn set(client: &mut Client, node: InodeRef, set: SetAttr) -> Found<()> {
    let Some(slow) = client.slow() else { return Found::Kernel };
    let request = Request::SetAttr { ino: node.ino, handle: None, set };
    let op = Op::Ino(request, Capabilities::of(node.capability));
    let mut call = Call::new(op, slow.caller.clone());
    match slow.slot.perform_or_post(&mut call, &mut slow.cache, &mut slow.posts).answer {
        Ok(_) => Found::Is(()),
        Err(errno) => failed(errno, true),
    }
}

/// An operation on the inode or the name at one path, and the name at another. If a walk fails, the
/// kernel makes the call: the other path may have an error that comes first.
pub(crate) fn between(
    client: &mut Client,
    from: Place<'_>,
    to: Place<'_>,
    op: impl FnOnce(Path, Path) -> Op,
) -> Found<()> {
    let (found, is_sent) = change(client, |hot| op(from.path(hot.root), to.path(hot.root)));
    if is_sent { found } else { Found::Kernel }
}

/// Makes the request. Its errors are the program's, as far as the kernel has the same ones. With
/// others the kernel makes the call, unless it may have been executed: then its result is lost with
/// the fleet. Also returns whether the request was sent: if not, a walk has failed.
fn change(client: &mut Client, op: impl FnOnce(&Hot) -> Op) -> (Found<()>, bool) {
    let (Some(hot), Some(slow)) = (hot(), client.slow()) else { return (Found::Kernel, false) };
    let mut call = Call::new(op(hot), slow.caller.clone());
    let answered = slow.slot.perform_or_post(&mut call, &mut slow.cache, &mut slow.posts);
    let found = match answered.answer {
        Ok(_) => Found::Is(()),
        Err(errno) => failed(errno, call.is_sent()),
    };
    (found, call.is_sent())
}

/// The answer to a change that has failed. `is_sent`: its request was sent, so that the paths are
/// good.
pub(super) fn failed<T>(errno: Errno, is_sent: bool) -> Found<T> {
    let is_plain = match errno {
        Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP => true,
        Errno::EEXIST
        | Errno::ENODATA
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
