//! The nodes in memory: loading absent ones, evicting clean ones.

use super::Tree;
use super::slab::{Body, Child, Node, NodeId};
use crate::key::Key;
use crate::node::{BlockPtr, DecodedBody, DecodedNode, NodeError};
use std::sync::atomic::{AtomicBool, Ordering};

/// The place of a node that was read.
enum Berth {
    Root,
    /// A child by its index; `is_last`: no node of its level follows it.
    ChildOf {
        parent: NodeId,
        at: usize,
        is_last: bool,
    },
    /// Already in memory, or no longer part of the tree.
    None,
}

impl Tree {
    /// Puts the node at `ptr` into memory, from the bytes of its block. Does nothing if it is in
    /// memory already or the tree no longer refers to it.
    pub fn load(&mut self, ptr: BlockPtr, bytes: &[u8]) -> Result<(), NodeError> {
        let decoded = DecodedNode::decode(ptr, self.shard, bytes)?;
        match self.berth(ptr, &decoded)? {
            Berth::Root => {
                let id = self.nodes.add(Node::read(decoded, ptr, true));
                self.root = Some(Child::Resident(id));
            }
            Berth::ChildOf { parent, at, is_last } => {
                let id = self.nodes.add(Node::read(decoded, ptr, is_last));
                self.nodes[parent].children_mut()[at] = Child::Resident(id);
            }
            Berth::None => {}
        }
        Ok(())
    }

    /// Follows the node's first key from the root to the place where `ptr` should be.
    fn berth(&self, ptr: BlockPtr, decoded: &DecodedNode) -> Result<Berth, NodeError> {
        let wanted = Child::absent(ptr);
        let first = decoded.keys[0];
        let mut level = self.height.wrapping_sub(1);
        let (mut berth, mut child) = match self.root {
            Some(root) => (Berth::Root, root),
            None => return Ok(Berth::None),
        };
        let (mut lower, mut upper) = (Key::MIN, None);
        while let Child::Resident(id) = child {
            let node = &self.nodes[id];
            let Body::Internal(children) = &node.body else {
                return self.unless_referenced(ptr);
            };
            if node.place == Some(ptr) {
                return self.unless_referenced(ptr);
            }
            let at = node.child_index(&first);
            lower = node.keys[at];
            upper = node.keys.get(at + 1).copied().or(upper);
            berth = Berth::ChildOf { parent: id, at, is_last: upper.is_none() };
            (child, level) = (children[at], level.wrapping_sub(1));
        }
        if child != wanted {
            self.unless_referenced(ptr)
        } else if decoded.level != level {
            Err(NodeError::WrongLevel(decoded.level))
        } else if first < lower
            || upper.is_some_and(|upper| decoded.keys[decoded.keys.len() - 1] >= upper)
        {
            Err(NodeError::OutOfRange)
        } else {
            Ok(berth)
        }
    }

    /// The node is in memory already, or its keys do not lead to it. Usually it was read twice, or
    /// is an old one. But if an absent child has the same pointer the image is damaged, and without
    /// an error the caller would load it for ever.
    fn unless_referenced(&self, ptr: BlockPtr) -> Result<Berth, NodeError> {
        let wanted = Child::absent(ptr);
        let referenced = self.root == Some(wanted)
            || self.nodes.nodes.iter().flatten().any(|node| match &node.body {
                Body::Internal(children) => children.contains(&wanted),
                Body::Leaf(_) => false,
            });
        if referenced { Err(NodeError::OutOfRange) } else { Ok(Berth::None) }
    }

    /// Drops clean nodes without resident children that were not used since the last call, until at
    /// most `target` nodes are in memory. What requests need that are waiting for further nodes is
    /// used again and again, so it stays, however much that is. Leaves with records of the shard
    /// itself (inode 0) stay, and the one where such records would be: they are changed without a
    /// wait. Returns the number of dropped nodes.
    pub fn evict(&mut self, target: usize) -> usize {
        let before = self.nodes.len();
        let own = self.locate(&Key::LAST_OF_SHARD).ok().flatten().map(|(spot, _)| spot.leaf());
        let slots = self.nodes.nodes.len();
        for _ in 0..slots {
            if self.nodes.len() <= target {
                break;
            }
            self.hand = (self.hand + 1) % slots;
            let id = NodeId(self.hand as u32);
            if Some(id) != own && self.is_evictable(id) {
                self.drop_node(id);
            }
        }
        before - self.nodes.len()
    }

    fn is_evictable(&self, id: NodeId) -> bool {
        let Some(node) = &self.nodes.nodes[id.0 as usize] else {
            return false;
        };
        if node.place.is_none() || node.touched.swap(false, Ordering::Relaxed) {
            return false;
        }
        match &node.body {
            Body::Leaf(_) => node.keys[0].ino != 0,
            Body::Internal(children) => {
                !children.iter().any(|child| matches!(child, Child::Resident(_)))
            }
        }
    }

    /// Replaces the node by its place. Its parent is found by its first key.
    fn drop_node(&mut self, id: NodeId) {
        let node = self.nodes.take(id);
        let place = Child::absent(node.place.expect("only clean nodes are dropped"));
        let first = node.keys[0];
        let mut child = self.root.expect("the tree has a root");
        if child == Child::Resident(id) {
            self.root = Some(place);
            return;
        }
        loop {
            let parent = child.resident().expect("ancestors of a resident node are resident");
            let at = self.nodes[parent].child_index(&first);
            child = self.nodes[parent].children()[at];
            if child == Child::Resident(id) {
                self.nodes[parent].children_mut()[at] = place;
                return;
            }
        }
    }
}

impl Node {
    fn read(decoded: DecodedNode, ptr: BlockPtr, is_last: bool) -> Self {
        let body = match decoded.body {
            DecodedBody::Leaf(values) => Body::Leaf(values),
            DecodedBody::Internal(children) => {
                Body::Internal(children.into_iter().map(Child::absent).collect())
            }
        };
        Self {
            keys: decoded.keys,
            body,
            size: decoded.size,
            place: Some(ptr),
            level: decoded.level,
            is_last,
            touched: AtomicBool::new(true),
        }
    }
}
