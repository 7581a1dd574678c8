//! The admission of clients.
//!
//! ```text
//! connect -> Admit to all cells -> all Admitted -> the client may send requests
//! hangup  -> Expel to all cells -> all Expelled -> its segments are freed
//! ```
//!
//! A client that closes its connection before all cells have admitted it is expelled as any other:
//! orders arrive in order, so each cell admits it before it expels it. Numbers are never reused.
//!
//! The successor of a cell is sent an `Admit` for each client, and an `Expel` for each that is
//! being expelled. A client that waited for the lost cell waits for its successor.

use std::collections::BTreeMap;

use warren_base::limits::{GROUPS_MAX, PAYLOAD_MAX, SLOTS_MAX};
use warren_base::{CellId, ClientId, Errno};
use warren_proto::control::Order;
use warren_proto::slot::Shape;
use warren_proto::{Rules, Wire};

use crate::event::{Applicant, ConnectionNo, Effect, send};
use crate::set::CellSet;

/// Clients at a time: a thousand processes of programs, beside the reserved places. Each client
/// costs every cell two mappings and a look at its doorbell now and then, and the supervisor and
/// the keeper a descriptor each, of which 4,096 are usual. A process that is refused can use the
/// mount.
pub const ADMISSIONS_MAX: usize = 1280;

/// Admissions of [`ADMISSIONS_MAX`] that are reserved for fronts: many clients must not keep a
/// mount from being admitted.
pub(crate) const ADMISSIONS_OF_FRONTS: usize = 32;

/// Admissions of [`ADMISSIONS_MAX`] that are reserved for root and the fleet's own user.
pub(crate) const ADMISSIONS_OF_PRIVILEGED: usize = 64;

/// Clients at a time of one user without privileges.
pub(crate) const CLIENTS_OF_USER_MAX: usize = 256;

/// Bytes of the lanes of all clients of such a user together, one way with one cell. Beyond that,
/// each further client gets one slot. Once used, a lane takes its memory each way with each cell.
/// Two clients may have all slots with large lanes.
pub(crate) const LANES_OF_USER_MAX: usize = 2 * SLOTS_MAX * PAYLOAD_MAX;

/// The state of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum ClientState {
    Admitting,
    Admitted,
    Expelling,
}

#[derive(Wire)]
pub(crate) struct Client {
    pub applicant: Applicant,
    pub state: ClientState,
    /// Cells that have not yet acknowledged the order of this state.
    waiting: CellSet,
}

#[derive(Default, Wire)]
pub(crate) struct Admissions {
    clients: BTreeMap<ClientId, Client>,
    last: u32,
}

