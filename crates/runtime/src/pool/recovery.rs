//! Recovery of a pool that was not left in order, before a fleet is started on it.
//!
//! A supervisor and one cell for each log run in this process, in turns, with synchronous I/O. They
//! replay the logs, write one checkpoint of the whole pool and mark it clean. The fleet that is
//! started then may have any number of cells.
//!
//! This is a small driver of its own, as the simulator is another: its device completes each
//! request at once and returns real errors, it has no clients, and no cell dies. If its checkpoint
//! fails, the recovery ends with an error. A fleet whose last checkpoint fails would continue to
//! serve instead, until it is asked to stop again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{BlockNo, CellId, ClientId, Epoch, Errno, Instant, Lsn, MapVersion, ShardId};
use warren_cell::{
    Backing, Cell, CellConfig, Clock, Effect, Event, FrameNo, LogConfig, Memory, Planted, Recovery,
    SlotRef,
};
use warren_disk::{CopiesState, KeptRecords, LogArea, RootSlot};
use warren_proto::CapabilityKey;
use warren_proto::control::Report;
use warren_supervisor::{
    Config, Effect as SupervisorEffect, Event as SupervisorEvent, Failure, Ledger, Supervisor,
};

use super::blocks::Blocks;
use super::shares::{owners, shares_of_free};
use crate::clock;
use crate::error::FleetError;

/// Frames of each cell's buffer cache besides one for every page that its log can leave dirty: for
/// tree nodes in use, and for what the cell keeps free.
const FRAMES: u32 = 4096;
/// The least number of log bytes whose replay makes a page dirty: those of the shortest record that
/// can do so, a truncation in the middle of a page. No page is written before the whole log is
/// replayed, so each dirty page needs a frame until then.
const LOG_PER_PAGE: u64 = 64;
/// Fills an unreadable block of a log: no record's header consists of it.
const NO_RECORD: u8 = 0xEE;
const EPOCH: Epoch = Epoch(1);
const MAP: MapVersion = MapVersion(1);

/// Events that are not applied yet, in order.
enum Pending {
    Cell(CellId, Event),
    Supervisor(SupervisorEvent),
}

struct Member {
    cell: Cell,
    frames: Frames,
    log: LogArea,
}

/// Private frames. Each is allocated when it is first written to, because a log seldom needs as
/// many as it could.
struct Frames(Vec<Option<Box<[u8; BLOCK_SIZE]>>>);

impl Memory for Frames {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.0[frame.0 as usize].as_deref().unwrap_or(&[0; BLOCK_SIZE])
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.0[frame.0 as usize].get_or_insert_with(|| Box::new([0; BLOCK_SIZE]))
    }

    // No client is admitted while a pool is recovered, so no lane is ever named.
    fn payload_to_frame(&mut self, _: SlotRef, _: usize, _: FrameNo, _: Range<usize>) {}

    fn frame_to_payload(&mut self, _: FrameNo, _: Range<usize>, _: SlotRef, _: usize) {}

    fn read_payload(&mut self, _: SlotRef, _: &mut [u8]) {}

    fn write_payload(&mut self, _: SlotRef, _: &[u8]) {}

    fn zero_payload(&mut self, _: SlotRef, _: usize, _: usize) {}

    fn store_word(&mut self, _: ClientId, _: u32, _: u64) {}
}

/// Whether the pool must be recovered before it is used.
pub(crate) fn is_needed(ledger: &Ledger) -> bool {
    !ledger.superblock().clean && !ledger.logs().starts.is_empty()
}

/// Replays the pool's logs. A shard that is damaged is given up. `ledger` is out of date then.
pub(crate) fn recover(
    pool: &dyn Blocks,
    ledger: Ledger,
    copies: CopiesState,
) -> Result<(), FleetError> {
    let start = Start::of_logs(&ledger, BTreeSet::new());
    LoneFleet::new(pool, ledger, copies, start).recover()
}

/// The same, but fails if a shard had to be given up whose root slot does not say so: a repair can
/// do better.
pub(crate) fn recover_whole(
    pool: &dyn Blocks,
    ledger: Ledger,
    copies: CopiesState,
) -> Result<(), FleetError> {
    let start = Start::of_logs(&ledger, BTreeSet::new());
    let marked = marked(&ledger);
    let mut fleet = LoneFleet::new(pool, ledger, copies, start);
    fleet.may_give_up = Some(marked);
    fleet.recover()
}

