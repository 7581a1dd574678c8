//! The rules of writes.

use warren_base::{Errno, InodeFlags};
use warren_proto::{AccessMode, Position};

/// EPERM if a flag of the file forbids the write. A file that was opened before it became one to
/// which data may only be appended can still be written, as in Linux. A page that is written back
/// was changed since, because the kernel's pages are dropped before such a flag is set.
pub fn check_flags(flags: InodeFlags, access: AccessMode, position: Position) -> Result<(), Errno> {
    let only_appends = flags.contains(InodeFlags::APPEND) && access.contains(AccessMode::APPEND);
    let is_refused =
        flags.contains(InodeFlags::IMMUTABLE) || only_appends && position != Position::End;
    if is_refused { Err(Errno::EPERM) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immutable_file_is_not_written() {
        let check = |flags| check_flags(flags, AccessMode::WRITE, Position::End);
        assert_eq!(check(InodeFlags::IMMUTABLE), Err(Errno::EPERM));
        assert_eq!(check(InodeFlags::NODUMP), Ok(()));
    }

    #[test]
    fn an_append_only_file_is_written_at_its_end_or_by_an_earlier_open() {
        let (append, write) = (AccessMode::WRITE | AccessMode::APPEND, AccessMode::WRITE);
        let check = |access, position| check_flags(InodeFlags::APPEND, access, position);
        assert_eq!(check(append, Position::End), Ok(()));
        assert_eq!(check(append, Position::At(0)), Err(Errno::EPERM));
        assert_eq!(check(append, Position::Current), Err(Errno::EPERM));
        assert_eq!(check(write, Position::At(0)), Ok(()));
        assert_eq!(check_flags(InodeFlags::empty(), append, Position::At(0)), Ok(()));
    }
}
