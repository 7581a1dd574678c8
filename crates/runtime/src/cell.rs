//! A cell's process: the event loop that drives one [`warren_cell::Cell`].
//!
//! A turn gathers what has come, does some of it in the order of [`intake`] (what finishes work,
//! requests of peers, requests of clients), obeys orders now and then, and sends what it has for
//! peers. After a turn that found nothing the loop spins for as long as [`spin`] says, then parks: it
//! announces sleep in its vitals, looks once more everywhere, and waits in one place for its bell,
//! the device and the timer. Whoever sends it something rings.

mod disk;
mod intake;
mod memory;
mod peers;
mod spin;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tracing::warn;
use warren_base::limits::{BLOCK_SIZE, BODY_MAX};
use warren_base::{CellId, Epoch, Errno, Instant, ShardId};
use warren_cell::{Cell, CellConfig, Clock, Effect, Event, LogConfig, Planted, Recovery};
use warren_device::PoolFile;
use warren_disk::{LogArea, RootSlot};
use warren_log::record_all;
use warren_mailbox::{Capability, Work as Next};
use warren_proto::control::{Order, Report};
use warren_proto::{Answer, Request, Wire};
use warren_shm::{
    Counter, Culprit, Frames, Lane, ReplyHeader, ShardMapReader, VitalsWriter, map_read_only,
    map_writable,
};

use crate::clock::{self, Clocks};
use crate::confine::confine;
use crate::error::{FleetError, system};
use crate::launch::path_of;
use crate::link::{Link, Outbox, Packet, Received, Wait};
use crate::message::{ADMIT_DESCRIPTORS, CellStart, FromCell, START_DESCRIPTORS, ToCell};
use crate::{process, slice};
use disk::{Disk, Finished};
use intake::{ClientWork, Completion, Intake, Work};
use memory::SharedMemory;
use peers::Peers;
use spin::Spin;

/// How often the supervisor's link is looked at while the loop is busy.
const ORDERS_EVERY: Duration = Duration::from_micros(50);

/// The longest sleep: a cell whose bell was lost (by a faulty peer) is late, never stuck.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Processes that die with one request before it is refused: one or two may have been killed just then.
const DEATHS_MAX: u32 = 3;

/// Messages gathered from one peer's lane in a turn.
const MESSAGES_A_TURN: usize = 64;

/// What is done in a turn, before it is looked whether something came that goes first, or somebody whose turn it is:
/// so many requests, or so many bytes of their data moved, which takes about as long.
const WORK_A_TURN: usize = 16;
const BYTES_A_TURN: u64 = 256 << 10;

/// Looks at clients' doorbells between two turns of a cell that spins: so few that messages of peers and finished I/O,
/// for which only turns look, hardly wait longer.
const LOOKS_A_SPIN: usize = 8;

struct CellLoop {
    cell: CellId,
    /// Dropped first: it waits for the device, which writes to frames.
    disk: Disk,
    core: Cell,
    memory: SharedMemory,
    peers: Peers,
    intake: Intake,
    supervisor: Outbox,
    /// Reports are sent in this epoch, under this capability.
    epoch: Epoch,
    capability: Capability,
    /// Reports sent, and orders heard.
    reports: u64,
    orders: u64,
    spin: Spin,
    vitals: VitalsWriter,
    /// A request that is not executed again.
    culprit: Option<Culprit>,
    /// Beside it the supervisor counts its failed flushes. So many are known.
    map: ShardMapReader,
    lost_flushes: u64,
    effects: Vec<Effect>,
    /// When the core wants a tick.
    wake: Option<Instant>,
    /// Blocks that the host has room for, as the core has asked.
    host_room: Option<u64>,
    next_look_at_orders: Instant,
    /// Bodies are copied here.
    body: Vec<u8>,
    /// Bytes of file data that went through clients' lanes.
    moved: u64,
    /// It serves: until it has recovered, clients' requests wait in their slots.
    ready: bool,
    stopped: bool,
    clocks: Clocks,
    /// Since when the time is not yet counted as busy.
    busy_since: Instant,
    /// With it the fleet's lock on the pool, for as long as this process may write to it.
    _pool: OwnedFd,
}

