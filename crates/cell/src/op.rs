//! The operations on names. Each looks at what it needs through a [`View`], checks everything, and
//! returns the changes that would make it happen; nothing has been changed when it returns.
//!
//! Errors come in the order in which Linux's VFS finds them.

pub(crate) mod ascent;
mod create;
pub(crate) mod execute;
mod list;
mod lookup;
pub(crate) mod plan;
mod remove;
mod rename;
pub(crate) mod view;

use warren_proto::Request;

use crate::op::plan::Plan;
use crate::op::view::View;
use crate::run::wait::Stop;

/// What the request, which is on names, comes to, given what the view shows.
pub(crate) fn plan(view: &mut View<'_>, request: &Request) -> Result<Plan, Stop> {
    match request {
        Request::Lookup { dir, name } => lookup::lookup(view, *dir, name),
        Request::Create { dir, name, new, flags, access } => {
            create::create(view, *dir, name, new, *flags, *access)
        }
        Request::Link { ino, dir, name } => create::link(view, *ino, *dir, name),
        Request::Unlink { dir, name } => remove::unlink(view, *dir, name),
        Request::Rmdir { dir, name } => remove::rmdir(view, *dir, name),
        Request::Rename { from, from_name, dir, name, flags } => {
            rename::rename(view, (*from, from_name), (*dir, name), *flags)
        }
        Request::ReadDir { dir, cookie, bytes_max } => list::list(view, *dir, *cookie, *bytes_max),
        _ => unreachable!("asked only for requests on names"),
    }
}