impl Admissions {
    /// Admits an applicant, or returns why not. The order goes to the `living` of all `cells`;
    /// the successors of the others receive it when they start.
    pub(crate) fn connect(
        &mut self,
        (cells, living): (CellSet, CellSet),
        connection: ConnectionNo,
        applicant: Applicant,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Errno> {
        if applicant.shape.slots() > self.shape_for(&applicant)?.slots() {
            return Err(Errno::ENFILE);
        }
        self.last = self.last.checked_add(1).ok_or(Errno::ENFILE)?;
        let client = ClientId(self.last);
        effects.push(Effect::NewClient { connection, client });
        send(living, &admit(client, &applicant), effects);
        let state = ClientState::Admitting;
        self.clients.insert(client, Client { applicant, state, waiting: cells });
        Ok(())
    }

    /// The requested shape with as many of its slots as the applicant can have, at least one, or
    /// why it cannot be a client.
    pub(crate) fn shape_for(&self, applicant: &Applicant) -> Result<Shape, Errno> {
        let requested = applicant.shape;
        if applicant.credentials.groups.len() > GROUPS_MAX {
            return Err(Errno::EINVAL);
        }
        let reserved = match (applicant.front, applicant.privileged) {
            (true, _) => 0,
            (false, true) => ADMISSIONS_OF_FRONTS,
            (false, false) => ADMISSIONS_OF_FRONTS + ADMISSIONS_OF_PRIVILEGED,
        };
        if self.clients.len() + reserved >= ADMISSIONS_MAX {
            return Err(Errno::ENFILE);
        }
        if applicant.privileged {
            return Ok(requested);
        }
        let is_same =
            |known: &&Client| known.applicant.credentials.uid == applicant.credentials.uid;
        let (mut clients, mut lanes) = (0, 0);
        for known in self.clients.values().filter(is_same) {
            clients += 1;
            lanes += known.applicant.shape.slots() * known.applicant.shape.payload();
        }
        if clients >= CLIENTS_OF_USER_MAX {
            return Err(Errno::ENFILE);
        }
        let left = LANES_OF_USER_MAX.saturating_sub(lanes) / requested.payload();
        let slots = requested.slots().min(left).max(1);
        Ok(Shape::new(slots as u16, requested.lanes()).expect("not more than requested"))
    }

    pub(crate) fn admitted(&mut self, from: CellId, client: ClientId, effects: &mut Vec<Effect>) {
        if self.acknowledged(from, client, ClientState::Admitting) {
            if let Some(known) = self.clients.get_mut(&client) {
                known.state = ClientState::Admitted;
            }
            effects.push(Effect::AdmitClient { client });
        }
    }

    pub(crate) fn hangup(
        &mut self,
        (cells, living): (CellSet, CellSet),
        client: ClientId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(known) = self.clients.get_mut(&client) else { return };
        if known.state != ClientState::Expelling {
            known.state = ClientState::Expelling;
            known.waiting = cells;
            send(living, &Order::Expel { client }, effects);
        }
    }

    /// Other rules hold for the client from now on.
    pub(crate) fn rule(
        &mut self,
        living: CellSet,
        client: ClientId,
        rules: Rules,
        effects: &mut Vec<Effect>,
    ) {
        let Some(known) = self.clients.get_mut(&client) else { return };
        if known.state != ClientState::Expelling && known.applicant.rules != rules {
            known.applicant.rules = rules;
            send(living, &Order::Rule { client, rules }, effects);
        }
    }

    pub(crate) fn expelled(&mut self, from: CellId, client: ClientId, effects: &mut Vec<Effect>) {
        if self.acknowledged(from, client, ClientState::Expelling) {
            self.clients.remove(&client);
            effects.push(Effect::ForgetClient { client });
        }
    }

    /// The cell is lost, and with it what it had acknowledged.
    pub(crate) fn lost(&mut self, cell: CellId) {
        let waiting = |client: &&mut Client| client.state != ClientState::Admitted;
        self.clients.values_mut().filter(waiting).for_each(|client| client.waiting.insert(cell));
    }

    /// Sends all clients to a successor of the cell.
    pub(crate) fn introduce(&self, cell: CellId, effects: &mut Vec<Effect>) {
        for (client, known) in &self.clients {
            let order = admit(*client, &known.applicant);
            effects.push(Effect::Send { to: cell, order });
            if known.state == ClientState::Expelling {
                effects.push(Effect::Send { to: cell, order: Order::Expel { client: *client } });
            }
        }
    }

    pub(crate) fn expel_all(&mut self, cells: (CellSet, CellSet), effects: &mut Vec<Effect>) {
        let clients: Vec<ClientId> = self.clients.keys().copied().collect();
        for client in clients {
            self.hangup(cells, client, effects);
        }
    }

    /// Whether this was the last acknowledgement that the state waited for.
    fn acknowledged(&mut self, from: CellId, client: ClientId, state: ClientState) -> bool {
        match self.clients.get_mut(&client) {
            Some(known) if known.state == state => {
                known.waiting.remove(from) && known.waiting.is_empty()
            }
            _ => false,
        }
    }

    /// A cell that has not acknowledged the order for some client.
    pub(crate) fn waits_for(&self) -> Option<CellId> {
        self.clients.values().find_map(|known| known.waiting.iter().next())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    pub(crate) fn applicant(&self, client: ClientId) -> Option<&Applicant> {
        self.clients.get(&client).map(|known| &known.applicant)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.clients.iter().map(|(client, known)| (*client, known))
    }
}

fn admit(client: ClientId, applicant: &Applicant) -> Order {
    Order::Admit {
        client,
        credentials: applicant.credentials.clone(),
        acknowledged_leases: applicant.front,
        shape: applicant.shape,
        rules: applicant.rules,
    }
}
