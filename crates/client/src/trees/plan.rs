//! Plans of changes of names in trees, by the rules of the cell.

use alloc::boxed::Box;
use alloc::vec::Vec;

use warren_base::{Errno, Ino, ShardId, Timestamp};
use warren_proto::stream::Numbered;
use warren_proto::{
    AccessMode, Acl, Capability, Credentials, Entry, FileKind, FileName, Handle, InodeValue,
    LockMode, Opened, Reply, Request,
};
use warren_rules::names::{self, Outcome, Plan, View};

use super::Trees;
use crate::guard::Words;
use crate::tree::{Leads, Missing, NamePost, Tree};

/// Who opens a file so needs what only a reply brings.
const LEASED: AccessMode = AccessMode::KEEP.union(AccessMode::DATA).union(AccessMode::WATCH);

impl Trees {
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
        let mut look = Look { trees: self, root, tree, who, now: time };
        let plan = names::plan(&mut look, &request.on_names()?);
        let (new, numbered) = tree.numbers.front().copied().unzip();
        let makes = matches!(request, Request::Create { .. });
        let (answer, granted, changes) = match plan {
            Err(Stop::Unknown) => return None,
            Err(Stop::Fails(errno)) => (Err(errno), Capability::NONE, Vec::new()),
            Ok(Plan { changes, outcome }) => {
                let (reply, granted) = self.reply_of(outcome, numbered)?;
                (Ok(reply), granted, changes)
            }
        };
        let new = new.filter(|_| makes && answer.is_ok());
        let cell = tree.cell;
        Some(NamePost { cell, guard, time, new, answer, granted, root, cost, changes })
    }

    /// The reply of the cell, and the capability for the inode in it. `None` if only the cell knows
    /// it.
    fn reply_of(
        &self,
        outcome: Outcome,
        numbered: Option<Numbered>,
    ) -> Option<(Reply, Capability)> {
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
            // A new link. Only what a cell replies shows all attributes.
            Outcome::Entry { ino, kind, .. } => {
                let capability = self.nodes.get(&ino)?.capability;
                Some((Reply::Entry(Entry { ino, kind, lease: None, attr: None }), capability))
            }
            Outcome::Created { found: true, .. } => None,
        }
    }

    /// Tells what has to be asked before the change can be planned.
    pub(crate) fn missing(&self, request: &Request) -> Option<Missing> {
        match request {
            Request::Create { dir, name, .. } | Request::Link { dir, name, .. } => {
                self.missing_name(*dir, name, true)
            }
            Request::Unlink { dir, name } | Request::Rmdir { dir, name } => {
                self.missing_name(*dir, name, false)
            }
            Request::Rename { from, from_name, dir, name, .. } => self
                .missing_name(*from, from_name, false)
                .or_else(|| self.missing_name(*dir, name, true)),
            _ => None,
        }
    }

    /// The same for one name. `is_new`: it probably does not exist.
    fn missing_name(&self, dir: Ino, name: &FileName, is_new: bool) -> Option<Missing> {
        let names = self.find(dir)?.0.names.as_ref()?;
        match names.by_name.get(name.as_bytes()) {
            Some(Leads::Member(..) | Leads::Elsewhere { is_refused: true, .. }) => None,
            None if names.unlisted.is_none() => None,
            None if is_new && names.is_hidden => None,
            None if is_new => Some(Missing::Names(dir)),
            _ => Some(Missing::Name(dir, name.clone())),
        }
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
    root: Ino,
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
        // The lease of another tree would be another one.
        let node = self.trees.nodes.get(&ino).filter(|node| node.root == self.root);
        let value = node.and_then(|node| node.value.clone());
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
