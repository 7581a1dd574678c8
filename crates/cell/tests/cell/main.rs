//! Tests of a cell from outside.

mod bench;
mod hostile_images;
mod hostile_logs;
mod space;
mod successor;
mod two_cells;
