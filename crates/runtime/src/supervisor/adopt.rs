//! A supervisor takes over from one that died.
//!
//! ```text
//! descriptors and notes -> flush, ledger -> memory, mailboxes, links, visitors as they were
//!   -> what the dead one was about to do -> what the device says of its checkpoint -> who ended meanwhile
//! ```
//!
//! Orders that a cell has heard already it drops by their number, and reports that the dead one had taken in
//! are known by theirs; reports that it had not taken are still in the sockets. Visitors of which nothing was
//! kept were hung up on by its death and come again ([`crate::door`]).
//!
//! A successor of a cell whose start is among the effects is given up: half of what it needs was in the dead
//! one's memory. Its process is ended, if there is one, and it counts as lost at once. So does a cell to which
//! something was still to be sent that it had not taken in time, and one whose start had failed when the core
//! was not told yet.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use tracing::warn;
use warren_base::{CellId, ClientId, Epoch};
use warren_log::LIFE;
use warren_proto::Wire;
use warren_shm::ShardMap;
use warren_supervisor::{
    CellState, CellStatus, ClientState, ClientStatus, ConnectionNo, Effect, Estate, Event,
    Supervisor,
};

use super::descriptors::Reserve;
use super::journal::{ClientNotes, Journal, Notes, PostNotes};
use super::mailboxes::Mailboxes;
use super::memory::{ClientMemory, FleetMemory, incomplete};
use super::pool::{self, OpenPool};
use super::post::{CellPost, Ended, Pauses};
use super::record::Recorded;
use super::start::FIRST_MAP;
use super::visitors::Visitors;
use super::{Arrival, Shell, keeper_died};
use crate::clock;
use crate::error::{FleetError, system};
use crate::launch::path_of;
use crate::link::{Link, Outbox, Received, Trust, Wait};
use crate::message::{DoorReply, FromKeeper, Handover, Kept, ToKeeper};
use crate::pool_blocks::{self, Blocks};

/// The token of a process that nobody will ever hear of.
const NOBODY: u32 = u32::MAX;

/// What the keeper holds.
struct Estates(BTreeMap<Kept, Vec<OwnedFd>>);

