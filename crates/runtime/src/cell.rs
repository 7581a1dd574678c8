//! A cell's process: the event loop that drives one [`warren_cell::Cell`].
//!
//! A turn takes what has come in this order: replies of peers, requests of peers, finished I/O,
//! orders (now and then), requests of clients, the timer. After a turn that found nothing the loop
//! spins for [`SPIN`], then parks: it announces sleep in its vitals, looks once more everywhere, and
//! waits in one place for its bell, the device and the timer. Whoever sends it something rings.

mod disk;
mod memory;
mod peers;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Instant, ShardId};
use warren_cell::{Cell, CellConfig, Clock, Effect, Event};
use warren_disk::RootSlot;
use warren_proto::control::{Order, Report};
use warren_proto::{Request, Wire};
use warren_shm::{Counter, Frames, ReplyHeader, VitalsWriter, map_writable};

use crate::clock::{self, Clocks};
use crate::error::{FleetError, system};
use crate::launch::path_of;
use crate::link::{Link, Outbox, Packet, Received, Wait};
use crate::message::{ADMIT_DESCRIPTORS, CellStart, FromCell, PeerDoor, START_DESCRIPTORS};
use crate::process;
use disk::Disk;
use memory::SharedMemory;
use peers::Peers;

/// Spinning without work. Longer spins halved the throughput of a busy machine (measured).
const SPIN: Duration = Duration::from_micros(5);

/// How often the supervisor's link is looked at while the loop is busy.
const ORDERS_EVERY: Duration = Duration::from_micros(50);

/// The longest sleep: a cell whose bell was lost (by a faulty peer) is late, never stuck.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Messages taken from one peer in a turn.
const MESSAGES_A_TURN: usize = 64;

struct CellLoop {
    /// Dropped first: it waits for the device, which writes to frames.
    disk: Disk,
    core: Cell,
    memory: SharedMemory,
    peers: Peers,
    supervisor: Outbox,
    vitals: VitalsWriter,
    effects: Vec<Effect>,
    /// When the core wants a tick.
    wake: Option<Instant>,
    next_look_at_orders: Instant,
    /// Bodies are copied here.
    body: Vec<u8>,
    stopped: bool,
    clocks: Clocks,
}

/// The role `__cell N`.
pub(crate) fn main(number: u16) -> Result<(), FleetError> {
    let mut link = process::begin(&format!("warren-cell-{number}"), true)?;
    let last_words = link.share().map_err(system("share the cell's link"))?;
    let ended = process::guarded(|| {
        let (start, fds) = receive_start(&mut link)?;
        CellLoop::start(link, start, fds)?.run()
    });
    if let Err(error) = &ended {
        let (kind, line) = error.report();
        let failed = FromCell::Failed { kind, line };
        // If the supervisor is gone too, nobody is left to be told.
        let _ = last_words.send(&failed.to_bytes(), &[], Wait::No);
    }
    ended
}

fn next_packet(link: &mut Link) -> Result<Packet, FleetError> {
    match link.receive(Wait::Yes).map_err(system("hear from the supervisor"))? {
        Received::Packet(packet) => Ok(packet),
        _ => Err(FleetError::Died("the supervisor".into())),
    }
}

fn nonsense() -> FleetError {
    FleetError::Died("a supervisor that spoke nonsense".into())
}

fn receive_start(link: &mut Link) -> Result<(CellStart, [OwnedFd; START_DESCRIPTORS]), FleetError> {
    let packet = next_packet(link)?;
    let start = CellStart::from_bytes(&packet.bytes).map_err(|_| nonsense())?;
    let fds = packet.fds.try_into().map_err(|_| nonsense())?;
    Ok((start, fds))
}

impl CellLoop {
    fn start(
        mut link: Link,
        start: CellStart,
        [device, _map, frames, bell, vitals]: [OwnedFd; START_DESCRIPTORS],
    ) -> Result<Self, FleetError> {
        let vitals = VitalsWriter::new(map_writable(vitals.as_fd())?, start.id, start.epoch)?;
        let frames = adopt_frames(frames, start.frames)?;
        let disk = Disk::open(device, &path_of(&start.pool), bell)?;
        let mut peers = Peers::new(start.id, start.epoch, start.cells);
        for _ in 1..start.cells {
            let packet = next_packet(&mut link)?;
            let door = PeerDoor::from_bytes(&packet.bytes).map_err(|_| nonsense())?;
            peers.open(door.peer, packet.fds.try_into().map_err(|_| nonsense())?)?;
        }
        let (id, epoch) = (start.id, start.epoch);
        let mut effects = Vec::new();
        let core = Cell::new(config(start)?, clock::both(), &mut effects);
        let mut cell = Self {
            core,
            memory: SharedMemory::new(frames, id, epoch),
            peers,
            disk,
            supervisor: Outbox::new(link),
            vitals,
            effects: Vec::new(),
            wake: None,
            next_look_at_orders: Instant(0),
            body: Vec::new(),
            stopped: false,
            clocks: Clocks::default(),
        };
        cell.carry_out(effects)?;
        Ok(cell)
    }

