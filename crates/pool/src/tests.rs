//! Several shards on a simulated fleet: delay, joins, leaves and deaths from one seed, and a book
//! in which every element has exactly one place.

mod fleet;
mod single;

use fleet::{Faults, Fleet};

use crate::Algorithm;

/// Seeds per algorithm; each takes some hundred microseconds.
const SEEDS: u64 = 200;

#[test]
fn elements_are_conserved_without_change_of_membership() {
    for algorithm in Algorithm::ALL {
        for seed in 0..SEEDS {
            Fleet::run(
                seed,
                algorithm,
                Faults { joins: false, leaves: false, deaths: false, losses: false },
            );
        }
    }
}

#[test]
fn elements_are_conserved_while_cells_join_and_leave() {
    for algorithm in Algorithm::ALL {
        for seed in 0..SEEDS {
            Fleet::run(
                seed,
                algorithm,
                Faults { joins: true, leaves: true, deaths: false, losses: false },
            );
        }
    }
}

#[test]
fn elements_are_conserved_while_cells_die() {
    for algorithm in Algorithm::ALL {
        for seed in 0..SEEDS {
            Fleet::run(
                seed,
                algorithm,
                Faults { joins: true, leaves: true, deaths: true, losses: false },
            );
        }
    }
}

#[test]
fn elements_are_conserved_while_messages_are_lost() {
    let mut reached = fleet::Reached::default();
    for algorithm in Algorithm::ALL {
        for seed in 0..SEEDS {
            let faults = Faults { joins: false, leaves: false, deaths: false, losses: true };
            reached.add(&Fleet::run(seed, algorithm, faults));
        }
    }
    assert!(reached.found_lost > 0);
}

/// The rare branches are reached by the runs above, or the runs prove nothing.
#[test]
fn the_schedules_reach_what_is_rare() {
    let mut reached = fleet::Reached::default();
    for seed in 0..SEEDS {
        let faults = Faults { joins: true, leaves: true, deaths: true, losses: false };
        reached.add(&Fleet::run(seed, Algorithm::BackgroundPush, faults));
    }
    assert!(reached.all(), "{reached:?}");
}
