//! The rights of users and hostile clients, and the restrictions of the fleet itself.

mod access;
mod attacked;
mod privileges;
mod sandboxes;

use crate::e2e::harness::ground::{Ground, Tally};

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    access::run(ground, cells, tally);
    sandboxes::run(ground, cells, tally);
    privileges::run(ground, cells, tally);
    attacked::run(ground, cells, tally);
}
