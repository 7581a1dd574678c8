//! Inodes and parts of directories: the values of fixed size.

use crate::codec::{Put, Take};
use crate::record::ValueError;
use warren_base::limits::FILE_SIZE_MAX;
use warren_base::{FileKind, Ino, InodeFlags, MODE_MASK, Timestamp};

/// The attributes of a file. Links and sizes of a spread directory are the sums over its [`Part`]s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inode {
    pub kind: FileKind,
    /// Twelve permission bits, within [`MODE_MASK`].
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    /// Device number of a character or block device, zero elsewhere.
    pub rdev: u32,
    /// Bytes, at most `FILE_SIZE_MAX`.
    pub size: u64,
    /// 4 KiB blocks of the extents. While a fleet serves the pool, pages without a place count too.
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// Grows when cached pages were discarded: earlier descriptors get EIO.
    pub generation: u32,
    /// The parent of a directory; `Ino(0)` for all other kinds.
    pub parent: Ino,
    pub flags: InodeFlags,
}

impl Inode {
    pub(crate) const ENCODED_LEN: usize = 84;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.size);
        out.u64(self.blocks);
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            out.i64(time.0);
        }
        out.u64(self.parent.0);
        for field in
            [self.uid, self.gid, self.nlink, self.rdev, self.generation, self.flags.bits().into()]
        {
            out.u32(field);
        }
        out.u16(self.mode);
        out.u8(self.kind as u8);
        out.u8(0);
    }

    pub(crate) fn decode(take: &mut Take<'_>) -> Option<Result<Self, ValueError>> {
        let (size, blocks) = (take.u64()?, take.u64()?);
        let [atime, mtime, ctime, btime] =
            [take.i64()?, take.i64()?, take.i64()?, take.i64()?].map(Timestamp);
        let parent = Ino(take.u64()?);
        let (uid, gid, nlink) = (take.u32()?, take.u32()?, take.u32()?);
        let (rdev, generation, flags) = (take.u32()?, take.u32()?, take.u32()?);
        let (mode, kind, _reserved) = (take.u16()?, take.u8()?, take.u8()?);
        let Some(kind) = FileKind::from_raw(kind) else {
            return Some(Err(ValueError("inode kind")));
        };
        let Some(flags) = u8::try_from(flags).ok().and_then(InodeFlags::from_bits) else {
            return Some(Err(ValueError("inode flags")));
        };
        let inode = Self {
            kind,
            mode,
            uid,
            gid,
            nlink,
            rdev,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            generation,
            parent,
            flags,
        };
        Some(inode.checked())
    }

    fn checked(self) -> Result<Self, ValueError> {
        let directory = self.kind == FileKind::Directory;
        if self.mode & !MODE_MASK != 0 {
            Err(ValueError("inode mode"))
        } else if self.size > FILE_SIZE_MAX {
            Err(ValueError("inode size"))
        } else if directory != (self.parent != Ino(0)) {
            Err(ValueError("inode parent"))
        } else if !directory && self.flags.contains(InodeFlags::DEFAULT_ACL) {
            Err(ValueError("inode flags"))
        } else {
            Ok(self)
        }
    }
}

/// The knowledge of one shard about its part of a directory; `stat` merges all parts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Part {
    pub entries: u64,
    pub subdirs: u32,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

impl Part {
    pub(crate) const ENCODED_LEN: usize = 28;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.entries);
        out.i64(self.mtime.0);
        out.i64(self.ctime.0);
        out.u32(self.subdirs);
    }

    pub(crate) fn decode(take: &mut Take<'_>) -> Option<Self> {
        let entries = take.u64()?;
        let (mtime, ctime) = (Timestamp(take.i64()?), Timestamp(take.i64()?));
        Some(Self { entries, subdirs: take.u32()?, mtime, ctime })
    }
}
