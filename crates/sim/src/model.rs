//! The reference model: POSIX at the level of inodes, in memory, written to be obviously correct.
//!
//! [`State::step`] decides whether this outcome of this call is legal here, and computes the next
//! state. The choices of the system (inode numbers, handles, the order of a listing) are taken from
//! the outcome, and must be legal choices. When several errors apply, Linux and ext4 decide which
//! one is returned; comments name the kernel functions where the order is not obvious.
//!
//! The checker copies the state at every step, so everything big in it is shared.

mod access;
mod acl;
mod attributes;
mod content;
mod damaged;
mod data;
mod inode;
mod list;
mod locks;
mod names;
mod range;
mod rename;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use warren_base::{ClientId, Errno, Ino, ShardId, Timestamp};
use warren_proto::{
    AccessMode, Attr, Capability, CreateFlags, Credentials, Entry, FileKind, Handle, Reply, Request,
};

pub use inode::{Body, Inode, Name, Open, TimeBound};

use crate::history::{Action, DamagedShards, Excuses, KEY, Operation, Outcome, Window};

/// Why an outcome is not legal in a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The call had to fail with this error.
    MustFail(Errno),
    /// The call failed, but had to succeed.
    MustNotFail,
    /// The call succeeded, but its result is wrong.
    Differs(&'static str),
}

/// Positions of names in listings, collected from all listings of a history: the system chooses the
/// order, but a name keeps its position.
#[derive(Clone, Default, Debug)]
pub struct Cookies(BTreeMap<Name, u64>);

impl Cookies {
    /// False if the name was seen at another position.
    pub fn insert(&mut self, name: &[u8], cookie: u64) -> bool {
        *self.0.entry(Name::from(name)).or_insert(cookie) == cookie
    }

    fn of(&self, name: &[u8]) -> Option<u64> {
        self.0.get(name).copied()
    }
}

/// The facts that are common to all steps of a history.
#[derive(Clone, Default, Debug)]
pub struct Rules {
    pub cookies: Cookies,
    pub damaged: Option<DamagedShards>,
}

/// A file system at one moment.
#[derive(Clone, Debug)]
pub struct State {
    inodes: Rc<BTreeMap<Ino, Rc<Inode>>>,
    fingerprint: u64,
}

/// One call, in the form that the parts of the model use.
struct Step<'a> {
    client: ClientId,
    credentials: &'a Credentials,
    payload: &'a [u8],
    window: Window,
    excuses: Excuses,
    outcome: &'a Outcome,
    rules: &'a Rules,
}

type Legal = Result<(), Refusal>;

impl State {
    /// A file system with an empty root directory.
    pub fn new(uid: u32, gid: u32, made: Timestamp) -> Self {
        let mut state = Self { inodes: Rc::default(), fingerprint: 0 };
        let time = TimeBound::exactly(made);
        let body = Body::Directory { parent: Ino::ROOT, entries: BTreeMap::new() };
        let root = Inode::new(FileKind::Directory, 0o755, (uid, gid), time, body);
        state.insert(Ino::ROOT, Inode { nlink: 2, ..root });
        state
    }

