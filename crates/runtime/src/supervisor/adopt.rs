//! A supervisor takes over from one that died.
//!
//! ```text
//! descriptors and notes -> flush, ledger -> memory, mailboxes, links, connections as they were
//! -> noted effects of the dead supervisor -> what the device has of its checkpoint
//! -> processes that ended meanwhile
//! ```
//!
//! A cell drops orders that it has received already, by their numbers. This supervisor drops
//! reports that the dead one had handled, by theirs; other reports are still in the sockets.
//! Connections that the keeper does not hold were closed by the supervisor's death; their clients
//! connect again ([`crate::client::control`]).
//!
//! A successor of a cell whose start is among the noted effects is given up, because a part of what
//! it needs was in the dead supervisor's memory. Its process, if there is one, is killed, and the
//! cell counts as lost at once. The same holds for a cell that had not taken all its packets in
//! time, and for one whose start had failed before the core was informed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use tracing::warn;
use warren_base::{CellId, ClientId, Epoch};
use warren_log::LIFE;
use warren_proto::Rules;
use warren_proto::slot::Shape;
use warren_shm::ShardMap;
use warren_supervisor::{
    CellState, CellStatus, ClientState, ClientStatus, ConnectionNo, Effect, Event, Misdeed,
    Predecessor, Supervisor,
};

use super::cell_process::{CellProcess, Ended, Pauses};
use super::cells::Cells;
use super::clients::PendingWelcome;
use super::connections::Connections;
use super::journal::{CellNotes, ClientNotes, Journal, Notes};
use super::keeper_link::{KeeperLink, keeper_died};
use super::mailboxes::Mailboxes;
use super::memory::{ClientMemory, FleetMemory, incomplete};
use super::pool::OpenPool;
use super::start::FIRST_MAP;
use super::state::{Parts, SupervisorLoop};
use super::stop_attempt::StopRequest;
use crate::clock;
use crate::error::{FleetError, system};
use crate::link::{Link, Outbox, Trust};
use crate::message::{FromKeeper, Handover, Kept, ToKeeper, path_of};
use crate::pool::blocks::{self, Blocks};
use crate::pool::shares;
use crate::privilege::Privilege;
use crate::reserve::Reserve;

/// A token that no process has.
const NO_TOKEN: u32 = u32::MAX;

/// The descriptors that the keeper holds.
struct KeptDescriptors(BTreeMap<Kept, Vec<OwnedFd>>);

impl KeptDescriptors {
    fn receive(keeper: &mut KeeperLink<'_>, count: u32) -> Result<Self, FleetError> {
        let mut kept = BTreeMap::new();
        while kept.len() < count as usize {
            match keeper.next_message()? {
                (FromKeeper::Kept { name }, fds) => drop(kept.insert(name, fds)),
                _ => return Err(keeper_died()),
            }
        }
        Ok(Self(kept))
    }

    fn take(&mut self, name: Kept) -> Result<Vec<OwnedFd>, FleetError> {
        self.0.remove(&name).ok_or_else(incomplete)
    }

    fn take_one(&mut self, name: Kept) -> Result<OwnedFd, FleetError> {
        self.take(name)?.into_iter().next().ok_or_else(incomplete)
    }
}

/// The cells whose start is among the effects, with the epochs of the new processes.
fn voids(notes: &Notes) -> BTreeMap<CellId, Epoch> {
    let start = |effect: &Effect| match effect {
        Effect::Restart { cell, epoch, .. } => Some((*cell, *epoch)),
        _ => None,
    };
    notes.effects.iter().filter_map(start).collect()
}

/// Connections that become clients by the effects.
fn newcomers(notes: &Notes) -> BTreeMap<u64, ClientId> {
    let newcomer = |effect: &Effect| match effect {
        Effect::NewClient { connection, client } => Some((connection.0, *client)),
        _ => None,
    };
    notes.effects.iter().filter_map(newcomer).collect()
}

