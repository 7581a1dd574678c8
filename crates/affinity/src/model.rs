//! The three models of the paper, whose difference is a result that we report.
//!
//! A message names its needs: the affinity of the object it works on, and perhaps a second object
//! in another affinity (a write that must also allocate). The model chooses where it runs.

use crate::Affinity;

/// Chosen at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Model {
    /// Reads and writes inside one stripe run in parallel; all other messages run alone (section
    /// 3).
    Classical,
    /// The tree. A message that needs two objects runs in an affinity that covers both (section 4).
    #[default]
    Hierarchical,
    /// The tree. A second object that has opted in is accessed from the finer affinity, under its
    /// own in-progress flag (section 5).
    Hybrid,
}

/// A second object that a message needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Also {
    Nothing,
    /// Belongs to this affinity alone.
    Owned(Affinity),
    /// Belongs to this affinity, but has opted in to shared access.
    Shared(Affinity),
}

/// The needs of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    pub main: Affinity,
    pub also: Also,
}

impl From<Affinity> for Wanted {
    fn from(main: Affinity) -> Self {
        Self { main, also: Also::Nothing }
    }
}

impl Model {
    /// The affinity in which the message runs.
    pub fn place(self, wanted: impl Into<Wanted>) -> Affinity {
        let Wanted { main, also } = wanted.into();
        match (self, also) {
            (Self::Classical, Also::Nothing) if matches!(main, Affinity::Stripe(..)) => main,
            (Self::Classical, _) => Affinity::Serial,
            (_, Also::Nothing) | (Self::Hybrid, Also::Shared(_)) => main,
            (_, Also::Owned(other) | Also::Shared(other)) => main.covering(other),
        }
    }

    /// Whether a message placed for `wanted` must set the second object's in-progress flag.
    pub fn needs_flag(self, wanted: Wanted) -> bool {
        match (self, wanted.also) {
            (Self::Hybrid, Also::Shared(other)) => !wanted.main.covers(other),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::ShardId;

    #[test]
    fn each_model_places_the_same_message_differently() {
        let stripe = Affinity::Stripe(ShardId(0), 1, 2);
        let names = Affinity::Names(ShardId(0));
        assert_eq!(Model::Classical.place(stripe), stripe);
        assert_eq!(Model::Classical.place(names), Affinity::Serial);
        assert_eq!(Model::Hierarchical.place(names), names);

        let allocating = Wanted { main: stripe, also: Also::Shared(Affinity::Range(3)) };
        assert_eq!(Model::Classical.place(allocating), Affinity::Serial);
        assert_eq!(Model::Hierarchical.place(allocating), Affinity::Volume);
        assert_eq!(Model::Hybrid.place(allocating), stripe);
        assert!(
            Model::Hybrid.needs_flag(allocating) && !Model::Hierarchical.needs_flag(allocating)
        );

        let legacy = Wanted { main: stripe, also: Also::Owned(Affinity::Range(3)) };
        assert_eq!(Model::Hybrid.place(legacy), Affinity::Volume, "sharing is opt-in");
        assert!(!Model::Hybrid.needs_flag(legacy));
        let covered = Wanted { main: Affinity::Volume, also: Also::Shared(Affinity::Range(3)) };
        assert!(!Model::Hybrid.needs_flag(covered), "a coarse affinity needs no flag");
    }
}
