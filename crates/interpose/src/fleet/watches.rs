//! Inodes that programs watch (inotify). Their changes are left to the kernel, which alone tells
//! who watches.
//!
//! A watching program opens the inode at its cell with [`AccessMode::WATCH`], and the cell names it
//! in its vitals as long as that program is a client. What is done with a file concerns its
//! watchers and those of the directory in which it was found.

use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, FileKind, InodeRef, Reply, Request};

use super::client::{Client, Found, hot};
use super::names::Place;
use super::stat;

/// The watched inodes (lower half), and the changes of that number. 0 without a client or a watch.
#[inline]
pub(crate) fn state() -> u64 {
    let state = hot().map_or(0, |hot| hot.connection.watches());
    if state as u32 == 0 { 0 } else { state }
}

/// Whether what is done at this place may concern watchers: of the directory with the last name, or
/// of what the name leads to.
pub(crate) fn concern(client: &mut Client, place: Place<'_>, follow_last: bool) -> bool {
    if state() == 0 {
        return false;
    }
    let is_watched = |node: InodeRef| hot().is_none_or(|hot| hot.connection.is_watched(node.ino));
    if directory_of(client, place).is_none_or(is_watched) {
        return true;
    }
    match stat(client, place.path, place.start, false).0 {
        // It leads to another directory.
        Found::Is((_, attr)) if attr.kind == FileKind::Symlink && follow_last => true,
        Found::Is((node, _)) => is_watched(node),
        // There is nothing yet.
        Found::Fails(_) => false,
        Found::Kernel => true,
    }
}

/// Like [`concern`], for an inode that was found at this place. True if it is not there any more.
pub(crate) fn concern_inode(client: &mut Client, ino: Ino, place: Place<'_>) -> bool {
    let found = stat(client, place.path, place.start, true).0;
    !matches!(found, Found::Is((node, _)) if node.ino == ino) || concern(client, place, true)
}

/// Why an inode is not watched here.
pub(crate) enum Unwatched {
    /// There are as many open files as may be.
    Full,
    /// The kernel finds out what is wrong, if anything is.
    Kernel,
}

/// Makes programs leave to the kernel, as long as this client lives, all calls on the inode at this
/// place, and in its directory.
pub(crate) fn watch(
    client: &mut Client,
    place: Place<'_>,
    follow_last: bool,
) -> Result<(), Unwatched> {
    let Found::Is((node, attr)) = stat(client, place.path, place.start, follow_last).0 else {
        return Err(Unwatched::Kernel);
    };
    let dir = directory_of(client, place).ok_or(Unwatched::Kernel)?;
    // Who may watch a file need not be allowed to read its directory.
    open(client, dir, AccessMode::empty())?;
    match attr.kind {
        FileKind::Regular | FileKind::Directory => open(client, node, AccessMode::READ),
        // The kernel makes all calls on it.
        _ => Ok(()),
    }
}

/// An inode is opened once, however often it is watched.
fn open(client: &mut Client, node: InodeRef, access: AccessMode) -> Result<(), Unwatched> {
    let Some(slow) = client.slow() else { return Err(Unwatched::Kernel) };
    if slow.watched.contains(&node.ino) {
        return Ok(());
    }
    let request = Request::Open { ino: node.ino, access: access | AccessMode::WATCH };
    match slow.ask(node, request).answer {
        Ok(Reply::Opened(_)) => {
            slow.watched.insert(node.ino);
            Ok(())
        }
        Err(Errno::ENFILE) => Err(Unwatched::Full),
        _ => Err(Unwatched::Kernel),
    }
}

/// The directory that has the last name of the path.
fn directory_of(client: &mut Client, Place { path, start }: Place<'_>) -> Option<InodeRef> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let before = path[..end].iter().rposition(|byte| *byte == b'/');
    let directory = match before {
        Some(0) => b"/",
        Some(slash) => &path[..slash],
        None if path.starts_with(b"/") => b"/",
        None => return Some(start),
    };
    match stat(client, directory, start, true).0 {
        Found::Is((node, _)) => Some(node),
        Found::Fails(_) | Found::Kernel => None,
    }
}
