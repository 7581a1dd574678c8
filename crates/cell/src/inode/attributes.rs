//! Attributes of one inode, and the target of a symbolic link.

use warren_base::limits::SYMLINK_MAX;
use warren_base::{ClientId, Errno, Ino, InodeFlags, Timestamp};
use warren_disk::{Inode, Kind, Value};
use warren_proto::{
    Attr, Attributes, Credentials, FileKind, InodeValue, LeaseKey, Reply, SetAttr, SetTime, Step,
};

use crate::apply::step;
use crate::change::attributes::{ready_to_change, ready_to_change_rights};
use crate::change::capability;
use crate::data::truncate::{need_to_truncate, ready_to_truncate, truncate_now};
use crate::inode::acl;
use crate::inode::grant::grant_attr;
use crate::permission;
use crate::permission::WRITE;
use crate::plant::Plant;
use crate::reap::idle::close_idle;
use crate::recall::recall_pages;
use crate::run::answer::{Finished, done, go_on_if};
use crate::run::state::TaskState;
use crate::run::wait::Stop;
use crate::shard::Shard;
use crate::turn::Turn;

pub(crate) fn get_attr(
    shard: &mut Shard,
    ino: Ino,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let attr = shard.living(ino)?.attr;
    let lease = grant_attr(shard, ino, client, turn);
    done(Reply::Attr { attr, lease })
}

/// The last attributes of a directory that was removed, for a front.
pub(crate) fn get_removed(shard: &Shard, dir: Ino, who: &Credentials) -> Result<Finished, Stop> {
    let removed = shard.removed_dirs.get(dir).filter(|_| who.checked_by_kernel);
    done(Reply::Attr { attr: removed.ok_or(Errno::ESTALE)?, lease: None })
}

pub(crate) fn set_attr(
    shard: &mut Shard,
    ino: Ino,
    set: SetAttr,
    writable: Option<bool>,
    who: &Credentials,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    if set == SetAttr::default() && !who.checked_by_kernel {
        return get_attr(shard, ino, state.client.expect("a request"), turn);
    }
    let value = shard.living(ino)?;
    let need = match set.size {
        Some(size) => need_to_truncate(shard, ino, size)?,
        None => shard.budget().attributes(),
    };
    let follows = set.mode.map(|_| acl::need_to_follow(shard, &value)).transpose()?.flatten();
    let owner = set.uid.is_some() || set.gid.is_some();
    let loses = set.size.is_some() || owner || set.kill_privileges;
    let loss = if loses { capability::need_to_remove(shard, ino)? } else { None };
    let changes_rights = owner || set.mode.is_some_and(|mode| mode != value.attr.mode);
    let ready = if changes_rights { ready_to_change_rights } else { ready_to_change };
    let mut room = ready(shard, ino, need.with(follows).with(loss), state, turn)?;
    if set.size.is_some() && writable == Some(false) {
        return Err(Errno::EINVAL.into());
    }
    check_set(&set, &value, writable.is_some(), who)?;
    if forbids_writes(&set, &value.attr) {
        // What was stored in mappings so far counts.
        recall_pages(shard, ino, None, false, turn)?;
    }
    if let Some(size) = set.size {
        ready_to_truncate(shard, ino, size, true, state, turn)?;
        truncate_now(shard, ino, size, &mut room, turn);
    }
    turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    if set.flags.is_some() {
        // A handle that was kept may not be used for an open that is now refused.
        close_idle(shard, ino, turn);
    }
    let access = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    let is_planted = turn.plants(Plant::KeepSearch);
    if access && value.attr.kind == FileKind::Directory && !is_planted {
        shard.leases.words.revoke_names(ino, &mut turn.sessions.leases.stamps, turn.driver.memory);
    }
    let inode = shard.living_inode(ino)?;
    let attributes = attributes_after(inode, &set, &value.attr, who, turn.driver.now.wall);
    if set.mode.is_some() {
        acl::follow(shard, &value, attributes.mode, &mut room, turn);
    }
    if loses {
        capability::remove(shard, ino, &mut room, turn);
    }
    let attributes = Attributes {
        flags: with_settable(shard.living_inode(ino)?.flags, set.flags),
        ..attributes
    };
    step(shard, Step::SetAttr { ino, attributes }, &mut room, turn);
    let attr = shard.living(ino)?.attr;
    let client = state.client.expect("a request");
    let lease = grant_attr(shard, ino, client, turn);
    done(Reply::Attr { attr, lease })
}

/// The attributes after the change.
pub(crate) fn attributes_after(
    inode: &Inode,
    set: &SetAttr,
    old: &Attr,
    who: &Credentials,
    now: Timestamp,
) -> Attributes {
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    let mut mode = inode.mode;
    // A change of owner removes the set-id bits, even if root makes it. A new length does too,
    // unless root sets it; for a front, its kernel decides.
    let chown = set.uid.is_some() || set.gid.is_some();
    let truncated = set.size.is_some() && permission::is_bound(who);
    if chown || truncated || set.kill_privileges {
        mode = permission::without_privileges(who, old.kind, mode, old.gid);
    }
    if let Some(wanted) = set.mode {
        let gid = set.gid.unwrap_or(old.gid);
        mode = allowed_mode(wanted, gid, who) & warren_disk::MODE_MASK;
    }
    // A directory's time is in its part, which is what clients see.
    let mtime = if old.kind == FileKind::Directory { old.mtime } else { inode.mtime };
    Attributes {
        mode,
        uid: set.uid.unwrap_or(inode.uid),
        gid: set.gid.unwrap_or(inode.gid),
        atime: set.atime.map_or(inode.atime, time),
        mtime: set.mtime.map_or(mtime, time),
        ctime: now,
        flags: inode.flags,
    }
}

