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

/// Where the state of an affinity is.
#[derive(Debug)]
enum Slot<S> {
    /// The affinity has none.
    None,
    Here(S),
    /// Its runner has it.
    Out,
}

/// One slot of state for each affinity of a shape.
#[derive(Debug)]
pub struct Owned<S> {
    shape: Shape,
    slots: Vec<Slot<S>>,
}

impl<S> Owned<S> {
    /// `state_of` makes the state of each affinity that has some.
    pub fn new(shape: Shape, mut state_of: impl FnMut(Affinity) -> Option<S>) -> Self {
        shape.check();
        let slot = |affinity| state_of(affinity).map_or(Slot::None, Slot::Here);
        Self { shape, slots: shape.affinities().map(slot).collect() }
    }

    #[inline]
    fn slot_mut(&mut self, affinity: Affinity) -> &mut Slot<S> {
        &mut self.slots[self.shape.index(affinity) as usize]
    }

    /// Whether the affinity has state, handed out or not.
    #[inline]
    pub fn has(&self, affinity: Affinity) -> bool {
        !matches!(self.slots[self.shape.index(affinity) as usize], Slot::None)
    }

    /// Takes the state of an affinity that starts to run, if it has some.
    pub fn hand_out(&mut self, affinity: Affinity) -> Option<Lent<S>> {
        let slot = self.slot_mut(affinity);
        match std::mem::replace(slot, Slot::Out) {
            Slot::Here(state) => Some(Lent { affinity, state }),
            Slot::Out => panic!("an affinity's state was handed out twice"),
            Slot::None => {
                *slot = Slot::None;
                None
            }
        }
    }

    /// Puts the state back.
    pub fn give_back(&mut self, lent: Lent<S>) {
        let slot = self.slot_mut(lent.affinity);
        assert!(matches!(slot, Slot::Out), "an affinity's state was given back twice");
        *slot = Slot::Here(lent.state);
    }

    /// The state of an affinity that `runner` covers, if it has some. No other affinity below a
    /// runner runs.
    #[inline]
    pub fn below(&self, runner: Affinity, affinity: Affinity) -> Option<&S> {
        assert!(runner.covers(affinity), "a handler reached beyond its affinity");
        match &self.slots[self.shape.index(affinity) as usize] {
            Slot::Here(state) => Some(state),
            Slot::None => None,
            Slot::Out => panic!("an affinity runs beside its ancestor"),
        }
    }

    /// The same, to change it.
    #[inline]
    pub fn below_mut(&mut self, runner: Affinity, affinity: Affinity) -> Option<&mut S> {
        assert!(runner.covers(affinity), "a handler reached beyond its affinity");
        match self.slot_mut(affinity) {
            Slot::Here(state) => Some(state),
            Slot::None => None,
            Slot::Out => panic!("an affinity runs beside its ancestor"),
        }
    }

    /// Takes the state of an affinity that `runner` covers away for good.
    pub fn remove_below(&mut self, runner: Affinity, affinity: Affinity) -> Option<S> {
        self.below(runner, affinity)?;
        match std::mem::replace(self.slot_mut(affinity), Slot::None) {
            Slot::Here(state) => Some(state),
            Slot::None | Slot::Out => None,
        }
    }

    /// All states, for a runner that covers every affinity that has some.
    pub fn all(&self, runner: Affinity) -> impl Iterator<Item = &S> {
        assert!(runner.covers(Affinity::Volume), "a handler reached beyond its affinity");
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Here(state) => Some(state),
            Slot::None | Slot::Out => None,
        })
    }

    /// The same, to change them.
    pub fn all_mut(&mut self, runner: Affinity) -> impl Iterator<Item = &mut S> {
        assert!(runner.covers(Affinity::Volume), "a handler reached beyond its affinity");
        self.slots.iter_mut().filter_map(|slot| match slot {
            Slot::Here(state) => Some(state),
            Slot::None | Slot::Out => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::ShardId;

    const NAMES: Affinity = Affinity::Names(ShardId(0));
    const OTHER: Affinity = Affinity::Names(ShardId(1));

    /// The names of two shards count; nothing else has state.
    fn counts() -> Owned<u32> {
        Owned::new(Shape { shards: 2, files: 2, stripes: 2, ranges: 2 }, |affinity| {
            matches!(affinity, Affinity::Names(_)).then_some(0)
        })
    }

    #[test]
    fn changes_to_lent_state_are_kept() {
        let mut owned = counts();
        let mut lent = owned.hand_out(NAMES).expect("it has state");
        *lent += 7;
        owned.give_back(lent);
        assert_eq!(owned.below(Affinity::Volume, NAMES), Some(&7));
        owned.all_mut(Affinity::Serial).for_each(|count| *count += 1);
        assert_eq!(owned.all(Affinity::Volume).collect::<Vec<_>>(), [&8, &1]);
    }

    #[test]
    fn an_affinity_without_state_hands_nothing_out() {
        let mut owned = counts();
        assert!(owned.hand_out(Affinity::Space).is_none());
        assert_eq!(owned.remove_below(Affinity::Volume, NAMES), Some(0));
        assert_eq!(owned.remove_below(Affinity::Volume, NAMES), None);
        assert!(owned.hand_out(NAMES).is_none());
        assert!(owned.hand_out(OTHER).is_some());
    }

    #[test]
    #[should_panic(expected = "handed out twice")]
    fn two_runners_of_one_affinity_fail() {
        let mut owned = counts();
        let _first = owned.hand_out(NAMES);
        let _second = owned.hand_out(NAMES);
    }

    #[test]
    #[should_panic(expected = "runs beside its ancestor")]
    fn an_ancestor_beside_a_runner_fails() {
        let mut owned = counts();
        let _fine = owned.hand_out(NAMES);
        owned.below(Affinity::Volume, NAMES);
    }

    #[test]
    #[should_panic(expected = "beyond its affinity")]
    fn access_beyond_the_affinity_fails() {
        counts().below(OTHER, NAMES);
    }
}
