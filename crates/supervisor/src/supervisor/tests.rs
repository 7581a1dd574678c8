//! A fleet and a device in memory, which complete in any order, fail and crash.

use std::collections::{BTreeMap, VecDeque};

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS, SLOTS_MAX};
use warren_base::{BlockNo, ClientId, Rng, ShardId};
use warren_disk::format::{FormatOptions, image};
use warren_disk::{Owner, Superblock};
use warren_proto::control::{ShardRoot, Written};
use warren_proto::slot::{LaneSize, Shape};
use warren_proto::{Credentials, Rules};

use super::*;
use crate::IoId;
use crate::schedule::CHECKPOINT_INTERVAL;
use crate::stop::STOP_MAX;

mod adoption;
mod alarm;
mod growth;
mod hang;
mod loss;
mod stop;
mod taken_out;

/// The first checkpoint of a new pool: `mkfs` made the one before the opening.
const FIRST: u64 = 3;
const SHARDS: u16 = 12;
const EPOCH: Epoch = Epoch(1);

/// The state that the supervisor has to record: a shard's root and next sequence, a chunk's owner.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct State {
    roots: BTreeMap<ShardId, (BlockNo, u64)>,
    owners: BTreeMap<u64, ShardId>,
}

/// The contents of a block that was never written: a pool that grows may find anything.
const UNWRITTEN: [u8; BLOCK_SIZE] = [0xa5; BLOCK_SIZE];

/// A device that loses writes that were not flushed.
#[derive(Clone, Default)]
struct Device {
    durable: BTreeMap<BlockNo, Box<[u8]>>,
    /// Done, not flushed.
    cached: Vec<(BlockNo, Box<[u8]>)>,
}

enum Io {
    Write(BlockNo, Box<[u8]>),
    /// Makes durable this many of the cached writes.
    Flush(usize),
}

impl Device {
    fn new() -> Self {
        let options = FormatOptions {
            size_bytes: 32 << 20,
            shards: SHARDS,
            log_bytes: 8 * warren_disk::format::LOG_MIN,
            uuid: *b"0123456789abcdef",
            secret: 1,
            now: Timestamp(0),
            uid: 0,
            gid: 0,
            label: String::new(),
            reserved: false,
            kept_percent: None,
        };
        let blocks = image(&options).expect("the options make a pool");
        Self { durable: blocks.into_iter().collect(), cached: Vec::new() }
    }

    fn flush(&mut self, count: usize) {
        for (block, bytes) in self.cached.drain(..count) {
            self.durable.insert(block, bytes);
        }
    }

    /// Each 512 bytes of what was not flushed are written or not.
    fn crash(&mut self, in_flight: Vec<Io>, rng: &mut Rng) {
        let in_flight = in_flight.into_iter().filter_map(|io| match io {
            Io::Write(block, bytes) => Some((block, bytes)),
            Io::Flush(_) => None,
        });
        for (block, bytes) in std::mem::take(&mut self.cached).into_iter().chain(in_flight) {
            let old = self.durable.entry(block).or_insert_with(|| UNWRITTEN.into());
            for (old, new) in old.chunks_mut(512).zip(bytes.chunks(512)) {
                if rng.chance(1, 2) {
                    old.copy_from_slice(new);
                }
            }
        }
    }

    fn read(&self, from: BlockNo, blocks: u64) -> Vec<u8> {
        let block = |at| self.durable.get(&from.offset(at)).map_or(&UNWRITTEN[..], |block| block);
        (0..blocks).flat_map(|at| block(at).to_vec()).collect()
    }

    fn open(&self) -> (Ledger, CopiesState) {
        let (a, b) = (self.read(BlockNo(0), 1), self.read(BlockNo(1), 1));
        let (superblock, copies) = Superblock::choose(&a, &b).expect("a superblock is readable");
        let layout = superblock.layout;
        let regions = [0, 1].map(|copy| {
            let runs = layout.region_runs(copy);
            runs.flat_map(|(block, count)| self.read(block, count)).collect::<Vec<u8>>()
        });
        let slots = self.read(layout.roots_start(), 2 * layout.roots_blocks());
        let tables = [0, 1].map(|copy| self.read(layout.log_table(copy), 1));
        let (regions, tables) = ([&regions[0][..], &regions[1]], [&tables[0][..], &tables[1]]);
        let ledger = Ledger::load(superblock, regions, &slots, tables);
        (ledger.expect("the pool is intact"), copies)
    }
}

fn state_of(ledger: &Ledger) -> State {
    let roots = (0..SHARDS).map(ShardId).filter_map(|shard| {
        let root = ledger.root(shard)?;
        Some((shard, (root.root?.block, root.next_sequence)))
    });
    let owners = ledger.regions().iter().filter_map(|(chunk, owner)| match owner {
        Owner::Shard(shard) => Some((chunk, shard)),
        _ => None,
    });
    State { roots: roots.collect(), owners: owners.collect() }
}

