//! I/O under way: what each is for, and what its end means.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno, FixedState, Lsn, ShardId};
use warren_disk::{BlockPtr, BlockWrite};

use crate::cache::{PageNo, PageState};
use crate::cell::Core;
use crate::event::{Effect, FrameNo, IoId, Memory};
use crate::run::wait::{TaskId, WaitKey};
use crate::shard::Placed;
use crate::task::Task;
use crate::turn::Turn;

/// Blocks of one I/O: what a queue of a device takes in one request.
const BLOCKS_MAX: usize = 256;
/// Frames that writes of tree nodes may take at a time.
const NODE_FRAMES_MAX: usize = 256;

#[derive(Debug)]
enum Purpose {
    LoadNode {
        shard: ShardId,
        pointer: BlockPtr,
        frame: FrameNo,
    },
    LoadPages {
        pages: Vec<(PageNo, FrameNo, u32)>,
    },
    /// The record that says where they lie begins at `lsn`.
    WritePages {
        pages: Vec<(PageNo, FrameNo, BlockNo)>,
        lsn: Lsn,
    },
    WriteNodes {
        frames: Vec<FrameNo>,
    },
    WriteLog,
    /// Blocks of the log up to here.
    ReadLog {
        upto: Lsn,
    },
    WriteThrough,
    Flush,
    /// Of blocks of free chunks.
    Reserve,
    Discard,
}

#[derive(Debug, Default)]
pub(crate) struct Io {
    next: u64,
    live: BTreeMap<IoId, Purpose>,
    node_loads: HashMap<BlockNo, IoId, FixedState>,
    /// Tree nodes that wait for frames to be written from.
    node_writes: Vec<BlockWrite>,
    node_frames: usize,
    /// Writes under way, and whether one has failed since it was asked.
    writes: usize,
    write_error: Option<Errno>,
}

impl Io {
    pub(crate) fn new_id(&mut self) -> IoId {
        self.next += 1;
        IoId(self.next)
    }

    pub(crate) fn start_log_write(&mut self, io: IoId) {
        self.live.insert(io, Purpose::WriteLog);
    }

    pub(crate) fn start_write_through(&mut self, io: IoId) {
        self.live.insert(io, Purpose::WriteThrough);
    }

    pub(crate) fn start_log_read(&mut self, io: IoId, upto: Lsn) {
        self.live.insert(io, Purpose::ReadLog { upto });
    }

    pub(crate) fn start_reserve(&mut self, io: IoId) {
        self.live.insert(io, Purpose::Reserve);
    }

    pub(crate) fn start_discard(&mut self, io: IoId) {
        self.live.insert(io, Purpose::Discard);
    }

    pub(crate) fn start_flush(&mut self, io: IoId) {
        self.live.insert(io, Purpose::Flush);
    }

    /// Whether every write that was started is over.
    pub(crate) fn writes_are_done(&self) -> bool {
        self.writes == 0 && self.node_writes.is_empty()
    }

    /// Whether a tree node is being written.
    pub(crate) const fn writes_nodes(&self) -> bool {
        self.node_frames > 0
    }

    /// Nobody needs the nodes any more that were not begun to be written.
    pub(crate) fn forget_queued_nodes(&mut self) {
        self.node_writes.clear();
    }

    pub(crate) fn writes_under_way(&self) -> usize {
        self.writes
    }

    /// What went wrong with a write since this was last asked.
    pub(crate) fn take_write_error(&mut self) -> Option<Errno> {
        self.write_error.take()
    }

    pub(crate) fn queue_nodes(&mut self, nodes: Vec<BlockWrite>) {
        self.node_writes.extend(nodes);
        // From the end on: contiguous blocks come out in rising order.
        self.node_writes.sort_by_key(|(block, _)| std::cmp::Reverse(*block));
    }
}

