//! Open files: open, read, write, close.

use warren_base::limits::{PAYLOAD_MAX, PROMISED_WRITE};
use warren_base::{Errno, Ino};
use warren_proto::typed::Written;
use warren_proto::{
    AccessMode, ByteRange, Handle, LockFlavour, LockOwner, LockSpec, LockType, Opened, Position,
    RangeCopy, ReadFlags, Reply, Request, SetAttr, typed,
};

use super::{Call, Outcome, PageCaching, Served};
use crate::abi;
use crate::effects::Effects;
use crate::lock_owners::Releasing;
use crate::message::{OpenFlags, Write};
use crate::open_files::Begun;
use crate::reply::{Body, DIRECT_HANDLE, KernelHandle};

/// Handles that one request closes at most, because a program waits for it. A predecessor may have
/// left hundreds. Their cells close those of inodes that are marked as idle when they must.
pub(super) const CLOSED_MAX: usize = 8;

/// A file that the kernel has opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenedFile {
    pub handle: KernelHandle,
    /// The kernel keeps the pages that it has cached.
    pub keep_pages: bool,
}

impl OpenedFile {
    /// Each read of a mount with `strictatime` must reach the cell.
    pub(super) fn reply(self, effects: Effects, body: &mut Body) {
        let Self { mut handle, keep_pages } = self;
        if effects.contains(Effects::STRICT_ATIME) {
            (handle.direct, handle.number) = (true, handle.number | DIRECT_HANDLE);
        }
        body.open_file(handle, keep_pages && !handle.direct);
    }
}

impl OpenFlags {
    pub(super) fn access(self) -> AccessMode {
        let mut access = match self.flags.cast_signed() & libc::O_ACCMODE {
            libc::O_RDONLY => AccessMode::READ,
            libc::O_WRONLY => AccessMode::WRITE,
            _ => AccessMode::READ | AccessMode::WRITE,
        };
        access.set(AccessMode::TRUNCATE, self.has(libc::O_TRUNC));
        access.set(
            AccessMode::APPEND,
            self.has(libc::O_APPEND) && access.contains(AccessMode::WRITE),
        );
        access.set(AccessMode::EXECUTE, self.flags & abi::FMODE_EXEC != 0);
        access
    }
}

