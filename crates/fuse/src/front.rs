//! The translation of a kernel request into requests to cells, and of their answers into a reply.
//!
//! The front keeps no file-system state: a FUSE node number is the inode number. It keeps the files
//! that the kernel has open ([`OpenFiles`]), the requests that wait for locks ([`Interrupts`]), the
//! owners that may hold locks ([`LockOwners`]), and what a successor needs ([`FrontState`]).
//!
//! The kernel may cache only what is leased: a reply grants [`validity`] for it, and none for
//! anything else. Recalled leases are served by `recall.rs`.

mod create;
mod deferred;
mod file;
mod file_handle;
mod flags;
mod handover;
mod init;
mod listing;
mod lock;
mod name;
mod ownership;
mod removal;
mod removed;
mod steps;
mod xattr;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use warren_base::{Errno, Ino};
use warren_proto::typed::{self, Typed};
use warren_proto::{AccessMode, Attr, Handle, Lease};

use crate::abi::opcode;
use crate::absent_names::AbsentNames;
use crate::connection::{FleetConnection, FleetSlot};
use crate::dir_copies::DirCopies;
use crate::effects::Effects;
use crate::front_state::FrontState;
use crate::interrupt::Interrupts;
use crate::link_counts::LinkCounts;
use crate::lock_owners::LockOwners;
use crate::message::{Header, Operation};
use crate::on_removed::OnRemoved;
use crate::open_files::OpenFiles;
use crate::plain_inodes::PlainInodes;
use crate::reply::{Body, validity};
use crate::retries::Retries;
use crate::sent_entries::SentEntries;
use crate::shown_rights::ShownRights;

pub(crate) use deferred::DeferredLock;

/// The way in which the kernel's page cache is kept coherent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PageCaching {
    /// The kernel compares size and modification time before it uses a page, and drops all pages of
    /// a file when they differ, even after its own writes. It needs no leases of pages.
    Revalidated,
    /// Pages stay until they are recalled. A cell leases them with every open, read and write.
    #[default]
    Leased,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrontOptions {
    pub page_caching: PageCaching,
    pub effects: Effects,
}

/// The reply of the front to a request that did not fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The reply is the body. The kernel must not keep the attributes of the inode `passing` in it.
    Body { passing: Option<Ino> },
    /// The reply is this many bytes of the slot's payload lane from the cells.
    Payload(usize),
    /// The reply is the body, but the kernel's pages must be dropped: it cached an append at the
    /// end of the file as the kernel knew it, and the file ended elsewhere.
    Misplaced,
    /// The kernel expects no reply.
    NoReply,
    /// The thread that retries the lock replies.
    Deferred(DeferredLock),
}

impl Outcome {
    /// The kernel may keep all attributes in the body.
    pub(crate) const BODY: Self = Self::Body { passing: None };
}

/// Makes durable what a request has changed, on a mount with `sync` or `dirsync`. Repeating it has
/// no effect, so it needs no record.
fn make_durable(
    slot: &mut dyn FleetSlot,
    header: &Header,
    changed: [Option<Ino>; 2],
) -> Result<(), Errno> {
    for ino in changed.into_iter().flatten() {
        let sync = typed::Fsync { ino, handle: None, data_only: false };
        typed::Fsync::reply(slot.call(header.identity(), &sync.into_request(), 0))?;
    }
    Ok(())
}

/// The state that all threads of one mount share.
pub(crate) struct Front {
    fleet: Arc<dyn FleetConnection>,
    interrupts: Interrupts,
    state: Arc<FrontState>,
    options: FrontOptions,
    lock_owners: LockOwners,
    open_files: OpenFiles,
    dir_copies: DirCopies,
    absent_names: AbsentNames,
    retries: Retries,
    sent_entries: SentEntries,
    plain_inodes: PlainInodes,
    link_counts: LinkCounts,
    shown_rights: ShownRights,
    /// The kernel may cache names, because it can drop all of them at once.
    names_cached: AtomicBool,
    /// The bits of the [`Effects`] that the mount's options have now.
    effects: AtomicU8,
    /// The number of requests that wait for a lock in a slot.
    lock_waiters: AtomicUsize,
    lock_waiters_max: usize,
}

impl Front {
    /// At most `lock_waiters_max` requests keep a thread and a slot while they wait for a lock.
    pub(crate) fn new(
        fleet: Arc<dyn FleetConnection>,
        state: Arc<FrontState>,
        options: FrontOptions,
        lock_waiters_max: usize,
    ) -> Self {
        let negotiated = state.negotiated();
        let drops_names = negotiated.is_some_and(|it| it.drops_names);
        Self {
            open_files: OpenFiles::new(Arc::clone(&fleet), Arc::clone(&state)),
            fleet,
            interrupts: Interrupts::default(),
            effects: AtomicU8::new(options.effects.bits()),
            options,
            dir_copies: DirCopies::default(),
            absent_names: AbsentNames::new(),
            retries: Retries::new(negotiated.is_some()),
            sent_entries: SentEntries::new(negotiated.is_some()),
            plain_inodes: PlainInodes::new(),
            link_counts: LinkCounts::new(),
            shown_rights: ShownRights::default(),
            lock_owners: LockOwners::new(Arc::clone(&state)),
            state,
            names_cached: AtomicBool::new(drops_names),
            lock_waiters: AtomicUsize::new(0),
            lock_waiters_max,
        }
    }

