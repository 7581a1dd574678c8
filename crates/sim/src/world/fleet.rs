//! The simulated fleet: cells and the supervisor, and the links between them.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, ClientId, Epoch, Instant, Lsn, MapVersion, ShardId};
use warren_cell::{
    Cell, CellConfig, Clock, Effect, Event, FrameNo, IoId, LogConfig, Memory, PeerMessage,
    Recovery, SlotRef,
};
use warren_disk::{Owner, Superblock};
use warren_proto::control::{Order, Report};
use warren_proto::{Answer, Request, RequestHeader, Wire};
use warren_supervisor::{
    Config, Effect as Said, Event as Heard, Failure, IoId as SupervisorIo, Ledger, Supervisor,
};

use super::clients::At;
use super::device::{InFlight, SupervisorInFlight};
use super::process::{Death, Killed, Slots};
use super::{Phase, World};

/// Successors of one cell in one life are fewer.
const EPOCHS_OF_A_LIFE: u32 = 1000;
/// Messages an inbox holds; what comes then waits at the sender.
const INBOX_MAX: usize = 4;

/// The version of the only shard map a life of the fleet has.
const MAP_VERSION: MapVersion = MapVersion(1);

/// Everything that can happen.
#[derive(Debug)]
pub enum Happening {
    Request {
        cell: CellId,
        from: SlotRef,
        header: RequestHeader,
        request: Request,
    },
    Reply {
        from: CellId,
        to: SlotRef,
        seq: u32,
        hint: u64,
        answer: Answer,
    },
    Step {
        at: At,
        ticket: u64,
    },
    Peer {
        from: CellId,
        to: CellId,
        link: u64,
    },
    Order {
        to: CellId,
        epoch: Epoch,
    },
    Report {
        from: CellId,
        epoch: Epoch,
    },
    CellIo {
        cell: CellId,
        epoch: Epoch,
        io: IoId,
    },
    /// The supervisor gets the exit notice of a cell's process.
    Exited {
        cell: CellId,
        epoch: Epoch,
    },
    /// A cell's successor may start, if its predecessor has nothing under way any more.
    Start {
        cell: CellId,
    },
    /// An I/O of the supervisor of this number.
    SupervisorIo {
        by: u64,
        io: SupervisorIo,
    },
    /// A front's kernel drops what a cell recalls.
    DropCopies {
        client: usize,
        listener: usize,
    },
    /// A client's connection breaks.
    Hangup {
        client: usize,
    },
    Tick {
        cell: CellId,
        epoch: Epoch,
        at: Instant,
    },
    SupervisorTick {
        at: Instant,
    },
}

pub(super) type Frame = Box<[u8; BLOCK_SIZE]>;

/// A cell and what it has of the machine. While the cell runs it is taken out.
pub struct CellHost {
    pub(super) cell: Option<Cell>,
    pub(super) epoch: Epoch,
    pub(super) frames: Vec<Option<Frame>>,
    pub(super) in_flight: BTreeMap<(Epoch, IoId), InFlight>,
    /// A flush of somebody else's has failed, and this cell was not told yet.
    pub(super) flush_failed: bool,
    /// Its process is gone.
    pub(super) dead: bool,
    /// A successor is to start.
    pub(super) is_starting: bool,
    /// Processes that ended since the supervisor heard that one was ready.
    pub(super) ended_in_a_row: u32,
    pub(super) wake: Option<Instant>,
    pub(super) orders: VecDeque<Order>,
    /// How many of them a successor gets before its first turn: those that came with the one to start it.
    pub(super) beginning: Option<usize>,
    pub(super) reports: VecDeque<Report>,
    pub(super) slots: Slots,
}

/// The supervisor and its I/O.
pub struct SupervisorHost {
    pub(super) supervisor: Option<Supervisor>,
    pub(super) in_flight: SupervisorInFlight,
    pub(super) wake: Option<Instant>,
    /// How many there were before it.
    pub(super) number: u64,
}

