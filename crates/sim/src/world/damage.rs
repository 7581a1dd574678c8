//! The damage of one shard in this world: when it is done, how the history records it, and what
//! must hold at the end of a fleet.

use std::collections::BTreeSet;
use std::rc::Rc;

use warren_base::{Errno, Ino, ShardId};
use warren_fsck::Finding;
use warren_proto::Request;

use crate::damage::{Plan, damage, explains, named_by};
use crate::fleet::incident::{Damage, How};
use crate::fleet::{Fleet, check_named, load_ledger, may_lack_chunks};
use crate::history::{Action, DamagedShards, Operation};
use crate::model::{State, is_tied};

/// A damage that is due, and its time.
#[derive(Default)]
pub(super) struct Due {
    plan: Option<Plan>,
    /// The number of calls that are left then.
    at: u64,
}

impl Due {
    pub(super) fn draw(seed: u64, calls: u64) -> Self {
        let plan = Plan::draw(seed);
        Self { at: calls * plan.moment / 1000, plan: Some(plan) }
    }

    /// Whether cells keep few tree nodes.
    pub(super) fn evicts(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.evicts)
    }

    pub(super) fn take(&mut self, calls_left: u64) -> Option<Plan> {
        self.plan.take_if(|_| calls_left <= self.at)
    }

    /// There was no shard that it could be done to: it is tried again before another call.
    pub(super) fn put_back(&mut self, plan: Plan, calls_left: u64) {
        self.plan = Some(plan);
        self.at = calls_left.saturating_sub(1);
    }
}

/// Damages the device of a stopped fleet, if nothing could be damaged while the fleet ran. Returns
/// whether it did.
pub(super) fn before_restart<H>(fleet: &mut Fleet<H>, due: &mut Due) -> bool {
    fleet.sim.plant = fleet.sim.plant.filter(|_| fleet.incidents.damage.is_none());
    let Some(mut plan) = due.plan.take() else { return false };
    if matches!(plan.how, How::Record | How::Apply) {
        plan.how = *plan.rng.pick(&[How::Slots, How::Root, How::Node]);
    }
    let is_done = damage(fleet, plan.how, &[], &mut plan.rng).is_some();
    if is_done {
        fleet.sim.count("a shard damaged between two fleets");
    }
    is_done
}

/// The shard that was damaged.
pub(super) fn damaged<H>(fleet: &Fleet<H>) -> DamagedShards {
    let damage = fleet.incidents.damage.expect("just done");
    shards(fleet, Rc::new(BTreeSet::from([damage.shard])))
}

pub(super) fn shards<H>(fleet: &Fleet<H>, these: Rc<BTreeSet<ShardId>>) -> DamagedShards {
    let (ledger, _) = load_ledger(&fleet.device.disk).expect("a pool that can be opened");
    let superblock = ledger.superblock();
    DamagedShards { these, shards: superblock.layout.shards(), secret: superblock.secret }
}

/// The damage as the history records it.
pub(super) fn operation<H>(
    fleet: &mut Fleet<H>,
    process: usize,
    damaged: DamagedShards,
) -> Operation {
    let (at, wall) = ((fleet.sim.place(), fleet.sim.place()), fleet.sim.wall());
    Operation::new(process, Action::Damage(damaged), at, wall)
}

/// Whether what the request was to give back is gone, as the error says.
pub(super) fn is_gone<H>(fleet: &Fleet<H>, request: &Request, errno: Errno) -> bool {
    let is_there = |ino: Ino| fleet.incidents.is_damaged(ino.shard());
    match errno {
        Errno::ESTALE | Errno::EBADF | Errno::ENOENT => true,
        Errno::EIO => request.inode().is_some_and(is_there),
        _ => false,
    }
}

/// A fleet has ended in order: it knew of the shard, if it was given up.
pub(super) fn check_status<H>(fleet: &mut Fleet<H>) {
    if let Some(damage) = fleet.incidents.damage.filter(|damage| damage.is_given_up) {
        check_named(fleet, damage.shard);
    }
}

/// Whether the damage explains what fsck has found. `state`: what is there, if that is known.
pub(super) fn is_explained<H>(
    fleet: &Fleet<H>,
    state: Option<&State>,
    finding: &Finding,
    all: &[Finding],
) -> bool {
    let Some(Damage { shard, .. }) = fleet.incidents.damage else { return false };
    explains(shard, finding, all, |ino: Ino| {
        state.is_none_or(|state| is_tied(state, ino, shard, &named_by(fleet, shard)))
    })
}

/// Whether what the log had of a shard that was given up is kept, on a pool of so many blocks that
/// has free chunks.
pub(super) fn check_kept<H>(fleet: &mut Fleet<H>, blocks: u64) -> Result<(), String> {
    let damage = fleet.incidents.damage.filter(|damage| damage.had_records);
    let Some(Damage { shard, .. }) = damage else { return Ok(()) };
    if may_lack_chunks(fleet, fleet.owner(shard)) {
        return Ok(());
    }
    let report = fleet.device.disk.check(blocks);
    let is_marked = report.findings.contains(&Finding::GivenUp { shard });
    let is_kept =
        |found: &Finding| matches!(found, Finding::Kept { shard: of, .. } if *of == shard);
    if is_marked && !report.findings.iter().any(is_kept) {
        return Err(format!("nothing is kept of the log of {shard:?}, which was given up"));
    }
    if is_marked {
        fleet.sim.count("log records of a shard kept");
    }
    Ok(())
}
