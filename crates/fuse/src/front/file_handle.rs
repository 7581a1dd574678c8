//! Inodes that the kernel names by number, because a file handle does (decision 61).
//!
//! A file handle (`name_to_handle_at`, NFS) has the number and the [generation] of an inode. For an
//! inode that the kernel has forgotten, it sends `LOOKUP` of `.`; then, for a directory, `LOOKUP`
//! of `..`, to connect it to the root. It does so only for callers that may open handles, and
//! compares the generation itself. To ENOENT it gives the caller ESTALE.
//!
//! The replies lease nothing: the kernel has no directory locked while it processes them, so that a
//! recall could come before and be lost ([`crate::sent_entries`]).
//!
//! [generation]: crate::reply

use warren_base::{Errno, Ino};
use warren_proto::typed;

use super::{Call, Served};
use crate::reply::{NewEntry, validity};

impl Call<'_> {
    pub(super) fn lookup_inode(&mut self) -> Served {
        self.put_inode(self.header.ino)
    }

    pub(super) fn lookup_parent(&mut self) -> Served {
        // The shortest possible listing also names the parent.
        let dir = self.header.ino;
        let shortest = typed::ReadDir { dir, cookie: 0, bytes_max: 1, leased: false };
        let listing = self.call(shortest).map_err(absent)?;
        self.put_inode(listing.parent)
    }

    fn put_inode(&mut self, ino: Ino) -> Served {
        let (attr, _) = self.call(typed::GetAttr { ino }).map_err(absent)?;
        let (name_valid, attr_valid) = (validity(false), validity(false));
        self.body.entry(&NewEntry { attr, name_valid, attr_valid });
        Ok(())
    }
}

/// No walk is repeated for a handle, as one is after ESTALE ([`crate::retries`]).
fn absent(errno: Errno) -> Errno {
    if errno == Errno::ESTALE { Errno::ENOENT } else { errno }
}
