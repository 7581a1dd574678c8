//! The classes of a request.
//!
//! Cell, runtime, front and simulator use only these. One table has a row for each request, so the
//! compiler refuses a new request until it is judged.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Errno, Ino};

use crate::stream::pages_at;
use crate::{
    AccessMode, Answer, CreateFlags, FileName, LockSpec, LockType, Position, RenameFlags, Request,
};

/// It may write a record to the op log.
const LOGS: u8 = 1;
/// It changes the file system.
const CHANGES: u8 = 2;
/// To execute it twice differs from executing it once.
const ACTS: u8 = 4;
/// It may end tasks of other requests.
const ENDS_TASKS: u8 = 8;
/// It needs no capability for its inode: it has a handle, or something else that shows the right.
const BY_HANDLE: u8 = 16;
/// A client may post it.
const POSTED: u8 = 32;

/// The credit of a post that changes names, in pages.
pub const NAME_COST: u32 = 8;

const fn when(holds: bool, class: u8) -> u8 {
    if holds { class } else { 0 }
}

const fn is_unlock(spec: &LockSpec) -> bool {
    matches!(spec.lock, LockType::Unlock)
}

/// Whether a `Create` changes the file system even if the file exists.
const fn may_create(flags: CreateFlags, access: AccessMode) -> bool {
    let makes = CreateFlags::EXCLUSIVE.union(CreateFlags::NAMELESS);
    let may_only_open = flags.contains(CreateFlags::OPEN) && !flags.intersects(makes)
        || flags.contains(CreateFlags::EXISTING);
    !may_only_open || access.is_change()
}

