//! The capabilities of a program (`security.capability`), which do not survive a change of its data
//! or owner.

use warren_base::{CAPABILITY, Ino, InodeFlags};
use warren_proto::{Step, XattrName};

use crate::apply::step;
use crate::budget::{Growth, Need, Reservation};
use crate::plant::Plant;
use crate::run::wait::Stop;
use crate::shard::Shard;
use crate::turn::Turn;

fn has_capability(shard: &Shard, ino: Ino) -> Result<bool, Stop> {
    let inode = shard.inode(ino)?;
    Ok(inode.is_some_and(|inode| inode.flags.contains(InodeFlags::CAPABILITY)))
}

/// The need of the removal, if the file has capabilities.
pub(crate) fn need_to_remove(shard: &Shard, ino: Ino) -> Result<Option<Need>, Stop> {
    if !has_capability(shard, ino)? {
        return Ok(None);
    }
    shard.xattr_bucket(ino, CAPABILITY)?;
    Ok(Some(shard.budget().xattr(Growth::Keeps)))
}

/// Removes the capabilities of a file that has some. [`need_to_remove`] was called in this run.
pub(crate) fn remove(shard: &mut Shard, ino: Ino, room: &mut Reservation, turn: &mut Turn<'_>) {
    if matches!(has_capability(shard, ino), Ok(true)) && !turn.plants(Plant::KeepCapability) {
        let name = XattrName::new(CAPABILITY).expect("a legal name");
        step(
            shard,
            Step::SetXattr { ino, name, value: None, now: turn.driver.now.wall },
            room,
            turn,
        );
    }
}