pub(super) fn take_over(
    keeper: &mut Outbox,
    handover: Handover,
    privilege: Privilege,
) -> Result<SupervisorLoop<'_>, FleetError> {
    let mut link = KeeperLink::new(keeper, 0, handover.in_tables);
    let mut kept = KeptDescriptors::receive(&mut link, handover.kept)?;
    let (journal, notes) = Journal::adopt(kept.take_one(Kept::Record)?)?;
    let path = path_of(&handover.plan.pool);
    let pool = OpenPool::adopt(kept.take(Kept::Pool)?, &path)?;
    let flushed = pool.flush();
    let (ledger, copies) = blocks::load(&pool, &path)?;
    let layout = ledger.superblock().layout;
    let processes = processes(&notes, &handover, &mut kept, &pool)?;
    let memory = memory(&mut kept, layout.shards(), &processes)?;
    let flushed = memory.judge_flush(flushed);
    let (core, effects) = core(Predecessor { record: &notes.core, ledger, copies, flushed })?;
    let cells = (0..handover.plan.cells).map(CellId);
    let in_place = cells.filter(|cell| !notes.cells[usize::from(cell.0)].exited);
    let mailboxes = Mailboxes::adopt(in_place, notes.grants.clone(), notes.reports_refused)?;
    let listener = kept.take_one(Kept::Listener)?;
    let (path, reserve) = (path_of(&notes.socket), Reserve::of(processes.len()));
    let rule = (handover.plan.clients, privilege);
    let connections = Connections::adopt(listener, path, rule, notes.next_connection, reserve)?;
    connections.listen()?;
    let tokens: BTreeSet<u32> = processes.iter().map(|process| process.token).collect();
    let children = handover.children.iter().map(|&(token, _)| token);
    let next_token = children.clone().map(|token| token + 1).fold(notes.next_token, u32::max);
    let orphans = children.filter(|token| !tokens.contains(token)).collect();
    let mut next = SupervisorLoop::new(Parts {
        capabilities: notes.capabilities.clone(),
        predecessors: handover.predecessors,
        keeper: KeeperLink::new(keeper, next_token, handover.in_tables),
        pool,
        memory,
        mailboxes,
        core,
        cells: Cells::new(processes, orphans),
        connections,
        journal,
        plan: handover.plan,
    });
    next.adopt_clients(&mut kept, &notes)?;
    next.catch_up(notes, effects)?;
    next.find_exits(&handover.children, handover.stop)?;
    let ms = (clock::monotonic() - handover.died).as_millis();
    let death = next.predecessors;
    warn!(target: LIFE, "the supervisor serves again after {ms} ms (death {death})");
    Ok(next)
}

/// The core, and its first effects.
fn core(predecessor: Predecessor<'_>) -> Result<(Supervisor, Vec<Effect>), FleetError> {
    let mut effects = Vec::new();
    let core = Supervisor::adopt(predecessor, clock::monotonic(), clock::wall(), &mut effects);
    Ok((core.map_err(|_| incomplete())?, effects))
}

fn memory(
    kept: &mut KeptDescriptors,
    shards: u16,
    processes: &[CellProcess],
) -> Result<FleetMemory, FleetError> {
    let cells = processes.len() as u16;
    let map = ShardMap {
        version: FIRST_MAP,
        owners: shares::owners(shards, cells),
        epochs: processes.iter().map(|process| process.epoch).collect(),
    };
    let memories = (0..cells).map(|cell| kept.take(Kept::Cell(CellId(cell))));
    let memories = memories.collect::<Result<Vec<_>, _>>()?;
    FleetMemory::adopt(kept.take_one(Kept::Map)?, map, memories.into_iter())
}

