//! Files that a power failure would take back: what was written since their last cover.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::Ino;

/// Files whose writes a power failure would take, and what was cut off them since.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    files: BTreeMap<Ino, u64>,
    /// Those that the checkpoint under way holds as they are. Until it counts, a replay of the log
    /// finds them behind.
    held: BTreeSet<Ino>,
}

impl Behind {
    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino) || self.held.contains(&ino)
    }

    /// The first of them that no checkpoint holds.
    pub(crate) fn first(&self) -> Option<Ino> {
        self.files.keys().next().copied()
    }

    /// The first of those that the checkpoint under way holds.
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

    /// The file is cut, if it is behind.
    pub(crate) fn cut(&mut self, ino: Ino, size: u64) -> bool {
        self.files.get_mut(&ino).map(|cut| *cut = size.min(*cut)).is_some()
    }

    /// What was cut off the file since it is behind.
    pub(crate) fn cut_of(&self, ino: Ino) -> Option<u64> {
        self.files.get(&ino).copied().filter(|cut| *cut < u64::MAX)
    }

    /// What was cut off the file is gone.
    pub(crate) fn cut_made(&mut self, ino: Ino) {
        self.files.insert(ino, u64::MAX);
    }

    /// The state of a checkpoint is fixed.
    pub(crate) fn fixed(&mut self) {
        self.held.extend(std::mem::take(&mut self.files).into_keys());
    }

    /// That checkpoint counts.
    pub(crate) fn switched(&mut self) {
        self.held.clear();
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
