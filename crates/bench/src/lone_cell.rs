//! A cell's state machine alone: the core that a cell's process drives, over plain memory and a
//! device that is an array. It measures the execution of a request without processes, shared memory
//! and system calls.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use warren_base::limits::{BLOCK_SIZE, LEASE_WORDS, PAYLOAD_MAX};
use warren_base::{
    BlockNo, CellId, ClientId, Epoch, Instant, Lsn, MapVersion, ShardId, SlotNo, Timestamp,
};
use warren_cell::{
    Backing, Cell, CellConfig, Clock, Effect, Event, FrameNo, LogConfig, Memory, Planted, Recovery,
    SlotRef,
};
use warren_disk::{Layout, LogArea, ROOT_SLOT_SIZE, RootSlot};
use warren_proto::control::{Order, Report};
use warren_proto::slot::Shape;
use warren_proto::{Answer, CapabilityKey, Credentials, Request, RequestHeader, Rules};

use crate::ground::{POOL_BYTES, SHARDS, blocks, format_options};

/// Frames of its cache.
const FRAMES: u32 = 4096;

const CLIENT: ClientId = ClientId(1);
const SLOT: SlotRef = SlotRef { client: CLIENT, slot: SlotNo(0) };
const KEY: CapabilityKey = CapabilityKey([5, 6]);
const WHEN: Clock = Clock { monotonic: Instant(1), wall: Timestamp(1) };

struct PlainMemory {
    frames: Vec<[u8; BLOCK_SIZE]>,
    words: Vec<u64>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Memory for PlainMemory {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        &self.frames[frame.0 as usize]
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        &mut self.frames[frame.0 as usize]
    }

    fn payload_to_frame(&mut self, _: SlotRef, offset: usize, frame: FrameNo, at: Range<usize>) {
        let bytes = &self.request[offset..offset + at.len()];
        self.frames[frame.0 as usize][at].copy_from_slice(bytes);
    }

