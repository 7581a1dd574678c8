use std::collections::BTreeMap;

use super::*;
use crate::Owned;
use warren_base::{Rng, ShardId};

const SHAPE: Shape = Shape { shards: 2, files: 2, stripes: 2, ranges: 2 };
const A: ShardId = ShardId(0);
const B: ShardId = ShardId(1);

fn scheduler(limits: Limits) -> Scheduler<u32> {
    Scheduler::new(SHAPE, limits)
}

#[test]
fn affinities_that_are_not_excluded_run_in_parallel() {
    let mut scheduler = scheduler(Limits::default());
    let posted = [
        Affinity::Stripe(A, 0, 0),
        Affinity::Stripe(A, 0, 1),
        Affinity::File(A, 0),
        Affinity::Names(B),
        Affinity::Range(1),
        Affinity::Volume,
    ];
    for (message, affinity) in (0..).zip(posted) {
        scheduler.submit(affinity, message).unwrap();
    }
    let beside: Vec<u32> = std::iter::from_fn(|| scheduler.next()).map(|(_, m)| m).collect();
    assert_eq!(beside, [0, 1, 3, 4]);
    scheduler.done(posted[0]);
    assert_eq!(scheduler.next(), None, "the other stripe still excludes the file");
    scheduler.done(posted[1]);
    assert_eq!(scheduler.next(), Some((Affinity::File(A, 0), 2)));
    for affinity in [posted[2], posted[3], posted[4]] {
        assert_eq!(scheduler.next(), None);
        scheduler.done(affinity);
    }
    assert_eq!(scheduler.next(), Some((Affinity::Volume, 5)));
    assert_eq!((scheduler.queued, scheduler.running), (0, 1));
}

#[test]
fn a_quantum_ends_when_others_wait() {
    let mut scheduler = scheduler(Limits { quantum: 2, ..Limits::default() });
    let (busy, other) = (Affinity::Names(A), Affinity::Names(B));
    for message in 0..4 {
        scheduler.submit(busy, message).unwrap();
    }
    assert_eq!(scheduler.next(), Some((busy, 0)));
    assert_eq!(scheduler.again(busy), Some(1));
    assert_eq!(scheduler.again(busy), Some(2), "alone, it goes on");
    scheduler.submit(other, 9).unwrap();
    assert_eq!(scheduler.again(busy), None);
    scheduler.done(busy);
    assert_eq!(scheduler.next(), Some((other, 9)), "it went to the end of the line");
    scheduler.done(other);
    assert_eq!(scheduler.next(), Some((busy, 3)));
    assert_eq!(scheduler.again(busy), None);
}

#[test]
fn a_quantum_is_so_many_messages_while_others_wait() {
    let mut scheduler = scheduler(Limits { quantum: 2, ..Limits::default() });
    let (busy, other) = (Affinity::Names(A), Affinity::Names(B));
    for message in 0..3 {
        scheduler.submit(busy, message).unwrap();
    }
    scheduler.submit(other, 9).unwrap();
    assert_eq!(scheduler.next(), Some((busy, 0)));
    assert_eq!(scheduler.again(busy), Some(1));
    assert_eq!(scheduler.again(busy), None);
}

#[test]
fn the_fast_path_yields_to_whatever_is_in_its_way() {
    let mut scheduler = scheduler(Limits::default());
    let file = Affinity::File(A, 0);
    assert!(scheduler.try_run_now(file));
    assert!(!scheduler.try_run_now(file));
    assert!(!scheduler.try_run_now(Affinity::Serial));
    assert!(!scheduler.try_run_now(Affinity::Stripe(A, 0, 1)));
    assert!(scheduler.try_run_now(Affinity::File(A, 1)));
    scheduler.done(file);
    scheduler.submit(Affinity::Volume, 0).unwrap();
    assert!(!scheduler.try_run_now(file), "a waiting ancestor is not overtaken");
    scheduler.done(Affinity::File(A, 1));
    assert_eq!(scheduler.next(), Some((Affinity::Volume, 0)));
    scheduler.done(Affinity::Volume);
    scheduler.submit(file, 1).unwrap();
    assert!(!scheduler.try_run_now(Affinity::Names(A)), "nor is a waiting descendant");
    assert!(scheduler.try_run_now(Affinity::Names(B)));
}

#[test]
fn a_full_scheduler_gives_the_message_back() {
    let mut scheduler = scheduler(Limits { messages: 2, ..Limits::default() });
    scheduler.submit(Affinity::Serial, 0).unwrap();
    scheduler.submit(Affinity::Space, 1).unwrap();
    assert_eq!(scheduler.submit(Affinity::Space, 2), Err(Full(2)));
    assert_eq!(scheduler.next(), Some((Affinity::Serial, 0)));
    scheduler.submit(Affinity::Space, 2).unwrap();
    assert_eq!(scheduler.slab.len(), 2, "entries are used again");
}

