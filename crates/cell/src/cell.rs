//! The cell: what it owns, and how an event becomes effects.
//!
//! Order within one [`Cell::apply`]: the event is taken in; a request that needs nothing is executed
//! at once; then every task that something woke is run, until none is left. A task that has to wait
//! is parked with what it waits for and has changed nothing.

use std::collections::{BTreeMap, BTreeSet};

use warren_affinity::{Affinity, Counters};
use warren_base::limits::{BLOCK_SIZE, PAYLOAD_MAX};
use warren_base::{CellId, ClientId, Epoch, Errno, Ino, MapVersion, ShardId, TxnId};
use warren_disk::RootSlot;
use warren_proto::control::{Order, Report};
use warren_proto::{
    Answer, Change, Credentials, InodeValue, LeaseKey, LockFlavour, LockKey, LockMode, Reply,
    Request, RequestHeader,
};

use crate::cache::Cache;
use crate::checkpoint::Checkpoint;
use crate::chunk::Chunks;
use crate::count::Counting;
use crate::event::{Clock, Effect, Event, IoId, Memory, PeerMessage, SlotRef};
use crate::filelock::FileLocks;
use crate::io::Io;
use crate::lease::Leases;
use crate::open::Opens;
use crate::plant::Plant;
use crate::shard::Shard;
use crate::shards::Shards;
use crate::task::{Stop, Task, TaskId, Tasks, Wait, WaitKey, Work};
use crate::txn::{Committing, Participant};

/// What a cell is started with.
#[derive(Clone, Debug)]
pub struct CellConfig {
    pub id: CellId,
    pub epoch: Epoch,
    /// Owner of every shard, indexed by shard number.
    pub map: Vec<CellId>,
    pub map_version: MapVersion,
    /// The pool's secret for hashing names.
    pub secret: u64,
    /// Root slots of the shards this cell owns, as the device holds them (`None`: never written).
    pub roots: Vec<(ShardId, Option<RootSlot>)>,
    /// Free chunks that are this cell's to give to its shards.
    pub free_chunks: Vec<u64>,
    /// Blocks of the whole pool device, for `statfs`.
    pub total_blocks: u64,
    /// Frames the driver provides: the byte limit of the buffer cache over 4096. At least
    /// [`CellConfig::FRAMES_MIN`], or requests that are larger than a fourth of them get ENOMEM.
    pub frames: u32,
    /// The last checkpoint that the superblock names.
    pub generation: u64,
    /// A rule to break, for tests of the checkers.
    pub plant: Option<Plant>,
}

impl CellConfig {
    /// Enough that the largest request can be served whatever else goes on: a half of the frames may
    /// be pinned, and another fourth must stay free of dirty pages.
    pub const FRAMES_MIN: u32 = (4 * PAYLOAD_MAX / BLOCK_SIZE) as u32;
}

#[derive(Debug)]
pub(crate) struct Client {
    credentials: Credentials,
    acknowledged_leases: bool,
    slots: u16,
    /// The slot (and sequence number) that waits for recalls.
    listening: Option<(SlotRef, u32)>,
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
    pub(crate) now: Clock,
    pub(crate) shards: Shards,
    pub(crate) cache: Cache,
    pub(crate) leases: Leases,
    pub(crate) opens: Opens,
    pub(crate) file_locks: FileLocks<TaskId>,
    pub(crate) clients: BTreeMap<ClientId, Client>,
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
    pub(crate) total_blocks: u64,
    pub(crate) plant: Option<Plant>,
    /// Changes whose leases are revoked with the next event, by a plant.
    pub(crate) late: Vec<(Vec<Change>, Option<ClientId>)>,
    map_version: MapVersion,
    epoch: Epoch,
    /// Shards that are not open yet.
    opening: usize,
    ready: bool,
}