struct World {
    rng: Rng,
    supervisor: Supervisor,
    cells: u16,
    device: Device,
    epochs: Vec<Epoch>,
    /// Reports that each cell has sent and the supervisor has not received.
    sent: Vec<VecDeque<Event>>,
    ios: BTreeMap<IoId, Io>,
    /// All effects but I/O, and all I/O by name.
    log: Vec<Effect>,
    io_log: Vec<&'static str>,
    /// I/Os of the opening.
    opening_ios: u64,
    committed: State,
    staged: State,
    /// The state of the pool if an attempt is committed, by its number.
    attempts: BTreeMap<u64, State>,
    switched: u64,
    /// One write in this many fails, and one flush.
    faults: Option<(u64, u64)>,
    /// The number of the I/O that fails.
    fail_io: Option<u64>,
    /// The next cell that writes reports this instead.
    lie: Option<Result<Written, Errno>>,
    changes: u64,
    now: Instant,
    /// One apply in this many is the supervisor's last.
    deaths: Option<u64>,
    adoptions: u64,
}

impl World {
    fn new(cells: u16, seed: u64) -> Self {
        Self::on(Device::new(), cells, seed)
    }

    fn on(device: Device, cells: u16, seed: u64) -> Self {
        let (ledger, copies) = device.open();
        let committed = state_of(&ledger);
        let switched = ledger.superblock().generation;
        let config = Config {
            epochs: vec![EPOCH; usize::from(cells)],
            map_version: MapVersion(1),
            owners: (0..SHARDS).map(|shard| CellId(shard % cells)).collect(),
            ledger,
            recover: false,
            copies,
        };
        Self {
            rng: Rng::new(seed),
            supervisor: Supervisor::new(config),
            cells,
            device,
            epochs: vec![EPOCH; usize::from(cells)],
            sent: vec![VecDeque::new(); usize::from(cells)],
            ios: BTreeMap::new(),
            log: Vec::new(),
            io_log: Vec::new(),
            opening_ios: 0,
            staged: committed.clone(),
            attempts: BTreeMap::from([(switched, committed.clone())]),
            committed,
            switched,
            faults: None,
            fail_io: None,
            lie: None,
            changes: 3,
            now: Instant(0),
            deaths: None,
            adoptions: 0,
        }
    }

    /// All cells ready.
    fn serving(cells: u16, seed: u64) -> Self {
        let mut world = Self::new(cells, seed);
        world.start();
        world
    }

    fn start(&mut self) {
        for cell in (0..self.cells).map(CellId) {
            let report = Report::Ready { cell, epoch: EPOCH, map: MapVersion(1) };
            self.apply(Event::Report { from: cell, epoch: EPOCH, report });
        }
        assert_eq!(self.supervisor.stage(), Stage::Opening);
        let faults = self.faults.take();
        self.settle();
        self.faults = faults;
        assert_eq!(self.supervisor.stage(), Stage::Serving);
        // The tests count the I/O of checkpoints. The opening is none.
        self.opening_ios = std::mem::take(&mut self.io_log).len() as u64;
        let opened = self.supervisor.ledger().superblock().generation;
        self.attempts.insert(opened, self.committed.clone());
        self.switched = opened;
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.supervisor.apply(self.now, Timestamp(0), event, &mut effects);
        while self.deaths.is_some_and(|one_in| self.rng.chance(1, one_in)) {
            // The successor carries out the rest of the effects, and then its own.
            let done = self.rng.below(effects.len() as u64 + 1) as usize;
            let left = effects.split_off(done);
            self.carry_out(effects);
            self.carry_out(left.into_iter().filter(Effect::is_repeatable).collect());
            effects = self.adopt();
        }
        self.carry_out(effects);
    }

