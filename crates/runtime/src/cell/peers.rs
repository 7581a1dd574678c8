//! The cell's inbox and its links to the other cells. Messages that find a peer's inbox full wait
//! here, in order.
//!
//! A message is accepted if its capability is on the inbox's list and its epoch is not earlier than
//! the peer's. Any other message is counted and dropped, and the first of each kind is logged. Only
//! the supervisor raises a peer's epoch, so that a faulty peer cannot lock its successor out.
//!
//! A peer that has written an impossible value (a record, a cursor, its vitals) is *suspect*.
//! Everything behind that value is void, nothing more is sent to the peer, and the supervisor
//! receives a report and ends one of the two cells. Then the link is made anew. All other work
//! continues meanwhile.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

use tracing::warn;
use warren_base::{CellId, Epoch};
use warren_cell::{PeerBody, PeerMessage};
use warren_mailbox::{Capability, CapabilityList, Uses};
use warren_proto::Wire;
use warren_proto::control::{Report, Suspicion};
use warren_shm::{
    Envelope, Lane, PeerLink, SendError, VitalsReader, WakeFd, map_read_only, map_writable,
};

use crate::error::FleetError;
use crate::message::{PEER_DESCRIPTORS, PeerRoute};

/// Messages that may wait for one peer before it becomes suspect: more than all tasks send.
const WAITING_MAX: usize = 1 << 20;

struct Peer {
    link: PeerLink,
    /// Messages of an earlier epoch are refused.
    epoch: Epoch,
    /// The capability of messages to the peer; `admits` is that of messages from it.
    capability: Capability,
    admits: Capability,
    vitals: VitalsReader,
    bell: WakeFd,
    /// Encoded messages that found no room, by lane.
    waiting: [VecDeque<Vec<u8>>; 2],
    /// Something was sent since the bell was last rung.
    unrung: bool,
    /// The order that names the peer has arrived. Its messages are not read before that.
    is_joined: bool,
    /// Nothing is read from it or sent to it any more.
    is_suspect: bool,
}

impl Peer {
    /// Marks the peer suspect. Returns the report, the first time.
    fn suspect(&mut self, cell: CellId, why: Suspicion) -> Option<Report> {
        if std::mem::replace(&mut self.is_suspect, true) {
            return None;
        }
        (self.waiting, self.unrung) = (Default::default(), false);
        Some(Report::Suspect { cell, epoch: self.epoch, why })
    }
}

/// The links to all other cells of the fleet.
pub(super) struct PeerLinks {
    cell: CellId,
    epoch: Epoch,
    peers: Vec<Option<Peer>>,
    /// Peers without a link whose end no order has reported yet. Messages to them are dropped.
    absent: BTreeSet<CellId>,
    /// The capabilities that admit messages to this cell.
    inbox: CapabilityList,
    dropped: Dropped,
    /// The known number of each peer's failed flushes, also while it has no link, and whether it
    /// has grown since it was last read.
    lost_flushes: Vec<Option<u64>>,
    new_lost_flush: bool,
    /// Suspicions that were not reported yet.
    suspicions: Vec<Report>,
    bytes: Vec<u8>,
}

/// The number of messages that were not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Dropped {
    /// Messages without a capability on the inbox's list.
    pub refused: u64,
    /// Messages of an earlier epoch.
    pub stale: u64,
}

/// The result of [`PeerLinks::receive`].
#[derive(Debug)]
pub(super) enum Received {
    Message(PeerMessage),
    /// A message that was dropped. There may be more behind it.
    Dropped,
    Nothing,
}

/// The lane of a message. Pool messages are requests: nothing that frees a resource waits for one.
fn lane_of(message: &PeerMessage) -> Lane {
    match message.body {
        PeerBody::Reply(_) => Lane::Reply,
        PeerBody::Request(_) | PeerBody::Pool(_) => Lane::Request,
    }
}

impl PeerLinks {
    pub(super) fn new(cell: CellId, epoch: Epoch, cells: u16) -> Self {
        let peers = (0..cells).map(|_| None).collect();
        let (inbox, dropped) = (CapabilityList::new(), Dropped::default());
        let absent = (0..cells).map(CellId).collect();
        let lost_flushes = vec![None; usize::from(cells)];
        let (new_lost_flush, suspicions, bytes) = (false, Vec::new(), Vec::new());
        Self {
            cell,
            epoch,
            peers,
            absent,
            inbox,
            dropped,
            lost_flushes,
            new_lost_flush,
            suspicions,
            bytes,
        }
    }

