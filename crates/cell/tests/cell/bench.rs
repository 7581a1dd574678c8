//! A cell alone, or with a peer that the test plays: its device, its memory, and a supervisor that
//! grants every checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS, LEASE_WORDS, PAYLOAD_MAX};
use warren_base::{
    BlockNo, CellId, ClientId, Epoch, Errno, Ino, Instant, Lsn, MapVersion, ShardId, SlotNo,
    Timestamp,
};
use warren_cell::{
    Backing, Cell, CellConfig, Clock, Effect, Event, FrameNo, IoId, LogConfig, Memory, PeerBody,
    PeerMessage, Planted, Recovery, SlotRef,
};
use warren_disk::{
    BlockPtr, ChunkBounds, Extent, Inode, KeptRecords, Key, LOG_BLOCKS_MIN, LogArea, RECORD_HEADER,
    RecordPlace, Tree, Value, seal_record,
};
use warren_pool::PoolMessage;
use warren_proto::control::{Order, Report, ShardRoot, Written};
use warren_proto::slot::Shape;
use warren_proto::{
    AccessMode, Answer, Capability, CapabilityKey, Cause, CreateFlags, Credentials, FileKind,
    NewInode, Request, RequestHeader, Rules, Step, Wire,
};

pub(crate) use crate::image::{FIRST_CHUNK, Image, RESERVED, SECRET, entry_key, name};

pub(crate) const KEY: CapabilityKey = CapabilityKey([21, 22]);
pub(crate) const FRAMES: u32 = CellConfig::FRAMES_MIN;
/// One and a half times the smallest log, of which half is the reserve.
const LOG_BLOCKS: u64 = LOG_BLOCKS_MIN + LOG_BLOCKS_MIN / 2;
pub(crate) const LOG: LogArea =
    LogArea { start: BlockNo(CHUNKS * CHUNK_BLOCKS), blocks: LOG_BLOCKS };
pub(crate) const CHUNKS: u64 = 40;
pub(crate) const CLIENT: ClientId = ClientId(1);
pub(crate) const PEER: CellId = CellId(1);
pub(crate) const ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];
pub(crate) const WHEN: Clock = Clock { monotonic: Instant(1), wall: Timestamp(1) };

pub(crate) const FILE: Ino = Ino(2);
pub(crate) const LOST: Ino = Ino(3);
pub(crate) const DIR: Ino = Ino(1 << 48 | 1);

impl Image {
    /// Shards 0 and 1: `/file` (an inode with two names), `/dir`, and `/lost`.
    pub(crate) fn new() -> Self {
        let mut image = Self::empty(2);
        image.used = vec![0b11, 0];
        image.inode(Ino::ROOT, FileKind::Directory, 2);
        image.part(Ino::ROOT, 4, 1);
        image.entry(Ino::ROOT, "file", FILE, FileKind::Regular);
        image.entry(Ino::ROOT, "file2", FILE, FileKind::Regular);
        image.entry(Ino::ROOT, "dir", DIR, FileKind::Directory);
        image.entry(Ino::ROOT, "lost", LOST, FileKind::Regular);
        image.inode(FILE, FileKind::Regular, 2);
        image.extent(FILE, 0, FIRST_CHUNK * CHUNK_BLOCKS, 2);
        image.change(FILE, |inode| (inode.size, inode.blocks) = (2 * BLOCK_SIZE as u64, 2));
        image.inode(LOST, FileKind::Regular, 1);
        image.inode(DIR, FileKind::Directory, 2);
        image.part(DIR, 0, 0);
        image
    }

    pub(crate) fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        match self.records[usize::from(ino.shard().0)].get_mut(&Key::inode(ino)) {
            Some(Value::Inode(inode)) => change(inode),
            _ => panic!("no such inode"),
        }
    }

    /// An extent whose blocks hold zeros.
    pub(crate) fn extent(&mut self, ino: Ino, at: u64, start: u64, len: usize) {
        let checksum = warren_disk::block_checksum(&[0; BLOCK_SIZE]);
        let extent = Extent { start: BlockNo(start), checksums: vec![checksum; len].into() };
        let shard = usize::from(ino.shard().0);
        self.put(shard, Key::extent(ino, at), Value::Extent(Box::new(extent)));
    }
}