    /// The process of the supervisor dies; its I/O under way is done or not.
    fn adopt(&mut self) -> Vec<Effect> {
        self.adoptions += 1;
        let record = self.supervisor.record();
        for io in std::mem::take(&mut self.ios).into_values() {
            match io {
                Io::Write(block, bytes) if self.rng.chance(1, 2) => {
                    self.device.cached.push((block, bytes));
                }
                _ => {}
            }
        }
        self.device.flush(self.device.cached.len());
        let (ledger, copies) = self.device.open();
        let mut effects = Vec::new();
        let predecessor = Predecessor { record: &record, ledger, copies, flushed: Ok(()) };
        let adopted = Supervisor::adopt(predecessor, self.now, Timestamp(0), &mut effects);
        self.supervisor = adopted.expect("its own record");
        effects
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, ref order } => self.order(to, order),
                Effect::Restart { cell, epoch, .. } => self.restart(cell, epoch),
                Effect::Write { io, block, bytes } => {
                    let is_free =
                        self.ios.values().all(|io| !matches!(io, Io::Write(b, _) if *b == block));
                    assert!(is_free, "two writes of {block:?} in flight");
                    self.io_log.push(if block.0 < 2 { "superblock" } else { "write" });
                    self.ios.insert(io, Io::Write(block, bytes));
                    continue;
                }
                Effect::Flush { io } => {
                    self.io_log.push("flush");
                    self.ios.insert(io, Io::Flush(self.device.cached.len()));
                    continue;
                }
                _ => {}
            }
            self.log.push(effect);
        }
    }

    /// A cell carries out an order at once; the supervisor receives the report later.
    fn order(&mut self, cell: CellId, order: &Order) {
        let report = match order {
            Order::Admit { client, .. } => Report::Admitted { client: *client },
            Order::Expel { client } => Report::Expelled { client: *client },
            Order::Drain { number } => Report::Drained { cell, number: *number },
            Order::Stop | Order::Save => Report::Stopped { cell },
            Order::Write { number, .. } => {
                let (number, result) = (*number, self.write(cell, *number));
                Report::Written { cell, number, result }
            }
            Order::Switched { number, .. } => {
                self.committed = self.staged.clone();
                self.switched = self.switched.max(*number);
                return;
            }
            Order::Failed { .. } => {
                self.staged = self.committed.clone();
                return;
            }
            Order::Lost { cell: lost, epoch } => Report::LossHandled { lost: *lost, epoch: *epoch },
            Order::Grown { last: true, .. } => Report::Grown { cell },
            Order::Probe { .. }
            | Order::Joined { .. }
            | Order::Grow { .. }
            | Order::Grown { .. }
            | Order::Found { .. }
            | Order::Rule { .. }
            | Order::ReadOnly { .. }
            | Order::GivenUp { .. }
            | Order::Served { .. } => return,
            Order::Abandoned { .. } => {
                self.staged = self.committed.clone();
                return;
            }
            Order::Cut { .. } | Order::Replay | Order::Claimed { .. } => {
                panic!("nothing is recovered here");
            }
        };
        let epoch = self.epochs[usize::from(cell.0)];
        let event = Event::Report { from: cell, epoch, report };
        self.sent[usize::from(cell.0)].push_back(event);
    }

    /// The process of the cell dies; its last reports may be lost.
    fn kill(&mut self, cell: CellId) {
        let sent = &mut self.sent[usize::from(cell.0)];
        let received = self.rng.below(sent.len() as u64 + 1) as usize;
        let sent: Vec<Event> = std::mem::take(sent).into_iter().take(received).collect();
        sent.into_iter().for_each(|event| self.apply(event));
        let epoch = self.epochs[usize::from(cell.0)];
        self.apply(Event::CellExited { cell, epoch, by_itself: false });
    }

    fn restart(&mut self, cell: CellId, epoch: Epoch) {
        assert_eq!(epoch.0, self.epochs[usize::from(cell.0)].0 + 1);
        self.epochs[usize::from(cell.0)] = epoch;
        let report = Report::Ready { cell, epoch, map: MapVersion(1) };
        self.sent[usize::from(cell.0)].push_back(Event::Report { from: cell, epoch, report });
    }

    /// Claims, releases and new roots at random.
    fn write(&mut self, cell: CellId, number: u64) -> Result<Written, Errno> {
        if let Some(lie) = self.lie.take() {
            return lie;
        }
        let mut written = Written::default();
        for shard in (cell.0..SHARDS).step_by(usize::from(self.cells)).map(ShardId) {
            if self.changes == 0 || !self.rng.chance(1, self.changes) {
                continue;
            }
            self.change_chunks(shard, &mut written);
            let chunk = self.staged.owners.iter().find(|(_, owner)| **owner == shard);
            let Some((chunk, _)) = chunk else { continue };
            let block = BlockNo(chunk * CHUNK_BLOCKS + self.rng.below(CHUNK_BLOCKS));
            self.staged.roots.insert(shard, (block, number));
            written.roots.push(ShardRoot {
                shard,
                root: Some((block, 7)),
                height: 1,
                next_sequence: number,
                inodes: 0,
                blocks: 0,
            });
        }
        self.attempts.insert(number, self.staged.clone());
        Ok(written)
    }

    fn change_chunks(&mut self, shard: ShardId, written: &mut Written) {
        let mine = self.staged.owners.iter().filter(|(_, owner)| **owner == shard);
        let mine: Vec<u64> = mine.map(|(chunk, _)| *chunk).collect();
        if mine.len() > 2 && self.rng.chance(1, 2) {
            // The last, which holds no root, and was not claimed just now.
            let chunk = mine[mine.len() - 1];
            self.staged.owners.remove(&chunk);
            written.released.push(chunk);
        } else if mine.len() < 5 {
            let bounds = self.supervisor.ledger().superblock().layout.bounds();
            let end = *self.rng.pick(&[128, self.supervisor.ledger().regions().layout().chunks()]);
            let chunk = self.rng.below(end);
            let is_free =
                |state: &State| bounds.contain(chunk) && !state.owners.contains_key(&chunk);
            if is_free(&self.staged) && is_free(&self.committed) {
                self.staged.owners.insert(chunk, shard);
                written.claimed.push((chunk, shard));
            }
        }
    }

    /// One report or I/O that is under way completes; false if there is none.
    fn turn(&mut self) -> bool {
        let senders: Vec<usize> =
            (0..self.sent.len()).filter(|&cell| !self.sent[cell].is_empty()).collect();
        let ios: Vec<IoId> = self.ios.keys().copied().collect();
        let choices = senders.len() + ios.len();
        if choices == 0 {
            return false;
        }
        let choice = self.rng.below(choices as u64) as usize;
        match senders.get(choice) {
            Some(&cell) => {
                let event = self.sent[cell].pop_front().expect("it has sent one");
                self.apply(event);
            }
            None => self.finish_io(ios[choice - senders.len()]),
        }
        true
    }

    fn finish_io(&mut self, id: IoId) {
        let io = self.ios.remove(&id).expect("it is under way");
        let (writes, flushes) = self.faults.unwrap_or((u64::MAX, u64::MAX));
        let is_flush = matches!(io, Io::Flush(_));
        let fails = self.fail_io == Some(id.0)
            || self.rng.chance(1, if is_flush { flushes } else { writes });
        match io {
            Io::Write(block, bytes) if !fails || self.rng.chance(1, 2) => {
                self.device.cached.push((block, bytes));
            }
            Io::Flush(count) if !fails => self.device.flush(count),
            _ => {}
        }
        self.apply(Event::IoDone { io: id, result: if fails { Err(Errno::EIO) } else { Ok(()) } });
    }

    fn settle(&mut self) {
        while self.turn() {}
    }

    /// The time of the last wake that the supervisor requested.
    fn wake(&self) -> Option<Instant> {
        self.log.iter().rev().find_map(|effect| match effect {
            Effect::Wake(at) => Some(*at),
            _ => None,
        })
    }

    /// Time passes until every lost cell has a successor.
    fn settle_successors(&mut self) {
        self.settle();
        let is_lost = |cell: &crate::CellStatus| cell.state == CellState::Lost;
        while self.exit().is_none() && self.supervisor.status().cells.iter().any(is_lost) {
            self.now = self.wake().expect("a successor waits");
            self.apply(Event::Tick);
            self.settle();
        }
    }

    /// The next report of one of these cells.
    fn sent_by(&mut self, cells: [usize; 2]) -> Option<Event> {
        cells.into_iter().find_map(|cell| self.sent[cell].pop_front())
    }

    fn want(&mut self) {
        let cell = CellId(self.rng.below(u64::from(self.cells)) as u16);
        let report = Report::WantCheckpoint { cell };
        self.apply(Event::Report { from: cell, epoch: EPOCH, report });
    }

    /// A checkpoint from request to end.
    fn checkpoint(&mut self) {
        self.want();
        self.settle();
    }

    fn orders(&self, is_wanted: impl Fn(&Order) -> bool) -> usize {
        let sent =
            |effect: &&Effect| matches!(effect, Effect::Send { order, .. } if is_wanted(order));
        self.log.iter().filter(sent).count()
    }

    fn failed(&self) -> usize {
        self.orders(|order| matches!(order, Order::Failed { .. }))
    }

    fn exit(&self) -> Option<Result<(), Failure>> {
        self.log.iter().find_map(|effect| match effect {
            Effect::Exit(result) => Some(*result),
            _ => None,
        })
    }

    fn connect(&mut self, number: u64) {
        self.connect_as(false, number);
    }

    fn connect_as(&mut self, front: bool, number: u64) {
        let (credentials, privileged, mounted) = (Credentials::default(), true, Box::default());
        let (shape, rules) = (Shape::large(4), Rules::empty());
        let applicant = Applicant { credentials, pid: 9, front, privileged, shape, rules, mounted };
        self.apply(Event::Connect { connection: ConnectionNo(number), applicant });
    }

    /// The power fails. The device must hold one complete checkpoint, which is not older than the
    /// last one that was reported as committed.
    fn crash(mut self, seed: u64) -> Device {
        let in_flight = std::mem::take(&mut self.ios).into_values().collect();
        self.device.crash(in_flight, &mut self.rng);
        let (ledger, _) = self.device.open();
        let generation = ledger.superblock().generation;
        let found = state_of(&ledger);
        assert_eq!(Some(&found), self.attempts.get(&generation), "seed {seed}");
        assert!(
            generation > self.switched || found == self.committed,
            "seed {seed}: checkpoint {} was committed, {generation} is found",
            self.switched
        );
        self.device
    }
}

