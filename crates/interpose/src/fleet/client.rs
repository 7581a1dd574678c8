//! The client itself: what its two halves hold, and the requests that they make.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Acquire;

use warren_base::{Errno, FileKind, Ino};
use warren_client::{Cache, Call, Caller, Guard, Op, Path, PathOp, Unused};
use warren_proto::{
    Answered, Attr, Capabilities, Handle, InodeRef, Position, ReadFlags, Reply, Request,
};
use warren_transport::{Connection, Posts, Slot};

use crate::slow_lock::Holder;

use super::answers::Answers;
use super::held::Files;
use super::listings::Listings;
use super::place::Place;

/// Attempts to copy what is being changed.
pub(super) const COPY_TRIES: usize = 3;

/// An answer of the fleet.
pub(crate) enum Found<T> {
    Is(T),
    Fails(Errno),
    /// The kernel must make the call: the path leaves the tree, or the fleet is gone.
    Kernel,
}

impl<T> Found<T> {
    /// The result, or the error as a call returns it. `None` if the kernel must make the call.
    pub(crate) fn outcome(self) -> Option<Result<T, isize>> {
        match self {
            Self::Is(found) => Some(Ok(found)),
            Self::Fails(errno) => Some(Err(-(errno.raw() as isize))),
            Self::Kernel => None,
        }
    }
}

impl Found<()> {
    /// The result of the call. `None` if the kernel must make it.
    pub(crate) fn result(self) -> Option<isize> {
        self.outcome().map(|outcome| outcome.map_or_else(|errno| errno, |()| 0))
    }
}

/// The part of the client that the hot path reads.
pub(super) struct Hot {
    pub connection: Connection,
    pub answers: Answers,
    /// The directory that is mounted.
    pub root: InodeRef,
    pub files: Files,
}

/// The part that belongs to the slow path. It lies in the arena and not in a variable, where a leak
/// checker would find stale pointers of the program that were copied into it from the stack.
pub(super) struct Slow {
    pub slot: Slot,
    /// For handles that are closed while the program goes on.
    pub closing: Slot,
    /// For changes that are not waited for.
    pub posts: Posts,
    /// For files that become durable while other threads go on.
    pub syncing: Vec<Slot>,
    pub cache: Cache,
    pub caller: Caller,
    pub listings: Listings,
    /// Inodes that the program watches, or of which it watches a name.
    pub watched: BTreeSet<Ino>,
}

/// The right to use [`Slow`], of which there is one, in the room of the lock.
pub(crate) struct Client(pub(super) Holder);

const _: () = assert!(size_of::<Client>() == 0, "any bytes make a room, so its token has none");

impl Client {
    /// Returns the part of the client that the token guards. `None` if no fleet has admitted the
    /// process.
    pub(super) fn slow(&mut self) -> Option<&mut Slow> {
        self.locked().as_deref_mut()
    }

    /// Puts another in its place, or `None`. The one before is dropped.
    pub(super) fn set(&mut self, slow: Option<Box<Slow>>) {
        *self.locked() = slow;
    }

    fn locked(&mut self) -> &mut Option<Box<Slow>> {
        // SAFETY: there is one token, which only the holder of the lock has, and it is borrowed as
        // long as what is returned. So no other reference to the cell exists, in any thread. Only
        // `fleet::forget` uses the cell without the token, in a child that has one thread.
        unsafe { &mut *Halves::here().slow.get() }
    }
}

/// The halves of the client, which are there while the process is admitted.
pub(crate) struct Halves {
    pub(super) hot: AtomicPtr<Hot>,
    pub(super) slow: UnsafeCell<Option<Box<Slow>>>,
}

// SAFETY: `slow` is used with the only `Client`, or by a child of `fork` that has one thread.
unsafe impl Sync for Halves {}

pub(super) fn hot() -> Option<&'static Hot> {
    // SAFETY: what it points to is never freed.
    unsafe { Halves::here().hot.load(Acquire).as_ref() }
}

