//! A lock request that waits without a thread and a slot of its own.

use warren_base::Ino;
use warren_proto::LockSpec;

use crate::message::{Header, Operation};

/// A lock that the background thread retries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeferredLock {
    pub unique: u64,
    pub identity: (u32, u32),
    pub ino: Ino,
    pub open: u64,
    pub spec: LockSpec,
}

impl DeferredLock {
    /// The lock for which `operation` waits. `None` if it waits for none.
    pub(crate) fn of(header: &Header, operation: &Operation) -> Option<Self> {
        let Operation::Lock { open, spec, wait: true } = *operation else { return None };
        Some(Self::new(header, open, spec))
    }

    pub(crate) fn new(header: &Header, open: u64, spec: LockSpec) -> Self {
        let (unique, identity, ino) = (header.unique, header.identity(), header.ino);
        Self { unique, identity, ino, open, spec }
    }
}
