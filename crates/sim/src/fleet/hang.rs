//! Cells that hang, and how that is noticed.
//!
//! A stopped cell does nothing until it is resumed. The supervisor's watch looks at it meanwhile. If
//! the stop is long the cell is tried and killed; otherwise it continues, perhaps in the middle of
//! its trial. Now and then the watch errs: it accuses a cell that works.

use std::time::Duration;

use warren_base::{CellId, Epoch, Instant};
use warren_supervisor::{Condition, Event, Hint, LOOK_EVERY, Process, Seen, Watch, Work};

use super::drive::notify_supervisor;
use super::{Fleet, Happening, Surroundings};

/// The longest pauses of a cell, in nanoseconds: shorter than a message, as long as I/O, far
/// longer.
const PAUSES: [u64; 3] = [10_000, 1_000_000, 1_000_000_000];

/// A process that is stopped or was.
#[derive(Default)]
pub(super) struct Pause {
    /// It does nothing before this time.
    until: Instant,
    watch: Watch,
}

impl Pause {
    /// The process of a successor runs.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}

/// The end of the pause of the cell's process, if it is stopped: perhaps just now.
pub(super) fn pause<H>(fleet: &mut Fleet<H>, id: CellId) -> Option<Instant> {
    if fleet.host(id).dead {
        return None;
    }
    let now = fleet.now;
    if fleet.host(id).pause.until <= now && fleet.is_drawn(fleet.faults.pauses, 10_000) {
        fleet.count("a cell paused");
        let longest = *fleet.rng.pick(&PAUSES);
        let pause = fleet.rng.below(longest);
        let errs = fleet.rng.chance(1, 8);
        let epoch = fleet.epoch(id);
        fleet.host(id).pause.until = Instant(now.0 + pause);
        fleet.plan(LOOK_EVERY.as_nanos() as u64, Happening::Look { cell: id, epoch });
        if errs {
            fleet.plan(0, Happening::Accused { cell: id, epoch });
        }
    }
    Some(fleet.host(id).pause.until).filter(|until| *until > now)
}

/// The supervisor's watch looks at a cell that was stopped.
pub(super) fn look<W: Surroundings>(world: &mut W, id: CellId, epoch: Epoch) {
    let fleet = world.fleet_mut();
    // A successor too many would end the fleet.
    if !fleet.is_running(id, epoch) || !fleet.may_be_lost(id) {
        return;
    }
    let now = fleet.now;
    let pause = &mut fleet.host(id).pause;
    let is_stopped = pause.until > now;
    let beats = if is_stopped { pause.until.0 } else { now.0 };
    let process = Process { condition: Condition::Stopped, ran: Duration::ZERO };
    let seen = pause.watch.look(now, beats, Work::Some, || Some(process));
    if is_stopped {
        fleet.plan(LOOK_EVERY.as_nanos() as u64, Happening::Look { cell: id, epoch });
    }
    match seen {
        Seen::Nothing => {}
        Seen::Hangs(why) => {
            fleet.count("a hint that a cell hangs");
            notify_supervisor(world, Event::Hangs { cell: id, epoch, why });
        }
        Seen::Moves => {
            fleet.count("an accused cell that moves again");
            notify_supervisor(world, Event::Moves { cell: id, epoch });
        }
    }
}

/// The watch says of a cell that it hangs, whether it does or not.
pub(super) fn accuse<W: Surroundings>(world: &mut W, id: CellId, epoch: Epoch) {
    let fleet = world.fleet_mut();
    if fleet.is_running(id, epoch) && fleet.may_be_lost(id) {
        fleet.count("a hint that is wrong");
        notify_supervisor(world, Event::Hangs { cell: id, epoch, why: Hint::Sleeps });
    }
}
