//! The server: a deterministic state machine, event in, effect out.
//!
//! No thread, no clock, no I/O here. `docs/architecture.md` says how the parts fit; start reading at
//! [`Cell`], then `task` (how requests wait), `view` and `op` (what operations on names do), `txn`
//! (operations over several cells), `file` (data), `checkpoint` (what reaches the device).

#![forbid(unsafe_code)]

mod apply;
mod ascent;
mod authority;
mod cell;
mod change;
mod checkpoint;
mod chunks;
mod core;
mod count;
mod data;
mod event;
mod frames;
mod inode;
mod lease;
mod log;
mod names;
mod op;
mod peers;
mod permission;
mod plant;
mod reap;
mod recall;
mod recovery;
mod run;
mod save;
mod send;
mod session;
mod shard;
mod shards;
mod task;
mod turn;
mod txn;
mod view;

pub use cell::{Cell, CellConfig, LogConfig};
pub use chunks::host::Backing;
pub use event::{Clock, Effect, Event, FrameNo, IoId, Memory, PeerBody, PeerMessage, SlotRef};
pub use plant::{Plant, Planted};
pub use recovery::replay::Recovery;
