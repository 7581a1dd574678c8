//! The rules of changes: who may do what, which changes a request on names consists of, and what a
//! change makes of attributes.
//!
//! A cell executes by these rules, and a client predicts with them the result of a request that it
//! posts. Both call the same functions, so a prediction is what the cell will make.
//!
//! This crate is pure: no thread, no clock, no I/O. The caller passes the time of a change.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod names;
pub mod permission;
pub mod predict;
pub mod set_attr;
pub mod write;

#[cfg(test)]
mod fixtures;
