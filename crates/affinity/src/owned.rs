//! Exclusion by ownership: the state of an affinity is a value that one runner at a time has.
//!
//! The scheduler chooses the runner. `Owned` moves the state itself from its slot to that runner,
//! and back when the run ends. So a handler can access only what it was handed, the compiler checks
//! that, and there is neither a lock nor unsafe code. A hand-out that would break exclusion finds
//! an empty slot and fails an assertion, in release builds too.

use std::ops::{Deref, DerefMut};

use crate::{Affinity, Shape};

/// The state of one affinity, out of its slot. Dropping it instead of giving it back loses the
/// state, so the compiler warns when it is not used.
#[must_use = "the state must be given back"]
#[derive(Debug)]
pub struct Lent<S> {
    affinity: Affinity,
    state: S,
}

impl<S> Lent<S> {
    pub fn affinity(&self) -> Affinity {
        self.affinity
    }
}

impl<S> Deref for Lent<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S> DerefMut for Lent<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

/// One slot of state for each affinity of a shape.
#[derive(Debug)]
pub struct Owned<S> {
    shape: Shape,
    slots: Vec<Option<S>>,
}

impl<S> Owned<S> {
    pub fn new(shape: Shape, mut state_of: impl FnMut(Affinity) -> S) -> Self {
        shape.check();
        let slots = shape.affinities().map(|affinity| Some(state_of(affinity))).collect();
        Self { shape, slots }
    }

    /// Takes the state of an affinity that starts to run.
    pub fn hand_out(&mut self, affinity: Affinity) -> Lent<S> {
        let slot = &mut self.slots[self.shape.index(affinity) as usize];
        let state = slot.take().expect("an affinity's state was handed out twice");
        Lent { affinity, state }
    }

    /// Takes the state of an affinity that `holder` covers: the runner of a coarse affinity may
    /// have it too.
    pub fn hand_out_below(&mut self, holder: &Lent<S>, affinity: Affinity) -> Lent<S> {
        assert!(holder.affinity.covers(affinity), "a handler reached beyond its affinity");
        self.hand_out(affinity)
    }

    /// The state of an ancestor of `holder`, to read. The ancestor cannot run while `holder` does.
    pub fn ancestor(&self, holder: &Lent<S>, affinity: Affinity) -> &S {
        assert!(affinity.covers(holder.affinity), "a handler reached beyond its ancestors");
        assert!(affinity != holder.affinity, "its own state is in the handler's hands");
        let slot = &self.slots[self.shape.index(affinity) as usize];
        slot.as_ref().expect("an ancestor runs beside its descendant")
    }

    /// Puts the state back.
    pub fn give_back(&mut self, lent: Lent<S>) {
        let slot = &mut self.slots[self.shape.index(lent.affinity) as usize];
        assert!(slot.is_none(), "an affinity's state was given back twice");
        *slot = Some(lent.state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::ShardId;

    const NAMES: Affinity = Affinity::Names(ShardId(0));
    const FILE: Affinity = Affinity::File(ShardId(0), 1);

    fn counts() -> Owned<u32> {
        Owned::new(Shape { shards: 2, files: 2, stripes: 2, ranges: 2 }, |_| 0)
    }

    #[test]
    fn changes_to_lent_state_are_kept() {
        let mut owned = counts();
        let mut lent = owned.hand_out(FILE);
        *lent += 7;
        assert_eq!(*owned.ancestor(&lent, NAMES), 0);
        owned.give_back(lent);
        let coarse = owned.hand_out(NAMES);
        let fine = owned.hand_out_below(&coarse, FILE);
        assert_eq!(*fine, 7);
        owned.give_back(fine);
        owned.give_back(coarse);
    }

    #[test]
    #[should_panic(expected = "handed out twice")]
    fn two_runners_of_one_affinity_fail() {
        let mut owned = counts();
        let _first = owned.hand_out(FILE);
        let _second = owned.hand_out(FILE);
    }

    #[test]
    #[should_panic(expected = "runs beside its descendant")]
    fn a_running_ancestor_fails() {
        let mut owned = counts();
        let (_coarse, fine) = (owned.hand_out(NAMES), owned.hand_out(FILE));
        owned.ancestor(&fine, NAMES);
    }

    #[test]
    #[should_panic(expected = "beyond its affinity")]
    fn access_beyond_the_affinity_fails() {
        let mut owned = counts();
        let lent = owned.hand_out(FILE);
        let _other = owned.hand_out_below(&lent, Affinity::Space);
    }
}
