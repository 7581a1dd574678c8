//! The translation: a kernel request in, requests to cells, a reply out.
//!
//! The front keeps no file-system state. A node number is the inode number, a file handle the number
//! of the open-file object, so the kernel itself remembers everything. What is kept here serves
//! locks: which requests wait for one ([`Interrupts`]) and who may hold one ([`HeldLocks`]), and
//! what a successor must know ([`Ledger`]).
//!
//! Whatever a reply lets the kernel cache is leased: `validity` of a lease, else zero. Leases are
//! recalled through `recall.rs`.

mod create;
mod file;
mod init;
mod listing;
mod lock;
mod name;
mod xattr;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use warren_base::{Errno, Ino};
use warren_proto::typed::{self, Typed};
use warren_proto::{AccessMode, Answer, Attr, Handle, Lease, Request};

use crate::courier::{Courier, Post};
use crate::held::HeldLocks;
use crate::interrupt::Interrupts;
use crate::ledger::Ledger;
use crate::message::{Header, Operation};
use crate::reply::{Body, DIRECT_HANDLE, validity};

pub use lock::Deferred;

/// How the kernel's page cache is kept right.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PageCaching {
    /// The kernel compares size and modification time before it uses a page, and drops all pages of
    /// a file that changed, by itself too. Right also where pages are not leased.
    Revalidated,
    /// Pages stay until recalled: a cell leases them with every open, read and write.
    #[default]
    Leased,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrontOptions {
    pub page_caching: PageCaching,
}

/// How a request ends, if well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The reply is the body.
    Body,
    /// The reply is this much of the courier's inward lane.
    Payload(usize),
    /// The reply is the body, but the kernel cached what was written where the file ended for all it
    /// knew, and it ended elsewhere: its pages are to be dropped.
    Misplaced,
    /// There is no reply, ever.
    Silent,
    /// The reply comes from whoever tries the lock again.
    Deferred(Deferred),
}

/// Shared by all threads that serve one mount.
pub struct Front {
    pub(crate) fleet: Arc<dyn Post>,
    pub(crate) interrupts: Interrupts,
    pub(crate) ledger: Arc<Ledger>,
    options: FrontOptions,
    held: HeldLocks,
    /// The kernel can drop all names at once, so it may keep some.
    names_cached: AtomicBool,
    /// Requests that wait for a lock in a slot.
    lock_waiters: AtomicUsize,
    lock_waiters_max: usize,
}

impl Front {
    /// At most `lock_waiters_max` requests occupy a thread and a slot to wait for a lock.
    pub fn new(
        fleet: Arc<dyn Post>,
        ledger: Arc<Ledger>,
        options: FrontOptions,
        lock_waiters_max: usize,
    ) -> Self {
        let drops_names = ledger.agreed().is_some_and(|agreed| agreed.drops_names);
        Self {
            fleet,
            interrupts: Interrupts::default(),
            options,
            held: HeldLocks::new(Arc::clone(&ledger)),
            ledger,
            names_cached: AtomicBool::new(drops_names),
            lock_waiters: AtomicUsize::new(0),
            lock_waiters_max,
        }
    }

    /// Serves one request. `body` is empty at first.
    pub fn serve(
        &self,
        courier: &mut dyn Courier,
        body: &mut Body,
        header: Header,
        operation: Operation,
    ) -> Result<Outcome, Errno> {
        Call { front: self, courier, body, header, steps: 0 }.serve(operation)
    }
}

/// One request while it is served.
struct Call<'a> {
    front: &'a Front,
    courier: &'a mut dyn Courier,
    body: &'a mut Body,
    header: Header,
    /// Where the ledger's record of the steps that were taken goes on.
    steps: usize,
}

/// What handlers of requests return; the reply is in the body.
type Served = Result<(), Errno>;

