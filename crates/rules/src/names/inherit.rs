//! Inheritance: a new inode gets its group, flags and access control lists from its directory.

use warren_base::{Ino, InodeFlags, Timestamp};
use warren_proto::{Acl, Attr, Change, Credentials, FileKind, InodeValue, NewInode};

use super::predict;
use super::view::View;
use crate::permission::{self, SET_GID, SET_UID};

/// A new inode as its directory makes it.
pub(super) struct Heir {
    pub(super) new: NewInode,
    pub(super) gid: u32,
    /// The access list and the default list.
    lists: (Option<Acl>, Option<Acl>),
    flags: InodeFlags,
}

impl Heir {
    /// The change by which it gets its lists and flags, if there are any.
    #[inline]
    pub(super) fn inherit_change(&self, ino: Ino) -> Option<Change> {
        let ((access, default), flags) = (self.lists.clone(), self.flags);
        let is_any = access.is_some() || default.is_some() || !flags.is_empty();
        is_any.then_some(Change::Inherit { ino, access, default, flags })
    }

    /// Its attributes once all that is made.
    #[inline]
    pub(super) fn attr(&self, ino: Ino, uid: u32, dir: Ino, now: Timestamp) -> Attr {
        let mut attr = predict::new_inode(ino, &self.new, uid, self.gid, dir, now).attr;
        attr.flags |= self.flags;
        attr.flags.set(InodeFlags::ACL, self.lists.0.is_some());
        attr.flags.set(InodeFlags::DEFAULT_ACL, self.lists.1.is_some());
        attr
    }
}

/// A directory with the set-gid bit passes its group on, and to directories also the bit. This is
/// the only way in which a new directory gets a set-id bit. A symbolic link has all permissions.
#[inline]
pub(super) fn with_group(
    who: &Credentials,
    parent: &InodeValue,
    new: &NewInode,
) -> (NewInode, u32) {
    let mut new = new.clone();
    match new.kind {
        FileKind::Directory => new.mode &= !(SET_UID | SET_GID),
        FileKind::Symlink => new.mode = 0o777,
        _ => {}
    }
    if parent.attr.mode & SET_GID == 0 {
        return (new, who.gid);
    }
    let gid = parent.attr.gid;
    if new.kind == FileKind::Directory {
        new.mode |= SET_GID;
    } else if permission::is_bound(who)
        && new.mode & (SET_GID | 0o010) == SET_GID | 0o010
        && !who.is_in_group(gid)
    {
        new.mode &= !SET_GID;
    }
    (new, gid)
}

/// The same, and the flags of the directory and its default access control list, which takes the
/// place of the umask.
pub(super) fn inherit_attributes<V: View>(
    view: &V,
    parent: &InodeValue,
    new: &NewInode,
) -> Result<Heir, V::Stop> {
    let (mut new, gid) = with_group(view.who(), parent, new);
    let flags = parent.attr.flags & InodeFlags::INHERITED;
    let umask = core::mem::take(&mut new.umask);
    if new.kind == FileKind::Symlink {
        return Ok(Heir { new, gid, lists: (None, None), flags });
    }
    let Some(default) = view.default_acl(parent)? else {
        new.mode &= !umask;
        return Ok(Heir { new, gid, lists: (None, None), flags });
    };
    let (access, mode) = default.clone().inherited(new.mode);
    new.mode = mode;
    let access = access.is_extended().then_some(access);
    let default = (new.kind == FileKind::Directory).then_some(default);
    Ok(Heir { new, gid, lists: (access, default), flags })
}