    /// Two states with the same fingerprint are equal.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub fn get(&self, ino: Ino) -> Option<&Inode> {
        self.inodes.get(&ino).map(Rc::as_ref)
    }

    pub fn inodes(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.inodes.iter().map(|(ino, inode)| (*ino, inode.as_ref()))
    }

    /// The state after `operation`, if its outcome is legal here. An operation without an outcome
    /// cannot be stepped: the checker decides whether it took effect.
    pub fn step(&self, operation: &Operation, rules: &Rules) -> Result<State, Refusal> {
        let mut next = self.clone();
        match &operation.action {
            Action::Expel(shards) => next.expel(operation.client, shards),
            Action::Restart => next.restart(),
            Action::Damage(_) => {}
            Action::Request(_)
            | Action::Forged(_)
            | Action::Keep(_)
            | Action::Reopen(_)
            | Action::Stat { .. } => {
                let outcome = operation.outcome.as_ref().expect("only what returned is stepped");
                let step = Step {
                    client: operation.client,
                    credentials: &operation.credentials,
                    payload: &operation.payload,
                    window: operation.window,
                    excuses: operation.excuses,
                    outcome,
                    rules,
                };
                next.call(&operation.action, &step)?;
            }
        }
        Ok(next)
    }

    fn call(&mut self, action: &Action, step: &Step<'_>) -> Legal {
        match action {
            Action::Forged(_) => match step.outcome.answer {
                Err(Errno::ESTALE) => Ok(()),
                _ => Err(Refusal::MustFail(Errno::ESTALE)),
            },
            Action::Request(request) if step.is_excused(Some((self, request))) => Ok(()),
            _ if step.is_excused(None) => Ok(()),
            Action::Request(request) if step.is_damaged(self, request) => Ok(()),
            Action::Request(request) if step.is_of_kept_copy(self, request) => Ok(()),
            Action::Request(request) if step.is_of_lost_file(self, request) => Ok(()),
            Action::Stat { path, follow_last } => self.stat_path(step, path, *follow_last),
            Action::Keep(handle) => set_idle(self, step, *handle, true),
            Action::Reopen(handle) => set_idle(self, step, *handle, false),
            Action::Request(request) if !self.is_refused_as_stale(request, step) => {
                self.request(request, step)
            }
            _ => Ok(()),
        }
    }

    fn request(&mut self, request: &Request, step: &Step<'_>) -> Legal {
        match request {
            Request::Lookup { dir, name } | Request::Neighbours { dir, name } => {
                self.lookup(step, *dir, name.as_bytes())
            }
            Request::GetAttr { ino } => self.get_attr(step, *ino),
            Request::SetAttr { ino, handle, set } => self.set_attr(step, *ino, *handle, set),
            Request::Create { .. } => self.create(step, request),
            Request::Link { ino, dir, name } => self.link(step, *ino, *dir, name.as_bytes()),
            Request::Unlink { dir, name } => self.unlink(step, *dir, name.as_bytes()),
            Request::Rmdir { dir, name } => self.rmdir(step, *dir, name.as_bytes()),
            Request::Rename { .. } => self.rename(step, request),
            Request::ReadLink { ino } => self.read_link(step, *ino),
            Request::ReadDir { dir, cookie, .. } => self.read_dir(step, *dir, *cookie),
            Request::Open { ino, access } => self.open(step, *ino, *access),
            Request::Close { handle } => self.close(step, *handle),
            Request::Read { handle, position, len, flags } => {
                self.read(step, *handle, *position, (*len, *flags))
            }
            Request::Write { handle, position, write_back: true, .. } => {
                self.write_back(step, *handle, *position)
            }
            Request::Write { handle, position, kill_privileges, .. } => {
                self.write(step, *handle, *position, *kill_privileges)
            }
            Request::Seek { handle, position } => self.seek(step, *handle, *position),
            Request::Fsync { ino, handle, .. } => step.done(self.may_sync(step, *ino, *handle)),
            Request::GetXattr { ino, name } => self.get_xattr(step, *ino, name),
            Request::SetXattr { ino, name, value, kill_set_gid, .. } if name.is_acl() => {
                self.set_acl(step, *ino, name, (value, *kill_set_gid))
            }
            Request::RemoveXattr { ino, name } if name.is_acl() => {
                self.set_acl(step, *ino, name, (&[], false))
            }
            Request::SetXattr { ino, name, value, mode, .. } => {
                let value = if step.payload.is_empty() { value } else { step.payload };
                self.set_xattr(step, *ino, name, Some((value, *mode)))
            }
            Request::RemoveXattr { ino, name } => self.set_xattr(step, *ino, name, None),
            Request::ListXattr { ino } => self.list_xattr(step, *ino),
            Request::Lock { handle, spec, wait } => self.lock(step, *handle, *spec, *wait),
            Request::TestLock { handle, spec } => self.test_lock(step, *handle, *spec),
            Request::ReleaseLocks { ino, owner } => self.release_locks(step, *ino, *owner),
            Request::Claim { client, ino, capability } => {
                claim(self, step, *ino, (*client, *capability))
            }
            Request::Fallocate { handle, change, kill_privileges } => {
                step.fallocate(self, *handle, change, *kill_privileges)
            }
            Request::CopyRange { handle, source, copy, kill_privileges } => {
                step.copy_range(self, (*handle, *source), copy, *kill_privileges)
            }
            Request::FindData { handle, offset, hole } => {
                step.find_data(self, *handle, *offset, *hole)
            }
            Request::GetRemoved { dir } => step.get_removed(self, *dir),
            Request::Null
            | Request::Extend { .. }
            | Request::Sync
            | Request::StatFs
            | Request::Cancel { .. }
            | Request::AwaitRecall { .. } => {
                if step.outcome.answer.is_ok() {
                    Ok(())
                } else {
                    Err(Refusal::MustNotFail)
                }
            }
        }
    }

    /// Whether the call failed because an inode that it names is gone. If it names two, either may
    /// be checked first: POSIX does not define inode numbers as arguments.
    fn is_refused_as_stale(&self, request: &Request, step: &Step<'_>) -> bool {
        let gone = |ino: Ino| self.get(ino).is_none();
        step.outcome.answer == Err(Errno::ESTALE)
            && match request {
                Request::Rename { from, dir, .. } => gone(*from) || gone(*dir),
                Request::Link { ino, dir, .. } => gone(*ino) || gone(*dir),
                _ => false,
            }
    }

    /// The inode if it can still be reached, else ESTALE.
    fn alive(&self, ino: Ino) -> Result<&Inode, Errno> {
        self.get(ino).ok_or(Errno::ESTALE)
    }

    fn insert(&mut self, ino: Ino, mut inode: Inode) {
        inode.fingerprint = inode.compute_fingerprint(ino);
        self.fingerprint ^= inode.fingerprint;
        let before = Rc::make_mut(&mut self.inodes).insert(ino, Rc::new(inode));
        assert!(before.is_none(), "an inode number was used twice");
    }

    /// Changes an existing inode, and removes it if it can no longer be reached.
    fn change<R>(&mut self, ino: Ino, with: impl FnOnce(&mut Inode) -> R) -> R {
        let inodes = Rc::make_mut(&mut self.inodes);
        let inode = Rc::make_mut(inodes.get_mut(&ino).expect("the caller has looked"));
        self.fingerprint ^= inode.fingerprint;
        let result = with(inode);
        if inode.nlink == 0 {
            inode.drop_idle();
        }
        if inode.is_alive() {
            inode.fingerprint = inode.compute_fingerprint(ino);
            self.fingerprint ^= inode.fingerprint;
        } else {
            inodes.remove(&ino);
        }
        result
    }

    /// Checks attributes that the system returned.
    fn observe_attr(&mut self, step: &Step<'_>, ino: Ino, attr: &Attr) -> Legal {
        let Some(inode) = self.get(ino) else {
            return Err(Refusal::Differs("attributes of an inode that is gone"));
        };
        inode.attr_differs(ino, attr).map_or(Ok(()), |what| Err(Refusal::Differs(what)))?;
        let old_atime = step.excuses.contains(Excuses::OLD_ATIME);
        self.change(ino, |inode| inode.observe_times(attr, old_atime))
            .map_or(Ok(()), |what| Err(Refusal::Differs(what)))
    }

    /// Checks the entry that the system returned for a name.
    fn observe_entry(&mut self, step: &Step<'_>, expected: Ino, entry: &Entry) -> Legal {
        let inode = self.get(expected).expect("an entry leads to an inode that is there");
        if entry.ino != expected {
            return Err(Refusal::Differs("the name leads elsewhere"));
        }
        if entry.kind != inode.kind {
            return Err(Refusal::Differs("the entry's kind"));
        }
        entry.attr.map_or(Ok(()), |(attr, _)| self.observe_attr(step, expected, &attr))
    }

    fn expel(&mut self, client: ClientId, shards: &[ShardId]) {
        self.release_all(|ino| shards.contains(&ino.shard()), |open| open == client);
    }

    fn restart(&mut self) {
        self.release_all(|_| true, |_| true);
    }

    fn release_all(&mut self, of: impl Fn(Ino) -> bool, whose: impl Fn(ClientId) -> bool) {
        let touched = |inode: &Inode| {
            inode.opens.values().any(|open| whose(open.client))
                || inode.locks.iter().any(|held| whose(held.holder.client))
        };
        let inodes = self.inodes().filter(|(ino, inode)| of(*ino) && touched(inode));
        let inodes: Vec<Ino> = inodes.map(|(ino, _)| ino).collect();
        for ino in inodes {
            self.change(ino, |inode| {
                inode.opens.retain(|_, open| !whose(open.client));
                inode.locks.retain(|held| !whose(held.holder.client));
            });
        }
    }
}

