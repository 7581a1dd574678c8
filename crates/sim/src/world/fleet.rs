//! The simulated fleet: cells and the supervisor, the links between them, and their I/O.

use std::collections::{BTreeMap, VecDeque};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, ClientId, Epoch, Errno, Instant, MapVersion, ShardId};
use warren_cell::{
    Cell, CellConfig, Clock, Effect, Event, FrameNo, IoId, Memory, PeerMessage, SlotRef,
};
use warren_disk::{BlockWrite, Owner, Superblock};
use warren_proto::control::{Order, Report};
use warren_proto::{Answer, Request, RequestHeader};
use warren_supervisor::{
    Applicant, Config, ConnectionNo, Effect as Said, Event as Heard, IoId as SupervisorIo, Ledger,
    Supervisor,
};

use super::clients::At;
use super::{Phase, World};

/// Messages an inbox holds; what comes then waits at the sender.
const INBOX_MAX: usize = 4;

/// The version of the only shard map a life of the fleet has.
const MAP_VERSION: MapVersion = MapVersion(1);

/// Everything that can happen.
#[derive(Debug)]
pub enum Happening {
    Request { cell: CellId, from: SlotRef, header: RequestHeader, request: Request },
    Reply { from: CellId, to: SlotRef, seq: u32, hint: u64, answer: Answer },
    Step { at: At, ticket: u64 },
    Peer { from: CellId, to: CellId },
    Order { to: CellId },
    Report { from: CellId },
    CellIo { cell: CellId, io: IoId },
    SupervisorIo { io: SupervisorIo },
    Tick { cell: CellId, at: Instant },
    SupervisorTick { at: Instant },
}

/// Messages in order: the first of them is on its way.
#[derive(Debug)]
pub struct Link<T>(VecDeque<T>);

impl<T> Default for Link<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

struct InFlight {
    write: bool,
    block: BlockNo,
    frames: Vec<FrameNo>,
    /// A device may read the frames of a write at any time until it is done.
    taken_early: Option<Vec<u8>>,
    result: Result<(), Errno>,
}

type Frame = Box<[u8; BLOCK_SIZE]>;

/// A cell and what it has of the machine. While the cell runs it is taken out.
pub struct CellHost {
    cell: Option<Cell>,
    frames: Vec<Option<Frame>>,
    in_flight: BTreeMap<IoId, InFlight>,
    wake: Option<Instant>,
    orders: Link<Order>,
    reports: Link<Report>,
}

/// The supervisor and its I/O. A flush writes nothing: the simulated disk loses no power.
pub struct SupervisorHost {
    supervisor: Option<Supervisor>,
    writes: BTreeMap<SupervisorIo, Option<BlockWrite>>,
    wake: Option<Instant>,
}

