//! A cell's knowledge of its idle times and its processor.

use warren_shm::Processor;

use super::moves::Moves;
use super::spin::Spin;

pub(super) struct Idling {
    pub spin: Spin,
    pub moves: Moves,
    /// The state that the vitals show: the processor, and whether others are idle.
    pub shown: Option<(Processor, bool)>,
}

impl Idling {
    /// Must precede the confinement.
    pub(super) fn new(cores: usize) -> Self {
        Self { spin: Spin::new(cores), moves: Moves::new(cores), shown: None }
    }
}
