//! Where keys were found lately, so that an operation which asks for a key again (it looks, makes
//! sure, then changes) need not search the tree again.
//!
//! An entry is only a hint. Whoever follows one looks whether the node is a leaf whose keys reach
//! from at or below the wanted key to at or above it: no other leaf can hold such a key. So nothing
//! has to be kept right when nodes split, join, go or come, and a node's index that is used again
//! does no harm.
//!
//! The entries are atomic for the same reason as a node's mark of use: readers may share a tree.

use super::slab::{Body, Node, NodeId, Slab, Spot};
use crate::key::Key;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one operation touches (two inodes, a directory's part, an entry, an extent, an orphan)
/// finds a place each, mostly.
const ENTRIES: usize = 16;

/// A [`Spot`] an entry.
#[derive(Default, Debug)]
pub(super) struct Memo([AtomicU64; ENTRIES]);

impl Memo {
    /// Keys that differ only in `sub` share an entry: they are neighbours, or asked for one by one.
    #[inline]
    fn entry(&self, key: &Key) -> &AtomicU64 {
        &self.0[key.ino.wrapping_mul(5).wrapping_add(key.kind as u64) as usize % ENTRIES]
    }

    pub(super) fn note(&self, key: &Key, spot: Spot) {
        self.entry(key).store(spot.0, Ordering::Relaxed);
    }

    /// Where `key` is or would be, if that can be told.
    #[inline(always)]
    pub(super) fn recall(&self, key: &Key, nodes: &Slab) -> Option<Spot> {
        let spot = Spot(self.entry(key).load(Ordering::Relaxed));
        let node = nodes.get(spot.leaf())?;
        let Body::Leaf(_) = node.body else { return None };
        if node.keys.get(spot.at()) == Some(key) {
            return Some(Spot::of(spot.leaf(), Ok(spot.at())));
        }
        self.find_again(key, spot.leaf(), node)
    }

    fn find_again(&self, key: &Key, leaf: NodeId, node: &Node) -> Option<Spot> {
        if key < node.keys.first()? || node.keys.last()? < key {
            return None;
        }
        let spot = Spot::of(leaf, node.find(key));
        self.note(key, spot);
        Some(spot)
    }
}