#[test]
fn every_crash_leaves_one_whole_checkpoint() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut device = Device::new();
        for _ in 0..6 {
            let mut world = World::on(device, 1 + rng.below(5) as u16, rng.next_u64());
            world.changes = rng.below(8);
            world.faults = rng.chance(1, 3).then_some((12, 40));
            world.deaths = rng.chance(1, 2).then_some(8);
            world.start();
            for _ in 0..rng.below(250) {
                if rng.chance(1, 10) || !world.turn() {
                    world.want();
                }
            }
            device = world.crash(seed);
        }
    }
}

#[test]
fn a_checkpoint_goes_through_its_steps_in_order() {
    let mut world = World::serving(3, 1);
    world.changes = 1;
    world.checkpoint();
    let first = world.io_log.iter().position(|io| *io == "flush").expect("a flush");
    assert!(world.io_log[..first].iter().all(|io| *io == "write"));
    assert_eq!(world.io_log[first..], ["flush", "superblock", "flush", "superblock"]);
    assert_eq!(
        world.orders(|order| *order == Order::Switched { number: FIRST, is_whole: true }),
        3
    );
    assert_eq!(state_of(world.supervisor.ledger()), world.committed);
    let (a, b) = (world.device.cached.len(), world.device.durable.len());
    assert!(a == 1 && b > 0, "only the other superblock is not flushed");
}

