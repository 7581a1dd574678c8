//! Rename, with `RENAME_NOREPLACE`, `RENAME_EXCHANGE` and `RENAME_WHITEOUT`.
//!
//! The data of a file that takes another file's name is logged first (decision 23).

use warren_base::{Errno, Ino};
use warren_proto::{
    Change, Entry, FileKind, FileName, InodeValue, LockMode, NewInode, RenameFlags, Reply,
};
use warren_rules::permission::{self, CHANGE_NAMES, EXECUTE, WRITE};

use super::create::with_group;
use super::plan::{Plan, PlannedReply};
use crate::op::view::View;
use crate::run::wait::Stop;

/// A name, its inode, and its directory.
struct End<'a> {
    dir: Ino,
    parent: InodeValue,
    name: &'a FileName,
    ino: Ino,
    inode: InodeValue,
}

impl End<'_> {
    fn is_directory(&self) -> bool {
        self.inode.attr.kind == FileKind::Directory
    }

    fn is_file(&self) -> bool {
        self.inode.attr.kind == FileKind::Regular
    }
}

pub(super) fn rename(
    view: &mut View<'_>,
    (from, from_name): (Ino, &FileName),
    (dir, name): (Ino, &FileName),
    flags: RenameFlags,
) -> Result<Plan, Stop> {
    let one_way = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
    if flags.contains(RenameFlags::EXCHANGE) && flags.intersects(one_way) {
        return Err(Errno::EINVAL.into());
    }
    view.expect_name(from, from_name)?;
    view.expect_name(dir, name)?;
    let from_parent = searchable_directory(view, from)?;
    let to_parent = searchable_directory(view, dir)?;
    let source = find_end(view, from, from_parent, from_name)?.ok_or(Errno::ENOENT)?;
    let target = find_end(view, dir, to_parent.clone(), name)?;
    if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
        return Err(Errno::EEXIST.into());
    }
    if target.is_none() && flags.contains(RenameFlags::EXCHANGE) {
        return Err(Errno::ENOENT.into());
    }
    if target.as_ref().is_some_and(|target| target.ino == source.ino) {
        return Ok(Plan::reply(PlannedReply::Reply(Reply::Unchanged)));
    }
    if flags.contains(RenameFlags::FILES) {
        let exchanged = target.as_ref().filter(|_| flags.contains(RenameFlags::EXCHANGE));
        if [Some(&source), exchanged].into_iter().flatten().any(End::is_directory) {
            return Err(Errno::ETXTBSY.into());
        }
    }
    if from != dir {
        check_shape(view, &source, dir, target.as_ref(), flags.contains(RenameFlags::EXCHANGE))?;
    }
    may_leave(view, &source)?;
    let Some(target) = target else {
        view.may_add(&to_parent)?;
        may_change_parent(view, &source, dir)?;
        return plan_move(view, &source, (dir, name), None, flags);
    };
    may_leave(view, &target)?;
    if flags.contains(RenameFlags::EXCHANGE) {
        may_change_parent(view, &source, dir)?;
        may_change_parent(view, &target, from)?;
        for end in [&source, &target].into_iter().filter(|end| end.is_file()) {
            view.touch_logged(end.ino)?;
        }
        return Ok(plan_exchange(view, &source, &target));
    }
    match (source.is_directory(), target.is_directory()) {
        (true, false) => return Err(Errno::ENOTDIR.into()),
        (false, true) => return Err(Errno::EISDIR.into()),
        _ => may_change_parent(view, &source, dir)?,
    }
    if target.is_directory() && target.inode.entries > 0 {
        return Err(Errno::ENOTEMPTY.into());
    }
    if source.is_file() {
        view.touch_logged(source.ino)?;
    }
    plan_move(view, &source, (dir, name), Some(&target), flags)
}

fn searchable_directory(view: &mut View<'_>, dir: Ino) -> Result<InodeValue, Stop> {
    let value = view.directory(dir, LockMode::IntentWrite)?;
    permission::check(view.who, &value, EXECUTE)?;
    Ok(value)
}

fn find_end<'a>(
    view: &mut View<'_>,
    dir: Ino,
    parent: InodeValue,
    name: &'a FileName,
) -> Result<Option<End<'a>>, Stop> {
    let Some((ino, _)) = view.name(dir, name, LockMode::Write)? else { return Ok(None) };
    let inode = view.inode(ino, LockMode::Write)?.ok_or(Errno::EIO)?;
    Ok(Some(End { dir, parent, name, ino, inode }))
}

