//! Files that are behind: they were written since their last cover, and a power failure would take
//! these writes.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::Ino;

#[derive(Debug)]
struct File {
    /// The smallest size to which the file was truncated since it is behind.
    cut: u64,
    /// Its present size, in a replay after a power failure.
    size: u64,
}

/// The files that are behind.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    files: BTreeMap<Ino, File>,
    /// Files that were behind when the checkpoint under way fixed its state. Until it counts, a
    /// replay of the log finds them behind.
    held: BTreeSet<Ino>,
}

impl Behind {
    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino) || self.held.contains(&ino)
    }

    /// The first file that is behind in the present state.
    pub(crate) fn first(&self) -> Option<Ino> {
        self.files.keys().next().copied()
    }

    /// The first file that is behind in the state of the checkpoint under way.
    pub(crate) fn first_fixed(&self) -> Option<Ino> {
        self.held.first().copied()
    }

    pub(crate) fn insert(&mut self, ino: Ino) {
        self.files.entry(ino).or_insert(File { cut: u64::MAX, size: u64::MAX });
    }

    /// The file was written, and has this size.
    pub(crate) fn note_write(&mut self, ino: Ino, size: u64) {
        self.files.entry(ino).or_insert(File { cut: u64::MAX, size }).size = size;
    }

    /// The file has this size, in a replay after a power failure.
    pub(crate) fn note_size(&mut self, ino: Ino, size: u64) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.size = size;
        }
    }

    pub(crate) fn remove(&mut self, ino: Ino) {
        self.files.remove(&ino);
        self.held.remove(&ino);
    }

    /// The file is truncated or extended. Returns whether it is behind, so that a truncation must
    /// wait.
    pub(crate) fn cut(&mut self, ino: Ino, size: u64) -> bool {
        let Some(file) = self.files.get_mut(&ino) else { return false };
        if size <= file.size {
            file.cut = file.cut.min(size);
        }
        file.size = size;
        true
    }

    /// The smallest size to which the file was truncated since it is behind.
    pub(crate) fn cut_of(&self, ino: Ino) -> Option<u64> {
        self.files.get(&ino).map(|file| file.cut).filter(|cut| *cut < u64::MAX)
    }

    /// The file was truncated to that size.
    pub(crate) fn forget_cut(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.cut = u64::MAX;
        }
    }

    /// A checkpoint has fixed its state.
    pub(crate) fn fixed(&mut self) {
        self.held.extend(std::mem::take(&mut self.files).into_keys());
    }

    /// That checkpoint is durable.
    pub(crate) fn switched(&mut self) {
        self.held.clear();
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(9);

    #[test]
    fn only_a_truncation_cuts_a_file_that_is_behind() {
        let mut behind = Behind::default();
        assert!(!behind.cut(FILE, 0), "it is made at once");
        behind.note_write(FILE, 20);
        assert!(behind.cut(FILE, 30), "an extension");
        assert_eq!(behind.cut_of(FILE), None);
        behind.cut(FILE, 10);
        behind.cut(FILE, 25);
        assert_eq!(behind.cut_of(FILE), Some(10));
        behind.forget_cut(FILE);
        behind.note_size(FILE, 40);
        behind.cut(FILE, 41);
        assert_eq!(behind.cut_of(FILE), None);
    }
}
