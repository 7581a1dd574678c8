//! Leases: which client may keep a copy of this cell's replies (Hare 3.6; uFS).
//!
//! A *word lease* is revoked by a store into the holder's word. An *acknowledged lease* is for a
//! cache that cannot read words: the kernel's, behind a FUSE front. It is *recalled*, and a request
//! that changes the object waits until the holder has acknowledged the recall.
//!
//! A shard has the leases on its objects ([`crate::shard::lease`]). Here is what the shards of a
//! cell share, by client: the lease of each word ([`stamps`]), the recalls that are under way
//! ([`recalls`]) and what a predecessor may have granted ([`inherited`]); and the number of objects
//! with acknowledged leases ([`objects`]).
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
//!   pages of other clients while a task waits for the pages of their own client
//!   ([`ClientLeases::must_overtake`]).
//!
//! Invariant: an object that is being recalled is granted to no client.

mod inherited;
pub(crate) mod marks;
pub(crate) mod objects;
pub(crate) mod recalls;
pub(crate) mod stamps;

use warren_base::{ClientId, Epoch, Ino};
use warren_proto::{Change, LeaseKey};

use crate::plant::{Plant, Planted};
use inherited::Inherited;
use objects::ObjectCount;
use recalls::{RecallClass, RecallEffect, Recalls};
use stamps::Stamps;

/// The state of leases that all shards share, by client.
#[derive(Debug)]
pub(crate) struct ClientLeases {
    pub(crate) stamps: Stamps,
    pub(crate) objects: ObjectCount,
    pub(crate) inherited: Inherited,
    pub(crate) recalls: Recalls,
    plant: Planted,
    /// Changes whose leases [`Plant::RevokeAfterCommit`] revokes with the next event, and their
    /// client.
    pub(crate) late: Vec<(Vec<Change>, Option<ClientId>)>,
}

impl ClientLeases {
    pub(crate) fn new(epoch: Epoch, plant: Planted) -> Self {
        Self {
            stamps: Stamps::new(epoch, plant),
            objects: ObjectCount::default(),
            inherited: Inherited::default(),
            recalls: Recalls::new(epoch),
            plant,
            late: Vec::new(),
        }
    }

    /// Whether the object may be granted: it is not being recalled from any client.
    pub(crate) fn may_grant(&self, key: &LeaseKey) -> bool {
        !self.recalls.contains(key) || self.plant == Some(Plant::GrantDuringRecall)
    }

    /// Whether a client may hold an acknowledged lease on anything.
    pub(crate) fn has_acknowledged(&self) -> bool {
        !self.objects.is_zero() || !self.inherited.is_empty()
    }

    /// Recalls the object from its holders, and from the clients to which a predecessor may have
    /// granted it (if `is_inherited`), except `except`. Returns whether there are none. If there
    /// are any, the recall is under way on return (or queued: see [`Recalls::take`]).
    pub(crate) fn recall(
        &mut self,
        key: &LeaseKey,
        holders: &[ClientId],
        (except, is_inherited): (Option<ClientId>, bool),
        effect: RecallEffect,
    ) -> bool {
        let known = holders.iter().copied();
        let inherited = self.inherited.clients_of(key).filter(|_| is_inherited);
        let mut free = true;
        for holder in known.chain(inherited).filter(|holder| Some(*holder) != except) {
            free = false;
            self.recalls.begin(key, effect, holder);
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
        for client in self.inherited.clients_of(key).filter(|client| from(*client)) {
            free = false;
            self.recalls.begin(key, RecallEffect::None, client);
        }
        free
    }

    /// Whether a predecessor may have granted the object to the client, or it is being recalled
    /// from the client.
    pub(crate) fn may_hold(&self, key: &LeaseKey, client: ClientId) -> bool {
        self.recalls.is_from(key, client) || self.inherited.clients_of(key).any(|it| it == client)
    }

    /// `client` listens for the class, and has dropped the objects of recall `number`. Returns
    /// those that it has not read again, which their shards must know; `None` if that recall was
    /// not under way.
    pub(crate) fn listens(
        &mut self,
        client: ClientId,
        class: RecallClass,
        number: u64,
    ) -> Option<Vec<LeaseKey>> {
        let dropped = self.recalls.acknowledge(client, class, number)?;
        for key in &dropped {
            self.inherited.remove(key, client);
        }
        Some(dropped)
    }

    /// Whether a write-back or truncation of `client` must continue although other clients have
    /// pages of the file: the client's own pages are being recalled, a task waits for them or for
    /// pages behind them in the queue, and its kernel cannot drop them before this request is
    /// answered.
    pub(crate) fn must_overtake(&self, ino: Ino, client: ClientId) -> bool {
        self.recalls.is_awaited(ino, client) && self.plant != Some(Plant::WaitForOwnRecall)
    }

    /// The client is gone with all its caches. The shards must forget it too.
    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.inherited.forget_client(client);
        self.recalls.forget_client(client);
        self.stamps.forget_client(client);
    }
}