/// The cells' processes as they were. Those that are given up appear as if they were about to end.
fn processes(
    notes: &Notes,
    handover: &Handover,
    kept: &mut KeptDescriptors,
    pool: &OpenPool,
) -> Result<Vec<CellProcess>, FleetError> {
    let voids = voids(notes);
    let mut processes = Vec::new();
    for (cell, notes) in (0..).map(CellId).zip(&notes.cells) {
        let mut fds = kept.take(Kept::Process(cell))?.into_iter();
        let link = Link::new(fds.next().ok_or_else(incomplete)?, Trust::Fleet);
        let mut process = match (voids.get(&cell), fds.next()) {
            (None, Some(next_device)) => {
                CellProcess::new(notes.epoch, notes.token, link, next_device)
            }
            (None, None) => return Err(incomplete()),
            (Some(&epoch), next_device) => {
                let next_device = next_device.map_or_else(|| pool.reopen(), Ok)?;
                // Nothing that is sent over it is received.
                let unused = Link::pair().map_err(system("make a cell's link"))?.0;
                CellProcess::new(epoch, NO_TOKEN, unused, next_device)
            }
        };
        let is_void = voids.contains_key(&cell);
        let CellNotes { alive, exited, orders, reports, restarts, since, .. } = *notes;
        (process.alive, process.exited) = (alive && !is_void, exited && !is_void);
        (process.orders, process.reports) = (orders, reports);
        let last = notes.last_pause_ms.map(std::time::Duration::from_millis);
        process.pauses = Pauses { restarts, since, last };
        let pid = handover.children.iter().find(|(token, _)| *token == process.token);
        process.pid = pid.map_or(0, |&(_, pid)| pid);
        processes.push(process);
    }
    match processes.len() == usize::from(handover.plan.cells) {
        true => Ok(processes),
        false => Err(incomplete()),
    }
}

