//! Making changes: first everything they need is brought (*ready*), then they are made in one go.
//!
//! Order: nodes in memory, blocks for the nodes that will become dirty, acknowledged leases recalled;
//! then word leases revoked, then the trees changed. Nothing waits in the second part.

use warren_base::{ClientId, Errno, Ino, Timestamp};
use warren_disk::{Key, Kind, Part, TARGET_PIECE, Value, name_hash};
use warren_proto::{Change, FileKind, LeaseKey, Step};

use crate::cell::Core;
use crate::event::Memory;
use crate::plant::Plant;
use crate::room::Growth;
use crate::run::wait::{Stop, TaskId, Wait, WaitKey, Waits};
use crate::shard;
use crate::task::{Task, Work};
use crate::turn::Turn;

/// Records of an inode that are freed in one go.
const REAP_BATCH: usize = 128;

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

impl Core {
    /// Brings what the changes need; they all lie on this cell. `promised` blocks of each change's
    /// shard are spoken for already.
    pub(crate) fn ready<M: Memory>(
        &mut self,
        changes: &[Change],
        client: Option<ClientId>,
        task: &mut Task,
        promised: bool,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let mut free = true;
        for change in changes {
            self.fetch_change(change, turn)?;
        }
        // Almost always nobody holds such a lease, and there is no need to name what is changed.
        let recalls = if turn.leases.has_acknowledged() { changes } else { &[] };
        for key in recalls.iter().flat_map(leases_of).flatten() {
            free &= self.recall(&key, client, turn);
        }
        if !free {
            return Err(Stop::Wait(Wait::Recall));
        }
        if promised {
            return Ok(());
        }
        for (at, shard) in changes.iter().map(Change::shard).enumerate() {
            if changes[..at].iter().any(|before| before.shard() == shard) {
                continue;
            }
            let same = || changes[at..].iter().filter(|change| change.shard() == shard);
            let home = &self.shards[&shard];
            let nodes = same().map(|change| home.nodes_of(change)).sum();
            self.ensure_room(shard, nodes, Growth::of(same()), task, turn)?;
        }
        Ok(())
    }

    /// Reads the nodes that the change will touch, and sees that the records are there which it changes: a
    /// damaged image may lack some, or a peer's change be nonsense.
    pub(crate) fn fetch_change<M: Memory>(
        &self,
        change: &Change,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let shard = &self.shards[&change.shard()];
        // Whoever planned this has seen the inode, unless it was a peer that made it up.
        let exists = |ino| shard.inode(ino)?.map(|_| ()).ok_or(Stop::Fail(Errno::EPROTO));
        match change {
            Change::NewInode { ino, new, .. } if new.kind == FileKind::Regular => {
                shard.fetch(&Key::inode(*ino))
            }
            // The keys of a new inode lie between those of its neighbours.
            Change::NewInode { ino, .. } => {
                shard.fetch_range(Key::inode(*ino), Key::extent(*ino, 0))
            }
            Change::AddEntry { dir, name, .. }
            | Change::RemoveEntry { dir, name, .. }
            | Change::ReplaceEntry { dir, name, .. } => {
                shard.fetch(&Key::entry(*dir, name_hash(turn.volume.secret, name.as_bytes())))?;
                exists(*dir)?;
                shard.check_entry(turn.volume.secret, *dir, name)
            }
            Change::RemoveLink { ino, .. } => {
                shard.fetch(&Key::orphan(*ino))?;
                exists(*ino)
            }
            Change::AddLink { ino, .. }
            | Change::SetParent { ino, .. }
            | Change::Touch { ino, .. } => exists(*ino),
        }
    }

    /// Makes the changes, which are [`Self::ready`]. Counts stay within their range even where a damaged
    /// image or a peer had them wrong.
    pub(crate) fn make<M: Memory>(
        &mut self,
        changes: &[Change],
        client: Option<ClientId>,
        turn: &mut Turn<'_, M>,
    ) {
        if turn.plants(Plant::RevokeAfterCommit) {
            self.late.push((changes.to_vec(), client));
        } else {
            self.revoke_all(changes, client, turn);
        }
        for change in changes {
            turn.note(&Step::Change(change.clone()));
            self.make_one(change, turn);
        }
        for change in changes {
            if let Change::RemoveLink { ino, .. } = change {
                self.bury(*ino, turn);
            }
        }
    }

