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
    Answer, ByteRange, Capability, CapabilityKey, Change, Credentials, InodeValue, LeaseKey,
    LockFlavour, LockKey, LockMode, LockSpec, LockType, Reply, Request, RequestHeader, Step,
};

use crate::authority::Capabilities;
use crate::cache::Cache;
use crate::checkpoint::Checkpoint;
use crate::chunk::Chunks;
use crate::count::Counting;
use crate::event::{Clock, Effect, Event, FrameNo, IoId, Memory, PeerBody, PeerMessage, SlotRef};
use crate::filelock::FileLocks;
use crate::host::Backing;
use crate::io::Io;
use crate::lease::{Lane, Leases};
use crate::loss::Peers;
use crate::open::Opens;
use crate::oplog::{OpLog, PER_GRANT};
use crate::plant::{Plant, Planted};
use crate::replay::{Recovery, Replay};
use crate::request;
use crate::shard::Shard;
use crate::shards::Shards;
use crate::step::Behind;
use crate::table::FrameTable;
use crate::task::{Decided, Stop, Task, TaskId, Tasks, Wait, WaitKey, Work};
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

#[derive(Debug)]
pub(crate) struct Client {
    credentials: Arc<Credentials>,
    acknowledged_leases: bool,
    slots: u16,
    /// The slot (and sequence number) that waits for recalls, on each lane.
    listening: [Option<(SlotRef, u32)>; Lane::ALL.len()],
    /// It was expelled, but transactions of its are not over.
    leaving: bool,
}

/// Where effects and stores go while an event is applied.
pub(crate) struct Out<'a, M> {
    pub(crate) memory: &'a mut M,
    pub(crate) effects: &'a mut Vec<Effect>,
}

