//! The clients that the cell serves, and on whose behalf their requests run.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_base::{ClientId, Errno};
use warren_proto::{Credentials, RequestHeader};

use crate::event::SlotRef;
use crate::lease::recalls::Lane;

/// Where a recall is sent: a slot that waits for it, and the number of its request.
type Listener = (SlotRef, u32);

#[derive(Debug)]
struct Client {
    credentials: Arc<Credentials>,
    acknowledges: bool,
    slots: u16,
    /// The slot that waits for recalls, on each lane.
    listeners: [Option<Listener>; Lane::ALL.len()],
    state: State,
}

/// ```text
/// Admitted ──expelled──▶ Leaving ──no task of the client is left──▶ removed
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Admitted,
    /// It was expelled, and some of its transactions are not over.
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
    /// How many of those that are not leaving have copies in a kernel.
    fronts: usize,
    /// How many are leaving.
    leaving: usize,
}

impl Clients {
    pub(crate) fn admit(
        &mut self,
        id: ClientId,
        credentials: Credentials,
        acknowledges: bool,
        slots: u16,
    ) {
        let (listeners, state) = ([None; Lane::ALL.len()], State::Admitted);
        let credentials = Arc::new(credentials);
        self.fronts += usize::from(acknowledges);
        let client = Client { credentials, acknowledges, slots, listeners, state };
        let old = self.known.insert(id, client);
        self.leaving -= usize::from(old.is_some_and(|client| client.is_leaving()));
    }

    /// The credentials with which a request runs; `None` if the slot is not one from which requests
    /// are taken. Only a front may name a user.
    pub(crate) fn acts_as(
        &self,
        from: SlotRef,
        header: &RequestHeader,
    ) -> Option<Arc<Credentials>> {
        let client = self.known.get(&from.client)?;
        if from.slot.0 >= client.slots || client.is_leaving() {
            return None;
        }
        let own = &client.credentials;
        if own.checked_by_kernel && (own.uid, own.gid) != (header.uid, header.gid) {
            let (uid, gid) = (header.uid, header.gid);
            return Some(Arc::new(Credentials { uid, gid, ..Credentials::clone(own) }));
        }
        Some(Arc::clone(own))
    }

    /// Whether the client's copies are in a kernel, which acknowledges that it has dropped them.
    pub(crate) fn acknowledges(&self, id: ClientId) -> bool {
        let acknowledges = |client: &Client| client.acknowledges && client.state == State::Admitted;
        self.fronts > 0 && self.known.get(&id).is_some_and(acknowledges)
    }

    /// How many clients acknowledge recalls.
    pub(crate) const fn fronts(&self) -> usize {
        self.fronts
    }

    pub(crate) fn is_known(&self, id: ClientId) -> bool {
        self.known.contains_key(&id)
    }

    /// A slot waits for recalls on a lane. Returns the one that did before: only one can. EPERM for
    /// a client that has none.
    pub(crate) fn listen(
        &mut self,
        from: SlotRef,
        seq: u32,
        lane: Lane,
    ) -> Result<Option<Listener>, Errno> {
        let client = self.known.get_mut(&from.client).ok_or(Errno::EPERM)?;
        if !client.acknowledges {
            return Err(Errno::EPERM);
        }
        Ok(client.listeners[lane as usize].replace((from, seq)))
    }

    /// The slot waits for recalls no more. Whether it did.
    pub(crate) fn end_listening(&mut self, slot: SlotRef, seq: u32) -> bool {
        let client = self.known.get_mut(&slot.client);
        let mut listeners = client.into_iter().flat_map(|client| &mut client.listeners);
        match listeners.find(|listener| **listener == Some((slot, seq))) {
            Some(listener) => listener.take().is_some(),
            None => false,
        }
    }

    /// Each slot that waits for recalls, with its client and its lane. `take` says whether it is to
    /// wait no more.
    pub(crate) fn answer_listeners(
        &mut self,
        mut take: impl FnMut(ClientId, Lane, Listener) -> bool,
    ) {
        for (id, client) in &mut self.known {
            for lane in Lane::ALL {
                let listener = &mut client.listeners[lane as usize];
                if let Some(waiting) = *listener
                    && take(*id, lane, waiting)
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
        (client.state, client.listeners) = (State::Leaving, [None; Lane::ALL.len()]);
        true
    }

    #[inline]
    pub(crate) fn is_leaving(&self, id: ClientId) -> bool {
        self.leaving > 0 && self.known.get(&id).is_some_and(Client::is_leaving)
    }

    /// The client is leaving, and has nothing here any more.
    pub(crate) fn remove(&mut self, id: ClientId) {
        let removed = self.known.remove(&id);
        self.leaving -= usize::from(removed.is_some_and(|client| client.is_leaving()));
    }
}