    pub(super) fn open(
        &mut self,
        route: PeerRoute,
        [bell, vitals, own, theirs]: [OwnedFd; PEER_DESCRIPTORS],
    ) -> Result<(), FleetError> {
        let PeerRoute { peer, epoch, capability, admits } = route;
        let own = map_writable(own.as_fd())?;
        let theirs = map_read_only(theirs.as_fd())?;
        let link = PeerLink::new(own, theirs, self.cell, peer, self.epoch)?;
        let vitals = VitalsReader::new(map_read_only(vitals.as_fd())?)?;
        let bell = WakeFd::from_fd(bell);
        let no_room = || FleetError::Bug(format!("no room for a link to cell {peer}"));
        let place = self.peers.get_mut(usize::from(peer.0)).ok_or_else(no_room)?;
        // Impossible vitals are noticed later.
        let lost_flushes = vitals.lost_flushes().unwrap_or(0);
        self.lost_flushes[usize::from(peer.0)].get_or_insert(lost_flushes);
        self.inbox.add(admits, Uses::Many).map_err(|_| no_room())?;
        let (waiting, unrung, is_joined) = (Default::default(), false, false);
        self.absent.remove(&peer);
        *place = Some(Peer {
            link,
            epoch,
            capability,
            admits,
            vitals,
            bell,
            waiting,
            unrung,
            is_joined,
            is_suspect: false,
        });
        Ok(())
    }

    /// Marks a peer whose messages make no sense suspect.
    pub(super) fn suspect(&mut self, peer: CellId, why: Suspicion) {
        let place = self.peers.get_mut(usize::from(peer.0)).and_then(Option::as_mut);
        self.suspicions.extend(place.and_then(|place| place.suspect(peer, why)));
    }

    /// Whether messages that were received from the peer are void.
    pub(super) fn is_suspect(&self, peer: CellId) -> bool {
        let place = self.peers.get(usize::from(peer.0)).and_then(Option::as_ref);
        place.is_some_and(|place| place.is_suspect)
    }

    /// A suspicion to report.
    pub(super) fn take_suspicion(&mut self) -> Option<Report> {
        self.suspicions.pop()
    }

    /// Closes the link to a peer that is gone, after all that it had sent was received. Messages
    /// that wait for it are dropped.
    pub(super) fn close(&mut self, peer: CellId) {
        self.look_for_lost_flushes();
        let place = self.peers.get_mut(usize::from(peer.0));
        if let Some(gone) = place.and_then(Option::take) {
            self.inbox.revoke(gone.admits);
        }
        self.absent.remove(&peer);
    }

    /// The order that names a peer's successor has arrived. If there is no link, the successor is
    /// gone already, and messages to it are dropped until the order arrives that reports its end.
    pub(super) fn joined(&mut self, peer: CellId) {
        match self.peers.get_mut(usize::from(peer.0)) {
            Some(Some(peer)) => peer.is_joined = true,
            Some(None) => drop(self.absent.insert(peer)),
            None => {}
        }
    }

    /// Starts to read from the peers with a link. They were there before this cell, so no order
    /// names them.
    pub(super) fn begin(&mut self) {
        self.peers.iter_mut().flatten().for_each(|peer| peer.is_joined = true);
    }

    /// Messages dropped so far.
    pub(super) fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// The number of threads of other cells that are awake.
    pub(super) fn spinners(&self) -> u32 {
        // A cell has one thread, whatever its vitals say.
        self.peers.iter().flatten().map(|peer| peer.vitals.spinners().min(1)).sum()
    }

    /// Whether a flush of a peer has failed since the last call.
    pub(super) fn have_lost_flush(&mut self) -> bool {
        self.look_for_lost_flushes();
        std::mem::take(&mut self.new_lost_flush)
    }

    fn look_for_lost_flushes(&mut self) {
        let peers = (0..).map(CellId).zip(&mut self.peers);
        for ((cell, peer), known) in peers.zip(&mut self.lost_flushes) {
            let Some(peer) = peer else { continue };
            match peer.vitals.lost_flushes() {
                Some(now) => self.new_lost_flush |= known.replace(now).is_some_and(|old| old < now),
                None => self.suspicions.extend(peer.suspect(cell, Suspicion::Vitals)),
            }
        }
    }

