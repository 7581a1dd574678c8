//! Capabilities that are not the client's own: forged ones, and those with which a front claims a
//! file that another client has open ([`Handover`]).
//!
//! [`Handover`]: warren_proto::Handover

use warren_base::{ClientId, Ino, Rng};
use warren_proto::{Answer, Capabilities, Capability, Neighbour, Reply, Request};

use crate::history::KEY;

/// No capability, another client's, another inode's, or one with a wrong bit.
pub(super) fn forge(
    rng: &mut Rng,
    known: &[Ino],
    client: ClientId,
    right: Capabilities,
) -> Capabilities {
    let wrong = match rng.below(4) {
        0 => Capability::NONE,
        1 => {
            let known = known.first().copied().unwrap_or(Ino::ROOT);
            KEY.capability(ClientId(client.0 + 1), known)
        }
        2 => KEY.capability(client, Ino(rng.below(64))),
        _ => Capability(right.inode.0 ^ 1 << rng.below(64)),
    };
    match rng.below(3) {
        0 => Capabilities { inode: wrong, ..right },
        1 => Capabilities { other: wrong, ..right },
        _ => Capabilities { inode: wrong, other: wrong },
    }
}

/// Whether the client has reached every inode that the request names.
pub(super) fn is_reached(client: ClientId, request: &Request, presented: Capabilities) -> bool {
    let (inode, other) = request.named();
    let admits = |ino: Option<Ino>, shown| ino.is_none_or(|ino| KEY.admits(client, ino, shown));
    admits(inode, presented.inode) && admits(other, presented.other)
}

/// Whether what came with an answer is for this client and for the inode in the answer. A front
/// gets none.
pub(super) fn is_rightly_granted(
    (client, is_front): (ClientId, bool),
    answer: &Answer,
    granted: Capability,
) -> bool {
    let expected = |ino| match is_front {
        true => Capability::NONE,
        false => KEY.capability(client, ino),
    };
    match answer {
        Ok(Reply::Entry(entry) | Reply::Created { entry, .. }) => granted == expected(entry.ino),
        Ok(Reply::Neighbours(found)) => {
            let is_right = |one: &Neighbour| one.capability == expected(one.entry.ino);
            !is_front && granted.is_none() && found.iter().all(is_right)
        }
        Ok(Reply::Listing { parent, .. }) => granted.is_none() || granted == expected(*parent),
        _ => granted.is_none(),
    }
}

/// A claim of one of these files, which the client has open, in half of the cases with the right
/// capability. Also returns what is counted.
pub(super) fn claim(rng: &mut Rng, client: ClientId, files: &[Ino]) -> (Request, &'static str) {
    let ino = if files.is_empty() { Ino::ROOT } else { *rng.pick(files) };
    let right = Capabilities::of(KEY.capability(client, ino));
    let (capabilities, what) = match rng.chance(1, 2) {
        true => (right, "a claim"),
        false => (forge(rng, files, client, right), "a claim with a forged capability"),
    };
    (Request::Claim { client, ino, capability: capabilities.inode }, what)
}