/// Whether a `Create` makes a name if there is none.
const fn makes(flags: CreateFlags) -> bool {
    !flags.intersects(CreateFlags::EXISTING.union(CreateFlags::NAMELESS))
}

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

    /// The classes of the request.
    #[rustfmt::skip] // One line for each request.
    const fn classes(&self) -> u8 {
        match self {
            Self::Null                    => 0,
            Self::Lookup { .. }           => 0,
            Self::Neighbours { .. }       => 0,
            Self::GetAttr { .. }          => 0,
            Self::SetAttr { handle, .. }  => LOGS | CHANGES | ACTS | POSTED | when(handle.is_some(), BY_HANDLE),
            Self::Create { flags, access, .. }
                                          => LOGS | ACTS | when(may_create(*flags, *access), CHANGES) | when(makes(*flags), POSTED),
            Self::Link { .. }             => LOGS | CHANGES | ACTS | POSTED,
            Self::Unlink { .. }           => LOGS | CHANGES | ACTS | POSTED,
            Self::Rmdir { .. }            => LOGS | CHANGES | ACTS | POSTED,
            Self::Rename { flags, .. }    => LOGS | CHANGES | ACTS | when(!flags.contains(RenameFlags::WHITEOUT), POSTED),
            Self::ReadLink { .. }         => 0,
            Self::ReadDir { .. }          => 0,
            Self::Open { access, .. }     => LOGS | ACTS | when(access.is_change(), CHANGES),
            Self::Close { .. }            => LOGS | ACTS | POSTED | BY_HANDLE,
            Self::Read { position: Position::Current, .. }
                                          => LOGS | BY_HANDLE,
            Self::Read { position: Position::At(_) | Position::End | Position::EndAt(_), .. }
                                          => BY_HANDLE,
            Self::Write { .. }            => LOGS | CHANGES | ACTS | POSTED | BY_HANDLE,
            Self::Seek { .. }             => LOGS | ACTS | BY_HANDLE,
            Self::Fsync { handle, .. }    => when(handle.is_some(), BY_HANDLE),
            Self::Sync                    => 0,
            Self::StatFs                  => 0,
            Self::GetXattr { .. }         => 0,
            Self::SetXattr { .. }         => LOGS | CHANGES | ACTS,
            Self::RemoveXattr { .. }      => LOGS | CHANGES | ACTS,
            Self::ListXattr { .. }        => 0,
            Self::Lock { spec, .. }
                                          => LOGS | ACTS | BY_HANDLE | when(is_unlock(spec), ENDS_TASKS),
            Self::TestLock { .. }         => BY_HANDLE,
            // Until it is answered, its owner acquires no new lock that a second execution could
            // release. A client may release its own locks without a capability.
            Self::ReleaseLocks { .. }     => LOGS | ENDS_TASKS | BY_HANDLE,
            Self::Cancel { .. }           => ENDS_TASKS,
            Self::AwaitRecall { .. }      => ENDS_TASKS,
            // It contains a capability.
            Self::Claim { .. }            => BY_HANDLE,
            Self::Fallocate { .. }        => LOGS | CHANGES | ACTS | BY_HANDLE,
            Self::CopyRange { .. }        => LOGS | CHANGES | ACTS | BY_HANDLE,
            Self::FindData { .. }         => BY_HANDLE,
            Self::GetRemoved { .. }       => 0,
            // The client has the tree.
            Self::Extend { .. }           => LOGS | BY_HANDLE,
        }
    }

    const fn is_of(&self, class: u8) -> bool {
        self.classes() & class != 0
    }

    /// Whether the request may write a record to the op log, so that it must wait while the log is
    /// full. Requests that change only the session (handles, offsets, locks) are logged too.
    pub const fn may_log(&self) -> bool {
        self.is_of(LOGS)
    }

    /// Whether the request always changes the file system: a read-only cell replies with EROFS. A
    /// `Create` that may merely open an existing file is no change.
    pub const fn is_change(&self) -> bool {
        self.is_of(CHANGES)
    }

    /// Whether executing the request twice differs from executing it once, so that a front's
    /// successor must not send it again.
    pub const fn has_effect(&self) -> bool {
        self.is_of(ACTS)
    }

    /// Whether the request occupies no task for long, but may end tasks of other requests: a cell
    /// admits it also while the tasks of its user are used up, because they may wait for it.
    pub const fn ends_tasks(&self) -> bool {
        self.is_of(ENDS_TASKS)
    }

    /// Whether a client may post the request ([`crate::stream`]).
    pub const fn is_postable(&self) -> bool {
        self.is_of(POSTED)
    }

    /// The credit that the request takes if it is posted, with so many bytes of data: the pages
    /// that it writes, at least one. A change of names takes [`NAME_COST`].
    pub const fn post_cost(&self, payload: usize) -> u32 {
        if self.changes_names() {
            return NAME_COST;
        }
        let before = match self {
            Self::Write { position: Position::At(offset) | Position::EndAt(offset), .. } => *offset,
            // Where a file ends is known when it is written.
            Self::Write { .. } => BLOCK_SIZE as u64 - 1,
            _ => 0,
        };
        let pages = pages_at(before, payload);
        if pages == 0 { 1 } else { pages }
    }

    /// The inodes that the request names by number, in the order of its
    /// [`Capabilities`](crate::Capabilities). A handle is a capability itself.
    #[inline]
    pub const fn named(&self) -> (Option<Ino>, Option<Ino>) {
        if self.is_of(BY_HANDLE) { (None, None) } else { (self.inode(), self.other_inode()) }
    }

    /// Whether a front's change of names was refused, because another front, which waits for this
    /// one's kernel to drop names of the directory, would wait for ever. Nothing was changed.
    pub fn was_refused(&self, answer: &Answer) -> bool {
        self.changes_names() && *answer == Err(Errno::EDEADLK)
    }

    /// Whether the request may change names of directories.
    pub const fn changes_names(&self) -> bool {
        match self {
            Self::Create { flags, .. } => !flags.contains(CreateFlags::EXISTING),
            Self::Link { .. } | Self::Unlink { .. } | Self::Rmdir { .. } | Self::Rename { .. } => {
                true
            }
            _ => false,
        }
    }
}

impl AccessMode {
    /// Whether the file may be changed through such an open, or is changed by it.
    pub const fn is_change(self) -> bool {
        self.intersects(Self::WRITE.union(Self::TRUNCATE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteRange, FileName, Handle, LockFlavour, LockOwner, NewInode, ReadFlags};
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
