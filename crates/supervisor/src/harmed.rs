//! Files to which something has happened that their users have to know, for `warren status`.

use std::collections::BTreeMap;

use warren_base::{Errno, Ino, Timestamp};
use warren_proto::Wire;

/// Files that are remembered: those to which it happened last.
const FILES_MAX: usize = 32;

/// A cell has thrown damaged pages of the file away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Discarded {
    /// The new generation of the file.
    pub generation: u32,
}

/// A change of the file that a client had posted has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct PostFailed {
    pub errno: Errno,
}

/// The files, and what has happened to each last, and when.
#[derive(Clone, Debug, Wire)]
pub(crate) struct HarmedFiles<T> {
    files: BTreeMap<Ino, (T, Timestamp)>,
}

impl<T> Default for HarmedFiles<T> {
    fn default() -> Self {
        Self { files: BTreeMap::new() }
    }
}

impl<T: Copy + PartialEq> HarmedFiles<T> {
    /// A cell has reported it, perhaps again: a successor that reads it in the log reports it, too.
    pub(crate) fn insert_once(&mut self, ino: Ino, what: T, at: Timestamp) {
        if self.files.get(&ino).is_none_or(|(known, _)| *known != what) {
            self.insert(ino, what, at);
        }
    }

    /// It has happened now.
    pub(crate) fn insert(&mut self, ino: Ino, what: T, at: Timestamp) {
        self.files.insert(ino, (what, at));
        if self.files.len() > FILES_MAX
            && let Some((oldest, _)) = self.files.iter().min_by_key(|(_, (_, at))| at)
        {
            let oldest = *oldest;
            self.files.remove(&oldest);
        }
    }

    /// All of them, in order of their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Ino, T, Timestamp)> + '_ {
        self.files.iter().map(|(ino, (what, at))| (*ino, *what, *at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_losses_are_remembered_once() {
        let mut files = HarmedFiles::default();
        let discarded = |generation| Discarded { generation };
        for number in 1..=FILES_MAX as u64 {
            files.insert_once(Ino(number), discarded(1), Timestamp(number as i64));
        }
        files.insert_once(Ino(1), discarded(1), Timestamp(90));
        files.insert_once(Ino(2), discarded(2), Timestamp(91));
        files.insert_once(Ino(99), discarded(1), Timestamp(92));
        let all: Vec<_> = files.all().collect();
        assert_eq!(all.len(), FILES_MAX);
        assert_eq!(all[0], (Ino(2), discarded(2), Timestamp(91)));
        assert_eq!(all[FILES_MAX - 1].0, Ino(99));
    }

    #[test]
    fn what_happens_again_is_remembered_with_its_time() {
        let mut files = HarmedFiles::default();
        let failed = PostFailed { errno: Errno::EIO };
        for at in [1, 2] {
            files.insert(Ino(1), failed, Timestamp(at));
        }
        assert_eq!(files.all().collect::<Vec<_>>(), [(Ino(1), failed, Timestamp(2))]);
    }
}
