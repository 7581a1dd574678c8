//! Requests of clients to cells.

use alloc::boxed::Box;
use alloc::vec::Vec;

use bitflags::bitflags;
use warren_base::{ClientId, Ino, MapVersion, ShardId, SlotNo};

use crate::wire::wire_flags;
use crate::{
    Capabilities, Capability, FileKind, FileName, LockOwner, LockSpec, RangeChange, RangeCopy,
    SetAttr, Wire, XattrName,
};

/// Precedes each request. `uid` and `gid` count only from a privileged admission (the FUSE front).
/// Any other client acts with the credentials that the kernel reported at its admission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestHeader {
    /// Grows by one with each request of a slot; the reply repeats it.
    pub seq: u32,
    pub map_version: MapVersion,
    pub uid: u32,
    pub gid: u32,
    /// Bytes of file data in the slot's payload lane.
    pub payload_len: u32,
    /// For the inodes that the request names. They follow it in the body.
    pub capabilities: Capabilities,
}

/// The user and groups that a request acts for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Wire)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, sorted.
    pub groups: Vec<u32>,
    /// The kernel has already checked access (FUSE with `default_permissions`).
    pub checked_by_kernel: bool,
}

/// An open-file object at the cell of its inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub struct Handle {
    pub ino: Ino,
    /// Numbered by the cell, unique for an inode's shard while the fleet lives.
    pub open: u64,
}

/// Where to read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Position {
    At(u64),
    /// At the offset of the open-file object, which advances.
    Current,
    /// At the end, atomically with finding it (`O_APPEND`). The object's offset follows.
    End,
    /// At this offset, where the file ends, as a client knows that alone uses it. The object's
    /// offset follows.
    EndAt(u64),
}

bitflags! {
    /// The uses that an open-file object permits.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AccessMode: u16 {
        const READ = 1;
        const WRITE = 2;
        /// Empty the file while opening it (`O_TRUNC`).
        const TRUNCATE = 4;
        /// Opened to be executed: readable by a user who may execute it.
        const EXECUTE = 8;
        /// The client may keep the handle after its last close, and use it for later opens: see
        /// [`Opened::kept`](crate::Opened). It is no right.
        const KEEP = 16;
        /// The client wants the file only while no front writes it: the lease of
        /// [`Opened::kept`](crate::Opened) tells it when one begins, and without it changes of the
        /// data through the handle fail with EBUSY. The handle is closed as any other. The client
        /// also knows what to do with a delegation ([`crate::stream`]): of the file, or of the
        /// directory in which a request creates it. It is no right.
        const SOLE = 32;
        /// The data of the file come with the reply, as its payload, if they are at hand, at most
        /// [`OPEN_DATA_MAX`] bytes, and may be kept, and if a read would not change the access
        /// time. It is no right.
        ///
        /// [`OPEN_DATA_MAX`]: warren_base::limits::OPEN_DATA_MAX
        const DATA = 64;
        /// The client's program watches the inode: while the handle is open, the cell's vitals name
        /// it among the watched ones, and programs leave its changes to kernels. It is no right.
        const WATCH = 128;
        /// Writes go to the end of the file (`O_APPEND`): files with [`APPEND`] allow no others.
        ///
        /// [`APPEND`]: warren_base::InodeFlags::APPEND
        const APPEND = 256;
        /// Pages of the file were discarded while it was open: every use of the handle but its
        /// close fails with EIO. Only a cell sets this.
        const DISCARDED = 512;
    }

    /// The manner in which a client reads.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ReadFlags: u8 {
        /// The kernel behind a front does not cache the pages.
        const DIRECT = 1;
        /// The access time stays as it is (`O_NOATIME`).
        const NO_ATIME = 2;
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct CreateFlags: u8 {
        /// Fail with EEXIST if the name exists (`O_EXCL`).
        const EXCLUSIVE = 1;
        /// Open the file that was created or found.
        const OPEN = 2;
        /// Fail with ETXTBSY if the file exists, and the kernel of a client has rules of its own
        /// for such an open: the file may be running as a program, or it is another user's in a
        /// sticky directory (`fs.protected_regular`). Also if it would be made without the rights
        /// to open it so again, because of the lists of its directory.
        const PLAIN = 4;
        /// Make nothing: look the name up and, if it leads to a regular file of this cell, open it.
        /// The reply is as that of `Lookup` for all other names.
        const EXISTING = 8;
        /// Make a regular file without a name, and open it (`O_TMPFILE`). Who may add names to the
        /// directory may do so. The name of the request means nothing.
        const NAMELESS = 16;
    }

    /// As `renameat2`, and one of our own.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RenameFlags: u8 {
        const NOREPLACE = 1;
        const EXCHANGE = 2;
        /// Leave a character device without a number in the old place, which overlayfs takes for
        /// a removed name. The reply is its [`Entry`](crate::Entry).
        const WHITEOUT = 4;
        /// Fail with ETXTBSY if a directory would get another name: a kernel must rename it,
        /// because processes may be in it.
        const FILES = 8;
    }
}
wire_flags!(AccessMode);
wire_flags!(ReadFlags);
wire_flags!(CreateFlags);
wire_flags!(RenameFlags);

