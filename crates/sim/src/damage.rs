//! Damages one shard of a fleet: on the device, in its cell's log, or in the cell itself.
//!
//! | what | how | takes effect when |
//! | --- | --- | --- |
//! | root slots, root, another node | bits of the device flip | it is read |
//! | a record | a step names an inode that does not exist | the log is replayed |
//! | a change | decided changes are refused ([`Plant::RefuseDecided`]) | the next comes |
//!
//! The damage is made by a generator of its own, so that a seed without damage runs as ever.

use std::collections::BTreeSet;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, Ino, Rng, ShardId};
use warren_cell::Plant;
use warren_disk::{BlockPtr, DecodedBody, DecodedNode, ROOT_SLOT_SIZE, RootSlot, Value};
use warren_fsck::Finding;
use warren_proto::{Change, Step};

use crate::fleet::image::Log;
use crate::fleet::incident::{Damage, How};
use crate::fleet::{Fleet, Surroundings, kill_cell, load_ledger};

/// Shard 0 is damaged once in so many times, if others hold something.
const FIRST_EVERY: u64 = 8;
/// Bits that flip in a block, at most.
const BITS_MAX: u64 = 3;

/// The damage that a seed makes, and its time.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub rng: Rng,
    pub how: How,
    /// In 1,000 of a run, or of a life.
    pub moment: u64,
    /// The cell of the shard is killed then.
    pub kills: bool,
    /// Cells keep few tree nodes.
    pub evicts: bool,
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6461_6d61_6765);
        let (on_device, other) =
            ([How::Slots, How::Root, How::Node, How::Node], [How::Record, How::Apply]);
        Self {
            how: if rng.chance(1, 2) { *rng.pick(&on_device) } else { *rng.pick(&other) },
            moment: rng.below(1000),
            kills: rng.chance(3, 4),
            evicts: rng.chance(1, 2),
            rng,
        }
    }
}

/// Damages a shard of a fleet that runs. Its cell may be killed then. Returns whether it was done.
pub(crate) fn strike<W: Surroundings>(world: &mut W, plan: &mut Plan) -> bool {
    let fleet = world.fleet_mut();
    if plan.how != How::Record {
        let shard = damage(fleet, plan.how, &[], &mut plan.rng);
        let owner =
            shard.filter(|_| plan.kills && plan.how != How::Apply).map(|it| fleet.owner(it));
        if let Some(cell) = owner {
            kill(world, cell);
        }
        return shard.is_some();
    }
    // When its successor comes, a record of the cell's log is another.
    let cell = CellId(plan.rng.below(fleet.cells.len() as u64) as u16);
    let log = Log::of_cell(fleet, cell);
    let is_empty = log.records(fleet).is_empty();
    if is_empty || !kill(world, cell) {
        return false;
    }
    damage(world.fleet_mut(), How::Record, &[log], &mut plan.rng).is_some()
}

pub(crate) fn kill<W: Surroundings>(world: &mut W, cell: CellId) -> bool {
    let fleet = world.fleet();
    let may_die = !fleet.host(cell).dead && fleet.may_be_lost(cell);
    if may_die {
        kill_cell(world, cell);
    }
    may_die
}

/// Damages a shard. Nothing happens if there is none that it can be done to.
pub(crate) fn damage<H>(
    fleet: &mut Fleet<H>,
    how: How,
    logs: &[Log],
    rng: &mut Rng,
) -> Option<ShardId> {
    let shard = match how {
        How::Slots | How::Root | How::Node => damage_device(fleet, how, rng)?,
        How::Record => alter_record(fleet, logs, rng)?,
        How::Apply => refuse_decided(fleet, rng)?,
    };
    fleet.sim.count(match how {
        How::Slots => "root slots damaged",
        How::Root => "a root damaged",
        How::Node => "a node damaged",
        How::Record => "a log record damaged",
        How::Apply => "a shard that refuses what is decided",
    });
    fleet.sim.note(&("damage", how, shard));
    let damage = Damage { shard, is_given_up: false, had_records: false };
    fleet.incidents.damage = Some(damage);
    Some(shard)
}

/// In the order in which they are tried.
fn in_order(mut shards: Vec<ShardId>, rng: &mut Rng) -> Vec<ShardId> {
    for at in (1..shards.len()).rev() {
        shards.swap(at, rng.below(at as u64 + 1) as usize);
    }
    let first_first = rng.chance(1, FIRST_EVERY);
    shards.sort_by_key(|shard| (shard.0 == 0) != first_first);
    shards
}

