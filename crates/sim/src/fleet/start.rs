//! A fleet starts on a device, to serve or to replay the logs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, Epoch, Lsn, ShardId};
use warren_cell::{Backing, Cell, CellConfig, LogConfig, Planted, Recovery};
use warren_disk::{CopiesState, Owner, Superblock};
use warren_proto::control::Report;
use warren_supervisor::{Config, Ledger, Supervisor};

use super::disk::Disk;
use super::hang::Pause;
use super::lanes::ClientMemory;
use super::process::Slots;
use super::sparse::Host;
use super::{CellHost, Fleet, MAP_VERSION, SupervisorHost};
use crate::history::KEY;

/// Frames of a recovering cell, as in the runtime.
const RECOVERY_FRAMES: u32 = 4096;
/// More epochs than one cell has in one life.
const EPOCHS_OF_A_LIFE: u32 = 1000;

/// Whether many free chunks may be lost until a checkpoint has counted: those of every cell, those
/// of one other than `this`, or those that processes of `this` had fetched from others.
pub(crate) fn may_lack_chunks<H>(fleet: &Fleet<H>, this: CellId) -> bool {
    /// Each of them fetches half of what others have.
    const REPLACED_MAX: u32 = 3;
    let first = fleet.lives * EPOCHS_OF_A_LIFE;
    let is_alone = fleet.cells.len() == 1;
    (0..).map(CellId).zip(&fleet.cells).any(|(cell, host)| {
        let replaced = host.epoch.0.saturating_sub(first);
        replaced > if cell == this && !is_alone { REPLACED_MAX } else { 0 }
    })
}

/// The ledger on the device; an error if it is no pool that can be opened.
pub(crate) fn load_ledger(disk: &Disk) -> Result<(Ledger, CopiesState), String> {
    let read = |block: BlockNo, count: u64| {
        let mut bytes = vec![0; count as usize * BLOCK_SIZE];
        for (at, bytes) in (0..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
            bytes.copy_from_slice(disk.block(block.offset(at)));
        }
        bytes
    };
    let copies = [0, 1].map(|block| read(BlockNo(block), 1));
    let (superblock, copies) =
        Superblock::choose(&copies[0], &copies[1]).map_err(|error| format!("{error:?}"))?;
    let layout = superblock.layout;
    let regions = [0, 1].map(|copy| {
        let runs = layout.region_runs(copy);
        runs.flat_map(|(block, count)| read(block, count)).collect::<Vec<u8>>()
    });
    let slots = read(layout.roots_start(), 2 * layout.roots_blocks());
    let tables = [0, 1].map(|copy| read(layout.log_table(copy), 1));
    let (regions, tables) = ([&regions[0][..], &regions[1]], [&tables[0][..], &tables[1]]);
    let ledger = Ledger::load(superblock, regions, &slots, tables);
    Ok((ledger.map_err(|error| format!("{error:?}"))?, copies))
}

impl<H> Fleet<H> {
    /// Whether the device has logs to replay.
    pub(crate) fn needs_recovery(&self) -> Result<bool, String> {
        let (ledger, _) = load_ledger(&self.disk)?;
        Ok(!ledger.superblock().clean && !ledger.logs().starts.is_empty())
    }

    /// Starts so many cells, or one for each log, to replay them.
    pub(crate) fn start(&mut self, cells: Option<u16>) -> Result<(), String> {
        let (ledger, copies) = load_ledger(&self.disk)?;
        self.check_used(&ledger)?;
        let recover = cells.is_none();
        let cells = cells.unwrap_or(ledger.logs().starts.len() as u16);
        self.lives += 1;
        self.alarms = 0;
        let epoch = Epoch(self.lives * EPOCHS_OF_A_LIFE);
        if !recover && let Some(host) = &mut self.disk.host {
            let free = ledger.regions().iter().filter(|(_, owner)| *owner == Owner::Free);
            // A host that takes nothing back keeps them allocated.
            let _ = free.map(|(chunk, _)| chunk).try_for_each(|chunk| host.discard(chunk));
        }
        let shards = ledger.superblock().layout.shards();
        self.map = (0..shards).map(|shard| CellId(shard % cells)).collect();
        let mut started = Vec::new();
        for id in (0..cells).map(CellId) {
            let log = match recover {
                true => old_log(id, cells, &ledger, Recovery::Power),
                false => LogConfig {
                    incarnation: ledger.superblock().generation + 1,
                    start: Lsn(0),
                    ..old_log(id, cells, &ledger, Recovery::None)
                },
            };
            let config = self.cell_config((id, epoch), cells, &ledger, log);
            let frames = CellConfig::frames_total(config.frames, config.log.area);
            let frames = (config.frames, frames as usize);
            let mut effects = Vec::new();
            let cell = Cell::new(config, self.sim.clock(), &mut effects);
            self.cells.push(CellHost::new(cell, epoch, frames, self.disk.errors));
            started.push((id, effects));
        }
        let config = Config {
            epochs: vec![epoch; usize::from(cells)],
            map_version: MAP_VERSION,
            owners: self.map.clone(),
            ledger,
            recover,
            copies,
        };
        self.supervisor = SupervisorHost {
            supervisor: Some(Supervisor::new(config)),
            errors_seen: self.disk.errors,
            number: self.supervisor.number + 1,
            ..SupervisorHost::default()
        };
        (0..cells).for_each(|cell| self.make_links(CellId(cell)));
        self.links.values_mut().for_each(|link| link.is_open = true);
        for (id, effects) in started {
            effects.into_iter().for_each(|effect| self.carry_out(id, effect));
        }
        Ok(())
    }

