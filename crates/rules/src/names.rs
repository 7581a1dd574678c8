//! Changes of names: `Create`, `Link`, `Unlink`, `Rmdir` and `Rename`.
//!
//! [`plan`] examines what it needs through a [`View`], checks everything, and returns the changes
//! that carry the request out. It has changed nothing when it returns. A cell plans over its shards
//! and the values that a transaction has fetched from other cells. A client that predicts the
//! result plans over its copies. [`predict`] computes the inodes after a change.
//!
//! Errors come in the order in which Linux's VFS finds them.

mod create;
mod inherit;
mod plan;
pub mod predict;
mod remove;
mod rename;
mod view;

#[cfg(test)]
mod tests;

use warren_base::Errno;
use warren_proto::{Handover, NameRequest};

pub use plan::{Outcome, Plan};
pub use view::View;

/// The plan of a request that changes names. EINVAL for a request that changes none.
pub fn plan<V: View>(view: &mut V, request: &NameRequest<'_>) -> Result<Plan, V::Stop> {
    if request.created_name().is_some_and(|(_, name)| Handover::is_reserved(name.as_bytes())) {
        return Err(Errno::EPERM.into());
    }
    match *request {
        NameRequest::Create { dir, name, new, flags, access } => {
            create::create(view, dir, name, new, flags, access)
        }
        NameRequest::Link { ino, dir, name } => create::link(view, ino, dir, name),
        NameRequest::Unlink { dir, name } => remove::unlink(view, dir, name),
        NameRequest::Rmdir { dir, name } => remove::rmdir(view, dir, name),
        NameRequest::Rename { from, to, flags } => rename::rename(view, from, to, flags),
        NameRequest::Lookup { .. }
        | NameRequest::Neighbours { .. }
        | NameRequest::OpenExisting { .. }
        | NameRequest::ReadDir { .. } => Err(Errno::EINVAL.into()),
    }
}