fn damage_device<H>(fleet: &mut Fleet<H>, how: How, rng: &mut Rng) -> Option<ShardId> {
    let (ledger, _) = load_ledger(&fleet.device.disk).ok()?;
    let root = |shard: ShardId| ledger.root(shard).filter(|root| !root.given_up).copied();
    let all = (0..ledger.superblock().layout.shards()).map(ShardId);
    for shard in in_order(all.filter(|shard| root(*shard).is_some()).collect(), rng) {
        let slot = root(shard).expect("filtered");
        if how == How::Slots {
            let layout = &ledger.superblock().layout;
            let (both, zeros) = (rng.chance(1, 2), rng.chance(1, 2));
            for place in [0, 1].map(|copy| layout.root_slot(shard, copy)) {
                let bytes = &fleet.device.disk.block(place.block)[place.offset..][..ROOT_SLOT_SIZE];
                let is_newest = RootSlot::decode(bytes) == Ok(slot);
                if zeros && (both || is_newest) {
                    fleet
                        .device
                        .disk
                        .blank(place.block, place.offset..place.offset + ROOT_SLOT_SIZE);
                } else if both || is_newest {
                    let bit = 8 * place.offset as u64 + rng.below(8 * ROOT_SLOT_SIZE as u64);
                    fleet.device.disk.flip(place.block, bit as usize);
                }
            }
            return Some(shard);
        }
        let (nodes, is_root) = (nodes_of(fleet, &slot), how == How::Root);
        let nodes: Vec<BlockNo> = if is_root { nodes } else { nodes.into_iter().skip(1).collect() };
        if let Some(first) = nodes.first() {
            let block = if is_root { *first } else { *rng.pick(&nodes) };
            for _ in 0..=rng.below(BITS_MAX) {
                fleet.device.disk.flip(block, rng.below(8 * BLOCK_SIZE as u64) as usize);
            }
            return Some(shard);
        }
    }
    None
}

/// The nodes of a tree as of the last checkpoint, the root first.
fn nodes_of<H>(fleet: &Fleet<H>, slot: &RootSlot) -> Vec<BlockNo> {
    let mut nodes = Vec::new();
    let mut todo: Vec<BlockPtr> = slot.root.into_iter().collect();
    while let Some(ptr) = todo.pop() {
        nodes.push(ptr.block);
        let bytes = fleet.device.disk.block(ptr.block);
        let Ok(node) = DecodedNode::decode(ptr, slot.shard, bytes) else { continue };
        if let DecodedBody::Internal(children) = node.body {
            todo.extend(children);
        }
    }
    nodes
}

/// A step that names an inode of the shard that does not exist, as long as the step given.
fn spoiled(step: &Step, shard: ShardId) -> Option<Step> {
    let absent = Ino::new(shard, Ino::SEQUENCE_MAX);
    let mut step = step.clone();
    match &mut step {
        Step::Change(
            Change::AddEntry { dir: ino, .. }
            | Change::RemoveEntry { dir: ino, .. }
            | Change::ReplaceEntry { dir: ino, .. }
            | Change::AddLink { ino, .. }
            | Change::RemoveLink { ino, .. }
            | Change::SetParent { ino, .. }
            | Change::Touch { ino, .. },
        )
        | Step::SetAttr { ino, .. }
        | Step::Accessed { ino, .. }
        | Step::SetXattr { ino, .. }
        | Step::Truncate { ino, .. }
        | Step::Wrote { ino, .. }
        | Step::Placed { ino, .. }
        | Step::Inline { ino, .. } => *ino = absent,
        _ => return None,
    }
    Some(step)
}

fn alter_record<H>(fleet: &mut Fleet<H>, logs: &[Log], rng: &mut Rng) -> Option<ShardId> {
    let mut found = Vec::new();
    for log in logs {
        for (record, steps, cause) in log.records(fleet) {
            for at in 0..steps.len() {
                if let Some(shard) = steps[at].shard()
                    && let Some(step) = spoiled(&steps[at], shard)
                {
                    found.push((
                        shard,
                        *log,
                        record.clone(),
                        steps.clone(),
                        cause.clone(),
                        (at, step),
                    ));
                }
            }
        }
    }
    let mut shards: Vec<ShardId> = found.iter().map(|(shard, ..)| *shard).collect();
    shards.sort_unstable();
    shards.dedup();
    let shard = *in_order(shards, rng).first()?;
    found.retain(|(of, ..)| *of == shard);
    let (_, log, record, mut steps, cause, (at, step)) = rng.pick(&found).clone();
    steps[at] = step;
    log.replace(fleet, &record, &steps, &cause);
    Some(shard)
}

