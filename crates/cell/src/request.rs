//! Requests that concern one inode, a handle, or nothing at all.

use std::ops::ControlFlow;
use std::sync::Arc;

use warren_base::budget::may_take;
use warren_base::limits::{BODY_MAX, PAYLOAD_MAX, SYMLINK_MAX, XATTR_VALUE_MAX};
use warren_base::{ClientId, Errno, Ino};
use warren_disk::{Inode, Kind, Value};
use warren_proto::{
    AccessMode, Answer, Attr, Attributes, Credentials, FileKind, Handle, InodeValue, LeaseKey,
    LockFlavour, LockMode, LockSpec, LockType, Reply, Request, SetAttr, SetTime, Step, Wire,
    XattrMode, XattrName,
};

use crate::cell::{Cell, Out};
use crate::event::{Effect, Memory, SlotRef};
use crate::file::WriteMode;
use crate::filelock::LockOutcome;
use crate::lease::Lane;
use crate::permission::{self, READ, STICKY, WRITE};
use crate::plant::Plant;
use crate::room::Growth;
use crate::task::{Stop, Task, TaskId, Wait, WaitKey, Work};

/// The answer, and the bytes of its payload.
type Finished = Option<(Answer, u32)>;

/// A request as its execution needs it, beside what it asks.
struct Call {
    id: TaskId,
    from: SlotRef,
    seq: u32,
    /// Bytes of file data that came with it.
    payload: usize,
    who: Arc<Credentials>,
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
            who: Arc::clone(who),
        };
        let request = request.clone();
        self.execute(&call, request, task, out)
    }

    /// The answer to a request that is not executed here, whatever it asks: its shard is not this cell's,
    /// or it names an inode that can be nowhere. Inode numbers are the client's word alone.
    pub(crate) fn misdirected(&self, request: &Request) -> Option<Answer> {
        let is_nowhere =
            |ino: Ino| ino.sequence() == 0 || usize::from(ino.shard().0) >= self.map.len();
        if request.inode().is_some_and(|ino| ino.sequence() == 0)
            || request.other_inode().is_some_and(is_nowhere)
        {
            return Some(Err(Errno::ESTALE));
        }
        let elsewhere = request.shard().is_some_and(|shard| !self.shards.contains_key(&shard));
        elsewhere.then(|| Ok(Reply::Moved(self.map_version())))
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
                let writable = self.is_writable(ino, handle, client)?;
                self.set_attr(ino, set, writable, who, task, out)
            }
            Request::ReadLink { ino } => self.read_link(ino),
            Request::Open { ino, access } => self.open_file(ino, access, who, task, out),
            Request::Close { handle } => self.close(handle, client, out),
            Request::Read { handle, position, len, direct } => {
                let len = self.read(*from, handle, position, (len, direct), out)?;
                Ok(Some((Ok(Reply::Read { len }), len)))
            }
            Request::Write { handle, position, kill_privileges, write_back, direct } => {
                let strips = kill_privileges || permission::is_bound(who);
                let mode = WriteMode { strips: strips.then_some(&**who), write_back, direct };
                let (len, size) =
                    self.write((*from, *payload), handle, position, mode, task, out)?;
                done(Reply::Written { len, size })
            }
            Request::Seek { handle, position } => self.seek(handle, position, client),
            Request::Fsync { ino, handle, .. } => {
                self.check_descriptor(ino, handle, client, who)?;
                self.fsync(ino, task, out)
            }
            Request::Sync => self.sync(task),
            Request::StatFs => done(Reply::StatFs(self.stat_fs(*id, out)?)),
            Request::GetXattr { ino, name } => self.get_xattr(ino, &name, who),
            Request::SetXattr { ino, name, value, mode } => {
                self.set_xattr(ino, name, Some((value, mode)), who, task, out)
            }
            Request::RemoveXattr { ino, name } => self.set_xattr(ino, name, None, who, task, out),
            Request::ListXattr { ino } => self.list_xattrs(ino),
            Request::Lock { handle, spec, wait } => {
                self.lock_file((*id, who.uid), task, handle, (spec, wait), out)
            }
            Request::TestLock { handle, spec } => self.test_lock(handle, client, &spec),
            Request::ReleaseLocks { ino, owner } => {
                self.release_file_locks(ino, (client, who.uid), owner);
                done(Reply::Done)
            }
            Request::Cancel { slot, seq } => {
                self.cancel(SlotRef { client, slot }, seq, out);
                done(Reply::Done)
            }
            Request::AwaitRecall { pages, acknowledged } => {
                let lane = if pages { Lane::Pages } else { Lane::Other };
                self.listen(*from, *seq, (lane, acknowledged), out)?;
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
    fn is_writable(
        &self,
        ino: Ino,
        handle: Option<Handle>,
        client: ClientId,
    ) -> Result<Option<bool>, Errno> {
        // Another file's handle says nothing of this one.
        if handle.is_some_and(|handle| handle.ino != ino) {
            return Err(Errno::EBADF);
        }
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
        self.opens.get(handle, client)?;
        let inode = self.shards[&ino.shard()].inode(ino)?;
        let nameless = inode.is_none_or(|inode| inode.nlink == 0);
        let last = self.opens.close(handle, client)?;
        self.log.note(&Step::Closed { handle });
        if last {
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
        self.move_to(handle, position);
        done(Reply::Done)
    }

    fn test_lock(
        &self,
        handle: Handle,
        client: ClientId,
        spec: &LockSpec,
    ) -> Result<Finished, Stop> {
        self.descriptor(handle, client)?;
        done(Reply::LockHolder(self.file_locks.test(handle.ino, client, spec)))
    }

    /// How the file was opened that a request needs as Linux needs a descriptor; EBADF if it is not open, or
    /// neither for reading nor for writing (`O_PATH`).
    fn descriptor(&self, handle: Handle, client: ClientId) -> Result<AccessMode, Errno> {
        let access = self.opens.get(handle, client)?.access;
        let is_open = access.intersects(AccessMode::READ | AccessMode::WRITE);
        if is_open { Ok(access) } else { Err(Errno::EBADF) }
    }

    /// Whether the client has the inode open, or a front's kernel has it.
    fn check_descriptor(
        &self,
        ino: Ino,
        handle: Option<Handle>,
        client: ClientId,
        who: &Credentials,
    ) -> Result<(), Errno> {
        match handle {
            Some(handle) if handle.ino == ino => self.descriptor(handle, client).map(|_| ()),
            None if who.checked_by_kernel => Ok(()),
            _ => Err(Errno::EBADF),
        }
    }

    /// The inode; ESTALE if it is gone. Waits while a transaction may be changing it.
    pub(crate) fn living(&self, ino: Ino) -> Result<InodeValue, Stop> {
        self.check_unlocked(ino, LockMode::Read)?;
        let shard = self.shards.get(&ino.shard()).ok_or(Errno::ESTALE)?;
        Ok(self.living_inode(shard, ino)?.ok_or(Errno::ESTALE)?)
    }

    /// The same without a copy of all of it.
    pub(crate) fn living_inode_at(&self, ino: Ino) -> Result<&Inode, Stop> {
        self.check_unlocked(ino, LockMode::Read)?;
        let shard = self.shards.get(&ino.shard()).ok_or(Errno::ESTALE)?;
        let living = |inode: &&Inode| inode.nlink > 0 || self.opens.is_open(ino);
        Ok(shard.inode(ino)?.filter(living).ok_or(Errno::ESTALE)?)
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

    /// Waits until the attributes of the inode may change, with room for so many nodes.
    pub(crate) fn ready_to_change<M: Memory>(
        &mut self,
        ino: Ino,
        (nodes, growth): (u64, Growth),
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<(), Stop> {
        self.check_unlocked(ino, LockMode::Write)?;
        self.living_inode_at(ino)?;
        self.ensure_room(ino.shard(), nodes, growth, task)?;
        if !self.recall(&LeaseKey::Attr(ino), task.client(), out) {
            return Err(Stop::Wait(Wait::Recall));
        }
        Ok(())
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
        if set == SetAttr::default() && !who.checked_by_kernel {
            return self.get_attr(ino, task.client().expect("a request"), out);
        }
        let home = self.shards.get(&ino.shard()).ok_or(Errno::ESTALE)?;
        let nodes = set.size.map_or(home.nodes_of_inode(), |_| home.truncation());
        self.ready_to_change(ino, (nodes, Growth::Keeps), task, out)?;
        let value = self.living(ino)?;
        if set.size.is_some() && writable == Some(false) {
            return Err(Errno::EINVAL.into());
        }
        check_set(&set, &value.attr, writable.is_some(), who)?;
        if let Some(size) = set.size {
            self.ready_to_truncate(ino, size, true, task, out)?;
            self.truncate_now(ino, size, out);
        }
        self.leases.revoke(&LeaseKey::Attr(ino), out.memory);
        let access = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        if access && value.attr.kind == FileKind::Directory {
            self.leases.revoke_names(ino, out.memory);
        }
        let attributes = self.attributes_after(ino, &set, &value.attr, who);
        self.step(Step::SetAttr { ino, attributes }, out);
        let attr = self.living(ino)?.attr;
        let client = task.client().expect("a request");
        let lease = self.grant_attr(ino, client, out);
        done(Reply::Attr { attr, lease })
    }

    /// What the attributes are once they are set.
    fn attributes_after(
        &mut self,
        ino: Ino,
        set: &SetAttr,
        old: &Attr,
        who: &Credentials,
    ) -> Attributes {
        let now = self.now.wall;
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let inode = self.inode_mut(ino);
        let mut mode = inode.mode;
        // A new owner takes them away, also if root gives the file. So does a new length, unless it is
        // root who sets it; for a front its kernel says so.
        let chown = set.uid.is_some() || set.gid.is_some();
        let truncated = set.size.is_some() && permission::is_bound(who);
        if chown || truncated || set.kill_privileges {
            mode = permission::without_privileges(who, old.kind, mode, old.gid);
        }
        if let Some(wanted) = set.mode {
            let gid = set.gid.unwrap_or(old.gid);
            mode = allowed_mode(wanted, gid, who) & warren_disk::MODE_MASK;
        }
        // A directory's time is its part's, which is what others see.
        let mtime = if old.kind == FileKind::Directory { old.mtime } else { inode.mtime };
        Attributes {
            mode,
            uid: set.uid.unwrap_or(inode.uid),
            gid: set.gid.unwrap_or(inode.gid),
            atime: set.atime.map_or(inode.atime, time),
            mtime: set.mtime.map_or(mtime, time),
            ctime: now,
        }
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
            // A damaged image may hold more than `create` lets in.
            go_on_if(target.len() <= SYMLINK_MAX)
        })?;
        if target.len() > SYMLINK_MAX {
            Err(Errno::EIO.into())
        } else {
            done(Reply::Target(target.into()))
        }
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
        let client = task.client().expect("a request");
        self.check_opens(who.uid)?;
        self.ready_to_open(ino, access, task, out)?;
        done(Reply::Opened(self.open_now(ino, access, who, client, out)))
    }

    /// Whether the user can have another file open, or lock held or waited for: those of all users must fit a snapshot
    /// of the session, and each has a share of it, whatever the number of its clients.
    pub(crate) fn check_opens(&self, uid: u32) -> Result<(), Errno> {
        let all = self.opens.count() + self.file_locks.count();
        let own = self.opens.count_of_user(uid) + self.file_locks.count_of_user(uid);
        if may_take(uid, own, all, self.log.session_max()) { Ok(()) } else { Err(Errno::ENFILE) }
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
            let nodes = self.shards.get(&ino.shard()).ok_or(Errno::ESTALE)?.truncation();
            self.ready_to_change(ino, (nodes, Growth::Keeps), task, out)?;
            self.ready_to_truncate(ino, 0, false, task, out)?;
        }
        Ok(())
    }

    /// Waits for a checkpoint: it makes all cells durable.
    fn sync(&self, task: &mut Task) -> Result<Finished, Stop> {
        if task.checkpointed {
            return done(Reply::Done);
        }
        task.checkpointed = true;
        Err(Stop::Wait(Wait::Checkpoint))
    }

    /// Makes the log durable with everything that was done to the file, or to the directory.
    fn fsync<M: Memory>(
        &mut self,
        ino: Ino,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<Finished, Stop> {
        self.living(ino)?;
        if task.checkpointed {
            return done(Reply::Done);
        }
        let client = task.client().expect("a request");
        if task.durable.is_none() && self.acknowledges(client) {
            // Whoever has synced a mapping tells others, which must not see older pages.
            self.recall_inherited_pages(ino, |other| other != client, out)?;
            if self.leases.has_overtaken(ino, client) {
                if self.leases.await_pages(ino, Some(client)) {
                    self.tasks.wake_all(WaitKey::Recall);
                }
                return Err(Stop::Wait(Wait::Recall));
            }
        }
        if task.durable.is_some_and(|lsn| self.log.is_durable(lsn)) {
            return done(Reply::Done);
        }
        if self.log.held {
            return self.sync(task);
        }
        let lsn = match task.durable {
            Some(lsn) => lsn,
            None => {
                if !self.log_has_room() {
                    return Err(Stop::Wait(Wait::LogRoom));
                }
                self.cover_file(ino, out)?;
                self.seal(out);
                *task.durable.insert(self.log.end())
            }
        };
        // Each time: what was asked for before may have failed while the task waited for something else.
        self.harden(lsn, out);
        let is_durable = self.log.is_durable(lsn) || self.plant == Some(Plant::AnswerEarly);
        if is_durable { done(Reply::Done) } else { Err(Stop::Wait(Wait::Durable)) }
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
        let home = self.shards.get(&ino.shard()).ok_or(Errno::ESTALE)?;
        let growth = if new.is_some() { Growth::Grows } else { Growth::Keeps };
        self.ready_to_change(ino, (home.nodes_of_xattr(), growth), task, out)?;
        let value = self.living(ino)?;
        check_xattr_name(&name, &value.attr)?;
        if value.attr.kind == FileKind::Directory && value.attr.mode & STICKY != 0 {
            permission::check_owner(who, &value.attr)?;
        }
        permission::check(who, &value.attr, WRITE)?;
        let (_, bucket) = self.xattr_bucket(ino, &name)?;
        let exists = bucket.iter().any(|xattr| *xattr.name == *name.as_bytes());
        match &new {
            None if !exists => return Err(Errno::ENODATA.into()),
            Some((_, XattrMode::Create)) if exists => return Err(Errno::EEXIST.into()),
            Some((_, XattrMode::Replace)) if !exists => return Err(Errno::ENODATA.into()),
            Some((value, _)) if value.len() > XATTR_VALUE_MAX => return Err(Errno::ENOSPC.into()),
            Some((value, _)) if !Self::xattr_fits(&bucket, &name, value) => {
                return Err(Errno::ENOSPC.into());
            }
            _ => {}
        }
        if new.is_some() && !exists {
            // A list that does not fit an answer could not be read any more.
            let mut names = self.xattr_names(ino)?;
            names.push(name.as_bytes().into());
            if !fits_answer(&Reply::XattrNames(names)) {
                return Err(Errno::ENOSPC.into());
            }
        }
        self.leases.revoke(&LeaseKey::Attr(ino), out.memory);
        let value = new.map(|(value, _)| value);
        self.step(Step::SetXattr { ino, name, value, now: self.now.wall }, out);
        done(Reply::Done)
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Finished, Stop> {
        self.living(ino)?;
        let reply = Reply::XattrNames(self.xattr_names(ino)?);
        // A damaged image may hold more than `set_xattr` lets in.
        if fits_answer(&reply) { done(reply) } else { Err(Errno::E2BIG.into()) }
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<Box<[u8]>>, Stop> {
        let (mut names, mut bytes) = (Vec::new(), 0);
        self.shards[&ino.shard()].records(ino, Kind::Xattr, 0, |_, value| {
            if let Value::Xattrs(xattrs) = value {
                bytes += xattrs.iter().map(|xattr| xattr.name.len()).sum::<usize>();
                names.extend(xattrs.iter().map(|xattr| xattr.name.clone()));
            }
            // What is no answer any more need not be whole.
            go_on_if(bytes <= BODY_MAX)
        })?;
        Ok(names)
    }

    /// Whoever gets a lock reads what was written under it before: pages that its front has to drop are gone
    /// by then.
    fn drop_old_pages<M: Memory>(
        &mut self,
        ino: Ino,
        task: &Task,
        out: &mut Out<'_, M>,
    ) -> Result<(), Stop> {
        let client = task.client().expect("a request");
        if self.plant == Some(Plant::LockBeforeRecall) {
            return Ok(());
        }
        self.recall_inherited_pages(ino, |front| front == client, out)?;
        if !self.leases.is_recalled_from(&LeaseKey::Pages(ino), client) {
            return Ok(());
        }
        if self.leases.await_pages(ino, None) {
            self.tasks.wake_all(WaitKey::Recall);
        }
        Err(Stop::Wait(Wait::Recall))
    }

    /// Locks or unlocks. A lock that was granted to a request that waited is logged before anything that the request
    /// may still wait for: other owners were refused for it, so a successor must know it. And so such a request
    /// cannot be cancelled any more, nor when a successor executes it again.
    fn lock_file<M: Memory>(
        &mut self,
        (id, uid): (TaskId, u32),
        task: &mut Task,
        handle: Handle,
        (spec, wait): (LockSpec, bool),
        out: &mut Out<'_, M>,
    ) -> Result<Finished, Stop> {
        let (ino, client) = (handle.ino, task.client().expect("a request"));
        if !task.granted {
            check_lock(self.descriptor(handle, client)?, &spec)?;
            if wait && self.file_locks.holds(ino, client, spec) {
                (task.granted, task.is_grant_logged) = (true, true);
            }
        } else if !std::mem::replace(&mut task.is_grant_logged, true) {
            self.log.note(&Step::Locked { ino, client, spec, uid });
        }
        if spec.lock != LockType::Unlock {
            self.drop_old_pages(ino, task, out)?;
        }
        if task.granted {
            return done(Reply::Done);
        }
        let grows = spec.lock != LockType::Unlock || self.file_locks.splits(ino, client, spec);
        if grows && (self.check_opens(uid).is_err() || !self.file_locks.has_room(ino, uid)) {
            return Err(Errno::ENOLCK.into());
        }
        let gives_up = self.file_locks.gives_up(ino, client, spec);
        let outcome = self.file_locks.lock(ino, (client, uid), spec, wait.then_some(id));
        match outcome {
            Ok(LockOutcome::Granted) => self.log.note(&Step::Locked { ino, client, spec, uid }),
            Ok(LockOutcome::Waits) | Err(Errno::EAGAIN) if gives_up => {
                let spec = LockSpec { lock: LockType::Unlock, ..spec };
                self.log.note(&Step::Locked { ino, client, spec, uid });
            }
            _ => {}
        }
        // A lock that was given up or made weaker lets others go on, whatever became of this one.
        self.grant_file_locks();
        match outcome {
            Ok(LockOutcome::Granted) => done(Reply::Done),
            Ok(LockOutcome::Waits) => {
                let from = task.slot().expect("a request");
                task.awaits_lock = true;
                out.effects.push(Effect::AwaitsLock { from });
                Err(Stop::Wait(Wait::Registered))
            }
            // Something was done: the answer goes into its record.
            Err(errno) if gives_up => Ok(Some((Err(errno), 0))),
            Err(errno) => Err(errno.into()),
        }
    }
}

const fn go_on_if(more: bool) -> ControlFlow<()> {
    if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// A record lock is for who may read or write what it covers, as it locks out others that do.
fn check_lock(access: AccessMode, spec: &LockSpec) -> Result<(), Errno> {
    let needed = match (spec.flavour, spec.lock) {
        (LockFlavour::Record, LockType::Shared) => AccessMode::READ,
        (LockFlavour::Record, LockType::Exclusive) => AccessMode::WRITE,
        _ => AccessMode::empty(),
    };
    if access.contains(needed) { Ok(()) } else { Err(Errno::EBADF) }
}

fn fits_answer(reply: &Reply) -> bool {
    reply.to_bytes().len() <= BODY_MAX
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
    if set.mode.is_some() && attr.kind == FileKind::Symlink && !who.checked_by_kernel {
        return Err(Errno::EOPNOTSUPP);
    }
    if !permission::is_bound(who) {
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
    // The set-id bits go with a new length, which who may write may set. Else they are the owner's.
    if set.mode.is_some() || (set.kill_privileges && set.size.is_none()) {
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
fn allowed_mode(mode: u16, gid: u32, who: &Credentials) -> u16 {
    let member = !permission::is_bound(who) || permission::in_group(who, gid);
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
