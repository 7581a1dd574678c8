//! Open files: open, close, read, write, seek, truncation.

use warren_base::limits::FILE_SIZE_MAX;
use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, FileKind, Handle, Opened, Position, ReadFlags, Reply};

use super::access::{READ, SEARCH, WRITE, is_privileged, permit, without_privileges};
use super::content::Content;
use super::inode::{Body, Inode, Open};
use super::{Legal, Refusal, State, Step, UNEXPECTED_REPLY, expect_done};
use crate::history::Excuses;

impl State {
    /// `may_open`.
    pub(super) fn may_open(
        &self,
        step: &Step<'_>,
        ino: Ino,
        access: AccessMode,
    ) -> Result<(), Errno> {
        let inode = self.alive(ino)?;
        if step.credentials.checked_by_kernel && access.is_empty() {
            return Ok(());
        }
        let writes = access.intersects(AccessMode::WRITE | AccessMode::TRUNCATE);
        match inode.kind {
            FileKind::Symlink => return Err(Errno::ELOOP),
            FileKind::Directory if writes => return Err(Errno::EISDIR),
            FileKind::Directory if access.contains(AccessMode::EXECUTE) => {
                return Err(Errno::EACCES);
            }
            _ => {}
        }
        let wants = [
            (access.contains(AccessMode::READ), READ),
            (writes, WRITE),
            (access.contains(AccessMode::EXECUTE), SEARCH),
        ];
        let want = wants.iter().filter(|(wanted, _)| *wanted).map(|(_, bit)| bit).sum();
        permit(step.credentials, inode, want)?;
        inode.check_open_flags(access)?;
        let openable = matches!(inode.kind, FileKind::Regular | FileKind::Directory);
        if openable { Ok(()) } else { Err(Errno::ENXIO) }
    }

    pub(super) fn open(&mut self, step: &Step<'_>, ino: Ino, access: AccessMode) -> Legal {
        match step.settle(self.may_open(step, ino, access))? {
            Some((_, Reply::Opened(opened))) => {
                if access.contains(AccessMode::TRUNCATE) {
                    self.cut(step, ino);
                }
                self.add_open(step, ino, opened, access)
            }
            Some(_) => Err(UNEXPECTED_REPLY),
            None => Ok(()),
        }
    }

    pub(super) fn add_open(
        &mut self,
        step: &Step<'_>,
        ino: Ino,
        opened: &Opened,
        access: AccessMode,
    ) -> Legal {
        if opened.handle.ino != ino {
            return Err(Refusal::Differs("a handle of another inode"));
        }
        let (client, uid) = (step.client, step.credentials.uid);
        let open = Open { client, uid, access, offset: 0, is_idle: false };
        let before = self.change(ino, |inode| inode.opens.insert(opened.handle.open, open));
        if before.is_some() {
            return Err(Refusal::Differs("a handle that was assigned already"));
        }
        observe_data(self, step, ino, access)?;
        self.observe_attr(step, ino, &opened.attr)
    }

    /// `O_TRUNC`: times change even if the file was empty.
    pub(super) fn cut(&mut self, step: &Step<'_>, ino: Ino) {
        self.resize(step, ino, 0, false);
        self.change(ino, |inode| {
            inode.mtime.touch(step.window);
            inode.ctime.touch(step.window);
        });
    }

    pub(super) fn resize(&mut self, step: &Step<'_>, ino: Ino, size: u64, kill: bool) {
        let window = step.window;
        self.change(ino, |inode| {
            if size == inode.size() {
                inode.mtime.may_touch(window);
                inode.ctime.may_touch(window);
            } else {
                inode.mtime.touch(window);
                inode.ctime.touch(window);
            }
            inode.content_mut().truncate(size);
            inode.lose_capability();
            if kill || !is_privileged(step.credentials) {
                inode.mode = without_privileges(step.credentials, inode);
            }
        });
    }

    /// The open-file object if it is this client's, else EBADF.
    pub(super) fn opened(&self, step: &Step<'_>, handle: Handle) -> Result<(&Inode, Open), Errno> {
        let inode = self.get(handle.ino).ok_or(Errno::EBADF)?;
        let open = inode.opens.get(&handle.open).filter(|open| !open.is_idle);
        let open = open.ok_or(Errno::EBADF)?;
        if open.client == step.client { Ok((inode, *open)) } else { Err(Errno::EBADF) }
    }

