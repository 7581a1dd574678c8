//! The operations, and the sequences that are made of them (as ACE does it: Mohan et al., "Finding
//! Crash-Consistency Bugs with Bounded Black-Box Crash Testing", OSDI '18).
//!
//! ```text
//! base, durable:  A/{foo, other, twin, sub/}  on cell 0      B/{foo, other, twin}  on cell 1
//!                 (A/twin and B/twin are one inode)
//! sequence:       operation, persistence,
//!                 [fsync of an unrelated file, operation, persistence], ending
//! ```

use std::collections::BTreeSet;
use std::rc::Rc;

use warren_base::Rng;
use warren_proto::FileKind;

use super::tree::{FIRST_MADE, Node, NodeNo, Place, Tree};

pub(super) const PAGE: usize = 4096;
/// The mode of all created files, and their mode after `chmod`.
pub(super) const FILE_MODE: u16 = 0o644;
pub(super) const DIR_MODE: u16 = 0o755;
pub(super) const NEW_MODE: u16 = 0o711;
pub(super) const XATTR: &str = "user.ace";
/// The target of symbolic links.
pub(super) const TARGET: &str = "foo";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Create(Place),
    Mkdir(Place),
    Symlink(Place),
    Link(&'static str, Place),
    Rename(Place, Place),
    Exchange(Place, Place),
    Unlink(Place),
    Rmdir(Place),
    Append(&'static str, usize),
    /// A number of bytes from this offset, perhaps beyond the end.
    Write(&'static str, usize, usize),
    /// The write-back of a mapping: every page but the first, up to the end.
    Mapped(&'static str),
    /// An append to a file opened with `O_SYNC`.
    SyncAppend(&'static str, usize),
    Truncate(&'static str, usize),
    Chmod(&'static str),
    SetXattr(&'static str),
}

use Operation as Op;

/// Operations that need only the base come first.
pub(super) const OPERATIONS: [Operation; 54] = [
    Op::Create(("A", "bar")),
    Op::Create(("B", "bar")),
    Op::Mkdir(("A", "new")),
    Op::Mkdir(("B", "new")),
    Op::Symlink(("A", "bar")),
    Op::Symlink(("B", "bar")),
    Op::Link("A/foo", ("A", "bar")),
    Op::Link("A/foo", ("B", "bar")),
    Op::Link("B/foo", ("A", "bar")),
    Op::Rename(("A", "foo"), ("A", "bar")),
    Op::Rename(("A", "foo"), ("B", "bar")),
    Op::Rename(("A", "foo"), ("A", "other")),
    Op::Rename(("A", "foo"), ("B", "foo")),
    Op::Rename(("B", "foo"), ("A", "foo")),
    Op::Rename(("A", "twin"), ("B", "foo")),
    Op::Rename(("A", "sub"), ("B", "sub")),
    Op::Rename(("A", "sub"), ("A", "new")),
    Op::Exchange(("A", "foo"), ("B", "foo")),
    Op::Exchange(("A", "foo"), ("A", "sub")),
    Op::Unlink(("A", "foo")),
    Op::Unlink(("B", "foo")),
    Op::Unlink(("A", "twin")),
    Op::Unlink(("B", "twin")),
    Op::Rmdir(("A", "sub")),
    Op::Append("A/foo", 100),
    Op::Append("A/foo", 9000),
    // More pages than a record of the log has room for: these are written in place.
    Op::Append("A/foo", 40_000),
    Op::Append("B/foo", 5000),
    Op::Append("B/twin", 100),
    Op::Write("A/foo", 0, PAGE),
    Op::Write("A/foo", 5000, 100),
    Op::Write("A/foo", 0, 10_000),
    Op::Write("A/foo", 20_000, 100),
    Op::Write("B/foo", 0, 3000),
    Op::Write("B/foo", 2000, 40_000),
    Op::Mapped("A/foo"),
    Op::SyncAppend("A/foo", 4096),
    Op::SyncAppend("B/foo", 10),
    Op::Truncate("A/foo", 0),
    Op::Truncate("A/foo", 5000),
    Op::Truncate("A/foo", 2 * PAGE),
    Op::Truncate("A/foo", 30_000),
    Op::Truncate("B/foo", 1),
    Op::Chmod("A/foo"),
    Op::Chmod("B/twin"),
    Op::Chmod("A"),
    Op::SetXattr("A/foo"),
    Op::SetXattr("B"),
    // These need an operation before them.
    Op::Append("A/bar", 4096),
    Op::Append("B/bar", 100),
    Op::Unlink(("A", "bar")),
    Op::Rename(("A", "bar"), ("B", "bar")),
    Op::Create(("B/new", "baz")),
    Op::Rename(("A", "foo"), ("B/sub", "baz")),
];

/// A call that makes something durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Persistence {
    Nothing,
    /// `fsync` of the operation's file, under its present name.
    Fsync,
    Fdatasync,
    FsyncA,
    FsyncB,
    Sync,
}

pub(super) const PERSISTENCES: [Persistence; 6] = [
    Persistence::Nothing,
    Persistence::Fsync,
    Persistence::Fdatasync,
    Persistence::FsyncA,
    Persistence::FsyncB,
    Persistence::Sync,
];

/// The step between two operations, and after the last.
pub(super) const UNRELATED: [Option<&str>; 3] = [None, Some("A/other"), Some("B/other")];

/// One call of the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    Do(Operation),
    Fsync(String),
    Fdatasync(String),
    Sync,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sequence {
    pub steps: Vec<Step>,
    /// Whether it ends with a checkpoint that no client waits for.
    pub checkpoint: bool,
}

/// The object that an operation changes. It determines the order in which changes may become
/// durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touched {
    /// The entries of a directory.
    Entries(NodeNo),
    /// The names of an inode.
    Name(NodeNo),
    Attributes(NodeNo),
    Content(NodeNo),
    /// The unchanged content of a file that takes the name of another: it must be durable first.
    Kept(NodeNo),
}

/// The tree that every sequence starts from.
pub(super) fn base() -> Tree {
    let mut tree = Tree::new();
    let bytes = |node: NodeNo, len: usize| payload(node, len);
    let nodes = [
        (1, Node::new(FileKind::Directory, DIR_MODE, Vec::new())),
        (2, Node::new(FileKind::Directory, DIR_MODE, Vec::new())),
        (3, Node::new(FileKind::Regular, FILE_MODE, bytes(3, 10_000))),
        (4, Node::new(FileKind::Regular, FILE_MODE, bytes(4, 100))),
        (5, Node::new(FileKind::Directory, DIR_MODE, Vec::new())),
        (6, Node::new(FileKind::Regular, FILE_MODE, bytes(6, 3000))),
        (7, Node::new(FileKind::Regular, FILE_MODE, bytes(7, 100))),
        (8, Node::new(FileKind::Regular, FILE_MODE, bytes(8, 5000))),
    ];
    tree.nodes.extend(nodes);
    let places = [
        (("", "A"), 1),
        (("", "B"), 2),
        (("A", "foo"), 3),
        (("A", "other"), 4),
        (("A", "sub"), 5),
        (("B", "foo"), 6),
        (("B", "other"), 7),
        (("A", "twin"), 8),
        (("B", "twin"), 8),
    ];
    for (place, node) in places {
        tree.insert(place, node).expect("the directories come first");
    }
    tree
}

/// Bytes that identify their write; none is zero.
pub(super) fn payload(stamp: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((stamp * 37 + at / 7 + at / PAGE) as u8) | 1).collect()
}

impl Operation {
    /// The path of the operation's file after it; none for a removed one.
    pub fn subject(&self) -> Option<String> {
        match *self {
            Op::Create(place) | Op::Mkdir(place) | Op::Symlink(place) | Op::Link(_, place) => {
                Some(path_of(place))
            }
            Op::Rename(_, place) | Op::Exchange(_, place) => Some(path_of(place)),
            Op::Unlink(_) | Op::Rmdir(_) => None,
            Op::Append(path, _)
            | Op::Write(path, ..)
            | Op::Mapped(path)
            | Op::SyncAppend(path, _)
            | Op::Truncate(path, _)
            | Op::Chmod(path)
            | Op::SetXattr(path) => Some(path.to_owned()),
        }
    }

    /// The offset and length of a write of `len` bytes, given the file's size.
    pub fn extent(&self, size: usize) -> Option<(usize, usize)> {
        match *self {
            Op::Append(_, len) | Op::SyncAppend(_, len) => Some((size, len)),
            Op::Write(_, at, len) => Some((at, len)),
            Op::Mapped(_) if size > PAGE => Some((PAGE, size - PAGE)),
            _ => None,
        }
    }

    /// Applies it as step `number` of a sequence. `None` if it is impossible.
    pub fn apply(&self, number: usize, tree: &mut Tree) -> Option<Vec<Touched>> {
        match *self {
            Op::Create(place) => make(number, place, FileKind::Regular, tree),
            Op::Mkdir(place) => make(number, place, FileKind::Directory, tree),
            Op::Symlink(place) => make(number, place, FileKind::Symlink, tree),
            Op::Link(path, place) => {
                let (node, dir) = (tree.at(path)?, tree.at(place.0)?);
                let is_free = !tree.nodes[&dir].entries.contains_key(place.1);
                (is_free && tree.nodes[&node].kind != FileKind::Directory).then_some(())?;
                tree.insert(place, node)?;
                Some(vec![Touched::Entries(dir), Touched::Name(node)])
            }
            Op::Rename(from, to) => rename(from, to, tree),
            Op::Exchange(from, to) => exchange(from, to, tree),
            Op::Unlink(place) => remove(place, false, tree),
            Op::Rmdir(place) => remove(place, true, tree),
            Op::Truncate(path, size) => {
                let node = regular(path, tree)?;
                Rc::make_mut(&mut tree.node_mut(node).content).resize(size, 0);
                Some(vec![Touched::Content(node), Touched::Attributes(node)])
            }
            Op::Chmod(path) => {
                let node = tree.at(path)?;
                (tree.nodes[&node].kind != FileKind::Symlink).then_some(())?;
                tree.node_mut(node).mode = NEW_MODE;
                Some(vec![Touched::Attributes(node)])
            }
            Op::SetXattr(path) => {
                let node = tree.at(path)?;
                (tree.nodes[&node].kind != FileKind::Symlink).then_some(())?;
                let value = payload(number, 40);
                tree.node_mut(node).xattrs.insert(XATTR.to_owned(), value);
                Some(vec![Touched::Attributes(node)])
            }
            Op::Append(path, _)
            | Op::Write(path, ..)
            | Op::Mapped(path)
            | Op::SyncAppend(path, _) => {
                let node = regular(path, tree)?;
                let content = Rc::make_mut(&mut tree.node_mut(node).content);
                let (at, len) = self.extent(content.len())?;
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&payload(number, len));
                Some(vec![Touched::Content(node)])
            }
        }
    }
}

pub(super) fn path_of((dir, name): Place) -> String {
    format!("{dir}/{name}")
}

fn regular(path: &str, tree: &Tree) -> Option<NodeNo> {
    tree.at(path).filter(|node| tree.nodes[node].kind == FileKind::Regular)
}

fn make(number: usize, place: Place, kind: FileKind, tree: &mut Tree) -> Option<Vec<Touched>> {
    let dir = tree.at(place.0).filter(|dir| tree.nodes[dir].kind == FileKind::Directory)?;
    (!tree.nodes[&dir].entries.contains_key(place.1)).then_some(())?;
    let node = FIRST_MADE + number;
    let (mode, content) = match kind {
        FileKind::Directory => (DIR_MODE, Vec::new()),
        FileKind::Symlink => (0o777, TARGET.into()),
        _ => (FILE_MODE, Vec::new()),
    };
    tree.nodes.insert(node, Node::new(kind, mode, content));
    tree.insert(place, node)?;
    Some(vec![
        Touched::Entries(dir),
        Touched::Name(node),
        Touched::Attributes(node),
        Touched::Content(node),
    ])
}

fn rename(from: Place, to: Place, tree: &mut Tree) -> Option<Vec<Touched>> {
    let dirs = [tree.at(from.0)?, tree.at(to.0)?];
    let node = *tree.nodes[&dirs[0]].entries.get(from.1)?;
    let victim = tree.nodes[&dirs[1]].entries.get(to.1).copied();
    let kind = |node: NodeNo| tree.nodes[&node].kind;
    if let Some(victim) = victim {
        let fits = (kind(victim) == FileKind::Directory) == (kind(node) == FileKind::Directory);
        (fits && victim != node && tree.nodes[&victim].entries.is_empty()).then_some(())?;
    }
    let keeps = victim.is_some() && kind(node) == FileKind::Regular;
    tree.remove(from)?;
    tree.insert(to, node)?;
    let mut touched = dirs.map(Touched::Entries).to_vec();
    touched.push(Touched::Name(node));
    touched.extend(victim.map(Touched::Name));
    touched.extend(keeps.then_some(Touched::Kept(node)));
    Some(touched)
}

fn exchange(from: Place, to: Place, tree: &mut Tree) -> Option<Vec<Touched>> {
    let dirs = [tree.at(from.0)?, tree.at(to.0)?];
    let (one, other) = (tree.at(&path_of(from))?, tree.at(&path_of(to))?);
    tree.insert(from, other)?;
    tree.insert(to, one)?;
    let names = [Touched::Name(one), Touched::Name(other)];
    let is_file = |node: &NodeNo| tree.nodes[node].kind == FileKind::Regular;
    let kept = [one, other].into_iter().filter(is_file).map(Touched::Kept);
    Some(dirs.map(Touched::Entries).into_iter().chain(names).chain(kept).collect())
}

fn remove(place: Place, is_dir: bool, tree: &mut Tree) -> Option<Vec<Touched>> {
    let (dir, node) = (tree.at(place.0)?, tree.at(&path_of(place))?);
    let (kind, empty) = (tree.nodes[&node].kind, tree.nodes[&node].entries.is_empty());
    (empty && (kind == FileKind::Directory) == is_dir).then_some(())?;
    tree.remove(place)?;
    Some(vec![Touched::Entries(dir), Touched::Name(node)])
}

impl Sequence {
    fn add(
        &mut self,
        operation: Operation,
        persistence: Persistence,
        tree: &mut Tree,
    ) -> Option<()> {
        operation.apply(self.steps.len(), tree)?;
        self.steps.push(Step::Do(operation));
        if let Op::SyncAppend(path, _) = operation {
            self.steps.push(Step::Fdatasync(path.to_owned()));
        }
        self.steps.extend(match persistence {
            Persistence::Nothing => None,
            Persistence::FsyncA => Some(Step::Fsync("A".to_owned())),
            Persistence::FsyncB => Some(Step::Fsync("B".to_owned())),
            Persistence::Sync => Some(Step::Sync),
            Persistence::Fsync => Some(Step::Fsync(synced(operation, tree)?)),
            Persistence::Fdatasync => Some(Step::Fdatasync(synced(operation, tree)?)),
        });
        Some(())
    }

    fn fsync_unrelated(&mut self, path: Option<&str>) {
        self.steps.extend(path.map(|path| Step::Fsync(path.to_owned())));
    }

    fn end(&mut self, number: usize) {
        let ending = UNRELATED[number % UNRELATED.len()];
        self.checkpoint = ending.is_none();
        self.fsync_unrelated(ending);
    }
}

/// The path to call `fsync` on. A symbolic link cannot be opened.
fn synced(operation: Operation, tree: &Tree) -> Option<String> {
    let path = operation.subject()?;
    let node = tree.at(&path)?;
    (tree.nodes[&node].kind != FileKind::Symlink).then_some(path)
}

/// All sequences of one operation, with each ending.
pub fn singles() -> Vec<Sequence> {
    let mut all = Vec::new();
    for operation in OPERATIONS {
        for persistence in PERSISTENCES {
            for ending in 0..UNRELATED.len() {
                let (mut sequence, mut tree) = (Sequence::default(), base());
                if sequence.add(operation, persistence, &mut tree).is_some() {
                    sequence.end(ending);
                    all.push(sequence);
                }
            }
        }
    }
    all
}

/// Programs that save: a new file is written and takes the name of an old one. The file is never
/// synced; perhaps the directories are, or an unrelated file. The file is where it was made, on
/// cell 0.
pub fn replacements() -> Vec<Sequence> {
    let (new, made) = (("A", "bar"), Op::Create(("A", "bar")));
    let moved = [made, Op::Rename(new, ("B", "bar"))];
    let ways: [(&[Operation], &'static str, Operation); 5] = [
        (&[made], "A/bar", Op::Rename(new, ("A", "foo"))),
        (&[made], "A/bar", Op::Rename(new, ("B", "foo"))),
        (&moved, "B/bar", Op::Rename(("B", "bar"), ("B", "foo"))),
        (&moved, "B/bar", Op::Rename(("B", "bar"), ("A", "foo"))),
        (&moved, "B/bar", Op::Exchange(("B", "bar"), ("B", "twin"))),
    ];
    let mut all = Vec::new();
    for len in [100, 9000, 40_000] {
        for persistence in [Persistence::Nothing, Persistence::FsyncA, Persistence::FsyncB] {
            for (ending, (first, written, last)) in
                (0..UNRELATED.len()).flat_map(|ending| ways.map(|way| (ending, way)))
            {
                let (mut sequence, mut tree) = (Sequence::default(), base());
                let unsynced = first.iter().copied().chain([Op::Append(written, len)]);
                let all_steps = unsynced.map(|op| (op, Persistence::Nothing));
                for (operation, persistence) in all_steps.chain([(last, persistence)]) {
                    let added = sequence.add(operation, persistence, &mut tree);
                    added.expect("a sequence that can be done");
                }
                sequence.end(ending);
                all.push(sequence);
            }
        }
    }
    all
}

/// The number of combinations of two operations, including impossible ones.
pub const PAIRS: usize =
    (OPERATIONS.len() * PERSISTENCES.len()).pow(2) * UNRELATED.len() * UNRELATED.len();

/// A combination of two operations by its number, if it is possible.
pub(super) fn pair(number: usize) -> Option<Sequence> {
    let mut rest = number;
    let mut draw = |of: usize| {
        let drawn = rest % of;
        rest /= of;
        drawn
    };
    let (mut sequence, mut tree) = (Sequence::default(), base());
    let first = OPERATIONS[draw(OPERATIONS.len())];
    sequence.add(first, PERSISTENCES[draw(PERSISTENCES.len())], &mut tree)?;
    sequence.fsync_unrelated(UNRELATED[draw(UNRELATED.len())]);
    let second = OPERATIONS[draw(OPERATIONS.len())];
    sequence.add(second, PERSISTENCES[draw(PERSISTENCES.len())], &mut tree)?;
    sequence.end(draw(UNRELATED.len()));
    Some(sequence)
}

/// The number of a combination: the inverse of [`pair`].
fn number_of([first, second]: [usize; 2], how: [usize; 2], unrelated: [usize; 2]) -> usize {
    let drawn = [
        (first, OPERATIONS.len()),
        (how[0], PERSISTENCES.len()),
        (unrelated[0], UNRELATED.len()),
        (second, OPERATIONS.len()),
        (how[1], PERSISTENCES.len()),
        (unrelated[1], UNRELATED.len()),
    ];
    drawn.into_iter().rev().fold(0, |number, (drawn, of)| number * of + drawn)
}

/// `count` sequences of two operations (or nearly all, if there are fewer). Every two operations
/// occur once, each time with another persistence and other parameters, before any two occur again.
pub fn pairs(seed: u64, count: usize) -> Vec<Sequence> {
    let mut rng = Rng::new(seed);
    let (mut all, mut taken) = (Vec::with_capacity(count), BTreeSet::new());
    let mut both: Vec<usize> = (0..OPERATIONS.len().pow(2)).collect();
    for _ in 0..PAIRS / both.len() {
        shuffle(&mut both, &mut rng);
        for both in &both {
            if all.len() == count {
                return all;
            }
            let mut draw = |of: usize| [0; 2].map(|_| rng.below(of as u64) as usize);
            let both = [both % OPERATIONS.len(), both / OPERATIONS.len()];
            let number = number_of(both, draw(PERSISTENCES.len()), draw(UNRELATED.len()));
            if taken.insert(number) {
                all.extend(pair(number));
            }
        }
    }
    all
}

fn shuffle(values: &mut [usize], rng: &mut Rng) {
    for end in (1..values.len()).rev() {
        values.swap(end, rng.below(end as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_combination_is_found_by_its_number() {
        let number = number_of([3, 5], [1, 5], [2, 1]);
        let steps = vec![
            Step::Do(OPERATIONS[3]),
            Step::Fsync("B/new".into()),
            Step::Fsync("B/other".into()),
            Step::Do(OPERATIONS[5]),
            Step::Sync,
            Step::Fsync("A/other".into()),
        ];
        assert_eq!(pair(number), Some(Sequence { steps, checkpoint: false }));
    }

    #[test]
    fn every_operation_and_every_persistence_occurs() {
        let (singles, other) = (singles(), pairs(1, 2000));
        let pairs = pairs(0, 2000);
        assert_eq!(pairs.len(), 2000);
        assert_ne!(pairs, other, "another seed draws others");
        for operation in OPERATIONS {
            let has = |sequence: &&Sequence| sequence.steps.contains(&Step::Do(operation));
            let (one, two) = (singles.iter().filter(has).count(), pairs.iter().filter(has).count());
            assert!(one + two > 0, "{operation:?}: {one}, {two}");
            assert!(two < 200, "{operation:?}: {two}");
        }
        let is_of = |step: &Step| pairs.iter().filter(|pair| pair.steps.contains(step)).count();
        let steps = [Step::Sync, Step::Fsync("A".into()), Step::Fdatasync("B/foo".into())];
        assert!(steps.iter().all(|step| is_of(step) > 10));
    }
}
