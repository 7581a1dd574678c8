//! One to three cells with all that they need: a device, links, a supervisor, clients, and a clock.
//!
//! [`Pair::drive`] processes events in the order of their causes until none is left. If only time
//! can help, the clock goes on to the next timer. A test stops in between: it holds I/O
//! ([`crate::device::Device::hold`]) or messages, ends a process, or cuts the power (`faults.rs`).
//!
//! The [`trace`](Pair::trace) has a line for each I/O, message, report, order and reply:
//!
//! ```text
//! A to B: Prepare      A reads 2      A writes 3 data      A replies
//! A reports Drained    A flushes      A writes 1 log       A receives Drain      A dies
//! ```
//!
//! The requests of clients are in `client.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{
    BlockNo, CellId, ClientId, Epoch, Errno, Ino, Instant, Lsn, MapVersion, ShardId, Timestamp,
};
use warren_cell::{
    Backing, Cell, CellConfig, Clock, Effect, Event, FrameNo, IoId, LogConfig, Memory, PeerBody,
    PeerMessage, Planted, Recovery, SpaceConfig, SpaceReserve,
};
use warren_disk::{ChunkBounds, LOG_BLOCKS_MIN, LogArea};
use warren_proto::control::{Order, Report};
use warren_proto::{CapabilityKey, Credentials, FileKind, Lease};

use crate::client::Pending;
use crate::device::{Action, Device};
use crate::faults::Faults;
use crate::image::{Image, RESERVED, SECRET};
use crate::machine::Machine;
use crate::supervisor::{DurableState, Supervisor};

pub(crate) const A: CellId = CellId(0);
pub(crate) const B: CellId = CellId(1);
/// The directories `/a`, `/b` and `/c`. Each lies at the cell of its name, with the files in it.
pub(crate) const IN_A: Ino = Ino(2);
pub(crate) const IN_B: Ino = Ino(1 << 48 | 1);
pub(crate) const IN_C: Ino = Ino(2 << 48 | 1);

pub(crate) const KEY: CapabilityKey = CapabilityKey([21, 22]);
/// Frames of each cell's cache.
pub(crate) const FRAMES: u32 = CellConfig::FRAMES_MIN;
const CHUNKS: u64 = 40;
pub(crate) const LOG_START: BlockNo = BlockNo(CHUNKS * CHUNK_BLOCKS);
/// A log of this size is half full before its reserve is reached.
const LOG_BLOCKS: u64 = 3 * LOG_BLOCKS_MIN;
/// When a scenario begins, by the wall clock.
const BEGIN: Timestamp = Timestamp(1_700_000_000_000_000_000);
/// A scenario with more events than this never ends.
const EVENTS_MAX: usize = 1_000_000;

const NAMES: [&str; 3] = ["A", "B", "C"];

pub(crate) fn cell_name(cell: CellId) -> &'static str {
    NAMES[usize::from(cell.0)]
}

/// The configuration of a scenario.
pub(crate) struct Setup {
    pub cells: u16,
    /// Free chunks of the pool.
    pub free_chunks: usize,
    /// The pool is a sparse file, and its host has space for so many more chunks.
    pub host_room: Option<u64>,
    /// The space that each cell keeps for root.
    pub reserve: SpaceReserve,
    /// After each checkpoint, shards with more free blocks than this are cleaned.
    pub eager_cleaning: Option<u64>,
    /// Blocks of the log of each cell.
    pub log_blocks: u64,
    pub plant: Planted,
}

impl Default for Setup {
    fn default() -> Self {
        let reserve = SpaceReserve::default();
        Self {
            cells: 2,
            free_chunks: usize::MAX,
            host_room: None,
            reserve,
            eager_cleaning: None,
            log_blocks: LOG_BLOCKS,
            plant: Planted::NONE,
        }
    }
}

/// The credentials of a client, and whether it is a FUSE front.
pub(crate) type AdmittedAs = (Credentials, bool);

/// An event that is planned for a time.
pub(crate) enum Happening {
    Event { to: CellId, epoch: Epoch, event: Event },
    Io { of: CellId, epoch: Epoch, io: IoId, frames: Vec<FrameNo>, action: Action },
    Report { from: CellId, report: Report },
    Tick { cell: CellId, at: Instant },
}

