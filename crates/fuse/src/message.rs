//! The kernel's messages: bytes are decoded here, once, into a [`Header`] and an [`Operation`] that
//! hold only legal values.
//!
//! A message is read in two parts, so that the data of a `WRITE` is not copied. The [`Head`] is as
//! long as the headers of a `WRITE`. The rest is read straight into the slot's payload lane.

mod fields;

use warren_base::{Errno, Ino};
use warren_proto::{
    ByteRange, CreateFlags, FileName, LockFlavour, LockOwner, LockSpec, LockType, RangeChange,
    RangeCopy, ReadFlags, RenameFlags, SetAttr, XattrMode, XattrName,
};

use crate::abi::{self, opcode};
pub(crate) use fields::permissions;
use fields::{Fields, set_attr};

/// Bytes of the first part of a message.
pub(crate) const HEAD: usize = abi::IN_HEADER + abi::WRITE_IN;
pub(crate) type Head = [u8; HEAD];

/// `fuse_in_header`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub len: usize,
    pub opcode: u32,
    /// Identifies the request in its reply and in an `INTERRUPT`. Never used twice.
    pub unique: u64,
    pub ino: Ino,
    pub uid: u32,
    pub gid: u32,
    /// The thread that made the call. 0 if the kernel does not name it.
    pub thread: u32,
}

impl Header {
    /// `None` unless `received` bytes can be a message whose first part is `head`.
    pub(crate) fn decode(head: &Head, received: usize) -> Option<Self> {
        let mut fields = Fields::new(head.get(..received.min(HEAD))?);
        let header = Self {
            len: fields.u32().ok()? as usize,
            opcode: fields.u32().ok()?,
            unique: fields.u64().ok()?,
            ino: Ino(fields.u64().ok()?),
            uid: fields.u32().ok()?,
            gid: fields.u32().ok()?,
            thread: fields.u32().ok()?,
        };
        let _extensions = fields.u32().ok()?;
        (header.len == received).then_some(header)
    }

