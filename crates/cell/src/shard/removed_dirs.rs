//! The last attributes of directories that were removed.
//!
//! A kernel may have such a directory as a working directory. It does not tell, as it does of a
//! directory that is open, so that the inode ends with its name. Linux still shows the attributes
//! of a working directory that was removed. A front requests them when its kernel does.
//!
//! They are remembered in memory, and of the last directories only.

use std::collections::VecDeque;

use warren_base::Ino;
use warren_proto::Attr;

/// So many directories of a shard: with 256 shards, those of large trees are spread over all.
const REMOVED_MAX: usize = 128;

#[derive(Debug, Default)]
pub(crate) struct RemovedDirs {
    attrs: VecDeque<Attr>,
}

impl RemovedDirs {
    /// A directory has lost its last link, or it ends, with other attributes perhaps.
    pub(crate) fn keep(&mut self, attr: Attr) {
        if let Some(kept) = self.attrs.iter_mut().find(|kept| kept.ino == attr.ino) {
            *kept = attr;
            return;
        }
        if self.attrs.len() == REMOVED_MAX {
            self.attrs.pop_front();
        }
        self.attrs.push_back(attr);
    }

    pub(crate) fn get(&self, dir: Ino) -> Option<Attr> {
        self.attrs.iter().find(|kept| kept.ino == dir).copied()
    }
}

#[cfg(test)]
mod tests {
    use warren_base::{FileKind, InodeFlags, Timestamp};

    use super::*;

    fn attr(ino: u64, mode: u16) -> Attr {
        let time = Timestamp::default();
        Attr {
            ino: Ino(ino),
            kind: FileKind::Directory,
            mode,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: InodeFlags::empty(),
        }
    }

    #[test]
    fn the_last_directories_are_remembered_as_they_ended() {
        let mut removed = RemovedDirs::default();
        for ino in 1..=REMOVED_MAX as u64 + 1 {
            removed.keep(attr(ino, 0o755));
        }
        assert_eq!(removed.get(Ino(1)), None);
        removed.keep(attr(2, 0o700));
        assert_eq!(removed.get(Ino(2)).map(|attr| attr.mode), Some(0o700));
        assert!(removed.get(Ino(3)).is_some());
    }
}