/// Replays as much as possible: no step of the shards `lost`, without which `load` loads the
/// ledger, and each log only up to its first unreadable block or damaged record. Returns which logs
/// were cut.
pub(crate) fn recover_without(
    lost: &BTreeSet<ShardId>,
    pool: &dyn Blocks,
    load: impl Fn() -> Result<(Ledger, CopiesState), FleetError>,
) -> Result<CutLogs, FleetError> {
    let mut damaged = BTreeSet::new();
    loop {
        let (ledger, copies) = load()?;
        let mut start = Start::of_logs(&ledger, lost.clone());
        start.damaged.clone_from(&damaged);
        let mut fleet = LoneFleet::new(pool, ledger, copies, start);
        fleet.cut = Some(CutLogs { damaged: damaged.clone(), ..CutLogs::default() });
        match fleet.recover() {
            // It has written nothing. It is repeated without the rest of this log.
            Err(FleetError::DamagedLogs(Failure::BrokenLog { cell, errno: Errno::EUCLEAN }))
                if damaged.insert(cell) => {}
            ended => return ended.map(|()| fleet.cut_logs()),
        }
    }
}

/// The cells whose logs were not replayed to their end.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CutLogs {
    /// There is an unreadable block, or a damaged record.
    pub damaged: BTreeSet<CellId>,
    /// They depend on what is lost of those.
    pub depending: BTreeSet<CellId>,
}

/// Replays the log records that were kept for one shard, which was given up, and whose tree is
/// whole. All else stays as it is. The pool is clean, so its logs hold nothing: one cell alone has
/// the place of all of them for its log, which is never written. Returns how many records were
/// replayed. If it fails, the pool is as before.
pub(crate) fn replay_kept(
    kept: &[KeptRecords],
    pool: &dyn Blocks,
    ledger: Ledger,
    copies: CopiesState,
) -> Result<u64, FleetError> {
    assert!(ledger.superblock().clean, "logs would be lost");
    let Some(shard) = kept.first().map(|kept| kept.shard) else { return Ok(0) };
    let others = (0..ledger.superblock().layout.shards()).map(ShardId).filter(|id| *id != shard);
    let (lost, damaged) = (others.collect(), BTreeSet::new());
    let start = Start { cells: 1, lost, damaged, kept: kept.to_vec() };
    let mut fleet = LoneFleet::new(pool, ledger, copies, start);
    (fleet.may_give_up, fleet.omits_logs) = (Some(BTreeSet::new()), true);
    fleet.recover()?;
    Ok(fleet.members.iter().map(|member| member.cell.kept_replayed()).sum())
}

/// The shards whose root slots say that they were given up.
fn marked(ledger: &Ledger) -> BTreeSet<ShardId> {
    let shards = (0..ledger.superblock().layout.shards()).map(ShardId);
    let is_marked = |shard: &ShardId| ledger.root(*shard).is_some_and(|root| root.given_up);
    shards.filter(|shard| is_marked(shard) && !ledger.unreadable().contains_key(shard)).collect()
}

/// The state with which the cells are started.
struct Start {
    cells: u16,
    /// Shards that are left out.
    lost: BTreeSet<ShardId>,
    /// The cells whose logs end at a damaged record.
    damaged: BTreeSet<CellId>,
    /// Log records that are replayed before the logs.
    kept: Vec<KeptRecords>,
}

impl Start {
    /// One cell for each log.
    fn of_logs(ledger: &Ledger, lost: BTreeSet<ShardId>) -> Self {
        let cells = ledger.logs().starts.len() as u16;
        Self { cells, lost, damaged: BTreeSet::new(), kept: Vec::new() }
    }
}

