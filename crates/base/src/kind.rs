//! The kinds of inodes, and the bits of a mode that do not say which kind it is.

/// The permission bits of a mode: set-id, sticky, and `rwx` three times.
pub const MODE_MASK: u16 = 0o7777;

/// The kind of an inode. The numbers are those of the disk format and of messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    Regular = 1,
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    Socket = 5,
    CharDevice = 6,
    BlockDevice = 7,
}

impl FileKind {
    pub const ALL: [Self; 7] = [
        Self::Regular,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];

    /// The kind with this number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == raw)
    }

    /// The `S_IFMT` bits of `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    /// The kind that the `S_IFMT` bits of `mode` name.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            _ => return None,
        })
    }
}
