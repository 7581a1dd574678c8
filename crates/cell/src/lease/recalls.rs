//! Recalls that are under way to the holders of acknowledged leases.
//!
//! There are two classes of recalls ([`RecallClass`]), so that names and attributes are never
//! behind pages. Each holder has a queue for each class, and one recall of a queue is sent at a
//! time:
//!
//! ```text
//! queued ──▶ sent, with a number ──▶ acknowledged with that number
//!    ▲                │
//!    └────────────────┘ the holder has read the object meanwhile
//! ```
//!
//! A holder that does not listen for pages yet is sent no recall of pages.
//!
//! Invariant: a recall's number is never used twice, not even by another epoch of the cell.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{ClientId, Epoch, Ino};
use warren_proto::LeaseKey;

use crate::budget::RECALL_KEYS;

/// The copies that a recall takes back. A holder listens for each class separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecallClass {
    /// Names and attributes.
    Other,
    Pages,
}

impl RecallClass {
    pub(crate) const ALL: [Self; 2] = [Self::Other, Self::Pages];

    const fn of(key: &LeaseKey) -> Self {
        match key {
            LeaseKey::Pages(_) => Self::Pages,
            LeaseKey::Attr(_)
            | LeaseKey::Name(..)
            | LeaseKey::Opens(_)
            | LeaseKey::Names(_)
            | LeaseKey::Delegate(_) => Self::Other,
        }
    }
}

/// A change of attributes may have this effect on the holder, beside making its copy old.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) enum RecallEffect {
    #[default]
    None,
    /// It changes the owner, the group or the mode. The kernel checks rights by the owner and the
    /// group that it has even after it has dropped the attributes, and an overlay above it takes
    /// all three.
    Rights,
}

/// A recall that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub number: u64,
    pub keys: BTreeSet<LeaseKey>,
    /// The most that any of the changes does.
    pub effect: RecallEffect,
}

/// The recalls of one class to one holder.
#[derive(Debug, Default)]
struct Queue {
    /// The objects whose recall is not sent yet.
    queued: BTreeSet<LeaseKey>,
    /// The most that any of these changes does.
    effect: RecallEffect,
    /// The recall that is not acknowledged yet.
    sent: Option<Sent>,
    /// The files with a task that waits for the recall of their pages.
    awaited: BTreeSet<Ino>,
    next: u64,
}

impl Queue {
    fn is_sent(&self, key: &LeaseKey) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.keys.contains(key))
    }

    /// Whether the holder will have dropped the object as that change needs it.
    fn covers(&self, key: &LeaseKey, effect: RecallEffect) -> bool {
        let is_sent = self.sent.as_ref().is_some_and(|sent| sent.effect >= effect);
        self.queued.contains(key) || is_sent && self.is_sent(key)
    }

    fn contains(&self, key: &LeaseKey) -> bool {
        self.is_sent(key) || self.queued.contains(key)
    }
}

/// The queues of one holder, one for each class.
#[derive(Debug, Default)]
struct Queues([Queue; RecallClass::ALL.len()]);

impl Queues {
    const fn get(&self, class: RecallClass) -> &Queue {
        &self.0[class as usize]
    }

    const fn get_mut(&mut self, class: RecallClass) -> &mut Queue {
        &mut self.0[class as usize]
    }

    fn contains(&self, key: &LeaseKey) -> bool {
        self.get(RecallClass::of(key)).contains(key)
    }
}

#[derive(Debug)]
pub(crate) struct Recalls {
    by_client: BTreeMap<ClientId, Queues>,
    /// Numbers of recalls are greater.
    number_base: u64,
}

impl Recalls {
    pub(crate) const fn new(epoch: Epoch) -> Self {
        Self { by_client: BTreeMap::new(), number_base: (epoch.0 as u64) << 32 }
    }

    /// Whether a client has ever listened for recalls, or has any to receive.
    pub(crate) fn has_listeners(&self) -> bool {
        !self.by_client.is_empty()
    }

    /// Whether the object is being recalled from any client.
    pub(crate) fn contains(&self, key: &LeaseKey) -> bool {
        self.by_client.values().any(|queues| queues.contains(key))
    }

