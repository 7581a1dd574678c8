//! Attributes, plain and extended.

use warren_base::{CAPABILITY, Errno, Ino, InodeFlags};
use warren_proto::{
    AccessMode, Credentials, FileKind, Handle, Reply, SetAttr, SetTime, XattrMode, XattrName,
};

use super::access::{
    READ, SET_GID, STICKY, WRITE, in_group, is_privileged, owns, permit, without_privileges,
};
use super::acl;
use super::inode::{Inode, TimeBound};
use super::{Legal, Refusal, State, Step, UNEXPECTED_REPLY, expect_done};
use crate::history::Window;

impl Step<'_> {
    /// A cell remembers only the last ones, also of a directory that is still open.
    pub(super) fn get_removed(&self, state: &State, dir: Ino) -> Legal {
        let (attr, lease) = match &self.outcome.answer {
            Err(Errno::ESTALE) => return Ok(()),
            Ok(Reply::Attr { attr, lease }) => (attr, lease),
            _ => return Err(UNEXPECTED_REPLY),
        };
        let is_right = (attr.ino, attr.kind, attr.nlink) == (dir, FileKind::Directory, 0);
        let is_gone = state.get(dir).is_none_or(|inode| inode.nlink == 0);
        let is_front = self.credentials.checked_by_kernel;
        if is_right && is_gone && is_front && lease.is_none() {
            Ok(())
        } else {
            Err(Refusal::Differs("a removed directory"))
        }
    }
}

impl State {
    pub(super) fn get_attr(&mut self, step: &Step<'_>, ino: Ino) -> Legal {
        match step.settle(self.alive(ino).map(|_| ()))? {
            Some((_, Reply::Attr { attr, .. })) => self.observe_attr(step, ino, attr),
            Some(_) => Err(UNEXPECTED_REPLY),
            None => Ok(()),
        }
    }

    pub(super) fn set_attr(
        &mut self,
        step: &Step<'_>,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Legal {
        let must = self.alive(ino).and_then(|inode| {
            if set.size.is_some() {
                self.may_resize(step, inode, handle)?;
            }
            check_flags(step.credentials, inode, set)?;
            if set.mode.is_some() && inode.kind == FileKind::Symlink {
                return Err(Errno::EOPNOTSUPP);
            }
            may_change_owner(step.credentials, inode, set)?;
            let strips = set.kill_privileges && set.size.is_none();
            let strips = strips && !step.credentials.checked_by_kernel;
            if (set.mode.is_some() || strips) && !owns(step.credentials, inode) {
                return Err(Errno::EPERM);
            }
            may_set_times(step.credentials, inode, set)
        });
        match step.settle(must)? {
            Some((_, reply)) => {
                self.apply_attr(step, ino, set);
                match reply {
                    Reply::Attr { attr, .. } => self.observe_attr(step, ino, attr),
                    reply => expect_done(reply),
                }
            }
            None => Ok(()),
        }
    }

    /// `vfs_truncate` without a handle, `do_ftruncate` with one.
    fn may_resize(
        &self,
        step: &Step<'_>,
        inode: &Inode,
        handle: Option<Handle>,
    ) -> Result<(), Errno> {
        match handle {
            Some(handle) => {
                let (_, open) = self.opened(step, handle)?;
                let writable = open.access.contains(AccessMode::WRITE);
                let fits = inode.kind == FileKind::Regular && writable;
                if fits { Ok(()) } else { Err(Errno::EINVAL) }
            }
            None => match inode.kind {
                FileKind::Directory => Err(Errno::EISDIR),
                FileKind::Regular => permit(step.credentials, inode, WRITE),
                _ => Err(Errno::EINVAL),
            },
        }
    }

