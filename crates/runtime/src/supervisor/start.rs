//! Starting a fleet: pool, memory, door, cells.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, MapVersion};
use warren_cell::CellConfig;
use warren_proto::Wire;
use warren_shm::ShardMap;
use warren_supervisor::{Config, Ledger, Supervisor};

use super::mailboxes::{Address, Mailboxes, inbox_name, supervisor_name};
use super::memory::{self, FleetMemory};
use super::pool::{self, OpenPool};
use super::visitors::Visitors;
use super::{CellPost, FIRST_EPOCH, Shell, keeper_died};
use crate::error::{FleetError, system};
use crate::keeper::pool_name;
use crate::launch::path_of;
use crate::link::{Link, Outbox};
use crate::message::{CellStart, FleetPlan, PeerDoor, Runs, ToKeeper};
use crate::place::PoolId;
use crate::pool_blocks;
use crate::process::{ROLE_CELL, role_args};
use crate::recovery;

/// The first version of the shard map.
const FIRST_MAP: MapVersion = MapVersion(1);

/// Frames of a cell at least: less cannot hold the nodes and pages of one large operation.
const FRAMES_MIN: u64 = 1024;

/// Frames of a cell at most: what a cell numbers with room to spare (a terabyte).
const FRAMES_MAX: u64 = 1 << 28;

pub(super) fn open(keeper: &mut Outbox, plan: FleetPlan) -> Result<Shell<'_>, FleetError> {
    let path = path_of(&plan.pool);
    let (pool, mut ledger, mut copies) = OpenPool::open(&path)?;
    if recovery::is_needed(&ledger) {
        recovery::recover(&pool, ledger, copies)?;
        (ledger, copies) = pool_blocks::load(&pool, &path)?;
    }
    let layout = ledger.superblock().layout;
    if usize::from(plan.cells) > layout.logs_max() {
        let (pool, most) = (path, layout.logs_max());
        return Err(FleetError::TooManyCells { pool, cells: plan.cells, most });
    }
    let epochs = vec![FIRST_EPOCH; usize::from(plan.cells)];
    let map = ShardMap {
        version: FIRST_MAP,
        owners: pool::owners(layout.shards(), plan.cells),
        epochs: epochs.clone(),
    };
    let memory = FleetMemory::create(&map)?;
    let visitors = Visitors::open(PoolId::of(&path)?)?;
    let mut mailboxes = Mailboxes::open(plan.cells)?;
    let mut starter =
        Starter { keeper, plan: &plan, pool: &pool, memory: &memory, mailboxes: &mut mailboxes };
    let mut cells = starter.start_cells(&ledger, &map)?;
    starter.introduce(&mut cells)?;
    let owners = map.owners;
    let config = Config { epochs, map_version: FIRST_MAP, owners, ledger, recover: false, copies };
    Ok(Shell {
        plan,
        keeper,
        pool,
        memory,
        mailboxes,
        core: Supervisor::new(config),
        shards: layout.shards(),
        total_blocks: layout.total_blocks(),
        cells,
        visitors,
        applying: BTreeMap::new(),
        arrivals: BTreeMap::new(),
        effects: Vec::new(),
        pending: VecDeque::new(),
        wake: None,
        ended: None,
        first_failure: None,
    })
}

/// What is at hand while cells are started.
struct Starter<'a> {
    keeper: &'a mut Outbox,
    plan: &'a FleetPlan,
    pool: &'a OpenPool,
    memory: &'a FleetMemory,
    mailboxes: &'a mut Mailboxes,
}

