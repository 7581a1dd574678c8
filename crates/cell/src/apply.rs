//! The interpreter of steps: makes a step as it happens, and makes it again when a log is replayed.
//!
//! A step changes trees, space and session the same way each time. So the state of a cell is a
//! function of its last checkpoint and its log. Only the effect on file data depends on the mode. A
//! file is *behind* from a write until a step with a complete cover of the file:
//!
//! | step | live | process died: frames are there | power was cut: frames are gone |
//! | --- | --- | --- | --- |
//! | `Wrote` | size, blocks, mode, times; file is behind | as live | file is behind |
//! | `Truncate` | extents, pages | extents, blocks; file is behind | as live; delayed if behind |
//! | `Placed` | extents | space, extents | space, extents, size and times of the cover |
//! | `Inline` | pages are covered | none | pages, size and times of the cover |
//! | `Fallocated` | extents, pages | extents, blocks; file is behind | as live |
//! | `Shared` | extents, pages | extents, blocks | as live |
//! | `Discarded` | generation, blocks, holes; opens end with EIO | as live | generation, holes |
//! | `Change` | records | records, and an orphan's record | records, and an orphan's record |

mod data;
mod mode;

use std::collections::BTreeSet;

use warren_base::limits::{BLOCK_SIZE, FILE_SIZE_MAX, XATTR_VALUE_MAX};
use warren_base::{BlockNo, Errno, Ino, InodeFlags, Timestamp};
use warren_disk::{Inode, Key, Part, TARGET_PIECE, Value};
use warren_proto::control::Report;
use warren_proto::{
    ACL_ACCESS, ACL_DEFAULT, Acl, Attributes, Change, Cover, FileKind, InlinePage, LeaseKey,
    RangeChange, RangeKind, Run, Step,
};

pub(crate) use mode::Mode;

use crate::budget::{ALLOCATE_BATCH, Reservation};
use crate::cache::pages::forget_pages;
use crate::chunks::free::Chunks;
use crate::fleet::Fleet;
use crate::run::wait::Stop;
use crate::shard;
use crate::shard::Shard;
use crate::shard::extents::may_be_copied;
use crate::shard::open::OpenFile;
use crate::turn::Turn;
use data::{make_fallocated, make_inline, make_placed, make_shared, make_truncated};

const PAGE: u64 = BLOCK_SIZE as u64;
/// Pages of the longest file.
const PAGES_MAX: u64 = FILE_SIZE_MAX.div_ceil(PAGE);

/// Makes a step of the running task, within the `room` that it was given, and notes it.
pub(crate) fn step(shard: &mut Shard, mut step: Step, room: &mut Reservation, turn: &mut Turn<'_>) {
    let made = shard.change(room, |shard| apply(shard, &mut step, Mode::Live, turn));
    made.expect("a live step waits for nothing");
    turn.note(&step);
}

