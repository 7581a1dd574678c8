//! Access control lists, as `fs/posix_acl.c` of Linux treats them, entry by entry.

use warren_base::Errno;
use warren_proto::{ACL_ACCESS, ACL_DEFAULT, Credentials, FileKind, Reply, XattrName};

use super::access::{SET_GID, in_group, is_privileged, owns};
use super::inode::Inode;
use super::list::{Entry, GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, list_of, unparse, valid};
use super::{Legal, State, Step, expect_done};
use warren_base::Ino;

/// `__posix_acl_chmod_masq`.
pub(super) fn chmod(inode: &mut Inode) {
    let Some(mut entries) = list_of(inode, ACL_ACCESS) else { return };
    let mode = inode.mode;
    let has_mask = entries.iter().any(|(tag, ..)| *tag == MASK);
    for (tag, rights, _) in &mut entries {
        match *tag {
            USER_OBJ => *rights = mode >> 6 & 7,
            GROUP_OBJ if !has_mask => *rights = mode >> 3 & 7,
            MASK => *rights = mode >> 3 & 7,
            OTHER => *rights = mode & 7,
            _ => {}
        }
    }
    inode.set_xattr(ACL_ACCESS, Some(&unparse(&entries)));
}

/// `posix_acl_create`: the access list, if it is more than a mode, and the mode.
fn create_masq(entries: &mut [Entry], mode: u16) -> (bool, u16) {
    let has_mask = entries.iter().any(|(tag, ..)| *tag == MASK);
    let mut bits = mode & 0o777;
    for (tag, rights, _) in entries.iter_mut() {
        match *tag {
            USER_OBJ => {
                *rights &= mode >> 6 & 7;
                bits &= *rights << 6 | 0o077;
            }
            GROUP_OBJ if !has_mask => {
                *rights &= mode >> 3 & 7;
                bits &= *rights << 3 | 0o707;
            }
            MASK => {
                *rights &= mode >> 3 & 7;
                bits &= *rights << 3 | 0o707;
            }
            OTHER => {
                *rights &= mode & 7;
                bits &= *rights | 0o770;
            }
            _ => {}
        }
    }
    let is_more = entries.iter().any(|(tag, ..)| matches!(*tag, USER | GROUP | MASK));
    (is_more, mode & !0o777 | bits)
}

/// A new inode inherits from its directory.
pub(super) fn inherit(inode: &mut Inode, dir: &Inode, umask: u16) {
    if inode.kind == FileKind::Symlink {
        return;
    }
    let Some(mut entries) = list_of(dir, ACL_DEFAULT) else {
        inode.mode &= !umask;
        return;
    };
    if inode.is_directory() {
        inode.set_xattr(ACL_DEFAULT, Some(&unparse(&entries)));
    }
    let (is_more, mode) = create_masq(&mut entries, inode.mode);
    inode.mode = mode;
    if is_more {
        inode.set_xattr(ACL_ACCESS, Some(&unparse(&entries)));
    }
}

/// `posix_acl_update_mode`: the mode, and whether the list is more than that.
fn update_mode(who: &Credentials, inode: &Inode, entries: &[Entry], kill: bool) -> (u16, bool) {
    let of = |tag: u16| entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
    let bits = |tag| of(tag).unwrap_or(0);
    let group = of(MASK).unwrap_or(bits(GROUP_OBJ));
    let mut mode = inode.mode & !0o777 | bits(USER_OBJ) << 6 | group << 3 | bits(OTHER);
    if kill || (!is_privileged(who) && !in_group(who, inode.gid)) {
        mode &= !SET_GID;
    }
    (mode, entries.len() > 3)
}

impl State {
    /// `vfs_set_acl` and `vfs_remove_acl` (no `value`).
    pub(super) fn set_acl(
        &mut self,
        step: &Step<'_>,
        ino: Ino,
        name: &XattrName,
        (value, kill): (&[u8], bool),
    ) -> Legal {
        let is_access = *name.as_bytes() == *ACL_ACCESS;
        let must = self.alive(ino).and_then(|inode| {
            inode.check_unflagged()?;
            let entries = valid(value)?;
            match inode.kind {
                FileKind::Symlink => return Err(Errno::EOPNOTSUPP),
                FileKind::Directory => {}
                _ if is_access => {}
                _ => return if entries.is_some() { Err(Errno::EACCES) } else { Ok(None) },
            }
            if owns(step.credentials, inode) { Ok(entries) } else { Err(Errno::EPERM) }
        });
        let Some((entries, reply)): Option<(_, &Reply)> = step.settle(must)? else { return Ok(()) };
        self.change(ino, |inode| {
            if !is_access && inode.kind != FileKind::Directory {
                return;
            }
            let mut kept = entries;
            if let (true, Some(entries)) = (is_access, &kept) {
                let (mode, is_more) = update_mode(step.credentials, inode, entries, kill);
                inode.mode = mode;
                kept = kept.filter(|_| is_more);
            }
            let value = kept.map(|entries| unparse(&entries));
            inode.set_xattr(name.as_bytes(), value.as_deref());
            inode.ctime.touch(step.window);
        });
        expect_done(reply)
    }
}
