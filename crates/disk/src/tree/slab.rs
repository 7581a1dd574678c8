//! Nodes in memory, by index, and how a parent refers to a child in memory or absent.

use crate::key::Key;
use crate::node::{BlockPtr, HEIGHT_MAX};
use crate::record::{INTERNAL_RECORD, RECORD_OVERHEAD};
use crate::value::Value;
use std::ops::{ControlFlow, Index, IndexMut};
use std::sync::atomic::{AtomicBool, Ordering};
use thiserror::Error;
use warren_base::BlockNo;

/// The node is not in memory: read it, [`Tree::load`] it, and repeat the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the tree node at block {} is not in memory", .0.block)]
pub struct Absent(pub BlockPtr);

/// A node's index in the slab.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct NodeId(pub u32);

/// A place in a leaf: that of a record, or where it would be. In one word, so that it fits a
/// register and an atomic.
///
/// ```text
///   63     32  31     30      0
///   | leaf  |found | index    |
/// ```
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot(pub u64);

const SPOT_FOUND: u64 = 1 << 31;

impl Spot {
    #[inline]
    pub(super) fn of(leaf: NodeId, found: Result<usize, usize>) -> Self {
        let flag = if found.is_ok() { SPOT_FOUND } else { 0 };
        let (Ok(at) | Err(at)) = found;
        Self(u64::from(leaf.0) << 32 | flag | at as u64)
    }

    pub(super) fn leaf(self) -> NodeId {
        NodeId((self.0 >> 32) as u32)
    }

    pub(super) fn at(self) -> usize {
        (self.0 & (SPOT_FOUND - 1)) as usize
    }

    pub(super) fn is_found(self) -> bool {
        self.0 & SPOT_FOUND != 0
    }
}

/// A child in its parent. Flat, so that it takes 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Child {
    Resident(NodeId),
    Absent { checksum: u32, block: BlockNo },
}

const _: () = assert!(size_of::<Child>() == 16);

impl Child {
    pub(super) fn absent(ptr: BlockPtr) -> Self {
        Self::Absent { checksum: ptr.checksum, block: ptr.block }
    }

    pub(super) fn resident(self) -> Result<NodeId, Absent> {
        match self {
            Self::Resident(id) => Ok(id),
            Self::Absent { checksum, block } => Err(Absent(BlockPtr { block, checksum })),
        }
    }
}

/// A node in memory.
#[derive(Debug)]
pub(super) struct Node {
    pub keys: Vec<Key>,
    pub body: Body,
    /// Bytes that its records take on disk.
    pub size: usize,
    /// Its place on disk; `None` if it is dirty.
    pub place: Option<BlockPtr>,
    pub level: u8,
    /// No leaf follows this one, so all keys above its first are its own. If it is false, one may
    /// follow. Has no meaning above the leaves.
    pub is_last: bool,
    /// Used since the last pass of eviction.
    pub touched: AtomicBool,
}

#[derive(Debug)]
pub(super) enum Body {
    Leaf(Vec<Value>),
    Internal(Vec<Child>),
}

impl Node {
    pub(super) fn leaf() -> Self {
        Self { is_last: true, ..Self::new(Vec::new(), Body::Leaf(Vec::new()), 0, 0) }
    }

    /// A dirty node.
    pub(super) fn new(keys: Vec<Key>, body: Body, size: usize, level: u8) -> Self {
        let touched = AtomicBool::new(true);
        Self { keys, body, size, place: None, level, is_last: false, touched }
    }

    pub(super) fn find(&self, key: &Key) -> Result<usize, usize> {
        self.keys.binary_search(key)
    }

    /// Whether `key`, which the leaf does not have at `at`, would be there. False if only the
    /// neighbour of the leaf can tell.
    #[inline]
    pub(super) fn is_gap(&self, at: usize, key: &Key) -> bool {
        let is_above =
            at.checked_sub(1).and_then(|at| self.keys.get(at)).is_some_and(|it| it < key);
        is_above && self.keys.get(at).map_or(self.is_last, |next| key < next)
    }

    /// The child for `key`. The first child has no lower bound.
    pub(super) fn child_index(&self, key: &Key) -> usize {
        self.keys.partition_point(|first| first <= key).saturating_sub(1)
    }

    /// Stores only if needed, so that readers do not take the cache line from each other.
    pub(super) fn touch(&self) {
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    /// Passes the records of a leaf from `at` up to `to` to `visit`, until it breaks.
    pub(super) fn show<'a>(
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

    pub(super) fn values(&self) -> &[Value] {
        match &self.body {
            Body::Leaf(values) => values,
            Body::Internal(_) => panic!("an internal node has no values"),
        }
    }

    pub(super) fn values_mut(&mut self) -> &mut Vec<Value> {
        match &mut self.body {
            Body::Leaf(values) => values,
            Body::Internal(_) => panic!("an internal node has no values"),
        }
    }

    pub(super) fn children(&self) -> &[Child] {
        match &self.body {
            Body::Internal(children) => children,
            Body::Leaf(_) => panic!("a leaf has no children"),
        }
    }

    pub(super) fn children_mut(&mut self) -> &mut Vec<Child> {
        match &mut self.body {
            Body::Internal(children) => children,
            Body::Leaf(_) => panic!("a leaf has no children"),
        }
    }

    /// Bytes of record `at` on disk.
    pub(super) fn record_len(&self, at: usize) -> usize {
        match &self.body {
            Body::Leaf(values) => RECORD_OVERHEAD + values[at].encoded_len(),
            Body::Internal(_) => INTERNAL_RECORD,
        }
    }
}

/// The nodes from the root to a leaf, each with the index of the child taken.
#[derive(Default, Debug)]
pub(super) struct Path {
    pub steps: [(NodeId, usize); HEIGHT_MAX],
    pub len: usize,
}

impl Path {
    pub(super) fn push(&mut self, id: NodeId, at: usize) {
        self.steps[self.len] = (id, at);
        self.len += 1;
    }

    pub(super) fn leaf(&self) -> NodeId {
        self.steps[self.len - 1].0
    }

    pub(super) fn steps(&self) -> &[(NodeId, usize)] {
        &self.steps[..self.len]
    }
}

/// Nodes by index; the indices of dropped nodes are used again.
#[derive(Default, Debug)]
pub(super) struct Slab {
    pub nodes: Vec<Option<Node>>,
    pub free: Vec<NodeId>,
}

impl Slab {
    pub(super) fn add(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id.0 as usize] = Some(node);
            return id;
        }
        let id = NodeId(u32::try_from(self.nodes.len()).expect("fewer than 2^32 nodes"));
        self.nodes.push(Some(node));
        id
    }

    pub(super) fn take(&mut self, id: NodeId) -> Node {
        self.free.push(id);
        self.nodes[id.0 as usize].take().expect("the node is in memory")
    }

    pub(super) fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0 as usize)?.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// The nodes in memory.
    pub(super) fn ids(&self) -> Vec<NodeId> {
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
