//! Insertions, removals, and their effect on the shape: nodes that outgrow a block split, empty
//! leaves vanish, and small nodes join a neighbour that is in memory. No node beside the path is
//! needed.

use super::Tree;
use super::slab::{Absent, Body, Child, Node, NodeId, Path, Spot};
use crate::key::Key;
use crate::node::HEIGHT_MAX;
use crate::record::{INTERNAL_RECORD, NODE_CAPACITY, RECORD_OVERHEAD, VALUE_MAX};
use crate::value::Value;

/// Below this many bytes a node looks for a neighbour to join.
const SMALL: usize = NODE_CAPACITY / 4;
/// The most that two joined nodes may fill, so that the next insert does not split them again.
const JOINED_MAX: usize = NODE_CAPACITY * 3 / 4;

impl Tree {
    /// Sets the value of `key` and returns the old one. The value is at most [`VALUE_MAX`] bytes
    /// and of the key's kind.
    pub fn insert(&mut self, key: Key, value: Value) -> Result<Option<Value>, Absent> {
        assert_eq!(key.kind, value.kind());
        assert!(key.is_legal() && value.encoded_len() <= VALUE_MAX);
        if self.root.is_none() {
            self.root = Some(Child::Resident(self.nodes.add(Node::leaf())));
            self.height = 1;
            self.dirty += 1;
        }
        if let Some((spot, _)) = self.locate_dirty(&key) {
            let leaf = &mut self.nodes[spot.leaf()];
            if leaf.size_with(spot, &value) <= NODE_CAPACITY {
                return Ok(leaf.insert(spot, key, value));
            }
        }
        let path = self.path(&key)?;
        self.soil_path(&path);
        self.lower_bounds(&path, &key);
        let leaf = &mut self.nodes[path.leaf()];
        let spot = Spot::of(path.leaf(), leaf.find(&key));
        let old = leaf.insert(spot, key, value);
        let appended = spot.at() + 1 == leaf.keys.len();
        if leaf.size > NODE_CAPACITY {
            self.split_up(&path, appended);
        }
        Ok(old)
    }

    /// Removes the record of `key` and returns its value.
    pub fn remove(&mut self, key: &Key) -> Result<Option<Value>, Absent> {
        let Some((spot, leaf)) = self.locate(key)?.filter(|(spot, _)| spot.is_found()) else {
            return Ok(None);
        };
        if leaf.place.is_none() && leaf.size - leaf.record_len(spot.at()) >= SMALL {
            return Ok(Some(self.nodes[spot.leaf()].take_out(spot.at())));
        }
        let path = self.path(key)?;
        self.soil_path(&path);
        let old = self.nodes[path.leaf()].take_out(spot.at());
        self.shrink_up(&path);
        Ok(Some(old))
    }

    /// The value of `key`, to be changed in place; the path to it becomes dirty. Only for kinds
    /// whose values have a fixed size (inodes, parts, chunks). Others change through
    /// [`Tree::insert`], which counts bytes. The value must keep its variant.
    pub fn get_mut(&mut self, key: &Key) -> Result<Option<&mut Value>, Absent> {
        assert!(key.kind.has_fixed_size());
        let Some((spot, leaf)) = self.locate(key)?.filter(|(spot, _)| spot.is_found()) else {
            return Ok(None);
        };
        if leaf.place.is_some() {
            let path = self.path(key)?;
            self.soil_path(&path);
        }
        Ok(Some(&mut self.nodes[spot.leaf()].values_mut()[spot.at()]))
    }

    /// Makes the path to the leaf where `key` is or would be dirty, so that it stays in memory
    /// until it is written. Until then no call with this key returns `Absent`, whatever else is
    /// inserted and removed.
    pub fn pin(&mut self, key: &Key) -> Result<(), Absent> {
        if self.root.is_some() {
            let path = self.path(key)?;
            self.soil_path(&path);
        }
        Ok(())
    }

    /// Where `key` is or would be, if that is known without a search and the leaf and the nodes
    /// above it are dirty.
    fn locate_dirty(&self, key: &Key) -> Option<(Spot, &Node)> {
        let found = self.memo.recall(key, &self.nodes)?;
        found.1.touch();
        Some(found).filter(|(_, leaf)| leaf.place.is_none())
    }

    fn soil_path(&mut self, path: &Path) {
        for (id, _) in path.steps() {
            self.soil(*id);
        }
    }