/// A cell: its process, if it lives, and what outlives the process.
pub(crate) struct Member {
    pub(crate) cell: Option<Cell>,
    pub(crate) epoch: Epoch,
    pub(crate) machine: Machine,
    pub(crate) wake: Option<Instant>,
}

pub(crate) struct Pair {
    pub now: Instant,
    /// By so much the wall clock was set back.
    pub set_back: Duration,
    pub device: Device,
    pub supervisor: Supervisor,
    /// The time that each I/O takes.
    pub io_takes: Duration,
    pub(crate) members: Vec<Member>,
    pub(crate) clients: BTreeMap<ClientId, AdmittedAs>,
    pub(crate) calls: BTreeMap<u32, Pending>,
    pub(crate) calls_made: u32,
    pub(crate) clients_made: u32,
    pub(crate) queue: BTreeMap<(Instant, u64), Happening>,
    planned: u64,
    pub(crate) faults: Faults,
    lines: Vec<String>,
    setup: Setup,
    /// Fleets started so far.
    lives: u32,
}

impl Pair {
    /// Two cells that serve `/a` and `/b`.
    pub(crate) fn new() -> Self {
        Self::with(Setup::default())
    }

    pub(crate) fn alone() -> Self {
        Self::with(Setup { cells: 1, ..Setup::default() })
    }

    pub(crate) fn three() -> Self {
        Self::with(Setup { cells: 3, ..Setup::default() })
    }

    pub(crate) fn with(setup: Setup) -> Self {
        let (mut blocks, image) = (BTreeMap::new(), image(setup.cells));
        let roots = (0..setup.cells)
            .map(|shard| (ShardId(shard), image.write(usize::from(shard), &mut blocks)))
            .collect();
        let durable = DurableState {
            generation: 1,
            roots,
            owned: image.owned.clone(),
            log_starts: vec![Lsn(0); usize::from(setup.cells)],
            incarnation: 1,
        };
        let mut device = Device::new(blocks, LOG_START);
        device.host_room = setup.host_room.unwrap_or(0);
        device.allocated = image.owned.values().flatten().copied().collect();
        let mut pair = Self {
            now: Instant(1),
            set_back: Duration::ZERO,
            device,
            supervisor: Supervisor::new(durable, setup.cells, RESERVED..CHUNKS),
            io_takes: Duration::ZERO,
            members: Vec::new(),
            clients: BTreeMap::new(),
            calls: BTreeMap::new(),
            calls_made: 0,
            clients_made: 0,
            queue: BTreeMap::new(),
            planned: 0,
            faults: Faults::default(),
            lines: Vec::new(),
            setup,
            lives: 0,
        };
        pair.boot(Recovery::None);
        pair.drive();
        assert!(pair.is_serving());
        pair.lines.clear();
        pair
    }

    /// Starts all cells with the durable state.
    pub(crate) fn boot(&mut self, recovery: Recovery) {
        self.lives += 1;
        let durable = self.supervisor.durable.clone();
        self.supervisor = Supervisor::new(durable, self.setup.cells, RESERVED..CHUNKS);
        self.members.clear();
        for cell in (0..self.setup.cells).map(CellId) {
            let epoch = Epoch(1000 * self.lives);
            let config = self.config(cell, epoch, recovery);
            let machine = Machine::new(CellConfig::frames_total(FRAMES, config.log.area));
            self.members.push(Member { cell: None, epoch, machine, wake: None });
            self.start(cell, config);
        }
    }

