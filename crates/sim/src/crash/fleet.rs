//! The fleet of one life: cells and the supervisor, the links between them, and their I/O.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, ClientId, Epoch, Errno, Instant, Lsn, MapVersion, ShardId};
use warren_cell::{
    Cell, CellConfig, Clock, Effect, Event, FrameNo, IoId, LogConfig, Memory, Recovery, SlotRef,
};
use warren_disk::{BlockWrite, Owner, Superblock};
use warren_proto::control::{Order, Report};
use warren_proto::{Answer, Credentials, Request, RequestHeader};
use warren_supervisor::{
    Applicant, Config, ConnectionNo, Effect as Said, Event as Heard, IoId as SupervisorIo, Ledger,
    Supervisor,
};

use super::{Stage, World};
use crate::world::process::{Death, Killed, Link, Slots};

/// Frames of a cell that recovers, as the runtime has them.
const RECOVERY_FRAMES: u32 = 4096;
/// Successors of one cell in one life are fewer.
const EPOCHS_OF_A_LIFE: u32 = 1000;
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
        answer: Answer,
    },
    /// A client has thought.
    Step {
        client: usize,
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
    SupervisorIo {
        io: SupervisorIo,
    },
    Tick {
        cell: CellId,
        epoch: Epoch,
        at: Instant,
    },
    SupervisorTick {
        at: Instant,
    },
    /// Somebody wants a checkpoint.
    Nudge,
}

#[derive(Clone, Copy)]
enum Doing {
    Read,
    Write,
    /// A write; when it is done, a flush.
    WriteThrough,
    /// Of what was written up to a mark.
    Flush(u64),
}

pub(super) struct InFlight {
    doing: Doing,
    block: BlockNo,
    frames: Vec<FrameNo>,
    /// A device may read the frames of a write at any time until it is done.
    taken_early: Option<Vec<u8>>,
    fails: bool,
}

type Frame = Box<[u8; BLOCK_SIZE]>;

/// A cell and what it has of the machine. While the cell runs it is taken out.
pub struct CellHost {
    pub(super) cell: Option<Cell>,
    pub(super) epoch: Epoch,
    frames: Vec<Option<Frame>>,
    pub(super) in_flight: BTreeMap<(Epoch, IoId), InFlight>,
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
    /// Failed flushes of the device that it has heard of.
    pub(super) errors_seen: u64,
}

enum SupervisorRequest {
    Write(BlockWrite),
    Flush { mark: u64, fails: bool },
}

#[derive(Default)]
pub struct SupervisorHost {
    pub(super) supervisor: Option<Supervisor>,
    in_flight: BTreeMap<SupervisorIo, SupervisorRequest>,
    wake: Option<Instant>,
    errors_seen: u64,
}

/// The machines that a power cut stops.
#[derive(Default)]
pub struct Fleet {
    pub map: Vec<CellId>,
    pub(super) cells: Vec<CellHost>,
    pub(super) links: BTreeMap<(CellId, CellId), Link>,
    /// Links made so far.
    pub(super) links_made: u64,
    pub(super) supervisor: SupervisorHost,
}

impl World {
    /// Whether the disk holds logs that have to be replayed.
    pub(super) fn needs_recovery(&self) -> bool {
        let (ledger, _) = self.load_ledger();
        !ledger.superblock().clean && !ledger.logs().starts.is_empty()
    }

