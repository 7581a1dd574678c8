//! Fleets as the command starts, shows and stops them, and what is said of bad input.

mod dist;
mod lifecycle;
mod log;
mod refusals;
mod runs;

use crate::e2e::harness::ground::{Ground, Tally};

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    lifecycle::run(ground, cells, tally);
    runs::run(ground, cells, tally);
    log::run(ground, cells, tally);
}

/// The cases that need no number of cells.
pub(super) fn run_once(ground: &Ground, tally: &mut Tally) {
    refusals::run(ground, tally);
    dist::run(ground, tally);
}