impl Cell {
    /// A cell that starts to open its shards; it reports [`Report::Ready`] when all are.
    pub fn new(config: CellConfig, now: Clock, effects: &mut Vec<Effect>) -> Self {
        let cells = config.map.iter().copied().collect::<BTreeSet<_>>();
        let open = config.roots.iter().map(|(id, root)| Shard::open(*id, root.as_ref()));
        let shards = Shards::new(config.map.len(), open);
        let mut cell = Self {
            id: config.id,
            secret: config.secret,
            now,
            cache: Cache::new(config.frames),
            leases: Leases::new(config.epoch, config.plant == Some(Plant::ReuseStamp)),
            opens: Opens::new(config.epoch),
            file_locks: FileLocks::new(),
            clients: BTreeMap::new(),
            tasks: Tasks::default(),
            participants: BTreeMap::new(),
            live_txns: BTreeSet::new(),
            committing: BTreeMap::new(),
            tasks_of_txns: BTreeMap::new(),
            next_txn: u64::from(config.epoch.0) << 40,
            io: Io::default(),
            counting: Counting::default(),
            chunks: Chunks::new(config.id, &cells, config.free_chunks),
            checkpoint: Checkpoint::new(config.generation),
            total_blocks: config.total_blocks,
            plant: config.plant,
            late: Vec::new(),
            map: config.map,
            map_version: config.map_version,
            epoch: config.epoch,
            opening: shards.ids().len(),
            ready: false,
            shards,
        };
        for shard in cell.shards.ids().to_vec() {
            cell.start(Task::new(Work::OpenShard { shard }));
        }
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
        self.now = now;
        let out = &mut Out { memory, effects };
        self.revoke_late(out);
        match event {
            Event::Request { from, header, request } => self.request(from, header, request, out),
            Event::Peer { from, message } => self.peer(from, message, out),
            Event::Order(order) => self.order(order, out),
            Event::IoDone { io, result } => self.io_done(io, result, out),
            Event::Tick => {
                self.poll_pool(out);
                self.report_if_ready(out);
            }
        }
        self.run_ready(out);
    }

    fn run_ready<M: Memory>(&mut self, out: &mut Out<'_, M>) {
        loop {
            while let Some((id, task)) = self.tasks.next_ready() {
                self.run(id, task, out);
            }
            // Whoever an acknowledgement woke has said by now whether there is more to recall.
            self.send_recalls(out);
            self.poll_pool(out);
            self.write_back(out);
            self.advance_checkpoint(out);
            self.issue_node_writes(out);
            if !self.tasks.has_ready() {
                return;
            }
        }
    }