    fn apply_attr(&mut self, step: &Step<'_>, ino: Ino, set: &SetAttr) {
        if let Some(size) = set.size {
            self.resize(step, ino, size, set.kill_privileges);
        }
        let who = step.credentials;
        let owner = set.uid.is_some() || set.gid.is_some();
        let other = set.mode.is_some() || owner || set.flags.is_some();
        let times = set.atime.is_some() || set.mtime.is_some();
        if *set == SetAttr::default() && !who.checked_by_kernel {
            return;
        }
        self.change(ino, |inode| {
            let strips = set.kill_privileges || set.uid.is_some() || set.gid.is_some();
            if strips && set.size.is_none() {
                inode.mode = without_privileges(who, inode);
            }
            if strips {
                inode.lose_capability();
            }
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
            if let Some(mode) = set.mode {
                let outsider = !is_privileged(who) && !in_group(who, inode.gid);
                inode.mode = if outsider { mode & !SET_GID } else { mode };
                acl::chmod(inode);
            }
            if let Some(flags) = set.flags {
                inode.flags = flags & InodeFlags::SETTABLE;
            }
            set_time(&mut inode.atime, set.atime, step.window);
            set_time(&mut inode.mtime, set.mtime, step.window);
            if other || times {
                inode.ctime.touch(step.window);
            } else {
                inode.ctime.may_touch(step.window);
            }
        });
    }

    pub(super) fn get_xattr(&mut self, step: &Step<'_>, ino: Ino, name: &XattrName) -> Legal {
        let must = self.alive(ino).and_then(|inode| {
            may_use_xattr(step.credentials, inode, name, READ)?;
            inode.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
        });
        match step.settle(must)? {
            Some((value, Reply::Xattr(got))) if **got == *value => Ok(()),
            Some((value, Reply::LongXattr { .. })) if *step.outcome.payload == *value => Ok(()),
            Some(_) => Err(Refusal::Differs("the attribute's value")),
            None => Ok(()),
        }
    }

    /// Sets the attribute, or removes it (`None`).
    pub(super) fn set_xattr(
        &mut self,
        step: &Step<'_>,
        ino: Ino,
        name: &XattrName,
        new: Option<(&[u8], XattrMode)>,
    ) -> Legal {
        let must = self.alive(ino).and_then(|inode| {
            inode.check_unflagged()?;
            may_use_xattr(step.credentials, inode, name, WRITE)?;
            let is_legal = |value| *name.as_bytes() != *CAPABILITY || is_capability(value);
            match (new, inode.xattrs.contains_key(name)) {
                (Some((value, _)), _) if !is_legal(value) => Err(Errno::EINVAL),
                (Some((_, XattrMode::Create | XattrMode::Both)), true) => Err(Errno::EEXIST),
                (None | Some((_, XattrMode::Replace | XattrMode::Both)), false) => {
                    Err(Errno::ENODATA)
                }
                _ => Ok(()),
            }
        });
        let Some((_, reply)) = step.settle(must)? else { return Ok(()) };
        self.change(ino, |inode| {
            inode.set_xattr(name.as_bytes(), new.map(|(value, _)| value));
            inode.ctime.touch(step.window);
        });
        expect_done(reply)
    }

    pub(super) fn list_xattr(&mut self, step: &Step<'_>, ino: Ino) -> Legal {
        let must = self.alive(ino).map(|inode| inode.xattrs.clone());
        match step.settle(must)? {
            Some((real, Reply::XattrNames(got))) => {
                let may_see =
                    |name: &&[u8]| step.credentials.uid == 0 || !name.starts_with(b"trusted.");
                let mut got: Vec<&[u8]> = got.iter().map(AsRef::as_ref).collect();
                got.sort_unstable();
                let real = real.keys().map(XattrName::as_bytes).filter(may_see);
                let same = got.iter().copied().eq(real);
                if same { Ok(()) } else { Err(Refusal::Differs("the attributes' names")) }
            }
            Some(_) => Err(UNEXPECTED_REPLY),
            None => Ok(()),
        }
    }
}

fn set_time(time: &mut TimeBound, set: Option<SetTime>, window: Window) {
    match set {
        None => {}
        Some(SetTime::Now) => time.touch(window),
        Some(SetTime::At(at)) => *time = TimeBound::exactly(at),
    }
}

