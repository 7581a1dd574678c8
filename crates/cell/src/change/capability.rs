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

fn has(shard: &Shard, ino: Ino) -> Result<bool, Stop> {
    let inode = shard.inode(ino)?;
    Ok(inode.is_some_and(|inode| inode.flags.contains(InodeFlags::CAPABILITY)))
}

/// The need of the removal, if the file has capabilities.
pub(crate) fn loss(shard: &Shard, ino: Ino) -> Result<Option<Need>, Stop> {
    if !has(shard, ino)? {
        return Ok(None);
    }
    shard.xattr_bucket(ino, CAPABILITY)?;
    Ok(Some(shard.budget().xattr(Growth::Keeps)))
}

/// Removes the capabilities of a file that has some. The caller has asked [`loss`] in this run.
pub(crate) fn lose(shard: &mut Shard, ino: Ino, room: &mut Reservation, turn: &mut Turn<'_>) {
    if matches!(has(shard, ino), Ok(true)) && !turn.plants(Plant::KeepCapability) {
        let name = XattrName::new(CAPABILITY).expect("a legal name");
        step(
            shard,
            Step::SetXattr { ino, name, value: None, now: turn.driver.now.wall },
            room,
            turn,
        );
    }
}