    pub(crate) fn config(&self, id: CellId, epoch: Epoch, recovery: Recovery) -> CellConfig {
        let (durable, cells) = (&self.supervisor.durable, self.setup.cells);
        let at = usize::from(id.0);
        let free = (RESERVED..CHUNKS).filter(|chunk| durable.is_free(*chunk));
        let share = free.take(self.setup.free_chunks).skip(at).step_by(usize::from(cells));
        let backing = self.setup.host_room.map_or(Backing::Whole, |_| Backing::OnDemand);
        let Setup { reserve, eager_cleaning, .. } = self.setup;
        let space = SpaceConfig { backing, reserve, eager_cleaning };
        CellConfig {
            id,
            epoch,
            cells,
            map: (0..cells).map(CellId).collect(),
            map_version: MapVersion(1),
            secret: SECRET,
            capabilities: KEY,
            roots: vec![(ShardId(id.0), durable.roots[&ShardId(id.0)])],
            lost: BTreeSet::new(),
            kept: Vec::new(),
            owned_chunks: durable.owned.clone(),
            free_chunks: match recovery {
                Recovery::Process | Recovery::Caretaker => Vec::new(),
                Recovery::None | Recovery::Power => share.collect(),
            },
            bounds: ChunkBounds::of(RESERVED, CHUNKS),
            total_blocks: CHUNKS * CHUNK_BLOCKS,
            space,
            frames: FRAMES,
            nodes_max: CellConfig::NODES_MIN,
            log: LogConfig {
                area: LogArea {
                    start: LOG_START.offset(self.setup.log_blocks * at as u64),
                    blocks: self.setup.log_blocks,
                },
                incarnation: durable.incarnation,
                start: durable.log_starts[at],
                recovery,
                may_lose: false,
            },
            generation: durable.generation,
            plant: self.setup.plant,
        }
    }

    pub(crate) fn start(&mut self, id: CellId, config: CellConfig) {
        let mut effects = Vec::new();
        let cell = Cell::new(config, self.clock(), &mut effects);
        self.member(id).cell = Some(cell);
        effects.into_iter().for_each(|effect| self.carry_out(id, effect));
    }

    pub(crate) fn member(&mut self, cell: CellId) -> &mut Member {
        &mut self.members[usize::from(cell.0)]
    }

    pub(crate) fn cell(&self, cell: CellId) -> &Cell {
        self.members[usize::from(cell.0)].cell.as_ref().expect("its process lives")
    }