    /// Whether such an object is being recalled from any client.
    pub(crate) fn has_any(&self, is_it: impl Fn(&LeaseKey) -> bool) -> bool {
        let mut queues = self.by_client.values().flat_map(|queues| &queues.0);
        queues.any(|queue| {
            let mut sent = queue.sent.iter().flat_map(|sent| &sent.keys);
            queue.queued.iter().any(&is_it) || sent.any(&is_it)
        })
    }

    /// Whether the object is being recalled from the client.
    pub(crate) fn is_from(&self, key: &LeaseKey, client: ClientId) -> bool {
        self.by_client.get(&client).is_some_and(|queues| queues.contains(key))
    }

    /// The clients from which the object is being recalled, except `client`.
    pub(crate) fn clients_except<'a>(
        &'a self,
        key: &'a LeaseKey,
        client: ClientId,
    ) -> impl Iterator<Item = ClientId> + 'a {
        let others = self.by_client.iter().filter(move |(of, _)| **of != client);
        others.filter(|(_, queues)| queues.contains(key)).map(|(of, _)| *of)
    }

    /// Recalls the object from a client, unless that is under way.
    pub(crate) fn begin(&mut self, key: &LeaseKey, effect: RecallEffect, client: ClientId) {
        let queues = self.by_client.entry(client).or_default();
        let queue = queues.get_mut(RecallClass::of(key));
        if !queue.covers(key, effect) {
            queue.queued.insert(key.clone());
        }
        if queue.queued.contains(key) {
            queue.effect = queue.effect.max(effect);
        }
    }

    /// The client has read the object. If its recall was sent, another must follow.
    pub(crate) fn repeat_if_sent(&mut self, key: &LeaseKey, client: ClientId) {
        let queues = self.by_client.get_mut(&client);
        if let Some(queue) = queues.map(|queues| queues.get_mut(RecallClass::of(key)))
            && queue.is_sent(key)
        {
            queue.queued.insert(key.clone());
        }
    }

    /// A task waits until all clients but `except` have dropped the pages of a file that are being
    /// recalled. Returns whether this is the first task to wait for some of them: then other tasks
    /// may overtake.
    pub(crate) fn await_pages(&mut self, ino: Ino, except: Option<ClientId>) -> bool {
        let key = LeaseKey::Pages(ino);
        let mut is_new = false;
        for (_, queues) in self.by_client.iter_mut().filter(|(client, _)| Some(**client) != except)
        {
            if queues.contains(&key) {
                is_new |= queues.get_mut(RecallClass::Pages).awaited.insert(ino);
            }
        }
        is_new
    }

    /// Whether pages of the file are being recalled from the client, and a task waits for them or
    /// for pages behind them in the queue.
    pub(crate) fn is_awaited(&self, ino: Ino, client: ClientId) -> bool {
        let pages = self.by_client.get(&client).map(|queues| queues.get(RecallClass::Pages));
        pages.is_some_and(|own| own.contains(&LeaseKey::Pages(ino)) && !own.awaited.is_empty())
    }

    /// The next recall to send to `client`, which is listening for the class.
    pub(crate) fn take(&mut self, client: ClientId, class: RecallClass) -> Option<Sent> {
        let queue = self.by_client.get_mut(&client)?.get_mut(class);
        if queue.sent.is_some() || queue.queued.is_empty() {
            return None;
        }
        let keys: BTreeSet<_> = queue.queued.iter().take(RECALL_KEYS).cloned().collect();
        queue.queued.retain(|key| !keys.contains(key));
        queue.next += 1;
        let sent = Sent { number: self.number_base + queue.next, keys, effect: queue.effect };
        if queue.queued.is_empty() {
            queue.effect = RecallEffect::None;
        }
        queue.sent = Some(sent.clone());
        Some(sent)
    }

    /// `client` listens for the class, and acknowledges the recall with this number. Returns the
    /// objects that it has dropped and has not read again; `None` if no such recall was under way.
    pub(crate) fn acknowledge(
        &mut self,
        client: ClientId,
        class: RecallClass,
        number: u64,
    ) -> Option<Vec<LeaseKey>> {
        let queue = self.by_client.entry(client).or_default().get_mut(class);
        let sent = queue.sent.take_if(|sent| sent.number == number)?;
        let dropped: Vec<_> = sent.keys.into_iter().filter(|key| !queue.contains(key)).collect();
        for key in &dropped {
            if let LeaseKey::Pages(ino) = key {
                queue.awaited.remove(ino);
            }
        }
        Some(dropped)
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.by_client.remove(&client);
    }
}
