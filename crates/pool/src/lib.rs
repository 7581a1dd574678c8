//! The distributed unordered pool: a bag of elements that the cells of a fleet share.
//!
//! From the dPool (fos thesis, chapter 4). Each cell holds one shard, a [`Pool`]; `add` and `get`
//! are local calls when they can be, and messages between the shards otherwise. Six [`Algorithm`]s
//! differ in where elements lie and when they move; none changes what is promised:
//!
//! * **Found**: `get` says that the pool is empty only if there was a moment, after the call, at
//!   which no element was anywhere, in a shard or on the way (`search.rs` says why).
//! * **Once**: no element is handed out twice or lost, also while cells join, leave or die. What
//!   lies in a dead shard is gone with it; the caller is told and adds again what it knows to be
//!   free.
//!
//! What the driver owes:
//!
//! * Messages from one cell to another arrive in order, and effects are carried out in order.
//! * [`Pool::peer_died`] comes, at any cell, only when everything that the dead cell had sent was
//!   handled, at every cell: after the first barrier of recovery. (A send is atomic, so what was
//!   sent is in its receiver's memory.)
//! * A message to a cell that has no shard of this pool comes back as [`Pool::peer_gone`]; to a
//!   cell that is dying, not before that barrier.
//!
//! A cell that died can come back ([`Pool::rejoin`], [`Pool::peer_replaced`]) without the handshake
//! of one that joins: who the members are is known. Before every shard knows it again, a search may
//! overlook elements there, and say empty too early.
//!
//! A cell uses one algorithm, and members that are known from the start or rejoin. [`Pool::leave`],
//! [`Pool::peer_died`], [`Pool::peer_gone`], [`Pool::locality`] and the other algorithms have no
//! user yet: they are what a fleet that changes its size, and cells with several threads, need
//! next.
//!
//! This crate is pure: no thread, no clock, no I/O, no chance.

#![forbid(unsafe_code)]

mod background;
mod membership;
mod message;
mod search;
mod shard;
mod tuning;

pub use message::{Effect, PoolMessage, SearchNo};
pub use shard::{Get, NotMember, Pool, Ticket};
pub use tuning::{Algorithm, DISTANCE_DEFAULT, Tuning};

#[cfg(test)]
mod tests;
