//! The clients that the cell serves, and the credentials with which their requests run.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_base::{ClientId, Errno, SlotNo};
use warren_proto::slot::Shape;
use warren_proto::{Credentials, RequestHeader, Rules};

use crate::event::SlotRef;
use crate::lease::recalls::RecallClass;

/// Where a recall is sent: the slot that waits for it, and the number of its request.
type Listener = (SlotRef, u32);

#[derive(Debug)]
struct Client {
    credentials: Arc<Credentials>,
    acknowledges: bool,
    shape: Shape,
    rules: Rules,
    /// The slot that waits for recalls of each class.
    listeners: [Option<Listener>; RecallClass::ALL.len()],
    state: State,
}

/// ```text
/// Admitted ──expelled──▶ Leaving ──no task of the client is left──▶ removed
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Admitted,
    /// The client was expelled, and some of its transactions are not over.
    Leaving,
}

impl Client {
    fn is_leaving(&self) -> bool {
        self.state == State::Leaving
    }
}

#[derive(Debug, Default)]
pub(crate) struct Clients {
    known: BTreeMap<ClientId, Client>,
    /// The number of clients, other than leaving ones, whose copies are in a kernel.
    fronts: usize,
    /// The number of leaving clients.
    leaving: usize,
    /// Whether some client has had rules.
    has_rules: bool,
}

impl Clients {
    pub(crate) fn admit(
        &mut self,
        id: ClientId,
        credentials: Credentials,
        acknowledges: bool,
        (shape, rules): (Shape, Rules),
    ) {
        let (listeners, state) = ([None; RecallClass::ALL.len()], State::Admitted);
        let credentials = Arc::new(credentials);
        self.fronts += usize::from(acknowledges);
        self.has_rules |= !rules.is_empty();
        let client = Client { credentials, acknowledges, shape, rules, listeners, state };
        let old = self.known.insert(id, client);
        self.leaving -= usize::from(old.is_some_and(|client| client.is_leaving()));
    }

    /// The credentials with which a request runs. `None` if no requests are accepted from the slot.
    /// Only a front may name a user.
    pub(crate) fn credentials_for(
        &self,
        from: SlotRef,
        header: &RequestHeader,
    ) -> Option<Arc<Credentials>> {
        let client = self.known.get(&from.client)?;
        let is_slot = usize::from(from.slot.0) < client.shape.slots();
        if !is_slot && from.slot != SlotNo::STREAM || client.is_leaving() {
            return None;
        }
        let own = &client.credentials;
        if own.checked_by_kernel && (own.uid, own.gid) != (header.uid, header.gid) {
            let (uid, gid) = (header.uid, header.gid);
            return Some(Arc::new(Credentials { uid, gid, ..Credentials::clone(own) }));
        }
        Some(Arc::clone(own))
    }

    /// Whether the client's copies are in a kernel. Then the client acknowledges that it has
    /// dropped them.
    pub(crate) fn acknowledges(&self, id: ClientId) -> bool {
        let acknowledges = |client: &Client| client.acknowledges && client.state == State::Admitted;
        self.fronts > 0 && self.known.get(&id).is_some_and(acknowledges)
    }

    /// Whether a kernel may change pages of a file that the client has open for writing. A client
    /// that is not known yet may be a front.
    pub(crate) fn may_map(&self, id: ClientId) -> bool {
        !self.known.contains_key(&id) || self.acknowledges(id)
    }

    /// Bytes of the client's payload lanes; 0 if it is not known.
    pub(crate) fn payload_max(&self, id: ClientId) -> usize {
        self.known.get(&id).map_or(0, |client| client.shape.payload())
    }

    /// Bytes of the ring of the client's stream to this cell.
    pub(crate) fn stream_ring(&self, id: ClientId) -> Option<usize> {
        self.known.get(&id).map(|client| client.shape.lanes().stream())
    }

    /// The clients that are admitted, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.known.keys().copied()
    }

    /// Other rules hold for the client's requests from now on.
    pub(crate) fn set_rules(&mut self, id: ClientId, rules: Rules) {
        if let Some(client) = self.known.get_mut(&id) {
            client.rules = rules;
            self.has_rules = true;
        }
    }

    /// The rules for the client's requests; empty if the client is not known.
    #[inline]
    pub(crate) fn rules(&self, id: ClientId) -> Rules {
        if !self.has_rules {
            return Rules::empty();
        }
        self.known.get(&id).map_or(Rules::empty(), |client| client.rules)
    }

    /// The number of clients that acknowledge recalls.
    pub(crate) const fn fronts(&self) -> usize {
        self.fronts
    }

    pub(crate) fn is_known(&self, id: ClientId) -> bool {
        self.known.contains_key(&id)
    }

    /// A slot waits for recalls of a class. Returns the slot that did before: only one can. EPERM
    /// for a client that receives no recalls.
    pub(crate) fn listen(
        &mut self,
        from: SlotRef,
        seq: u32,
        class: RecallClass,
    ) -> Result<Option<Listener>, Errno> {
        let client = self.known.get_mut(&from.client).ok_or(Errno::EPERM)?;
        if !client.acknowledges {
            return Err(Errno::EPERM);
        }
        Ok(client.listeners[class as usize].replace((from, seq)))
    }

    /// The slot stops waiting for recalls. Returns whether it waited.
    pub(crate) fn end_listening(&mut self, slot: SlotRef, seq: u32) -> bool {
        let client = self.known.get_mut(&slot.client);
        let mut listeners = client.into_iter().flat_map(|client| &mut client.listeners);
        match listeners.find(|listener| **listener == Some((slot, seq))) {
            Some(listener) => listener.take().is_some(),
            None => false,
        }
    }

    /// Calls `take` for each slot that waits for recalls, with its client and class. If `take`
    /// returns true, the slot stops waiting.
    pub(crate) fn answer_listeners(
        &mut self,
        mut take: impl FnMut(ClientId, RecallClass, Listener) -> bool,
    ) {
        for (id, client) in &mut self.known {
            for class in RecallClass::ALL {
                let listener = &mut client.listeners[class as usize];
                if let Some(waiting) = *listener
                    && take(*id, class, waiting)
                {
                    *listener = None;
                }
            }
        }
    }

    /// The client is expelled. False if it is not known.
    pub(crate) fn expel(&mut self, id: ClientId) -> bool {
        let Some(client) = self.known.get_mut(&id) else { return false };
        self.fronts -= usize::from(client.acknowledges && client.state == State::Admitted);
        self.leaving += usize::from(client.state == State::Admitted);
        (client.state, client.listeners) = (State::Leaving, [None; RecallClass::ALL.len()]);
        true
    }

    #[inline]
    pub(crate) fn is_leaving(&self, id: ClientId) -> bool {
        self.leaving > 0 && self.known.get(&id).is_some_and(Client::is_leaving)
    }

    /// The client is leaving, and has no task here any more.
    pub(crate) fn remove(&mut self, id: ClientId) {
        let removed = self.known.remove(&id);
        self.leaving -= usize::from(removed.is_some_and(|client| client.is_leaving()));
    }
}
