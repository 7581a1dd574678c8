//! Messages to and from the other cells. What finds a peer's inbox full waits here, in order.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use warren_base::{CellId, Epoch};
use warren_cell::PeerMessage;
use warren_proto::Wire;
use warren_shm::{Lane, PeerLink, SendError, VitalsReader, WakeFd, map_read_only, map_writable};

use crate::error::FleetError;
use crate::message::PEER_DESCRIPTORS;

/// Messages that wait for one peer before it is taken for dead: more than all of its tasks send.
const WAITING_MAX: usize = 1 << 20;

struct Peer {
    link: PeerLink,
    vitals: VitalsReader,
    bell: WakeFd,
    /// Encoded messages that found no room, by lane.
    waiting: [VecDeque<Vec<u8>>; 2],
    /// Something was sent since the bell was last rung.
    unrung: bool,
}

/// All other cells of the fleet.
pub struct Peers {
    cell: CellId,
    epoch: Epoch,
    peers: Vec<Option<Peer>>,
    bytes: Vec<u8>,
}

/// The lane a message takes. Pool messages are requests: nobody waits for one to free something.
fn lane_of(message: &PeerMessage) -> Lane {
    match message {
        PeerMessage::Reply(_) => Lane::Reply,
        PeerMessage::Request(_) | PeerMessage::Pool(_) => Lane::Request,
    }
}

impl Peers {
    pub fn new(cell: CellId, epoch: Epoch, cells: u16) -> Self {
        let peers = (0..cells).map(|_| None).collect();
        Self { cell, epoch, peers, bytes: Vec::new() }
    }

    pub fn open(
        &mut self,
        peer: CellId,
        [bell, vitals, own, theirs]: [OwnedFd; PEER_DESCRIPTORS],
    ) -> Result<(), FleetError> {
        let own = map_writable(own.as_fd())?;
        let theirs = map_read_only(theirs.as_fd())?;
        let link = PeerLink::new(own, theirs, self.cell, peer, self.epoch)?;
        let vitals = VitalsReader::new(map_read_only(vitals.as_fd())?)?;
        let bell = WakeFd::from_fd(bell);
        let place = self.peers.get_mut(usize::from(peer.0)).ok_or_else(|| faulty(peer))?;
        *place = Some(Peer { link, vitals, bell, waiting: Default::default(), unrung: false });
        Ok(())
    }

    /// Every cell but this one.
    pub fn others(&self) -> impl Iterator<Item = CellId> + use<> {
        let cell = self.cell;
        (0..self.peers.len() as u16).map(CellId).filter(move |&peer| peer != cell)
    }

    /// Sends now or, behind what waits already, later.
    pub fn send(&mut self, to: CellId, message: &PeerMessage) -> Result<(), FleetError> {
        self.bytes.clear();
        message.encode(&mut self.bytes);
        let lane = lane_of(message);
        let peer = peer(&mut self.peers, to)?;
        peer.unrung = true;
        let waiting = &mut peer.waiting[lane as usize];
        if waiting.is_empty() {
            match peer.link.send(lane, &self.bytes) {
                Ok(()) => return Ok(()),
                Err(SendError::Full) => {}
                Err(SendError::BadHead) => return Err(faulty(to)),
            }
        }
        if waiting.len() >= WAITING_MAX {
            return Err(faulty(to));
        }
        waiting.push_back(std::mem::take(&mut self.bytes));
        Ok(())
    }

    /// Sends what waits and rings the bells of peers that were sent something; says whether
    /// anything that waited went out.
    pub fn flush(&mut self) -> Result<bool, FleetError> {
        let mut went_out = false;
        for (number, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer.as_mut().filter(|peer| peer.unrung) else { continue };
            for lane in [Lane::Reply, Lane::Request] {
                while let Some(bytes) = peer.waiting[lane as usize].front() {
                    match peer.link.send(lane, bytes) {
                        Ok(()) => drop(peer.waiting[lane as usize].pop_front()),
                        Err(SendError::Full) => break,
                        Err(SendError::BadHead) => return Err(faulty(CellId(number as u16))),
                    }
                    went_out = true;
                }
            }
            peer.bell.wake_if_parked(&peer.vitals);
            peer.unrung = peer.waiting.iter().any(|waiting| !waiting.is_empty());
        }
        Ok(went_out)
    }

