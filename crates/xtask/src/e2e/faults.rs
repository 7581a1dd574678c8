//! Processes that are killed, stopped or damaged, and devices that fail, while programs work.

mod cell_memory;
mod chaos;
mod damaged_memory;
mod device_faults;
mod hardship;
mod kills;
mod refused_writes;
mod taken_out;

use crate::e2e::harness::ground::{Ground, Tally};

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    device_faults::run(ground, cells, tally);
    refused_writes::run(ground, cells, tally);
    hardship::run(ground, cells, tally);
    damaged_memory::run(ground, cells, tally);
    kills::run(ground, cells, tally);
    chaos::run(ground, cells, tally);
}

/// The case with a number of cells of its own.
pub(super) fn run_once(ground: &Ground, tally: &mut Tally) {
    taken_out::run(ground, tally);
}
