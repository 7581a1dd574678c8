//! Whether a client may name an inode, and which inodes a permitted walk lets it name.

use warren_base::{ClientId, Ino};
use warren_proto::{Answer, Capability, Credentials, Reply, Request, RequestHeader};
use warren_rules::permission;

use crate::fleet::Fleet;
use crate::plant::Plant;
use crate::session::Sessions;
use crate::shards::Shards;

/// Whether the client has a capability for every inode that the request names. A front needs none,
/// because its kernel has walked the path. A client without the capability gets the same answer
/// whether or not the inode exists.
#[inline]
pub(crate) fn may_name(
    client: ClientId,
    who: &Credentials,
    header: &RequestHeader,
    request: &Request,
    fleet: &Fleet,
    sessions: &mut Sessions,
) -> bool {
    if who.checked_by_kernel || fleet.plants(Plant::NumbersAreAuthority) {
        return true;
    }
    let (inode, other) = request.named();
    let presented = header.capabilities;
    let mut admits = |ino: Option<Ino>, capability| {
        ino.is_none_or(|ino| sessions.capabilities.admits(client, ino, capability))
    };
    admits(inode, presented.inode) && admits(other, presented.other)
}

/// The capability for the inode that a permitted walk has reached with this answer: the inode of a
/// name, or the parent of a directory that the client may search. A front needs none.
#[inline]
pub(crate) fn granted(
    shards: &Shards,
    client: ClientId,
    who: &Credentials,
    request: &Request,
    answer: &Answer,
    sessions: &mut Sessions,
) -> Capability {
    let reached = match (request, answer) {
        (_, Ok(Reply::Entry(entry) | Reply::Created { entry, .. })) => entry.ino,
        (Request::ReadDir { dir, .. }, Ok(Reply::Listing { parent, .. }))
            if may_search(shards, *dir, who) =>
        {
            *parent
        }
        _ => return Capability::NONE,
    };
    if who.checked_by_kernel {
        return Capability::NONE;
    }
    sessions.capabilities.capability(client, reached)
}

/// The directory was read in the same run.
fn may_search(shards: &Shards, dir: Ino, who: &Credentials) -> bool {
    let inode = shards.get(&dir.shard()).and_then(|shard| shard.inode_value(dir).ok().flatten());
    inode.is_some_and(|inode| permission::check(who, &inode, permission::EXECUTE).is_ok())
}
