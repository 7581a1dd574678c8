//! Messages between two cells: a link of two segments, one written by each side.
//!
//! ```text
//! peer segment (written by the sender alone)
//!   0        header          magic, version, sender, receiver, epoch
//!   4096     cursors         a 64-byte line each: request tail, reply tail (of what we send),
//!                            request head, reply head (of what we have received)
//!   8192     request bytes   RING_BYTES
//!   ...      reply bytes     RING_BYTES
//!
//! record, at a multiple of 8 bytes, wrapping round the end of the ring
//!   0  u64 position of the record since the ring began
//!   8  u32 body length       12  u32 epoch of the sender
//!  16  u64 capability that it was sent under
//!  24  u16 sender, u16 0     28  u32 crc32c of the 28 bytes before and the body
//!  32  body, padded to 8
//! ```
//!
//! Cursors count bytes since the ring began and never decrease. Order of a send: check the peer's
//! head, record, tail (release); then the message is in the receiver's memory. Order of a receive:
//! tail (acquire), copy the header once, check it, copy the body once, check the sum, head
//! (release). Both sides keep their own cursors privately and only publish them. Only a successor
//! that adopts the segment reads a cursor back.
//!
//! The receiver checks capabilities and epochs: the ring only delivers them with a message.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use warren_base::limits::PEER_MESSAGE_MAX;
use warren_base::{CellId, Epoch};
use warren_mailbox::Capability;
use warren_proto::slot::LINE;

use crate::map::{ReadMap, WriteMap};
use crate::memory::{Load, Store};
use crate::segment::{SegmentError, SegmentKind, check, stamp};

/// Bytes of a ring: eight of the longest messages; a power of two, so that positions wrap well.
const RING_BYTES: usize = 128 * 1024;
const CURSORS: usize = 4096;
const RINGS: usize = 8192;
const RECORD_HEADER: usize = 32;
/// The offset of the checksum, which covers everything before it and the body.
const SUM: usize = RECORD_HEADER - 4;

/// Bytes of a peer segment.
pub const PEER_SEGMENT_LEN: usize = RINGS + 2 * RING_BYTES;

const _: () = {
    assert!(RING_BYTES.is_power_of_two());
    assert!(RING_BYTES >= 8 * PEER_MESSAGE_MAX);
    assert!(CURSORS + 4 * LINE <= RINGS);
};

/// Requests and replies have separate queues, so that a full one never blocks the other (Hive's
/// SIPS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    Request,
    Reply,
}

impl Lane {
    fn tail(self) -> usize {
        CURSORS + self as usize * LINE
    }

    fn head(self) -> usize {
        CURSORS + (2 + self as usize) * LINE
    }

    fn ring(self) -> usize {
        RINGS + self as usize * RING_BYTES
    }
}

/// The metadata of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The epoch of the peer that sent it.
    pub epoch: Epoch,
    pub capability: Capability,
}

/// Why a message was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// No room now: keep the message and try again.
    Full,
    /// The peer's head is invalid: the peer is faulty.
    BadHead,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the peer's inbox is full",
            Self::BadHead => "the peer's receive cursor is corrupt",
        })
    }
}

impl core::error::Error for SendError {}

/// The bytes are no message of the peer, so the peer is faulty. The ring stays as it is; every
/// further receive fails, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadMessage(&'static str);

impl fmt::Display for BadMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a peer's message is corrupt: {}", self.0)
    }
}

impl core::error::Error for BadMessage {}

/// One side of the link between two cells.
pub struct PeerLink<W = WriteMap, R = ReadMap> {
    own: W,
    theirs: R,
    cell: CellId,
    peer: CellId,
    epoch: Epoch,
    tails: [u64; 2],
    heads: [u64; 2],
}

impl<W: Store, R: Load> PeerLink<W, R> {
    /// Links `cell`, which writes `own` and is in `epoch`, with `peer`, which writes `theirs`.
    /// Fresh segments start an empty link. A successor continues its predecessor's `own` where that
    /// stopped. A peer's segment without a header is no error: it is all zeroes.
    pub fn new(
        own: W,
        theirs: R,
        cell: CellId,
        peer: CellId,
        epoch: Epoch,
    ) -> Result<Self, SegmentError> {
        for len in [own.size(), theirs.size()] {
            if len < PEER_SEGMENT_LEN {
                let needed = PEER_SEGMENT_LEN;
                return Err(SegmentError::TooShort { len: len as u64, needed });
            }
        }
        stamp(&own, SegmentKind::Peer, u32::from(peer.0), u32::from(cell.0), epoch.0);
        let lanes = [Lane::Request, Lane::Reply];
        let tails = lanes.map(|lane| own.load64(lane.tail(), Relaxed));
        let heads = lanes.map(|lane| own.load64(lane.head(), Relaxed));
        Ok(Self { own, theirs, cell, peer, epoch, tails, heads })
    }

    /// Whether the peer has opened its segment.
    pub fn is_open(&self) -> bool {
        check(&self.theirs, SegmentKind::Peer, PEER_SEGMENT_LEN).is_ok()
    }

    pub fn peer(&self) -> CellId {
        self.peer
    }

