//! The operations on names. Each examines what it needs through a [`View`], checks everything, and
//! returns the changes that carry it out. It has changed nothing when it returns.
//!
//! Errors come in the order in which Linux's VFS finds them.

mod create;
pub(crate) mod execute;
mod list;
mod lookup;
mod neighbours;
pub(crate) mod plan;
mod remove;
mod rename;
pub(crate) mod view;

use warren_base::Errno;
use warren_proto::{Handover, NameRequest};

use crate::op::plan::Plan;
use crate::op::view::View;
use crate::run::wait::Stop;

/// The plan of a request on names, given the contents of the view.
pub(crate) fn plan(view: &mut View<'_>, request: &NameRequest<'_>) -> Result<Plan, Stop> {
    if request.created_name().is_some_and(|(_, name)| Handover::is_reserved(name.as_bytes())) {
        return Err(Errno::EPERM.into());
    }
    match *request {
        NameRequest::Lookup { dir, name } => lookup::lookup(view, dir, name),
        NameRequest::Neighbours { dir, name } => neighbours::neighbours(view, dir, name),
        NameRequest::OpenExisting { dir, name, access } => lookup::open(view, dir, name, access),
        NameRequest::Create { dir, name, new, flags, access } => {
            create::create(view, dir, name, new, flags, access)
        }
        NameRequest::Link { ino, dir, name } => create::link(view, ino, dir, name),
        NameRequest::Unlink { dir, name } => remove::unlink(view, dir, name),
        NameRequest::Rmdir { dir, name } => remove::rmdir(view, dir, name),
        NameRequest::Rename { from, to, flags } => rename::rename(view, from, to, flags),
        NameRequest::ReadDir { dir, cookie, bytes_max, leased } => {
            list::list(view, (dir, cookie), bytes_max, leased)
        }
    }
}
