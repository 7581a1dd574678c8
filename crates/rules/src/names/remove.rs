//! Removing names: unlink and rmdir.
//!
//! The three phases of rmdir (Hare 3.3) are those of the transaction: the lock on the victim
//! serializes and marks it (new entries wait), and commit or abort ends it.

use alloc::vec;

use warren_base::{Errno, Ino, Timestamp};
use warren_proto::{Change, FileKind, FileName, InodeValue, LockMode};

use super::plan::Plan;
use super::view::View;
use crate::permission::{self, CHANGE_NAMES, EXECUTE};

pub(super) fn unlink<V: View>(view: &mut V, dir: Ino, name: &FileName) -> Result<Plan, V::Stop> {
    let (ino, victim) = victim(view, dir, name)?;
    if victim.attr.kind == FileKind::Directory {
        return Err(Errno::EISDIR.into());
    }
    Ok(removal(view.now(), dir, name, ino))
}

pub(super) fn rmdir<V: View>(view: &mut V, dir: Ino, name: &FileName) -> Result<Plan, V::Stop> {
    let (ino, victim) = victim(view, dir, name)?;
    if victim.attr.kind != FileKind::Directory {
        return Err(Errno::ENOTDIR.into());
    }
    if victim.entries > 0 {
        return Err(Errno::ENOTEMPTY.into());
    }
    Ok(removal(view.now(), dir, name, ino))
}

/// The inode of the name, if it may be removed.
fn victim<V: View>(view: &mut V, dir: Ino, name: &FileName) -> Result<(Ino, InodeValue), V::Stop> {
    let parent = view.directory(dir, LockMode::IntentWrite)?;
    permission::check(view.who(), &parent, EXECUTE)?;
    let (ino, _) = view.name(dir, name, LockMode::Write)?.ok_or(Errno::ENOENT)?;
    permission::check(view.who(), &parent, CHANGE_NAMES)?;
    let victim = view.inode(ino, LockMode::Write)?.ok_or(Errno::EIO)?;
    permission::check_sticky(view.who(), &parent.attr, &victim.attr)?;
    permission::check_removable(&parent.attr, &victim.attr)?;
    Ok((ino, victim))
}

#[inline]
fn removal(now: Timestamp, dir: Ino, name: &FileName, ino: Ino) -> Plan {
    Plan::done(vec![
        Change::RemoveEntry { dir, name: name.clone(), now },
        Change::RemoveLink { ino, now },
    ])
}
