//! Inodes that have neither access control lists nor capabilities.
//!
//! The kernel asks for capabilities when it executes a file, and before it writes one whose
//! attributes it has got again; and for the lists of every file that another user than its owner
//! looks at. Almost no file has any, so that these requests are answered here. A cell has said so
//! with attributes that it leased, until it recalls them.

use std::sync::atomic::{AtomicU64, Ordering};

use warren_base::{Ino, InodeFlags};
use warren_proto::{Attr, Lease};

/// Inodes that are known at most, as a power of two.
const COUNT: usize = 1 << 14;
/// Spreads inode numbers (Knuth, The Art of Computer Programming, volume 3, section 6.4).
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug)]
pub(crate) struct PlainInodes {
    inodes: Box<[AtomicU64]>,
    /// The number of inodes that were forgotten.
    forgotten: AtomicU64,
}

impl PlainInodes {
    pub(crate) fn new() -> Self {
        Self {
            inodes: (0..COUNT).map(|_| AtomicU64::new(0)).collect(),
            forgotten: AtomicU64::new(0),
        }
    }

    /// For [`Self::note`], before the request is served.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }

    /// Attributes that a cell has sent, which count if they are leased.
    pub(crate) fn note_leased(&self, attr: &Attr, lease: Option<Lease>, forgotten_before: u64) {
        if lease.is_some() {
            self.note(attr, forgotten_before);
        }
    }

    /// Attributes that were leased. They do not count if something was forgotten since the request
    /// came, because the lease may have been recalled before.
    fn note(&self, attr: &Attr, forgotten_before: u64) {
        let word = self.word(attr.ino);
        if attr.flags.intersects(InodeFlags::OF_XATTRS) {
            return;
        }
        if word.load(Ordering::Relaxed) != attr.ino.0 {
            word.store(attr.ino.0, Ordering::SeqCst);
        }
        if self.forgotten() != forgotten_before {
            word.store(0, Ordering::SeqCst);
        }
    }

    pub(crate) fn is_plain(&self, ino: Ino) -> bool {
        self.word(ino).load(Ordering::SeqCst) == ino.0
    }

    /// The attributes of the inode are recalled, or this front changes them.
    pub(crate) fn forget(&self, ino: Ino) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        let _ = self.word(ino).compare_exchange(ino.0, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn word(&self, ino: Ino) -> &AtomicU64 {
        let hash = ino.0.wrapping_mul(GOLDEN_RATIO) >> (64 - COUNT.trailing_zeros());
        &self.inodes[hash as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::attr_of;

    #[test]
    fn an_inode_is_plain_until_it_is_forgotten() {
        let plain = PlainInodes::new();
        let ino = Ino(7);
        let attr = attr_of(ino);
        assert!(!plain.is_plain(ino));
        plain.note(&attr, plain.forgotten());
        assert!(plain.is_plain(ino) && !plain.is_plain(Ino(8)));
        plain.forget(ino);
        assert!(!plain.is_plain(ino));
    }

    #[test]
    fn what_was_recalled_meanwhile_is_not_noted() {
        let plain = PlainInodes::new();
        let before = plain.forgotten();
        plain.forget(Ino(9));
        plain.note(&attr_of(Ino(7)), before);
        assert!(!plain.is_plain(Ino(7)));
    }

    #[test]
    fn an_inode_with_a_list_is_not_plain() {
        let plain = PlainInodes::new();
        let attr = Attr { flags: InodeFlags::DEFAULT_ACL, ..attr_of(Ino(7)) };
        plain.note(&attr, plain.forgotten());
        assert!(!plain.is_plain(Ino(7)));
    }
}
