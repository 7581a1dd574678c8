//! Requests that concern one inode, a handle, or nothing at all.

use warren_base::limits::{PAYLOAD_MAX, XATTR_VALUE_MAX};
use warren_base::{ClientId, Errno, Ino};
use warren_disk::{Key, Kind, VALUE_MAX, Value, Xattr, name_hash};
use warren_proto::{
    AccessMode, Answer, Attr, Credentials, FileKind, Handle, InodeValue, LeaseKey, LockMode,
    LockSpec, Reply, Request, SetAttr, SetTime, XattrMode, XattrName,
};

use crate::cell::{Cell, Out};
use crate::event::{Memory, SlotRef};
use crate::filelock::LockOutcome;
use crate::permission::{self, READ, STICKY, WRITE};
use crate::task::{Stop, Task, TaskId, Wait, Work};

/// Nodes that a change of one inode may make dirty, with a reserve for what frees space.
const ROOM: u64 = 32;

/// The answer, and the bytes of its payload.
type Finished = Option<(Answer, u32)>;

/// A request as its execution needs it, beside what it asks.
struct Call {
    id: TaskId,
    from: SlotRef,
    seq: u32,
    /// Bytes of file data that came with it.
    payload: usize,
    who: Credentials,
}

fn done(reply: Reply) -> Result<Finished, Stop> {
    Ok(Some((Ok(reply), 0)))
}

impl Cell {
    pub(crate) fn run_request<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<Finished, Stop> {
        let Work::Request { from, header, request, who } = &task.work else {
            unreachable!("called for requests only");
        };
        let call = Call {
            id,
            from: *from,
            seq: header.seq,
            payload: (header.payload_len as usize).min(PAYLOAD_MAX),
            who: who.clone(),
        };
        let request = request.clone();
        if request.shard().is_some_and(|shard| !self.shards.contains_key(&shard)) {
            return done(Reply::Moved(self.map_version()));
        }
        self.execute(&call, request, task, out)
    }

