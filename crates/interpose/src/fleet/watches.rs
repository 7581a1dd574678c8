//! Inodes that programs watch (inotify). Their changes are left to the kernel, which alone tells
//! who watches.
//!
//! A watching program opens the inode at its cell with [`AccessMode::WATCH`], and the cell names it
//! in its vitals as long as that program is a client. What is done with a file concerns its
//! watchers and those of the directory in which it was found.

use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, FileKind, InodeRef, Reply, Request};

use super::client::{Client, Found, hot};
use super::place::Place;
use super::stat;

/// The watched inodes (lower half), and the changes of that number. 0 without a client or a watch.
#[inline]
pub(crate) fn state() -> u64 {
    let state = hot().map_or(0, |hot| hot.connection.watches());
    if state as u32 == 0 { 0 } else { state }
}

/// Whether what is done at this place may concern watchers: of the directory with the last name, or
/// of what the name leads to.
pub(crate) fn concern(client: &mut Client, place: Place<'_>) -> bool {
    if state() == 0 {
        return false;
    }
    let is_watched = |node: InodeRef| hot().is_none_or(|hot| hot.connection.is_watched(node.ino));
    if directory_of(client, place).is_none_or(is_watched) {
        return true;
    }
    match stat(client, Place { follow_last: false, ..place }).0 {
        // It leads to another directory.
        Found::Is((_, attr)) if attr.kind == FileKind::Symlink && place.follow_last => true,
        Found::Is((node, _)) => is_watched(node),
        // There is nothing yet.
        Found::Fails(_) => false,
        Found::Kernel => true,
    }
}

/// Like [`concern`], for an inode that was found at this place. True if it is not there any more.
pub(crate) fn concern_inode(client: &mut Client, ino: Ino, place: Place<'_>) -> bool {
    let found = stat(client, place).0;
    !matches!(found, Found::Is((node, _)) if node.ino == ino) || concern(client, place)
}

/// Makes programs leave to the kernel, as long as this client lives, all calls on the inode at this
/// place, and in its directory. ENOSPC, as if there were too many watches, if there are too many
/// open files.
pub(crate) fn watch(client: &mut Client, place: Place<'_>) -> Found<()> {
    let Found::Is((node, attr)) = stat(client, place).0 else { return Found::Kernel };
    let Some(dir) = directory_of(client, place) else { return Found::Kernel };
    // Who may watch a file need not be allowed to read its directory.
    match (open(client, dir, AccessMode::empty()), attr.kind) {
        (Found::Is(()), FileKind::Regular | FileKind::Directory) => {
            open(client, node, AccessMode::READ)
        }
        // The kernel makes all calls on an object of another kind.
        (opened, _) => opened,
    }
}

/// An inode is opened once, however often it is watched.
fn open(client: &mut Client, node: InodeRef, access: AccessMode) -> Found<()> {
    let Some(slow) = client.slow() else { return Found::Kernel };
    if slow.watched.contains(&node.ino) {
        return Found::Is(());
    }
    let request = Request::Open { ino: node.ino, access: access | AccessMode::WATCH };
    match slow.ask(node, request).answer {
        Ok(Reply::Opened(_)) => {
            slow.watched.insert(node.ino);
            Found::Is(())
        }
        Err(Errno::ENFILE) => Found::Fails(Errno::ENOSPC),
        _ => Found::Kernel,
    }
}

/// The directory that has the last name of the path.
fn directory_of(client: &mut Client, Place { path, start, .. }: Place<'_>) -> Option<InodeRef> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let before = path[..end].iter().rposition(|byte| *byte == b'/');
    let path = match before {
        Some(0) => b"/",
        Some(slash) => &path[..slash],
        None if path.starts_with(b"/") => b"/",
        None => return Some(start),
    };
    match stat(client, Place { path, start, follow_last: true }).0 {
        Found::Is((node, _)) => Some(node),
        Found::Fails(_) | Found::Kernel => None,
    }
}
