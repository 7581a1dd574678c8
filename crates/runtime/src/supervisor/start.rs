//! Starting a fleet: pool, memory, control socket, cells.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use tracing::warn;
use warren_base::{CellId, Epoch, Lsn, MapVersion};
use warren_cell::{CellConfig, SpaceConfig, SpaceReserve};
use warren_disk::{LogArea, Superblock};
use warren_proto::{CapabilityKey, Wire};
use warren_shm::ShardMap;
use warren_supervisor::{Config, Ledger, Supervisor};

use super::cell_process::{CellProcess, LinkEnd};
use super::cells::Cells;
use super::connections::Connections;
use super::journal::Journal;
use super::keeper_link::KeeperLink;
use super::mailboxes::{Address, Mailboxes, entropy, inbox_name, supervisor_name};
use super::memory::FleetMemory;
use super::pool::{self, OpenPool};
use super::state::{Parts, SupervisorLoop};
use crate::error::{FleetError, system};
use crate::link::{Link, Outbox};
use crate::message::{Beginning, CellStart, FleetPlan, Kept, LogStart, PeerRoute, Runs, path_of};
use crate::pool::blocks;
use crate::pool::grow;
use crate::pool::recovery;
use crate::pool::shares;
use crate::privilege::Privilege;
use crate::process::{ROLE_CELL, pool_name, role_args};
use crate::reserve::Reserve;
use crate::socket_path::PoolId;

/// Every cell's first start.
pub(super) const FIRST_EPOCH: Epoch = Epoch(1);

/// The first version of the shard map.
pub(super) const FIRST_MAP: MapVersion = MapVersion(1);

/// The fewest frames of a cell: it must hold the nodes and pages of one large operation.
const FRAMES_MIN: u64 = 1024;

/// The most frames of a cell, which a frame number can hold with room to spare (a terabyte).
const FRAMES_MAX: u64 = 1 << 28;

pub(super) fn open(
    keeper: &mut Outbox,
    plan: FleetPlan,
    in_tables: bool,
    privilege: Privilege,
) -> Result<SupervisorLoop<'_>, FleetError> {
    let mut keeper = KeeperLink::new(keeper, 0, in_tables);
    let path = path_of(&plan.pool);
    let (pool, mut ledger, mut copies) = OpenPool::open(&path)?;
    pool.reserve_used(&ledger)?;
    if recovery::is_needed(&ledger) {
        recovery::recover(&pool, ledger, copies).map_err(|error| match error {
            FleetError::DamagedLogs(failure) => {
                FleetError::BadPool { pool: path.clone(), what: failure.to_string() }
            }
            error => error,
        })?;
        (ledger, copies) = blocks::load(&pool, &path)?;
    }
    pool.discard_free(&ledger)?;
    let layout = ledger.superblock().layout;
    let behind = pool.bytes_behind(&layout);
    if behind > 0 {
        warn!("{}", grow::behind_line(&path, behind));
    }
    if usize::from(plan.cells) > layout.logs_max() {
        let (pool, most) = (path, layout.logs_max());
        return Err(FleetError::TooManyCells { pool, cells: plan.cells, most });
    }
    let epochs = vec![FIRST_EPOCH; usize::from(plan.cells)];
    let owners = shares::owners(layout.shards(), plan.cells);
    let map = ShardMap { version: FIRST_MAP, owners: owners.clone(), epochs: epochs.clone() };
    let frames =
        |cell| CellConfig::frames_total(frames_of_a_cell(&plan), log_area(&ledger, cell, &plan));
    let memory = FleetMemory::create(map, frames)?;
    let reserve = Reserve::of(usize::from(plan.cells));
    let connections = Connections::open(PoolId::of(&path)?, (plan.clients, privilege), reserve)?;
    let mut mailboxes = Mailboxes::open(plan.cells)?;
    let (journal, capabilities) = (Journal::create()?, CapabilityKey([entropy()?, entropy()?]));
    let mut cells = Vec::new();
    let mut starter = Starter {
        keeper: &mut keeper,
        plan: &plan,
        pool: &pool,
        memory: &memory,
        mailboxes: &mut mailboxes,
        capabilities: &capabilities,
    };
    starter.start_cells(&ledger, &mut cells)?;
    keeper.keep(Kept::Pool, pool.kept()?)?;
    keeper.keep(Kept::Map, vec![memory.kept_map()?])?;
    keeper.keep(Kept::Listener, vec![connections.kept()?])?;
    keeper.keep(Kept::Record, vec![journal.kept()?])?;
    let config = Config { epochs, map_version: FIRST_MAP, owners, ledger, recover: false, copies };
    Ok(SupervisorLoop::new(Parts {
        plan,
        capabilities,
        predecessors: 0,
        keeper,
        pool,
        memory,
        mailboxes,
        core: Supervisor::new(config),
        cells: Cells::new(cells, BTreeSet::new()),
        connections,
        journal,
    }))
}

