//! Making changes: first everything they need is brought (*ready*), then they are made in one go.
//!
//! Order: nodes in memory, blocks for the nodes that will become dirty, acknowledged leases recalled;
//! then word leases revoked, then the trees changed. Nothing waits in the second part.

use warren_base::{ClientId, Ino, Timestamp};
use warren_disk::{Key, Part, TARGET_PIECE, Value, name_hash};
use warren_proto::{Change, FileKind, LeaseKey};

use crate::cell::{Cell, Out};
use crate::event::Memory;
use crate::plant::Plant;
use crate::shard;
use crate::task::{Stop, Task, TaskId, Wait, Work};

/// Tree nodes that one change may make dirty: the way to two leaves, and their splits.
const NODES_PER_CHANGE: u64 = 12;
/// Blocks that only what frees space may use.
const RESERVE: u64 = 24;

/// What a change makes known copies of wrong.
fn leases_of(change: &Change) -> [Option<LeaseKey>; 2] {
    match change {
        Change::NewInode { .. } => [None, None],
        Change::AddEntry { dir, name, .. }
        | Change::ReplaceEntry { dir, name, .. }
        | Change::RemoveEntry { dir, name, .. } => {
            [Some(LeaseKey::Name(*dir, name.clone())), Some(LeaseKey::Attr(*dir))]
        }
        Change::AddLink { ino, .. }
        | Change::RemoveLink { ino, .. }
        | Change::SetParent { ino, .. }
        | Change::Touch { ino, .. } => [Some(LeaseKey::Attr(*ino)), None],
    }
}

/// The directory changed at `now`. A transaction's change may be made here after one that was decided
/// later; then the times are that one's already.
fn stamp(part: &mut Part, now: Timestamp) {
    if now >= part.ctime {
        (part.mtime, part.ctime) = (now, now);
    }
}

fn frees_space(changes: &[Change]) -> bool {
    changes.iter().any(|change| matches!(change, Change::RemoveLink { .. }))
}

impl Cell {
    /// Brings what the changes need; they all lie on this cell. `promised` blocks of each change's
    /// shard are spoken for already.
    pub(crate) fn ready<M: Memory>(
        &mut self,
        changes: &[Change],
        client: Option<ClientId>,
        task: &mut Task,
        promised: bool,
        out: &mut Out<'_, M>,
    ) -> Result<(), Stop> {
        let mut free = true;
        for change in changes {
            self.fetch_change(change)?;
            for key in leases_of(change).iter().flatten() {
                free &= self.recall(key, client, out);
            }
        }
        if !free {
            return Err(Stop::Wait(Wait::Recall));
        }
        if promised {
            return Ok(());
        }
        let reserve = if frees_space(changes) { 0 } else { RESERVE };
        for change in changes {
            let same =
                changes.iter().filter(|other| other.shard() == change.shard()).count() as u64;
            self.ensure_room(change.shard(), same * NODES_PER_CHANGE + reserve, task)?;
        }
        Ok(())
    }

    /// Reads the nodes that the change will touch.
    fn fetch_change(&self, change: &Change) -> Result<(), Stop> {
        let shard = &self.shards[&change.shard()];
        match change {
            // The keys of a new inode lie between those of its neighbours.
            Change::NewInode { ino, .. } => {
                shard.fetch_range(Key::inode(*ino), Key::extent(*ino, 0))
            }
            Change::AddEntry { dir, name, .. }
            | Change::RemoveEntry { dir, name, .. }
            | Change::ReplaceEntry { dir, name, .. } => {
                shard.fetch(&Key::entry(*dir, name_hash(self.secret, name.as_bytes())))?;
                shard.fetch(&Key::inode(*dir))?;
                shard.fetch(&Key::part(*dir, 0))
            }
            Change::RemoveLink { ino, .. } => {
                shard.fetch(&Key::orphan(*ino))?;
                shard.fetch(&Key::inode(*ino))
            }
            Change::AddLink { ino, .. }
            | Change::SetParent { ino, .. }
            | Change::Touch { ino, .. } => shard.fetch(&Key::inode(*ino)),
        }
    }

    /// Makes the changes, which are [`Self::ready`].
    pub(crate) fn make<M: Memory>(
        &mut self,
        changes: &[Change],
        client: Option<ClientId>,
        out: &mut Out<'_, M>,
    ) {
        if self.plant == Some(Plant::RevokeAfterCommit) {
            self.late.push((changes.to_vec(), client));
        } else {
            self.revoke_all(changes, client, out);
        }
        for change in changes {
            self.make_one(change);
        }
    }

    /// Revokes what [`Plant::RevokeAfterCommit`] has put off.
    pub(crate) fn revoke_late<M: Memory>(&mut self, out: &mut Out<'_, M>) {
        for (changes, client) in std::mem::take(&mut self.late) {
            self.revoke_all(&changes, client, out);
        }
    }

    fn revoke_all<M: Memory>(
        &mut self,
        changes: &[Change],
        client: Option<ClientId>,
        out: &mut Out<'_, M>,
    ) {
        let acknowledging = client.filter(|client| self.acknowledges(*client));
        for change in changes {
            for key in leases_of(change).iter().flatten() {
                if self.plant != Some(Plant::ForgetRevoke) {
                    self.leases.revoke(key, out.memory);
                }
            }
            // The kernel behind a front changes its own copy of the name along with us.
            if let (Some(client), Change::RemoveEntry { dir, name, .. }) = (acknowledging, change) {
                self.leases.drop_holder(&LeaseKey::Name(*dir, name.clone()), client);
            }
            if let (
                Some(client),
                Change::AddEntry { dir, name, .. } | Change::ReplaceEntry { dir, name, .. },
            ) = (acknowledging, change)
            {
                self.leases.hold_again(LeaseKey::Name(*dir, name.clone()), client);
            }
        }
    }

