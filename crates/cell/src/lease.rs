//! Leases: which client may keep a copy of this cell's replies (design 6; Hare 3.6, uFS).
//!
//! A *word lease* ([`words`]) is revoked by a store into the holder's word. An *acknowledged lease*
//! ([`holders`]) is for a cache that cannot read words: the kernel's, behind a FUSE front. It is
//! *recalled* ([`recalls`]), and a request that changes the object waits until the holder has
//! acknowledged the recall.
//!
//! A write is answered when no other client has a page of the file any more. A kernel drops a page
//! only when the request that has it locked is answered. These rules prevent two such waits from
//! waiting for each other (decision 17):
//!
//! * Reads never wait for a recall.
//! * If there are two fronts, files that are opened for writing are written past the kernels'
//!   caches, which locks no page. Only files that were opened before the second front came are
//!   written through a cache. The front of that cache waits for pages of other clients, and no
//!   write waits for its own pages.
//! * Recalls of names and attributes are never behind recalls of pages.
//! * Write-backs of mapped pages, and truncations, which delay write-backs, do not wait for the
//!   pages of other clients while a task waits for the pages of their own client ([`overtaken`]).
//!
//! Invariant: an object that is being recalled is granted to no client.

mod holders;
mod inherited;
mod overtaken;
pub(crate) mod recalls;
mod words;

use warren_base::{ClientId, Epoch, Ino};
use warren_proto::{Change, Lease, LeaseKey};

use crate::event::Memory;
use crate::plant::{Plant, Planted};
use holders::Holders;
use inherited::Inherited;
use overtaken::Overtaken;
use recalls::{RecallClass, Recalls};
use words::Words;

#[derive(Debug)]
pub(crate) struct Leases {
    words: Words,
    holders: Holders,
    inherited: Inherited,
    recalls: Recalls,
    overtaken: Overtaken,
    plant: Planted,
    /// Changes whose leases [`Plant::RevokeAfterCommit`] revokes with the next event, and their
    /// client.
    pub(crate) late: Vec<(Vec<Change>, Option<ClientId>)>,
}

impl Leases {
    pub(crate) fn new(epoch: Epoch, secret: u64, plant: Planted) -> Self {
        Self {
            words: Words::new(epoch, plant),
            holders: Holders::new(epoch, secret),
            inherited: Inherited::default(),
            recalls: Recalls::new(epoch),
            overtaken: Overtaken::default(),
            plant,
            late: Vec::new(),
        }
    }

    /// Grants a word lease. A client that holds it already gets the same word and stamp again.
    pub(crate) fn grant(
        &mut self,
        key: LeaseKey,
        client: ClientId,
        memory: &mut dyn Memory,
    ) -> Lease {
        self.words.grant(key, client, memory)
    }

    /// Revokes all word leases on `key`.
    pub(crate) fn revoke(&mut self, key: &LeaseKey, memory: &mut dyn Memory) {
        self.words.revoke(key, memory);
    }

    /// Revokes the word leases on all names of a directory. A copy of a name also states that its
    /// holder may search the directory, and the right to do so has changed. (A front's kernel
    /// checks that itself, each time.)
    pub(crate) fn revoke_names(&mut self, dir: Ino, memory: &mut dyn Memory) {
        self.words.revoke_names(dir, memory);
    }

    /// Grants an acknowledged lease, unless the object is being recalled from any client or there
    /// are too many.
    pub(crate) fn hold(&mut self, key: LeaseKey, client: ClientId) -> bool {
        if self.recalls.names(&key) && self.plant != Some(Plant::GrantDuringRecall) {
            return false;
        }
        let has_room = self.holders.has_room(&key);
        if has_room {
            self.holders.insert(key, client);
        }
        has_room
    }

    /// Notes that a client's cache holds the object even if a recall is under way. Then another
    /// recall must follow that one.
    pub(crate) fn hold_again(&mut self, key: LeaseKey, client: ClientId) {
        self.recalls.repeat_if_sent(&key, client);
        self.holders.insert(key, client);
    }

    /// Notes that a client's cache does not hold the object any more.
    pub(crate) fn drop_holder(&mut self, key: &LeaseKey, client: ClientId) {
        self.holders.remove(key, client);
    }

    /// Whether a client may hold an acknowledged lease on anything.
    pub(crate) fn has_acknowledged(&self) -> bool {
        !self.holders.is_empty() || !self.inherited.is_empty()
    }

