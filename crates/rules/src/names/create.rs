//! New names: of new inodes, and hard links.

use alloc::vec;

use warren_base::limits::{LINK_MAX, SYMLINK_MAX};
use warren_base::{Errno, Ino};
use warren_proto::{
    AccessMode, Attr, Change, CreateFlags, Credentials, FileKind, FileName, LockMode, NewInode,
};

use super::inherit::{Heir, inherit_attributes};
use super::plan::{Outcome, Plan};
use super::view::View;
use crate::permission::{self, EXECUTE, STICKY};

pub(super) fn create<V: View>(
    view: &mut V,
    dir: Ino,
    name: &FileName,
    new: &NewInode,
    flags: CreateFlags,
    access: AccessMode,
) -> Result<Plan, V::Stop> {
    if flags.contains(CreateFlags::NAMELESS) {
        return create_nameless(view, dir, new, flags, access);
    }
    let parent = view.directory(dir, LockMode::IntentWrite)?;
    permission::check(view.who(), &parent, EXECUTE)?;
    let open = flags.contains(CreateFlags::OPEN).then_some(access);
    if open.is_some() && new.kind != FileKind::Regular {
        return Err(Errno::EINVAL.into());
    }
    if let Some((ino, kind)) = view.name(dir, name, LockMode::Write)? {
        return open_existing(view, &parent.attr, (ino, kind), flags, open);
    }
    view.may_add(&parent)?;
    check_new(view.who(), new)?;
    let directory = new.kind == FileKind::Directory;
    let home = if directory { view.place(dir, name) } else { dir.shard() };
    let ino = view.new_ino(home)?;
    let heir = inherit_attributes(view, &parent, new)?;
    let (uid, now) = (view.who().uid, view.now());
    let (attr, inherited) = (heir.attr(ino, uid, dir, now), heir.inherit_change(ino));
    if flags.contains(CreateFlags::PLAIN) && !opens_again(&attr, access, view.who()) {
        return Err(Errno::ETXTBSY.into());
    }
    let Heir { new, gid, .. } = heir;
    let mut changes = vec![
        Change::NewInode { ino, new, uid, gid, parent: dir, now },
        Change::AddEntry { dir, name: name.clone(), ino, kind: attr.kind, now },
    ];
    changes.extend(inherited);
    Ok(Plan { changes, outcome: Outcome::Created { attr, found: false, open } })
}

/// Creates an open file that has no name yet.
fn create_nameless<V: View>(
    view: &mut V,
    dir: Ino,
    new: &NewInode,
    flags: CreateFlags,
    access: AccessMode,
) -> Result<Plan, V::Stop> {
    if new.kind != FileKind::Regular || !flags.contains(CreateFlags::OPEN) {
        return Err(Errno::EINVAL.into());
    }
    let parent = view.directory(dir, LockMode::Read)?;
    // No path was walked through the directory before.
    view.may_add(&parent)?;
    check_new(view.who(), new)?;
    let ino = view.new_ino(dir.shard())?;
    let heir = inherit_attributes(view, &parent, new)?;
    let (uid, now) = (view.who().uid, view.now());
    let (mut attr, inherited) = (heir.attr(ino, uid, dir, now), heir.inherit_change(ino));
    attr.nlink = 0;
    let Heir { new, gid, .. } = heir;
    let mut changes = vec![Change::NewOrphan { ino, new, uid, gid, now }];
    changes.extend(inherited);
    Ok(Plan { changes, outcome: Outcome::Created { attr, found: false, open: Some(access) } })
}

/// The name exists. This is an error, unless the request opens it.
fn open_existing<V: View>(
    view: &mut V,
    parent: &Attr,
    (ino, kind): (Ino, FileKind),
    flags: CreateFlags,
    open: Option<AccessMode>,
) -> Result<Plan, V::Stop> {
    let Some(access) = open.filter(|_| !flags.contains(CreateFlags::EXCLUSIVE)) else {
        return Err(Errno::EEXIST.into());
    };
    if kind == FileKind::Directory {
        return Err(Errno::EISDIR.into());
    }
    if !view.opens_files_of(ino.shard()) {
        return Ok(Plan::unchanged(Outcome::Entry { ino, kind, attr: None }));
    }
    let value = view.inode(ino, LockMode::Read)?.ok_or(Errno::ESTALE)?;
    let attr = value.attr;
    if flags.contains(CreateFlags::PLAIN) && !is_plain(&attr, parent, view.who()) {
        return Err(Errno::ETXTBSY.into());
    }
    permission::check_open(view.who(), &value, access)?;
    Ok(Plan::unchanged(Outcome::Created { attr, found: true, open }))
}

/// Whether a kernel has no rules of its own for opening the file for writing: see
/// [`CreateFlags::PLAIN`].
#[inline]
fn is_plain(attr: &Attr, parent: &Attr, who: &Credentials) -> bool {
    attr.mode & 0o111 == 0 && (parent.mode & STICKY == 0 || attr.uid == who.uid)
}

/// Whether who makes a file could open it again in this way.
#[inline]
fn opens_again(attr: &Attr, access: AccessMode, who: &Credentials) -> bool {
    let may = |wanted, bit| !access.contains(wanted) || attr.mode & bit != 0;
    who.uid == 0 || may(AccessMode::READ, 0o400) && may(AccessMode::WRITE, 0o200)
}

/// A device node could bypass all permissions of this file system, so users without privileges may
/// not make one. A node without a device (a whiteout of overlayfs) is harmless.
#[inline]
fn check_new(who: &Credentials, new: &NewInode) -> Result<(), Errno> {
    let symlink = new.kind == FileKind::Symlink;
    let is_device = match new.kind {
        FileKind::CharDevice => new.rdev != 0,
        FileKind::BlockDevice => true,
        _ => false,
    };
    if is_device && permission::is_bound(who) {
        return Err(Errno::EPERM);
    }
    match new.target.len() {
        0 if symlink => Err(Errno::ENOENT),
        len if len > SYMLINK_MAX => Err(Errno::ENAMETOOLONG),
        len if (len > 0) != symlink => Err(Errno::EINVAL),
        _ if new.target.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

pub(super) fn link<V: View>(
    view: &mut V,
    ino: Ino,
    dir: Ino,
    name: &FileName,
) -> Result<Plan, V::Stop> {
    let parent = view.directory(dir, LockMode::IntentWrite)?;
    permission::check(view.who(), &parent, EXECUTE)?;
    if view.name(dir, name, LockMode::Write)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    let target = view.inode(ino, LockMode::Write)?.ok_or(Errno::ESTALE)?;
    permission::check_link_source(view.who(), &target)?;
    view.may_add(&parent)?;
    permission::check_unflagged(&target.attr)?;
    if target.attr.kind == FileKind::Directory {
        return Err(Errno::EPERM.into());
    }
    // A kernel knows which of them may get a name (`O_TMPFILE`).
    if target.attr.nlink == 0 && !view.who().checked_by_kernel {
        return Err(Errno::ENOENT.into());
    }
    if target.attr.nlink >= LINK_MAX {
        return Err(Errno::EMLINK.into());
    }
    let (kind, now) = (target.attr.kind, view.now());
    let mut attr = target.attr;
    attr.nlink += 1;
    attr.ctime = now;
    let changes = vec![
        Change::AddLink { ino, now },
        Change::AddEntry { dir, name: name.clone(), ino, kind, now },
    ];
    let outcome = Outcome::Entry { ino, kind, attr: Some(attr) };
    Ok(Plan { changes, outcome })
}