/// Makes a step. Its nodes must be in memory, and a replayed step must have been checked. Sets the
/// `blocks` of a live truncation; a replayed truncation may have to wait for the page that it cuts.
pub(crate) fn apply(
    shard: &mut Shard,
    step: &mut Step,
    mode: Mode,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    match step {
        Step::Change(change) => {
            make_one(shard, change, turn.fleet);
            if let Change::NewInode { ino, .. } = change {
                turn.sessions.numbers.note_replayed(*ino);
            }
            if let Change::RemoveLink { ino, .. } = change
                && mode != Mode::Live
                && shard.inode_mut(*ino).nlink == 0
            {
                // A replay does not know yet which inodes are open. The end of the inode is a step
                // of its own.
                shard.put_record(Key::orphan(*ino), Value::Orphan);
            }
        }
        Step::SetAttr { ino, attributes } => make_set_attr(shard, *ino, *attributes),
        Step::Accessed { ino, atime } => shard.inode_mut(*ino).atime = *atime,
        Step::SetXattr { ino, name, value, now } => {
            shard.set_xattr(*ino, name.as_bytes(), value.as_deref());
            shard.inode_mut(*ino).ctime = *now;
        }
        Step::Reaped { ino } => make_reaped(shard, *ino, turn),
        Step::Claimed { chunk, .. } => drop(shard.space.claim(*chunk)),
        Step::Truncate { ino, size, blocks, now } => {
            make_truncated(shard, *ino, (*size, blocks, *now), mode, turn)?;
        }
        Step::Wrote { ino, size, blocks, mode: bits, now } => {
            if mode != Mode::Power {
                make_wrote(shard, *ino, *size, *blocks, *bits, *now);
            }
            shard.behind.note_write(*ino, *size);
        }
        Step::Placed { ino, runs, cover } => make_placed(shard, *ino, runs, cover, mode, turn)?,
        Step::Inline { ino, pages, cover } => {
            make_inline(shard, *ino, pages, cover, mode, turn)?;
        }
        Step::Fallocated { ino, change, size, blocks, mode: bits, now } => {
            make_fallocated(shard, *ino, change, blocks, mode, turn)?;
            let blocks = shard.inode_mut(*ino).blocks;
            make_wrote(shard, *ino, *size, blocks, *bits, *now);
            shard.behind.note_size(*ino, *size);
        }
        Step::Shared { ino, source, copy, size, blocks, mode: bits, now } => {
            make_shared(shard, (*ino, *source), copy, blocks, mode, turn)?;
            make_wrote(shard, *ino, *size, *blocks, *bits, *now);
            shard.behind.note_size(*ino, *size);
        }
        Step::Discarded { ino, generation, blocks, holes, .. } => {
            make_discarded(shard, (*ino, *generation), (*blocks, holes), mode, turn);
        }
        Step::Opened { handle, client, access, offset, uid } => {
            let (client, uid, access, offset) = (*client, *uid, *access, *offset);
            let file = OpenFile { client, uid, access, offset, read_end: 0 };
            shard.opens.restore(*handle, file, &mut turn.sessions.opens);
        }
        Step::Closed { handle } => shard.opens.forget(*handle, &mut turn.sessions.opens),
        Step::Moved { handle, offset } => {
            if let Some(file) = shard.opens.get_mut(*handle) {
                file.offset = *offset;
            }
        }
        // Steps of the cell, or of all its shards.
        Step::Depends { .. }
        | Step::Finished { .. }
        | Step::Locked { .. }
        | Step::Expelled { .. }
        | Step::Numbered { .. }
        | Step::Unanswered { .. }
        | Step::GivenUp { .. }
        | Step::Owed { .. } => {}
    }
    Ok(())
}

/// Makes a logged step again that can be made. The caller has checked the chunk of a claim.
pub(crate) fn make_again(
    shard: &mut Shard,
    step: &mut Step,
    mode: Mode,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    fetch_step(shard, step, turn.fleet)?;
    check_step(shard, step, turn.chunks)?;
    let made = apply(shard, step, mode, turn);
    turn.settle();
    made
}

/// Reads the nodes that a logged step touches.
fn fetch_step(shard: &Shard, step: &Step, fleet: &Fleet) -> Result<(), Stop> {
    match step {
        Step::Change(change) => fetch_change(shard, change, fleet),
        Step::SetAttr { ino, .. } => {
            shard.fetch(&Key::inode(*ino))?;
            shard.fetch(&Key::part(*ino, 0))
        }
        Step::Accessed { ino, .. } | Step::Wrote { ino, .. } => shard.fetch(&Key::inode(*ino)),
        Step::Discarded { ino, holes, .. } => {
            shard.fetch(&Key::inode(*ino))?;
            holes.iter().try_for_each(|page| shard.fetch_extents(*ino, *page, *page))
        }
        Step::SetXattr { ino, name, value, .. } => {
            shard.fetch(&Key::inode(*ino))?;
            shard.fetch_xattr(*ino, name.as_bytes(), value.as_deref())
        }
        Step::Truncate { ino, size, .. } => {
            shard.fetch(&Key::inode(*ino))?;
            shard.fetch_extents(*ino, size / PAGE, u64::MAX / PAGE)
        }
        Step::Fallocated { ino, change, .. } => {
            shard.fetch(&Key::inode(*ino))?;
            let (first, last) = change.blocks();
            shard.fetch_extents(*ino, first, last)
        }
        Step::Shared { ino, source, copy, .. } => {
            shard.fetch(&Key::inode(*ino))?;
            shard.fetch(&Key::inode(*source))?;
            may_be_copied(shard, *ino, *source, copy).map(|_| ())
        }
        Step::Placed { ino, runs, .. } => {
            shard.fetch(&Key::inode(*ino))?;
            let fetch = |run: &Run| {
                let pages = run.checksums.len() as u64;
                shard.fetch_extents(*ino, run.page, run.page.saturating_add(pages))
            };
            runs.iter().try_for_each(fetch)
        }
        Step::Inline { ino, pages, .. } => {
            shard.fetch(&Key::inode(*ino))?;
            pages.iter().try_for_each(|page| shard.placed(*ino, page.page).map(|_| ()))
        }
        Step::Reaped { ino } => {
            shard.fetch(&Key::orphan(*ino))?;
            shard.fetch_range(Key::inode(*ino), Key::last_of(*ino))
        }
        _ => Ok(()),
    }
}

