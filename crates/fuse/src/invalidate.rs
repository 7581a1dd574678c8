//! `FUSE_NOTIFY_INVAL_INODE`: the notice that makes the kernel drop what it caches of an inode.

use warren_base::{Errno, Ino};

use crate::abi;
use crate::channel::Channel;

/// What the kernel drops.
#[derive(Clone, Copy)]
pub(crate) enum Cached {
    Attributes,
    /// All pages, and the attributes too. Waits for requests that have the pages locked.
    Pages,
}

/// `fuse_notify_inval_inode_out`. An offset of -1 names no pages; a length of 0 names all pages
/// from the offset on.
pub(crate) fn notice_body(ino: Ino, cached: Cached) -> [u8; 24] {
    let offset: i64 = match cached {
        Cached::Attributes => -1,
        Cached::Pages => 0,
    };
    let mut body = [0; 24];
    body[..8].copy_from_slice(&ino.0.to_ne_bytes());
    body[8..16].copy_from_slice(&offset.to_ne_bytes());
    body
}

/// ENOENT if the kernel does not know the inode.
pub(crate) fn invalidate(channel: &dyn Channel, ino: Ino, cached: Cached) -> Result<(), Errno> {
    channel.notify(abi::NOTIFY_INVAL_INODE, &notice_body(ino, cached))
}

/// The kernel stops using attributes that it has cached or requested before this call.
pub(crate) fn drop_attributes(channel: &dyn Channel, ino: Ino) {
    // ENOENT: the kernel has no attributes of an unknown inode.
    let _ = invalidate(channel, ino, Cached::Attributes);
}
