//! The states of the device after a power cut: all flushed writes, and of the unflushed ones none,
//! all, some, or torn blocks.

use std::collections::BTreeMap;
use std::rc::Rc;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Rng};

use super::promise::Progress;
use crate::fixed::Fixed;
use crate::fleet::disk::{Block, Blocks, Covered, Recorded, SECTOR, UNWRITTEN};

/// States of one boundary: without the unflushed writes, with all, and so many of each other kind.
pub(super) const SUBSETS: usize = 3;
pub(super) const TORN: usize = 3;
pub(super) const STATES: usize = 2 + SUBSETS + TORN;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Dropped,
    Kept,
    Subset,
    Torn,
}

/// Writes of each block that are not durable, in order, with their numbers.
type Cached = BTreeMap<BlockNo, Vec<(usize, Rc<Block>)>>;

/// A moment at which the power is cut: just before a flush ends, or at the end.
pub(super) struct Boundary {
    pub progress: Progress,
    durable: BTreeMap<BlockNo, Rc<Block>>,
    /// Unflushed writes of each block, in order.
    pub unflushed: BTreeMap<BlockNo, Vec<Rc<Block>>>,
}

/// The boundaries of a record. With `no_flush` the device ignores flushes.
pub(super) fn boundaries(record: &[Recorded], no_flush: bool) -> Vec<Boundary> {
    let mut boundaries = Vec::new();
    let mut progress = Progress { begun: 0, answered: 0 };
    let (mut durable, mut unflushed, mut number) = (BTreeMap::new(), Cached::new(), 0);
    let cut = |progress: Progress, durable: &BTreeMap<_, _>, unflushed: &Cached| {
        let writes = |writes: &Vec<(_, Rc<Block>)>| {
            writes.iter().map(|(_, bytes)| Rc::clone(bytes)).collect()
        };
        let unflushed = unflushed.iter().map(|(block, of)| (*block, writes(of))).collect();
        Boundary { progress, durable: durable.clone(), unflushed }
    };
    for recorded in record {
        match recorded {
            Recorded::Write(block, bytes) => {
                unflushed.entry(*block).or_default().push((number, Rc::clone(bytes)));
                number += 1;
            }
            Recorded::Begun(step) => progress.begun = step + 1,
            Recorded::Answered(step) => progress.answered = step + 1,
            Recorded::Flush(covered) => {
                boundaries.push(cut(progress, &durable, &unflushed));
                if !no_flush {
                    flush(covered, &mut unflushed, &mut durable);
                }
            }
        }
    }
    boundaries.push(cut(progress, &durable, &unflushed));
    boundaries
}

/// Makes the covered writes durable, with all earlier writes of the same blocks.
fn flush(covered: &Covered, unflushed: &mut Cached, durable: &mut BTreeMap<BlockNo, Rc<Block>>) {
    let is_covered = |number: &usize| match covered {
        Covered::Before(mark) => number < mark,
        Covered::Writes(writes) => writes.contains(number),
    };
    for (block, writes) in unflushed.iter_mut() {
        let last = writes.iter().rposition(|(number, _)| is_covered(number));
        let covered = writes.drain(..last.map_or(0, |last| last + 1)).next_back();
        durable.extend(covered.map(|(_, bytes)| (*block, bytes)));
    }
    unflushed.retain(|_, writes| !writes.is_empty());
}

impl Boundary {
    /// The contents of the device, as changes of the image that it started with.
    pub(super) fn state(&self, number: usize, image: &Blocks, rng: &mut Rng) -> (Kind, Blocks) {
        let kind = match number {
            0 => Kind::Dropped,
            1 => Kind::Kept,
            _ if number < 2 + SUBSETS => Kind::Subset,
            _ => Kind::Torn,
        };
        let mut over = Blocks::with_hasher(Fixed);
        over.extend(self.durable.iter().map(|(block, bytes)| (*block, Rc::clone(bytes))));
        for (block, writes) in &self.unflushed {
            let last = writes.last().expect("a block that was written");
            match kind {
                Kind::Dropped => {}
                Kind::Kept => drop(over.insert(*block, Rc::clone(last))),
                // The last write is the likeliest, but the order guarantees nothing.
                Kind::Subset if rng.chance(1, 2) => {
                    let kept = if rng.chance(2, 3) { last } else { rng.pick(writes) };
                    over.insert(*block, Rc::clone(kept));
                }
                Kind::Subset => {}
                Kind::Torn => {
                    let old = over.get(block).or_else(|| image.get(block));
                    let mut torn = old.map_or(UNWRITTEN, |bytes| **bytes);
                    for at in (0..BLOCK_SIZE).step_by(SECTOR) {
                        if rng.chance(1, 2) {
                            let from = rng.pick(writes);
                            torn[at..at + SECTOR].copy_from_slice(&from[at..at + SECTOR]);
                        }
                    }
                    over.insert(*block, Rc::new(torn));
                }
            }
        }
        (kind, over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BlockNo = BlockNo(7);

    fn written(byte: u8) -> Recorded {
        Recorded::Write(A, Rc::new([byte; BLOCK_SIZE]))
    }

    #[test]
    fn what_was_flushed_is_in_every_state() {
        let flush = Recorded::Flush(Covered::Before(1));
        let record = [Recorded::Begun(0), written(1), flush, Recorded::Answered(0), written(2)];
        let bytes = |no_flush, at: usize, state| {
            let boundary = &boundaries(&record, no_flush)[at];
            let image = Blocks::with_hasher(Fixed);
            let (kind, over) = boundary.state(state, &image, &mut Rng::new(5));
            (kind, over.get(&A).map(|bytes| bytes[0]))
        };
        assert_eq!([0, 1].map(|state| bytes(false, 0, state).1), [None, Some(1)]);
        assert_eq!([0, 1].map(|state| bytes(false, 1, state).1), [Some(1), Some(2)]);
        assert_eq!(bytes(true, 1, 0), (Kind::Dropped, None));
        let torn =
            boundaries(&record, false)[1].state(STATES - 1, &Blocks::default(), &mut Rng::new(5)).1;
        let seen: Vec<u8> = torn[&A].iter().step_by(SECTOR).copied().collect();
        assert!(seen.contains(&1) && seen.contains(&2), "{seen:?}");
        let progress = boundaries(&record, false)[1].progress;
        assert_eq!(progress, Progress { begun: 1, answered: 1 });
    }

    #[test]
    fn a_flush_may_cover_the_first_of_two_writes() {
        let first = Covered::Writes(Rc::new([0].into()));
        let record = [written(1), written(2), Recorded::Flush(first)];
        let boundary = &boundaries(&record, false)[1];
        assert_eq!((boundary.durable[&A][0], boundary.unflushed[&A].len()), (1, 1));
    }
}