    pub(crate) fn fleet(&self) -> &dyn FleetConnection {
        &*self.fleet
    }

    pub(crate) fn interrupts(&self) -> &Interrupts {
        &self.interrupts
    }

    pub(crate) fn state(&self) -> &Arc<FrontState> {
        &self.state
    }

    pub(crate) fn absent_names(&self) -> &AbsentNames {
        &self.absent_names
    }

    pub(crate) const fn lock_owners(&self) -> &LockOwners {
        &self.lock_owners
    }

    pub(crate) const fn sent_entries(&self) -> &SentEntries {
        &self.sent_entries
    }

    pub(crate) const fn plain_inodes(&self) -> &PlainInodes {
        &self.plain_inodes
    }

    /// Whether the kernel, which opens a file now, was shown other rights than its owner has. It is
    /// to drop them then.
    pub(crate) fn take_shown_rights(&self, header: &Header) -> bool {
        header.opcode == opcode::OPEN && self.shown_rights.take(header.ino)
    }

    pub(crate) fn effects(&self) -> Effects {
        Effects::from_bits_truncate(self.effects.load(Ordering::Relaxed))
    }

    /// The options of the mount have changed.
    pub(crate) fn set_effects(&self, effects: Effects) {
        self.effects.store(effects.bits(), Ordering::Relaxed);
    }

    /// Serves one request. `body` must be empty.
    pub(crate) fn serve(
        &self,
        slot: &mut dyn FleetSlot,
        body: &mut Body,
        header: Header,
        operation: Operation,
    ) -> Result<Outcome, Errno> {
        self.link_counts.came(&header);
        let recalls_before = self.sent_entries.recalls();
        let forgotten_before = self.plain_inodes.forgotten();
        let changed = self.effects().durable(&operation, header.ino);
        let slot = &mut *slot;
        let mut call = Call {
            front: self,
            slot,
            body,
            header,
            recalls_before,
            forgotten_before,
            steps: 0,
            passing: None,
        };
        // The data of a write is in the slot already.
        if !matches!(operation, Operation::Write(_)) {
            call.remove_pins();
        }
        let is_of_walk = operation.is_of_walk();
        let on_removed = OnRemoved::of(&operation);
        let served = match call.serve(operation) {
            Err(Errno::ESTALE) => call.serve_removed(on_removed),
            served => served,
        };
        let served =
            served.and_then(|outcome| make_durable(slot, &header, changed).map(|()| outcome));
        match served {
            Err(Errno::ESTALE) => self.retries.begin(header.thread),
            _ if is_of_walk => {}
            _ => self.retries.end(header.thread),
        }
        served
    }
}

/// One request while it is served.
struct Call<'a> {
    front: &'a Front,
    slot: &'a mut dyn FleetSlot,
    body: &'a mut Body,
    header: Header,
    /// [`SentEntries::recalls`] when the request came.
    recalls_before: u64,
    /// [`PlainInodes::forgotten`] when the request came.
    forgotten_before: u64,
    /// The cursor in the slot's record: the next step.
    steps: usize,
    /// An inode whose attributes in the reply the kernel must not keep ([`LinkCounts`]).
    passing: Option<Ino>,
}

/// The result of a request's handler. The reply is in the body.
type Served = Result<(), Errno>;