pub(super) fn frames_of_a_cell(plan: &FleetPlan) -> u32 {
    let frames = CellConfig::frames_for(plan.cache_bytes / u64::from(plan.cells));
    frames.clamp(FRAMES_MIN, FRAMES_MAX) as u32
}

pub(super) fn log_area(ledger: &Ledger, cell: CellId, plan: &FleetPlan) -> LogArea {
    let layout = ledger.superblock().layout;
    layout.log_area(usize::from(cell.0), usize::from(plan.cells))
}

/// The parts of the supervisor that the start of a cell needs.
pub(super) struct Starter<'a, 'k> {
    pub keeper: &'a mut KeeperLink<'k>,
    pub plan: &'a FleetPlan,
    pub pool: &'a OpenPool,
    pub memory: &'a FleetMemory,
    pub mailboxes: &'a mut Mailboxes,
    pub capabilities: &'a CapabilityKey,
}

impl Starter<'_, '_> {
    /// Starts the processes, sends each its own start message, then links every two of them.
    fn start_cells(
        &mut self,
        ledger: &Ledger,
        processes: &mut Vec<CellProcess>,
    ) -> Result<(), FleetError> {
        let shares = shares::shares_of_free(ledger, self.plan.cells);
        for (cell, free_chunks) in (0..).map(CellId).zip(shares) {
            self.keeper.keep(Kept::Cell(cell), self.memory.kept_cell(cell)?)?;
            let devices = [self.pool.reopen()?, self.pool.reopen()?];
            let beginning = (Beginning::Fresh, free_chunks);
            processes.push(self.start(cell, FIRST_EPOCH, beginning, devices, ledger)?);
        }
        for a in 0..processes.len() {
            for b in a + 1..processes.len() {
                let [for_a, for_b] = self.link(CellId(a as u16), CellId(b as u16), processes)?;
                processes[a].send_link(for_a);
                processes[b].send_link(for_b);
            }
        }
        processes.iter_mut().for_each(CellProcess::send_begin);
        Ok(())
    }

    /// Starts a cell's process and sends it its start message. Its links follow. One of the devices
    /// is for it. The other was opened before this process can write, and is for its successor,
    /// which will see every write error that this process causes. The first cells distribute free
    /// chunks to their shards. After an error no process was requested.
    pub(super) fn start(
        &mut self,
        cell: CellId,
        epoch: Epoch,
        (beginning, free_chunks): (Beginning, Vec<u64>),
        [own_device, next_device]: [OwnedFd; 2],
        ledger: &Ledger,
    ) -> Result<CellProcess, FleetError> {
        let start = self.cell_start(cell, epoch, (beginning, &free_chunks), ledger)?;
        let mut fds = vec![self.pool.share()?, own_device];
        fds.extend(self.memory.for_start(cell)?);
        let (link, theirs) = Link::pair().map_err(system("make a cell's link"))?;
        let mut process = CellProcess::new(epoch, self.keeper.next_token(), link, next_device);
        let kept = process.kept()?;
        self.spawn(cell, epoch, theirs)?;
        self.keeper.keep(Kept::Process(cell), kept)?;
        // If the cell is gone its exit shows it.
        let _ = process.link.send(start.to_bytes(), fds);
        Ok(process)
    }

