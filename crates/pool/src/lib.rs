//! The distributed unordered pool: a bag of elements that the cells of a fleet share.
//!
//! From the dPool (fos thesis, chapter 4). Each cell has one shard, a [`Pool`]. `add` and `get` are
//! local calls if possible; otherwise the shards exchange messages. Six [`Algorithm`]s differ in
//! where elements are and when they move. All have the same guarantees:
//!
//! * **Found**: `get` returns that the pool is empty only if, at some moment after the call, no
//!   element was in a shard or on the way to one (`search.rs` has the proof).
//! * **Once**: no element is handed out twice or lost, also while cells join, leave or die. The
//!   elements of a dead shard are lost with it. The caller is informed, and adds those again that
//!   it knows to be free.
//!
//! The driver must guarantee:
//!
//! * Messages from one cell to another arrive in order, and effects are carried out in order.
//! * Messages are not lost, or the driver asks for what is not answered for long
//!   ([`unanswered`], [`inquired`]).
//! * [`Pool::peer_died`] is called, at any cell, only after all cells have handled all messages of
//!   the dead cell: after the first barrier of recovery. (A send is atomic, so a sent message is in
//!   its receiver's memory.)
//! * For a message to a cell without a shard of this pool, [`Pool::peer_gone`] is called; for a
//!   cell that is dying, not before that barrier.
//!
//! The successor of a dead cell rejoins ([`Pool::rejoin`], [`Pool::peer_replaced`]) without the
//! handshake of a join, because the members are known. Until all shards know it again, a search may
//! miss its elements, and report an empty pool too early.
//!
//! The cells use one algorithm, with members that are known from the start or rejoin.
//! [`Pool::leave`], [`Pool::peer_died`], [`Pool::peer_gone`] and the other algorithms have no user
//! yet: they are what a fleet that changes its size, and cells with several threads, need next.
//!
//! This crate is pure: no thread, no clock, no I/O, no chance.

#![forbid(unsafe_code)]

mod background;
mod lost;
mod membership;
mod message;
mod peer;
mod question;
mod search;
mod shard;
mod tuning;

pub use lost::{exchanged, inquired, takes, unanswered};
pub use message::{Effect, Inquiry, PoolMessage, SearchNo, Ticket};
pub use shard::{Get, NotMember, Pool};
pub use tuning::{Algorithm, Tuning};

#[cfg(test)]
mod tests;