impl Estates {
    fn receive(keeper: &mut Outbox, count: u32) -> Result<Self, FleetError> {
        let mut kept = BTreeMap::new();
        while kept.len() < count as usize {
            let received = keeper.link.receive(Wait::Yes).map_err(system("take over"))?;
            let Received::Packet(packet) = received else { return Err(keeper_died()) };
            match FromKeeper::from_bytes(&packet.bytes) {
                Ok(FromKeeper::Kept { name }) => drop(kept.insert(name, packet.fds)),
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

/// The cells whose start is among the effects, with the epochs of what was started.
fn voids(notes: &Notes) -> BTreeMap<CellId, Epoch> {
    let start = |effect: &Effect| match effect {
        Effect::Restart { cell, epoch } => Some((*cell, *epoch)),
        _ => None,
    };
    notes.effects.iter().filter_map(start).collect()
}

/// Connections that become clients with the effects.
fn newcomers(notes: &Notes) -> BTreeMap<u64, ClientId> {
    let newcomer = |effect: &Effect| match effect {
        Effect::NewClient { connection, client } => Some((connection.0, *client)),
        _ => None,
    };
    notes.effects.iter().filter_map(newcomer).collect()
}

pub(super) fn take_over(keeper: &mut Outbox, handover: Handover) -> Result<Shell<'_>, FleetError> {
    let mut kept = Estates::receive(keeper, handover.kept)?;
    let (journal, notes) = Journal::adopt(kept.take_one(Kept::Record)?)?;
    let path = path_of(&handover.plan.pool);
    let pool = OpenPool::adopt(kept.take(Kept::Pool)?, &path)?;
    let flushed = pool.flush();
    let (ledger, copies) = pool_blocks::load(&pool, &path)?;
    let layout = ledger.superblock().layout;
    let posts = posts(&notes, &handover, &mut kept, &pool)?;
    let memory = memory(&mut kept, layout.shards(), &posts)?;
    let flushed = memory.judge_flush(flushed);
    let (core, effects) = core(Estate { record: &notes.core, ledger, copies, flushed })?;
    let cells = (0..handover.plan.cells).map(CellId);
    let in_place = cells.filter(|cell| !notes.posts[usize::from(cell.0)].exited);
    let mailboxes = Mailboxes::adopt(in_place, notes.given.clone(), notes.reports_refused)?;
    let listener = kept.take_one(Kept::Door)?;
    let (door, reserve) = (path_of(&notes.door), Reserve::of(posts.len()));
    let clients = handover.plan.clients;
    let visitors = Visitors::adopt(listener, door, clients, notes.next_connection, reserve);
    visitors.listen()?;
    let tokens: BTreeSet<u32> = posts.iter().map(|post| post.token).collect();
    let wards = handover.wards.iter().map(|&(token, _)| token);
    let next_token = wards.clone().map(|token| token + 1).fold(notes.next_token, u32::max);
    let orphans = wards.filter(|token| !tokens.contains(token)).collect();
    let mut shell = Shell {
        keeper,
        pool,
        memory,
        mailboxes,
        capabilities: notes.capabilities.clone(),
        core,
        shards: layout.shards(),
        total_blocks: layout.total_blocks(),
        cells: posts,
        next_token,
        orphans,
        beginning: Vec::new(),
        visitors,
        applying: BTreeMap::new(),
        arrivals: BTreeMap::new(),
        clients: BTreeMap::new(),
        effects: Vec::new(),
        pending: Default::default(),
        wake: None,
        ended: None,
        journal,
        departure: None,
        departures: 0,
        is_released: false,
        predecessors: handover.predecessors,
        recorded: Recorded::default(),
        plan: handover.plan,
    };
    shell.readmit(&mut kept, &notes)?;
    shell.catch_up(notes, effects)?;
    shell.look_around(&handover.wards, handover.stop)?;
    let ms = (clock::monotonic() - handover.died).as_millis();
    let death = shell.predecessors;
    warn!(target: LIFE, "the supervisor serves again after {ms} ms (death {death})");
    Ok(shell)
}

/// The core, and what it wants done first.
fn core(estate: Estate<'_>) -> Result<(Supervisor, Vec<Effect>), FleetError> {
    let mut effects = Vec::new();
    let core = Supervisor::adopt(estate, clock::monotonic(), clock::wall(), &mut effects);
    Ok((core.map_err(|_| incomplete())?, effects))
}

fn memory(kept: &mut Estates, shards: u16, posts: &[CellPost]) -> Result<FleetMemory, FleetError> {
    let cells = posts.len() as u16;
    let map = ShardMap {
        version: FIRST_MAP,
        owners: pool::owners(shards, cells),
        epochs: posts.iter().map(|post| post.epoch).collect(),
    };
    let memories = (0..cells).map(|cell| kept.take(Kept::Cell(CellId(cell))));
    let memories = memories.collect::<Result<Vec<_>, _>>()?;
    FleetMemory::adopt(kept.take_one(Kept::Map)?, map, memories.into_iter())
}

/// The cells' posts as they were; those of voids as if their processes were about to end.
fn posts(
    notes: &Notes,
    handover: &Handover,
    kept: &mut Estates,
    pool: &OpenPool,
) -> Result<Vec<CellPost>, FleetError> {
    let voids = voids(notes);
    let mut posts = Vec::new();
    for (cell, notes) in (0..).map(CellId).zip(&notes.posts) {
        let mut fds = kept.take(Kept::Post(cell))?.into_iter();
        let link = Link::new(fds.next().ok_or_else(incomplete)?, Trust::Fleet);
        let mut post = match (voids.get(&cell), fds.next()) {
            (None, Some(next_device)) => CellPost::new(notes.epoch, notes.token, link, next_device),
            (None, None) => return Err(incomplete()),
            (Some(&epoch), next_device) => {
                let next_device = next_device.map_or_else(|| pool.reopen(), Ok)?;
                // Nobody hears what is said to it.
                let nobody = Link::pair().map_err(system("make a cell's link"))?.0;
                CellPost::new(epoch, NOBODY, nobody, next_device)
            }
        };
        let is_void = voids.contains_key(&cell);
        let PostNotes { alive, exited, orders, reports, restarts, since, .. } = *notes;
        (post.alive, post.exited) = (alive && !is_void, exited && !is_void);
        (post.orders, post.reports) = (orders, reports);
        let last = notes.last_pause_ms.map(std::time::Duration::from_millis);
        post.pauses = Pauses { restarts, since, last };
        let pid = handover.wards.iter().find(|(token, _)| *token == post.token);
        post.pid = pid.map_or(0, |&(_, pid)| pid);
        posts.push(post);
    }
    match posts.len() == usize::from(handover.plan.cells) {
        true => Ok(posts),
        false => Err(incomplete()),
    }
}

impl Shell<'_> {
    /// What the next supervisor must know if this one dies now.
    pub(super) fn notes(&self, effects: &[Effect]) -> Notes {
        let clients = self
            .clients
            .iter()
            .map(|(&client, memory)| ClientNotes { client, connection: memory.connection.0 });
        Notes {
            core: self.core.record().into(),
            effects: effects.iter().filter(|effect| effect.is_repeatable()).cloned().collect(),
            next_token: self.next_token,
            posts: self.cells.iter().map(post_notes).collect(),
            given: self.mailboxes.given(),
            capabilities: self.capabilities.clone(),
            reports_refused: self.mailboxes.refused,
            clients: clients.collect(),
            door: self.visitors.path().as_os_str().as_bytes().into(),
            next_connection: self.visitors.next(),
        }
    }

    /// Visitors who are clients, are about to become some, or wait for the end. Others of whom something is
    /// kept had not been heard yet.
    fn readmit(&mut self, kept: &mut Estates, notes: &Notes) -> Result<(), FleetError> {
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
                self.tell_keeper(&ToKeeper::Forget { name })?;
                continue;
            };
            let client = status.client;
            let memory = ClientMemory::adopt(connection, status.slots, fds)?;
            if !self.visitors.readmit(connection, socket, Some(client)) {
                self.pending.push_back(Event::Hangup { client });
            }
            if newcomers.contains_key(&number) {
                let arrival = self.arrival(&memory)?;
                self.applying.insert(connection, (arrival, memory));
                continue;
            }
            let admits = Effect::AdmitClient { client };
            if status.state == ClientState::Admitting || notes.effects.contains(&admits) {
                let arrival = self.arrival(&memory)?;
                self.arrivals.insert(client, arrival);
            }
            self.clients.insert(client, memory);
        }
        for (name, fds) in std::mem::take(&mut kept.0) {
            if let (Kept::Stopping(number), Some(socket)) = (name, fds.into_iter().next()) {
                self.visitors.readmit(ConnectionNo(number), socket, None);
            }
        }
        Ok(())
    }

