//! The leases that a predecessor of the cell may have granted.
//!
//! A cell's successor does not know which acknowledged leases exist. It assumes that each client
//! that can hold any holds everything, until that client has acknowledged a recall of the object.
//! So it recalls nothing ahead of time, and objects that no other client changes stay in the
//! holder's cache.

use std::collections::BTreeMap;

use hashbrown::HashSet;
use warren_base::{ClientId, FixedState};
use warren_proto::LeaseKey;

use super::objects::OBJECTS_MAX;

/// The leases that one client may hold: all but those on these objects.
#[derive(Debug, Default)]
struct Remainder {
    dropped: HashSet<LeaseKey, FixedState>,
}

impl Remainder {
    fn has(&self, key: &LeaseKey) -> bool {
        match key {
            LeaseKey::Name(..) | LeaseKey::Attr(_) | LeaseKey::Pages(_) => {
                !self.dropped.contains(key)
            }
            // Only words guard these.
            LeaseKey::Opens(_) | LeaseKey::Names(_) | LeaseKey::Delegate(_) => false,
        }
    }

    fn remove(&mut self, key: &LeaseKey) {
        // Objects that are forgotten here are recalled once more, which does no harm.
        if self.dropped.len() >= OBJECTS_MAX {
            self.dropped.clear();
        }
        self.dropped.insert(key.clone());
    }
}

#[derive(Debug, Default)]
pub(crate) struct Inherited {
    by_client: BTreeMap<ClientId, Remainder>,
}

impl Inherited {
    /// Whether a predecessor has granted nothing that was not recalled since.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_client.is_empty()
    }

    /// A predecessor may have granted this client anything.
    pub(crate) fn insert(&mut self, client: ClientId) {
        self.by_client.insert(client, Remainder::default());
    }

    /// The clients that may hold the object, in order.
    pub(crate) fn clients_of(&self, key: &LeaseKey) -> impl Iterator<Item = ClientId> {
        self.by_client.iter().filter(|(_, it)| it.has(key)).map(|(client, _)| *client)
    }

    /// The client has dropped the object.
    pub(crate) fn remove(&mut self, key: &LeaseKey, client: ClientId) {
        if let Some(remainder) = self.by_client.get_mut(&client) {
            remainder.remove(key);
        }
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.by_client.remove(&client);
    }
}