/// Whether a fetched step can be made. Every step that a cell has logged can be made. But a writer
/// of the device can store any record with a right checksum.
fn check_step(shard: &Shard, step: &Step, chunks: &Chunks) -> Result<(), Stop> {
    let exists = |ino: &Ino| Ok::<_, Stop>(shard.inode(*ino)?.is_some());
    let can_be = match step {
        Step::SetAttr { ino, .. } => {
            let inode = shard.inode(*ino)?;
            let is_dir = inode.is_some_and(|inode| inode.kind == FileKind::Directory);
            inode.is_some() && (!is_dir || shard.part(*ino)?.is_some())
        }
        Step::Accessed { ino, .. } => exists(ino)?,
        Step::Discarded { ino, holes, .. } => {
            exists(ino)? && holes.iter().all(|page| *page < PAGES_MAX)
        }
        Step::SetXattr { ino, value, .. } => {
            exists(ino)? && value.as_ref().is_none_or(|value| value.len() <= XATTR_VALUE_MAX)
        }
        Step::Truncate { ino, size, .. } | Step::Wrote { ino, size, .. } => {
            exists(ino)? && *size <= FILE_SIZE_MAX
        }
        Step::Placed { ino, runs, cover } => {
            exists(ino)? && cover.size <= FILE_SIZE_MAX && may_be_placed(shard, *ino, runs)
        }
        Step::Inline { ino, pages, cover } => {
            let has_place = |page: &InlinePage| page.page < PAGES_MAX;
            exists(ino)? && cover.size <= FILE_SIZE_MAX && pages.iter().all(has_place)
        }
        Step::Fallocated { ino, change, size, .. } => {
            exists(ino)? && *size <= FILE_SIZE_MAX && may_be_fallocated(change)
        }
        Step::Shared { ino, source, copy, size, .. } => {
            let (from, to, count) = copy.blocks();
            exists(ino)?
                && exists(source)?
                && source.shard() == shard.id
                && *size <= FILE_SIZE_MAX
                && (1..=ALLOCATE_BATCH).contains(&count)
                && [from, to].iter().all(|first| *first < PAGES_MAX)
                && may_be_copied(shard, *ino, *source, copy)?
        }
        Step::Claimed { chunk, .. } => chunks.is_legal(*chunk),
        _ => true,
    };
    if can_be { Ok(()) } else { Err(Errno::EIO.into()) }
}

/// Whether the runs are of consecutive pages of a file, and each block is free and named once.
fn may_be_placed(shard: &Shard, _ino: Ino, runs: &[Run]) -> bool {
    let space = &shard.space;
    let mut blocks = BTreeSet::new();
    let is_next = |pair: &[Run]| {
        pair[0].page.checked_add(pair[0].checksums.len() as u64) == Some(pair[1].page)
    };
    runs.windows(2).all(is_next)
        && runs.iter().all(|run| {
            let count = run.checksums.len() as u64;
            let within = run.page.checked_add(count).is_some_and(|end| end <= PAGES_MAX);
            let mut of_run = (0..count).map_while(|at| run.block.0.checked_add(at).map(BlockNo));
            count > 0
                && within
                && run.block.0.checked_add(count).is_some()
                && of_run.all(|block| space.is_free(block) && blocks.insert(block))
        })
}

/// Whether a cell makes such a change in one step.
fn may_be_fallocated(change: &RangeChange) -> bool {
    let (first, last) = change.blocks();
    let is_short = change.kind == RangeKind::PunchHole || last - first <= ALLOCATE_BATCH;
    change.length > 0 && is_short && change.end().is_some_and(|end| end <= FILE_SIZE_MAX)
}

fn make_set_attr(shard: &mut Shard, ino: Ino, new: Attributes) {
    let inode = shard.inode_mut(ino);
    (inode.mode, inode.uid, inode.gid) = (new.mode, new.uid, new.gid);
    (inode.atime, inode.mtime, inode.ctime) = (new.atime, new.mtime, new.ctime);
    inode.flags = new.flags;
    if inode.kind == FileKind::Directory {
        shard.part_mut(ino).mtime = new.mtime;
    }
}