/// Whether a set attribute must be new or must exist, as `setxattr`'s flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum XattrMode {
    Any,
    Create,
    Replace,
    /// It must be new and exist, so this always fails.
    Both,
}

/// The attributes of a new inode.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct NewInode {
    pub kind: FileKind,
    /// The permission bits.
    pub mode: u16,
    /// Bits that `mode` loses, unless the directory has a default access control list.
    pub umask: u16,
    pub rdev: u32,
    /// The target of a symbolic link. Empty for other kinds.
    pub target: Box<[u8]>,
}

/// Every request has one cell that executes it: see [`Request::shard`].
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Request {
    /// Does nothing: measures a round trip.
    Null,
    Lookup {
        dir: Ino,
        name: FileName,
    },
    GetAttr {
        ino: Ino,
    },
    SetAttr {
        ino: Ino,
        handle: Option<Handle>,
        set: SetAttr,
    },
    /// Regular files, special files, sockets, symbolic links and directories.
    Create {
        dir: Ino,
        name: FileName,
        new: NewInode,
        flags: CreateFlags,
        access: AccessMode,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: FileName,
    },
    Unlink {
        dir: Ino,
        name: FileName,
    },
    Rmdir {
        dir: Ino,
        name: FileName,
    },
    Rename {
        from: Ino,
        from_name: FileName,
        dir: Ino,
        name: FileName,
        flags: RenameFlags,
    },
    ReadLink {
        ino: Ino,
    },
    /// Entries after `cookie` (0 for the start), at most about `bytes_max` encoded bytes of them.
    /// If `leased`, with a lease on the names of the directory ([`LeaseKey::Names`]).
    ///
    /// [`LeaseKey::Names`]: crate::LeaseKey::Names
    ReadDir {
        dir: Ino,
        cookie: u64,
        bytes_max: u32,
        leased: bool,
    },
    Open {
        ino: Ino,
        access: AccessMode,
    },
    Close {
        handle: Handle,
    },
    Read {
        handle: Handle,
        position: Position,
        len: u32,
        flags: ReadFlags,
    },
    /// Writes the slot's payload. With `write_back` the kernel writes back pages of a shared
    /// mapping: it never makes the file longer, and the kernel may keep the pages locked until the
    /// reply. `direct`: the kernel bypasses its page cache, so that its own pages are recalled too.
    Write {
        handle: Handle,
        position: Position,
        kill_privileges: bool,
        write_back: bool,
        direct: bool,
    },
    /// Moves the offset of an open-file object; `position` is absolute.
    Seek {
        handle: Handle,
        position: u64,
    },
    /// Makes the written data of the file durable (and, without `data_only`, its attributes). Only
    /// a front may omit the handle, because its kernel has the descriptor.
    Fsync {
        ino: Ino,
        handle: Option<Handle>,
        data_only: bool,
    },
    /// Makes everything durable.
    Sync,
    StatFs,
    GetXattr {
        ino: Ino,
        name: XattrName,
    },
    /// If there is a payload, it is the value, and `value` is empty: a value of more than
    /// [`XATTR_SHORT_MAX`](warren_base::limits::XATTR_SHORT_MAX) bytes.
    SetXattr {
        ino: Ino,
        name: XattrName,
        value: Box<[u8]>,
        mode: XattrMode,
        /// An access control list clears the set-gid bit, because the caller is not of the group.
        /// For clients other than a front, the cell finds that out.
        kill_set_gid: bool,
    },
    RemoveXattr {
        ino: Ino,
        name: XattrName,
    },
    ListXattr {
        ino: Ino,
    },
    /// Takes or releases a lock; waits for it if `wait`.
    Lock {
        handle: Handle,
        spec: LockSpec,
        wait: bool,
    },
    /// The first lock that conflicts with `spec`.
    TestLock {
        handle: Handle,
        spec: LockSpec,
    },
    /// Releases all record locks that `owner` of this client has on the inode, as each `close`
    /// does.
    ReleaseLocks {
        ino: Ino,
        owner: LockOwner,
    },
    /// Ends the request that waits in another slot of this client with EINTR.
    Cancel {
        slot: SlotNo,
        seq: u32,
    },
    /// Waits for a recall of leases; `acknowledged` is the number of the last recall that took
    /// effect (decision 4: leases of a cache that cannot read a word). With `pages` it waits for
    /// recalls of page leases. They are a class of their own, because dropping pages waits for
    /// reads and writes that may wait for a recall of the other class. A client that has never
    /// waited with `pages` receives no recall of pages.
    AwaitRecall {
        pages: bool,
        acknowledged: u64,
    },
    /// The attributes of a regular file that another client has open and may name, also if it has
    /// no link. The front's kernel takes the file over from that client ([`Handover`]). ENOENT if
    /// the client does not have it open for the front's caller, or the capability is not its own;
    /// EPERM for a client that is not a front.
    ///
    /// [`Handover`]: crate::Handover
    Claim {
        client: ClientId,
        ino: Ino,
        capability: Capability,
    },
    /// As `Lookup`. To a client that may also read the directory and is not a front, the reply
    /// brings other names of the directory, as many as fit and are at hand, each as its own
    /// `Lookup` would.
    Neighbours {
        dir: Ino,
        name: FileName,
    },
    /// Allocates blocks for a range of a file, or frees them (`fallocate`).
    Fallocate {
        handle: Handle,
        change: RangeChange,
        kill_privileges: bool,
    },
    /// Copies a range of one file to another by sharing blocks (`copy_file_range`). EXDEV if that
    /// is impossible: the ranges have no whole blocks in common, or the files lie in two shards.
    CopyRange {
        handle: Handle,
        source: Handle,
        copy: RangeCopy,
        kill_privileges: bool,
    },
    /// The first place from `offset` on where the file has data or, if `hole`, where it has a hole
    /// or ends. ENXIO if there is none before the end.
    FindData {
        handle: Handle,
        offset: u64,
        hole: bool,
    },
    /// The last attributes of a directory that was removed, for a front whose kernel still has it
    /// as a working directory. A cell remembers a number of them. ESTALE for any other inode, and
    /// for a client that is not a front.
    GetRemoved {
        dir: Ino,
    },
    /// More credit for the file, or credit and numbers for the tree of the directory, which is
    /// delegated to the client and stays so ([`crate::stream::Delegated`]). The reply comes without
    /// them if there is no room, or the client does not have the delegation.
    Extend {
        ino: Ino,
    },
}

