//! Numbers of links, which the kernel also counts itself.
//!
//! When a name was removed, the kernel takes one from the number of links that it knows, as soon as
//! it processes the reply. If it has processed attributes meanwhile that were read after the
//! removal, it takes one too many. A file with a name may then have no links for it: `link` fails
//! with ENOENT until attributes are read again. (The kernel checks this number before it asks.) No
//! other change is counted so: a link comes with its attributes, and both kinds of change have the
//! inode locked.
//!
//! So while a name is being removed, the kernel is to use the attributes of a file with several
//! links for its caller only, and not to keep them: they are dropped just before the reply
//! (`Notice::attributes`), which makes it ignore the copy in the reply. That is not done for
//! requests with an open file, by which the kernel learns the size before it reads.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use warren_base::Ino;
use warren_proto::{Attr, FileKind};

use crate::by_thread::ByThread;
use crate::message::{Header, Operation};

/// Inodes that had several links, by their hashes.
const LINKED_BITS: usize = 1 << 16;

#[derive(Debug)]
pub(crate) struct LinkCounts {
    linked: Box<[AtomicU64]>,
    hashes: RandomState,
    are_any: AtomicBool,
    /// The threads that remove a name, or have removed one and may not have processed the reply.
    removing: Mutex<ByThread<()>>,
}

impl LinkCounts {
    pub(crate) fn new() -> Self {
        Self {
            linked: (0..LINKED_BITS / 64).map(|_| AtomicU64::new(0)).collect(),
            hashes: RandomState::new(),
            are_any: AtomicBool::new(false),
            removing: Mutex::new(ByThread::new()),
        }
    }

    /// A request has come. Its thread has processed the reply to the one before.
    pub(crate) fn came(&self, header: &Header, operation: &Operation) {
        let removes = matches!(operation, Operation::Unlink(_) | Operation::Rename { .. });
        if !removes && !self.are_any.load(Ordering::Acquire) {
            return;
        }
        let mut removing = self.removing.lock().unwrap_or_else(PoisonError::into_inner);
        if removes {
            removing.insert(header, ());
        } else {
            removing.remove(header);
        }
        self.are_any.store(!removing.is_empty(), Ordering::Release);
    }

    /// The inode, if the kernel must not keep these attributes of it, which were just read.
    pub(crate) fn passing(&self, attr: &Attr) -> Option<Ino> {
        self.may_be_counted_twice(attr).then_some(attr.ino)
    }

    fn may_be_counted_twice(&self, attr: &Attr) -> bool {
        let (word, bit) = self.place(attr.ino);
        if attr.kind == FileKind::Directory {
            return false;
        }
        if attr.nlink > 1 {
            word.fetch_or(bit, Ordering::AcqRel);
        }
        if !self.are_any.load(Ordering::Acquire) || word.load(Ordering::Acquire) & bit == 0 {
            return false;
        }
        let removing = self.removing.lock().unwrap_or_else(PoisonError::into_inner);
        removing.young().next().is_some()
    }

    fn place(&self, ino: Ino) -> (&AtomicU64, u64) {
        let at = self.hashes.hash_one(ino) as usize % LINKED_BITS;
        (&self.linked[at / 64], 1 << (at % 64))
    }
}

#[cfg(test)]
mod tests {
    use warren_proto::FileName;

    use super::*;
    use crate::testing::attr_of as attr;

    fn header(thread: u32) -> Header {
        Header { len: 0, opcode: 1, unique: 1, ino: Ino::ROOT, uid: 0, gid: 0, thread }
    }

    #[test]
    fn linked_files_are_not_kept_until_each_thread_has_processed_its_removal() {
        let counts = LinkCounts::new();
        let unlink = || Operation::Unlink(FileName::new(b"name").unwrap());
        let two = Attr { nlink: 2, ..attr(Ino(9)) };
        let one = Attr { nlink: 1, ..two };
        assert!(!counts.may_be_counted_twice(&two), "no name is being removed");
        counts.came(&header(1), &unlink());
        counts.came(&header(2), &unlink());
        assert!(counts.may_be_counted_twice(&two) && counts.may_be_counted_twice(&one));
        assert!(!counts.may_be_counted_twice(&Attr { ino: Ino(10), ..one }), "never had two links");
        counts.came(&header(1), &Operation::Sync);
        assert!(counts.may_be_counted_twice(&one), "the other thread's reply is under way");
        counts.came(&header(2), &Operation::Sync);
        assert!(!counts.may_be_counted_twice(&one));
    }
}
