//! The leases on the objects of one shard.
//!
//! The word leases are in [`words`], the holders of acknowledged leases in [`holders`], the changes
//! that overtook recalls in [`overtaken`], and the directories that several fronts change in
//! [`contended`]. What concerns clients as a whole is shared by the shards of the cell, and asked
//! for through [`ClientLeases`].

mod contended;
mod delegations;
mod holders;
mod overtaken;
mod words;

use warren_base::{ClientId, Epoch, Ino};
use warren_proto::LeaseKey;

use crate::lease::ClientLeases;
use crate::lease::marks::Marked;
use crate::lease::recalls::RecallEffect;
pub(crate) use contended::WaitFor;
pub(crate) use delegations::{Delegation, State};

use contended::Contended;
use delegations::Delegations;
use holders::Holders;
use overtaken::Overtaken;
use words::Words;

#[derive(Debug)]
pub(crate) struct ShardLeases {
    pub(crate) words: Words,
    pub(crate) contended: Contended,
    pub(crate) delegations: Delegations,
    holders: Holders,
    overtaken: Overtaken,
}

impl ShardLeases {
    pub(crate) fn new(epoch: Epoch, secret: u64) -> Self {
        Self {
            words: Words::new(epoch, secret),
            contended: Contended::default(),
            delegations: Delegations::default(),
            holders: Holders::new(epoch, secret),
            overtaken: Overtaken::default(),
        }
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
        clients.recalls.repeat_if_sent(object.key(), client);
        self.holders.insert(object.into_key(), client, &mut clients.objects);
    }

    /// Whether no client but the first of `whom` holds an acknowledged lease on `key`. The second:
    /// those to which a predecessor may have granted it count too. If any client does, the recall
    /// is under way on return (or queued: see [`Recalls::take`]).
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

    /// Whether the client may have a copy of the object.
    pub(crate) fn may_hold(
        &self,
        key: &LeaseKey,
        client: ClientId,
        clients: &ClientLeases,
    ) -> bool {
        self.holders.clients_of(key).contains(&client) || clients.may_hold(key, client)
    }

    /// Whether some client may have an acknowledged lease on the object. `is_inherited`: a
    /// predecessor may have granted one.
    pub(crate) fn is_acknowledged(
        &self,
        key: &LeaseKey,
        is_inherited: bool,
        clients: &ClientLeases,
    ) -> bool {
        let is_held = !self.holders.clients_of(key).is_empty() || clients.recalls.contains(key);
        is_held || is_inherited && clients.inherited.clients_of(key).next().is_some()
    }

    /// Whether some client may have an acknowledged lease on a name of the directory. Also if there
    /// are too many leases to look.
    pub(crate) fn has_acknowledged_names(&self, dir: Ino, clients: &ClientLeases) -> bool {
        const LOOKED_AT_MAX: usize = 4096;
        let is_of_dir = |key: &LeaseKey| matches!(key, LeaseKey::Name(of, _) if *of == dir);
        self.holders.len() > LOOKED_AT_MAX
            || self.holders.keys().any(is_of_dir)
            || clients.recalls.has_any(is_of_dir)
    }

    /// The names of the directory on which clients have acknowledged leases, at most so many.
    pub(crate) fn acknowledged_names(&self, dir: Ino, max: usize) -> Vec<LeaseKey> {
        let is_of_dir = |key: &&LeaseKey| matches!(key, LeaseKey::Name(of, _) if *of == dir);
        let mut keys: Vec<LeaseKey> = self.holders.keys().filter(is_of_dir).cloned().collect();
        keys.sort_unstable();
        keys.truncate(max);
        keys
    }

    /// The client's cache does not hold the object any more: the client has acknowledged a recall,
    /// or has removed the object itself.
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
            self.overtaken.insert(ino, client, clients.recalls.clients_except(&key, client));
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
            if !clients.recalls.contains(&key) {
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