impl World {
    /// Starts a fleet on what the disk holds.
    pub(super) fn start_fleet(&mut self, cells: u16) {
        let (superblock, copies) = self.read_superblock();
        let ledger = self.load_ledger(superblock.clone());
        let shards = superblock.layout.shards();
        self.lives += 1;
        let epoch = Epoch(self.lives as u32);
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
            let config = self.cell_config(id, epoch, cells, &superblock, &ledger, &free);
            let mut effects = Vec::new();
            let cell = Cell::new(config, self.clock(), &mut effects);
            self.cells.push(CellHost {
                cell: Some(cell),
                frames: vec![None; self.swarm.frames as usize],
                in_flight: BTreeMap::new(),
                wake: None,
                orders: Link::default(),
                reports: Link::default(),
            });
            started.push((id, effects));
        }
        let config = Config {
            epochs: vec![epoch; usize::from(cells)],
            map_version: MAP_VERSION,
            owners: self.map.clone(),
            ledger,
            copies,
        };
        self.supervisor = SupervisorHost {
            supervisor: Some(Supervisor::new(config)),
            writes: BTreeMap::new(),
            wake: None,
        };
        for (id, effects) in started {
            self.carry_out(id, effects);
        }
    }

    fn cell_config(
        &self,
        id: CellId,
        epoch: Epoch,
        cells: u16,
        superblock: &Superblock,
        ledger: &Ledger,
        free: &[u64],
    ) -> CellConfig {
        let own = |shard: &ShardId| self.map[usize::from(shard.0)] == id;
        let shards = (0..self.map.len() as u16).map(ShardId).filter(own);
        let share = free.iter().skip(usize::from(id.0)).step_by(usize::from(cells));
        CellConfig {
            id,
            epoch,
            map: self.map.clone(),
            map_version: MAP_VERSION,
            secret: superblock.secret,
            roots: shards.map(|shard| (shard, ledger.root(shard).copied())).collect(),
            free_chunks: share.copied().collect(),
            total_blocks: superblock.layout.total_blocks(),
            frames: self.swarm.frames,
            generation: superblock.generation,
            plant: self.plant,
        }
    }

    fn read_superblock(&self) -> (Superblock, warren_disk::CopiesState) {
        let copies = [0, 1].map(|block| self.read_blocks(BlockNo(block), 1));
        Superblock::choose(&copies[0], &copies[1]).expect("the pool was made by mkfs")
    }

    fn load_ledger(&self, superblock: Superblock) -> Ledger {
        let layout = superblock.layout;
        let pages = layout.region_pages();
        let regions = [0, 1].map(|copy| self.read_blocks(layout.region_page(copy, 0), pages));
        let slots = self.read_blocks(layout.roots_start(), 2 * layout.roots_blocks());
        Ledger::load(superblock, [&regions[0], &regions[1]], &slots)
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
        let host = &mut self.cells[usize::from(id.0)];
        let mut cell = host.cell.take().expect("a cell does one thing at a time");
        let now = self.clock();
        let mut effects = Vec::new();
        cell.apply(now, event, &mut SharedMemory { world: self, cell: id }, &mut effects);
        self.cells[usize::from(id.0)].cell = Some(cell);
        self.carry_out(id, effects);
    }

    fn carry_out(&mut self, id: CellId, effects: Vec<Effect>) {
        for effect in effects {
            self.trace.note(self.now, &(id, &effect));
            match effect {
                Effect::Reply { to, seq, answer, payload_len: _ } => {
                    let hint = self.place();
                    let delay = self.message_delay();
                    self.plan(delay, Happening::Reply { from: id, to, seq, hint, answer });
                }
                Effect::Send { to, message } => self.send_peer(id, to, message),
                Effect::Report(report) => {
                    let reports = &mut self.cells[usize::from(id.0)].reports.0;
                    reports.push_back(report);
                    if reports.len() == 1 {
                        let delay = self.message_delay();
                        self.plan(delay, Happening::Report { from: id });
                    }
                }
                Effect::Read { io, block, frames } => self.submit(id, io, false, block, frames),
                Effect::Write { io, block, frames } => self.submit(id, io, true, block, frames),
                Effect::Wake(at) => {
                    let at = at.max(self.now);
                    self.cells[usize::from(id.0)].wake = Some(at);
                    self.queue.plan(at, Happening::Tick { cell: id, at });
                }
            }
        }
    }

    fn send_peer(&mut self, from: CellId, to: CellId, message: PeerMessage) {
        let link = &mut self.links.entry((from, to)).or_default().0;
        link.push_back(message);
        let len = link.len();
        if len > INBOX_MAX {
            self.count("a full inbox");
        }
        if len == 1 {
            let delay = self.message_delay();
            self.plan(delay, Happening::Peer { from, to });
        }
    }

    fn submit(&mut self, id: CellId, io: IoId, write: bool, block: BlockNo, frames: Vec<FrameNo>) {
        let faulty = self.phase == Phase::Safety
            && self.lives == 1
            && self.admitted
            && self.rng.chance(self.swarm.io_error, 1000);
        if faulty {
            self.io_failed = true;
            self.count(if write { "a write failed" } else { "a read failed" });
        }
        self.count(if write { "block written by a cell" } else { "block read by a cell" });
        let host = &self.cells[usize::from(id.0)];
        let early = write && self.rng.chance(1, 2);
        let taken_early = early.then(|| host.gather(&frames));
        let result = if faulty { Err(Errno::EIO) } else { Ok(()) };
        let request = InFlight { write, block, frames, taken_early, result };
        let before = self.cells[usize::from(id.0)].in_flight.insert(io, request);
        assert!(before.is_none(), "an I/O number was used twice");
        let delay = self.io_delay();
        self.plan(delay, Happening::CellIo { cell: id, io });
    }

    /// No I/O fails any more, not even what is under way.
    pub(super) fn heal_disk(&mut self) {
        for request in self.cells.iter_mut().flat_map(|host| host.in_flight.values_mut()) {
            request.result = Ok(());
        }
    }

    fn io_done(&mut self, id: CellId, io: IoId) {
        let host = &mut self.cells[usize::from(id.0)];
        let done = host.in_flight.remove(&io).expect("an I/O is done once");
        if done.result.is_ok() && done.write {
            let bytes = done.taken_early.unwrap_or_else(|| host.gather(&done.frames));
            self.disk.write(done.block, &bytes);
        } else if done.result.is_ok() {
            for (at, frame) in done.frames.iter().enumerate() {
                self.disk.read(done.block.offset(at as u64), host.frame_mut(*frame).as_mut_slice());
            }
        }
        self.happen_to(id, Event::IoDone { io, result: done.result });
    }

    pub(super) fn tell_supervisor(&mut self, event: Heard) {
        let mut supervisor =
            self.supervisor.supervisor.take().expect("it does one thing at a time");
        let mut effects = Vec::new();
        supervisor.apply(self.now, self.wall(), event, &mut effects);
        self.supervisor.supervisor = Some(supervisor);
        for effect in effects {
            self.trace.note(self.now, &("supervisor", &effect));
            self.do_for_supervisor(effect);
        }
    }

    fn do_for_supervisor(&mut self, effect: Said) {
        match effect {
            Said::Send { to, order } => {
                if matches!(order, Order::Switched { .. }) {
                    self.switched = true;
                }
                let orders = &mut self.cells[usize::from(to.0)].orders.0;
                orders.push_back(order);
                if orders.len() == 1 {
                    let delay = self.message_delay();
                    self.plan(delay, Happening::Order { to });
                }
            }
            Said::Write { io, block, bytes } => self.supervise_io(io, Some((block, bytes))),
            Said::Flush { io } => self.supervise_io(io, None),
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
            Said::RefuseClient { connection, errno } => {
                self.fail(format!("{connection:?} was refused: {errno}"));
            }
            Said::ForgetClient { .. } => {}
            Said::Exit(Ok(())) => self.phase = Phase::Stopped,
            Said::Exit(Err(failure)) => self.fail(format!("the fleet ended: {failure}")),
        }
    }

    fn supervise_io(&mut self, io: SupervisorIo, write: Option<BlockWrite>) {
        self.supervisor.writes.insert(io, write);
        let delay = self.io_delay();
        self.plan(delay, Happening::SupervisorIo { io });
    }

    fn connect_clients(&mut self) {
        for at in 0..self.clients.len() {
            let client = &self.clients[at];
            let applicant = Applicant {
                credentials: (*client.credentials).clone(),
                pid: 1000 + at as u32,
                front: false,
                slots: client.slots.len() as u16,
            };
            let connection = ConnectionNo(at as u64);
            self.tell_supervisor(Heard::Connect { connection, applicant });
        }
    }

    fn admit(&mut self, client: ClientId) {
        let place = self.clients.iter().position(|c| c.id == client);
        let client = place.expect("the supervisor admits whom it numbered");
        self.admitted = true;
        for slot in 0..self.clients[client].slots.len() {
            let at = At { client, slot };
            self.slot(at).state = super::clients::SlotState::Thinking;
            let think = self.think_time();
            self.plan_step(at, think);
        }
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
                self.happen_to(cell, Event::Request { from, header, request });
            }
            Happening::Reply { from, to, seq, hint, answer } => {
                self.answered(from, to, seq, hint, answer);
            }
            Happening::Step { at, ticket } => {
                if self.slot(at).ticket == ticket {
                    self.go_on(at);
                }
            }
            Happening::Peer { from, to } => {
                let message = self.next_of_link(from, to);
                self.happen_to(to, Event::Peer { from, message });
            }
            Happening::Order { to } => self.deliver_order(to),
            Happening::Report { from } => self.deliver_report(from),
            Happening::CellIo { cell, io } => self.io_done(cell, io),
            Happening::SupervisorIo { io } => {
                let write = self.supervisor.writes.remove(&io).expect("an I/O is done once");
                if let Some((block, bytes)) = write {
                    self.disk.write(block, &bytes);
                }
                self.tell_supervisor(Heard::IoDone { io, result: Ok(()) });
            }
            Happening::Tick { cell, at } => {
                if self.cells[usize::from(cell.0)].wake == Some(at) {
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
        let link = &mut self.links.get_mut(&(from, to)).expect("there is a message").0;
        let message = link.pop_front().expect("there is a message");
        if !link.is_empty() {
            let delay = self.message_delay();
            self.plan(delay, Happening::Peer { from, to });
        }
        message
    }

    fn deliver_order(&mut self, to: CellId) {
        let orders = &mut self.cells[usize::from(to.0)].orders.0;
        let order = orders.pop_front().expect("there is an order");
        if !orders.is_empty() {
            let delay = self.message_delay();
            self.plan(delay, Happening::Order { to });
        }
        self.happen_to(to, Event::Order(order));
    }

    fn deliver_report(&mut self, from: CellId) {
        let reports = &mut self.cells[usize::from(from.0)].reports.0;
        let report = reports.pop_front().expect("there is a report");
        if !reports.is_empty() {
            let delay = self.message_delay();
            self.plan(delay, Happening::Report { from });
        }
        let epoch = Epoch(self.lives as u32);
        self.tell_supervisor(Heard::Report { from, epoch, report });
    }

    fn clock(&self) -> Clock {
        Clock { monotonic: self.now, wall: self.wall() }
    }
}

impl SupervisorHost {
    pub(super) fn none() -> Self {
        Self { supervisor: None, writes: BTreeMap::new(), wake: None }
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
}

impl SharedMemory<'_> {
    fn host(&mut self) -> &mut CellHost {
        &mut self.world.cells[usize::from(self.cell.0)]
    }
}

impl Memory for SharedMemory<'_> {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.world.cells[usize::from(self.cell.0)].frame(frame)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
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
        let bytes = &self.world.cells[usize::from(self.cell.0)].frame(frame)[at..at + len];
        self.world.lanes.reply_mut(self.cell, to, offset, len).copy_from_slice(bytes);
    }

    fn zero_payload(&mut self, to: SlotRef, offset: usize, len: usize) {
        self.world.lanes.reply_mut(self.cell, to, offset, len).fill(0);
    }

    fn store_word(&mut self, client: ClientId, word: u32, stamp: u64) {
        self.world.let_clients_act();
        self.world.lanes.store(self.cell, client, word, stamp);
        if stamp == 0 && self.world.is_stepping(client) {
            self.world.count("a lease cleared while its holder was in a call");
        }
        self.world.let_clients_act();
    }
}
