//! Delegations: inodes that one client alone uses, so that it may post requests on them (decision
//! 84).
//!
//! While a delegation stands, no other client has a copy of the inode's attributes or data, and
//! none is granted. A word lease on [`LeaseKey::Delegate`](warren_proto::LeaseKey::Delegate) tells
//! the client that it stands. Blocks are set aside for the pages that the client may write, so that
//! no record that it has posted fails for lack of space.
//!
//! The delegation of a directory is that of a *tree*: the directory, its names, and its *members*:
//! the inodes that the client makes there while it stands, at any depth, and older ones to which it
//! has looked names up. A member may also have a delegation of its own, for its data.
//!
//! ```text
//! Standing ──word cleared, end of the stream read──▶ Ending ──executed up to there──▶ removed
//!     ▲                                                │ by its own client
//!     ╰──────────── a new lease with a reply ───── Paused (trees only)
//! ```

use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use warren_base::{ClientId, FixedState, Ino, Instant};
use warren_proto::stream::StreamPos;

use crate::budget::blocks_of_pages;

/// An inode is not delegated for so long after another client has ended a delegation of it.
const REST: Duration = Duration::from_secs(1);
/// At this number of inodes, those that have rested are removed before one is added.
const PRUNED_FROM: usize = 256;
/// Directories of which it is known who has changed names last. One more makes the shard forget
/// all.
const CHANGERS_MAX: usize = 256;
/// Members of a tree at the same time. A client that needs more gets a new tree.
const MEMBERS_MAX: usize = 1 << 13;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Standing,
    /// The lease is revoked. No record that rests on the delegation ends behind this place.
    Ending {
        at: StreamPos,
        /// Only the client itself has made a change, and may get the tree again.
        continues: bool,
    },
    Paused,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Delegation {
    pub(crate) client: ClientId,
    /// Pages that the client may write before the next reply.
    pub(crate) credit: u32,
    /// A record was executed under it.
    pub(crate) is_used: bool,
    /// Blocks that are set aside beside those for the pages.
    fixed: u64,
    pub(crate) state: State,
    /// It is that of a tree.
    pub(crate) is_tree: bool,
    /// The last lease of a tree was granted with this stamp.
    pub(crate) stamp: u64,
    /// Looks by other clients since it was granted.
    looks: u32,
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
    /// The root of the tree of each member, and the members of each root.
    roots: HashMap<Ino, Ino, FixedState>,
    members: HashMap<Ino, HashSet<Ino, FixedState>, FixedState>,
    /// The blocks of all of them.
    promised: u64,
    resting: HashMap<Ino, Instant, FixedState>,
    /// The client that has changed names of a directory last, and how often in a row.
    changers: HashMap<Ino, (ClientId, u32), FixedState>,
}

impl Delegations {
    /// The delegation of the inode itself, if there is one.
    #[inline]
    pub(crate) fn find(&self, ino: Ino) -> Option<&Delegation> {
        if self.by_inode.is_empty() { None } else { self.by_inode.get(&ino) }
    }

    /// The root of the tree of which the inode is a member.
    #[inline]
    pub(crate) fn root_of(&self, ino: Ino) -> Option<Ino> {
        if self.roots.is_empty() { None } else { self.roots.get(&ino).copied() }
    }

    /// The inodes whose delegations cover this one: itself, and the root of its tree.
    #[inline]
    pub(crate) fn covering(&self, ino: Ino) -> [Option<Ino>; 2] {
        [self.find(ino).map(|_| ino), self.root_of(ino)]
    }

    #[inline]
    pub(crate) fn covers(&self, ino: Ino) -> bool {
        self.covering(ino).iter().any(Option::is_some)
    }

    /// The root of the tree to which the directory belongs, as its root or as a member.
    #[inline]
    pub(crate) fn tree_of(&self, dir: Ino) -> Option<Ino> {
        match self.find(dir) {
            Some(Delegation { is_tree: true, .. }) => Some(dir),
            _ => self.root_of(dir),
        }
    }

    /// Blocks that are set aside for records.
    pub(crate) const fn promised(&self) -> u64 {
        self.promised
    }

    /// Delegates the inode, with a credit of pages for which `blocks` are free. The client may have
    /// it already; then it has this credit from now on, and the members of a tree stay.
    pub(crate) fn insert(
        &mut self,
        ino: Ino,
        client: ClientId,
        (credit, blocks): (u32, u64),
        is_tree: bool,
    ) {
        if let Some(before) = self.by_inode.remove(&ino) {
            self.promised -= before.blocks();
        }
        let fixed = blocks.saturating_sub(blocks_of_pages(credit.into()));
        let state = State::Standing;
        let (is_used, stamp, looks) = (false, 0, 0);
        let delegation =
            Delegation { client, credit, is_used, fixed, state, is_tree, stamp, looks };
        self.promised += delegation.blocks();
        self.by_inode.insert(ino, delegation);
    }

    /// Adds to the credit of a delegation, for which `blocks` are free.
    pub(crate) fn extend(&mut self, ino: Ino, credit: u32, blocks: u64) {
        if let Some(delegation) = self.by_inode.get_mut(&ino) {
            let before = delegation.blocks();
            delegation.fixed += blocks.saturating_sub(blocks_of_pages(credit.into()));
            delegation.credit += credit;
            self.promised += delegation.blocks() - before;
        }
    }

    /// The client of the tree has made the inode there, or knows its attributes and all its names.
    pub(crate) fn add_member(&mut self, root: Ino, ino: Ino) {
        self.roots.insert(ino, root);
        self.members.entry(root).or_default().insert(ino);
    }

    /// The inode has no name in the tree any more.
    pub(crate) fn remove_member(&mut self, ino: Ino) {
        if let Some(root) = self.roots.remove(&ino)
            && let Some(members) = self.members.get_mut(&root)
        {
            members.remove(&ino);
        }
    }

