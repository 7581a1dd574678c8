//! The cell: what it owns, and how an event becomes effects.
//!
//! Order within one [`Cell::apply`]: the event is taken in; a request that needs nothing is executed
//! at once; then every task that something woke is run, until none is left. A task that has to wait
//! is parked with what it waits for and has changed nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_affinity::{Affinity, Counters};
use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS, PAYLOAD_MAX};
use warren_base::{CellId, ClientId, Epoch, Errno, Ino, Lsn, MapVersion, ShardId, TxnId};
use warren_disk::{LogArea, RootSlot};
use warren_proto::control::{Order, Report};
use warren_proto::{
    Answer, Capability, CapabilityKey, Change, Credentials, LeaseKey, Reply, Request,
    RequestHeader, Step,
};

use crate::authority::{granted, may_name};
use crate::change::revoke_late;
use crate::checkpoint::Checkpoint;
use crate::chunks::free::Chunks;
use crate::chunks::host::Backing;
use crate::chunks::host::reserve::{discarded, host_measured, reserved};
use crate::chunks::supply::{poll_pool, pool_message, take_found};
use crate::count::Counting;
use crate::event::{Clock, Effect, Event, FrameNo, IoId, Memory, PeerBody, PeerMessage, SlotRef};
use crate::filelock::FileLocks;
use crate::frames::cache::Cache;
use crate::frames::io::{Io, Purpose};
use crate::frames::table::FrameTable;
use crate::frames::transfer::{issue_node_writes, read_node, wait_for_pages, wake_io, write_done};
use crate::inode::answer::{Finished, done};
use crate::inode::lock::{grant_file_locks, grant_more_file_locks};
use crate::inode::sync::sync;
use crate::inode::{Call, execute};
use crate::lease::{Lane, Leases};
use crate::log::OpLog;
use crate::log::durable::{
    advance_log, become_read_only, flush_done, hold_log, log_write_done, written_through,
};
use crate::loss::Peers;
use crate::peer::{send_reply, suspect};
use crate::plant::{Plant, Planted};
use crate::reap::reap;
use crate::recall::send_recalls;
use crate::replay::{Recovery, Replay};
use crate::run::wait::{Stop, TaskId, Wait, WaitKey, Waits};
use crate::run::work::Work;
use crate::session::capabilities::Capabilities;
use crate::session::clients::Clients;
use crate::shard::Shard;
use crate::shard::open::OpenCounts;
use crate::shards::Shards;
use crate::task::{Decided, Task, Tasks};
use crate::turn::{Checkpoints, Readiness, Shared, Turn, Volume};
use crate::txn::{Committing, Participant};

/// What a cell is started with.
#[derive(Clone, Debug)]
pub struct CellConfig {
    pub id: CellId,
    pub epoch: Epoch,
    /// How many cells the fleet has, numbered from 0. Some may own no shard.
    pub cells: u16,
    /// Owner of every shard, indexed by shard number.
    pub map: Vec<CellId>,
    pub map_version: MapVersion,
    /// The pool's secret for hashing names.
    pub secret: u64,
    /// The fleet's, for inode capabilities.
    pub capabilities: CapabilityKey,
    /// Root slots of the shards this cell owns, as the device holds them (`None`: never written).
    pub roots: Vec<(ShardId, Option<RootSlot>)>,
    /// Of these the shards whose trees are not as of the last checkpoint: a replay passes their steps over. They are given
    /// neither a root nor chunks, and stay empty.
    pub lost: BTreeSet<ShardId>,
    /// The chunks that the region map gives to this cell's shards (and others', which are not looked at).
    pub owned_chunks: BTreeMap<ShardId, Vec<u64>>,
    /// Free chunks that are this cell's to give to its shards.
    pub free_chunks: Vec<u64>,
    /// Chunks below this number are nobody's.
    pub reserved_chunks: u64,
    /// Blocks of the whole pool device.
    pub total_blocks: u64,
    pub backing: Backing,
    /// Frames of the buffer cache: its byte limit over 4096. At least [`CellConfig::FRAMES_MIN`], or
    /// requests that are larger than a fourth of them get ENOMEM. The driver provides
    /// [`CellConfig::frames_total`].
    pub frames: u32,
    /// Tree nodes that it keeps in memory at most, as far as they are not dirty.
    pub nodes_max: usize,
    pub log: LogConfig,
    /// The last checkpoint that the superblock names.
    pub generation: u64,
    /// A rule to break, for tests of the checkers.
    pub plant: Planted,
}

/// Where a cell's op log is.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    pub area: LogArea,
    pub incarnation: u64,
    /// From where it is to be replayed; its end, if there is nothing to recover.
    pub start: Lsn,
    pub recovery: Recovery,
}

