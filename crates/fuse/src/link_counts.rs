//! Numbers of links, which the kernel also counts itself.
//!
//! When a name was removed, the kernel takes one from the number of links that it knows, as soon as
//! it processes the reply. If it has processed attributes meanwhile that were read after the
//! removal, it takes one too many. A file with a name may then have no links for it: `link` fails
//! with ENOENT until attributes are read again. (The kernel checks this number before it asks.) No
//! other change is counted so: a link comes with its attributes, and both kinds of change have the
//! inode locked.
//!
//! So while a name of a file with several links is being removed, the kernel is to use the file's
//! attributes for its caller only, and not to keep them: they are dropped just before the reply
//! (`Notice::attributes`), which makes it ignore the copy in the reply. That is not done for
//! requests with an open file, by which the kernel learns the size before it reads.
//!
//! A notice makes the kernel ignore every reply with attributes of that inode that is under way. It
//! then reads as far as the size that it had before, and checks rights with the mode that it had.
//! So the front looks a name up before it removes it, and drops attributes of that inode alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_base::Ino;
use warren_proto::{Attr, FileKind};

use crate::by_thread::ByThread;
use crate::message::Header;

#[derive(Debug)]
pub(crate) struct LinkCounts {
    are_any: AtomicBool,
    /// The threads that remove a name of such a file, or have removed one and may not have
    /// processed the reply.
    removing: Mutex<ByThread<Ino>>,
}

impl LinkCounts {
    pub(crate) fn new() -> Self {
        Self { are_any: AtomicBool::new(false), removing: Mutex::new(ByThread::new()) }
    }

    /// A request has come. Its thread has processed the reply to the one before.
    pub(crate) fn came(&self, header: &Header) {
        if self.are_any.load(Ordering::Acquire) {
            let mut removing = self.lock();
            removing.remove(header);
            self.are_any.store(!removing.is_empty(), Ordering::Release);
        }
    }

    /// The cell is about to be asked to remove a name of this inode, which has others.
    pub(crate) fn removes(&self, header: &Header, ino: Ino) {
        let mut removing = self.lock();
        removing.insert(header, ino);
        self.are_any.store(true, Ordering::Release);
    }

    /// The inode, if the kernel must not keep these attributes of it, which were just read.
    pub(crate) fn passing(&self, attr: &Attr) -> Option<Ino> {
        if attr.kind == FileKind::Directory || !self.are_any.load(Ordering::Acquire) {
            return None;
        }
        self.lock().young().any(|ino| *ino == attr.ino).then_some(attr.ino)
    }

    fn lock(&self) -> MutexGuard<'_, ByThread<Ino>> {
        self.removing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::attr_of as attr;

    fn header(thread: u32) -> Header {
        Header { len: 0, opcode: 1, unique: 1, ino: Ino::ROOT, uid: 0, gid: 0, thread }
    }

    #[test]
    fn a_file_is_not_kept_until_each_thread_has_processed_its_removal() {
        let counts = LinkCounts::new();
        let (nine, ten) = (attr(Ino(9)), attr(Ino(10)));
        assert!(counts.passing(&nine).is_none(), "no name is removed");
        counts.removes(&header(1), Ino(9));
        counts.removes(&header(2), Ino(9));
        assert_eq!((counts.passing(&nine), counts.passing(&ten)), (Some(Ino(9)), None));
        let directory = Attr { kind: FileKind::Directory, ..nine };
        assert!(counts.passing(&directory).is_none());
        counts.came(&header(1));
        assert!(counts.passing(&nine).is_some(), "the other thread's reply is under way");
        counts.came(&header(2));
        assert!(counts.passing(&nine).is_none());
    }
}
