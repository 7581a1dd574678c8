//! Stops that are refused, and those that are not; the order to all cells to go read-only.

use super::*;

fn refusals(world: &World) -> usize {
    let is_refusal = |effect: &&Effect| matches!(effect, Effect::StopRefused { .. });
    world.log.iter().filter(is_refusal).count()
}

#[test]
fn a_stop_that_would_lose_data_is_refused_and_the_fleet_serves_on() {
    let mut world = World::serving(2, 1);
    world.connect(1);
    world.changes = 1;
    world.lie = Some(Err(Errno::ENOSPC));
    world.apply(Event::TryStop);
    world.settle();
    assert!(world.log.contains(&Effect::StopRefused { errno: Errno::ENOSPC }));
    assert_eq!((world.exit(), world.supervisor.stage()), (None, Stage::Serving));
    // No client was expelled, and when there is room the fleet stops.
    assert!(!world.log.contains(&Effect::ForgetClient { client: ClientId(1) }));
    world.apply(Event::TryStop);
    world.settle();
    assert_eq!((world.exit(), refusals(&world)), (Some(Ok(())), 1));
    assert!(world.device.open().0.superblock().clean);
}

fn count(world: &World, wanted: &Effect) -> usize {
    world.log.iter().filter(|effect| *effect == wanted).count()
}

#[test]
fn a_fleet_that_may_end_admits_no_front() {
    let mut world = World::serving(1, 1);
    world.changes = 1;
    world.lie = Some(Err(Errno::ENOSPC));
    world.apply(Event::TryStop);
    world.connect_as(true, 1);
    world.connect_as(false, 2);
    let refused =
        |number| Effect::RefuseClient { connection: ConnectionNo(number), errno: Errno::EAGAIN };
    assert!(world.log.contains(&refused(1)) && !world.log.contains(&refused(2)));
    world.settle();
    // The stop was refused.
    world.connect_as(true, 3);
    assert!(!world.log.contains(&refused(3)));
}

#[test]
fn a_trial_shows_whether_a_stop_would_fail_and_the_fleet_serves_on() {
    let mut world = World::serving(2, 1);
    world.connect(1);
    world.changes = 1;
    world.lie = Some(Err(Errno::ENOSPC));
    // Two requests while the checkpoint is under way are one trial.
    (0..2).for_each(|_| world.apply(Event::TryCheckpoint));
    world.settle();
    assert_eq!((refusals(&world), count(&world, &Effect::MayStop)), (1, 0));
    (0..2).for_each(|_| world.apply(Event::TryCheckpoint));
    world.settle();
    assert_eq!((refusals(&world), count(&world, &Effect::MayStop)), (1, 1));
    assert_eq!((world.exit(), world.supervisor.stage()), (None, Stage::Serving));
    assert!(!world.log.contains(&Effect::ForgetClient { client: ClientId(1) }));
    // A device that is known to fail needs no trial.
    world.apply(Event::FlushFailed { errno: Errno::EIO });
    world.apply(Event::TryCheckpoint);
    assert_eq!(refusals(&world), 2);
}

#[test]
fn a_stop_during_a_trial_ends_the_fleet_and_answers_the_trial() {
    for stop in [Event::TryStop, Event::Stop, Event::GiveUp] {
        let mut world = World::serving(2, 1);
        world.apply(Event::TryCheckpoint);
        world.apply(stop);
        world.settle();
        assert_eq!((world.exit(), refusals(&world)), (Some(Ok(())), 0));
        assert_eq!(count(&world, &Effect::MayStop), 1);
    }
}

#[test]
fn a_supervisor_that_takes_over_keeps_the_trial() {
    for fails in [false, true] {
        let mut world = World::serving(2, 1);
        world.changes = 1;
        world.lie = fails.then_some(Err(Errno::ENOSPC));
        world.apply(Event::TryCheckpoint);
        let effects = world.adopt();
        world.carry_out(effects);
        world.settle();
        let answers = (refusals(&world), count(&world, &Effect::MayStop));
        assert_eq!(answers, if fails { (1, 0) } else { (0, 1) });
        assert_eq!((world.exit(), world.supervisor.stage()), (None, Stage::Serving));
    }
}

/// A stop that may lose data is not refused because a trial of another caller has failed.
#[test]
fn a_trial_that_fails_does_not_refuse_a_stop_that_may_lose() {
    let mut world = World::serving(2, 1);
    world.changes = 1;
    world.lie = Some(Err(Errno::ENOSPC));
    world.apply(Event::TryCheckpoint);
    world.apply(Event::GiveUp);
    world.settle();
    assert_eq!((world.exit(), refusals(&world)), (Some(Ok(())), 0));
}

#[test]
fn an_accepted_loss_ends_the_fleet_without_a_failure() {
    let mut world = World::serving(2, 1);
    world.lie = Some(Err(Errno::ENOSPC));
    world.apply(Event::GiveUp);
    world.settle();
    assert_eq!((world.exit(), refusals(&world)), (Some(Ok(())), 0));
}

#[test]
fn after_a_failed_flush_all_cells_go_read_only_and_a_stop_is_refused() {
    let mut world = World::serving(3, 1);
    world.apply(Event::FlushFailed { errno: Errno::EIO });
    world.apply(Event::FlushFailed { errno: Errno::EIO });
    world.settle();
    let order = Order::ReadOnly { errno: Errno::EIO };
    for to in (0..3).map(CellId) {
        let sent = Effect::Send { to, order: order.clone() };
        assert_eq!(world.log.iter().filter(|effect| **effect == sent).count(), 1);
    }
    assert!(world.supervisor.status().broken_since.is_some());
    world.apply(Event::TryStop);
    world.settle();
    assert_eq!((refusals(&world), world.supervisor.stage()), (1, Stage::Serving));
    world.apply(Event::GiveUp);
    world.settle();
    assert_eq!(world.exit(), Some(Ok(())));
}
