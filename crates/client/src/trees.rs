//! Directories in which the client alone changes names, so that it may post such changes without
//! waiting (decision 84).
//!
//! A *tree* is a directory that is delegated to the client, with all inodes that the client has
//! made there since, at any depth. For each the client knows the attributes, and for each directory
//! the names. It plans a change with the rules of the cell, over what it knows; what it does not
//! know, it requests.
//!
//! ```text
//! plan      the guard holds, credit and numbers suffice, the plan needs nothing unknown
//! publish   the record is in the stream; names and attributes are those after it
//! check     the guard holds still: the change is made. Else the caller waits for the outcome
//! ```
//!
//! While a request in a slot changes names or attributes of a tree, nothing is posted there: the
//! cell revokes the lease, and the reply brings another.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashMap;
use warren_base::{CellId, Errno, FixedState, Ino, ShardId, Timestamp};
use warren_proto::stream::{Delegated, DelegatedTree, Numbered};
use warren_proto::{
    AccessMode, Acl, Answer, Answered, Attr, Capability, Change, CreateFlags, Credentials,
    DirEntries, Entry, FileKind, FileName, Handle, InodeRef, InodeValue, LockMode, Opened, Reply,
    Request,
};
use warren_rules::names::{self, Outcome, Plan, View};
use warren_rules::permission;

use crate::guard::{Guard, Words};
use crate::tree::{Known, Leads, Names, Node, Tree};

/// Inodes of all trees. One more makes the client forget all trees, and it gets others.
const NODES_MAX: usize = 1 << 15;
/// Who opens a file so needs what only a reply brings.
const LEASED: AccessMode = AccessMode::KEEP.union(AccessMode::DATA).union(AccessMode::WATCH);

/// A change of names that may be posted, or would fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamePost {
    pub cell: CellId,
    pub guard: Guard,
    pub time: Timestamp,
    /// The number of the inode that it makes.
    pub new: Option<Ino>,
    /// The reply of the cell, without leases. An error: nothing is to be published.
    pub answer: Answer,
    pub granted: Capability,
    root: Ino,
    cost: u32,
    changes: Vec<Change>,
}

impl NamePost {
    pub fn answered(&self) -> Answered {
        Answered::new(self.answer.clone(), self.granted)
    }
}

/// The trees of a client.
#[derive(Clone, Default, Debug)]
pub(crate) struct Trees {
    trees: HashMap<Ino, Tree, FixedState>,
    nodes: HashMap<Ino, Node, FixedState>,
    /// The inodes that requests under way on names name, once for each.
    under_way: Vec<Ino>,
}

impl Trees {
    /// The inode, and its tree, if a lease is known to guard it.
    pub(crate) fn find(&self, ino: Ino) -> Option<(&Node, &Tree, Guard)> {
        if self.nodes.is_empty() {
            return None;
        }
        let node = self.nodes.get(&ino)?;
        let tree = self.trees.get(&node.root)?;
        Some((node, tree, tree.guard?))
    }

    pub(crate) fn node_mut(&mut self, ino: Ino) -> Option<&mut Node> {
        self.nodes.get_mut(&ino)
    }

    pub(crate) fn spend(&mut self, root: Ino, cost: u32) {
        if let Some(tree) = self.trees.get_mut(&root) {
            tree.credit = tree.credit.saturating_sub(cost);
        }
    }

    /// The attributes of the inode, and their guard, if they are known.
    pub(crate) fn attr(&self, ino: Ino) -> Option<(Attr, Guard)> {
        let (node, _, guard) = self.find(ino)?;
        let value = node.value.as_ref().filter(|_| node.known.is_exact)?;
        Some((value.attr, guard))
    }

    /// The inode of the name, if it is known and `who` may search the directory, and the guard.
    pub(crate) fn name_for(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
    ) -> Option<(Option<(InodeRef, FileKind)>, Guard)> {
        let value = self.find(dir)?.0.value.as_ref()?;
        permission::check(who, value, permission::EXECUTE).ok()?;
        self.name(dir, name)
    }

