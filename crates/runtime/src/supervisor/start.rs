//! Starting a fleet: pool, memory, door, cells.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use warren_base::{CellId, Epoch, Lsn, MapVersion};
use warren_cell::CellConfig;
use warren_disk::LogArea;
use warren_proto::{CapabilityKey, Wire};
use warren_shm::ShardMap;
use warren_supervisor::{Config, Ledger, Supervisor};

use super::descriptors::Reserve;
use super::journal::Journal;
use super::mailboxes::{Address, Mailboxes, entropy, inbox_name, supervisor_name};
use super::memory::FleetMemory;
use super::pool::{self, OpenPool};
use super::post::{CellPost, Door};
use super::record::Recorded;
use super::visitors::Visitors;
use super::{FIRST_EPOCH, Shell, keeper_died};
use crate::error::{FleetError, system};
use crate::keeper::pool_name;
use crate::launch::path_of;
use crate::link::{Link, Outbox};
use crate::message::{CellStart, FleetPlan, Kept, PeerDoor, Runs, ToKeeper};
use crate::place::PoolId;
use crate::pool_blocks;
use crate::process::{ROLE_CELL, role_args};
use crate::recovery;

/// The first version of the shard map.
pub(super) const FIRST_MAP: MapVersion = MapVersion(1);

/// Frames of a cell at least: less cannot hold the nodes and pages of one large operation.
const FRAMES_MIN: u64 = 1024;

/// Frames of a cell at most: what a cell numbers with room to spare (a terabyte).
const FRAMES_MAX: u64 = 1 << 28;

pub(super) fn open(keeper: &mut Outbox, plan: FleetPlan) -> Result<Shell<'_>, FleetError> {
    let path = path_of(&plan.pool);
    let (pool, mut ledger, mut copies) = OpenPool::open(&path)?;
    pool.reserve_used(&ledger)?;
    if recovery::is_needed(&ledger) {
        recovery::recover(&pool, ledger, copies)?;
        (ledger, copies) = pool_blocks::load(&pool, &path)?;
    }
    pool.discard_free(&ledger)?;
    let layout = ledger.superblock().layout;
    if usize::from(plan.cells) > layout.logs_max() {
        let (pool, most) = (path, layout.logs_max());
        return Err(FleetError::TooManyCells { pool, cells: plan.cells, most });
    }
    let epochs = vec![FIRST_EPOCH; usize::from(plan.cells)];
    let owners = pool::owners(layout.shards(), plan.cells);
    let map = ShardMap { version: FIRST_MAP, owners: owners.clone(), epochs: epochs.clone() };
    let frames =
        |cell| CellConfig::frames_total(frames_of_a_cell(&plan), log_area(&ledger, cell, &plan));
    let memory = FleetMemory::create(map, frames)?;
    let reserve = Reserve::of(usize::from(plan.cells));
    let visitors = Visitors::open(PoolId::of(&path)?, plan.clients, reserve)?;
    let mut mailboxes = Mailboxes::open(plan.cells)?;
    let (journal, capabilities) = (Journal::create()?, CapabilityKey([entropy()?, entropy()?]));
    let (mut cells, mut next_token) = (Vec::new(), 0);
    let mut starter = Starter {
        keeper,
        plan: &plan,
        pool: &pool,
        memory: &memory,
        mailboxes: &mut mailboxes,
        capabilities: &capabilities,
        next_token: &mut next_token,
    };
    starter.start_cells(&ledger, &mut cells)?;
    starter.keep(Kept::Pool, pool.kept()?)?;
    starter.keep(Kept::Map, vec![memory.kept_map()?])?;
    starter.keep(Kept::Door, vec![visitors.kept()?])?;
    starter.keep(Kept::Record, vec![journal.kept()?])?;
    let config = Config { epochs, map_version: FIRST_MAP, owners, ledger, recover: false, copies };
    Ok(Shell {
        plan,
        keeper,
        pool,
        memory,
        mailboxes,
        capabilities,
        core: Supervisor::new(config),
        shards: layout.shards(),
        total_blocks: layout.total_blocks(),
        cells,
        next_token,
        orphans: BTreeSet::new(),
        beginning: Vec::new(),
        visitors,
        applying: BTreeMap::new(),
        arrivals: BTreeMap::new(),
        clients: BTreeMap::new(),
        effects: Vec::new(),
        pending: VecDeque::new(),
        wake: None,
        ended: None,
        journal,
        departure: None,
        departures: 0,
        is_released: false,
        predecessors: 0,
        recorded: Recorded::default(),
    })
}

