//! The memory that Warren's processes share: segments, slots, doorbells, rings, parking.
//!
//! The firewall: every page has one writer, which alone maps it writable. So every protocol here
//! has two halves, a writer over [`WriteMap`] and a reader over [`ReadMap`]. Both halves are
//! generic over [`Store`] and [`Load`], so that the models in `model.rs` run the same code under
//! loom.
//!
//! Readers follow the careful reference protocol: they check range and alignment, load every word
//! once, copy to private memory, and use only what passes the checks on the copy. Whatever a peer
//! writes leads to an `Err`, never to a panic. A mistake of this process (a slot out of range, a
//! body that is too long) is an assertion.
//!
//! ```text
//! memory    Load, Store: words and bytes of shared memory, fence, futex
//! map       ReadMap, WriteMap: the real thing        copy   the bytes of it, soundly
//! segment   Segment: a sealed memfd
//! client    ClientWriter, ClientReader: requests     reply  ReplyWriter, ReplyReader: answers
//! stream    records that a client posts to a cell, and their outcomes
//! ring      PeerLink: messages between two cells     frames Frames: the buffer cache
//! vitals    heartbeat, load, where it is parked      wake   WakeFd: wakes a parked cell
//! processor where a thread is, and whether it sleeps
//! shard_map the owner of every shard, versioned
//! ```

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod client;
mod clock;
mod copy;
#[cfg(feature = "cells")]
mod frames;
mod map;
mod memory;
mod processor;
mod reply;
#[cfg(feature = "cells")]
mod ring;
mod segment;
mod shard_map;
mod stream;
mod vitals;
mod wake;

#[cfg(test)]
mod model;
#[cfg(test)]
mod restless;

pub use client::{ClientReader, ClientWriter, Doorbell, Unreadable};
pub use clock::{now, wall};
#[cfg(feature = "cells")]
pub use frames::Frames;
pub use map::{ReadMap, Region, WriteMap};
pub use memory::{Load, Store, Waited};
pub use processor::{Presence, Processor};
pub use reply::{ReplyHeader, ReplyReader, ReplyWriter, WaitOutcome};
#[cfg(feature = "cells")]
pub use ring::{BadMessage, Envelope, Lane, PEER_SEGMENT_LEN, PeerLink, SendError};
pub use segment::{
    Segment, SegmentError, SegmentKind, map_read_only, map_writable, reopen_read_only,
};
pub use shard_map::{SHARD_MAP_LEN, ShardMap, ShardMapError, ShardMapReader, ShardMapWriter};
pub use stream::{StreamOutcome, find_room};
pub use vitals::{Counter, Culprit, VITALS_LEN, VitalsReader, VitalsWriter, WatchBit};
pub use wake::{RingClass, WakeFd};