    /// A descriptor that was not opened with `O_PATH`.
    pub(super) fn descriptor(
        &self,
        step: &Step<'_>,
        handle: Handle,
    ) -> Result<(&Inode, AccessMode), Errno> {
        let (inode, open) = self.opened(step, handle)?;
        let is_open = open.access.intersects(AccessMode::READ | AccessMode::WRITE);
        if is_open { Ok((inode, open.access)) } else { Err(Errno::EBADF) }
    }

    /// `fsync` takes a descriptor; a front's kernel has checked it.
    pub(super) fn may_sync(
        &self,
        step: &Step<'_>,
        ino: Ino,
        handle: Option<Handle>,
    ) -> Result<(), Errno> {
        match handle {
            Some(handle) if handle.ino == ino => self.descriptor(step, handle).map(|_| ()),
            None if step.credentials.checked_by_kernel => self.alive(ino).map(|_| ()),
            _ => Err(Errno::EBADF),
        }
    }

    /// The handle may be idle. If the inode has no name then, the cell may have closed it.
    pub(super) fn close(&mut self, step: &Step<'_>, handle: Handle) -> Legal {
        let inode = self.get(handle.ino);
        let open = inode.and_then(|inode| inode.opens.get(&handle.open));
        let is_own = open.is_some_and(|open| open.client == step.client);
        let is_idle = open.is_some_and(|open| open.is_idle);
        // A cell may have closed it: with the last name, or for another client's open.
        if is_own && is_idle && step.outcome.answer == Err(Errno::EBADF) {
            self.change(handle.ino, |inode| inode.opens.remove(&handle.open));
            return Ok(());
        }
        // A cell that has not executed the removal has not closed it yet. The removal is answered
        // as soon as it is decided.
        let was_dropped = inode.is_none_or(|inode| inode.nlink == 0);
        if !is_own
            && was_dropped
            && let Ok(reply) = &step.outcome.answer
        {
            return expect_done(reply);
        }
        let must = if is_own { Ok(()) } else { Err(Errno::EBADF) };
        let Some((_, reply)) = step.settle(must)? else { return Ok(()) };
        self.change(handle.ino, |inode| inode.opens.remove(&handle.open));
        expect_done(reply)
    }

    pub(super) fn seek(&mut self, step: &Step<'_>, handle: Handle, position: u64) -> Legal {
        let in_range = if position > FILE_SIZE_MAX { Err(Errno::EINVAL) } else { Ok(()) };
        let must = self.descriptor(step, handle).and(in_range);
        let Some((_, reply)) = step.settle(must)? else { return Ok(()) };
        self.set_offset(handle, position);
        expect_done(reply)
    }

    fn set_offset(&mut self, handle: Handle, offset: u64) {
        self.change(handle.ino, |inode| {
            inode.opens.get_mut(&handle.open).expect("the caller has looked").offset = offset;
        });
    }

