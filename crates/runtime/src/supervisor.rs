//! The supervisor's process: drives the pure supervisor with exits, reports, visitors and the disk.
//!
//! Order at start: lock the pool, read it, make the fleet's memory, open the door, start the cells.
//! Order at the end: every cell's process is gone, the keeper is told and lets go of everything, the door is
//! removed, the pool is unlocked, whoever asked for the end is told. It never waits for a peer; only for the disk.
//! What it does follows an event, and is written down first: the next one may have to do it (`adopt`).

mod adopt;
mod departure;
pub(crate) mod descriptors;
pub(crate) mod journal;
mod mailboxes;
mod memory;
mod picture;
mod pool;
mod post;
mod record;
mod restart;
mod save;
mod start;
mod visitors;

pub(crate) use pool::{OpenPool, owners, shares_of_free};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use tracing::{error, warn};
use warren_base::{CellId, ClientId, Epoch, Errno, Instant};
use warren_log::record_all;
use warren_proto::control::{Order, Report};
use warren_proto::slot::{cell_segment_len, client_segment_len};
use warren_proto::{CapabilityKey, Wire};
use warren_supervisor::{ConnectionNo, Effect, Event, Failure, Supervisor};

use crate::clock;
use crate::confine::limit_supervisor;
use crate::error::{FleetError, system};
use crate::limit;
use crate::link::{Outbox, Packet, Received, SHORTAGE_PAUSE, Wait, retry};
use crate::message::{
    DoorReply, FleetPlan, FromCell, FromKeeper, Kept, STATUS_PART_MAX, ToCell, ToKeeper,
    welcome_descriptors,
};
use crate::pool_blocks::Blocks;
use crate::process;
use departure::Departure;
use descriptors::Reserve;
use journal::Journal;
use mailboxes::Mailboxes;
use memory::{ClientMemory, FleetMemory, Outfit};
use post::{CellPost, Ended};
use record::Recorded;
use visitors::{Asked, Visitors};

/// How long the processes of cells that said `Stopped` may take to be gone.
const EXIT_PATIENCE: Duration = Duration::from_secs(5);

/// Every cell's first start.
const FIRST_EPOCH: Epoch = Epoch(1);

/// Packets of one sender taken in a turn.
const PACKETS_A_TURN: usize = 64;

/// A client that not all cells know yet. What it gets is made before the core hears of it, so that a
/// lack of it is a refusal.
struct Arrival {
    connection: ConnectionNo,
    slots: u16,
    /// Beside its `Welcome`.
    fds: Vec<OwnedFd>,
}

struct Shell<'a> {
    plan: FleetPlan,
    keeper: &'a mut Outbox,
    pool: OpenPool,
    memory: FleetMemory,
    mailboxes: Mailboxes,
    /// Of this fleet, from its start to its end.
    capabilities: CapabilityKey,
    core: Supervisor,
    shards: u16,
    total_blocks: u64,
    cells: Vec<CellPost>,
    /// What the keeper will know the next process by.
    next_token: u32,
    /// Processes that an earlier supervisor had started and this one will not use: they are about to end.
    orphans: BTreeSet<u32>,
    /// Successors that have not been told all that they must know first.
    beginning: Vec<CellId>,
    visitors: Visitors,
    /// Who applied and was not answered yet.
    applying: BTreeMap<ConnectionNo, (Arrival, ClientMemory)>,
    arrivals: BTreeMap<ClientId, Arrival>,
    /// Of every client that some cell may know.
    clients: BTreeMap<ClientId, ClientMemory>,
    effects: Vec<Effect>,
    /// Events that effects gave rise to.
    pending: VecDeque<Event>,
    /// When the core wants to be called again.
    wake: Option<Instant>,
    ended: Option<Result<(), Failure>>,
    journal: Journal,
    /// While fronts are asked to leave, because the fleet shall stop; and how often that was so.
    departure: Option<Departure>,
    departures: u32,
    /// The keeper holds nothing any more.
    is_released: bool,
    /// Supervisors of this fleet before this one.
    predecessors: u32,
    recorded: Recorded,
}

