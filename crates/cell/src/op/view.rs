//! The data that an operation on names sees while it decides: inodes and names of this cell, and
//! values that a transaction has fetched from other cells.
//!
//! An operation first runs as if everything lay on this cell (*local*). It holds nothing, and the
//! view only checks that no transaction blocks it. If it meets a key of another cell it becomes a
//! transaction. From then on the view notes every key that is touched, and the outcome counts only
//! if all of them were locked.

use std::collections::BTreeMap;

use warren_base::{Errno, Ino, InodeFlags, ShardId, Timestamp};
use warren_proto::{
    ACL_DEFAULT, Acl, Attr, Credentials, FileKind, FileName, InodeValue, KeyValue, LockKey,
    LockMode,
};
use warren_rules::names;

use crate::fleet::Volume;
use crate::op::place::place;
use crate::run::ascent::{Ascent, STEPS_A_RUN, STEPS_LOCAL};
use crate::run::txn::Txn;
use crate::run::wait::{Stop, Wait};
use crate::shards::Shards;

enum Mode<'a> {
    Local,
    Txn { txn: &'a Txn, touched: BTreeMap<LockKey, LockMode> },
}

pub(crate) struct View<'a> {
    pub(crate) shards: &'a Shards,
    pub(crate) volume: &'a Volume,
    pub(crate) now: Timestamp,
    pub(crate) who: &'a Credentials,
    mode: Mode<'a>,
    /// Ascents: their directories and positions; and the steps of this run.
    ascents: Vec<((Ino, Ino), Ascent)>,
    steps: u32,
    /// The inodes of this cell that it has looked at, if that is noted.
    inodes: Option<Vec<Ino>>,
    /// The number that a new inode gets, if that is given.
    number: Option<Ino>,
}

/// The keys that a transaction's operation has touched, and its ascents.
pub(crate) struct Seen {
    pub(crate) touched: BTreeMap<LockKey, LockMode>,
    pub(crate) ascents: Vec<((Ino, Ino), Ascent)>,
}

