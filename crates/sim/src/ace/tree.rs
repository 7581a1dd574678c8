//! A small file system in memory: the tree after some operations, and a view of it.

use std::collections::BTreeMap;
use std::rc::Rc;

use warren_proto::FileKind;

/// Identifies an inode. Those of the base are fixed; operation `i` makes number `FIRST_MADE + i`.
pub(super) type NodeNo = usize;

pub(super) const ROOT: NodeNo = 0;
pub(super) const FIRST_MADE: NodeNo = 100;

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: FileKind,
    pub mode: u16,
    pub content: Rc<Vec<u8>>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub entries: BTreeMap<String, NodeNo>,
}

/// The object at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub kind: FileKind,
    pub mode: u16,
    /// The target of a symbolic link.
    pub content: Rc<Vec<u8>>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// The first path of the same inode.
    pub same_as: String,
}

/// All objects, by path.
pub(super) type View = BTreeMap<String, Seen>;

#[derive(Clone, Debug)]
pub struct Tree {
    pub nodes: BTreeMap<NodeNo, Node>,
}

/// A directory, and a name in it.
pub(super) type Place = (&'static str, &'static str);

impl Node {
    pub fn new(kind: FileKind, mode: u16, content: Vec<u8>) -> Self {
        let content = Rc::new(content);
        Self { kind, mode, content, xattrs: BTreeMap::new(), entries: BTreeMap::new() }
    }
}

impl Tree {
    pub fn new() -> Self {
        Self { nodes: BTreeMap::from([(ROOT, Node::new(FileKind::Directory, 0o755, Vec::new()))]) }
    }

    /// The inode of a path like `A/foo`, `A`, or the empty one.
    pub fn at(&self, path: &str) -> Option<NodeNo> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(ROOT, |at, name| self.nodes[&at].entries.get(name).copied())
    }

    pub fn node_mut(&mut self, node: NodeNo) -> &mut Node {
        self.nodes.get_mut(&node).expect("an inode of the tree")
    }

    pub fn insert(&mut self, (dir, name): Place, node: NodeNo) -> Option<()> {
        let dir = self.at(dir)?;
        self.node_mut(dir).entries.insert(name.to_owned(), node);
        Some(())
    }

    pub fn remove(&mut self, (dir, name): Place) -> Option<NodeNo> {
        let dir = self.at(dir)?;
        self.node_mut(dir).entries.remove(name)
    }

    pub fn view(&self) -> View {
        let (mut view, mut first) = (View::new(), BTreeMap::new());
        self.add_to_view(ROOT, String::new(), &mut view, &mut first);
        view
    }

    fn add_to_view(
        &self,
        at: NodeNo,
        path: String,
        view: &mut View,
        first: &mut BTreeMap<NodeNo, String>,
    ) {
        let node = &self.nodes[&at];
        let same_as = first.entry(at).or_insert_with(|| path.clone()).clone();
        let (content, xattrs) = (Rc::clone(&node.content), node.xattrs.clone());
        let seen = Seen { kind: node.kind, mode: node.mode, content, xattrs, same_as };
        view.insert(path.clone(), seen);
        for (name, child) in &node.entries {
            self.add_to_view(*child, format!("{path}/{name}"), view, first);
        }
    }
}
