//! A cell's process: the event loop that drives one [`warren_cell::Cell`].
//!
//! A turn gathers what has arrived, does a bounded part of it in the order of [`intake`], executes
//! orders now and then, and sends the messages for peers. After a turn without work the loop spins
//! for the time that [`spin`] allows, then parks: it announces its sleep in its vitals, looks at
//! all sources once more, and waits in one place for its bell, the device and the timer.

mod activity;
mod device_watch;
mod disk;
mod idling;
mod intake;
mod lost_flushes;
mod memory;
mod meter;
mod moves;
mod parking;
mod peers;
mod reply;
mod review;
mod spin;
mod start;
mod streams;
mod supervisor_link;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tracing::warn;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Errno, Instant};
use warren_cell::{Cell, CellConfig, Clock, Effect, Event};
use warren_device::PoolFile;
use warren_disk::LogArea;
use warren_log::record_all;
use warren_mailbox::Work as Next;
use warren_proto::control::{Order, Report};
use warren_proto::{Request, Wire};
use warren_shm::{
    Counter, Culprit, Lane, ReplyHeader, ShardMapReader, VitalsWriter, map_read_only, map_writable,
};

use crate::clock::{self, Clocks};
use crate::confine::confine;
use crate::error::{FleetError, system};
use crate::link::{Link, Wait};
use crate::message::{ADMIT_DESCRIPTORS, CellStart, FromCell, START_DESCRIPTORS, path_of};
use crate::{process, slice};
use device_watch::Reviews;
use disk::{Direction, Disk, Finished};
use idling::Idling;
use intake::{Chosen, ClientWork, Completion, Intake, Work};
use lost_flushes::LostFlushes;
use memory::SharedMemory;
use peers::PeerLinks;
use reply::encode;
use start::{adopt_frames, config, receive_start};
use supervisor_link::{Message, SupervisorLink, malformed};

/// The interval at which a busy loop looks at the supervisor's link.
const ORDERS_EVERY: Duration = Duration::from_micros(50);

/// Processes that die with a request before it is refused. One or two may have been killed.
const DEATHS_MAX: u32 = 3;

/// Messages gathered from one peer's lane in a turn.
const MESSAGES_A_TURN: usize = 64;

/// The work of a turn, before the loop looks again for urgent work and for other senders: so many
/// requests, or what takes so long. A copy takes as long as a hundred null requests, and a look
/// much less than one.
const WORK_A_TURN: usize = 16;
const TURN: Duration = Duration::from_micros(10);

/// Pages that get their checksums in a turn before the cell sleeps: this takes some two
/// microseconds.
const CHECKSUMS_A_TURN: usize = 8;

/// When a busy loop looks again at the supervisor's link, and at its bell.
#[derive(Clone, Copy)]
struct NextLook {
    orders: Instant,
    bell: Instant,
}

impl NextLook {
    const AT_ONCE: Self = Self { orders: Instant(0), bell: Instant(0) };
}

struct CellLoop {
    cell: CellId,
    /// Dropped first: it waits for the device, which writes to frames.
    disk: Disk,
    core: Cell,
    memory: SharedMemory,
    peers: PeerLinks,
    intake: Intake,
    supervisor: SupervisorLink,
    idling: Idling,
    vitals: VitalsWriter,
    lost_flushes: LostFlushes,
    effects: Vec<Effect>,
    /// When the core wants a tick.
    wake: Option<Instant>,
    /// Blocks that the host has room for, as the core has asked.
    host_room: Option<u64>,
    next_look: NextLook,
    reviews: Reviews,
    /// A buffer for bodies.
    body: Vec<u8>,
    stage: Stage,
    clocks: Clocks,
    /// The time since then is not counted as busy yet.
    busy_since: Instant,
}

/// The stages of a cell's process.
///
/// ```text
/// Recovering ──Ready──▶ Serving ──Save──▶ Saving ──▶ Stopped
///      └──────────────────┴──────────Stopped──────────▲
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Clients' requests wait in their slots.
    Recovering,
    Serving,
    /// Requests wait in their slots again, because what they change might not be written any more.
    Saving,
    Stopped,
}