pub(crate) struct PlainMemory {
    frames: Vec<[u8; BLOCK_SIZE]>,
    lane: Vec<u8>,
}

impl Memory for PlainMemory {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        &self.frames[frame.0 as usize]
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        &mut self.frames[frame.0 as usize]
    }

    fn payload_to_frame(&mut self, _: SlotRef, from: usize, to: FrameNo, at: Range<usize>) {
        let bytes = &self.lane[from..from + at.len()];
        self.frames[to.0 as usize][at].copy_from_slice(bytes);
    }

    fn frame_to_payload(&mut self, from: FrameNo, at: Range<usize>, _: SlotRef, to: usize) {
        self.lane[to..to + at.len()].copy_from_slice(&self.frames[from.0 as usize][at]);
    }

    fn read_payload(&mut self, _: SlotRef, into: &mut [u8]) {
        into.copy_from_slice(&self.lane[..into.len()]);
    }

    fn write_payload(&mut self, _: SlotRef, bytes: &[u8]) {
        self.lane[..bytes.len()].copy_from_slice(bytes);
    }

    fn zero_payload(&mut self, _: SlotRef, offset: usize, len: usize) {
        self.lane[offset..offset + len].fill(0);
    }

    fn store_word(&mut self, _: ClientId, word: u32, _: u64) {
        assert!((word as usize) < LEASE_WORDS);
    }
}

/// A cell that serves an image, alone or with a peer that has shards of its own.
pub(crate) struct Bench {
    config: CellConfig,
    cell: Cell,
    /// Messages with chunks that the peer has sent.
    chunks_given: u64,
    memory: PlainMemory,
    device: BTreeMap<BlockNo, Vec<u8>>,
    effects: Vec<Effect>,
    pub answers: BTreeMap<u32, Answer>,
    pub sent: Vec<PeerBody>,
    /// Whether it has reported that it cannot serve.
    pub is_broken: bool,
    /// Shards that it has given up.
    pub given_up: BTreeSet<ShardId>,
    /// The number of reports of a suspected peer.
    pub suspicions: u32,
    /// Requests that wait for file locks, as it has reported.
    pub lock_waiters: Vec<SlotRef>,
    checkpoint: u64,
    /// Where its log ends, once it has reported that.
    log_end: Option<Lsn>,
    /// Whether a checkpoint is granted as soon as it is requested; if not, whether one was
    /// requested.
    pub grants: bool,
    wants: bool,
    /// The result of writes, except those of the log.
    pub fails: Option<Errno>,
    /// Blocks that cannot be read.
    unreadable: BTreeSet<BlockNo>,
    /// So many of the next reads bring a block that is damaged.
    pub damaged_reads: u32,
    /// Whether writes to chunks do not finish, and those that are held.
    pub is_slow: bool,
    under_way: Vec<Effect>,
    /// Whether the supervisor's flushes fail.
    pub broken_device: bool,
    /// The device refuses so many of the next checkpoints.
    pub refused: u32,
    /// Chunks that the host of a sparse pool has room for, and those that it has allocated.
    pub host_room: u64,
    pub allocated: BTreeSet<u64>,
    pub seq: u32,
    /// The number of times it asked to be called again at once, after other events.
    pub yields: u32,
    /// The capability that came with the last answer.
    pub granted: Capability,
}

impl Bench {
    pub(crate) fn new(image: &Image, peers: bool) -> Self {
        Self::recovering(image, peers, Recovery::None, (BTreeMap::new(), BTreeSet::new()))
    }

    /// A cell whose pool is a sparse file, on a host with room for so many chunks more.
    pub(crate) fn sparse(image: &Image, host_room: u64) -> Self {
        let mut bench = Self::new(image, false);
        bench.config.space.backing = Backing::OnDemand;
        (bench.host_room, bench.allocated) =
            (host_room, image.owned.values().flatten().copied().collect());
        bench.cell = Cell::new(bench.config.clone(), WHEN, &mut bench.effects);
        bench.apply(Event::Tick);
        bench.admit(CLIENT);
        bench
    }

    /// A cell with a peer in whose pool there is no free chunk here.
    pub(crate) fn without_chunks(image: &Image) -> Self {
        let mut bench = Self::new(image, true);
        bench.config.free_chunks.clear();
        bench.cell = Cell::new(bench.config.clone(), WHEN, &mut bench.effects);
        bench.apply(Event::Tick);
        bench.admit(CLIENT);
        bench.hear(PeerBody::Pool(PoolMessage::Hello));
        bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
        bench
    }