    /// Revokes what [`Plant::RevokeAfterCommit`] has put off.
    pub(crate) fn revoke_late<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        if self.late.is_empty() {
            return;
        }
        for (changes, client) in std::mem::take(&mut self.late) {
            self.revoke_all(&changes, client, turn);
        }
    }

    fn revoke_all<M: Memory>(
        &mut self,
        changes: &[Change],
        client: Option<ClientId>,
        turn: &mut Turn<'_, M>,
    ) {
        let acknowledging = client.filter(|client| turn.clients.acknowledges(*client));
        for change in changes {
            for key in leases_of(change).iter().flatten() {
                if !turn.plants(Plant::ForgetRevoke) {
                    turn.leases.revoke(key, turn.memory);
                }
            }
            // The kernel behind a front changes its own copy of the name along with us.
            if let (Some(client), Change::RemoveEntry { dir, name, .. }) = (acknowledging, change) {
                turn.leases.drop_holder(&LeaseKey::Name(*dir, name.clone()), client);
            }
            if let (
                Some(client),
                Change::AddEntry { dir, name, .. } | Change::ReplaceEntry { dir, name, .. },
            ) = (acknowledging, change)
            {
                turn.leases.hold_again(LeaseKey::Name(*dir, name.clone()), client);
            }
        }
    }

    pub(crate) fn make_one<M: Memory>(&mut self, change: &Change, turn: &mut Turn<'_, M>) {
        let secret = turn.volume.secret;
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
                part.entries = part.entries.saturating_add(1);
                part.subdirs = part.subdirs.saturating_add((*kind == FileKind::Directory).into());
                stamp(part, *now);
            }
            Change::RemoveEntry { dir, name, now } => {
                let gone = shard.set_dentry(secret, *dir, name, None);
                let part = shard.part_mut(*dir);
                if let Some((_, kind)) = gone {
                    part.entries = part.entries.saturating_sub(1);
                    part.subdirs =
                        part.subdirs.saturating_sub((kind == FileKind::Directory).into());
                }
                stamp(part, *now);
            }
            Change::ReplaceEntry { dir, name, ino, kind, now } => {
                let gone = shard.set_dentry(secret, *dir, name, Some((*ino, *kind)));
                let old = gone.map(|(_, kind)| kind);
                let part = shard.part_mut(*dir);
                part.subdirs = part.subdirs.saturating_add((*kind == FileKind::Directory).into());
                part.subdirs =
                    part.subdirs.saturating_sub((old == Some(FileKind::Directory)).into());
                stamp(part, *now);
            }
            Change::AddLink { ino, now } => {
                let inode = shard.inode_mut(*ino);
                inode.nlink = inode.nlink.saturating_add(1);
                inode.ctime = *now;
            }
            Change::RemoveLink { ino, now } => {
                let inode = shard.inode_mut(*ino);
                let directory = inode.kind == FileKind::Directory;
                inode.nlink = if directory { 0 } else { inode.nlink.saturating_sub(1) };
                inode.ctime = *now;
            }
            Change::SetParent { ino, parent, now } => {
                let inode = shard.inode_mut(*ino);
                inode.parent = *parent;
                inode.ctime = *now;
            }
            Change::Touch { ino, now } => shard.inode_mut(*ino).ctime = *now,
        }
    }

    /// An inode lost a link. Without any it goes at once if that is little work, else (it is open, large,
    /// or some of it is not in memory) its orphan record says that it has to.
    pub(crate) fn bury<M: Memory>(&mut self, ino: Ino, turn: &mut Turn<'_, M>) {
        let dirty = turn.cache.dirty_pages_of(ino.shard());
        let is_open = self.opens.is_open(ino);
        let shard = self.shards.get_mut(&ino.shard()).expect("the change lies here");
        if shard.inode_mut(ino).nlink > 0 {
            return;
        }
        let belongings = shard.belongings(ino, REAP_BATCH);
        // While a log is replayed nobody knows yet what is open, and the end is a step of its own.
        let replaying = !self.replay.is_done();
        let has_room = shard.room(dirty) >= shard.reserve(Growth::Keeps);
        let at_once = !is_open && has_room && !replaying;
        match belongings {
            Ok(all) if at_once && all.len() < REAP_BATCH => self.step(Step::Reaped { ino }, turn),
            _ => {
                shard.put(Key::orphan(ino), Value::Orphan);
                if !is_open && !replaying {
                    self.start(Task::new(Work::Reap { ino }), turn.waits);
                }
            }
        }
    }

    /// Frees what an inode without links and opens holds, some of it in each go. Only the last of these is a step of
    /// the log: who replays it finds the orphan as the last checkpoint has it, and begins anew. The blocks are held
    /// until a checkpoint counts that lacks them.
    pub(crate) fn reap<M: Memory>(
        &mut self,
        ino: Ino,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        // It goes on even without room for the nodes it makes dirty, but not before a checkpoint has
        // made what room there is.
        let dirty = turn.cache.dirty_pages_of(ino.shard());
        let shard = self.shards.get_mut(&ino.shard()).expect("reaped where it lies");
        let has_room = shard.room(dirty) >= shard.reserve(Growth::Keeps);
        if !has_room && !std::mem::replace(&mut task.checkpointed, true) {
            return Err(Stop::Wait(Wait::Checkpoint));
        }
        shard.fetch(&Key::orphan(ino))?;
        let doomed = shard.inode(ino)?.is_some_and(|inode| inode.nlink == 0);
        if !doomed || self.opens.is_open(ino) {
            return Ok(());
        }
        let belongings = shard.belongings(ino, REAP_BATCH)?;
        if belongings.len() < REAP_BATCH {
            self.step(Step::Reaped { ino }, turn);
            return Ok(());
        }
        // A checkpoint may hold what is left: of a directory its part, without which it would be none.
        for (key, value) in belongings.into_iter().filter(|(key, _)| key.kind != Kind::Part) {
            if let Value::Extent(extent) = &value {
                (0..extent.len()).for_each(|at| shard.space.free(extent.start.offset(at)));
            }
            shard.take(&key);
        }
        self.forget_pages(ino, 0..=u64::MAX, turn);
        Err(Stop::Wait(Wait::Turn))
    }

    /// Whether nobody but `except` has to acknowledge before `key` may change. Sends the recall.
    pub(crate) fn recall<M: Memory>(
        &mut self,
        key: &LeaseKey,
        except: Option<ClientId>,
        turn: &mut Turn<'_, M>,
    ) -> bool {
        let free = turn.leases.recall(key, except);
        if !free {
            self.send_recalls(turn);
        }
        free
    }

    /// Recalls the pages that a predecessor may have granted to the fronts that `from` names. Waits until they are gone.
    pub(crate) fn recall_inherited_pages<M: Memory>(
        &mut self,
        ino: Ino,
        from: impl Fn(ClientId) -> bool,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        if turn.leases.recall_inherited(&LeaseKey::Pages(ino), from) {
            return Ok(());
        }
        self.send_recalls(turn);
        if turn.leases.await_pages(ino, None) {
            turn.waits.wake_all(WaitKey::Recall);
        }
        Err(Stop::Wait(Wait::Recall))
    }

    pub(crate) fn start(&mut self, task: Task, waits: &mut Waits) -> TaskId {
        let id = waits.new_id();
        self.tasks.park(id, task);
        waits.wake(id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_directory_do_not_go_back() {
        let mut part = Part::default();
        stamp(&mut part, Timestamp(20));
        stamp(&mut part, Timestamp(10));
        assert_eq!((part.mtime, part.ctime), (Timestamp(20), Timestamp(20)));
        stamp(&mut part, Timestamp(30));
        assert_eq!((part.mtime, part.ctime), (Timestamp(30), Timestamp(30)));
    }
}
