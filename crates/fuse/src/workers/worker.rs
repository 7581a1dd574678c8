//! The state that one worker thread owns: a slot of the connection, and buffers for one kernel
//! request.

use warren_base::{Errno, InodeNumbers};

use super::company::Place;
use crate::abi::{IN_HEADER, opcode};
use crate::channel::{Channel, Received, make_resident};
use crate::connection::FleetSlot;
use crate::lock_owners::LockOwners;
use crate::message::{HEAD, Head, Header, Operation};
use crate::reply::Body;
use crate::resend::BufferedMessage;

pub(super) struct Worker {
    pub slot: Box<dyn FleetSlot>,
    pub body: Body,
    pub place: Place,
    head: Head,
    /// Where the two parts of a message other than `WRITE` are joined. Its memory is reused.
    joined: Vec<u8>,
}

impl Worker {
    pub(super) fn new(slot: Box<dyn FleetSlot>, place: Place, numbers: InodeNumbers) -> Self {
        Self { slot, body: Body::new(numbers), place, head: [0; HEAD], joined: Vec::new() }
    }

    /// Must be called before the first [`Self::read`]: see [`make_resident`].
    pub(super) fn prepare(&mut self) {
        make_resident(self.slot.payload_out());
    }

    pub(super) fn read(&mut self, channel: &dyn Channel, owners: &LockOwners) -> Received {
        let _reading = owners.reading();
        let received = channel.read(&mut self.head, self.slot.payload_out());
        if let Received::Message(len) = received
            && let Some(header) = self.header(len).filter(|it| it.opcode == opcode::RELEASE)
            && let Ok(Operation::Release { open, flock }) = self.operation(&header)
        {
            owners.begin_release(header.ino, open, flock);
        }
        received
    }

    /// Takes a message that was read earlier, as if it were read now.
    pub(super) fn load(&mut self, message: &BufferedMessage) {
        message.copy_to(&mut self.head, self.slot.payload_out());
    }

    /// The header of the message of `len` bytes that was read. `None` if it is malformed.
    pub(super) fn header(&self, len: usize) -> Option<Header> {
        Header::decode(&self.head, len)
    }

    /// The operation of the message that was read.
    pub(super) fn operation(&mut self, header: &Header) -> Result<Operation, Errno> {
        decode(&self.head, header, &mut self.joined, self.slot.payload_out())
    }
}

/// The operation in the two parts of a message. `joined` is memory to join them in.
pub(super) fn decode(
    head: &Head,
    header: &Header,
    joined: &mut Vec<u8>,
    payload: &[u8],
) -> Result<Operation, Errno> {
    let beyond = header.len.saturating_sub(HEAD);
    let in_head = &head[IN_HEADER..header.len.min(HEAD)];
    if header.opcode == opcode::WRITE || beyond == 0 {
        return Operation::decode(header.opcode, in_head, beyond);
    }
    joined.clear();
    joined.extend_from_slice(in_head);
    joined.extend_from_slice(payload.get(..beyond).ok_or(Errno::EPROTO)?);
    Operation::decode(header.opcode, joined, 0)
}
