//! The options of a mount that the kernel leaves to the file system.
//!
//! The kernel itself refuses changes, programs and device nodes on a mount. It keeps no access
//! times for FUSE, and makes no change durable but what is written to a file: these options are
//! the front's and the cells'. The kernel has the flags, so `mountinfo` is the source: a remount
//! changes them there.

use bitflags::bitflags;
use rustix::mount::MountFlags;
use warren_base::Ino;
use warren_proto::Rules;

use crate::message::{FlagsCall, Operation};

bitflags! {
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Effects: u8 {
        /// No access time is set (`noatime`, `ro`).
        const NO_ATIME = 1;
        /// Each read sets it (`strictatime`).
        const STRICT_ATIME = 2;
        /// A change is durable before its call returns (`sync`).
        const SYNC = 4;
        /// A change of names is (`dirsync`).
        const DIRSYNC = 8;
    }
}

impl Effects {
    /// Returns the effects of the flags with which a mount is made. Without any flag of access
    /// times, Linux sets `relatime`.
    pub fn of_flags(flags: MountFlags) -> Self {
        let no_atime = flags.intersects(MountFlags::NOATIME | MountFlags::RDONLY);
        let mut effects = Self::empty();
        effects.set(Self::NO_ATIME, no_atime);
        effects.set(Self::STRICT_ATIME, !no_atime && flags.contains(MountFlags::STRICTATIME));
        effects.set(Self::SYNC, flags.contains(MountFlags::SYNCHRONOUS));
        effects.set(Self::DIRSYNC, flags.intersects(MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC));
        effects
    }

    /// Returns the effects of the two lists of options in a line of `mountinfo`: the mount's and
    /// the file system's.
    pub(crate) fn of_lists(mount: &[u8], file_system: &[u8]) -> Self {
        let has = |list: &[u8], wanted: &str| {
            list.split(|byte| *byte == b',').any(|option| option == wanted.as_bytes())
        };
        let no_atime = has(mount, "noatime") || has(mount, "ro") || has(file_system, "ro");
        let sync = has(file_system, "sync");
        let mut effects = Self::empty();
        effects.set(Self::NO_ATIME, no_atime);
        effects.set(Self::STRICT_ATIME, !no_atime && !has(mount, "relatime"));
        effects.set(Self::SYNC, sync);
        effects.set(Self::DIRSYNC, sync || has(file_system, "dirsync"));
        effects
    }

    /// The inodes of which an operation's changes must be durable before it is answered. `ino` is
    /// the inode of its header. For what is written, the kernel sends an `FSYNC` itself.
    pub(crate) fn durable(self, operation: &Operation, ino: Ino) -> [Option<Ino>; 2] {
        let names = self.contains(Self::DIRSYNC);
        let all = self.contains(Self::SYNC);
        match operation {
            Operation::SetAttr { .. }
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr(_)
            | Operation::Flags(FlagsCall::Set { .. }) => [all.then_some(ino), None],
            Operation::Open(flags) if flags.has(libc::O_TRUNC) => [all.then_some(ino), None],
            _ if names => operation.changes_unseen(ino),
            _ => [None; 2],
        }
    }

    /// The rules that the cells must know. The kernel refuses changes itself.
    pub fn rules(self) -> Rules {
        let mut rules = Rules::empty();
        rules.set(Rules::NO_ATIME, self.contains(Self::NO_ATIME));
        rules.set(Rules::STRICT_ATIME, self.contains(Self::STRICT_ATIME));
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_lists_mean_the_same() {
        let relatime = MountFlags::RELATIME;
        for (flags, mount, file_system) in [
            (relatime, "rw,nosuid,relatime", "rw,user_id=0"),
            (MountFlags::empty(), "rw,relatime", "rw"),
            (MountFlags::NOATIME, "rw,noatime", "rw"),
            (MountFlags::STRICTATIME, "rw", "rw"),
            (MountFlags::RDONLY | relatime, "ro,relatime", "ro"),
            (MountFlags::RDONLY | MountFlags::STRICTATIME, "ro", "rw"),
            (MountFlags::SYNCHRONOUS, "rw,relatime", "rw,sync"),
            (MountFlags::DIRSYNC, "rw,relatime", "rw,dirsync,user_id=0"),
        ] {
            let listed = Effects::of_lists(mount.as_bytes(), file_system.as_bytes());
            assert_eq!(Effects::of_flags(flags), listed, "{mount} {file_system}");
        }
    }

    #[test]
    fn cells_know_of_access_times_alone() {
        assert_eq!((Effects::SYNC | Effects::DIRSYNC).rules(), Rules::empty());
        assert_eq!(Effects::NO_ATIME.rules(), Rules::NO_ATIME);
        assert_eq!(Effects::STRICT_ATIME.rules(), Rules::STRICT_ATIME);
    }
}
