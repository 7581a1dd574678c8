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
    pub(super) fn create(&mut self, create: Create) -> Served {
        let access = create.flags.access();
        let new = NewInode::regular(permissions(create.mode));
        let (mut entry, opened) =
            self.new_inode(create.name, new, create.flags.create_flags(), access)?;
        let opened = opened.ok_or(Errno::EIO)?;
        if access.contains(AccessMode::TRUNCATE) && create.flags.kill_privileges {
            self.kill_privileges(opened.handle)?;
            entry.attr = None;
        } else if entry.attr.is_none() {
            entry.attr = Some((opened.attr, None));
        }
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
