//! A cell that is killed at a moment of our choice, and its successor over the same frames and slots.

use std::collections::BTreeMap;

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{
    BlockNo, CellId, ClientId, Epoch, Errno, Ino, Instant, Lsn, MapVersion, ShardId, SlotNo,
    Timestamp,
};
use warren_cell::{
    Cell, CellConfig, Clock, Effect, Event, FrameNo, LogConfig, Memory, Recovery, SlotRef,
};
use warren_disk::{Inode, Key, LOG_BLOCKS_MIN, LogArea, RootSlot, Tree, Value};
use warren_proto::control::Order;
use warren_proto::{
    Answer, ByteRange, Credentials, FileKind, LockFlavour, LockOwner, LockSpec, LockType, Reply,
    Request, RequestHeader,
};

const FRAMES: u32 = CellConfig::FRAMES_MIN;
const CHUNKS: u64 = 16;
const LOG: LogArea = LogArea { start: BlockNo(CHUNKS * CHUNK_BLOCKS), blocks: LOG_BLOCKS_MIN };
const CLIENT: ClientId = ClientId(1);
const WHEN: Clock = Clock { monotonic: Instant(1), wall: Timestamp(1) };
const SHARD: ShardId = ShardId(0);
/// Of the tree's first nodes.
const CHUNK: u64 = 4;

struct Frames(Vec<[u8; BLOCK_SIZE]>);

impl Memory for Frames {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        &self.0[frame.0 as usize]
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        &mut self.0[frame.0 as usize]
    }

    fn payload_to_frame(&mut self, _: SlotRef, _: usize, _: FrameNo, _: usize, _: usize) {}
    fn frame_to_payload(&mut self, _: FrameNo, _: usize, _: SlotRef, _: usize, _: usize) {}
    fn zero_payload(&mut self, _: SlotRef, _: usize, _: usize) {}
    fn store_word(&mut self, _: ClientId, _: u32, _: u64) {}
}

/// A cell that has the whole of a volume with nothing but a root, and a client with a slot for each request.
struct Lone {
    cell: Cell,
    frames: Frames,
    device: BTreeMap<BlockNo, Vec<u8>>,
    root: RootSlot,
    epoch: u32,
    asked: Vec<Request>,
    answers: BTreeMap<u32, Answer>,
}

fn first_tree(device: &mut BTreeMap<BlockNo, Vec<u8>>) -> RootSlot {
    let mut tree = Tree::open(SHARD, None, 0);
    let time = Timestamp(5);
    let inode = Inode {
        kind: FileKind::Directory,
        mode: 0o755,
        uid: 0,
        gid: 0,
        nlink: 2,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        generation: 0,
        parent: Ino::ROOT,
        flags: 0,
    };
    let mut put = |key, value| drop(tree.insert(key, value).expect("in memory"));
    put(Key::inode(Ino::ROOT), Value::Inode(Box::new(inode)));
    put(Key::part(Ino::ROOT, 0), Value::Part(Box::default()));
    put(Key::chunk(CHUNK), Value::Chunk(1));
    assert_eq!(tree.dirty_nodes(), 1);
    let (root, height, writes) = tree.write_out(1, &[BlockNo(CHUNK * CHUNK_BLOCKS)]);
    device.extend(writes.into_iter().map(|(block, bytes)| (block, bytes.into())));
    RootSlot {
        uuid: [0; 16],
        shard: SHARD,
        generation: 1,
        root,
        height,
        next_sequence: 10,
        log: 0,
        lsn: Lsn(0),
        inodes: 1,
        used_blocks: 1,
    }
}

fn cell_on(root: RootSlot, epoch: u32, effects: &mut Vec<Effect>) -> Cell {
    let recovery = if epoch == 1 { Recovery::None } else { Recovery::Process };
    let config = CellConfig {
        id: CellId(0),
        epoch: Epoch(epoch),
        cells: 1,
        map: vec![CellId(0)],
        map_version: MapVersion(1),
        secret: 99,
        roots: vec![(SHARD, Some(root))],
        owned_chunks: [(SHARD, vec![CHUNK])].into(),
        free_chunks: if epoch == 1 { (CHUNK + 1..CHUNKS).collect() } else { Vec::new() },
        reserved_chunks: CHUNK,
        total_blocks: CHUNKS * CHUNK_BLOCKS,
        frames: FRAMES,
        log: LogConfig { area: LOG, incarnation: 1, start: Lsn(0), recovery },
        generation: 1,
        plant: None,
    };
    Cell::new(config, WHEN, effects)
}

impl Lone {
    fn new() -> Self {
        let mut device = BTreeMap::new();
        let root = first_tree(&mut device);
        let mut effects = Vec::new();
        let cell = cell_on(root, 1, &mut effects);
        let frames = vec![[0; BLOCK_SIZE]; CellConfig::frames_total(FRAMES, LOG) as usize];
        let (frames, asked, answers) = (Frames(frames), Vec::new(), BTreeMap::new());
        let mut lone = Self { cell, frames, device, root, epoch: 1, asked, answers };
        lone.carry_out(effects);
        lone.begin();
        lone
    }

