//! Cells that hang, or are said to.

use std::time::Duration;

use super::*;
use crate::detector::{PROBE_WAIT, TURNS};
use crate::{Cause, Hint, Misdeed, Verdict};

const A: CellId = CellId(0);
const B: CellId = CellId(1);
const C: CellId = CellId(2);

impl World {
    fn hangs(&mut self, cell: CellId) {
        let epoch = self.epochs[usize::from(cell.0)];
        self.apply(Event::Hangs { cell, epoch, why: Hint::Stopped });
    }

    /// The cells that were asked to probe this one, and the number of the trial.
    fn asked_for(&self, accused: CellId) -> (Vec<CellId>, u64) {
        let mut trial = 0;
        let asked = self.log.iter().filter_map(|effect| match effect {
            Effect::Send { to, order: Order::Probe { cell, trial: number } }
                if *cell == accused =>
            {
                trial = *number;
                Some(*to)
            }
            _ => None,
        });
        (asked.collect(), trial)
    }

    fn says(&mut self, by: CellId, report: Report) {
        let epoch = self.epochs[usize::from(by.0)];
        self.apply(Event::Report { from: by, epoch, report });
    }

    /// The processes that were killed.
    fn killed(&self) -> Vec<(CellId, Epoch, Verdict)> {
        let killed = self.log.iter().filter_map(|effect| match effect {
            Effect::Kill { cell, epoch, verdict } => Some((*cell, *epoch, *verdict)),
            _ => None,
        });
        killed.collect()
    }

    /// The processes that were resumed.
    fn resumed(&self) -> Vec<(CellId, Epoch)> {
        let resumed = self.log.iter().filter_map(|effect| match effect {
            Effect::Resume { cell, epoch } => Some((*cell, *epoch)),
            _ => None,
        });
        resumed.collect()
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.apply(Event::Tick);
    }
}

#[test]
fn a_cell_that_hangs_is_asked_by_all_others_and_then_killed() {
    let mut world = World::serving(3, 1);
    world.hangs(B);
    let (asked, trial) = world.asked_for(B);
    assert_eq!(asked, [A, C]);
    assert!(world.log.iter().any(|it| *it == Effect::Wake(world.now + PROBE_WAIT)));
    // One answers for the accused, and the other has not even asked.
    world.says(A, Report::Asked { trial });
    world.says(A, Report::Answered { trial });
    world.wait(PROBE_WAIT);
    let verdict = Verdict::Hangs { why: Hint::Stopped, hangs: 1, voices: 2 };
    assert_eq!(world.killed(), [(B, EPOCH, verdict)]);
    world.kill(B);
    world.settle_successors();
    let fault = world.supervisor.status().faults[0];
    assert_eq!((fault.cell, fault.epoch, fault.cause), (B, EPOCH, Cause::Verdict(verdict)));
    assert_eq!(fault.gone - fault.noticed, PROBE_WAIT);
    assert!(fault.started.is_some() && fault.served.is_some());
}

#[test]
fn a_cell_that_answers_most_or_moves_is_not_killed() {
    let mut world = World::serving(3, 1);
    world.hangs(B);
    let (_, trial) = world.asked_for(B);
    for by in [A, C] {
        world.says(by, Report::Asked { trial });
        world.says(by, Report::Answered { trial });
    }
    world.wait(PROBE_WAIT);
    world.hangs(B);
    world.apply(Event::Moves { cell: B, epoch: EPOCH });
    world.wait(PROBE_WAIT);
    assert_eq!(world.killed(), []);
}

#[test]
fn only_a_process_that_runs_is_tried() {
    let mut world = World::serving(2, 1);
    world.apply(Event::Hangs { cell: B, epoch: Epoch(9), why: Hint::Stopped });
    assert_eq!(world.asked_for(B).0, []);
    world.hangs(B);
    world.kill(B);
    world.settle_successors();
    world.wait(PROBE_WAIT);
    assert_eq!(world.killed(), [], "its successor has not been accused");
    // Before the fleet serves, the end of a cell would be its end.
    let mut world = World::new(2, 1);
    world.hangs(B);
    assert_eq!(world.asked_for(B).0, []);
}

