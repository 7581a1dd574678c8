//! The copy-on-write B+tree of one shard, in memory, with nodes that may be absent.
//!
//! Nodes are held decoded. A node is either **clean** (it has a place on disk with its present
//! contents) or **dirty** (it has none yet). An **absent** child is known only by its [`BlockPtr`].
//! A call that needs one returns [`Absent`]; the caller reads the block, passes it to
//! [`Tree::load`] and repeats the call.
//!
//! Invariants:
//! * The ancestors of a dirty node are dirty, and those of a resident node are resident.
//! * `keys[i]` of an internal node is at or below every key of child `i`, and above those of child
//!   `i - 1`.
//! * Nodes on disk are not empty. In memory a dirty leaf may be, if its neighbours are absent.
//! * Every node's records fit one block.
//! * A call that returns `Absent` has changed nothing.
//!
//! Order of a checkpoint: find [`Tree::dirty_nodes`] places (which may dirty more nodes, so count
//! again), get the blocks from [`Tree::write_out`], write and flush them, write the root slot. Only
//! then may the blocks of [`Tree::take_displaced`] be used again.

mod change;
mod memo;
mod memory;
mod slab;
#[cfg(test)]
mod tests;
mod writeback;

use crate::key::Key;
use crate::node::{BlockPtr, HEIGHT_MAX};
use crate::value::Value;
use memo::Memo;
pub use slab::Absent;
use slab::{Body, Child, Node, Path, Slab, Spot};
use std::ops::ControlFlow;
use warren_base::{BlockNo, ShardId};

/// The tree of one shard.
#[derive(Debug)]
pub struct Tree {
    shard: ShardId,
    root: Option<Child>,
    /// Levels: 0 without a root, 1 if the root is a leaf.
    height: u8,
    nodes: Slab,
    dirty: usize,
    /// Places whose nodes have changed or vanished since the last `take_displaced`.
    displaced: Vec<BlockNo>,
    /// A leaf may be empty; `write_out` will look for it.
    hollow: bool,
    /// Where the next eviction starts.
    hand: usize,
    memo: Memo,
}

impl Tree {
    /// The tree whose root is at `root`, with `height` levels and no node in memory. `None` and 0
    /// for the tree of a shard without records.
    ///
    /// `root` and `height` come from a root slot that was checked when it was decoded.
    pub fn open(shard: ShardId, root: Option<BlockPtr>, height: u8) -> Self {
        assert_eq!(root.is_some(), height > 0);
        assert!(usize::from(height) <= HEIGHT_MAX);
        Self {
            shard,
            root: root.map(Child::absent),
            height,
            nodes: Slab::default(),
            dirty: 0,
            displaced: Vec::new(),
            hollow: false,
            hand: 0,
            memo: Memo::default(),
        }
    }

    /// The value of `key`.
    pub fn get(&self, key: &Key) -> Result<Option<&Value>, Absent> {
        match self.memo.value(key, &self.nodes) {
            Some((value, leaf)) => {
                leaf.touch();
                Ok(Some(value))
            }
            None => self.look_up(key),
        }
    }

    /// The same where the memo does not help at once. Apart, so that the usual way is short.
    #[inline(never)]
    fn look_up(&self, key: &Key) -> Result<Option<&Value>, Absent> {
        let found = self.locate(key)?.filter(|(spot, _)| spot.is_found());
        Ok(found.map(|(spot, leaf)| &leaf.values()[spot.at()]))
    }

    /// Where `key` is or would be, and the leaf; `None` in an empty tree.
    #[inline(always)]
    fn locate(&self, key: &Key) -> Result<Option<(Spot, &Node)>, Absent> {
        if let Some((spot, leaf)) = self.memo.recall(key, &self.nodes) {
            leaf.touch();
            return Ok(Some((spot, leaf)));
        }
        self.search(key)
    }

    fn search(&self, key: &Key) -> Result<Option<(Spot, &Node)>, Absent> {
        let Some(mut child) = self.root else {
            return Ok(None);
        };
        loop {
            let id = child.resident()?;
            let node = &self.nodes[id];
            match &node.body {
                Body::Internal(children) => child = children[node.child_index(key)],
                Body::Leaf(_) => {
                    node.touch();
                    let spot = Spot::of(id, node.find(key));
                    self.memo.note(key, spot);
                    return Ok(Some((spot, node)));
                }
            }
        }
    }

    /// The first record whose key is at or above `from`.
    pub fn seek(&self, from: &Key) -> Result<Option<(&Key, &Value)>, Absent> {
        self.root.map_or(Ok(None), |root| self.seek_below(root, from))
    }

    fn seek_below(&self, child: Child, from: &Key) -> Result<Option<(&Key, &Value)>, Absent> {
        let node = &self.nodes[child.resident()?];
        match &node.body {
            Body::Leaf(values) => {
                node.touch();
                let at = node.find(from).unwrap_or_else(|at| at);
                Ok(node.keys.get(at).map(|key| (key, &values[at])))
            }
            Body::Internal(children) => {
                for child in &children[node.child_index(from)..] {
                    if let Some(record) = self.seek_below(*child, from)? {
                        return Ok(Some(record));
                    }
                }
                Ok(None)
            }
        }
    }

    /// Passes the records from `from` to `to`, both included, in order to `visit`, until it breaks.
    /// If a node is absent, the records before it have been passed.
    pub fn range<'a>(
        &'a self,
        from: Key,
        to: Key,
        mut visit: impl FnMut(&'a Key, &'a Value) -> ControlFlow<()>,
    ) -> Result<(), Absent> {
        let Some(root) = self.root else { return Ok(()) };
        // Usually all wanted records are in one leaf, and often that leaf was found recently.
        if let Some((spot, leaf)) = self.memo.recall(&from, &self.nodes)
            && (leaf.is_last || leaf.keys.last().is_some_and(|last| *last > to))
        {
            let _ = leaf.show(spot.at(), &to, &mut visit);
            return Ok(());
        }
        let _ = self.range_below(root, &from, &to, &mut visit)?;
        Ok(())
    }

    fn range_below<'a>(
        &'a self,
        child: Child,
        from: &Key,
        to: &Key,
        visit: &mut impl FnMut(&'a Key, &'a Value) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Absent> {
        let node = &self.nodes[child.resident()?];
        match &node.body {
            Body::Leaf(_) => {
                let found = node.find(from);
                self.memo.note(from, Spot::of(child.resident()?, found));
                return Ok(node.show(found.unwrap_or_else(|at| at), to, visit));
            }
            Body::Internal(children) => {
                let first = node.child_index(from);
                for (at, child) in children.iter().enumerate().skip(first) {
                    let beyond = at > first && node.keys[at] > *to;
                    if beyond || self.range_below(*child, from, to, visit)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The number of levels; 0 for a tree without records.
    pub const fn height(&self) -> u8 {
        self.height
    }

    /// Nodes in memory.
    pub fn resident_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The path from the root to the leaf where `key` is or would be. The tree is not empty.
    fn path(&self, key: &Key) -> Result<Path, Absent> {
        let mut path = Path::default();
        let mut child = self.root.expect("the tree has a root");
        loop {
            let id = child.resident()?;
            let node = &self.nodes[id];
            match &node.body {
                Body::Internal(children) => {
                    let at = node.child_index(key);
                    path.push(id, at);
                    child = children[at];
                }
                Body::Leaf(_) => {
                    path.push(id, 0);
                    return Ok(path);
                }
            }
        }
    }
}
