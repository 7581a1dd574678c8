//! Open files: open, read, write, close.

use warren_base::Errno;
use warren_base::limits::PAYLOAD_MAX;
use warren_proto::typed::Written;
use warren_proto::{
    AccessMode, ByteRange, Handle, LockFlavour, LockOwner, LockSpec, LockType, Position, SetAttr,
    typed,
};

use super::{Call, Outcome, PageCaching, Served};
use crate::abi;
use crate::lock_owners::Releasing;
use crate::message::{OpenFlags, Write};
use crate::reply::DIRECT_HANDLE;

impl OpenFlags {
    pub(super) fn access(self) -> AccessMode {
        let mut access = match self.flags.cast_signed() & libc::O_ACCMODE {
            libc::O_RDONLY => AccessMode::READ,
            libc::O_WRONLY => AccessMode::WRITE,
            _ => AccessMode::READ | AccessMode::WRITE,
        };
        access.set(AccessMode::TRUNCATE, self.has(libc::O_TRUNC));
        access.set(AccessMode::EXECUTE, self.flags & abi::FMODE_EXEC != 0);
        access
    }
}

impl Call<'_> {
    pub(super) fn open(&mut self, flags: OpenFlags) -> Served {
        let (ino, access) = (self.header.ino, flags.access());
        let opened = self.call(typed::Open { ino, access })?;
        if access.contains(AccessMode::TRUNCATE) && flags.kill_privileges {
            self.kill_privileges(opened.handle)?;
        }
        self.body.open_file(&opened);
        Ok(())
    }

    /// Removes the set-id bits of a file that the open has truncated. Closes the file on failure.
    fn kill_privileges(&mut self, handle: Handle) -> Served {
        let set = SetAttr { kill_privileges: true, ..SetAttr::default() };
        let request = typed::SetAttr { ino: handle.ino, handle: Some(handle), set };
        if let Err(errno) = self.call(request) {
            let _ = self.call(typed::Close { handle });
            return Err(errno);
        }
        Ok(())
    }

    pub(super) fn read(
        &mut self,
        open: u64,
        (offset, len): (u64, u32),
        direct: bool,
    ) -> Result<Outcome, Errno> {
        let len = len.min(PAYLOAD_MAX as u32);
        let (handle, position) = (self.handle(open), Position::At(offset));
        let got = self.call(typed::Read { handle, position, len, direct })?;
        if got <= len { Ok(Outcome::Payload(got as usize)) } else { Err(Errno::EPROTO) }
    }

    /// The kernel has already put an append into its cache, at the end of the file as it knows it.
    /// A kernel that revalidates drops its pages when it sees another size. With leased pages, the
    /// front must have them dropped.
    pub(super) fn write(&mut self, write: Write) -> Result<Outcome, Errno> {
        let position = if write.append { Position::End } else { Position::At(write.offset) };
        let handle = self.handle(write.open);
        let Write { kill_privileges, write_back, direct, .. } = write;
        let request = typed::Write { handle, position, kill_privileges, write_back, direct };
        let Written { len, size } = self.call_with(request, write.len)?;
        if len as usize > write.len {
            return Err(Errno::EPROTO);
        }
        if write.sync && write.open & DIRECT_HANDLE != 0 {
            // For writes through its cache, the kernel sends an `FSYNC`.
            let (ino, handle) = (handle.ino, Some(handle));
            self.call(typed::Fsync { ino, handle, data_only: false })?;
        }
        self.body.count(len);
        let leased = self.front.options.page_caching == PageCaching::Leased;
        let expected = write.offset.saturating_add(u64::from(len));
        let misplaced = write.append && leased && size != expected;
        Ok(if misplaced { Outcome::Misplaced } else { Outcome::Body })
    }

    /// A descriptor is closed: its owner's record locks are released. The cell has all writes.
    pub(super) fn flush(&mut self, owner: LockOwner) -> Served {
        let releasing = self.front.lock_owners.flush(self.header.ino, owner);
        self.release_locks(&releasing)
    }

    fn release_locks(&mut self, releasing: &[Releasing]) -> Served {
        let ino = self.header.ino;
        let mut served = Ok(());
        for owner in releasing.iter().map(|releasing| releasing.owner) {
            served = served.and(self.call(typed::ReleaseLocks { ino, owner }));
        }
        self.front.lock_owners.forget(releasing);
        served
    }

    pub(super) fn release(&mut self, open: u64, flock: Option<LockOwner>) -> Served {
        let ino = self.header.ino;
        let releasing = self.front.lock_owners.release(ino, open);
        let mut served = self.release_locks(&releasing);
        if let Some(owner) = flock {
            let (flavour, lock) = (LockFlavour::Flock, LockType::Unlock);
            let spec = LockSpec { flavour, owner, lock, range: ByteRange::ALL, pid: 0 };
            let handle = self.handle(open);
            served = served.and(self.call(typed::Lock { handle, spec, wait: false }));
        }
        // Also after a failure, because the kernel sends no second `RELEASE`.
        served.and(self.call(typed::Close { handle: self.handle(open) }))
    }
}
