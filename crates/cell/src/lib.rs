//! The server: a deterministic state machine, event in, effect out.
//!
//! There is no thread, no clock and no I/O here. `docs/architecture.md` describes how the parts
//! fit. Start with [`Cell`], then `core` (the routes between the machines), `run` (how requests
//! wait), `op` (operations on names), `txn` (operations over several cells), `data` (file data),
//! `apply` (the interpreter of steps), `log` and `checkpoint` (what reaches the device).

#![forbid(unsafe_code)]

mod apply;
mod authority;
mod budget;
mod cache;
mod caretaker;
mod cell;
mod change;
mod checkpoint;
mod chunks;
mod clean;
mod config;
mod core;
mod count;
mod data;
mod delegate;
mod driver;
mod durable;
mod event;
mod fleet;
mod frames;
mod give_up;
mod inode;
mod lease;
mod log;
mod op;
mod overdue;
mod peers;
mod phase;
mod plant;
mod reap;
mod recall;
mod recovery;
mod run;
mod save;
mod session;
mod shard;
mod shards;
mod supply;
mod turn;
mod txn;

pub use cell::Cell;
pub use config::{Backing, CellConfig, LogConfig, Recovery, SpaceConfig, SpaceReserve};
pub use event::{
    Clock, Effect, Event, FrameNo, IoId, Memory, NoRecord, PeerBody, PeerMessage, Record, SlotRef,
};
pub use plant::{Plant, Planted};