impl Core {
    /// Starts to read a node; `None` if there is no frame to read it into.
    pub(crate) fn read_node<M: Memory>(
        &mut self,
        shard: ShardId,
        pointer: BlockPtr,
        turn: &mut Turn<'_, M>,
    ) -> Option<IoId> {
        if let Some(io) = turn.io.node_loads.get(&pointer.block) {
            return Some(*io);
        }
        let frame = turn.cache.take_node_frame()?;
        let io = turn.io.new_id();
        turn.io.live.insert(io, Purpose::LoadNode { shard, pointer, frame });
        turn.io.node_loads.insert(pointer.block, io);
        turn.effects.push(Effect::Read { io, block: pointer.block, frames: vec![frame] });
        Some(io)
    }

    /// Reads pages for a task, and keeps them until it runs again. All or none: a task that cannot have
    /// all its pages now waits without holding any.
    pub(crate) fn wait_for_pages<M: Memory>(
        &mut self,
        id: TaskId,
        task: &mut Task,
        pages: Vec<(PageNo, Option<Placed>)>,
        turn: &mut Turn<'_, M>,
    ) {
        let budget = turn.cache.frames() / 2;
        if pages.len() as u32 > budget {
            return turn.waits.fail(id, Errno::ENOMEM);
        }
        if turn.cache.pinned_pages() + pages.len() as u32 > budget && turn.cache.pinned_pages() > 0
        {
            return turn.waits.wait_for(WaitKey::Frames, id);
        }
        for (at, _) in &pages {
            if turn.cache.page(*at).is_some() {
                turn.cache.pin(*at);
                task.pinned.push(*at);
            }
        }
        let wanted: Vec<_> =
            pages.iter().filter_map(|(at, placed)| placed.map(|placed| (*at, placed))).collect();
        let mut frames = Vec::with_capacity(wanted.len());
        while frames.len() < wanted.len() {
            match turn.cache.take_frame() {
                Some(frame) => frames.push(frame),
                None => {
                    frames.into_iter().for_each(|frame| turn.cache.give_frame(frame));
                    task.pinned.drain(..).for_each(|page| turn.cache.unpin(page));
                    return turn.waits.wait_for(WaitKey::Frames, id);
                }
            }
        }
        self.load_pages(&wanted, frames, turn);
        for (at, _) in &wanted {
            turn.cache.pin(*at);
            task.pinned.push(*at);
        }
        for (at, _) in &pages {
            if let Some(PageState::Loading(io)) = turn.cache.page(*at).map(|page| page.state) {
                return turn.waits.wait_for(WaitKey::Io(io), id);
            }
        }
        turn.waits.wake(id);
    }

    /// Reads pages into frames, those that lie together in one I/O.
    pub(crate) fn load_pages<M: Memory>(
        &mut self,
        wanted: &[(PageNo, Placed)],
        frames: Vec<FrameNo>,
        turn: &mut Turn<'_, M>,
    ) {
        let adjacent =
            |a: &(PageNo, Placed), b: &(PageNo, Placed)| a.1.block.offset(1) == b.1.block;
        let mut frames = frames.into_iter();
        for run in wanted.chunk_by(adjacent).flat_map(|run| run.chunks(BLOCKS_MAX)) {
            let io = turn.io.new_id();
            let targets: Vec<_> = frames.by_ref().take(run.len()).collect();
            for ((at, _), frame) in run.iter().zip(&targets) {
                turn.cache.insert(*at, *frame, PageState::Loading(io));
            }
            let pages = run.iter().zip(&targets).map(|((at, p), frame)| (*at, *frame, p.checksum));
            turn.io.live.insert(io, Purpose::LoadPages { pages: pages.collect() });
            turn.effects.push(Effect::Read { io, block: run[0].1.block, frames: targets });
        }
    }

