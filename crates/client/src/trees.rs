//! Directories in which the client alone changes names, so that it may post such changes without
//! waiting (decision 84).
//!
//! A *tree* is a directory that is delegated to the client, with all inodes that the client has
//! made there since, at any depth, and older files that it has looked up. For each the client knows
//! the attributes, and for each directory the names. It plans a change with the rules of the cell,
//! over what it knows, and may ask for what it does not know ([`Trees::missing`]).
//!
//! ```text
//! plan      the guard holds, credit and numbers suffice, the plan needs nothing unknown
//! publish   the record is in the stream; names and attributes are those after it
//! check     the guard holds still: the change is made. Else the caller waits for the outcome
//! ```
//!
//! While a request in a slot changes names or attributes of a tree, nothing is posted there: the
//! cell revokes the lease, and the reply brings another.

use alloc::vec::Vec;

use hashbrown::{HashMap, HashSet};
use warren_base::{CellId, FixedState, Ino};
use warren_proto::stream::{Delegated, DelegatedTree};
use warren_proto::{
    Answered, Attr, Capability, Change, CreateFlags, Credentials, DirEntries, Entry, FileKind,
    FileName, InodeRef, InodeValue, Lease, Reply, Request, SetAttr,
};
use warren_rules::{names, permission, predict};

use crate::guard::Guard;
use crate::tree::{Known, Leads, NamePost, Names, Node, Tree};

mod plan;

/// Inodes of all trees. One more makes the client forget all trees, and it gets others.
const NODES_MAX: usize = 1 << 15;

/// The trees of a client.
#[derive(Clone, Default, Debug)]
pub(crate) struct Trees {
    trees: HashMap<Ino, Tree, FixedState>,
    nodes: HashMap<Ino, Node, FixedState>,
    /// The inodes that requests under way on names name, once for each.
    under_way: Vec<Ino>,
    /// The number of requests under way that open inodes.
    opening: usize,
    /// Grows with each change that is posted under a tree, at the start and the end of each request
    /// that may change something, and with each tree that comes.
    moment: u64,
    /// The moment after the last post under a tree that has changed attributes of an inode.
    changed_at: u64,
    /// Members of which the client may not know each name: a request in a slot has moved or linked
    /// them, or forgotten their directory.
    unnamed: HashSet<Ino, FixedState>,
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

    /// If the answer to a request comes at a later moment than [`Trees::end_of`] says, it may be
    /// older than what the client knows: it was made under a lease that stands, which no post of
    /// the client ends.
    pub(crate) const fn moment(&self) -> u64 {
        self.moment
    }

    /// The moment at the end of a request that was sent at this one, if nothing else happens.
    pub(crate) fn end_of(request: &Request, moment: u64) -> u64 {
        moment + if acts(request) { 2 } else { 0 }
    }

    pub(crate) const fn changed_at(&self) -> u64 {
        self.changed_at
    }

    /// A change is posted under a tree.
    pub(crate) const fn note_post(&mut self, changes_attributes: bool) {
        self.moment += 1;
        if changes_attributes {
            self.changed_at = self.moment;
        }
    }

    /// The attributes of the inode are not known any more.
    pub(crate) fn forget_value(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.value = None;
            node.known.is_dense = false;
        }
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
            Some(Leads::Elsewhere { inode, kind, .. }) => Some((Some((*inode, *kind)), guard)),
            Some(Leads::Unknown) => None,
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
        self.moment += u64::from(acts(request));
        self.opening += usize::from(opens(request));
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
                if let Request::SetAttr { set: SetAttr { size: Some(_), .. }, .. } = request {
                    node.known.is_dense = false;
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
        self.moment += u64::from(acts(request));
        self.opening -= usize::from(opens(request));
        if !request.changes_names() {
            if let Some(ino) = request.inode().filter(|_| request.is_change()) {
                // It may have become a member meanwhile, as it was before.
                self.begin_use(request, ino);
            }
            return;
        }
        let tree = answered.delegated.as_deref().and_then(|delegated| delegated.tree.as_deref());
        let continued = tree.filter(|tree| self.continues(tree)).map(|tree| tree.root);
        for ino in [request.inode(), request.other_inode()].into_iter().flatten() {
            if let Some(at) = self.under_way.iter().position(|other| *other == ino) {
                self.under_way.swap_remove(at);
            }
            let root = self.nodes.get(&ino).map(|node| node.root);
            if let Some(root) = root.filter(|root| Some(*root) != continued) {
                self.forget(root);
            }
        }
        for dir in [request.inode(), request.other_inode()].into_iter().flatten() {
            if let Some(node) = self.nodes.get_mut(&dir) {
                // The delegation brings those of the directory that the request is routed by.
                node.value = None;
            }
        }
        match request {
            Request::Unlink { dir, name } | Request::Rmdir { dir, name }
                if answered.answer.is_ok() =>
            {
                self.forget_named(*dir, name);
            }
            Request::Rename { from, from_name, dir, name, .. } => {
                self.renamed([(*from, from_name), (*dir, name)]);
            }
            Request::Link { ino, dir, name } if answered.answer.is_ok() => {
                self.set_name(*dir, name, Leads::Unknown);
                self.note_unnamed([*ino]);
            }
            _ => {}
        }
    }

