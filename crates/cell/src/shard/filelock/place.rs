//! Owners of advisory locks, and the places where their requests wait.

use warren_base::{ClientId, Ino};
use warren_proto::{LockFlavour, LockOwner};

/// An owner, fleet-wide: owners are numbered by each client.
pub(super) type Owner = (ClientId, LockOwner);

/// Where a request waits. The order of places on one side of an inode is the order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) ino: Ino,
    pub(super) flavour: LockFlavour,
    /// The number of the request in the order of arrival at the cell.
    pub(super) arrival: u64,
}
