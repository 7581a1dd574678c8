//! Tests of a cell from outside.

mod ascents;
mod authority;
mod bench;
mod broken;
mod file_locks;
mod hostile_images;
mod hostile_logs;
#[path = "../image/mod.rs"]
mod image;
mod long_steps;
mod read_only;
mod replace;
mod space;
mod successor;
mod two_cells;
