//! The crash campaign: a fleet serves clients, its power is cut at any moment, and the pool after a
//! recovery must have all that was synced, and nothing that never existed.
//!
//! ```text
//! mkfs -> [ fleet -> clients work under faults -> power cut
//! -> recovery, which a power cut may end too -> fsck
//! -> fleet of another size -> everything is read back and compared ] -> next life
//! ```
//!
//! One seed, one queue of events, virtual time: a seed always has the same run. While clients work,
//! single cells are also killed, and their successors take over their frames. The supervisor may be
//! killed from the start of a fleet to its end, and another one takes over. The power may be cut at
//! any point of that.
//!
//! From the parts upwards: `mix`, `model`, `client`, `damage` and `growth`; [`World`]; `wild` and
//! `calls` (the clients' calls, and their second looks at files); `surroundings` (events of the
//! fleet); `pump` (events happen); `audit` and `cut` (a tree is read back, the power is cut), `rot`
//! (a damaged log); `life` (a run).

mod audit;
mod calls;
mod client;
mod cut;
mod damage;
mod growth;
mod life;
mod mix;
mod model;
mod pump;
mod rot;
mod surroundings;
mod wild;

use warren_base::{CellId, Instant, Rng};
use warren_cell::Plant;
use warren_proto::{Request, RequestHeader};
use warren_supervisor::Failure as Ended;

use crate::fleet::{Fleet, Happening, MAP_VERSION};
use crate::outage::Outage;
use client::Client;
use damage::Due;
use growth::Growths;
pub use life::{run, run_many};
use mix::Mix;
use model::Effect;

/// Bytes of the pool: a mix with many clients fills it at times.
const POOL_BYTES: u64 = 96 << 20;

/// Faults to plant, to show that the campaign finds them.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// No read, no write and no flush fails.
    pub sound_device: bool,
    pub plant: Option<Plant>,
    /// One shard is damaged at a random moment.
    pub damage: bool,
    /// In each life one cell is taken out for a while.
    pub outage: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No client is admitted yet, or ever (in a recovery).
    Starting,
    Serving,
    Ended(Result<(), Ended>),
}

/// Why the world stands still.
#[derive(Debug)]
enum Halt {
    /// The planned number of events has happened.
    Cut,
    /// The requested object lies in the shard that is damaged.
    Unreadable,
    Broken(String),
}

impl Halt {
    fn within(self, what: &str) -> Self {
        match self {
            Self::Broken(rule) => Self::Broken(format!("{what}: {rule}")),
            Self::Cut | Self::Unreadable => self,
        }
    }
}

/// The world's own events, besides those of the fleet.
#[derive(Debug)]
enum Own {
    /// A client applies for admission.
    Connect { client: usize },
    /// A client makes its next call.
    Step { client: usize },
    /// A checkpoint is requested.
    Nudge,
    /// The pool is to grow.
    Grow,
}

struct World {
    mix: Mix,
    fleet: Fleet<Own>,
    /// The clients that work, and the auditor.
    clients: Vec<Client>,
    stage: Stage,
    /// Clients work, and anything may fail.
    is_working: bool,
    is_stopping: bool,
    /// The event at which the power is cut.
    cut_at: u64,
    answered_at: Instant,
    answered_from: CellId,
    operations: u64,
    damage: Option<Due>,
    outage: Outage,
    /// From which the outages are drawn, one for each life.
    outages: Option<Rng>,
    growths: Growths,
    /// The failure with which a recovery must end, because a log is damaged.
    rotten: Option<Ended>,
}

impl World {
    /// The client that only reads.
    fn auditor(&self) -> usize {
        self.clients.len() - 1
    }

    fn plan(&mut self, nanos: u64, own: Own) {
        self.fleet.sim.plan(nanos, Happening::Own(own));
    }

    fn plan_step(&mut self, client: usize) {
        let think = match self.fleet.sim.rng.chance(1, 8) {
            true => self.fleet.sim.rng.below(self.mix.think),
            false => self.fleet.sim.rng.below(self.mix.think.min(2000)),
        };
        self.plan(think, Own::Step { client });
    }

    fn send(&mut self, at: usize, request: Request, payload: &[u8], effect: Option<Effect>) {
        let asked = (self.fleet.sim.place(), self.fleet.sim.now);
        let client = &mut self.clients[at];
        client.seq += 1;
        client.asked = asked;
        client.under_way = Some((request.clone(), effect));
        let (slot, seq) = (client.slot(), client.seq);
        self.fleet.lanes.put_request(slot, payload);
        let cell = match request.shard() {
            Some(shard) => self.fleet.owner(shard),
            None => CellId(self.fleet.sim.rng.below(self.fleet.cells.len() as u64) as u16),
        };
        let payload_len = payload.len() as u32;
        let header =
            RequestHeader { seq, map_version: MAP_VERSION, payload_len, ..Default::default() };
        self.fleet.plan_request(cell, slot, header, request);
    }
}
