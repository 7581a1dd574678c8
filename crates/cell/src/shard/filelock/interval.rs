//! Ranges with keys, which may overlap. Finds those that intersect a given range, without examining
//! the others.
//!
//! This is a treap in the order of (start, key), over an arena. Each node has the largest end of
//! its subtree, and the largest end of the other keys' ranges there. With these, the search for
//! ranges that block an owner skips the owner's own ranges as quickly as ranges that end too early.

use std::ops::ControlFlow;

use warren_base::Rng;
use warren_proto::ByteRange;

type Link = Option<u32>;

/// An end, and the key of its range.
type End<K> = (u64, K);

#[derive(Clone, Debug)]
struct Node<K> {
    start: u64,
    end: u64,
    key: K,
    priority: u64,
    left: Link,
    right: Link,
    /// The largest end in this subtree, and the largest among its other keys.
    farthest: End<K>,
    farthest_other: Option<End<K>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Intervals<K> {
    nodes: Vec<Node<K>>,
    unused: Vec<u32>,
    root: Link,
    /// Draws priorities: a client that takes and releases ranges cannot choose the
    /// shape of the tree.
    chance: Rng,
    #[cfg(test)]
    pub(super) visits: std::cell::Cell<u64>,
}

impl<K> Default for Intervals<K> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            unused: Vec::new(),
            root: None,
            chance: Rng::new(0),
            #[cfg(test)]
            visits: std::cell::Cell::default(),
        }
    }
}

impl<K: Copy + Ord> Intervals<K> {
    /// Adds a range. No range of this key starts there yet.
    pub(crate) fn insert(&mut self, range: ByteRange, key: K) {
        let ByteRange { start, end } = range;
        let priority = self.chance.next_u64();
        let (left, right, farthest, farthest_other) = (None, None, (end, key), None);
        let node = Node { start, end, key, priority, left, right, farthest, farthest_other };
        let new = match self.unused.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        let (before, behind) = self.split(self.root, (start, key));
        let before = self.merge(before, Some(new));
        self.root = self.merge(before, behind);
    }

    /// Removes the key's range that starts there, if there is one.
    pub(crate) fn remove(&mut self, start: u64, key: K) {
        self.root = self.remove_from(self.root, (start, key));
        if self.root.is_none() {
            (self.nodes, self.unused) = (Vec::new(), Vec::new());
        }
    }

    /// The first range that intersects `range` and does not belong to `except`.
    pub(crate) fn first(&self, range: ByteRange, except: Option<K>) -> Option<(ByteRange, K)> {
        let mut found = None;
        let _ = self.visit(range, except, &mut |range, key| {
            found = Some((range, key));
            ControlFlow::Break(())
        });
        found
    }

    /// Calls `see` with all ranges that intersect `range` and do not belong to `except`, in order,
    /// until it breaks.
    pub(crate) fn visit(
        &self,
        range: ByteRange,
        except: Option<K>,
        see: &mut impl FnMut(ByteRange, K) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.visit_at(self.root, range, except, see)
    }

    fn visit_at(
        &self,
        at: Link,
        range: ByteRange,
        except: Option<K>,
        see: &mut impl FnMut(ByteRange, K) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Some(at) = at else { return ControlFlow::Continue(()) };
        let node = self.node(at);
        let farthest = match node.farthest {
            (_, key) if except == Some(key) => node.farthest_other,
            farthest => Some(farthest),
        };
        if farthest.is_none_or(|(end, _)| end < range.start) {
            return ControlFlow::Continue(());
        }
        self.visit_at(node.left, range, except, see)?;
        let own = ByteRange { start: node.start, end: node.end };
        if own.overlaps(range) && except != Some(node.key) {
            see(own, node.key)?;
        }
        if node.start > range.end {
            return ControlFlow::Continue(());
        }
        self.visit_at(node.right, range, except, see)
    }

    fn node(&self, at: u32) -> &Node<K> {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        &self.nodes[at as usize]
    }

    /// Splits a subtree into the nodes before `place`, and the rest.
    fn split(&mut self, at: Link, place: (u64, K)) -> (Link, Link) {
        let Some(at) = at else { return (None, None) };
        let node = self.node(at);
        if (node.start, node.key) < place {
            let (before, behind) = self.split(node.right, place);
            self.nodes[at as usize].right = before;
            self.update_node(at);
            (Some(at), behind)
        } else {
            let (before, behind) = self.split(node.left, place);
            self.nodes[at as usize].left = behind;
            self.update_node(at);
            (before, Some(at))
        }
    }

    /// Joins two subtrees. All of `before` comes before all of `behind`.
    fn merge(&mut self, before: Link, behind: Link) -> Link {
        let (Some(left), Some(right)) = (before, behind) else { return before.or(behind) };
        if self.node(left).priority > self.node(right).priority {
            let merged = self.merge(self.node(left).right, behind);
            self.nodes[left as usize].right = merged;
            self.update_node(left);
            before
        } else {
            let merged = self.merge(before, self.node(right).left);
            self.nodes[right as usize].left = merged;
            self.update_node(right);
            behind
        }
    }

    fn remove_from(&mut self, at: Link, place: (u64, K)) -> Link {
        let at = at?;
        let node = self.node(at);
        let (left, right, own) = (node.left, node.right, (node.start, node.key));
        if own == place {
            self.unused.push(at);
            return self.merge(left, right);
        }
        if place < own {
            self.nodes[at as usize].left = self.remove_from(left, place);
        } else {
            self.nodes[at as usize].right = self.remove_from(right, place);
        }
        self.update_node(at);
        Some(at)
    }

    /// Computes the fields of a node from those of its children.
    fn update_node(&mut self, at: u32) {
        let node = self.node(at);
        let mut ends = (node.end, node.key);
        let mut other: Option<End<K>> = None;
        for child in [node.left, node.right].into_iter().flatten() {
            let child = self.node(child);
            for end in [Some(child.farthest), child.farthest_other].into_iter().flatten() {
                if end.1 == ends.1 {
                    ends.0 = ends.0.max(end.0);
                } else if end.0 > ends.0 {
                    other = Some(std::mem::replace(&mut ends, end));
                } else if other.is_none_or(|other| end.0 > other.0) {
                    other = Some(end);
                }
            }
        }
        let node = &mut self.nodes[at as usize];
        (node.farthest, node.farthest_other) = (ends, other);
    }
}