fn make_wrote(shard: &mut Shard, ino: Ino, size: u64, blocks: u64, mode: u16, now: Timestamp) {
    let inode = shard.inode_mut(ino);
    (inode.size, inode.blocks, inode.mode) = (size, blocks, mode);
    (inode.mtime, inode.ctime) = (now, now);
}

/// Pages of the file that only a process had are gone. The supervisor may not have received the
/// report of the process that logged the step.
fn make_discarded(
    shard: &mut Shard,
    (ino, generation): (Ino, u32),
    (blocks, holes): (u64, &[u64]),
    mode: Mode,
    turn: &mut Turn<'_>,
) {
    let freed: u64 = holes.iter().map(|page| shard.replace_extents(ino, *page, *page, &[])).sum();
    let inode = shard.inode_mut(ino);
    inode.generation = generation;
    inode.blocks = match mode {
        Mode::Live | Mode::Frames => blocks,
        Mode::Power => inode.blocks.saturating_sub(freed),
    };
    shard.opens.end_with_eio(ino);
    if mode != Mode::Power {
        turn.report(Report::Discarded { cell: turn.fleet.volume.id, ino, generation });
    }
}

fn make_reaped(shard: &mut Shard, ino: Ino, turn: &mut Turn<'_>) {
    let belongings = shard.belongings(ino, usize::MAX);
    for (key, value) in belongings.unwrap_or_else(|_| panic!("read in the same go")) {
        shard.free_record(&value);
        shard.take_record(&key);
    }
    shard.take_record(&Key::inode(ino));
    shard.take_record(&Key::orphan(ino));
    shard.inodes = shard.inodes.saturating_sub(1);
    shard.behind.remove(ino);
    forget_pages(shard, ino, 0..=u64::MAX, turn.log, turn.cache);
    turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    shard.leases.forget_inode(ino, &mut turn.sessions.leases);
}

/// The cover that a step noted now has for the file. Waits for its inode; EIO if there is none.
pub(crate) fn cover_of(shard: &Shard, ino: Ino, complete: bool) -> Result<Cover, Stop> {
    let inode = shard.inode(ino)?.ok_or(Errno::EIO)?;
    let (size, mode) = (inode.size, inode.mode);
    Ok(Cover { size, mode, mtime: inode.mtime, ctime: inode.ctime, complete })
}

/// Reads the nodes that the change will touch, and checks that the records exist which it changes.
/// A damaged image may lack some, and a peer may send any change.
pub(crate) fn fetch_change(shard: &Shard, change: &Change, fleet: &Fleet) -> Result<(), Stop> {
    // The cell that planned the change has read the inode. A damaged peer may send any number.
    let exists = |ino| shard.inode(ino)?.map(|_| ()).ok_or(Stop::Fail(Errno::EPROTO));
    match change {
        Change::NewInode { ino, new, .. } if new.kind == FileKind::Regular => {
            shard.fetch(&Key::inode(*ino))
        }
        // The keys of a new inode lie between those of its neighbours.
        Change::NewInode { ino, .. } => shard.fetch_range(Key::inode(*ino), Key::extent(*ino, 0)),
        Change::AddEntry { dir, name, .. }
        | Change::RemoveEntry { dir, name, .. }
        | Change::ReplaceEntry { dir, name, .. } => {
            let entry = shard.entry(fleet.volume.secret, *dir, name)?;
            exists(*dir)?;
            shard.check_entry(*dir, name, entry)
        }
        Change::RemoveLink { ino, .. } | Change::AddLink { ino, .. } => {
            shard.fetch(&Key::orphan(*ino))?;
            exists(*ino)
        }
        Change::NewOrphan { ino, .. } => {
            shard.fetch(&Key::orphan(*ino))?;
            shard.fetch(&Key::inode(*ino))
        }
        Change::SetParent { ino, .. } | Change::Touch { ino, .. } => exists(*ino),
        Change::Inherit { ino, .. } => {
            shard.fetch(&Key::inode(*ino))?;
            shard.xattr_bucket(*ino, ACL_ACCESS)?;
            shard.xattr_bucket(*ino, ACL_DEFAULT).map(|_| ())
        }
    }
}

