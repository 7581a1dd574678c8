//! Predictions: the inodes after changes of names, as clients see them.
//!
//! A cell makes the same changes of the records of its tree. There a directory has two change times
//! (its own, and that of its names), of which clients see the later one. Changes of different
//! transactions may be made out of order, and the time of the names never goes back. So the
//! prediction for a directory is exact if the change is not older than the change time that the
//! directory shows. Else the cell may show an earlier change time or another modification time.

use alloc::boxed::Box;

use warren_base::{Ino, InodeFlags, MODE_MASK, Timestamp};
use warren_proto::{Acl, Attr, Change, FileKind, InodeValue, NewInode};

/// The size of a directory in `stat`: ext4's smallest, which is one block.
pub const DIRECTORY_SIZE: u64 = 4096;

/// Links of a directory without subdirectories: its name, and its own `.`.
const DIRECTORY_LINKS: u32 = 2;

/// The inode that [`Change::NewInode`] makes.
#[inline]
pub fn new_inode(
    ino: Ino,
    new: &NewInode,
    uid: u32,
    gid: u32,
    parent: Ino,
    now: Timestamp,
) -> InodeValue {
    let directory = new.kind == FileKind::Directory;
    let attr = Attr {
        ino,
        kind: new.kind,
        mode: new.mode & MODE_MASK,
        nlink: if directory { DIRECTORY_LINKS } else { 1 },
        uid,
        gid,
        rdev: new.rdev,
        size: if directory { DIRECTORY_SIZE } else { new.target.len() as u64 },
        blocks: directory.into(),
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        flags: InodeFlags::empty(),
    };
    let parent = if directory { parent } else { Ino(0) };
    InodeValue { attr, parent, entries: 0, acl: None }
}

/// The inode that the change makes, if it makes one.
pub fn created(change: &Change) -> Option<InodeValue> {
    match *change {
        Change::NewInode { ino, ref new, uid, gid, parent, now } => {
            Some(new_inode(ino, new, uid, gid, parent, now))
        }
        Change::NewOrphan { ino, ref new, uid, gid, now } => {
            let mut value = new_inode(ino, new, uid, gid, Ino(0), now);
            value.attr.nlink = 0;
            Some(value)
        }
        _ => None,
    }
}

/// Makes the change of the inode that it changes ([`Change::home`]), which exists. `gone`: the kind
/// of the inode to which the removed or replaced entry led, if there was one.
pub fn apply(change: &Change, value: &mut InodeValue, gone: Option<FileKind>) {
    let InodeValue { attr, parent, entries, .. } = value;
    match change {
        // There was no inode before: see `created`.
        Change::NewInode { .. } | Change::NewOrphan { .. } => {}
        Change::AddEntry { kind, now, .. } => {
            *entries = entries.saturating_add(1);
            count_subdirs(attr, Some(*kind), None);
            stamp(attr, *now);
        }
        Change::RemoveEntry { now, .. } => {
            *entries = entries.saturating_sub(gone.is_some().into());
            count_subdirs(attr, None, gone);
            stamp(attr, *now);
        }
        Change::ReplaceEntry { kind, now, .. } => {
            count_subdirs(attr, Some(*kind), gone);
            stamp(attr, *now);
        }
        Change::AddLink { now, .. } => {
            attr.nlink = attr.nlink.saturating_add(1);
            touch(attr, *now);
        }
        Change::RemoveLink { now, .. } => {
            let directory = attr.kind == FileKind::Directory;
            let links = if directory { DIRECTORY_LINKS } else { 1 };
            attr.nlink = attr.nlink.saturating_sub(links);
            touch(attr, *now);
        }
        Change::SetParent { parent: new, now, .. } => {
            *parent = *new;
            touch(attr, *now);
        }
        Change::Touch { now, .. } => touch(attr, *now),
        Change::Inherit { access, default, flags, .. } => {
            inherit(value, access.as_ref(), default.as_ref(), *flags);
        }
    }
}

/// Counts the link that the `..` of each subdirectory is.
fn count_subdirs(attr: &mut Attr, new: Option<FileKind>, gone: Option<FileKind>) {
    let is_directory = |kind| kind == Some(FileKind::Directory);
    attr.nlink = attr.nlink.saturating_add(is_directory(new).into());
    if is_directory(gone) && attr.nlink > DIRECTORY_LINKS {
        attr.nlink -= 1;
    }
}

/// The names of the directory changed at `now`.
fn stamp(attr: &mut Attr, now: Timestamp) {
    if now >= attr.ctime {
        (attr.mtime, attr.ctime) = (now, now);
    }
}

/// The inode itself changed at `now`. Names of a directory may have changed later.
fn touch(attr: &mut Attr, now: Timestamp) {
    let directory = attr.kind == FileKind::Directory;
    attr.ctime = if directory { attr.ctime.max(now) } else { now };
}

fn inherit(value: &mut InodeValue, access: Option<&Acl>, default: Option<&Acl>, flags: InodeFlags) {
    let own = &mut value.attr.flags;
    own.insert(flags & InodeFlags::INHERITED);
    if let Some(access) = access {
        own.insert(InodeFlags::ACL);
        value.acl = Some(Box::new(access.clone()));
    }
    if default.is_some() {
        own.insert(InodeFlags::DEFAULT_ACL);
    }
}