impl Request {
    /// The shard whose cell executes the request; `None` if any cell can.
    pub const fn shard(&self) -> Option<ShardId> {
        match self.inode() {
            Some(ino) => Some(ino.shard()),
            None => None,
        }
    }

    /// The inode that the request is routed by.
    pub const fn inode(&self) -> Option<Ino> {
        let ino = match self {
            Self::Null
            | Self::Sync
            | Self::StatFs
            | Self::Cancel { .. }
            | Self::AwaitRecall { .. } => return None,
            Self::Lookup { dir, .. }
            | Self::Neighbours { dir, .. }
            | Self::Create { dir, .. }
            | Self::Link { dir, .. }
            | Self::Unlink { dir, .. }
            | Self::Rmdir { dir, .. }
            | Self::Rename { dir, .. }
            | Self::ReadDir { dir, .. }
            | Self::GetRemoved { dir } => *dir,
            Self::Extend { ino }
            | Self::GetAttr { ino }
            | Self::SetAttr { ino, .. }
            | Self::ReadLink { ino }
            | Self::Open { ino, .. }
            | Self::Fsync { ino, .. }
            | Self::GetXattr { ino, .. }
            | Self::SetXattr { ino, .. }
            | Self::RemoveXattr { ino, .. }
            | Self::ListXattr { ino }
            | Self::ReleaseLocks { ino, .. }
            | Self::Claim { ino, .. } => *ino,
            Self::Lock { handle, .. }
            | Self::TestLock { handle, .. }
            | Self::Close { handle }
            | Self::Read { handle, .. }
            | Self::Write { handle, .. }
            | Self::Seek { handle, .. }
            | Self::Fallocate { handle, .. }
            | Self::CopyRange { handle, .. }
            | Self::FindData { handle, .. } => handle.ino,
        };
        Some(ino)
    }

    /// A second inode that the request names, besides the inode that it is routed by.
    pub const fn other_inode(&self) -> Option<Ino> {
        match self {
            Self::Link { ino, .. } => Some(*ino),
            Self::Rename { from, .. } => Some(*from),
            Self::Null
            | Self::Lookup { .. }
            | Self::Neighbours { .. }
            | Self::GetAttr { .. }
            | Self::SetAttr { .. }
            | Self::Create { .. }
            | Self::Unlink { .. }
            | Self::Rmdir { .. }
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
            | Self::Lock { .. }
            | Self::TestLock { .. }
            | Self::ReleaseLocks { .. }
            | Self::Cancel { .. }
            | Self::AwaitRecall { .. }
            | Self::Claim { .. }
            | Self::Fallocate { .. }
            | Self::CopyRange { .. }
            | Self::FindData { .. }
            | Self::GetRemoved { .. }
            | Self::Extend { .. } => None,
        }
    }
}

impl Handle {
    /// The number of the handle of a file that its client has created by a post. The cell numbers
    /// none so.
    pub const BORN: u64 = 0;
}

impl NewInode {
    pub fn directory(mode: u16) -> Self {
        Self { kind: FileKind::Directory, mode, umask: 0, rdev: 0, target: Box::default() }
    }

    pub fn regular(mode: u16) -> Self {
        Self { kind: FileKind::Regular, mode, umask: 0, rdev: 0, target: Box::default() }
    }

    pub fn symlink(target: &[u8]) -> Self {
        Self { kind: FileKind::Symlink, mode: 0o777, umask: 0, rdev: 0, target: target.into() }
    }
}
