//! Whether a client may name an inode, and what a permitted walk lets it name.

use warren_base::{ClientId, Ino};
use warren_proto::{Answer, Capability, Credentials, Reply, Request, RequestHeader};

use crate::plant::Plant;
use crate::shards::Shards;
use crate::turn::Turn;
use crate::{permission, shard};

/// Whether the client has a capability for every inode that the request names. For a front its
/// kernel has walked. The answer to all others is the same whether or not there is such an inode.
#[inline]
pub(crate) fn may_name(
    client: ClientId,
    who: &Credentials,
    header: &RequestHeader,
    request: &Request,
    turn: &mut Turn<'_>,
) -> bool {
    if who.checked_by_kernel || turn.plants(Plant::NumbersAreAuthority) {
        return true;
    }
    let (inode, other) = request.named();
    let presented = header.capabilities;
    let mut admits = |ino: Option<Ino>, capability| {
        ino.is_none_or(|ino| turn.capabilities.admits(client, ino, capability))
    };
    admits(inode, presented.inode) && admits(other, presented.other)
}

/// What lets the client name the inode that a permitted walk has reached with this answer: where a
/// name leads, and where `..` leads if the client may search the directory. A front needs nothing.
#[inline]
pub(crate) fn granted(
    shards: &mut Shards,
    client: ClientId,
    who: &Credentials,
    request: &Request,
    answer: &Answer,
    turn: &mut Turn<'_>,
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
    turn.capabilities.capability(client, reached)
}

/// Of a directory that was read in the same go.
fn may_search(shards: &Shards, dir: Ino, who: &Credentials) -> bool {
    let inode = shards.get(&dir.shard()).and_then(|shard| shard.inode(dir).ok().flatten());
    inode.is_some_and(|inode| {
        permission::check(who, &shard::attr_of(dir, inode), permission::EXECUTE).is_ok()
    })
}
