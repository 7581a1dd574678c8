//! The changes that clients post: how often in a run, and those that are not checked yet.

use std::rc::Rc;

use warren_base::{Rng, Timestamp};
use warren_client::Post;
use warren_proto::{Capabilities, Request};

use crate::simulation::Faults;
use crate::swarm::Swarm;

/// The chances and sizes of posts in a run.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Posts {
    /// In 100: a change that may be posted is.
    pub chance: u64,
    /// In 100: the next call is a change of a file that the client alone uses.
    pub eager: u64,
    /// Bytes of a ring.
    pub ring: usize,
    /// The longest time until a cell looks at a stream, in nanoseconds.
    pub look: u64,
}

impl Posts {
    pub(super) fn draw(seed: u64, swarm: &Swarm) -> Self {
        let mut rng = Rng::new(seed ^ 0x9057);
        let chance = *rng.pick(&[0, 60, 90, 100]);
        let eager = *rng.pick(&[0, 30, 80]);
        let ring = *rng.pick(&[40_000, 200_000, 1 << 20]);
        let look = *rng.pick(&[1_000, 100_000, 5_000_000]);
        let Faults { cell_read, cell_write, cell_flush, rot, .. } = swarm.faults;
        let Faults { supervisor_write, supervisor_flush, wild, .. } = swarm.faults;
        // An error of the device comes after the return of what was posted.
        let faults =
            cell_read + cell_write + cell_flush + rot + supervisor_write + supervisor_flush;
        if faults + wild > 0 { Self::default() } else { Self { chance, eager, ring, look } }
    }

    pub(super) const fn may_happen(self) -> bool {
        self.chance > 0
    }
}

/// A change that is posted and not checked yet.
#[derive(Clone, Debug)]
pub(super) struct Posting {
    pub post: Post,
    pub request: Request,
    pub capabilities: Capabilities,
    pub payload: Rc<[u8]>,
    pub invoked: (u64, Timestamp),
    /// The lease has ended, and a request to the cell was sent.
    pub waits: bool,
    /// The record has a time that cannot be true. The cell takes that of the execution.
    pub is_untrue: bool,
}