    /// Every cell but this one.
    pub(super) fn other_cells(&self) -> impl Iterator<Item = CellId> + use<> {
        let cell = self.cell;
        (0..self.peers.len() as u16).map(CellId).filter(move |&peer| peer != cell)
    }

    /// Sends now, or later behind messages that wait already.
    pub(super) fn send(&mut self, to: CellId, message: &PeerMessage) -> Result<(), FleetError> {
        self.bytes.clear();
        message.encode(&mut self.bytes);
        let lane = lane_of(message);
        let Some(peer) = self.peers.get_mut(usize::from(to.0)).and_then(Option::as_mut) else {
            if self.absent.contains(&to) {
                return Ok(());
            }
            return Err(FleetError::Bug(format!("a message to cell {to}, which is lost")));
        };
        if peer.is_suspect {
            return Ok(());
        }
        peer.unrung = true;
        let waiting = &mut peer.waiting[lane as usize];
        if waiting.is_empty() {
            match peer.link.send(lane, peer.capability, &self.bytes) {
                Ok(()) => return Ok(()),
                Err(SendError::Full) => {}
                Err(SendError::BadHead) => {
                    self.suspicions.extend(peer.suspect(to, Suspicion::Cursor));
                    return Ok(());
                }
            }
        }
        if waiting.len() >= WAITING_MAX {
            self.suspicions.extend(peer.suspect(to, Suspicion::Backlog));
            return Ok(());
        }
        waiting.push_back(std::mem::take(&mut self.bytes));
        Ok(())
    }

    /// Sends messages that wait, and rings the bells of peers to which something was sent. Returns
    /// whether any waiting message was sent.
    pub(super) fn flush(&mut self) -> bool {
        let mut went_out = false;
        for (cell, peer) in (0..).map(CellId).zip(&mut self.peers) {
            let Some(peer) = peer.as_mut().filter(|peer| peer.unrung) else { continue };
            for lane in [Lane::Reply, Lane::Request] {
                while let Some(bytes) = peer.waiting[lane as usize].front() {
                    match peer.link.send(lane, peer.capability, bytes) {
                        Ok(()) => drop(peer.waiting[lane as usize].pop_front()),
                        Err(SendError::Full) => break,
                        Err(SendError::BadHead) => {
                            self.suspicions.extend(peer.suspect(cell, Suspicion::Cursor));
                        }
                    }
                    went_out = true;
                }
            }
            peer.bell.wake_if_parked(&peer.vitals);
            peer.unrung = peer.waiting.iter().any(|waiting| !waiting.is_empty());
        }
        went_out
    }

    /// Whether messages wait for room.
    pub(super) fn is_backed_up(&self) -> bool {
        self.peers.iter().flatten().any(|peer| peer.unrung)
    }

    /// The next message in a lane of a peer. A peer that is lost, has not joined yet or is suspect
    /// has none.
    pub(super) fn receive(&mut self, from: CellId, lane: Lane) -> Received {
        let place = self.peers.get_mut(usize::from(from.0)).and_then(Option::as_mut);
        let Some(peer) = place.filter(|peer| peer.is_joined && !peer.is_suspect) else {
            return Received::Nothing;
        };
        let Envelope { epoch, capability } = match peer.link.receive(lane, &mut self.bytes) {
            Ok(Some(envelope)) => envelope,
            Ok(None) => return Received::Nothing,
            Err(_) => {
                self.suspicions.extend(peer.suspect(from, Suspicion::Record));
                return Received::Nothing;
            }
        };
        if epoch < peer.epoch {
            self.dropped.stale += 1;
            warn_first(self.dropped.stale, self.cell, from, "of an earlier epoch");
            return Received::Dropped;
        }
        if self.inbox.present(capability).is_err() {
            self.dropped.refused += 1;
            warn_first(self.dropped.refused, self.cell, from, "without a capability");
            return Received::Dropped;
        }
        match PeerMessage::from_bytes(&self.bytes) {
            Ok(message) => Received::Message(message),
            Err(_) => {
                self.suspicions.extend(peer.suspect(from, Suspicion::Message));
                Received::Nothing
            }
        }
    }
}

/// Warns of the first dropped message of a kind only, so that a flood of them does not fill the
/// log.
fn warn_first(count: u64, cell: CellId, from: CellId, what: &str) {
    if count == 1 {
        warn!("/cell/{cell}/inbox: a message of cell {from} {what} was dropped");
    }
}

#[cfg(test)]
mod tests;
