//! A client's model of its own directory tree: for every object all states that a power cut may
//! leave.
//!
//! An object's *entries*, *content*, *mode* and *attributes* each have versions: one for every
//! operation that changed them since the last promise that they are durable. The first is the
//! promised one, the last is the present one.
//!
//! A call that makes an inode durable also makes durable what it depends on: the operations that
//! gave it its names, all earlier operations in these directories, and the names that these
//! directories had by then.
//!
//! Where a rename over an existing name has happened, the file has a content no older than at the
//! rename (decision 23).

use std::collections::BTreeMap;
use std::rc::Rc;

use warren_base::Ino;
use warren_base::limits::BLOCK_SIZE;
use warren_proto::{FileKind, Handle, RangeChange, RangeCopy, RangeKind};

/// An object. The number of its inode may be unknown yet.
pub(super) type ObjectNo = u32;
pub(super) type Name = Box<[u8]>;
pub(super) type Entries = BTreeMap<Name, ObjectNo>;
pub(super) type Xattrs = BTreeMap<Name, Box<[u8]>>;

/// The directory that contains everything of the client.
pub(super) const ROOT: ObjectNo = 0;

/// The number of an operation of the client, in order.
pub(super) type OperationNo = u64;

#[derive(Clone, Debug)]
pub(super) struct Versions<T>(Vec<(OperationNo, T)>);

impl<T> Versions<T> {
    pub(super) fn new(first: T) -> Self {
        Self(vec![(0, first)])
    }

    pub(super) fn now(&self) -> &T {
        &self.0.last().expect("there is always one").1
    }

    fn push(&mut self, by: OperationNo, next: T) {
        self.0.push((by, next));
    }

    /// The present version is durable.
    fn promise(&mut self) {
        self.0.drain(..self.0.len() - 1);
    }

    pub(super) fn versions(&self) -> impl DoubleEndedIterator<Item = &T> + Clone {
        self.0.iter().map(|(_, version)| version)
    }

    /// The version at operation `by`, and all later ones.
    pub(super) fn since(&self, by: OperationNo) -> &[(OperationNo, T)] {
        let first = self.0.iter().rposition(|(of, _)| *of <= by).unwrap_or(0);
        &self.0[first..]
    }

    /// The operation that made the first version with this property.
    pub(super) fn first(&self, is_one: impl Fn(&T) -> bool) -> Option<OperationNo> {
        self.0.iter().find(|(_, version)| is_one(version)).map(|(by, _)| *by)
    }
}

impl Versions<Rc<Entries>> {
    /// The last operation up to `until` that gave the object a name here or removed one, unless all
    /// operations before it are promised.
    fn last_about(&self, object: ObjectNo, until: OperationNo) -> Option<OperationNo> {
        let is_name = |entry: &(&Name, &ObjectNo)| *entry.1 == object;
        let names = |entries: &Rc<Entries>| {
            entries.iter().filter(is_name).map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        let pairs = self.0.windows(2).filter(|pair| pair[1].0 <= until);
        let mut about = pairs.filter(|pair| names(&pair[0].1) != names(&pair[1].1));
        about.next_back().map(|pair| pair[1].0)
    }

    /// All operations here up to that one are durable.
    fn promise_until(&mut self, until: OperationNo) {
        let later = self.0.iter().filter(|(by, _)| *by > until).count();
        self.0.drain(..self.0.len() - 1 - later);
    }
}

#[derive(Clone, Debug)]
pub(super) struct Object {
    pub kind: FileKind,
    /// Unknown for an object that was being created when the power was cut.
    pub ino: Option<Ino>,
    pub entries: Versions<Rc<Entries>>,
    pub content: Versions<Rc<Vec<u8>>>,
    pub mode: Versions<u16>,
    pub xattrs: Versions<Rc<Xattrs>>,
    /// The target of a symbolic link.
    pub target: Box<[u8]>,
    pub handle: Option<Handle>,
    /// It cannot be read, or directories that cannot be read may lead to it.
    pub unsure: bool,
    /// Pages of it were damaged in frames, and the client has not looked at it since.
    pub is_doubtful: bool,
    /// The directories in which, and the operations by which, the file took the name of another.
    replaced: Vec<(ObjectNo, OperationNo)>,
}

impl Object {
    pub(super) fn new(kind: FileKind, ino: Option<Ino>, mode: u16, target: &[u8]) -> Self {
        Self {
            kind,
            ino,
            entries: Versions::new(Rc::default()),
            content: Versions::new(Rc::default()),
            mode: Versions::new(mode),
            xattrs: Versions::new(Rc::default()),
            target: target.into(),
            handle: None,
            unsure: false,
            is_doubtful: false,
            replaced: Vec::new(),
        }
    }

