//! Rename, with `RENAME_NOREPLACE`, `RENAME_EXCHANGE` and `RENAME_WHITEOUT`.
//!
//! The data of a file that takes another file's name is logged first (decision 23).

use alloc::vec;
use alloc::vec::Vec;

use warren_base::{Errno, Ino, Timestamp};
use warren_proto::{
    Change, Credentials, FileKind, FileName, InodeValue, LockMode, NewInode, RenameFlags,
};

use super::inherit::with_group;
use super::plan::{Outcome, Plan};
use super::view::View;
use crate::permission::{self, CHANGE_NAMES, EXECUTE, WRITE};

/// A name, its inode, and its directory.
struct End<'a> {
    dir: Ino,
    parent: InodeValue,
    name: &'a FileName,
    ino: Ino,
    inode: InodeValue,
}

impl End<'_> {
    #[inline]
    fn is_directory(&self) -> bool {
        self.inode.attr.kind == FileKind::Directory
    }

    #[inline]
    fn is_file(&self) -> bool {
        self.inode.attr.kind == FileKind::Regular
    }
}

pub(super) fn rename<V: View>(
    view: &mut V,
    (from, from_name): (Ino, &FileName),
    (dir, name): (Ino, &FileName),
    flags: RenameFlags,
) -> Result<Plan, V::Stop> {
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
        return Ok(Plan::unchanged(Outcome::Unchanged));
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
    may_leave(view.who(), &source)?;
    let Some(target) = target else {
        view.may_add(&to_parent)?;
        may_change_parent(view.who(), &source, dir)?;
        return plan_move(view, &source, (dir, name), None, flags);
    };
    may_leave(view.who(), &target)?;
    if flags.contains(RenameFlags::EXCHANGE) {
        may_change_parent(view.who(), &source, dir)?;
        may_change_parent(view.who(), &target, from)?;
        for end in [&source, &target].into_iter().filter(|end| end.is_file()) {
            view.touch_logged(end.ino)?;
        }
        return Ok(plan_exchange(view.now(), &source, &target));
    }
    match (source.is_directory(), target.is_directory()) {
        (true, false) => return Err(Errno::ENOTDIR.into()),
        (false, true) => return Err(Errno::EISDIR.into()),
        _ => may_change_parent(view.who(), &source, dir)?,
    }
    if target.is_directory() && target.inode.entries > 0 {
        return Err(Errno::ENOTEMPTY.into());
    }
    if source.is_file() {
        view.touch_logged(source.ino)?;
    }
    plan_move(view, &source, (dir, name), Some(&target), flags)
}

fn searchable_directory<V: View>(view: &mut V, dir: Ino) -> Result<InodeValue, V::Stop> {
    let value = view.directory(dir, LockMode::IntentWrite)?;
    permission::check(view.who(), &value, EXECUTE)?;
    Ok(value)
}

fn find_end<'a, V: View>(
    view: &mut V,
    dir: Ino,
    parent: InodeValue,
    name: &'a FileName,
) -> Result<Option<End<'a>>, V::Stop> {
    let Some((ino, _)) = view.name(dir, name, LockMode::Write)? else { return Ok(None) };
    let inode = view.inode(ino, LockMode::Write)?.ok_or(Errno::EIO)?;
    Ok(Some(End { dir, parent, name, ino, inode }))
}

/// A directory that changes its parent must not become its own descendant. The tree's shape does
/// not change during this check.
fn check_shape<V: View>(
    view: &mut V,
    source: &End<'_>,
    dir: Ino,
    target: Option<&End<'_>>,
    exchange: bool,
) -> Result<(), V::Stop> {
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
#[inline]
fn may_leave(who: &Credentials, end: &End<'_>) -> Result<(), Errno> {
    permission::check(who, &end.parent, CHANGE_NAMES)?;
    permission::check_sticky(who, &end.parent.attr, &end.inode.attr)?;
    permission::check_removable(&end.parent.attr, &end.inode.attr)
}

/// A directory that gets another parent is itself changed, because its `..` leads elsewhere.
#[inline]
fn may_change_parent(who: &Credentials, end: &End<'_>, parent: Ino) -> Result<(), Errno> {
    if end.is_directory() && end.dir != parent {
        permission::check(who, &end.inode, WRITE)?;
    }
    Ok(())
}

fn plan_move<V: View>(
    view: &mut V,
    source: &End<'_>,
    (dir, name): (Ino, &FileName),
    target: Option<&End<'_>>,
    flags: RenameFlags,
) -> Result<Plan, V::Stop> {
    let (now, ino, kind) = (view.now(), source.ino, source.inode.attr.kind);
    let name = name.clone();
    let mut changes = vec![match target {
        Some(_) => Change::ReplaceEntry { dir, name, ino, kind, now },
        None => Change::AddEntry { dir, name, ino, kind, now },
    }];
    changes.push(change_of_inode(source, dir, now));
    let mut outcome = Outcome::Done;
    if flags.contains(RenameFlags::WHITEOUT) {
        outcome = leave_whiteout(view, source, &mut changes)?;
    } else {
        changes.push(Change::RemoveEntry { dir: source.dir, name: source.name.clone(), now });
    }
    if let Some(target) = target {
        changes.push(Change::RemoveLink { ino: target.ino, now });
    }
    Ok(Plan { changes, outcome })
}

/// The old name leads to a new character device with the number 0.
fn leave_whiteout<V: View>(
    view: &mut V,
    source: &End<'_>,
    changes: &mut Vec<Change>,
) -> Result<Outcome, V::Stop> {
    let (dir, now, uid) = (source.dir, view.now(), view.who().uid);
    let ino = view.new_ino(dir.shard())?;
    let kind = FileKind::CharDevice;
    // It inherits no list, because it may be used for nothing.
    let (new, gid) =
        with_group(view.who(), &source.parent, &NewInode { kind, ..NewInode::regular(0) });
    changes.push(Change::NewInode { ino, new, uid, gid, parent: dir, now });
    changes.push(Change::ReplaceEntry { dir, name: source.name.clone(), ino, kind, now });
    Ok(Outcome::Entry { ino, kind, attr: None })
}

#[inline]
fn plan_exchange(now: Timestamp, source: &End<'_>, target: &End<'_>) -> Plan {
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
#[inline]
fn change_of_inode(end: &End<'_>, parent: Ino, now: Timestamp) -> Change {
    if end.is_directory() && end.dir != parent {
        Change::SetParent { ino: end.ino, parent, now }
    } else {
        Change::Touch { ino: end.ino, now }
    }
}
