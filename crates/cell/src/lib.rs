//! The server: a deterministic state machine, event in, effect out.
//!
//! No thread, no clock, no I/O here. `docs/architecture.md` says how the parts fit; start reading at
//! [`Cell`], then `task` (how requests wait), `view` and `op` (what operations on names do), `txn`
//! (operations over several cells), `file` (data), `checkpoint` (what reaches the device).

#![forbid(unsafe_code)]

mod ascent;
mod authority;
mod cache;
mod cell;
mod change;
mod checkpoint;
mod chunk;
mod count;
mod event;
mod file;
mod filelock;
mod host;
mod io;
mod lease;
mod lock;
mod loss;
mod names;
mod op;
mod open;
mod oplog;
mod permission;
mod plant;
mod replay;
mod request;
mod room;
mod save;
mod shard;
mod shards;
mod space;
mod step;
mod table;
mod task;
mod txn;
mod view;

pub use cell::{Cell, CellConfig, LogConfig};
pub use event::{Clock, Effect, Event, FrameNo, IoId, Memory, PeerBody, PeerMessage, SlotRef};
pub use host::Backing;
pub use plant::{Plant, Planted};
pub use replay::Recovery;
