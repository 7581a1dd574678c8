//! Calls that need a shard that is damaged, or whose cell is out, may be refused, and change
//! nothing then.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use warren_base::{Ino, ShardId};
use warren_proto::{FileKind, FileName, LockKey, Request};

use super::inode::{Body, Inode};
use crate::history::DamagedShards;

/// All inodes of a state.
type Inodes = BTreeMap<Ino, Rc<Inode>>;

/// Whether the call needs one of the shards: what it names, or what is led to by what it names,
/// lies there.
pub(super) fn needs(state: &Inodes, request: &Request, damaged: &DamagedShards) -> bool {
    let is_there = |ino: Ino| damaged.has(ino.shard());
    let leads_there = |dir: Ino, name: &FileName| target(state, dir, name).is_some_and(is_there);
    if [request.inode(), request.other_inode()].into_iter().flatten().any(is_there) {
        return true;
    }
    match request {
        Request::Create { dir, name, new, .. } => {
            let is_dir = new.kind == FileKind::Directory;
            leads_there(*dir, name) || (is_dir && damaged.takes(*dir, name))
        }
        Request::Lookup { dir, name }
        | Request::Neighbours { dir, name }
        | Request::Link { dir, name, .. }
        | Request::Unlink { dir, name }
        | Request::Rmdir { dir, name } => leads_there(*dir, name),
        Request::Rename { from, from_name, dir, name, .. } => {
            leads_there(*from, from_name)
                || leads_there(*dir, name)
                || (from != dir && moves_directory(state, request) && {
                    let above = |ino: Ino| is_below_damaged(state, ino, damaged);
                    damaged.has(LockKey::Tree.shard()) || above(*from) || above(*dir)
                })
        }
        _ => false,
    }
}

fn target(state: &Inodes, dir: Ino, name: &FileName) -> Option<Ino> {
    state.get(&dir)?.entries().ok()?.get(name.as_bytes()).copied()
}

fn moves_directory(state: &Inodes, request: &Request) -> bool {
    let Request::Rename { from, from_name, dir, name, .. } = request else { return false };
    let is_dir = |dir: Ino, name: &FileName| {
        let target = target(state, dir, name).and_then(|ino| state.get(&ino));
        target.is_some_and(|inode| inode.is_directory())
    };
    is_dir(*from, from_name) || is_dir(*dir, name)
}

/// Whether a directory of the shard leads to the inode, or to one above it, or to one of those that
/// are `named`.
pub(super) fn is_tied(state: &Inodes, ino: Ino, shard: ShardId, named: &BTreeSet<Ino>) -> bool {
    let mut at = ino;
    loop {
        let is_named = |(dir, inode): (&Ino, &Rc<Inode>)| {
            let entries = inode.entries().ok().filter(|_| dir.shard() == shard);
            entries.is_some_and(|entries| entries.values().any(|target| *target == at))
        };
        if at.shard() == shard || named.contains(&at) || state.iter().any(is_named) {
            return true;
        }
        match state.get(&at).map(|inode| &inode.body) {
            Some(Body::Directory { parent, .. }) if *parent != at => at = *parent,
            _ => return false,
        }
    }
}

/// Whether a directory on the way from there to the root lies in one of the shards.
fn is_below_damaged(state: &Inodes, ino: Ino, damaged: &DamagedShards) -> bool {
    let mut at = ino;
    loop {
        if damaged.has(at.shard()) {
            return true;
        }
        match state.get(&at).map(|inode| &inode.body) {
            Some(Body::Directory { parent, .. }) if *parent != at => at = *parent,
            _ => return false,
        }
    }
}