impl CellConfig {
    /// Bytes of memory of a resident tree node: about 4 KiB on disk, decoded, with one allocation or two for each
    /// record. Measured with 300,000 files of one page.
    const NODE_BYTES: u64 = 10 << 10;
    /// Frames for each resident node. File data is most of what a cache is for, and a node leads to some 20 files.
    const FRAMES_PER_NODE: u32 = 4;
    /// Enough for all ways from the roots that the requests of a small cell need at once.
    pub const NODES_MIN: usize = 1024;

    /// Tree nodes that a cell with so many frames keeps in memory; beyond, clean ones are evicted.
    pub const fn nodes_for(frames: u32) -> usize {
        let nodes = (frames / Self::FRAMES_PER_NODE) as usize;
        if nodes < Self::NODES_MIN { Self::NODES_MIN } else { nodes }
    }

    /// Frames of a cell whose cache of file data and tree nodes may take so many bytes.
    pub const fn frames_for(cache_bytes: u64) -> u64 {
        cache_bytes / (BLOCK_SIZE as u64 + Self::NODE_BYTES / Self::FRAMES_PER_NODE as u64)
    }

    /// Frames of a cell with so many for its buffer cache: with the op log's image and the cache's table.
    pub const fn frames_total(frames: u32, log: LogArea) -> u32 {
        frames + log.blocks as u32 + FrameTable::frames_for(frames)
    }

    /// Enough that the largest request can be served whatever else goes on: a half of the frames may
    /// be pinned, and another fourth must stay free of dirty pages.
    pub const FRAMES_MIN: u32 = (4 * PAYLOAD_MAX / BLOCK_SIZE) as u32;
}

/// One server process's state. See the module documentation for how it moves.
#[derive(Debug)]
pub struct Cell {
    core: Core,
    shared: Shared,
}

/// The machines of a cell, between which it routes events and outcomes.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) nodes_max: usize,
    pub(crate) shards: Shards,
    pub(crate) lost: BTreeSet<ShardId>,
    pub(crate) tasks: Tasks,
    pub(crate) participants: BTreeMap<TxnId, Participant>,
    pub(crate) live_txns: BTreeSet<TxnId>,
    pub(crate) committing: BTreeMap<TxnId, Committing>,
    pub(crate) tasks_of_txns: BTreeMap<TxnId, TaskId>,
    pub(crate) next_txn: u64,
    pub(crate) counting: Counting,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) replay: Replay,
    /// Transactions that are being made again after a recovery.
    pub(crate) again: usize,
    pub(crate) peers: Peers,
    /// For [`Cell::steps_up`].
    pub(crate) steps_up: u64,
}

impl Cell {
    /// A cell that starts to open its shards; it reports [`Report::Ready`] when all are.
    pub fn new(config: CellConfig, now: Clock, effects: &mut Vec<Effect>) -> Self {
        let first = config.map.iter().copied().min().unwrap_or(config.id);
        let chunks = config.reserved_chunks..config.total_blocks / CHUNK_BLOCKS;
        let mut owned = config.owned_chunks;
        let open = config.roots.iter().map(|(id, root)| {
            Shard::open(*id, root.as_ref(), owned.remove(id).unwrap_or_default())
        });
        let shards = Shards::new(config.map.len(), open);
        let others: BTreeSet<CellId> =
            (0..config.cells).map(CellId).filter(|cell| *cell != config.id).collect();
        let LogConfig { area, incarnation, start, recovery } = config.log;
        let image = FrameNo(config.frames);
        let backing = config.plant.on_backing(config.backing);
        let table = FrameNo(config.frames + area.blocks as u32);
        let shared = Shared {
            volume: Volume {
                id: config.id,
                map: config.map,
                secret: config.secret,
                total_blocks: config.total_blocks,
                plant: config.plant,
                epoch: config.epoch,
                map_version: config.map_version,
            },
            log: OpLog::new(area, image, (incarnation, start), recovery == Recovery::None),
            cache: Cache::new(config.frames),
            table: FrameTable::new(table, config.frames),
            io: Io::default(),
            chunks: Chunks::new(
                config.id,
                (first, config.cells),
                chunks,
                config.free_chunks,
                (recovery, backing),
            ),
            leases: Leases::new(config.epoch, config.secret, config.plant),
            clients: Clients::default(),
            capabilities: Capabilities::new(config.capabilities),
            waits: Waits::default(),
            opens: OpenCounts::new(config.epoch),
            file_locks: FileLocks::new(),
            checkpoints: Checkpoints::default(),
            readiness: Readiness::new(shards.ids().len(), recovery == Recovery::None),
            late: Vec::new(),
        };
        let core = Core {
            nodes_max: config.nodes_max,
            lost: config.lost,
            tasks: Tasks::default(),
            participants: BTreeMap::new(),
            live_txns: BTreeSet::new(),
            committing: BTreeMap::new(),
            tasks_of_txns: BTreeMap::new(),
            next_txn: u64::from(config.epoch.0) << 40,
            counting: Counting::default(),
            checkpoint: Checkpoint::new(config.generation),
            peers: Peers::new(others.clone()),
            replay: Replay::new(recovery, start, others),
            again: 0,
            steps_up: 0,
            shards,
        };
        let mut cell = Self { core, shared };
        if config.plant == Some(Plant::ReuseBlocks) {
            cell.core.shards.values_mut().for_each(|shard| shard.space.forget_held());
        }
        cell.core.start_opening(&cell.shared.readiness, &mut cell.shared.waits);
        // The tasks run with the first event; a tick at once is one.
        effects.push(Effect::Wake(now.monotonic));
        cell
    }

