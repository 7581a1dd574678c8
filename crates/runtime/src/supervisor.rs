//! The supervisor's process: drives the pure supervisor with exits, reports, connections and the
//! disk.
//!
//! Order at start: lock the pool, read it, make the fleet's memory, make the control socket, start
//! the cells. Order at the end: every cell's process is gone, the keeper receives the final message
//! and closes everything, the socket is removed, the pool is unlocked, clients that asked for the
//! end receive their reply.
//!
//! The supervisor waits for the disk, but never for a peer. Each action follows an event and is
//! written to the journal first, because the next supervisor may have to execute it (`adopt`).
//!
//! `state` holds the state. Each of its parts (`keeper_link`, `cells`, `clients`, `connections`,
//! `stop_attempt`, `logged`, `journal`, ...) owns its own state and knows no other part. Code that
//! uses several parts is here, in `adopt`, `restart`, `start`, `status`, `stop` and `save`.

mod admit;
mod adopt;
mod cell_process;
mod cells;
mod clients;
mod connections;
mod grow;
pub(crate) mod journal;
mod keeper_link;
mod logged;
mod mailboxes;
mod memory;
mod mounts;
mod pool;
mod restart;
mod save;
mod start;
mod state;
mod status;
mod stop;
mod stop_attempt;
mod watch;
mod watches;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use cell_process::Ended;
use connections::ConnectionEvent;
use keeper_link::{KeeperLink, keeper_died};
use restart::end_misbehaving;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use state::SupervisorLoop;
use stop_attempt::StopRequest;
use tracing::error;
use warren_base::{CellId, Errno};
use warren_log::record_all;
use warren_proto::Wire;
use warren_proto::control::{Order, Report};
use warren_supervisor::{ConnectionNo, Effect, Event, Failure, Misdeed};
use warren_transport::control::{ControlReply, STATUS_PART_MAX};

use crate::clock;
use crate::confine::limit_supervisor;
use crate::error::{FleetError, system};
use crate::limit;
use crate::link::{Outbox, Packet, Received, SHORTAGE_PAUSE, retry};
use crate::message::{FromCell, FromKeeper, ToCell, ToKeeper};
use crate::pool::blocks::Blocks;
use crate::privilege::Privilege;
use crate::process;

/// The time in which the processes of cells that have reported `Stopped` must exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Packets received from one sender in a turn.
const PACKETS_A_TURN: usize = 64;

/// The role `supervisor`.
pub(crate) fn main() -> Result<(), FleetError> {
    let mut keeper = Outbox::new(process::begin("warren-super", true)?);
    record_all();
    let (first, _) = KeeperLink::new(&mut keeper, 0, false).next_message()?;
    limit::raise();
    let ended = process::guarded(|| {
        let privilege = Privilege::of_this_process()?;
        limit_supervisor()?;
        let supervisor = match first {
            FromKeeper::Begin { plan, in_tables } => {
                start::open(&mut keeper, plan, in_tables, privilege)?
            }
            FromKeeper::Adopt(left) => adopt::take_over(&mut keeper, left, privilege)?,
            _ => return Err(keeper_died()),
        };
        supervisor.serve()
    });
    if let Err(error) = &ended {
        // The keeper knows whether the fleet had ended before that.
        let (kind, line) = error.report();
        KeeperLink::new(&mut keeper, 0, false)
            .final_message(&ToKeeper::SupervisorFailed { kind, line });
    }
    ended
}

/// The sources that woke the supervisor.
#[derive(Default)]
struct Awake {
    keeper: bool,
    cells: Vec<CellId>,
    listener: bool,
    connections: Vec<ConnectionNo>,
}