    fn execute<M: Memory>(
        &mut self,
        call: &Call,
        request: Request,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<Finished, Stop> {
        let Call { id, from, seq, payload, who } = call;
        let client = from.client;
        match request {
            Request::Null => done(Reply::Done),
            Request::GetAttr { ino } => self.get_attr(ino, client, out),
            Request::SetAttr { ino, handle, set } => {
                let writable = self.is_writable(handle, client)?;
                self.set_attr(ino, set, writable, who, task, out)
            }
            Request::ReadLink { ino } => self.read_link(ino),
            Request::Open { ino, access } => self.open_file(ino, access, who, task, out),
            Request::Close { handle } => self.close(handle, client, out),
            Request::Read { handle, position, len } => {
                let len = self.read(*from, handle, position, len, out)?;
                Ok(Some((Ok(Reply::Read { len }), len)))
            }
            Request::Write { handle, position, kill_privileges } => {
                let kill = kill_privileges || (!who.checked_by_kernel && who.uid != 0);
                let (len, size) =
                    self.write((*from, *payload), handle, position, kill, task, out)?;
                done(Reply::Written { len, size })
            }
            Request::Seek { handle, position } => self.seek(handle, position, client),
            Request::Fsync { ino, .. } => self.fsync(Some(ino), task),
            Request::Sync => self.fsync(None, task),
            Request::StatFs => done(Reply::StatFs(self.stat_fs(*id, out)?)),
            Request::GetXattr { ino, name } => self.get_xattr(ino, &name, who),
            Request::SetXattr { ino, name, value, mode } => {
                self.set_xattr(ino, name, Some((value, mode)), who, task, out)
            }
            Request::RemoveXattr { ino, name } => self.set_xattr(ino, name, None, who, task, out),
            Request::ListXattr { ino } => self.list_xattrs(ino),
            Request::Lock { ino, spec, wait } => self.lock_file(*id, task, ino, spec, wait),
            Request::TestLock { ino, spec } => self.test_lock(ino, client, &spec),
            Request::ReleaseLocks { ino, owner } => {
                self.release_file_locks(ino, client, owner);
                done(Reply::Done)
            }
            Request::Cancel { slot, seq } => {
                self.cancel(SlotRef { client, slot }, seq, out);
                done(Reply::Done)
            }
            Request::AwaitRecall { acknowledged } => {
                self.listen(*from, *seq, acknowledged, out)?;
                Ok(None)
            }
            Request::Lookup { .. }
            | Request::Create { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::ReadDir { .. } => unreachable!("an operation on names"),
        }
    }

    /// Whether a file may be truncated through the handle, if it is through one.
    fn is_writable(&self, handle: Option<Handle>, client: ClientId) -> Result<Option<bool>, Errno> {
        let access = handle.map(|handle| self.opens.get(handle, client)).transpose()?;
        Ok(access.map(|file| file.access.contains(AccessMode::WRITE)))
    }

    fn close<M: Memory>(
        &mut self,
        handle: Handle,
        client: ClientId,
        out: &mut Out<'_, M>,
    ) -> Result<Finished, Stop> {
        let ino = handle.ino;
        let inode = self.shards[&ino.shard()].inode(ino)?;
        let nameless = inode.is_none_or(|inode| inode.nlink == 0);
        if self.opens.close(handle, client)? {
            // Without a name it is gone with its last open, however long its blocks take to be freed.
            if nameless {
                self.leases.revoke(&LeaseKey::Attr(ino), out.memory);
            }
            self.start(Task::new(Work::Reap { ino }));
        }
        done(Reply::Done)
    }

    fn seek(&mut self, handle: Handle, position: u64, client: ClientId) -> Result<Finished, Stop> {
        self.opens.get(handle, client)?;
        self.opens.get_mut(handle).expect("just there").offset = position;
        done(Reply::Done)
    }

    fn test_lock(&self, ino: Ino, client: ClientId, spec: &LockSpec) -> Result<Finished, Stop> {
        self.living(ino)?;
        done(Reply::LockHolder(self.file_locks.test(ino, client, spec)))
    }

    /// The inode; ESTALE if it is gone. Waits while a transaction may be changing it.
    pub(crate) fn living(&self, ino: Ino) -> Result<InodeValue, Stop> {
        self.check_unlocked(ino, LockMode::Read)?;
        let shard = self.shards.get(&ino.shard()).ok_or(Errno::ESTALE)?;
        Ok(self.living_inode(shard, ino)?.ok_or(Errno::ESTALE)?)
    }

    fn get_attr<M: Memory>(
        &mut self,
        ino: Ino,
        client: ClientId,
        out: &mut Out<'_, M>,
    ) -> Result<Finished, Stop> {
        let attr = self.living(ino)?.attr;
        let lease = self.grant_attr(ino, client, out);
        done(Reply::Attr { attr, lease })
    }

    /// Waits until the attributes of the inode may change, with room for it.
    pub(crate) fn ready_to_change<M: Memory>(
        &mut self,
        ino: Ino,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<InodeValue, Stop> {
        self.check_unlocked(ino, LockMode::Write)?;
        let value = self.living(ino)?;
        self.ensure_room(ino.shard(), ROOM, task)?;
        if !self.recall(&LeaseKey::Attr(ino), task.client(), out) {
            return Err(Stop::Wait(Wait::Recall));
        }
        Ok(value)
    }

    fn set_attr<M: Memory>(
        &mut self,
        ino: Ino,
        set: SetAttr,
        writable: Option<bool>,
        who: &Credentials,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<Finished, Stop> {
        let value = self.ready_to_change(ino, task, out)?;
        if set.size.is_some() && writable == Some(false) {
            return Err(Errno::EINVAL.into());
        }
        check_set(&set, &value.attr, writable.is_some(), who)?;
        if let Some(size) = set.size {
            self.ready_to_truncate(ino, size, task, out)?;
            self.truncate_now(ino, size, out);
        }
        self.leases.revoke(&LeaseKey::Attr(ino), out.memory);
        let access = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        if access && value.attr.kind == FileKind::Directory {
            self.leases.revoke_names(ino, out.memory);
        }
        let now = self.now.wall;
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let shard = self.shards.get_mut(&ino.shard()).expect("owned");
        let inode = shard.inode_mut(ino);
        let chown = set.uid.is_some() || set.gid.is_some();
        // A new owner takes them away whoever gives the file to him, root too.
        if chown || set.kill_privileges {
            inode.mode = permission::without_privileges(value.attr.kind, inode.mode);
        }
        if let Some(mode) = set.mode {
            inode.mode = allowed_mode(mode, &value.attr, who) & warren_disk::MODE_MASK;
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        inode.atime = set.atime.map_or(inode.atime, time);
        inode.mtime = set.mtime.map_or(inode.mtime, time);
        inode.ctime = now;
        if value.attr.kind == FileKind::Directory {
            let part = shard.part_mut(ino);
            part.mtime = set.mtime.map_or(part.mtime, time);
        }
        let attr = self.living(ino)?.attr;
        let client = task.client().expect("a request");
        let lease = self.grant_attr(ino, client, out);
        done(Reply::Attr { attr, lease })
    }

    fn read_link(&self, ino: Ino) -> Result<Finished, Stop> {
        let value = self.living(ino)?;
        if value.attr.kind != FileKind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        let mut target = Vec::new();
        self.shards[&ino.shard()].records(ino, Kind::Target, 0, |_, piece| {
            if let Value::Target(bytes) = piece {
                target.extend_from_slice(bytes);
            }
            std::ops::ControlFlow::Continue(())
        })?;
        done(Reply::Target(target.into()))
    }

    fn open_file<M: Memory>(
        &mut self,
        ino: Ino,
        access: AccessMode,
        who: &Credentials,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<Finished, Stop> {
        permission::check_open(who, &self.living(ino)?.attr, access)?;
        self.ready_to_open(ino, access, task, out)?;
        let client = task.client().expect("a request");
        done(Reply::Opened(self.open_now(ino, access, who, client, out)))
    }

    /// What an open has to wait for: emptying the file.
    pub(crate) fn ready_to_open<M: Memory>(
        &mut self,
        ino: Ino,
        access: AccessMode,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<(), Stop> {
        if access.contains(AccessMode::TRUNCATE) {
            self.ready_to_change(ino, task, out)?;
            self.ready_to_truncate(ino, 0, task, out)?;
        }
        Ok(())
    }

    /// Waits for a checkpoint, unless everything of the file's shard is in the last one.
    fn fsync(&mut self, ino: Option<Ino>, task: &mut Task) -> Result<Finished, Stop> {
        if let Some(ino) = ino {
            self.living(ino)?;
        }
        if task.checkpointed {
            return done(Reply::Done);
        }
        task.checkpointed = true;
        Err(Stop::Wait(Wait::Checkpoint))
    }

    fn xattr_bucket(&self, ino: Ino, name: &XattrName) -> Result<(Key, Vec<Xattr>), Stop> {
        let key = Key::xattr(ino, name_hash(self.secret, name.as_bytes()));
        let mut bucket = Vec::new();
        self.shards[&ino.shard()].records(ino, Kind::Xattr, key.sub, |found, value| {
            if let (true, Value::Xattrs(xattrs)) = (found.sub == key.sub, value) {
                bucket = xattrs.to_vec();
            }
            std::ops::ControlFlow::Break(())
        })?;
        Ok((key, bucket))
    }

    fn get_xattr(&self, ino: Ino, name: &XattrName, who: &Credentials) -> Result<Finished, Stop> {
        let value = self.living(ino)?;
        match check_xattr_name(name, &value.attr) {
            Err(Errno::EPERM) => return Err(Errno::ENODATA.into()),
            checked => checked?,
        }
        permission::check(who, &value.attr, READ)?;
        let (_, bucket) = self.xattr_bucket(ino, name)?;
        let found = bucket.into_iter().find(|xattr| *xattr.name == *name.as_bytes());
        done(Reply::Xattr(found.ok_or(Errno::ENODATA)?.value))
    }

    fn set_xattr<M: Memory>(
        &mut self,
        ino: Ino,
        name: XattrName,
        new: Option<(Box<[u8]>, XattrMode)>,
        who: &Credentials,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<Finished, Stop> {
        let value = self.ready_to_change(ino, task, out)?;
        check_xattr_name(&name, &value.attr)?;
        if value.attr.kind == FileKind::Directory && value.attr.mode & STICKY != 0 {
            permission::check_owner(who, &value.attr)?;
        }
        permission::check(who, &value.attr, WRITE)?;
        let (key, mut bucket) = self.xattr_bucket(ino, &name)?;
        let exists = bucket.iter().any(|xattr| *xattr.name == *name.as_bytes());
        match &new {
            None if !exists => return Err(Errno::ENODATA.into()),
            Some((_, XattrMode::Create)) if exists => return Err(Errno::EEXIST.into()),
            Some((_, XattrMode::Replace)) if !exists => return Err(Errno::ENODATA.into()),
            Some((value, _)) if value.len() > XATTR_VALUE_MAX => return Err(Errno::ENOSPC.into()),
            _ => {}
        }
        bucket.retain(|xattr| *xattr.name != *name.as_bytes());
        if let Some((value, _)) = new {
            bucket.push(Xattr { name: name.as_bytes().into(), value });
        }
        let record = Value::Xattrs(bucket.into());
        if record.encoded_len() > VALUE_MAX {
            return Err(Errno::ENOSPC.into());
        }
        let shard = self.shards.get_mut(&ino.shard()).expect("owned");
        shard.fetch(&key)?;
        self.leases.revoke(&LeaseKey::Attr(ino), out.memory);
        shard.inode_mut(ino).ctime = self.now.wall;
        if record.encoded_len() == 0 {
            shard.take(&key);
        } else {
            shard.put(key, record);
        }
        done(Reply::Done)
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Finished, Stop> {
        self.living(ino)?;
        let mut names = Vec::new();
        self.shards[&ino.shard()].records(ino, Kind::Xattr, 0, |_, value| {
            if let Value::Xattrs(xattrs) = value {
                names.extend(xattrs.iter().map(|xattr| xattr.name.clone()));
            }
            std::ops::ControlFlow::Continue(())
        })?;
        done(Reply::XattrNames(names))
    }

    fn lock_file(
        &mut self,
        id: TaskId,
        task: &mut Task,
        ino: Ino,
        spec: LockSpec,
        wait: bool,
    ) -> Result<Finished, Stop> {
        if task.granted {
            return done(Reply::Done);
        }
        self.living(ino)?;
        let client = task.client().expect("a request");
        let outcome = self.file_locks.lock(ino, client, spec, wait.then_some(id));
        // A lock that was given up or made weaker lets others go on, whatever became of this one.
        self.grant_file_locks(ino);
        match outcome? {
            LockOutcome::Granted => done(Reply::Done),
            LockOutcome::Waits => Err(Stop::Wait(Wait::Registered)),
        }
    }
}

/// Whether `who` may set these attributes. `writable`: through a handle opened for writing.
fn check_set(set: &SetAttr, attr: &Attr, writable: bool, who: &Credentials) -> Result<(), Errno> {
    if set.size.is_some() {
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if !writable {
            permission::check(who, attr, WRITE)?;
        }
    }
    if who.checked_by_kernel || who.uid == 0 {
        return Ok(());
    }
    let changes_owner =
        set.uid.is_some_and(|uid| uid != attr.uid) || (set.uid.is_some() && who.uid != attr.uid);
    let changes_group = set.gid.is_some_and(|gid| {
        who.uid != attr.uid || (gid != attr.gid && !permission::in_group(who, gid))
    });
    if changes_owner || changes_group {
        return Err(Errno::EPERM);
    }
    if set.mode.is_some() {
        permission::check_owner(who, attr)?;
    }
    // Who may write may set both times to now; anything else is the owner's.
    match (set.atime, set.mtime) {
        (None, None) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) if who.uid != attr.uid => {
            permission::check(who, attr, WRITE)
        }
        _ => permission::check_owner(who, attr),
    }
}

/// The set-gid bit is only for members of the group.
fn allowed_mode(mode: u16, attr: &Attr, who: &Credentials) -> u16 {
    let member = who.checked_by_kernel || who.uid == 0 || permission::in_group(who, attr.gid);
    if member { mode } else { mode & !permission::SET_GID }
}

/// Only `user.` attributes exist, and only on files and directories, as on Linux.
fn check_xattr_name(name: &XattrName, attr: &Attr) -> Result<(), Errno> {
    if !name.as_bytes().starts_with(b"user.") {
        return Err(Errno::EOPNOTSUPP);
    }
    match attr.kind {
        FileKind::Regular | FileKind::Directory => Ok(()),
        _ => Err(Errno::EPERM),
    }
}