    /// Whether something waits for room.
    pub fn is_backed_up(&self) -> bool {
        self.peers.iter().flatten().any(|peer| peer.unrung)
    }

    /// The next message of a peer, replies first.
    pub fn receive(&mut self, from: CellId) -> Result<Option<PeerMessage>, FleetError> {
        let peer = peer(&mut self.peers, from)?;
        for lane in [Lane::Reply, Lane::Request] {
            let epoch = peer.link.receive(lane, &mut self.bytes).map_err(|_| faulty(from))?;
            if epoch.is_some() {
                let message = PeerMessage::from_bytes(&self.bytes).map_err(|_| faulty(from))?;
                return Ok(Some(message));
            }
        }
        Ok(None)
    }
}

fn peer(peers: &mut [Option<Peer>], cell: CellId) -> Result<&mut Peer, FleetError> {
    peers.get_mut(usize::from(cell.0)).and_then(Option::as_mut).ok_or_else(|| faulty(cell))
}

/// In this version a faulty peer ends the fleet.
fn faulty(peer: CellId) -> FleetError {
    FleetError::Died(format!("faulty {peer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bell::Bell;
    use warren_pool::PoolMessage;
    use warren_shm::{PEER_SEGMENT_LEN, Segment, VITALS_LEN, VitalsWriter};

    /// Two cells and their link.
    fn pair() -> (Peers, Peers, Vec<Segment>) {
        let epoch = Epoch(1);
        let segment = |len| Segment::create("warren-test", len).expect("segment");
        let (a_to_b, b_to_a) = (segment(PEER_SEGMENT_LEN), segment(PEER_SEGMENT_LEN));
        let vitals = segment(VITALS_LEN);
        VitalsWriter::new(vitals.map().clone(), CellId(0), epoch).expect("vitals");
        let bell = Bell::new().expect("bell");
        let open = |own: &Segment, theirs: &Segment, cell, peer| {
            let mut peers = Peers::new(CellId(cell), epoch, 2);
            let fds = [
                bell.rope().expect("rope"),
                vitals.read_only_fd().expect("fd"),
                own.fd().try_clone_to_owned().expect("fd"),
                theirs.read_only_fd().expect("fd"),
            ];
            peers.open(CellId(peer), fds).expect("open");
            peers
        };
        let (a, b) = (open(&a_to_b, &b_to_a, 0, 1), open(&b_to_a, &a_to_b, 1, 0));
        (a, b, vec![a_to_b, b_to_a, vitals])
    }

    #[test]
    fn a_full_inbox_delays_and_keeps_order() {
        const MESSAGES: u64 = 20_000;
        let (mut a, mut b, _segments) = pair();
        assert_eq!(a.others().collect::<Vec<_>>(), [CellId(1)]);
        for n in 0..MESSAGES {
            let message = PeerMessage::Pool(PoolMessage::Estimate { size: n });
            a.send(CellId(1), &message).expect("send");
        }
        a.flush().expect("flush");
        assert!(a.is_backed_up());
        let mut next = 0;
        while next < MESSAGES {
            while let Some(message) = b.receive(CellId(0)).expect("receive") {
                let expected = PeerMessage::Pool(PoolMessage::Estimate { size: next });
                assert_eq!(message, expected);
                next += 1;
            }
            a.flush().expect("flush");
        }
        assert!(!a.is_backed_up());
        assert!(b.receive(CellId(0)).expect("receive").is_none());
    }
}