    fn frame_to_payload(&mut self, frame: FrameNo, at: Range<usize>, _: SlotRef, offset: usize) {
        let bytes = &self.frames[frame.0 as usize][at];
        self.reply[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn read_payload(&mut self, _: SlotRef, into: &mut [u8]) {
        into.copy_from_slice(&self.request[..into.len()]);
    }

    fn write_payload(&mut self, _: SlotRef, bytes: &[u8]) {
        self.reply[..bytes.len()].copy_from_slice(bytes);
    }

    fn zero_payload(&mut self, _: SlotRef, offset: usize, len: usize) {
        self.reply[offset..offset + len].fill(0);
    }

    fn store_word(&mut self, _: ClientId, word: u32, stamp: u64) {
        self.words[word as usize] = stamp;
    }
}

/// The only cell of an empty pool, with one client.
pub(crate) struct LoneCell {
    cell: Cell,
    memory: PlainMemory,
    device: BTreeMap<BlockNo, Vec<u8>>,
    effects: Vec<Effect>,
    seq: u32,
    answer: Option<Answer>,
    wants_checkpoint: bool,
    checkpoints: u64,
}

impl LoneCell {
    pub(crate) fn new(credentials: Credentials) -> Self {
        let device: BTreeMap<_, _> = blocks().collect();
        let mut effects = Vec::new();
        let cell = Cell::new(config(&device), WHEN, &mut effects);
        let memory = PlainMemory {
            frames: vec![[0; BLOCK_SIZE]; CellConfig::frames_total(FRAMES, log_area()) as usize],
            words: vec![0; LEASE_WORDS],
            request: vec![7; PAYLOAD_MAX],
            reply: vec![0; PAYLOAD_MAX],
        };
        let mut lone = Self {
            cell,
            memory,
            device,
            effects,
            seq: 0,
            answer: None,
            wants_checkpoint: false,
            checkpoints: 1,
        };
        lone.carry_out();
        lone.apply(Event::Tick);
        let shape = Shape::large(1);
        let (client, rules) = (CLIENT, Rules::empty());
        let admit = Order::Admit { client, credentials, acknowledged_leases: false, shape, rules };
        lone.apply(Event::Order(admit));
        lone
    }

    /// Executes a request, whose payload is the first bytes of [`Self::payload`].
    ///
    /// # Panics
    /// If the answer needs another cell or a checkpoint.
    pub(crate) fn call(&mut self, request: Request, payload_len: u32) -> Answer {
        self.seq = self.seq.wrapping_add(1);
        let capabilities = KEY.all_for(CLIENT, &request);
        let header =
            RequestHeader { seq: self.seq, payload_len, capabilities, ..Default::default() };
        self.apply(Event::Request { from: SLOT, header, request });
        if std::mem::take(&mut self.wants_checkpoint) {
            self.checkpoint();
        }
        self.answer.take().expect("everything is in memory")
    }

    /// As the supervisor would, once the op log is half full.
    fn checkpoint(&mut self) {
        self.checkpoints += 1;
        let number = self.checkpoints;
        self.apply(Event::Order(Order::Drain { number }));
        self.apply(Event::Order(Order::Write { number, count: false }));
        self.apply(Event::Order(Order::Switched { number, is_whole: true }));
    }

    fn apply(&mut self, event: Event) {
        self.cell.apply(WHEN, event, &mut self.memory, &mut self.effects);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while !self.effects.is_empty() {
            let mut effects = std::mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                self.carry_out_one(effect);
            }
            // An I/O that is done may have effects of its own.
            if self.effects.is_empty() {
                self.effects = effects;
                return;
            }
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        let io = match effect {
            Effect::Reply { answer, .. } => {
                self.answer = Some(answer);
                return;
            }
            Effect::Read { io, block, frames } => {
                for (at, frame) in frames.iter().enumerate() {
                    let into = self.memory.frame_mut(*frame);
                    match self.device.get(&block.offset(at as u64)) {
                        Some(bytes) => into.copy_from_slice(bytes),
                        None => into.fill(0),
                    }
                }
                io
            }
            Effect::Write { io, block, frames } | Effect::WriteThrough { io, block, frames } => {
                for (at, frame) in frames.iter().enumerate() {
                    let bytes = self.memory.frame(*frame).to_vec();
                    self.device.insert(block.offset(at as u64), bytes);
                }
                io
            }
            Effect::Flush { io } => io,
            Effect::Report(Report::WantCheckpoint { .. }) => {
                self.wants_checkpoint = true;
                return;
            }
            Effect::Reserve { io, .. } | Effect::Discard { io, .. } => io,
            Effect::Send { .. }
            | Effect::AwaitsLock { .. }
            | Effect::Suspect { .. }
            | Effect::Report(_)
            | Effect::MeasureHost => {
                return;
            }
            Effect::Wake(at) => {
                if at <= WHEN.monotonic {
                    self.cell.apply(WHEN, Event::Tick, &mut self.memory, &mut self.effects);
                }
                return;
            }
        };
        self.cell.apply(
            WHEN,
            Event::IoDone { io, result: Ok(()) },
            &mut self.memory,
            &mut self.effects,
        );
    }
}

fn layout() -> Layout {
    let log_blocks = format_options().log_bytes / BLOCK_SIZE as u64;
    let layout = Layout::new(POOL_BYTES / BLOCK_SIZE as u64, SHARDS, log_blocks);
    layout.expect("the pool is large enough")
}

fn log_area() -> LogArea {
    layout().log_area(0, 1)
}

fn config(device: &BTreeMap<BlockNo, Vec<u8>>) -> CellConfig {
    let layout = layout();
    let root = |shard| {
        let place = layout.root_slot(shard, 0);
        let bytes = &device[&place.block][place.offset..][..ROOT_SLOT_SIZE];
        RootSlot::decode(bytes).expect("made by mkfs")
    };
    CellConfig {
        id: CellId(0),
        epoch: Epoch(1),
        cells: 1,
        map: vec![CellId(0); usize::from(SHARDS)],
        map_version: MapVersion(1),
        secret: format_options().secret,
        capabilities: KEY,
        roots: (0..SHARDS).map(ShardId).map(|shard| (shard, root(shard))).collect(),
        lost: BTreeSet::new(),
        kept: Vec::new(),
        owned_chunks: [(ShardId(0), vec![layout.reserved_chunks()])].into(),
        free_chunks: (layout.reserved_chunks() + 1..layout.chunks()).collect(),
        bounds: layout.bounds(),
        total_blocks: layout.total_blocks(),
        space: warren_cell::SpaceConfig::of(Backing::Whole),
        frames: FRAMES,
        nodes_max: CellConfig::nodes_for(FRAMES),
        log: LogConfig {
            area: log_area(),
            incarnation: 1,
            start: Lsn(0),
            recovery: Recovery::None,
            may_lose: false,
        },
        generation: 1,
        plant: Planted::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::{Errno, Ino};
    use warren_proto::{AccessMode, CreateFlags, FileName, NewInode, Position, ReadFlags, Reply};

    impl LoneCell {
        /// The payload lane of its client's requests.
        fn payload(&mut self) -> &mut [u8] {
            &mut self.memory.request
        }

        /// The payload lane of the answers.
        fn answered_payload(&self) -> &[u8] {
            &self.memory.reply
        }
    }

    #[test]
    fn a_file_lives_in_it() {
        let mut lone = LoneCell::new(Credentials::default());
        let name = FileName::new(b"file").expect("a name");
        let create = Request::Create {
            dir: Ino::ROOT,
            name: name.clone(),
            new: NewInode::regular(0o600),
            flags: CreateFlags::OPEN,
            access: AccessMode::READ | AccessMode::WRITE,
        };
        let Ok(Reply::Created { opened: Some(opened), .. }) = lone.call(create, 0) else {
            panic!("not created")
        };
        let (handle, position) = (opened.handle, Position::At(0));
        lone.payload()[..5].copy_from_slice(b"hello");
        let write = Request::Write {
            handle,
            position,
            kill_privileges: false,
            write_back: false,
            direct: false,
        };
        assert_eq!(lone.call(write, 5), Ok(Reply::Written { len: 5, size: 5 }));
        let read = Request::Read { handle, position, len: 100, flags: ReadFlags::empty() };
        assert_eq!(lone.call(read, 0), Ok(Reply::Read { len: 5 }));
        assert_eq!(&lone.answered_payload()[..5], b"hello");
        assert_eq!(
            lone.call(Request::Unlink { dir: Ino::ROOT, name: name.clone() }, 0),
            Ok(Reply::Done)
        );
        assert_eq!(lone.call(Request::Unlink { dir: Ino::ROOT, name }, 0), Err(Errno::ENOENT));
    }
}
