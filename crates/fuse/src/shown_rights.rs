//! Rights that the kernel is shown of a file that its owner has open without the kernel.
//!
//! The kernel opens such a file again when it needs it, and checks the mode. But the user may have
//! taken the rights of his file away since, and descriptors keep theirs. So the owner is shown a
//! mode that lets him open it. He could set the mode back, and no other user gains a right. The
//! kernel uses these attributes until the open reaches the front, or for a second if none does.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use warren_base::Ino;
use warren_proto::{Attr, FileKind};

/// The rights to open a file that its owner always has here.
const OF_OWNER: u16 = 0o600;
/// The time for which the kernel may use them. The thread that opens the file may have to wait for
/// a processor.
pub(crate) const SHOWN_FOR: Duration = Duration::from_secs(1);
/// More are forgotten. Their attributes expire by themselves.
const SHOWN_MAX: usize = 1024;

/// Files whose owners were shown rights that they do not have. At their next open the kernel drops
/// these attributes.
#[derive(Debug, Default)]
pub(crate) struct ShownRights {
    are_any: AtomicBool,
    files: Mutex<BTreeSet<Ino>>,
}

impl ShownRights {
    pub(crate) fn add(&self, ino: Ino) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.len() >= SHOWN_MAX {
            files.clear();
        }
        files.insert(ino);
        self.are_any.store(true, Ordering::Release);
    }

    /// Whether the file is one of these. It is none afterwards.
    pub(crate) fn take(&self, ino: Ino) -> bool {
        if !self.are_any.load(Ordering::Acquire) {
            return false;
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let was_one = files.remove(&ino);
        self.are_any.store(!files.is_empty(), Ordering::Release);
        was_one
    }
}

/// The attributes that the owner needs to open his file. `None` if they are as they are.
pub(crate) fn of_owner(attr: &Attr, uid: u32) -> Option<Attr> {
    let lacks = attr.kind == FileKind::Regular && attr.mode & OF_OWNER != OF_OWNER;
    (lacks && attr.uid == uid).then_some(Attr { mode: attr.mode | OF_OWNER, ..*attr })
}
