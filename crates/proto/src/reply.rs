//! What a cell answers.

use warren_base::{Errno, Ino, MapVersion};

use crate::{Attr, FileKind, FileName, Handle, LockSpec, Wire};

/// What every request ends in.
pub type Answer = Result<Reply, Errno>;

/// A grant: the copy that came with it may be used while word `word` of the cell's segment for this
/// client holds `stamp`. A front behind which caches cannot read words (an acknowledged lease) gets
/// stamp 0 and holds the lease until it is recalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Lease {
    pub word: u32,
    pub stamp: u64,
}

/// What a lease guards.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub enum LeaseKey {
    /// That the name leads where the copy says, or nowhere.
    Name(Ino, FileName),
    /// The attributes.
    Attr(Ino),
    /// The file's data in a cache that must acknowledge (the kernel's page cache).
    Pages(Ino),
}

/// Where a name leads. `attr` is there if the inode lies on the same cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Entry {
    pub ino: Ino,
    pub kind: FileKind,
    pub lease: Option<Lease>,
    pub attr: Option<(Attr, Option<Lease>)>,
}

/// An opened file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Opened {
    pub handle: Handle,
    pub attr: Attr,
    /// Pages cached at an earlier open are still right (there is a `Pages` lease).
    pub keep_pages: bool,
    /// Another front writes the file: this one is to read and write through the handle without its kernel's cache.
    pub direct: bool,
}

/// One entry of a directory listing. A listing goes on after `cookie`.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct DirEntry {
    pub ino: Ino,
    pub kind: FileKind,
    pub cookie: u64,
    pub name: FileName,
}

/// Sizes in 4 KiB blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
pub struct StatFs {
    pub blocks: u64,
    pub blocks_free: u64,
    pub files: u64,
    pub files_free: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum Reply {
    Done,
    Entry(Entry),
    /// The name leads nowhere, and the lease says for how long. Without a lease it is ENOENT.
    Absent(Lease),
    Attr {
        attr: Attr,
        lease: Option<Lease>,
    },
    /// A new inode, or the existing one, opened if that was asked.
    Created {
        entry: Entry,
        /// In a box, so that no answer is moved about with room for it.
        opened: Option<Box<Opened>>,
    },
    Opened(Opened),
    /// Bytes read lie in the reply's payload lane.
    Read {
        len: u32,
    },
    /// Bytes written, and where the file ends now.
    Written {
        len: u32,
        size: u64,
    },
    /// `parent` is what `..` leads to.
    Listing {
        parent: Ino,
        entries: Vec<DirEntry>,
        end: bool,
    },
    Target(Box<[u8]>),
    StatFs(StatFs),
    Xattr(Box<[u8]>),
    XattrNames(Vec<Box<[u8]>>),
    /// The lock in the way, if one is.
    LockHolder(Option<LockSpec>),
    /// Drop what these guard, then acknowledge `number`.
    Recall {
        number: u64,
        keys: Vec<LeaseKey>,
    },
    /// Nothing was executed: look at shard map `version` (or newer) and ask the owner.
    Moved(MapVersion),
}

impl Reply {
    /// What the reply says of a file that was opened.
    pub fn opened(&self) -> Option<&Opened> {
        match self {
            Self::Created { opened, .. } => opened.as_deref(),
            Self::Opened(opened) => Some(opened),
            _ => None,
        }
    }

    /// The reply as a later cell may give it: a lease ends with the cell that granted it.
    pub fn without_leases(&self) -> Self {
        let mut reply = self.clone();
        match &mut reply {
            Self::Entry(entry) | Self::Created { entry, .. } => {
                entry.lease = None;
                entry.attr = entry.attr.map(|(attr, _)| (attr, None));
            }
            Self::Attr { lease, .. } => *lease = None,
            _ => {}
        }
        match &mut reply {
            Self::Created { opened: Some(opened), .. } => opened.keep_pages = false,
            Self::Opened(opened) => opened.keep_pages = false,
            _ => {}
        }
        reply
    }
}