    /// The caller's (uid, gid).
    pub(crate) const fn identity(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mknod {
    pub name: FileName,
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Write {
    pub open: u64,
    pub offset: u64,
    pub len: usize,
    pub kill_privileges: bool,
    pub append: bool,
    /// The page cache writes back data that a program stored through a mapping.
    pub write_back: bool,
    /// The write bypasses the page cache.
    pub direct: bool,
    /// The file is open with `O_DSYNC`: the write must be durable before the reply.
    pub sync: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Create {
    pub name: FileName,
    pub mode: u32,
    pub umask: u32,
    pub flags: OpenFlags,
}

/// A call on the flags of a file. `extended`: as `FS_IOC_FSGETXATTR` has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlagsCall {
    Get { extended: bool },
    Set { bits: u32, extended: bool },
}

/// The flags of `open`, and whether it removes set-id bits (only with `O_TRUNC`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenFlags {
    pub flags: u32,
    pub kill_privileges: bool,
}

impl OpenFlags {
    pub(crate) fn has(self, flag: i32) -> bool {
        self.flags & flag.cast_unsigned() != 0
    }

    pub(crate) fn create_flags(self) -> CreateFlags {
        let mut flags = CreateFlags::OPEN;
        flags.set(CreateFlags::EXCLUSIVE, self.has(libc::O_EXCL));
        flags
    }
}

/// One request of the kernel. The header has the caller and the inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    },
    Destroy,
    Interrupt {
        unique: u64,
    },
    /// The kernel dropped inodes, about which the front keeps nothing. There is no reply.
    Forget,
    Lookup(FileName),
    /// A lookup of `.`: the inode itself, which a file handle names.
    LookupInode,
    /// A lookup of `..`: the parent of a directory that a file handle names.
    LookupParent,
    /// `open`: for an open file.
    GetAttr {
        open: bool,
    },
    Statx,
    SetAttr {
        open: Option<u64>,
        set: SetAttr,
    },
    ReadLink,
    Symlink {
        name: FileName,
        target: Box<[u8]>,
    },
    Mknod(Mknod),
    Mkdir {
        name: FileName,
        mode: u32,
        umask: u32,
    },
    Unlink(FileName),
    Rmdir(FileName),
    Rename {
        name: FileName,
        new_dir: Ino,
        new_name: FileName,
        flags: RenameFlags,
    },
    Link {
        ino: Ino,
        name: FileName,
    },
    Open(OpenFlags),
    Create(Create),
    /// Creates and opens a file without a name.
    TmpFile {
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    },
    Read {
        open: u64,
        offset: u64,
        len: u32,
        flags: ReadFlags,
    },
    Write(Write),
    StatFs,
    Flush {
        owner: LockOwner,
    },
    /// The last descriptor is closed. `flock` is the owner whose `flock` is released with it.
    Release {
        open: u64,
        flock: Option<LockOwner>,
    },
    Fsync {
        data_only: bool,
    },
    OpenDir,
    ReadDir {
        offset: u64,
        len: u32,
    },
    ReleaseDir {
        open: u64,
    },
    GetXattr {
        name: XattrName,
        len: u32,
    },
    SetXattr {
        name: XattrName,
        value: Box<[u8]>,
        mode: XattrMode,
        kill_set_gid: bool,
    },
    ListXattr {
        len: u32,
    },
    RemoveXattr(XattrName),
    TestLock {
        open: u64,
        spec: LockSpec,
    },
    Lock {
        open: u64,
        spec: LockSpec,
        wait: bool,
    },
    Sync,
    Fallocate {
        open: u64,
        change: RangeChange,
    },
    /// `copy_file_range` from the inode of the request to `target`.
    CopyRange {
        open: u64,
        target: Ino,
        target_open: u64,
        copy: RangeCopy,
    },
    /// `lseek` with `SEEK_DATA` or, if `hole`, `SEEK_HOLE`.
    FindData {
        open: u64,
        offset: u64,
        hole: bool,
    },
    /// `ioctl` on the flags of a file.
    Flags(FlagsCall),
    /// A request that is not supported, and the error to reply.
    Unsupported(Errno),
}

impl Operation {
    /// The operation in `body`, the bytes after the header. The data of a `WRITE`, of `payload_len`
    /// bytes, is not in `body`.
    pub(crate) fn decode(code: u32, body: &[u8], payload_len: usize) -> Result<Self, Errno> {
        let mut fields = Fields::new(body);
        match code {
            opcode::INIT | opcode::INTERRUPT | opcode::SYNCFS | opcode::STATFS => {
                connection(code, &mut fields)
            }
            opcode::LOOKUP..=opcode::LINK | opcode::RENAME2 if code != opcode::FORGET => {
                names(code, &mut fields)
            }
            opcode::OPEN
            | opcode::CREATE
            | opcode::TMPFILE
            | opcode::READ
            | opcode::WRITE
            | opcode::RELEASE
            | opcode::FLUSH
            | opcode::FSYNC
            | opcode::FSYNCDIR
            | opcode::READDIR
            | opcode::RELEASEDIR
            | opcode::FALLOCATE
            | opcode::LSEEK
            | opcode::COPY_FILE_RANGE => files(code, &mut fields, payload_len),
            opcode::SETXATTR..=opcode::REMOVEXATTR => xattrs(code, &mut fields),
            opcode::GETLK..=opcode::SETLKW => locks(code, &mut fields),
            opcode::FORGET | opcode::BATCH_FORGET => Ok(Self::Forget),
            opcode::OPENDIR => Ok(Self::OpenDir),
            opcode::STATX => Ok(Self::Statx),
            opcode::DESTROY => Ok(Self::Destroy),
            opcode::IOCTL => ioctl(&mut fields),
            _ => Ok(Self::Unsupported(Errno::ENOSYS)),
        }
    }

    /// Whether it may take so long that another thread must read before it is served.
    pub(crate) const fn may_wait(&self) -> bool {
        matches!(
            self,
            Self::Lock { wait: true, .. }
                | Self::Fsync { .. }
                | Self::Sync
                | Self::FindData { .. }
                | Self::Fallocate { .. }
                | Self::CopyRange { .. }
        )
    }

    /// Whether it takes less time than waking a thread, as a rule.
    pub(crate) const fn is_brief(&self) -> bool {
        matches!(
            self,
            Self::Forget | Self::Flush { .. } | Self::Release { .. } | Self::ReleaseDir { .. }
        )
    }

