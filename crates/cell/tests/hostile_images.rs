//! Images with right checksums that contradict themselves, and peers that talk nonsense: whatever a disk
//! or a peer can say, every request is answered, or the shard is said to be broken; nothing panics.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS, LEASE_WORDS, PAYLOAD_MAX};
use warren_base::{
    BlockNo, CellId, ClientId, Epoch, Errno, Ino, Instant, Lsn, MapVersion, ShardId, SlotNo,
    Timestamp,
};
use warren_cell::{
    Cell, CellConfig, Clock, Effect, Event, FrameNo, LogConfig, Memory, PeerBody, PeerMessage,
    Recovery, SlotRef,
};
use warren_disk::{
    Dentry, Extent, Inode, Key, Kind, LOG_BLOCKS_MIN, LogArea, Part, RootSlot, Tree, VALUE_MAX,
    Value, name_hash,
};
use warren_pool::PoolMessage;
use warren_proto::control::{Order, Report};
use warren_proto::{
    AccessMode, Answer, CreateFlags, Credentials, FileKind, FileName, NewInode, RenameFlags, Reply,
    Request, RequestHeader, SetAttr,
};

const SECRET: u64 = 99;
const FRAMES: u32 = CellConfig::FRAMES_MIN;
const LOG: LogArea = LogArea { start: BlockNo(CHUNKS * CHUNK_BLOCKS), blocks: LOG_BLOCKS_MIN };
const RESERVED: u64 = 3;
const CHUNKS: u64 = 40;
const CLIENT: ClientId = ClientId(1);
const PEER: CellId = CellId(1);
const ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];
const WHEN: Clock = Clock { monotonic: Instant(1), wall: Timestamp(1) };

const FILE: Ino = Ino(2);
const LOST: Ino = Ino(3);
const DIR: Ino = Ino(1 << 48 | 1);

fn name(name: &str) -> FileName {
    FileName::new(name.as_bytes()).expect("a name")
}

fn entry_key(dir: Ino, name: &str) -> Key {
    Key::entry(dir, name_hash(SECRET, name.as_bytes()))
}

/// Shards 0 and 1 of a volume before they are written: `/file` (an inode with two names), `/dir`, `/lost`.
struct Image {
    records: [BTreeMap<Key, Value>; 2],
    next_sequence: [u64; 2],
    /// By shard, what the region map says and what the tree is written to.
    chunks: [u64; 2],
    owned: BTreeMap<ShardId, Vec<u64>>,
    used: [u64; 2],
}

impl Image {
    fn new() -> Self {
        let mut image = Self {
            records: [BTreeMap::new(), BTreeMap::new()],
            next_sequence: [10, 10],
            chunks: [4, 5],
            owned: [(ShardId(0), vec![4]), (ShardId(1), vec![5])].into(),
            used: [0b11, 0],
        };
        image.inode(Ino::ROOT, FileKind::Directory, 2);
        image.part(Ino::ROOT, 4, 1);
        image.entry(Ino::ROOT, "file", FILE, FileKind::Regular);
        image.entry(Ino::ROOT, "file2", FILE, FileKind::Regular);
        image.entry(Ino::ROOT, "dir", DIR, FileKind::Directory);
        image.entry(Ino::ROOT, "lost", LOST, FileKind::Regular);
        image.inode(FILE, FileKind::Regular, 2);
        image.extent(FILE, 0, 4 * CHUNK_BLOCKS, 2);
        image.change(FILE, |inode| (inode.size, inode.blocks) = (2 * BLOCK_SIZE as u64, 2));
        image.inode(LOST, FileKind::Regular, 1);
        image.inode(DIR, FileKind::Directory, 2);
        image.part(DIR, 0, 0);
        image
    }

    fn put(&mut self, shard: usize, key: Key, value: Value) {
        self.records[shard].insert(key, value);
    }