/// A directory that changes its parent must not become its own descendant. The tree's shape does
/// not change during this check.
fn check_shape(
    view: &mut View<'_>,
    source: &End<'_>,
    dir: Ino,
    target: Option<&End<'_>>,
    exchange: bool,
) -> Result<(), Stop> {
    let target = target.filter(|target| target.is_directory());
    if !source.is_directory() && target.is_none() {
        return Ok(());
    }
    view.touch_tree()?;
    if source.is_directory() && view.is_above(source.ino, dir)? {
        return Err(Errno::EINVAL.into());
    }
    match target {
        Some(target) if view.is_above(target.ino, source.dir)? => {
            Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into())
        }
        _ => Ok(()),
    }
}

/// Whether `who` may remove the name from its directory.
fn may_leave(view: &View<'_>, end: &End<'_>) -> Result<(), Errno> {
    permission::check(view.who, &end.parent, CHANGE_NAMES)?;
    permission::check_sticky(view.who, &end.parent.attr, &end.inode.attr)?;
    permission::check_removable(&end.parent.attr, &end.inode.attr)
}

/// A directory that gets another parent is itself changed, because its `..` leads elsewhere.
fn may_change_parent(view: &View<'_>, end: &End<'_>, parent: Ino) -> Result<(), Errno> {
    if end.is_directory() && end.dir != parent {
        permission::check(view.who, &end.inode, WRITE)?;
    }
    Ok(())
}

fn plan_move(
    view: &mut View<'_>,
    source: &End<'_>,
    (dir, name): (Ino, &FileName),
    target: Option<&End<'_>>,
    flags: RenameFlags,
) -> Result<Plan, Stop> {
    let (now, ino, kind) = (view.now, source.ino, source.inode.attr.kind);
    let name = name.clone();
    let mut changes = vec![match target {
        Some(_) => Change::ReplaceEntry { dir, name, ino, kind, now },
        None => Change::AddEntry { dir, name, ino, kind, now },
    }];
    changes.push(change_of_inode(source, dir, now));
    let mut reply = Reply::Done;
    if flags.contains(RenameFlags::WHITEOUT) {
        reply = Reply::Entry(leave_whiteout(view, source, &mut changes)?);
    } else {
        changes.push(Change::RemoveEntry { dir: source.dir, name: source.name.clone(), now });
    }
    if let Some(target) = target {
        changes.push(Change::RemoveLink { ino: target.ino, now });
    }
    Ok(Plan { changes, reply: PlannedReply::Reply(reply) })
}

/// The old name leads to a new character device with the number 0.
fn leave_whiteout(
    view: &mut View<'_>,
    source: &End<'_>,
    changes: &mut Vec<Change>,
) -> Result<Entry, Stop> {
    let (dir, now, uid) = (source.dir, view.now, view.who.uid);
    let ino = view.new_ino(dir.shard())?;
    let kind = FileKind::CharDevice;
    // It inherits no list, because it may be used for nothing.
    let (new, gid) = with_group(view, &source.parent, &NewInode { kind, ..NewInode::regular(0) });
    changes.push(Change::NewInode { ino, new, uid, gid, parent: dir, now });
    changes.push(Change::ReplaceEntry { dir, name: source.name.clone(), ino, kind, now });
    Ok(Entry { ino, kind, lease: None, attr: None })
}

fn plan_exchange(view: &View<'_>, source: &End<'_>, target: &End<'_>) -> Plan {
    let now = view.now;
    let replace = |at: &End<'_>, by: &End<'_>| Change::ReplaceEntry {
        dir: at.dir,
        name: at.name.clone(),
        ino: by.ino,
        kind: by.inode.attr.kind,
        now,
    };
    Plan::done(vec![
        replace(target, source),
        replace(source, target),
        change_of_inode(source, target.dir, now),
        change_of_inode(target, source.dir, now),
    ])
}

/// The change of the moved inode itself.
fn change_of_inode(end: &End<'_>, parent: Ino, now: warren_base::Timestamp) -> Change {
    if end.is_directory() && end.dir != parent {
        Change::SetParent { ino: end.ino, parent, now }
    } else {
        Change::Touch { ino: end.ino, now }
    }
}
