//! Requests that create a name.

use warren_base::limits::SYMLINK_MAX;
use warren_base::{Errno, Ino};
use warren_proto::{
    AccessMode, Attr, CreateFlags, Entry, FileKind, FileName, Handle, NewInode, Opened, SetAttr,
    typed,
};

use super::{Call, Served};
use crate::message::{Create, Mknod, OpenFlags, permissions};

impl Call<'_> {
    pub(super) fn mknod(&mut self, mknod: Mknod) -> Served {
        let kind = match FileKind::from_mode(mknod.mode) {
            Some(FileKind::Directory | FileKind::Symlink) | None => return Err(Errno::EINVAL),
            Some(kind) => kind,
        };
        let mode = permissions(mknod.mode);
        let new = NewInode {
            kind,
            mode,
            rdev: mknod.rdev,
            target: Box::default(),
            umask: permissions(mknod.umask),
        };
        self.make(mknod.name, new)
    }

    pub(super) fn mkdir(&mut self, name: FileName, (mode, umask): (u32, u32)) -> Served {
        let umask = permissions(umask);
        self.make(name, NewInode { umask, ..NewInode::directory(permissions(mode)) })
    }

    pub(super) fn symlink(&mut self, name: FileName, target: &[u8]) -> Served {
        if target.len() > SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        self.make(name, NewInode::symlink(target))
    }

    /// Creates a name that must not exist, without opening the inode.
    fn make(&mut self, name: FileName, new: NewInode) -> Served {
        let (flags, access) = (CreateFlags::EXCLUSIVE, AccessMode::empty());
        let made = self.call(typed::Create { dir: self.header.ino, name, new, flags, access })?;
        self.put_entry(&made.entry, None)
    }

    /// `open` with `O_CREAT` of a name that the kernel does not know.
    pub(super) fn create(&mut self, create: Create) -> Served {
        let _creating = self.front.open_files.begin_create();
        let new = new_file((create.mode, create.umask));
        let wanted = create.flags.create_flags();
        let flags = wanted | CreateFlags::EXCLUSIVE;
        let made = self.call(typed::Create {
            dir: self.header.ino,
            name: create.name.clone(),
            new: new.clone(),
            flags,
            access: create.flags.access() | AccessMode::KEEP,
        });
        let shared = create.flags.access() - AccessMode::TRUNCATE;
        let (entry, opened) = match made {
            Ok(made) => (made.entry, made.into_opened()?),
            Err(Errno::EEXIST) if !wanted.contains(CreateFlags::EXCLUSIVE) => {
                self.open_created_elsewhere(create, new)?
            }
            Err(errno) => return Err(errno),
        };
        self.put_created(entry, &opened, shared)
    }

    /// `O_TMPFILE`. A cell takes no notice of the name.
    pub(super) fn create_nameless(&mut self, mode: (u32, u32), flags: OpenFlags) -> Served {
        let access = flags.access() - AccessMode::TRUNCATE;
        let made = self.call(typed::Create {
            dir: self.header.ino,
            name: FileName::new(b"#").expect("a legal name"),
            new: new_file(mode),
            flags: CreateFlags::OPEN | CreateFlags::NAMELESS,
            access,
        })?;
        let entry = made.entry;
        self.put_created(entry, &made.into_opened()?, access)
    }

    fn put_created(&mut self, mut entry: Entry, opened: &Opened, shared: AccessMode) -> Served {
        entry.attr = entry.attr.or(Some((opened.attr, None)));
        self.put_entry(&entry, None)?;
        self.front.open_files.begin_new(entry.ino);
        let opened = self.add_open(opened, shared)?;
        opened.reply(self.front.effects(), self.body);
        Ok(())
    }

    /// Opens a file that another client has created meanwhile.
    ///
    /// The kernel treats the file as new and checks no permission on it, and a cell checks none for
    /// a front. So the front opens it only if the caller owns it and its mode grants the access.
    /// For any other file the reply is ESTALE. Then the kernel looks the name up again, once, and
    /// opens it as an existing file.
    fn open_created_elsewhere(
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
            // The inode is on another cell than the name.
            None => self.call(typed::Open { ino: entry.ino, access })?,
        };
        let mut finished = may_open(&opened.attr, self.header.uid, access);
        if finished.is_ok() && create.flags.access().contains(AccessMode::TRUNCATE) {
            let truncated = self.truncate(opened.handle, create.flags.kill_privileges);
            finished = truncated.map(|attr| (entry.attr, opened.attr) = (None, attr));
            opened.keep_pages = false;
        }
        if let Err(errno) = finished {
            let _ = self.call(typed::Close { handle: opened.handle });
            return Err(errno);
        }
        Ok((entry, opened))
    }

    pub(super) fn truncate(
        &mut self,
        handle: Handle,
        kill_privileges: bool,
    ) -> Result<Attr, Errno> {
        let set = SetAttr { size: Some(0), kill_privileges, ..SetAttr::default() };
        let (attr, _) = self.call(typed::SetAttr { ino: handle.ino, handle: Some(handle), set })?;
        Ok(attr)
    }

    pub(super) fn link(&mut self, ino: Ino, name: FileName) -> Served {
        let entry = self.call(typed::Link { ino, dir: self.header.ino, name })?;
        self.put_entry(&entry, None)
    }
}

fn new_file((mode, umask): (u32, u32)) -> NewInode {
    NewInode { umask: permissions(umask), ..NewInode::regular(permissions(mode)) }
}

/// ESTALE unless `uid` owns the file and the owner's mode bits grant the access.
fn may_open(attr: &Attr, uid: u32, access: AccessMode) -> Served {
    let needed = |mode: AccessMode, bit: u16| if access.contains(mode) { bit } else { 0 };
    let bits = needed(AccessMode::READ, 0o400) | needed(AccessMode::WRITE, 0o200);
    let granted = attr.kind == FileKind::Regular && attr.uid == uid && attr.mode & bits == bits;
    if granted { Ok(()) } else { Err(Errno::ESTALE) }
}