    /// Whether the client knows the tree as the lease before this one has left it. Replies may come
    /// in another order than they were sent, and the client may have forgotten the tree meanwhile.
    fn continues(&self, tree: &DelegatedTree) -> bool {
        let before = self.trees.get(&tree.root).map(|before| before.stamp);
        before.is_some() && before == tree.continues
    }

    /// A request in a slot has changed, or removed, what the name led to. If that is not known, it
    /// may be any member with a name that is not.
    fn forget_named(&mut self, dir: Ino, name: &FileName) {
        let names = self.nodes.get_mut(&dir).and_then(|node| node.names.as_mut());
        match names.and_then(|names| names.by_name.remove(name.as_bytes())) {
            Some(Leads::Member(ino, _)) => {
                // The names in a directory are forgotten with it.
                let names = self.nodes.remove(&ino).and_then(|node| node.names);
                self.note_unnamed(names.iter().flat_map(Names::members));
            }
            Some(Leads::Elsewhere { inode, .. }) => self.forget_value(inode.ino),
            Some(Leads::Unknown) | None => {
                for ino in &self.unnamed {
                    if let Some(node) = self.nodes.get_mut(ino) {
                        node.value = None;
                    }
                }
            }
        }
    }

    fn note_unnamed(&mut self, inodes: impl IntoIterator<Item = Ino>) {
        if self.unnamed.len() == self.unnamed.capacity() {
            self.unnamed.retain(|ino| self.nodes.contains_key(ino));
        }
        self.unnamed.extend(inodes);
    }

    /// A request in a slot may have moved what these names lead to. The client has to look them up
    /// again.
    fn renamed(&mut self, names: [(Ino, &FileName); 2]) {
        for (dir, name) in names {
            self.forget_named(dir, name);
            self.set_name(dir, name, Leads::Unknown);
        }
    }