impl Starter<'_> {
    /// Has the processes started, each with all that only it needs.
    fn start_cells(
        &mut self,
        ledger: &Ledger,
        map: &ShardMap,
    ) -> Result<Vec<CellPost>, FleetError> {
        let mut posts = Vec::new();
        let shares = pool::shares_of_free(ledger, self.plan.cells);
        for (cell, free_chunks) in (0..).map(CellId).zip(shares) {
            let superblock = ledger.superblock();
            let (log, logs) = (usize::from(cell.0), usize::from(self.plan.cells));
            let area = superblock.layout.log_area(log, logs);
            let start = CellStart {
                id: cell,
                epoch: FIRST_EPOCH,
                cells: self.plan.cells,
                pool: self.plan.pool.clone(),
                map: map.owners.clone(),
                map_version: map.version,
                secret: superblock.secret,
                roots: pool::roots_of(ledger, &map.owners, cell),
                owned_chunks: pool::chunks_of(ledger, &map.owners, cell),
                free_chunks: Runs::of(&free_chunks),
                reserved_chunks: superblock.layout.reserved_chunks(),
                total_blocks: superblock.layout.total_blocks(),
                frames: self.frames_of_a_cell(),
                log_start: area.start,
                log_blocks: area.blocks,
                incarnation: superblock.generation + 1,
                generation: superblock.generation,
                supervisor: self.mailboxes.give(cell, &supervisor_name())?.capability,
            };
            let mut link = Outbox::new(self.spawn(cell)?);
            let total = CellConfig::frames_total(start.frames, area);
            let frames = self.make_frames(cell, total)?;
            let mut fds = vec![self.pool.share()?];
            fds.extend(self.memory.for_start(cell, frames)?);
            link.send(start.to_bytes(), fds).map_err(system("brief a cell"))?;
            posts.push(CellPost { link, pid: 0, alive: true, exited: false });
        }
        Ok(posts)
    }

    fn frames_of_a_cell(&self) -> u32 {
        let frames = self.plan.cache_bytes / BLOCK_SIZE as u64 / u64::from(self.plan.cells);
        frames.clamp(FRAMES_MIN, FRAMES_MAX) as u32
    }

    /// Asks the keeper for the cell's process; gives the supervisor's end of its link.
    fn spawn(&mut self, cell: CellId) -> Result<Link, FleetError> {
        let (ours, theirs) = Link::pair().map_err(system("make a cell's link"))?;
        let number = cell.to_string();
        let name = pool_name(&self.plan.pool);
        let args = role_args([ROLE_CELL.as_bytes(), number.as_bytes(), name]);
        let spawn = ToKeeper::Spawn { token: u32::from(cell.0), args };
        self.tell_keeper(&spawn, vec![theirs.into_fd()])?;
        Ok(ours)
    }

    /// Memory of the cell's buffer cache, which the keeper holds too.
    fn make_frames(&mut self, cell: CellId, count: u32) -> Result<OwnedFd, FleetError> {
        let frames = memory::frames(cell, count)?;
        let copy = frames.try_clone().map_err(system("share memory"))?;
        let name = format!("/cell/{cell}/frames").into_bytes().into();
        self.tell_keeper(&ToKeeper::Keep { name }, vec![copy])?;
        Ok(frames)
    }

    fn tell_keeper(&mut self, message: &ToKeeper, fds: Vec<OwnedFd>) -> Result<(), FleetError> {
        self.keeper.send(message.to_bytes(), fds).map_err(|_| keeper_died())
    }

    /// Gives every two cells their link: each is found by the name of its inbox, and sends under a
    /// capability of its own.
    fn introduce(&mut self, cells: &mut [CellPost]) -> Result<(), FleetError> {
        for a in (0..self.plan.cells).map(CellId) {
            for b in (a.0 + 1..self.plan.cells).map(CellId) {
                let a_to_b = self.mailboxes.give(a, &inbox_name(b))?;
                let b_to_a = self.mailboxes.give(b, &inbox_name(a))?;
                let (a_at, b_at) = (cell_at(b_to_a.address)?, cell_at(a_to_b.address)?);
                let [for_a, for_b] = self.memory.link(a_at, b_at)?;
                let (to, from) = (a_to_b.capability, b_to_a.capability);
                let doors = [(a_at, b_at, to, from, for_a), (b_at, a_at, from, to, for_b)];
                for (cell, peer, capability, admits, fds) in doors {
                    let door = PeerDoor { peer, epoch: FIRST_EPOCH, capability, admits };
                    let link = &mut cells[usize::from(cell.0)].link;
                    link.send(door.to_bytes(), fds).map_err(system("introduce cells"))?;
                }
            }
        }
        Ok(())
    }
}

/// The cell behind an inbox.
fn cell_at(address: Address) -> Result<CellId, FleetError> {
    match address {
        Address::Cell(cell) => Ok(cell),
        Address::Supervisor => Err(FleetError::Bug("an inbox of the supervisor".into())),
    }
}
