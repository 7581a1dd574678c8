//! Each step is made live in one shard and replayed in two others. All three must reach the same
//! state.

mod predicted;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use warren_base::{CellId, ClientId, Epoch, InodeFlags, Instant, Lsn, MapVersion, ShardId};
use warren_disk::{ChunkBounds, Kind, LogArea, RootSlot};
use warren_proto::{AccessMode, CapabilityKey, FileName, Handle, NewInode, XattrName};

use super::*;
use crate::config::{Backing, CellConfig, LogConfig, Recovery};
use crate::driver::Driver;
use crate::event::Clock;
use crate::frames::test_memory::Frames;
use crate::shard::lease::ShardLeases;
use crate::shard::pages::PageState;
use crate::turn::Shared;

const NOW: Timestamp = Timestamp(7);
const DIR: Ino = Ino(1);
const FILE: Ino = Ino(2);
const OTHER: Ino = Ino(3);
const NAMELESS: Ino = Ino(9);
const LOG_BLOCKS: u64 = 192;
const CHUNK: u64 = 4;

/// One shard, with the machines that it shares with other shards.
struct Room {
    shard: Shard,
    shared: Shared,
    memory: Frames,
    mode: Mode,
}

impl Room {
    fn new(mode: Mode) -> Self {
        let frames = CellConfig::FRAMES_MIN;
        let area = LogArea { start: BlockNo(0), blocks: LOG_BLOCKS };
        let config = CellConfig {
            id: CellId(0),
            epoch: Epoch(1),
            cells: 1,
            map: vec![CellId(0)],
            map_version: MapVersion(1),
            secret: 3,
            capabilities: CapabilityKey([1, 2]),
            roots: Vec::new(),
            lost: Default::default(),
            kept: Vec::new(),
            owned_chunks: BTreeMap::new(),
            free_chunks: Vec::new(),
            bounds: ChunkBounds::of(0, 64),
            total_blocks: 4096,
            space: crate::config::SpaceConfig::of(Backing::Whole),
            frames,
            nodes_max: CellConfig::NODES_MIN,
            log: LogConfig {
                area,
                incarnation: 1,
                start: Lsn(0),
                recovery: Recovery::None,
                may_lose: false,
            },
            generation: 1,
            plant: crate::plant::Planted::NONE,
        };
        let total = CellConfig::frames_total(frames, area) as usize;
        let memory = Frames(vec![[0; BLOCK_SIZE]; total]);
        let shared = Shared::new(&config);
        let leases = ShardLeases::new(config.epoch, config.secret);
        let root = RootSlot::empty([0; 16], ShardId(0));
        let shard = Shard::open(&root, config.secret, Vec::new(), leases);
        Self { shard, shared, memory, mode }
    }

