//! One cell is broken for a while: each of its processes dies early, until it is taken out. Later
//! it is sound again and taken in.
//!
//! ```text
//! due ──▶ broken: processes die ──▶ out: a caretaker answers EIO ──▶ returning ──▶ over
//! ```
//!
//! While the cell is out, calls that need one of its shards may get EIO and change nothing then.
//! Before and afterwards nothing is excused. What is drawn for it comes from a generator of its
//! own, so a seed without it runs as ever.

use std::collections::BTreeSet;

use warren_base::{CellId, Rng, ShardId};
use warren_supervisor::{Event as SupervisorEvent, TakenOut};

use crate::damage::kill;
use crate::fleet::{CellHost, Fleet, Surroundings, notify_supervisor};

/// The state of the outage.
#[derive(Default)]
pub(crate) enum Outage {
    #[default]
    None,
    /// A cell breaks when so many calls or events are left, and is sound again so many later.
    Due {
        rng: Rng,
        at: u64,
        lasts: u64,
    },
    Broken {
        cell: CellId,
        until: u64,
    },
    /// The cell was taken out at this place in the order of events.
    Out {
        cell: CellId,
        since: u64,
        until: u64,
    },
    Returning {
        cell: CellId,
        since: u64,
    },
    /// It ended at this place.
    Over {
        cell: CellId,
        since: u64,
        at: u64,
    },
}

impl Outage {
    pub(crate) fn draw(seed: u64, all: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6f75_7461_6765);
        let (at, lasts) = (rng.below(all.max(1)), rng.below(all / 2 + 1));
        Self::Due { rng, at, lasts }
    }

    /// Whether a call that was invoked at this place may have met a caretaker.
    pub(crate) const fn excuses(&self, invoked: u64) -> bool {
        match self {
            Self::Out { .. } | Self::Returning { .. } => true,
            Self::Over { at, .. } => invoked < *at,
            Self::None | Self::Due { .. } | Self::Broken { .. } => false,
        }
    }

    /// Whether a call that a caretaker has refused may have been at a process before it.
    pub(crate) const fn follows(&self, invoked: u64) -> bool {
        match self {
            Self::Out { since, .. } | Self::Returning { since, .. } | Self::Over { since, .. } => {
                invoked < *since
            }
            Self::None | Self::Due { .. } | Self::Broken { .. } => false,
        }
    }

    /// The cell that is broken, or was.
    pub(crate) const fn cell(&self) -> Option<CellId> {
        match self {
            Self::None | Self::Due { .. } => None,
            Self::Broken { cell, .. }
            | Self::Out { cell, .. }
            | Self::Returning { cell, .. }
            | Self::Over { cell, .. } => Some(*cell),
        }
    }

    /// Whether the last checkpoint, of this place, lacks what the cell has only logged.
    pub(crate) const fn is_behind(&self, checkpoint: u64) -> bool {
        match self {
            Self::Out { .. } | Self::Returning { .. } => true,
            Self::Over { at, .. } => checkpoint < *at,
            Self::None | Self::Due { .. } | Self::Broken { .. } => false,
        }
    }

    /// Whether every cell serves, or dies as any cell may.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, Self::None | Self::Due { .. } | Self::Over { .. })
    }
}

/// The outage goes on as far as it can. `left`: calls or events that are left; `heals`: clients
/// only finish calls from now on. Returns the cell that is out from now on, too.
pub(crate) fn advance<W: Surroundings>(
    world: &mut W,
    outage: Outage,
    left: u64,
    heals: bool,
) -> (Outage, Option<CellId>) {
    let next = match outage {
        Outage::Due { rng, at, lasts } if left <= at && !heals => {
            break_cell(world, rng, at, left, lasts)
        }
        Outage::Broken { cell, until } if is_out(world, cell) => {
            world.fleet_mut().sim.count("a cell taken out");
            let since = world.fleet_mut().sim.place();
            return (Outage::Out { cell, since, until }, Some(cell));
        }
        // It became ready in spite of that, and is not needed any more.
        Outage::Broken { cell, .. } if heals && serves_again(world, cell) => {
            host(world, cell).is_broken = false;
            Outage::Over { cell, since: 0, at: 0 }
        }
        Outage::Out { cell, since, until } if left <= until || heals => {
            host(world, cell).is_broken = false;
            Outage::Returning { cell, since }
        }
        Outage::Returning { cell, since } if serves_again(world, cell) => {
            world.fleet_mut().sim.count("a cell taken in again");
            Outage::Over { cell, since, at: world.fleet_mut().sim.place() }
        }
        // Not only once: a supervisor that dies may have forgotten it.
        Outage::Returning { cell, since } => {
            if status(world, cell).is_some_and(|out| !out.returns) {
                notify_supervisor(world, SupervisorEvent::Rejoin { cell });
            }
            Outage::Returning { cell, since }
        }
        outage => outage,
    };
    (next, None)
}

fn break_cell<W: Surroundings>(
    world: &mut W,
    mut rng: Rng,
    at: u64,
    left: u64,
    lasts: u64,
) -> Outage {
    let cell = CellId(rng.below(world.fleet().cells.len() as u64) as u16);
    let fleet = world.fleet();
    let may_die = fleet.lost.lets_die((cell, fleet.epoch(cell)));
    if !fleet.is_served() || !may_die || !kill(world, cell) {
        return Outage::Due { rng, at, lasts };
    }
    host(world, cell).is_broken = true;
    Outage::Broken { cell, until: left.saturating_sub(lasts) }
}

/// The shards of the cell.
pub(crate) fn shards_of<H>(fleet: &Fleet<H>, cell: CellId) -> BTreeSet<ShardId> {
    fleet.shards_of(cell).collect()
}

fn serves_again<W: Surroundings>(world: &W, cell: CellId) -> bool {
    let host = world.fleet().host(cell);
    host.slots.is_ready && !host.is_caretaker && !is_out(world, cell)
}

fn host<W: Surroundings>(world: &mut W, cell: CellId) -> &mut CellHost {
    world.fleet_mut().host_mut(cell)
}

fn is_out<W: Surroundings>(world: &W, cell: CellId) -> bool {
    status(world, cell).is_some()
}

fn status<W: Surroundings>(world: &W, cell: CellId) -> Option<TakenOut> {
    let out = world.fleet().supervisor().status().taken_out;
    out.into_iter().find(|out| out.cell == cell)
}
