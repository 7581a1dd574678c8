//! Pools: their space, the host's space below them, their growth, large objects, and their repair.

mod checks;
mod full_host;
mod grow;
mod large;
mod two_fleets;

use crate::e2e::harness::ground::{Ground, Tally};

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    full_host::run(ground, cells, tally);
    grow::run(ground, cells, tally);
    two_fleets::run(ground, cells, tally);
    checks::run(ground, cells, tally);
    large::run(ground, cells, tally);
}
