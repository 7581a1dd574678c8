//! Preparing a change of an inode's attributes: locks, room, recalls.

use warren_base::{Errno, Ino};
use warren_disk::Inode;
use warren_proto::{Attributes, FileKind, LeaseKey, LockMode};
use warren_rules::permission::{SET_GID, SET_UID};

use crate::budget::{Need, Reservation};
use crate::lease::recalls::RecallEffect;
use crate::recall::recall_for;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::supply::claim::reserve;
use crate::turn::Turn;

/// Waits until the attributes of the inode may change, and reserves room for the change.
pub(crate) fn ready_to_change(
    shard: &mut Shard,
    ino: Ino,
    need: Need,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Reservation, Stop> {
    prepare(shard, ino, (need, RecallEffect::None), state, turn)
}

/// The same for a change of the owner, the group or the mode.
pub(crate) fn ready_to_change_rights(
    shard: &mut Shard,
    ino: Ino,
    need: Need,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Reservation, Stop> {
    prepare(shard, ino, (need, RecallEffect::Rights), state, turn)
}

fn prepare(
    shard: &mut Shard,
    ino: Ino,
    (need, effect): (Need, RecallEffect),
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Reservation, Stop> {
    shard.check_unlocked(ino, LockMode::Write)?;
    // Most changes take the set-id bits away.
    let has_set_id = shard.living_inode(ino)?.mode & (SET_UID | SET_GID) != 0;
    let effect = if has_set_id { RecallEffect::Rights } else { effect };
    let room = reserve(shard, need, state, turn)?;
    if !recall_for(shard, &LeaseKey::Attr(ino), state.client, effect, turn) {
        return Err(Stop::Wait(Wait::Recall));
    }
    Ok(room)
}

/// The attributes of an inode, for a step that changes some of them.
pub(crate) fn attributes_of(shard: &Shard, ino: Ino) -> Result<Attributes, Stop> {
    let inode = shard.inode(ino)?.ok_or(Errno::EIO)?;
    let mtime = match inode.kind {
        FileKind::Directory => shard.part(ino)?.ok_or(Errno::EIO)?.mtime,
        _ => inode.mtime,
    };
    let Inode { mode, uid, gid, atime, ctime, flags, .. } = *inode;
    Ok(Attributes { mode, uid, gid, atime, mtime, ctime, flags })
}