    /// The contents that are allowed if directories are as these operations, or later ones, left
    /// them.
    pub(super) fn contents(&self, found: &BTreeMap<ObjectNo, OperationNo>) -> Vec<Rc<Vec<u8>>> {
        let is_there = |(dir, by): &&(ObjectNo, OperationNo)| {
            found.get(dir).is_some_and(|version| version >= by)
        };
        let since = self.replaced.iter().filter(is_there).map(|(_, by)| *by).max().unwrap_or(0);
        self.content.since(since).iter().map(|(_, content)| Rc::clone(content)).collect()
    }

    /// An object that cannot be read, as it is now, with the entries that lead to what is there.
    pub(super) fn unread(&self, is_there: impl Fn(ObjectNo) -> bool) -> Self {
        let mut entries = (**self.entries.now()).clone();
        entries.retain(|_, object| is_there(*object));
        Self {
            entries: Versions::new(Rc::new(entries)),
            content: Versions::new(Rc::clone(self.content.now())),
            xattrs: Versions::new(Rc::clone(self.xattrs.now())),
            unsure: true,
            ..Self::new(self.kind, self.ino, *self.mode.now(), &self.target)
        }
    }

    fn promise(&mut self) {
        self.entries.promise();
        if !self.is_doubtful {
            self.content.promise();
        }
        self.mode.promise();
        self.xattrs.promise();
    }
}

/// The bytes of a file after a change of a range.
fn fallocated(content: &[u8], change: &RangeChange) -> Vec<u8> {
    let (start, end) = (change.offset as usize, (change.offset + change.length) as usize);
    let mut bytes = content.to_vec();
    if !change.keep_size && end > bytes.len() {
        bytes.resize(end, 0);
    }
    if change.kind != RangeKind::Allocate {
        let end = end.min(bytes.len());
        bytes[start.min(end)..end].fill(0);
    }
    bytes
}

/// The progress of a client with one file.
pub(super) struct LookAgain {
    pub object: ObjectNo,
    pub ino: Ino,
    pub handle: Option<Handle>,
    pub content: Vec<u8>,
    pub is_done: bool,
}

/// Whether each byte of the content is that of a version.
pub(super) fn is_of_versions(content: &[u8], versions: &[Rc<Vec<u8>>]) -> bool {
    let is_of = |(at, byte): (usize, &u8)| {
        versions.iter().any(|version| version.get(at).unwrap_or(&0) == byte)
    };
    content.iter().enumerate().all(is_of)
}

/// The effect of a successful operation.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    Create {
        dir: ObjectNo,
        name: Name,
        kind: FileKind,
        mode: u16,
        target: Box<[u8]>,
    },
    Link {
        object: ObjectNo,
        dir: ObjectNo,
        name: Name,
    },
    Remove {
        dir: ObjectNo,
        name: Name,
    },
    Rename {
        from: ObjectNo,
        from_name: Name,
        dir: ObjectNo,
        name: Name,
    },
    /// `None`: at the end.
    Write {
        object: ObjectNo,
        at: Option<u64>,
        bytes: Rc<[u8]>,
    },
    Truncate {
        object: ObjectNo,
        size: u64,
    },
    Fallocate {
        object: ObjectNo,
        change: RangeChange,
    },
    /// Whole blocks of the source, or all up to its end and that of the target.
    Copy {
        object: ObjectNo,
        source: ObjectNo,
        copy: RangeCopy,
    },
    Chmod {
        object: ObjectNo,
        mode: u16,
    },
    SetXattr {
        object: ObjectNo,
        name: Name,
        value: Option<Box<[u8]>>,
    },
    Open {
        object: ObjectNo,
    },
    Close {
        object: ObjectNo,
    },
    Fsync {
        object: ObjectNo,
    },
    /// No change: the client looks at the file again.
    Look,
    Sync,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub objects: BTreeMap<ObjectNo, Object>,
    next: ObjectNo,
    /// The number of operations so far.
    operations: OperationNo,
}

impl Model {
    pub(super) fn new(root: Ino, mode: u16) -> Self {
        let root = Object::new(FileKind::Directory, Some(root), mode, &[]);
        Self { objects: BTreeMap::from([(ROOT, root)]), next: 1, operations: 0 }
    }

    /// The model of a tree that a power cut left, which is durable.
    pub(super) fn recovered(objects: BTreeMap<ObjectNo, Object>) -> Self {
        let next = objects.keys().last().map_or(1, |last| last + 1);
        let mut model = Self { objects, next, operations: 0 };
        model.promise_all();
        model
    }

    /// The maximum of blocks in all versions of all files.
    pub(super) fn blocks(&self) -> usize {
        let of_file = |object: &Object| {
            object.content.versions().map(|v| v.len().div_ceil(BLOCK_SIZE)).sum::<usize>()
        };
        self.objects.values().map(of_file).sum()
    }