    /// Every chunk of a shard must be allocated, whatever was cut.
    fn check_used(&self, ledger: &Ledger) -> Result<(), String> {
        let Some(host) = &self.disk.host else { return Ok(()) };
        let is_open = |(chunk, owner): &(u64, Owner)| *owner != Owner::Free && !host.has(*chunk);
        match ledger.regions().iter().find(is_open) {
            Some((chunk, owner)) => Err(format!("chunk {chunk} of {owner:?} is not allocated")),
            None => Ok(()),
        }
    }

    /// Replayed logs may claim chunks whose allocation was undone. A recovery has them allocated
    /// again.
    pub(super) fn reserve_replayed(&mut self, report: &Report) {
        if let (Report::Replayed { chunks, .. }, Some(host)) = (report, &mut self.disk.host) {
            chunks.iter().for_each(|chunk| host.force(*chunk));
        }
    }

    /// Puts the pool into a sparse file, on a host with room for so many more chunks.
    pub(crate) fn make_sparse(&mut self, room: u64) -> Result<(), String> {
        let (ledger, _) = load_ledger(&self.disk)?;
        let mut host = Host::new(room);
        let used = ledger.regions().iter().filter(|(_, owner)| *owner != Owner::Free);
        used.for_each(|(chunk, _)| host.force(chunk));
        (self.disk.host, self.space.backing) = (Some(host), Backing::OnDemand);
        Ok(())
    }

    /// The configuration of a dead cell's successor.
    pub(super) fn successor_config(&self, id: CellId) -> CellConfig {
        let (ledger, cells) = (self.supervisor().ledger(), self.cells.len() as u16);
        let kind = match self.cells[usize::from(id.0)].is_caretaker {
            true => Recovery::Caretaker,
            false => Recovery::Process,
        };
        let log = old_log(id, cells, ledger, kind);
        self.cell_config((id, self.epoch(id)), cells, ledger, log)
    }

    fn cell_config(
        &self,
        (id, epoch): (CellId, Epoch),
        cells: u16,
        ledger: &Ledger,
        log: LogConfig,
    ) -> CellConfig {
        let superblock = ledger.superblock();
        let shards = (0..self.map.len() as u16).map(ShardId);
        let own = shards.filter(|shard| self.owner(*shard) == id);
        let free = ledger.regions().iter().filter(|(_, owner)| *owner == Owner::Free);
        let share = free.take(self.chunks.unwrap_or(usize::MAX));
        let share = share.skip(usize::from(id.0)).step_by(usize::from(cells));
        CellConfig {
            id,
            epoch,
            cells,
            map: self.map.clone(),
            map_version: MAP_VERSION,
            secret: superblock.secret,
            capabilities: KEY,
            roots: own.filter_map(|shard| Some((shard, *ledger.root(shard)?))).collect(),
            lost: BTreeSet::new(),
            kept: Vec::new(),
            owned_chunks: ledger.chunks_of_shards(),
            free_chunks: match log.recovery {
                Recovery::Process | Recovery::Caretaker => Vec::new(),
                _ => share.map(|(chunk, _)| chunk).collect(),
            },
            bounds: superblock.layout.bounds(),
            total_blocks: superblock.layout.total_blocks(),
            space: self.space,
            frames: match log.recovery {
                Recovery::Power => RECOVERY_FRAMES,
                _ => self.frames,
            },
            nodes_max: self.nodes_max,
            log,
            generation: superblock.generation,
            plant: Planted::of(self.plant),
        }
    }

    /// All processes and messages vanish. Returns the writes in flight.
    pub(crate) fn vanish(&mut self) -> Vec<(BlockNo, Vec<u8>)> {
        self.sim.queue.clear();
        self.lost.vanish();
        self.links.clear();
        self.lanes = ClientMemory::default();
        let cells = std::mem::take(&mut self.cells);
        let of_cells = cells.iter().flat_map(CellHost::writes_under_way);
        let supervisor = std::mem::take(&mut self.supervisor.in_flight).into_values();
        of_cells.chain(supervisor.filter_map(|request| request.into_write())).collect()
    }
}

fn old_log(id: CellId, cells: u16, ledger: &Ledger, recovery: Recovery) -> LogConfig {
    let logs = ledger.logs();
    LogConfig {
        area: ledger.superblock().layout.log_area(usize::from(id.0), usize::from(cells)),
        incarnation: logs.incarnation,
        start: logs.starts.get(usize::from(id.0)).copied().unwrap_or(Lsn(0)),
        recovery,
        may_lose: false,
    }
}

impl CellHost {
    /// `frames`: those of its cache, and all.
    fn new(cell: Cell, epoch: Epoch, frames: (u32, usize), errors_seen: u64) -> Self {
        let (cache_frames, frames) = frames;
        Self {
            cell: Some(cell),
            epoch,
            cache_frames,
            frames: vec![None; frames],
            in_flight: BTreeMap::new(),
            errors_seen,
            dead: false,
            pause: Pause::default(),
            lies: None,
            is_sentenced: None,
            is_starting: false,
            is_to_end: false,
            is_caretaker: false,
            is_broken: false,
            ended_in_a_row: 0,
            wake: None,
            orders: VecDeque::new(),
            beginning: Some(0),
            reports: VecDeque::new(),
            slots: Slots::default(),
        }
    }
}