fn refuse_decided<H>(fleet: &mut Fleet<H>, rng: &mut Rng) -> Option<ShardId> {
    let all = (0..fleet.map.len() as u16).map(ShardId).collect();
    let shard = *in_order(all, rng).first().filter(|_| fleet.cells.len() > 1)?;
    fleet.sim.plant = Some(Plant::RefuseDecided(shard));
    let cells = fleet.cells.iter_mut().filter_map(|host| host.cell.as_mut());
    cells.for_each(|cell| cell.plant(Plant::RefuseDecided(shard)));
    Some(shard)
}

/// The slot with one bit flipped back, as fsck reads it.
fn mended(bytes: &[u8]) -> Option<RootSlot> {
    let mut bytes = bytes.to_vec();
    (0..8 * bytes.len()).find_map(|bit| {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let slot = RootSlot::decode(&bytes).ok();
        bytes[bit / 8] ^= 1 << (bit % 8);
        slot
    })
}

/// The inodes to which directories of a shard have led, as its trees on the device say. An older
/// root slot may be all that is left.
pub(crate) fn named_by<H>(fleet: &Fleet<H>, shard: ShardId) -> BTreeSet<Ino> {
    let Ok((ledger, _)) = load_ledger(&fleet.device.disk) else { return BTreeSet::new() };
    let layout = &ledger.superblock().layout;
    let roots = [0, 1].map(|copy| {
        let place = layout.root_slot(shard, copy);
        let bytes = &fleet.device.disk.block(place.block)[place.offset..][..ROOT_SLOT_SIZE];
        RootSlot::decode(bytes).ok().or_else(|| mended(bytes)).and_then(|slot| slot.root)
    });
    let (mut named, mut todo) = (BTreeSet::new(), Vec::from_iter(roots.into_iter().flatten()));
    while let Some(ptr) = todo.pop() {
        match DecodedNode::decode(ptr, shard, fleet.device.disk.block(ptr.block))
            .map(|node| node.body)
        {
            Ok(DecodedBody::Internal(children)) => todo.extend(children),
            Ok(DecodedBody::Leaf(values)) => {
                let buckets = values.into_iter().filter_map(|value| match value {
                    Value::Entries(bucket) => Some(bucket),
                    _ => None,
                });
                named.extend(buckets.flatten().map(|dentry| dentry.ino));
            }
            Err(_) => {}
        }
    }
    named
}

/// Whether what fsck has found is of the shard, or of what it shares with others: names and links.
/// `is_tied`: a directory of the shard leads there, or has led there.
pub(crate) fn explains(
    shard: ShardId,
    finding: &Finding,
    all: &[Finding],
    is_tied: impl Fn(Ino) -> bool,
) -> bool {
    let is_of = |ino: &Ino| ino.shard() == shard;
    match finding {
        Finding::RootSlot { shard: of, .. }
        | Finding::RootSlotCopy { shard: of, .. }
        | Finding::RootSlotBit { shard: of, .. }
        | Finding::GivenUp { shard: of }
        | Finding::Node { shard: of, .. }
        | Finding::RootCount { shard: of, .. }
        | Finding::BlockOutOfRange { shard: of, .. }
        | Finding::ForeignBlock { shard: of, .. }
        | Finding::ForeignChunk { shard: of, .. }
        | Finding::Leaked { shard: of, .. }
        | Finding::ForeignInode { shard: of, .. } => *of == shard,
        Finding::Dangling { dir, ino, .. } | Finding::EntryKind { dir, ino, .. } => {
            is_of(dir) || is_of(ino)
        }
        Finding::Parent { ino, recorded, found } => is_of(ino) || is_of(recorded) || is_of(found),
        Finding::Links { ino, .. }
        | Finding::DirectoryNames { ino, .. }
        | Finding::Unreachable { ino }
        | Finding::Detached { ino }
        | Finding::BadOrphan { ino, .. } => is_of(ino) || is_tied(*ino),
        // An older tree of the shard refers to blocks that are others' by now.
        Finding::NotRecorded { shard: of, block }
        | Finding::SharedBlock { shard: of, block, .. } => {
            let refers = |it: &Finding| match it {
                Finding::ForeignBlock { shard: by, block: to, .. } => (*by, to) == (shard, block),
                _ => false,
            };
            *of == shard || all.iter().any(refers)
        }
        Finding::NoRoot => shard.0 == 0,
        other => other.ino().is_some_and(|ino| is_of(&ino)),
    }
}
