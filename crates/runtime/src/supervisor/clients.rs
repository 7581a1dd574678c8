//! Clients and their memory, from their application until no cell knows them.
//!
//! ```text
//! applying ──register──▶ welcome pending ──take_welcome──▶ admitted ──forget──▶ gone
//!    └──withdraw──▶ gone
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use warren_base::ClientId;
use warren_supervisor::ConnectionNo;

use super::memory::ClientMemory;

/// A client that not all cells know yet. What it gets is made before the core receives its
/// application, so that a lack of it is a refusal.
pub(super) struct PendingWelcome {
    pub connection: ConnectionNo,
    pub slots: u16,
    /// Beside its `Welcome`.
    pub fds: Vec<OwnedFd>,
}

#[derive(Default)]
pub(super) struct Clients {
    /// Connections that applied and were not answered yet.
    applying: BTreeMap<ConnectionNo, (PendingWelcome, ClientMemory)>,
    welcomes: BTreeMap<ClientId, PendingWelcome>,
    /// Of every client that some cell may know.
    memory: BTreeMap<ClientId, ClientMemory>,
}

impl Clients {
    pub fn apply(&mut self, welcome: PendingWelcome, memory: ClientMemory) {
        self.applying.insert(memory.connection, (welcome, memory));
    }

    /// The application is refused.
    pub fn withdraw(&mut self, connection: ConnectionNo) {
        self.applying.remove(&connection);
    }

    /// The applicant is this client from now on; false if there is no such application.
    pub fn register(&mut self, connection: ConnectionNo, client: ClientId) -> bool {
        let Some((welcome, memory)) = self.applying.remove(&connection) else { return false };
        self.welcomes.insert(client, welcome);
        self.memory.insert(client, memory);
        true
    }

    /// A client of an earlier supervisor, with its welcome unless it has that already.
    pub fn adopt(
        &mut self,
        client: ClientId,
        memory: ClientMemory,
        welcome: Option<PendingWelcome>,
    ) {
        self.memory.insert(client, memory);
        self.welcomes.extend(welcome.map(|welcome| (client, welcome)));
    }

    /// What the client gets, once all cells know it.
    pub fn take_welcome(&mut self, client: ClientId) -> Option<PendingWelcome> {
        self.welcomes.remove(&client)
    }

    /// No cell knows the client any more. Returns its connection.
    pub fn forget(&mut self, client: ClientId) -> Option<ConnectionNo> {
        self.welcomes.remove(&client);
        self.memory.remove(&client).map(|memory| memory.connection)
    }

    pub fn memory(&self, client: ClientId) -> Option<&ClientMemory> {
        self.memory.get(&client)
    }

    pub fn count(&self) -> usize {
        self.memory.len()
    }

    /// Every client with its connection.
    pub fn connections(&self) -> impl Iterator<Item = (ClientId, ConnectionNo)> {
        self.memory.iter().map(|(&client, memory)| (client, memory.connection))
    }
}
