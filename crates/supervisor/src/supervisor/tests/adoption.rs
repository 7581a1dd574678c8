//! Deadlines that passed, and flushes that failed, while there was no supervisor.

use super::*;

/// Cell 1 sends no reports.
fn settle_without_cell_1(world: &mut World) {
    world.sent[1].clear();
    while world.turn() {
        world.sent[1].clear();
    }
}

/// Another supervisor takes over, and all events but ticks are delivered to it.
fn adopt(world: &mut World) {
    world.log.clear();
    let effects = world.adopt();
    world.carry_out(effects);
    settle_without_cell_1(world);
}

#[test]
fn a_cell_that_hangs_is_found_although_its_time_was_up_before_the_takeover() {
    let mut world = World::serving(2, 1);
    world.apply(Event::Stop);
    settle_without_cell_1(&mut world);
    for patience in [STOP_MAX, STOP_WAIT] {
        assert_eq!(world.exit(), None);
        world.now = world.now + 2 * patience;
        adopt(&mut world);
        let wake = world.wake().expect("it requests a tick");
        assert!(wake <= world.now, "no other event follows");
        world.apply(Event::Tick);
        settle_without_cell_1(&mut world);
    }
    assert_eq!(world.exit(), Some(Err(Failure::CellHangs { cell: CellId(1) })));
}

/// The process of the supervisor dies during the last flush of a checkpoint. The superblock can be
/// read, but the flush of the successor fails: it is unknown whether the superblock is durable.
fn adopt_after_failed_flush(world: &mut World) {
    while !world.io_log.ends_with(&["superblock", "flush"]) {
        assert!(world.turn(), "{:?}", world.io_log);
    }
    let record = world.supervisor.record();
    world.ios.clear();
    world.device.flush(world.device.cached.len());
    let (ledger, copies) = world.device.open();
    let predecessor = Predecessor { record: &record, ledger, copies, flushed: Err(Errno::EIO) };
    let mut effects = Vec::new();
    let adopted = Supervisor::adopt(predecessor, world.now, Timestamp(0), &mut effects);
    world.supervisor = adopted.expect("its own record");
    world.io_log.clear();
    world.carry_out(effects);
    world.settle();
}

#[test]
fn a_checkpoint_whose_flush_failed_without_a_supervisor_does_not_count() {
    for stops in [false, true] {
        let mut world = World::serving(2, 5);
        world.changes = 1;
        if stops {
            world.apply(Event::Stop);
        } else {
            world.want();
        }
        adopt_after_failed_flush(&mut world);
        assert_eq!(world.orders(|order| matches!(order, Order::Switched { .. })), 0);
        assert_eq!((world.failed(), world.supervisor.status().broken), (2, Some(Errno::EIO)));
        let failure = Failure::LastCheckpoint { errno: Errno::EIO };
        assert_eq!(world.exit(), stops.then_some(Err(failure)));
    }
}

#[test]
fn an_opening_whose_flush_failed_without_a_supervisor_ends_the_fleet() {
    let mut world = World::new(2, 5);
    for cell in [0, 1].map(CellId) {
        let report = Report::Ready { cell, epoch: EPOCH, map: MapVersion(1) };
        world.apply(Event::Report { from: cell, epoch: EPOCH, report });
    }
    adopt_after_failed_flush(&mut world);
    assert_eq!(world.exit(), Some(Err(Failure::Opening { errno: Errno::EIO })));
    assert!(!world.log.contains(&Effect::FleetReady));
    // The blocks of the earlier superblock are not overwritten.
    assert!(!world.io_log.contains(&"write"), "{:?}", world.io_log);
}
