//! The messages between Warren's processes: requests and replies of clients, messages between
//! cells, orders of the supervisor, and the layout of the shared memory that carries them.
//!
//! Bytes are decoded once, at the edge, by [`Wire::decode`]. A decoded value can hold only legal
//! values (a [`FileName`] has no slash), so no code behind the edge checks again.
//! `docs/protocol.md` describes the same messages.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

extern crate self as warren_proto;

mod acl;
mod attr;
mod body;
mod capability;
mod change;
mod class;
pub mod control;
mod handover;
mod listing;
mod lock;
mod name;
mod names;
mod peer;
mod range;
mod record;
mod reply;
mod request;
mod rules;
pub mod slot;
pub mod stream;
pub mod typed;
mod wire;

/// The names that code of `#[derive(Wire)]` uses.
#[doc(hidden)]
pub mod derive {
    pub use alloc::vec::Vec;
}

pub use acl::{Acl, permits};
pub use attr::{Attr, SetAttr, SetTime};
pub use body::{Answered, Beside, LeasedAttrs};
pub use capability::{Capabilities, Capability, CapabilityKey, InodeRef};
pub use change::Change;
pub use class::NAME_COST;
pub use handover::{HANDOVER_NAME_MAX, HANDOVER_PREFIX, Handover};
pub use listing::{DIR_ENTRY_BYTES, DirEntries, DirEntry, ListedEntry};
pub use lock::{ByteRange, LockFlavour, LockOwner, LockSpec, LockType};
pub use name::{FileName, XattrName};
pub use names::NameRequest;
pub use peer::{Asked, Count, InodeValue, KeyValue, LockKey, LockMode, PeerReply, PeerRequest};
pub use range::{RangeChange, RangeCopy, RangeKind};
pub use record::{Attributes, Cause, Cover, Executed, InlinePage, Run, Step};
pub use reply::{Answer, Entry, Lease, LeaseKey, Neighbour, Opened, Reply, StatFs};
pub use request::{
    AccessMode, CreateFlags, Credentials, Handle, NewInode, Position, ReadFlags, RenameFlags,
    Request, RequestHeader, XattrMode,
};
pub use rules::Rules;
pub use warren_base::{ACL_ACCESS, ACL_DEFAULT, CAPABILITY, FileKind};
pub use warren_proto_derive::Wire;
pub use wire::{Malformed, Reader, Wire};