    /// Writes pages that have just been given places, those that lie together in one I/O.
    pub(crate) fn write_pages<M: Memory>(
        &mut self,
        placed: &[(PageNo, FrameNo, BlockNo)],
        lsn: Lsn,
        turn: &mut Turn<'_, M>,
    ) {
        let adjacent =
            |a: &(PageNo, FrameNo, BlockNo), b: &(PageNo, FrameNo, BlockNo)| a.2.offset(1) == b.2;
        for run in placed.chunk_by(adjacent).flat_map(|run| run.chunks(BLOCKS_MAX)) {
            let io = turn.io.new_id();
            run.iter().for_each(|(at, ..)| turn.cache.start_write(*at, io));
            turn.io.live.insert(io, Purpose::WritePages { pages: run.to_vec(), lsn });
            turn.log.placing(lsn);
            turn.io.writes += 1;
            let frames = run.iter().map(|(_, frame, _)| *frame).collect();
            turn.effects.push(Effect::Write { io, block: run[0].2, frames });
        }
    }

    /// Writes as many queued tree nodes as there are frames for.
    pub(crate) fn issue_node_writes<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        while !turn.io.node_writes.is_empty() && turn.io.node_frames < NODE_FRAMES_MAX {
            let io = turn.io.new_id();
            let (mut start, mut frames) = (BlockNo(0), Vec::new());
            while let Some((block, _)) = turn.io.node_writes.last()
                && (frames.is_empty() || start.offset(frames.len() as u64) == *block)
                && frames.len() < BLOCKS_MAX
            {
                let Some(frame) = turn.cache.take_node_frame() else { break };
                let (block, bytes) = turn.io.node_writes.pop().expect("just seen");
                if frames.is_empty() {
                    start = block;
                }
                turn.memory.frame_mut(frame).copy_from_slice(&bytes);
                frames.push(frame);
            }
            if frames.is_empty() {
                return;
            }
            turn.io.node_frames += frames.len();
            turn.io.writes += 1;
            turn.io.live.insert(io, Purpose::WriteNodes { frames: frames.clone() });
            turn.effects.push(Effect::Write { io, block: start, frames });
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
                self.wake_io(io, loaded, turn);
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
                self.wake_io(io, outcome, turn);
            }
            Purpose::WritePages { pages, lsn } => {
                for (at, frame, block) in pages {
                    if turn.cache.finish_write(at, frame, io, block, result.is_ok()) {
                        turn.table.clear(frame, turn.memory);
                    }
                }
                turn.log.placed(lsn, result.is_ok());
                if result.is_err() {
                    self.hold_log(turn);
                }
                self.write_done(result, turn);
            }
            Purpose::WriteLog => self.log_write_done(result, turn),
            Purpose::ReadLog { upto } => self.log_loaded(upto, result, turn),
            Purpose::WriteThrough => self.written_through(result, turn),
            Purpose::Flush => self.flush_done(io, result, turn),
            Purpose::Reserve => self.reserved(io, result, turn),
            Purpose::Discard => self.discarded(io, result, turn),
            Purpose::WriteNodes { frames } => {
                turn.io.node_frames -= frames.len();
                frames.into_iter().for_each(|frame| turn.cache.give_frame(frame));
                self.write_done(result, turn);
                self.reclaim_retracted(turn);
            }
        }
        turn.waits.wake_all(WaitKey::Frames);
    }

    fn write_done<M: Memory>(&mut self, result: Result<(), Errno>, turn: &mut Turn<'_, M>) {
        turn.io.writes -= 1;
        if let Err(errno) = result {
            turn.io.write_error.get_or_insert(errno);
        }
    }

    fn wake_io<M: Memory>(&mut self, io: IoId, outcome: Result<(), Errno>, turn: &mut Turn<'_, M>) {
        match outcome {
            Ok(()) => turn.waits.wake_all(WaitKey::Io(io)),
            Err(errno) => turn.waits.fail_all(WaitKey::Io(io), errno),
        }
    }
}

const _: () = assert!(BLOCK_SIZE == 4096);
