//! A fleet starts on a device, to serve or to replay the logs.

use std::collections::BTreeSet;

use warren_base::{CellId, Epoch, Lsn};
use warren_cell::{Backing, Cell, CellConfig, LogConfig, Planted, Recovery};
use warren_disk::Owner;
use warren_proto::control::Report;
use warren_supervisor::{Config, Ledger, Supervisor};

use super::device::disk::Disk;
use super::device::sparse::Host;
use super::effect::carry_out;
use super::{CellHost, Fleet, MAP_VERSION, SupervisorHost, load_ledger};
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

impl<H> Fleet<H> {
    /// Starts `cells` cells, or one for each log, to replay them.
    pub(crate) fn start(&mut self, cells: Option<u16>) -> Result<(), String> {
        let (ledger, copies) = load_ledger(&self.device.disk)?;
        check_used(&self.device.disk, &ledger)?;
        let recover = cells.is_none();
        let cells = cells.unwrap_or(ledger.logs().starts.len() as u16);
        self.lives += 1;
        let epoch = Epoch(self.lives * EPOCHS_OF_A_LIFE);
        if !recover && let Some(host) = &mut self.device.disk.host {
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
            self.device.open(Some(id));
            self.cells.push(CellHost::new(id, cell, epoch, frames));
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
            wake: None,
            number: self.supervisor.number + 1,
        };
        self.device.open(None);
        self.links.begin(&mut self.sim, cells);
        for (id, effects) in started {
            effects.into_iter().for_each(|effect| carry_out(self, id, effect));
        }
        Ok(())
    }

    /// Puts the pool into a sparse file, on a host with room for so many more chunks.
    pub(crate) fn make_sparse(&mut self, room: u64) -> Result<(), String> {
        let (ledger, _) = load_ledger(&self.device.disk)?;
        let mut host = Host::new(room);
        let used = ledger.regions().iter().filter(|(_, owner)| *owner != Owner::Free);
        used.for_each(|(chunk, _)| host.force(chunk));
        (self.device.disk.host, self.sizes.space.backing) = (Some(host), Backing::OnDemand);
        Ok(())
    }

    fn cell_config(
        &self,
        (id, epoch): (CellId, Epoch),
        cells: u16,
        ledger: &Ledger,
        log: LogConfig,
    ) -> CellConfig {
        let superblock = ledger.superblock();
        let own = self.shards_of(id);
        let free = ledger.regions().iter().filter(|(_, owner)| *owner == Owner::Free);
        let share = free.take(self.sizes.chunks.unwrap_or(usize::MAX));
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
            space: self.sizes.space,
            frames: match log.recovery {
                Recovery::Power => RECOVERY_FRAMES,
                _ => self.sizes.frames,
            },
            nodes_max: self.sizes.nodes_max,
            log,
            generation: superblock.generation,
            plant: Planted::of(self.sim.plant),
        }
    }
}

/// The configuration of a dead cell's successor.
pub(super) fn successor_config<H>(fleet: &Fleet<H>, id: CellId) -> CellConfig {
    let (ledger, cells) = (fleet.supervisor().ledger(), fleet.cells.len() as u16);
    let kind = match fleet.host(id).is_caretaker {
        true => Recovery::Caretaker,
        false => Recovery::Process,
    };
    let log = old_log(id, cells, ledger, kind);
    fleet.cell_config((id, fleet.epoch(id)), cells, ledger, log)
}

/// Every chunk of a shard must be allocated, whatever was cut.
fn check_used(disk: &Disk, ledger: &Ledger) -> Result<(), String> {
    let Some(host) = &disk.host else { return Ok(()) };
    let is_open = |(chunk, owner): &(u64, Owner)| *owner != Owner::Free && !host.has(*chunk);
    match ledger.regions().iter().find(is_open) {
        Some((chunk, owner)) => Err(format!("chunk {chunk} of {owner:?} is not allocated")),
        None => Ok(()),
    }
}

/// Replayed logs may claim chunks whose allocation was undone. A recovery has them allocated
/// again.
pub(super) fn reserve_replayed(disk: &mut Disk, report: &Report) {
    if let (Report::Replayed { chunks, .. }, Some(host)) = (report, &mut disk.host) {
        chunks.iter().for_each(|chunk| host.force(*chunk));
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