    /// Starts a fleet on what the disk holds: of so many cells, or of those that the logs are of, to
    /// replay them.
    pub(super) fn start_fleet(&mut self, cells: Option<u16>) {
        let (ledger, copies) = self.load_ledger();
        let recover = cells.is_none();
        let cells = cells.unwrap_or(ledger.logs().starts.len() as u16);
        self.epoch += EPOCHS_OF_A_LIFE;
        self.stage = Stage::Starting;
        let shards = ledger.superblock().layout.shards();
        self.fleet.map = (0..shards).map(|shard| CellId(shard % cells)).collect();
        let mut started = Vec::new();
        for id in (0..cells).map(CellId) {
            let area = ledger.superblock().layout.log_area(usize::from(id.0), usize::from(cells));
            let log = match recover {
                true => LogConfig {
                    area,
                    incarnation: ledger.logs().incarnation,
                    start: ledger.logs().starts[usize::from(id.0)],
                    recovery: Recovery::Power,
                },
                false => LogConfig {
                    area,
                    incarnation: ledger.superblock().generation + 1,
                    start: Lsn(0),
                    recovery: Recovery::None,
                },
            };
            let epoch = Epoch(self.epoch);
            let config = self.cell_config((id, epoch), cells, &ledger, log);
            let frames = CellConfig::frames_total(config.frames, config.log.area);
            let mut effects = Vec::new();
            let cell = Cell::new(config, self.clock(), &mut effects);
            self.fleet.cells.push(CellHost {
                cell: Some(cell),
                epoch,
                frames: vec![None; frames as usize],
                in_flight: BTreeMap::new(),
                dead: false,
                is_starting: false,
                ended_in_a_row: 0,
                slots: Slots::default(),
                wake: None,
                orders: VecDeque::new(),
                beginning: Some(0),
                reports: VecDeque::new(),
                errors_seen: self.disk.errors,
            });
            started.push((id, effects));
        }
        let config = Config {
            epochs: vec![Epoch(self.epoch); usize::from(cells)],
            map_version: MAP_VERSION,
            owners: self.fleet.map.clone(),
            ledger,
            recover,
            copies,
        };
        self.fleet.supervisor.supervisor = Some(Supervisor::new(config));
        self.fleet.supervisor.errors_seen = self.disk.errors;
        for cell in (0..cells).map(CellId) {
            self.make_links(cell);
        }
        self.fleet.links.values_mut().for_each(|link| link.is_open = true);
        for (id, effects) in started {
            self.carry_out(id, effects);
        }
    }

    pub(super) fn cell_config(
        &self,
        (id, epoch): (CellId, Epoch),
        cells: u16,
        ledger: &Ledger,
        log: LogConfig,
    ) -> CellConfig {
        let superblock = ledger.superblock();
        let map = &self.fleet.map;
        let own = |shard: &ShardId| map[usize::from(shard.0)] == id;
        let shards = (0..map.len() as u16).map(ShardId).filter(own);
        let free = ledger.regions().iter().filter(|(_, owner)| *owner == Owner::Free);
        let share = free.skip(usize::from(id.0)).step_by(usize::from(cells));
        CellConfig {
            id,
            epoch,
            cells,
            map: map.clone(),
            map_version: MAP_VERSION,
            secret: superblock.secret,
            roots: shards.map(|shard| (shard, ledger.root(shard).copied())).collect(),
            owned_chunks: ledger.chunks_of_shards(),
            free_chunks: match log.recovery {
                Recovery::Process => Vec::new(),
                _ => share.map(|(chunk, _)| chunk).collect(),
            },
            reserved_chunks: superblock.layout.reserved_chunks(),
            total_blocks: superblock.layout.total_blocks(),
            frames: match log.recovery {
                Recovery::Power => RECOVERY_FRAMES,
                _ => self.mix.frames,
            },
            log,
            generation: superblock.generation,
            plant: self.plant,
        }
    }

    fn load_ledger(&self) -> (Ledger, warren_disk::CopiesState) {
        let copies = [0, 1].map(|block| self.read_blocks(BlockNo(block), 1));
        let (superblock, copies) =
            Superblock::choose(&copies[0], &copies[1]).expect("a pool always has a superblock");
        let layout = superblock.layout;
        let pages = layout.region_pages();
        let regions = [0, 1].map(|copy| self.read_blocks(layout.region_page(copy, 0), pages));
        let slots = self.read_blocks(layout.roots_start(), 2 * layout.roots_blocks());
        let tables = [0, 1].map(|copy| self.read_blocks(layout.log_table(copy), 1));
        let (regions, tables) = ([&regions[0][..], &regions[1]], [&tables[0][..], &tables[1]]);
        let ledger = Ledger::load(superblock, regions, &slots, tables)
            .expect("a power cut leaves a pool that can be opened");
        (ledger, copies)
    }