    fn inode(&mut self, ino: Ino, kind: FileKind, nlink: u32) {
        let time = Timestamp(5);
        let inode = Inode {
            kind,
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            generation: 0,
            parent: if kind == FileKind::Directory { Ino::ROOT } else { Ino(0) },
            flags: 0,
        };
        self.put(usize::from(ino.shard().0), Key::inode(ino), Value::Inode(Box::new(inode)));
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        match self.records[usize::from(ino.shard().0)].get_mut(&Key::inode(ino)) {
            Some(Value::Inode(inode)) => change(inode),
            _ => panic!("no such inode"),
        }
    }

    fn part(&mut self, dir: Ino, entries: u64, subdirs: u32) {
        let part = Part { entries, subdirs, ..Part::default() };
        self.put(usize::from(dir.shard().0), Key::part(dir, 0), Value::Part(Box::new(part)));
    }

    fn entry(&mut self, dir: Ino, name: &str, ino: Ino, kind: FileKind) {
        let bucket = [Dentry { name: name.as_bytes().into(), ino, kind }];
        let shard = usize::from(dir.shard().0);
        self.put(shard, entry_key(dir, name), Value::Entries(Box::new(bucket)));
    }

    /// An extent whose blocks hold zeros.
    fn extent(&mut self, ino: Ino, at: u64, start: u64, len: usize) {
        let checksum = warren_disk::block_checksum(&[0; BLOCK_SIZE]);
        let extent = Extent { start: BlockNo(start), checksums: vec![checksum; len].into() };
        let shard = usize::from(ino.shard().0);
        self.put(shard, Key::extent(ino, at), Value::Extent(Box::new(extent)));
    }

    /// Writes a shard's tree; its root slot.
    fn write(&self, shard: usize, device: &mut BTreeMap<BlockNo, Vec<u8>>) -> RootSlot {
        let mut tree = Tree::open(ShardId(shard as u16), None, 0);
        let chunk = Key::chunk(self.chunks[shard]);
        for (key, value) in &self.records[shard] {
            tree.insert(*key, value.clone()).expect("in memory");
        }
        tree.insert(chunk, Value::Chunk(0)).expect("in memory");
        let first = self.used[shard].trailing_ones() as usize;
        let places: Vec<_> = (first..first + tree.dirty_nodes())
            .map(|n| BlockNo(self.chunks[shard] * CHUNK_BLOCKS + n as u64))
            .collect();
        let used = places.iter().fold(self.used[shard], |used, at| used | 1 << (at.0 % 64));
        tree.insert(chunk, Value::Chunk(used)).expect("in memory");
        let (root, height, writes) = tree.write_out(1, &places);
        device.extend(writes.into_iter().map(|(block, bytes)| (block, bytes.into())));
        RootSlot {
            uuid: [0; 16],
            shard: ShardId(shard as u16),
            generation: 1,
            root,
            height,
            next_sequence: self.next_sequence[shard],
            log: 0,
            lsn: Lsn(0),
            inodes: 0,
            used_blocks: u64::from(used.count_ones()),
        }
    }
}

struct PlainMemory {
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

    fn payload_to_frame(&mut self, _: SlotRef, from: usize, to: FrameNo, at: usize, len: usize) {
        self.frames[to.0 as usize][at..at + len].copy_from_slice(&self.lane[from..from + len]);
    }

    fn frame_to_payload(&mut self, from: FrameNo, at: usize, _: SlotRef, to: usize, len: usize) {
        self.lane[to..to + len].copy_from_slice(&self.frames[from.0 as usize][at..at + len]);
    }

    fn zero_payload(&mut self, _: SlotRef, offset: usize, len: usize) {
        self.lane[offset..offset + len].fill(0);
    }

    fn store_word(&mut self, _: ClientId, word: u32, _: u64) {
        assert!((word as usize) < LEASE_WORDS);
    }
}

/// A cell that serves an image, alone or with a peer that has shards of its own.
struct Bench {
    cell: Cell,
    memory: PlainMemory,
    device: BTreeMap<BlockNo, Vec<u8>>,
    effects: Vec<Effect>,
    answers: BTreeMap<u32, Answer>,
    sent: Vec<PeerBody>,
    broken: BTreeSet<ShardId>,
    checkpoint: u64,
    seq: u32,
}