    fn make_one(&mut self, change: &Change) {
        let secret = self.secret;
        let shard = self.shards.get_mut(&change.shard()).expect("the change lies here");
        match change {
            Change::NewInode { ino, new, uid, gid, parent, now } => {
                let inode = shard::new_inode(new, *uid, *gid, *parent, *now);
                shard.put(Key::inode(*ino), Value::Inode(Box::new(inode)));
                if new.kind == FileKind::Directory {
                    let part = Part { entries: 0, subdirs: 0, mtime: *now, ctime: *now };
                    shard.put(Key::part(*ino, 0), Value::Part(Box::new(part)));
                }
                for (piece, bytes) in new.target.chunks(TARGET_PIECE).enumerate() {
                    shard.put(Key::target(*ino, piece as u64), Value::Target(bytes.into()));
                }
                shard.use_sequence(*ino);
                shard.inodes += 1;
            }
            Change::AddEntry { dir, name, ino, kind, now } => {
                shard.set_dentry(secret, *dir, name, Some((*ino, *kind)));
                let part = shard.part_mut(*dir);
                part.entries += 1;
                part.subdirs += u32::from(*kind == FileKind::Directory);
                stamp(part, *now);
            }
            Change::RemoveEntry { dir, name, now } => {
                let gone = shard.dentry(secret, *dir, name).ok().flatten();
                let (_, kind) = gone.expect("a removed name exists");
                shard.set_dentry(secret, *dir, name, None);
                let part = shard.part_mut(*dir);
                part.entries -= 1;
                part.subdirs -= u32::from(kind == FileKind::Directory);
                stamp(part, *now);
            }
            Change::ReplaceEntry { dir, name, ino, kind, now } => {
                let gone = shard.dentry(secret, *dir, name).ok().flatten();
                let (_, old) = gone.expect("a replaced name exists");
                shard.set_dentry(secret, *dir, name, Some((*ino, *kind)));
                let part = shard.part_mut(*dir);
                part.subdirs += u32::from(*kind == FileKind::Directory);
                part.subdirs -= u32::from(old == FileKind::Directory);
                stamp(part, *now);
            }
            Change::AddLink { ino, now } => {
                let inode = shard.inode_mut(*ino);
                inode.nlink += 1;
                inode.ctime = *now;
            }
            Change::RemoveLink { ino, now } => self.remove_link(*ino, *now),
            Change::SetParent { ino, parent, now } => {
                let inode = shard.inode_mut(*ino);
                inode.parent = *parent;
                inode.ctime = *now;
            }
            Change::Touch { ino, now } => shard.inode_mut(*ino).ctime = *now,
        }
    }

    fn remove_link(&mut self, ino: Ino, now: Timestamp) {
        let shard = self.shards.get_mut(&ino.shard()).expect("the change lies here");
        let inode = shard.inode_mut(ino);
        let directory = inode.kind == FileKind::Directory;
        inode.nlink = if directory { 0 } else { inode.nlink - 1 };
        inode.ctime = now;
        if inode.nlink > 0 {
            return;
        }
        shard.put(Key::orphan(ino), Value::Orphan);
        if !self.opens.is_open(ino) {
            self.start(Task::new(Work::Reap { ino }));
        }
    }

    /// Frees what an inode without links and opens holds, some of it in each go.
    pub(crate) fn reap<M: Memory>(
        &mut self,
        ino: Ino,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<(), Stop> {
        /// Records freed in one go.
        const BATCH: usize = 128;
        // It goes on even without room for the nodes it makes dirty, but not before a checkpoint has
        // made what room there is.
        let dirty = self.cache.dirty_pages_of(ino.shard());
        let shard = self.shards.get_mut(&ino.shard()).expect("reaped where it lies");
        if shard.room(dirty) < RESERVE && !std::mem::replace(&mut task.checkpointed, true) {
            return Err(Stop::Wait(Wait::Checkpoint));
        }
        shard.fetch(&Key::orphan(ino))?;
        let doomed = shard.inode(ino)?.is_some_and(|inode| inode.nlink == 0);
        if !doomed || self.opens.is_open(ino) {
            return Ok(());
        }
        let belongings = shard.belongings(ino, BATCH)?;
        let more = belongings.len() == BATCH;
        for (key, value) in belongings {
            if let Value::Extent(extent) = &value {
                (0..extent.len()).for_each(|at| shard.space.free(extent.start.offset(at)));
            }
            shard.take(&key);
        }
        self.cache.drop_pages(ino, 0);
        if more {
            return Err(Stop::Wait(Wait::Yield));
        }
        shard.take(&Key::inode(ino));
        shard.take(&Key::orphan(ino));
        shard.inodes -= 1;
        self.leases.revoke(&LeaseKey::Attr(ino), out.memory);
        self.leases.forget_inode(ino);
        Ok(())
    }

    /// Whether nobody but `except` has to acknowledge before `key` may change. Sends the recall.
    pub(crate) fn recall<M: Memory>(
        &mut self,
        key: &LeaseKey,
        except: Option<ClientId>,
        out: &mut Out<'_, M>,
    ) -> bool {
        let free = self.leases.recall(key, except);
        if !free {
            self.send_recalls(out);
        }
        free
    }

    pub(crate) fn start(&mut self, task: Task) -> TaskId {
        let id = self.tasks.new_id();
        self.tasks.park(id, task);
        self.tasks.wake(id);
        id
    }
}