impl World {
    /// Starts a fleet on what the disk holds.
    pub(super) fn start_fleet(&mut self, cells: u16) {
        let (superblock, copies) = self.read_superblock();
        let ledger = self.load_ledger(superblock.clone());
        let shards = superblock.layout.shards();
        self.lives += 1;
        let epoch = Epoch(self.lives as u32 * EPOCHS_OF_A_LIFE);
        self.map = (0..shards).map(|shard| CellId(shard % cells)).collect();
        let mut free: Vec<u64> = (ledger.regions().iter())
            .filter(|(_, owner)| *owner == Owner::Free)
            .map(|(chunk, _)| chunk)
            .collect();
        if let Some(chunks) = self.swarm.chunks.filter(|_| self.lives == 1) {
            free.truncate(chunks as usize);
        }
        let mut started = Vec::new();
        for id in (0..cells).map(CellId) {
            let log = LogConfig {
                area: superblock.layout.log_area(usize::from(id.0), usize::from(cells)),
                incarnation: superblock.generation + 1,
                start: Lsn(0),
                recovery: Recovery::None,
            };
            let config = self.cell_config((id, epoch), cells, &ledger, &free, log);
            let frames = CellConfig::frames_total(config.frames, config.log.area);
            let mut effects = Vec::new();
            let cell = Cell::new(config, self.clock(), &mut effects);
            self.cells.push(CellHost {
                cell: Some(cell),
                epoch,
                frames: vec![None; frames as usize],
                in_flight: BTreeMap::new(),
                flush_failed: false,
                dead: false,
                is_starting: false,
                ended_in_a_row: 0,
                wake: None,
                orders: VecDeque::new(),
                beginning: Some(0),
                reports: VecDeque::new(),
                slots: Slots::default(),
            });
            started.push((id, effects));
        }
        let config = Config {
            epochs: vec![epoch; usize::from(cells)],
            map_version: MAP_VERSION,
            owners: self.map.clone(),
            ledger,
            recover: false,
            copies,
        };
        self.supervisor = SupervisorHost {
            supervisor: Some(Supervisor::new(config)),
            in_flight: BTreeMap::new(),
            wake: None,
            number: self.supervisor.number + 1,
        };
        for cell in (0..cells).map(CellId) {
            self.make_links(cell);
        }
        self.links.values_mut().for_each(|link| link.is_open = true);
        for (id, effects) in started {
            self.carry_out(id, effects);
        }
    }

    pub(super) fn cell_config(
        &self,
        (id, epoch): (CellId, Epoch),
        cells: u16,
        ledger: &Ledger,
        free: &[u64],
        log: LogConfig,
    ) -> CellConfig {
        let superblock = ledger.superblock();
        let own = |shard: &ShardId| self.map[usize::from(shard.0)] == id;
        let shards = (0..self.map.len() as u16).map(ShardId).filter(own);
        let share = free.iter().skip(usize::from(id.0)).step_by(usize::from(cells));
        CellConfig {
            id,
            epoch,
            cells,
            map: self.map.clone(),
            map_version: MAP_VERSION,
            secret: superblock.secret,
            roots: shards.map(|shard| (shard, ledger.root(shard).copied())).collect(),
            owned_chunks: ledger.chunks_of_shards(),
            free_chunks: share.copied().collect(),
            reserved_chunks: superblock.layout.reserved_chunks(),
            total_blocks: superblock.layout.total_blocks(),
            frames: self.swarm.frames,
            log,
            generation: superblock.generation,
            plant: self.plant,
        }
    }

    pub(super) fn read_superblock(&self) -> (Superblock, warren_disk::CopiesState) {
        let copies = [0, 1].map(|block| self.read_blocks(BlockNo(block), 1));
        Superblock::choose(&copies[0], &copies[1]).expect("the pool was made by mkfs")
    }

    pub(super) fn load_ledger(&self, superblock: Superblock) -> Ledger {
        let layout = superblock.layout;
        let pages = layout.region_pages();
        let regions = [0, 1].map(|copy| self.read_blocks(layout.region_page(copy, 0), pages));
        let slots = self.read_blocks(layout.roots_start(), 2 * layout.roots_blocks());
        let tables = [0, 1].map(|copy| self.read_blocks(layout.log_table(copy), 1));
        let (regions, tables) = ([&regions[0][..], &regions[1]], [&tables[0][..], &tables[1]]);
        Ledger::load(superblock, regions, &slots, tables)
            .expect("checkpoints leave a pool that can be opened")
    }

