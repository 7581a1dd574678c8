//! Clients are admitted: their memory is made, the keeper holds it, the cells map it, and the
//! client is welcomed. The order of events is the core's (`warren_supervisor`'s `admission`).
//!
//! ```text
//! Enter -> segments, the keeper has them -> Connect -> Admit to all cells -> all Admitted
//!       -> Welcome, this process closes the segments -> lent by the keeper to a cell's successor
//! ```

use std::os::fd::OwnedFd;

use warren_base::{CellId, ClientId, Errno};
use warren_proto::Rules;
use warren_proto::slot::Shape;
use warren_supervisor::{Applicant, ConnectionNo, Event};
use warren_transport::control::{ControlReply, welcome_descriptors};

use super::clients::PendingWelcome;
use super::logged;
use super::memory::{ClientMemory, NewClientMemory};
use super::state::SupervisorLoop;
use crate::error::FleetError;
use crate::limit;
use crate::message::Kept;
use crate::reserve::Reserve;

impl SupervisorLoop<'_> {
    /// Borrows the segments of clients that a cell's successor is to be sent, one client after the
    /// other, as far as the successor takes them.
    pub(super) fn supply(&mut self, cell: CellId) {
        while let Some(connection) = self.cells[cell].link.wants() {
            let borrowed = self.keeper.borrow(connection, ClientMemory::borrowed_for(cell));
            let link = &mut self.cells[cell].link;
            // A keeper that is gone takes this process with it. One that is short of descriptors
            // is asked again.
            let Ok(fds) = borrowed.and_then(ClientMemory::of_borrowed) else {
                link.set_short();
                return;
            };
            // The exit of a cell's process shows that it is gone.
            let _ = link.supply(fds);
        }
    }

    pub(super) fn new_client(&mut self, connection: ConnectionNo, client: ClientId) {
        if self.clients.register(connection, client) && !self.connections.enter(connection, client)
        {
            // The client closed its connection before its admission.
            self.pending.push_back(Event::Hangup { client });
        }
    }

    pub(super) fn welcome(&mut self, client: ClientId) {
        let Some(PendingWelcome { connection, shape, rules, fds }) =
            self.clients.take_welcome(client)
        else {
            return;
        };
        let superblock = self.core.ledger().superblock();
        let (cells, shards) = (self.plan.cells, superblock.layout.shards());
        let dense_inos = superblock.dense_inos;
        let welcome = ControlReply::Welcome { client, shape, rules, cells, shards, dense_inos };
        self.connections.welcome(connection, &welcome, fds);
        self.clients.close_segments(client);
        logged::front(&self.core, client, "is admitted");
    }

    /// Makes the client's segments, gives them to the keeper, and applies the application to the
    /// core.
    pub(super) fn admit(
        &mut self,
        connection: ConnectionNo,
        mut applicant: Applicant,
    ) -> Result<(), FleetError> {
        let shape = match self.core.shape_for(&applicant) {
            Ok(shape) => shape,
            Err(errno) => {
                self.connections.refuse(connection, errno);
                return Ok(());
            }
        };
        applicant.shape = shape;
        // A front's kernel refuses what its mount does not allow.
        if self.plan.read_only && !applicant.front && !applicant.privileged {
            applicant.rules |= Rules::READ_ONLY;
        }
        let Some((socket, new_memory)) = self.new_memory(connection, shape) else {
            self.connections.refuse(connection, Errno::ENFILE);
            return Ok(());
        };
        self.keep_client(connection, socket, &new_memory.kept)?;
        let rules = applicant.rules;
        let welcome = PendingWelcome { connection, shape, rules, fds: new_memory.client };
        self.clients.apply(welcome, new_memory.kept);
        self.apply(Event::Connect { connection, applicant })
    }

    /// Gives the client's connection and memory to the keeper, so that they outlive this process.
    fn keep_client(
        &mut self,
        connection: ConnectionNo,
        socket: OwnedFd,
        memory: &ClientMemory,
    ) -> Result<(), FleetError> {
        self.keeper.keep(Kept::Client(connection.0), vec![socket])?;
        self.keeper.keep_shared(Kept::Segments(connection.0), memory.kept())
    }

    /// Makes the segments of a client of this shape, and a copy of its connection for the
    /// keeper. `None` if descriptors are scarce.
    fn new_memory(
        &mut self,
        connection: ConnectionNo,
        shape: Shape,
    ) -> Option<(OwnedFd, NewClientMemory)> {
        let cells = self.cells.count();
        let welcomes = (self.connections.unread() + 1) * welcome_descriptors(cells);
        let kept = (self.clients.count() + 1) * self.keeper.descriptors_of_client(cells);
        let reserve = Reserve::of(cells);
        if !reserve.lets_send(welcomes)
            || !reserve.lets_hold(limit::of_keeper(cells) + kept)
            || !self.cells_can_map(shape)
        {
            return None;
        }
        let socket = self.connections.socket(connection)?;
        let new_memory = self.memory.new_client(connection, shape).ok()?;
        let is_scarce = new_memory.fds().any(|fd| reserve.has(fd));
        (!is_scarce).then_some((socket, new_memory))
    }

    /// Whether every cell can map the memory of one more client of this shape.
    fn cells_can_map(&self, shape: Shape) -> bool {
        let requests = shape.client_segment_len(self.cells.count());
        let bytes = (requests + shape.cell_segment_len()) as u64;
        self.cells.living().all(|cell| limit::lets_map(self.cells[cell].pid, bytes))
    }
}