    fn in_turn<T>(&mut self, run: impl FnOnce(&mut Shard, &mut Turn<'_>) -> T) -> T {
        let clock = Clock { monotonic: Instant(1), wall: NOW };
        let mut effects = Vec::new();
        let mut turn = self.shared.turn(Driver {
            now: clock,
            memory: &mut self.memory,
            effects: &mut effects,
        });
        let outcome = run(&mut self.shard, &mut turn);
        turn.settle();
        outcome
    }

    fn make(&mut self, step: &mut Step) {
        let mode = self.mode;
        self.in_turn(|shard, turn| {
            if mode != Mode::Live {
                fetch_step(shard, step, turn.fleet).expect("everything is in memory");
                check_step(shard, step, turn.chunks).expect("a live step is one that can be");
            }
            apply(shard, step, mode, turn).expect("everything is in memory");
        });
    }

    fn records(&self) -> BTreeMap<Key, Value> {
        let mut records = BTreeMap::new();
        let last = Key { ino: u64::MAX, kind: Kind::Orphan, sub: u64::MAX };
        let visit = |key: &Key, value: &Value| {
            records.insert(*key, value.clone());
            ControlFlow::Continue(())
        };
        self.shard.tree.range(Key::MIN, last, visit).expect("everything is in memory");
        records
    }

    /// The state without orphan records: a live inode without links is reaped by a step of its own.
    /// The used blocks come with those that are owed.
    fn state(&self) -> (BTreeMap<Key, Value>, u64, u64, u64, bool) {
        let mut records = self.records();
        records.retain(|key, _| key.kind != Kind::Orphan);
        let space = &self.shard.space;
        let (used, inodes) =
            (space.used_blocks() << 32 | self.shard.owed_blocks(), self.shard.inodes);
        (records, used, inodes, self.shard.next_sequence, self.shard.opens.is_open(FILE))
    }
}

fn name(name: &str) -> FileName {
    FileName::new(name.as_bytes()).expect("a name")
}

fn new(kind: FileKind) -> NewInode {
    NewInode { kind, mode: 0o644, rdev: 0, target: Box::default(), umask: 0 }
}

fn new_inode(ino: Ino, kind: FileKind) -> Step {
    Step::Change(Change::NewInode { ino, new: new(kind), uid: 1, gid: 2, parent: DIR, now: NOW })
}

fn allocated(kind: RangeKind, (first, count): (u64, u64), size: u64) -> Step {
    let (offset, length) = (first * PAGE, count * PAGE);
    let change = RangeChange { kind, keep_size: true, offset, length };
    Step::Fallocated { ino: FILE, change, size, blocks: 0, mode: 0o600, now: NOW }
}

/// Every kind of step of a shard, in an order in which they can happen.
fn history() -> Vec<Step> {
    let (now, ino, kind) = (NOW, FILE, FileKind::Regular);
    let cover = |size| Cover { size, mode: 0o600, mtime: now, ctime: now, complete: true };
    let attributes = Attributes {
        mode: 0o600,
        uid: 4,
        gid: 5,
        atime: now,
        mtime: now,
        ctime: Timestamp(9),
        flags: InodeFlags::empty(),
    };
    let handle = Handle { ino, open: 1 };
    let xattr = XattrName::new(b"user.a").expect("a name");
    let run = |page, block, count| Run {
        page,
        block: BlockNo(CHUNK * warren_base::limits::CHUNK_BLOCKS + block),
        checksums: vec![9; count],
    };
    vec![
        Step::Claimed { shard: ShardId(0), chunk: CHUNK },
        new_inode(DIR, FileKind::Directory),
        new_inode(ino, kind),
        new_inode(OTHER, kind),
        Step::Change(Change::AddEntry { dir: DIR, name: name("a"), ino, kind, now }),
        Step::Change(Change::AddEntry { dir: DIR, name: name("b"), ino: OTHER, kind, now }),
        Step::SetAttr { ino, attributes },
        Step::Accessed { ino, atime: Timestamp(8) },
        Step::SetXattr { ino, name: xattr.clone(), value: Some([1, 2].into()), now },
        Step::Opened { handle, client: ClientId(1), access: AccessMode::READ, offset: 0, uid: 1 },
        Step::Moved { handle, offset: 5 },
        Step::Wrote { ino, size: 3 * PAGE, blocks: 3, mode: 0o600, now },
        Step::Placed { ino, runs: vec![run(0, 0, 2), run(2, 5, 1)], cover: cover(3 * PAGE) },
        Step::Wrote { ino, size: 4 * PAGE, blocks: 4, mode: 0o600, now },
        Step::Placed { ino, runs: vec![run(1, 8, 3)], cover: cover(4 * PAGE) },
        Step::Truncate { ino, size: 2 * PAGE, blocks: 0, now },
        Step::Inline { ino, pages: Vec::new(), cover: cover(2 * PAGE) },
        Step::Truncate { ino, size: 9 * PAGE, blocks: 0, now },
        Step::Inline { ino, pages: Vec::new(), cover: cover(9 * PAGE) },
        allocated(RangeKind::Allocate, (0, 20), 20 * PAGE),
        allocated(RangeKind::PunchHole, (7, 3), 20 * PAGE),
        Step::Wrote { ino, size: 20 * PAGE, blocks: 18, mode: 0o600, now },
        Step::Placed { ino, runs: vec![run(5, 20, 3)], cover: cover(20 * PAGE) },
        allocated(RangeKind::Zero, (6, 12), 20 * PAGE),
        Step::Truncate { ino, size: 4 * PAGE, blocks: 0, now },
        allocated(RangeKind::Allocate, (2, 90), 4 * PAGE),
        Step::Truncate { ino, size: 4 * PAGE, blocks: 0, now },
        allocated(RangeKind::Allocate, (9, 1), 4 * PAGE),
        Step::SetXattr { ino, name: xattr, value: None, now },
        Step::Change(Change::AddLink { ino, now }),
        Step::Change(Change::Touch { ino, now }),
        Step::Change(Change::SetParent { ino: DIR, parent: DIR, now }),
        Step::Change(Change::ReplaceEntry { dir: DIR, name: name("b"), ino, kind, now }),
        Step::Change(Change::RemoveLink { ino: OTHER, now }),
        Step::Reaped { ino: OTHER },
        Step::Change(Change::RemoveEntry { dir: DIR, name: name("a"), now }),
        Step::Change(Change::RemoveLink { ino, now }),
        Step::Closed { handle },
        Step::Change(Change::RemoveEntry { dir: DIR, name: name("b"), now }),
        Step::Change(Change::RemoveLink { ino, now }),
        Step::Reaped { ino },
        Step::Change(Change::NewOrphan { ino: NAMELESS, new: new(kind), uid: 1, gid: 2, now }),
        Step::Change(Change::AddLink { ino: NAMELESS, now }),
        Step::Change(Change::RemoveLink { ino: NAMELESS, now }),
        Step::Reaped { ino: NAMELESS },
    ]
}

#[test]
fn a_replayed_step_leads_where_the_live_one_led() {
    let mut live = Room::new(Mode::Live);
    let mut replays = [Room::new(Mode::Frames), Room::new(Mode::Power)];
    for mut step in history() {
        if let Step::Placed { runs, .. } = &step {
            // Write-back has allocated the blocks.
            runs.iter().for_each(|run| live.shard.space.take_run(run.block, run.checksums.len()));
        }
        live.make(&mut step);
        for replay in &mut replays {
            replay.make(&mut step.clone());
            // After a power failure a file is behind until its next cover.
            if replay.mode == Mode::Frames || !replay.shard.behind.contains(FILE) {
                assert_eq!(replay.state(), live.state(), "{step:?} in {:?}", replay.mode);
            }
        }
    }
    assert!(live.records().keys().all(|key| key.ino == DIR.0), "{:?}", live.records());
    assert_eq!(live.records(), replays[0].records());
    assert_eq!(live.records(), replays[1].records());
}

#[test]
fn pages_that_a_record_holds_are_in_the_cache_after_a_power_failure_only() {
    for (mode, is_there) in [(Mode::Live, true), (Mode::Frames, true), (Mode::Power, true)] {
        let mut room = Room::new(mode);
        for mut step in history().into_iter().take(3) {
            room.make(&mut step);
        }
        if mode != Mode::Power {
            // Live, the write has put the page into the cache. Before a replay of frames, the dead
            // process had.
            room.in_turn(|shard, turn| {
                let frame = turn.cache.frames.take().expect("a free frame");
                shard.pages.insert((FILE, 0), frame, PageState::Dirty, &mut turn.cache.frames);
            });
        }
        let cover = Cover { size: 5, mode: 0o644, mtime: NOW, ctime: NOW, complete: true };
        let pages = vec![InlinePage { page: 0, bytes: (*b"hello").into() }];
        room.make(&mut Step::Inline { ino: FILE, pages, cover });
        let page = room.shard.pages.page((FILE, 0), &mut room.shared.cache.frames);
        assert_eq!(page.is_some(), is_there, "{mode:?}");
        let uncovered = room.shard.pages.uncovered_pages(FILE, usize::MAX).len();
        assert_eq!(uncovered, usize::from(mode != Mode::Live), "{mode:?}");
    }
}

#[test]
fn times_of_a_directory_do_not_go_back() {
    let mut part = Part::default();
    stamp(&mut part, Timestamp(20));
    stamp(&mut part, Timestamp(10));
    assert_eq!((part.mtime, part.ctime), (Timestamp(20), Timestamp(20)));
    stamp(&mut part, Timestamp(30));
    assert_eq!((part.mtime, part.ctime), (Timestamp(30), Timestamp(30)));
}
