//! Mounts: how they end, their options, and the handles and inode numbers that outlive them.

mod ends;
mod file_handles;
mod narrow;
mod options;

use crate::e2e::harness::ground::{Ground, Tally};

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    ends::run(ground, cells, tally);
    options::run(ground, cells, tally);
    file_handles::run(ground, cells, tally);
    narrow::run(ground, cells, tally);
}