    /// Says that the cell can serve, once all shards are open and the pool knows its chunks.
    pub(crate) fn report_if_ready<M: Memory>(&mut self, out: &mut Out<'_, M>) {
        if !self.ready && self.opening == 0 && self.chunks.is_open() {
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
        let Some(client) = self.clients.get(&from.client).filter(|c| from.slot.0 < c.slots) else {
            return;
        };
        // A slot that rings again before it was answered harms only itself.
        if self.tasks.of_slot(from).is_some() {
            return;
        }
        let who = client.act_as(&header);
        let id = self.tasks.new_id();
        self.run(id, Task::new(Work::Request { from, header, request, who }), out);
    }

    fn peer<M: Memory>(&mut self, from: CellId, message: PeerMessage, out: &mut Out<'_, M>) {
        match message {
            PeerMessage::Request(request) => self.peer_request(from, request, out),
            PeerMessage::Reply(reply) => self.peer_reply(from, reply, out),
            PeerMessage::Pool(message) => self.pool_message(from, message, out),
        }
    }

    fn order<M: Memory>(&mut self, order: Order, out: &mut Out<'_, M>) {
        match order {
            Order::Admit { client, credentials, acknowledged_leases, slots } => {
                let admitted = Client { credentials, acknowledged_leases, slots, listening: None };
                self.clients.insert(client, admitted);
                out.effects.push(Effect::Report(Report::Admitted { client }));
            }
            Order::Expel { client } => self.expel(client, out),
            Order::Drain { number } => self.drain(number, out),
            Order::Write { number } => self.start_writing(number),
            Order::Switched { number } => self.switched(number, out),
            Order::Failed { number, errno } => self.checkpoint_failed(number, errno),
            Order::Stop => {
                let cell = self.id;
                out.effects.push(Effect::Report(Report::Stopped { cell }));
            }
        }
    }

    /// Runs a task until it is finished or has to wait.
    fn run<M: Memory>(&mut self, id: TaskId, mut task: Task, out: &mut Out<'_, M>) {
        if !task.pinned.is_empty() {
            task.pinned.drain(..).for_each(|page| self.cache.unpin(page));
            self.tasks.wake_all(WaitKey::Frames);
        }
        if Self::is_waiting_for_peer(&task) {
            return self.tasks.park(id, task);
        }
        let outcome = match task.failed.take() {
            Some(errno) => Err(Stop::Fail(errno)),
            None => self.work_in_affinity(id, &mut task, out),
        };
        match outcome {
            Ok(answer) => self.finish(task, answer, out),
            Err(Stop::Fail(Errno::ENOSPC)) if task.may_retry() => {
                // Holding locks it must not wait for a checkpoint, which waits for transactions.
                self.release_txn(&mut task, out);
                task.txn = None;
                task.checkpointed = true;
                self.wait(id, task, Wait::Checkpoint, out);
            }
            Err(Stop::Fail(errno)) => {
                self.release_txn(&mut task, out);
                self.finish(task, Some((Err(errno), 0)), out);
            }
            Err(Stop::Wait(wait)) => self.wait(id, task, wait, out),
        }
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
        match &task.work {
            Work::Request { request, .. } if crate::op::is_on_names(request) => {
                self.run_on_names(id, task, out).map(|answer| Some((answer, 0)))
            }
            Work::Request { .. } => self.run_request(id, task, out),
            Work::Prepare { .. } => self.prepare(id, task, out).map(|()| None),
            Work::Peek { from, txn, ino } => {
                self.answer_peek((*from, *txn, *ino), out).map(|()| None)
            }
            Work::Commit { .. } => self.commit(task, out).map(|()| None),
            Work::Reap { ino } => self.reap(*ino, task, out).map(|()| None),
            Work::Fix => self.fix(out).map(|()| None),
            Work::OpenShard { shard } => self.open_shard(*shard, out).map(|()| None),
        }
    }

    fn finish<M: Memory>(
        &mut self,
        task: Task,
        answer: Option<(Answer, u32)>,
        out: &mut Out<'_, M>,
    ) {
        match (task.work, answer) {
            (Work::Request { from, header, .. }, Some((answer, payload_len)))
                if self.clients.contains_key(&from.client) =>
            {
                let seq = header.seq;
                out.effects.push(Effect::Reply { to: from, seq, answer, payload_len });
            }
            (Work::Prepare { from, txn, .. }, Some((Err(errno), _))) => {
                self.refuse(from, txn, errno, out)
            }
            (Work::Peek { from, txn, .. }, Some((Err(errno), _))) => {
                self.send_reply(from, warren_proto::PeerReply::Refused { txn, errno }, out);
            }
            (Work::Fix, Some((Err(errno), _))) => self.fix_failed(errno, out),
            (Work::OpenShard { shard }, Some((Err(errno), _))) => {
                out.effects.push(Effect::Report(Report::Broken { cell: self.id, shard, errno }));
            }
            _ => {}
        }
    }

    fn open_shard<M: Memory>(&mut self, id: ShardId, out: &mut Out<'_, M>) -> Result<(), Stop> {
        let shard = self.shards.get_mut(&id).expect("opened once");
        if !shard.space_open {
            shard.open_space()?;
        }
        for ino in shard.orphans()? {
            self.start(Task::new(Work::Reap { ino }));
        }
        self.opening -= 1;
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
            Wait::Checkpoint => {
                self.want_checkpoint(out);
                self.tasks.wait_for(WaitKey::NextCheckpoint, id);
            }
            Wait::Yield => self.tasks.wake(id),
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
        self.clients.get(&client).is_some_and(|client| client.acknowledged_leases)
    }

    /// Sends recalls to whoever listens.
    pub(crate) fn send_recalls<M: Memory>(&mut self, out: &mut Out<'_, M>) {
        for (id, client) in &mut self.clients {
            let Some((to, seq)) = client.listening else { continue };
            if let Some((number, keys)) = self.leases.take_recall(*id) {
                client.listening = None;
                let answer = Ok(Reply::Recall { number, keys });
                out.effects.push(Effect::Reply { to, seq, answer, payload_len: 0 });
            }
        }
    }

    /// A client listens for recalls. Only one of its slots can.
    pub(crate) fn listen<M: Memory>(
        &mut self,
        from: SlotRef,
        seq: u32,
        acknowledged: u64,
        out: &mut Out<'_, M>,
    ) -> Result<(), Errno> {
        let client = self.clients.get_mut(&from.client).ok_or(Errno::EPERM)?;
        if !client.acknowledged_leases {
            return Err(Errno::EPERM);
        }
        if let Some((to, seq)) = client.listening.replace((from, seq)) {
            let answer = Err(Errno::EINTR);
            out.effects.push(Effect::Reply { to, seq, answer, payload_len: 0 });
        }
        if self.leases.acknowledge(from.client, acknowledged) {
            self.tasks.wake_all(WaitKey::Recall);
        }
        Ok(())
    }

    /// Releases everything of a client that is gone. What it asked for and can still be finished is.
    fn expel<M: Memory>(&mut self, client: ClientId, out: &mut Out<'_, M>) {
        self.clients.remove(&client);
        for id in self.tasks.of_client(client) {
            self.file_locks.cancel(id);
            if self.tasks.get_mut(id).is_some_and(|task| task.txn.is_none())
                && let Some(task) = self.tasks.remove(id)
            {
                task.pinned.iter().for_each(|page| self.cache.unpin(*page));
            }
        }
        for handle in self.opens.handles_of(client) {
            if self.opens.close(handle, client) == Ok(true) {
                self.leases.revoke(&LeaseKey::Attr(handle.ino), out.memory);
                self.start(Task::new(Work::Reap { ino: handle.ino }));
            }
        }
        for ino in self.file_locks.forget_client(client) {
            self.grant_file_locks(ino);
        }
        self.leases.forget_client(client);
        self.tasks.wake_all(WaitKey::Recall);
        out.effects.push(Effect::Report(Report::Expelled { client }));
    }

    /// Lets requests go on whose locks can be granted now.
    pub(crate) fn grant_file_locks(&mut self, ino: Ino) {
        for id in self.file_locks.grant_waiting(ino) {
            if let Some(task) = self.tasks.get_mut(id) {
                task.granted = true;
                self.tasks.wake(id);
            }
        }
    }

    /// Ends the wait of another slot's request, if it is one that can be interrupted.
    pub(crate) fn cancel<M: Memory>(&mut self, target: SlotRef, seq: u32, out: &mut Out<'_, M>) {
        let listening = self.clients.get_mut(&target.client).map(|client| &mut client.listening);
        if let Some(listening) = listening
            && *listening == Some((target, seq))
        {
            *listening = None;
            let answer = Err(Errno::EINTR);
            return out.effects.push(Effect::Reply { to: target, seq, answer, payload_len: 0 });
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
        client: ClientId,
        owner: warren_proto::LockOwner,
    ) {
        self.file_locks.release(ino, client, LockFlavour::Record, owner);
        self.grant_file_locks(ino);
    }

    /// How often each kind of affinity ran.
    pub fn affinities(&self) -> &Counters {
        self.shards.counters()
    }

    /// Requests and messages that wait for something.
    pub fn live_tasks(&self) -> usize {
        self.tasks.len()
    }
}

impl Client {
    /// On whose behalf a request is executed: only a front may name somebody.
    fn act_as(&self, header: &RequestHeader) -> Credentials {
        if self.credentials.checked_by_kernel {
            return Credentials { uid: header.uid, gid: header.gid, ..self.credentials.clone() };
        }
        self.credentials.clone()
    }
}