    /// Whether the kernel may send it between the beginning of a path walk and the request that the
    /// walk is for. Before it truncates a file, it gets the file's capabilities.
    pub(crate) const fn is_of_walk(&self) -> bool {
        matches!(
            self,
            Self::Lookup(_)
                | Self::ReadLink
                | Self::GetAttr { .. }
                | Self::Statx
                | Self::GetXattr { .. }
        )
    }

    /// The inodes whose attributes it changes without returning them in its reply. `ino` is the
    /// inode of the header.
    pub(crate) const fn changes_unseen(&self, ino: Ino) -> [Option<Ino>; 2] {
        match self {
            Self::Symlink { .. }
            | Self::Mknod(_)
            | Self::Mkdir { .. }
            | Self::Create(_)
            | Self::Unlink(_)
            | Self::Rmdir(_)
            | Self::Link { .. }
            | Self::SetXattr { .. }
            | Self::Flags(FlagsCall::Set { .. })
            | Self::RemoveXattr(_) => [Some(ino), None],
            Self::Rename { new_dir, .. } => [Some(ino), Some(*new_dir)],
            _ => [None; 2],
        }
    }
}

fn connection(code: u32, fields: &mut Fields<'_>) -> Result<Operation, Errno> {
    Ok(match code {
        opcode::INIT => {
            let (major, minor) = (fields.u32()?, fields.u32()?);
            // A kernel of another major version sends only these two fields.
            let max_readahead = fields.u32().unwrap_or(0);
            let low = u64::from(fields.u32().unwrap_or(0));
            let high = if low & abi::init::INIT_EXT != 0 { fields.u32().unwrap_or(0) } else { 0 };
            let flags = low | u64::from(high) << 32;
            Operation::Init { major, minor, max_readahead, flags }
        }
        opcode::INTERRUPT => Operation::Interrupt { unique: fields.u64()? },
        opcode::SYNCFS => Operation::Sync,
        _ => Operation::StatFs,
    })
}

fn names(code: u32, fields: &mut Fields<'_>) -> Result<Operation, Errno> {
    Ok(match code {
        opcode::LOOKUP => lookup(fields.string()?)?,
        opcode::GETATTR => Operation::GetAttr { open: fields.u32()? & abi::GETATTR_FH != 0 },
        opcode::SETATTR => {
            let (open, set) = set_attr(fields)?;
            Operation::SetAttr { open, set }
        }
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => {
            Operation::Symlink { name: fields.name()?, target: fields.string()?.into() }
        }
        opcode::MKNOD => {
            let (mode, rdev) = (fields.u32()?, fields.u32()?);
            let umask = fields.u32()?;
            fields.skip(4)?;
            Operation::Mknod(Mknod { name: fields.name()?, mode, umask, rdev })
        }
        opcode::MKDIR => {
            let (mode, umask) = (fields.u32()?, fields.u32()?);
            Operation::Mkdir { name: fields.name()?, mode, umask }
        }
        opcode::UNLINK => Operation::Unlink(fields.name()?),
        opcode::RMDIR => Operation::Rmdir(fields.name()?),
        opcode::LINK => Operation::Link { ino: Ino(fields.u64()?), name: fields.name()? },
        opcode::RENAME | opcode::RENAME2 => {
            let new_dir = Ino(fields.u64()?);
            let mut bits = 0;
            if code == opcode::RENAME2 {
                bits = fields.u32()?;
                fields.skip(4)?;
            }
            // As in other file systems, unknown flags get EINVAL.
            let flags =
                u8::try_from(bits).ok().and_then(RenameFlags::from_bits).ok_or(Errno::EINVAL)?;
            Operation::Rename { name: fields.name()?, new_dir, new_name: fields.name()?, flags }
        }
        _ => Operation::Unsupported(Errno::ENOSYS),
    })
}

/// The kernel walks `.` and `..` itself. It looks them up for file handles only.
fn lookup(name: &[u8]) -> Result<Operation, Errno> {
    Ok(match name {
        b"." => Operation::LookupInode,
        b".." => Operation::LookupParent,
        name => Operation::Lookup(FileName::new(name)?),
    })
}

fn files(code: u32, fields: &mut Fields<'_>, payload_len: usize) -> Result<Operation, Errno> {
    Ok(match code {
        opcode::OPEN => Operation::Open(open_flags(fields.u32()?, fields.u32()?)),
        opcode::CREATE | opcode::TMPFILE => {
            let (flags, mode, umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
            let flags = open_flags(flags, fields.u32()?);
            match code {
                opcode::CREATE => {
                    Operation::Create(Create { name: fields.name()?, mode, umask, flags })
                }
                // With the name `/`.
                _ => Operation::TmpFile { mode, umask, flags },
            }
        }
        opcode::READ => {
            let (open, offset, len) = (fields.u64()?, fields.u64()?, fields.u32()?);
            let direct = fields.u32()? & abi::READ_LOCKOWNER != 0;
            fields.skip(8)?;
            let no_atime = fields.u32()? & libc::O_NOATIME.cast_unsigned() != 0;
            let mut flags = ReadFlags::empty();
            flags.set(ReadFlags::DIRECT, direct);
            flags.set(ReadFlags::NO_ATIME, no_atime);
            Operation::Read { open, offset, len, flags }
        }
        opcode::WRITE => Operation::Write(write(fields, payload_len)?),
        opcode::RELEASE => {
            let open = fields.u64()?;
            fields.skip(4)?;
            let flags = fields.u32()?;
            let flock = (flags & abi::RELEASE_FLOCK_UNLOCK != 0).then_some(flock_owner(open));
            Operation::Release { open, flock }
        }
        opcode::RELEASEDIR => Operation::ReleaseDir { open: fields.u64()? },
        opcode::FLUSH => {
            fields.skip(16)?;
            Operation::Flush { owner: LockOwner(fields.u64()?) }
        }
        opcode::FALLOCATE => {
            let (open, offset, length) = (fields.u64()?, fields.u64()?, fields.u64()?);
            let change = RangeChange::of_mode(fields.u32()?, offset, length);
            Operation::Fallocate { open, change: change.ok_or(Errno::EOPNOTSUPP)? }
        }
        opcode::COPY_FILE_RANGE => {
            let (open, from, target) = (fields.u64()?, fields.u64()?, Ino(fields.u64()?));
            let target_open = fields.u64()?;
            let copy = RangeCopy { from, to: fields.u64()?, length: fields.u64()? };
            let copied = Operation::CopyRange { open, target, target_open, copy };
            if fields.u64()? == 0 { copied } else { return Err(Errno::EINVAL) }
        }
        opcode::LSEEK => {
            let (open, offset) = (fields.u64()?, fields.u64()?);
            let hole = match fields.u32()?.cast_signed() {
                libc::SEEK_DATA => false,
                libc::SEEK_HOLE => true,
                _ => return Err(Errno::EINVAL),
            };
            Operation::FindData { open, offset, hole }
        }
        opcode::READDIR => {
            fields.skip(8)?;
            Operation::ReadDir { offset: fields.u64()?, len: fields.u32()? }
        }
        _ => {
            fields.skip(8)?;
            Operation::Fsync { data_only: fields.u32()? & abi::FSYNC_FDATASYNC != 0 }
        }
    })
}

fn open_flags(flags: u32, open_flags: u32) -> OpenFlags {
    OpenFlags { flags, kill_privileges: open_flags & abi::OPEN_KILL_SUIDGID != 0 }
}

fn write(fields: &mut Fields<'_>, payload_len: usize) -> Result<Write, Errno> {
    let (open, offset) = (fields.u64()?, fields.u64()?);
    let (len, write_flags) = (fields.u32()? as usize, fields.u32()?);
    let _lock_owner = fields.u64()?;
    let flags = fields.u32()?;
    if len != payload_len {
        return Err(Errno::EPROTO);
    }
    // Data that the page cache writes back has its final offset. The handle may be any open of the
    // file, so that its flags do not apply.
    let cached = write_flags & abi::WRITE_CACHE != 0;
    Ok(Write {
        open,
        offset,
        len,
        kill_privileges: write_flags & abi::WRITE_KILL_SUIDGID != 0,
        append: !cached && flags & libc::O_APPEND.cast_unsigned() != 0,
        write_back: cached,
        direct: write_flags & abi::WRITE_LOCKOWNER != 0,
        sync: !cached && flags & libc::O_DSYNC.cast_unsigned() != 0,
    })
}

fn xattrs(code: u32, fields: &mut Fields<'_>) -> Result<Operation, Errno> {
    match code {
        opcode::GETXATTR => {
            let len = fields.u32()?;
            fields.skip(4)?;
            Ok(Operation::GetXattr { name: fields.xattr_name()?, len })
        }
        opcode::LISTXATTR => Ok(Operation::ListXattr { len: fields.u32()? }),
        opcode::SETXATTR => {
            let (len, flags) = (fields.u32()? as usize, fields.u32()?);
            const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
            let mode = match flags.cast_signed() {
                0 => XattrMode::Any,
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                BOTH => XattrMode::Both,
                _ => return Err(Errno::EINVAL),
            };
            // Flags of its own follow, or, from a kernel that has none, the name.
            let mut kill_set_gid = false;
            if fields.is_extended_set_xattr() {
                kill_set_gid = fields.u32()? & abi::SETXATTR_ACL_KILL_SGID != 0;
                fields.skip(4)?;
            }
            let name = fields.xattr_name()?;
            let value = fields.take(len)?.into();
            Ok(Operation::SetXattr { name, value, mode, kill_set_gid })
        }
        _ => Ok(Operation::RemoveXattr(fields.xattr_name()?)),
    }
}

/// `fuse_ioctl_in`, with the argument of a call that sets something. ENOTTY for other calls.
fn ioctl(fields: &mut Fields<'_>) -> Result<Operation, Errno> {
    fields.skip(12)?;
    let command = fields.u32()?;
    fields.skip(16)?;
    Ok(match command {
        abi::ioctl::GETFLAGS => Operation::Flags(FlagsCall::Get { extended: false }),
        abi::ioctl::FSGETXATTR => Operation::Flags(FlagsCall::Get { extended: true }),
        abi::ioctl::SETFLAGS => {
            Operation::Flags(FlagsCall::Set { bits: fields.u32()?, extended: false })
        }
        abi::ioctl::FSSETXATTR => {
            let bits = fields.u32()?;
            // Sizes of extents and project numbers mean nothing here.
            let rest = fields.take(16)?;
            if rest.iter().any(|byte| *byte != 0) {
                return Err(Errno::EOPNOTSUPP);
            }
            Operation::Flags(FlagsCall::Set { bits, extended: true })
        }
        _ => Operation::Unsupported(Errno::ENOTTY),
    })
}

/// The owner of a `flock` that was taken through this open. The one that the kernel names may be
/// another's already: it is the address of its open file, which the next one gets while the
/// `RELEASE` of this one is on its way.
const fn flock_owner(open: u64) -> LockOwner {
    LockOwner(open)
}

/// `fuse_lk_in`.
fn locks(code: u32, fields: &mut Fields<'_>) -> Result<Operation, Errno> {
    let (open, owner) = (fields.u64()?, LockOwner(fields.u64()?));
    let (start, end) = (fields.u64()?, fields.u64()?);
    let (kind, pid) = (fields.u32()?, fields.u32()?);
    let flags = fields.u32()?;
    let lock = match kind.cast_signed() {
        libc::F_RDLCK => LockType::Shared,
        libc::F_WRLCK => LockType::Exclusive,
        libc::F_UNLCK => LockType::Unlock,
        _ => return Err(Errno::EINVAL),
    };
    let flock = flags & abi::LK_FLOCK != 0;
    let flavour = if flock { LockFlavour::Flock } else { LockFlavour::Record };
    let end = if end == abi::LOCK_END { u64::MAX } else { end };
    if start > end {
        return Err(Errno::EINVAL);
    }
    let range = if flock { ByteRange::ALL } else { ByteRange { start, end } };
    let owner = if flock { flock_owner(open) } else { owner };
    let spec = LockSpec { flavour, owner, lock, range, pid };
    Ok(match code {
        opcode::GETLK => Operation::TestLock { open, spec },
        _ => Operation::Lock { open, spec, wait: code == opcode::SETLKW },
    })
}

#[cfg(test)]
mod tests;