impl Bench {
    fn new(image: &Image, peers: bool) -> Self {
        let mut device = BTreeMap::new();
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
            roots: roots.into_iter().map(|(shard, root)| (shard, Some(root))).collect(),
            owned_chunks: image.owned.clone(),
            free_chunks: (6..20).collect(),
            reserved_chunks: RESERVED,
            total_blocks: CHUNKS * CHUNK_BLOCKS,
            frames: FRAMES,
            log: LogConfig { area: LOG, incarnation: 1, start: Lsn(0), recovery: Recovery::None },
            generation: 1,
            plant: None,
        };
        let mut effects = Vec::new();
        let cell = Cell::new(config, WHEN, &mut effects);
        let memory = PlainMemory {
            frames: vec![[0; BLOCK_SIZE]; CellConfig::frames_total(FRAMES, LOG) as usize],
            lane: vec![7; PAYLOAD_MAX],
        };
        let (answers, sent, broken) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        let mut bench =
            Self { cell, memory, device, effects, answers, sent, broken, checkpoint: 1, seq: 0 };
        bench.apply(Event::Tick);
        let credentials = Credentials::default();
        let (client, slots) = (CLIENT, u16::MAX);
        let admit = Order::Admit { client, credentials, acknowledged_leases: false, slots };
        bench.apply(Event::Order(admit));
        bench
    }

    fn apply(&mut self, event: Event) {
        self.cell.apply(WHEN, event, &mut self.memory, &mut self.effects);
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                if let Some(event) = self.carry_out(effect) {
                    self.cell.apply(WHEN, event, &mut self.memory, &mut self.effects);
                }
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Reply { seq, answer, .. } => {
                self.answers.insert(seq, answer);
                None
            }
            Effect::Send { message, .. } => {
                self.sent.push(message.body);
                None
            }
            Effect::Report(report) => self.report(report),
            Effect::Flush { io } => Some(Event::IoDone { io, result: Ok(()) }),
            Effect::Wake(_) => None,
            Effect::Read { io, block, frames } => {
                let mut result = Ok(());
                for (at, frame) in (0..).zip(frames) {
                    match block.0.checked_add(at).map(BlockNo) {
                        Some(block) if block.0 < CHUNKS * CHUNK_BLOCKS => {
                            let bytes = self.device.get(&block).map_or(&ZEROS[..], |bytes| bytes);
                            self.memory.frame_mut(frame).copy_from_slice(bytes);
                        }
                        _ => result = Err(Errno::EIO),
                    }
                }
                Some(Event::IoDone { io, result })
            }
            Effect::Write { io, block, frames } => {
                for (at, frame) in (0..).zip(frames) {
                    let block = block.offset(at);
                    let chunks = RESERVED..CHUNKS;
                    assert!(chunks.contains(&(block.0 / CHUNK_BLOCKS)), "{block:?} is written");
                    self.device.insert(block, self.memory.frame(frame).to_vec());
                }
                Some(Event::IoDone { io, result: Ok(()) })
            }
        }
    }

    fn report(&mut self, report: Report) -> Option<Event> {
        let order = match report {
            Report::Broken { shard, .. } => {
                self.broken.insert(shard);
                return None;
            }
            Report::WantCheckpoint { .. } => {
                self.checkpoint += 1;
                Order::Drain { number: self.checkpoint }
            }
            Report::Drained { number, .. } => Order::Write { number, count: false },
            Report::Written { number, result: Ok(_), .. } => Order::Switched { number },
            Report::Written { number, result: Err(errno), .. } => Order::Failed { number, errno },
            _ => return None,
        };
        Some(Event::Order(order))
    }

    fn ask(&mut self, request: Request) -> Option<Answer> {
        self.seq += 1;
        // Every request has a slot of its own, as some may never be answered.
        let from = SlotRef { client: CLIENT, slot: SlotNo(self.seq as u16) };
        let header = RequestHeader { seq: self.seq, payload_len: 100, ..Default::default() };
        self.apply(Event::Request { from, header, request });
        self.answers.remove(&self.seq)
    }

    fn call(&mut self, request: Request) -> Answer {
        let asked = format!("{request:?}");
        self.ask(request).unwrap_or_else(|| panic!("{asked} was not answered"))
    }

    fn hear(&mut self, body: PeerBody) {
        let message = PeerMessage { lsn: Lsn(0), body };
        self.apply(Event::Peer { from: PEER, message });
    }
}