impl Step<'_> {
    /// Whether a client that wanted the file for itself was refused, because a front may have it
    /// open too.
    fn is_of_lost_file(&self, state: &State, request: &Request) -> bool {
        if self.outcome.answer != Err(Errno::EBUSY) {
            return false;
        }
        let handle = match *request {
            Request::Write { handle, .. }
            | Request::Fallocate { handle, .. }
            | Request::CopyRange { handle, .. }
            | Request::SetAttr { handle: Some(handle), .. } => handle,
            Request::Open { access, .. } | Request::Create { access, .. } => {
                return access.contains(AccessMode::SOLE | AccessMode::TRUNCATE);
            }
            _ => return false,
        };
        state.opened(self, handle).is_ok_and(|(inode, open)| {
            open.access.contains(AccessMode::SOLE) && inode.opens.len() > 1
        })
    }

    /// Whether the call ended in an error that the harness may have caused.
    fn is_excused(&self, request: Option<(&State, &Request)>) -> bool {
        let excuse = match self.outcome.answer {
            Err(Errno::ENOSPC) => match request {
                Some((state, request)) if self.has_blocks(state, request) => return false,
                _ => Excuses::NO_SPACE,
            },
            Err(Errno::EIO) => Excuses::IO,
            Err(Errno::EROFS) => Excuses::READ_ONLY,
            Err(Errno::EINTR) => Excuses::CANCELLED,
            _ => return false,
        };
        self.excuses.contains(excuse)
    }

    /// Whether the call was refused for the shard that is damaged.
    fn is_damaged(&self, state: &State, request: &Request) -> bool {
        let is_refused = self.outcome.answer == Err(Errno::EIO);
        is_refused
            && self.excuses.contains(Excuses::DAMAGED)
            && self
                .rules
                .damaged
                .as_ref()
                .is_some_and(|shards| damaged::needs(&state.inodes, request, shards))
    }

    /// Whether these are the attributes of a file without a name that has lost its last user since
    /// its shard was damaged. The shard does not record that, so copies of them stay valid.
    fn is_of_kept_copy(&self, state: &State, request: &Request) -> bool {
        let Request::GetAttr { ino } = *request else { return false };
        let Ok(Reply::Attr { attr, .. }) = &self.outcome.answer else { return false };
        attr.ino == ino && attr.nlink == 0 && state.get(ino).is_none() && self.meets_caretaker(ino)
    }

    /// Whether a caretaker of the inode's shard may have answered.
    fn meets_caretaker(&self, ino: Ino) -> bool {
        let damaged = self.rules.damaged.as_ref();
        self.excuses.contains(Excuses::DAMAGED) && damaged.is_some_and(|it| it.has(ino.shard()))
    }

    /// Compares the required result with the actual one. `Ok(Some)`: the call had to succeed and
    /// did.
    fn settle<T>(&self, must: Result<T, Errno>) -> Result<Option<(T, &Reply)>, Refusal> {
        match (must, &self.outcome.answer) {
            (Ok(plan), Ok(reply)) => Ok(Some((plan, reply))),
            (Ok(_), Err(_)) => Err(Refusal::MustNotFail),
            (Err(must), Err(errno)) if same_error(must, *errno) => Ok(None),
            (Err(must), _) => Err(Refusal::MustFail(must)),
        }
    }

    /// A call that returns only success or an error, and changes nothing.
    fn done(&self, must: Result<(), Errno>) -> Legal {
        match self.settle(must)? {
            Some((_, reply)) => expect_done(reply),
            None => Ok(()),
        }
    }
}

