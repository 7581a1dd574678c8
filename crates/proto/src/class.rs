//! The classes of a request.
//!
//! Cell, runtime, front and simulator use only these. Each class is one `match` over all
//! requests, without a wildcard arm: the compiler refuses a new request until each class has it.

use warren_base::{Errno, Ino};

use crate::{AccessMode, Answer, CreateFlags, FileName, LockType, Position, RenameFlags, Request};

impl Request {
    /// The name that the request creates, unless it exists already.
    pub fn created_name(&self) -> Option<(Ino, &FileName)> {
        self.on_names()?.created_name()
    }

    /// The name that the request removes if the reply is [`Reply::Done`](crate::Reply::Done).
    pub fn removed_name(&self) -> Option<(Ino, &FileName)> {
        match self {
            Self::Unlink { dir, name } | Self::Rmdir { dir, name } => Some((*dir, name)),
            Self::Rename { from, from_name, flags, .. } => {
                let keeps = RenameFlags::EXCHANGE | RenameFlags::WHITEOUT;
                (!flags.intersects(keeps)).then_some((*from, from_name))
            }
            _ => None,
        }
    }

    /// Whether the request may write a record to the op log, so that it must wait while the log is
    /// full. Requests that change only the session (handles, offsets, locks) are logged too.
    pub const fn may_log(&self) -> bool {
        match self {
            Self::SetAttr { .. }
            | Self::Create { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::Rename { .. }
            | Self::Open { .. }
            | Self::Close { .. }
            | Self::Read { position: Position::Current, .. }
            | Self::Write { .. }
            | Self::Seek { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Lock { .. }
            | Self::ReleaseLocks { .. }
            | Self::Fallocate { .. }
            | Self::CopyRange { .. } => true,
            Self::Null
            | Self::Lookup { .. }
            | Self::Neighbours { .. }
            | Self::GetAttr { .. }
            | Self::ReadLink { .. }
            | Self::ReadDir { .. }
            | Self::Read { position: Position::At(_) | Position::End, .. }
            | Self::Fsync { .. }
            | Self::Sync
            | Self::StatFs
            | Self::GetXattr { .. }
            | Self::ListXattr { .. }
            | Self::TestLock { .. }
            | Self::Cancel { .. }
            | Self::AwaitRecall { .. }
            | Self::Claim { .. }
            | Self::FindData { .. }
            | Self::GetRemoved { .. } => false,
        }
    }

    /// Whether the request always changes the file system: a read-only cell replies with EROFS. A
    /// `Create` that may merely open an existing file is no change.
    pub const fn is_change(&self) -> bool {
        match self {
            Self::SetAttr { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::Rename { .. }
            | Self::Write { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Fallocate { .. }
            | Self::CopyRange { .. } => true,
            Self::Open { access, .. } => access.is_change(),
            Self::Create { flags, access, .. } => {
                let makes = CreateFlags::EXCLUSIVE.union(CreateFlags::NAMELESS);
                let may_only_open = flags.contains(CreateFlags::OPEN) && !flags.intersects(makes)
                    || flags.contains(CreateFlags::EXISTING);
                !may_only_open || access.is_change()
            }
            Self::Null
            | Self::Lookup { .. }
            | Self::Neighbours { .. }
            | Self::GetAttr { .. }
            | Self::ReadLink { .. }
            | Self::ReadDir { .. }
            | Self::Close { .. }
            | Self::Read { .. }
            | Self::Seek { .. }
            | Self::Fsync { .. }
            | Self::Sync
            | Self::StatFs
            | Self::GetXattr { .. }
            | Self::ListXattr { .. }
            | Self::Lock { .. }
            | Self::TestLock { .. }
            | Self::ReleaseLocks { .. }
            | Self::Cancel { .. }
            | Self::AwaitRecall { .. }
            | Self::Claim { .. }
            | Self::FindData { .. }
            | Self::GetRemoved { .. } => false,
        }
    }

    /// Whether executing the request twice differs from executing it once, so that a front's
    /// successor must not send it again. `ReleaseLocks` has no such effect: until it is answered,
    /// its owner acquires no new lock that a second execution could release.
    pub const fn has_effect(&self) -> bool {
        match self {
            Self::SetAttr { .. }
            | Self::Create { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::Rename { .. }
            | Self::Open { .. }
            | Self::Close { .. }
            | Self::Write { .. }
            | Self::Seek { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Lock { .. }
            | Self::Fallocate { .. }
            | Self::CopyRange { .. } => true,
            Self::Null
            | Self::Lookup { .. }
            | Self::Neighbours { .. }
            | Self::GetAttr { .. }
            | Self::ReadLink { .. }
            | Self::ReadDir { .. }
            | Self::Read { .. }
            | Self::Fsync { .. }
            | Self::Sync
            | Self::StatFs
            | Self::GetXattr { .. }
            | Self::ListXattr { .. }
            | Self::TestLock { .. }
            | Self::ReleaseLocks { .. }
            | Self::Cancel { .. }
            | Self::AwaitRecall { .. }
            | Self::Claim { .. }
            | Self::FindData { .. }
            | Self::GetRemoved { .. } => false,
        }
    }

    /// Whether a front's change of names was refused, because another front, which waits for this
    /// one's kernel to drop names of the directory, would wait for ever. Nothing was changed.
    pub fn was_refused(&self, answer: &Answer) -> bool {
        let changes_names = matches!(
            self,
            Self::Create { .. }
                | Self::Link { .. }
                | Self::Unlink { .. }
                | Self::Rmdir { .. }
                | Self::Rename { .. }
        );
        changes_names && *answer == Err(Errno::EDEADLK)
    }

    /// Whether the request occupies no task for long, but may end tasks of other requests: a cell
    /// admits it also while the tasks of its user are used up, because they may wait for it.
    pub const fn ends_tasks(&self) -> bool {
        match self {
            Self::Lock { spec, .. } => matches!(spec.lock, LockType::Unlock),
            Self::ReleaseLocks { .. } | Self::Cancel { .. } | Self::AwaitRecall { .. } => true,
            Self::Null
            | Self::Lookup { .. }
            | Self::Neighbours { .. }
            | Self::GetAttr { .. }
            | Self::SetAttr { .. }
            | Self::Create { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::Rename { .. }
            | Self::ReadLink { .. }
            | Self::ReadDir { .. }
            | Self::Open { .. }
            | Self::Close { .. }
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Seek { .. }
            | Self::Fsync { .. }
            | Self::Sync
            | Self::StatFs
            | Self::GetXattr { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::ListXattr { .. }
            | Self::TestLock { .. }
            | Self::Claim { .. }
            | Self::Fallocate { .. }
            | Self::CopyRange { .. }
            | Self::FindData { .. }
            | Self::GetRemoved { .. } => false,
        }
    }
}

impl AccessMode {
    /// Whether the file may be changed through such an open, or is changed by it.
    const fn is_change(self) -> bool {
        self.intersects(Self::WRITE.union(Self::TRUNCATE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ByteRange, FileName, Handle, LockFlavour, LockOwner, LockSpec, NewInode, ReadFlags,
    };
    use warren_base::Ino;

    const HANDLE: Handle = Handle { ino: Ino::ROOT, open: 1 };

    fn create(flags: CreateFlags, access: AccessMode) -> Request {
        let name = FileName::new(b"name").expect("a legal name");
        Request::Create { dir: Ino::ROOT, name, new: NewInode::regular(0o600), flags, access }
    }

    #[test]
    fn a_create_is_a_change_unless_it_may_only_open() {
        let open = CreateFlags::OPEN;
        assert!(!create(open, AccessMode::READ).is_change());
        assert!(create(open, AccessMode::WRITE).is_change());
        assert!(create(open, AccessMode::READ | AccessMode::TRUNCATE).is_change());
        assert!(create(open | CreateFlags::EXCLUSIVE, AccessMode::READ).is_change());
        assert!(create(CreateFlags::empty(), AccessMode::empty()).is_change());
    }

    #[test]
    fn an_open_is_a_change_if_it_writes_or_truncates() {
        let open = |access| Request::Open { ino: Ino::ROOT, access };
        assert!(!open(AccessMode::READ).is_change() && !open(AccessMode::EXECUTE).is_change());
        assert!(open(AccessMode::WRITE).is_change() && open(AccessMode::TRUNCATE).is_change());
    }

    #[test]
    fn a_read_is_logged_if_it_moves_the_offset() {
        let read = |position| Request::Read {
            handle: HANDLE,
            position,
            len: 1,
            flags: ReadFlags::empty(),
        };
        assert!(read(Position::Current).may_log());
        assert!(!read(Position::At(0)).may_log() && !read(Position::End).may_log());
    }

    #[test]
    fn an_unlock_ends_tasks_and_a_lock_takes_one() {
        let ends = |lock| {
            let (flavour, range) = (LockFlavour::Record, ByteRange::ALL);
            let spec = LockSpec { flavour, owner: LockOwner(1), lock, range, pid: 1 };
            Request::Lock { handle: HANDLE, spec, wait: true }.ends_tasks()
        };
        assert!(ends(LockType::Unlock));
        assert!(!ends(LockType::Shared) && !ends(LockType::Exclusive));
    }
}
