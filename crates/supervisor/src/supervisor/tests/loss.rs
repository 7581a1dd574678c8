//! Cells that are lost, and their successors.

use std::time::Duration;

use super::*;

#[test]
fn a_cell_that_is_lost_at_any_time_gets_a_successor() {
    let client = ClientId(1);
    for turns in 0..60 {
        let mut world = World::serving(3, turns);
        world.changes = 1;
        world.connect(1);
        world.want();
        if turns % 3 == 0 {
            world.apply(Event::Hangup { client });
        }
        for _ in 0..turns {
            world.turn();
        }
        world.apply(Event::CellExited { cell: CellId(1), epoch: Epoch(0), by_itself: false });
        assert_eq!(world.epochs[1], EPOCH, "the exit of an earlier epoch is ignored");
        world.kill(CellId(1));
        let (cell, epoch) = (CellId(1), Epoch(2));
        let restart = Effect::Restart { cell, epoch, is_caretaker: false };
        assert!(!world.log.contains(&restart), "the others have not acknowledged");
        world.settle();
        assert!(world.log.contains(&restart), "after {turns} turns");
        let state = world.supervisor.status().cells[1].state;
        assert_eq!((state, world.supervisor.stage()), (CellState::Ready, Stage::Serving));
        assert_eq!(world.orders(|order| matches!(order, Order::Joined { .. })), 2);
        let is_known = !world.supervisor.status().clients.is_empty();
        assert_eq!(is_known, turns % 3 != 0, "after {turns} turns");
        let admitted = world.log.contains(&Effect::AdmitClient { client });
        assert!(admitted || !is_known, "after {turns} turns");
        world.checkpoint();
        assert_eq!(state_of(world.supervisor.ledger()), world.committed);
        world.apply(Event::Stop);
        world.settle();
        assert_eq!(world.exit(), Some(Ok(())), "after {turns} turns");
    }
}

/// A report that ends the fleet unless it is ignored.
fn broken(epoch: Epoch) -> Event {
    let from = CellId(1);
    let report = Report::BrokenLog { cell: from, errno: Errno::EIO };
    Event::Report { from, epoch, report }
}

#[test]
fn the_last_report_of_a_lost_cell_is_ignored() {
    let mut world = World::serving(3, 1);
    world.apply(Event::CellExited { cell: CellId(1), epoch: EPOCH, by_itself: false });
    assert_eq!(world.supervisor.status().cells[1].state, CellState::Lost);
    world.apply(broken(EPOCH));
    world.settle();
    assert_eq!(world.exit(), None);
}

#[test]
fn reports_of_an_earlier_epoch_are_ignored() {
    let mut world = World::serving(3, 1);
    world.kill(CellId(1));
    world.settle();
    assert_eq!(world.supervisor.status().cells[1].state, CellState::Ready);
    world.apply(broken(EPOCH));
    world.settle();
    assert_eq!(world.exit(), None);
    world.apply(broken(world.epochs[1]));
    world.settle();
    assert!(matches!(world.exit(), Some(Err(Failure::BrokenLog { .. }))));
}

#[test]
fn cells_that_are_lost_together_or_while_they_start_get_successors() {
    for seed in 0..100 {
        let mut world = World::serving(4, seed);
        world.connect(1);
        for kills in 1..8 {
            for _ in 0..world.rng.below(12) {
                world.turn();
            }
            let cell = CellId(world.rng.below(4) as u16);
            let is_lost = world.supervisor.status().cells[usize::from(cell.0)].state;
            if is_lost != CellState::Lost {
                world.kill(cell);
            }
            if kills == 4 {
                world.apply(Event::Stop);
            }
            if world.exit().is_some() || matches!(world.supervisor.stage(), Stage::Closing { .. }) {
                break;
            }
        }
        world.settle_successors();
        if let Some(result) = world.exit() {
            assert_eq!(result, Ok(()), "seed {seed}");
            continue;
        }
        let cells = world.supervisor.status().cells;
        assert!(cells.iter().all(|cell| cell.state == CellState::Ready), "seed {seed}");
    }
}

/// Each successor waits longer. The caretaker does not wait.
#[test]
fn a_cell_whose_successors_end_repeatedly_is_taken_out() {
    let (mut world, mut pauses) = (World::serving(2, 1), Vec::new());
    let (mut began, tries) = (None, crate::SUCCESSORS_MAX);
    for successor in 0..=tries {
        assert_eq!(world.exit(), None, "successor {successor}");
        world.sent[1].clear();
        world.kill(CellId(1));
        let ended = world.now;
        began.get_or_insert(ended);
        while let Some(event) = world.sent[0].pop_front() {
            world.apply(event);
        }
        let next = Epoch(2 + successor);
        while world.epochs[1] != next {
            world.now = world.wake().expect("it waits for the next try");
            world.apply(Event::Tick);
        }
        pauses.push((world.now - ended).as_millis());
    }
    assert_eq!(pauses[..9], [0, 10, 20, 40, 80, 160, 320, 640, 1000]);
    assert_eq!((pauses[11], pauses[12], pauses.len()), (1000, 0, 13));
    assert_eq!((world.now - began.expect("killed")).as_secs(), 5);
    let (cell, epoch) = (CellId(1), Epoch(2 + tries));
    assert!(world.log.contains(&Effect::Restart { cell, epoch, is_caretaker: true }));
    world.settle();
    assert_eq!((world.exit(), world.supervisor.status().taken_out.len()), (None, 1));
}

