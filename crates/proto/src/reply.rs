//! Replies of cells to clients.

use alloc::boxed::Box;
use alloc::vec::Vec;

use warren_base::{Errno, Ino, MapVersion, ShardId};

use crate::{Attr, Capability, DirEntries, FileKind, FileName, Handle, LockSpec, Wire};

/// The end of each request.
pub type Answer = Result<Reply, Errno>;

/// A grant: the client may use the copy in the reply while word `word` of the cell's segment for
/// this client contains `stamp`. A front whose caches cannot read words (an acknowledged lease)
/// gets stamp 0, and has the lease until it is recalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Lease {
    pub word: u32,
    pub stamp: u64,
}

/// The object of a lease.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub enum LeaseKey {
    /// The inode of the name, or its absence.
    Name(Ino, FileName),
    /// The attributes.
    Attr(Ino),
    /// The file's data in a cache that must acknowledge (the kernel's page cache).
    Pages(Ino),
    /// The client's open files of the inode: it may open the inode again through a handle that it
    /// has kept. Only a word guards it.
    Opens(Ino),
    /// Which names a directory has. Only a word guards it, and only changes by other clients revoke
    /// it: a client notes a name that it adds before it sends the request.
    Names(Ino),
    /// All of the inode: the client alone uses it, and may post requests on it. Only a word guards
    /// it ([`crate::stream::Delegated`]).
    Delegate(Ino),
}

impl LeaseKey {
    pub const fn shard(&self) -> ShardId {
        match self {
            Self::Name(ino, _)
            | Self::Attr(ino)
            | Self::Pages(ino)
            | Self::Opens(ino)
            | Self::Names(ino)
            | Self::Delegate(ino) => ino.shard(),
        }
    }
}

/// The inode of a name. `attr` is present if the inode is on the same cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Entry {
    pub ino: Ino,
    pub kind: FileKind,
    pub lease: Option<Lease>,
    pub attr: Option<(Attr, Option<Lease>)>,
}

/// A name of a directory, with what a look-up of it brings.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Neighbour {
    pub name: FileName,
    pub entry: Entry,
    /// For the inode.
    pub capability: Capability,
}

/// An opened file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Opened {
    pub handle: Handle,
    pub attr: Attr,
    /// Pages cached at an earlier open are still valid (there is a `Pages` lease).
    pub keep_pages: bool,
    /// To a front: another front writes the file, so this front must read and write through the
    /// handle without its kernel's cache. To another client that has asked for `kept`: a
    /// front writes the file, and its kernel may change mapped pages without a request. So the
    /// client must leave the file to the kernel.
    pub direct: bool,
    /// The client may keep the handle after its last close. While the lease lasts, it may use the
    /// handle for another open of the inode with the same access. It marks the inode as idle in its
    /// segment ([`crate::slot::IDLE`]) while it uses no handle of it. A cell closes handles of idle
    /// inodes when it revokes the lease.
    pub kept: Option<Lease>,
}

/// Sizes in 4 KiB blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
pub struct StatFs {
    pub blocks: u64,
    pub blocks_free: u64,
    /// Free blocks that the caller can take.
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Reply {
    Done,
    Entry(Entry),
    /// The name does not exist while the lease lasts. Without a lease the answer is ENOENT.
    Absent(Lease),
    Attr {
        attr: Attr,
        lease: Option<Lease>,
    },
    /// A new inode, or the existing one, opened if that was requested.
    Created {
        entry: Entry,
        /// In a box, so that it does not enlarge each answer.
        opened: Option<Box<Opened>>,
    },
    Opened(Opened),
    /// Bytes read, which are in the reply's payload lane.
    Read {
        len: u32,
    },
    /// Bytes written, and the new size of the file.
    Written {
        len: u32,
        size: u64,
    },
    /// `parent` is the inode of `..`.
    Listing {
        parent: Ino,
        entries: DirEntries,
        end: bool,
        lease: Option<Lease>,
    },
    Target(Box<[u8]>),
    StatFs(StatFs),
    Xattr(Box<[u8]>),
    XattrNames(Vec<Box<[u8]>>),
    /// The conflicting lock, if there is one.
    LockHolder(Option<LockSpec>),
    /// Drop the copies under these leases, then acknowledge `number`. `rights`: the owner, the
    /// group or the mode of one of these inodes changes.
    Recall {
        number: u64,
        keys: Vec<LeaseKey>,
        rights: bool,
    },
    /// Nothing was executed: read shard map `version` (or newer) and send to the owner.
    Moved(MapVersion),
    /// A rename between two names of one inode: it has removed none.
    Unchanged,
    /// The name that was looked up, and then others of the directory, each with a lease.
    Neighbours(Vec<Neighbour>),
    /// A place in a file.
    Offset(u64),
    /// The value of an attribute, or the names of all with a zero behind each, which a body has no
    /// room for: so many bytes in the payload. If they are more than the client's lanes hold, there
    /// is no payload.
    LongXattr {
        len: u32,
    },
}

impl Entry {
    fn without_leases(self) -> Self {
        Self { lease: None, attr: self.attr.map(|(attr, _)| (attr, None)), ..self }
    }
}

impl Reply {
    /// The file that was opened, if the reply has one.
    pub fn opened(&self) -> Option<&Opened> {
        match self {
            Self::Created { opened, .. } => opened.as_deref(),
            Self::Opened(opened) => Some(opened),
            _ => None,
        }
    }

    fn opened_mut(&mut self) -> Option<&mut Opened> {
        match self {
            Self::Created { opened, .. } => opened.as_deref_mut(),
            Self::Opened(opened) => Some(opened),
            _ => None,
        }
    }

    /// The reply as a successor may repeat it: a lease ends with the process that granted it.
    pub fn without_leases(&self) -> Self {
        let mut reply = self.clone();
        match &mut reply {
            Self::Entry(entry) | Self::Created { entry, .. } => *entry = entry.without_leases(),
            Self::Neighbours(found) => {
                found.iter_mut().for_each(|one| one.entry = one.entry.without_leases());
            }
            Self::Attr { lease, .. } | Self::Listing { lease, .. } => *lease = None,
            _ => {}
        }
        if let Some(opened) = reply.opened_mut() {
            opened.keep_pages = false;
            opened.kept = None;
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use warren_base::{InodeFlags, Timestamp};

    use super::*;

    #[test]
    fn a_reply_that_is_repeated_has_no_leases() {
        let (ino, kind, time) = (Ino::ROOT, FileKind::Regular, Timestamp(7));
        let (mode, nlink, uid, gid, rdev, size, blocks) = (0o644, 1, 0, 0, 0, 9, 1);
        let [atime, mtime, ctime, btime] = [time; 4];
        let attr = Attr {
            ino,
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            flags: InodeFlags::empty(),
        };
        let found = |lease| {
            let name = FileName::new(b"name").expect("a legal name");
            let entry = Entry { ino, kind, lease, attr: Some((attr, lease)) };
            Reply::Neighbours(alloc::vec![Neighbour { name, entry, capability: Capability(3) }])
        };
        let leased = found(Some(Lease { word: 1, stamp: 2 }));
        assert_eq!(leased.without_leases(), found(None));
        assert_eq!(Reply::from_bytes(&leased.to_bytes()), Ok(leased));
    }
}
