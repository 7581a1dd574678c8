//! Lookup of one name.

use warren_base::Ino;
use warren_proto::{FileName, LockMode};

use super::plan::{Plan, PlannedReply};
use crate::op::view::View;
use crate::permission::{self, EXECUTE};
use crate::run::wait::Stop;

pub(super) fn lookup(view: &mut View<'_>, dir: Ino, name: &FileName) -> Result<Plan, Stop> {
    let parent = view.directory(dir, LockMode::IntentRead)?;
    permission::check(view.who, &parent.attr, EXECUTE)?;
    let Some((ino, kind)) = view.name(dir, name, LockMode::Read)? else {
        return Ok(Plan::reply(PlannedReply::Absent));
    };
    // The attributes are included if that costs nothing. Otherwise the client asks the inode's
    // cell.
    let attr = view.attr_at_hand(ino)?;
    Ok(Plan::reply(PlannedReply::Entry { ino, kind, attr }))
}