/// The role `supervisor`.
pub(crate) fn main() -> Result<(), FleetError> {
    let mut link = process::begin("warren-super", true)?;
    record_all();
    let first = match link.receive(Wait::Yes).map_err(system("hear from the keeper"))? {
        Received::Packet(packet) => {
            FromKeeper::from_bytes(&packet.bytes).map_err(|_| keeper_died())?
        }
        _ => return Err(keeper_died()),
    };
    limit::raise();
    let mut keeper = Outbox::new(link);
    let ended = process::guarded(|| match limit_supervisor().map(|()| first)? {
        FromKeeper::Begin(plan) => start::open(&mut keeper, plan).and_then(Shell::serve),
        FromKeeper::Adopt(left) => adopt::take_over(&mut keeper, left).and_then(Shell::serve),
        _ => Err(keeper_died()),
    });
    if let Err(error) = &ended {
        // The keeper knows whether the fleet had ended before that.
        let (kind, line) = error.report();
        tell(&mut keeper, &ToKeeper::Fell { kind, line });
    }
    ended
}

/// A keeper that is gone needs no word.
fn tell(keeper: &mut Outbox, last_word: &ToKeeper) {
    let _ = keeper.send(last_word.to_bytes(), Vec::new());
}

fn keeper_died() -> FleetError {
    FleetError::Died("the keeper".into())
}

/// Who woke the supervisor.
#[derive(Default)]
struct Awake {
    keeper: bool,
    cells: Vec<u16>,
    door: bool,
    visitors: Vec<ConnectionNo>,
}

