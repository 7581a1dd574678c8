//! The tree's side of a checkpoint: dirty nodes get their places and their bytes.

use super::Tree;
use super::slab::{Body, Child, NodeId};
use crate::BlockWrite;
use crate::node::{self, BlockPtr, Stamp};
use warren_base::BlockNo;

/// The state of a walk over the dirty part of the tree.
struct Walk<'a> {
    generation: u64,
    places: std::slice::Iter<'a, BlockNo>,
    writes: Vec<BlockWrite>,
}

impl Tree {
    /// The number of nodes without a place on disk: [`Tree::write_out`] needs as many places.
    pub fn dirty_nodes(&self) -> usize {
        match self.root {
            Some(root) if self.hollow => self.surviving_below(root).unwrap_or(0),
            _ => self.dirty,
        }
    }

    /// Dirty nodes from `child` down that `prune` will leave; `None` if it will drop `child`
    /// itself.
    fn surviving_below(&self, child: Child) -> Option<usize> {
        let Child::Resident(id) = child else {
            return Some(0);
        };
        let node = &self.nodes[id];
        if node.place.is_some() {
            return Some(0);
        }
        match &node.body {
            Body::Leaf(values) => (!values.is_empty()).then_some(1),
            Body::Internal(children) => {
                let survivors = children.iter().filter_map(|child| self.surviving_below(*child));
                survivors.reduce(|a, b| a + b).map(|below| below + 1)
            }
        }
    }

    /// Drops empty leaves, and nodes above them that have no other child.
    fn prune(&mut self) {
        if let Some(root) = self.root
            && self.prune_below(root)
        {
            (self.root, self.height) = (None, 0);
        }
        self.hollow = false;
    }

    fn prune_below(&mut self, child: Child) -> bool {
        let Child::Resident(id) = child else {
            return false;
        };
        let node = &self.nodes[id];
        if node.place.is_some() {
            return false;
        }
        if let Body::Internal(children) = &node.body {
            for at in (0..children.len()).rev() {
                if self.prune_below(self.nodes[id].children()[at]) {
                    self.nodes[id].abandon(at);
                }
            }
        }
        let empty = self.nodes[id].keys.is_empty();
        if empty {
            self.discard(id);
        }
        empty
    }

    /// Encodes all dirty nodes, children before parents, into `places`, of which there are exactly
    /// [`Tree::dirty_nodes`], and marks them clean. Returns the root, the height and the blocks to
    /// write.
    pub fn write_out(
        &mut self,
        generation: u64,
        places: &[BlockNo],
    ) -> (Option<BlockPtr>, u8, Vec<BlockWrite>) {
        if self.hollow {
            self.prune();
        }
        assert_eq!(places.len(), self.dirty);
        let writes = Vec::with_capacity(places.len());
        let mut walk = Walk { generation, places: places.iter(), writes };
        let root = self.root.map(|root| self.write_below(root, &mut walk));
        assert_eq!(walk.writes.len(), places.len());
        self.dirty = 0;
        (root, self.height, walk.writes)
    }

    /// The blocks of nodes that have changed or vanished since the last call. The last checkpoint
    /// still refers to them.
    pub fn take_displaced(&mut self) -> Vec<BlockNo> {
        std::mem::take(&mut self.displaced)
    }

    /// Whether [`Tree::take_displaced`] would return any.
    pub fn has_displaced(&self) -> bool {
        !self.displaced.is_empty()
    }

    /// The same blocks, which stay noted.
    pub fn displaced(&self) -> &[BlockNo] {
        &self.displaced
    }

    /// The clean nodes in memory whose places are `wanted`.
    pub fn nodes_at(&self, wanted: impl Fn(BlockNo) -> bool) -> usize {
        let placed = self.nodes.nodes.iter().flatten().filter_map(|node| node.place);
        placed.filter(|place| wanted(place.block)).count()
    }

    /// Marks these nodes dirty, with those above them, so that the next checkpoint writes them to
    /// other places. Absent nodes stay where they are.
    pub fn soil_at(&mut self, wanted: impl Fn(BlockNo) -> bool) {
        if let Some(Child::Resident(root)) = self.root {
            self.soil_below(root, &wanted);
        }
    }

    /// Returns whether the node is dirty now.
    fn soil_below(&mut self, id: NodeId, wanted: &impl Fn(BlockNo) -> bool) -> bool {
        let node = &self.nodes[id];
        let mut is_dirty = node.place.is_none_or(|place| wanted(place.block));
        if let Body::Internal(children) = &node.body {
            for child in children.clone() {
                if let Child::Resident(child) = child {
                    is_dirty |= self.soil_below(child, wanted);
                }
            }
        }
        if is_dirty {
            self.soil(id);
        }
        is_dirty
    }

    /// Marks every node in memory dirty: after a failed flush the device may have lost those that
    /// were written.
    pub fn soil_all(&mut self) {
        for id in self.nodes.ids() {
            self.soil(id);
        }
    }

    fn write_below(&mut self, child: Child, walk: &mut Walk<'_>) -> BlockPtr {
        let id = match child {
            Child::Resident(id) => id,
            Child::Absent { checksum, block } => return BlockPtr { block, checksum },
        };
        if let Some(place) = self.nodes[id].place {
            return place;
        }
        let children = match &self.nodes[id].body {
            Body::Internal(children) => children.len(),
            Body::Leaf(_) => 0,
        };
        let pointers: Vec<_> =
            (0..children).map(|at| self.write_below(self.nodes[id].children()[at], walk)).collect();
        let block = *walk.places.next().expect("a place for every dirty node");
        let (bytes, checksum) = self.encode(id, walk.generation, block, pointers);
        let place = BlockPtr { block, checksum };
        self.nodes[id].place = Some(place);
        walk.writes.push((block, bytes));
        place
    }

    fn encode(
        &self,
        id: NodeId,
        generation: u64,
        block: BlockNo,
        pointers: Vec<BlockPtr>,
    ) -> (Box<[u8]>, u32) {
        let node = &self.nodes[id];
        let stamp = Stamp { shard: self.shard, generation, block, level: node.level };
        match &node.body {
            Body::Leaf(values) => node::encode_leaf(stamp, &node.keys, values),
            Body::Internal(_) => node::encode_internal(stamp, &node.keys, pointers.into_iter()),
        }
    }
}