impl Call<'_> {
    fn serve(mut self, operation: Operation) -> Result<Outcome, Errno> {
        match operation {
            Operation::Init { major, minor, max_readahead, flags } => {
                self.init(major, minor, max_readahead, flags)
            }
            Operation::Destroy => Ok(()),
            Operation::OpenDir => self.open_dir(),
            Operation::ReleaseDir { open } => self.call(typed::Close { handle: self.handle(open) }),
            Operation::Forget => return Ok(Outcome::Silent),
            Operation::Interrupt { unique } => return self.interrupt(unique),
            Operation::Lookup(name) => self.lookup(name),
            Operation::GetAttr => self.get_attr(),
            Operation::Statx => self.statx(),
            Operation::SetAttr { open, set } => self.set_attr(open, set),
            Operation::ReadLink => self.read_link(),
            Operation::Symlink { name, target } => self.symlink(name, &target),
            Operation::Mknod(mknod) => self.mknod(mknod),
            Operation::Mkdir { name, mode } => self.mkdir(name, mode),
            Operation::Unlink(name) => self.call(typed::Unlink { dir: self.header.ino, name }),
            Operation::Rmdir(name) => self.call(typed::Rmdir { dir: self.header.ino, name }),
            Operation::Rename { name, new_dir, new_name, flags } => {
                let (from, from_name) = (self.header.ino, name);
                self.call(typed::Rename { from, from_name, dir: new_dir, name: new_name, flags })
            }
            Operation::Link { ino, name } => self.link(ino, name),
            Operation::Open(flags) => self.open(flags),
            Operation::Create(create) => self.create(create),
            Operation::Read { open, offset, len, direct } => {
                return self.read(open, (offset, len), direct);
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
            Operation::SetXattr { name, value, mode } => self.set_xattr(name, value, mode),
            Operation::ListXattr { len } => self.list_xattr(len),
            Operation::RemoveXattr(name) => self.remove_xattr(name),
            Operation::TestLock { open, spec } => self.test_lock(open, spec),
            Operation::Lock { open, spec, wait: true } => return self.wait_lock(open, spec),
            Operation::Lock { open, spec, wait: false } => self.try_lock(open, spec),
            Operation::Unsupported(errno) => Err(errno),
        }?;
        Ok(Outcome::Body)
    }

    fn call<T: Typed>(&mut self, request: T) -> Result<T::Reply, Errno> {
        self.call_with(request, 0)
    }

    /// The same for a request with so many bytes of payload in the courier's outward lane.
    fn call_with<T: Typed>(&mut self, request: T, payload_len: usize) -> Result<T::Reply, Errno> {
        T::reply(self.send(&request.into_request(), payload_len))
    }

    /// Every request to a cell goes through here. A step that a dead predecessor has taken for this
    /// very request of the kernel's is not taken again.
    fn send(&mut self, request: &Request, payload_len: usize) -> Answer {
        let identity = self.header.identity();
        if !request.has_effect() {
            return self.courier.call(identity, request, payload_len);
        }
        let record = self.front.ledger.record(self.courier.number());
        if let Some(answer) = record.replay(self.header.unique, &mut self.steps) {
            return answer;
        }
        record.attempt(self.header.unique, self.courier.last_seq());
        let answer = self.courier.call(identity, request, payload_len);
        self.steps = record.conclude(&answer);
        answer
    }

    /// What the cell knows by the kernel's handle.
    const fn handle(&self, open: u64) -> Handle {
        Handle { ino: self.header.ino, open: open & !DIRECT_HANDLE }
    }

    fn attr_of(&mut self, ino: Ino) -> Result<(Attr, Option<Lease>), Errno> {
        self.call(typed::GetAttr { ino })
    }

    fn get_attr(&mut self) -> Served {
        let (attr, lease) = self.attr_of(self.header.ino)?;
        self.body.attr_out(&attr, validity(lease.is_some()));
        Ok(())
    }

    fn statx(&mut self) -> Served {
        let (attr, lease) = self.attr_of(self.header.ino)?;
        self.body.statx(&attr, validity(lease.is_some()));
        Ok(())
    }

    /// A listing needs no handle, but the cell has to know that the directory is open: removed, it is
    /// kept until it is closed.
    fn open_dir(&mut self) -> Served {
        let opened = self.call(typed::Open { ino: self.header.ino, access: AccessMode::READ })?;
        self.body.open(opened.handle.open);
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