/// Errors of a walk are the program's. Others are the fleet's own, and the kernel finds out what is
/// true.
pub(super) fn settled<T>(found: Result<T, Errno>) -> Found<T> {
    match found {
        Ok(it) => Found::Is(it),
        Err(
            errno @ (Errno::ENOENT
            | Errno::ENOTDIR
            | Errno::EACCES
            | Errno::ELOOP
            | Errno::ENAMETOOLONG
            | Errno::EINVAL),
        ) => Found::Fails(errno),
        Err(_) => Found::Kernel,
    }
}

impl Slow {
    pub(super) fn call(&self, hot: &Hot, place: Place<'_>, op: PathOp) -> Call {
        Call::new(Op::At(place.path(hot.root), op), self.caller.clone())
    }

    /// A directory by its path from the root of the file system.
    pub(super) fn directory(&mut self, path: &[u8]) -> Option<(InodeRef, Attr)> {
        let mut call = Call::new(Op::At(Path::new(path), PathOp::Stat), self.caller.clone());
        let answered = self.slot.perform(&mut call, &mut self.cache);
        let Ok(Reply::Attr { attr, .. }) = answered.answer else { return None };
        let inode = InodeRef { ino: attr.ino, capability: answered.granted };
        (attr.kind == FileKind::Directory).then_some((inode, attr))
    }

    /// Makes a request on one inode. Attributes that come with the reply are kept as copies.
    pub(super) fn ask(&mut self, node: InodeRef, request: Request) -> Answered {
        self.perform(request, Capabilities::of(node.capability))
    }

    pub(super) fn perform(&mut self, request: Request, capabilities: Capabilities) -> Answered {
        let mut call = Call::new(Op::Ino(request, capabilities), self.caller.clone());
        self.slot.perform(&mut call, &mut self.cache)
    }

    pub(super) fn close_unused(&mut self, hot: &Hot, Unused { handle, cell }: Unused) {
        if !hot.connection.is_closed(cell, handle.ino) {
            self.close(handle);
        }
    }

    /// The answer is not waited for. A handle that the cell has closed already is no fault.
    pub(super) fn close(&mut self, handle: Handle) {
        self.closing.submit(Capabilities::default(), Request::Close { handle });
    }

    /// Reads into [`Slot::payload_in`]. With the attributes that have come with the data, under
    /// their lease, if any have.
    pub(super) fn read(
        &mut self,
        handle: Handle,
        offset: u64,
        len: u32,
    ) -> Option<Option<(Attr, Guard)>> {
        let position = Position::At(offset);
        let request = Request::Read { handle, position, len, flags: ReadFlags::empty() };
        let Answered { answer, changed, .. } = self.perform(request, Capabilities::default());
        let cell = self.slot.last_cell()?;
        let leased =
            changed.first().and_then(|(attr, lease)| Some((*attr, Guard::new(cell, *lease)?)));
        matches!(answer, Ok(Reply::Read { .. })).then_some(leased)
    }

    /// The attributes of an inode and their lease, if there is a copy.
    pub(super) fn attr_over_copies(&mut self, node: InodeRef) -> Option<(Attr, Guard)> {
        let mut call = get_attr(node, &self.caller);
        let answered = self.slot.perform_over_copies(&mut call, &mut self.cache)?;
        let Ok(Reply::Attr { attr, .. }) = answered.answer else { return None };
        Some((attr, call.proof()?.next()?))
    }

    /// The attributes of an inode and their lease: from a copy, else through a request, which
    /// brings one. The guard never holds if this client may change the attributes under the lease.
    pub(super) fn attr(&mut self, node: InodeRef) -> Option<(Attr, Guard)> {
        for _ in 0..COPY_TRIES {
            let mut call = get_attr(node, &self.caller);
            let Ok(Reply::Attr { attr, .. }) = self.slot.perform(&mut call, &mut self.cache).answer
            else {
                return None;
            };
            if let Some(guard) = call.proof().and_then(|mut guards| guards.next()) {
                return Some((attr, guard));
            }
            if self.cache.is_delegated(node.ino) {
                return Some((attr, Guard::NEVER));
            }
        }
        None
    }
}

fn get_attr(node: InodeRef, caller: &Caller) -> Call {
    let request = Request::GetAttr { ino: node.ino };
    Call::new(Op::Ino(request, Capabilities::of(node.capability)), caller.clone())
}