pub(crate) fn make_one(shard: &mut Shard, change: &Change, fleet: &Fleet) {
    let secret = fleet.volume.secret;
    match change {
        Change::NewInode { ino, new, uid, gid, parent, now } => {
            let inode = shard::new_inode(new, *uid, *gid, *parent, *now);
            make_new_inode(shard, *ino, inode, &new.target);
        }
        Change::AddEntry { dir, name, ino, kind, now } => {
            shard.set_dentry(secret, *dir, name, Some((*ino, *kind)));
            let part = shard.part_mut(*dir);
            part.entries = part.entries.saturating_add(1);
            part.subdirs = part.subdirs.saturating_add((*kind == FileKind::Directory).into());
            stamp(part, *now);
        }
        Change::RemoveEntry { dir, name, now } => {
            let gone = shard.set_dentry(secret, *dir, name, None);
            let part = shard.part_mut(*dir);
            if let Some((_, kind)) = gone {
                part.entries = part.entries.saturating_sub(1);
                part.subdirs = part.subdirs.saturating_sub((kind == FileKind::Directory).into());
            }
            stamp(part, *now);
        }
        Change::ReplaceEntry { dir, name, ino, kind, now } => {
            let gone = shard.set_dentry(secret, *dir, name, Some((*ino, *kind)));
            let old = gone.map(|(_, kind)| kind);
            let part = shard.part_mut(*dir);
            part.subdirs = part.subdirs.saturating_add((*kind == FileKind::Directory).into());
            part.subdirs = part.subdirs.saturating_sub((old == Some(FileKind::Directory)).into());
            stamp(part, *now);
        }
        Change::NewOrphan { ino, new, uid, gid, now } => {
            let mut inode = shard::new_inode(new, *uid, *gid, Ino(0), *now);
            inode.nlink = 0;
            shard.put_record(Key::inode(*ino), Value::Inode(Box::new(inode)));
            shard.put_record(Key::orphan(*ino), Value::Orphan);
            shard.use_sequence(*ino);
            shard.inodes += 1;
        }
        Change::AddLink { ino, now } => {
            if shard.inode_mut(*ino).nlink == 0 {
                shard.take_record(&Key::orphan(*ino));
            }
            let inode = shard.inode_mut(*ino);
            inode.nlink = inode.nlink.saturating_add(1);
            inode.ctime = *now;
        }
        Change::RemoveLink { ino, now } => {
            let inode = shard.inode_mut(*ino);
            let directory = inode.kind == FileKind::Directory;
            inode.nlink = if directory { 0 } else { inode.nlink.saturating_sub(1) };
            inode.ctime = *now;
        }
        Change::SetParent { ino, parent, now } => {
            let inode = shard.inode_mut(*ino);
            inode.parent = *parent;
            inode.ctime = *now;
        }
        Change::Touch { ino, now } => shard.inode_mut(*ino).ctime = *now,
        Change::Inherit { ino, access, default, flags } => {
            inherit(shard, *ino, [(ACL_ACCESS, access), (ACL_DEFAULT, default)], *flags);
        }
    }
}

/// A damaged peer may send it without the inode.
fn inherit(shard: &mut Shard, ino: Ino, lists: [(&[u8], &Option<Acl>); 2], flags: InodeFlags) {
    if !matches!(shard.inode(ino), Ok(Some(_))) {
        return;
    }
    shard.inode_mut(ino).flags |= flags & InodeFlags::INHERITED;
    for (name, list) in lists {
        if let Some(list) = list {
            shard.set_xattr(ino, name, Some(&list.to_xattr()));
        }
    }
}

fn make_new_inode(shard: &mut Shard, ino: Ino, inode: Inode, target: &[u8]) {
    let (kind, mtime, ctime) = (inode.kind, inode.mtime, inode.ctime);
    shard.put_record(Key::inode(ino), Value::Inode(Box::new(inode)));
    if kind == FileKind::Directory {
        let part = Part { entries: 0, subdirs: 0, mtime, ctime };
        shard.put_record(Key::part(ino, 0), Value::Part(Box::new(part)));
    }
    for (piece, bytes) in target.chunks(TARGET_PIECE).enumerate() {
        shard.put_record(Key::target(ino, piece as u64), Value::Target(bytes.into()));
    }
    shard.use_sequence(ino);
    shard.inodes += 1;
}

/// The directory changed at `now`. A transaction's change may be made here after a change that was
/// decided later. Then the directory keeps the later times.
fn stamp(part: &mut Part, now: Timestamp) {
    if now >= part.ctime {
        (part.mtime, part.ctime) = (now, now);
    }
}

#[cfg(test)]
mod tests;