    /// Takes one event in. Effects are appended in the order in which they are to be carried out.
    pub fn apply<M: Memory>(
        &mut self,
        now: Clock,
        event: Event,
        memory: &mut M,
        effects: &mut Vec<Effect>,
    ) {
        let Shared { log, cache, .. } = &mut self.shared;
        if log.is_last() {
            let is_full = log.room(cache.dirty_pages()) == 0;
            log.forget_session(is_full);
        }
        let mut turn = self.shared.turn(now, memory, effects);
        self.core.take_in(event, &mut turn);
        let record = turn.record;
        self.shared.log.close_record(record);
    }

    /// Whether requests of clients can be offered. Orders and peers' messages always can.
    pub const fn is_ready(&self) -> bool {
        self.shared.readiness.is_ready()
    }

    /// How often each kind of affinity ran.
    pub fn affinities(&self) -> &Counters {
        self.core.shards.counters()
    }

    /// Steps from a directory to the one above that moves of directories have taken.
    pub const fn steps_up(&self) -> u64 {
        self.core.steps_up
    }

    /// Requests and messages that wait for something, but for file locks: who gives a lock back must not find the
    /// tasks taken by those who wait for it.
    pub fn live_tasks(&self) -> usize {
        self.core.tasks.live()
    }

    /// Requests that wait for file locks. Each occupies a slot of its client, and counts for its user with the locks
    /// that are held.
    pub const fn lock_waiters(&self) -> usize {
        self.core.tasks.lock_waiters()
    }

    /// Requests that were executed and wait for other cells before they are answered.
    pub fn decided(&self) -> impl Iterator<Item = (SlotRef, u32, &Answer)> {
        self.core.decided()
    }

    /// Answers of a predecessor that were not asked for again, in the order in which they were logged: their clients
    /// have them, or are gone.
    pub fn unanswered(&self) -> impl Iterator<Item = (SlotRef, u32, &Answer)> {
        self.core.replay.unanswered()
    }
}

impl Core {
    fn start_opening(&self, readiness: &Readiness, waits: &mut Waits) {
        for shard in self.shards.ids() {
            waits.start(Work::OpenShard { shard: *shard });
        }
        if readiness.shards_are_open() && !self.replay.is_done() {
            waits.start(Work::Recover);
        }
    }

    fn take_in<M: Memory>(&mut self, event: Event, turn: &mut Turn<'_, M>) {
        revoke_late(turn);
        turn.waits.wake_all(WaitKey::Turn);
        if self.replay.needs_frames() {
            self.keep_frames(turn);
        }
        match event {
            Event::Request { from, header, request } => self.request(from, header, request, turn),
            Event::Refuse { from, header } => self.refuse_request(from, header, turn),
            Event::Peer { from, message } => self.peer(from, message, turn),
            Event::Order(order) => self.order(order, turn),
            Event::IoDone { io, result } => self.io_done(io, result, turn),
            Event::HostMeasured { blocks } => {
                host_measured(blocks, turn);
                self.host_counted(blocks, turn);
            }
            Event::Tick => {
                poll_pool(&mut self.shards, turn);
                turn.report_if_ready();
            }
        }
        self.run_ready(turn);
        let lsn = turn.log.last();
        // What was for a lost cell is said again, as far as need be, when its successor has joined.
        turn.effects.retain_mut(|effect| match effect {
            Effect::Send { to, message } => {
                message.lsn = lsn;
                !self.peers.is_lost(*to)
            }
            _ => true,
        });
    }

