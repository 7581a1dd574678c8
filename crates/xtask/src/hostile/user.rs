//! The user that the hostile client and the honest load run as.

use anyhow::{Context, Result};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// An unprivileged user on every system.
pub(super) const UNPRIVILEGED: u32 = 65_534;

/// Called before any thread is started, because a user belongs to a thread, and its children
/// inherit it.
pub(super) fn become_unprivileged() -> Result<()> {
    let (uid, gid) = (Uid::from_raw(UNPRIVILEGED), Gid::from_raw(UNPRIVILEGED));
    set_thread_groups(&[gid]).context("cannot leave root's groups")?;
    set_thread_res_gid(gid, gid, gid).context("cannot leave root's group")?;
    set_thread_res_uid(uid, uid, uid).context("cannot leave root's user")
}
