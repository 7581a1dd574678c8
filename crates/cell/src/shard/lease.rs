//! The leases on the objects of one shard.
//!
//! The word leases are in [`words`], the holders of acknowledged leases in [`holders`], and the
//! changes that overtook recalls in [`overtaken`]. What concerns clients as a whole is shared by
//! the shards of the cell, and asked for through [`ClientLeases`].

mod contended;
mod holders;
mod overtaken;
mod words;

use warren_base::{ClientId, Epoch, Ino, Instant};
use warren_proto::{Lease, LeaseKey};

use crate::event::Memory;
use crate::lease::ClientLeases;
use crate::lease::marks::Marked;
use crate::lease::recalls::RecallEffect;
pub(crate) use contended::WaitFor;

use contended::Contended;
use holders::Holders;
use overtaken::Overtaken;
use words::Words;

#[derive(Debug)]
pub(crate) struct ShardLeases {
    words: Words,
    holders: Holders,
    overtaken: Overtaken,
    contended: Contended,
}

impl ShardLeases {
    pub(crate) fn new(epoch: Epoch, secret: u64) -> Self {
        Self {
            words: Words::new(epoch, secret),
            holders: Holders::new(epoch, secret),
            overtaken: Overtaken::default(),
            contended: Contended::default(),
        }
    }

    /// Grants a word lease. A client that holds it already gets the same word and stamp again.
    pub(crate) fn grant(
        &mut self,
        key: LeaseKey,
        client: ClientId,
        clients: &mut ClientLeases,
        memory: &mut dyn Memory,
    ) -> Lease {
        self.words.grant(key, client, &mut clients.stamps, memory)
    }

    /// Whether the client has a word lease on `key`.
    pub(crate) fn holds_word(
        &self,
        key: &LeaseKey,
        client: ClientId,
        clients: &ClientLeases,
    ) -> bool {
        self.words.holds(key, client, &clients.stamps)
    }

    /// Revokes all word leases on `key`.
    pub(crate) fn revoke(
        &mut self,
        key: &LeaseKey,
        clients: &mut ClientLeases,
        memory: &mut dyn Memory,
    ) {
        self.words.revoke(key, &mut clients.stamps, memory);
    }

    /// Revokes the word leases on the names of a directory that are not `except`'s.
    pub(crate) fn revoke_listings(
        &mut self,
        dir: Ino,
        except: Option<ClientId>,
        clients: &mut ClientLeases,
        memory: &mut dyn Memory,
    ) {
        let (key, stamps) = (LeaseKey::Names(dir), &mut clients.stamps);
        self.words.revoke_except(&key, except, stamps, memory);
    }

    /// Revokes the word leases on all names of a directory. A copy of a name also states that its
    /// holder may search the directory, and the right to do so has changed. (A front's kernel
    /// checks that itself, each time.)
    pub(crate) fn revoke_names(
        &mut self,
        dir: Ino,
        clients: &mut ClientLeases,
        memory: &mut dyn Memory,
    ) {
        self.words.revoke_names(dir, &mut clients.stamps, memory);
    }

    /// Revokes the word leases on the open files of all inodes.
    pub(crate) fn revoke_opens(&mut self, clients: &mut ClientLeases, memory: &mut dyn Memory) {
        self.words.revoke_opens(&mut clients.stamps, memory);
    }

    /// Forgets the word leases that other shards have displaced.
    pub(crate) fn forget_displaced(&mut self, clients: &ClientLeases) {
        self.words.forget_displaced(&clients.stamps);
    }

    /// Grants an acknowledged lease, unless the object is being recalled from any client or there
    /// are too many.
    pub(crate) fn hold(
        &mut self,
        object: Marked,
        client: ClientId,
        clients: &mut ClientLeases,
    ) -> bool {
        if !clients.may_grant(object.key()) {
            return false;
        }
        let has_room = clients.objects.has_room() || self.holders.contains(object.key());
        if has_room {
            self.holders.insert(object.into_key(), client, &mut clients.objects);
        }
        has_room
    }

    /// Notes that a client's cache holds the object even if a recall is under way. Then another
    /// recall must follow that one.
    pub(crate) fn hold_again(
        &mut self,
        object: Marked,
        client: ClientId,
        clients: &mut ClientLeases,
    ) {
        clients.has_read(object.key(), client);
        self.holders.insert(object.into_key(), client, &mut clients.objects);
    }