fn create(dir: Ino, text: &str, kind: FileKind) -> Request {
    let new = NewInode { kind, ..NewInode::regular(0o644) };
    let (flags, access) = (CreateFlags::empty(), AccessMode::READ);
    Request::Create { dir, name: name(text), new, flags, access }
}

fn rename(from: Ino, from_name: &str, dir: Ino, to: &str, flags: RenameFlags) -> Request {
    Request::Rename { from, from_name: name(from_name), dir, name: name(to), flags }
}

/// Requests that read and change everything that an image has, in an order that removes last.
fn workload() -> Vec<Request> {
    let root = Ino::ROOT;
    let truncate = |ino, size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        Request::SetAttr { ino, handle: None, set }
    };
    let (none, exchange) = (RenameFlags::empty(), RenameFlags::EXCHANGE);
    vec![
        Request::ReadDir { dir: root, cookie: 0, bytes_max: 4096 },
        Request::Lookup { dir: root, name: name("file") },
        Request::GetAttr { ino: FILE },
        Request::GetAttr { ino: DIR },
        Request::Open { ino: FILE, access: AccessMode::READ },
        create(root, "new", FileKind::Regular),
        create(DIR, "new", FileKind::Fifo),
        create(root, "subdir", FileKind::Directory),
        Request::Link { ino: FILE, dir: DIR, name: name("hard") },
        rename(root, "new", DIR, "moved", none),
        rename(DIR, "moved", root, "lost", exchange),
        rename(root, "subdir", DIR, "subdir", none),
        truncate(FILE, 5000),
        truncate(FILE, 0),
        Request::Sync,
        Request::Unlink { dir: DIR, name: name("hard") },
        Request::Unlink { dir: DIR, name: name("new") },
        Request::Unlink { dir: DIR, name: name("moved") },
        Request::Unlink { dir: root, name: name("file") },
        Request::Unlink { dir: root, name: name("file2") },
        Request::Unlink { dir: root, name: name("lost") },
        Request::Rmdir { dir: DIR, name: name("subdir") },
        Request::Rmdir { dir: root, name: name("dir") },
        Request::Sync,
        Request::StatFs,
    ]
}

/// Answers to the whole workload; `None` if the cell said that a shard is broken.
fn outcome(plant: impl FnOnce(&mut Image)) -> Option<Vec<Answer>> {
    let mut image = Image::new();
    plant(&mut image);
    let mut bench = Bench::new(&image, false);
    if !bench.broken.is_empty() {
        return None;
    }
    let answers = workload().into_iter().map(|request| bench.call(request)).collect();
    assert!(bench.broken.is_empty());
    Some(answers)
}

fn errors(answers: &[Answer]) -> Vec<Errno> {
    answers.iter().filter_map(|answer| answer.as_ref().err().copied()).collect()
}

#[test]
fn a_sound_image_is_served() {
    let answers = outcome(|_| {}).expect("not broken");
    assert_eq!(errors(&answers), []);
}

#[test]
fn records_of_chunks_that_are_not_the_shards_break_it() {
    // Nobody's, the reserved ones, another shard's, and one whose first block has no number.
    for chunk in [6, 0, 5, 1 << 58] {
        let broken = outcome(|image| image.put(0, Key::chunk(chunk), Value::Chunk(0)));
        assert_eq!(broken, None, "chunk {chunk}");
    }
    // The map of the past: the chunk of the tree itself is somebody else's.
    assert_eq!(outcome(|image| image.owned = [(ShardId(1), vec![5])].into()), None);
}

#[test]
fn an_orphan_of_another_shard_breaks_the_shard() {
    assert_eq!(outcome(|image| image.put(0, Key::orphan(DIR), Value::Orphan)), None);
    let wild = Ino(7777 << 48 | 1);
    assert_eq!(outcome(|image| image.put(0, Key::orphan(wild), Value::Orphan)), None);
}