/// The role `cell N`.
pub(crate) fn main(number: u16) -> Result<(), FleetError> {
    let mut link = process::begin(&format!("warren-cell-{number}"), true)?;
    slice::shorten();
    record_all();
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
        link: Link,
        start: CellStart,
        [pool, device, map, frames, bell, vitals]: [OwnedFd; START_DESCRIPTORS],
    ) -> Result<Self, FleetError> {
        // First of all: until it has the lock, a predecessor may still write to device and frames.
        let device = PoolFile::from_fd(device, &path_of(&start.pool))?;
        device.lock_as_writer(start.id.0)?;
        let vitals = VitalsWriter::new(map_writable(vitals.as_fd())?, start.id, start.epoch)?;
        let map = ShardMapReader::new(map_read_only(map.as_fd())?)?;
        let log = LogArea { start: start.log_start, blocks: start.log_blocks };
        let frames = adopt_frames(frames, CellConfig::frames_total(start.frames, log))?;
        let disk = Disk::open(device, bell)?;
        let peers = Peers::new(start.id, start.epoch, start.cells);
        let (id, epoch, capability) = (start.id, start.epoch, start.supervisor);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let mut effects = Vec::new();
        let now = clock::both();
        let core = Cell::new(config(start)?, now, &mut effects);
        let mut cell = Self {
            cell: id,
            core,
            memory: SharedMemory::new(frames, id, epoch).with_vitals(vitals.clone()),
            culprit: vitals.take_culprit().filter(|it| it.deaths >= DEATHS_MAX),
            peers,
            intake: Intake::new(),
            disk,
            supervisor: Outbox::new(link),
            epoch,
            capability,
            reports: 0,
            orders: 0,
            spin: Spin::new(cores),
            vitals,
            lost_flushes: map.lost_flushes(),
            map,
            effects: Vec::new(),
            wake: None,
            host_room: None,
            next_look_at_orders: Instant(0),
            body: Vec::new(),
            moved: 0,
            ready: false,
            stopped: false,
            clocks: Clocks::default(),
            busy_since: now.monotonic,
            _pool: pool,
        };
        cell.vitals.set_spinners(1);
        // Before it takes anything from clients or peers. All that it needs it has, or is sent.
        confine()?;
        cell.hear_beginning()?;
        cell.carry_out(effects)?;
        Ok(cell)
    }

    /// Its links, and the clients of a predecessor: before the first turn, so that no lease word of theirs
    /// stands when this cell changes anything.
    fn hear_beginning(&mut self) -> Result<(), FleetError> {
        let mut begun = false;
        while !begun {
            let packet = next_packet(&mut self.supervisor.link)?;
            let clock = self.clocks.look();
            begun = self.obey(clock, packet)?;
        }
        self.peers.begin();
        Ok(())
    }

    fn run(&mut self) -> Result<(), FleetError> {
        let mut clock = self.clocks.look();
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
            if !self.is_spun(now - since) {
                self.watch_doorbells();
                continue;
            }
            self.count_busy(now);
            self.park(now)?;
            clock = self.clocks.look();
            self.busy_since = clock.monotonic;
            let slept = clock.monotonic - now;
            self.spin.slept(slept);
            self.vitals.add(Counter::ParkedNs, slept.as_nanos() as u64);
            idle_since = None;
        }
        self.say_goodbye()
    }

    /// Spins between two turns, until a client rings or some looks at the doorbells were made. A request that
    /// comes now waits neither for the rest of an idle turn nor for the clock. Its turn has the time of the look
    /// before, which is some hundred ns ago at most.
    fn watch_doorbells(&self) {
        let looks = LOOKS_A_SPIN / self.memory.clients().max(1);
        for _ in 0..=looks {
            std::hint::spin_loop();
            if self.memory.is_rung() {
                break;
            }
        }
    }

    fn count_busy(&mut self, now: Instant) {
        self.vitals.add(Counter::BusyNs, (now - self.busy_since).as_nanos() as u64);
        self.busy_since = now;
    }

    /// Whether it is time to sleep after so much spinning.
    fn is_spun(&self, spun: Duration) -> bool {
        if spun < spin::SHORT {
            return false;
        }
        let cells = 1 + self.peers.spinners() as usize;
        spun >= self.spin.limit(cells + self.memory.clients())
    }

    /// Gathers a bounded amount of everything that has come and does some of it; says whether
    /// there was anything.
    fn turn(&mut self, now: Clock) -> Result<bool, FleetError> {
        self.vitals.beat();
        let mut worked = self.gather(now.monotonic)?;
        let moved = self.moved;
        for _ in 0..WORK_A_TURN {
            if self.moved - moved >= BYTES_A_TURN {
                break;
            }
            let live = self.core.live_tasks();
            let Some(work) = self.intake.next(live, &self.memory) else { break };
            self.perform(now, work)?;
            worked = true;
        }
        if now.monotonic >= self.next_look_at_orders {
            self.next_look_at_orders = now.monotonic + ORDERS_EVERY;
            worked |= self.take_orders(now)?;
            self.count_busy(now.monotonic);
            self.show_gauges();
        }
        worked |= self.peers.flush();
        worked |= self.report_suspicions()?;
        Ok(worked)
    }

    /// Takes in what has come, a bounded amount; says whether a message was dropped.
    fn gather(&mut self, now: Instant) -> Result<bool, FleetError> {
        let mut dropped = self.gather_messages(Lane::Reply);
        self.disk.poll()?;
        while self.intake.takes_completions()
            && let Some(done) = self.disk.finished()
        {
            if done.flush && done.result.is_err() {
                self.vitals.lose_flush();
            }
            self.intake.push_completion(Completion::Io(done));
        }
        if self.host_room.is_some() && self.intake.takes_completions() {
            let measured = self.host_room.take().map(Completion::HostMeasured);
            measured.into_iter().for_each(|measured| self.intake.push_completion(measured));
        }
        if self.wake.is_some_and(|at| at <= now) && self.intake.takes_completions() {
            self.wake = None;
            self.intake.push_completion(Completion::Timer);
        }
        dropped |= self.gather_messages(Lane::Request);
        if self.ready {
            let intake = &mut self.intake;
            self.memory.offer(|sender, slot| intake.push_client(sender, slot));
        }
        Ok(dropped)
    }

    fn gather_messages(&mut self, lane: Lane) -> bool {
        let mut dropped = false;
        for from in self.peers.others() {
            for _ in 0..MESSAGES_A_TURN {
                let takes = match lane {
                    Lane::Reply => self.intake.takes_completions(),
                    Lane::Request => self.intake.takes_peers(),
                };
                if !takes {
                    return dropped;
                }
                match (self.peers.receive(from, lane), lane) {
                    (peers::Received::Nothing, _) => break,
                    (peers::Received::Dropped, _) => dropped = true,
                    (peers::Received::Message(message), Lane::Reply) => {
                        self.intake.push_completion(Completion::Peer { from, message });
                    }
                    (peers::Received::Message(message), Lane::Request) => {
                        self.intake.push_peer(from, message);
                    }
                }
            }
        }
        dropped
    }

    fn perform(&mut self, now: Clock, work: Work) -> Result<(), FleetError> {
        let event = match work {
            Next::Client(work) => return self.serve(now, work),
            Next::Reply(Completion::Peer { from, .. }) | Next::Peer((from, _))
                if self.peers.is_suspect(from) =>
            {
                return Ok(());
            }
            Next::Reply(Completion::Peer { from, message }) | Next::Peer((from, message)) => {
                self.vitals.add(Counter::PeerMessages, 1);
                Event::Peer { from, message }
            }
            Next::Reply(Completion::Io(done)) => {
                Event::IoDone { io: done.io, result: self.outcome(done) }
            }
            Next::Reply(Completion::Timer) => Event::Tick,
            Next::Reply(Completion::HostMeasured(blocks)) => Event::HostMeasured { blocks },
            Next::Idle(never) => match never {},
        };
        self.apply(now, event)
    }

    /// How an I/O went. With a flush of another cell's, or the supervisor's, that has failed the device may have lost
    /// what this cell had written: the first of its own flushes that ends after that has failed too.
    fn outcome(&mut self, done: Finished) -> Result<(), Errno> {
        let is_lost = done.flush && self.have_others_lost_flush();
        done.result.and(if is_lost { Err(Errno::EIO) } else { Ok(()) })
    }

    /// Whether a flush of another process has failed since this was last asked.
    fn have_others_lost_flush(&mut self) -> bool {
        let lost = self.map.lost_flushes();
        let is_news = std::mem::replace(&mut self.lost_flushes, lost) != lost;
        self.peers.have_lost_flush() | is_news
    }

    /// Takes the slot's request and has it executed.
    fn serve(&mut self, now: Clock, work: ClientWork) -> Result<(), FleetError> {
        let ClientWork { from, must_end_tasks } = work;
        // A request before it may have ended the client's admission.
        let Some(taken) = self.memory.take(from, &mut self.body) else { return Ok(()) };
        self.vitals.add(Counter::Requests, 1);
        let mut header = match taken {
            Ok(header) => header,
            Err(unreadable) => {
                self.memory.refuse(from, unreadable);
                return Ok(());
            }
        };
        let is_it =
            |it: &Culprit| (it.client, it.slot, it.seq) == (from.client, from.slot, header.seq);
        if let Some(culprit) = self.culprit.take_if(|culprit| is_it(culprit)) {
            let Culprit { client, slot, deaths, .. } = culprit;
            let of = self.cell;
            warn!(
                "a request of client {client} (slot {slot}) is refused: {deaths} processes of cell {of} died with it"
            );
            return self.apply(now, Event::Refuse { from, header });
        }
        match Request::from_body(&self.body, &mut header.capabilities) {
            Ok(request) if !must_end_tasks || request.ends_tasks() => {
                self.moved += u64::from(header.payload_len);
                self.apply(now, Event::Request { from, header, request })?;
                self.memory.end_turn(from, &header);
                Ok(())
            }
            _ => {
                self.memory.refuse(from, header.seq);
                Ok(())
            }
        }
    }

    fn show_gauges(&self) {
        let dropped = self.peers.dropped();
        let gauges = [
            (Counter::Tasks, self.core.live_tasks() as u64),
            (Counter::LockWaiters, self.core.lock_waiters() as u64),
            (Counter::Queued, self.intake.clients_waiting() as u64),
            (Counter::Ios, self.disk.in_flight() as u64),
            (Counter::Refused, dropped.refused),
            (Counter::Stale, dropped.stale),
        ];
        for (counter, value) in gauges {
            self.vitals.set(counter, value);
        }
    }

    fn park(&mut self, now: Instant) -> Result<(), FleetError> {
        self.vitals.park();
        self.vitals.set_spinners(0);
        self.next_look_at_orders = Instant(0);
        let clock = self.clocks.look();
        let outcome = match self.turn(clock) {
            Ok(false) => {
                let limit = self.wake.map_or(SLEEP_MAX, |at| (at - now).min(SLEEP_MAX));
                self.disk.sleep(limit.min(self.retry_after()))
            }
            outcome => outcome.map(drop),
        };
        self.vitals.set_spinners(1);
        self.vitals.unpark();
        self.next_look_at_orders = Instant(0);
        outcome
    }

    /// Who has room again, a peer in its inbox or the supervisor in its socket, does not ring.
    fn retry_after(&self) -> Duration {
        if self.peers.is_backed_up() {
            Duration::from_micros(100)
        } else if self.supervisor.is_backed_up() {
            Duration::from_millis(1)
        } else {
            Duration::MAX
        }
    }

    fn apply(&mut self, now: Clock, event: Event) -> Result<(), FleetError> {
        let mut effects = std::mem::take(&mut self.effects);
        self.core.apply(now, event, &mut self.memory, &mut effects);
        self.carry_out(effects)
    }

    /// Does what the core wants, in order, and keeps the vector for the next time.
    fn carry_out(&mut self, mut effects: Vec<Effect>) -> Result<(), FleetError> {
        for effect in &effects {
            self.carry_out_one(effect)?;
        }
        effects.clear();
        self.effects = effects;
        Ok(())
    }

    fn carry_out_one(&mut self, effect: &Effect) -> Result<(), FleetError> {
        match *effect {
            Effect::Reply { to, seq, ref answer, payload_len, granted } => {
                let errno = encode(answer, granted, &mut self.body).err();
                let header = ReplyHeader { errno, payload_len };
                self.moved += u64::from(payload_len);
                self.memory.reply(to, seq, header, &self.body);
            }
            Effect::AwaitsLock { from } => self.memory.await_lock(from),
            Effect::Send { to, ref message } => self.peers.send(to, message)?,
            Effect::Suspect { cell, why } => self.peers.suspect(cell, why),
            Effect::Report(ref report) => self.report(report.clone())?,
            Effect::Read { io, block, ref frames } => {
                self.vitals.add(Counter::BlocksRead, frames.len() as u64);
                self.disk.read(io, block, frames, self.memory.frames());
            }
            Effect::Write { io, block, ref frames } => {
                self.vitals.add(Counter::BlocksWritten, frames.len() as u64);
                self.vitals.add(Counter::Writes, 1);
                self.disk.write(io, block, frames, self.memory.frames());
            }
            Effect::WriteThrough { io, block, ref frames } => {
                self.vitals.add(Counter::BlocksWritten, frames.len() as u64);
                self.vitals.add(Counter::Writes, 1);
                self.vitals.add(Counter::Flushes, 1);
                self.disk.write_through(io, block, frames, self.memory.frames());
            }
            Effect::Flush { io } => {
                self.vitals.add(Counter::Flushes, 1);
                self.disk.flush(io);
            }
            Effect::Reserve { io, block, count } => self.disk.reserve(io, block, count),
            Effect::Discard { io, block, count } => self.disk.discard(io, block, count),
            Effect::MeasureHost => self.host_room = Some(self.disk.host_room()),
            Effect::Wake(at) => self.wake = Some(at),
        }
        Ok(())
    }

    /// Reports peers that have become suspect; says whether there were any.
    fn report_suspicions(&mut self) -> Result<bool, FleetError> {
        let mut any = false;
        while let Some(suspicion) = self.peers.take_suspicion() {
            if let Report::Suspect { cell: peer, epoch, why } = suspicion {
                let cell = self.cell;
                warn!("/cell/{cell}/inbox: cell {peer} (epoch {epoch}) wrote {why}");
            }
            self.report(suspicion)?;
            any = true;
        }
        Ok(any)
    }

    fn report(&mut self, report: Report) -> Result<(), FleetError> {
        if let Report::Expelled { client } = report {
            self.memory.forget(client);
        }
        self.ready |= matches!(report, Report::Ready { .. });
        self.stopped |= matches!(report, Report::Stopped { .. });
        let (capability, epoch) = (self.capability, self.epoch);
        let message = FromCell::Report { capability, epoch, number: self.reports, report };
        self.reports += 1;
        let sent = self.supervisor.send(message.to_bytes(), Vec::new());
        sent.map_err(system("report to the supervisor"))
    }

    fn take_orders(&mut self, now: Clock) -> Result<bool, FleetError> {
        self.supervisor.flush().map_err(system("report to the supervisor"))?;
        let mut worked = false;
        loop {
            let received = self.supervisor.link.receive(Wait::No);
            match received.map_err(system("hear from the supervisor"))? {
                Received::Packet(packet) => drop(self.obey(now, packet)?),
                Received::Nothing => return Ok(worked),
                Received::Closed => return Err(FleetError::Died("the supervisor".into())),
            }
            worked = true;
        }
    }

    /// Says whether this was the end of the beginning.
    fn obey(&mut self, now: Clock, packet: Packet) -> Result<bool, FleetError> {
        let order = match ToCell::from_bytes(&packet.bytes).map_err(|_| nonsense())? {
            ToCell::Order { number, order } => match number.cmp(&self.orders) {
                // From a supervisor that did not know that its predecessor had said it.
                Ordering::Less => return Ok(false),
                Ordering::Equal => order,
                Ordering::Greater => return Err(nonsense()),
            },
            ToCell::Door(door) => {
                self.peers.open(door, packet.fds.try_into().map_err(|_| nonsense())?)?;
                return Ok(false);
            }
            ToCell::Begin => return Ok(true),
        };
        self.orders += 1;
        match order {
            Order::Admit { client, slots, ref credentials, .. } => {
                let fds: [OwnedFd; ADMIT_DESCRIPTORS] =
                    packet.fds.try_into().map_err(|_| nonsense())?;
                let user = (!credentials.checked_by_kernel).then_some(credentials.uid);
                self.memory.admit(client, (slots, user), fds)?;
            }
            Order::Expel { client } => self.memory.silence(client),
            // What is answered from now on might not be written any more.
            Order::Save => self.ready = false,
            Order::Lost { cell, .. } => self.hear_last_of(now, cell)?,
            Order::Joined { cell, .. } => self.peers.joined(cell),
            _ => {}
        }
        self.apply(now, Event::Order(order))?;
        Ok(false)
    }

    /// A peer is gone: all that it has sent is taken in, what was gathered of it and of others first, and
    /// its link is closed.
    fn hear_last_of(&mut self, now: Clock, lost: CellId) -> Result<(), FleetError> {
        while let Some(work) = self.intake.next_urgent() {
            self.perform(now, work)?;
        }
        for lane in [Lane::Reply, Lane::Request] {
            loop {
                match self.peers.receive(lost, lane) {
                    peers::Received::Message(message) => {
                        self.vitals.add(Counter::PeerMessages, 1);
                        self.apply(now, Event::Peer { from: lost, message })?;
                    }
                    peers::Received::Dropped => {}
                    // What lies behind a damaged record is void.
                    peers::Received::Nothing => break,
                }
            }
        }
        self.peers.close(lost);
        Ok(())
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

/// The answer as it goes into a slot, in `body` or as an errno. What does not fit is one too: its
/// length may come from a damaged image.
fn encode(
    answer: &Answer,
    granted: warren_proto::Capability,
    body: &mut Vec<u8>,
) -> Result<(), Errno> {
    body.clear();
    answer.as_ref().map_err(|&errno| errno)?.encode_body(granted, body);
    if body.len() > BODY_MAX {
        body.clear();
        return Err(Errno::EIO);
    }
    Ok(())
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
        cells: start.cells,
        map: start.map,
        map_version: start.map_version,
        secret: start.secret,
        capabilities: start.capabilities,
        roots,
        lost: BTreeSet::new(),
        owned_chunks: (start.owned_chunks.iter())
            .map(|(shard, runs)| (ShardId(*shard), runs.chunks().collect()))
            .collect(),
        free_chunks: start.free_chunks.chunks().collect(),
        reserved_chunks: start.reserved_chunks,
        total_blocks: start.total_blocks,
        backing: start.backing,
        frames: start.frames,
        nodes_max: CellConfig::nodes_for(start.frames),
        log: LogConfig {
            area: LogArea { start: start.log_start, blocks: start.log_blocks },
            incarnation: start.incarnation,
            start: start.log_from,
            recovery: if start.successor { Recovery::Process } else { Recovery::None },
        },
        generation: start.generation,
        plant: planted(),
    })
}

