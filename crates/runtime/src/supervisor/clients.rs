//! Clients and their memory, from their application until no cell knows them.
//!
//! ```text
//! applying ──register──▶ welcome pending ──take_welcome──▶ admitted ──forget──▶ gone
//!    └──withdraw──▶ gone
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use warren_base::ClientId;
use warren_proto::Rules;
use warren_proto::slot::Shape;
use warren_supervisor::ConnectionNo;

use super::memory::ClientMemory;

/// The welcome of a client that not all cells know yet. Its descriptors are made before the core
/// receives the application, so that a shortage of them refuses the client.
pub(super) struct PendingWelcome {
    pub connection: ConnectionNo,
    pub shape: Shape,
    pub rules: Rules,
    /// The descriptors with its `Welcome`.
    pub fds: Vec<OwnedFd>,
}

#[derive(Default)]
pub(super) struct Clients {
    /// Connections whose application is not answered yet.
    applying: BTreeMap<ConnectionNo, (PendingWelcome, ClientMemory)>,
    welcomes: BTreeMap<ClientId, PendingWelcome>,
    /// The memory of every client that some cell may know.
    memory: BTreeMap<ClientId, ClientMemory>,
}

impl Clients {
    pub(super) fn apply(&mut self, welcome: PendingWelcome, memory: ClientMemory) {
        self.applying.insert(memory.connection, (welcome, memory));
    }

    /// Drops an application that is refused.
    pub(super) fn withdraw(&mut self, connection: ConnectionNo) {
        self.applying.remove(&connection);
    }

    /// Makes the applicant this client. False if there is no such application.
    pub(super) fn register(&mut self, connection: ConnectionNo, client: ClientId) -> bool {
        let Some((welcome, memory)) = self.applying.remove(&connection) else { return false };
        self.welcomes.insert(client, welcome);
        self.memory.insert(client, memory);
        true
    }

    /// Adds a client of an earlier supervisor, with its welcome unless that was sent already.
    pub(super) fn adopt(
        &mut self,
        client: ClientId,
        memory: ClientMemory,
        welcome: Option<PendingWelcome>,
    ) {
        self.memory.insert(client, memory);
        self.welcomes.extend(welcome.map(|welcome| (client, welcome)));
    }

    /// The client is admitted, so the keeper alone holds its segments from now on.
    pub(super) fn close_segments(&mut self, client: ClientId) {
        if let Some(memory) = self.memory.get_mut(&client) {
            memory.close();
        }
    }

    /// The client's welcome, once all cells know the client.
    pub(super) fn take_welcome(&mut self, client: ClientId) -> Option<PendingWelcome> {
        self.welcomes.remove(&client)
    }

    /// Removes a client that no cell knows any more. Returns its connection.
    pub(super) fn forget(&mut self, client: ClientId) -> Option<ConnectionNo> {
        self.welcomes.remove(&client);
        self.memory.remove(&client).map(|memory| memory.connection)
    }

    pub(super) fn memory(&self, client: ClientId) -> Option<&ClientMemory> {
        self.memory.get(&client)
    }

    pub(super) fn count(&self) -> usize {
        self.memory.len()
    }

    /// Every client with its connection.
    pub(super) fn connections(&self) -> impl Iterator<Item = (ClientId, ConnectionNo)> {
        self.memory.iter().map(|(&client, memory)| (client, memory.connection))
    }
}
