//! One shard: its tree and its space, with typed access to the records of the tree.
//!
//! Reads return [`Stop::Wait`] if a node is not in memory. Changes are made only after every record
//! that they touch was read in the same run, so no node is missing then.

pub(crate) mod behind;
pub(crate) mod cleaning;
pub(crate) mod extents;
pub(crate) mod filelock;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod open;
pub(crate) mod pages;
pub(crate) mod removed_dirs;
pub(crate) mod sharing;
pub(crate) mod space;
pub(crate) mod xattrs;

use std::ops::ControlFlow;

use warren_base::{Errno, Ino, InodeFlags, ShardId, Timestamp};
use warren_disk::{
    Absent, Dentry, Inode, Key, Kind, Owed, Part, RootSlot, Tree, VALUE_MAX, Value, name_hash,
};
use warren_proto::{ACL_ACCESS, Attr, FileKind, FileName, InodeValue, LockKey, LockMode};
use warren_rules::names::predict::{self, DIRECTORY_SIZE};

use crate::budget::{Budget, Reservation, blocks_of_owed, blocks_of_pages};
use crate::run::wait::{Stop, TaskId, Wait};
use crate::shard::behind::Behind;
use crate::shard::filelock::FileLocks;
use crate::shard::lease::ShardLeases;
use crate::shard::lock::LockTable;
use crate::shard::open::Opens;
use crate::shard::pages::Pages;
use crate::shard::removed_dirs::RemovedDirs;
use crate::shard::space::Space;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) id: ShardId,
    /// The pool's secret for hashing names.
    secret: u64,
    pub(crate) tree: Tree,
    pub(crate) space: Space,
    pub(crate) locks: LockTable<TaskId>,
    /// Pages of its files in the buffer cache.
    pub(crate) pages: Pages,
    pub(crate) opens: Opens,
    pub(crate) file_locks: FileLocks<TaskId>,
    pub(crate) leases: ShardLeases,
    /// Files whose uncovered writes a power failure would take.
    pub(crate) behind: Behind,
    pub(crate) removed_dirs: RemovedDirs,
    pub(crate) next_sequence: u64,
    pub(crate) inodes: u64,
    /// Blocks promised to transactions that are prepared here.
    pub(crate) promised: u64,
    /// The blocks owed to unwritten extents, and whether the record of them is out of date.
    owed: Owed,
    is_owed_stale: bool,
    /// Whether anything but the tree's nodes has changed since the last root was written.
    pub(crate) changed: bool,
    /// The chunk records have been read into `space`.
    pub(crate) space_open: bool,
    /// Its chunks by the region map, until `space` is read.
    owned_chunks: Vec<u64>,
    /// Its root slot records that it was given up.
    is_marked: bool,
}

const RESIDENT: &str = "what a change touches was read in the same go";

impl Shard {
    /// `owned_chunks` ascend.
    pub(crate) fn open(
        slot: &RootSlot,
        secret: u64,
        owned_chunks: Vec<u64>,
        leases: ShardLeases,
    ) -> Self {
        Self {
            id: slot.shard,
            secret,
            tree: Tree::open(slot.shard, slot.root, slot.height),
            space: Space::default(),
            locks: LockTable::new(),
            pages: Pages::default(),
            opens: Opens::default(),
            file_locks: FileLocks::default(),
            leases,
            behind: Behind::default(),
            removed_dirs: RemovedDirs::default(),
            next_sequence: slot.next_sequence,
            inodes: slot.inodes,
            promised: 0,
            owed: Owed::default(),
            is_owed_stale: false,
            changed: false,
            space_open: false,
            owned_chunks,
            is_marked: slot.given_up,
        }
    }

    fn wait_for_node(&self, absent: Absent) -> Stop {
        Stop::Wait(Wait::Node(self.id, absent.0))
    }

    fn get(&self, key: &Key) -> Result<Option<&Value>, Stop> {
        self.tree.get(key).map_err(|absent| self.wait_for_node(absent))
    }

    pub(crate) fn put_record(&mut self, key: Key, value: Value) {
        self.tree.insert(key, value).expect(RESIDENT);
    }

    pub(crate) fn take_record(&mut self, key: &Key) -> Option<Value> {
        self.tree.remove(key).expect(RESIDENT)
    }

    /// Reads the leaf of a key whose record will be inserted or removed.
    pub(crate) fn fetch(&self, key: &Key) -> Result<(), Stop> {
        self.get(key).map(|_| ())
    }

    /// The same for a range of neighbouring keys.
    pub(crate) fn fetch_range(&self, from: Key, to: Key) -> Result<(), Stop> {
        self.range(from, to, |_, _| ControlFlow::Continue(()))
    }