/// The role `cell N`.
pub(crate) fn main(number: u16) -> Result<(), FleetError> {
    let mut link = process::begin(&format!("warren-cell-{number}"), true)?;
    slice::shorten();
    record_all();
    let failure_link = link.share().map_err(system("share the cell's link"))?;
    let ended = process::guarded(|| {
        let (start, fds) = receive_start(&mut link)?;
        CellLoop::start(link, start, fds)?.run()
    });
    if let Err(error) = &ended {
        let (kind, line) = error.report();
        let failed = FromCell::Failed { kind, line };
        // If the supervisor is gone too, the error is not reported.
        let _ = failure_link.send(&failed.to_bytes(), &[], Wait::No);
    }
    ended
}

impl CellLoop {
    fn start(
        link: Link,
        start: CellStart,
        [pool, device, map, frames, bell, vitals]: [OwnedFd; START_DESCRIPTORS],
    ) -> Result<Self, FleetError> {
        // The lock comes first: until this process has it, a predecessor may still write to the
        // device and the frames.
        let device = PoolFile::from_fd(device, &path_of(&start.pool))?;
        device.lock_as_writer(start.id.0)?;
        let vitals = VitalsWriter::new(map_writable(vitals.as_fd())?, start.id, start.epoch)?;
        let map = ShardMapReader::new(map_read_only(map.as_fd())?)?;
        let log = LogArea { start: start.log.start, blocks: start.log.blocks };
        let frames = adopt_frames(frames, CellConfig::frames_total(start.frames, log))?;
        let disk = Disk::open(device, bell, pool)?;
        let peers = PeerLinks::new(start.id, start.epoch, start.cells);
        let (id, epoch) = (start.id, start.epoch);
        let supervisor = SupervisorLink::new(link, epoch, start.supervisor);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let mut effects = Vec::new();
        let now = clock::now();
        let culprit = vitals.take_culprit().filter(|it| it.deaths >= DEATHS_MAX);
        let core = Cell::new(config(start)?, now, &mut effects);
        let mut cell = Self {
            cell: id,
            core,
            memory: SharedMemory::new(frames, id, epoch).with_vitals(vitals.clone(), culprit),
            peers,
            intake: Intake::new(),
            disk,
            supervisor,
            idling: Idling::new(cores),
            vitals,
            lost_flushes: LostFlushes::new(map),
            effects: Vec::new(),
            wake: None,
            host_room: None,
            next_look: NextLook::AT_ONCE,
            reviews: Reviews::default(),
            body: Vec::new(),
            stage: Stage::Recovering,
            clocks: Clocks::default(),
            busy_since: now.monotonic,
        };
        cell.vitals.set_spinners(1);
        let refused = cell.disk.uring_refused().map_or(0, |errno| errno.raw().unsigned_abs());
        cell.vitals.set(Counter::UringRefused, refused.into());
        // Before the cell takes anything from clients or peers. It has, or is sent, all that it
        // needs.
        confine()?;
        cell.await_begin()?;
        cell.carry_out(effects)?;
        Ok(cell)
    }

    /// Receives its links and its predecessor's clients. That must happen before the first turn, so
    /// that no lease word that the predecessor granted is valid when this cell changes anything.
    fn await_begin(&mut self) -> Result<(), FleetError> {
        let mut begun = false;
        while !begun {
            let message = self.supervisor.await_message()?;
            let clock = self.clocks.look();
            begun = matches!(message, Message::Begin);
            self.take_message(clock, message)?;
        }
        self.peers.begin();
        Ok(())
    }

