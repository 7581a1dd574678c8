//! Requests about a directory that was removed and that the kernel still uses: as a working
//! directory, or as the place that an `O_PATH` descriptor names.
//!
//! A file system in the kernel keeps such a directory until its last use ends. It has attributes,
//! can be opened, and nothing is found or made in it (ENOENT). The kernel does not tell a front
//! which directories it uses in this way. So the inode ends, and its cell replies ESTALE. The cell
//! remembers the last attributes for a while (`GetRemoved`), from which the kernel is answered.
//!
//! A change of names there gets ESTALE first, as any other request: the kernel repeats the walk,
//! which may find a directory that has replaced this one ([`crate::retries`]). A look-up does not,
//! because the kernel does not repeat the walk after the look-up of a name that it is to make.

use warren_base::Errno;
use warren_proto::typed;

use super::{Call, Outcome};
use crate::on_removed::OnRemoved;
use crate::reply::validity;

/// The kernel's handle of a directory that was removed before it was opened: no number of an open
/// file, so that its release has no effect.
const REMOVED_DIR: u64 = u64::MAX;

impl Call<'_> {
    /// Replies to a request that a cell has answered with ESTALE.
    pub(super) fn serve_removed(&mut self, reply: OnRemoved) -> Result<Outcome, Errno> {
        if reply == OnRemoved::Stale {
            return Err(Errno::ESTALE);
        }
        if matches!(reply, OnRemoved::Change(_)) && !self.front.retries.may_have(self.header.thread)
        {
            return Err(Errno::ESTALE);
        }
        let attr = match (self.call(typed::GetRemoved { dir: self.header.ino }), reply) {
            (Err(_), OnRemoved::Change(Some(dir))) => self.call(typed::GetRemoved { dir }),
            (answer, _) => answer,
        }?;
        self.body.clear();
        match reply {
            OnRemoved::Attr => self.body.attr_out(&attr, validity(false)),
            OnRemoved::Statx => self.body.statx(&attr, validity(false)),
            OnRemoved::Open => self.body.open(REMOVED_DIR),
            OnRemoved::XattrNames { len } => self.put_sized(&[], len)?,
            OnRemoved::Xattr => return Err(Errno::ENODATA),
            OnRemoved::Names | OnRemoved::Change(_) => return Err(Errno::ENOENT),
            OnRemoved::Stale => return Err(Errno::ESTALE),
        }
        Ok(Outcome::BODY)
    }
}

#[cfg(test)]
mod tests {
    use warren_base::Ino;
    use warren_proto::{Attr, FileKind, FileName, Reply, Request};

    use super::*;
    use crate::front::FrontOptions;
    use crate::front::tests::{FrontTest, attr};
    use crate::message::Operation;

    const DIR: Ino = Ino(7);

    /// A front whose kernel has a removed directory, and a fleet in which all else is gone too.
    fn test() -> FrontTest {
        let removed = Attr { kind: FileKind::Directory, nlink: 0, mode: 0o750, ..attr(DIR) };
        FrontTest::new(FrontOptions::default(), move |request| match request {
            Request::GetRemoved { dir: DIR } => Ok(Reply::Attr { attr: removed, lease: None }),
            _ => Err(Errno::ESTALE),
        })
    }

    fn name() -> FileName {
        FileName::new(b"name").unwrap()
    }

    #[test]
    fn a_removed_directory_has_attributes_and_can_be_opened() {
        let mut test = test();
        for operation in [Operation::GetAttr { open: false }, Operation::Statx] {
            assert_eq!(test.serve_on(DIR, operation), Ok(Outcome::BODY));
            assert_eq!(test.u64_at(0), 0, "the kernel asks again");
        }
        assert_eq!(test.serve_on(DIR, Operation::OpenDir), Ok(Outcome::BODY));
        let open = test.u64_at(0);
        let list = Operation::ReadDir { offset: 0, len: 4096 };
        assert_eq!(test.serve_on(DIR, list), Err(Errno::ENOENT));
        assert_eq!(test.serve_on(DIR, Operation::ReleaseDir { open }), Ok(Outcome::BODY));
        assert_eq!(test.serve_on(DIR, Operation::ListXattr { len: 0 }), Ok(Outcome::BODY));
    }

    #[test]
    fn names_are_neither_found_nor_made_there() {
        let mut test = test();
        assert_eq!(test.serve_on(DIR, Operation::Lookup(name())), Err(Errno::ENOENT));
        let changes: [fn() -> Operation; 2] = [
            || Operation::Mkdir { name: name(), mode: 0o755, umask: 0 },
            || {
                let flags = warren_proto::RenameFlags::empty();
                Operation::Rename { name: name(), new_dir: DIR, new_name: name(), flags }
            },
        ];
        for (ino, change) in [(DIR, changes[0]), (Ino(9), changes[1])] {
            assert_eq!(test.serve_on(ino, change()), Err(Errno::ESTALE), "the walk is repeated");
            assert_eq!(test.serve_on(ino, change()), Err(Errno::ENOENT));
        }
    }

    #[test]
    fn what_is_no_removed_directory_stays_stale() {
        let mut test = test();
        let operations =
            [Operation::GetAttr { open: false }, Operation::OpenDir, Operation::Lookup(name())];
        for operation in operations {
            assert_eq!(test.serve_on(Ino(9), operation), Err(Errno::ESTALE));
        }
    }
}