impl<'a> View<'a> {
    pub(crate) fn new(
        shards: &'a Shards,
        (volume, now): (&'a Volume, Timestamp),
        who: &'a Credentials,
        txn: Option<&'a Txn>,
    ) -> Self {
        let mode = match txn {
            None => Mode::Local,
            Some(txn) => Mode::Txn { txn, touched: BTreeMap::new() },
        };
        Self {
            shards,
            volume,
            now,
            who,
            mode,
            ascents: Vec::new(),
            steps: 0,
            inodes: None,
            number: None,
        }
    }

    /// Notes the inodes at which the operation looks.
    pub(crate) fn note_inodes(&mut self) {
        self.inodes = Some(Vec::new());
    }

    /// The inodes that were noted.
    pub(crate) fn take_inodes(&mut self) -> Vec<Ino> {
        self.inodes.take().unwrap_or_default()
    }

    /// A new inode gets this number.
    pub(crate) fn number(&mut self, new: Option<Ino>) {
        self.number = new;
    }

    /// Steps from a directory to its parent that this run took.
    pub(crate) const fn steps(&self) -> u32 {
        self.steps
    }

    /// The touched keys, if the operation is a transaction.
    pub(crate) fn into_seen(self) -> Option<Seen> {
        match self.mode {
            Mode::Local => None,
            Mode::Txn { touched, .. } => Some(Seen { touched, ascents: self.ascents }),
        }
    }

    /// The attributes of an inode, if they are at hand.
    pub(crate) fn attr_at_hand(&self, ino: Ino) -> Result<Option<Attr>, Stop> {
        match self.shards.local(ino.shard())? {
            Some(shard) if !shard.locks.blocks(&LockKey::Inode(ino), LockMode::Read) => {
                match shard.linked_or_open(ino) {
                    Ok(Some(InodeValue { attr, .. })) => Ok(Some(attr)),
                    Ok(None) => Ok(None),
                    Err(stop) => Err(stop),
                }
            }
            _ => Ok(None),
        }
    }

    /// Notes the use of a key. Stops a local operation if a transaction blocks it.
    fn touch(
        &mut self,
        key: impl FnOnce() -> LockKey,
        shard: ShardId,
        mode: LockMode,
    ) -> Result<(), Stop> {
        let local = self.shards.local(shard)?;
        if local.is_none() && self.volume.owner(shard).is_none() {
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

    fn fetched_value(&self, key: &LockKey) -> Result<&KeyValue, Stop> {
        match &self.mode {
            Mode::Txn { txn, .. } => txn.values.get(key).ok_or(Stop::Wait(Wait::Remote)),
            Mode::Local => Err(Stop::Wait(Wait::Remote)),
        }
    }

    /// The parent of a directory, if it has one.
    fn parent(&self, dir: Ino) -> Result<Option<Ino>, Stop> {
        if let Some(shard) = self.shards.local(dir.shard())? {
            return Ok(shard.inode(dir)?.map(|inode| inode.parent));
        }
        match &self.mode {
            Mode::Local => Err(Stop::Wait(Wait::Remote)),
            Mode::Txn { txn, .. } => match &txn.peeked {
                Some((ino, value)) if *ino == dir => Ok(value.as_ref().map(|value| value.parent)),
                _ => Err(Stop::Wait(Wait::Peek(dir))),
            },
        }
    }
}

impl names::View for View<'_> {
    type Stop = Stop;

    fn who(&self) -> &Credentials {
        self.who
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn inode(&mut self, ino: Ino, mode: LockMode) -> Result<Option<InodeValue>, Stop> {
        self.touch(|| LockKey::Inode(ino), ino.shard(), mode)?;
        if let Some(shard) = self.shards.local(ino.shard())? {
            let found = shard.linked_or_open(ino);
            if let (Some(inodes), Ok(Some(_))) = (&mut self.inodes, &found) {
                inodes.push(ino);
            }
            return found;
        }
        match self.fetched_value(&LockKey::Inode(ino))? {
            KeyValue::Inode(value) => Ok(value.clone()),
            _ => Err(Stop::Fail(Errno::EPROTO)),
        }
    }

    fn name(
        &mut self,
        dir: Ino,
        name: &FileName,
        mode: LockMode,
    ) -> Result<Option<(Ino, FileKind)>, Stop> {
        let key = || LockKey::Name(dir, name.clone());
        self.touch(key, dir.shard(), mode)?;
        if let Some(shard) = self.shards.local(dir.shard())? {
            return shard.dentry(self.volume.secret, dir, name);
        }
        match self.fetched_value(&key())? {
            KeyValue::Name(value) => Ok(*value),
            _ => Err(Stop::Fail(Errno::EPROTO)),
        }
    }

    /// The directory is on this cell.
    fn default_acl(&self, dir: &InodeValue) -> Result<Option<Acl>, Stop> {
        let Attr { ino, flags, .. } = dir.attr;
        if !flags.contains(InodeFlags::DEFAULT_ACL) {
            return Ok(None);
        }
        let shard = self.shards.local(ino.shard())?.ok_or(Errno::ESTALE)?;
        shard.acl(ino, ACL_DEFAULT)
    }

    fn place(&self, dir: Ino, name: &FileName) -> ShardId {
        let (secret, shards) = (self.volume.secret, self.volume.map.len());
        place(secret, shards, dir, name, |id| self.shards.may_grow(id))
    }

    fn new_ino(&mut self, shard: ShardId) -> Result<Ino, Stop> {
        if let Some(number) = self.number {
            return Ok(number);
        }
        self.touch(|| LockKey::New(shard), shard, LockMode::Write)?;
        if let (Mode::Local, Some(shard)) = (&self.mode, self.shards.local(shard)?) {
            return Ok(shard.next_ino()?);
        }
        match self.fetched_value(&LockKey::New(shard))? {
            KeyValue::New(ino) if ino.shard() == shard => Ok(*ino),
            _ => Err(Stop::Fail(Errno::EPROTO)),
        }
    }

    fn opens_files_of(&self, shard: ShardId) -> bool {
        self.shards.contains_key(&shard)
    }

    /// Touches a name of the operation, its directory, and the inode to which it leads if that is
    /// known, before the operation needs them. So one message to each cell requests all of its
    /// keys. An operation without locks requests nothing.
    fn expect_name(&mut self, dir: Ino, name: &FileName) -> Result<(), Stop> {
        let Mode::Txn { txn, .. } = &self.mode else { return Ok(()) };
        let key = LockKey::Name(dir, name.clone());
        let found = match self.shards.local(dir.shard())? {
            Some(shard) => shard.dentry(self.volume.secret, dir, name),
            None => match txn.values.get(&key) {
                Some(KeyValue::Name(value)) => Ok(*value),
                _ => Ok(None),
            },
        };
        self.touch(|| LockKey::Inode(dir), dir.shard(), LockMode::IntentWrite)?;
        self.touch(|| key, dir.shard(), LockMode::Write)?;
        // The operation reports an error when it comes to it.
        match found {
            Ok(Some((ino, _))) => {
                let _ = self.touch(|| LockKey::Inode(ino), ino.shard(), LockMode::Write);
            }
            Err(stop @ Stop::Wait(_)) => return Err(stop),
            Ok(None) | Err(Stop::Fail(_)) => {}
        }
        Ok(())
    }

    fn touch_logged(&mut self, ino: Ino) -> Result<(), Stop> {
        let key = LockKey::Logged(ino);
        self.touch(|| key.clone(), ino.shard(), LockMode::Write)?;
        // This cell does it with the changes.
        if self.shards.local(ino.shard())?.is_some() {
            return Ok(());
        }
        match self.fetched_value(&key)? {
            KeyValue::Logged => Ok(()),
            _ => Err(Stop::Fail(Errno::EPROTO)),
        }
    }

    fn touch_tree(&mut self) -> Result<(), Stop> {
        self.touch(|| LockKey::Tree, LockKey::Tree.shard(), LockMode::Write)
    }

    fn is_above(&mut self, ancestor: Ino, dir: Ino) -> Result<bool, Stop> {
        let (way, steps_max) = ((ancestor, dir), STEPS_A_RUN);
        let (known, steps_max, at_the_most) = match &self.mode {
            Mode::Local => (None, STEPS_LOCAL, Wait::Remote),
            // The run ends with the keys that must be locked.
            Mode::Txn { txn, .. } if !txn.holds_tree() => (None, 0, Wait::Remote),
            Mode::Txn { txn, .. } => (txn.ascents.get(&way).copied(), steps_max, Wait::Turn),
        };
        let mut ascent = known.unwrap_or(Ascent::new(dir));
        let found = loop {
            if ascent.at() == ancestor || ascent.at() == Ino::ROOT || ascent.has_ended() {
                break Ok(ascent.at() == ancestor);
            }
            if self.steps == steps_max {
                break Err(Stop::Wait(at_the_most));
            }
            match self.parent(ascent.at()) {
                Ok(None) => ascent.end(),
                Ok(Some(parent)) => {
                    self.steps += 1;
                    if let Err(errno) = ascent.step_to(parent) {
                        break Err(errno.into());
                    }
                }
                Err(stop) => break Err(stop),
            }
        };
        self.ascents.push((way, ascent));
        found
    }
}