    fn read_blocks(&self, block: BlockNo, count: u64) -> Vec<u8> {
        let mut bytes = vec![0; count as usize * BLOCK_SIZE];
        for (at, bytes) in bytes.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            self.disk.read(block.offset(at as u64), bytes);
        }
        bytes
    }

    /// An event happens to a cell, and what it wants done is begun.
    pub(super) fn happen_to(&mut self, id: CellId, event: Event) {
        if self.cells[usize::from(id.0)].dead {
            return;
        }
        let death = self.draw_death(id);
        if death == Some(Death::Before) {
            return self.kill_cell(id);
        }
        let host = &mut self.cells[usize::from(id.0)];
        let mut cell = host.cell.take().expect("a cell does one thing at a time");
        self.event_began = self.place();
        let now = self.clock();
        let mut effects = Vec::new();
        let stores_left = match death {
            Some(Death::AtStore(stores)) => Some(stores),
            _ => None,
        };
        let mut memory = SharedMemory { world: self, cell: id, stores_left };
        let apply = || cell.apply(now, event, &mut memory, &mut effects);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(apply)) {
            if !panic.is::<Killed>() {
                resume_unwind(panic);
            }
            self.count("a cell killed at a store");
            return self.kill_cell(id);
        }
        if death.is_some() {
            self.count("a cell killed among its effects");
            let done = self.rng.below(effects.len() as u64 + 1) as usize;
            effects.truncate(done);
            self.carry_out(id, effects);
            return self.kill_cell(id);
        }
        let is_ready = cell.is_ready();
        self.cells[usize::from(id.0)].cell = Some(cell);
        self.carry_out(id, effects);
        if is_ready && !std::mem::replace(&mut self.cells[usize::from(id.0)].slots.is_ready, true) {
            self.cell_is_ready(id);
        }
    }

    pub(super) fn carry_out(&mut self, id: CellId, effects: Vec<Effect>) {
        for effect in effects {
            self.trace.note(self.now, &(id, &effect));
            match effect {
                Effect::Reply { to, seq, answer, payload_len: _ } => {
                    let slots = &mut self.cells[usize::from(id.0)].slots;
                    slots.answered.insert(to, seq);
                    let known = slots.hints.remove(&(to, seq));
                    let hint = self.place();
                    let hint = known.unwrap_or(hint);
                    let delay = self.message_delay();
                    self.plan(delay, Happening::Reply { from: id, to, seq, hint, answer });
                }
                Effect::Send { to, message } => self.send_peer(id, to, message),
                Effect::Report(report) => {
                    if let Report::Expelled { client } = report {
                        self.let_go(id, client);
                    }
                    let host = &mut self.cells[usize::from(id.0)];
                    let epoch = host.epoch;
                    host.reports.push_back(report);
                    if host.reports.len() == 1 {
                        let delay = self.message_delay();
                        self.plan(delay, Happening::Report { from: id, epoch });
                    }
                }
                Effect::Read { io, block, frames } => self.submit(id, io, false, block, frames),
                Effect::Write { io, block, frames } => self.submit(id, io, true, block, frames),
                Effect::WriteThrough { io, block, frames } => {
                    self.submit(id, io, true, block, frames);
                    self.flush_behind(id, io);
                }
                Effect::Flush { io } => self.submit_flush(id, io),
                Effect::Wake(at) => {
                    let at = at.max(self.now);
                    let host = &mut self.cells[usize::from(id.0)];
                    let epoch = host.epoch;
                    host.wake = Some(at);
                    self.queue.plan(at, Happening::Tick { cell: id, epoch, at });
                }
            }
        }
    }

    fn send_peer(&mut self, from: CellId, to: CellId, message: PeerMessage) {
        let link = self.links.get_mut(&(from, to)).expect("cells have links to each other");
        link.messages.push_back(message);
        let (len, is_open, link) = (link.messages.len(), link.is_open, link.number);
        if len > INBOX_MAX {
            self.count("a full inbox");
        }
        if len == 1 && is_open {
            let delay = self.message_delay();
            self.plan(delay, Happening::Peer { from, to, link });
        }
    }

    pub(super) fn tell_supervisor(&mut self, event: Heard) {
        self.count_ended(&event);
        let mut supervisor =
            self.supervisor.supervisor.take().expect("it does one thing at a time");
        let mut effects = Vec::new();
        supervisor.apply(self.now, self.wall(), event, &mut effects);
        self.supervisor.supervisor = Some(supervisor);
        while self.draw_supervisors_death(&effects) {
            effects = self.replace_supervisor(effects);
        }
        self.do_all_for_supervisor(effects);
    }

    pub(super) fn do_all_for_supervisor(&mut self, effects: Vec<Said>) {
        for effect in effects {
            self.trace.note(self.now, &("supervisor", &effect));
            self.do_for_supervisor(effect);
        }
        for host in &mut self.cells {
            host.beginning.get_or_insert(host.orders.len());
        }
    }

    fn do_for_supervisor(&mut self, effect: Said) {
        match effect {
            Said::Send { to, order } => {
                if matches!(order, Order::Switched { .. }) {
                    self.switched = true;
                    self.switched_at = self.place();
                }
                let host = &mut self.cells[usize::from(to.0)];
                if host.dead && !host.is_starting {
                    return;
                }
                let (epoch, is_running) = (host.epoch, !host.dead);
                host.orders.push_back(order);
                if host.orders.len() == 1 && is_running {
                    let delay = self.message_delay();
                    self.plan(delay, Happening::Order { to, epoch });
                }
            }
            Said::Write { io, block, bytes } => self.supervise_write(io, (block, bytes)),
            Said::Flush { io } => self.supervise_flush(io),
            Said::Wake(at) => {
                let at = at.max(self.now);
                self.supervisor.wake = Some(at);
                self.queue.plan(at, Happening::SupervisorTick { at });
            }
            Said::FleetReady => self.connect_clients(),
            Said::NewClient { connection, client } => {
                self.clients[connection.0 as usize].id = client;
            }
            Said::AdmitClient { client } => self.admit(client),
            Said::RefuseClient { .. } if self.cells.iter().any(|host| host.dead) => {}
            Said::RefuseClient { connection, errno } => {
                self.fail(format!("{connection:?} was refused: {errno}"));
            }
            Said::ForgetClient { client } => self.forgotten(client),
            Said::Restart { cell, epoch } => self.restart_cell(cell, epoch),
            Said::Exit(result) => self.ended(result),
        }
    }

    fn ended(&mut self, result: Result<(), Failure>) {
        match result {
            Ok(()) => {}
            // Which checkpoint is on the device nobody knew any more.
            Err(Failure::CellExited { .. }) if self.supervisor_failed => {
                self.count("a cell killed that could have no successor");
                self.lost = true;
            }
            // It had nothing left to do.
            Err(Failure::CellExited { cell, .. })
                if self.cells[usize::from(cell.0)].dead && self.phase == Phase::Stopping =>
            {
                self.count("a cell killed after the last checkpoint");
            }
            Err(Failure::LastCheckpoint { .. } | Failure::LastFlush { .. })
                if self.supervisor_failed =>
            {
                self.count("a last checkpoint failed");
                self.lost = true;
            }
            result => return self.fail(format!("the fleet ended: {result:?}")),
        }
        self.phase = Phase::Stopped;
    }

    pub(super) fn plan_request(
        &mut self,
        cell: CellId,
        from: SlotRef,
        header: RequestHeader,
        request: Request,
    ) {
        let delay = self.message_delay();
        self.plan(delay, Happening::Request { cell, from, header, request });
    }

    pub(super) fn plan_step(&mut self, at: At, nanos: u64) {
        let slot = self.slot(at);
        slot.ticket += 1;
        let ticket = slot.ticket;
        self.plan(nanos, Happening::Step { at, ticket });
    }

    pub(super) fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Request { cell, from, header, request } => {
                self.offer(cell, from, header, request);
            }
            Happening::Reply { from, to, seq, hint, answer } => {
                self.answered(from, to, seq, hint, answer);
            }
            Happening::Step { at, ticket } => {
                if self.slot(at).ticket == ticket {
                    self.go_on(at);
                }
            }
            Happening::Peer { from, to, link } => {
                if self.links[&(from, to)].number == link {
                    let message = self.next_of_link(from, to);
                    self.deliver_peer(from, to, message);
                }
            }
            Happening::Order { to, epoch } => {
                let host = &self.cells[usize::from(to.0)];
                if !host.dead && host.epoch == epoch {
                    self.deliver_order(to);
                }
            }
            Happening::Report { from, epoch } => {
                let host = &self.cells[usize::from(from.0)];
                if !host.dead && host.epoch == epoch {
                    self.deliver_report(from);
                }
            }
            Happening::CellIo { cell, epoch, io } => self.cell_io_done(cell, epoch, io),
            Happening::Exited { cell, epoch } => {
                self.tell_supervisor(Heard::CellExited { cell, epoch });
            }
            Happening::Start { cell } => self.start_successor(cell),
            Happening::SupervisorIo { by, io } => {
                // What a dead one had under way was over before another took over.
                if self.supervisor.number == by {
                    self.supervisor_io_done(io);
                }
            }
            Happening::DropCopies { client, listener } => self.drop_copies(client, listener),
            Happening::Hangup { client } => self.hang_up(client),
            Happening::Tick { cell, epoch, at } => {
                let host = &self.cells[usize::from(cell.0)];
                if host.epoch == epoch && host.wake == Some(at) {
                    self.cells[usize::from(cell.0)].wake = None;
                    self.happen_to(cell, Event::Tick);
                }
            }
            Happening::SupervisorTick { at } => {
                if self.supervisor.wake == Some(at) {
                    self.supervisor.wake = None;
                    self.tell_supervisor(Heard::Tick);
                }
            }
        }
    }

    fn next_of_link(&mut self, from: CellId, to: CellId) -> PeerMessage {
        let link = self.links.get_mut(&(from, to)).expect("there is a message");
        let message = link.messages.pop_front().expect("there is a message");
        let (is_empty, link) = (link.messages.is_empty(), link.number);
        if !is_empty {
            let delay = self.message_delay();
            self.plan(delay, Happening::Peer { from, to, link });
        }
        message
    }

    /// A message that came damaged ends the cell that got it: its peers cannot be relied on, and what
    /// it was told is not known.
    fn deliver_peer(&mut self, from: CellId, to: CellId, message: PeerMessage) {
        let may_fail =
            self.phase == Phase::Safety && self.lives == 1 && self.admitted && !self.lost;
        if may_fail && self.rng.chance(self.swarm.damage, 10_000) {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            let bit = self.rng.below(8 * bytes.len() as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The checksum finds it. The decoder has to bear it all the same.
            let decoded = PeerMessage::from_bytes(&bytes);
            self.count(match decoded {
                Ok(_) => "a damaged message that can be decoded",
                Err(_) => "a damaged message that cannot be decoded",
            });
            self.count("a cell ended by itself");
            return self.kill_cell(to);
        }
        self.happen_to(to, Event::Peer { from, message });
    }

    fn deliver_order(&mut self, to: CellId) {
        let host = &mut self.cells[usize::from(to.0)];
        let order = host.orders.pop_front().expect("there is an order");
        let (is_empty, epoch) = (host.orders.is_empty(), host.epoch);
        if !is_empty {
            let delay = self.message_delay();
            self.plan(delay, Happening::Order { to, epoch });
        }
        self.obey(to, order);
    }

    pub(super) fn obey(&mut self, to: CellId, order: Order) {
        self.prepare_order(to, &order);
        let admitted = match order {
            Order::Admit { client, .. } => Some(client),
            _ => None,
        };
        self.happen_to(to, Event::Order(order));
        if let Some(client) = admitted {
            self.cells[usize::from(to.0)].slots.admitted.insert(client);
            self.look_at_slots(to);
        }
    }

    fn deliver_report(&mut self, from: CellId) {
        let host = &mut self.cells[usize::from(from.0)];
        let report = host.reports.pop_front().expect("there is a report");
        let (is_empty, epoch) = (host.reports.is_empty(), host.epoch);
        if !is_empty {
            let delay = self.message_delay();
            self.plan(delay, Happening::Report { from, epoch });
        }
        self.tell_supervisor(Heard::Report { from, epoch, report });
    }

    pub(super) fn clock(&self) -> Clock {
        Clock { monotonic: self.now, wall: self.wall() }
    }
}

