//! Ranges of files that are allocated or freed, and where files have data.

use warren_base::Errno;
use warren_base::limits::{BLOCK_SIZE, FILE_SIZE_MAX, PROMISED_WRITE};
use warren_proto::{AccessMode, Handle, RangeChange, RangeKind, Reply, Request};

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

    pub(super) fn find_data(
        &self,
        state: &State,
        handle: Handle,
        offset: u64,
        hole: bool,
    ) -> Legal {
        let must = state.opened(self, handle).and_then(|(inode, _)| match &inode.body {
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

    /// Whether the request writes only blocks that are allocated, and few: it must not fail for
    /// lack of space.
    pub(super) fn has_blocks(&self, state: &State, request: &Request) -> bool {
        let Request::Write { handle, position, .. } = request else { return false };
        let Ok((inode, open)) = state.opened(self, *handle) else { return false };
        let Body::File(content) = &inode.body else { return false };
        let (start, len) = (start_of(*position, open, content), self.payload.len() as u64);
        let is_short = |blocks| blocks <= PROMISED_BLOCKS;
        start < FILE_SIZE_MAX - len && content.allocated(start, len).is_some_and(is_short)
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