    /// The inode of the name, if it is known, and the guard.
    fn name(&self, dir: Ino, name: &[u8]) -> Option<(Option<(InodeRef, FileKind)>, Guard)> {
        let (node, _, guard) = self.find(dir)?;
        let names = node.names.as_ref()?;
        match names.by_name.get(name) {
            Some(Leads::Member(ino, kind)) => {
                let capability = self.nodes.get(ino)?.capability;
                Some((Some((InodeRef { ino: *ino, capability }, *kind)), guard))
            }
            Some(Leads::Elsewhere) => None,
            None => names.unlisted.is_none().then_some((None, guard)),
        }
    }

    /// A lease is not valid any more.
    pub(crate) fn lose(&mut self, guard: Guard) {
        let lost = self.trees.iter().find(|(_, tree)| tree.guard == Some(guard));
        if let Some((root, _)) = lost {
            self.forget(*root);
        }
    }

    pub(crate) fn forget(&mut self, root: Ino) {
        if self.trees.remove(&root).is_some() {
            self.nodes.retain(|_, node| node.root != root);
        }
    }

    /// A request is about to be sent to a cell in a slot.
    pub(crate) fn begin(&mut self, request: &Request) {
        if request.changes_names() {
            self.under_way.extend([request.inode(), request.other_inode()].into_iter().flatten());
        }
        if self.nodes.is_empty() {
            return;
        }
        for ino in [request.inode(), request.other_inode()].into_iter().flatten() {
            self.begin_use(request, ino);
        }
    }