impl SupervisorLoop<'_> {
    /// The notes that the next supervisor needs if this one dies now, with the core's record.
    pub(super) fn notes(&self, core: Box<[u8]>, effects: &[Effect]) -> Notes {
        let clients = self.clients.connections();
        let clients =
            clients.map(|(client, connection)| ClientNotes { client, connection: connection.0 });
        Notes {
            core,
            effects: effects.iter().filter(|effect| effect.is_repeatable()).cloned().collect(),
            next_token: self.keeper.next_token(),
            cells: self.cells.as_slice().iter().map(cell_notes).collect(),
            grants: self.mailboxes.grants(),
            capabilities: self.capabilities.clone(),
            reports_refused: self.mailboxes.refused,
            clients: clients.collect(),
            socket: self.connections.path().as_os_str().as_bytes().into(),
            next_connection: self.connections.next(),
        }
    }

    /// Adopts the connections that are clients, are about to become clients, or wait for the end of
    /// the fleet. No request was received yet from other connections that the keeper holds.
    fn adopt_clients(
        &mut self,
        kept: &mut KeptDescriptors,
        notes: &Notes,
    ) -> Result<(), FleetError> {
        let known = notes.clients.iter().map(|client| (client.connection, client.client));
        let known: BTreeMap<u64, ClientId> = known.collect();
        let newcomers = newcomers(notes);
        let clients = self.core.status().clients.into_iter();
        let clients: BTreeMap<ClientId, ClientStatus> =
            clients.map(|client| (client.client, client)).collect();
        let names: Vec<Kept> = kept.0.keys().copied().collect();
        for name in names {
            let Kept::Client(number) = name else { continue };
            let connection = ConnectionNo(number);
            let mut fds = kept.take(name)?.into_iter();
            let socket = fds.next().ok_or_else(incomplete)?;
            let client = known.get(&number).or(newcomers.get(&number)).copied();
            let Some(status) = client.and_then(|client| clients.get(&client)) else {
                self.keeper.forget_client(number)?;
                continue;
            };
            let (client, terms) = (status.client, (status.shape, status.rules));
            if !self.connections.adopt_connection(connection, socket, Some(client)) {
                self.pending.push_back(Event::Hangup { client });
            }
            if newcomers.contains_key(&number) {
                let (welcome, memory) = self.pending_welcome(connection, terms)?;
                self.clients.apply(welcome, memory);
                continue;
            }
            let admits = Effect::AdmitClient { client };
            let is_pending =
                status.state == ClientState::Admitting || notes.effects.contains(&admits);
            if is_pending {
                let (welcome, memory) = self.pending_welcome(connection, terms)?;
                self.clients.adopt(client, memory, Some(welcome));
            } else {
                self.clients.adopt(client, ClientMemory::held(connection), None);
            }
        }
        for (name, fds) in std::mem::take(&mut kept.0) {
            if let (Kept::Stopping(number), Some(socket)) = (name, fds.into_iter().next()) {
                self.connections.adopt_connection(ConnectionNo(number), socket, None);
            }
        }
        Ok(())
    }

    /// The welcome of a client that has not received one, and its memory, of which the keeper has
    /// the segments.
    fn pending_welcome(
        &mut self,
        connection: ConnectionNo,
        (shape, rules): (Shape, Rules),
    ) -> Result<(PendingWelcome, ClientMemory), FleetError> {
        let segments = (0..=self.plan.cells).collect();
        let kept = self.keeper.borrow(connection.0, segments)?;
        let memory = ClientMemory::adopt(connection, kept)?;
        let fds = self.memory.welcome(&memory)?;
        Ok((PendingWelcome { connection, shape, rules, fds }, memory))
    }

    /// Carries out the dead supervisor's noted effects, and those of the core.
    fn catch_up(&mut self, notes: Notes, effects: Vec<Effect>) -> Result<(), FleetError> {
        for effect in notes.effects {
            // The exit of a process that is given up leads to its restart.
            if !matches!(effect, Effect::Restart { .. }) {
                self.carry_out(effect)?;
            }
        }
        for (cell, notes) in (0..).map(CellId).zip(&notes.cells) {
            let process = &self.cells[cell];
            let is_same = !process.exited && process.token == notes.token;
            if is_same && (notes.behind || !notes.alive) {
                if notes.alive {
                    let (epoch, how) = (process.epoch, Misdeed::OrdersLost);
                    self.pending.push_back(Event::Misbehaves { cell, epoch, how });
                }
                self.kill(cell);
            }
        }
        self.logged.effects(&effects, self.core.ledger());
        self.note(&effects)?;
        // After the outcome of the flush is noted, and before this supervisor writes.
        self.keeper.keep(Kept::Pool, self.pool.kept()?)?;
        self.keeper.settle()?;
        self.follow(effects)?;
        self.apply_pending()
    }

    /// Handles processes that ended while there was no supervisor, and a stop that was requested.
    fn find_exits(&mut self, children: &[(u32, u32)], stop: bool) -> Result<(), FleetError> {
        self.cells.orphans().iter().for_each(|&token| self.keeper.kill(token));
        let is_there = |token: u32| children.iter().any(|(child, _)| *child == token);
        let gone = |process: &&CellProcess| {
            !process.exited && process.token != NO_TOKEN && !is_there(process.token)
        };
        let processes = self.cells.as_slice().iter();
        let gone: Vec<u32> = processes.filter(gone).map(|process| process.token).collect();
        for token in gone {
            self.cell_exited(token, "while there was no supervisor", Ended::Unknown)?;
        }
        for (cell, epoch) in self.failed_starts() {
            self.apply(Event::CellExited { cell, epoch, by_itself: false })?;
        }
        self.end_given_up()?;
        let connections: Vec<ConnectionNo> = self.connections.stopping().collect();
        for &connection in &connections {
            self.send_stopping(connection);
        }
        if !connections.is_empty() {
            // The keeper holds these only once no mount blocks the stop.
            self.apply(if stop { Event::Stop } else { Event::TryStop })?;
        } else if stop {
            self.begin_stop(StopRequest::of_keeper())?;
        }
        self.keeper.send(&ToKeeper::Ready { cells: self.plan.cells })
    }

    /// Successors that could not be started, before the dead supervisor informed the core.
    fn failed_starts(&self) -> Vec<(CellId, Epoch)> {
        let cells = self.core.status().cells.into_iter();
        let failed =
            |cell: &CellStatus| cell.state == CellState::Starting && self.cells[cell.cell].exited;
        cells.filter(failed).map(|cell| (cell.cell, cell.epoch)).collect()
    }

    /// Once no orphan is left, the successors that are given up count as ended.
    pub(super) fn end_given_up(&mut self) -> Result<(), FleetError> {
        if self.cells.orphans().is_empty() {
            while self.cells.running(NO_TOKEN).is_some() {
                let how = "given up with the supervisor that started it";
                self.cell_exited(NO_TOKEN, how, Ended::FromOutside)?;
            }
        }
        Ok(())
    }
}

fn cell_notes(process: &CellProcess) -> CellNotes {
    CellNotes {
        epoch: process.epoch,
        token: process.token,
        alive: process.alive,
        exited: process.exited,
        behind: process.link.is_backed_up(),
        orders: process.orders,
        reports: process.reports,
        restarts: process.pauses.restarts,
        since: process.pauses.since,
        last_pause_ms: process.pauses.last.map(|last| last.as_millis() as u64),
    }
}

#[cfg(test)]
mod tests;