/// `setattr_prepare`: only root may change the owner; an owner may choose among the own groups.
fn may_change_owner(who: &Credentials, inode: &Inode, set: &SetAttr) -> Result<(), Errno> {
    if who.checked_by_kernel {
        let stays = set.uid.is_none() && set.gid.is_none();
        return if stays || owns(who, inode) { Ok(()) } else { Err(Errno::EPERM) };
    }
    if who.uid == 0 {
        return Ok(());
    }
    let owner = who.uid == inode.uid;
    let uid_stays = set.uid.is_none_or(|uid| owner && uid == inode.uid);
    let gid_is_own = set.gid.is_none_or(|gid| owner && (in_group(who, gid) || gid == inode.gid));
    if uid_stays && gid_is_own { Ok(()) } else { Err(Errno::EPERM) }
}

/// `vfs_utimes`: setting both times to "now" needs only the right to write; everything else only
/// the owner may do.
fn may_set_times(who: &Credentials, inode: &Inode, set: &SetAttr) -> Result<(), Errno> {
    if (set.atime.is_none() && set.mtime.is_none()) || owns(who, inode) {
        return Ok(());
    }
    let touch = set.atime == Some(SetTime::Now) && set.mtime == Some(SetTime::Now);
    if touch { permit(who, inode, WRITE) } else { Err(Errno::EPERM) }
}

/// `xattr_permission`.
fn may_use_xattr(
    who: &Credentials,
    inode: &Inode,
    name: &XattrName,
    want: u16,
) -> Result<(), Errno> {
    let is_of = |space: &[u8]| name.as_bytes().starts_with(space);
    let is_of_security = is_of(b"security.");
    if name.is_acl() {
        let has_lists = inode.kind != FileKind::Symlink;
        return if has_lists { Ok(()) } else { Err(Errno::EOPNOTSUPP) };
    }
    if is_of(b"trusted.") || is_of_security {
        return match want {
            _ if is_privileged(who) => Ok(()),
            WRITE => Err(Errno::EPERM),
            _ if is_of_security => Ok(()),
            _ => Err(Errno::ENODATA),
        };
    }
    if !is_of(b"user.") {
        return Err(Errno::EOPNOTSUPP);
    }
    match inode.kind {
        FileKind::Regular => {}
        FileKind::Directory if want == WRITE && inode.mode & STICKY != 0 && !owns(who, inode) => {
            return Err(Errno::EPERM);
        }
        FileKind::Directory => {}
        _ if want == WRITE => return Err(Errno::EPERM),
        _ => return Err(Errno::ENODATA),
    }
    permit(who, inode, want)
}

/// The refusals of `may_setattr`, of ext4's own checks and of `fileattr_set_prepare`.
fn check_flags(who: &Credentials, inode: &Inode, set: &SetAttr) -> Result<(), Errno> {
    let of_owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    let times = [set.atime, set.mtime];
    let more_than_touch = times != [None; 2] && times != [Some(SetTime::Now); 2];
    if inode.only_grows() && (of_owner || more_than_touch || set.size.is_some()) {
        return Err(Errno::EPERM);
    }
    if inode.is_immutable() && (SetAttr { flags: None, ..*set }) != SetAttr::default() {
        return Err(Errno::EPERM);
    }
    let Some(flags) = set.flags else { return Ok(()) };
    if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
        return Err(Errno::ENOTTY);
    }
    let changed = flags & InodeFlags::SETTABLE ^ inode.flags;
    let is_roots = changed.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    let is_kept =
        inode.is_immutable() && flags.contains(InodeFlags::IMMUTABLE) && !changed.is_empty();
    if !owns(who, inode) || is_kept || (is_roots && !is_privileged(who)) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// A value of the second or the third version.
fn is_capability(value: &[u8]) -> bool {
    matches!((value.get(3), value.len()), (None, 0) | (Some(2), 20) | (Some(3), 24))
}