#[test]
fn a_shard_without_numbers_makes_no_more_inodes() {
    let answers = outcome(|image| image.next_sequence = [Ino::SEQUENCE_MAX + 1; 2]);
    assert!(errors(&answers.expect("not broken")).contains(&Errno::ENOSPC));
    let answers = outcome(|image| image.next_sequence[0] = Ino::SEQUENCE_MAX);
    assert!(answers.expect("not broken")[5].is_ok(), "the last number can be used");
}

#[test]
fn what_is_missing_is_an_error_of_those_who_need_it() {
    let without = |shard: usize, key: Key| {
        let answers = outcome(|image| drop(image.records[shard].remove(&key)));
        errors(&answers.expect("not broken"))
    };
    for (shard, key) in
        [(0, Key::part(Ino::ROOT, 0)), (1, Key::part(DIR, 0)), (0, Key::inode(LOST))]
    {
        assert!(without(shard, key).contains(&Errno::EIO), "{key:?}");
    }
    for (shard, key) in
        [(0, Key::inode(FILE)), (1, Key::inode(DIR)), (0, entry_key(Ino::ROOT, "lost"))]
    {
        assert!(!without(shard, key).is_empty(), "{key:?}");
    }
    assert!(without(0, Key::inode(Ino::ROOT)).contains(&Errno::ESTALE));
}

#[test]
fn wrong_counts_do_no_harm() {
    let plants: [fn(&mut Image); 7] = [
        |image| image.part(Ino::ROOT, 0, 0),
        |image| image.part(Ino::ROOT, 4, 0),
        |image| image.part(Ino::ROOT, u64::MAX, u32::MAX),
        |image| image.change(FILE, |inode| inode.blocks = 0),
        |image| image.change(FILE, |inode| inode.blocks = u64::MAX),
        |image| image.change(FILE, |inode| inode.nlink = 1),
        |image| image.change(DIR, |inode| inode.nlink = u32::MAX),
    ];
    for plant in plants {
        assert!(outcome(plant).is_some());
    }
}

#[test]
fn extents_that_cannot_be_do_no_harm() {
    let far = u64::MAX - 100;
    let starts = [1, 5 * CHUNK_BLOCKS, 4 * CHUNK_BLOCKS, 4 * CHUNK_BLOCKS + 40, 1 << 50, far];
    for start in starts {
        assert!(outcome(|image| image.extent(FILE, 1, start, 3)).is_some(), "block {start}");
        let alone = outcome(|image| {
            image.records[0].remove(&Key::extent(FILE, 0));
            image.extent(FILE, 0, start, 2);
        });
        assert!(alone.is_some(), "block {start}");
    }
}

#[test]
fn names_that_lead_nowhere_are_errors() {
    for ino in [Ino(9), Ino(1 << 48 | 9), Ino(0xffff << 48 | 1)] {
        let answers = outcome(|image| image.entry(Ino::ROOT, "lost", ino, FileKind::Regular));
        assert!(!errors(&answers.expect("not broken")).is_empty(), "{ino:?}");
    }
    // A directory that says that its parent is of no shard.
    let mut image = Image::new();
    image.change(DIR, |inode| inode.parent = Ino(0xffff << 48 | 1));
    let mut bench = Bench::new(&image, false);
    assert!(bench.call(create(Ino::ROOT, "sub", FileKind::Directory)).is_ok());
    let moved = bench.call(rename(Ino::ROOT, "sub", DIR, "sub", RenameFlags::empty()));
    assert_eq!(moved, Err(Errno::EIO));
}

/// A client may name any inode, also as the second of two.
#[test]
fn a_shard_that_the_volume_has_not_is_stale() {
    for peers in [false, true] {
        let mut bench = Bench::new(&Image::new(), peers);
        let wild = Ino(0xffff << 48 | 1);
        let link = Request::Link { ino: wild, dir: Ino::ROOT, name: name("b") };
        assert_eq!(bench.call(link), Err(Errno::ESTALE));
        let (root, none) = (Ino::ROOT, RenameFlags::empty());
        assert_eq!(bench.call(rename(wild, "file", root, "b", none)), Err(Errno::ESTALE));
    }
}

