//! The end of an inode: when it has no link and no open, its records and blocks are freed.

pub(crate) mod idle;

use warren_base::Ino;
use warren_disk::{Key, Kind, Value};
use warren_proto::{FileKind, LockMode, Step};

use crate::apply::step;
use crate::budget::{REAP_BATCH, Reservation};
use crate::cache::pages::forget_pages;
use crate::reap::idle::close_idle;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait};
use crate::run::work::Work;
use crate::shard::Shard;
use crate::turn::Turn;

/// Called when an inode has lost a link. If that was the last, the inode is removed at once, or
/// gets an orphan record and is removed later: because it is open (by its last close), or because
/// it has many records or some are not in memory (by a task of its own).
pub(crate) fn unlinked(shard: &mut Shard, ino: Ino, room: &mut Reservation, turn: &mut Turn<'_>) {
    let inode = shard.inode(ino).ok().flatten().expect("an inode that was just changed");
    if inode.nlink > 0 {
        return;
    }
    remember(shard, ino);
    // A replay does not know which inodes are open, and the end is a step of its own.
    let replaying = !turn.fleet.readiness.is_recovered();
    if !replaying {
        close_idle(shard, ino, turn);
    }
    let has_few = matches!(shard.has_few_records(ino, REAP_BATCH), Ok(true));
    let may_reap = !shard.opens.is_open(ino) && !replaying;
    let own_room = shard.budget().admit(shard.room(), shard.budget().reap());
    match own_room {
        Some(mut own_room) if may_reap && has_few => {
            step(shard, Step::Reaped { ino }, &mut own_room, turn);
        }
        _ => {
            shard.change(room, |shard| shard.put_record(Key::orphan(ino), Value::Orphan));
            if may_reap {
                turn.waits.start(Work::Reap { ino });
            }
        }
    }
}

/// Frees the records and blocks of an inode without links and opens, in several runs. Only the last
/// of these is a step of the log: a replay finds the orphan as in the last checkpoint, and begins
/// again. The blocks are held until a checkpoint without them counts.
pub(crate) fn reap(
    shard: &mut Shard,
    ino: Ino,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    // A transaction may give it a name (`O_TMPFILE`).
    shard.check_unlocked(ino, LockMode::Write)?;
    // It continues even without room for the nodes that it makes dirty, but only after a checkpoint
    // has made as much room as possible.
    let mut room = match shard.budget().admit(shard.room(), shard.budget().reap()) {
        Some(room) => room,
        None if std::mem::replace(&mut state.checkpointed, true) => Reservation::unbounded(),
        None => return Err(Stop::Wait(Wait::Checkpoint)),
    };
    shard.fetch(&Key::orphan(ino))?;
    let doomed = shard.inode(ino)?.is_some_and(|inode| inode.nlink == 0);
    if !doomed {
        return Ok(());
    }
    // A predecessor may have died before it closed these.
    close_idle(shard, ino, turn);
    if shard.opens.is_open(ino) {
        return Ok(());
    }
    remember(shard, ino);
    let belongings = shard.belongings(ino, REAP_BATCH)?;
    if belongings.len() < REAP_BATCH {
        step(shard, Step::Reaped { ino }, &mut room, turn);
        return Ok(());
    }
    // A checkpoint may hold the remaining records. A directory keeps its part, because without it
    // the inode would not be a directory.
    shard.change(&mut room, |shard| {
        for (key, value) in belongings.into_iter().filter(|(key, _)| key.kind != Kind::Part) {
            shard.free_record(&value);
            shard.take_record(&key);
        }
    });
    forget_pages(shard, ino, 0..=u64::MAX, turn.log, turn.cache);
    Err(Stop::Wait(Wait::Turn))
}

/// Keeps the last attributes of a directory. It may have changed after its end had begun, while it
/// was open.
fn remember(shard: &mut Shard, ino: Ino) {
    let inode = shard.inode(ino).ok().flatten();
    if inode.is_some_and(|inode| inode.kind == FileKind::Directory)
        && let Ok(Some(value)) = shard.inode_value(ino)
    {
        shard.removed_dirs.keep(value.attr);
    }
}
