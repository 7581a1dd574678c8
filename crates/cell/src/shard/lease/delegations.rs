//! Delegations: inodes that one client alone uses, so that it may post requests on them (decision
//! 84).
//!
//! While a delegation stands, no other client has a copy of the inode's attributes or data, and
//! none is granted. A word lease on [`LeaseKey::Delegate`](warren_proto::LeaseKey::Delegate) tells
//! the client that it stands. Blocks are set aside for the pages that the client may write, so that
//! no record that it has posted fails for lack of space.
//!
//! ```text
//! Standing ──word cleared, end of the stream read──▶ Ending ──executed up to there──▶ removed
//! ```

use std::time::Duration;

use hashbrown::HashMap;
use warren_base::{ClientId, FixedState, Ino, Instant};
use warren_proto::stream::StreamPos;

use crate::budget::blocks_of_pages;

/// An inode is not delegated for so long after another client has ended a delegation of it.
const REST: Duration = Duration::from_secs(1);
/// At this number of inodes, those that have rested are removed before one is added.
const PRUNED_FROM: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Delegation {
    pub(crate) client: ClientId,
    /// Pages that the client may write before the next reply.
    pub(crate) credit: u32,
    /// A record was executed under it.
    pub(crate) is_used: bool,
    /// Blocks that are set aside beside those for the pages.
    fixed: u64,
    /// The end of the last record that may rest on it, once the lease is revoked.
    pub(crate) ends_at: Option<StreamPos>,
}

impl Delegation {
    /// The blocks that are set aside.
    pub(crate) fn blocks(&self) -> u64 {
        blocks_of_pages(self.credit.into()) + self.fixed
    }
}

#[derive(Debug, Default)]
pub(crate) struct Delegations {
    by_inode: HashMap<Ino, Delegation, FixedState>,
    /// The blocks of all of them.
    promised: u64,
    resting: HashMap<Ino, Instant, FixedState>,
}

impl Delegations {
    /// The delegation of the inode, if there is one.
    #[inline]
    pub(crate) fn find(&self, ino: Ino) -> Option<&Delegation> {
        if self.by_inode.is_empty() { None } else { self.by_inode.get(&ino) }
    }

    /// Blocks that are set aside for records.
    pub(crate) const fn promised(&self) -> u64 {
        self.promised
    }

    /// Delegates the inode, with a credit of pages for which `blocks` are free. The client may have
    /// it already; then it has this credit from now on.
    pub(crate) fn insert(&mut self, ino: Ino, client: ClientId, credit: u32, blocks: u64) {
        self.remove(ino);
        let fixed = blocks.saturating_sub(blocks_of_pages(credit.into()));
        let delegation = Delegation { client, credit, is_used: false, fixed, ends_at: None };
        self.promised += delegation.blocks();
        self.by_inode.insert(ino, delegation);
    }

    /// A record has written so many pages.
    pub(crate) fn spend(&mut self, ino: Ino, pages: u32) {
        if let Some(delegation) = self.by_inode.get_mut(&ino) {
            let before = delegation.blocks();
            delegation.credit = delegation.credit.saturating_sub(pages);
            delegation.is_used = true;
            self.promised -= before - delegation.blocks();
        }
    }

    /// No record behind this place of the stream rests on the delegation.
    pub(crate) fn set_end(&mut self, ino: Ino, at: StreamPos) {
        if let Some(delegation) = self.by_inode.get_mut(&ino) {
            delegation.ends_at = Some(at);
        }
    }

    /// Removes the delegation, when no record rests on it any more.
    pub(crate) fn remove(&mut self, ino: Ino) -> Option<Delegation> {
        let delegation = self.by_inode.remove(&ino)?;
        self.promised -= delegation.blocks();
        Some(delegation)
    }

    /// Another client has used the inode: it is not delegated for a while.
    pub(crate) fn rest(&mut self, ino: Ino, now: Instant) {
        if self.resting.len() >= PRUNED_FROM {
            self.resting.retain(|_, until| now < *until);
        }
        self.resting.insert(ino, now + REST);
    }

    pub(crate) fn may_delegate(&self, ino: Ino, now: Instant) -> bool {
        self.resting.is_empty() || self.resting.get(&ino).is_none_or(|until| *until <= now)
    }

    /// A client that has a delegation here, if there is one.
    pub(crate) fn any_client(&self) -> Option<ClientId> {
        self.by_inode.iter().min_by_key(|(ino, _)| **ino).map(|(_, it)| it.client)
    }

    /// The inodes that are delegated to the client, in order.
    pub(crate) fn of_client(&self, client: ClientId) -> Vec<Ino> {
        let own = self.by_inode.iter().filter(|(_, delegation)| delegation.client == client);
        let mut inodes: Vec<Ino> = own.map(|(ino, _)| *ino).collect();
        inodes.sort_unstable();
        inodes
    }

    /// All inodes that are delegated and whose leases are not revoked, in order.
    pub(crate) fn inodes(&self) -> Vec<Ino> {
        let standing = self.by_inode.iter().filter(|(_, delegation)| delegation.ends_at.is_none());
        let mut inodes: Vec<Ino> = standing.map(|(ino, _)| *ino).collect();
        inodes.sort_unstable();
        inodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);
    const CLIENT: ClientId = ClientId(1);

    #[test]
    fn blocks_are_set_aside_until_they_are_spent_or_the_delegation_ends() {
        let mut delegations = Delegations::default();
        let blocks = blocks_of_pages(10) + 40;
        delegations.insert(INO, CLIENT, 10, blocks);
        assert_eq!(delegations.promised(), blocks);
        delegations.spend(INO, 4);
        assert_eq!(delegations.promised(), blocks_of_pages(6) + 40);
        delegations.spend(INO, 100);
        assert_eq!(delegations.promised(), blocks_of_pages(0) + 40);
        delegations.insert(INO, CLIENT, 10, blocks);
        assert_eq!(delegations.promised(), blocks, "a new credit replaces the old one");
        assert_eq!(delegations.remove(INO).map(|it| it.client), Some(CLIENT));
        assert_eq!(delegations.promised(), 0);
        assert!(delegations.remove(INO).is_none());
    }

    #[test]
    fn an_inode_that_two_clients_use_rests() {
        let mut delegations = Delegations::default();
        let now = Instant(0);
        assert!(delegations.may_delegate(INO, now));
        delegations.rest(INO, now);
        assert!(!delegations.may_delegate(INO, now));
        assert!(delegations.may_delegate(Ino(8), now));
        assert!(delegations.may_delegate(INO, now + REST));
        for ino in 0..2 * PRUNED_FROM as u64 {
            delegations.rest(Ino(100 + ino), now + REST);
        }
        assert!(
            delegations.resting.len() <= 2 * PRUNED_FROM && !delegations.resting.contains_key(&INO)
        );
    }

    #[test]
    fn a_client_has_its_own_delegations() {
        let mut delegations = Delegations::default();
        for (ino, client) in [(9, 1), (5, 1), (7, 2)] {
            delegations.insert(Ino(ino), ClientId(client), 1, 100);
        }
        assert_eq!(delegations.of_client(CLIENT), [Ino(5), Ino(9)]);
        assert_eq!(delegations.inodes(), [5, 7, 9].map(Ino));
        assert_eq!(delegations.find(Ino(7)).map(|it| it.client), Some(ClientId(2)));
        delegations.set_end(Ino(7), StreamPos(4));
        assert_eq!(delegations.inodes(), [5, 9].map(Ino));
        assert!(delegations.promised() > 0 && delegations.find(Ino(7)).is_some());
    }
}