    fn begin_use(&mut self, request: &Request, ino: Ino) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        match request {
            Request::Open { access, .. } if !access.is_change() => node.is_open = false,
            // A read may change the access time.
            Request::Open { .. }
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::Fallocate { .. }
            | Request::CopyRange { .. } => node.note_use(),
            _ if request.is_change() || request.changes_names() => {
                if request.other_inode() == Some(ino) || !request.changes_names() {
                    node.value = None;
                }
                let root = node.root;
                if let Some(tree) = self.trees.get_mut(&root) {
                    tree.guard = None;
                }
            }
            _ => {}
        }
    }

    /// The request was answered. What came with the answer is kept afterwards.
    pub(crate) fn end(&mut self, request: &Request, answered: &Answered) {
        if !request.changes_names() {
            return;
        }
        let tree = answered.delegated.as_deref().and_then(|delegated| delegated.tree.as_deref());
        let continued = tree.filter(|tree| tree.continues).map(|tree| tree.root);
        for ino in [request.inode(), request.other_inode()].into_iter().flatten() {
            if let Some(at) = self.under_way.iter().position(|other| *other == ino) {
                self.under_way.swap_remove(at);
            }
            let root = self.nodes.get(&ino).map(|node| node.root);
            if let Some(root) = root.filter(|root| Some(*root) != continued) {
                self.forget(root);
            }
        }
        let Some(node) = request.inode().and_then(|dir| self.nodes.get_mut(&dir)) else { return };
        // The delegation brings its attributes.
        node.value = None;
        let Some(names) = &mut node.names else { return };
        if let (Request::Unlink { name, .. } | Request::Rmdir { name, .. }, Ok(_)) =
            (request, &answered.answer)
            && let Some(Leads::Member(ino, _)) = names.by_name.remove(name.as_bytes())
        {
            self.nodes.remove(&ino);
        }
    }

    /// Keeps a delegation of a directory that came with a reply of `cell`.
    pub(crate) fn keep(
        &mut self,
        cell: CellId,
        (request, answered): (&Request, &Answered),
        delegated: &Delegated,
        tree: &DelegatedTree,
    ) {
        let DelegatedTree { root, entries, continues, ref numbers, .. } = *tree;
        let Some(guard) = Guard::new(cell, delegated.lease) else { return };
        let before = self.trees.get(&root);
        let is_later = before.is_some_and(|before| before.stamp > guard.stamp);
        if is_later || continues && before.is_none() {
            // What the client had made there may be forgotten.
            return;
        }
        let nodes = &self.nodes;
        let is_of_tree =
            |dir: &Ino| *dir == root || nodes.get(dir).is_some_and(|it| it.root == root);
        if self.under_way.iter().any(is_of_tree) {
            // Another request has changed something that is not known here. The cell ends the tree,
            // because it is not used.
            return self.forget(root);
        }
        if !continues {
            self.begin_tree(root, entries);
        }
        let attr = delegated.attr;
        if let Some(node) = self.nodes.get_mut(&attr.ino) {
            node.value = Some(InodeValue { attr, parent: Ino(0), entries, acl: None });
            node.known.is_exact = true;
        }
        self.trees.insert(root, Tree::new(cell, guard, delegated.credit, numbers));
        if let (Request::Create { dir, name, flags, .. }, Ok(reply)) = (request, &answered.answer)
            && *dir == attr.ino
            && !flags.contains(CreateFlags::NAMELESS)
        {
            self.note_created((root, *dir), name, (reply, answered.granted), tree.has_made);
        }
    }

    /// A directory is delegated, of which nothing is known but its number of names.
    fn begin_tree(&mut self, root: Ino, entries: u64) {
        self.forget(root);
        if self.nodes.len() >= NODES_MAX {
            self.trees.clear();
            self.nodes.clear();
        }
        let unlisted = (entries > 0).then_some(0);
        let node = Node {
            root,
            capability: Capability::NONE,
            value: None,
            known: Known { is_dense: false, is_exact: true },
            is_open: false,
            names: Some(Names { unlisted, ..Names::all_of_none() }),
        };
        self.nodes.insert(root, node);
    }

    /// A request in a slot has found the name, or has made a member with that name.
    fn note_created(
        &mut self,
        (root, dir): (Ino, Ino),
        name: &FileName,
        (reply, capability): (&Reply, Capability),
        has_made: bool,
    ) {
        let (Reply::Created { entry, .. } | Reply::Entry(entry)) = reply else { return };
        let mut leads = Leads::Elsewhere;
        if let Some(found) = self.nodes.get_mut(&entry.ino) {
            found.note_use();
            leads = Leads::Member(entry.ino, entry.kind);
        } else if let Some((attr, _)) = entry.attr.filter(|_| has_made) {
            let value = Some(InodeValue { attr, parent: Ino(0), entries: 0, acl: None });
            let known = Known { is_dense: true, is_exact: true };
            let (is_open, names) = (reply.opened().is_some(), None);
            self.nodes.insert(entry.ino, Node { root, capability, value, known, is_open, names });
            leads = Leads::Member(entry.ino, entry.kind);
        }
        if let Some(names) = self.nodes.get_mut(&dir).and_then(|dir| dir.names.as_mut()) {
            names.by_name.insert(name.as_bytes().into(), leads);
        }
    }

    /// The page of names that the client should request next, so that it knows all names of a
    /// directory: the directory, and the cookie.
    pub(crate) fn next_page(&self, dir: Ino) -> Option<u64> {
        self.find(dir)?.0.names.as_ref().filter(|names| !names.is_hidden)?.unlisted
    }

    /// The names of the directory cannot be listed.
    pub(crate) fn not_listed(&mut self, dir: Ino) {
        if let Some(names) = self.nodes.get_mut(&dir).and_then(|node| node.names.as_mut()) {
            names.is_hidden = true;
        }
    }

    /// A page of the names of a directory was received.
    pub(crate) fn listed(&mut self, (dir, cookie): (Ino, u64), entries: &DirEntries, end: bool) {
        let Some(names) = self.nodes.get_mut(&dir).and_then(|node| node.names.as_mut()) else {
            return;
        };
        if names.unlisted != Some(cookie) {
            return;
        }
        for entry in entries.iter() {
            // A member that the listing shows may be removed since: then it is requested.
            names.by_name.entry(entry.name.into()).or_insert(Leads::Elsewhere);
        }
        names.unlisted = match entries.last_cookie() {
            _ if end => None,
            Some(last) if last > cookie => Some(last),
            _ => Some(cookie),
        };
    }

    /// Predicts the outcome of the request, if it may be posted now.
    pub(crate) fn plan(
        &mut self,
        request: &Request,
        (who, now): (&Credentials, Timestamp),
        words: &impl Words,
    ) -> Option<NamePost> {
        let (dir, other) = (request.inode()?, request.other_inode());
        let (node, tree, guard) = self.find(dir)?;
        let root = node.root;
        if !guard.holds(words) {
            self.forget(root);
            return None;
        }
        let cost = request.post_cost(0);
        let dirs = [Some(dir), other].into_iter().flatten();
        let is_here = |dir: Ino| self.nodes.get(&dir).is_some_and(|node| node.root == root);
        let asks_for_leases =
            matches!(request, Request::Create { access, .. } if access.intersects(LEASED));
        let may_post = request.is_postable() && !asks_for_leases && cost <= tree.credit;
        if !may_post || !dirs.clone().all(is_here) {
            return None;
        }
        // A time that a directory has already is later than a clock that was set back.
        let ctime = |dir: Ino| self.nodes.get(&dir)?.value.as_ref().map(|value| value.attr.ctime);
        let time = dirs.filter_map(ctime).fold(now, Timestamp::max);
        let mut look = Look { trees: self, tree, who, now: time };
        let plan = names::plan(&mut look, &request.on_names()?);
        let (new, numbered) = tree.numbers.front().copied().unzip();
        let makes = matches!(request, Request::Create { .. });
        let (answer, granted, changes) = match plan {
            Err(Stop::Unknown) => return None,
            Err(Stop::Fails(errno)) => (Err(errno), Capability::NONE, Vec::new()),
            Ok(Plan { changes, outcome }) => {
                let (reply, granted) = reply_of(outcome, numbered)?;
                (Ok(reply), granted, changes)
            }
        };
        let new = new.filter(|_| makes && answer.is_ok());
        let cell = tree.cell;
        Some(NamePost { cell, guard, time, new, answer, granted, root, cost, changes })
    }

    /// The record of the change is published. Returns the inodes whose attributes it has changed,
    /// except directories in which names were changed.
    pub(crate) fn note_published(&mut self, post: &NamePost) -> Vec<Ino> {
        let Some(tree) = self.trees.get_mut(&post.root) else { return Vec::new() };
        let number = if post.new.is_some() { tree.numbers.pop_front() } else { None };
        self.make_all(post, number.map_or(Capability::NONE, |(_, it)| it.capability))
    }

    /// The root of the tree of a change, if more credit or numbers should be asked for now. The
    /// caller asks.
    pub(crate) fn wants_more(&mut self, post: &NamePost) -> Option<Ino> {
        let tree = self.trees.get_mut(&post.root)?;
        let wants = tree.is_low() && !tree.is_extending;
        tree.is_extending |= wants;
        wants.then_some(post.root)
    }

    /// The answer to [`Request::Extend`].
    pub(crate) fn extended(&mut self, root: Ino, delegated: Option<&Delegated>) {
        let Some(tree) = self.trees.get_mut(&root) else { return };
        tree.is_extending = false;
        if let Some(Delegated { lease, credit, tree: Some(more), .. }) = delegated
            && lease.stamp == tree.stamp
        {
            tree.add(*credit, &more.numbers);
        } else {
            // There is no more: it is not asked for again.
            tree.full = (0, 0);
        }
    }

    fn make_all(&mut self, post: &NamePost, capability: Capability) -> Vec<Ino> {
        self.spend(post.root, post.cost);
        let is_open = matches!(&post.answer, Ok(Reply::Created { opened: Some(_), .. }));
        let mut changed = Vec::new();
        for change in &post.changes {
            match change {
                Change::NewInode { ino, .. } => {
                    let value = names::predict::created(change);
                    let is_directory =
                        value.as_ref().is_some_and(|it| it.attr.kind == FileKind::Directory);
                    let known = Known { is_dense: true, is_exact: true };
                    let names = is_directory.then(Names::all_of_none);
                    let root = post.root;
                    self.nodes
                        .insert(*ino, Node { root, capability, value, known, is_open, names });
                }
                change => self.make(change, &mut changed),
            }
        }
        changed
    }

    fn make(&mut self, change: &Change, changed: &mut Vec<Ino>) {
        if !change.is_of_entry() {
            changed.push(change.home());
        }
        let Some(node) = self.nodes.get_mut(&change.home()) else { return };
        let mut gone = None;
        if let Some(names) = &mut node.names {
            gone = match change {
                Change::AddEntry { name, ino, kind, .. }
                | Change::ReplaceEntry { name, ino, kind, .. } => {
                    names.by_name.insert(name.as_bytes().into(), Leads::Member(*ino, *kind))
                }
                Change::RemoveEntry { name, .. } => names.by_name.remove(name.as_bytes()),
                _ => None,
            };
        }
        let gone = match gone {
            Some(Leads::Member(_, kind)) => Some(kind),
            _ => None,
        };
        let Some(value) = &mut node.value else { return };
        names::predict::apply(change, value, gone);
        if value.attr.nlink == 0 {
            self.nodes.remove(&change.home());
        }
    }
}

