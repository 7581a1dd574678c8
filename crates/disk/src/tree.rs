//! The copy-on-write B+tree of one shard, in memory, with nodes that may be absent.
//!
//! Nodes are held decoded. A node is either **clean** (it has a place on disk where it lies unchanged)
//! or **dirty** (it has none yet); an **absent** child is known by its [`BlockPtr`] alone. Whoever meets
//! one gets [`Absent`], reads the block, gives it to [`Tree::load`] and asks again.
//!
//! Invariants:
//! * The ancestors of a dirty node are dirty, and those of a resident node are resident.
//! * `keys[i]` of an internal node is at or below every key of child `i`, and above those of child `i - 1`.
//! * Nodes on disk are not empty. In memory a dirty leaf may be, if its neighbours are absent.
//! * Every node's records fit one block.
//! * A call that says `Absent` has changed nothing.
//!
//! Order of a checkpoint: [`Tree::dirty_nodes`] places are found (which may dirty more nodes, so count
//! again), [`Tree::write_out`] gives the blocks, they are written and flushed, the root slot is written;
//! only then may the blocks of [`Tree::take_displaced`] be used again.

mod change;
mod memo;
mod memory;
#[cfg(test)]
mod tests;
mod writeback;

use crate::key::Key;
use crate::node::{BlockPtr, HEIGHT_MAX, INTERNAL_RECORD};
use crate::value::{RECORD_OVERHEAD, Value};
use memo::Memo;
use std::ops::{ControlFlow, Index, IndexMut};
use std::sync::atomic::{AtomicBool, Ordering};
use thiserror::Error;
use warren_base::{BlockNo, ShardId};

/// The node that lies there is not in memory: read it, [`Tree::load`] it, and ask again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the tree node at block {} is not in memory", .0.block)]
pub struct Absent(pub BlockPtr);

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
    /// Where eviction goes on.
    hand: usize,
    memo: Memo,
}

