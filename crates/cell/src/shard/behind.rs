//! Files that are behind: they were written since their last cover, and a power failure would take
//! these writes.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::Ino;

/// The files that are behind, and the size to which each was truncated since.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    files: BTreeMap<Ino, u64>,
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
        self.files.entry(ino).or_insert(u64::MAX);
    }

    pub(crate) fn remove(&mut self, ino: Ino) {
        self.files.remove(&ino);
        self.held.remove(&ino);
    }

    /// The file is truncated. Returns whether it is behind, so that the truncation must wait.
    pub(crate) fn cut(&mut self, ino: Ino, size: u64) -> bool {
        self.files.get_mut(&ino).map(|cut| *cut = size.min(*cut)).is_some()
    }

    /// The smallest size to which the file was truncated since it is behind.
    pub(crate) fn cut_of(&self, ino: Ino) -> Option<u64> {
        self.files.get(&ino).copied().filter(|cut| *cut < u64::MAX)
    }

    /// The file was truncated to that size.
    pub(crate) fn cut_made(&mut self, ino: Ino) {
        self.files.insert(ino, u64::MAX);
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