impl Call<'_> {
    fn serve(&mut self, operation: Operation) -> Result<Outcome, Errno> {
        match operation {
            Operation::Init { major, minor, max_readahead, flags } => {
                self.init(major, minor, max_readahead, flags)
            }
            Operation::Destroy => Ok(()),
            Operation::OpenDir => self.open_dir(),
            Operation::ReleaseDir { open } => self.release_handle(open),
            Operation::Forget => return Ok(Outcome::NoReply),
            Operation::Interrupt { unique } => return self.interrupt(unique),
            Operation::Lookup(name) => self.lookup(name),
            Operation::LookupInode => self.lookup_inode(false),
            Operation::LookupParent => self.lookup_inode(true),
            Operation::GetAttr { open } => self.get_attr(open),
            Operation::Statx => self.statx(),
            Operation::SetAttr { open, set } => self.set_attr(open, set),
            Operation::ReadLink => self.read_link(),
            Operation::Symlink { name, target } => self.symlink(name, &target),
            Operation::Mknod(mknod) => self.mknod(mknod),
            Operation::Mkdir { name, mode, umask } => self.mkdir(name, (mode, umask)),
            Operation::Unlink(name) => self.call(typed::Unlink { dir: self.header.ino, name }),
            Operation::Rmdir(name) => self.call(typed::Rmdir { dir: self.header.ino, name }),
            Operation::Rename { name, new_dir, new_name, flags } => {
                let (from, from_name) = (self.header.ino, name);
                self.call(typed::Rename { from, from_name, dir: new_dir, name: new_name, flags })
            }
            Operation::Link { ino, name } => self.link(ino, name),
            Operation::Open(flags) => self.open(flags),
            Operation::Create(create) => self.create(create),
            Operation::TmpFile { mode, umask, flags } => self.create_nameless((mode, umask), flags),
            Operation::Read { open, offset, len, flags } => {
                return self.read(open, (offset, len), flags);
            }
            Operation::Write(write) => return self.write(write),
            Operation::StatFs => self.statfs(),
            Operation::Flush { owner } => self.flush(owner),
            Operation::Release { open, flock } => self.release(open, flock),
            Operation::Fsync { data_only } => {
                self.call(typed::Fsync { ino: self.header.ino, handle: None, data_only })
            }
            Operation::Sync => self.call(typed::Sync {}),
            Operation::ReadDir { offset, len } => self.read_dir(offset, len),
            Operation::GetXattr { name, len } => self.get_xattr(name, len),
            Operation::SetXattr { name, value, mode, kill_set_gid } => {
                self.set_xattr(name, value, (mode, kill_set_gid))
            }
            Operation::ListXattr { len } => self.list_xattr(len),
            Operation::RemoveXattr(name) => self.remove_xattr(name),
            Operation::TestLock { open, spec } => self.test_lock(open, spec),
            Operation::Lock { open, spec, wait: true } => return self.wait_lock(open, spec),
            Operation::Lock { open, spec, wait: false } => self.try_lock(open, spec),
            // The kernel has written mapped pages of the range back, and drops its own pages of it
            // itself. It does not say whether to remove the set-id bits: only root's stay.
            Operation::Fallocate { open, change } => {
                let (handle, kill_privileges) = (self.handle(open)?, self.header.uid != 0);
                self.call(typed::Fallocate { handle, change, kill_privileges })
            }
            Operation::CopyRange { open, target, target_open, copy } => {
                self.copy_range(open, (target, target_open), copy)
            }
            Operation::FindData { open, offset, hole } => {
                let handle = self.handle(open)?;
                let found = self.call(typed::FindData { handle, offset, hole })?;
                self.body.offset(found);
                Ok(())
            }
            Operation::Flags(call) => self.flags(call),
            Operation::Unsupported(errno) => Err(errno),
        }?;
        Ok(Outcome::Body { passing: self.passing })
    }

    fn call<T: Typed>(&mut self, request: T) -> Result<T::Reply, Errno> {
        self.call_with(request, 0)
    }

    /// As [`Self::call`], with so many bytes in the slot's payload lane to the cells.
    fn call_with<T: Typed>(&mut self, request: T, payload_len: usize) -> Result<T::Reply, Errno> {
        T::reply(self.send(&request.into_request(), payload_len))
    }

    /// The cell's handle for the kernel's handle `open`. EBADF if that is none of this inode.
    fn handle(&self, open: u64) -> Result<Handle, Errno> {
        self.front.open_files.handle_of(self.header.ino, open)
    }

    fn attr_of(&mut self, ino: Ino) -> Result<(Attr, Option<Lease>), Errno> {
        match self.front.dir_copies.get(ino, self.front.fleet()) {
            Some((attr, lease)) => Ok((attr, Some(lease))),
            None => {
                let (attr, lease) = self.call(typed::GetAttr { ino })?;
                self.front.plain_inodes.note_leased(&attr, lease, self.forgotten_before);
                Ok((attr, lease))
            }
        }
    }

    fn get_attr(&mut self, open: bool) -> Served {
        let (attr, lease) = self.attr_of(self.header.ino)?;
        if !open {
            self.passing = self.front.link_counts.passing(&attr);
        }
        self.body.attr_out(&attr, validity(lease.is_some()));
        Ok(())
    }

    fn statx(&mut self) -> Served {
        let (attr, lease) = self.attr_of(self.header.ino)?;
        self.passing = self.front.link_counts.passing(&attr);
        self.body.statx(&attr, validity(lease.is_some()));
        Ok(())
    }

    /// A listing needs no handle. But the cell must know that the directory is open, because a
    /// directory that is removed while open is kept until it is closed.
    fn open_dir(&mut self) -> Served {
        let opened = self.open_shared(AccessMode::READ)?;
        self.body.open(opened.handle.number);
        Ok(())
    }

    fn statfs(&mut self) -> Served {
        let volume = self.call(typed::StatFs {})?;
        self.body.statfs(&volume);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