impl SupervisorLoop<'_> {
    /// Runs until the fleet has ended, in order or not. An error concerns this process alone: the
    /// next one continues from the notes.
    fn serve(mut self) -> Result<(), FleetError> {
        self.run()?;
        self.await_exits()?;
        if self.ended.is_some_and(|ended| ended.is_err_and(save::leaves_logs)) {
            self.save_logs();
        }
        let outcome = self.outcome();
        let (to_keeper, to_clients) = match &outcome {
            Ok(()) => (ToKeeper::Stopped, ControlReply::Stopped),
            Err(error) => {
                let (kind, line) = error.report();
                let to_clients = ControlReply::Failed { kind, line: line.clone() };
                (ToKeeper::Failed { kind, line }, to_clients)
            }
        };
        // The pool is unlocked before the keeper ends, so that the next fleet can start at once.
        self.keeper.final_message(&to_keeper);
        self.await_release();
        // The socket is removed before the next fleet can make its own in the same place.
        self.connections.remove_socket();
        drop(self.pool);
        self.connections.close_all(&to_clients);
        outcome
    }

    fn outcome(&self) -> Result<(), FleetError> {
        let Some(Err(failure)) = self.ended else { return Ok(()) };
        // The cell's own error is more precise than the fact that it ended.
        let error = match failure {
            Failure::CellExited { cell, .. } | Failure::NoSuccessor { cell, .. } => {
                self.cells[cell].last_error.as_ref()
            }
            _ => None,
        };
        let Some(error) = error else { return Err(FleetError::Ended(failure)) };
        let line = format!("{failure}: {error}; remove the cause and start the fleet again");
        Err(FleetError::Reported { kind: error.kind(), line })
    }

    fn run(&mut self) -> Result<(), FleetError> {
        while self.ended.is_none() {
            let awake = self.wait()?;
            if self.wake.is_some_and(|at| at <= clock::monotonic()) {
                // A verdict may be due, which must not rest on an old look.
                self.watches.next = clock::monotonic();
            }
            watch::look_around(self)?;
            if awake.keeper {
                self.receive_from_keeper()?;
            }
            for cell in awake.cells {
                // More of its packets are received in the next turn.
                self.receive_from_cell(cell)?;
            }
            if awake.listener {
                self.connections.accept(clock::monotonic());
            }
            for connection in awake.connections {
                self.receive_request(connection)?;
            }
            if self.wake.is_some_and(|at| at <= clock::monotonic()) {
                self.wake = None;
                self.apply(Event::Tick)?;
            }
            self.advance_stop()?;
        }
        Ok(())
    }

    fn wait(&self) -> Result<Awake, FleetError> {
        let pace = self.connections.pause(clock::monotonic());
        let is_shut = self.connections.is_short() || pace.is_some();
        let listener = if is_shut { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.keeper.as_fd(), self.keeper.poll_flags()),
            PollFd::from_borrowed_fd(self.connections.listener(), listener),
            PollFd::from_borrowed_fd(self.connections.poll_fd(), PollFlags::IN),
        ];
        let first = fds.len();
        let cells: Vec<CellId> = self.cells.living().collect();
        let links: Vec<&Outbox> = cells.iter().map(|&cell| &self.cells[cell].link).collect();
        fds.extend(
            links.iter().map(|link| PollFd::from_borrowed_fd(link.link.as_fd(), link.poll_flags())),
        );
        // A poll does not show a shortage.
        let has_short_links = self.connections.short_links().next().is_some();
        let is_short = self.keeper.is_short() || links.iter().any(|link| link.is_short());
        let pause =
            (is_short || has_short_links || self.connections.is_short()).then_some(SHORTAGE_PAUSE);
        let stop = self.stop.deadline();
        let look = self.watches.next;
        let wake =
            self.wake.into_iter().chain(stop).chain([look]).min().map(|at| at - clock::monotonic());
        let at_once = self.keeper.has_received().then_some(Duration::ZERO);
        let limit = wake.into_iter().chain(pause).chain(pace).chain(at_once).min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // It fails if the limit of open files was lowered below these. The next supervisor has the
        // keeper's limit.
        retry(|| poll(&mut fds, limit.as_ref())).map_err(system("wait for the fleet"))?;
        let woke = |at: usize| !fds[at].revents().is_empty();
        let is_ready = |n: &usize| woke(first + n) || links[*n].is_short();
        let connections = woke(2) || has_short_links;
        Ok(Awake {
            keeper: woke(0) || self.keeper.is_short() || self.keeper.has_received(),
            listener: woke(1) || self.connections.is_short(),
            cells: (0..cells.len()).filter(is_ready).map(|n| cells[n]).collect(),
            connections: if connections { self.connections.take_ready() } else { Vec::new() },
        })
    }

    /// Applies an event to the core, and the events that its effects cause.
    fn apply(&mut self, event: Event) -> Result<(), FleetError> {
        self.pending.push_back(event);
        self.apply_pending()
    }

    fn apply_pending(&mut self) -> Result<(), FleetError> {
        while let Some(event) = self.pending.pop_front() {
            let mut effects = std::mem::take(&mut self.effects);
            self.recorded = None;
            self.core.apply(clock::monotonic(), clock::wall(), event, &mut effects);
            self.logged.effects(&effects, self.core.ledger());
            self.note(&effects)?;
            self.effects = self.follow(effects)?;
        }
        Ok(())
    }

    /// Carries out noted effects, and returns the vector.
    fn follow(&mut self, mut effects: Vec<Effect>) -> Result<Vec<Effect>, FleetError> {
        if effects.is_empty() {
            return Ok(effects);
        }
        for effect in effects.drain(..) {
            self.carry_out(effect)?;
        }
        // All that the new cells must know first was in these effects.
        self.cells.send_begins();
        // Unsent messages are lost with this process. While there are any, the notes keep the
        // effects, so that the next supervisor carries them out again.
        if !self.cells.is_backed_up() {
            self.note(&[])?;
        }
        Ok(effects)
    }

    /// Writes the effects to the journal for the next supervisor, after the keeper has all
    /// descriptors that it needs.
    fn note(&mut self, effects: &[Effect]) -> Result<(), FleetError> {
        self.keeper.settle()?;
        // With many clients the core's record is long, and each event is noted twice.
        let core = self.recorded.take().unwrap_or_else(|| self.core.record().into());
        let notes = self.notes(core, effects);
        let written = self.journal.write(&notes);
        self.recorded = Some(notes.core);
        written
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
                self.clients.withdraw(connection);
                self.keeper.forget_client(connection.0)?;
                self.connections.refuse(connection, errno);
            }
            Effect::ForgetClient { client } => {
                let connection = self.clients.forget(client);
                if let Some(connection) = connection {
                    self.keeper.forget_client(connection.0)?;
                }
                self.connections.forget(client, connection);
            }
            Effect::Restart { cell, epoch, is_caretaker } => {
                self.restart(cell, epoch, is_caretaker)
            }
            Effect::Kill { cell, epoch, verdict } => self.condemn(cell, epoch, verdict),
            Effect::Resume { cell, epoch } => restart::resume(self, cell, epoch),
            Effect::MayStop => self.stop.trial_succeeded(),
            Effect::StopRefused { errno } => self.refuse_stop(errno)?,
            Effect::Grown { result } => grow::growth_ended(self, result),
            Effect::Exit(result) => self.ended = Some(result),
        }
        Ok(())
    }

    fn ready(&mut self) -> Result<(), FleetError> {
        self.connections.listen()?;
        self.keeper.send(&ToKeeper::Ready { cells: self.plan.cells })
    }

    fn send(&mut self, to: CellId, order: Order) {
        let cell = &mut self.cells[to];
        let (mut fds, mut lent): (Vec<Arc<OwnedFd>>, Option<u64>) = (Vec::new(), None);
        match &order {
            Order::Admit { client, .. } => {
                let Some(memory) = self.clients.memory(*client) else { return };
                match memory.for_cell(to) {
                    Some(of_client) => fds = of_client,
                    None => lent = Some(memory.connection.0),
                }
            }
            Order::Joined { cell: back, .. } => {
                if let Some(link) = cell.links.remove(back) {
                    cell.send_link(link);
                }
            }
            _ => {}
        }
        // The exit of a cell's process shows that it is gone.
        let number = cell.orders;
        cell.orders += 1;
        let order = ToCell::Order { number, order }.to_bytes();
        let _ = match lent {
            Some(connection) => cell.link.send_lent(order, connection),
            None => cell.link.send_shared(order, fds),
        };
        self.supply(to);
        self.memory.cells[usize::from(to.0)].ring();
    }

    fn receive_request(&mut self, connection: ConnectionNo) -> Result<(), FleetError> {
        match self.connections.receive(connection) {
            Some(ConnectionEvent::Enter(applicant)) => self.admit(connection, applicant),
            Some(ConnectionEvent::Status { viewer }) => {
                self.send_status(connection, viewer);
                Ok(())
            }
            Some(ConnectionEvent::Stop { force, discard, if_unused }) => {
                let connections = vec![connection];
                let asked = StopRequest::of_client(connections, force, discard);
                self.begin_stop(StopRequest { if_unused, ..asked })
            }
            Some(ConnectionEvent::Grow { blocks }) => grow::begin_growth(self, connection, blocks),
            Some(ConnectionEvent::Rejoin { cell }) => {
                self.connections.send_last(connection, &ControlReply::Rejoining);
                self.apply(Event::Rejoin { cell })
            }
            Some(ConnectionEvent::InUse { client, number, by }) => {
                if self.in_use(client, number, &by) {
                    return Ok(());
                }
                // An answer to a question that was not asked.
                self.connections.close(connection);
                self.client_hung_up(client)
            }
            Some(ConnectionEvent::Rule { client, rules }) => {
                if self.core.applicant(client).is_some_and(|it| it.front) {
                    return self.apply(Event::Rule { client, rules });
                }
                // Another client has no mount.
                self.connections.close(connection);
                self.client_hung_up(client)
            }
            Some(ConnectionEvent::Hangup(client)) => self.client_hung_up(client),
            None => Ok(()),
        }
    }

    fn send_status(&mut self, connection: ConnectionNo, viewer: Option<u32>) {
        let json = self.status_json(viewer);
        let mut parts = json.chunks(STATUS_PART_MAX).peekable();
        while let Some(part) = parts.next() {
            let more = parts.peek().is_some();
            let part = ControlReply::Status { json: part.into(), more };
            self.connections.send(connection, &part, Vec::new());
        }
    }

    /// Receives a bounded number of packets. Returns whether there may be more.
    fn receive_from_cell(&mut self, from: CellId) -> Result<bool, FleetError> {
        for _ in 0..PACKETS_A_TURN {
            let cell = &mut self.cells[from];
            // Packets that the cell sent before it closed its link are received even if it no
            // longer receives.
            let _ = cell.link.flush();
            self.supply(from);
            let cell = &mut self.cells[from];
            // A packet stays in the socket until it is noted, so that the next supervisor finds it.
            match cell.link.link.peek() {
                Ok(Received::Packet(packet)) => {
                    self.take_report(from, &packet)?;
                    let cell = &mut self.cells[from];
                    // This can only fail if the socket is broken; the next peek shows that.
                    let _ = cell.link.link.skip();
                }
                Ok(Received::Nothing) => return Ok(false),
                // It ends in order, and takes a moment for that.
                Ok(Received::Closed) if self.core.has_stopped(from) => {
                    self.cells[from].alive = false;
                    return Ok(false);
                }
                // The cell is gone, as its exit notice will show, or it lives and has no link.
                Ok(Received::Closed) => {
                    self.kill(from);
                    return Ok(false);
                }
                Err(_) => {
                    end_misbehaving(self, from, Misdeed::Packet)?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn take_report(&mut self, from: CellId, packet: &Packet) -> Result<(), FleetError> {
        match FromCell::from_bytes(&packet.bytes) {
            Ok(FromCell::Report { capability, epoch, number, report }) => {
                let expected = &mut self.cells[from].reports;
                if number < *expected || !self.mailboxes.admits_report(capability) {
                    return Ok(());
                }
                if number > *expected {
                    return end_misbehaving(self, from, Misdeed::ReportLost);
                }
                *expected += 1;
                if matches!(report, Report::Ready { .. }) {
                    self.serves(from);
                }
                if report == (Report::WantCheckpoint { cell: from }) && self.memory.has_lost_flush()
                {
                    // A cell whose flush failed reports this at once.
                    self.apply(Event::FlushFailed { errno: Errno::EIO })?;
                }
                logged::report(from, &report);
                // The core ignores reports of an earlier epoch.
                self.apply(Event::Report { from, epoch, report })
            }
            Ok(FromCell::Failed { kind, line }) => {
                let error = FleetError::reported(kind, &line);
                self.cells[from].last_error = Some(error);
                Ok(())
            }
            Err(_) => end_misbehaving(self, from, Misdeed::Message),
        }
    }

    fn receive_from_keeper(&mut self) -> Result<(), FleetError> {
        self.keeper.flush()?;
        while let Some(message) = self.keeper.receive()? {
            self.take_from_keeper(message)?;
        }
        Ok(())
    }

    fn take_from_keeper(&mut self, message: FromKeeper) -> Result<(), FleetError> {
        match message {
            FromKeeper::Spawned { token, pid } => {
                if let Some(cell) = self.cells.by_token(token) {
                    cell.pid = pid;
                }
                Ok(())
            }
            FromKeeper::NotSpawned { token, errno } => self.not_spawned(token, errno),
            FromKeeper::Exited { token, .. } if self.cells.end_orphan(token) => self.end_given_up(),
            FromKeeper::Exited { token, status } => {
                let status = ExitStatus::from_raw(status);
                self.cell_exited(token, &status.to_string(), Ended::of(status))
            }
            FromKeeper::Stop => self.begin_stop(StopRequest::of_keeper()),
            FromKeeper::Released => {
                self.keeper.set_released();
                Ok(())
            }
            FromKeeper::LogTrouble { line } => {
                self.logged.set_trouble(String::from_utf8_lossy(&line).into_owned());
                Ok(())
            }
            FromKeeper::Begin { .. }
            | FromKeeper::Adopt(_)
            | FromKeeper::Kept { .. }
            | FromKeeper::Lent => Ok(()),
        }
    }

    /// Waits until the keeper has released all descriptors.
    fn await_release(&mut self) {
        let _ = self.keeper.settle();
        while !self.keeper.is_released() {
            let is_there = self.keeper.await_message(None).is_ok();
            // A keeper that is gone holds none.
            if !is_there || self.receive_from_keeper().is_err() {
                return;
            }
        }
    }

    /// Waits until every cell's process, and with it every descriptor of the pool, is gone.
    fn await_exits(&mut self) -> Result<(), FleetError> {
        let deadline = clock::monotonic() + EXIT_TIMEOUT;
        while !self.cells.have_all_exited() {
            let left = deadline - clock::monotonic();
            if left.is_zero() {
                // The keeper kills the others when this process ends.
                return Ok(());
            }
            self.keeper.await_message(Some(left))?;
            self.receive_from_keeper()?;
        }
        Ok(())
    }
}
