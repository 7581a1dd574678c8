//! Files of which cells have thrown damaged pages away, for `warren status`.

use std::collections::BTreeMap;

use warren_base::{Ino, Timestamp};
use warren_proto::Wire;

/// Files that are remembered: those with the latest losses.
const FILES_MAX: usize = 32;

/// The loss of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Discarded {
    /// The new generation of the file.
    pub generation: u32,
    pub at: Timestamp,
}

#[derive(Clone, Default, Debug, Wire)]
pub(crate) struct DiscardedFiles {
    files: BTreeMap<Ino, Discarded>,
}

impl DiscardedFiles {
    /// A cell has reported it. A successor that reads it in the log reports it again.
    pub(crate) fn insert(&mut self, ino: Ino, generation: u32, at: Timestamp) {
        if self.files.get(&ino).is_some_and(|known| known.generation == generation) {
            return;
        }
        self.files.insert(ino, Discarded { generation, at });
        if self.files.len() > FILES_MAX
            && let Some((oldest, _)) = self.files.iter().min_by_key(|(_, file)| file.at)
        {
            let oldest = *oldest;
            self.files.remove(&oldest);
        }
    }

    /// All of them, in order of their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Ino, Discarded)> + '_ {
        self.files.iter().map(|(ino, file)| (*ino, *file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_losses_are_remembered_once() {
        let mut files = DiscardedFiles::default();
        for number in 1..=FILES_MAX as u64 {
            files.insert(Ino(number), 1, Timestamp(number as i64));
        }
        files.insert(Ino(1), 1, Timestamp(90));
        files.insert(Ino(2), 2, Timestamp(91));
        files.insert(Ino(99), 1, Timestamp(92));
        let all: Vec<_> = files.all().collect();
        assert_eq!(all.len(), FILES_MAX);
        assert_eq!(all[0], (Ino(2), Discarded { generation: 2, at: Timestamp(91) }));
        assert_eq!(all[FILES_MAX - 1].0, Ino(99));
    }
}
