//! Permissions: mode bits, sticky directories, set-id bits.

use warren_base::Errno;
use warren_proto::{Credentials, FileKind, NewInode};

use super::inode::Inode;
use super::list;

pub(super) const READ: u16 = 4;
pub(super) const WRITE: u16 = 2;
pub(super) const SEARCH: u16 = 1;

pub(super) const SET_UID: u16 = 0o4000;
pub(super) const SET_GID: u16 = 0o2000;
pub(super) const STICKY: u16 = 0o1000;
const GROUP_EXECUTE: u16 = 0o010;

/// `CAP_FOWNER` and similar: root, or a front whose kernel has checked.
pub(super) fn is_privileged(who: &Credentials) -> bool {
    who.uid == 0 || who.checked_by_kernel
}

pub(super) fn in_group(who: &Credentials, gid: u32) -> bool {
    who.gid == gid || who.groups.binary_search(&gid).is_ok()
}

/// `inode_owner_or_capable`. A front's kernel may have checked it with a former owner.
pub(super) fn owns(who: &Credentials, inode: &Inode) -> bool {
    who.uid == 0 || who.uid == inode.uid
}

/// `generic_permission`: EACCES unless all of `want` is allowed.
pub(super) fn permit(who: &Credentials, inode: &Inode, want: u16) -> Result<(), Errno> {
    if want & WRITE != 0 && inode.is_immutable() {
        return Err(Errno::EPERM);
    }
    let allowed = if who.checked_by_kernel {
        true
    } else if who.uid == 0 {
        want & SEARCH == 0 || inode.is_directory() || inode.mode & 0o111 != 0
    } else if let Some(allowed) = list::permits(who, inode, want) {
        allowed
    } else {
        let shift = if who.uid == inode.uid {
            6
        } else if in_group(who, inode.gid) {
            3
        } else {
            0
        };
        (inode.mode >> shift) & want == want
    };
    if allowed { Ok(()) } else { Err(Errno::EACCES) }
}

/// `may_delete` up to the victim's kind: removing `victim` from `dir`.
pub(super) fn permit_removal(who: &Credentials, dir: &Inode, victim: &Inode) -> Result<(), Errno> {
    permit(who, dir, WRITE | SEARCH)?;
    let sticky = dir.mode & STICKY != 0;
    if sticky && who.uid != 0 && who.uid != victim.uid && who.uid != dir.uid {
        return Err(Errno::EPERM);
    }
    if dir.only_grows() {
        return Err(Errno::EPERM);
    }
    victim.check_unflagged()
}

/// `may_create` in a directory that may have been removed (but is still open).
pub(super) fn permit_entry(who: &Credentials, dir: &Inode) -> Result<(), Errno> {
    if dir.nlink == 0 {
        return Err(Errno::ENOENT);
    }
    permit(who, dir, WRITE | SEARCH)
}

/// `may_linkat` where `protected_hardlinks` is set: a user who does not own a file may link it only
/// if that gives no privilege.
pub(super) fn permit_link_source(who: &Credentials, inode: &Inode) -> Result<(), Errno> {
    let both = SET_GID | GROUP_EXECUTE;
    let is_safe = inode.kind == FileKind::Regular
        && inode.mode & SET_UID == 0
        && inode.mode & both != both
        && permit(who, inode, READ | WRITE).is_ok();
    if is_safe || owns(who, inode) { Ok(()) } else { Err(Errno::EPERM) }
}

/// `vfs_mknod`: `CAP_MKNOD` for devices, except the whiteout.
pub(super) fn permit_node(who: &Credentials, new: &NewInode) -> Result<(), Errno> {
    let is_whiteout = new.kind == FileKind::CharDevice && new.rdev == 0;
    let is_device = matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice);
    if is_device && !is_whiteout && !is_privileged(who) { Err(Errno::EPERM) } else { Ok(()) }
}

/// The mode after a write or chown has removed the set-id bits (`setattr_should_drop_suidgid`).
pub(super) fn without_privileges(who: &Credentials, inode: &Inode) -> u16 {
    if inode.is_directory() {
        return inode.mode;
    }
    // A kernel tells only one group of its caller.
    let outsider = who.uid != 0 && !in_group(who, inode.gid);
    let drop_gid = inode.mode & GROUP_EXECUTE != 0 || outsider;
    inode.mode & !SET_UID & if drop_gid { !SET_GID } else { !0 }
}

/// Group and mode of a new inode in `dir` (`mode_strip_sgid`, `inode_init_owner`).
pub(super) fn inherit(who: &Credentials, dir: &Inode, new: &NewInode) -> (u32, u16) {
    let directory = new.kind == FileKind::Directory;
    // `vfs_mkdir` removes these bits; `symlink` takes no mode.
    let mode = match new.kind {
        FileKind::Directory => new.mode & !(SET_UID | SET_GID),
        FileKind::Symlink => 0o777,
        _ => new.mode,
    };
    if dir.mode & SET_GID == 0 {
        return (who.gid, mode);
    }
    let both = SET_GID | GROUP_EXECUTE;
    let strip = mode & both == both && !is_privileged(who) && !in_group(who, dir.gid);
    let mode = match (directory, strip) {
        (true, _) => mode | SET_GID,
        (false, true) => mode & !SET_GID,
        (false, false) => mode,
    };
    (dir.gid, mode)
}
