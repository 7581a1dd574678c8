//! The tree against a `BTreeMap`, over a simulated device, with eviction and checkpoints in
//! between.

use super::Tree;
use super::slab::{Absent, Body, Child, Node, NodeId};
use crate::FileKind;
use crate::inode::Part;
use crate::key::{Key, Kind};
use crate::node::{self, BlockPtr, HEIGHT_MAX, NodeError, Stamp};
use crate::record::{NODE_CAPACITY, VALUE_MAX};
use crate::value::{Dentry, Extent, Owed, SharedRun, Value, Xattr, XattrValue};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use warren_base::{BlockNo, Ino, Rng, ShardId};

const SHARD: ShardId = ShardId(5);

/// A tree, the device under it, and its expected contents.
struct Bench {
    tree: Tree,
    device: BTreeMap<BlockNo, Box<[u8]>>,
    model: BTreeMap<Key, Value>,
    next_block: u64,
    generation: u64,
    loads: usize,
}

impl Bench {
    fn new() -> Self {
        Self {
            tree: Tree::open(SHARD, None, 0),
            device: BTreeMap::new(),
            model: BTreeMap::new(),
            next_block: 1000,
            generation: 0,
            loads: 0,
        }
    }

    /// Repeats a call until every absent node was loaded.
    fn settle<T>(&mut self, mut ask: impl FnMut(&mut Tree) -> Result<T, Absent>) -> T {
        loop {
            match ask(&mut self.tree) {
                Ok(answer) => return answer,
                Err(Absent(ptr)) => self.load(ptr),
            }
        }
    }

    fn load(&mut self, ptr: BlockPtr) {
        self.loads += 1;
        self.tree.load(ptr, &self.device[&ptr.block]).unwrap();
    }

    fn insert(&mut self, key: Key, value: Value) {
        let old = self.settle(|tree| tree.insert(key, value.clone()));
        assert_eq!(old, self.model.insert(key, value));
    }

    fn remove(&mut self, key: Key) {
        let old = self.settle(|tree| tree.remove(&key));
        assert_eq!(old, self.model.remove(&key));
    }

    fn bump(&mut self, key: Key) {
        let changed = self.settle(|tree| Ok(tree.get_mut(&key)?.map(bump).is_some()));
        assert_eq!(changed, self.model.get_mut(&key).map(bump).is_some());
    }

    fn look(&mut self, key: Key) {
        let value = self.settle(|tree| Ok(tree.get(&key)?.cloned()));
        assert_eq!(value.as_ref(), self.model.get(&key));
        let next = self.settle(|tree| Ok(tree.seek(&key)?.map(|(k, v)| (*k, v.clone()))));
        let expected = self.model.range(key..).next().map(|(k, v)| (*k, v.clone()));
        assert_eq!(next, expected);
    }

    fn list(&mut self, from: Key, to: Key) {
        let found = self.settle(|tree| {
            let mut found = Vec::new();
            tree.range(from, to, |key, value| {
                found.push((*key, value.clone()));
                ControlFlow::Continue(())
            })?;
            Ok(found)
        });
        let expected: Vec<_> = self.model.range(from..=to).map(|(k, v)| (*k, v.clone())).collect();
        assert_eq!(found, expected);
    }

    /// A checkpoint. Afterwards the device has the tree's blocks and no others.
    /// Nodes that were used stay until the next call, and then those above them.
    fn evict(&mut self, target: usize) {
        for _ in 0..4 {
            self.tree.evict(target);
        }
    }

    fn write_out(&mut self) -> (Option<BlockPtr>, u8) {
        self.generation += 1;
        let first = self.next_block;
        self.next_block += self.tree.dirty_nodes() as u64;
        let places: Vec<_> = (first..self.next_block).map(BlockNo).collect();
        let (root, height, writes) = self.tree.write_out(self.generation, &places);
        assert_eq!(writes.len(), places.len());
        assert_eq!(self.tree.dirty_nodes(), 0);
        for (block, bytes) in writes {
            assert!(self.device.insert(block, bytes).is_none(), "{block:?} was written over");
        }
        for block in self.tree.take_displaced() {
            assert!(self.device.remove(&block).is_some(), "{block:?} was displaced twice");
        }
        (root, height)
    }

    /// Drops everything in memory, as a restart does.
    fn reopen(&mut self) {
        let (root, height) = self.write_out();
        self.tree = Tree::open(SHARD, root, height);
        self.list(Key::MIN, Key::MAX);
        let blocks: BTreeSet<_> =
            self.tree.nodes.nodes.iter().flatten().map(|node| node.place.unwrap().block).collect();
        assert_eq!(blocks, self.device.keys().copied().collect(), "leaked or shared blocks");
    }

