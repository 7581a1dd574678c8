//! Mailboxes with names and capabilities, and the order in which a process takes its messages.
//!
//! From fos (thesis sections 3.2.2, 3.2.3 and 3.3): a mailbox has a hierarchical [`Name`]; several
//! processes may register under one name, and the [`Registry`] spreads senders over them; a send
//! presents a [`Capability`], and one that is not on the mailbox's [`CapabilityList`] is refused.
//! [`Dispatch`] orders what arrives.
//!
//! This crate moves no bytes: queues between processes belong to the driver.
//!
//! This crate is pure: no thread, no clock, no I/O; chance comes from the caller's generator.

#![forbid(unsafe_code)]

mod capability;
mod dispatch;
mod name;
mod registry;
mod shares;
mod turns;

pub use capability::{Capability, CapabilityList, Mint, Refused, Uses};
pub use dispatch::{Dispatch, DispatchLimits, Work};
pub use name::{BadName, Name};
pub use registry::{RegisterError, RegistrationId, Registry, Resolution, ResolveError};
pub use turns::{Next, Sender};

/// Bytes of a mailbox's name: twice the length of `/cell/63/volume/65535/inbox`.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Parts of a mailbox's name.
pub(crate) const NAME_PARTS_MAX: usize = 8;

/// Capabilities on one mailbox's list: one for each cell, and as many for replies in flight.
pub(crate) const CAPABILITIES_MAX: usize = 2 * warren_base::limits::CELLS_MAX;

/// Processes behind one name: every cell of the largest fleet.
pub(crate) const REGISTRANTS_MAX: usize = warren_base::limits::CELLS_MAX;

/// Names in a registry: a few dozen for each cell of the largest fleet.
pub(crate) const NAMES_MAX: usize = 4096;

const _: () = {
    assert!(NAME_BYTES_MAX >= 2 * NAME_PARTS_MAX);
    assert!(NAME_BYTES_MAX <= u8::MAX as usize);
    assert!(NAMES_MAX >= REGISTRANTS_MAX);
};