#[test]
fn without_changes_nothing_is_written() {
    let mut world = World::serving(3, 1);
    world.changes = 0;
    world.checkpoint();
    assert!(world.io_log.is_empty());
    assert_eq!(
        world.orders(|order| *order == Order::Switched { number: FIRST, is_whole: true }),
        3
    );
    assert_eq!(world.supervisor.status().generation, FIRST - 1);
    assert!(!world.device.open().0.superblock().clean);
}

#[test]
fn a_request_while_cells_drain_gets_a_checkpoint_of_its_own() {
    let mut world = World::serving(2, 1);
    world.want();
    world.want();
    world.settle();
    assert_eq!(world.orders(|order| matches!(order, Order::Drain { .. })), 4);
    assert_eq!(world.switched, FIRST + 1);
}

#[test]
fn the_timer_starts_one_every_five_seconds() {
    let mut world = World::serving(2, 1);
    world.apply(Event::Tick);
    world.now = Instant(0) + CHECKPOINT_INTERVAL;
    assert_eq!(world.orders(|order| matches!(order, Order::Drain { .. })), 0);
    world.apply(Event::Tick);
    world.settle();
    world.apply(Event::Tick);
    assert_eq!(world.orders(|order| matches!(order, Order::Drain { .. })), 2);
    assert!(world.log.contains(&Effect::Wake(world.now + CHECKPOINT_INTERVAL)));
}

/// The n-th I/O of a checkpoint fails, for each n.
#[test]
fn a_failure_at_any_step_fails_the_checkpoint_for_all() {
    let mut fatal = 0;
    let ios = {
        let mut world = World::serving(3, 5);
        world.changes = 1;
        world.checkpoint();
        world.io_log
    };
    for (n, io) in ios.iter().enumerate() {
        let mut world = World::serving(3, 5);
        world.changes = 1;
        world.fail_io = Some(world.opening_ios + n as u64 + 1);
        world.checkpoint();
        let is_other = n + 1 == ios.len();
        assert_eq!(world.failed(), if is_other { 0 } else { 3 }, "{n} ({io})");
        world.fail_io = None;
        world.checkpoint();
        if *io == "write" {
            assert_eq!((world.failed(), world.switched), (3, FIRST + 1), "{n} ({io})");
            assert_eq!(state_of(world.supervisor.ledger()), world.committed);
        } else {
            fatal += 1;
            assert_eq!(world.failed(), if is_other { 3 } else { 6 }, "{n} ({io})");
            assert_eq!(world.supervisor.status().broken, Some(Errno::EIO));
        }
        world.crash(n as u64);
    }
    assert_eq!(fatal, 4);
}

#[test]
fn an_error_of_a_cell_is_reported_when_all_have_replied() {
    let mut world = World::serving(3, 1);
    world.lie = Some(Err(Errno::ENOSPC));
    world.want();
    while world.failed() == 0 {
        assert!(world.turn(), "the checkpoint ends");
    }
    assert!(world.sent.iter().all(VecDeque::is_empty));
    let failed = Order::Failed { number: FIRST, errno: Errno::ENOSPC, broken: false };
    assert_eq!(world.orders(|order| *order == failed), 3);
    assert!(world.io_log.is_empty());
    world.checkpoint();
    assert_eq!(world.switched, FIRST + 1);
}

#[test]
fn an_invalid_report_is_not_recorded() {
    let root = |shard, block| ShardRoot {
        shard: ShardId(shard),
        root: Some((BlockNo(block), 0)),
        height: 1,
        next_sequence: 1,
        inodes: 0,
        blocks: 0,
    };
    let taken = *World::new(1, 1).committed.owners.keys().next().expect("shard 0 has a chunk");
    let lies = [
        Written { claimed: vec![(taken, ShardId(0))], ..Written::default() },
        Written { claimed: vec![(0, ShardId(0))], ..Written::default() },
        Written { claimed: vec![(1 << 40, ShardId(0))], ..Written::default() },
        Written { claimed: vec![(90, ShardId(SHARDS))], ..Written::default() },
        Written { released: vec![90], ..Written::default() },
        Written { roots: vec![root(3, taken * CHUNK_BLOCKS)], ..Written::default() },
        Written { roots: vec![root(SHARDS, taken * CHUNK_BLOCKS)], ..Written::default() },
        Written { roots: vec![root(0, u64::MAX)], ..Written::default() },
        Written { roots: vec![root(0, taken * CHUNK_BLOCKS); 2], ..Written::default() },
        Written {
            roots: vec![ShardRoot { height: 0, ..root(0, taken * CHUNK_BLOCKS) }],
            ..Written::default()
        },
    ];
    for lie in lies {
        let mut world = World::serving(1, 1);
        world.lie = Some(Ok(lie.clone()));
        world.checkpoint();
        assert!(world.io_log.is_empty() && world.failed() == 1, "{lie:?}");
    }
}