/// POSIX has no error for an inode number whose inode is gone: ESTALE and ENOENT are equivalent.
fn same_error(must: Errno, errno: Errno) -> bool {
    must == errno || (must == Errno::ESTALE && errno == Errno::ENOENT)
}

fn expect_done(reply: &Reply) -> Legal {
    if *reply == Reply::Done { Ok(()) } else { Err(UNEXPECTED_REPLY) }
}

const UNEXPECTED_REPLY: Refusal = Refusal::Differs("a reply that belongs to another request");

/// Whether a directory of the shard leads to the inode or to one above it, or one is `named`.
pub fn is_tied(state: &State, ino: Ino, shard: ShardId, named: &BTreeSet<Ino>) -> bool {
    damaged::is_tied(&state.inodes, ino, shard, named)
}

/// A front closes a file and keeps the handle (`is_idle`), or opens the file with a handle that it
/// has kept. As long as the inode can be opened, such a handle is open.
fn set_idle(state: &mut State, step: &Step<'_>, handle: Handle, is_idle: bool) -> Legal {
    let must = state.alive(handle.ino).and_then(|inode| {
        let open = inode.opens.get(&handle.open).ok_or(Errno::EBADF)?;
        let is_right = open.client == step.client && open.is_idle != is_idle;
        if !is_idle {
            inode.check_open_flags(open.access)?;
        }
        if is_right { Ok(()) } else { Err(Errno::EBADF) }
    });
    let Some((_, reply)) = step.settle(must)? else { return Ok(()) };
    state.change(handle.ino, |inode| {
        inode.opens.get_mut(&handle.open).expect("just seen").is_idle = is_idle;
    });
    expect_done(reply)
}