impl SupervisorHost {
    pub(super) fn none() -> Self {
        Self { supervisor: None, in_flight: BTreeMap::new(), wake: None, number: 0 }
    }
}

/// What a frame holds that nobody has filled: neither zeros nor data.
static UNFILLED: [u8; BLOCK_SIZE] = [0xc3; BLOCK_SIZE];

impl CellHost {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.frames[frame.0 as usize].as_deref().unwrap_or(&UNFILLED)
    }

    pub(super) fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.frames[frame.0 as usize].get_or_insert_with(|| Box::new(UNFILLED))
    }

    pub(super) fn gather(&self, frames: &[FrameNo]) -> Vec<u8> {
        frames.iter().flat_map(|frame| *self.frame(*frame)).collect()
    }
}

/// What a running cell sees of the machine.
struct SharedMemory<'a> {
    world: &'a mut World,
    cell: CellId,
    /// Stores after which the cell's process is killed.
    stores_left: Option<u64>,
}

impl SharedMemory<'_> {
    fn host(&mut self) -> &mut CellHost {
        &mut self.world.cells[usize::from(self.cell.0)]
    }

    /// A store begins: the process may not get to it.
    fn store_begins(&mut self) {
        if let Some(left) = &mut self.stores_left {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => resume_unwind(Box::new(Killed)),
            }
        }
    }

    /// A cell that said it has let go of a client has no memory of its any more.
    fn must_know(&mut self, client: ClientId) {
        if self.world.lanes.is_closed(self.cell, client) {
            let cell = self.cell;
            self.world.fail(format!("{cell} touches memory of {client}, which it has let go"));
        }
    }
}

