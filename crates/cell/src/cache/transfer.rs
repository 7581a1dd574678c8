//! Reads and writes of frames: which I/O is begun, and which tasks wait for it.

use warren_base::{BlockNo, Errno, Lsn, ShardId};
use warren_disk::BlockPtr;

use crate::driver::Driver;
use crate::event::{Effect, FrameNo, IoId};
use crate::frames::cache::Cache;
use crate::frames::io::Purpose;
use crate::frames::{PageNo, Placed};
use crate::run::state::TaskState;
use crate::run::wait::{WaitKey, Waits};
use crate::shard::Shard;
use crate::shard::pages::PageState;
use crate::turn::Turn;

/// Blocks of one I/O: a device's queue takes them in one request.
const BLOCKS_MAX: usize = 256;

/// Starts to read a node; `None` if there is no frame to read it into.
pub(crate) fn read_node(
    shard: ShardId,
    pointer: BlockPtr,
    cache: &mut Cache,
    driver: &mut Driver<'_>,
) -> Option<IoId> {
    if let Some(io) = cache.io.load_of(pointer.block) {
        return Some(io);
    }
    let frame = cache.frames.take_for_node()?;
    let io = cache.io.begin(Purpose::LoadNode { shard, pointer, frame });
    driver.effects.push(Effect::Read { io, block: pointer.block, frames: vec![frame] });
    Some(io)
}

/// Reads pages for a task, and keeps them until it runs again: all or none. A task that cannot have
/// all its pages now waits without holding any.
pub(crate) fn wait_for_pages(
    shard: &mut Shard,
    state: &mut TaskState,
    pages: Vec<(PageNo, Option<Placed>)>,
    turn: &mut Turn<'_>,
) {
    let id = state.id;
    let budget = turn.cache.frames.count() / 2;
    if pages.len() as u32 > budget {
        return turn.waits.fail(id, Errno::ENOMEM);
    }
    if turn.cache.frames.pinned_pages() + pages.len() as u32 > budget
        && turn.cache.frames.pinned_pages() > 0
    {
        return turn.waits.wait_for(WaitKey::Frames, id);
    }
    for (at, _) in &pages {
        if shard.pages.pin(*at, &mut turn.cache.frames) {
            state.pinned.push(*at);
        }
    }
    let wanted: Vec<_> =
        pages.iter().filter_map(|(at, placed)| placed.map(|placed| (*at, placed))).collect();
    let mut frames = Vec::with_capacity(wanted.len());
    while frames.len() < wanted.len() {
        match turn.cache.frames.take() {
            Some(frame) => frames.push(frame),
            None => {
                frames.into_iter().for_each(|frame| turn.cache.frames.give(frame));
                state.pinned.drain(..).for_each(|at| shard.pages.unpin(at, &mut turn.cache.frames));
                return turn.waits.wait_for(WaitKey::Frames, id);
            }
        }
    }
    load_pages(shard, &wanted, frames, turn.cache, &mut turn.driver);
    for (at, _) in &wanted {
        shard.pages.pin(*at, &mut turn.cache.frames);
        state.pinned.push(*at);
    }
    for (at, _) in &pages {
        let page = shard.pages.page(*at, &mut turn.cache.frames);
        if let Some(PageState::Loading(io)) = page.map(|page| page.state) {
            return turn.waits.wait_for(WaitKey::Io(io), id);
        }
    }
    turn.waits.wake(id);
}

/// Reads pages of the shard into frames. Adjacent blocks share an I/O.
pub(crate) fn load_pages(
    shard: &mut Shard,
    wanted: &[(PageNo, Placed)],
    frames: Vec<FrameNo>,
    cache: &mut Cache,
    driver: &mut Driver<'_>,
) {
    let adjacent = |a: &(PageNo, Placed), b: &(PageNo, Placed)| a.1.block.offset(1) == b.1.block;
    let mut frames = frames.into_iter();
    for run in wanted.chunk_by(adjacent).flat_map(|run| run.chunks(BLOCKS_MAX)) {
        let targets: Vec<_> = frames.by_ref().take(run.len()).collect();
        let pages = run.iter().zip(&targets).map(|((at, p), frame)| (*at, *frame, p.checksum));
        let (block, pages) = (run[0].1.block, pages.collect());
        let io = cache.io.begin(Purpose::LoadPages { block, pages });
        for ((at, _), frame) in run.iter().zip(&targets) {
            shard.pages.insert(*at, *frame, PageState::Loading(io), &mut cache.frames);
        }
        driver.effects.push(Effect::Read { io, block, frames: targets });
    }
}

/// Writes pages of the shard to their places, which the record at `lsn` names. Adjacent blocks
/// share an I/O.
pub(crate) fn write_pages(
    shard: &mut Shard,
    placed: &[(PageNo, FrameNo, BlockNo)],
    lsn: Lsn,
    turn: &mut Turn<'_>,
) {
    let adjacent =
        |a: &(PageNo, FrameNo, BlockNo), b: &(PageNo, FrameNo, BlockNo)| a.2.offset(1) == b.2;
    for run in placed.chunk_by(adjacent).flat_map(|run| run.chunks(BLOCKS_MAX)) {
        let io = turn.cache.io.begin(Purpose::WritePages { pages: run.to_vec(), lsn });
        run.iter().for_each(|(at, ..)| shard.pages.start_write(*at, io, &mut turn.cache.frames));
        turn.log.commits.begin_placing(lsn);
        let frames = run.iter().map(|(_, frame, _)| *frame).collect();
        turn.driver.effects.push(Effect::Write { io, block: run[0].2, frames });
    }
}

/// Writes as many queued tree nodes as there are frames for.
pub(crate) fn issue_node_writes(cache: &mut Cache, driver: &mut Driver<'_>) {
    while cache.io.may_write_node() {
        let (mut start, mut frames) = (BlockNo(0), Vec::new());
        while let Some(block) = cache.io.next_node()
            && (frames.is_empty() || start.offset(frames.len() as u64) == block)
            && frames.len() < BLOCKS_MAX
            && let Some(frame) = cache.frames.take_for_node()
            && let Some((_, bytes)) = cache.io.take_node()
        {
            if frames.is_empty() {
                start = block;
            }
            driver.memory.frame_mut(frame).copy_from_slice(&bytes);
            frames.push(frame);
        }
        if frames.is_empty() {
            return;
        }
        let io = cache.io.begin(Purpose::WriteNodes { frames: frames.clone() });
        driver.effects.push(Effect::Write { io, block: start, frames });
    }
}

/// Asks the device for something else while it refuses a block: an idle cell would not notice that
/// the device works.
pub(crate) fn probe(cache: &mut Cache, driver: &mut Driver<'_>) {
    if let Some(frame) = cache.frames.take_for_node() {
        let io = cache.io.begin(Purpose::Probe { frame });
        driver.effects.push(Effect::Read { io, block: BlockNo(0), frames: vec![frame] });
    }
}

pub(crate) fn wake_io(io: IoId, outcome: Result<(), Errno>, waits: &mut Waits) {
    match outcome {
        Ok(()) => waits.wake_all(WaitKey::Io(io)),
        Err(errno) => waits.fail_all(WaitKey::Io(io), errno),
    }
}
