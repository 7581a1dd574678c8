//! A cell's link to the supervisor: orders come in, each once and in order, and reports go out.

use std::cmp::Ordering;
use std::os::fd::OwnedFd;

use warren_base::Epoch;
use warren_mailbox::Capability;
use warren_proto::Wire;
use warren_proto::control::{Order, Report};

use crate::error::{FleetError, system};
use crate::link::{Link, Outbox, Packet, Received, Wait};
use crate::message::{FromCell, PeerRoute, ToCell};

pub(super) struct SupervisorLink {
    outbox: Outbox,
    /// The epoch and capability of the cell's reports.
    epoch: Epoch,
    capability: Capability,
    /// The number of reports sent and of orders received.
    reports: u64,
    orders: u64,
}

/// A message from the supervisor.
pub(super) enum Message {
    Order(Order, Vec<OwnedFd>),
    Link(PeerRoute, Vec<OwnedFd>),
    /// The cell has received all that it must know before its first turn.
    Begin,
    /// An order that an earlier supervisor had sent already: it is dropped.
    Repeated,
}

pub(super) fn next_packet(link: &mut Link) -> Result<Packet, FleetError> {
    match link.receive(Wait::Yes).map_err(system("receive from the supervisor"))? {
        Received::Packet(packet) => Ok(packet),
        _ => Err(FleetError::Died("the supervisor".into())),
    }
}

pub(super) fn malformed() -> FleetError {
    FleetError::Died("a supervisor that sent a malformed message".into())
}

impl SupervisorLink {
    pub(super) fn new(link: Link, epoch: Epoch, capability: Capability) -> Self {
        Self { outbox: Outbox::new(link), epoch, capability, reports: 0, orders: 0 }
    }

    /// Waits for the next message.
    pub(super) fn await_message(&mut self) -> Result<Message, FleetError> {
        let packet = next_packet(&mut self.outbox.link)?;
        self.message(packet)
    }

    /// The next message, if there is one.
    pub(super) fn receive(&mut self) -> Result<Option<Message>, FleetError> {
        let received = self.outbox.link.receive(Wait::No);
        match received.map_err(system("receive from the supervisor"))? {
            Received::Packet(packet) => self.message(packet).map(Some),
            Received::Nothing => Ok(None),
            Received::Closed => Err(FleetError::Died("the supervisor".into())),
        }
    }

    fn message(&mut self, packet: Packet) -> Result<Message, FleetError> {
        match ToCell::from_bytes(&packet.bytes).map_err(|_| malformed())? {
            ToCell::Order { number, order } => match number.cmp(&self.orders) {
                Ordering::Less => Ok(Message::Repeated),
                Ordering::Equal => {
                    self.orders += 1;
                    Ok(Message::Order(order, packet.fds))
                }
                Ordering::Greater => Err(malformed()),
            },
            ToCell::Link(route) => Ok(Message::Link(route, packet.fds)),
            ToCell::Begin => Ok(Message::Begin),
        }
    }

    pub(super) fn report(&mut self, report: Report) -> Result<(), FleetError> {
        let (capability, epoch) = (self.capability, self.epoch);
        let message = FromCell::Report { capability, epoch, number: self.reports, report };
        self.reports += 1;
        let sent = self.outbox.send(message.to_bytes(), Vec::new());
        sent.map_err(system("report to the supervisor"))
    }

    /// Sends waiting reports until the supervisor takes no more.
    pub(super) fn flush(&mut self) -> Result<(), FleetError> {
        self.outbox.flush().map_err(system("report to the supervisor"))
    }

    pub(super) fn is_backed_up(&self) -> bool {
        self.outbox.is_backed_up()
    }
}
