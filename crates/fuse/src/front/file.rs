//! Open files: their data and their end.

use warren_base::Errno;
use warren_base::limits::PAYLOAD_MAX;
use warren_proto::typed::Written;
use warren_proto::{
    AccessMode, ByteRange, Handle, LockFlavour, LockOwner, LockSpec, LockType, Position, SetAttr,
    typed,
};

use super::{Call, Outcome, PageCaching, Served};
use crate::abi;
use crate::held::Releasing;
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

    /// After emptying a file while opening it. If it fails the file is closed again.
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

    /// Appending, the kernel has put the data into its cache already, at the end as it knows it. A
    /// kernel that revalidates will see a size that it does not expect; any other must be told.
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
            // Of a write through its cache the kernel sees to that itself.
            let (ino, handle) = (handle.ino, Some(handle));
            self.call(typed::Fsync { ino, handle, data_only: false })?;
        }
        self.body.count(len);
        let leased = self.front.options.page_caching == PageCaching::Leased;
        let expected = write.offset.saturating_add(u64::from(len));
        let misplaced = write.append && leased && size != expected;
        Ok(if misplaced { Outcome::Misplaced } else { Outcome::Body })
    }

    /// A descriptor is closed. What was written is at the cell already; record locks go.
    pub(super) fn flush(&mut self, owner: LockOwner) -> Served {
        let releasing = self.front.held.flush(self.header.ino, owner);
        self.release_locks(&releasing)
    }

    fn release_locks(&mut self, releasing: &[Releasing]) -> Served {
        let ino = self.header.ino;
        let mut served = Ok(());
        for owner in releasing.iter().map(|releasing| releasing.owner) {
            served = served.and(self.call(typed::ReleaseLocks { ino, owner }));
        }
        self.front.held.forget(releasing);
        served
    }

    pub(super) fn release(&mut self, open: u64, flock: Option<LockOwner>) -> Served {
        let ino = self.header.ino;
        let releasing = self.front.held.release(ino, open);
        let mut served = self.release_locks(&releasing);
        if let Some(owner) = flock {
            let (flavour, lock) = (LockFlavour::Flock, LockType::Unlock);
            let spec = LockSpec { flavour, owner, lock, range: ByteRange::ALL, pid: 0 };
            let handle = self.handle(open);
            served = served.and(self.call(typed::Lock { handle, spec, wait: false }));
        }
        // Whatever failed before: nobody will close it again.
        served.and(self.call(typed::Close { handle: self.handle(open) }))
    }
}
