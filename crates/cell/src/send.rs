//! Messages to other cells.

use warren_base::{CellId, Lsn};
use warren_proto::control::Suspicion;
use warren_proto::{PeerReply, PeerRequest};

use crate::driver::Driver;
use crate::event::{Effect, PeerBody, PeerMessage};

pub(crate) fn send_reply(to: CellId, reply: PeerReply, driver: &mut Driver<'_>) {
    let message = message(PeerBody::Reply(reply));
    driver.effects.push(Effect::Send { to, message });
}

pub(crate) fn send_request(to: CellId, request: PeerRequest, driver: &mut Driver<'_>) {
    let message = message(PeerBody::Request(request));
    driver.effects.push(Effect::Send { to, message });
}

/// A message. The point that it depends on is filled in at the end of the event that led to it.
pub(crate) const fn message(body: PeerBody) -> PeerMessage {
    PeerMessage { lsn: Lsn(0), body }
}

/// The peer has sent a message that no correct cell sends. It is not executed.
pub(crate) fn suspect(peer: CellId, driver: &mut Driver<'_>) {
    driver.effects.push(Effect::Suspect { cell: peer, why: Suspicion::Content });
}
