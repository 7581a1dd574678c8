//! The simulator: links, disks, clock, faults, reference model, checkers
#![forbid(unsafe_code)]

mod fixed;
pub mod history;
pub mod linear;
pub mod model;