    /// Makes a node dirty. Its old place becomes free after the next checkpoint.
    pub(super) fn soil(&mut self, id: NodeId) {
        let node = &mut self.nodes[id];
        node.touch();
        if let Some(place) = node.place.take() {
            self.displaced.push(place.block);
            self.dirty += 1;
        }
    }

    /// Drops a node that is no longer part of the tree.
    pub(super) fn discard(&mut self, id: NodeId) -> Node {
        let node = self.nodes.take(id);
        match node.place {
            Some(place) => self.displaced.push(place.block),
            None => self.dirty -= 1,
        }
        node
    }

    /// A key below all others goes to the first child, whose record must then be as low.
    fn lower_bounds(&mut self, path: &Path, key: &Key) {
        let internal = path.len - 1;
        for (id, at) in &path.steps()[..internal] {
            let first = &mut self.nodes[*id].keys[*at];
            *first = (*first).min(*key);
        }
    }

    /// Splits the leaf, and nodes above it that outgrow their block. `appended`: the leaf grew at
    /// its end.
    fn split_up(&mut self, path: &Path, mut appended: bool) {
        for depth in (0..path.len).rev() {
            let (id, _) = path.steps[depth];
            let node = &mut self.nodes[id];
            if node.size <= NODE_CAPACITY {
                return;
            }
            let pieces = node.split(appended);
            let (parent, at) = match depth.checked_sub(1) {
                Some(above) => path.steps[above],
                None => (self.grow(id), 0),
            };
            appended = at + 1 == self.nodes[parent].keys.len();
            for (further, piece) in pieces.into_iter().enumerate() {
                let first = piece.keys[0];
                let child = Child::Resident(self.nodes.add(piece));
                self.dirty += 1;
                self.nodes[parent].adopt(at + 1 + further, first, child);
            }
        }
        // A new root has the few pieces of the old one, so it never splits at once.
        if let Some(Child::Resident(root)) = self.root {
            assert!(self.nodes[root].size <= NODE_CAPACITY);
        }
    }

    /// Puts a new root above the old one.
    fn grow(&mut self, old: NodeId) -> NodeId {
        let node = &self.nodes[old];
        let (first, level) = (node.keys[0], node.level + 1);
        assert!(usize::from(level) < HEIGHT_MAX);
        let mut root = Node::new(Vec::new(), Body::Internal(Vec::new()), 0, level);
        root.adopt(0, first, Child::Resident(old));
        let root = self.nodes.add(root);
        self.root = Some(Child::Resident(root));
        self.height += 1;
        self.dirty += 1;
        root
    }

    /// After a removal: an empty leaf vanishes, small nodes join a neighbour, a root with one child
    /// is replaced by it.
    fn shrink_up(&mut self, path: &Path) {
        for depth in (1..path.len).rev() {
            let ((id, _), (parent, at)) = (path.steps[depth], path.steps[depth - 1]);
            let gone = if self.nodes[id].keys.is_empty() {
                self.hand_over(parent, at)
            } else {
                self.nodes[id].size < SMALL && self.join(parent, at)
            };
            if !gone {
                break;
            }
        }
        self.collapse();
    }

    /// Drops the empty leaf `at` of `parent` if the neighbour that inherits its keys is in memory.
    /// Otherwise it stays until it is filled or the tree is written: without it a pinned key would
    /// lead to an absent node.
    fn hand_over(&mut self, parent: NodeId, at: usize) -> bool {
        let children = self.nodes[parent].children();
        let heir = children.get(at.checked_sub(1).unwrap_or(1));
        let (Some(&Child::Resident(heir)), Child::Resident(leaf)) = (heir, children[at]) else {
            self.hollow = true;
            return false;
        };
        self.soil(heir);
        let gone = self.discard(leaf);
        self.nodes[heir].is_last |= gone.is_last;
        self.nodes[parent].abandon(at);
        true
    }

    /// Joins child `at` of `parent` with a resident neighbour, if one is small enough.
    fn join(&mut self, parent: NodeId, at: usize) -> bool {
        let right_one = self.join_pair(parent, at);
        right_one || at.checked_sub(1).is_some_and(|left| self.join_pair(parent, left))
    }

    /// Joins children `left` and `left + 1` of `parent` if both exist, are in memory and small.
    fn join_pair(&mut self, parent: NodeId, left: usize) -> bool {
        let Some(&[Child::Resident(into), Child::Resident(from)]) =
            self.nodes[parent].children().get(left..left + 2)
        else {
            return false;
        };
        if self.nodes[into].size + self.nodes[from].size > JOINED_MAX {
            return false;
        }
        self.soil(into);
        let joined = self.discard(from);
        self.nodes[into].absorb(joined);
        self.nodes[parent].abandon(left + 1);
        true
    }

