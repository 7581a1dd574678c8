//! The simulated world: clients of all kinds, and the history of their calls.
//!
//! From the parts upwards:
//!
//! * `client` (slots and calls), `front` with its `kernel`, `kept`, `names`, `paths` and `posting`:
//!   what clients are and keep. `program`: the calls that programs draw.
//! * [`World`]: all of them, with their fleet.
//! * `record`: the history. `observe`: what a request and its answer tell. `writeback`: pages that
//!   kernels write back.
//! * `posts`: changes that need not be waited for. `call`: a call in a slot. `posted`: what was
//!   posted is checked. `copies`: calls that need no request.
//! * `draws`: calls that may be posted. `begin`: the next call.
//! * `recall`: recalls, and the death of a front. `reply`: an answer arrives. `admission`: clients
//!   connect and disconnect.
//! * `surroundings`: events of the fleet. `life`: a run from its beginning to its end.

mod admission;
mod answers;
mod audit;
mod begin;
mod call;
mod claims;
mod client;
mod copies;
mod damage;
mod draws;
mod event;
mod front;
mod kept;
mod kernel;
mod life;
mod names;
mod observe;
mod paths;
mod posted;
mod posting;
mod posts;
mod program;
mod recall;
mod record;
mod reply;
mod surroundings;
mod writeback;

use warren_base::{CellId, ClientId, Instant};
use warren_client::Op;
use warren_proto::Request;
use warren_proto::stream::StreamPos;

use crate::fleet::incident::{changes, takes_space};
use crate::fleet::{Fleet, Happening};
use crate::history::{Excuses, History};
use crate::model::State;
use crate::outage::Outage;
use crate::swarm::Swarm;
use audit::Audit;
use client::{Client, Slot, SlotState};
use event::{At, Own};
use front::Front;
pub use life::{Options, STEPS_DEFAULT, run, run_many};
use posting::{Member, Posts};
use program::Known;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Faults may occur; clients begin calls.
    Safety,
    /// No more faults and no more calls; clients release what they hold.
    Heal,
    /// The supervisor was asked to stop.
    Stopping,
    Stopped,
}

struct World {
    swarm: Swarm,
    fleet: Fleet<Own>,
    clients: Vec<Client>,
    known: Known,
    members: Vec<Member>,
    history: History,
    phase: Phase,
    admitted: bool,
    /// Checkpoints up to this event were checked.
    looked_at: u64,
    /// The pool is in the state of a checkpoint, because the fleet could not stop in order.
    lost: bool,
    calls_left: u64,
    /// The first call of all: it gives other users than root access.
    opening: Option<Op>,
    audit: Option<Audit>,
    /// The state after all calls that were checked last.
    last: Option<State>,
    /// The damage that is due.
    damage: damage::Due,
    outage: Outage,
    posts: Posts,
    /// Posts whose clients were gone before they returned: the places in the history, and those of
    /// the records.
    lost_posts: Vec<(usize, (CellId, ClientId), StreamPos)>,
    last_return: Instant,
    /// A failure report shows the events up to this time.
    blamed_at: Instant,
}

impl World {
    fn heal(&mut self) {
        self.phase = Phase::Heal;
        self.fleet.heal();
        self.last_return = self.fleet.sim.now;
    }

    fn slot(&mut self, at: At) -> &mut Slot {
        &mut self.clients[at.client].slots[at.slot]
    }

    fn front(&mut self, client: usize) -> &mut Front {
        self.clients[client].front.as_mut().expect("only fronts are recalled")
    }

    fn plan(&mut self, nanos: u64, own: Own) {
        self.fleet.sim.plan(nanos, Happening::Own(own));
    }

    fn is_first_life(&self) -> bool {
        self.audit.is_none()
    }

    /// Whether something acknowledged may be missing on the device.
    fn is_lost(&self) -> bool {
        self.lost || self.fleet.device.faults.has_lost_flush()
    }

    fn think_time(&mut self) -> u64 {
        let longest = if self.fleet.sim.rng.chance(1, 10) { 50_000 } else { 500 };
        self.fleet.sim.rng.below(longest)
    }

    fn plan_step(&mut self, at: At, nanos: u64) {
        let slot = self.slot(at);
        slot.ticket += 1;
        let ticket = slot.ticket;
        self.plan(nanos, Own::Step { at, ticket });
    }

    fn think(&mut self, at: At) {
        self.slot(at).state = SlotState::Thinking;
        let think = self.think_time();
        self.plan_step(at, think);
    }

    /// The excuses for an error that `from` returns now for a request invoked at position
    /// `invoked`.
    fn excuses(&self, request: &Request, from: CellId, invoked: u64) -> Excuses {
        let mut excuses = Excuses::default();
        let is_small = self.swarm.space.chunks.is_some() && self.is_first_life();
        excuses.set(Excuses::NO_SPACE, is_small && takes_space(request));
        let is_read_only = self.fleet.device.faults.may_be_read_only();
        excuses.set(Excuses::READ_ONLY, is_read_only && changes(request));
        excuses.set(Excuses::DAMAGED, self.may_be_refused(invoked));
        let is_partial = *request == Request::Sync && self.outage.excuses(invoked);
        let has_failed = self.fleet.incidents.excuse_io(request, from, invoked);
        excuses.set(Excuses::IO, is_partial || has_failed);
        excuses
    }

    /// Whether a call that was invoked at this place may be refused for the shards that it needs.
    fn may_be_refused(&self, invoked: u64) -> bool {
        self.fleet.incidents.has_damage() || self.outage.excuses(invoked)
    }
}
