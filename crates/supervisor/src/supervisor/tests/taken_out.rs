//! Cells that are taken out, and taken in again.

use super::*;

const OUT: CellId = CellId(1);

/// A fleet of three cells, one of which is out.
fn world() -> World {
    let mut world = World::serving(3, 1);
    break_down(&mut world);
    world
}

/// Processes of the cell crash until it is taken out.
fn break_down(world: &mut World) {
    for _ in 0..crate::SUCCESSORS_MAX {
        let epoch = world.epochs[usize::from(OUT.0)];
        world.apply(Event::CellExited { cell: OUT, epoch, by_itself: true });
        world.settle_successors();
    }
}

fn shards_of_the_cell(world: &World) -> usize {
    world.supervisor.status().cells[usize::from(OUT.0)].shards
}

#[test]
fn the_other_cells_go_on_and_place_nothing_there() {
    let mut world = world();
    let shards = shards_of_the_cell(&world);
    assert!(shards > 0);
    let named = world.orders(|order| matches!(order, Order::GivenUp { .. }));
    assert_eq!(named, 2 * shards);
    world.changes = 1;
    world.checkpoint();
    assert_eq!(state_of(world.supervisor.ledger()), world.committed);
    // A successor of another cell gets the same orders.
    world.kill(CellId(2));
    world.settle_successors();
    assert_eq!(world.orders(|order| matches!(order, Order::GivenUp { .. })), 3 * shards);
}

#[test]
fn a_stop_that_would_lose_data_is_refused() {
    let mut world = world();
    for event in [Event::TryCheckpoint, Event::TryStop] {
        world.log.clear();
        world.apply(event);
        world.settle();
        assert!(world.log.contains(&Effect::StopRefused { errno: Errno::EUCLEAN }));
        assert_eq!(world.supervisor.stage(), Stage::Serving);
    }
}

#[test]
fn a_fleet_that_ends_without_the_cell_leaves_its_log_to_be_replayed() {
    for (event, outcome) in
        [(Event::Stop, Err(Failure::TakenOut { cell: OUT })), (Event::GiveUp, Ok(()))]
    {
        let mut world = world();
        world.changes = 1;
        world.apply(event);
        world.settle();
        assert_eq!(world.exit(), Some(outcome));
        let (ledger, _) = world.device.open();
        assert!(!ledger.superblock().clean);
    }
}

#[test]
fn a_cell_that_is_taken_in_again_is_as_any_other() {
    let mut world = world();
    let shards = shards_of_the_cell(&world);
    let caretaker = world.epochs[usize::from(OUT.0)];
    world.apply(Event::Rejoin { cell: OUT });
    let verdict = Verdict::Rejoins;
    assert!(world.log.contains(&Effect::Kill { cell: OUT, epoch: caretaker, verdict }));
    assert!(world.supervisor.status().taken_out[0].returns);
    world.apply(Event::CellExited { cell: OUT, epoch: caretaker, by_itself: false });
    world.settle_successors();
    let epoch = Epoch(caretaker.0 + 1);
    assert!(world.log.contains(&Effect::Restart { cell: OUT, epoch, is_caretaker: false }));
    assert!(world.supervisor.status().taken_out.is_empty());
    assert_eq!(world.orders(|order| matches!(order, Order::Served { .. })), 3 * shards);
    world.apply(Event::Stop);
    world.settle();
    assert_eq!(world.exit(), Some(Ok(())));
    let (ledger, _) = world.device.open();
    assert!(ledger.superblock().clean);
}

/// The whole row of tries is there for it again.
#[test]
fn a_cell_that_cannot_return_is_taken_out_again() {
    let mut world = world();
    let epoch = world.epochs[usize::from(OUT.0)];
    world.apply(Event::Rejoin { cell: OUT });
    world.apply(Event::CellExited { cell: OUT, epoch, by_itself: false });
    world.settle_successors();
    assert!(world.supervisor.status().taken_out.is_empty());
    break_down(&mut world);
    assert_eq!(world.supervisor.status().taken_out.len(), 1);
    assert_eq!(world.exit(), None);
}

/// Whatever the requests, and whenever: no effect on a cell that serves, or is returning.
#[test]
fn only_a_cell_that_is_out_is_taken_in() {
    let mut world = World::serving(3, 1);
    for cell in [OUT, CellId(9)] {
        world.log.clear();
        world.apply(Event::Rejoin { cell });
        assert_eq!(world.log, []);
    }
    break_down(&mut world);
    world.apply(Event::Rejoin { cell: OUT });
    world.log.clear();
    world.apply(Event::Rejoin { cell: OUT });
    assert_eq!(world.log, []);
}