struct LoneFleet<'a> {
    pool: &'a dyn Blocks,
    members: Vec<Member>,
    supervisor: Supervisor,
    queue: VecDeque<Pending>,
    /// Time advances only when no event is left.
    now: Instant,
    wake: Option<Instant>,
    /// The outcome of all flushes: the first error stays.
    flushed: Result<(), Errno>,
    ended: Option<Result<(), FleetError>>,
    /// The logs that are cut because of damage, if that is allowed.
    cut: Option<CutLogs>,
    /// Where each log ends, as its cell has found and as all have agreed.
    ends: BTreeMap<CellId, (Lsn, Lsn)>,
    /// The only shards that may be given up, if not all.
    may_give_up: Option<BTreeSet<ShardId>>,
    /// The logs are neither read nor written.
    omits_logs: bool,
}

impl<'a> LoneFleet<'a> {
    fn new(pool: &'a dyn Blocks, ledger: Ledger, copies: CopiesState, start: Start) -> Self {
        let cells = start.cells;
        let owners = owners(ledger.superblock().layout.shards(), cells);
        let free = shares_of_free(&ledger, cells);
        let (mut members, mut started) = (Vec::new(), Vec::new());
        for (id, free_chunks) in (0..).map(CellId).zip(free) {
            let config = config(id, &ledger, &owners, &start, free_chunks);
            let log = config.log.area;
            let frames = CellConfig::frames_total(config.frames, log);
            let mut effects = Vec::new();
            let now = Clock { monotonic: Instant(1), wall: clock::now().wall };
            let cell = Cell::new(config, now, &mut effects);
            let frames = Frames(vec![None; frames as usize]);
            members.push(Member { cell, frames, log });
            started.push((id, effects));
        }
        let epochs = vec![EPOCH; usize::from(cells)];
        let config = Config { epochs, map_version: MAP, owners, ledger, recover: true, copies };
        let mut fleet = Self {
            pool,
            members,
            supervisor: Supervisor::new(config),
            queue: VecDeque::new(),
            now: Instant(1),
            wake: None,
            flushed: Ok(()),
            ended: None,
            cut: None,
            ends: BTreeMap::new(),
            may_give_up: None,
            omits_logs: false,
        };
        for (id, effects) in started {
            fleet.carry_out(id, effects);
        }
        fleet
    }

    fn recover(&mut self) -> Result<(), FleetError> {
        loop {
            if let Some(ended) = self.ended.take() {
                return ended;
            }
            match self.queue.pop_front() {
                Some(Pending::Cell(id, event)) => self.apply_to_cell(id, event),
                Some(Pending::Supervisor(event)) => self.apply_to_supervisor(event),
                // Only timers are left.
                None => self.tick(),
            }
        }
    }

    fn clock(&self) -> Clock {
        Clock { monotonic: self.now, wall: clock::now().wall }
    }

    fn apply_to_cell(&mut self, id: CellId, event: Event) {
        let now = self.clock();
        let mut effects = Vec::new();
        let Member { cell, frames, .. } = &mut self.members[usize::from(id.0)];
        cell.apply(now, event, frames, &mut effects);
        self.carry_out(id, effects);
    }

    fn carry_out(&mut self, id: CellId, effects: Vec<Effect>) {
        for effect in effects {
            let (io, result) = match effect {
                Effect::Send { to, message } => {
                    self.queue.push_back(Pending::Cell(to, Event::Peer { from: id, message }));
                    continue;
                }
                Effect::Report(report) => {
                    match &report {
                        Report::Replayed { chunks, .. } => self.reserve(chunks),
                        Report::GivenUp { shard, .. } => self.given_up(*shard),
                        Report::LogEnd { cell, lsn } => {
                            self.ends.entry(*cell).or_insert((*lsn, *lsn)).1 = *lsn;
                        }
                        _ => {}
                    }
                    let event = SupervisorEvent::Report { from: id, epoch: EPOCH, report };
                    self.queue.push_back(Pending::Supervisor(event));
                    continue;
                }
                Effect::Wake(at) => {
                    self.wake = Some(self.wake.map_or(at, |known| known.min(at)));
                    continue;
                }
                // No client or peer process is here. If the recovery needs a suspect peer, it
                // fails.
                Effect::Reply { .. } | Effect::AwaitsLock { .. } | Effect::Suspect { .. } => {
                    continue;
                }
                Effect::Read { io, block, frames } => (io, self.read(id, block, &frames)),
                Effect::Write { io, block, frames } => (io, self.write(id, block, &frames)),
                Effect::WriteThrough { io, block, frames } => {
                    let written = self.write(id, block, &frames);
                    (io, written.and_then(|()| self.flush()))
                }
                Effect::Flush { io } => (io, self.flush()),
                Effect::Reserve { io, block, count } => (io, self.pool.reserve(block, count)),
                // The fleet that is started next discards.
                Effect::Discard { io, .. } => (io, Err(Errno::EOPNOTSUPP)),
                Effect::MeasureHost => {
                    let measured = Event::HostMeasured { blocks: u64::MAX };
                    self.queue.push_back(Pending::Cell(id, measured));
                    continue;
                }
            };
            self.queue.push_back(Pending::Cell(id, Event::IoDone { io, result }));
        }
    }