    pub(super) fn object(&self, object: ObjectNo) -> &Object {
        &self.objects[&object]
    }

    pub(super) fn object_mut(&mut self, object: ObjectNo) -> &mut Object {
        self.objects.get_mut(&object).expect("an object of the model")
    }

    /// Every object with a name now, by a directory that contains it.
    pub(super) fn named_objects(&self) -> Vec<ObjectNo> {
        let mut found = vec![ROOT];
        let mut at = 0;
        while let Some(object) = found.get(at) {
            for child in self.objects[object].entries.now().values() {
                if !found.contains(child) {
                    found.push(*child);
                }
            }
            at += 1;
        }
        found
    }

    /// Whether `object` is `dir` or below it.
    pub(super) fn is_within(&self, object: ObjectNo, dir: ObjectNo) -> bool {
        let mut todo = vec![dir];
        while let Some(next) = todo.pop() {
            if next == object {
                return true;
            }
            todo.extend(self.objects[&next].entries.now().values());
        }
        false
    }

    /// The operation has happened, or may have: then the inode that it created is unknown.
    pub(super) fn apply(&mut self, effect: &Effect, created: Option<Ino>) {
        self.operations += 1;
        let by = self.operations;
        match effect {
            Effect::Create { dir, name, kind, mode, target } => {
                let object = self.next;
                self.next += 1;
                self.objects.insert(object, Object::new(*kind, created, *mode, target));
                self.change(*dir, |entries| {
                    entries.insert(name.clone(), object);
                });
            }
            Effect::Link { object, dir, name } => {
                self.change(*dir, |entries| {
                    entries.insert(name.clone(), *object);
                });
            }
            Effect::Remove { dir, name } => self.change(*dir, |entries| {
                entries.remove(name);
            }),
            Effect::Rename { from, from_name, dir, name } => {
                self.rename((*from, from_name), (*dir, name));
            }
            Effect::Write { object, at, bytes } => self.write(*object, *at, bytes),
            Effect::Truncate { object, size } => {
                let object = self.object_mut(*object);
                let mut content = object.content.now().to_vec();
                content.resize(*size as usize, 0);
                object.content.push(by, Rc::new(content));
            }
            Effect::Fallocate { object, change } => {
                let object = self.object_mut(*object);
                let content = fallocated(object.content.now(), change);
                object.content.push(by, Rc::new(content));
            }
            Effect::Copy { object, source, copy } => {
                let from = copy.from as usize..(copy.from + copy.length) as usize;
                let bytes: Rc<[u8]> = self.object(*source).content.now()[from].into();
                let unsure = self.object(*source).unsure;
                self.object_mut(*object).unsure |= unsure;
                self.write(*object, Some(copy.to), &bytes);
            }
            Effect::Chmod { object, mode } => self.object_mut(*object).mode.push(by, *mode),
            Effect::SetXattr { object, name, value } => {
                let object = self.object_mut(*object);
                let mut xattrs = (**object.xattrs.now()).clone();
                match value {
                    Some(value) => drop(xattrs.insert(name.clone(), value.clone())),
                    None => drop(xattrs.remove(name)),
                }
                object.xattrs.push(by, Rc::new(xattrs));
            }
            Effect::Close { object } => self.object_mut(*object).handle = None,
            Effect::Fsync { object } => {
                self.object_mut(*object).promise();
                self.promise_names(*object, by);
            }
            Effect::Sync => self.promise_all(),
            Effect::Open { .. } | Effect::Look => {}
        }
    }

    /// The client has looked at a file that was doubtful.
    pub(super) fn settle_content(&mut self, object: ObjectNo, content: &[u8]) {
        self.operations += 1;
        let by = self.operations;
        let object = self.object_mut(object);
        object.is_doubtful = false;
        if **object.content.now() != content {
            object.content.push(by, Rc::new(content.to_vec()));
        }
    }

    pub(super) fn promise_all(&mut self) {
        self.objects.values_mut().for_each(Object::promise);
    }

    /// The names of the object after operation `until` are durable, and with each all that it
    /// depends on.
    fn promise_names(&mut self, object: ObjectNo, until: OperationNo) {
        let mut todo = vec![(object, until)];
        while let Some((object, until)) = todo.pop() {
            for (no, dir) in &mut self.objects {
                if let Some(by) = dir.entries.last_about(object, until) {
                    dir.entries.promise_until(by);
                    todo.push((*no, by));
                }
            }
        }
    }

    fn change(&mut self, dir: ObjectNo, change: impl FnOnce(&mut Entries)) {
        let by = self.operations;
        let versions = &mut self.object_mut(dir).entries;
        let mut entries = (**versions.now()).clone();
        change(&mut entries);
        versions.push(by, Rc::new(entries));
    }