    pub(crate) fn is_serving(&self) -> bool {
        self.members.iter().all(|member| member.cell.as_ref().is_some_and(Cell::is_ready))
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = CellId> + use<> {
        (0..self.setup.cells).map(CellId)
    }

    /// A block of the cell's log.
    pub(crate) fn log_block(&self, cell: CellId, n: u64) -> BlockNo {
        LOG_START.offset(self.setup.log_blocks * u64::from(cell.0) + n)
    }

    /// The cell that serves the inode.
    pub(crate) fn home(&self, ino: Ino) -> CellId {
        CellId(ino.shard().0)
    }

    pub(crate) fn clock(&self) -> Clock {
        let wall = Timestamp(BEGIN.0 + self.now.0 as i64 - self.set_back.as_nanos() as i64);
        Clock { monotonic: self.now, wall }
    }

    /// The lines of the trace since the last call that contain one of these words.
    pub(crate) fn trace(&mut self, words: &[&str]) -> Vec<String> {
        let mut lines = std::mem::take(&mut self.lines);
        lines.retain(|line| words.iter().any(|word| line.contains(word)));
        lines
    }

    pub(crate) fn note(&mut self, line: String) {
        self.lines.push(line);
    }

    // Events.

    pub(crate) fn plan(&mut self, after: Duration, happening: Happening) {
        self.planned += 1;
        self.queue.insert((self.now + after, self.planned), happening);
    }

    /// An event of the present process of a cell.
    pub(crate) fn plan_event(&mut self, to: CellId, event: Event) {
        let epoch = self.member(to).epoch;
        self.plan(Duration::ZERO, Happening::Event { to, epoch, event });
    }

    pub(crate) fn order(&mut self, to: CellId, order: Order) {
        if self.is_dead(to) {
            return;
        }
        self.note(format!("{} receives {}", cell_name(to), word_of(&order)));
        self.plan_event(to, Event::Order(order));
    }

    pub(crate) fn orders(&mut self, orders: Vec<(CellId, Order)>) {
        orders.into_iter().for_each(|(to, order)| self.order(to, order));
    }

    /// Processes events until none is left.
    pub(crate) fn drive(&mut self) {
        self.drive_until(|_| false);
    }

    /// Processes events until this holds, or none is left.
    pub(crate) fn drive_until(&mut self, holds: impl Fn(&Self) -> bool) {
        for _ in 0..EVENTS_MAX {
            let Some(((at, _), happening)) = self.queue.pop_first() else { return };
            self.now = self.now.max(at);
            self.happen(happening);
            if holds(self) {
                return;
            }
        }
        let last = self.lines.len().saturating_sub(20);
        panic!("the scenario does not end: {:?}", &self.lines[last..]);
    }

    /// Time passes.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.drive();
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Event { to, epoch, event } if self.member(to).epoch == epoch => {
                self.apply(to, event);
            }
            Happening::Tick { cell, at } if self.member(cell).wake == Some(at) => {
                self.member(cell).wake = None;
                self.apply(cell, Event::Tick);
            }
            Happening::Event { .. } | Happening::Tick { .. } => {}
            Happening::Report { from, report } => self.report(from, report),
            Happening::Io { of, epoch, io, frames, action } => {
                if self.device.holds(&action) {
                    let io = Happening::Io { of, epoch, io, frames, action };
                    return self.faults.held_io.push(io);
                }
                let result = self.finish_io(of, frames, action);
                // A dead process receives no completion.
                if self.member(of).epoch == epoch {
                    self.apply(of, Event::IoDone { io, result });
                }
            }
        }
    }

    fn apply(&mut self, to: CellId, event: Event) {
        let clock = self.clock();
        let Member { cell: Some(cell), machine, .. } = &mut self.members[usize::from(to.0)] else {
            return;
        };
        let mut effects = Vec::new();
        cell.apply(clock, event, machine, &mut effects);
        cell.add_checksums(usize::MAX, machine);
        for effect in effects {
            let dies =
                self.faults.dies_before.is_some_and(|(cell, when)| cell == to && when(&effect));
            if dies {
                self.faults.dies_before = None;
                return self.kill(to);
            }
            self.carry_out(to, effect);
        }
    }

    fn carry_out(&mut self, of: CellId, effect: Effect) {
        let name = cell_name(of);
        match effect {
            Effect::Reply { to, seq, answer, payload_len, beside } => {
                self.note(format!("{name} replies"));
                self.answered((of, to, seq), (answer, beside), payload_len as usize);
            }
            Effect::AwaitsLock { .. } => self.note(format!("{name} awaits a lock")),
            Effect::Send { to, message } => self.send_message(of, to, message),
            Effect::Report(report) => {
                self.note(format!("{name} reports {}", word_of(&report)));
                self.plan(Duration::ZERO, Happening::Report { from: of, report });
            }
            Effect::Suspect { cell, why } => {
                panic!("{name} suspects {} of {why}", cell_name(cell))
            }
            Effect::Read { io, block, frames } => {
                self.note(format!("{name} reads {}", frames.len()));
                self.plan_io(of, io, frames, Action::Read { block });
            }
            Effect::Write { io, block, frames } => self.plan_write((of, io), block, &frames, false),
            Effect::WriteThrough { io, block, frames } => {
                self.plan_write((of, io), block, &frames, true);
            }
            Effect::Flush { io } => {
                self.note(format!("{name} flushes"));
                let action = self.device.begin_flush();
                self.plan_io(of, io, Vec::new(), action);
            }
            Effect::Reserve { io, block, count } => {
                self.note(format!("{name} reserves {count}"));
                self.plan_io(of, io, Vec::new(), Action::Reserve { block, count });
            }
            Effect::Discard { io, block, count } => {
                self.note(format!("{name} discards {count}"));
                self.plan_io(of, io, Vec::new(), Action::Discard { block, count });
            }
            Effect::MeasureHost => {
                let blocks = self.device.host_room * CHUNK_BLOCKS;
                self.plan_event(of, Event::HostMeasured { blocks });
            }
            Effect::Wake(at) => {
                self.member(of).wake = Some(at);
                self.plan(at - self.now, Happening::Tick { cell: of, at });
            }
        }
    }

    fn plan_write(
        &mut self,
        (of, io): (CellId, IoId),
        block: BlockNo,
        frames: &[FrameNo],
        through: bool,
    ) {
        let kind = if self.device.is_log(block) { "log" } else { "data" };
        self.note(format!("{} writes {} {kind}", cell_name(of), frames.len()));
        let machine = &self.members[usize::from(of.0)].machine;
        let bytes = frames.iter().map(|frame| machine.frame(*frame).to_vec());
        let blocks = (0..).map(|at| block.offset(at)).zip(bytes).collect();
        self.plan_io(of, io, Vec::new(), Action::Write { blocks, through });
    }

    fn plan_io(&mut self, of: CellId, io: IoId, frames: Vec<FrameNo>, action: Action) {
        let epoch = self.member(of).epoch;
        self.plan(self.io_takes, Happening::Io { of, epoch, io, frames, action });
    }

    pub(crate) fn finish_io(
        &mut self,
        of: CellId,
        frames: Vec<FrameNo>,
        action: Action,
    ) -> Result<(), Errno> {
        if let Action::Read { block } = action {
            let blocks = (0..frames.len() as u64).map(|at| block.offset(at));
            if blocks.into_iter().any(|block| self.device.unreadable.contains(&block)) {
                return Err(Errno::EIO);
            }
            for (at, frame) in (0..).zip(frames) {
                let bytes = self.device.block(block.offset(at));
                self.members[usize::from(of.0)].machine.frame_mut(frame).copy_from_slice(&bytes);
            }
        }
        self.device.finish(action)
    }

    // Links.

    fn send_message(&mut self, from: CellId, to: CellId, message: PeerMessage) {
        self.note(format!(
            "{} to {}: {}",
            cell_name(from),
            cell_name(to),
            message_word(&message.body)
        ));
        if self.faults.loses_message.is_some_and(|loses| loses(&message.body)) {
            return;
        }
        let is_behind = self.faults.held_messages.iter().any(|(f, t, _)| (*f, *t) == (from, to));
        if is_behind || self.faults.holds_message.is_some_and(|holds| holds(&message.body)) {
            return self.faults.held_messages.push((from, to, message));
        }
        self.plan_event(to, Event::Peer { from, message });
    }

    // Reports.

    fn report(&mut self, from: CellId, report: Report) {
        let is_ready = matches!(report, Report::Ready { .. });
        let device = &mut self.device;
        let orders = self.supervisor.report(from, report, || device.flush());
        self.orders(orders);
        if is_ready {
            self.offer_calls(from);
        }
    }

    /// From now on the supervisor begins a checkpoint when a cell wants it.
    pub(crate) fn grant_checkpoints(&mut self) {
        self.supervisor.grants = true;
        let orders = self.supervisor.advance();
        self.orders(orders);
        self.drive();
    }

    /// Begins a checkpoint as the supervisor's timer does.
    pub(crate) fn begin_checkpoint(&mut self) {
        self.order_checkpoint();
        self.drive();
    }

    /// The same, and processes no event yet.
    pub(crate) fn order_checkpoint(&mut self) {
        (self.supervisor.is_wanted, self.supervisor.grants) = (true, true);
        let orders = self.supervisor.advance();
        self.orders(orders);
    }

    // Lease words.

    /// Whether the client holds the lease.
    pub(crate) fn is_valid(&self, cell: CellId, client: ClientId, lease: Lease) -> bool {
        self.word(cell, client, lease.word) == lease.stamp
    }

    /// The value of a lease word of the client.
    pub(crate) fn word(&self, cell: CellId, client: ClientId, word: u32) -> u64 {
        let words = &self.members[usize::from(cell.0)].machine.words;
        words.get(&(client, word)).copied().unwrap_or(0)
    }
}

