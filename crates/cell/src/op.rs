//! The operations on names. Each examines what it needs through a [`View`], checks everything, and
//! returns the changes that carry it out. It has changed nothing when it returns.
//!
//! The operations that change names are planned by the rules of [`warren_rules::names`], by which
//! clients predict their results. Errors come in the order in which Linux's VFS finds them.

pub(crate) mod execute;
mod list;
mod lookup;
mod neighbours;
mod place;
pub(crate) mod plan;
pub(crate) mod view;

use warren_proto::NameRequest;
use warren_rules::names;

use crate::op::plan::Plan;
use crate::op::view::View;
use crate::run::wait::Stop;

/// The plan of a request on names, given the contents of the view.
pub(crate) fn plan(view: &mut View<'_>, request: &NameRequest<'_>) -> Result<Plan, Stop> {
    match *request {
        NameRequest::Lookup { dir, name } => lookup::lookup(view, dir, name),
        NameRequest::Neighbours { dir, name } => neighbours::neighbours(view, dir, name),
        NameRequest::OpenExisting { dir, name, access } => lookup::open(view, dir, name, access),
        NameRequest::ReadDir { dir, cookie, bytes_max, leased } => {
            list::list(view, (dir, cookie), bytes_max, leased)
        }
        NameRequest::Create { .. }
        | NameRequest::Link { .. }
        | NameRequest::Unlink { .. }
        | NameRequest::Rmdir { .. }
        | NameRequest::Rename { .. } => names::plan(view, request).map(Plan::from),
    }
}
