//! Rename, with `RENAME_NOREPLACE` and `RENAME_EXCHANGE`.

use warren_base::{Errno, Ino};
use warren_proto::{Change, FileKind, FileName, InodeValue, LockMode, RenameFlags};

use super::Plan;
use crate::permission::{self, EXECUTE, WRITE};
use crate::task::Stop;
use crate::view::View;

/// A name, what it leads to, and the directory it is in.
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
}

pub(super) fn rename(
    view: &mut View<'_>,
    (from, from_name): (Ino, &FileName),
    (dir, name): (Ino, &FileName),
    flags: RenameFlags,
) -> Result<Plan, Stop> {
    if flags == RenameFlags::NOREPLACE | RenameFlags::EXCHANGE {
        return Err(Errno::EINVAL.into());
    }
    let from_parent = searchable(view, from)?;
    let to_parent = searchable(view, dir)?;
    let source = end(view, from, from_parent, from_name)?.ok_or(Errno::ENOENT)?;
    let target = end(view, dir, to_parent, name)?;
    if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
        return Err(Errno::EEXIST.into());
    }
    if target.is_none() && flags.contains(RenameFlags::EXCHANGE) {
        return Err(Errno::ENOENT.into());
    }
    if target.as_ref().is_some_and(|target| target.ino == source.ino) {
        return Ok(Plan::done(Vec::new()));
    }
    if from != dir {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        check_shape(view, &source, dir, target.as_ref().filter(|_| exchange))?;
    }
    may_leave(view, &source, from != dir)?;
    permission::check(view.who, &to_parent.attr, WRITE)?;
    match target {
        Some(target) if flags.contains(RenameFlags::EXCHANGE) => {
            may_leave(view, &target, from != dir)?;
            Ok(exchange(view, &source, &target))
        }
        Some(target) => {
            check_replaced(view, &source, &target)?;
            Ok(moved(view, &source, dir, name, Some(&target)))
        }
        None => Ok(moved(view, &source, dir, name, None)),
    }
}

fn searchable(view: &mut View<'_>, dir: Ino) -> Result<InodeValue, Stop> {
    let value = view.directory(dir, LockMode::IntentWrite)?;
    permission::check(view.who, &value.attr, EXECUTE)?;
    Ok(value)
}

fn end<'a>(
    view: &mut View<'_>,
    dir: Ino,
    parent: InodeValue,
    name: &'a FileName,
) -> Result<Option<End<'a>>, Stop> {
    let Some((ino, _)) = view.name(dir, name, LockMode::Write)? else { return Ok(None) };
    let inode = view.inode(ino, LockMode::Write)?.ok_or(Errno::EIO)?;
    Ok(Some(End { dir, parent, name, ino, inode }))
}

/// A directory that changes its parent must not come to lie below itself. The tree's shape stands
/// still while this is found out.
fn check_shape(
    view: &mut View<'_>,
    source: &End<'_>,
    dir: Ino,
    exchanged: Option<&End<'_>>,
) -> Result<(), Stop> {
    let exchanged = exchanged.filter(|target| target.is_directory());
    if !source.is_directory() && exchanged.is_none() {
        return Ok(());
    }
    view.tree()?;
    if source.is_directory() {
        check_not_above(view, source.ino, dir)?;
    }
    if let Some(target) = exchanged {
        check_not_above(view, target.ino, source.dir)?;
    }
    Ok(())
}

fn check_not_above(view: &mut View<'_>, moved: Ino, below: Ino) -> Result<(), Stop> {
    let mut dir = below;
    loop {
        if dir == moved {
            return Err(Errno::EINVAL.into());
        }
        if dir == Ino::ROOT {
            return Ok(());
        }
        dir = view.parent(dir)?;
    }
}

/// Whether `who` may take the name out of its directory.
fn may_leave(view: &View<'_>, end: &End<'_>, moves: bool) -> Result<(), Stop> {
    permission::check(view.who, &end.parent.attr, WRITE)?;
    permission::check_sticky(view.who, &end.parent.attr, &end.inode.attr)?;
    if moves && end.is_directory() {
        permission::check(view.who, &end.inode.attr, WRITE)?;
    }
    Ok(())
}

fn check_replaced(view: &View<'_>, source: &End<'_>, target: &End<'_>) -> Result<(), Stop> {
    permission::check_sticky(view.who, &target.parent.attr, &target.inode.attr)?;
    match (source.is_directory(), target.is_directory()) {
        (true, false) => Err(Errno::ENOTDIR.into()),
        (false, true) => Err(Errno::EISDIR.into()),
        (true, true) if target.inode.entries > 0 => Err(Errno::ENOTEMPTY.into()),
        _ => Ok(()),
    }
}

fn moved(
    view: &View<'_>,
    source: &End<'_>,
    dir: Ino,
    name: &FileName,
    target: Option<&End<'_>>,
) -> Plan {
    let (now, ino, kind) = (view.cell.now.wall, source.ino, source.inode.attr.kind);
    let name = name.clone();
    let mut changes = vec![match target {
        Some(_) => Change::ReplaceEntry { dir, name, ino, kind, now },
        None => Change::AddEntry { dir, name, ino, kind, now },
    }];
    changes.push(arrival(source, dir, now));
    changes.push(Change::RemoveEntry { dir: source.dir, name: source.name.clone(), now });
    if let Some(target) = target {
        changes.push(Change::RemoveLink { ino: target.ino, now });
    }
    Plan::done(changes)
}

fn exchange(view: &View<'_>, source: &End<'_>, target: &End<'_>) -> Plan {
    let now = view.cell.now.wall;
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
        arrival(source, target.dir, now),
        arrival(target, source.dir, now),
    ])
}

/// What the moved inode itself notices.
fn arrival(end: &End<'_>, parent: Ino, now: warren_base::Timestamp) -> Change {
    if end.is_directory() && end.dir != parent {
        Change::SetParent { ino: end.ino, parent, now }
    } else {
        Change::Touch { ino: end.ino, now }
    }
}