    /// A cell that has all chunks of its pool.
    pub(crate) fn roomy(image: &Image) -> Self {
        let mut bench = Self::new(image, false);
        bench.config.free_chunks = (6..CHUNKS).collect();
        bench.cell = Cell::new(bench.config.clone(), WHEN, &mut bench.effects);
        bench.started()
    }

    /// The peer sends a chunk that the cell has asked for.
    pub(crate) fn give_chunk(&mut self, chunk: u64) {
        let search = self.sent.iter().rev().find_map(|body| match body {
            PeerBody::Pool(PoolMessage::Pull { search, .. }) => Some(*search),
            _ => None,
        });
        let (search, elements) = (search.expect("it has asked"), vec![chunk]);
        self.chunks_given += 1;
        let number = self.chunks_given;
        self.hear(PeerBody::Pool(PoolMessage::Transfer { search, number, elements, left: 0 }));
    }

    /// A cell that finds these records in its log after a power failure.
    pub(crate) fn with_log(image: &Image, records: &[(Vec<Step>, Cause)]) -> Self {
        Self::with_unreadable(image, records, &[])
    }

    /// The same where these blocks cannot be read.
    pub(crate) fn with_unreadable(
        image: &Image,
        records: &[(Vec<Step>, Cause)],
        unreadable: &[BlockNo],
    ) -> Self {
        let mut log = Vec::new();
        for (steps, cause) in records {
            let mut record = vec![0; RECORD_HEADER];
            steps.iter().for_each(|step| step.encode(&mut record));
            cause.encode(&mut record);
            seal_record(&mut record, RecordPlace::of(Lsn(log.len() as u64)), 1, steps.len() as u16);
            log.extend(record);
        }
        let blocks = log.chunks(BLOCK_SIZE).zip(LOG.start.0..).map(|(bytes, block)| {
            let mut whole = bytes.to_vec();
            whole.resize(BLOCK_SIZE, 0);
            (BlockNo(block), whole)
        });
        let unreadable = unreadable.iter().copied().collect();
        Self::recovering(image, false, Recovery::Power, (blocks.collect(), unreadable))
    }

    fn recovering(
        image: &Image,
        peers: bool,
        recovery: Recovery,
        (mut device, unreadable): (BTreeMap<BlockNo, Vec<u8>>, BTreeSet<BlockNo>),
    ) -> Self {
        let roots = [0, 1].map(|shard| (ShardId(shard as u16), image.write(shard, &mut device)));
        let mut map = vec![CellId(0); 2];
        map.extend(peers.then_some(PEER));
        let config = CellConfig {
            id: CellId(0),
            epoch: Epoch(1),
            cells: 1 + u16::from(peers),
            map,
            map_version: MapVersion(1),
            secret: SECRET,
            capabilities: KEY,
            roots: roots.into_iter().collect(),
            lost: BTreeSet::new(),
            kept: Vec::new(),
            owned_chunks: image.owned.clone(),
            free_chunks: (6..20).collect(),
            bounds: ChunkBounds::of(RESERVED, CHUNKS),
            total_blocks: CHUNKS * CHUNK_BLOCKS,
            space: warren_cell::SpaceConfig::of(Backing::Whole),
            frames: FRAMES,
            nodes_max: CellConfig::NODES_MIN,
            log: LogConfig { area: LOG, incarnation: 1, start: Lsn(0), recovery, may_lose: false },
            generation: 1,
            plant: Planted::NONE,
        };
        let mut effects = Vec::new();
        let cell = Cell::new(config.clone(), WHEN, &mut effects);
        let memory = PlainMemory {
            frames: vec![[0; BLOCK_SIZE]; CellConfig::frames_total(FRAMES, LOG) as usize],
            lane: vec![7; PAYLOAD_MAX],
        };
        let (answers, sent) = (BTreeMap::new(), Vec::new());
        let bench = Self {
            config,
            cell,
            chunks_given: 0,
            memory,
            device,
            effects,
            answers,
            sent,
            is_broken: false,
            given_up: BTreeSet::new(),
            suspicions: 0,
            lock_waiters: Vec::new(),
            checkpoint: 1,
            log_end: None,
            grants: true,
            wants: false,
            fails: None,
            unreadable,
            damaged_reads: 0,
            is_slow: false,
            under_way: Vec::new(),
            broken_device: false,
            refused: 0,
            host_room: 0,
            allocated: BTreeSet::new(),
            seq: 0,
            yields: 0,
            granted: Capability::NONE,
        };
        bench.started()
    }