    fn set_name(&mut self, dir: Ino, name: &FileName, leads: Leads) {
        if let Some(names) = self.nodes.get_mut(&dir).and_then(|dir| dir.names.as_mut()) {
            names.by_name.insert(name.as_bytes().into(), leads);
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
        let DelegatedTree { root, entries, ref numbers, .. } = *tree;
        let Some(guard) = Guard::new(cell, delegated.lease) else { return };
        let before = self.trees.get(&root);
        if before.is_some_and(|before| before.stamp > guard.stamp) {
            return;
        }
        self.moment += 1;
        let continues = self.continues(tree);
        let nodes = &self.nodes;
        let is_of_tree =
            |dir: &Ino| *dir == root || nodes.get(dir).is_some_and(|it| it.root == root);
        if self.under_way.iter().any(is_of_tree) {
            // Another request has changed something that is not known here. The cell ends the tree,
            // because it is not used.
            return self.forget(root);
        }
        if !continues {
            self.begin_tree(root);
        }
        let attr = delegated.attr;
        if !self.nodes.contains_key(&attr.ino) {
            self.begin_directory(root, attr.ino, entries);
            if attr.ino != root {
                self.note_unnamed([attr.ino]);
            }
        }
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

    /// A request in a slot has set the attributes of a member. With the answer came the lease of
    /// the tree.
    pub(crate) fn note_set(&mut self, attr: &Attr, root: Ino) {
        let is_member = |node: &&mut Node| node.root == root && attr.kind != FileKind::Directory;
        if let Some(node) = self.nodes.get_mut(&attr.ino).filter(is_member) {
            node.value = Some(InodeValue { attr: *attr, parent: Ino(0), entries: 0, acl: None });
            let is_dense = node.known.is_dense && attr.blocks == predict::pages_of(attr.size);
            node.known = Known { is_dense, is_exact: true };
        }
    }

    /// A directory is delegated, of which nothing is known, or all was forgotten.
    fn begin_tree(&mut self, root: Ino) {
        self.forget(root);
        if self.nodes.len() >= NODES_MAX {
            self.trees.clear();
            self.nodes.clear();
        }
    }

    /// A directory belongs to a tree, of which nothing is known but its number of names.
    fn begin_directory(&mut self, root: Ino, dir: Ino, entries: u64) {
        let node = Node {
            root,
            capability: Capability::NONE,
            value: None,
            known: Known { is_dense: false, is_exact: true },
            is_open: false,
            names: Some(Names::unlisted(entries)),
        };
        self.nodes.insert(dir, node);
    }

    /// A cell has looked the name up, and granted a lease on it. Returns whether the directory
    /// belongs to a tree with this lease. Then the inode is a member if its attributes came under
    /// the same lease.
    pub(crate) fn found(
        &mut self,
        cell: CellId,
        (dir, name): (Ino, &FileName),
        entry: &Entry,
        capability: Capability,
    ) -> bool {
        let guard_of = |lease: Option<Lease>| lease.and_then(|lease| Guard::new(cell, lease));
        let Some((node, _, guard)) = self.find(dir) else { return false };
        let root = node.root;
        if guard_of(entry.lease) != Some(guard) {
            return false;
        }
        let &Entry { ino, kind, attr, .. } = entry;
        let known = node.names.as_ref().and_then(|names| names.by_name.get(name.as_bytes()));
        if matches!(known, Some(Leads::Member(..))) {
            return true;
        }
        let covered = attr.filter(|(_, lease)| guard_of(*lease) == Some(guard));
        // An open that is under way may truncate the file.
        let covered = covered.filter(|_| self.opening == 0 && self.nodes.len() < NODES_MAX);
        let leads = match covered {
            Some((attr, _)) => {
                let value = Some(InodeValue { attr, parent: Ino(0), entries: 0, acl: None });
                let known = Known { is_dense: false, is_exact: true };
                let node = Node { root, capability, value, known, is_open: false, names: None };
                self.nodes.insert(ino, node);
                Leads::Member(ino, kind)
            }
            None => {
                let inode = InodeRef { ino, capability };
                Leads::Elsewhere { inode, kind, is_refused: attr.is_some() }
            }
        };
        self.set_name(dir, name, leads);
        true
    }

    /// Whether the lease is that of the tree to which the directory belongs.
    pub(crate) fn is_leased(&self, cell: CellId, dir: Ino, lease: Lease) -> bool {
        self.find(dir).is_some_and(|(.., guard)| Guard::new(cell, lease) == Some(guard))
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
        let mut leads = Leads::Unknown;
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
        self.set_name(dir, name, leads);
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
            names.by_name.entry(entry.name.into()).or_insert(Leads::Unknown);
        }
        names.unlisted = match entries.last_cookie() {
            _ if end => None,
            Some(last) if last > cookie => Some(last),
            _ => Some(cookie),
        };
    }

    /// The record of the change is published. Returns the inodes whose attributes it has changed,
    /// except directories in which names were changed.
    pub(crate) fn note_published(&mut self, post: &NamePost) -> Vec<Ino> {
        let Some(tree) = self.trees.get_mut(&post.root) else {
            self.note_post(true);
            return Vec::new();
        };
        let number = if post.new.is_some() { tree.numbers.pop_front() } else { None };
        let changed = self.make_all(post, number.map_or(Capability::NONE, |(_, it)| it.capability));
        self.note_post(!changed.is_empty());
        changed
    }

    /// Whether more credit or numbers should be asked for now for the tree. Then the caller asks.
    pub(crate) fn wants_more(&mut self, root: Ino) -> bool {
        let Some(tree) = self.trees.get_mut(&root) else { return false };
        let wants = tree.is_low() && !tree.is_extending;
        tree.is_extending |= wants;
        wants
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
            Some(Leads::Member(_, kind) | Leads::Elsewhere { kind, .. }) => Some(kind),
            Some(Leads::Unknown) | None => None,
        };
        let Some(value) = &mut node.value else { return };
        names::predict::apply(change, value, gone);
        if value.attr.nlink == 0 {
            self.nodes.remove(&change.home());
        }
    }
}

/// Whether the request may open an inode that exists. One that may make it ends the lease.
const fn opens(request: &Request) -> bool {
    match request {
        Request::Open { .. } => true,
        Request::Create { flags, .. } => flags.contains(CreateFlags::EXISTING),
        _ => false,
    }
}

/// Whether the request may change anything. A read may change the access time.
fn acts(request: &Request) -> bool {
    let reads = matches!(request, Request::Read { .. });
    request.is_change() || request.changes_names() || opens(request) || reads
}

#[cfg(test)]
mod tests;
