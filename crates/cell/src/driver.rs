//! The side of the driver in one turn: its time, its memory, and the effects that it carries out.

use std::fmt;

use warren_base::{CellId, Instant, Lsn};
use warren_proto::control::{Report, Suspicion};
use warren_proto::{Answer, Beside, PeerReply, PeerRequest};

use crate::event::{Clock, Effect, Memory, PeerBody, PeerMessage, SlotRef};

pub(crate) struct Driver<'a> {
    pub(crate) now: Clock,
    pub(crate) memory: &'a mut dyn Memory,
    /// Effects, in the order in which the driver must carry them out.
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Driver<'_> {
    pub(crate) fn report(&mut self, report: Report) {
        self.effects.push(Effect::Report(report));
    }

    /// Sends a message to another cell. The point that it depends on is filled in at the end of the
    /// turn.
    pub(crate) fn send(&mut self, to: CellId, body: PeerBody) {
        let message = PeerMessage { lsn: Lsn(0), body };
        self.effects.push(Effect::Send { to, message });
    }

    pub(crate) fn send_request(&mut self, to: CellId, request: PeerRequest) {
        self.send(to, PeerBody::Request(request));
    }

    pub(crate) fn send_reply(&mut self, to: CellId, reply: PeerReply) {
        self.send(to, PeerBody::Reply(reply));
    }

    /// The peer has sent a message that no correct cell sends. It is not executed.
    pub(crate) fn suspect(&mut self, peer: CellId) {
        self.effects.push(Effect::Suspect { cell: peer, why: Suspicion::Content });
    }

    /// Answers a request whose reply has no payload and grants nothing.
    pub(crate) fn answer(&mut self, to: SlotRef, seq: u32, answer: Answer) {
        let beside = Beside::default();
        self.effects.push(Effect::Reply { to, seq, answer, payload_len: 0, beside });
    }

    /// Asks for a tick at this time.
    pub(crate) fn wake_at(&mut self, time: Instant) {
        self.effects.push(Effect::Wake(time));
    }
}

impl fmt::Debug for Driver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("now", &self.now).finish_non_exhaustive()
    }
}
