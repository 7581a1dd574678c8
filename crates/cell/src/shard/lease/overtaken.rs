//! Changes of files that overtook recalls: they were answered while other clients still had pages
//! of the file.
//!
//! The next `fsync` of the client that made such a change waits until these clients have dropped
//! their pages, and so does a request that takes a lock.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{ClientId, Ino};

/// The changes of the files of one shard that overtook recalls.
#[derive(Debug, Default)]
pub(super) struct Overtaken {
    /// The clients that still have older pages, by the file and the client that changed it.
    by_change: BTreeMap<(Ino, ClientId), BTreeSet<ClientId>>,
}

impl Overtaken {
    /// A change of the file by `client` overtakes recalls from `others`.
    pub(super) fn insert(
        &mut self,
        ino: Ino,
        client: ClientId,
        others: impl Iterator<Item = ClientId>,
    ) {
        self.by_change.entry((ino, client)).or_default().extend(others);
    }

    /// Whether other clients may still have pages from before a change of `client`'s that was
    /// answered.
    pub(super) fn has(&self, ino: Ino, client: ClientId) -> bool {
        self.by_change.contains_key(&(ino, client))
    }

    /// `client` has dropped its pages, of `ino` or of all files.
    pub(super) fn dropped(&mut self, ino: Option<Ino>, client: ClientId) {
        if self.by_change.is_empty() {
            return;
        }
        self.by_change.retain(|(of, _), others| {
            if ino.is_none_or(|ino| ino == *of) {
                others.remove(&client);
            }
            !others.is_empty()
        });
    }

    pub(super) fn forget_client(&mut self, client: ClientId) {
        self.by_change.retain(|(_, of), _| *of != client);
        self.dropped(None, client);
    }
}