/// The reply of the cell, and the capability for the inode in it. `None` if only the cell knows it.
fn reply_of(outcome: Outcome, numbered: Option<Numbered>) -> Option<(Reply, Capability)> {
    match outcome {
        Outcome::Done => Some((Reply::Done, Capability::NONE)),
        Outcome::Unchanged => Some((Reply::Unchanged, Capability::NONE)),
        Outcome::Created { attr, found: false, open } => {
            let Numbered { capability, opens } = numbered?;
            let wants_lease =
                |access: &AccessMode| access.intersects(AccessMode::KEEP | AccessMode::SOLE);
            let opened = open.map(|access| {
                let handle = Handle { ino: attr.ino, open: Handle::BORN };
                let kept = Some(opens).filter(|_| wants_lease(&access));
                Box::new(Opened { handle, attr, keep_pages: false, direct: false, kept })
            });
            let (ino, kind) = (attr.ino, attr.kind);
            let entry = Entry { ino, kind, lease: None, attr: Some((attr, None)) };
            Some((Reply::Created { entry, opened }, capability))
        }
        Outcome::Created { found: true, .. } | Outcome::Entry { .. } => None,
    }
}

/// Why the client cannot plan a change.
enum Stop {
    Fails(Errno),
    /// Something that the client does not know.
    Unknown,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Fails(errno)
    }
}

