//! Access checks: mode bits, access control lists, owner, groups, the sticky bit, and flags. Root
//! may do everything, except that it may execute only files that have an execute bit. Flags bind
//! root too. A front's kernel knows no flags, so it has not checked them. It has checked rights,
//! but who owns an inode with attributes that may be old, so that is checked again (decision 64).

use warren_base::{Errno, InodeFlags};
use warren_proto::{AccessMode, Attr, Credentials, FileKind, InodeValue, permits};

pub const READ: u16 = 4;
pub const WRITE: u16 = 2;
pub const EXECUTE: u16 = 1;
/// The rights that changing names of a directory needs. One entry of a list must give both.
pub const CHANGE_NAMES: u16 = WRITE | EXECUTE;

pub const SET_UID: u16 = 0o4000;
pub const SET_GID: u16 = 0o2000;
pub const STICKY: u16 = 0o1000;

/// EACCES unless `who` has all of the `wanted` bits on the inode. EPERM if it is immutable and
/// shall be written.
pub fn check(who: &Credentials, inode: &InodeValue, wanted: u16) -> Result<(), Errno> {
    let InodeValue { attr, acl, .. } = inode;
    if wanted & WRITE != 0 && attr.flags.contains(InodeFlags::IMMUTABLE) {
        return Err(Errno::EPERM);
    }
    let has_right = who.checked_by_kernel || permits(who, attr, acl.as_deref(), wanted);
    if has_right { Ok(()) } else { Err(Errno::EACCES) }
}

/// EPERM if a flag keeps the inode from losing its names, getting others, or changing its
/// attributes.
pub fn check_unflagged(attr: &Attr) -> Result<(), Errno> {
    let is_kept = attr.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    if is_kept { Err(Errno::EPERM) } else { Ok(()) }
}

/// EPERM if a flag keeps the directory from losing names, or the victim from losing this one.
pub fn check_removable(dir: &Attr, victim: &Attr) -> Result<(), Errno> {
    let keeps = dir.flags.contains(InodeFlags::APPEND);
    if keeps { Err(Errno::EPERM) } else { check_unflagged(victim) }
}

/// Whether `who` may open the inode in this way. EISDIR and ELOOP for inodes that cannot be opened
/// so at all. A front may open any inode for no access, to keep it while its kernel refers to it.
pub fn check_open(who: &Credentials, inode: &InodeValue, access: AccessMode) -> Result<(), Errno> {
    let attr = &inode.attr;
    if who.checked_by_kernel && access.is_empty() {
        return Ok(());
    }
    let writes = access.intersects(AccessMode::WRITE | AccessMode::TRUNCATE);
    match attr.kind {
        FileKind::Directory if writes => return Err(Errno::EISDIR),
        FileKind::Directory if access.contains(AccessMode::EXECUTE) => return Err(Errno::EACCES),
        FileKind::Symlink => return Err(Errno::ELOOP),
        _ => {}
    }
    let bits = [
        (AccessMode::READ, READ),
        (AccessMode::WRITE, WRITE),
        (AccessMode::TRUNCATE, WRITE),
        (AccessMode::EXECUTE, EXECUTE),
    ];
    let wanted = bits.iter().filter(|(mode, _)| access.contains(*mode));
    check(who, inode, wanted.fold(0, |bits, (_, bit)| bits | bit))?;
    let only_appends =
        access.contains(AccessMode::APPEND) && !access.contains(AccessMode::TRUNCATE);
    if writes && attr.flags.contains(InodeFlags::APPEND) && !only_appends {
        return Err(Errno::EPERM);
    }
    match attr.kind {
        FileKind::Regular | FileKind::Directory => Ok(()),
        // The kernel opens pipes, sockets and devices itself; a server never does.
        _ => Err(Errno::ENXIO),
    }
}

/// EPERM if the sticky bit of `dir` keeps `who` from removing or renaming `victim` in it.
pub fn check_sticky(who: &Credentials, dir: &Attr, victim: &Attr) -> Result<(), Errno> {
    let free =
        dir.mode & STICKY == 0 || who.uid == 0 || who.uid == dir.uid || who.uid == victim.uid;
    if free { Ok(()) } else { Err(Errno::EPERM) }
}

/// EPERM unless `who` owns the inode.
pub fn check_owner(who: &Credentials, attr: &Attr) -> Result<(), Errno> {
    let owner = who.uid == 0 || who.uid == attr.uid;
    if owner { Ok(()) } else { Err(Errno::EPERM) }
}

/// Whether the rules for users without privileges apply to `who` here. For a front, its kernel has
/// applied them.
pub const fn is_bound(who: &Credentials) -> bool {
    !who.checked_by_kernel && who.uid != 0
}

/// The mode without the set-id bits that a write, a new length or a change of owner removes. If the
/// group may not execute, set-gid marks mandatory locking, and stays unless a user outside the
/// group makes the change (`setattr_should_drop_sgid`).
pub fn without_privileges(who: &Credentials, kind: FileKind, mode: u16, gid: u32) -> u16 {
    if kind == FileKind::Directory {
        return mode;
    }
    // A kernel tells only one group of its caller.
    let drops_gid = mode & 0o010 != 0 || (who.uid != 0 && !who.is_in_group(gid));
    mode & !(SET_UID | if drops_gid { SET_GID } else { 0 })
}

/// The mode of a file after its data were changed. `strips`: the credentials, if that removes the
/// set-id bits.
pub fn after_change(strips: Option<&Credentials>, mode: u16, gid: u32) -> u16 {
    strips.map_or(mode, |who| without_privileges(who, FileKind::Regular, mode, gid))
}

/// Whether `who` may make another link to a file (`protected_hardlinks`): its owner may. Other
/// users may only if they already have all rights that the link would give.
pub fn check_link_source(who: &Credentials, inode: &InodeValue) -> Result<(), Errno> {
    let attr = &inode.attr;
    let grants = attr.mode & SET_UID != 0 || attr.mode & (SET_GID | 0o010) == SET_GID | 0o010;
    let is_safe =
        attr.kind == FileKind::Regular && !grants && check(who, inode, READ | WRITE).is_ok();
    if is_safe { Ok(()) } else { check_owner(who, attr) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{attr, inode_of, who};

    fn inode(mode: u16) -> InodeValue {
        inode_of(attr(mode))
    }

    #[test]
    fn the_first_class_that_fits_decides_even_if_a_later_one_grants_more() {
        assert_eq!(check(&who(10, 20, &[]), &inode(0o077), READ), Err(Errno::EACCES));
        assert_eq!(check(&who(11, 20, &[]), &inode(0o007), READ), Err(Errno::EACCES));
        assert_eq!(check(&who(11, 21, &[]), &inode(0o007), READ), Ok(()));
        assert_eq!(check(&who(11, 21, &[20]), &inode(0o040), READ), Ok(()));
    }

    #[test]
    fn root_executes_only_files_with_an_execute_bit() {
        assert_eq!(check(&who(0, 0, &[]), &inode(0), READ | WRITE), Ok(()));
        assert_eq!(check(&who(0, 0, &[]), &inode(0), EXECUTE), Err(Errno::EACCES));
        assert_eq!(check(&who(0, 0, &[]), &inode(0o001), EXECUTE), Ok(()));
    }
}
