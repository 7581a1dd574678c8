//! Lookup of one name that brings others of the directory, for a client that looks at many.
//!
//! The names of a directory are divided into groups by their hashes, so that about [`GROUP`] names
//! are in one, and those of the name's own group are brought: first those behind it, in the order
//! of listings, then those before it. So a client that takes the names in any order gets each of
//! them once.
//!
//! Nothing is waited for: the reply ends where a block is missing, and has no name that a
//! transaction may be changing.

use std::ops::ControlFlow;

use warren_base::Ino;
use warren_disk::{Dentry, Key, Kind, NAME_HASH_BITS, Value, name_hash};
use warren_proto::{FileName, LockMode};
use warren_rules::names::View as _;
use warren_rules::permission::{self, READ};

use super::lookup::lookup;
use super::plan::{Neighbour, Plan, PlannedReply};
use crate::budget::{LISTING_MAX, NEIGHBOUR};
use crate::op::view::View;
use crate::plant::Plant;
use crate::run::wait::Stop;

/// Names in a group, so few that most groups fit into one reply.
const GROUP: u64 = 44;

const _: () = assert!((GROUP as usize) * (NEIGHBOUR + 16) < LISTING_MAX * 3 / 4);

pub(super) fn neighbours(view: &mut View<'_>, dir: Ino, name: &FileName) -> Result<Plan, Stop> {
    let plan = lookup(view, dir, name)?;
    let PlannedReply::Entry { ino, kind, mut attr } = plan.reply else { return Ok(plan) };
    let is_delegated = view.shards[&dir.shard()].leases.delegations.covers(dir);
    if is_delegated && attr.is_none() && ino.shard() == dir.shard() {
        // Its client wants to change the name, and has to know the inode for that.
        attr = view.inode(ino, LockMode::Read)?.map(|value| value.attr);
    }
    let alone = PlannedReply::Entry { ino, kind, attr };
    let parent = view.directory(dir, LockMode::IntentRead)?;
    // A front's leases are acknowledged ones, and the names are for readers of the directory.
    let is_reader = permission::check(view.who, &parent, READ).is_ok()
        || view.volume.plant == Some(Plant::NeighboursUnread);
    if view.who.checked_by_kernel || !is_reader {
        return Ok(Plan::reply(alone));
    }
    let first = Neighbour { name: name.clone(), ino, kind, attr };
    let mut room = LISTING_MAX - NEIGHBOUR - name.as_bytes().len();
    let mut found = vec![first];
    let here = name_hash(view.volume.secret, name.as_bytes());
    let (start, end) = group_bounds(here, parent.entries);
    for (from, to) in [(here, end), (start, here)] {
        add_neighbours(view, dir, (from, to), &mut room, &mut found);
    }
    Ok(Plan::reply(match found.len() {
        1 => alone,
        _ => PlannedReply::Neighbours(found),
    }))
}

/// The first hash of the group of this one, and the first behind it, in a directory of so many
/// names.
fn group_bounds(hash: u64, names: u64) -> (u64, u64) {
    let groups = u128::from((names.saturating_add(GROUP / 2) / GROUP).max(1));
    let at = (u128::from(hash) * groups) >> NAME_HASH_BITS;
    let first = |at: u128| (at << NAME_HASH_BITS).div_ceil(groups) as u64;
    (first(at), first(at + 1))
}

/// Adds the names with these hashes, from the first to before the last, that fit into `room` bytes.
fn add_neighbours(
    view: &View<'_>,
    dir: Ino,
    (from, to): (u64, u64),
    room: &mut usize,
    found: &mut Vec<Neighbour>,
) {
    let shard = &view.shards[&dir.shard()];
    // A block that is missing ends it: the names so far are the answer.
    let _ended = shard.records(dir, Kind::Entry, from, |key: &Key, value| {
        let Value::Entries(bucket) = value else { return ControlFlow::Continue(()) };
        if key.sub >= to {
            return ControlFlow::Break(());
        }
        for dentry in bucket {
            let size = NEIGHBOUR + dentry.name.len();
            if size > *room {
                *room = 0;
                return ControlFlow::Break(());
            }
            if *dentry.name != *found[0].name.as_bytes()
                && let Some(neighbour) = neighbour(view, dentry)
            {
                *room -= size;
                found.push(neighbour);
            }
        }
        ControlFlow::Continue(())
    });
}

/// `None` if the name is illegal, as on a damaged disk.
fn neighbour(view: &View<'_>, dentry: &Dentry) -> Option<Neighbour> {
    let attr = view.attr_at_hand(dentry.ino).ok().flatten();
    let name = FileName::new(&dentry.name).ok()?;
    Some(Neighbour { name, ino: dentry.ino, kind: dentry.kind, attr })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hash_is_in_one_group() {
        for names in [0, 1, 44, 65, 66, 1000, 1 << 40, u64::MAX] {
            let mut at = 0;
            for _ in 0..100 {
                let (start, end) = group_bounds(at, names);
                assert!(start == at && end > start, "{names}: {start} {at} {end}");
                assert_eq!(group_bounds(end - 1, names), (start, end));
                at = end;
                if at == 1 << NAME_HASH_BITS {
                    break;
                }
            }
            assert!(at == 1 << NAME_HASH_BITS || names / GROUP >= 100, "{names}");
        }
    }

    #[test]
    fn a_small_directory_is_one_group() {
        assert_eq!(group_bounds(99, 60), (0, 1 << NAME_HASH_BITS));
        assert!(group_bounds(99, 70) != (0, 1 << NAME_HASH_BITS));
    }
}
