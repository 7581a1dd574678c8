//! Lookup of one name, and opening what it leads to.

use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, FileKind, FileName, LockMode};
use warren_rules::names::View as _;
use warren_rules::permission::{self, EXECUTE};

use super::plan::{Plan, PlannedReply};
use crate::op::view::View;
use crate::run::wait::Stop;

pub(super) fn lookup(view: &mut View<'_>, dir: Ino, name: &FileName) -> Result<Plan, Stop> {
    let parent = view.directory(dir, LockMode::IntentRead)?;
    permission::check(view.who, &parent, EXECUTE)?;
    let Some((ino, kind)) = view.name(dir, name, LockMode::Read)? else {
        return Ok(Plan::reply(PlannedReply::Absent));
    };
    // The attributes are included if that costs nothing. Otherwise the client asks the inode's
    // cell.
    let attr = view.attr_at_hand(ino)?;
    Ok(Plan::reply(PlannedReply::Entry { ino, kind, attr }))
}

/// Looks a name up, and opens the regular file of this cell that it leads to. A client does the
/// rest for all others, as after a lookup.
pub(super) fn open(
    view: &mut View<'_>,
    dir: Ino,
    name: &FileName,
    access: AccessMode,
) -> Result<Plan, Stop> {
    let found = lookup(view, dir, name)?;
    let PlannedReply::Entry { ino, kind: FileKind::Regular, attr: Some(_) } = found.reply else {
        return Ok(found);
    };
    let inode = view.inode(ino, LockMode::Read)?.ok_or(Errno::ESTALE)?;
    permission::check_open(view.who, &inode, access)?;
    let attr = inode.attr;
    Ok(Plan::reply(PlannedReply::Created { attr, found: true, open: Some(access) }))
}
