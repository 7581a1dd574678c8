//! How a cell works, told in tests. Read the files in this order; each opens with the mechanism that it is about.
//!
//! | file | mechanism |
//! | --- | --- |
//! | `calls.rs` | a request becomes an answer: at once, or after what it waits for |
//! | `attributes.rs` | requests on one inode |
//! | `data.rs` | pages, the cache, read-ahead, write-back |
//! | `opens.rs` | open files, and the locks that programs put on files |
//! | `leases.rs` | copies that clients may use, and how they end |
//! | `log.rs` | the op log, `fsync`, group commit |
//! | `checkpoints.rs` | the whole fleet's state becomes durable, and the logs free |
//! | `transactions.rs` | operations over two cells |
//! | `two_logs.rs` | a log that rests on another cell's |
//! | `power.rs` | recovery after a power failure |
//! | `successors.rs` | a process that takes over from one that died |
//! | `space.rs` | blocks, chunks, and the host's room |
//!
//! A scenario is played by a [`pair::Pair`]: cells, clients, a device and a supervisor, on one clock. It uses the public
//! interface of the crate alone, as a driver does, so that it holds whatever becomes of what is inside.

#[path = "../image/mod.rs"]
mod image;

mod bytes;
mod client;
mod device;
mod machine;
mod pair;
mod supervisor;

mod attributes;
mod calls;
mod checkpoints;
mod data;
mod leases;
mod log;
mod opens;
mod power;
mod space;
mod successors;
mod transactions;
mod two_logs;