/// Whether the message has this name.
pub(crate) fn is_message(body: &PeerBody, word: &str) -> bool {
    message_word(body) == word
}

/// Whether the effect is to send a message of this name.
pub(crate) fn sends(effect: &Effect, word: &str) -> bool {
    matches!(effect, Effect::Send { message, .. } if is_message(&message.body, word))
}

/// The name of an order or a report: the first word of what `Debug` prints.
fn word_of(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").split([' ', '(', '{']).next().expect("a word").into()
}

fn message_word(body: &PeerBody) -> String {
    match body {
        PeerBody::Request(request) => word_of(request),
        PeerBody::Reply(reply) => word_of(reply),
        PeerBody::Pool(message) => format!("pool {}", word_of(message)),
    }
}

/// A volume with a directory at each cell.
fn image(cells: u16) -> Image {
    let mut image = Image::empty(cells);
    let homes = [("a", IN_A), ("b", IN_B), ("c", IN_C)];
    image.inode(Ino::ROOT, FileKind::Directory, 2);
    image.part(Ino::ROOT, u64::from(cells), u32::from(cells));
    for (name, dir) in homes.into_iter().take(usize::from(cells)) {
        image.entry(Ino::ROOT, name, dir, FileKind::Directory);
        image.inode(dir, FileKind::Directory, 2);
        image.part(dir, 0, 0);
    }
    image
}