#[test]
fn a_stop_expels_writes_and_marks_the_pool_clean() {
    let mut world = World::serving(3, 1);
    world.changes = 1;
    world.connect(1);
    world.checkpoint();
    assert!(!world.device.open().0.superblock().clean);
    world.changes = 0;
    world.apply(Event::Stop);
    world.connect(2);
    world.settle();
    assert_eq!(world.exit(), Some(Ok(())));
    assert!(world.log.contains(&Effect::ForgetClient { client: ClientId(1) }));
    let refused = Effect::RefuseClient { connection: ConnectionNo(2), errno: Errno::EIO };
    assert!(world.log.contains(&refused));
    assert!(world.device.cached.is_empty(), "everything is flushed");
    let (ledger, copies) = world.device.open();
    assert!(ledger.superblock().clean && copies == CopiesState::Agree);
    assert_eq!(state_of(&ledger), world.committed);
}

#[test]
fn a_stop_waits_for_the_checkpoint_under_way() {
    let mut world = World::serving(3, 1);
    world.changes = 1;
    world.want();
    world.turn();
    world.apply(Event::Stop);
    world.settle();
    assert_eq!((world.exit(), world.switched), (Some(Ok(())), FIRST + 1));
}

#[test]
fn a_stop_before_all_are_ready_ends_the_fleet() {
    let mut world = World::new(2, 1);
    world.connect(1);
    let refused = Effect::RefuseClient { connection: ConnectionNo(1), errno: Errno::EAGAIN };
    assert!(world.log.contains(&refused));
    world.apply(Event::Stop);
    world.settle();
    assert_eq!(world.exit(), Some(Ok(())));
}

#[test]
fn a_last_checkpoint_that_fails_is_reported() {
    let mut world = World::serving(2, 1);
    world.lie = Some(Err(Errno::EIO));
    world.apply(Event::Stop);
    world.settle();
    let failure = Failure::LastCheckpoint { errno: Errno::EIO };
    assert_eq!(world.exit(), Some(Err(failure)));
}

#[test]
fn a_successor_waits_for_the_checkpoint_that_is_being_recorded() {
    let mut world = World::serving(2, 1);
    world.changes = 1;
    world.want();
    while world.ios.is_empty() {
        assert!(world.turn(), "the checkpoint is written");
    }
    world.kill(CellId(0));
    while let Some(event) = world.sent[1].pop_front() {
        world.apply(event);
    }
    assert_eq!(world.epochs[0], EPOCH);
    world.settle();
    assert_eq!((world.epochs[0], world.switched), (Epoch(2), FIRST));
    assert_eq!(state_of(world.supervisor.ledger()), world.committed);
}

#[test]
fn a_cell_that_is_lost_before_the_fleet_serves_ends_it() {
    let mut world = World::new(2, 1);
    world.apply(Event::CellExited { cell: CellId(1), epoch: EPOCH, by_itself: false });
    world.settle();
    let failure = Failure::CellExited { cell: CellId(1), epoch: EPOCH };
    assert_eq!(world.exit(), Some(Err(failure)));
}

#[test]
fn the_wait_for_a_cell_that_does_not_stop_is_limited() {
    let mut world = World::serving(2, 1);
    world.apply(Event::Stop);
    while !matches!(world.supervisor.stage(), Stage::Closing { .. }) {
        world.turn();
    }
    world.sent[1].clear();
    world.settle();
    assert_eq!(world.exit(), None);
    world.now = world.now + STOP_WAIT;
    world.apply(Event::Tick);
    assert_eq!(world.exit(), Some(Err(Failure::CellHangs { cell: CellId(1) })));
}

#[test]
fn a_slow_last_flush_makes_no_cell_late() {
    let mut world = World::serving(2, 1);
    world.apply(Event::Stop);
    while !matches!(world.supervisor.stage(), Stage::Closing { .. }) {
        world.turn();
    }
    // The driver flushes, and delivers no reports until that is done.
    while let Some(&io) = world.ios.keys().next() {
        world.now = world.now + 2 * STOP_WAIT;
        world.finish_io(io);
    }
    world.settle();
    assert_eq!(world.exit(), Some(Ok(())));
}

#[test]
fn a_cell_that_hangs_during_a_stop_is_found() {
    let mut world = World::serving(2, 1);
    world.apply(Event::Stop);
    let settle_without_cell_1 = |world: &mut World| {
        world.sent[1].clear();
        while world.turn() {
            world.sent[1].clear();
        }
    };
    settle_without_cell_1(&mut world);
    let stop_by = world.now + STOP_MAX;
    world.now = world.now + STOP_MAX / 2;
    world.apply(Event::Tick);
    assert_eq!(world.log.last(), Some(&Effect::Wake(stop_by)));
    world.now = stop_by;
    world.apply(Event::Tick);
    settle_without_cell_1(&mut world);
    assert_eq!(world.exit(), None, "it may still end");
    world.now = world.now + STOP_WAIT;
    world.apply(Event::Tick);
    assert_eq!(world.exit(), Some(Err(Failure::CellHangs { cell: CellId(1) })));
}

