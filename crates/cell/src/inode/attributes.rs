//! Attributes of one inode, and the target of a symbolic link.

use warren_base::limits::SYMLINK_MAX;
use warren_base::{ClientId, Errno, Ino};
use warren_disk::{Kind, Value};
use warren_proto::{Credentials, FileKind, LeaseKey, Reply, SetAttr, Step};
use warren_rules::set_attr::{
    attributes_after, changes_nothing, check_set, forbids_writes, mode_after, removes_capability,
};

use crate::apply::step;
use crate::change::attributes::{ready_to_change, ready_to_change_rights};
use crate::change::capability;
use crate::data::truncate::{need_to_truncate, ready_to_truncate, truncate_now};
use crate::inode::acl;
use crate::inode::grant::grant_attr;
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
    if changes_nothing(&set, who) {
        return get_attr(shard, ino, state.client.expect("a request"), turn);
    }
    let value = shard.living(ino)?;
    let need = match set.size {
        Some(size) => need_to_truncate(shard, ino, size)?,
        None => shard.budget().attributes(),
    };
    let follows = set.mode.map(|_| acl::need_to_follow(shard, &value)).transpose()?.flatten();
    let owner = set.uid.is_some() || set.gid.is_some();
    let loses = removes_capability(&set);
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
    if set.mode.is_some() {
        acl::follow(shard, &value, mode_after(&value.attr, &set, who), &mut room, turn);
    }
    if loses {
        capability::remove(shard, ino, &mut room, turn);
    }
    // The truncation has set the times, and there may be no capabilities any more.
    let attr = shard.living(ino)?.attr;
    let attributes = attributes_after(&attr, &set, who, turn.driver.now.wall);
    step(shard, Step::SetAttr { ino, attributes }, &mut room, turn);
    let attr = shard.living(ino)?.attr;
    let client = state.client.expect("a request");
    let lease = grant_attr(shard, ino, client, turn);
    done(Reply::Attr { attr, lease })
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
