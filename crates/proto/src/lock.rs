//! Advisory locks on files: `fcntl` record locks (POSIX and open-file-description) and `flock`.

use crate::Wire;

/// The kind of a lock, or its release.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum LockType {
    Shared,
    Exclusive,
    Unlock,
}

/// The two flavours do not conflict with each other, as on Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Wire)]
pub enum LockFlavour {
    /// `fcntl`: byte ranges, owned by a process or an open file description.
    Record,
    /// `flock`: the whole file, owned by an open file description.
    Flock,
}

/// The owner of a lock: a number that the client chooses, unique within the client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub struct LockOwner(pub u64);

/// Bytes `start..=end`; `end` is `u64::MAX` for "to the end of the file, however long it gets".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Wire)]
pub struct ByteRange {
    pub start: u64,
    pub end: u64,
}

impl ByteRange {
    pub const ALL: Self = Self { start: 0, end: u64::MAX };

    pub const fn overlaps(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// A lock that is requested, granted, or in conflict. `pid` is what `F_GETLK` reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct LockSpec {
    pub flavour: LockFlavour,
    pub owner: LockOwner,
    pub lock: LockType,
    pub range: ByteRange,
    pub pid: u32,
}
