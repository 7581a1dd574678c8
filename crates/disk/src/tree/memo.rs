//! Places where keys were found recently, so that an operation that needs a key again (it looks,
//! checks, then changes) need not search the tree again.
//!
//! An entry is only a hint. Its user checks that the node is a leaf whose keys reach from at or
//! below the wanted key to at or above it, or to the end of the tree: no other leaf can have such a
//! key. So nothing has to be updated when nodes split, join, leave or enter memory, and a reused
//! node index does no harm. If the neighbours of the place are those of the key, the leaf is not
//! searched.
//!
//! The entries are atomic for the same reason as a node's mark of use: readers may share a tree.

use super::slab::{Body, Node, NodeId, Slab, Spot};
use crate::key::Key;
use crate::value::Value;
use std::sync::atomic::{AtomicU64, Ordering};

/// The records that one operation touches (two inodes, a directory's part, an entry, an extent, an
/// orphan) usually have an entry each.
///
/// Keys whose entries collide are searched for again and again. With four times as many entries as
/// an operation uses, few do.
const ENTRIES: usize = 64;

/// A [`Spot`] an entry.
#[derive(Debug)]
pub(super) struct Memo([AtomicU64; ENTRIES]);

impl Default for Memo {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; ENTRIES])
    }
}

impl Memo {
    /// Keys that differ only in `sub` share an entry: they are neighbours, or used one by one.
    #[inline]
    fn entry(&self, key: &Key) -> &AtomicU64 {
        &self.0[key.ino.wrapping_mul(5).wrapping_add(key.kind as u64) as usize % ENTRIES]
    }

    pub(super) fn note(&self, key: &Key, spot: Spot) {
        self.entry(key).store(spot.0, Ordering::Relaxed);
    }

    /// The value of `key`, and the leaf, if it is where it was found last.
    #[inline(always)]
    pub(super) fn value<'a>(&self, key: &Key, nodes: &'a Slab) -> Option<(&'a Value, &'a Node)> {
        let spot = Spot(self.entry(key).load(Ordering::Relaxed));
        let node = nodes.get(spot.leaf())?;
        let Body::Leaf(values) = &node.body else { return None };
        if node.keys.get(spot.at())? != key {
            return None;
        }
        Some((values.get(spot.at())?, node))
    }

    /// Where `key` is or would be, if that is known, and the leaf.
    #[inline(always)]
    pub(super) fn recall<'a>(&self, key: &Key, nodes: &'a Slab) -> Option<(Spot, &'a Node)> {
        let spot = Spot(self.entry(key).load(Ordering::Relaxed));
        let node = nodes.get(spot.leaf())?;
        let Body::Leaf(_) = node.body else { return None };
        if node.keys.get(spot.at()) == Some(key) {
            return Some((Spot::of(spot.leaf(), Ok(spot.at())), node));
        }
        if node.is_gap(spot.at(), key) {
            return Some((Spot::of(spot.leaf(), Err(spot.at())), node));
        }
        self.find_again(key, spot.leaf(), node).map(|spot| (spot, node))
    }

    fn find_again(&self, key: &Key, leaf: NodeId, node: &Node) -> Option<Spot> {
        if key < node.keys.first()? || (node.keys.last()? < key && !node.is_last) {
            return None;
        }
        let spot = Spot::of(leaf, node.find(key));
        self.note(key, spot);
        Some(spot)
    }
}