#[test]
fn a_cell_with_another_map_ends_the_fleet() {
    let mut world = World::new(1, 1);
    let report = Report::Ready { cell: CellId(0), epoch: EPOCH, map: MapVersion(2) };
    world.apply(Event::Report { from: CellId(0), epoch: EPOCH, report });
    world.settle();
    assert_eq!(world.exit(), Some(Err(Failure::WrongMap { cell: CellId(0) })));
}

#[test]
fn a_shard_that_is_given_up_does_not_end_the_fleet_and_is_shown() {
    let mut world = World::new(2, 1);
    let (cell, shard, errno) = (CellId(1), ShardId(3), Errno::EIO);
    let report = Report::GivenUp { cell, shard, errno };
    world.apply(Event::Report { from: cell, epoch: EPOCH, report });
    world.settle();
    assert_eq!(world.exit(), None);
    assert_eq!(world.orders(|order| *order == Order::GivenUp { shard }), 2);
    let given_up = world.supervisor.status().given_up;
    assert_eq!(
        given_up.iter().map(|(id, why)| (*id, why.errno)).collect::<Vec<_>>(),
        [(shard, errno)]
    );
}

#[test]
fn a_client_is_admitted_once_all_cells_have_admitted_it() {
    let mut world = World::serving(3, 1);
    world.connect(1);
    let admitted = Effect::AdmitClient { client: ClientId(1) };
    for _ in 0..3 {
        assert!(!world.log.contains(&admitted));
        world.turn();
    }
    assert!(world.log.contains(&admitted));
    world.apply(Event::Hangup { client: ClientId(1) });
    world.apply(Event::Hangup { client: ClientId(1) });
    world.settle();
    assert_eq!(world.orders(|order| matches!(order, Order::Expel { .. })), 3);
    assert!(world.supervisor.status().clients.is_empty());
}

#[test]
fn rules_go_to_all_cells_and_to_a_successor() {
    let mut world = World::serving(2, 1);
    world.connect_as(true, 1);
    world.settle();
    let (client, rules) = (ClientId(1), Rules::NO_ATIME);
    for _ in 0..2 {
        world.apply(Event::Rule { client, rules });
    }
    world.apply(Event::Rule { client: ClientId(9), rules });
    world.settle();
    assert_eq!(world.orders(|order| *order == Order::Rule { client, rules }), 2, "once each");
    assert_eq!(world.supervisor.status().clients[0].rules, rules);
    let applicant = world.supervisor.applicant(client).expect("it is admitted");
    assert_eq!(applicant.rules, rules, "which a successor of a cell is told");
}

#[test]
fn a_client_that_disconnects_early_is_expelled_too() {
    let mut world = World::serving(3, 1);
    world.connect(1);
    world.turn();
    world.apply(Event::Hangup { client: ClientId(1) });
    world.settle();
    assert!(!world.log.contains(&Effect::AdmitClient { client: ClientId(1) }));
    assert!(world.log.contains(&Effect::ForgetClient { client: ClientId(1) }));
}

#[test]
fn the_number_of_clients_is_limited() {
    let mut world = World::serving(1, 1);
    for n in 0..=crate::ADMISSIONS_MAX as u64 {
        world.connect(n);
    }
    let connection = ConnectionNo(crate::ADMISSIONS_MAX as u64);
    assert!(world.log.contains(&Effect::RefuseClient { connection, errno: Errno::ENFILE }));
    world.apply(Event::Hangup { client: ClientId(1) });
    world.settle();
    world.connect(5000);
    let admitted = (crate::ADMISSIONS_MAX - crate::admission::ADMISSIONS_OF_FRONTS) as u32;
    let client = ClientId(admitted + 1);
    let connection = ConnectionNo(5000);
    assert!(world.log.contains(&Effect::NewClient { connection, client }));
    // A front takes a place among those reserved for fronts.
    world.connect(5001);
    world.connect_as(true, 5002);
    let (connection, client) = (ConnectionNo(5001), ClientId(admitted + 2));
    assert!(world.log.contains(&Effect::RefuseClient { connection, errno: Errno::ENFILE }));
    let connection = ConnectionNo(5002);
    assert!(world.log.contains(&Effect::NewClient { connection, client }));
}