    fn read_blocks(&self, block: BlockNo, count: u64) -> Vec<u8> {
        let mut bytes = vec![0; count as usize * BLOCK_SIZE];
        for (at, bytes) in (0..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
            self.disk.read(block.offset(at), bytes);
        }
        bytes
    }

    /// All processes vanish. Returns the writes that were under way.
    pub(super) fn fleet_vanishes(&mut self) -> Vec<(BlockNo, Vec<u8>)> {
        let fleet = std::mem::take(&mut self.fleet);
        let mut writes = Vec::new();
        for host in &fleet.cells {
            for request in host.in_flight.values() {
                if let Doing::Write | Doing::WriteThrough = request.doing {
                    let early = request.taken_early.clone();
                    writes.push((
                        request.block,
                        early.unwrap_or_else(|| host.gather(&request.frames)),
                    ));
                }
            }
        }
        for request in fleet.supervisor.in_flight.into_values() {
            if let SupervisorRequest::Write((block, bytes)) = request {
                writes.push((block, bytes.into_vec()));
            }
        }
        writes
    }

    pub(super) fn host(&mut self, id: CellId) -> &mut CellHost {
        &mut self.fleet.cells[usize::from(id.0)]
    }

    /// An event happens to a cell, and what it wants done is begun.
    pub(super) fn happen_to(&mut self, id: CellId, event: Event) {
        if self.host(id).dead {
            return;
        }
        let death = self.draw_death(id);
        if death == Some(Death::Before) {
            return self.kill_cell(id);
        }
        let mut cell = self.host(id).cell.take().expect("a cell does one thing at a time");
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
            return self.kill_cell(id);
        }
        if death.is_some() {
            let done = self.rng.below(effects.len() as u64 + 1) as usize;
            effects.truncate(done);
            self.carry_out(id, effects);
            return self.kill_cell(id);
        }
        let is_ready = cell.is_ready();
        self.host(id).cell = Some(cell);
        self.carry_out(id, effects);
        if is_ready && !std::mem::replace(&mut self.host(id).slots.is_ready, true) {
            self.look_at_slots(id);
        }
    }

    pub(super) fn carry_out(&mut self, id: CellId, effects: Vec<Effect>) {
        for effect in effects {
            self.trace.note(self.now, &(id, &effect));
            match effect {
                Effect::Reply { to, seq, answer, payload_len: _ } => {
                    self.host(id).slots.answered.insert(to, seq);
                    let delay = self.message_delay();
                    self.plan(delay, Happening::Reply { from: id, to, seq, answer });
                }
                Effect::Send { to, message } => {
                    let link = self.fleet.links.get_mut(&(id, to)).expect("cells have links");
                    link.messages.push_back(message);
                    let is_first = link.messages.len() == 1 && link.is_open;
                    let link = link.number;
                    if is_first {
                        let delay = self.message_delay();
                        self.plan(delay, Happening::Peer { from: id, to, link });
                    }
                }
                Effect::Report(report) => {
                    let host = self.host(id);
                    host.reports.push_back(report);
                    let (is_first, epoch) = (host.reports.len() == 1, host.epoch);
                    if is_first {
                        let delay = self.message_delay();
                        self.plan(delay, Happening::Report { from: id, epoch });
                    }
                }
                Effect::Read { io, block, frames } => {
                    self.submit(id, io, Doing::Read, block, frames);
                }
                Effect::Write { io, block, frames } => {
                    self.submit(id, io, Doing::Write, block, frames);
                }
                Effect::WriteThrough { io, block, frames } => {
                    self.submit(id, io, Doing::WriteThrough, block, frames);
                }
                Effect::Flush { io } => {
                    let mark = self.disk.mark();
                    self.submit(id, io, Doing::Flush(mark), BlockNo(0), Vec::new());
                }
                Effect::Wake(at) => {
                    let at = at.max(self.now);
                    self.host(id).wake = Some(at);
                    let epoch = self.host(id).epoch;
                    self.queue.plan(at, Happening::Tick { cell: id, epoch, at });
                }
            }
        }
    }

    fn submit(&mut self, id: CellId, io: IoId, doing: Doing, block: BlockNo, frames: Vec<FrameNo>) {
        let fails = match doing {
            Doing::Read => false,
            Doing::Write | Doing::WriteThrough => self.is_faulty(self.mix.write_fails),
            Doing::Flush(_) => self.is_faulty(self.mix.flush_fails),
        };
        let early = matches!(doing, Doing::Write | Doing::WriteThrough) && self.rng.chance(1, 2);
        let host = self.host(id);
        let taken_early = early.then(|| host.gather(&frames));
        let request = InFlight { doing, block, frames, taken_early, fails };
        let epoch = host.epoch;
        let before = host.in_flight.insert((epoch, io), request);
        assert!(before.is_none(), "an I/O number was used twice");
        let delay = self.io_delay();
        self.plan(delay, Happening::CellIo { cell: id, epoch, io });
    }

    fn is_faulty(&mut self, chance: u64) -> bool {
        self.is_working && chance > 0 && self.rng.chance(chance, 1000)
    }

    fn io_done(&mut self, id: CellId, epoch: Epoch, io: IoId) {
        let host = self.host(id);
        let done = host.in_flight.remove(&(epoch, io)).expect("an I/O is done once");
        let is_late = host.dead || host.epoch != epoch;
        // What a dead cell has under way may still get there, or not.
        if is_late && self.rng.chance(1, 2) {
            return self.start_successor(id);
        }
        let host = self.host(id);
        let result = match done.doing {
            Doing::Read => {
                let World { fleet, disk, .. } = self;
                let host = &mut fleet.cells[usize::from(id.0)];
                for (at, frame) in (0..).zip(&done.frames) {
                    disk.read(done.block.offset(at), host.frame_mut(*frame).as_mut_slice());
                }
                Ok(())
            }
            Doing::Write => {
                let bytes = done.taken_early.unwrap_or_else(|| host.gather(&done.frames));
                self.write_done(done.block, &bytes, done.fails)
            }
            Doing::WriteThrough => {
                let bytes = done.taken_early.unwrap_or_else(|| host.gather(&done.frames));
                match self.write_done(done.block, &bytes, done.fails) {
                    // By a device that makes durable what it is told to, or by a flush.
                    Ok(()) if self.rng.chance(1, 2) => {
                        self.disk.harden(done.block, done.frames.len() as u64);
                        Ok(())
                    }
                    Ok(()) => {
                        let flush = Doing::Flush(self.disk.mark());
                        return self.submit(id, io, flush, BlockNo(0), Vec::new());
                    }
                    failed => failed,
                }
            }
            Doing::Flush(mark) => {
                let result = self.flush_done(
                    mark,
                    done.fails,
                    self.fleet.cells[usize::from(id.0)].errors_seen,
                );
                let errors = self.disk.errors;
                self.host(id).errors_seen = errors;
                result
            }
        };
        match is_late {
            true => self.start_successor(id),
            false => self.happen_to(id, Event::IoDone { io, result }),
        }
    }

    /// A write that fails may have written all the same.
    fn write_done(&mut self, block: BlockNo, bytes: &[u8], fails: bool) -> Result<(), Errno> {
        if !fails || self.rng.chance(1, 2) {
            self.disk.write(block, bytes);
        }
        if !fails {
            return Ok(());
        }
        self.faults += 1;
        self.count("a write failed");
        Err(Errno::EIO)
    }

    fn flush_done(&mut self, mark: u64, fails: bool, seen: u64) -> Result<(), Errno> {
        if fails {
            self.disk.fail(&mut self.rng);
            self.faults += 1;
            self.count("a flush failed");
        } else {
            self.disk.flush(mark);
        }
        if self.disk.errors == seen { Ok(()) } else { Err(Errno::EIO) }
    }

    pub(super) fn tell_supervisor(&mut self, event: Heard) {
        self.count_ended(&event);
        let host = &mut self.fleet.supervisor;
        let mut supervisor = host.supervisor.take().expect("it does one thing at a time");
        let mut effects = Vec::new();
        let now = self.clock();
        supervisor.apply(now.monotonic, now.wall, event, &mut effects);
        self.fleet.supervisor.supervisor = Some(supervisor);
        for effect in effects {
            self.trace.note(self.now, &("supervisor", &effect));
            self.do_for_supervisor(effect);
        }
        for host in &mut self.fleet.cells {
            host.beginning.get_or_insert(host.orders.len());
        }
    }

    fn do_for_supervisor(&mut self, effect: Said) {
        match effect {
            Said::Send { to, order } => {
                match order {
                    Order::Switched { .. } => self.count("a checkpoint"),
                    Order::Failed { .. } => self.count("a checkpoint that failed"),
                    Order::Replay => self.count("logs replayed"),
                    _ => {}
                }
                let host = self.host(to);
                if host.dead && !host.is_starting {
                    return;
                }
                host.orders.push_back(order);
                let (is_first, epoch) = (host.orders.len() == 1 && !host.dead, host.epoch);
                if is_first {
                    let delay = self.message_delay();
                    self.plan(delay, Happening::Order { to, epoch });
                }
            }
            Said::Write { io, block, bytes } => {
                self.supervise_io(io, SupervisorRequest::Write((block, bytes)));
            }
            Said::Flush { io } => {
                let (mark, fails) = (self.disk.mark(), self.is_faulty(self.mix.flush_fails));
                self.supervise_io(io, SupervisorRequest::Flush { mark, fails });
            }
            Said::Wake(at) => {
                let at = at.max(self.now);
                self.fleet.supervisor.wake = Some(at);
                self.queue.plan(at, Happening::SupervisorTick { at });
            }
            Said::FleetReady => self.connect_clients(),
            Said::NewClient { connection, client } => {
                self.clients[connection.0 as usize].id = client;
            }
            Said::AdmitClient { client } => {
                let known = self.clients.iter_mut().find(|known| known.id == client);
                known.expect("the supervisor admits whom it numbered").admitted = true;
                if self.clients.iter().all(|client| client.admitted) {
                    self.stage = Stage::Serving;
                }
            }
            Said::RefuseClient { connection, errno } => {
                self.fail(format!("{connection:?} was refused: {errno}"));
            }
            Said::ForgetClient { .. } => {}
            Said::Restart { cell, epoch } => self.restart_cell(cell, epoch),
            Said::Exit(result) => self.stage = Stage::Ended(result),
        }
    }

    fn supervise_io(&mut self, io: SupervisorIo, request: SupervisorRequest) {
        self.fleet.supervisor.in_flight.insert(io, request);
        let delay = self.io_delay();
        self.plan(delay, Happening::SupervisorIo { io });
    }

    fn supervisor_io_done(&mut self, io: SupervisorIo) {
        let request = self.fleet.supervisor.in_flight.remove(&io);
        let result = match request.expect("an I/O is done once") {
            SupervisorRequest::Write((block, bytes)) => {
                self.disk.write(block, &bytes);
                Ok(())
            }
            SupervisorRequest::Flush { mark, fails } => {
                let result = self.flush_done(mark, fails, self.fleet.supervisor.errors_seen);
                self.fleet.supervisor.errors_seen = self.disk.errors;
                result
            }
        };
        self.tell_supervisor(Heard::IoDone { io, result });
    }

    fn connect_clients(&mut self) {
        for at in 0..self.clients.len() {
            let credentials = Credentials::default();
            let applicant =
                Applicant { credentials, pid: 1000 + at as u32, front: false, slots: 1 };
            let connection = ConnectionNo(at as u64);
            self.tell_supervisor(Heard::Connect { connection, applicant });
        }
    }

    /// A request goes to the cell that executes it.
    pub(super) fn plan_request(
        &mut self,
        from: SlotRef,
        seq: u32,
        request: Request,
        payload: usize,
    ) {
        let cell = match request.shard() {
            Some(shard) => self.fleet.map[usize::from(shard.0)],
            None => CellId(self.rng.below(self.fleet.cells.len() as u64) as u16),
        };
        let payload_len = payload as u32;
        let header =
            RequestHeader { seq, map_version: MAP_VERSION, payload_len, ..Default::default() };
        let delay = self.message_delay();
        self.plan(delay, Happening::Request { cell, from, header, request });
    }

    pub(super) fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Request { cell, from, header, request } => {
                self.offer(cell, from, header, request);
            }
            Happening::Reply { from, to, seq, answer } => self.answered(from, to, seq, answer),
            Happening::Step { client } => self.begin_operation(client),
            Happening::Peer { from, to, link } => self.deliver_peer(from, to, link),
            Happening::Order { to, epoch } => {
                if !self.host(to).dead && self.host(to).epoch == epoch {
                    self.deliver_order(to);
                }
            }
            Happening::Report { from, epoch } => {
                if !self.host(from).dead && self.host(from).epoch == epoch {
                    self.deliver_report(from);
                }
            }
            Happening::CellIo { cell, epoch, io } => self.io_done(cell, epoch, io),
            Happening::Exited { cell, epoch } => {
                self.tell_supervisor(Heard::CellExited { cell, epoch });
            }
            Happening::Start { cell } => self.start_successor(cell),
            Happening::SupervisorIo { io } => self.supervisor_io_done(io),
            Happening::Tick { cell, epoch, at } => {
                let is_its = self.host(cell).epoch == epoch;
                if is_its && self.host(cell).wake.take_if(|wake| *wake == at).is_some() {
                    self.happen_to(cell, Event::Tick);
                }
            }
            Happening::SupervisorTick { at } => {
                if self.fleet.supervisor.wake.take_if(|wake| *wake == at).is_some() {
                    self.tell_supervisor(Heard::Tick);
                }
            }
            Happening::Nudge => self.nudge(),
        }
    }

    fn nudge(&mut self) {
        if self.stage == Stage::Serving {
            let report = Report::WantCheckpoint { cell: CellId(0) };
            let epoch = self.host(CellId(0)).epoch;
            self.tell_supervisor(Heard::Report { from: CellId(0), epoch, report });
            self.plan_nudge();
        }
    }

    pub(super) fn plan_nudge(&mut self) {
        if self.mix.nudge > 0 {
            let delay = self.rng.below(self.mix.nudge);
            self.plan(delay, Happening::Nudge);
        }
    }

    fn deliver_order(&mut self, to: CellId) {
        let host = self.host(to);
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
            self.host(to).slots.admitted.insert(client);
            self.look_at_slots(to);
        }
    }

    fn deliver_report(&mut self, from: CellId) {
        let host = self.host(from);
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

/// What a frame holds that nobody has filled: neither zeros nor data.
static UNFILLED: [u8; BLOCK_SIZE] = [0xc3; BLOCK_SIZE];

impl CellHost {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.frames[frame.0 as usize].as_deref().unwrap_or(&UNFILLED)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.frames[frame.0 as usize].get_or_insert_with(|| Box::new(UNFILLED))
    }

    fn gather(&self, frames: &[FrameNo]) -> Vec<u8> {
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
    /// A store begins: the process may not get to it.
    fn store_begins(&mut self) {
        if let Some(left) = &mut self.stores_left {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => resume_unwind(Box::new(Killed)),
            }
        }
    }
}

impl Memory for SharedMemory<'_> {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.world.fleet.cells[usize::from(self.cell.0)].frame(frame)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.store_begins();
        self.world.host(self.cell).frame_mut(frame)
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
        let World { fleet, lanes, .. } = self.world;
        let frame = fleet.cells[usize::from(self.cell.0)].frame_mut(frame);
        lanes.read_request(from, offset, &mut frame[at..at + len]);
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
        let World { fleet, lanes, .. } = self.world;
        let frame = fleet.cells[usize::from(self.cell.0)].frame(frame);
        lanes.reply_mut(self.cell, to, offset, len).copy_from_slice(&frame[at..at + len]);
    }

    fn zero_payload(&mut self, to: SlotRef, offset: usize, len: usize) {
        self.world.lanes.reply_mut(self.cell, to, offset, len).fill(0);
    }

    // No client of this world uses leases.
    fn store_word(&mut self, _: ClientId, _: u32, _: u64) {}
}
