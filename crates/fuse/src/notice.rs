//! Notices: what the front tells the kernel unasked.

use warren_base::{Errno, Ino};
use warren_proto::FileName;

use crate::abi;
use crate::channel::Channel;

/// A message to the kernel, by which it stops to use a part of what it has cached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Notice {
    pub code: i32,
    pub body: Vec<u8>,
}

impl Notice {
    /// The attributes of an inode that the kernel has cached or requested before. Takes no lock.
    pub(crate) fn attributes(ino: Ino) -> Self {
        // An offset of -1 names no pages.
        Self::inode(ino, -1)
    }

    /// All pages of an inode, and its attributes. Waits for requests that have the pages locked.
    pub(crate) fn pages(ino: Ino) -> Self {
        Self::inode(ino, 0)
    }

    /// `fuse_notify_inval_inode_out`. A length of 0 names all pages from the offset on.
    fn inode(ino: Ino, offset: i64) -> Self {
        let body = [&ino.0.to_ne_bytes()[..], &offset.to_ne_bytes(), &[0; 8]].concat();
        Self { code: abi::NOTIFY_INVAL_INODE, body }
    }

    /// A name is looked up again before it is used. Waits for requests that have the directory
    /// locked.
    pub(crate) fn expired_name(dir: Ino, name: &FileName) -> Self {
        Self::entry(dir, name.as_bytes(), abi::EXPIRE_ONLY)
    }

    /// A name is gone, and what is mounted under it. Waits in the same way.
    pub(crate) fn name(dir: Ino, name: &FileName) -> Self {
        Self::entry(dir, name.as_bytes(), 0)
    }

    /// Nothing, but waits in the same way: replies that add names to the directory, and were
    /// sent before, have been processed then.
    pub(crate) fn barrier(dir: Ino) -> Self {
        Self::entry(dir, &[], abi::EXPIRE_ONLY)
    }

    /// `fuse_notify_inval_entry_out` and the name.
    fn entry(dir: Ino, name: &[u8], flags: u32) -> Self {
        let (len, flags) = ((name.len() as u32).to_ne_bytes(), flags.to_ne_bytes());
        let head = [&dir.0.to_ne_bytes()[..], &len, &flags].concat();
        Self { code: abi::NOTIFY_INVAL_ENTRY, body: [&head, name, &[0]].concat() }
    }

    /// Unused names of an inode are forgotten, and with the last of them the inode. That waits for
    /// reads of its pages.
    pub(crate) fn unused_names(ino: Ino) -> Self {
        // `fuse_notify_prune_out`: the number of inodes, 12 bytes that are not used.
        let body = [&1_u32.to_ne_bytes()[..], &[0; 12], &ino.0.to_ne_bytes()].concat();
        Self { code: abi::NOTIFY_PRUNE, body }
    }

    /// All names, and what is mounted under them. Takes no lock.
    pub(crate) const fn all_names() -> Self {
        Self { code: abi::NOTIFY_INC_EPOCH, body: Vec::new() }
    }

    /// ENOENT if the kernel does not know the inode or the name.
    pub(crate) fn send(&self, channel: &dyn Channel) -> Result<(), Errno> {
        channel.notify(self.code, &self.body)
    }
}

/// The kernel stops using attributes that it has cached or requested before this call.
pub(crate) fn drop_attributes(channel: &dyn Channel, ino: Ino) {
    // ENOENT: the kernel has no attributes of an unknown inode.
    let _ = Notice::attributes(ino).send(channel);
}