/// Several threads on a random schedule, against the definition of exclusion and a plain queue for
/// each affinity. `Owned` panics if two runners conflict.
fn random_schedule(seed: u64) {
    let mut rng = Rng::new(seed);
    let limits = Limits {
        messages: 40,
        quantum: 1 + rng.below(4) as u32,
        passes: rng.below(6) as u32,
        scan: 1 + rng.below(30) as u32,
    };
    let affinities: Vec<Affinity> = SHAPE.affinities().collect();
    let (threads, mut submitting) = (1 + rng.below(6), 400);
    let mut scheduler = scheduler(limits);
    let mut owned = Owned::new(SHAPE, |_| Some(0u32));
    let mut running = Vec::new();
    let mut expected: BTreeMap<Affinity, std::collections::VecDeque<u32>> = BTreeMap::new();
    let mut handed_out = 0;
    while submitting > 0 || scheduler.queued > 0 || !running.is_empty() {
        if submitting > 0 && rng.chance(1, 2) {
            submitting -= 1;
            // Coarse ones are rarer, as in practice.
            let at = rng.below(affinities.len() as u64).max(rng.below(affinities.len() as u64));
            let affinity = affinities[at as usize];
            if scheduler.submit(affinity, submitting).is_ok() {
                expected.entry(affinity).or_default().push_back(submitting);
            } else {
                assert_eq!(scheduler.queued, 40, "seed {seed}");
            }
            continue;
        }
        if rng.chance(1, 2) && (running.len() as u64) < threads {
            if rng.chance(1, 4) {
                let affinity = *rng.pick(&affinities);
                if scheduler.try_run_now(affinity) {
                    running.push(owned.hand_out(affinity).expect("it has state"));
                }
            } else if let Some((affinity, message)) = scheduler.next() {
                assert_eq!(expected.get_mut(&affinity).unwrap().pop_front(), Some(message));
                running.push(owned.hand_out(affinity).expect("it has state"));
                handed_out += 1;
            } else {
                assert!(!running.is_empty() || scheduler.queued == 0, "stuck, seed {seed}");
            }
        } else if !running.is_empty() {
            let at = rng.below(running.len() as u64) as usize;
            let affinity = running[at].affinity();
            if let Some(message) = scheduler.again(affinity) {
                assert_eq!(expected.get_mut(&affinity).unwrap().pop_front(), Some(message));
                handed_out += 1;
            } else {
                scheduler.done(affinity);
                owned.give_back(running.swap_remove(at));
            }
        }
        for (at, one) in running.iter().enumerate() {
            let beside = &running[at + 1..];
            let excludes = |a: Affinity, b: Affinity| a.covers(b) || b.covers(a);
            let clash = beside.iter().find(|other| excludes(one.affinity(), other.affinity()));
            assert!(clash.is_none(), "seed {seed}: {one:?} beside {clash:?}");
        }
        assert_eq!(scheduler.running as usize, running.len());
    }
    assert!(expected.values().all(|queue| queue.is_empty()), "seed {seed}: messages left");
    assert!(handed_out > 0);
    let idle =
        |node: &Node| node.state == State::Idle && node.running_below + node.waiting_below == 0;
    assert!(scheduler.nodes.iter().all(idle), "seed {seed}: counts do not return to zero");
}

#[test]
fn exclusion_and_order_hold_on_random_schedules() {
    for seed in 0..400 {
        random_schedule(seed);
    }
}

/// Three threads have endless fine work. A coarse message must run after a bounded number of
/// starts.
#[test]
fn coarse_affinities_do_not_starve() {
    for (seed, coarse) in
        (0..50).zip([Affinity::Serial, Affinity::Volume, Affinity::Names(A)].iter().cycle())
    {
        let mut rng = Rng::new(seed);
        let limits = Limits { passes: 8, ..Limits::default() };
        let mut scheduler = scheduler(limits);
        let fine: Vec<_> =
            SHAPE.affinities().filter(|a| matches!(a, Affinity::Stripe(..))).collect();
        let mut running = Vec::new();
        let mut starts_since = 0;
        scheduler.submit(fine[0], 0).unwrap();
        running.extend(scheduler.next().map(|(affinity, _)| affinity));
        scheduler.submit(*coarse, 1).unwrap();
        loop {
            for affinity in &fine {
                if scheduler.queued < 30 {
                    scheduler.submit(*affinity, 0).unwrap();
                }
            }
            while running.len() < 3 {
                let Some((affinity, message)) = scheduler.next() else { break };
                running.push(affinity);
                starts_since += 1;
                if message == 1 {
                    break;
                }
            }
            if running.contains(coarse) {
                break;
            }
            assert!(starts_since < 40, "seed {seed}: {coarse:?} starves");
            // One thread at a time ends, so that fine affinities overlap for ever unless they are
            // held back. They run for as long as the scheduler allows.
            let at = rng.below(running.len() as u64) as usize;
            while scheduler.again(running[at]).is_some() {}
            scheduler.done(running.swap_remove(at));
        }
    }
}

#[test]
#[should_panic(expected = "done without next")]
fn ending_an_idle_affinity_is_a_bug() {
    scheduler(Limits::default()).done(Affinity::Serial);
}

/// This is a measurement, not a test: `cargo test --release -p warren-affinity cost -- --ignored
/// --nocapture`.
#[test]
#[ignore = "prints a measurement"]
fn cost_with_one_thread() {
    const ROUNDS: u32 = 20_000_000;
    let mut scheduler: Scheduler<[u64; 2]> = Scheduler::new(Shape::of(256), Limits::default());
    let stripe = |round: u32| Affinity::Stripe(ShardId(round as u16 & 255), 3, 1);
    let start = std::time::Instant::now();
    for round in 0..ROUNDS {
        scheduler.submit(stripe(round), [u64::from(round); 2]).unwrap();
        let (affinity, message) = scheduler.next().unwrap();
        std::hint::black_box(message);
        scheduler.done(affinity);
    }
    println!(
        "post + next + done: {:.1} ns",
        start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS)
    );
    let start = std::time::Instant::now();
    for round in 0..ROUNDS {
        assert!(scheduler.try_run_now(stripe(round)));
        std::hint::black_box(&scheduler);
        scheduler.done(stripe(round));
    }
    println!(
        "try_run_now + done: {:.1} ns",
        start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS)
    );
}