    /// The records of a range of keys, until `visit` breaks.
    pub(crate) fn range<'a>(
        &'a self,
        from: Key,
        to: Key,
        visit: impl FnMut(&'a Key, &'a Value) -> ControlFlow<()>,
    ) -> Result<(), Stop> {
        self.tree.range(from, to, visit).map_err(|absent| self.wait_for_node(absent))
    }

    /// Reads the chunk records into `space`. Called until it no longer waits. EIO if the shard was
    /// given up, if there is a record of a chunk that the region map does not give to it, or if a
    /// block is shared that is not used: then nothing may be written.
    pub(crate) fn open_space(&mut self) -> Result<(), Stop> {
        if self.is_marked {
            return Err(Errno::EIO.into());
        }
        let mut chunks = Vec::new();
        let visit = |key: &Key, value: &Value| {
            if let Value::Chunk(used) = value {
                chunks.push((key.sub, *used));
            }
            ControlFlow::Continue(())
        };
        let (from, to) = (Key::chunk(0), Key::chunk(u64::MAX));
        self.range(from, to, visit)?;
        let owed = match self.get(&Key::owed())? {
            Some(Value::Owed(owed)) => *owed,
            _ => Owed::default(),
        };
        self.owed = owed;
        let mut shared = Vec::new();
        let visit = |key: &Key, value: &Value| {
            if let Value::Shared(runs) = value {
                shared.push((key.sub, runs.clone()));
            }
            ControlFlow::Continue(())
        };
        let (from, to) = (Key::shared(0), Key::shared(u64::MAX));
        self.tree.range(from, to, visit).map_err(|absent| self.wait_for_node(absent))?;
        let owned = std::mem::take(&mut self.owned_chunks);
        for (number, used) in chunks {
            owned.binary_search(&number).map_err(|_| Errno::EIO)?;
            self.space.open_chunk(number, used);
        }
        for (number, runs) in shared {
            self.space.open_shared(number, &runs)?;
        }
        self.space_open = true;
        Ok(())
    }

    /// Inodes without a name that were open when the pool was last in use. EIO if one belongs to
    /// another shard.
    pub(crate) fn orphans(&self) -> Result<Vec<Ino>, Stop> {
        let mut orphans = Vec::new();
        let visit = |key: &Key, _: &Value| {
            orphans.push(Ino(key.sub));
            ControlFlow::Continue(())
        };
        let (from, to) = (Key::orphan(Ino(0)), Key::orphan(Ino(u64::MAX)));
        self.range(from, to, visit)?;
        let own = orphans.iter().all(|ino| ino.shard() == self.id);
        if own { Ok(orphans) } else { Err(Errno::EIO.into()) }
    }

    pub(crate) fn inode(&self, ino: Ino) -> Result<Option<&Inode>, Stop> {
        Ok(match self.get(&Key::inode(ino))? {
            Some(Value::Inode(inode)) => Some(inode),
            _ => None,
        })
    }

    pub(crate) fn inode_mut(&mut self, ino: Ino) -> &mut Inode {
        match self.tree.get_mut(&Key::inode(ino)).expect(RESIDENT) {
            Some(Value::Inode(inode)) => inode,
            _ => panic!("{ino:?} was read in the same go"),
        }
    }

    pub(crate) fn part(&self, dir: Ino) -> Result<Option<&Part>, Stop> {
        Ok(match self.get(&Key::part(dir, 0))? {
            Some(Value::Part(part)) => Some(part),
            _ => None,
        })
    }

    pub(crate) fn part_mut(&mut self, dir: Ino) -> &mut Part {
        match self.tree.get_mut(&Key::part(dir, 0)).expect(RESIDENT) {
            Some(Value::Part(part)) => part,
            _ => panic!("part of {dir:?} was read in the same go"),
        }
    }

    /// The inode as clients see it, if it exists. A directory's counts and times are those of its
    /// part.
    pub(crate) fn inode_value(&self, ino: Ino) -> Result<Option<InodeValue>, Stop> {
        let Some(inode) = self.inode(ino)? else { return Ok(None) };
        let (mut attr, mut entries) = (attr_of(ino, inode), 0);
        if inode.kind == FileKind::Directory {
            let part = self.part(ino)?.ok_or(Errno::EIO)?;
            entries = part.entries;
            attr.nlink = attr.nlink.saturating_add(part.subdirs);
            attr.mtime = part.mtime;
            attr.ctime = attr.ctime.max(part.ctime);
        }
        let acl =
            if inode.flags.contains(InodeFlags::ACL) { self.acl(ino, ACL_ACCESS)? } else { None };
        Ok(Some(InodeValue { attr, parent: inode.parent, entries, acl: acl.map(Box::new) }))
    }

    pub(crate) fn dentry(
        &self,
        secret: u64,
        dir: Ino,
        name: &FileName,
    ) -> Result<Option<(Ino, FileKind)>, Stop> {
        let Some(Value::Entries(bucket)) = self.entry(secret, dir, name)? else { return Ok(None) };
        let found = bucket.iter().find(|dentry| *dentry.name == *name.as_bytes());
        Ok(found.map(|dentry| (dentry.ino, dentry.kind)))
    }

    /// The record of the names with this name's hash.
    pub(crate) fn entry(
        &self,
        secret: u64,
        dir: Ino,
        name: &FileName,
    ) -> Result<Option<&Value>, Stop> {
        self.get(&Key::entry(dir, name_hash(secret, name.as_bytes())))
    }

    /// Whether the entry of this name can be added to that record, or changed there if it exists.
    /// ENOSPC if the record has no room; EIO if the directory's records contradict each other.
    pub(crate) fn check_entry(
        &self,
        dir: Ino,
        name: &FileName,
        entry: Option<&Value>,
    ) -> Result<(), Stop> {
        let part = self.part(dir)?.ok_or(Errno::EIO)?;
        let Some(value @ Value::Entries(bucket)) = entry else { return Ok(()) };
        match bucket.iter().find(|dentry| *dentry.name == *name.as_bytes()) {
            None if value.encoded_len() + Dentry::encoded_len_of(name.as_bytes()) > VALUE_MAX => {
                Err(Errno::ENOSPC.into())
            }
            Some(dentry) if u64::from(dentry.kind == FileKind::Directory) > part.subdirs.into() => {
                Err(Errno::EIO.into())
            }
            Some(_) if part.entries == 0 => Err(Errno::EIO.into()),
            _ => Ok(()),
        }
    }

    /// Changes the bucket of `name`: removes the name, and adds `new` for it if given. Returns the
    /// old entry.
    pub(crate) fn set_dentry(
        &mut self,
        secret: u64,
        dir: Ino,
        name: &FileName,
        new: Option<(Ino, FileKind)>,
    ) -> Option<(Ino, FileKind)> {
        let key = Key::entry(dir, name_hash(secret, name.as_bytes()));
        let bucket = match self.get(&key).expect(RESIDENT) {
            Some(Value::Entries(bucket)) => &bucket[..],
            _ => &[],
        };
        let at = bucket.iter().position(|dentry| *dentry.name == *name.as_bytes());
        let old = at.map(|at| (bucket[at].ino, bucket[at].kind));
        let (before, after) = match at {
            Some(at) => (&bucket[..at], &bucket[at + 1..]),
            None => (bucket, &[][..]),
        };
        let others = before.len() + after.len();
        let mut changed = Vec::with_capacity(others + usize::from(new.is_some()));
        changed.extend_from_slice(before);
        changed.extend_from_slice(after);
        changed.extend(new.map(|(ino, kind)| Dentry { name: name.as_bytes().into(), ino, kind }));
        if changed.is_empty() {
            self.take_record(&key);
        } else {
            self.put_record(key, Value::Entries(changed.into()));
        }
        old
    }

    /// The records of one kind of an inode from `sub` on, until `visit` breaks.
    pub(crate) fn records<'a>(
        &'a self,
        ino: Ino,
        kind: Kind,
        sub: u64,
        visit: impl FnMut(&'a Key, &'a Value) -> ControlFlow<()>,
    ) -> Result<(), Stop> {
        let from = Key { ino: ino.0, kind, sub };
        let to = Key { ino: ino.0, kind, sub: u64::MAX };
        self.range(from, to, visit)
    }

    /// Whether an inode has fewer records than `limit` after its own.
    pub(crate) fn has_few_records(&self, ino: Ino, limit: usize) -> Result<bool, Stop> {
        let mut left = limit;
        let visit = |key: &Key, _: &Value| {
            left -= usize::from(key.kind != Kind::Inode);
            if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.range(Key::inode(ino), Key::last_of(ino), visit)?;
        Ok(left > 0)
    }

    /// The records of an inode after its own, at most `limit` of them.
    pub(crate) fn belongings(&self, ino: Ino, limit: usize) -> Result<Vec<(Key, Value)>, Stop> {
        let mut found = Vec::new();
        let visit = |key: &Key, value: &Value| {
            if key.kind != Kind::Inode {
                found.push((*key, value.clone()));
            }
            if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.range(Key::inode(ino), Key::last_of(ino), visit)?;
        Ok(found)
    }

    /// The inode, if it exists and has a link or is open.
    pub(crate) fn linked_or_open(&self, ino: Ino) -> Result<Option<InodeValue>, Stop> {
        match self.inode_value(ino) {
            Ok(Some(value)) if value.attr.nlink == 0 && !self.opens.is_open(ino) => Ok(None),
            value => value,
        }
    }

    /// The same; ESTALE if it is gone. Waits while a transaction may be changing it.
    pub(crate) fn living(&self, ino: Ino) -> Result<InodeValue, Stop> {
        self.check_unlocked(ino, LockMode::Read)?;
        match self.linked_or_open(ino) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(Errno::ESTALE.into()),
            Err(stop) => Err(stop),
        }
    }

    /// The same without a copy of the inode.
    pub(crate) fn living_inode(&self, ino: Ino) -> Result<&Inode, Stop> {
        self.check_unlocked(ino, LockMode::Read)?;
        let living = |inode: &&Inode| inode.nlink > 0 || self.opens.is_open(ino);
        Ok(self.inode(ino)?.filter(living).ok_or(Errno::ESTALE)?)
    }

    /// Stops an operation on one inode while a transaction blocks it.
    pub(crate) fn check_unlocked(&self, ino: Ino, mode: LockMode) -> Result<(), Stop> {
        let key = LockKey::Inode(ino);
        if self.locks.blocks(&key, mode) { Err(Stop::Wait(Wait::Key(key))) } else { Ok(()) }
    }

    /// The next inode number; ENOSPC if all are used up. [`Self::use_sequence`] takes it.
    pub(crate) fn next_ino(&self) -> Result<Ino, Errno> {
        let left = self.next_sequence <= Ino::SEQUENCE_MAX;
        left.then(|| Ino::new(self.id, self.next_sequence)).ok_or(Errno::ENOSPC)
    }

    pub(crate) fn use_sequence(&mut self, ino: Ino) {
        self.next_sequence = self.next_sequence.max(ino.sequence() + 1);
        self.changed = true;
    }

    /// The needs of changes in the shard, with its present tree.
    pub(crate) fn budget(&self) -> Budget {
        Budget::of(self.tree.height(), self.owed.extents)
    }

    /// Free blocks less the needs of dirty pages, dirty nodes, chunk records, unwritten extents,
    /// prepared transactions and records that clients may post.
    pub(crate) fn room(&self) -> u64 {
        self.room_with(self.pages.dirty_pages())
    }

    /// The same if so many pages were dirty.
    pub(crate) fn room_with(&self, dirty_pages: u64) -> u64 {
        let wanted = blocks_of_pages(dirty_pages)
            + self.tree.dirty_nodes() as u64
            + self.space.record_nodes()
            + blocks_of_owed(self.owed.blocks)
            + self.promised
            + self.leases.delegations.promised();
        self.space.free_blocks().saturating_sub(wanted)
    }

    /// Free blocks that the shard keeps although a checkpoint would let their chunks go: those that
    /// it owes, those that are set aside for records, and those that are kept back.
    pub(crate) fn kept_blocks(&self) -> u64 {
        let owed = blocks_of_owed(self.owed.blocks) + self.leases.delegations.promised();
        if self.inodes == 0 { owed } else { owed + self.budget().kept_from_growth() }
    }

    /// Blocks that the shard owes to unwritten extents.
    pub(crate) fn owed_blocks(&self) -> u64 {
        self.owed.blocks
    }

    /// Whether a checkpoint may leave the shard with more room.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.pages.dirty_pages() > 0
            || self.tree.dirty_nodes() > 0
            || self.promised > 0
            || self.space.holds_freed()
    }

    /// Makes a change for which there is room. It takes a block for each node that becomes dirty.
    /// These are counted only in builds in which [`Reservation::spend`] checks them.
    pub(crate) fn change<T>(
        &mut self,
        room: &mut Reservation,
        make: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if !cfg!(debug_assertions) {
            return make(self);
        }
        let before = self.tree.dirty_nodes();
        let made = make(self);
        room.spend(self.tree.dirty_nodes().saturating_sub(before) as u64);
        made
    }
}

pub(crate) fn attr_of(ino: Ino, inode: &Inode) -> Attr {
    let directory = inode.kind == FileKind::Directory;
    Attr {
        ino,
        kind: inode.kind,
        mode: inode.mode,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        size: if directory { DIRECTORY_SIZE } else { inode.size },
        blocks: if directory { 1 } else { inode.blocks },
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        btime: inode.btime,
        flags: inode.flags,
    }
}

/// The inode that [`warren_proto::Change::NewInode`] makes.
pub(crate) fn new_inode(
    new: &warren_proto::NewInode,
    uid: u32,
    gid: u32,
    parent: Ino,
    now: Timestamp,
) -> Inode {
    // The number of an inode is in its key.
    let InodeValue { attr, parent, .. } = predict::new_inode(Ino(0), new, uid, gid, parent, now);
    Inode {
        kind: attr.kind,
        mode: attr.mode,
        uid,
        gid,
        nlink: attr.nlink,
        rdev: attr.rdev,
        // Its names are no data of a directory.
        size: new.target.len() as u64,
        blocks: 0,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: attr.btime,
        generation: 0,
        parent,
        flags: attr.flags,
    }
}