    fn run(&mut self) -> Result<(), FleetError> {
        let mut now = clock::monotonic();
        let mut idle_since = None;
        while self.stage != Stage::Stopped {
            let worked;
            (worked, now) = self.turn(now)?;
            if worked {
                self.show_processor();
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert(now);
            if !self.is_spun(now, now - since) {
                self.watch_doorbells();
                continue;
            }
            if self.core.add_checksums(CHECKSUMS_A_TURN, &mut self.memory) {
                continue;
            }
            self.count_busy(now);
            self.intake.rest();
            self.park(now)?;
            let woken = clock::monotonic();
            let slept = woken - now;
            now = woken;
            self.busy_since = woken;
            self.idling.spin.slept(slept);
            self.vitals.add(Counter::ParkedNs, slept.as_nanos() as u64);
            idle_since = None;
        }
        self.flush_reports()
    }

    fn count_busy(&mut self, now: Instant) {
        self.vitals.add(Counter::BusyNs, (now - self.busy_since).as_nanos() as u64);
        self.busy_since = now;
    }

    /// Gathers a bounded amount of all that has arrived and does a part of it. Returns whether
    /// there was any work, and the time of the turn. `before`: the time of the last one.
    ///
    /// The clock is read behind the look for requests. So a change has no earlier time than one
    /// that was answered, by any cell, before it was requested.
    fn turn(&mut self, before: Instant) -> Result<(bool, Instant), FleetError> {
        self.vitals.beat();
        let mut worked = self.gather(before)?;
        let now = self.clocks.look();
        self.intake.charge(now.monotonic, &mut self.memory);
        let (mut at, end) = (now.monotonic, now.monotonic + TURN);
        for _ in 0..WORK_A_TURN {
            let live = self.core.live_tasks();
            let work = match self.intake.next(at, live, &mut self.memory) {
                Chosen::Work(work) => work,
                Chosen::Wait => {
                    worked = true;
                    break;
                }
                Chosen::Nothing => break,
            };
            self.perform(now, work)?;
            worked = true;
            if self.intake.has_more() {
                at = clock::monotonic();
                self.intake.charge(at, &mut self.memory);
                if at >= end {
                    break;
                }
            }
        }
        if now.monotonic >= self.next_look.bell {
            worked |= self.look_around(now.monotonic);
        }
        if now.monotonic >= self.next_look.orders {
            self.next_look.orders = now.monotonic + ORDERS_EVERY;
            worked |= self.take_orders(now)?;
            self.review(now)?;
            // Its time is later than that of the turn.
            worked |= self.take_some_posted(now.monotonic)?;
            self.count_busy(now.monotonic);
            self.show_gauges();
        }
        worked |= self.peers.flush();
        worked |= self.report_suspicions()?;
        Ok((worked, now.monotonic))
    }

    /// Gathers a bounded amount of new work. Returns whether a message was dropped.
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
        if self.stage == Stage::Serving {
            let intake = &mut self.intake;
            self.memory.offer(now, |sender, slot| intake.push_client(sender, slot));
        }
        Ok(dropped)
    }

    fn gather_messages(&mut self, lane: Lane) -> bool {
        let mut dropped = false;
        for from in self.peers.other_cells() {
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
        };
        self.apply(now, event)
    }

    /// The result of an I/O. After a failed flush of another cell or of the supervisor, the device
    /// may have lost what this cell had written. So the first of this cell's flushes that ends
    /// after that counts as failed, too.
    fn outcome(&mut self, done: Finished) -> Result<(), Errno> {
        let is_lost = done.flush && self.lost_flushes.have_come(&mut self.peers);
        done.result.and(if is_lost { Err(Errno::EIO) } else { Ok(()) })
    }