    fn run_ready<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        loop {
            while let Some((id, task)) = self.next_ready(turn) {
                self.run(id, task, turn);
            }
            // Whoever an acknowledgement woke has said by now whether there is more to recall.
            send_recalls(turn);
            poll_pool(&mut self.shards, turn);
            if turn.file_locks.is_to_grant() {
                grant_more_file_locks(turn);
            }
            self.write_back(turn);
            self.advance_checkpoint(turn);
            issue_node_writes(turn);
            turn.seal();
            advance_log(turn);
            if !turn.waits.has_ready() {
                return;
            }
        }
    }

    /// The next task to run, taken out.
    fn next_ready<M: Memory>(&mut self, turn: &mut Turn<'_, M>) -> Option<(TaskId, Task)> {
        loop {
            for (id, work) in turn.waits.take_started() {
                self.tasks.park(id, Task::new(work));
            }
            let id = turn.waits.next_ready()?;
            match self.tasks.remove(id) {
                Some(task) => return Some((id, task)),
                None => drop(turn.waits.take_signals(id)),
            }
        }
    }

    fn request<M: Memory>(
        &mut self,
        from: SlotRef,
        header: RequestHeader,
        request: Request,
        turn: &mut Turn<'_, M>,
    ) {
        let Some(who) = self.asks(from, &header, Some(&request), turn) else { return };
        let id = turn.waits.new_id();
        self.run(id, Task::new(Work::Request { from, header, request, who }), turn);
    }

    /// A request that is not executed for what came of it.
    fn refuse_request<M: Memory>(
        &mut self,
        from: SlotRef,
        header: RequestHeader,
        turn: &mut Turn<'_, M>,
    ) {
        if self.asks(from, &header, None, turn).is_some() {
            Self::reply_error(from, header.seq, Errno::EIO, turn);
        }
    }

    /// On whose behalf the request is to be executed, unless it is not to be. One that was executed by a predecessor is answered
    /// from its log; what that answer leads to is granted only with the request at hand.
    fn asks<M: Memory>(
        &mut self,
        from: SlotRef,
        header: &RequestHeader,
        request: Option<&Request>,
        turn: &mut Turn<'_, M>,
    ) -> Option<Arc<Credentials>> {
        let who = turn.clients.acts_as(from, header)?;
        // A slot that rings again before it was answered harms only itself.
        if self.tasks.of_slot(from).is_some() {
            return None;
        }
        if request.is_some_and(|request| !may_name(from.client, &who, header, request, turn)) {
            Self::reply_error(from, header.seq, Errno::ESTALE, turn);
            return None;
        }
        if let Some(answer) = self.executed(from, header.seq, turn) {
            // What was read lies in the reply's payload: it was put there before the record was made.
            let payload_len = if let Ok(Reply::Read { len }) = answer { len } else { 0 };
            let granted = request.map_or(Capability::NONE, |request| {
                granted(&mut self.shards, from.client, &who, request, &answer, turn)
            });
            let (to, seq) = (from, header.seq);
            turn.effects.push(Effect::Reply { to, seq, answer, payload_len, granted });
            return None;
        }
        Some(who)
    }

    fn peer<M: Memory>(&mut self, from: CellId, message: PeerMessage, turn: &mut Turn<'_, M>) {
        if self.replay.needs_image() {
            self.replay.depend_later(from, message.lsn);
        } else if !turn.plants(Plant::ForgetDepends) {
            turn.log.depend(from, message.lsn);
        }
        match message.body {
            PeerBody::Request(request) => self.peer_request(from, request, turn),
            PeerBody::Reply(reply) => self.peer_reply(from, reply, turn),
            PeerBody::Pool(message) => pool_message(&mut self.shards, from, message, turn),
        }
    }

    fn order<M: Memory>(&mut self, order: Order, turn: &mut Turn<'_, M>) {
        match order {
            Order::Admit { client, credentials, acknowledged_leases, slots } => {
                // It may have been the predecessor's; one that was not only hears of more than it must.
                if acknowledged_leases && self.replay.is_of_process() {
                    turn.leases.inherit(client);
                }
                turn.clients.admit(client, credentials, acknowledged_leases, slots);
                turn.effects.push(Effect::Report(Report::Admitted { client }));
            }
            // What the log says of the client comes first.
            Order::Expel { client } if !self.replay.is_done() => self.replay.expel_later(client),
            Order::Expel { client } => self.expel(client, turn),
            Order::Drain { number } => self.drain(number, turn),
            Order::Write { number, count } => self.start_writing(number, count, turn),
            Order::Switched { number } => self.switched(number, turn),
            Order::Failed { number, errno, broken } => {
                self.checkpoint_failed(number, errno, broken, turn);
            }
            Order::ReadOnly { errno } => become_read_only(errno, turn),
            Order::Cut { ends } => self.cut_log(&ends, turn),
            Order::Replay => self.start_replay(turn),
            Order::Claimed { chunks } => self.chunks_claimed(&chunks, turn),
            Order::Abandoned { number } => self.checkpoint_abandoned(number, turn),
            Order::Found { runs } => take_found(&mut self.shards, &runs, turn),
            Order::Lost { cell, epoch } => self.peer_lost(cell, epoch, turn),
            Order::Joined { cell, .. } => self.peer_joined(cell, turn),
            Order::Stop => self.report_stopped(turn),
            Order::Save => drop(turn.waits.start(Work::Save)),
        }
    }

    pub(crate) fn io_done<M: Memory>(
        &mut self,
        io: IoId,
        result: Result<(), Errno>,
        turn: &mut Turn<'_, M>,
    ) {
        let purpose = turn.io.live.remove(&io).expect("an I/O ends once");
        match purpose {
            Purpose::LoadNode { shard, pointer, frame } => {
                turn.io.node_loads.remove(&pointer.block);
                let loaded = result.and_then(|()| {
                    let shard = self.shards.get_mut(&shard).expect("owned");
                    let bytes = turn.memory.frame(frame);
                    shard.tree.load(pointer, bytes).map_err(|_| Errno::EIO)
                });
                turn.cache.give_frame(frame);
                wake_io(io, loaded, turn);
            }
            Purpose::LoadPages { pages } => {
                let mut outcome = result;
                for (at, frame, checksum) in pages {
                    let intact =
                        result.is_ok() && crc32c::crc32c(turn.memory.frame(frame)) == checksum;
                    turn.cache.finish_load(at, frame, io, intact);
                    if !intact {
                        outcome = Err(Errno::EIO);
                    }
                }
                wake_io(io, outcome, turn);
            }
            Purpose::WritePages { pages, lsn } => {
                for (at, frame, block) in pages {
                    if turn.cache.finish_write(at, frame, io, block, result.is_ok()) {
                        turn.table.clear(frame, turn.memory);
                    }
                }
                turn.log.placed(lsn, result.is_ok());
                if result.is_err() {
                    hold_log(turn);
                }
                write_done(result, turn);
            }
            Purpose::WriteLog => log_write_done(result, turn),
            Purpose::ReadLog { upto } => self.log_loaded(upto, result, turn),
            Purpose::WriteThrough => self.mark_behind(written_through(result, turn)),
            Purpose::Flush => self.mark_behind(flush_done(io, result, turn)),
            Purpose::Reserve => reserved(io, result, turn),
            Purpose::Discard => discarded(io, result, turn),
            Purpose::WriteNodes { frames } => {
                turn.io.node_frames -= frames.len();
                frames.into_iter().for_each(|frame| turn.cache.give_frame(frame));
                write_done(result, turn);
                self.reclaim_retracted(turn);
            }
        }
        turn.waits.wake_all(WaitKey::Frames);
    }

    /// What was written of these files may be lost: it is behind.
    fn mark_behind(&mut self, files: Vec<Ino>) {
        for ino in files {
            self.shard_mut(ino.shard()).behind.insert(ino);
        }
    }

    /// A shard of this cell.
    pub(crate) fn shard_mut(&mut self, id: ShardId) -> &mut Shard {
        self.shards.get_mut(&id).expect("a shard of this cell")
    }

    /// Runs a task until it is finished or has to wait.
    fn run<M: Memory>(&mut self, id: TaskId, task: Task, turn: &mut Turn<'_, M>) {
        let Work::Request { from, header, .. } = &task.work else {
            return self.run_task(id, task, turn);
        };
        turn.memory.executes(Some((*from, header.seq)));
        self.run_task(id, task, turn);
        turn.memory.executes(None);
    }

    fn run_task<M: Memory>(&mut self, id: TaskId, mut task: Task, turn: &mut Turn<'_, M>) {
        if !task.state.pinned.is_empty() {
            task.state.pinned.drain(..).for_each(|page| turn.cache.unpin(page));
            turn.waits.wake_all(WaitKey::Frames);
        }
        if Self::is_waiting_for_peer(&task) {
            return self.tasks.park(id, task);
        }
        if let Some(decided) = task.decided.take() {
            return self.answer_decided((id, task), decided, turn);
        }
        turn.seal();
        let signals = turn.waits.take_signals(id);
        task.state.granted |= signals.granted;
        task.state.no_chunk |= signals.no_chunk;
        let outcome = match signals.failed {
            Some(errno) => Err(Stop::Fail(errno)),
            None => self.work_in_affinity(id, &mut task, turn),
        };
        let answer = outcome.as_ref().ok().and_then(|done| done.as_ref()).map(|(answer, _)| answer);
        self.seal_task(&mut task, answer, turn);
        match outcome {
            Ok(answer) => match task.decided.take() {
                Some(mut decided) => {
                    decided.answer = answer;
                    self.answer_decided((id, task), decided, turn);
                }
                None => self.finish(&task, answer, turn),
            },
            Err(Stop::Fail(Errno::ENOSPC)) if task.may_retry(turn.chunks.are_certain()) => {
                // Holding locks it must not wait for a checkpoint, which waits for transactions.
                self.release_txn(&mut task, turn);
                task.txn = None;
                task.state.checkpointed = turn.chunks.are_certain();
                self.wait(id, task, Wait::Checkpoint, turn);
            }
            // Another cell's log is full.
            Err(Stop::Fail(Errno::EAGAIN)) if task.txn.is_some() => {
                self.release_txn(&mut task, turn);
                task.txn = None;
                self.wait(id, task, Wait::Checkpoint, turn);
            }
            Err(Stop::Fail(errno)) => {
                self.release_txn(&mut task, turn);
                self.finish(&task, Some((Err(errno), 0)), turn);
            }
            Err(Stop::Wait(Wait::Joined(cell))) => {
                // Nobody else shall wait for a lost cell.
                self.release_txn(&mut task, turn);
                task.txn = None;
                self.wait(id, task, Wait::Joined(cell), turn);
            }
            Err(Stop::Wait(wait)) => self.wait(id, task, wait, turn),
        }
    }

    /// Answers the task, whose transaction is decided, unless another cell has to change an entry first.
    fn answer_decided<M: Memory>(
        &mut self,
        (id, mut task): (TaskId, Task),
        decided: Box<Decided>,
        turn: &mut Turn<'_, M>,
    ) {
        let commit = self.committing.get(&decided.txn);
        if commit.is_some_and(Committing::changes_entries) {
            task.decided = Some(decided);
            return self.tasks.park(id, task);
        }
        self.finish(&task, decided.answer, turn);
    }

    /// Runs the task in the affinity that it asks for, or in a coarser one if it turns out to need that.
    fn work_in_affinity<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<Option<(Answer, u32)>, Stop> {
        let shard = task.shard().filter(|shard| self.shards.contains_key(shard));
        let mut affinity = shard.map_or(Affinity::Volume, Affinity::Names);
        loop {
            self.shards.enter(affinity);
            let outcome = self.work(id, task, turn);
            self.shards.leave();
            if !matches!(outcome, Err(Stop::Wait(Wait::Coarser))) {
                return outcome;
            }
            affinity = Affinity::Volume;
        }
    }

    fn work<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<Option<(Answer, u32)>, Stop> {
        if let Work::Request { request, .. } = &task.work
            && let Some(answer) = self.misdirected(request, turn)
        {
            return Ok(Some((answer, 0)));
        }
        if turn.log.is_last() {
            match &task.work {
                Work::Request { request, .. } if request.is_change() => {
                    return Err(Errno::EROFS.into());
                }
                // It is of no use: the pool is as of its last checkpoint when it is opened again.
                Work::Reap { .. } => return Ok(None),
                _ => {}
            }
        }
        task.state.holds_locks = task.holds_locks();
        let may_wait = match &task.work {
            // For the record of a lock that was granted there is room.
            Work::Request { request: Request::Lock { .. }, .. } if task.state.granted => false,
            Work::Request { request, .. } => request.may_log() && !task.holds_locks(),
            Work::Reap { .. } => true,
            _ => false,
        };
        let may_wait = may_wait && !turn.log.is_last();
        if may_wait && !turn.log_has_room() {
            return Err(Stop::Wait(Wait::LogRoom));
        }
        match &task.work {
            Work::Request { request: Request::Create { name, .. }, .. }
                if turn.plants(Plant::Poison) && name.as_bytes() == Plant::POISON =>
            {
                panic!("a planted fault")
            }
            Work::Request { request, .. } if request.is_on_names() => {
                self.run_on_names(id, task, turn).map(|answer| Some((answer, 0)))
            }
            Work::Request { .. } => self.run_request(id, task, turn),
            Work::Prepare { .. } => self.prepare(id, task, turn).map(|()| None),
            Work::Peek { from, txn, ino } => {
                self.answer_peek((*from, *txn, *ino), turn).map(|()| None)
            }
            Work::Commit { .. } => self.commit(task, turn).map(|()| None),
            Work::Again { .. } => self.make_again(task, turn).map(|()| None),
            Work::Recover => {
                self.begin_recovery(turn);
                Ok(None)
            }
            Work::Replay => self.run_replay(turn).map(|()| None),
            Work::Reap { ino } => {
                reap(self.shard_mut(ino.shard()), *ino, &mut task.state, turn).map(|()| None)
            }
            Work::Fix => self.fix(task, turn).map(|()| None),
            Work::Save => self.save(turn).map(|()| None),
            Work::OpenShard { shard } => self.open_shard(*shard, turn).map(|()| None),
        }
    }

    /// The answer to a request that is not executed here, whatever it asks: its shard is not this cell's,
    /// or it names an inode that can be nowhere. Inode numbers are the client's word alone.
    fn misdirected<M: Memory>(&self, request: &Request, turn: &Turn<'_, M>) -> Option<Answer> {
        let is_nowhere = |ino: Ino| ino.sequence() == 0 || turn.volume.owner(ino.shard()).is_none();
        if request.inode().is_some_and(|ino| ino.sequence() == 0)
            || request.other_inode().is_some_and(is_nowhere)
        {
            return Some(Err(Errno::ESTALE));
        }
        let elsewhere = request.shard().is_some_and(|shard| !self.shards.contains_key(&shard));
        elsewhere.then_some(Ok(Reply::Moved(turn.volume.map_version)))
    }

    fn run_request<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        turn: &mut Turn<'_, M>,
    ) -> Result<Finished, Stop> {
        let Work::Request { from, header, request, who } = &task.work else {
            unreachable!("called for requests only");
        };
        match request {
            Request::Null => done(Reply::Done),
            Request::Sync => sync(&mut task.state),
            Request::StatFs => done(Reply::StatFs(self.stat_fs(id, turn)?)),
            Request::Cancel { slot, seq } => {
                self.cancel(SlotRef { client: from.client, slot: *slot }, *seq, turn);
                done(Reply::Done)
            }
            Request::AwaitRecall { pages, acknowledged } => {
                let lane = if *pages { Lane::Pages } else { Lane::Other };
                Self::listen(*from, header.seq, (lane, *acknowledged), turn)?;
                Ok(None)
            }
            request => {
                let shard = request.shard().and_then(|shard| self.shards.get_mut(&shard));
                let payload = (header.payload_len as usize).min(PAYLOAD_MAX);
                let call = Call { id, from: *from, payload, who };
                let shard = shard.ok_or(Errno::ESTALE)?;
                execute(shard, call, request.clone(), &mut task.state, turn)
            }
        }
    }

    fn finish<M: Memory>(
        &mut self,
        task: &Task,
        answer: Option<(Answer, u32)>,
        turn: &mut Turn<'_, M>,
    ) {
        if let Work::Request { from, header, request, who } = &task.work {
            return self.finish_request((*from, header.seq), (who, request), answer, turn);
        }
        let Some((answer, _)) = answer else { return };
        match (&task.work, &answer) {
            (Work::Prepare { from, txn, .. }, Err(errno)) => self.refuse(*from, *txn, *errno, turn),
            (Work::Peek { from, txn, .. }, Err(errno)) => {
                let refused = warren_proto::PeerReply::Refused { txn: *txn, errno: *errno };
                send_reply(*from, refused, turn);
            }
            (Work::Fix, Err(errno)) => self.fix_failed(*errno, turn),
            (Work::Save, Err(_)) => self.report_stopped(turn),
            (Work::OpenShard { shard }, Err(errno)) => turn.shard_is_broken(*shard, *errno),
            (Work::Replay, Err(errno)) => turn.log_is_broken(*errno),
            (Work::Commit { from, .. }, Err(Errno::EPROTO)) => suspect(*from, turn),
            // Decided elsewhere and impossible here: nobody may build on half of it.
            (Work::Commit { changes, .. } | Work::Again { changes, .. }, Err(errno)) => {
                let shard = changes.first().map(Change::shard);
                shard.into_iter().for_each(|shard| turn.shard_is_broken(shard, *errno));
            }
            _ => {}
        }
    }

    fn finish_request<M: Memory>(
        &mut self,
        (to, seq): (SlotRef, u32),
        (who, request): (&Credentials, &Request),
        answer: Option<(Answer, u32)>,
        turn: &mut Turn<'_, M>,
    ) {
        let Some((answer, payload_len)) = answer else { return };
        let granted = granted(&mut self.shards, to.client, who, request, &answer, turn);
        turn.effects.push(Effect::Reply { to, seq, answer, payload_len, granted });
        self.let_go(to.client, turn);
    }

    fn open_shard<M: Memory>(&mut self, id: ShardId, turn: &mut Turn<'_, M>) -> Result<(), Stop> {
        let shard = self.shards.get_mut(&id).expect("opened once");
        if !shard.space_open {
            shard.open_space()?;
        }
        let orphans = shard.orphans()?;
        turn.readiness.shard_opened();
        if self.replay.is_done() {
            for ino in orphans {
                turn.waits.start(Work::Reap { ino });
            }
        } else if turn.readiness.shards_are_open() {
            turn.waits.start(Work::Recover);
        }
        turn.report_if_ready();
        Ok(())
    }

    /// Registers a task with what it waits for.
    fn wait<M: Memory>(&mut self, id: TaskId, mut task: Task, wait: Wait, turn: &mut Turn<'_, M>) {
        match wait {
            Wait::Registered => {}
            Wait::Node(shard, pointer) => {
                let io = read_node(shard, pointer, turn);
                turn.waits.wait_for(io.map_or(WaitKey::Frames, WaitKey::Io), id);
            }
            Wait::Pages(pages) => wait_for_pages(id, &mut task.state, pages, turn),
            Wait::Key(key) => {
                let shard = self.shards.get_mut(&key.shard()).expect("blocked here");
                shard.locks.observe(&key, id);
            }
            Wait::Recall => turn.waits.wait_for(WaitKey::Recall, id),
            Wait::Frames => turn.waits.wait_for(WaitKey::Frames, id),
            Wait::Space(shard) => turn.waits.wait_for(WaitKey::Chunk(shard), id),
            Wait::Allocated => turn.waits.wait_for(WaitKey::Allocated, id),
            Wait::Checkpoint => {
                turn.want_checkpoint();
                turn.waits.wait_for(WaitKey::NextCheckpoint, id);
            }
            Wait::Durable => turn.waits.wait_for(WaitKey::Durable, id),
            Wait::LogRoom => {
                turn.want_checkpoint();
                turn.waits.wait_for(WaitKey::LogRoom, id);
            }
            Wait::Joined(cell) => turn.waits.wait_for(WaitKey::Joined(cell), id),
            Wait::Yield => turn.waits.wake(id),
            Wait::Turn => {
                turn.effects.push(Effect::Wake(turn.now.monotonic));
                turn.waits.wait_for(WaitKey::Turn, id);
            }
            Wait::Remote | Wait::Peek(_) | Wait::Coarser => {
                unreachable!("only operations on names meet other cells")
            }
        }
        self.tasks.park(id, task);
    }

    /// Answers a request that is not executed, or not to its end.
    fn reply_error<M: Memory>(to: SlotRef, seq: u32, errno: Errno, turn: &mut Turn<'_, M>) {
        let (answer, granted) = (Err(errno), Capability::NONE);
        turn.effects.push(Effect::Reply { to, seq, answer, payload_len: 0, granted });
    }

    /// A client listens for recalls. On each lane only one of its slots can.
    pub(crate) fn listen<M: Memory>(
        from: SlotRef,
        seq: u32,
        (lane, acknowledged): (Lane, u64),
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Errno> {
        if let Some((to, seq)) = turn.clients.listen(from, seq, lane)? {
            Self::reply_error(to, seq, Errno::EINTR, turn);
        }
        if turn.leases.listens(from.client, lane, acknowledged) {
            turn.waits.wake_all(WaitKey::Recall);
        }
        Ok(())
    }

    /// A client is gone. What it asked for is dropped, but transactions, which others take part in, are
    /// finished. Nobody waits for its copies.
    pub(crate) fn expel<M: Memory>(&mut self, client: ClientId, turn: &mut Turn<'_, M>) {
        if !turn.clients.expel(client) {
            return;
        }
        for id in self.tasks.of_client(client) {
            turn.file_locks.cancel(id);
            if self.tasks.get_mut(id).is_some_and(|task| !task.is_of_txn())
                && let Some(task) = self.tasks.remove(id)
            {
                task.state.pinned.iter().for_each(|page| turn.cache.unpin(*page));
            }
        }
        turn.waits.wake_all(WaitKey::Frames);
        turn.leases.forget_client(client);
        turn.waits.wake_all(WaitKey::Recall);
        self.let_go(client, turn);
    }

    /// Releases everything of a client that was expelled, once no task can write to its memory any more.
    fn let_go<M: Memory>(&mut self, client: ClientId, turn: &mut Turn<'_, M>) {
        if !turn.clients.is_leaving(client) || !self.tasks.of_client(client).is_empty() {
            return;
        }
        turn.clients.remove(client);
        // Only those who have something to lose: clients that come and go must not fill the log.
        let has_opens = turn.opens.has_any(client);
        if has_opens || turn.file_locks.has_any(client) {
            turn.note(&Step::Expelled { client });
        }
        for shard in self.shards.values_mut().filter(|_| has_opens) {
            for handle in shard.opens.handles_of(client) {
                if shard.opens.close(handle, client, turn.opens) == Ok(true) {
                    turn.leases.revoke(&LeaseKey::Attr(handle.ino), turn.memory);
                    turn.waits.start(Work::Reap { ino: handle.ino });
                }
            }
        }
        if !turn.plants(Plant::KeepLocks) {
            turn.file_locks.forget_client(client);
            grant_file_locks(turn);
        }
        turn.leases.forget_client(client);
        turn.effects.push(Effect::Report(Report::Expelled { client }));
    }

    /// Ends the wait of another slot's request, if it is one that can be interrupted.
    pub(crate) fn cancel<M: Memory>(&mut self, target: SlotRef, seq: u32, turn: &mut Turn<'_, M>) {
        if turn.clients.end_listening(target, seq) {
            return Self::reply_error(target, seq, Errno::EINTR, turn);
        }
        let Some(id) = self.tasks.of_slot(target) else { return };
        let Some(task) = self.tasks.get_mut(id) else { return };
        let Work::Request { header, request, .. } = &task.work else { return };
        let granted = task.state.granted || turn.waits.signals_of(id).granted;
        if header.seq == seq && matches!(request, Request::Lock { .. }) && !granted {
            turn.file_locks.cancel(id);
            turn.waits.fail(id, Errno::EINTR);
        }
    }
}
