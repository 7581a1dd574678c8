//! The side of the driver in one turn: its time, its memory, and the effects that it carries out.

use std::fmt;

use warren_proto::control::Report;

use crate::event::{Clock, Effect, Memory};

pub(crate) struct Driver<'a> {
    pub(crate) now: Clock,
    pub(crate) memory: &'a mut dyn Memory,
    /// Effects, in the order in which the driver must carry them out.
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Driver<'_> {
    pub(crate) fn report(&mut self, report: Report) {
        self.effects.push(Effect::Report(report));
    }
}

impl fmt::Debug for Driver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("now", &self.now).finish_non_exhaustive()
    }
}