    fn begin(&mut self) {
        let credentials = Credentials::default();
        let slots = 64;
        let admit = Order::Admit { client: CLIENT, credentials, acknowledged_leases: false, slots };
        self.apply(Event::Order(admit));
        self.apply(Event::Tick);
        assert!(self.cell.is_ready());
    }

    /// The process ends. Its successor finds what was not answered in the slots.
    fn kill(&mut self) {
        self.epoch += 1;
        let mut effects = Vec::new();
        self.cell = cell_on(self.root, self.epoch, &mut effects);
        self.carry_out(effects);
        self.begin();
        for seq in 1..=self.asked.len() as u32 {
            if !self.answers.contains_key(&seq) {
                self.offer(seq);
            }
        }
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.cell.apply(WHEN, event, &mut self.frames, &mut effects);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let io = match effect {
                Effect::Reply { seq, answer, .. } => {
                    self.answers.insert(seq, answer);
                    continue;
                }
                // No checkpoint frees what was logged: it is to be replayed.
                Effect::Report(_) | Effect::Wake(_) | Effect::Send { .. } => continue,
                Effect::Read { io, block, frames } => {
                    for (at, frame) in (0..).zip(frames) {
                        let into = self.frames.frame_mut(frame);
                        match self.device.get(&block.offset(at)) {
                            Some(bytes) => into.copy_from_slice(bytes),
                            None => into.fill(0),
                        }
                    }
                    io
                }
                Effect::Write { io, block, frames }
                | Effect::WriteThrough { io, block, frames } => {
                    for (at, frame) in (0..).zip(frames) {
                        self.device.insert(block.offset(at), self.frames.frame(frame).to_vec());
                    }
                    io
                }
                Effect::Flush { io } => io,
            };
            self.apply(Event::IoDone { io, result: Ok(()) });
        }
    }

    fn offer(&mut self, seq: u32) {
        let from = SlotRef { client: CLIENT, slot: SlotNo(seq as u16) };
        let header = RequestHeader { seq, ..Default::default() };
        let request = self.asked[seq as usize - 1].clone();
        self.apply(Event::Request { from, header, request });
    }

    /// Asks for a flock; gives what it is known by.
    fn flock(&mut self, owner: u64, lock: LockType, wait: bool) -> u32 {
        let (owner, range) = (LockOwner(owner), ByteRange::ALL);
        let spec = LockSpec { flavour: LockFlavour::Flock, owner, lock, range, pid: 1 };
        self.asked.push(Request::Lock { ino: Ino::ROOT, spec, wait });
        let seq = self.asked.len() as u32;
        self.offer(seq);
        seq
    }

    fn answer(&self, seq: u32) -> Option<Result<(), Errno>> {
        let answer = self.answers.get(&seq)?;
        Some(answer.as_ref().map(|reply| assert_eq!(*reply, Reply::Done)).map_err(|errno| *errno))
    }
}

const SHARED: LockType = LockType::Shared;
const EXCLUSIVE: LockType = LockType::Exclusive;

/// Two who share a lock both want it alone. The first gives up its share and waits, so the second gets it; a
/// successor knows all of that.
#[test]
fn a_conversion_that_waits_has_given_up_the_old_lock_for_a_successor_too() {
    let mut lone = Lone::new();
    for owner in [1, 2] {
        let shared = lone.flock(owner, SHARED, false);
        assert_eq!(lone.answer(shared), Some(Ok(())));
    }
    let waits = lone.flock(1, EXCLUSIVE, true);
    assert_eq!(lone.answer(waits), None);
    let second = lone.flock(2, EXCLUSIVE, false);
    assert_eq!(lone.answer(second), Some(Ok(())));
    lone.kill();
    assert_eq!(lone.answer(waits), None, "the second has it alone");
    let third = lone.flock(3, SHARED, false);
    assert_eq!(lone.answer(third), Some(Err(Errno::EAGAIN)));
    let release = lone.flock(2, LockType::Unlock, false);
    assert_eq!((lone.answer(release), lone.answer(waits)), (Some(Ok(())), Some(Ok(()))));
}

/// The same with a conversion that does not wait: what it said it has lost is lost.
#[test]
fn a_conversion_that_is_refused_has_given_up_the_old_lock_for_a_successor_too() {
    let mut lone = Lone::new();
    lone.flock(1, SHARED, false);
    lone.flock(2, SHARED, false);
    let refused = lone.flock(1, EXCLUSIVE, false);
    assert_eq!(lone.answer(refused), Some(Err(Errno::EAGAIN)));
    lone.kill();
    let alone = lone.flock(2, EXCLUSIVE, false);
    assert_eq!(lone.answer(alone), Some(Ok(())));
}
