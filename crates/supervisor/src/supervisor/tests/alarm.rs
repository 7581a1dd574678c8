//! Cells that accuse each other.

use warren_proto::control::Suspicion;

use super::*;
use crate::alarm::ALARM_WINDOW;
use crate::{ALARMS_MAX, Verdict};

const A: CellId = CellId(0);
const B: CellId = CellId(1);
const C: CellId = CellId(2);
const WHY: Suspicion = Suspicion::Record;

impl World {
    fn epoch_of(&self, cell: CellId) -> Epoch {
        self.epochs[usize::from(cell.0)]
    }

    /// A cell accuses a process of another cell. Returns the cells that are killed for it.
    fn accuse(&mut self, by: CellId, of: CellId, epoch: Epoch) -> Vec<(CellId, Verdict)> {
        let seen = self.log.len();
        let report = Report::Suspect { cell: of, epoch, why: WHY };
        self.apply(Event::Report { from: by, epoch: self.epoch_of(by), report });
        let ended = self.log[seen..].iter().filter_map(|effect| match effect {
            Effect::Kill { cell, epoch, verdict } => {
                assert_eq!(*epoch, self.epochs[usize::from(cell.0)]);
                Some((*cell, *verdict))
            }
            _ => None,
        });
        ended.collect()
    }

    fn accuse_now(&mut self, by: CellId, of: CellId) -> Vec<(CellId, Verdict)> {
        self.accuse(by, of, self.epoch_of(of))
    }

    fn replace(&mut self, cell: CellId) {
        self.kill(cell);
        self.settle_successors();
    }
}

const fn accused(by: CellId) -> Verdict {
    Verdict::Accused { by, why: WHY }
}

const fn again(of: CellId) -> Verdict {
    Verdict::AccusesAgain { of, why: WHY }
}

#[test]
fn the_first_alarm_of_a_process_ends_the_accused_and_each_further_one_the_accuser() {
    let mut world = World::serving(3, 1);
    assert_eq!(world.accuse_now(A, B), [(B, accused(A))]);
    // Before it is gone, another cell may find the same damage, and the accused may accuse.
    assert_eq!(world.accuse_now(C, B), []);
    assert_eq!(world.accuse_now(B, C), []);
    world.replace(B);
    assert_eq!(world.accuse_now(A, C), [(A, again(C))]);
    assert_eq!(world.accuse_now(A, B), [], "it is being ended");
    world.replace(A);
    // Its successor has accused no cell yet.
    assert_eq!(world.accuse_now(A, C), [(C, accused(A))]);
    world.replace(C);
    let states: Vec<_> = world.supervisor.status().cells.iter().map(|cell| cell.state).collect();
    assert_eq!(states, [CellState::Ready; 3]);
    assert_eq!(world.supervisor.stage(), Stage::Serving);
}

#[test]
fn an_alarm_against_a_process_that_does_not_run_ends_no_cell() {
    let mut world = World::serving(2, 1);
    let first = world.epoch_of(B);
    assert_eq!(world.accuse(A, CellId(60), first), []);
    assert_eq!(world.accuse(A, B, Epoch(9)), []);
    assert_eq!(world.accuse(A, A, first), []);
    world.kill(B);
    assert_eq!(world.accuse(A, B, first), [], "it is lost");
    world.settle_successors();
    assert_eq!(world.accuse(A, B, first), [], "its successor has done nothing");
    assert_eq!(world.accuse_now(A, B), [(B, accused(A))]);
    world.replace(B);
    world.apply(Event::Stop);
    world.settle();
    assert_eq!(world.exit(), Some(Ok(())));
}

#[test]
fn an_alarm_counts_for_the_window() {
    let mut world = World::serving(2, 1);
    for _ in 0..3 * ALARMS_MAX {
        assert_eq!(world.accuse_now(A, B), [(B, accused(A))]);
        world.replace(B);
        world.now = world.now + ALARM_WINDOW;
    }
    assert_eq!(world.exit(), None);
}

#[test]
fn cells_that_accuse_each_other_repeatedly_end_the_fleet() {
    let mut world = World::serving(2, 1);
    for alarm in 1..ALARMS_MAX {
        let ended = world.accuse_now(A, B);
        assert_eq!(ended, [if alarm % 2 == 1 { (B, accused(A)) } else { (A, again(B)) }]);
        world.replace(ended[0].0);
    }
    assert_eq!(world.accuse_now(A, B), []);
    assert_eq!(world.orders(|order| matches!(order, Order::Save)), 2);
    world.settle();
    let alarms = ALARMS_MAX as u32;
    let failure = Failure::Alarms { by: A, of: B, alarms, why: WHY };
    assert_eq!(world.exit(), Some(Err(failure)));
}

#[test]
fn a_supervisor_that_takes_over_keeps_the_alarms() {
    let mut world = World::serving(3, 1);
    assert_eq!(world.accuse_now(A, B), [(B, accused(A))]);
    let effects = world.adopt();
    world.carry_out(effects);
    assert_eq!(world.accuse_now(C, B), []);
    world.replace(B);
    assert_eq!(world.accuse_now(A, C), [(A, again(C))]);
}
