//! Everything that makes a name.

use warren_base::limits::SYMLINK_MAX;
use warren_base::{Errno, Ino};
use warren_proto::{
    AccessMode, Attr, CreateFlags, Entry, FileKind, FileName, Handle, NewInode, Opened, SetAttr,
    typed,
};

use super::{Call, Served};
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
        let (flags, access) = (CreateFlags::EXCLUSIVE, AccessMode::empty());
        let made = self.call(typed::Create { dir: self.header.ino, name, new, flags, access })?;
        self.put_entry(&made.entry)
    }

    /// `open` with `O_CREAT`, of a name that the kernel believes does not exist.
    pub(super) fn create(&mut self, create: Create) -> Served {
        let new = NewInode::regular(permissions(create.mode));
        let asked = create.flags.create_flags();
        let flags = asked | CreateFlags::EXCLUSIVE;
        let made = self.call(typed::Create {
            dir: self.header.ino,
            name: create.name.clone(),
            new: new.clone(),
            flags,
            access: create.flags.access(),
        });
        let (entry, opened) = match made {
            Ok(made) => (made.entry, made.into_opened()?),
            Err(Errno::EEXIST) if !asked.contains(CreateFlags::EXCLUSIVE) => {
                self.open_made_elsewhere(create, new)?
            }
            Err(errno) => return Err(errno),
        };
        self.put_created(entry, &opened)
    }

    fn put_created(&mut self, mut entry: Entry, opened: &Opened) -> Served {
        entry.attr = entry.attr.or(Some((opened.attr, None)));
        self.put_entry(&entry)?;
        self.body.open_file(opened);
        Ok(())
    }

    /// The name came into being meanwhile, through another mount.
    ///
    /// The kernel takes what this opens for new and checks no permission on it, and neither does the
    /// cell for a front. So it is opened here only if it is a file of the caller's own whose mode
    /// grants the access; for anything else ESTALE has the kernel look the name up anew, once, and
    /// open it as any existing file.
    fn open_made_elsewhere(
        &mut self,
        create: Create,
        new: NewInode,
    ) -> Result<(Entry, Opened), Errno> {
        let access = create.flags.access() - AccessMode::TRUNCATE;
        let (dir, flags) = (self.header.ino, CreateFlags::OPEN);
        let found = self.call(typed::Create { dir, name: create.name, new, flags, access })?;
        let mut entry = found.entry;
        let mut opened = match found.opened {
            Some(opened) => *opened,
            // It lies on another cell.
            None => self.call(typed::Open { ino: entry.ino, access })?,
        };
        let mut finished = may_open(&opened.attr, self.header.uid, access);
        if finished.is_ok() && create.flags.access().contains(AccessMode::TRUNCATE) {
            let emptied = self.empty(opened.handle, create.flags.kill_privileges);
            finished = emptied.map(|attr| (entry.attr, opened.attr) = (None, attr));
            opened.keep_pages = false;
        }
        if let Err(errno) = finished {
            let _ = self.call(typed::Close { handle: opened.handle });
            return Err(errno);
        }
        Ok((entry, opened))
    }

    fn empty(&mut self, handle: Handle, kill_privileges: bool) -> Result<Attr, Errno> {
        let set = SetAttr { size: Some(0), kill_privileges, ..SetAttr::default() };
        let (attr, _) = self.call(typed::SetAttr { ino: handle.ino, handle: Some(handle), set })?;
        Ok(attr)
    }

    pub(super) fn link(&mut self, ino: Ino, name: FileName) -> Served {
        let entry = self.call(typed::Link { ino, dir: self.header.ino, name })?;
        self.put_entry(&entry)
    }
}

/// Whether the owner's bits let `uid`, who must be the owner, open the file; else ESTALE.
fn may_open(attr: &Attr, uid: u32, access: AccessMode) -> Served {
    let needed = |mode: AccessMode, bit: u16| if access.contains(mode) { bit } else { 0 };
    let bits = needed(AccessMode::READ, 0o400) | needed(AccessMode::WRITE, 0o200);
    let granted = attr.kind == FileKind::Regular && attr.uid == uid && attr.mode & bits == bits;
    if granted { Ok(()) } else { Err(Errno::ESTALE) }
}