#[test]
fn a_stopped_cell_that_would_have_no_successor_is_resumed() {
    let mut world = World::serving(3, 1);
    world.apply(Event::FlushFailed { errno: Errno::EIO });
    world.settle();
    for why in [Hint::Computes, Hint::Sleeps] {
        world.apply(Event::Hangs { cell: B, epoch: EPOCH, why });
    }
    world.apply(Event::Hangs { cell: B, epoch: Epoch(9), why: Hint::Stopped });
    assert_eq!(world.resumed(), [], "it is not stopped, or another process");
    world.hangs(B);
    world.wait(PROBE_WAIT);
    assert_eq!(world.resumed(), [(B, EPOCH)]);
    assert_eq!((world.asked_for(B).0, world.killed()), (vec![], vec![]));
    // Nor while checkpoints fail.
    let mut world = World::serving(3, 1);
    world.lie = Some(Err(Errno::EIO));
    world.wait(CHECKPOINT_INTERVAL);
    world.settle();
    world.hangs(B);
    world.wait(PROBE_WAIT);
    assert_eq!((world.resumed(), world.killed()), (vec![(B, EPOCH)], vec![]));
    world.wait(CHECKPOINT_INTERVAL);
    world.settle();
    world.hangs(B);
    world.wait(PROBE_WAIT);
    assert_eq!(world.killed().len(), 1, "the device works again");
    // A first process has no successor before the fleet serves.
    let mut world = World::new(2, 1);
    world.hangs(B);
    assert_eq!(world.resumed(), [(B, EPOCH)]);
}

#[test]
fn a_fleet_that_becomes_read_only_during_a_trial_kills_no_cell() {
    for why in [Hint::Stopped, Hint::Sleeps] {
        let mut world = World::serving(3, 1);
        world.apply(Event::Hangs { cell: B, epoch: EPOCH, why });
        world.apply(Event::FlushFailed { errno: Errno::EIO });
        world.settle();
        world.wait(PROBE_WAIT);
        assert_eq!(world.killed(), []);
        let is_stopped = why == Hint::Stopped;
        assert_eq!(world.resumed(), if is_stopped { vec![(B, EPOCH)] } else { vec![] });
    }
}

#[test]
fn the_next_supervisor_begins_no_trial_again() {
    let mut world = World::serving(3, 1);
    world.hangs(B);
    let effects = world.adopt();
    world.carry_out(effects);
    world.wait(PROBE_WAIT);
    assert_eq!(world.killed(), [], "the new watch has not seen that it stands still");
    world.hangs(B);
    world.wait(PROBE_WAIT);
    assert_eq!(world.killed().len(), 1);
}

#[test]
fn a_cell_with_which_the_driver_cannot_work_is_killed_for_that() {
    let mut world = World::serving(2, 1);
    world.apply(Event::Misbehaves { cell: B, epoch: EPOCH, how: Misdeed::Message });
    let verdict = Verdict::Misbehaves { how: Misdeed::Message };
    assert_eq!(world.killed(), [(B, EPOCH, verdict)]);
    world.kill(B);
    world.settle_successors();
    assert_eq!(world.supervisor.status().faults[0].cause, Cause::Verdict(verdict));
}

/// An accusation of B by A, in which these have an answer. Both turn as often as it takes.
fn accuse(world: &mut World, answering: &[CellId]) {
    world.says(A, Report::Silent { cell: B });
    let (_, trial) = world.asked_for(B);
    for by in answering {
        world.says(*by, Report::Asked { trial });
        world.says(*by, Report::Answered { trial });
    }
    for cell in [A, B].into_iter().cycle().take(2 * TURNS as usize) {
        world.apply(Event::Turns { cell, epoch: EPOCH });
    }
}

#[test]
fn a_cell_that_answers_none_is_killed_after_an_accusation() {
    let mut world = World::serving(3, 1);
    accuse(&mut world, &[]);
    let (asked, _) = world.asked_for(B);
    assert_eq!(asked, [A, B, C], "the accused and the accuser are asked too");
    let verdict = Verdict::Hangs { why: Hint::Silent, hangs: 1, voices: 1 };
    assert_eq!(world.killed(), [(B, EPOCH, verdict)]);
}

#[test]
fn a_false_accuser_is_ended_at_its_third_accusation() {
    let mut world = World::serving(3, 1);
    for _ in 0..2 {
        accuse(&mut world, &[B]);
        assert_eq!(world.killed(), []);
    }
    assert_eq!(world.supervisor.detector().voted_down((A, EPOCH)), 2);
    accuse(&mut world, &[B]);
    assert_eq!(world.killed(), [(A, EPOCH, Verdict::VotedDown { of: B })]);
    world.kill(A);
    world.settle_successors();
    let process = (A, world.epochs[0]);
    assert_eq!(world.supervisor.detector().voted_down(process), 0, "its successor begins anew");
}

#[test]
fn an_accusation_of_a_cell_that_does_not_exist_changes_nothing() {
    let mut world = World::serving(2, 1);
    for cell in [A, CellId(2), CellId(u16::MAX)] {
        world.says(A, Report::Silent { cell });
        assert_eq!(world.asked_for(cell).0, []);
    }
}

#[test]
fn a_cell_that_has_lost_a_wake_up_is_replaced() {
    let mut world = World::serving(2, 1);
    world.says(B, Report::LostWakeup);
    assert_eq!(world.killed(), [(B, EPOCH, Verdict::LostWakeup)]);
    world.kill(B);
    world.settle_successors();
    let cause = Cause::Verdict(Verdict::LostWakeup);
    assert_eq!(world.supervisor.status().faults[0].cause, cause);
}
