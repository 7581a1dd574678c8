//! Memory for tests that changes all the time: a word that is loaded twice differs.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use warren_base::Rng;

use crate::memory::{Load, Waited};

/// It refuses to load a byte twice.
pub(crate) struct Restless {
    seen: RefCell<BTreeSet<usize>>,
    rng: RefCell<Rng>,
    bound: usize,
    wide: fn(usize, &mut Rng) -> u64,
}

impl Restless {
    /// 32-bit words are below `bound`, and `wide` makes those of 64 bits.
    pub(crate) fn new(seed: u64, bound: usize, wide: fn(usize, &mut Rng) -> u64) -> Self {
        Self { seen: RefCell::default(), rng: RefCell::new(Rng::new(seed)), bound, wide }
    }

    fn look(&self, at: usize, len: usize) {
        let mut seen = self.seen.borrow_mut();
        assert!(
            (at..at + len).all(|byte| seen.insert(byte)),
            "bytes from {at} on are loaded twice"
        );
    }
}

impl Load for Restless {
    fn size(&self) -> usize {
        usize::MAX
    }

    fn load32(&self, at: usize, _: Ordering) -> u32 {
        self.look(at, 4);
        self.rng.borrow_mut().below(self.bound as u64) as u32
    }

    fn load64(&self, at: usize, _: Ordering) -> u64 {
        self.look(at, 8);
        (self.wide)(at, &mut self.rng.borrow_mut())
    }

    fn copy_out(&self, at: usize, into: &mut [u8]) {
        self.look(at, into.len());
    }

    fn wait32(&self, _: usize, _: u32, _: Option<Duration>) -> Waited {
        unreachable!("a cell does not sleep here")
    }

    fn fence() {}

    fn pause() {}
}