    /// A root with a single child is replaced by it; an empty root is dropped.
    fn collapse(&mut self) {
        while let Some(Child::Resident(root)) = self.root {
            let node = &self.nodes[root];
            self.root = match &node.body {
                Body::Internal(children) if children.len() == 1 => Some(children[0]),
                Body::Leaf(_) if node.keys.is_empty() => None,
                _ => return,
            };
            self.discard(root);
            self.height -= 1;
        }
    }
}

impl Node {
    /// Bytes of the leaf's records with `value` at `spot`.
    fn size_with(&self, spot: Spot, value: &Value) -> usize {
        let old = if spot.is_found() { self.record_len(spot.at()) } else { 0 };
        self.size - old + RECORD_OVERHEAD + value.encoded_len()
    }

    /// Puts a record into a leaf; returns the old value.
    fn insert(&mut self, spot: Spot, key: Key, value: Value) -> Option<Value> {
        self.size = self.size_with(spot, &value);
        if spot.is_found() {
            return Some(std::mem::replace(&mut self.values_mut()[spot.at()], value));
        }
        self.keys.insert(spot.at(), key);
        self.values_mut().insert(spot.at(), value);
        None
    }

    /// Removes record `at` of a leaf.
    fn take_out(&mut self, at: usize) -> Value {
        self.size -= self.record_len(at);
        self.keys.remove(at);
        self.values_mut().remove(at)
    }

    fn adopt(&mut self, at: usize, first: Key, child: Child) {
        self.keys.insert(at, first);
        self.children_mut().insert(at, child);
        self.size += INTERNAL_RECORD;
    }

    pub(super) fn abandon(&mut self, at: usize) {
        self.keys.remove(at);
        self.children_mut().remove(at);
        self.size -= INTERNAL_RECORD;
    }

    fn absorb(&mut self, mut right: Node) {
        self.keys.append(&mut right.keys);
        self.size += right.size;
        self.is_last = right.is_last;
        match (&mut self.body, &mut right.body) {
            (Body::Leaf(into), Body::Leaf(from)) => into.append(from),
            (Body::Internal(into), Body::Internal(from)) => into.append(from),
            _ => panic!("neighbours are of one level"),
        }
    }

    /// Keeps the front and returns the rest, in order: one piece, or two if a record of more than
    /// half a block requires it.
    fn split(&mut self, appended: bool) -> Vec<Node> {
        let at = self.split_point(appended);
        let mut right = self.split_off(at);
        let mut pieces = Vec::with_capacity(2);
        if self.size > NODE_CAPACITY {
            pieces = self.split(false);
        }
        let after = if right.size > NODE_CAPACITY { right.split(false) } else { Vec::new() };
        pieces.push(right);
        pieces.extend(after);
        pieces
    }

    /// The split at which both sides are most alike; or before the last record if that was
    /// appended, so that nodes filled in order (the inodes of a shard, the extents of a file) stay
    /// full.
    fn split_point(&self, appended: bool) -> usize {
        let last = self.keys.len() - 1;
        if appended && self.size - self.record_len(last) <= NODE_CAPACITY {
            return last;
        }
        let mut left = 0;
        let mut best = (usize::MAX, 1);
        for at in 1..=last {
            left += self.record_len(at - 1);
            best = best.min((left.max(self.size - left), at));
        }
        best.1
    }

    fn split_off(&mut self, at: usize) -> Node {
        let moved = (at..self.keys.len()).map(|record| self.record_len(record)).sum();
        let keys = split_with_room(&mut self.keys, at);
        self.size -= moved;
        let body = match &mut self.body {
            Body::Leaf(values) => Body::Leaf(split_with_room(values, at)),
            Body::Internal(children) => Body::Internal(split_with_room(children, at)),
        };
        let is_last = std::mem::take(&mut self.is_last);
        Node { is_last, ..Node::new(keys, body, moved, self.level) }
    }
}

/// Splits a vector. The back has room for as many elements as the whole had, because a node that
/// was split is filled again.
fn split_with_room<T>(whole: &mut Vec<T>, at: usize) -> Vec<T> {
    let mut back = Vec::with_capacity(whole.len());
    back.extend(whole.drain(at..));
    back
}
