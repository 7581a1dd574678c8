//! Everything that makes a name.

use warren_base::limits::SYMLINK_MAX;
use warren_base::{Errno, Ino};
use warren_proto::{
    AccessMode, CreateFlags, Entry, FileKind, FileName, NewInode, Opened, Reply, Request,
};

use super::{Call, Served, unexpected};
use crate::message::{Create, Mknod, permissions};

impl Call<'_> {
    pub(super) fn mknod(&mut self, mknod: Mknod) -> Served {
        let kind = match FileKind::from_mode(mknod.mode) {
            Some(FileKind::Directory | FileKind::Symlink) | None => return Err(Errno::EINVAL),
            Some(kind) => kind,
        };
        let mode = permissions(mknod.mode);
        let new = NewInode { kind, mode, rdev: mknod.rdev, target: Box::default() };
        self.make(mknod.name, new)
    }

    pub(super) fn mkdir(&mut self, name: FileName, mode: u32) -> Served {
        self.make(name, NewInode::directory(permissions(mode)))
    }

    pub(super) fn symlink(&mut self, name: FileName, target: &[u8]) -> Served {
        if target.len() > SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        self.make(name, NewInode::symlink(target))
    }

    /// Makes what must not exist, and does not open it.
    fn make(&mut self, name: FileName, new: NewInode) -> Served {
        let flags = CreateFlags::EXCLUSIVE;
        let (entry, _) = self.new_inode(name, new, flags, AccessMode::empty())?;
        self.put_entry(&entry)
    }

    fn new_inode(
        &mut self,
        name: FileName,
        new: NewInode,
        flags: CreateFlags,
        access: AccessMode,
    ) -> Result<(Entry, Option<Opened>), Errno> {
        let request = Request::Create { dir: self.header.ino, name, new, flags, access };
        match self.call(&request)? {
            Reply::Created { entry, opened } => Ok((entry, opened)),
            other => Err(unexpected(&other)),
        }
    }

    /// `open` with `O_CREAT`, of a name that the kernel believes does not exist.
    ///
    /// The kernel takes what this opens for new and checks no permission on it, and neither does the
    /// cell for a front. So a name that came into being meanwhile, through another mount, is never
    /// opened here: ESTALE has the kernel look it up anew and open it as any existing file.
    pub(super) fn create(&mut self, create: Create) -> Served {
        let new = NewInode::regular(permissions(create.mode));
        let asked = create.flags.create_flags();
        let flags = asked | CreateFlags::EXCLUSIVE;
        let made = self.new_inode(create.name, new, flags, create.flags.access());
        let (mut entry, opened) = match made {
            Err(Errno::EEXIST) if !asked.contains(CreateFlags::EXCLUSIVE) => {
                return Err(Errno::ESTALE);
            }
            made => made?,
        };
        let opened = opened.ok_or(Errno::EIO)?;
        entry.attr = entry.attr.or(Some((opened.attr, None)));
        self.put_entry(&entry)?;
        self.body.open(opened.handle.open, opened.keep_pages);
        Ok(())
    }

    pub(super) fn link(&mut self, ino: Ino, name: FileName) -> Served {
        let request = Request::Link { ino, dir: self.header.ino, name: name.clone() };
        match self.call(&request)? {
            Reply::Entry(entry) | Reply::Created { entry, .. } => self.put_entry(&entry),
            Reply::Done => self.lookup(name),
            other => Err(unexpected(&other)),
        }
    }
}
