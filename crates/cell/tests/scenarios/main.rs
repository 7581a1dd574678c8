//! The mechanisms of a cell, as tests. Read the files in this order. Each opens with its mechanism.
//!
//! | file | mechanism |
//! | --- | --- |
//! | `calls.rs` | a request becomes a reply: at once, or after something that it waits for |
//! | `attributes.rs` | requests on one inode |
//! | `long_xattrs.rs` | values and lists of names that no body has room for |
//! | `data.rs` | pages, the cache, read-ahead, write-back |
//! | `predicted.rs` | changes have the attributes that clients predict |
//! | `opens.rs` | open files, and advisory locks on files |
//! | `leases.rs` | copies that clients may use, and how they are revoked |
//! | `neighbours.rs` | a look-up brings other names of the directory |
//! | `kept.rs` | handles and copies of data that clients keep, and files that kernels take over |
//! | `streams.rs` | posted changes of files that one client alone writes, and what waits for them |
//! | `trees.rs` | posted changes of names by the library of a client, and what others see of them |
//! | `removed.rs` | what is remembered of a removed directory |
//! | `log.rs` | the op log, `fsync`, group commit |
//! | `flushes.rs` | a device that fails while a commit is under way |
//! | `checkpoints.rs` | the state of all cells becomes durable, and their logs become free |
//! | `transactions.rs` | operations over two cells |
//! | `two_logs.rs` | a log that depends on another cell's log |
//! | `power.rs` | recovery after a power failure |
//! | `successors.rs` | a process that takes over from a dead one |
//! | `adoption.rs` | entries of a dead process's table that do not count |
//! | `discards.rs` | pages that were damaged in the frames of a dead process |
//! | `losses.rs` | a message between cells is lost, and reviews find it |
//! | `caretakers.rs` | a cell that is taken out: its log claims no data that is nowhere |
//! | `loads.rs` | a log that is read in several loads |
//! | `space.rs` | blocks, chunks, and the space of the host |
//! | `cleaning.rs` | sparse chunks are emptied, so that other shards can have them |
//! | `allocation.rs` | ranges of files that are allocated or freed |
//! | `sharing.rs` | copies that share blocks |
//!
//! A [`pair::Pair`] plays each scenario: cells, clients, a device and a supervisor, on one clock.
//! The tests use only the public interface of the crate, as a driver does. So they do not depend on
//! its modules.

#[path = "../image/mod.rs"]
mod image;

mod bytes;
mod client;
mod device;
mod faults;
mod machine;
mod pair;
mod posts;
mod supervisor;

mod adoption;
mod allocation;
mod attributes;
mod calls;
mod caretakers;
mod checkpoints;
mod cleaning;
mod data;
mod discards;
mod extends;
mod flushes;
mod kept;
mod late_errors;
mod leases;
mod loads;
mod log;
mod long_xattrs;
mod losses;
mod neighbours;
mod opens;
mod power;
mod predicted;
mod removed;
mod sharing;
mod space;
mod streams;
mod successors;
mod transactions;
mod trees;
mod two_logs;