    /// Notes that a client's cache does not hold the object any more.
    pub(crate) fn drop_holder(
        &mut self,
        key: &LeaseKey,
        client: ClientId,
        clients: &mut ClientLeases,
    ) {
        self.holders.remove(key, client, &mut clients.objects);
    }

    /// Whether no client but the first of `whom` holds an acknowledged lease on `key`. The second:
    /// those to which a predecessor may have granted it count too. If any client does, the recall
    /// is under way on return (or queued: see [`ClientLeases::take_recall`]).
    pub(crate) fn recall(
        &self,
        key: &LeaseKey,
        whom: (Option<ClientId>, bool),
        effect: RecallEffect,
        clients: &mut ClientLeases,
    ) -> bool {
        let holders = self.holders.clients_of(key);
        !clients.has_acknowledged() || clients.recall(key, holders, whom, effect)
    }

    /// Names of the directory are being recalled because of a change by `client`, so none is
    /// granted to fronts for a while.
    pub(crate) fn contend(&mut self, dir: Ino, client: Option<ClientId>, now: Instant) {
        self.contended.begin(dir, client, now);
    }

    /// Whether names of the directory are not granted to fronts.
    pub(crate) fn is_contended(&self, dir: Ino, now: Instant) -> bool {
        self.contended.has(dir, now)
    }

    /// A client changes names of the directory.
    pub(crate) fn names_changed(&mut self, dir: Ino, client: Option<ClientId>, now: Instant) {
        self.contended.note_change(dir, client, now);
    }

    /// A change of names by a front has to wait for recalls from others: see [`Contended::waits`].
    pub(crate) fn waits_for_names(
        &mut self,
        dir: Ino,
        front: ClientId,
        others: impl Iterator<Item = ClientId>,
    ) -> WaitFor {
        self.contended.judge(dir, front, others)
    }

    /// Whether the client may have a copy of the object.
    pub(crate) fn may_hold(
        &self,
        key: &LeaseKey,
        client: ClientId,
        clients: &ClientLeases,
    ) -> bool {
        self.holders.clients_of(key).contains(&client) || clients.may_hold(key, client)
    }

    /// The client has acknowledged a recall of the object.
    pub(crate) fn dropped(&mut self, key: &LeaseKey, client: ClientId, clients: &mut ClientLeases) {
        self.holders.remove(key, client, &mut clients.objects);
        if let LeaseKey::Pages(ino) = key {
            self.overtaken.dropped(Some(*ino), client);
        }
    }

    /// Whether a write-back or truncation of `client` continues although other clients have pages
    /// of the file ([`ClientLeases::must_overtake`]). If so, that is noted.
    pub(crate) fn overtakes(&mut self, ino: Ino, client: ClientId, clients: &ClientLeases) -> bool {
        let overtakes = clients.must_overtake(ino, client);
        if overtakes {
            let key = LeaseKey::Pages(ino);
            self.overtaken.insert(ino, client, clients.recalled_from(&key, client));
        }
        overtakes
    }

    /// Whether other clients may still have pages from before a change of `client`'s that was
    /// answered.
    pub(crate) fn has_overtaken(&self, ino: Ino, client: ClientId) -> bool {
        self.overtaken.has(ino, client)
    }

    /// The client is gone with all its caches.
    pub(crate) fn forget_client(&mut self, client: ClientId, clients: &mut ClientLeases) {
        self.overtaken.forget_client(client);
        self.contended.forget_client(client);
        self.words.forget_client(client);
        self.holders.forget_client(client, &mut clients.objects);
    }

    /// The inode is gone for good: nothing about it can change any more.
    pub(crate) fn forget_inode(&mut self, ino: Ino, clients: &mut ClientLeases) {
        if self.holders.is_empty() {
            return;
        }
        for key in [LeaseKey::Attr(ino), LeaseKey::Pages(ino)] {
            if !clients.is_recalled(&key) {
                self.holders.forget_object(&key, &mut clients.objects);
            }
        }
    }

    /// The shard is no longer served: nothing in it can change any more. So copies stay valid as
    /// long as their clients keep them, and no lease is revoked or recalled.
    pub(crate) fn give_up(self, clients: &mut ClientLeases) {
        clients.objects.remove(self.holders.len());
    }
}

#[cfg(test)]
mod tests;
