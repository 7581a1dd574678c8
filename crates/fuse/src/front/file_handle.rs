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

use warren_base::Errno;
use warren_proto::typed;

use super::{Call, Served};
use crate::reply::{NewEntry, validity};

impl Call<'_> {
    /// Replies with the inode, or with the `parent` of this directory.
    pub(super) fn lookup_inode(&mut self, parent: bool) -> Served {
        let mut ino = self.header.ino;
        if parent {
            // The shortest possible listing also names the parent.
            let shortest = typed::ReadDir { dir: ino, cookie: 0, bytes_max: 1, leased: false };
            ino = self.call(shortest).map_err(absent)?.parent;
        }
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

#[cfg(test)]
mod tests {
    use warren_base::Ino;
    use warren_proto::{Reply, Request};

    use warren_proto::DirEntries;

    use super::*;
    use crate::front::tests::{FrontTest, attr};
    use crate::front::{FrontOptions, Outcome};
    use crate::message::Operation;

    const DIR: Ino = Ino(7);

    #[test]
    fn an_inode_and_its_parent_are_found_and_nothing_is_leased() {
        let lease = Some(warren_proto::Lease { word: 0, stamp: 0 });
        let mut test = FrontTest::new(FrontOptions::default(), move |request| match *request {
            Request::GetAttr { ino } => Ok(Reply::Attr { attr: attr(ino), lease }),
            Request::ReadDir { dir: DIR, .. } => Ok(Reply::Listing {
                parent: Ino(3),
                entries: DirEntries::new(),
                end: false,
                lease: None,
            }),
            _ => Err(Errno::EIO),
        });
        for (operation, ino) in [(Operation::LookupInode, DIR), (Operation::LookupParent, Ino(3))] {
            assert_eq!(test.serve_on(DIR, operation), Ok(Outcome::BODY));
            assert_eq!([0, 16, 24].map(|at| test.u64_at(at)), [ino.0, 0, 0]);
        }
    }

    #[test]
    fn an_inode_that_is_gone_is_absent() {
        let mut test = FrontTest::new(FrontOptions::default(), |_| Err(Errno::ESTALE));
        for operation in [Operation::LookupInode, Operation::LookupParent] {
            assert_eq!(test.serve_on(DIR, operation), Err(Errno::ENOENT));
        }
    }
}
