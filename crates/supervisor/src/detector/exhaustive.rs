//! All orders of what can happen in trials of small fleets, lies and late reports included.
//!
//! Each state that can be reached is visited once. Beside the detector stands a record of what was
//! said, by which each verdict is judged.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use warren_proto::Reader;

use super::*;

/// A step of the time.
const TICK: Duration = Duration::from_millis(30);
const TICKS_MAX: u64 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Happens {
    /// The watch accuses the present process of the cell.
    Accuse(CellId),
    /// A cell says that it has asked, or that it has an answer. It may be the accused itself, and
    /// the trial may be over.
    Asked(CellId, u64),
    Answered(CellId, u64),
    /// The watch says that it moves again.
    Moves(CellId),
    /// Its process ends, and a successor takes its place.
    Ends(CellId),
    Tick,
}

/// What was said in the trial of a process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Said {
    accused: Process,
    began: u64,
    asked: BTreeSet<CellId>,
    answered: BTreeSet<CellId>,
    /// It was acquitted, or is over.
    is_over: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    detector: Vec<u8>,
    now: u64,
    epochs: Vec<u32>,
    /// By the number of the trial.
    said: BTreeMap<u64, Said>,
}

impl World {
    fn first(cells: u16) -> Self {
        let detector = Detector::default().to_bytes();
        let epochs = vec![1; usize::from(cells)];
        Self { detector, now: 0, epochs, said: BTreeMap::new() }
    }

    fn process(&self, cell: CellId) -> Process {
        (cell, Epoch(self.epochs[usize::from(cell.0)]))
    }

    /// All that can happen next, with at most so many trials.
    fn next(&self, trials: usize) -> Vec<Happens> {
        let cells = || (0..self.epochs.len() as u16).map(CellId);
        let accused: BTreeSet<CellId> = self.said.values().map(|said| said.accused.0).collect();
        let mut next: Vec<Happens> = accused.into_iter().map(Happens::Moves).collect();
        if self.said.len() < trials {
            next.extend(cells().map(Happens::Accuse));
        }
        for (number, said) in &self.said {
            let both = |by| [Happens::Asked(by, *number), Happens::Answered(by, *number)];
            // One late voice shows what any would.
            let voices = if said.is_over { 1 } else { self.epochs.len() };
            next.extend(cells().take(voices).flat_map(both));
        }
        // No cell differs from the others, so one will do.
        if self.epochs[0] == 1 {
            next.push(Happens::Ends(CellId(0)));
        }
        if self.now < TICKS_MAX {
            next.push(Happens::Tick);
        }
        next
    }

    fn apply(&mut self, happens: Happens) {
        let now = Instant(1) + TICK * self.now as u32;
        let mut detector = Detector::decode(&mut Reader::new(&self.detector)).expect("its own");
        match happens {
            Happens::Accuse(cell) => {
                let accused = self.process(cell);
                let is_tried =
                    self.said.values().any(|said| said.accused == accused && !said.is_over);
                let number = detector.accuse(accused, Hint::Stopped, now);
                assert_eq!(number.is_none(), is_tried, "tried once at a time: {self:?}");
                if let Some(number) = number {
                    // A trial of an earlier process of the cell is over with it.
                    self.acquit(|said| said.accused.0 == cell);
                    let (asked, answered) = Default::default();
                    let began = self.now;
                    let said = Said { accused, began, asked, answered, is_over: false };
                    assert!(self.said.insert(number, said).is_none(), "numbers are new");
                }
            }
            Happens::Asked(by, number) => {
                detector.asked(by, number);
                let said = self.said.get_mut(&number).expect("listed");
                if by != said.accused.0 {
                    said.asked.insert(by);
                }
            }
            Happens::Answered(by, number) => {
                detector.answered(by, number);
                let said = self.said.get_mut(&number).expect("listed");
                if said.asked.contains(&by) {
                    said.answered.insert(by);
                }
            }
            Happens::Moves(cell) => {
                let process = self.process(cell);
                detector.acquit(process);
                self.acquit(|said| said.accused == process);
            }
            Happens::Ends(cell) => {
                let process = self.process(cell);
                detector.acquit(process);
                self.acquit(|said| said.accused == process);
                self.epochs[usize::from(cell.0)] += 1;
            }
            Happens::Tick => {
                self.now += 1;
                self.judge(&mut detector);
            }
        }
        self.detector = detector.to_bytes();
    }

    fn acquit(&mut self, of: impl Fn(&Said) -> bool) {
        self.said.values_mut().filter(|said| of(said)).for_each(|said| said.is_over = true);
    }

    /// The verdicts are those that follow from what was said, and no others.
    fn judge(&mut self, detector: &mut Detector) {
        let now = Instant(1) + TICK * self.now as u32;
        let mut wanted = Vec::new();
        for said in self.said.values_mut().filter(|said| !said.is_over) {
            let began = Instant(1) + TICK * said.began as u32;
            if began + PROBE_WAIT > now {
                continue;
            }
            said.is_over = true;
            let lives = said.answered.len() as u32;
            let hangs = 1 + said.asked.len() as u32 - lives;
            if hangs >= lives {
                let verdict = Verdict::Hangs { why: Hint::Stopped, hangs, voices: hangs + lives };
                wanted.push((said.accused, verdict, began));
            }
        }
        wanted.sort_by_key(|(process, ..)| *process);
        assert_eq!(detector.verdicts(now), wanted, "{self:?}");
    }
}

/// Returns how many states there are.
fn explore(cells: u16, trials: usize) -> usize {
    let first = World::first(cells);
    let (mut seen, mut left) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(world) = left.pop() {
        for happens in world.next(trials) {
            let mut next = world.clone();
            next.apply(happens);
            if seen.insert(next.clone()) {
                left.push(next);
            }
        }
    }
    seen.len()
}

#[test]
fn every_verdict_of_three_to_five_cells_follows_from_what_was_said() {
    for (cells, trials, least) in [(3, 2, 20_000), (4, 1, 1_000), (5, 1, 5_000)] {
        let states = explore(cells, trials);
        assert!(states > least, "{cells} cells have {states} states");
    }
}