    fn arrival(&self, memory: &ClientMemory) -> Result<Arrival, FleetError> {
        let (connection, slots) = (memory.connection, memory.slots);
        Ok(Arrival { connection, slots, fds: self.memory.welcome(memory)? })
    }

    /// Does what the dead one was about to do, and what the core makes of the device.
    fn catch_up(&mut self, notes: Notes, effects: Vec<Effect>) -> Result<(), FleetError> {
        for effect in notes.effects {
            // Of a process that is given up its exit tells.
            if !matches!(effect, Effect::Restart { .. }) {
                self.carry_out(effect)?;
            }
        }
        for (at, notes) in notes.posts.iter().enumerate() {
            let cell = &self.cells[at];
            if !cell.exited && cell.token == notes.token && (notes.behind || !notes.alive) {
                self.kill(CellId(at as u16));
            }
        }
        self.record(&effects);
        self.note(&effects)?;
        // Not before it is noted how the flush went, and before this one writes.
        let spare = ToKeeper::Keep { name: Kept::Pool }.to_bytes();
        self.keeper.send(spare, self.pool.kept()?).map_err(|_| keeper_died())?;
        self.settle()?;
        self.follow(effects)?;
        self.apply_pending()
    }

    /// Hears of who ended while nobody was there, and of who shall.
    fn look_around(&mut self, wards: &[(u32, u32)], stop: bool) -> Result<(), FleetError> {
        for &token in &self.orphans {
            // A keeper that is gone takes this process with it.
            let _ = self.keeper.send(ToKeeper::Kill { token }.to_bytes(), Vec::new());
        }
        let is_there = |token: u32| wards.iter().any(|(ward, _)| *ward == token);
        let gone = |post: &&CellPost| !post.exited && post.token != NOBODY && !is_there(post.token);
        let gone: Vec<u32> = self.cells.iter().filter(gone).map(|post| post.token).collect();
        for token in gone {
            self.cell_exited(token, "while there was no supervisor", Ended::Unknown)?;
        }
        for (cell, epoch) in self.failed_starts() {
            self.apply(Event::CellExited { cell, epoch, by_itself: false })?;
        }
        self.bury()?;
        let connections: Vec<ConnectionNo> = self.visitors.stopping().collect();
        for &connection in &connections {
            self.tell_stopping(connection);
        }
        if !connections.is_empty() {
            // These are kept from when no mount stood in the way any more.
            self.apply(if stop { Event::Stop } else { Event::TryStop })?;
        } else if stop {
            self.depart(true, false, None)?;
        }
        self.tell_keeper(&ToKeeper::Ready { cells: self.plan.cells })
    }

    /// Successors that could not be started, of which the dead one had not come to tell the core.
    fn failed_starts(&self) -> Vec<(CellId, Epoch)> {
        let cells = self.core.status().cells.into_iter();
        let failed = |cell: &CellStatus| {
            cell.state == CellState::Starting && self.cells[usize::from(cell.cell.0)].exited
        };
        cells.filter(failed).map(|cell| (cell.cell, cell.epoch)).collect()
    }

    /// Once no process is left that nobody knows, successors that were given up have ended.
    pub(super) fn bury(&mut self) -> Result<(), FleetError> {
        if self.orphans.is_empty() {
            while self.cells.iter().any(|post| post.token == NOBODY && !post.exited) {
                let how = "given up with the supervisor that started it";
                self.cell_exited(NOBODY, how, Ended::FromOutside)?;
            }
        }
        Ok(())
    }

    pub(super) fn tell_stopping(&mut self, connection: ConnectionNo) {
        let keeper = rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid());
        let stopping = DoorReply::Stopping { keeper: keeper.unsigned_abs() };
        self.visitors.tell(connection, &stopping, Vec::new());
    }
}

fn post_notes(post: &CellPost) -> PostNotes {
    PostNotes {
        epoch: post.epoch,
        token: post.token,
        alive: post.alive,
        exited: post.exited,
        behind: post.link.is_backed_up(),
        orders: post.orders,
        reports: post.reports,
        restarts: post.pauses.restarts,
        since: post.pauses.since,
        last_pause_ms: post.pauses.last.map(|last| last.as_millis() as u64),
    }
}

#[cfg(test)]
mod tests;
