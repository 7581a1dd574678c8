//! Tests of a cell from outside.

mod bench;
mod hostile_images;
mod successor;