    fn run(&mut self) -> Result<(), FleetError> {
        let mut clock = self.clocks.look();
        let mut busy_since = clock.monotonic;
        let mut idle_since = None;
        while !self.stopped {
            let worked = self.turn(clock)?;
            clock = self.clocks.look();
            let now = clock.monotonic;
            if worked {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert(now);
            if now - since < SPIN {
                std::hint::spin_loop();
                continue;
            }
            self.vitals.add(Counter::BusyNs, (now - busy_since).as_nanos() as u64);
            self.park(now)?;
            clock = self.clocks.look();
            busy_since = clock.monotonic;
            self.vitals.add(Counter::ParkedNs, (busy_since - now).as_nanos() as u64);
            idle_since = None;
        }
        self.say_goodbye()
    }

    /// Takes a bounded amount of everything that has come; says whether anything had.
    fn turn(&mut self, now: Clock) -> Result<bool, FleetError> {
        self.vitals.beat();
        let mut worked = self.take_peers(now)?;
        worked |= self.take_finished_io(now)?;
        if now.monotonic >= self.next_look_at_orders {
            self.next_look_at_orders = now.monotonic + ORDERS_EVERY;
            worked |= self.take_orders(now)?;
        }
        worked |= self.take_requests(now)?;
        if self.wake.is_some_and(|at| at <= now.monotonic) {
            self.wake = None;
            self.apply(now, Event::Tick)?;
            worked = true;
        }
        worked |= self.peers.flush()?;
        Ok(worked)
    }

    fn park(&mut self, now: Instant) -> Result<(), FleetError> {
        self.vitals.park();
        self.vitals.set_spinners(0);
        self.next_look_at_orders = Instant(0);
        let clock = self.clocks.look();
        let outcome = match self.turn(clock) {
            Ok(false) => {
                let limit = self.wake.map_or(SLEEP_MAX, |at| (at - now).min(SLEEP_MAX));
                // A peer with a full inbox does not ring when it has room again.
                let limit =
                    if self.peers.is_backed_up() { Duration::from_micros(100) } else { limit };
                self.disk.sleep(limit)
            }
            outcome => outcome.map(drop),
        };
        self.vitals.set_spinners(1);
        self.vitals.unpark();
        self.next_look_at_orders = Instant(0);
        outcome
    }

    fn apply(&mut self, now: Clock, event: Event) -> Result<(), FleetError> {
        let mut effects = std::mem::take(&mut self.effects);
        self.core.apply(now, event, &mut self.memory, &mut effects);
        self.carry_out(effects)
    }

    /// Does what the core wants, in order, and keeps the vector for the next time.
    fn carry_out(&mut self, mut effects: Vec<Effect>) -> Result<(), FleetError> {
        for effect in effects.drain(..) {
            self.carry_out_one(effect)?;
        }
        self.effects = effects;
        Ok(())
    }

    fn carry_out_one(&mut self, effect: Effect) -> Result<(), FleetError> {
        match effect {
            Effect::Reply { to, seq, answer, payload_len } => {
                self.body.clear();
                let errno = match answer {
                    Ok(reply) => {
                        reply.encode(&mut self.body);
                        None
                    }
                    Err(errno) => Some(errno),
                };
                let header = ReplyHeader { errno, payload_len };
                self.memory.reply(to, seq, header, &self.body);
            }
            Effect::Send { to, message } => self.peers.send(to, &message)?,
            Effect::Report(report) => self.report(report)?,
            Effect::Read { io, block, frames } => {
                self.vitals.add(Counter::BlocksRead, frames.len() as u64);
                self.disk.read(io, block, &frames, self.memory.frames());
            }
            Effect::Write { io, block, frames } => {
                self.vitals.add(Counter::BlocksWritten, frames.len() as u64);
                self.disk.write(io, block, &frames, self.memory.frames());
            }
            Effect::Wake(at) => self.wake = Some(at),
        }
        Ok(())
    }

    fn report(&mut self, report: Report) -> Result<(), FleetError> {
        if let Report::Expelled { client } = report {
            self.memory.forget(client);
        }
        self.stopped |= matches!(report, Report::Stopped { .. });
        let sent = self.supervisor.send(FromCell::Report(report).to_bytes(), Vec::new());
        sent.map_err(system("report to the supervisor"))
    }

    fn take_peers(&mut self, now: Clock) -> Result<bool, FleetError> {
        let mut worked = false;
        for peer in self.peers.others() {
            for _ in 0..MESSAGES_A_TURN {
                let Some(message) = self.peers.receive(peer)? else { break };
                worked = true;
                self.vitals.add(Counter::PeerMessages, 1);
                self.apply(now, Event::Peer { from: peer, message })?;
            }
        }
        Ok(worked)
    }

    fn take_finished_io(&mut self, now: Clock) -> Result<bool, FleetError> {
        let mut worked = false;
        self.disk.poll()?;
        while let Some((io, result)) = self.disk.finished() {
            worked = true;
            self.apply(now, Event::IoDone { io, result })?;
        }
        Ok(worked)
    }

    fn take_requests(&mut self, now: Clock) -> Result<bool, FleetError> {
        let rung = self.memory.rung();
        let worked = !rung.is_empty();
        for &from in &rung {
            // A request of an earlier one in this turn may have ended the client's admission.
            let Some(taken) = self.memory.take(from, &mut self.body) else { continue };
            self.vitals.add(Counter::Requests, 1);
            let (header, request) = match taken {
                Ok(header) => (header, Request::from_bytes(&self.body)),
                Err(unreadable) => {
                    self.memory.refuse(from, unreadable);
                    continue;
                }
            };
            match request {
                Ok(request) => self.apply(now, Event::Request { from, header, request })?,
                Err(_) => self.memory.refuse(from, header.seq),
            }
        }
        self.memory.done_with(rung);
        Ok(worked)
    }

    fn take_orders(&mut self, now: Clock) -> Result<bool, FleetError> {
        self.supervisor.flush().map_err(system("report to the supervisor"))?;
        let mut worked = false;
        loop {
            let received = self.supervisor.link.receive(Wait::No);
            match received.map_err(system("hear from the supervisor"))? {
                Received::Packet(packet) => self.obey(now, packet)?,
                Received::Nothing => return Ok(worked),
                Received::Closed => return Err(FleetError::Died("the supervisor".into())),
            }
            worked = true;
        }
    }

    fn obey(&mut self, now: Clock, packet: Packet) -> Result<(), FleetError> {
        let order = Order::from_bytes(&packet.bytes).map_err(|_| nonsense())?;
        match order {
            Order::Admit { client, slots, .. } => {
                let fds: [OwnedFd; ADMIT_DESCRIPTORS] =
                    packet.fds.try_into().map_err(|_| nonsense())?;
                self.memory.admit(client, slots, fds)?;
            }
            Order::Expel { client } => self.memory.silence(client),
            _ => {}
        }
        self.apply(now, Event::Order(order))
    }

    /// Everything is reported before the process ends.
    fn say_goodbye(&mut self) -> Result<(), FleetError> {
        while self.supervisor.is_backed_up() {
            self.supervisor.flush().map_err(system("report to the supervisor"))?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The frames that the supervisor made for this cell.
#[allow(unsafe_code)]
fn adopt_frames(fd: OwnedFd, count: u32) -> Result<Frames, FleetError> {
    // SAFETY: the supervisor has unmapped the segment before it sent the descriptor; the keeper
    // only holds one; each cell has its own.
    let frames = unsafe { Frames::adopt(fd) }?;
    if frames.count() < count {
        return Err(nonsense());
    }
    Ok(frames)
}

fn config(start: CellStart) -> Result<CellConfig, FleetError> {
    let mut roots = Vec::with_capacity(start.roots.len());
    for (shard, bytes) in &start.roots {
        let root = match bytes.len() {
            0 => None,
            _ => Some(RootSlot::decode(bytes).map_err(|_| nonsense())?),
        };
        roots.push((ShardId(*shard), root));
    }
    Ok(CellConfig {
        id: start.id,
        epoch: start.epoch,
        map: start.map,
        map_version: start.map_version,
        secret: start.secret,
        roots,
        free_chunks: start.free_chunks,
        total_blocks: start.total_blocks,
        frames: start.frames,
        generation: start.generation,
        plant: None,
    })
}

const _: () = assert!(BLOCK_SIZE == 4096, "frames and blocks are one size");