    /// Whether the tree may have so many more members.
    pub(crate) fn takes_members(&self, root: Ino, more: usize) -> bool {
        self.members.get(&root).map_or(0, HashSet::len) + more <= MEMBERS_MAX
    }

    /// A record has taken so many pages of the credit.
    pub(crate) fn spend(&mut self, ino: Ino, pages: u32) {
        if let Some(delegation) = self.by_inode.get_mut(&ino) {
            let before = delegation.blocks();
            delegation.credit = delegation.credit.saturating_sub(pages);
            delegation.is_used = true;
            self.promised -= before - delegation.blocks();
        }
    }

    /// Another client has looked at the inode. Returns how often that was since the delegation was
    /// granted.
    pub(crate) fn note_look(&mut self, ino: Ino) -> u32 {
        self.by_inode.get_mut(&ino).map_or(0, |delegation| {
            delegation.looks = delegation.looks.saturating_add(1);
            delegation.looks
        })
    }

    pub(crate) fn set_stamp(&mut self, root: Ino, stamp: u64) {
        if let Some(delegation) = self.by_inode.get_mut(&root) {
            delegation.stamp = stamp;
        }
    }

    pub(crate) fn set_state(&mut self, ino: Ino, state: State) {
        if let Some(delegation) = self.by_inode.get_mut(&ino) {
            delegation.state = state;
        }
    }

    /// Removes the delegation, when no record rests on it any more.
    pub(crate) fn remove(&mut self, ino: Ino) -> Option<Delegation> {
        let delegation = self.by_inode.remove(&ino)?;
        self.promised -= delegation.blocks();
        if delegation.is_tree {
            self.forget_members(ino);
        }
        Some(delegation)
    }

    /// The tree has no members any more.
    pub(crate) fn forget_members(&mut self, root: Ino) {
        for member in self.members.remove(&root).unwrap_or_default() {
            self.roots.remove(&member);
        }
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

    /// The client has changed names of the directory. Returns how often it has in a row.
    pub(crate) fn note_change(&mut self, dir: Ino, client: ClientId) -> u32 {
        if self.changers.len() >= CHANGERS_MAX && !self.changers.contains_key(&dir) {
            self.changers.clear();
        }
        let (last, count) = self.changers.entry(dir).or_insert((client, 0));
        if *last != client {
            (*last, *count) = (client, 0);
        }
        *count += 1;
        *count
    }

    /// The changes of names of the directory are counted anew.
    pub(crate) fn forget_changes(&mut self, dir: Ino) {
        self.changers.remove(&dir);
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

    /// All inodes that are delegated and whose leases are not revoked, or that pause, in order.
    pub(crate) fn inodes(&self) -> Vec<Ino> {
        let is_ending = |it: &Delegation| matches!(it.state, State::Ending { .. });
        let standing = self.by_inode.iter().filter(|(_, delegation)| !is_ending(delegation));
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
        delegations.insert(INO, CLIENT, (10, blocks), false);
        assert_eq!(delegations.promised(), blocks);
        delegations.spend(INO, 4);
        assert_eq!(delegations.promised(), blocks_of_pages(6) + 40);
        delegations.spend(INO, 100);
        assert_eq!(delegations.promised(), blocks_of_pages(0) + 40);
        delegations.insert(INO, CLIENT, (10, blocks), false);
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
            delegations.insert(Ino(ino), ClientId(client), (1, 100), false);
        }
        assert_eq!(delegations.of_client(CLIENT), [Ino(5), Ino(9)]);
        assert_eq!(delegations.inodes(), [5, 7, 9].map(Ino));
        assert_eq!(delegations.find(Ino(7)).map(|it| it.client), Some(ClientId(2)));
        delegations.set_state(Ino(7), State::Ending { at: StreamPos(4), continues: false });
        assert_eq!(delegations.inodes(), [5, 9].map(Ino));
        assert!(delegations.promised() > 0 && delegations.find(Ino(7)).is_some());
    }
    #[test]
    fn a_tree_covers_its_members_until_it_is_removed() {
        let mut delegations = Delegations::default();
        delegations.insert(INO, CLIENT, (1, 100), true);
        for member in [8, 9] {
            delegations.add_member(INO, Ino(member));
        }
        delegations.insert(Ino(9), CLIENT, (1, 100), false);
        assert_eq!(delegations.covering(Ino(9)), [Some(Ino(9)), Some(INO)]);
        assert_eq!(
            [INO, Ino(8), Ino(10)].map(|dir| delegations.tree_of(dir)),
            [Some(INO), Some(INO), None]
        );
        delegations.insert(INO, CLIENT, (1, 100), true);
        let is_full = |it: &Delegations, count| !it.takes_members(INO, MEMBERS_MAX + 1 - count);
        assert!(is_full(&delegations, 2) && !is_full(&delegations, 3), "they stay");
        delegations.remove_member(Ino(8));
        assert!(!is_full(&delegations, 2), "they may come and go for ever");
        assert!(!delegations.covers(Ino(8)) && delegations.covers(Ino(9)));
        assert!(delegations.remove(INO).is_some());
        assert_eq!(delegations.covering(Ino(9)), [Some(Ino(9)), None]);
        assert_eq!(delegations.promised(), 100.max(blocks_of_pages(1)));
    }

    #[test]
    fn changes_in_a_row_by_one_client_are_counted() {
        let mut delegations = Delegations::default();
        let other = ClientId(2);
        let changes = [CLIENT, CLIENT, other, CLIENT, CLIENT, CLIENT];
        let counts = changes.map(|client| delegations.note_change(INO, client));
        assert_eq!(counts, [1, 2, 1, 1, 2, 3]);
    }
}
