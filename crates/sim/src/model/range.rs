//! Ranges of files that are allocated, freed or copied, and where files have data.

use warren_base::limits::{BLOCK_SIZE, FILE_SIZE_MAX, PROMISED_WRITE};
use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, Handle, RangeChange, RangeCopy, RangeKind, Reply, Request};

use super::access::{is_privileged, without_privileges};
use super::content::Content;
use super::data::start_of;
use super::inode::Body;
use super::{Legal, Refusal, State, Step, UNEXPECTED_REPLY, expect_done};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of a write that never fails for lack of space if all of them are allocated.
const PROMISED_BLOCKS: u64 = PROMISED_WRITE as u64 / BLOCK + 1;

impl Step<'_> {
    /// `vfs_fallocate`, and `ext4_fallocate`.
    pub(super) fn fallocate(
        &self,
        state: &mut State,
        handle: Handle,
        change: &RangeChange,
        kill: bool,
    ) -> Legal {
        let must = state.opened(self, handle).and_then(|(inode, open)| {
            let is_file = matches!(inode.body, Body::File(_));
            if !is_file || !open.access.contains(AccessMode::WRITE) {
                return Err(Errno::EBADF);
            }
            if change.length == 0 {
                return Err(Errno::EINVAL);
            }
            let end = change.offset.checked_add(change.length);
            let end = end.filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
            let is_refused =
                inode.is_immutable() || inode.only_grows() && change.kind != RangeKind::Allocate;
            if is_refused { Err(Errno::EPERM) } else { Ok(end) }
        });
        let Some((end, reply)) = self.settle(must)? else { return Ok(()) };
        state.change(handle.ino, |inode| {
            change_content(inode.content_mut(), change, end);
            inode.mtime.touch(self.window);
            inode.ctime.touch(self.window);
            inode.lose_capability();
            if kill || !is_privileged(self.credentials) {
                inode.mode = without_privileges(self.credentials, inode);
            }
        });
        expect_done(reply)
    }

    /// `vfs_copy_file_range`, and `xfs_file_remap_range`. It may refuse to share blocks, for now or
    /// because the files lie in two shards.
    pub(super) fn copy_range(
        &self,
        state: &mut State,
        (handle, source): (Handle, Handle),
        copy: &RangeCopy,
        kill: bool,
    ) -> Legal {
        if self.outcome.answer == Err(Errno::EXDEV) {
            return Ok(());
        }
        let must = self.copied(state, (handle, source), copy);
        let Some((copy, reply)) = self.settle(must)? else { return Ok(()) };
        let Some(copy) = copy else { return expect_written(state, handle.ino, 0, reply) };
        let mut from = state.change(source.ino, |inode| std::mem::take(inode.content_mut()));
        let is_same = source.ino == handle.ino;
        if is_same {
            let mut to = from.clone();
            to.copy(&mut from, &copy);
            to.share_all(&from);
            from = to;
        } else {
            state.change(handle.ino, |inode| inode.content_mut().copy(&mut from, &copy));
        }
        state.change(source.ino, |inode| *inode.content_mut() = from);
        state.change(handle.ino, |inode| {
            inode.mtime.touch(self.window);
            inode.ctime.touch(self.window);
            inode.lose_capability();
            if kill || !is_privileged(self.credentials) {
                inode.mode = without_privileges(self.credentials, inode);
            }
        });
        expect_written(state, handle.ino, copy.length, reply)
    }

    /// The range that is copied; `None` if nothing is, at the end of the source.
    fn copied(
        &self,
        state: &State,
        (handle, source): (Handle, Handle),
        copy: &RangeCopy,
    ) -> Result<Option<RangeCopy>, Errno> {
        let (to, access) = state.opened(self, handle).map(|(inode, open)| (inode, open.access))?;
        if !access.contains(AccessMode::WRITE) || access.contains(AccessMode::APPEND) {
            return Err(Errno::EBADF);
        }
        let (from, open) = state.opened(self, source)?;
        let (Body::File(into), Body::File(of)) = (&to.body, &from.body) else {
            return Err(Errno::EBADF);
        };
        if !open.access.contains(AccessMode::READ) {
            return Err(Errno::EBADF);
        }
        if to.is_immutable() {
            return Err(Errno::EPERM);
        }
        if copy.length == 0 || copy.from >= of.size() {
            return Ok(None);
        }
        let length = copy.shareable(of.size(), into.size()).ok_or(Errno::EXDEV)?;
        if copy.to.checked_add(length).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(Errno::EFBIG);
        }
        let copy = RangeCopy { length, ..*copy };
        if source.ino == handle.ino && copy.overlaps() {
            return Err(Errno::EINVAL);
        }
        Ok(Some(copy))
    }

    pub(super) fn find_data(
        &self,
        state: &State,
        handle: Handle,
        offset: u64,
        hole: bool,
    ) -> Legal {
        let must = state.descriptor(self, handle).and_then(|(inode, _)| match &inode.body {
            Body::File(content) if offset >= content.size() => Err(Errno::ENXIO),
            Body::File(content) => content.find(offset, hole).ok_or(Errno::ENXIO),
            _ => Err(Errno::EINVAL),
        });
        match self.settle(must)? {
            Some((must, Reply::Offset(at))) if *at == must => Ok(()),
            Some((_, Reply::Offset(_))) => Err(Refusal::Differs("where the data are")),
            Some(_) => Err(UNEXPECTED_REPLY),
            None => Ok(()),
        }
    }

    /// Whether the request must not fail for lack of space: it removes a name, writes only blocks
    /// that are allocated and not shared, and few, or shrinks a file and cuts no shared block.
    pub(super) fn has_blocks(&self, state: &State, request: &Request) -> bool {
        let content_of = |ino| match state.get(ino).map(|inode| &inode.body) {
            Some(Body::File(content)) => Some(content),
            _ => None,
        };
        let (handle, position) = match request {
            Request::Write { handle, position, .. } => (handle, position),
            Request::Unlink { .. } | Request::Rmdir { .. } => return true,
            Request::SetAttr { ino, set, .. } => {
                let size = set.size.unwrap_or(0);
                return content_of(*ino).is_some_and(|content| !content.cuts_shared(size));
            }
            Request::Fallocate { handle, change, .. } if change.kind == RangeKind::PunchHole => {
                let ends = [change.offset, change.offset.saturating_add(change.length)];
                return content_of(handle.ino)
                    .is_some_and(|content| ends.iter().all(|end| !content.cuts_shared(*end)));
            }
            _ => return false,
        };
        let Ok((inode, open)) = state.opened(self, *handle) else { return false };
        let Body::File(content) = &inode.body else { return false };
        let (start, len) = (start_of(*position, open, content), self.payload.len() as u64);
        let is_short = |blocks| blocks <= PROMISED_BLOCKS;
        start < FILE_SIZE_MAX - len && content.allocated(start, len).is_some_and(is_short)
    }
}

fn expect_written(state: &State, ino: Ino, length: u64, reply: &Reply) -> Legal {
    let size = match state.get(ino).map(|inode| &inode.body) {
        Some(Body::File(content)) => content.size(),
        _ => return Err(UNEXPECTED_REPLY),
    };
    match reply {
        Reply::Written { len, size: at } if u64::from(*len) == length && *at == size => Ok(()),
        Reply::Written { .. } => Err(Refusal::Differs("how much was copied")),
        _ => Err(UNEXPECTED_REPLY),
    }
}

/// A hole that reaches beyond the end takes the last block of the file along.
fn change_content(content: &mut Content, change: &RangeChange, end: u64) {
    let (start, size) = (change.offset, content.size());
    match change.kind {
        RangeKind::Allocate => content.allocate(start, end),
        RangeKind::Zero => {
            content.punch(start, end);
            content.allocate(start, end);
        }
        RangeKind::PunchHole if end > size => {
            content.punch(start, end.max(size.next_multiple_of(BLOCK)));
        }
        RangeKind::PunchHole => content.punch(start, end),
    }
    if !change.keep_size {
        content.extend(end);
    }
}