impl Memory for SharedMemory<'_> {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.world.cells[usize::from(self.cell.0)].frame(frame)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.store_begins();
        self.host().frame_mut(frame)
    }

    fn payload_to_frame(
        &mut self,
        from: SlotRef,
        offset: usize,
        frame: FrameNo,
        at: usize,
        len: usize,
    ) {
        self.store_begins();
        self.must_know(from.client);
        let bytes = &mut self.world.cells[usize::from(self.cell.0)].frame_mut(frame)[at..at + len];
        self.world.lanes.read_request(from, offset, bytes);
    }

    fn frame_to_payload(
        &mut self,
        frame: FrameNo,
        at: usize,
        to: SlotRef,
        offset: usize,
        len: usize,
    ) {
        self.store_begins();
        self.must_know(to.client);
        let bytes = &self.world.cells[usize::from(self.cell.0)].frame(frame)[at..at + len];
        self.world.lanes.reply_mut(self.cell, to, offset, len).copy_from_slice(bytes);
    }

    fn zero_payload(&mut self, to: SlotRef, offset: usize, len: usize) {
        self.store_begins();
        self.must_know(to.client);
        self.world.lanes.reply_mut(self.cell, to, offset, len).fill(0);
    }

    fn store_word(&mut self, client: ClientId, word: u32, stamp: u64) {
        self.store_begins();
        self.must_know(client);
        self.world.let_clients_act();
        self.world.lanes.store(self.cell, client, word, stamp);
        if stamp == 0 && self.world.is_stepping(client) {
            self.world.count("a lease cleared while its holder was in a call");
        }
        self.world.let_clients_act();
    }
}