pub(super) fn frames_of_a_cell(plan: &FleetPlan) -> u32 {
    let frames = CellConfig::frames_for(plan.cache_bytes / u64::from(plan.cells));
    frames.clamp(FRAMES_MIN, FRAMES_MAX) as u32
}

pub(super) fn log_area(ledger: &Ledger, cell: CellId, plan: &FleetPlan) -> LogArea {
    let layout = ledger.superblock().layout;
    layout.log_area(usize::from(cell.0), usize::from(plan.cells))
}

/// How a cell finds its log and its frames.
pub(super) enum Beginning {
    /// Both empty, with these free chunks to give to its shards.
    Fresh(Vec<u64>),
    /// As its predecessor left them.
    Successor,
}

/// What is at hand while cells are started.
pub(super) struct Starter<'a> {
    pub keeper: &'a mut Outbox,
    pub plan: &'a FleetPlan,
    pub pool: &'a OpenPool,
    pub memory: &'a FleetMemory,
    pub mailboxes: &'a mut Mailboxes,
    pub capabilities: &'a CapabilityKey,
    pub next_token: &'a mut u32,
}

impl Starter<'_> {
    /// Has the processes started, each with all that only it needs, then gives every two their link.
    fn start_cells(
        &mut self,
        ledger: &Ledger,
        posts: &mut Vec<CellPost>,
    ) -> Result<(), FleetError> {
        let shares = pool::shares_of_free(ledger, self.plan.cells);
        for (cell, free_chunks) in (0..).map(CellId).zip(shares) {
            self.keep(Kept::Cell(cell), self.memory.kept_cell(cell)?)?;
            let devices = [self.pool.reopen()?, self.pool.reopen()?];
            let beginning = Beginning::Fresh(free_chunks);
            posts.push(self.start(cell, FIRST_EPOCH, beginning, devices, ledger)?);
        }
        for a in 0..posts.len() {
            for b in a + 1..posts.len() {
                let [for_a, for_b] = self.link(CellId(a as u16), CellId(b as u16), posts)?;
                posts[a].open_door(for_a);
                posts[b].open_door(for_b);
            }
        }
        posts.iter_mut().for_each(CellPost::begin);
        Ok(())
    }

    /// Has a cell's process started and tells it what only it needs. Its links come next. Of the devices
    /// one is for it, and one, opened before it can have written, for its successor: that will see every
    /// error that this one causes. After an error no process was asked for.
    pub(super) fn start(
        &mut self,
        cell: CellId,
        epoch: Epoch,
        beginning: Beginning,
        [own_device, next_device]: [OwnedFd; 2],
        ledger: &Ledger,
    ) -> Result<CellPost, FleetError> {
        let start = self.cell_start(cell, epoch, beginning, ledger)?;
        let mut fds = vec![self.pool.share()?, own_device];
        fds.extend(self.memory.for_start(cell)?);
        let (link, theirs) = Link::pair().map_err(system("make a cell's link"))?;
        let mut post = CellPost::new(epoch, *self.next_token, link, next_device);
        let kept = post.kept()?;
        self.spawn(cell, epoch, theirs)?;
        self.keep(Kept::Post(cell), kept)?;
        // A cell that is gone shows by its exit.
        let _ = post.link.send(start.to_bytes(), fds);
        Ok(post)
    }

    fn keep(&mut self, name: Kept, fds: Vec<OwnedFd>) -> Result<(), FleetError> {
        self.tell_keeper(&ToKeeper::Keep { name }, fds)
    }

    fn cell_start(
        &mut self,
        cell: CellId,
        epoch: Epoch,
        beginning: Beginning,
        ledger: &Ledger,
    ) -> Result<CellStart, FleetError> {
        let (superblock, map) = (ledger.superblock(), self.memory.map());
        let area = log_area(ledger, cell, self.plan);
        let logs = ledger.logs();
        let (free_chunks, successor) = match beginning {
            Beginning::Fresh(chunks) => (chunks, false),
            Beginning::Successor => (Vec::new(), true),
        };
        // The opening of the pool, which comes next, makes all logs anew.
        let (incarnation, log_from) = match successor {
            false => (superblock.generation + 1, Lsn(0)),
            true => (logs.incarnation, logs.starts[usize::from(cell.0)]),
        };
        Ok(CellStart {
            id: cell,
            epoch,
            cells: self.plan.cells,
            pool: self.plan.pool.clone(),
            map: map.owners.clone(),
            map_version: map.version,
            secret: superblock.secret,
            capabilities: self.capabilities.clone(),
            roots: pool::roots_of(ledger, &map.owners, cell),
            owned_chunks: pool::chunks_of(ledger, &map.owners, cell),
            free_chunks: Runs::of(&free_chunks),
            reserved_chunks: superblock.layout.reserved_chunks(),
            total_blocks: superblock.layout.total_blocks(),
            backing: self.pool.backing(ledger),
            frames: frames_of_a_cell(self.plan),
            log_start: area.start,
            log_blocks: area.blocks,
            log_from,
            successor,
            incarnation,
            generation: superblock.generation,
            supervisor: self.mailboxes.give(cell, &supervisor_name())?.capability,
        })
    }

    /// Asks the keeper for the cell's process, by the next token, with its end of its link.
    fn spawn(&mut self, cell: CellId, epoch: Epoch, link: Link) -> Result<(), FleetError> {
        let number = cell.to_string();
        let pool = pool_name(&self.plan.pool);
        let args = role_args([ROLE_CELL.as_bytes(), number.as_bytes(), pool]);
        let name = format!("cell {cell} (epoch {epoch})").into_bytes().into();
        let token = *self.next_token;
        *self.next_token += 1;
        self.tell_keeper(&ToKeeper::Spawn { token, name, args }, vec![link.into_fd()])
    }

    fn tell_keeper(&mut self, message: &ToKeeper, fds: Vec<OwnedFd>) -> Result<(), FleetError> {
        self.keeper.send(message.to_bytes(), fds).map_err(|_| keeper_died())
    }

    /// A link for two cells, as each of them gets it: each is found by the name of its inbox, and sends
    /// under a capability of its own.
    pub(super) fn link(
        &mut self,
        a: CellId,
        b: CellId,
        posts: &[CellPost],
    ) -> Result<[Door; 2], FleetError> {
        let a_to_b = self.mailboxes.give(a, &inbox_name(b))?;
        let b_to_a = self.mailboxes.give(b, &inbox_name(a))?;
        let (a_at, b_at) = (cell_at(b_to_a.address)?, cell_at(a_to_b.address)?);
        let [for_a, for_b] = self.memory.link(a_at, b_at)?;
        let (to, from) = (a_to_b.capability, b_to_a.capability);
        let door = |peer: CellId, capability, admits, fds| {
            let epoch = posts[usize::from(peer.0)].epoch;
            Door { door: PeerDoor { peer, epoch, capability, admits }, fds }
        };
        Ok([door(b_at, to, from, for_a), door(a_at, from, to, for_b)])
    }
}

/// The cell behind an inbox.
fn cell_at(address: Address) -> Result<CellId, FleetError> {
    match address {
        Address::Cell(cell) => Ok(cell),
        Address::Supervisor => Err(FleetError::Bug("an inbox of the supervisor".into())),
    }
}