    /// Sends a message. When this returns, all of it is in the receiver's memory.
    pub fn send(
        &mut self,
        lane: Lane,
        capability: Capability,
        message: &[u8],
    ) -> Result<(), SendError> {
        assert!(message.len() <= PEER_MESSAGE_MAX, "message of {} bytes", message.len());
        let tail = self.tails[lane as usize];
        let head = self.theirs.load64(lane.head(), Acquire);
        let used = tail.checked_sub(head).filter(|used| *used <= RING_BYTES as u64);
        let Some(used) = used else { return Err(SendError::BadHead) };
        let len = record_len(message.len());
        if len > RING_BYTES - used as usize {
            return Err(SendError::Full);
        }
        let envelope = Envelope { epoch: self.epoch, capability };
        let header = encode_header(tail, message, envelope, self.cell);
        self.store_at(lane, tail, &header);
        self.store_at(lane, tail + RECORD_HEADER as u64, message);
        let tail = tail + len as u64;
        self.tails[lane as usize] = tail;
        self.own.store64(lane.tail(), tail, Release);
        Ok(())
    }

    /// The next message, copied to `message`, and its metadata; `None` if there is none.
    pub fn receive(
        &mut self,
        lane: Lane,
        message: &mut Vec<u8>,
    ) -> Result<Option<Envelope>, BadMessage> {
        let head = self.heads[lane as usize];
        let tail = self.theirs.load64(lane.tail(), Acquire);
        if tail == head {
            return Ok(None);
        }
        let there = tail.checked_sub(head).filter(|n| *n <= RING_BYTES as u64);
        let there = there.ok_or(BadMessage("cursor out of range"))? as usize;
        if there < RECORD_HEADER || !tail.is_multiple_of(8) {
            return Err(BadMessage("cursor not at a record"));
        }
        let mut raw = [0; RECORD_HEADER];
        self.get(lane, head, &mut raw);
        let (len, envelope) = decode_header(&raw, head, there, self.peer)?;
        message.clear();
        message.resize(len, 0);
        self.get(lane, head + RECORD_HEADER as u64, message);
        if sum(&raw, message) != u32::from_le_bytes(word(&raw, SUM)) {
            return Err(BadMessage("wrong checksum"));
        }
        let head = head + record_len(len) as u64;
        self.heads[lane as usize] = head;
        self.own.store64(lane.head(), head, Release);
        Ok(Some(envelope))
    }

    /// Whether a message waits, in either lane: the last look before parking.
    pub fn pending(&self) -> bool {
        let waits =
            |lane: Lane| self.theirs.load64(lane.tail(), Acquire) != self.heads[lane as usize];
        waits(Lane::Request) || waits(Lane::Reply)
    }

    fn store_at(&self, lane: Lane, position: u64, bytes: &[u8]) {
        let at = position as usize % RING_BYTES;
        let (first, rest) = bytes.split_at(bytes.len().min(RING_BYTES - at));
        self.own.copy_in(lane.ring() + at, first);
        if !rest.is_empty() {
            self.own.copy_in(lane.ring(), rest);
        }
    }

    fn get(&self, lane: Lane, position: u64, into: &mut [u8]) {
        let at = position as usize % RING_BYTES;
        let first_len = into.len().min(RING_BYTES - at);
        let (first, rest) = into.split_at_mut(first_len);
        self.theirs.copy_out(lane.ring() + at, first);
        if !rest.is_empty() {
            self.theirs.copy_out(lane.ring(), rest);
        }
    }
}

fn record_len(body: usize) -> usize {
    RECORD_HEADER + body.next_multiple_of(8)
}

fn encode_header(at: u64, body: &[u8], envelope: Envelope, cell: CellId) -> [u8; RECORD_HEADER] {
    let mut raw = [0; RECORD_HEADER];
    raw[0..8].copy_from_slice(&at.to_le_bytes());
    raw[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    raw[12..16].copy_from_slice(&envelope.epoch.0.to_le_bytes());
    raw[16..24].copy_from_slice(&envelope.capability.0.to_le_bytes());
    raw[24..26].copy_from_slice(&cell.0.to_le_bytes());
    let crc = sum(&raw, body);
    raw[SUM..].copy_from_slice(&crc.to_le_bytes());
    raw
}

/// Length of the body, and the metadata. `there` is the number of bytes in the ring from `head` on.
fn decode_header(
    raw: &[u8; RECORD_HEADER],
    head: u64,
    there: usize,
    peer: CellId,
) -> Result<(usize, Envelope), BadMessage> {
    if u64::from_le_bytes(word(raw, 0)) != head {
        return Err(BadMessage("record out of sequence"));
    }
    let len = u32::from_le_bytes(word(raw, 8)) as usize;
    if len > PEER_MESSAGE_MAX || record_len(len) > there {
        return Err(BadMessage("length out of range"));
    }
    if u16::from_le_bytes(word(raw, 24)) != peer.0 {
        return Err(BadMessage("wrong sender"));
    }
    let epoch = Epoch(u32::from_le_bytes(word(raw, 12)));
    let capability = Capability(u64::from_le_bytes(word(raw, 16)));
    Ok((len, Envelope { epoch, capability }))
}

fn word<const N: usize>(raw: &[u8; RECORD_HEADER], at: usize) -> [u8; N] {
    core::array::from_fn(|i| raw[at + i])
}

fn sum(raw: &[u8; RECORD_HEADER], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&raw[..SUM]), body)
}

#[cfg(test)]
#[path = "ring/tests.rs"]
mod tests;