    /// Takes the slot's request and executes it.
    fn serve(&mut self, now: Clock, work: ClientWork) -> Result<(), FleetError> {
        let ClientWork { from, must_end_tasks } = work;
        // An earlier request may have ended the client's admission.
        let Some(taken) = self.memory.take(from, &mut self.body) else { return Ok(()) };
        self.vitals.add(Counter::Requests, 1);
        let mut header = match taken {
            Ok(header) => header,
            Err(unreadable) => {
                self.memory.refuse(from, unreadable);
                return Ok(());
            }
        };
        if let Some(culprit) = self.memory.take_culprit(from, header.seq) {
            let Culprit { client, slot, deaths, .. } = culprit;
            let of = self.cell;
            warn!(
                "a request of client {client} (slot {slot}) is refused: {deaths} processes of cell {of} died with it"
            );
            return self.apply(now, Event::Refuse { from, header });
        }
        match Request::from_body(&self.body, &mut header.capabilities) {
            Ok(request) if !must_end_tasks || request.ends_tasks() => {
                self.apply(now, Event::Request { from, header, request })?;
                self.memory.end_turn(from);
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
            (Counter::Written, self.core.files_written()),
        ];
        for (counter, value) in gauges {
            self.vitals.set(counter, value);
        }
    }

    fn apply(&mut self, now: Clock, event: Event) -> Result<(), FleetError> {
        let mut effects = std::mem::take(&mut self.effects);
        self.core.apply(now, event, &mut self.memory, &mut effects);
        self.carry_out(effects)
    }

    /// Carries out the core's effects in order, and keeps the vector for the next event.
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
            Effect::Reply { to, seq, ref answer, payload_len, ref beside } => {
                let errno = encode(answer, beside, &mut self.body).err();
                let header = ReplyHeader { errno, payload_len };
                self.memory.reply(to, seq, header, &self.body);
            }
            Effect::AwaitsLock { from } => self.memory.await_lock(from),
            Effect::Send { to, ref message } => self.peers.send(to, message)?,
            Effect::Suspect { cell, why } => self.peers.suspect(cell, why),
            Effect::Report(ref report) => self.report(report.clone())?,
            Effect::Read { io, block, ref frames } => {
                self.vitals.add(Counter::BlocksRead, frames.len() as u64);
                self.disk.transfer(Direction::Read, io, block, frames, self.memory.frames());
            }
            Effect::Write { io, block, ref frames } => {
                self.vitals.add(Counter::BlocksWritten, frames.len() as u64);
                self.vitals.add(Counter::Writes, 1);
                self.disk.transfer(Direction::Write, io, block, frames, self.memory.frames());
            }
            Effect::WriteThrough { io, block, ref frames } => {
                self.vitals.add(Counter::BlocksWritten, frames.len() as u64);
                self.vitals.add(Counter::Writes, 1);
                self.vitals.add(Counter::Flushes, 1);
                self.disk.transfer(
                    Direction::WriteThrough,
                    io,
                    block,
                    frames,
                    self.memory.frames(),
                );
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

    /// Reports peers that have become suspect. Returns whether there were any.
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
        match report {
            Report::Ready { .. } if self.stage != Stage::Stopped => self.stage = Stage::Serving,
            Report::Stopped { .. } => self.stage = Stage::Stopped,
            _ => {}
        }
        self.supervisor.report(report)
    }

    fn take_orders(&mut self, now: Clock) -> Result<bool, FleetError> {
        self.supervisor.flush()?;
        let mut worked = false;
        while let Some(message) = self.supervisor.receive()? {
            self.take_message(now, message)?;
            worked = true;
        }
        Ok(worked)
    }

    fn take_message(&mut self, now: Clock, message: Message) -> Result<(), FleetError> {
        match message {
            Message::Order(order, fds) => self.execute(now, order, fds),
            Message::Link(route, fds) => {
                self.peers.open(route, fds.try_into().map_err(|_| malformed())?)
            }
            Message::Begin | Message::Repeated => Ok(()),
        }
    }

    fn execute(&mut self, now: Clock, order: Order, fds: Vec<OwnedFd>) -> Result<(), FleetError> {
        match order {
            Order::Admit { client, shape, ref credentials, .. } => {
                let fds: [OwnedFd; ADMIT_DESCRIPTORS] = fds.try_into().map_err(|_| malformed())?;
                let user = (!credentials.checked_by_kernel).then_some(credentials.uid);
                self.memory.admit(now.monotonic, client, (shape, user), fds)?;
            }
            Order::Expel { client } => self.memory.silence(client),
            Order::Save if self.stage == Stage::Serving => self.stage = Stage::Saving,
            Order::Lost { cell, .. } => self.drain_lost(now, cell)?,
            Order::Joined { cell, .. } => self.peers.joined(cell),
            Order::Grow { blocks } => self.disk.grow(blocks),
            _ => {}
        }
        self.apply(now, Event::Order(order))
    }

    /// A peer's process is gone: processes all that it had sent, after what was gathered before,
    /// and closes its link.
    fn drain_lost(&mut self, now: Clock, lost: CellId) -> Result<(), FleetError> {
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
                    // Everything behind a damaged record is void.
                    peers::Received::Nothing => break,
                }
            }
        }
        self.peers.close(lost);
        Ok(())
    }

    /// Sends all reports before the process ends.
    fn flush_reports(&mut self) -> Result<(), FleetError> {
        while self.supervisor.is_backed_up() {
            self.supervisor.flush()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

const _: () = assert!(BLOCK_SIZE == 4096, "frames and blocks are one size");
