//! What a cell knows about its idle times and its processor.

use warren_shm::Processor;

use super::moves::Moves;
use super::spin::Spin;

pub(super) struct Idling {
    pub spin: Spin,
    pub moves: Moves,
    /// The processor that the vitals show.
    pub shown_at: Option<Processor>,
}

impl Idling {
    /// Must precede the confinement.
    pub(super) fn new(cores: usize) -> Self {
        Self { spin: Spin::new(cores), moves: Moves::new(cores), shown_at: None }
    }
}