#[test]
fn one_user_leaves_others_places_and_memory() {
    use crate::admission::{ADMISSIONS_OF_FRONTS, ADMISSIONS_OF_PRIVILEGED, CLIENTS_OF_USER_MAX};
    let mut world = World::serving(1, 1);
    let mut connections = 0..;
    let mut connect = |world: &mut World, uid: u32, privileged: bool| {
        let credentials = Credentials { uid, ..Credentials::default() };
        let (pid, front, shape) = (9, false, Shape::large(SLOTS_MAX));
        let (rules, mounted) = (Rules::empty(), Box::default());
        let mut applicant =
            Applicant { credentials, pid, front, privileged, shape, rules, mounted };
        let granted = world.supervisor.shape_for(&applicant);
        applicant.shape = granted.unwrap_or(shape);
        let connection = ConnectionNo(connections.next().expect("many"));
        world.apply(Event::Connect { connection, applicant });
        let refused = Effect::RefuseClient { connection, errno: Errno::ENFILE };
        assert_eq!(world.log.contains(&refused), granted.is_err());
        granted.map(Shape::slots)
    };
    // Two clients with all of their slots, then with one slot each, then none.
    let of_one: Vec<_> = (0..300).map_while(|_| connect(&mut world, 1000, false).ok()).collect();
    assert_eq!(of_one[..3], [SLOTS_MAX, SLOTS_MAX, 1]);
    assert_eq!(of_one.len(), CLIENTS_OF_USER_MAX);
    assert_eq!(of_one.iter().sum::<usize>(), 2 * SLOTS_MAX + CLIENTS_OF_USER_MAX - 2);
    assert_eq!(connect(&mut world, 1001, false), Ok(SLOTS_MAX));
    // When one of its clients is gone, there is a place again, with one slot, because the remaining
    // clients still have more slots than the limit.
    world.apply(Event::Hangup { client: ClientId(1) });
    world.settle();
    assert_eq!(connect(&mut world, 1000, false), Ok(1));
    // Many users leave places to root.
    let crowd = (1002..).map_while(|uid| connect(&mut world, uid, false).ok()).count();
    let admitted = CLIENTS_OF_USER_MAX + 1 + crowd;
    let reserved = ADMISSIONS_OF_FRONTS + ADMISSIONS_OF_PRIVILEGED;
    assert_eq!(admitted, crate::ADMISSIONS_MAX - reserved);
    let of_root = (0..).map_while(|_| connect(&mut world, 0, true).ok());
    assert_eq!(of_root.collect::<Vec<_>>(), vec![SLOTS_MAX; ADMISSIONS_OF_PRIVILEGED]);
}

#[test]
fn small_lanes_leave_a_user_more_slots() {
    use crate::admission::CLIENTS_OF_USER_MAX;
    let mut world = World::serving(1, 1);
    for number in 0..CLIENTS_OF_USER_MAX as u64 {
        let credentials = Credentials { uid: 1000, ..Credentials::default() };
        let shape = Shape::new(4, LaneSize::Small).expect("legal");
        let (pid, front, privileged, mounted) = (9, false, false, Box::default());
        let rules = Rules::empty();
        let applicant = Applicant { credentials, pid, front, privileged, shape, rules, mounted };
        assert_eq!(world.supervisor.shape_for(&applicant), Ok(shape));
        world.apply(Event::Connect { connection: ConnectionNo(number), applicant });
    }
}

#[test]
fn a_superblock_copy_that_is_behind_is_brought_up_to_date() {
    let mut world = World::serving(1, 1);
    world.changes = 1;
    world.checkpoint();
    // The other copy was never flushed.
    let mut world = World::on(world.device.clone(), 1, 2);
    world.device.cached.clear();
    assert!(matches!(world.device.open().1, CopiesState::Behind(_)));
    world.start();
    world.settle();
    let cached = world.device.cached.len();
    world.device.flush(cached);
    assert_eq!(world.device.open().1, CopiesState::Agree);
}

#[test]
fn a_fleet_whose_supervisor_dies_repeatedly_stops_cleanly() {
    let mut adoptions = 0;
    for seed in 0..100 {
        let mut world = World::new(1 + (seed % 4) as u16, seed);
        world.deaths = Some(2 + seed % 7);
        world.start();
        for client in 1..=4 {
            world.connect(u64::from(client));
            (0..world.rng.below(12)).for_each(|_| _ = world.turn());
            world.want();
            if client % 2 == 0 {
                world.apply(Event::Hangup { client: ClientId(client) });
            }
        }
        world.apply(Event::Stop);
        world.settle();
        assert_eq!(world.exit(), Some(Ok(())), "seed {seed}");
        assert_eq!(world.failed(), 0, "seed {seed}: the death of a supervisor fails no checkpoint");
        let forgotten = |effect: &&Effect| matches!(effect, Effect::ForgetClient { .. });
        assert_eq!(world.log.iter().filter(forgotten).count(), 4, "seed {seed}");
        world.device.flush(world.device.cached.len());
        let (ledger, copies) = world.device.open();
        assert!(ledger.superblock().clean && copies == CopiesState::Agree, "seed {seed}");
        assert_eq!(state_of(&ledger), world.committed, "seed {seed}");
        assert_eq!(world.adopt(), [Effect::Exit(Ok(()))], "also after the end");
        adoptions += world.adoptions;
    }
    assert!(adoptions > 500, "{adoptions} adoptions");
}

#[test]
fn a_flush_that_failed_without_a_supervisor_counts() {
    let mut world = World::serving(2, 5);
    let record = world.supervisor.record();
    let (ledger, copies) = world.device.open();
    let predecessor = Predecessor { record: &record, ledger, copies, flushed: Err(Errno::EIO) };
    let mut effects = Vec::new();
    world.supervisor = Supervisor::adopt(predecessor, world.now, Timestamp(0), &mut effects)
        .expect("its own record");
    world.checkpoint();
    assert_eq!((world.failed(), world.supervisor.status().broken), (2, Some(Errno::EIO)));
    assert!(
        Supervisor::adopt(
            Predecessor {
                record: &record[1..],
                ledger: world.device.open().0,
                copies,
                flushed: Ok(())
            },
            world.now,
            Timestamp(0),
            &mut effects,
        )
        .is_err()
    );
}