/// While a cell waits for its next successor, another cell gets one at once, and checkpoints go on
/// afterwards.
#[test]
fn a_pause_delays_no_other_cell() {
    let mut world = World::serving(3, 1);
    for _ in 0..3 {
        world.settle_successors();
        world.sent[1].clear();
        world.kill(CellId(1));
        world.sent[1].clear();
        while world.supervisor.status().cells[1].state == CellState::Lost {
            world.now = world.now + Duration::from_millis(1);
            world.apply(Event::Tick);
            while let Some(event) = world.sent_by([0, 2]) {
                world.apply(event);
            }
        }
        // Its successor ends before it is ready.
        world.sent[1].clear();
        world.kill(CellId(1));
    }
    world.kill(CellId(2));
    world.settle();
    let state = |world: &World, cell: usize| world.supervisor.status().cells[cell].state;
    assert_eq!((state(&world, 1), state(&world, 2)), (CellState::Lost, CellState::Ready));
    world.settle_successors();
    assert_eq!(state(&world, 1), CellState::Ready);
    let checkpoint = world.wake().expect("the next checkpoint");
    assert!(checkpoint > world.now && checkpoint <= world.now + CHECKPOINT_INTERVAL);
    let before = world.orders(|order| matches!(order, Order::Drain { .. }));
    world.now = checkpoint;
    world.apply(Event::Tick);
    assert!(world.orders(|order| matches!(order, Order::Drain { .. })) > before);
}

/// The last checkpoint is on the device, so a cell that is killed now has only ended sooner.
#[test]
fn a_cell_that_is_killed_while_cells_end_does_not_fail_the_stop() {
    for settled in [false, true] {
        let mut world = World::serving(2, 1);
        world.changes = 1;
        world.apply(Event::Stop);
        while !matches!(world.supervisor.stage(), Stage::Closing { .. }) {
            assert!(world.turn());
        }
        if settled {
            while let Some(&io) = world.ios.keys().next() {
                world.finish_io(io);
            }
        }
        world.sent[1].clear();
        world.kill(CellId(1));
        world.settle();
        assert_eq!(world.exit(), Some(Ok(())));
        let (ledger, _) = world.device.open();
        assert!(ledger.superblock().clean);
    }
}

/// A crash soon after a cell is ready counts like the end of a successor that was never ready. A
/// cell that is killed, or has served for a while, starts the count anew.
#[test]
fn a_cell_that_crashes_soon_after_it_is_ready_is_taken_out() {
    let (cell, tries) = (CellId(1), crate::SUCCESSORS_MAX);
    let crash = |world: &mut World, by_itself| {
        let epoch = world.epochs[1];
        world.apply(Event::CellExited { cell, epoch, by_itself });
        world.settle_successors();
    };
    let mut world = World::serving(2, 1);
    (0..3 * tries).for_each(|_| crash(&mut world, false));
    for _ in 0..3 * tries {
        world.now = world.now + crate::loss::SERVES_MIN;
        crash(&mut world, true);
    }
    for _ in 1..tries {
        crash(&mut world, true);
    }
    crash(&mut world, false);
    for attempt in 1..=tries {
        assert!(world.supervisor.status().taken_out.is_empty(), "attempt {attempt}");
        crash(&mut world, true);
    }
    assert_eq!(world.supervisor.status().taken_out.len(), 1);
    // Its caretakers crash too.
    for attempt in 1..=tries {
        assert_eq!(world.exit(), None, "attempt {attempt}");
        crash(&mut world, true);
    }
    assert_eq!(world.orders(|order| matches!(order, Order::Save)), 1);
    world.settle();
    assert_eq!(world.exit(), Some(Err(Failure::NoSuccessor { cell, tries })));
}

/// Before a fleet ends for lack of a successor, the other cells get time to write their dirty data.
#[test]
fn cells_save_their_dirty_data_before_a_fleet_ends() {
    let mut world = World::serving(3, 1);
    for _ in 0..=2 * crate::SUCCESSORS_MAX {
        world.sent[1].clear();
        world.kill(CellId(1));
        world.sent[1].clear();
        let is_lost = |world: &World| world.supervisor.status().cells[1].state == CellState::Lost;
        while is_lost(&world) && world.orders(|order| matches!(order, Order::Save)) == 0 {
            world.now = world.now + Duration::from_millis(1);
            world.apply(Event::Tick);
            while let Some(event) = world.sent_by([0, 2]) {
                world.apply(event);
            }
        }
    }
    assert_eq!(world.orders(|order| matches!(order, Order::Save)), 2);
    assert_eq!(world.orders(|order| matches!(order, Order::Stop)), 0);
    // Cell 0 hangs.
    world.sent[0].clear();
    while let Some(event) = world.sent_by([2, 2]) {
        world.apply(event);
    }
    let end = world.now + crate::supervisor::SAVE_WAIT;
    world.now = world.now + crate::supervisor::SAVE_WAIT / 2;
    world.apply(Event::Tick);
    assert_eq!(world.exit(), None);
    world.now = end;
    world.apply(Event::Tick);
    assert!(matches!(world.exit(), Some(Err(Failure::NoSuccessor { .. }))));
}