/// Fills the bucket that `text` belongs to, until a name as long has no room.
fn fill_bucket(image: &mut Image, text: &str) {
    let kind = FileKind::Regular;
    let mut bucket = Vec::new();
    let room =
        |bucket: &Vec<Dentry>| VALUE_MAX - Value::Entries(bucket.clone().into()).encoded_len();
    for n in 0.. {
        let len = room(&bucket).saturating_sub(Dentry::encoded_len_of(b"")).min(255);
        if len < text.len() {
            break;
        }
        bucket.push(Dentry { name: format!("{n:0>len$}").into_bytes().into(), ino: FILE, kind });
    }
    image.put(0, entry_key(Ino::ROOT, text), Value::Entries(bucket.into()));
    image.part(Ino::ROOT, 1000, 1);
}

#[test]
fn a_full_bucket_takes_no_further_name() {
    let mut image = Image::new();
    fill_bucket(&mut image, "one too many");
    let mut bench = Bench::new(&image, false);
    let root = Ino::ROOT;
    let refused = Err(Errno::ENOSPC);
    assert_eq!(bench.call(create(root, "one too many", FileKind::Regular)), refused);
    let link = Request::Link { ino: FILE, dir: root, name: name("one too many") };
    assert_eq!(bench.call(link), refused);
    assert_eq!(
        bench.call(rename(root, "file", root, "one too many", RenameFlags::empty())),
        refused
    );
    assert!(bench.call(Request::Lookup { dir: root, name: name("file") }).is_ok());
    assert!(bench.call(create(root, "another", FileKind::Regular)).is_ok());
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
}

/// The cell that decides may be another: then this one refuses to prepare.
#[test]
fn a_full_bucket_is_refused_to_a_peer_before_it_decides() {
    use warren_base::TxnId;
    use warren_proto::{LockKey, LockMode, PeerReply, PeerRequest};
    let mut image = Image::new();
    fill_bucket(&mut image, "one too many");
    let mut bench = Bench::new(&image, true);
    for (seq, text) in [(1, "one too many"), (2, "another")] {
        let txn = TxnId { cell: PEER, seq };
        let keys = vec![(LockKey::Name(Ino::ROOT, name(text)), LockMode::Write)];
        bench.hear(PeerBody::Request(PeerRequest::Prepare { txn, client: CLIENT, keys }));
        let replies = bench.sent.drain(..).filter_map(|message| match message {
            PeerBody::Reply(reply) => Some(reply),
            _ => None,
        });
        let replies: Vec<_> = replies.collect();
        let refused = PeerReply::Refused { txn, errno: Errno::ENOSPC };
        assert_eq!(replies.contains(&refused), seq == 1, "{replies:?}");
    }
}

/// A directory may be gone when a peer locks a name in it: then that is what the peer hears.
#[test]
fn a_name_in_no_directory_is_told_to_a_peer() {
    use warren_base::TxnId;
    use warren_proto::{KeyValue, LockKey, LockMode, PeerReply, PeerRequest};
    let mut bench = Bench::new(&Image::new(), true);
    let gone = Ino(9);
    let txn = TxnId { cell: PEER, seq: 1 };
    let (inode, entry) = (LockKey::Inode(gone), LockKey::Name(gone, name("n")));
    let keys = vec![(inode.clone(), LockMode::Read), (entry.clone(), LockMode::Write)];
    let prepare = PeerRequest::Prepare { txn, client: CLIENT, keys };
    bench.sent.clear();
    let mut hear = |message| bench.hear(message);
    hear(PeerBody::Pool(PoolMessage::Hello));
    hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    hear(PeerBody::Request(prepare));
    let values = vec![(inode, KeyValue::Inode(None)), (entry, KeyValue::Name(None))];
    assert_eq!(bench.sent.pop(), Some(PeerBody::Reply(PeerReply::Prepared { txn, values })));
}