impl Tree {
    /// The tree whose root lies at `root`, with `height` levels, nothing of it in memory. `None` and 0
    /// for the tree of a shard that has no records.
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
        let spot = self.locate(key)?.filter(|spot| spot.is_found());
        Ok(spot.map(|spot| &self.nodes[spot.leaf()].values()[spot.at()]))
    }

    /// Where `key` is or would be; `None` in an empty tree.
    #[inline(always)]
    fn locate(&self, key: &Key) -> Result<Option<Spot>, Absent> {
        if let Some(spot) = self.memo.recall(key, &self.nodes) {
            self.nodes[spot.leaf()].touch();
            return Ok(Some(spot));
        }
        self.search(key)
    }

    fn search(&self, key: &Key) -> Result<Option<Spot>, Absent> {
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
                    return Ok(Some(spot));
                }
            }
        }
    }

    /// The first record whose key is `from` or above.
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

    /// Shows `visit` the records from `from` to `to`, both included, in order, until it breaks. If a
    /// node is absent, the records before it have been shown.
    pub fn range<'a>(
        &'a self,
        from: Key,
        to: Key,
        mut visit: impl FnMut(&'a Key, &'a Value) -> ControlFlow<()>,
    ) -> Result<(), Absent> {
        let Some(root) = self.root else { return Ok(()) };
        // Mostly what is asked for lies in one leaf, and often that leaf was found lately.
        if let Some(spot) = self.memo.recall(&from, &self.nodes)
            && self.nodes[spot.leaf()].keys.last().is_some_and(|last| *last > to)
        {
            let _ = self.nodes[spot.leaf()].show(spot.at(), &to, &mut visit);
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

    /// Levels; 0 of a tree without records.
    pub const fn height(&self) -> u8 {
        self.height
    }

    /// Nodes in memory.
    pub fn resident_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The way from the root to the leaf where `key` is or would be. The tree is not empty.
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

/// A node's index in the slab.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct NodeId(u32);

/// A place in a leaf: that of a record, or where it would be. In one word, so that it is passed in a
/// register and kept in an atomic.
///
/// ```text
///   63     32  31     30      0
///   | leaf  |found | index    |
/// ```
#[derive(Clone, Copy, Debug)]
struct Spot(u64);

const SPOT_FOUND: u64 = 1 << 31;

impl Spot {
    #[inline]
    fn of(leaf: NodeId, found: Result<usize, usize>) -> Self {
        let flag = if found.is_ok() { SPOT_FOUND } else { 0 };
        let (Ok(at) | Err(at)) = found;
        Self(u64::from(leaf.0) << 32 | flag | at as u64)
    }

    fn leaf(self) -> NodeId {
        NodeId((self.0 >> 32) as u32)
    }

    fn at(self) -> usize {
        (self.0 & (SPOT_FOUND - 1)) as usize
    }

    fn is_found(self) -> bool {
        self.0 & SPOT_FOUND != 0
    }
}

/// A child as its parent knows it. Flat, so that it takes 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Child {
    Resident(NodeId),
    Absent { checksum: u32, block: BlockNo },
}

const _: () = assert!(size_of::<Child>() == 16);

impl Child {
    fn absent(ptr: BlockPtr) -> Self {
        Self::Absent { checksum: ptr.checksum, block: ptr.block }
    }

    fn resident(self) -> Result<NodeId, Absent> {
        match self {
            Self::Resident(id) => Ok(id),
            Self::Absent { checksum, block } => Err(Absent(BlockPtr { block, checksum })),
        }
    }
}

/// A node in memory.
#[derive(Debug)]
struct Node {
    keys: Vec<Key>,
    body: Body,
    /// Bytes that its records take on disk.
    size: usize,
    /// Where it lies unchanged; `None` if it is dirty.
    place: Option<BlockPtr>,
    level: u8,
    /// Used since eviction last came by.
    touched: AtomicBool,
}

#[derive(Debug)]
enum Body {
    Leaf(Vec<Value>),
    Internal(Vec<Child>),
}

impl Node {
    fn leaf() -> Self {
        Self::new(Vec::new(), Body::Leaf(Vec::new()), 0, 0)
    }

    /// A dirty node.
    fn new(keys: Vec<Key>, body: Body, size: usize, level: u8) -> Self {
        Self { keys, body, size, place: None, level, touched: AtomicBool::new(true) }
    }

    fn find(&self, key: &Key) -> Result<usize, usize> {
        self.keys.binary_search(key)
    }

    /// The child under which `key` belongs; the first reaches down without end.
    fn child_index(&self, key: &Key) -> usize {
        self.keys.partition_point(|first| first <= key).saturating_sub(1)
    }

    /// Only stores if it must, so that readers do not take the cache line from each other.
    fn touch(&self) {
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    /// Shows `visit` the records of a leaf from `at` on, up to `to`, until it breaks.
    fn show<'a>(
        &'a self,
        at: usize,
        to: &Key,
        visit: &mut impl FnMut(&'a Key, &'a Value) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.touch();
        for (key, value) in self.keys[at..].iter().zip(&self.values()[at..]) {
            if key > to {
                return ControlFlow::Break(());
            }
            visit(key, value)?;
        }
        ControlFlow::Continue(())
    }

    fn values(&self) -> &[Value] {
        match &self.body {
            Body::Leaf(values) => values,
            Body::Internal(_) => panic!("an internal node has no values"),
        }
    }

    fn values_mut(&mut self) -> &mut Vec<Value> {
        match &mut self.body {
            Body::Leaf(values) => values,
            Body::Internal(_) => panic!("an internal node has no values"),
        }
    }

    fn children(&self) -> &[Child] {
        match &self.body {
            Body::Internal(children) => children,
            Body::Leaf(_) => panic!("a leaf has no children"),
        }
    }

    fn children_mut(&mut self) -> &mut Vec<Child> {
        match &mut self.body {
            Body::Internal(children) => children,
            Body::Leaf(_) => panic!("a leaf has no children"),
        }
    }

    /// Bytes of record `at` on disk.
    fn record_len(&self, at: usize) -> usize {
        match &self.body {
            Body::Leaf(values) => RECORD_OVERHEAD + values[at].encoded_len(),
            Body::Internal(_) => INTERNAL_RECORD,
        }
    }
}

/// The nodes from the root to a leaf, each with the index of the child taken.
#[derive(Default, Debug)]
struct Path {
    steps: [(NodeId, usize); HEIGHT_MAX],
    len: usize,
}

impl Path {
    fn push(&mut self, id: NodeId, at: usize) {
        self.steps[self.len] = (id, at);
        self.len += 1;
    }

    fn leaf(&self) -> NodeId {
        self.steps[self.len - 1].0
    }

    fn steps(&self) -> &[(NodeId, usize)] {
        &self.steps[..self.len]
    }
}

/// Nodes by index; the indices of dropped nodes are used again.
#[derive(Default, Debug)]
struct Slab {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
}

impl Slab {
    fn add(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id.0 as usize] = Some(node);
            return id;
        }
        let id = NodeId(u32::try_from(self.nodes.len()).expect("fewer than 2^32 nodes"));
        self.nodes.push(Some(node));
        id
    }

    fn take(&mut self, id: NodeId) -> Node {
        self.free.push(id);
        self.nodes[id.0 as usize].take().expect("the node is in memory")
    }

    fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0 as usize)?.as_ref()
    }

    fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// The nodes in memory.
    fn ids(&self) -> Vec<NodeId> {
        let used = |at: &usize| self.nodes[*at].is_some();
        (0..self.nodes.len()).filter(used).map(|at| NodeId(at as u32)).collect()
    }
}

impl Index<NodeId> for Slab {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        self.nodes[id.0 as usize].as_ref().expect("the node is in memory")
    }
}

impl IndexMut<NodeId> for Slab {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0 as usize].as_mut().expect("the node is in memory")
    }
}
