//! Requests that concern one inode or a handle, executed in the shard of the inode.

pub(crate) mod acl;
pub(crate) mod attributes;
pub(crate) mod grant;
pub(crate) mod lock;
pub(crate) mod open;
pub(crate) mod sync;
pub(crate) mod xattr;

use warren_proto::{Credentials, Reply, Request};
use warren_rules::permission;

use crate::data::copy::copy_range;
use crate::data::fallocate::fallocate;
use crate::data::find::find_data;
use crate::data::read::{data_at_hand, read};
use crate::data::write::{WriteMode, write};
use crate::event::SlotRef;
use crate::run::answer::{Finished, done};
use crate::run::state::TaskState;
use crate::run::wait::Stop;
use crate::shard::Shard;
use crate::turn::Turn;

/// The context of a request that its execution needs.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) from: SlotRef,
    /// Bytes of file data that came with it.
    pub(crate) payload: usize,
    pub(crate) who: &'a Credentials,
}

/// Executes a request that concerns one inode, in its shard.
pub(crate) fn execute(
    shard: &mut Shard,
    Call { from, payload, who }: Call<'_>,
    request: &Request,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let client = from.client;
    // No other client has a file open on which records are executed.
    if !state.is_posted() {
        open::check_sole(shard, request, client, turn.sessions)?;
    }
    match *request {
        Request::GetAttr { ino } => attributes::get_attr(shard, ino, client, turn),
        // What it brings comes beside the reply.
        Request::Extend { .. } => done(Reply::Done),
        Request::GetRemoved { dir } => attributes::get_removed(shard, dir, who),
        Request::SetAttr { ino, handle, set } => {
            let writable = open::is_writable(shard, ino, handle, client)?;
            attributes::set_attr(shard, ino, set, writable, who, state, turn)
        }
        Request::ReadLink { ino } => attributes::read_link(shard, ino),
        Request::Open { ino, access } => {
            let opened = open::open_file(shard, ino, access, who, state, turn)?;
            let data = data_at_hand(shard, from, &opened, access, turn);
            Ok(Some((Ok(Reply::Opened(opened)), data)))
        }
        Request::Close { handle } => open::close(shard, handle, client, turn),
        Request::Read { handle, position, len, flags } => {
            let (len, is_kept) = read(shard, from, handle, position, (len, flags), turn)?;
            state.reads_kept = is_kept;
            Ok(Some((Ok(Reply::Read { len }), len)))
        }
        Request::Write { handle, position, kill_privileges, write_back, direct } => {
            let strips = kill_privileges || permission::is_bound(who);
            let mode = WriteMode { strips: strips.then_some(who), write_back, direct };
            let (len, size) = write(shard, (from, payload), handle, position, mode, state, turn)?;
            done(Reply::Written { len, size })
        }
        Request::Seek { handle, position } => open::seek(shard, handle, position, client, turn),
        Request::Fsync { ino, handle, .. } => {
            open::check_descriptor(shard, ino, handle, client, who)?;
            sync::fsync(shard, ino, state, turn)
        }
        Request::GetXattr { ino, ref name } => {
            xattr::get_xattr(shard, ino, name, (from, who), turn)
        }
        Request::SetXattr { ino, ref name, ref value, kill_set_gid, .. } if name.is_acl() => {
            let list = (Some(xattr::short_value(value, payload)?), kill_set_gid);
            acl::set_acl(shard, ino, name, list, who, state, turn)
        }
        Request::RemoveXattr { ino, ref name } if name.is_acl() => {
            acl::set_acl(shard, ino, name, (None, false), who, state, turn)
        }
        Request::SetXattr { ino, ref name, ref value, mode, .. } => {
            let new = Some((xattr::sent_value(value, (from, payload), &mut turn.driver)?, mode));
            xattr::set_xattr(shard, ino, name.clone(), new, who, state, turn)
        }
        Request::RemoveXattr { ino, ref name } => {
            xattr::set_xattr(shard, ino, name.clone(), None, who, state, turn)
        }
        Request::Claim { client: holder, ino, capability } => {
            open::claim(shard, ino, (holder, capability), (client, who), turn)
        }
        Request::ListXattr { ino } => xattr::list_xattrs(shard, ino, (from, who), turn),
        Request::TestLock { handle, spec } => lock::test_lock(shard, handle, client, &spec),
        Request::ReleaseLocks { ino, owner } => {
            lock::release_file_locks(shard, ino, (client, who.uid), owner, turn);
            done(Reply::Done)
        }
        Request::Fallocate { handle, ref change, kill_privileges } => {
            let strips = (kill_privileges || permission::is_bound(who)).then_some(who);
            fallocate(shard, handle, change, strips, state, turn)
        }
        Request::CopyRange { handle, source, copy, kill_privileges } => {
            let strips = (kill_privileges || permission::is_bound(who)).then_some(who);
            copy_range(shard, (handle, source), copy, strips, state, turn)
        }
        Request::FindData { handle, offset, hole } => {
            find_data(shard, handle, (offset, hole), state, turn)
        }
        Request::Null
        | Request::Sync
        | Request::StatFs
        | Request::Cancel { .. }
        | Request::AwaitRecall { .. }
        | Request::Lock { .. }
        | Request::Lookup { .. }
        | Request::Neighbours { .. }
        | Request::Create { .. }
        | Request::Link { .. }
        | Request::Unlink { .. }
        | Request::Rmdir { .. }
        | Request::Rename { .. }
        | Request::ReadDir { .. } => unreachable!("its caller executes these"),
    }
}