    fn started(mut self) -> Self {
        self.apply(Event::Tick);
        self.admit(CLIENT);
        self
    }

    /// The number of live tasks, and of requests that wait for file locks.
    pub(crate) fn tasks(&self) -> (usize, usize) {
        (self.cell.live_tasks(), self.cell.lock_waiters())
    }

    /// Whether it serves.
    pub(crate) fn is_ready(&self) -> bool {
        self.cell.is_ready()
    }

    /// Steps from a directory to its parent that renames made.
    pub(crate) fn steps_up(&self) -> u64 {
        self.cell.steps_up()
    }

    pub(crate) fn admit(&mut self, client: ClientId) {
        self.admit_as(client, 0, false);
    }

    /// A client of a user, or a front, which may act for any.
    pub(crate) fn admit_as(&mut self, client: ClientId, uid: u32, front: bool) {
        let credentials = Credentials { uid, checked_by_kernel: front, ..Credentials::default() };
        self.admit_with(client, credentials);
    }

    pub(crate) fn admit_with(&mut self, client: ClientId, credentials: Credentials) {
        let shape = Shape::UNBOUNDED;
        let rules = Rules::empty();
        let admit = Order::Admit { client, credentials, acknowledged_leases: false, shape, rules };
        self.apply(Event::Order(admit));
    }

    pub(crate) fn files_written(&self) -> u64 {
        self.cell.files_written()
    }

    /// A front, whose kernel caches and acknowledges recalls.
    pub(crate) fn admit_front(&mut self, client: ClientId) {
        let credentials = Credentials { checked_by_kernel: true, ..Credentials::default() };
        let (acknowledged_leases, shape) = (true, Shape::UNBOUNDED);
        let rules = Rules::empty();
        let admit = Order::Admit { client, credentials, acknowledged_leases, shape, rules };
        self.apply(Event::Order(admit));
    }

    /// The process dies, and another takes over its memory.
    pub(crate) fn take_over(&mut self) {
        self.config.epoch = Epoch(self.config.epoch.0 + 1);
        self.config.log.recovery = Recovery::Process;
        self.effects.clear();
        self.cell = Cell::new(self.config.clone(), WHEN, &mut self.effects);
        self.admit(CLIENT);
        self.apply(Event::Tick);
        assert!(self.cell.is_ready() && !self.is_broken);
    }

    /// The power is cut, and another fleet starts with the contents of the device.
    pub(crate) fn cut_power(&mut self) {
        self.config.epoch = Epoch(self.config.epoch.0 + 1);
        self.config.log.recovery = Recovery::Power;
        self.memory.frames.iter_mut().for_each(|frame| frame.fill(0xee));
        self.effects.clear();
        self.under_way.clear();
        (self.log_end, self.is_slow) = (None, false);
        self.cell = Cell::new(self.config.clone(), WHEN, &mut self.effects);
        self.apply(Event::Tick);
        self.admit(CLIENT);
        assert!(self.cell.is_ready() && !self.is_broken);
    }

    /// Takes the checkpoint that was requested.
    pub(crate) fn grant(&mut self) {
        assert!(std::mem::take(&mut self.wants), "no checkpoint is wanted");
        self.begin_checkpoint();
    }

