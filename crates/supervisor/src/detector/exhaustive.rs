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

/// The limits of what may happen.
#[derive(Clone, Copy)]
struct Bounds {
    cells: u16,
    /// Trials in all.
    trials: usize,
    /// The watch accuses, and a cell does.
    hints: bool,
    charges: bool,
    least_states: usize,
}

/// Turns that a process makes at once, so that two such steps are enough.
const TURNS_AT_ONCE: u32 = TURNS / 2;
const TURNS_ENOUGH: u32 = 2;

/// The one cell that accuses others. It may lie, and no cell differs from the others.
const ACCUSER: CellId = CellId(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Happens {
    /// The watch accuses the present process of the cell.
    Accuse(CellId),
    /// The accuser says that the cell does not answer it.
    Charge(CellId),
    /// The present process of the cell turns its loop.
    Turns(CellId),
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

/// The statements in the trial of a process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Said {
    accused: Process,
    began: u64,
    asked: BTreeSet<CellId>,
    answered: BTreeSet<CellId>,
    /// The cell that accuses, and the steps in which the accused and the accuser have turned.
    charge: Option<(Process, [u32; 2])>,
    /// It was acquitted, or is over.
    is_over: bool,
}

impl Said {
    fn accuser(&self) -> Option<CellId> {
        self.charge.map(|((cell, _), _)| cell)
    }

    fn is_charged_by(&self, process: Process) -> bool {
        self.charge.is_some_and(|(by, _)| by == process)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    detector: Vec<u8>,
    now: u64,
    epochs: Vec<u32>,
    /// By the number of the trial.
    said: BTreeMap<u64, Said>,
    /// The number of a process's accusations against a cell that were voted down.
    voted_down: BTreeMap<(Process, CellId), u32>,
    /// Accusers that were sentenced and live.
    corrupt: BTreeSet<Process>,
}

impl World {
    fn first(cells: u16) -> Self {
        let detector = Detector::default().to_bytes();
        let epochs = vec![1; usize::from(cells)];
        let (said, voted_down, corrupt) = Default::default();
        Self { detector, now: 0, epochs, said, voted_down, corrupt }
    }

    fn process(&self, cell: CellId) -> Process {
        (cell, Epoch(self.epochs[usize::from(cell.0)]))
    }

    /// All that can happen next.
    fn next(&self, bounds: Bounds) -> Vec<Happens> {
        let cells = || (0..self.epochs.len() as u16).map(CellId);
        let accused: BTreeSet<CellId> = self.said.values().map(|said| said.accused.0).collect();
        let mut next: Vec<Happens> = accused.into_iter().map(Happens::Moves).collect();
        let may_begin = self.said.len() < bounds.trials;
        if bounds.hints && may_begin {
            next.extend(cells().map(Happens::Accuse));
        }
        // An accusation is repeated although all trials of these bounds have begun, because it may
        // begin none.
        let is_known = self.said.values().any(|said| said.accuser().is_some());
        let may_charge = bounds.charges && (may_begin || is_known);
        if may_charge {
            next.extend(cells().filter(|of| *of != ACCUSER).map(Happens::Charge));
        }
        for (by, turns, said) in self.said.values().filter_map(|said| {
            said.charge.map(|(by, turns)| (by, turns, said)).filter(|_| !said.is_over)
        }) {
            let processes = [said.accused, by].into_iter().zip(turns);
            let left = processes.filter(|(_, turns)| *turns < TURNS_ENOUGH);
            next.extend(left.map(|((cell, _), _)| Happens::Turns(cell)));
        }
        for (number, said) in &self.said {
            let both = |by| [Happens::Asked(by, *number), Happens::Answered(by, *number)];
            // One late voice shows what any would.
            let late = usize::from(bounds.hints);
            let voices = if said.is_over { late } else { self.epochs.len() };
            next.extend(cells().take(voices).flat_map(both));
        }
        // No cell differs from the others but the accuser.
        let ends = [(CellId(0), bounds.hints), (ACCUSER, bounds.charges)].into_iter();
        let ends = ends.filter(|(cell, may)| *may && self.process(*cell).1 == Epoch(1));
        next.extend(ends.map(|(cell, _)| Happens::Ends(cell)));
        if bounds.hints && self.now < TICKS_MAX {
            next.push(Happens::Tick);
        }
        next
    }

    /// Returns whether it is within the bounds.
    fn apply(&mut self, happens: Happens, bounds: Bounds) -> bool {
        let now = Instant(1) + TICK * self.now as u32;
        let mut detector = Detector::decode(&mut Reader::new(&self.detector)).expect("its own");
        match happens {
            Happens::Accuse(cell) => {
                let accused = self.process(cell);
                let is_tried = self.is_tried(accused, |said| said.charge.is_none());
                let number = detector.accuse(accused, Hint::Stopped, now);
                assert_eq!(number.is_none(), is_tried, "tried once at a time: {self:?}");
                number.into_iter().for_each(|number| self.begin(number, accused, None));
            }
            Happens::Charge(cell) => self.charge(cell, now, &mut detector),
            Happens::Turns(cell) => {
                let process = self.process(cell);
                (0..TURNS_AT_ONCE).for_each(|_| detector.turned(process));
                for said in self.said.values_mut().filter(|said| !said.is_over) {
                    let Some((by, turns)) = &mut said.charge else { continue };
                    turns[0] += u32::from(said.accused == process);
                    turns[1] += u32::from(*by == process);
                }
                self.judge(&mut detector);
            }
            Happens::Asked(by, number) => {
                detector.asked(by, number);
                let said = self.said.get_mut(&number).expect("listed");
                if by != said.accused.0 && said.accuser() != Some(by) {
                    said.asked.insert(by);
                }
            }
            Happens::Answered(by, number) => {
                detector.answered(by, number);
                let said = self.said.get_mut(&number).expect("listed");
                let is_own = said.charge.is_some() && by == said.accused.0;
                if said.accuser() == Some(by) {
                    said.is_over = true;
                } else if is_own || said.asked.contains(&by) {
                    said.answered.insert(by);
                }
            }
            Happens::Moves(cell) => {
                let process = self.process(cell);
                detector.acquit(process);
                self.acquit(|said| said.accused == process && said.charge.is_none());
            }
            Happens::Ends(cell) => {
                let process = self.process(cell);
                detector.gone(process);
                self.acquit(|said| said.accused == process || said.is_charged_by(process));
                self.voted_down.retain(|(by, _), _| *by != process);
                self.corrupt.remove(&process);
                self.epochs[usize::from(cell.0)] += 1;
            }
            Happens::Tick => {
                self.now += 1;
                self.judge(&mut detector);
            }
        }
        self.detector = detector.to_bytes();
        self.said.len() <= bounds.trials
    }

    /// The accuser accuses the present process of the cell.
    fn charge(&mut self, cell: CellId, now: Instant, detector: &mut Detector) {
        let (by, accused) = (self.process(ACCUSER), self.process(cell));
        let is_corrupt = self.voted_down.iter().any(|((of, _), times)| *of == by && *times >= 2);
        let accusation = detector.charge(by, accused, now);
        if self.corrupt.contains(&by) {
            assert_eq!(accusation, Accusation::Ignored, "sentenced once: {self:?}");
        } else if is_corrupt {
            assert_eq!(accusation, Accusation::OfCorrupt, "an accuser is judged: {self:?}");
            self.corrupt.insert(by);
            self.acquit(|said| said.is_charged_by(by));
        } else if self.is_tried(accused, |_| true) {
            assert_eq!(accusation, Accusation::Ignored, "tried once at a time: {self:?}");
        } else {
            let Accusation::Tried(number) = accusation else { panic!("not tried: {self:?}") };
            self.begin(number, accused, Some((by, [0, 0])));
        }
    }

    fn is_tried(&self, accused: Process, how: impl Fn(&Said) -> bool) -> bool {
        self.said.values().any(|said| said.accused == accused && !said.is_over && how(said))
    }

    fn begin(&mut self, number: u64, accused: Process, charge: Option<(Process, [u32; 2])>) {
        // A trial of the cell that was under way is over with it.
        self.acquit(|said| said.accused.0 == accused.0);
        let (asked, answered) = Default::default();
        let began = self.now;
        let said = Said { accused, began, asked, answered, charge, is_over: false };
        assert!(self.said.insert(number, said).is_none(), "numbers are new");
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
            let is_due = match &said.charge {
                None => began + PROBE_WAIT <= now,
                Some((_, turns)) => turns.iter().all(|turns| *turns >= TURNS_ENOUGH),
            };
            if !is_due {
                continue;
            }
            said.is_over = true;
            let (asked, lives) = (said.asked.len() as u32, said.answered.len() as u32);
            let verdict = |why, hangs, voices| Verdict::Hangs { why, hangs, voices };
            let verdict = match &said.charge {
                None if 1 + asked >= 2 * lives => {
                    verdict(Hint::Stopped, 1 + asked - lives, 1 + asked)
                }
                None => continue,
                Some(_) if lives == 0 => verdict(Hint::Silent, 1 + asked, 1 + asked),
                Some((by, _)) => {
                    *self.voted_down.entry((*by, said.accused.0)).or_default() += 1;
                    continue;
                }
            };
            wanted.push((said.accused, verdict, began));
        }
        wanted.sort_by_key(|(process, ..)| *process);
        assert_eq!(detector.verdicts(now), wanted, "{self:?}");
    }
}

/// Visits all states.
fn explore(bounds: Bounds) {
    let first = World::first(bounds.cells);
    let (mut seen, mut left) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(world) = left.pop() {
        for happens in world.next(bounds) {
            let mut next = world.clone();
            if next.apply(happens, bounds) && seen.insert(next.clone()) {
                left.push(next);
            }
        }
    }
    let states = seen.len();
    assert!(states > bounds.least_states, "{} cells have {states} states", bounds.cells);
}

#[test]
fn every_verdict_of_three_to_five_cells_follows_from_what_was_said() {
    for (cells, trials, least_states) in [(3, 2, 20_000), (4, 1, 1_000), (5, 1, 5_000)] {
        explore(Bounds { cells, trials, hints: true, charges: false, least_states });
    }
}

#[test]
fn every_accusation_is_judged() {
    for (cells, trials, hints, least_states) in
        [(2, 3, false, 20_000), (3, 2, false, 20_000), (3, 1, true, 5_000)]
    {
        explore(Bounds { cells, trials, hints, charges: true, least_states });
    }
}
