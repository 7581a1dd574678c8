//! What an operation on names sees while it decides: inodes and names of this cell, and what a
//! transaction has fetched from others.
//!
//! An operation runs first as if everything lay on this cell (*local*): it holds nothing, and the view
//! only makes sure that no transaction is in its way. If it meets a key of another cell it becomes a
//! transaction: from then on the view notes every key that is touched, and the outcome counts only if
//! all of them were held.

use std::collections::BTreeMap;

use warren_base::{Errno, Ino, ShardId};
use warren_proto::{
    Attr, Credentials, FileKind, FileName, InodeValue, KeyValue, LockKey, LockMode,
};

use crate::cell::Cell;
use crate::permission::{self, WRITE};
use crate::shard::Shard;
use crate::task::{Stop, Wait};
use crate::txn::Txn;

enum Mode<'a> {
    Local,
    Txn { txn: &'a Txn, touched: BTreeMap<LockKey, LockMode> },
}

pub(crate) struct View<'a> {
    pub(crate) cell: &'a Cell,
    pub(crate) who: &'a Credentials,
    mode: Mode<'a>,
}

impl<'a> View<'a> {
    pub(crate) fn new(cell: &'a Cell, who: &'a Credentials, txn: Option<&'a Txn>) -> Self {
        let mode = match txn {
            None => Mode::Local,
            Some(txn) => Mode::Txn { txn, touched: BTreeMap::new() },
        };
        Self { cell, who, mode }
    }

    /// The keys that a transaction's operation has touched.
    pub(crate) fn into_touched(self) -> BTreeMap<LockKey, LockMode> {
        match self.mode {
            Mode::Local => BTreeMap::new(),
            Mode::Txn { touched, .. } => touched,
        }
    }

    /// The shard, if it is this cell's.
    fn local(&self, id: ShardId) -> Result<Option<&'a Shard>, Stop> {
        match self.cell.shards.get(&id) {
            None if self.cell.shards.contains_key(&id) => Err(Stop::Wait(Wait::Coarser)),
            shard => Ok(shard),
        }
    }

    /// The attributes of an inode, if they are at hand.
    pub(crate) fn attr_at_hand(&self, ino: Ino) -> Result<Option<Attr>, Stop> {
        match self.local(ino.shard())? {
            Some(shard) if !shard.locks.blocks(&LockKey::Inode(ino), LockMode::Read) => {
                Ok(self.cell.living_inode(shard, ino)?.map(|value| value.attr))
            }
            _ => Ok(None),
        }
    }

    /// Notes the use of a key. A local operation is stopped by a transaction in its way.
    fn touch(
        &mut self,
        key: impl FnOnce() -> LockKey,
        shard: ShardId,
        mode: LockMode,
    ) -> Result<(), Stop> {
        let local = self.local(shard)?;
        if local.is_none() && self.cell.owner(shard).is_none() {
            return Err(Errno::ESTALE.into());
        }
        match &mut self.mode {
            Mode::Local => {
                let Some(shard) = local else { return Err(Stop::Wait(Wait::Remote)) };
                if shard.locks.is_empty() {
                    return Ok(());
                }
                let key = key();
                if shard.locks.blocks(&key, mode) {
                    return Err(Stop::Wait(Wait::Key(key)));
                }
            }
            Mode::Txn { touched, .. } => {
                let key = key();
                let joined = touched.get(&key).map_or(mode, |held| held.join(mode));
                touched.insert(key, joined);
            }
        }
        Ok(())
    }

    fn fetched(&self, key: &LockKey) -> Result<&KeyValue, Stop> {
        match &self.mode {
            Mode::Txn { txn, .. } => txn.values.get(key).ok_or(Stop::Wait(Wait::Remote)),
            Mode::Local => Err(Stop::Wait(Wait::Remote)),
        }
    }

    /// The inode, if it exists and has a link or is open.
    pub(crate) fn inode(&mut self, ino: Ino, mode: LockMode) -> Result<Option<InodeValue>, Stop> {
        self.touch(|| LockKey::Inode(ino), ino.shard(), mode)?;
        if let Some(shard) = self.local(ino.shard())? {
            return self.cell.living_inode(shard, ino);
        }
        match self.fetched(&LockKey::Inode(ino))? {
            KeyValue::Inode(value) => Ok(*value),
            _ => Err(Stop::Fail(Errno::EPROTO)),
        }
    }

    /// A directory, whose entries the operation works on in `mode`.
    pub(crate) fn directory(&mut self, ino: Ino, mode: LockMode) -> Result<InodeValue, Stop> {
        let value = self.inode(ino, mode)?.ok_or(Errno::ESTALE)?;
        if value.attr.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        Ok(value)
    }

    /// Whether `who` may give `dir` another name. ENOENT in a directory that was removed while it is
    /// open.
    pub(crate) fn may_add(&self, dir: &InodeValue) -> Result<(), Errno> {
        if dir.attr.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        permission::check(self.who, &dir.attr, WRITE)
    }

    /// Where a name leads.
    pub(crate) fn name(
        &mut self,
        dir: Ino,
        name: &FileName,
        mode: LockMode,
    ) -> Result<Option<(Ino, FileKind)>, Stop> {
        let key = || LockKey::Name(dir, name.clone());
        self.touch(key, dir.shard(), mode)?;
        if let Some(shard) = self.local(dir.shard())? {
            return shard.dentry(self.cell.secret, dir, name);
        }
        match self.fetched(&key())? {
            KeyValue::Name(value) => Ok(*value),
            _ => Err(Stop::Fail(Errno::EPROTO)),
        }
    }

    /// A number for a new inode of the shard.
    pub(crate) fn new_ino(&mut self, shard: ShardId) -> Result<Ino, Stop> {
        self.touch(|| LockKey::New(shard), shard, LockMode::Write)?;
        if let (Mode::Local, Some(shard)) = (&self.mode, self.local(shard)?) {
            return Ok(shard.next_ino()?);
        }
        match self.fetched(&LockKey::New(shard))? {
            KeyValue::New(ino) if ino.shard() == shard => Ok(*ino),
            _ => Err(Stop::Fail(Errno::EPROTO)),
        }
    }

    /// The right to change the shape of the tree.
    pub(crate) fn tree(&mut self) -> Result<(), Stop> {
        self.touch(|| LockKey::Tree, LockKey::Tree.shard(), LockMode::Write)
    }

    /// The parent of a directory, if that exists, looked at under the right to change the shape of the tree.
    pub(crate) fn parent(&mut self, dir: Ino) -> Result<Option<Ino>, Stop> {
        if let Some(shard) = self.local(dir.shard())? {
            return Ok(shard.inode(dir)?.map(|inode| inode.parent));
        }
        match &self.mode {
            Mode::Local => Err(Stop::Wait(Wait::Remote)),
            Mode::Txn { txn, .. } => match txn.peeked.get(&dir) {
                Some(value) => Ok(value.map(|value| value.parent)),
                None => Err(Stop::Wait(Wait::Peek(dir))),
            },
        }
    }
}