    fn check(&self) {
        let mut census = Census::default();
        if let Some(root) = self.tree.root {
            census.visit(&self.tree, root, self.tree.height - 1, Key::MIN, None, true);
        }
        assert_eq!(census.resident, self.tree.resident_nodes());
        assert_eq!(census.dirty, self.tree.dirty);
        assert!(census.empty == 0 || self.tree.hollow);
        assert!(self.tree.dirty_nodes() <= self.tree.dirty);
    }
}

fn bump(value: &mut Value) {
    match value {
        Value::Chunk(used) => *used = used.wrapping_add(1),
        Value::Part(part) => part.entries += 1,
        other => panic!("{other:?} has no fixed size"),
    }
}

#[derive(Default)]
struct Census {
    resident: usize,
    dirty: usize,
    empty: usize,
}

impl Census {
    fn visit(
        &mut self,
        tree: &Tree,
        child: Child,
        level: u8,
        lower: Key,
        upper: Option<Key>,
        under_dirty: bool,
    ) {
        let Ok(id) = child.resident() else { return };
        let node = &tree.nodes[id];
        self.resident += 1;
        self.dirty += usize::from(node.place.is_none());
        self.empty += usize::from(node.keys.is_empty());
        assert!(under_dirty || node.place.is_some(), "a dirty node under a clean one");
        assert_eq!(node.level, level);
        assert!(level > 0 || !node.is_last || upper.is_none(), "a leaf follows the last one");
        assert!(node.keys.is_sorted_by(|a, b| a < b));
        assert!(node.keys.first().is_none_or(|first| *first >= lower));
        assert!(node.keys.last().is_none_or(|last| upper.is_none_or(|upper| *last < upper)));
        assert!(node.size <= NODE_CAPACITY);
        assert_eq!(node.size, (0..node.keys.len()).map(|at| node.record_len(at)).sum::<usize>());
        if let Body::Internal(children) = &node.body {
            assert_eq!(children.len(), node.keys.len());
            assert!(!children.is_empty());
            for (at, child) in children.iter().enumerate() {
                let next = node.keys.get(at + 1).copied().or(upper);
                self.visit(tree, *child, level - 1, node.keys[at], next, node.place.is_none());
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Key, Value),
    Remove(Key),
    Bump(Key),
    Look(Key),
    List(Key, Key),
    Pinned(Vec<(Key, Option<Value>)>),
    /// Removes this many records, and inserts some of them again at intervals.
    Clear(Key, usize, usize),
    Evict(usize),
    WriteOut,
    Reopen,
}

fn any_value(kind: Kind, size: usize) -> Value {
    let bytes = |len: usize| vec![b'x'; len].into_boxed_slice();
    match kind {
        Kind::Part => Value::Part(Box::new(Part { entries: size as u64, ..Part::default() })),
        Kind::Target => Value::Target(bytes(1 + size % 1024)),
        Kind::Xattr => {
            let value = XattrValue::Inline(bytes((size * 7) % 2049));
            Value::Xattrs(Box::new([Xattr { name: bytes(1 + size % 255), value }]))
        }
        Kind::Entry => {
            let dentry = |n: usize| Dentry {
                name: format!("{n:0>w$}", w = 3 + size % 250).into_bytes().into(),
                ino: Ino(77),
                kind: FileKind::Regular,
            };
            // From time to time a bucket of collisions that nearly fills a block.
            let names = if size.is_multiple_of(50) { 15 } else { 1 };
            Value::Entries((0..names).map(dentry).collect())
        }
        Kind::Extent if size.is_multiple_of(5) => Value::Unwritten(1 + size as u8 % 64),
        Kind::Extent => Value::Extent(Box::new(Extent {
            start: BlockNo(1 + size as u64),
            checksums: (0..1 + size as u32 % 64).collect(),
        })),
        Kind::XattrPiece => Value::XattrPiece(bytes(1 + (size * 7) % 2000)),
        Kind::Chunk => Value::Chunk(size as u64),
        Kind::Orphan => Value::Orphan,
        Kind::Owed => Value::Owed(Owed { blocks: size as u64, extents: 1 }),
        Kind::Shared => {
            let run = |first: u8| SharedRun { first, blocks: 1, others: 1 };
            Value::Shared((0..1 + size as u8 % 64).map(run).collect())
        }
        Kind::Inode => panic!("not drawn here"),
    }
}

fn any_key() -> impl Strategy<Value = Key> {
    let sub = 0_u64..60;
    let ino = 1_u64..6;
    (sub, ino, 0..10).prop_map(|(sub, ino, kind)| match kind {
        0 => Key::part(Ino(ino << 8 | sub & 0xff), 0),
        1 => Key::target(Ino(ino), sub % 4),
        2 => Key::xattr(Ino(ino), sub),
        3 => Key::entry(Ino(ino), sub << 58 | sub),
        4 => Key::extent(Ino(ino), sub),
        5 => Key::chunk(sub * 4),
        6 => Key::owed(),
        7 => Key::shared(sub),
        8 => Key::xattr_piece(Ino(ino), sub << 4, sub),
        _ => Key::orphan(Ino(sub + 1)),
    })
}

fn any_record() -> impl Strategy<Value = (Key, Value)> {
    (any_key(), 0_usize..400).prop_map(|(key, size)| (key, any_value(key.kind, size)))
}

fn any_op() -> impl Strategy<Value = Op> {
    let pinned = prop::collection::vec((any_record(), any::<bool>()), 1..40).prop_map(|records| {
        Op::Pinned(records.into_iter().map(|((k, v), put)| (k, put.then_some(v))).collect())
    });
    prop_oneof![
        30 => any_record().prop_map(|(key, value)| Op::Insert(key, value)),
        12 => any_key().prop_map(Op::Remove),
        3 => (0_u64..60).prop_map(|sub| Op::Bump(Key::chunk(sub * 4))),
        6 => any_key().prop_map(Op::Look),
        2 => (any_key(), any_key()).prop_map(|(a, b)| Op::List(a.min(b), a.max(b))),
        3 => pinned,
        2 => (any_key(), 1_usize..80, 1_usize..80).prop_map(|(k, n, m)| Op::Clear(k, n, m)),
        3 => (0_usize..6).prop_map(Op::Evict),
        2 => Just(Op::WriteOut),
        1 => Just(Op::Reopen),
    ]
}

/// Pins, evicts everything else, and changes: nothing may be absent now.
fn pinned(bench: &mut Bench, records: Vec<(Key, Option<Value>)>) {
    bench.write_out();
    for (key, _) in &records {
        bench.settle(|tree| tree.pin(key));
    }
    bench.evict(0);
    let loads = bench.loads;
    for (key, value) in records {
        match value {
            Some(value) => bench.insert(key, value),
            None => bench.remove(key),
        }
    }
    assert_eq!(bench.loads, loads, "a pinned key led to an absent node");
}

fn apply(bench: &mut Bench, op: Op) {
    match op {
        Op::Insert(key, value) => bench.insert(key, value),
        Op::Remove(key) => bench.remove(key),
        Op::Bump(key) => bench.bump(key),
        Op::Look(key) => bench.look(key),
        Op::List(from, to) => bench.list(from, to),
        Op::Pinned(records) => pinned(bench, records),
        Op::Clear(from, count, every) => {
            let records: Vec<_> =
                bench.model.range(from..).take(count).map(|(k, v)| (*k, v.clone())).collect();
            let back = records.clone().into_iter().step_by(every).map(|(k, v)| (k, Some(v)));
            pinned(bench, records.into_iter().map(|(k, _)| (k, None)).chain(back).collect());
        }
        Op::Evict(target) => {
            bench.evict(target);
        }
        Op::WriteOut => {
            bench.write_out();
        }
        Op::Reopen => bench.reopen(),
    }
    bench.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_sorted_map(ops in prop::collection::vec(any_op(), 1..500)) {
        let mut bench = Bench::new();
        for op in ops {
            apply(&mut bench, op);
        }
        bench.reopen();
    }
}

/// Longer histories than proptest's: trees of three levels grow and shrink to nothing.
#[test]
fn grows_tall_and_shrinks_to_nothing() {
    let mut rng = Rng::new(3);
    let mut bench = Bench::new();
    let entry = |n: u64| Key::entry(Ino(1 + n % 7), n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for n in 0..20_000 {
        bench.insert(entry(n), any_value(Kind::Entry, 1 + rng.below(40) as usize));
        if n % 3000 == 0 {
            bench.write_out();
            bench.evict(20);
        }
    }
    assert!(bench.tree.height >= 3);
    bench.check();
    bench.reopen();
    for n in 0..20_000 {
        bench.remove(entry(n));
        if n % 2500 == 0 {
            bench.write_out();
            bench.evict(10);
            bench.check();
        }
    }
    assert_eq!(bench.write_out(), (None, 0));
    assert_eq!((bench.tree.resident_nodes(), bench.device.len()), (0, 0));
}

/// Records appended in order must leave full nodes behind.
#[test]
fn appending_fills_nodes() {
    let mut bench = Bench::new();
    let extent =
        |n: u64| Value::Extent(Box::new(Extent { start: BlockNo(n), checksums: [7; 64].into() }));
    for n in 0..1000 {
        bench.insert(Key::extent(Ino(1), n * 64), extent(n + 1));
    }
    let per_leaf = NODE_CAPACITY / (19 + 8 + 256);
    assert!(bench.tree.resident_nodes() <= 1000 / per_leaf + 3);
}

/// One record of nearly a block between two others: the split must make three nodes.
#[test]
fn a_record_as_large_as_a_block_finds_room() {
    let name = |n: usize| vec![b'a' + n as u8; 255].into_boxed_slice();
    let dentry = |n| Dentry { name: name(n), ino: Ino(3), kind: FileKind::Fifo };
    let bucket = |names: usize| Value::Entries((0..names).map(dentry).collect());
    let mut bench = Bench::new();
    assert!(bucket(15).encoded_len() <= VALUE_MAX && bucket(16).encoded_len() > VALUE_MAX);
    for (sub, names) in [(1, 6), (9, 6), (5, 15), (4, 15), (6, 15), (0, 1), (7, 8), (8, 7)] {
        bench.insert(Key::entry(Ino(1), sub), bucket(names));
        bench.check();
    }
    bench.insert(Key::entry(Ino(1), 0), bucket(15));
    bench.check();
    bench.reopen();
}

#[test]
fn an_absent_node_changes_nothing() {
    let mut bench = Bench::new();
    for n in 0..2000 {
        bench.insert(Key::part(Ino(1 + n), 0), any_value(Kind::Part, 1));
    }
    bench.write_out();
    bench.evict(0);
    // The path to where records of the shard itself would be stays.
    assert_eq!(bench.tree.resident_nodes(), usize::from(bench.tree.height()));
    let key = Key::part(Ino(1000), 0);
    assert!(bench.tree.get(&key).is_err());
    assert!(bench.tree.insert(key, any_value(Kind::Part, 2)).is_err());
    assert!(bench.tree.remove(&key).is_err());
    assert!(bench.tree.get_mut(&key).is_err());
    assert!(bench.tree.pin(&key).is_err());
    assert_eq!((bench.tree.dirty_nodes(), bench.tree.take_displaced()), (0, vec![]));
    bench.look(key);
}

#[test]
fn leaves_of_the_shard_itself_are_never_evicted() {
    let mut bench = Bench::new();
    for n in 0..1000 {
        bench.insert(Key::chunk(n), Value::Chunk(n));
        bench.insert(Key::part(Ino(1 + n), 0), any_value(Kind::Part, 1));
    }
    bench.write_out();
    bench.evict(0);
    let loads = bench.loads;
    for n in 0..1000 {
        bench.bump(Key::chunk(n));
    }
    assert_eq!(bench.loads, loads);
    assert!(bench.tree.get(&Key::part(Ino(900), 0)).is_err());
}

#[test]
fn the_leaf_where_records_of_the_shard_itself_would_be_is_never_evicted() {
    let mut bench = Bench::new();
    for n in 0..1000 {
        bench.insert(Key::part(Ino(1 + n), 0), any_value(Kind::Part, 1));
    }
    bench.insert(Key::chunk(7), Value::Chunk(7));
    bench.write_out();
    bench.remove(Key::chunk(7));
    bench.write_out();
    bench.evict(0);
    assert!(bench.tree.insert(Key::chunk(8), Value::Chunk(8)).is_ok());
}

#[test]
fn loading_twice_or_too_late_does_nothing() {
    let mut bench = Bench::new();
    for n in 0..2000 {
        bench.insert(Key::part(Ino(1 + n), 0), any_value(Kind::Part, 1));
    }
    let (root, _) = bench.write_out();
    let root = root.unwrap();
    let bytes = bench.device[&root.block].clone();
    let resident = bench.tree.resident_nodes();
    bench.tree.load(root, &bytes).unwrap();
    bench.remove(Key::part(Ino(1), 0));
    bench.tree.load(root, &bytes).unwrap();
    assert_eq!(bench.tree.resident_nodes(), resident);
    bench.check();
}

/// A leaf with a valid checksum and keys of another place must be an error, not an endless loop.
#[test]
fn a_leaf_with_keys_of_another_place_is_refused() {
    let mut bench = Bench::new();
    for n in 0..2000 {
        bench.insert(Key::part(Ino(1 + n), 0), any_value(Kind::Part, 1));
    }
    let (root, height) = bench.write_out();
    assert_eq!(height, 2);
    let root = root.unwrap();
    let Body::Internal(children) = &bench.tree.nodes[resident_root(&bench.tree)].body else {
        panic!("two levels")
    };
    let leaf = bench.tree.nodes[children[3].resident().unwrap()].place.unwrap();
    let keys = [Key::part(Ino(1), 0)];
    let stamp = Stamp { shard: SHARD, generation: 1, block: leaf.block, level: 0 };
    let (bytes, checksum) = node::encode_leaf(stamp, &keys, &[any_value(Kind::Part, 1)]);
    let forged = BlockPtr { checksum, ..leaf };
    let mut tree = Tree::open(SHARD, Some(root), height);
    tree.load(root, &bench.device[&root.block]).unwrap();
    let id = resident_root(&tree);
    tree.nodes[id].children_mut()[3] = Child::absent(forged);
    assert_eq!(tree.load(forged, &bytes), Err(NodeError::OutOfRange));
}

/// An inner node that two places name, or that names itself, must be an error, not an endless loop.
#[test]
fn an_inner_node_with_two_places_is_refused() {
    let stamp = |block, level| Stamp { shard: SHARD, generation: 1, block: BlockNo(block), level };
    let sealed = |block, (bytes, checksum)| (BlockPtr { block: BlockNo(block), checksum }, bytes);
    let keys = [1, 100].map(|n| Key::part(Ino(n), 0));
    let leaf = node::encode_leaf(stamp(10, 0), &keys[..1], &[any_value(Kind::Part, 1)]);
    let (leaf, leaf_bytes) = sealed(10, leaf);
    let inner = node::encode_internal(stamp(11, 1), &keys[..1], [leaf].into_iter());
    let (inner, inner_bytes) = sealed(11, inner);
    let root = node::encode_internal(stamp(12, 2), &keys, [inner; 2].into_iter());
    let (root, root_bytes) = sealed(12, root);
    let mut tree = Tree::open(SHARD, Some(root), 3);
    for (ptr, bytes) in [(root, &root_bytes), (inner, &inner_bytes), (leaf, &leaf_bytes)] {
        assert_eq!(tree.get(&keys[0]), Err(Absent(ptr)));
        assert_eq!(tree.load(ptr, bytes), Ok(()));
    }
    assert_eq!(tree.get(&keys[1]), Err(Absent(inner)));
    assert_eq!(tree.load(inner, &inner_bytes), Err(NodeError::OutOfRange));
}

fn resident_root(tree: &Tree) -> NodeId {
    tree.root.unwrap().resident().unwrap()
}

#[test]
fn a_node_is_two_cache_lines_and_a_half() {
    assert!(size_of::<Node>() <= 128);
    assert!(HEIGHT_MAX * size_of::<(NodeId, usize)>() <= 256);
}

/// This is a measurement, not a check: `cargo test -p warren-disk --release -- --ignored
/// --nocapture speed`.
#[test]
#[ignore = "a measurement"]
fn speed_of_get_and_insert() {
    let mut tree = Tree::open(SHARD, None, 0);
    let mut rng = Rng::new(1);
    let keys: Vec<_> =
        (0..100_000_u64).map(|n| Key::entry(Ino(1 + n % 100), rng.next_u64())).collect();
    let value = any_value(Kind::Entry, 11);
    let timed = |what: &str, count: usize, start: std::time::Instant| {
        println!("{what}: {} ns", start.elapsed().as_nanos() / count as u128);
    };
    let start = std::time::Instant::now();
    for key in &keys {
        tree.insert(*key, value.clone()).unwrap();
    }
    timed("insert", keys.len(), start);
    for round in 0..3 {
        let start = std::time::Instant::now();
        let mut found = 0;
        for _ in 0..1_000_000 {
            let key = &keys[rng.below(keys.len() as u64) as usize];
            found += usize::from(tree.get(key).unwrap().is_some());
        }
        assert_eq!(found, 1_000_000);
        timed(&format!("get, round {round}"), found, start);
    }
}
