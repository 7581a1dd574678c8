//! A pool that grows while its fleet serves.

use super::*;

/// Blocks of a pool of so many chunks.
const fn of_chunks(chunks: u64) -> u64 {
    chunks * CHUNK_BLOCKS
}

impl World {
    fn blocks(&self) -> u64 {
        self.supervisor.ledger().superblock().layout.total_blocks()
    }

    /// The outcomes of the growths so far.
    fn grown(&self) -> Vec<Result<(), Errno>> {
        let grown = |effect: &Effect| match effect {
            Effect::Grown { result } => Some(*result),
            _ => None,
        };
        self.log.iter().filter_map(grown).collect()
    }

    /// The new chunks that cells got.
    fn chunks_shared(&self) -> Vec<u64> {
        let runs = |effect: &Effect| match effect {
            Effect::Send { order: Order::Grown { runs, .. }, .. } => Some(runs.clone()),
            _ => None,
        };
        let runs = self.log.iter().filter_map(runs).flatten();
        let mut chunks: Vec<u64> = runs.flat_map(|(first, count)| first..first + count).collect();
        chunks.sort_unstable();
        chunks
    }
}

#[test]
fn a_crash_while_a_pool_grows_leaves_it_with_the_old_or_the_new_size() {
    let (mut kept, mut grew) = (0, 0);
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let (mut device, mut asked) = (Device::new(), 128);
        for _ in 0..6 {
            let mut world = World::on(device, 1 + rng.below(4) as u16, rng.next_u64());
            world.changes = rng.below(8);
            world.faults = rng.chance(1, 3).then_some((12, 40));
            world.deaths = rng.chance(1, 2).then_some(8);
            world.start();
            let before = world.blocks();
            let mut sizes = vec![before];
            for _ in 0..rng.below(120) {
                if rng.chance(1, 20) {
                    // The last page of the map, or several more, has the new chunks.
                    asked += *rng.pick(&[1, 10, 1000, 2032, 5000]);
                    world.apply(Event::Grow { blocks: of_chunks(asked) });
                    sizes.push(of_chunks(asked));
                } else if rng.chance(1, 10) || !world.turn() {
                    world.want();
                }
            }
            let (least, outcomes) = (world.blocks(), world.grown());
            device = world.crash(seed);
            let found = device.open().0.superblock().layout.total_blocks();
            assert!(sizes.contains(&found) && found >= least, "seed {seed}");
            assert!(found == before || sizes.len() > 1, "seed {seed}");
            kept += u32::from(sizes.len() > 1 && found == before);
            grew += u32::from(found > before && !outcomes.contains(&Ok(())));
        }
    }
    assert!(kept > 20 && grew > 20, "{kept} kept their size, {grew} grew without an answer");
}

#[test]
fn a_pool_grows_with_a_checkpoint_and_all_cells_share_the_new_chunks() {
    let mut world = World::serving(3, 1);
    world.changes = 0;
    world.apply(Event::Grow { blocks: of_chunks(4200) });
    assert!(world.grown().is_empty());
    world.settle();
    assert_eq!((world.blocks(), world.grown()), (of_chunks(4200), vec![Ok(())]));
    assert_eq!(world.orders(|order| *order == Order::Grow { blocks: of_chunks(4200) }), 3);
    let place = |wanted: fn(&Order) -> bool| {
        let is_it = |effect: &Effect| matches!(effect, Effect::Send { order, .. } if wanted(order));
        world.log.iter().position(is_it).expect("sent")
    };
    let announced = place(|order| matches!(order, Order::Grow { .. }));
    let drained = place(|order| matches!(order, Order::Drain { .. }));
    assert!(announced < drained && drained < place(|order| matches!(order, Order::Grown { .. })));
    // Two of the new chunks hold pages of the map.
    let expected: Vec<u64> = (128..4200).filter(|chunk| ![2032, 4064].contains(chunk)).collect();
    assert_eq!(world.chunks_shared(), expected);
    let kept = world.supervisor.ledger().superblock().kept_chunks() / 3;
    let tells = |order: &Order| matches!(order, Order::Grown { reserve, .. } if *reserve == kept);
    assert_eq!(world.orders(tells), 3);
    // A client whose supervisor has died asks again.
    world.apply(Event::Grow { blocks: of_chunks(4200) });
    assert_eq!(world.grown(), [Ok(()), Ok(())]);
    for not_larger in [0, of_chunks(128), of_chunks(4200) + 1, u64::MAX] {
        world.apply(Event::Grow { blocks: not_larger });
        assert_eq!(world.grown().pop(), Some(Err(Errno::EINVAL)), "{not_larger}");
    }
    world.settle();
    assert_eq!(world.blocks(), of_chunks(4200));
    assert_eq!(world.device.open().0.superblock().layout.total_blocks(), of_chunks(4200));
}

#[test]
fn a_pool_grows_although_cells_are_lost() {
    // At each point: before the cells have drained, while they share, and in between.
    let mut lost_while_sharing = 0;
    for turns in 0..30 {
        let mut world = World::serving(3, turns);
        world.apply(Event::Grow { blocks: of_chunks(3000) });
        for _ in 0..turns {
            world.turn();
        }
        lost_while_sharing += u64::from(world.blocks() == of_chunks(3000));
        world.kill(CellId(1));
        world.settle_successors();
        assert_eq!((world.blocks(), world.grown()), (of_chunks(3000), vec![Ok(())]), "{turns}");
    }
    assert!((1..30).contains(&lost_while_sharing));
}

#[test]
fn a_pool_whose_checkpoint_fails_keeps_its_size() {
    let mut world = World::serving(2, 1);
    world.lie = Some(Err(Errno::EIO));
    world.apply(Event::Grow { blocks: of_chunks(300) });
    assert_eq!(world.orders(|order| matches!(order, Order::Grow { .. })), 2);
    world.apply(Event::Grow { blocks: of_chunks(301) });
    assert_eq!(world.grown(), [Err(Errno::EBUSY)], "another growth is under way");
    world.settle();
    assert_eq!((world.blocks(), world.grown().pop()), (of_chunks(128), Some(Err(Errno::EIO))));
    world.apply(Event::Grow { blocks: of_chunks(300) });
    world.settle();
    assert_eq!((world.blocks(), world.grown().pop()), (of_chunks(300), Some(Ok(()))));
}