/// The flags of an inode after `chattr`.
fn with_settable(flags: InodeFlags, set: Option<InodeFlags>) -> InodeFlags {
    let settable = InodeFlags::SETTABLE;
    set.map_or(flags, |set| flags.difference(settable).union(set.intersection(settable)))
}

/// Whether it sets a flag of a regular file that forbids writes.
fn forbids_writes(set: &SetAttr, attr: &Attr) -> bool {
    let forbidding = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    attr.kind == FileKind::Regular
        && set.flags.is_some_and(|set| set.difference(attr.flags).intersects(forbidding))
}

/// EPERM if a flag of the inode forbids the change, or `who` may not change the flags.
fn check_flags(set: &SetAttr, attr: &Attr, who: &Credentials) -> Result<(), Errno> {
    let strong = is_of_owner(set) || set.size.is_some();
    let any = strong || set.atime.is_some() || set.mtime.is_some() || set.kill_privileges;
    if any && attr.flags.contains(InodeFlags::IMMUTABLE)
        || strong && attr.flags.contains(InodeFlags::APPEND)
    {
        return Err(Errno::EPERM);
    }
    let Some(wanted) = set.flags else { return Ok(()) };
    if !matches!(attr.kind, FileKind::Regular | FileKind::Directory) {
        return Err(Errno::ENOTTY);
    }
    permission::check_owner(who, attr)?;
    let changed = (wanted ^ attr.flags) & InodeFlags::SETTABLE;
    let roots = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    // As in ext4, the flags of an immutable file stay until that one goes.
    let is_kept = (wanted & attr.flags).contains(InodeFlags::IMMUTABLE) && !changed.is_empty();
    let is_refused = is_kept || permission::is_bound(who) && changed.intersects(roots);
    if is_refused { Err(Errno::EPERM) } else { Ok(()) }
}

pub(crate) fn read_link(shard: &Shard, ino: Ino) -> Result<Finished, Stop> {
    let value = shard.living(ino)?;
    if value.attr.kind != FileKind::Symlink {
        return Err(Errno::EINVAL.into());
    }
    let mut target = Vec::new();
    shard.records(ino, Kind::Target, 0, |_, piece| {
        if let Value::Target(bytes) = piece {
            target.extend_from_slice(bytes);
        }
        // A damaged image may hold more than `create` admits.
        go_on_if(target.len() <= SYMLINK_MAX)
    })?;
    if target.len() > SYMLINK_MAX {
        Err(Errno::EIO.into())
    } else {
        done(Reply::Target(target.into()))
    }
}

/// Whether `who` may set these attributes. `writable`: through a handle opened for writing.
fn check_set(
    set: &SetAttr,
    inode: &InodeValue,
    writable: bool,
    who: &Credentials,
) -> Result<(), Errno> {
    let attr = &inode.attr;
    if set.size.is_some() {
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if !writable {
            permission::check(who, inode, WRITE)?;
        }
    }
    check_flags(set, attr, who)?;
    if set.mode.is_some() && attr.kind == FileKind::Symlink && !who.checked_by_kernel {
        return Err(Errno::EOPNOTSUPP);
    }
    if who.checked_by_kernel {
        return check_set_by_front(set, attr, who);
    }
    if who.uid == 0 {
        return Ok(());
    }
    let changes_owner =
        set.uid.is_some_and(|uid| uid != attr.uid) || (set.uid.is_some() && who.uid != attr.uid);
    let changes_group = set
        .gid
        .is_some_and(|gid| who.uid != attr.uid || (gid != attr.gid && !who.is_in_group(gid)));
    if changes_owner || changes_group {
        return Err(Errno::EPERM);
    }
    // A new length removes the set-id bits, and a writer may set a length. Otherwise only the owner
    // may.
    if set.mode.is_some() || (set.kill_privileges && set.size.is_none()) {
        permission::check_owner(who, attr)?;
    }
    // A writer may set both times to now. Only the owner may make any other change.
    match (set.atime, set.mtime) {
        (None, None) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) if who.uid != attr.uid => {
            permission::check(who, inode, WRITE)
        }
        _ => permission::check_owner(who, attr),
    }
}

/// A front's kernel has checked all of this, but perhaps with a former owner.
fn check_set_by_front(set: &SetAttr, attr: &Attr, who: &Credentials) -> Result<(), Errno> {
    if is_of_owner(set) { permission::check_owner(who, attr) } else { Ok(()) }
}

/// Whether it sets what only the owner may: all but the length, both times to the present, and
/// flags, which [`check_flags`] looks at.
fn is_of_owner(set: &SetAttr) -> bool {
    let times = [set.atime, set.mtime];
    let more_than_touch = times != [None; 2] && times != [Some(SetTime::Now); 2];
    set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || more_than_touch
}

/// Only members of the group may set the set-gid bit.
fn allowed_mode(mode: u16, gid: u32, who: &Credentials) -> u16 {
    let member = !permission::is_bound(who) || who.is_in_group(gid);
    if member { mode } else { mode & !permission::SET_GID }
}