/// One server process's state. See the module documentation for how it moves.
#[derive(Debug)]
pub struct Cell {
    pub(crate) id: CellId,
    pub(crate) map: Vec<CellId>,
    pub(crate) secret: u64,
    pub(crate) nodes_max: usize,
    pub(crate) capabilities: Capabilities,
    pub(crate) now: Clock,
    pub(crate) shards: Shards,
    pub(crate) lost: BTreeSet<ShardId>,
    pub(crate) cache: Cache,
    pub(crate) leases: Leases,
    pub(crate) opens: Opens,
    pub(crate) file_locks: FileLocks<TaskId>,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    /// How many of them have their copies in a kernel.
    pub(crate) fronts: usize,
    pub(crate) tasks: Tasks,
    pub(crate) participants: BTreeMap<TxnId, Participant>,
    pub(crate) live_txns: BTreeSet<TxnId>,
    pub(crate) committing: BTreeMap<TxnId, Committing>,
    pub(crate) tasks_of_txns: BTreeMap<TxnId, TaskId>,
    pub(crate) next_txn: u64,
    pub(crate) io: Io,
    pub(crate) chunks: Chunks,
    pub(crate) counting: Counting,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) log: OpLog,
    pub(crate) table: FrameTable,
    pub(crate) behind: Behind,
    pub(crate) replay: Replay,
    /// Transactions that are being made again after a recovery.
    pub(crate) again: usize,
    pub(crate) peers: Peers,
    pub(crate) total_blocks: u64,
    pub(crate) plant: Planted,
    /// Changes whose leases are revoked with the next event, by a plant.
    pub(crate) late: Vec<(Vec<Change>, Option<ClientId>)>,
    /// For [`Self::steps_up`].
    pub(crate) steps_up: u64,
    map_version: MapVersion,
    epoch: Epoch,
    /// Shards that are not open yet.
    opening: usize,
    ready: bool,
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
        let mut cell = Self {
            id: config.id,
            secret: config.secret,
            nodes_max: config.nodes_max,
            capabilities: Capabilities::new(config.capabilities),
            lost: config.lost,
            now,
            cache: Cache::new(config.frames),
            leases: Leases::new(config.epoch, config.secret, config.plant),
            opens: Opens::new(config.epoch),
            file_locks: FileLocks::new(),
            clients: BTreeMap::new(),
            fronts: 0,
            tasks: Tasks::default(),
            participants: BTreeMap::new(),
            live_txns: BTreeSet::new(),
            committing: BTreeMap::new(),
            tasks_of_txns: BTreeMap::new(),
            next_txn: u64::from(config.epoch.0) << 40,
            io: Io::default(),
            counting: Counting::default(),
            chunks: Chunks::new(
                config.id,
                (first, config.cells),
                chunks,
                config.free_chunks,
                (recovery, backing),
            ),
            checkpoint: Checkpoint::new(config.generation),
            log: OpLog::new(area, image, incarnation, start),
            table: FrameTable::new(table, config.frames),
            behind: Behind::default(),
            peers: Peers::new(others.clone()),
            replay: Replay::new(recovery, start, others),
            again: 0,
            total_blocks: config.total_blocks,
            plant: config.plant,
            late: Vec::new(),
            steps_up: 0,
            map: config.map,
            map_version: config.map_version,
            epoch: config.epoch,
            opening: shards.ids().len(),
            ready: false,
            shards,
        };
        if config.plant == Some(Plant::ReuseBlocks) {
            cell.shards.values_mut().for_each(|shard| shard.space.forget_held());
        }
        cell.start_opening(effects);
        cell
    }

    fn start_opening(&mut self, effects: &mut Vec<Effect>) {
        for shard in self.shards.ids().to_vec() {
            self.start(Task::new(Work::OpenShard { shard }));
        }
        if self.opening == 0 && !self.replay.is_done() {
            self.start(Task::new(Work::Recover));
        }
        // The tasks run with the first event; a tick at once is one.
        effects.push(Effect::Wake(self.now.monotonic));
    }

    /// Takes one event in. Effects are appended in the order in which they are to be carried out.
    pub fn apply<M: Memory>(
        &mut self,
        now: Clock,
        event: Event,
        memory: &mut M,
        effects: &mut Vec<Effect>,
    ) {
        self.now = now;
        if self.log.is_last() {
            let is_full = !self.log_has_room();
            self.log.forget_session(is_full);
        }
        let out = &mut Out { memory, effects };
        self.revoke_late(out);
        self.tasks.wake_all(WaitKey::Turn);
        if self.replay.needs_frames() {
            self.keep_frames(out);
        }
        match event {
            Event::Request { from, header, request } => self.request(from, header, request, out),
            Event::Refuse { from, header } => self.refuse_request(from, header, out),
            Event::Peer { from, message } => self.peer(from, message, out),
            Event::Order(order) => self.order(order, out),
            Event::IoDone { io, result } => self.io_done(io, result, out),
            Event::HostMeasured { blocks } => self.host_measured(blocks, out),
            Event::Tick => {
                self.poll_pool(out);
                self.report_if_ready(out);
            }
        }
        self.run_ready(out);
        let lsn = self.log.last();
        // What was for a lost cell is said again, as far as need be, when its successor has joined.
        out.effects.retain_mut(|effect| match effect {
            Effect::Send { to, message } => {
                message.lsn = lsn;
                !self.peers.is_lost(*to)
            }
            _ => true,
        });
    }

    fn run_ready<M: Memory>(&mut self, out: &mut Out<'_, M>) {
        loop {
            while let Some((id, task)) = self.tasks.next_ready() {
                self.run(id, task, out);
            }
            // Whoever an acknowledgement woke has said by now whether there is more to recall.
            self.send_recalls(out);
            self.poll_pool(out);
            if self.file_locks.is_to_grant() {
                self.grant_more_file_locks(out);
            }
            self.write_back(out);
            self.advance_checkpoint(out);
            self.issue_node_writes(out);
            self.seal(out);
            self.advance_log(out);
            if !self.tasks.has_ready() {
                return;
            }
        }
    }

    /// Whether requests of clients can be offered. Orders and peers' messages always can.
    pub const fn is_ready(&self) -> bool {
        self.ready
    }

    /// Says that the cell can serve, once all shards are open and the pool knows its chunks.
    pub(crate) fn report_if_ready<M: Memory>(&mut self, out: &mut Out<'_, M>) {
        let recovered = self.opening == 0 && self.replay.is_done();
        if !self.ready && recovered && self.chunks.is_open() {
            self.ready = true;
            let (cell, epoch, map) = (self.id, self.epoch, self.map_version);
            out.effects.push(Effect::Report(Report::Ready { cell, epoch, map }));
        }
    }

    fn request<M: Memory>(
        &mut self,
        from: SlotRef,
        header: RequestHeader,
        request: Request,
        out: &mut Out<'_, M>,
    ) {
        let Some(who) = self.asks(from, &header, Some(&request), out) else { return };
        let id = self.tasks.new_id();
        self.run(id, Task::new(Work::Request { from, header, request, who }), out);
    }

    /// A request that is not executed for what came of it.
    fn refuse_request<M: Memory>(
        &mut self,
        from: SlotRef,
        header: RequestHeader,
        out: &mut Out<'_, M>,
    ) {
        if self.asks(from, &header, None, out).is_some() {
            Self::reply_error(from, header.seq, Errno::EIO, out);
        }
    }

    /// On whose behalf the request is to be executed, unless it is not to be. One that was executed by a predecessor is answered
    /// from its log; what that answer leads to is granted only with the request at hand.
    fn asks<M: Memory>(
        &mut self,
        from: SlotRef,
        header: &RequestHeader,
        request: Option<&Request>,
        out: &mut Out<'_, M>,
    ) -> Option<Arc<Credentials>> {
        let may_ask = |client: &&Client| from.slot.0 < client.slots && !client.leaving;
        let client = self.clients.get(&from.client).filter(may_ask)?;
        // A slot that rings again before it was answered harms only itself.
        if self.tasks.of_slot(from).is_some() {
            return None;
        }
        let who = client.act_as(header);
        if request.is_some_and(|request| !self.may_name(from.client, &who, header, request)) {
            Self::reply_error(from, header.seq, Errno::ESTALE, out);
            return None;
        }
        if let Some(answer) = self.executed(from, header.seq) {
            // What was read lies in the reply's payload: it was put there before the record was made.
            let payload_len = if let Ok(Reply::Read { len }) = answer { len } else { 0 };
            let granted = request.map_or(Capability::NONE, |request| {
                self.granted(from.client, &who, request, &answer)
            });
            let (to, seq) = (from, header.seq);
            out.effects.push(Effect::Reply { to, seq, answer, payload_len, granted });
            return None;
        }
        Some(who)
    }

    fn peer<M: Memory>(&mut self, from: CellId, message: PeerMessage, out: &mut Out<'_, M>) {
        if self.replay.needs_image() {
            self.replay.depend_later(from, message.lsn);
        } else if self.plant != Some(Plant::ForgetDepends) {
            self.log.depend(from, message.lsn);
        }
        match message.body {
            PeerBody::Request(request) => self.peer_request(from, request, out),
            PeerBody::Reply(reply) => self.peer_reply(from, reply, out),
            PeerBody::Pool(message) => self.pool_message(from, message, out),
        }
    }

    fn order<M: Memory>(&mut self, order: Order, out: &mut Out<'_, M>) {
        match order {
            Order::Admit { client, credentials, acknowledged_leases, slots } => {
                // It may have been the predecessor's; one that was not only hears of more than it must.
                if acknowledged_leases && self.replay.is_of_process() {
                    self.leases.inherit(client);
                }
                let credentials = Arc::new(credentials);
                let (listening, leaving) = ([None; Lane::ALL.len()], false);
                let admitted =
                    Client { credentials, acknowledged_leases, slots, listening, leaving };
                self.fronts += usize::from(acknowledged_leases);
                self.clients.insert(client, admitted);
                out.effects.push(Effect::Report(Report::Admitted { client }));
            }
            // What the log says of the client comes first.
            Order::Expel { client } if !self.replay.is_done() => self.replay.expel_later(client),
            Order::Expel { client } => self.expel(client, out),
            Order::Drain { number } => self.drain(number, out),
            Order::Write { number, count } => self.start_writing(number, count),
            Order::Switched { number } => self.switched(number, out),
            Order::Failed { number, errno, broken } => {
                self.checkpoint_failed(number, errno, broken, out);
            }
            Order::ReadOnly { errno } => self.become_read_only(errno, out),
            Order::Cut { ends } => self.cut_log(&ends, out),
            Order::Replay => self.start_replay(),
            Order::Claimed { chunks } => self.chunks_claimed(&chunks, out),
            Order::Abandoned { number } => self.checkpoint_abandoned(number),
            Order::Found { runs } => self.take_found(&runs, out),
            Order::Lost { cell, epoch } => self.peer_lost(cell, epoch, out),
            Order::Joined { cell, .. } => self.peer_joined(cell, out),
            Order::Stop => self.report_stopped(out),
            Order::Save => drop(self.start(Task::new(Work::Save))),
        }
    }

    /// Who has the shard; nobody if the volume has no such shard. Numbers of inodes, and so of shards,
    /// come from clients, peers and disks.
    pub(crate) fn owner(&self, shard: ShardId) -> Option<CellId> {
        self.map.get(usize::from(shard.0)).copied()
    }

    /// Runs a task until it is finished or has to wait.
    fn run<M: Memory>(&mut self, id: TaskId, task: Task, out: &mut Out<'_, M>) {
        let Work::Request { from, header, .. } = &task.work else {
            return self.run_task(id, task, out);
        };
        out.memory.executes(Some((*from, header.seq)));
        self.run_task(id, task, out);
        out.memory.executes(None);
    }

    fn run_task<M: Memory>(&mut self, id: TaskId, mut task: Task, out: &mut Out<'_, M>) {
        if !task.pinned.is_empty() {
            task.pinned.drain(..).for_each(|page| self.cache.unpin(page));
            self.tasks.wake_all(WaitKey::Frames);
        }
        if Self::is_waiting_for_peer(&task) {
            return self.tasks.park(id, task);
        }
        if let Some(decided) = task.decided.take() {
            return self.answer_decided((id, task), decided, out);
        }
        self.seal(out);
        let outcome = match task.failed.take() {
            Some(errno) => Err(Stop::Fail(errno)),
            None => self.work_in_affinity(id, &mut task, out),
        };
        let answer = outcome.as_ref().ok().and_then(|done| done.as_ref()).map(|(answer, _)| answer);
        self.seal_task(&task, answer, out);
        match outcome {
            Ok(answer) => match task.decided.take() {
                Some(mut decided) => {
                    decided.answer = answer;
                    self.answer_decided((id, task), decided, out);
                }
                None => self.finish(&task, answer, out),
            },
            Err(Stop::Fail(Errno::ENOSPC)) if task.may_retry(self.chunks.are_certain()) => {
                // Holding locks it must not wait for a checkpoint, which waits for transactions.
                self.release_txn(&mut task, out);
                task.txn = None;
                task.checkpointed = self.chunks.are_certain();
                self.wait(id, task, Wait::Checkpoint, out);
            }
            // Another cell's log is full.
            Err(Stop::Fail(Errno::EAGAIN)) if task.txn.is_some() => {
                self.release_txn(&mut task, out);
                task.txn = None;
                self.wait(id, task, Wait::Checkpoint, out);
            }
            Err(Stop::Fail(errno)) => {
                self.release_txn(&mut task, out);
                self.finish(&task, Some((Err(errno), 0)), out);
            }
            Err(Stop::Wait(Wait::Joined(cell))) => {
                // Nobody else shall wait for a lost cell.
                self.release_txn(&mut task, out);
                task.txn = None;
                self.wait(id, task, Wait::Joined(cell), out);
            }
            Err(Stop::Wait(wait)) => self.wait(id, task, wait, out),
        }
    }

    /// Answers the task, whose transaction is decided, unless another cell has to change an entry first.
    fn answer_decided<M: Memory>(
        &mut self,
        (id, mut task): (TaskId, Task),
        decided: Box<Decided>,
        out: &mut Out<'_, M>,
    ) {
        let commit = self.committing.get(&decided.txn);
        if commit.is_some_and(Committing::changes_entries) {
            task.decided = Some(decided);
            return self.tasks.park(id, task);
        }
        self.finish(&task, decided.answer, out);
    }

    /// Runs the task in the affinity that it asks for, or in a coarser one if it turns out to need that.
    fn work_in_affinity<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        out: &mut Out<'_, M>,
    ) -> Result<Option<(Answer, u32)>, Stop> {
        let shard = task.shard().filter(|shard| self.shards.contains_key(shard));
        let mut affinity = shard.map_or(Affinity::Volume, Affinity::Names);
        loop {
            self.shards.enter(affinity);
            let outcome = self.work(id, task, out);
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
        out: &mut Out<'_, M>,
    ) -> Result<Option<(Answer, u32)>, Stop> {
        if let Work::Request { request, .. } = &task.work
            && let Some(answer) = self.misdirected(request)
        {
            return Ok(Some((answer, 0)));
        }
        if self.log.is_last() {
            match &task.work {
                Work::Request { request, .. } if request::is_change(request) => {
                    return Err(Errno::EROFS.into());
                }
                // It is of no use: the pool is as of its last checkpoint when it is opened again.
                Work::Reap { .. } => return Ok(None),
                _ => {}
            }
        }
        let may_wait = match &task.work {
            // For the record of a lock that was granted there is room.
            Work::Request { request: Request::Lock { .. }, .. } if task.granted => false,
            Work::Request { request, .. } => request::may_log(request) && !task.holds_locks(),
            Work::Reap { .. } => true,
            _ => false,
        };
        let may_wait = may_wait && !self.log.is_last();
        if may_wait && !self.log_has_room() {
            return Err(Stop::Wait(Wait::LogRoom));
        }
        match &task.work {
            Work::Request { request: Request::Create { name, .. }, .. }
                if self.plant == Some(Plant::Poison) && name.as_bytes() == Plant::POISON =>
            {
                panic!("a planted fault")
            }
            Work::Request { request, .. } if crate::op::is_on_names(request) => {
                self.run_on_names(id, task, out).map(|answer| Some((answer, 0)))
            }
            Work::Request { .. } => self.run_request(id, task, out),
            Work::Prepare { .. } => self.prepare(id, task, out).map(|()| None),
            Work::Peek { from, txn, ino } => {
                self.answer_peek((*from, *txn, *ino), out).map(|()| None)
            }
            Work::Commit { .. } => self.commit(task, out).map(|()| None),
            Work::Again { .. } => self.make_again(task, out).map(|()| None),
            Work::Recover => {
                self.begin_recovery(out);
                Ok(None)
            }
            Work::Replay => self.run_replay(out).map(|()| None),
            Work::Reap { ino } => self.reap(*ino, task, out).map(|()| None),
            Work::Fix => self.fix(task, out).map(|()| None),
            Work::Save => self.save(out).map(|()| None),
            Work::OpenShard { shard } => self.open_shard(*shard, out).map(|()| None),
        }
    }

    fn finish<M: Memory>(
        &mut self,
        task: &Task,
        answer: Option<(Answer, u32)>,
        out: &mut Out<'_, M>,
    ) {
        if let Work::Request { from, header, request, who } = &task.work {
            return self.finish_request((*from, header.seq), (who, request), answer, out);
        }
        let Some((answer, _)) = answer else { return };
        match (&task.work, &answer) {
            (Work::Prepare { from, txn, .. }, Err(errno)) => self.refuse(*from, *txn, *errno, out),
            (Work::Peek { from, txn, .. }, Err(errno)) => {
                let refused = warren_proto::PeerReply::Refused { txn: *txn, errno: *errno };
                self.send_reply(*from, refused, out);
            }
            (Work::Fix, Err(errno)) => self.fix_failed(*errno, out),
            (Work::Save, Err(_)) => self.report_stopped(out),
            (Work::OpenShard { shard }, Err(errno)) => self.broken(*shard, *errno, out),
            (Work::Replay, Err(errno)) => self.broken_log(*errno, out),
            (Work::Commit { from, .. }, Err(Errno::EPROTO)) => Self::suspect(*from, out),
            // Decided elsewhere and impossible here: nobody may build on half of it.
            (Work::Commit { changes, .. } | Work::Again { changes, .. }, Err(errno)) => {
                let shard = changes.first().map(Change::shard);
                shard.into_iter().for_each(|shard| self.broken(shard, *errno, out));
            }
            _ => {}
        }
    }

    fn finish_request<M: Memory>(
        &mut self,
        (to, seq): (SlotRef, u32),
        (who, request): (&Credentials, &Request),
        answer: Option<(Answer, u32)>,
        out: &mut Out<'_, M>,
    ) {
        let Some((answer, payload_len)) = answer else { return };
        let granted = self.granted(to.client, who, request, &answer);
        out.effects.push(Effect::Reply { to, seq, answer, payload_len, granted });
        self.let_go(to.client, out);
    }

    /// The shard can be served no more.
    pub(crate) fn broken<M: Memory>(&self, shard: ShardId, errno: Errno, out: &mut Out<'_, M>) {
        let cell = self.id;
        out.effects.push(Effect::Report(Report::Broken { cell, shard, errno }));
    }

    /// What the shards were cannot be told.
    pub(crate) fn broken_log<M: Memory>(&self, errno: Errno, out: &mut Out<'_, M>) {
        out.effects.push(Effect::Report(Report::BrokenLog { cell: self.id, errno }));
    }

    fn open_shard<M: Memory>(&mut self, id: ShardId, out: &mut Out<'_, M>) -> Result<(), Stop> {
        let shard = self.shards.get_mut(&id).expect("opened once");
        if !shard.space_open {
            shard.open_space()?;
        }
        let orphans = shard.orphans()?;
        self.opening -= 1;
        if self.replay.is_done() {
            for ino in orphans {
                self.start(Task::new(Work::Reap { ino }));
            }
        } else if self.opening == 0 {
            self.start(Task::new(Work::Recover));
        }
        self.report_if_ready(out);
        Ok(())
    }

    /// Registers a task with what it waits for.
    fn wait<M: Memory>(&mut self, id: TaskId, mut task: Task, wait: Wait, out: &mut Out<'_, M>) {
        match wait {
            Wait::Registered => {}
            Wait::Node(shard, pointer) => {
                let io = self.read_node(shard, pointer, out);
                self.tasks.wait_for(io.map_or(WaitKey::Frames, WaitKey::Io), id);
            }
            Wait::Pages(pages) => self.wait_for_pages(id, &mut task, pages, out),
            Wait::Key(key) => {
                let shard = self.shards.get_mut(&key.shard()).expect("blocked here");
                shard.locks.observe(&key, id);
            }
            Wait::Recall => self.tasks.wait_for(WaitKey::Recall, id),
            Wait::Frames => self.tasks.wait_for(WaitKey::Frames, id),
            Wait::Space(shard) => self.tasks.wait_for(WaitKey::Chunk(shard), id),
            Wait::Allocated => self.tasks.wait_for(WaitKey::Allocated, id),
            Wait::Checkpoint => {
                self.want_checkpoint(out);
                self.tasks.wait_for(WaitKey::NextCheckpoint, id);
            }
            Wait::Durable => self.tasks.wait_for(WaitKey::Durable, id),
            Wait::LogRoom => {
                self.want_checkpoint(out);
                self.tasks.wait_for(WaitKey::LogRoom, id);
            }
            Wait::Joined(cell) => self.tasks.wait_for(WaitKey::Joined(cell), id),
            Wait::Yield => self.tasks.wake(id),
            Wait::Turn => {
                out.effects.push(Effect::Wake(self.now.monotonic));
                self.tasks.wait_for(WaitKey::Turn, id);
            }
            Wait::Remote | Wait::Peek(_) | Wait::Coarser => {
                unreachable!("only operations on names meet other cells")
            }
        }
        self.tasks.park(id, task);
    }

    /// The inode, if it exists and has a link or is open.
    pub(crate) fn living_inode(&self, shard: &Shard, ino: Ino) -> Result<Option<InodeValue>, Stop> {
        let value = shard.inode_value(ino)?;
        Ok(value.filter(|value| value.attr.nlink > 0 || self.opens.is_open(ino)))
    }

    /// Stops an operation on one inode while a transaction is in its way.
    pub(crate) fn check_unlocked(&self, ino: Ino, mode: LockMode) -> Result<(), Stop> {
        let shard = self.shards.get(&ino.shard()).ok_or(Errno::ESTALE)?;
        let key = LockKey::Inode(ino);
        if shard.locks.blocks(&key, mode) { Err(Stop::Wait(Wait::Key(key))) } else { Ok(()) }
    }

    pub(crate) fn acknowledges(&self, client: ClientId) -> bool {
        let acknowledges = |client: &Client| client.acknowledged_leases && !client.leaving;
        self.clients.get(&client).is_some_and(acknowledges)
    }

    /// Sends recalls to whoever listens.
    pub(crate) fn send_recalls<M: Memory>(&mut self, out: &mut Out<'_, M>) {
        if !self.leases.has_listeners() {
            return;
        }
        for (id, client) in &mut self.clients {
            for lane in Lane::ALL {
                let Some((to, seq)) = client.listening[lane as usize] else { continue };
                if let Some((number, keys)) = self.leases.take_recall(*id, lane) {
                    client.listening[lane as usize] = None;
                    let (answer, granted) = (Ok(Reply::Recall { number, keys }), Capability::NONE);
                    out.effects.push(Effect::Reply { to, seq, answer, payload_len: 0, granted });
                }
            }
        }
    }

    /// Answers a request that is not executed, or not to its end.
    fn reply_error<M: Memory>(to: SlotRef, seq: u32, errno: Errno, out: &mut Out<'_, M>) {
        let (answer, granted) = (Err(errno), Capability::NONE);
        out.effects.push(Effect::Reply { to, seq, answer, payload_len: 0, granted });
    }

    /// A client listens for recalls. On each lane only one of its slots can.
    pub(crate) fn listen<M: Memory>(
        &mut self,
        from: SlotRef,
        seq: u32,
        (lane, acknowledged): (Lane, u64),
        out: &mut Out<'_, M>,
    ) -> Result<(), Errno> {
        let client = self.clients.get_mut(&from.client).ok_or(Errno::EPERM)?;
        if !client.acknowledged_leases {
            return Err(Errno::EPERM);
        }
        if let Some((to, seq)) = client.listening[lane as usize].replace((from, seq)) {
            Self::reply_error(to, seq, Errno::EINTR, out);
        }
        if self.leases.listens(from.client, lane, acknowledged) {
            self.tasks.wake_all(WaitKey::Recall);
        }
        Ok(())
    }

    /// A client is gone. What it asked for is dropped, but transactions, which others take part in, are
    /// finished. Nobody waits for its copies.
    pub(crate) fn expel<M: Memory>(&mut self, client: ClientId, out: &mut Out<'_, M>) {
        let Some(known) = self.clients.get_mut(&client) else { return };
        self.fronts -= usize::from(known.acknowledged_leases && !known.leaving);
        (known.leaving, known.listening) = (true, [None; Lane::ALL.len()]);
        for id in self.tasks.of_client(client) {
            self.file_locks.cancel(id);
            if self.tasks.get_mut(id).is_some_and(|task| !task.is_of_txn())
                && let Some(task) = self.tasks.remove(id)
            {
                task.pinned.iter().for_each(|page| self.cache.unpin(*page));
            }
        }
        self.tasks.wake_all(WaitKey::Frames);
        self.leases.forget_client(client);
        self.tasks.wake_all(WaitKey::Recall);
        self.let_go(client, out);
    }

    /// Releases everything of a client that was expelled, once no task can write to its memory any more.
    fn let_go<M: Memory>(&mut self, client: ClientId, out: &mut Out<'_, M>) {
        if !self.clients.get(&client).is_some_and(|known| known.leaving)
            || !self.tasks.of_client(client).is_empty()
        {
            return;
        }
        self.clients.remove(&client);
        let handles = self.opens.handles_of(client);
        // Only those who have something to lose: clients that come and go must not fill the log.
        if !handles.is_empty() || self.file_locks.has_any(client) {
            self.log.note(&Step::Expelled { client });
        }
        for handle in handles {
            if self.opens.close(handle, client) == Ok(true) {
                self.leases.revoke(&LeaseKey::Attr(handle.ino), out.memory);
                self.start(Task::new(Work::Reap { ino: handle.ino }));
            }
        }
        if self.plant != Some(Plant::KeepLocks) {
            self.file_locks.forget_client(client);
            self.grant_file_locks();
        }
        self.leases.forget_client(client);
        out.effects.push(Effect::Report(Report::Expelled { client }));
    }

    /// The log had no room for the records of all that could be granted.
    fn grant_more_file_locks<M: Memory>(&mut self, out: &mut Out<'_, M>) {
        self.grant_file_locks();
        if self.file_locks.is_to_grant() && !self.tasks.has_ready() {
            self.want_checkpoint(out);
        }
    }

    /// Lets requests go on whose locks can be granted now, as far as the log has room: each logs its lock at once, and
    /// what runs before it may take the other half.
    pub(crate) fn grant_file_locks(&mut self) {
        let room = self.log_room(self.cache.dirty_pages());
        let max = (room / 2 / PER_GRANT).max(room.min(1));
        for id in self.file_locks.grant(max as usize) {
            if let Some(task) = self.tasks.get_mut(id) {
                task.granted = true;
                self.tasks.wake(id);
            }
        }
    }

    /// Ends the wait of another slot's request, if it is one that can be interrupted.
    pub(crate) fn cancel<M: Memory>(&mut self, target: SlotRef, seq: u32, out: &mut Out<'_, M>) {
        let client = self.clients.get_mut(&target.client);
        let mut listening = client.into_iter().flat_map(|client| &mut client.listening);
        if let Some(listening) = listening.find(|listening| **listening == Some((target, seq))) {
            *listening = None;
            return Self::reply_error(target, seq, Errno::EINTR, out);
        }
        let Some(id) = self.tasks.of_slot(target) else { return };
        let Some(task) = self.tasks.get_mut(id) else { return };
        let Work::Request { header, request, .. } = &task.work else { return };
        if header.seq == seq && matches!(request, Request::Lock { .. }) && !task.granted {
            task.failed = Some(Errno::EINTR);
            self.file_locks.cancel(id);
            self.tasks.wake(id);
        }
    }

    pub(crate) fn map_version(&self) -> MapVersion {
        self.map_version
    }

    pub(crate) fn new_io(&mut self) -> IoId {
        self.io.new_id()
    }

    pub(crate) fn release_file_locks(
        &mut self,
        ino: Ino,
        (client, uid): (ClientId, u32),
        owner: warren_proto::LockOwner,
    ) {
        if !self.file_locks.release(ino, client, LockFlavour::Record, owner) {
            return;
        }
        let (flavour, lock, range) = (LockFlavour::Record, LockType::Unlock, ByteRange::ALL);
        let spec = LockSpec { flavour, owner, lock, range, pid: 0 };
        self.log.note(&Step::Locked { ino, client, spec, uid });
        self.grant_file_locks();
    }

    /// How often each kind of affinity ran.
    pub fn affinities(&self) -> &Counters {
        self.shards.counters()
    }

    /// Steps from a directory to the one above that moves of directories have taken.
    pub const fn steps_up(&self) -> u64 {
        self.steps_up
    }

    /// Requests and messages that wait for something, but for file locks: who gives a lock back must not find the
    /// tasks taken by those who wait for it.
    pub fn live_tasks(&self) -> usize {
        self.tasks.live()
    }

    /// Requests that wait for file locks. Each occupies a slot of its client, and counts for its user with the locks
    /// that are held.
    pub const fn lock_waiters(&self) -> usize {
        self.tasks.lock_waiters()
    }
}

impl Client {
    /// On whose behalf a request is executed: only a front may name somebody.
    fn act_as(&self, header: &RequestHeader) -> Arc<Credentials> {
        let own = &self.credentials;
        if own.checked_by_kernel && (own.uid, own.gid) != (header.uid, header.gid) {
            let (uid, gid) = (header.uid, header.gid);
            return Arc::new(Credentials { uid, gid, ..Credentials::clone(own) });
        }
        Arc::clone(own)
    }
}