/// Writes as much as there is space for. Pieces of this length always have space if their
/// blocks are allocated (decision 58).
fn write_pieces(call: &mut Call<'_>, request: &typed::Write, len: usize) -> Result<Written, Errno> {
    let mut written = Written { len: 0, size: 0 };
    while (written.len as usize) < len {
        let done = written.len as usize;
        let count = (len - done).min(PROMISED_WRITE);
        call.slot.payload_out().copy_within(done..done + count, 0);
        let position = match request.position {
            Position::At(offset) => Position::At(offset + done as u64),
            other => other,
        };
        let piece = typed::Write { position, ..request.clone() };
        match call.call_with(piece, count) {
            Ok(Written { len: 0, .. }) => break,
            Ok(Written { len, size }) => written = Written { len: written.len + len, size },
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(written)
}

fn release_locks(call: &mut Call<'_>, releasing: &[Releasing]) -> Served {
    let ino = call.header.ino;
    let mut served = Ok(());
    for owner in releasing.iter().map(|releasing| releasing.owner) {
        served = served.and(call.call(typed::ReleaseLocks { ino, owner }));
    }
    call.front.lock_owners.forget(releasing);
    served
}

impl Call<'_> {
    pub(super) fn open(&mut self, flags: OpenFlags) -> Served {
        let access = flags.access();
        let opened = if access.contains(AccessMode::TRUNCATE) {
            self.open_truncated(access, flags.kill_privileges)?
        } else {
            // The kernel has checked the right to execute the file.
            self.open_shared(access - AccessMode::EXECUTE)?
        };
        opened.reply(self.front.effects(), self.body);
        Ok(())
    }

    /// Opens the inode, through a handle that was kept if there is one.
    pub(super) fn open_shared(&mut self, access: AccessMode) -> Result<OpenedFile, Errno> {
        let ino = self.header.ino;
        match self.front.open_files.begin(ino, access, self.header.unique)? {
            // The kernel's pages are leased or recalled, as after any open.
            Begun::Open(handle) => Ok(OpenedFile { handle, keep_pages: !handle.direct }),
            Begun::New => self.open_begun(access, access),
        }
    }

    /// Opens the inode and empties it: through a handle that was kept, or with an `Open` that does
    /// both. A request that is sent again takes the same way as before.
    fn open_truncated(&mut self, access: AccessMode, kill: bool) -> Result<OpenedFile, Errno> {
        let (ino, unique) = (self.header.ino, self.header.unique);
        let shared = access - AccessMode::TRUNCATE;
        let open_files = &self.front.open_files;
        let begun = if self.has_opened() || !access.contains(AccessMode::WRITE) {
            open_files.begin_new(ino);
            Begun::New
        } else {
            open_files.begin(ino, shared, unique)?
        };
        let (opened, emptied) = match begun {
            Begun::Open(handle) => {
                let emptied = self.truncate(handle.handle, kill).map(|_| ());
                (OpenedFile { handle, keep_pages: !handle.direct }, emptied)
            }
            Begun::New => {
                let opened = self.open_begun(access, shared)?;
                let handle = opened.handle.handle;
                (opened, if kill { self.kill_privileges(handle) } else { Ok(()) })
            }
        };
        if let Err(errno) = emptied {
            self.release_handle(opened.handle.number)?;
            return Err(errno);
        }
        Ok(opened)
    }

    /// Whether a predecessor has opened a file for this request, at its cell.
    fn has_opened(&self) -> bool {
        let record = self.front.state.record(self.slot.number());
        let first = record.replay(self.header.unique, &mut self.steps.clone());
        matches!(first, Some(Ok(Reply::Opened(_))))
    }

    /// Opens the inode at its cell. Other opens for `shared` may use the handle too.
    fn open_begun(&mut self, access: AccessMode, shared: AccessMode) -> Result<OpenedFile, Errno> {
        let open_files = &self.front.open_files;
        let request = typed::Open { ino: self.header.ino, access: access | AccessMode::KEEP };
        let mut answer = self.call(request.clone());
        if answer == Err(Errno::ENFILE) {
            open_files.drop_idle();
            self.close_unused(usize::MAX);
            answer = self.call(request);
        }
        let opened = answer.inspect_err(|_| open_files.failed(self.header.ino))?;
        self.add_open(&opened, shared)
    }

    /// Adds a file that a cell has opened, after [`OpenFiles::begin`]. Closes it on failure.
    pub(super) fn add_open(
        &mut self,
        opened: &Opened,
        shared: AccessMode,
    ) -> Result<OpenedFile, Errno> {
        let (cell, unique) = (self.slot.last_cell(), self.header.unique);
        let added = self.front.open_files.opened(opened, shared, cell, unique);
        if added.is_err() {
            let _ = self.call(typed::Close { handle: opened.handle });
        }
        self.close_unused(CLOSED_MAX);
        Ok(OpenedFile { handle: added?, keep_pages: opened.keep_pages })
    }

    /// The kernel does not use the handle any more.
    pub(super) fn release_handle(&mut self, open: u64) -> Served {
        self.front.open_files.release(open);
        self.close_unused(CLOSED_MAX);
        Ok(())
    }

    /// Closes so many handles that are not kept: mostly [`CLOSED_MAX`], and later requests the
    /// others. These requests need no record, because to repeat one has no effect.
    pub(super) fn close_unused(&mut self, max: usize) {
        for closing in self.front.open_files.take_unused(max) {
            let request = Request::Close { handle: closing.handle };
            let _ = self.slot.call(self.header.identity(), &request, 0);
            self.front.open_files.closed(closing);
        }
    }

    /// Removes the set-id bits of a file that the open has truncated.
    fn kill_privileges(&mut self, handle: Handle) -> Served {
        let set = SetAttr { kill_privileges: true, ..SetAttr::default() };
        self.call(typed::SetAttr { ino: handle.ino, handle: Some(handle), set }).map(|_| ())
    }

    pub(super) fn read(
        &mut self,
        open: u64,
        (offset, len): (u64, u32),
        flags: ReadFlags,
    ) -> Result<Outcome, Errno> {
        let len = len.min(PAYLOAD_MAX as u32);
        let (handle, position) = (self.handle(open)?, Position::At(offset));
        let got = self.call(typed::Read { handle, position, len, flags })?;
        if got <= len { Ok(Outcome::Payload(got as usize)) } else { Err(Errno::EPROTO) }
    }

    /// The kernel has already put an append into its cache, at the end of the file as it knows it.
    /// A kernel that revalidates drops its pages when it sees another size. With leased pages, the
    /// front must have them dropped.
    pub(super) fn write(&mut self, write: Write) -> Result<Outcome, Errno> {
        let position = if write.append { Position::End } else { Position::At(write.offset) };
        let handle = self.handle(write.open)?;
        let Write { kill_privileges, write_back, direct, .. } = write;
        let request = typed::Write { handle, position, kill_privileges, write_back, direct };
        let Written { len, size } = match self.call_with(request.clone(), write.len) {
            Err(Errno::ENOSPC) if write.len > PROMISED_WRITE => {
                write_pieces(self, &request, write.len)?
            }
            written => written?,
        };
        if len as usize > write.len {
            return Err(Errno::EPROTO);
        }
        let sync = write.sync || self.front.effects().contains(Effects::SYNC);
        if sync && write.open & DIRECT_HANDLE != 0 {
            // For writes through its cache, the kernel sends an `FSYNC`.
            let (ino, handle) = (handle.ino, Some(handle));
            self.call(typed::Fsync { ino, handle, data_only: false })?;
        }
        self.body.count(len);
        let leased = self.front.options.page_caching == PageCaching::Leased;
        let expected = write.offset.saturating_add(u64::from(len));
        let misplaced = write.append && leased && size != expected;
        Ok(if misplaced { Outcome::Misplaced } else { Outcome::BODY })
    }

    /// Copies a range by sharing blocks. After EXDEV the kernel copies through its cache. It has
    /// written mapped pages of both ranges back, and drops its own pages of the target itself. It
    /// does not say whether to remove the set-id bits: only root's stay.
    pub(super) fn copy_range(
        &mut self,
        open: u64,
        (target, target_open): (Ino, u64),
        copy: RangeCopy,
    ) -> Served {
        let source = self.handle(open)?;
        let handle = self.front.open_files.handle_of(target, target_open)?;
        let kill_privileges = self.header.uid != 0;
        let copied = self.call(typed::CopyRange { handle, source, copy, kill_privileges })?;
        if u64::from(copied.len) > copy.length {
            return Err(Errno::EPROTO);
        }
        if self.front.effects().contains(Effects::SYNC) {
            let (ino, handle) = (target, Some(handle));
            self.call(typed::Fsync { ino, handle, data_only: false })?;
        }
        self.body.count(copied.len);
        Ok(())
    }

    /// A descriptor is closed: its owner's record locks are released. The cell has all writes.
    pub(super) fn flush(&mut self, owner: LockOwner) -> Served {
        let releasing = self.front.lock_owners.flush(self.header.ino, owner);
        release_locks(self, &releasing)
    }

    pub(super) fn release(&mut self, open: u64, flock: Option<LockOwner>) -> Served {
        let ino = self.header.ino;
        let releasing = self.front.lock_owners.release(ino, open);
        let mut served = release_locks(self, &releasing);
        // A predecessor that has removed the handle has released the lock before.
        if let Some(owner) = flock
            && let Ok(handle) = self.handle(open)
        {
            let (flavour, lock) = (LockFlavour::Flock, LockType::Unlock);
            let spec = LockSpec { flavour, owner, lock, range: ByteRange::ALL, pid: 0 };
            served = served.and(self.call(typed::Lock { handle, spec, wait: false }));
        }
        self.front.lock_owners.end_release(ino, open);
        // Also after a failure, because the kernel sends no second `RELEASE`.
        served.and(self.release_handle(open))
    }
}
