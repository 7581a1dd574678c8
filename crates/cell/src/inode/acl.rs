//! Access control lists. A list that says no more than a mode is not kept: only the mode is.

use warren_base::{Errno, Ino};
use warren_proto::{
    ACL_ACCESS, Acl, Attributes, Credentials, FileKind, InodeValue, LeaseKey, Reply, Step,
    XattrName,
};
use warren_rules::permission::{self, SET_GID};

use crate::apply::step;
use crate::budget::{Growth, Need, Reservation};
use crate::change::attributes::{attributes_of, ready_to_change_rights};
use crate::run::answer::{Finished, done};
use crate::run::state::TaskState;
use crate::run::wait::Stop;
use crate::shard::{Shard, xattrs};
use crate::turn::Turn;

/// Sets or removes (`None`) a list of an inode. As in Linux, removing a list that is not there
/// succeeds. A new access list sets the permission bits of the mode.
pub(crate) fn set_acl(
    shard: &mut Shard,
    ino: Ino,
    name: &XattrName,
    (value, kill_set_gid): (Option<&[u8]>, bool),
    who: &Credentials,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let budget = shard.budget();
    let growth = if value.is_some() { Growth::Grows } else { Growth::Keeps };
    let need = budget.xattr(growth).with(Some(budget.attributes()));
    let mut room = ready_to_change_rights(shard, ino, need, state, turn)?;
    let inode = shard.living(ino)?;
    permission::check_unflagged(&inode.attr)?;
    let is_access = *name.as_bytes() == *ACL_ACCESS;
    let list = value.map(Acl::from_xattr).transpose()?.flatten();
    may_set(&inode, is_access, list.as_ref(), who)?;
    if !is_access && inode.attr.kind != FileKind::Directory {
        return done(Reply::Done);
    }
    let mode = match &list {
        Some(list) if is_access => {
            let mode = list.apply_to(inode.attr.mode);
            let drops =
                kill_set_gid || (permission::is_bound(who) && !who.is_in_group(inode.attr.gid));
            if drops { mode & !SET_GID } else { mode }
        }
        _ => inode.attr.mode,
    };
    let kept = list.filter(|list| !is_access || list.is_extended()).map(|list| list.to_xattr());
    shard.fetch_xattr(ino, name.as_bytes(), kept.as_deref())?;
    if kept.is_some() && shard.xattr(ino, name.as_bytes())?.is_none() {
        xattrs::check_list(shard, ino, name.as_bytes())?;
    }
    turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    if is_access && inode.attr.kind == FileKind::Directory {
        shard.leases.words.revoke_names(ino, &mut turn.sessions.leases.stamps, turn.driver.memory);
    }
    let now = turn.driver.now.wall;
    if mode != inode.attr.mode {
        let attributes = Attributes { mode, ctime: now, ..attributes_of(shard, ino)? };
        step(shard, Step::SetAttr { ino, attributes }, &mut room, turn);
    }
    let (name, value) = (name.clone(), kept.map(Into::into));
    step(shard, Step::SetXattr { ino, name, value, now }, &mut room, turn);
    done(Reply::Done)
}

/// The checks of Linux's `set_posix_acl`.
fn may_set(
    inode: &InodeValue,
    is_access: bool,
    list: Option<&Acl>,
    who: &Credentials,
) -> Result<(), Errno> {
    match inode.attr.kind {
        FileKind::Symlink => return Err(Errno::EOPNOTSUPP),
        FileKind::Directory => {}
        _ if is_access => {}
        // It has none. The removal succeeds for any user.
        _ => return if list.is_some() { Err(Errno::EACCES) } else { Ok(()) },
    }
    permission::check_owner(who, &inode.attr)
}

/// The additional need of a change of the mode, if the inode has an access list.
pub(crate) fn need_to_follow(shard: &Shard, inode: &InodeValue) -> Result<Option<Need>, Stop> {
    if inode.acl.is_none() {
        return Ok(None);
    }
    shard.xattr_bucket(inode.attr.ino, ACL_ACCESS)?;
    Ok(Some(shard.budget().xattr(Growth::Keeps)))
}

/// The access list follows a change to `mode`. The caller has asked [`need_to_follow`].
pub(crate) fn follow(
    shard: &mut Shard,
    inode: &InodeValue,
    mode: u16,
    room: &mut Reservation,
    turn: &mut Turn<'_>,
) {
    if let Some(list) = &inode.acl {
        let list = Acl::clone(list).with_mode(mode).to_xattr();
        let name = XattrName::new(ACL_ACCESS).expect("a legal name");
        let (ino, value, now) = (inode.attr.ino, Some(list.into()), turn.driver.now.wall);
        step(shard, Step::SetXattr { ino, name, value, now }, room, turn);
    }
}
