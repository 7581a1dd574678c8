//! The stages of a fleet's life.
//!
//! ```text
//! starting -> opening -> serving -> expelling -> last checkpoint -> closing -> ended
//!     |          |           |              |               ^
//!     +----------+-----------+--------------+---------------+  a cell is lost; stop while starting
//! ```
//!
//! A stop first expels all clients. After that no client is acknowledged anything, and unlinked
//! open files are gone, so the last checkpoint may mark the superblock as clean. If the last
//! checkpoint fails and the stop must lose nothing, the fleet serves again.

use warren_base::Instant;
use warren_proto::Wire;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Stage {
    /// Cells open their shards, and replay their logs if the pool is not clean.
    Starting,
    /// The superblock is being marked as in use.
    Opening,
    Serving,
    /// A stop was requested, and clients are being expelled.
    Expelling,
    /// The last checkpoint waits until it can start, or (`started`) is under way.
    LastCheckpoint {
        started: bool,
    },
    /// Cells end. They have until `until`, which is set when the last flush is done.
    Closing {
        until: Option<Instant>,
    },
    Ended,
}

impl Stage {
    /// Whether clients are or were admitted, and cells still take part in checkpoints.
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Serving | Self::Expelling | Self::LastCheckpoint { .. })
    }

    pub(crate) const fn is_closing(self) -> bool {
        matches!(self, Self::Closing { .. })
    }
}