    pub(super) fn read(
        &mut self,
        step: &Step<'_>,
        handle: Handle,
        position: Position,
        (len, flags): (u32, ReadFlags),
    ) -> Legal {
        let must = self.opened(step, handle).and_then(|(inode, open)| {
            if !open.access.contains(AccessMode::READ) {
                return Err(Errno::EBADF);
            }
            let Body::File(content) = &inode.body else { return Err(Errno::EISDIR) };
            let at = start_of(position, open, content);
            if at > FILE_SIZE_MAX { Err(Errno::EINVAL) } else { Ok((at, content.clone())) }
        });
        let (start, content, got) = match step.settle(must)? {
            Some(((start, content), Reply::Read { len })) => (start, content, *len as usize),
            Some(_) => return Err(UNEXPECTED_REPLY),
            None => return Ok(()),
        };
        let bytes = &step.outcome.payload;
        if got != bytes.len() || !content.reads_as(start, u64::from(len), bytes) {
            return Err(Refusal::Differs("the bytes read"));
        }
        if position == Position::Current {
            self.set_offset(handle, start + got as u64);
        }
        if !flags.contains(ReadFlags::NO_ATIME) {
            self.change(handle.ino, |inode| inode.atime.may_touch(step.window));
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        step: &Step<'_>,
        handle: Handle,
        position: Position,
        kill: bool,
    ) -> Legal {
        let must = self.opened(step, handle).and_then(|(inode, open)| {
            let Body::File(content) = &inode.body else { return Err(Errno::EBADF) };
            if !open.access.contains(AccessMode::WRITE) {
                return Err(Errno::EBADF);
            }
            let only_appends = inode.only_grows() && open.access.contains(AccessMode::APPEND);
            if inode.is_immutable() || only_appends && position != Position::End {
                return Err(Errno::EPERM);
            }
            let start = start_of(position, open, content);
            let end = start.checked_add(step.payload.len() as u64);
            if end.is_none_or(|end| end > FILE_SIZE_MAX) { Err(Errno::EFBIG) } else { Ok(start) }
        });
        let (start, len, size) = match step.settle(must)? {
            Some((start, Reply::Written { len, size })) => (start, *len as usize, *size),
            Some(_) => return Err(UNEXPECTED_REPLY),
            None => return Ok(()),
        };
        if !is_legal_length(step, len) {
            return Err(Refusal::Differs("how much was written"));
        }
        // A write of zero bytes does nothing: not even the offset of an append moves.
        if len > 0 {
            self.write_bytes(step, handle.ino, start, len, kill);
            self.change(handle.ino, Inode::lose_capability);
            if position != Position::At(start) {
                self.set_offset(handle, start + len as u64);
            }
        }
        let real = self.get(handle.ino).expect("it is open").size();
        if size == real { Ok(()) } else { Err(Refusal::Differs("the size after the write")) }
    }

    /// A write-back of a mapped page: writes the whole page without extending the file, and changes
    /// nothing else.
    pub(super) fn write_back(
        &mut self,
        step: &Step<'_>,
        handle: Handle,
        position: Position,
    ) -> Legal {
        let must = self.opened(step, handle).and_then(|(inode, open)| match &inode.body {
            Body::File(content) if open.access.contains(AccessMode::WRITE) => {
                let appends = inode.only_grows() && open.access.contains(AccessMode::APPEND);
                if inode.is_immutable() || appends {
                    return Err(Errno::EPERM);
                }
                let start = start_of(position, open, content);
                Ok((start, content.size()))
            }
            _ => Err(Errno::EBADF),
        });
        let (start, end, size) = match step.settle(must)? {
            Some(((start, end), Reply::Written { size, .. })) => (start, end, *size),
            Some(_) => return Err(UNEXPECTED_REPLY),
            None => return Ok(()),
        };
        let len = step.payload.len().min(end.saturating_sub(start) as usize);
        if len > 0 {
            self.write_bytes(step, handle.ino, start, len, false);
        }
        self.change(handle.ino, |inode| {
            inode.mtime.may_touch(step.window);
            inode.ctime.may_touch(step.window);
        });
        if size == end { Ok(()) } else { Err(Refusal::Differs("the size after a write-back")) }
    }

    fn write_bytes(&mut self, step: &Step<'_>, ino: Ino, start: u64, len: usize, kill: bool) {
        self.change(ino, |inode| {
            inode.content_mut().write(start, &step.payload[..len]);
            inode.mtime.touch(step.window);
            inode.ctime.touch(step.window);
            if kill || !is_privileged(step.credentials) {
                inode.mode = without_privileges(step.credentials, inode);
            }
        });
    }
}

/// Checks the data that have come with an open file: all of them, or none.
fn observe_data(state: &State, step: &Step<'_>, ino: Ino, access: AccessMode) -> Legal {
    let bytes = &step.outcome.payload;
    if bytes.is_empty() {
        return Ok(());
    }
    let Body::File(content) = &state.inode(ino).body else {
        return Err(Refusal::Differs("data of an inode that is no file"));
    };
    let is_wanted = access.contains(AccessMode::DATA | AccessMode::READ);
    if is_wanted && content.reads_as(0, bytes.len() as u64 + 1, bytes) {
        Ok(())
    } else {
        Err(Refusal::Differs("the data that came with an open file"))
    }
}

pub(super) fn start_of(position: Position, open: Open, content: &Content) -> u64 {
    match position {
        Position::At(at) | Position::EndAt(at) => at,
        Position::Current => open.offset,
        Position::End => content.size(),
    }
}

/// A write is complete unless the pool is full.
fn is_legal_length(step: &Step<'_>, len: usize) -> bool {
    let whole = step.payload.len();
    len == whole || (0 < len && len < whole && step.excuses.contains(Excuses::NO_SPACE))
}
