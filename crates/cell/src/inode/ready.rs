//! What comes before a change of an inode's attributes.

use warren_base::{Errno, Ino};
use warren_disk::Inode;
use warren_proto::{Attributes, FileKind, LeaseKey, LockMode};

use crate::budget::{Need, Reservation};
use crate::chunks::claim::reserve;
use crate::recall::recall;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::turn::Turn;

/// Waits until the attributes of the inode may change, and reserves room for the change.
pub(crate) fn ready_to_change(
    shard: &mut Shard,
    ino: Ino,
    need: Need,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Reservation, Stop> {
    shard.check_unlocked(ino, LockMode::Write)?;
    shard.living_inode(ino)?;
    let room = reserve(shard, need, state, turn)?;
    if !recall(shard, &LeaseKey::Attr(ino), state.client, turn) {
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
