//! The events of this world besides those of its fleet.

/// Events beside those of the fleet.
#[derive(Debug)]
pub(super) enum Own {
    Step {
        at: At,
        ticket: u64,
    },
    /// A front's kernel drops the copies that a cell recalls.
    DropCopies {
        client: usize,
        listener: usize,
    },
    /// A client's connection breaks.
    Hangup {
        client: usize,
    },
    /// A front's process is killed.
    KillFront {
        client: usize,
    },
    /// A killed front's successor starts.
    StartFront {
        client: usize,
    },
}

/// A client and one of its slots, by their indexes in the harness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub client: usize,
    pub slot: usize,
}
