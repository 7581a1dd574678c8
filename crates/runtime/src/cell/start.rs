//! The start of a cell's process: the supervisor's first packet, the frames beside it, and the
//! configuration of the cell's core.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use warren_base::ShardId;
use warren_base::limits::CHUNK_BLOCKS;
use warren_cell::{CellConfig, LogConfig, Planted, Recovery};
use warren_disk::{ChunkBounds, LogArea, RootSlot};
use warren_proto::Wire;
use warren_shm::Frames;

use super::supervisor_link::{malformed, next_packet};
use crate::error::FleetError;
use crate::link::Link;
use crate::message::{Beginning, CellStart, START_DESCRIPTORS};

pub(super) fn receive_start(
    link: &mut Link,
) -> Result<(CellStart, [OwnedFd; START_DESCRIPTORS]), FleetError> {
    let packet = next_packet(link)?;
    let start = CellStart::from_bytes(&packet.bytes).map_err(|_| malformed())?;
    let fds = packet.fds.try_into().map_err(|_| malformed())?;
    Ok((start, fds))
}

/// The frames that the supervisor has made for this cell.
#[allow(unsafe_code)]
pub(super) fn adopt_frames(fd: OwnedFd, count: u32) -> Result<Frames, FleetError> {
    // SAFETY: the supervisor unmaps the segment before it sends the descriptor; the keeper only
    // holds a descriptor; each cell has its own segment.
    let frames = unsafe { Frames::adopt(fd) }?;
    if frames.count() < count {
        return Err(malformed());
    }
    Ok(frames)
}

pub(super) fn config(start: CellStart) -> Result<CellConfig, FleetError> {
    let mut roots = Vec::with_capacity(start.roots.len());
    for (shard, bytes) in &start.roots {
        roots.push((ShardId(*shard), RootSlot::decode(bytes).map_err(|_| malformed())?));
    }
    Ok(CellConfig {
        id: start.id,
        epoch: start.epoch,
        cells: start.cells,
        map: start.map,
        map_version: start.map_version,
        secret: start.secret,
        capabilities: start.capabilities,
        roots,
        lost: BTreeSet::new(),
        kept: Vec::new(),
        owned_chunks: (start.owned_chunks.iter())
            .map(|(shard, runs)| (ShardId(*shard), runs.chunks().collect()))
            .collect(),
        free_chunks: start.free_chunks.chunks().collect(),
        bounds: ChunkBounds::new(
            start.reserved_chunks,
            start.total_blocks / CHUNK_BLOCKS,
            start.first_pages,
        ),
        total_blocks: start.total_blocks,
        space: start.space,
        frames: start.frames,
        nodes_max: CellConfig::nodes_for(start.frames),
        log: LogConfig {
            area: LogArea { start: start.log.start, blocks: start.log.blocks },
            incarnation: start.log.incarnation,
            start: start.log.from,
            recovery: match start.beginning {
                Beginning::Fresh => Recovery::None,
                Beginning::Successor => Recovery::Process,
                Beginning::Caretaker => Recovery::Caretaker,
            },
            may_lose: false,
        },
        generation: start.generation,
        plant: planted(),
    })
}

/// The fault that the environment names, for tests of whole fleets.
#[cfg(feature = "plants")]
fn planted() -> Planted {
    let is_wanted = std::env::var_os("WARREN_PLANT").is_some_and(|plant| plant == "poison");
    Planted::of(is_wanted.then_some(warren_cell::Plant::Poison))
}

#[cfg(not(feature = "plants"))]
const fn planted() -> Planted {
    Planted::NONE
}