/// Only what a transaction has locked is changed by it, and only what can be.
#[test]
fn a_peers_changes_are_looked_at() {
    use warren_base::TxnId;
    use warren_proto::{Change, LockKey, LockMode, PeerReply, PeerRequest};
    let mut bench = Bench::new(&Image::new(), true);
    bench.hear(PeerBody::Pool(PoolMessage::Hello));
    bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    let (txn, now) = (TxnId { cell: PEER, seq: 1 }, Timestamp(9));
    let keys =
        vec![(LockKey::Inode(FILE), LockMode::Write), (LockKey::Inode(Ino(9)), LockMode::Write)];
    let request = PeerBody::Request;
    bench.hear(request(PeerRequest::Prepare { txn, client: CLIENT, keys }));
    let wild = Ino(0xffff << 48 | 1);
    let entry = Change::RemoveEntry { dir: Ino::ROOT, name: name("file"), now };
    let made_up = [LOST, Ino(9), wild].map(|ino| Change::AddLink { ino, now });
    for change in made_up.into_iter().chain([entry]) {
        bench.sent.clear();
        bench.hear(request(PeerRequest::Commit { txn, changes: vec![change] }));
        assert_eq!(bench.sent, []);
    }
    let changes = vec![Change::AddLink { ino: FILE, now }];
    bench.hear(request(PeerRequest::Commit { txn, changes }));
    assert_eq!(bench.sent, [PeerBody::Reply(PeerReply::Committed { txn })]);
    let Ok(Reply::Attr { attr, .. }) = bench.call(Request::GetAttr { ino: FILE }) else {
        panic!("no attributes")
    };
    assert_eq!(attr.nlink, 3);
    assert!(bench.call(Request::Lookup { dir: Ino::ROOT, name: name("file") }).is_ok());
    assert!(bench.broken.is_empty());
}

#[test]
fn chunks_from_a_peer_are_looked_at() {
    let mut bench = Bench::new(&Image::new(), true);
    let pool = |message| PeerBody::Pool(message);
    let search = warren_pool::SearchNo::NONE;
    let transfer = |chunk| pool(PoolMessage::Transfer { search, elements: vec![chunk], left: 0 });
    bench.hear(pool(PoolMessage::Hello));
    bench.hear(pool(PoolMessage::Ready { members: vec![] }));
    // Reserved, beyond the device, and one that shard 0 has.
    for chunk in [0, RESERVED - 1, CHUNKS, u64::MAX, 4] {
        bench.sent.clear();
        bench.hear(transfer(chunk));
        assert_eq!(bench.sent, [], "chunk {chunk} was taken");
    }
    // Cells that do not exist are not greeted.
    bench.hear(pool(PoolMessage::Ready { members: vec![CellId(60)] }));
    assert_eq!(bench.sent, []);
    bench.hear(transfer(30));
    assert!(matches!(bench.sent[..], [PeerBody::Pool(PoolMessage::Taken { .. })]));
    // One chunk twice: the cell uses it once, and goes on.
    bench.hear(transfer(30));
    for n in 0..20 {
        assert!(bench.call(create(Ino::ROOT, &format!("f{n}"), FileKind::Regular)).is_ok());
    }
}

#[test]
fn every_record_may_be_missing_or_doubled_under_another_key() {
    let keys: Vec<(usize, Key)> = (Image::new().records.iter().enumerate())
        .flat_map(|(shard, records)| records.keys().map(move |key| (shard, *key)))
        .collect();
    assert!(keys.len() > 10);
    for (shard, key) in keys {
        outcome(|image| drop(image.records[shard].remove(&key)));
        for ino in [Ino::ROOT, FILE, LOST, DIR, Ino(9)] {
            let single = matches!(key.kind, Kind::Inode | Kind::Part);
            let copy = Key { ino: ino.0, sub: if single { 0 } else { key.sub }, ..key };
            outcome(|image| {
                let value = image.records[shard][&key].clone();
                image.put(shard, copy, value);
            });
        }
    }
}
