//! Stops that are refused, and those that are not; when cells are told that nothing is kept any more.

use super::*;

fn refusals(world: &World) -> usize {
    let is_refusal = |effect: &&Effect| matches!(effect, Effect::StopRefused { .. });
    world.log.iter().filter(is_refusal).count()
}

#[test]
fn a_stop_that_would_lose_something_is_refused_and_the_fleet_serves_on() {
    let mut world = World::serving(2, 1);
    world.connect(1);
    world.changes = 1;
    world.lie = Some(Err(Errno::ENOSPC));
    world.apply(Event::TryStop);
    world.settle();
    assert!(world.log.contains(&Effect::StopRefused { errno: Errno::ENOSPC }));
    assert_eq!((world.exit(), world.supervisor.stage()), (None, Stage::Serving));
    // No client was sent away, and when there is room it stops.
    assert!(!world.log.contains(&Effect::ForgetClient { client: ClientId(1) }));
    world.apply(Event::TryStop);
    world.settle();
    assert_eq!((world.exit(), refusals(&world)), (Some(Ok(())), 1));
    assert!(world.device.open().0.superblock().clean);
}

#[test]
fn who_gives_up_what_a_last_checkpoint_lacks_ends_the_fleet_without_a_failure() {
    let mut world = World::serving(2, 1);
    world.lie = Some(Err(Errno::ENOSPC));
    world.apply(Event::GiveUp);
    world.settle();
    assert_eq!((world.exit(), refusals(&world)), (Some(Ok(())), 0));
}

#[test]
fn after_a_failed_flush_all_cells_are_told_once_and_a_stop_is_refused() {
    let mut world = World::serving(3, 1);
    world.apply(Event::FlushFailed { errno: Errno::EIO });
    world.apply(Event::FlushFailed { errno: Errno::EIO });
    world.settle();
    let order = Order::ReadOnly { errno: Errno::EIO };
    for to in (0..3).map(CellId) {
        let told = Effect::Send { to, order: order.clone() };
        assert_eq!(world.log.iter().filter(|effect| **effect == told).count(), 1);
    }
    assert!(world.supervisor.status().broken_since.is_some());
    world.apply(Event::TryStop);
    world.settle();
    assert_eq!((refusals(&world), world.supervisor.stage()), (1, Stage::Serving));
    world.apply(Event::GiveUp);
    world.settle();
    assert_eq!(world.exit(), Some(Ok(())));
}