/// The fault that the environment names, for tests of whole fleets.
#[cfg(feature = "plants")]
fn planted() -> Planted {
    let is_wanted = std::env::var_os("WARREN_PLANT").is_some_and(|plant| plant == "poison");
    Planted::of(is_wanted.then_some(warren_cell::Plant::Poison))
}

#[cfg(not(feature = "plants"))]
const fn planted() -> Planted {
    Planted::NONE
}

const _: () = assert!(BLOCK_SIZE == 4096, "frames and blocks are one size");

#[cfg(test)]
mod tests {
    use super::*;
    use warren_proto::Reply;

    #[test]
    fn an_answer_that_fits_no_slot_is_an_errno() {
        let mut body = Vec::new();
        let names = |count| Ok(Reply::XattrNames(vec![vec![b'x'; 255].into(); count]));
        let granted = warren_proto::Capability(7);
        let mut encoded = |answer| (encode(&answer, granted, &mut body), body.clone());
        let (outcome, bytes) = encoded(names(31));
        assert_eq!(outcome, Ok(()));
        let reply = names(31).expect("a reply");
        let mut found = warren_proto::Capability::NONE;
        assert_eq!(Reply::from_body(&bytes, &mut found), Ok(reply));
        assert_eq!(found, granted);
        assert_eq!(encoded(names(33)), (Err(Errno::EIO), Vec::new()));
        assert_eq!(encoded(Err(Errno::ENOENT)), (Err(Errno::ENOENT), Vec::new()));
    }
}