/// A front claims a file. For another client: EPERM. A cell may have closed the handles that their
/// client does not use.
fn claim(
    state: &mut State,
    step: &Step<'_>,
    ino: Ino,
    (holder, capability): (ClientId, Capability),
) -> Legal {
    let file = state.get(ino).filter(|inode| inode.kind == FileKind::Regular);
    let opens = file.into_iter().flat_map(|inode| inode.opens.values());
    let uid = step.credentials.uid;
    let mut opens = opens.filter(|open| open.client == holder && open.uid == uid);
    let may_be_closed = step.outcome.answer.is_err();
    let is_open = opens.any(|open| !(open.is_idle && may_be_closed));
    let must = if !step.credentials.checked_by_kernel {
        Err(Errno::EPERM)
    } else if is_open && KEY.admits(holder, ino, capability) {
        Ok(())
    } else {
        Err(Errno::ENOENT)
    };
    match step.settle(must)? {
        Some((_, Reply::Attr { attr, .. })) => state.observe_attr(step, ino, attr),
        Some(_) => Err(UNEXPECTED_REPLY),
        None => Ok(()),
    }
}

/// The numbers that an operation's outcome assigns to new objects: an inode, a handle.
pub fn identities(operation: &Operation) -> impl Iterator<Item = (Ino, Option<u64>)> {
    let answer = operation.outcome.as_ref().map(|outcome| &outcome.answer);
    let (entry, opened) = match answer {
        Some(Ok(Reply::Created { entry, opened })) => (Some(entry), opened.as_deref()),
        Some(Ok(Reply::Opened(opened))) => (None, Some(opened)),
        _ => (None, None),
    };
    let exclusive = match &operation.action {
        Action::Request(Request::Create { flags, .. }) => flags.contains(CreateFlags::EXCLUSIVE),
        _ => false,
    };
    let made = entry.filter(|_| exclusive).map(|entry| (entry.ino, None));
    made.into_iter().chain(opened.map(|o| (o.handle.ino, Some(o.handle.open))))
}

/// Whether the call can only observe: wherever its outcome is legal, it changes nothing, or only
/// narrows the bounds of times. A call that may have set a time (a read, a listing, a link read) is
/// not an observer.
pub fn is_observer(operation: &Operation) -> bool {
    let Some(outcome) = &operation.outcome else { return false };
    match (&operation.action, &outcome.answer) {
        (Action::Expel(_) | Action::Restart | Action::Damage(_), _)
        | (Action::Keep(_) | Action::Reopen(_), _) => false,
        (Action::Forged(_) | Action::Stat { .. }, _) => true,
        // A conversion that fails has released the old lock.
        (Action::Request(Request::Lock { .. }), Err(errno)) => *errno != Errno::EAGAIN,
        (Action::Request(_), Err(_)) => true,
        (Action::Request(request), Ok(_)) => matches!(
            request,
            Request::Null
                | Request::Extend { .. }
                | Request::Sync
                | Request::StatFs
                | Request::Cancel { .. }
                | Request::AwaitRecall { .. }
                | Request::Lookup { .. }
                | Request::Neighbours { .. }
                | Request::GetAttr { .. }
                | Request::GetRemoved { .. }
                | Request::Claim { .. }
                | Request::Fsync { .. }
                | Request::FindData { .. }
                | Request::GetXattr { .. }
                | Request::ListXattr { .. }
                | Request::TestLock { .. }
        ),
    }
}
