//! Programs with the library that answers their calls (`--interposed` runs those of all cases with
//! it).

mod compared;
mod held;
mod run;
mod seldom;
mod threads;

use crate::e2e::harness::ground::{Ground, Tally};

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    compared::run(ground, cells, tally);
    seldom::run(ground, cells, tally);
    threads::run(ground, cells, tally);
    held::run(ground, cells, tally);
}