/// The knowledge of a client about a tree.
struct Look<'a> {
    trees: &'a Trees,
    tree: &'a Tree,
    who: &'a Credentials,
    now: Timestamp,
}

impl View for Look<'_> {
    type Stop = Stop;

    fn who(&self) -> &Credentials {
        self.who
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn inode(&mut self, ino: Ino, _: LockMode) -> Result<Option<InodeValue>, Stop> {
        let value = self.trees.nodes.get(&ino).and_then(|node| node.value.clone());
        value.map(Some).ok_or(Stop::Unknown)
    }

    fn name(
        &mut self,
        dir: Ino,
        name: &FileName,
        _: LockMode,
    ) -> Result<Option<(Ino, FileKind)>, Stop> {
        let found = self.trees.name(dir, name.as_bytes()).ok_or(Stop::Unknown)?.0;
        Ok(found.map(|(node, kind)| (node.ino, kind)))
    }

    fn default_acl(&self, _: &InodeValue) -> Result<Option<Acl>, Stop> {
        // A directory with such a list is not delegated, and none is made below it.
        Ok(None)
    }

    fn place(&self, dir: Ino, _: &FileName) -> ShardId {
        dir.shard()
    }

    fn new_ino(&mut self, _: ShardId) -> Result<Ino, Stop> {
        Ok(self.tree.numbers.front().ok_or(Stop::Unknown)?.0)
    }

    fn opens_files_of(&self, _: ShardId) -> bool {
        true
    }

    fn touch_tree(&mut self) -> Result<(), Stop> {
        Err(Stop::Unknown)
    }
}

#[cfg(test)]
mod tests;