    pub(crate) fn apply(&mut self, event: Event) {
        self.cell.apply(WHEN, event, &mut self.memory, &mut self.effects);
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                if let Some(event) = self.carry_out(effect) {
                    self.cell.apply(WHEN, event, &mut self.memory, &mut self.effects);
                }
            }
        }
    }

    pub(crate) fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Reply { seq, answer, beside, .. } => {
                self.answers.insert(seq, answer);
                self.granted = beside.granted;
                None
            }
            Effect::Send { message, .. } => {
                self.sent.push(message.body);
                None
            }
            Effect::AwaitsLock { from } => {
                self.lock_waiters.push(from);
                None
            }
            Effect::Report(report) => self.report(report),
            Effect::Suspect { .. } => {
                self.suspicions += 1;
                None
            }
            Effect::Flush { io } => Some(Event::IoDone { io, result: Ok(()) }),
            Effect::Wake(at) => self.wake(at),
            Effect::Reserve { io, block, count } => Some(self.reserve(io, block, count)),
            Effect::Discard { io, block, count } => Some(self.discard(io, block, count)),
            Effect::MeasureHost => {
                Some(Event::HostMeasured { blocks: self.host_room * CHUNK_BLOCKS })
            }
            Effect::Read { io, block, frames } => {
                let mut result = Ok(());
                for (at, frame) in (0..).zip(frames) {
                    match block.0.checked_add(at).map(BlockNo) {
                        Some(block) if self.unreadable.contains(&block) => result = Err(Errno::EIO),
                        Some(block) if block.0 < LOG.start.0 + LOG.blocks => {
                            let bytes = self.device.get(&block).map_or(&ZEROS[..], |bytes| bytes);
                            let into = self.memory.frame_mut(frame);
                            into.copy_from_slice(bytes);
                            into[100] ^= u8::from(self.damaged_reads > 0);
                            self.damaged_reads = self.damaged_reads.saturating_sub(1);
                        }
                        _ => result = Err(Errno::EIO),
                    }
                }
                Some(Event::IoDone { io, result })
            }
            Effect::Write { io, block, frames } | Effect::WriteThrough { io, block, frames } => {
                let is_log = (LOG.start.0..LOG.start.0 + LOG.blocks).contains(&block.0);
                if self.is_slow && !is_log {
                    self.under_way.push(Effect::Write { io, block, frames });
                    return None;
                }
                if let Some(errno) = self.fails.filter(|_| !is_log) {
                    return Some(Event::IoDone { io, result: Err(errno) });
                }
                for (at, frame) in (0..).zip(frames) {
                    let block = block.offset(at);
                    let chunks = RESERVED..CHUNKS;
                    let is_known = is_log || chunks.contains(&(block.0 / CHUNK_BLOCKS));
                    assert!(is_known, "{block:?} is written");
                    let is_allocated = self.config.space.backing != Backing::OnDemand
                        || self.allocated.contains(&(block.0 / CHUNK_BLOCKS));
                    assert!(is_log || is_allocated, "{block:?} is not allocated");
                    self.device.insert(block, self.memory.frame(frame).to_vec());
                }
                Some(Event::IoDone { io, result: Ok(()) })
            }
        }
    }

    fn wake(&mut self, at: Instant) -> Option<Event> {
        let is_due = at <= WHEN.monotonic;
        self.yields += u32::from(is_due);
        is_due.then_some(Event::Tick)
    }

    fn reserve(&mut self, io: IoId, block: BlockNo, count: u64) -> Event {
        let chunks = block.0 / CHUNK_BLOCKS..(block.0 + count) / CHUNK_BLOCKS;
        let wanted = chunks.end - chunks.start;
        if self.host_room < wanted {
            return Event::IoDone { io, result: Err(Errno::ENOSPC) };
        }
        self.host_room -= wanted;
        self.allocated.extend(chunks);
        Event::IoDone { io, result: Ok(()) }
    }

    fn discard(&mut self, io: IoId, block: BlockNo, count: u64) -> Event {
        for chunk in block.0 / CHUNK_BLOCKS..(block.0 + count) / CHUNK_BLOCKS {
            assert!(self.allocated.remove(&chunk), "chunk {chunk} was not allocated");
            self.host_room += 1;
        }
        Event::IoDone { io, result: Ok(()) }
    }

    /// Blocks that are being written.
    pub(crate) fn blocks_under_way(&self) -> Vec<BlockNo> {
        let blocks = self.under_way.iter().flat_map(|effect| match effect {
            Effect::Write { block, frames, .. } => {
                (0..frames.len() as u64).map(|at| block.offset(at)).collect()
            }
            _ => Vec::new(),
        });
        blocks.collect()
    }

    /// Finishes the held writes.
    pub(crate) fn finish_writes(&mut self) {
        self.is_slow = false;
        for effect in std::mem::take(&mut self.under_way) {
            let done = self.carry_out(effect).expect("a write is done");
            self.apply(done);
        }
    }

    /// Abandons the checkpoint under way.
    pub(crate) fn abandon(&mut self) {
        self.apply(Event::Order(Order::Abandoned { number: self.checkpoint }));
    }

    /// Begins a checkpoint that no cell has requested.
    pub(crate) fn begin_checkpoint(&mut self) {
        self.checkpoint += 1;
        self.apply(Event::Order(Order::Drain { number: self.checkpoint }));
    }

    /// A cell of `fsck -y` replays these log records for the shard, then another fleet is started.
    /// Returns how many records were replayed.
    pub(crate) fn mend(&mut self, shard: u16, kept: KeptRecords) -> u64 {
        self.config.roots[usize::from(shard)].1.given_up = false;
        self.config.kept = vec![kept];
        self.cut_power();
        let replayed = self.cell.kept_replayed();
        self.config.kept.clear();
        self.call(Request::Sync).expect("a checkpoint");
        self.given_up.clear();
        self.cut_power();
        assert!(self.given_up.is_empty());
        replayed
    }

    /// The chunks that the region map gives to the shard.
    pub(crate) fn chunks(&self, shard: u16) -> BTreeSet<u64> {
        self.config.owned_chunks[&ShardId(shard)].iter().copied().collect()
    }

    /// The log records that are kept for the shard, in one chunk.
    pub(crate) fn kept(&self, shard: u16) -> KeptRecords {
        let at = |chunk: u64, block: u64| &self.device[&BlockNo(chunk * CHUNK_BLOCKS + block)][..];
        let owned = &self.config.owned_chunks[&ShardId(shard)];
        let is_kept = |chunk: &&u64| {
            let first = BlockNo(**chunk * CHUNK_BLOCKS);
            self.device.get(&first).is_some_and(|bytes| KeptRecords::blocks(bytes).is_some())
        };
        let chunk = *owned.iter().find(is_kept).expect("some are kept");
        let blocks = KeptRecords::blocks(at(chunk, 0)).expect("just seen");
        let bytes: Vec<u8> = (0..blocks).flat_map(|block| at(chunk, block)).copied().collect();
        KeptRecords::decode(&bytes, SECRET).expect("intact")
    }

    /// The number of blocks of chunks that begin with data of clients.
    pub(crate) fn written(&self) -> usize {
        let is_data = |(block, bytes): &(&BlockNo, &Vec<u8>)| {
            **block < LOG.start && bytes.starts_with(&[7; 100])
        };
        self.device.iter().filter(is_data).count()
    }

    pub(crate) fn report(&mut self, report: Report) -> Option<Event> {
        let order = match report {
            Report::GivenUp { shard, .. } => {
                self.given_up.insert(shard);
                return None;
            }
            Report::BrokenLog { .. } => {
                self.is_broken = true;
                return None;
            }
            Report::WantCheckpoint { .. } if !self.grants => {
                self.wants = true;
                return None;
            }
            Report::WantCheckpoint { .. } => {
                self.checkpoint += 1;
                Order::Drain { number: self.checkpoint }
            }
            Report::LogEnd { lsn, .. } if self.log_end == Some(lsn) => Order::Replay,
            Report::LogEnd { lsn, .. } => {
                self.log_end = Some(lsn);
                Order::Cut { ends: vec![lsn] }
            }
            Report::Replayed { chunks, .. } => Order::Claimed { chunks },
            Report::Drained { number, .. } => Order::Write { number, count: false },
            Report::Written { number, .. } if self.broken_device => {
                Order::Failed { number, errno: Errno::EIO, broken: true }
            }
            Report::Written { number, .. } if self.refused > 0 => {
                self.refused -= 1;
                Order::Failed { number, errno: Errno::EIO, broken: false }
            }
            Report::Stuck { errno, .. } => {
                self.broken_device = true;
                Order::ReadOnly { errno }
            }
            Report::Written { number, result: Ok(written), .. } => {
                self.record(number, &written);
                Order::Switched { number, is_whole: true }
            }
            Report::Written { number, result: Err(errno), .. } => {
                Order::Failed { number, errno, broken: false }
            }
            _ => return None,
        };
        Some(Event::Order(order))
    }

    /// A record of a shard in the last checkpoint.
    pub(crate) fn recorded(&self, shard: usize, key: &Key) -> Option<Value> {
        let (id, root) = self.config.roots[shard];
        let mut tree = Tree::open(id, root.root, root.height);
        loop {
            let absent = match tree.get(key) {
                Ok(value) => return value.cloned(),
                Err(absent) => absent.0,
            };
            tree.load(absent, &self.device[&absent.block]).expect("a node");
        }
    }

    /// Keeps the checkpoint, from which a successor starts.
    fn record(&mut self, number: u64, written: &Written) {
        let config = &mut self.config;
        (config.generation, config.log.start) = (number, written.log_start);
        for ShardRoot { shard, root, height, next_sequence, inodes, blocks } in &written.roots {
            let (_, slot) =
                config.roots.iter_mut().find(|(id, _)| id == shard).expect("a shard of its");
            slot.root = root.map(|(block, checksum)| BlockPtr { block, checksum });
            (slot.height, slot.next_sequence) = (*height, *next_sequence);
            (slot.inodes, slot.used_blocks, slot.generation) = (*inodes, *blocks, number);
        }
        for (shard, slot) in &mut config.roots {
            slot.given_up |= written.given_up.contains(shard);
        }
        for (chunk, shard) in &written.claimed {
            let owned = config.owned_chunks.entry(*shard).or_default();
            owned.push(*chunk);
            owned.sort_unstable();
        }
        for owned in config.owned_chunks.values_mut() {
            owned.retain(|chunk| !written.released.contains(chunk));
        }
    }

    pub(crate) fn ask(&mut self, request: Request) -> Option<Answer> {
        self.ask_as(CLIENT, request)
    }

    /// Sends the request as a client that has reached the inodes which it names.
    pub(crate) fn ask_as(&mut self, client: ClientId, request: Request) -> Option<Answer> {
        self.ask_through(client, 0, request)
    }

    /// Sends the request on behalf of a user, if the client is a front.
    pub(crate) fn ask_through(
        &mut self,
        client: ClientId,
        uid: u32,
        request: Request,
    ) -> Option<Answer> {
        let capabilities = KEY.all_for(client, &request);
        self.ask_with(client, RequestHeader { uid, capabilities, ..Default::default() }, request)
    }

    pub(crate) fn ask_with(
        &mut self,
        client: ClientId,
        header: RequestHeader,
        request: Request,
    ) -> Option<Answer> {
        self.seq += 1;
        // Every request has a slot of its own, because some are never answered.
        let from = SlotRef { client, slot: SlotNo(self.seq as u16) };
        let payload_len = if matches!(request, Request::Write { .. }) { 100 } else { 0 };
        let header = RequestHeader { seq: self.seq, payload_len, ..header };
        self.apply(Event::Request { from, header, request });
        self.answers.remove(&self.seq)
    }

    /// Offers the last request again, which is still in its slot.
    pub(crate) fn ask_again(&mut self, request: Request) -> Option<Answer> {
        self.seq -= 1;
        self.ask(request)
    }

    /// The driver refuses the last request, or the next one.
    pub(crate) fn refuse(&mut self, is_next: bool) -> Option<Answer> {
        self.seq += u32::from(is_next);
        let from = SlotRef { client: CLIENT, slot: SlotNo(self.seq as u16) };
        let header = RequestHeader { seq: self.seq, ..Default::default() };
        self.apply(Event::Refuse { from, header });
        self.answers.remove(&self.seq)
    }

    pub(crate) fn call(&mut self, request: Request) -> Answer {
        let asked = format!("{request:?}");
        self.ask(request).unwrap_or_else(|| panic!("{asked} was not answered"))
    }

    pub(crate) fn hear(&mut self, body: PeerBody) {
        self.hear_at(Lsn(0), body);
    }

    /// Receives a message that depends on the peer's log.
    pub(crate) fn hear_at(&mut self, lsn: Lsn, body: PeerBody) {
        let message = PeerMessage { lsn, body };
        self.apply(Event::Peer { from: PEER, message });
    }
}

pub(crate) fn create(dir: Ino, text: &str, kind: FileKind) -> Request {
    let new = NewInode { kind, ..NewInode::regular(0o644) };
    let (flags, access) = (CreateFlags::empty(), AccessMode::READ);
    Request::Create { dir, name: name(text), new, flags, access }
}