    fn rename(&mut self, (from, from_name): (ObjectNo, &Name), (dir, name): (ObjectNo, &Name)) {
        let moved = self.object(from).entries.now()[from_name];
        let victim = self.object(dir).entries.now().get(name).copied();
        if victim == Some(moved) {
            return;
        }
        if victim.is_some() && self.object(moved).kind == FileKind::Regular {
            let by = self.operations;
            self.object_mut(moved).replaced.push((dir, by));
        }
        // Within one directory both changes are one.
        if from == dir {
            return self.change(dir, |entries| {
                entries.remove(from_name);
                entries.insert(name.clone(), moved);
            });
        }
        self.change(from, |entries| {
            entries.remove(from_name);
        });
        self.change(dir, |entries| {
            entries.insert(name.clone(), moved);
        });
    }

    fn write(&mut self, object: ObjectNo, at: Option<u64>, bytes: &[u8]) {
        let by = self.operations;
        let object = self.object_mut(object);
        let mut content = object.content.now().to_vec();
        let at = at.map_or(content.len(), |at| at as usize);
        content.resize(content.len().max(at + bytes.len()), 0);
        content[at..at + bytes.len()].copy_from_slice(bytes);
        object.content.push(by, Rc::new(content));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Name {
        name.as_bytes().into()
    }

    fn create(model: &mut Model, dir: ObjectNo, called: &str, kind: FileKind) -> ObjectNo {
        let effect =
            Effect::Create { dir, name: name(called), kind, mode: 0o644, target: [].into() };
        model.apply(&effect, None);
        model.object(dir).entries.now()[&name(called)]
    }

    fn may_be_absent(model: &Model, dir: ObjectNo, called: &str) -> bool {
        model.object(dir).entries.versions().any(|entries| !entries.contains_key(&name(called)))
    }

    #[test]
    fn an_fsync_keeps_the_names_of_the_file_and_of_directories_above_it() {
        let mut model = Model::new(Ino::ROOT, 0o755);
        let dir = create(&mut model, ROOT, "dir", FileKind::Directory);
        create(&mut model, dir, "before", FileKind::Regular);
        let file = create(&mut model, dir, "file", FileKind::Regular);
        create(&mut model, dir, "behind", FileKind::Regular);
        create(&mut model, ROOT, "beside", FileKind::Regular);
        assert!(may_be_absent(&model, ROOT, "dir") && may_be_absent(&model, dir, "file"));
        model.apply(&Effect::Fsync { object: file }, None);
        for (dir, called) in [(ROOT, "dir"), (dir, "before"), (dir, "file")] {
            assert!(!may_be_absent(&model, dir, called), "{called}");
        }
        assert!(may_be_absent(&model, dir, "behind") && may_be_absent(&model, ROOT, "beside"));
    }

    #[test]
    fn a_rename_over_a_name_keeps_the_content_where_it_is_there() {
        let mut model = Model::new(Ino::ROOT, 0o755);
        create(&mut model, ROOT, "old", FileKind::Regular);
        let file = create(&mut model, ROOT, "new", FileKind::Regular);
        let write = |byte: u8| Effect::Write { object: file, at: Some(0), bytes: [byte].into() };
        model.apply(&write(1), None);
        let (from_name, to) = (name("new"), name("old"));
        let renamed = Effect::Rename { from: ROOT, from_name, dir: ROOT, name: to.clone() };
        model.apply(&renamed, None);
        let version_of = |model: &Model, no: ObjectNo| {
            let is_one = |entries: &Rc<Entries>| entries.get(&to) == Some(&no);
            BTreeMap::from([(ROOT, model.object(ROOT).entries.first(is_one).unwrap())])
        };
        model.apply(&write(2), None);
        let contents = |found: BTreeMap<_, _>| {
            let contents = model.object(file).contents(&found);
            contents.iter().map(|content| content.to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(contents(version_of(&model, file)), [[1], [2]]);
        assert_eq!(contents(version_of(&model, file - 1)), [vec![], vec![1], vec![2]]);
    }

    #[test]
    fn an_fsync_keeps_a_rename_and_not_what_came_behind() {
        let mut model = Model::new(Ino::ROOT, 0o755);
        let dir = create(&mut model, ROOT, "dir", FileKind::Directory);
        let file = create(&mut model, ROOT, "old", FileKind::Regular);
        let moved = Effect::Rename { from: ROOT, from_name: name("old"), dir, name: name("new") };
        model.apply(&moved, None);
        model.apply(&Effect::Fsync { object: file }, None);
        assert!(!may_be_absent(&model, dir, "new"));
        assert!(model.object(ROOT).entries.versions().all(|e| !e.contains_key(&name("old"))));
        model.apply(&Effect::Remove { dir, name: name("new") }, None);
        assert!(may_be_absent(&model, dir, "new"));
    }
}