    fn read(&mut self, id: CellId, block: BlockNo, frames: &[FrameNo]) -> Result<(), Errno> {
        let mut bytes = vec![0; frames.len() * BLOCK_SIZE];
        match self.pool.read(block, &mut bytes) {
            _ if self.is_omitted(id, block) => bytes.fill(NO_RECORD),
            Err(errno) if !self.ends_log(id, block, frames.len()) => return Err(errno),
            // No record begins there, and a record that continues there has a wrong checksum.
            Err(_) => bytes.fill(NO_RECORD),
            Ok(()) => {}
        }
        let into = &mut self.members[usize::from(id.0)].frames;
        for (frame, bytes) in frames.iter().zip(bytes.chunks_exact(BLOCK_SIZE)) {
            into.frame_mut(*frame).copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Whether the block is of the cell's log, and that is neither read nor written.
    fn is_omitted(&self, id: CellId, block: BlockNo) -> bool {
        let log = self.members[usize::from(id.0)].log;
        self.omits_logs && (log.start..log.start.offset(log.blocks)).contains(&block)
    }

    /// A cell has given a shard up.
    fn given_up(&mut self, shard: ShardId) {
        if self.may_give_up.as_ref().is_some_and(|may_be| !may_be.contains(&shard)) {
            self.ended = Some(Err(FleetError::Damaged(shard)));
        }
    }

    /// The logs that were cut. Without damage, what a log depends on was not durable either.
    fn cut_logs(&self) -> CutLogs {
        let mut cut = self.cut.clone().unwrap_or_default();
        if !cut.damaged.is_empty() {
            let shorter = self.ends.iter().filter(|(_, (found, agreed))| agreed < found);
            let depending = shorter.map(|(cell, _)| *cell).filter(|it| !cut.damaged.contains(it));
            cut.depending = depending.collect();
        }
        cut
    }

    /// Has the host allocate chunks that the logs have claimed. They were allocated before, but a
    /// power failure may have undone that for chunks that nothing durable names. If there is no
    /// room, a later write fails.
    fn reserve(&self, chunks: &[u64]) {
        for chunk in chunks {
            let _ = self.pool.reserve(BlockNo(chunk * CHUNK_BLOCKS), CHUNK_BLOCKS);
        }
    }

    /// Whether the cell's log may end before this unreadable block. A cell whose read of several
    /// blocks fails reads each one that it needs by itself.
    fn ends_log(&mut self, id: CellId, block: BlockNo, blocks: usize) -> bool {
        let log = self.members[usize::from(id.0)].log;
        let is_needed = blocks == 1 && (log.start..log.start.offset(log.blocks)).contains(&block);
        match &mut self.cut {
            Some(cut) if is_needed => {
                cut.damaged.insert(id);
                true
            }
            _ => false,
        }
    }

    fn write(&self, id: CellId, block: BlockNo, frames: &[FrameNo]) -> Result<(), Errno> {
        if self.is_omitted(id, block) {
            return Ok(());
        }
        let from = &self.members[usize::from(id.0)].frames;
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| from.frame(*frame)).copied().collect();
        self.pool.write(block, &bytes)
    }

    /// After a failed flush every later one fails, too: it cannot repair what was lost.
    fn flush(&mut self) -> Result<(), Errno> {
        self.flushed = self.flushed.and_then(|()| self.pool.flush());
        self.flushed
    }

    fn apply_to_supervisor(&mut self, event: SupervisorEvent) {
        let mut effects = Vec::new();
        let now = self.clock();
        self.supervisor.apply(now.monotonic, now.wall, event, &mut effects);
        for effect in effects {
            let (io, result) = match effect {
                SupervisorEffect::Send { to, order } => {
                    self.queue.push_back(Pending::Cell(to, Event::Order(order)));
                    continue;
                }
                SupervisorEffect::Write { io, block, bytes } => {
                    (io, self.pool.write(block, &bytes))
                }
                SupervisorEffect::Flush { io } => (io, self.flush()),
                SupervisorEffect::Wake(at) => {
                    self.wake = Some(self.wake.map_or(at, |known| known.min(at)));
                    continue;
                }
                SupervisorEffect::Exit(result) => {
                    self.ended = Some(result.map_err(|failure| match failure.is_of_pool() {
                        true => FleetError::DamagedLogs(failure),
                        false => FleetError::Ended(failure),
                    }));
                    continue;
                }
                SupervisorEffect::StopRefused { errno } => {
                    self.ended = Some(Err(FleetError::Unrecovered(errno)));
                    continue;
                }
                // No client is admitted.
                SupervisorEffect::FleetReady
                | SupervisorEffect::NewClient { .. }
                | SupervisorEffect::AdmitClient { .. }
                | SupervisorEffect::RefuseClient { .. }
                | SupervisorEffect::ForgetClient { .. }
                | SupervisorEffect::Grown { .. }
                | SupervisorEffect::Kill { .. }
                | SupervisorEffect::Resume { .. }
                | SupervisorEffect::MayStop
                | SupervisorEffect::Restart { .. } => continue,
            };
            self.queue.push_back(Pending::Supervisor(SupervisorEvent::IoDone { io, result }));
        }
    }

    fn tick(&mut self) {
        let Some(at) = self.wake.take() else {
            self.ended = Some(Err(FleetError::Bug("a recovery has stalled".into())));
            return;
        };
        self.now = self.now.max(at);
        let cells = (0..self.members.len() as u16).map(CellId);
        self.queue.extend(cells.map(|id| Pending::Cell(id, Event::Tick)));
        self.queue.push_back(Pending::Supervisor(SupervisorEvent::Tick));
    }
}

fn config(
    id: CellId,
    ledger: &Ledger,
    owners: &[CellId],
    start: &Start,
    free_chunks: Vec<u64>,
) -> CellConfig {
    let (superblock, logs) = (ledger.superblock(), ledger.logs());
    let Start { cells, lost, damaged, kept } = start;
    let is_kept = |shard: ShardId| kept.iter().any(|kept| kept.shard == shard);
    let shards = (0..owners.len() as u16).filter(|shard| owners[usize::from(*shard)] == id);
    let shards: Vec<ShardId> = shards.map(ShardId).collect();
    let root = |shard: &ShardId| {
        let root = ledger.root(*shard)?;
        Some((*shard, RootSlot { given_up: root.given_up && !is_kept(*shard), ..*root }))
    };
    let mut owned_chunks = ledger.chunks_of_shards();
    owned_chunks.retain(|shard, _| !lost.contains(shard));
    let area = superblock.layout.log_area(usize::from(id.0), usize::from(*cells));
    let frames = FRAMES + (area.bytes() / LOG_PER_PAGE) as u32;
    CellConfig {
        id,
        epoch: EPOCH,
        cells: *cells,
        map: owners.to_vec(),
        map_version: MAP,
        secret: superblock.secret,
        // No client is admitted.
        capabilities: CapabilityKey::default(),
        roots: shards.iter().filter_map(root).collect(),
        lost: shards.iter().filter(|shard| lost.contains(shard)).copied().collect(),
        kept: kept.clone(),
        owned_chunks,
        free_chunks,
        bounds: superblock.layout.bounds(),
        total_blocks: superblock.layout.total_blocks(),
        space: warren_cell::SpaceConfig::of(if superblock.reserved {
            Backing::Whole
        } else {
            Backing::OnDemand
        }),
        frames,
        nodes_max: CellConfig::nodes_for(frames),
        log: LogConfig {
            area,
            incarnation: logs.incarnation,
            start: logs.starts.get(usize::from(id.0)).copied().unwrap_or_default(),
            recovery: Recovery::Power,
            may_lose: damaged.contains(&id),
        },
        generation: superblock.generation,
        plant: Planted::NONE,
    }
}