impl Shell<'_> {
    /// Until the fleet has ended, one way or the other. An error is this process's alone: the next one goes
    /// on from the notes.
    fn serve(mut self) -> Result<(), FleetError> {
        self.run()?;
        self.await_exits()?;
        if self.ended.is_some_and(|ended| ended.is_err_and(save::leaves_logs)) {
            self.save_logs();
        }
        let outcome = self.outcome();
        let (to_keeper, to_visitors) = match &outcome {
            Ok(()) => (ToKeeper::Stopped, DoorReply::Stopped),
            Err(error) => {
                let (kind, line) = error.report();
                let to_visitors = DoorReply::Failed { kind, line: line.clone() };
                (ToKeeper::Failed { kind, line }, to_visitors)
            }
        };
        // Unlocked before anybody hears of the end, so that the next fleet can start at once.
        tell(self.keeper, &to_keeper);
        self.await_release();
        // Before the next fleet can make its own in the same place.
        self.visitors.remove_door();
        drop(self.pool);
        self.visitors.close(&to_visitors);
        outcome
    }

    fn outcome(&self) -> Result<(), FleetError> {
        let Some(Err(failure)) = self.ended else { return Ok(()) };
        // Why a cell could not go on says more than that it did not.
        let words = match failure {
            Failure::CellExited { cell, .. } | Failure::NoSuccessor { cell, .. } => {
                self.cells[usize::from(cell.0)].last_words.as_ref()
            }
            _ => None,
        };
        let Some(error) = words else { return Err(FleetError::Ended(failure)) };
        let line = format!("{failure}: {error}; remove the cause and start the fleet again");
        Err(FleetError::Reported { kind: error.kind(), line })
    }

    fn run(&mut self) -> Result<(), FleetError> {
        while self.ended.is_none() {
            let awake = self.wait()?;
            if awake.keeper {
                self.hear_keeper()?;
            }
            for cell in awake.cells {
                // Whoever says more is heard in the next turn.
                self.hear_cell(cell)?;
            }
            if awake.door {
                self.visitors.accept(clock::monotonic());
            }
            for connection in awake.visitors {
                self.hear_visitor(connection)?;
            }
            if self.wake.is_some_and(|at| at <= clock::monotonic()) {
                self.wake = None;
                self.apply(Event::Tick)?;
            }
            self.advance_departure()?;
        }
        Ok(())
    }

    fn wait(&self) -> Result<Awake, FleetError> {
        let pace = self.visitors.pause(clock::monotonic());
        let is_shut = self.visitors.is_deaf() || pace.is_some();
        let door = if is_shut { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.keeper.link.as_fd(), self.keeper.poll_flags()),
            PollFd::from_borrowed_fd(self.visitors.listener(), door),
        ];
        let cells: Vec<u16> = self.living().collect();
        let cell_link = |&cell: &u16| &self.cells[usize::from(cell)].link;
        let (numbers, visitors): (Vec<_>, Vec<_>) = self.visitors.connections().unzip();
        let links: Vec<&Outbox> = cells.iter().map(cell_link).chain(visitors).collect();
        fds.extend(
            links.iter().map(|link| PollFd::from_borrowed_fd(link.link.as_fd(), link.poll_flags())),
        );
        // What no poll tells.
        let is_short = self.keeper.is_short() || links.iter().any(|link| link.is_short());
        let pause = (is_short || self.visitors.is_deaf()).then_some(SHORTAGE_PAUSE);
        let departure = self.departure.as_ref().map(|departure| departure.until);
        let wake = self.wake.into_iter().chain(departure).min().map(|at| at - clock::monotonic());
        let limit = wake.into_iter().chain(pause).chain(pace).min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        retry(|| poll(&mut fds, limit.as_ref())).map_err(system("wait for the fleet"))?;
        let woke = |at: usize| !fds[at].revents().is_empty();
        let first = fds.len() - links.len();
        let heard = |n: &usize| woke(first + n) || links[*n].is_short();
        Ok(Awake {
            keeper: woke(0) || self.keeper.is_short(),
            door: woke(1) || self.visitors.is_deaf(),
            cells: (0..cells.len()).filter(heard).map(|n| cells[n]).collect(),
            visitors: (cells.len()..links.len())
                .filter(heard)
                .map(|n| numbers[n - cells.len()])
                .collect(),
        })
    }

    /// Cells whose processes are there and whose links are open.
    fn living(&self) -> impl Iterator<Item = u16> {
        (0..).zip(&self.cells).filter(|(_, cell)| cell.alive).map(|(number, _)| number)
    }

    /// Hands an event to the core, and whatever its effects lead to.
    fn apply(&mut self, event: Event) -> Result<(), FleetError> {
        self.pending.push_back(event);
        self.apply_pending()
    }

    fn apply_pending(&mut self) -> Result<(), FleetError> {
        while let Some(event) = self.pending.pop_front() {
            let mut effects = std::mem::take(&mut self.effects);
            self.core.apply(clock::monotonic(), clock::wall(), event, &mut effects);
            self.record(&effects);
            self.note(&effects)?;
            self.effects = self.follow(effects)?;
        }
        Ok(())
    }

    /// Does what was noted, and gives the vector back.
    fn follow(&mut self, mut effects: Vec<Effect>) -> Result<Vec<Effect>, FleetError> {
        if effects.is_empty() {
            return Ok(effects);
        }
        for effect in effects.drain(..) {
            self.carry_out(effect)?;
        }
        // What they must know first came with the order to start them.
        for cell in self.beginning.drain(..) {
            self.cells[usize::from(cell.0)].begin();
        }
        // What waits to be sent is lost with this process: then it is better done again.
        if !self.cells.iter().any(|cell| cell.link.is_backed_up()) {
            self.note(&[])?;
        }
        Ok(effects)
    }

    /// Writes down what is to be done, for the next supervisor; all that it then needs the keeper has.
    fn note(&mut self, effects: &[Effect]) -> Result<(), FleetError> {
        self.settle()?;
        let notes = self.notes(effects);
        self.journal.write(&notes)
    }

    /// Waits until the keeper has everything that it was sent. It never waits for this process. What it says is
    /// heard later.
    fn settle(&mut self) -> Result<(), FleetError> {
        while self.keeper.is_backed_up() {
            let limit = Timespec::try_from(SHORTAGE_PAUSE).ok();
            let flags = self.keeper.poll_flags() - PollFlags::IN;
            let mut fds = [PollFd::from_borrowed_fd(self.keeper.link.as_fd(), flags)];
            retry(|| poll(&mut fds, limit.as_ref())).map_err(system("wait for the keeper"))?;
            self.keeper.flush().map_err(|_| keeper_died())?;
        }
        Ok(())
    }

    fn tell_keeper(&mut self, message: &ToKeeper) -> Result<(), FleetError> {
        self.keeper.send(message.to_bytes(), Vec::new()).map_err(|_| keeper_died())
    }

    fn carry_out(&mut self, effect: Effect) -> Result<(), FleetError> {
        match effect {
            Effect::Send { to, order } => self.send(to, order),
            Effect::Write { io, block, bytes } => {
                let result = self.pool.write(block, &bytes);
                if let Err(errno) = result {
                    error!(%block, %errno, "a write to the device failed");
                }
                self.pending.push_back(Event::IoDone { io, result });
            }
            Effect::Flush { io } => {
                let flushed = self.pool.flush();
                if let Err(errno) = flushed {
                    error!(%errno, "a flush of the device failed");
                }
                let result = self.memory.judge_flush(flushed);
                self.end_bad_vitals();
                self.pending.push_back(Event::IoDone { io, result });
            }
            Effect::Wake(at) => self.wake = Some(at),
            Effect::FleetReady => self.ready()?,
            Effect::NewClient { connection, client } => self.new_client(connection, client),
            Effect::AdmitClient { client } => self.welcome(client),
            Effect::RefuseClient { connection, errno } => {
                self.applying.remove(&connection);
                self.forget_kept(connection)?;
                self.visitors.refuse(connection, errno);
            }
            Effect::ForgetClient { client } => {
                self.arrivals.remove(&client);
                if let Some(memory) = self.clients.remove(&client) {
                    self.forget_kept(memory.connection)?;
                }
                self.visitors.forget(client);
            }
            Effect::Restart { cell, epoch } => self.restart(cell, epoch),
            Effect::Kill { cell, epoch, verdict } => self.condemn(cell, epoch, verdict),
            Effect::MayStop => self.trial_succeeded(),
            Effect::StopRefused { errno } => self.refuse_stop(errno)?,
            Effect::Exit(result) => self.ended = Some(result),
        }
        Ok(())
    }

    fn ready(&mut self) -> Result<(), FleetError> {
        self.visitors.listen()?;
        self.tell_keeper(&ToKeeper::Ready { cells: self.plan.cells })
    }

    fn forget_kept(&mut self, connection: ConnectionNo) -> Result<(), FleetError> {
        self.tell_keeper(&ToKeeper::Forget { name: Kept::Client(connection.0) })
    }

    fn send(&mut self, to: CellId, order: Order) {
        let cell = &mut self.cells[usize::from(to.0)];
        let mut fds: Vec<Arc<OwnedFd>> = Vec::new();
        match &order {
            Order::Admit { client, .. } => {
                let Some(memory) = self.clients.get(client) else { return };
                fds = memory.for_cell(to);
            }
            Order::Joined { cell: back, .. } => {
                if let Some(door) = cell.doors.remove(back) {
                    cell.open_door(door);
                }
            }
            _ => {}
        }
        // A cell that is gone shows by its exit.
        let number = cell.orders;
        cell.orders += 1;
        let _ = cell.link.send_shared(ToCell::Order { number, order }.to_bytes(), fds);
        self.memory.cells[usize::from(to.0)].ring();
    }

    fn new_client(&mut self, connection: ConnectionNo, client: ClientId) {
        let Some((arrival, memory)) = self.applying.remove(&connection) else { return };
        self.arrivals.insert(client, arrival);
        self.clients.insert(client, memory);
        if !self.visitors.enter(connection, client) {
            // It has not waited.
            self.pending.push_back(Event::Hangup { client });
        }
    }

    fn welcome(&mut self, client: ClientId) {
        let Some(Arrival { connection, slots, fds }) = self.arrivals.remove(&client) else {
            return;
        };
        let (cells, shards) = (self.plan.cells, self.shards);
        let welcome = DoorReply::Welcome { client, slots, cells, shards };
        self.visitors.tell(connection, &welcome, fds);
        self.record_front(client, "is admitted");
    }

    fn hear_visitor(&mut self, connection: ConnectionNo) -> Result<(), FleetError> {
        match self.visitors.hear(connection) {
            Some(Asked::Enter(mut applicant)) => {
                let slots = match self.core.slots_for(&applicant) {
                    Ok(slots) => slots,
                    Err(errno) => {
                        self.visitors.refuse(connection, errno);
                        return Ok(());
                    }
                };
                applicant.slots = slots;
                let Some((socket, outfit)) = self.outfit(connection, slots) else {
                    self.visitors.refuse(connection, Errno::ENFILE);
                    return Ok(());
                };
                self.keep_client(connection, socket, &outfit.kept)?;
                let arrival = Arrival { connection, slots, fds: outfit.client };
                self.applying.insert(connection, (arrival, outfit.kept));
                self.apply(Event::Connect { connection, applicant })
            }
            Some(Asked::Status) => {
                let json = self.picture();
                let mut parts = json.chunks(STATUS_PART_MAX).peekable();
                while let Some(part) = parts.next() {
                    let more = parts.peek().is_some();
                    let part = DoorReply::Status { json: part.into(), more };
                    self.visitors.tell(connection, &part, Vec::new());
                }
                Ok(())
            }
            Some(Asked::Stop { force, discard }) => self.depart(force, discard, Some(connection)),
            Some(Asked::InUse { client, number, by }) => {
                if self.in_use(client, number, &by) {
                    return Ok(());
                }
                // It spoke out of turn.
                self.visitors.hang_up(connection);
                self.client_hung_up(client)
            }
            Some(Asked::Hangup(client)) => self.client_hung_up(client),
            None => Ok(()),
        }
    }

    /// Every visitor that asked for the end is told that it does not come, and why.
    fn refuse_stop(&mut self, errno: Errno) -> Result<(), FleetError> {
        warn!(%errno, "the stop is refused, because its checkpoint failed: the fleet serves on");
        self.departure.take_if(|departure| departure.is_on_trial());
        let connections: Vec<ConnectionNo> = self.visitors.stopping().collect();
        for connection in connections {
            self.tell_keeper(&ToKeeper::Forget { name: Kept::Stopping(connection.0) })?;
            self.visitors.disappoint(connection, &DoorReply::StopRefused { errno: errno.raw() });
        }
        Ok(())
    }

    /// From now on its connection and its memory outlive this process.
    fn keep_client(
        &mut self,
        connection: ConnectionNo,
        socket: OwnedFd,
        memory: &ClientMemory,
    ) -> Result<(), FleetError> {
        let mut fds = vec![Arc::new(socket)];
        fds.extend(memory.kept());
        let keep = ToKeeper::Keep { name: Kept::Client(connection.0) };
        self.keeper.send_shared(keep.to_bytes(), fds).map_err(|_| keeper_died())
    }

    /// What a client of so many slots gets, and its connection for the keeper, unless descriptors are scarce.
    fn outfit(&self, connection: ConnectionNo, slots: u16) -> Option<(OwnedFd, Outfit)> {
        let welcomes = (self.clients.len() + 1) * welcome_descriptors(self.cells.len());
        let reserve = Reserve::of(self.cells.len());
        if !reserve.lets_send(welcomes) || !self.cells_can_map(slots) {
            return None;
        }
        let socket = self.visitors.socket(connection)?;
        let outfit = self.memory.outfit(connection, slots).ok()?;
        let is_scarce = outfit.fds().any(|fd| reserve.has(fd));
        (!is_scarce).then_some((socket, outfit))
    }

    /// Whether every cell may map the memory of one more client of so many slots.
    fn cells_can_map(&self, slots: u16) -> bool {
        let slots = usize::from(slots);
        let bytes = (client_segment_len(slots) + cell_segment_len(slots)) as u64;
        self.cells.iter().filter(|cell| cell.alive).all(|cell| limit::lets_map(cell.pid, bytes))
    }

    /// Hears a bounded amount; says whether there may be more.
    fn hear_cell(&mut self, number: u16) -> Result<bool, FleetError> {
        for _ in 0..PACKETS_A_TURN {
            let cell = &mut self.cells[usize::from(number)];
            // What a cell said before it hung up is heard, whether or not it still listens.
            let _ = cell.link.flush();
            // What is not noted yet stays in the socket, where the next supervisor finds it.
            match cell.link.link.peek() {
                Ok(Received::Packet(packet)) => {
                    self.hear_report(CellId(number), &packet)?;
                    let cell = &mut self.cells[usize::from(number)];
                    // It can only fail if the socket is broken, and then the next look finds it so.
                    let _ = cell.link.link.skip();
                }
                Ok(Received::Nothing) => return Ok(false),
                // It is gone, or as good as gone: of what it said something is lost.
                Ok(Received::Closed) | Err(_) => {
                    self.kill(CellId(number));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn hear_report(&mut self, from: CellId, packet: &Packet) -> Result<(), FleetError> {
        match FromCell::from_bytes(&packet.bytes) {
            Ok(FromCell::Report { capability, epoch, number, report }) => {
                let heard = &mut self.cells[usize::from(from.0)].reports;
                if number < *heard || !self.mailboxes.admits_report(capability) {
                    return Ok(());
                }
                if number > *heard {
                    // Of what it said something is lost.
                    self.kill(from);
                    return Ok(());
                }
                *heard += 1;
                if matches!(report, Report::Ready { .. }) {
                    self.serves(from);
                }
                if report == (Report::WantCheckpoint { cell: from }) && self.memory.has_lost_flush()
                {
                    // A cell that cannot keep what it is given asks at once.
                    self.apply(Event::FlushFailed { errno: Errno::EIO })?;
                }
                // The core ignores those of an earlier epoch.
                self.apply(Event::Report { from, epoch, report })
            }
            Ok(FromCell::Failed { kind, line }) => {
                let error = FleetError::reported(kind, &line);
                self.cells[usize::from(from.0)].last_words = Some(error);
                Ok(())
            }
            Err(_) => {
                self.kill(from);
                Ok(())
            }
        }
    }

    fn hear_keeper(&mut self) -> Result<(), FleetError> {
        self.keeper.flush().map_err(|_| keeper_died())?;
        loop {
            match self.keeper.link.receive(Wait::No).map_err(|_| keeper_died())? {
                Received::Packet(packet) => self.obey_keeper(&packet)?,
                Received::Nothing => return Ok(()),
                Received::Closed => return Err(keeper_died()),
            }
        }
    }

    fn obey_keeper(&mut self, packet: &Packet) -> Result<(), FleetError> {
        match FromKeeper::from_bytes(&packet.bytes).map_err(|_| keeper_died())? {
            FromKeeper::Spawned { token, pid } => {
                if let Some(cell) = self.cells.iter_mut().find(|cell| cell.token == token) {
                    cell.pid = pid;
                }
                Ok(())
            }
            FromKeeper::NotSpawned { token, errno } => self.not_spawned(token, errno),
            FromKeeper::Exited { token, .. } if self.orphans.remove(&token) => self.bury(),
            FromKeeper::Exited { token, status } => {
                let status = ExitStatus::from_raw(status);
                self.cell_exited(token, &status.to_string(), Ended::of(status))
            }
            FromKeeper::Stop => self.depart(true, false, None),
            FromKeeper::Released => {
                self.is_released = true;
                Ok(())
            }
            FromKeeper::LogTrouble { line } => {
                self.recorded.trouble = String::from_utf8_lossy(&line).into_owned();
                Ok(())
            }
            FromKeeper::Begin(_) | FromKeeper::Adopt(_) | FromKeeper::Kept { .. } => Ok(()),
        }
    }

    /// Until the keeper holds nothing any more.
    fn await_release(&mut self) {
        let _ = self.settle();
        while !self.is_released {
            let mut fds = [PollFd::from_borrowed_fd(self.keeper.link.as_fd(), PollFlags::IN)];
            let heard = retry(|| poll(&mut fds, None)).is_ok() && self.hear_keeper().is_ok();
            // A keeper that is gone holds nothing.
            if !heard {
                return;
            }
        }
    }

    /// Until every cell's process is gone, and with it every descriptor of the pool.
    fn await_exits(&mut self) -> Result<(), FleetError> {
        let deadline = clock::monotonic() + EXIT_PATIENCE;
        while self.cells.iter().any(|cell| !cell.exited) {
            let left = deadline - clock::monotonic();
            if left.is_zero() {
                // The keeper kills what is left when this process ends.
                return Ok(());
            }
            let limit = Timespec::try_from(left).ok();
            let mut fds = [PollFd::from_borrowed_fd(self.keeper.link.as_fd(), PollFlags::IN)];
            retry(|| poll(&mut fds, limit.as_ref())).map_err(system("wait for cells"))?;
            self.hear_keeper()?;
        }
        Ok(())
    }
}
