//! Owners of advisory locks, and the places where their requests wait.

use warren_base::{ClientId, Ino};
use warren_proto::{LockFlavour, LockOwner};

/// An owner, fleet-wide: owners are numbered by each client.
pub(super) type Owner = (ClientId, LockOwner);

/// The place at which a request waits. Places on one side of an inode are in order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) ino: Ino,
    pub(super) flavour: LockFlavour,
    /// The number of the request in the order of arrival at the cell.
    pub(super) arrival: u64,
}