    /// A predecessor may have granted this client anything.
    pub(crate) fn inherit(&mut self, client: ClientId) {
        self.inherited.insert(client);
    }

    /// Whether no client but `except` holds an acknowledged lease on `key`. If any client does, the
    /// recall is under way on return (or queued: see [`Self::take_recall`]).
    pub(crate) fn recall(&mut self, key: &LeaseKey, except: Option<ClientId>) -> bool {
        if !self.has_acknowledged() {
            return true;
        }
        let known = self.holders.of(key).iter().copied();
        let mut free = true;
        for holder in known.chain(self.inherited.of(key)).filter(|holder| Some(*holder) != except) {
            free = false;
            self.recalls.begin(key, holder);
        }
        free || self.plant == Some(Plant::SkipRecall)
    }

    /// Recalls from the fronts that `from` names what a predecessor may have granted them. The
    /// predecessor may have let a change overtake the recall, and the recall may not have reached
    /// them. Returns whether no front holds such a lease.
    pub(crate) fn recall_inherited(
        &mut self,
        key: &LeaseKey,
        from: impl Fn(ClientId) -> bool,
    ) -> bool {
        let mut free = true;
        for client in self.inherited.of(key).filter(|client| from(*client)) {
            free = false;
            self.recalls.begin(key, client);
        }
        free
    }

    /// Whether the client is being asked to drop what `key` guards.
    pub(crate) fn is_recalled_from(&self, key: &LeaseKey, client: ClientId) -> bool {
        self.recalls.is_from(key, client)
    }

    /// Whether a client has ever listened for recalls, or has any to receive.
    pub(crate) fn has_listeners(&self) -> bool {
        self.recalls.has_listeners()
    }

    /// The next recall to send to `client`, which is listening for the class.
    pub(crate) fn take_recall(
        &mut self,
        client: ClientId,
        class: RecallClass,
    ) -> Option<(u64, Vec<LeaseKey>)> {
        self.recalls.take(client, class)
    }

    /// `client` listens for the class, and has dropped the objects of recall `number`. Returns
    /// whether that recall was under way.
    pub(crate) fn listens(&mut self, client: ClientId, class: RecallClass, number: u64) -> bool {
        let Some(dropped) = self.recalls.acknowledge(client, class, number) else { return false };
        for key in dropped {
            self.holders.remove(&key, client);
            if let LeaseKey::Pages(ino) = key {
                self.overtaken.dropped(Some(ino), client);
            }
            self.inherited.remove(key, client);
        }
        true
    }

    /// A task waits until all clients but `except` have dropped the pages of a file that are being
    /// recalled. Returns whether this is the first task to wait for some of them: then other tasks
    /// may overtake.
    pub(crate) fn await_pages(&mut self, ino: Ino, except: Option<ClientId>) -> bool {
        self.recalls.await_pages(ino, except)
    }

    /// Whether a write-back or truncation of `client` continues although other clients have pages
    /// of the file: the client's own pages are being recalled, a task waits for them or for pages
    /// behind them in the queue, and its kernel cannot drop them before this request is answered.
    pub(crate) fn overtakes(&mut self, ino: Ino, client: ClientId) -> bool {
        if !self.recalls.is_awaited(ino, client) || self.plant == Some(Plant::WaitForOwnRecall) {
            return false;
        }
        let key = LeaseKey::Pages(ino);
        self.overtaken.insert(ino, client, self.recalls.clients_except(&key, client));
        true
    }

    /// Whether other clients may still have pages from before a change of `client`'s that was
    /// answered.
    pub(crate) fn has_overtaken(&self, ino: Ino, client: ClientId) -> bool {
        self.overtaken.has(ino, client)
    }

    /// The client is gone with all its caches.
    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.inherited.forget_client(client);
        self.recalls.forget_client(client);
        self.overtaken.forget_client(client);
        self.words.forget_client(client);
        self.holders.forget_client(client);
    }

    /// The inode is gone for good: nothing about it can change any more.
    pub(crate) fn forget_inode(&mut self, ino: Ino) {
        if self.holders.is_empty() {
            return;
        }
        for key in [LeaseKey::Attr(ino), LeaseKey::Pages(ino)] {
            if !self.recalls.names(&key) {
                self.holders.forget_object(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