    fn cell_start(
        &mut self,
        cell: CellId,
        epoch: Epoch,
        (beginning, free_chunks): (Beginning, &[u64]),
        ledger: &Ledger,
    ) -> Result<CellStart, FleetError> {
        let (superblock, map) = (ledger.superblock(), self.memory.map());
        let area = log_area(ledger, cell, self.plan);
        let logs = ledger.logs();
        let (incarnation, from) = match beginning {
            // The opening of the pool, which comes next, starts new logs.
            Beginning::Fresh => (superblock.generation + 1, Lsn(0)),
            Beginning::Successor | Beginning::Caretaker => {
                (logs.incarnation, logs.starts[usize::from(cell.0)])
            }
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
            free_chunks: Runs::of(free_chunks),
            reserved_chunks: superblock.layout.reserved_chunks(),
            first_pages: superblock.layout.first_pages(),
            total_blocks: superblock.layout.total_blocks(),
            space: SpaceConfig {
                reserve: reserve_of_a_cell(superblock, self.plan.cells),
                ..SpaceConfig::of(self.pool.backing(ledger))
            },
            frames: frames_of_a_cell(self.plan),
            log: LogStart { start: area.start, blocks: area.blocks, from, incarnation },
            beginning,
            generation: superblock.generation,
            supervisor: self.mailboxes.grant(cell, &supervisor_name())?.capability,
        })
    }

    /// Asks the keeper for the cell's process, with the next token and its end of the link.
    fn spawn(&mut self, cell: CellId, epoch: Epoch, link: Link) -> Result<(), FleetError> {
        let number = cell.to_string();
        let pool = pool_name(&self.plan.pool);
        let args = role_args([ROLE_CELL.as_bytes(), number.as_bytes(), pool]);
        self.keeper.spawn(format!("cell {cell} (epoch {epoch})"), args, link)
    }

    /// A link between two cells, for each of them. Each is found by the name of its inbox, and
    /// sends with its own capability.
    pub(super) fn link(
        &mut self,
        a: CellId,
        b: CellId,
        processes: &[CellProcess],
    ) -> Result<[LinkEnd; 2], FleetError> {
        let a_to_b = self.mailboxes.grant(a, &inbox_name(b))?;
        let b_to_a = self.mailboxes.grant(b, &inbox_name(a))?;
        let (a_at, b_at) = (cell_at(b_to_a.address)?, cell_at(a_to_b.address)?);
        let [for_a, for_b] = self.memory.link(a_at, b_at)?;
        let (to, from) = (a_to_b.capability, b_to_a.capability);
        let end = |peer: CellId, capability, admits, fds| {
            let epoch = processes[usize::from(peer.0)].epoch;
            LinkEnd { link: PeerRoute { peer, epoch, capability, admits }, fds }
        };
        Ok([end(b_at, to, from, for_a), end(a_at, from, to, for_b)])
    }
}

/// The cell behind an inbox.
fn cell_at(address: Address) -> Result<CellId, FleetError> {
    match address {
        Address::Cell(cell) => Ok(cell),
        Address::Supervisor => Err(FleetError::Bug("an inbox of the supervisor".into())),
    }
}

/// Each cell keeps its part of the chunks that ordinary users must leave.
fn reserve_of_a_cell(superblock: &Superblock, cells: u16) -> SpaceReserve {
    let chunks = superblock.kept_chunks() / u64::from(cells);
    SpaceReserve { chunks, owner: rustix::process::geteuid().as_raw() }
}

#[cfg(test)]
mod tests {
    use warren_base::Timestamp;
    use warren_disk::Layout;

    use super::*;

    #[test]
    fn each_cell_keeps_its_part_of_what_the_pool_says() {
        let layout = Layout::new(1 << 20, 256, 16_386).expect("a layout");
        let chunks = layout.chunks() - layout.reserved_chunks();
        let kept = |kept_percent, cells| {
            let superblock = Superblock {
                uuid: [0; 16],
                secret: 0,
                generation: 1,
                layout,
                created: Timestamp(0),
                label: String::new(),
                clean: true,
                reserved: false,
                kept_percent,
                dense_inos: true,
            };
            reserve_of_a_cell(&superblock, cells).chunks
        };
        assert_eq!(kept(None, 1), chunks / 16);
        assert_eq!((kept(Some(0), 4), kept(Some(50), 4)), (0, chunks / 2 / 4));
    }
}
