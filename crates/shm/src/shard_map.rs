//! The shard map: the owner of each shard, written by the supervisor, read by all processes.
//!
//! ```text
//! 0        header          magic, version
//! 4096     u32 sequence    odd while the map is being written
//! u32 map version, u32 shards, u32 cells
//! 4128     u64 lost        failed flushes of the supervisor
//! 4160     u32 epochs      one per cell
//! 8192     u32 owners      one per shard
//! ```
//!
//! A seqlock: the writer makes the sequence odd, fences, writes, makes it even (release). A reader
//! copies everything between two loads of the sequence and keeps the copy only if both saw the same
//! even number. It tries a bounded number of times, so that a supervisor that died while it wrote
//! does not hang its readers; its successor publishes anew.
//!
//! `lost` is beside the map, for cells: it counts the supervisor's failed flushes as a cell's
//! vitals ([`crate::vitals`]) count the cell's. A successor continues the count.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use warren_base::limits::{CELLS_MAX, SHARDS_MAX};
use warren_base::{CellId, Epoch, MapVersion, ShardId};

use crate::map::{ReadMap, Region, WriteMap};
use crate::memory::{Load, Store};
use crate::segment::{SegmentError, SegmentKind, check, stamp};

const SEQUENCE: usize = 4096;
const VERSION: usize = SEQUENCE + 4;
const SHARDS: usize = SEQUENCE + 8;
const CELLS: usize = SEQUENCE + 12;
const LOST_FLUSHES: usize = SEQUENCE + 32;
const EPOCHS: usize = SEQUENCE + 64;
const OWNERS: usize = 8192;
/// Some fifty microseconds. A map is written in a few, unless its writer is preempted meanwhile.
const TRIES_MAX: u32 = 1000;

/// Bytes of a shard map segment.
pub const SHARD_MAP_LEN: usize = OWNERS + SHARDS_MAX as usize * 4;

const _: () = {
    assert!(CELLS + 4 <= LOST_FLUSHES && LOST_FLUSHES + 8 <= EPOCHS);
    assert!(EPOCHS + CELLS_MAX * 4 <= OWNERS);
};

/// A whole and consistent shard map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardMap {
    pub version: MapVersion,
    /// The owner of each shard.
    pub owners: Vec<CellId>,
    /// The epoch of each cell, by cell number.
    pub epochs: Vec<Epoch>,
}

impl ShardMap {
    /// The owner of the shard, if the map has it.
    pub fn owner(&self, shard: ShardId) -> Option<CellId> {
        self.owners.get(usize::from(shard.0)).copied()
    }
}

/// Why the map could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShardMapError {
    #[error("the shard map is being written for too long: use the old one and try again")]
    Busy,
    #[error("the shard map is corrupt")]
    Corrupt,
}

/// The supervisor's side.
pub struct ShardMapWriter<W = WriteMap> {
    memory: W,
}

impl<W: Store> ShardMapWriter<W> {
    /// Opens the segment. A predecessor's map stays until the first publication.
    pub fn new(memory: W) -> Result<Self, SegmentError> {
        if memory.size() < SHARD_MAP_LEN {
            let needed = SHARD_MAP_LEN;
            return Err(SegmentError::TooShort { len: memory.size() as u64, needed });
        }
        stamp(&memory, SegmentKind::ShardMap, 0, 0, 0);
        Ok(Self { memory })
    }

    /// Replaces the map. Every owner is one of the cells.
    pub fn publish(&mut self, map: &ShardMap) {
        assert!(map.owners.len() <= usize::from(SHARDS_MAX) && map.epochs.len() <= CELLS_MAX);
        assert!(map.owners.iter().all(|cell| usize::from(cell.0) < map.epochs.len()));
        let memory = &self.memory;
        // It is odd already if a predecessor died while it published.
        let odd = memory.load32(SEQUENCE, Relaxed) | 1;
        memory.store32(SEQUENCE, odd, Relaxed);
        W::fence();
        memory.store32(VERSION, map.version.0, Relaxed);
        memory.store32(SHARDS, map.owners.len() as u32, Relaxed);
        memory.store32(CELLS, map.epochs.len() as u32, Relaxed);
        for (i, epoch) in map.epochs.iter().enumerate() {
            memory.store32(EPOCHS + i * 4, epoch.0, Relaxed);
        }
        for (i, cell) in map.owners.iter().enumerate() {
            memory.store32(OWNERS + i * 4, u32::from(cell.0), Relaxed);
        }
        memory.store32(SEQUENCE, odd.wrapping_add(1), Release);
    }

    /// Counts a failed flush. All processes see it before this supervisor acts on it.
    pub fn lose_flush(&self) {
        self.memory.add64(LOST_FLUSHES, 1);
        W::fence();
    }

    /// Failed flushes of this supervisor and of its predecessors.
    pub fn lost_flushes(&self) -> u64 {
        self.memory.load64(LOST_FLUSHES, Relaxed)
    }
}

/// The side of all other processes.
pub struct ShardMapReader<R = ReadMap> {
    memory: R,
}

impl ShardMapReader {
    pub fn region(&self) -> Region {
        self.memory.region()
    }
}

impl<R: Load> ShardMapReader<R> {
    pub fn new(memory: R) -> Result<Self, SegmentError> {
        check(&memory, SegmentKind::ShardMap, SHARD_MAP_LEN)?;
        Ok(Self { memory })
    }

    /// The version now, to check cheaply whether a copy is out of date. A hint while it is written.
    pub fn version(&self) -> MapVersion {
        MapVersion(self.memory.load32(VERSION, Acquire))
    }

    /// Failed flushes of the supervisor and of its predecessors.
    pub fn lost_flushes(&self) -> u64 {
        self.memory.load64(LOST_FLUSHES, Acquire)
    }

    /// A copy of the map.
    pub fn read(&self) -> Result<ShardMap, ShardMapError> {
        for _ in 0..TRIES_MAX {
            let before = self.memory.load32(SEQUENCE, Acquire);
            if before & 1 == 0 {
                let copy = self.copy();
                R::fence();
                if self.memory.load32(SEQUENCE, Relaxed) == before {
                    return copy.and_then(checked).ok_or(ShardMapError::Corrupt);
                }
            }
            R::pause();
        }
        Err(ShardMapError::Busy)
    }

    /// A copy that may be a mixture of two maps. `None` if a count is out of range.
    fn copy(&self) -> Option<ShardMap> {
        let memory = &self.memory;
        let version = MapVersion(memory.load32(VERSION, Relaxed));
        let shards = memory.load32(SHARDS, Relaxed) as usize;
        let cells = memory.load32(CELLS, Relaxed) as usize;
        if shards > usize::from(SHARDS_MAX) || cells > CELLS_MAX {
            return None;
        }
        let epochs = (0..cells).map(|i| Epoch(memory.load32(EPOCHS + i * 4, Relaxed))).collect();
        let owner = |i| u16::try_from(memory.load32(OWNERS + i * 4, Relaxed)).ok().map(CellId);
        let owners = (0..shards).map(owner).collect::<Option<_>>()?;
        Some(ShardMap { version, owners, epochs })
    }
}

fn checked(map: ShardMap) -> Option<ShardMap> {
    map.owners.iter().all(|cell| usize::from(cell.0) < map.epochs.len()).then_some(map)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::segment::{Segment, map_read_only};

    fn map(version: u32) -> ShardMap {
        let cells = version % 4 + 1;
        ShardMap {
            version: MapVersion(version),
            owners: (0..version % 50).map(|i| CellId(((i + version) % cells) as u16)).collect(),
            epochs: (0..cells).map(|i| Epoch(version + i)).collect(),
        }
    }

    fn pair() -> (ShardMapWriter, ShardMapReader, WriteMap) {
        let segment = Segment::create("warren-test", SHARD_MAP_LEN).unwrap();
        let writer = ShardMapWriter::new(segment.map().clone()).unwrap();
        let reader = ShardMapReader::new(map_read_only(segment.fd()).unwrap()).unwrap();
        (writer, reader, segment.map().clone())
    }

    #[test]
    fn readers_see_whole_maps_only() {
        let (mut writer, reader, _) = pair();
        assert_eq!(reader.read(), Ok(ShardMap::default()));
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                (1..=20_000).for_each(|version| writer.publish(&map(version)));
                done.store(true, Release);
            });
            while !done.load(Acquire) {
                // Busy is possible here: this writer publishes all the time.
                if let Ok(seen) = reader.read() {
                    assert_eq!(seen, map_or_empty(seen.version));
                }
            }
        });
        assert_eq!(reader.read(), Ok(map(20_000)));
        assert_eq!(reader.version(), MapVersion(20_000));
        assert_eq!(map(20_000).owner(ShardId(50)), None);
    }

    fn map_or_empty(version: MapVersion) -> ShardMap {
        if version.0 == 0 { ShardMap::default() } else { map(version.0) }
    }

    #[test]
    fn a_writer_that_died_hangs_no_reader_and_is_succeeded() {
        let (mut writer, reader, raw) = pair();
        writer.publish(&map(1));
        raw.store32(SEQUENCE, 3, Relaxed);
        assert_eq!(reader.read(), Err(ShardMapError::Busy));
        ShardMapWriter::new(raw).unwrap().publish(&map(2));
        assert_eq!(reader.read(), Ok(map(2)));
    }

    #[test]
    fn failed_flushes_are_counted_across_maps_and_supervisors() {
        let (mut writer, reader, raw) = pair();
        assert_eq!((writer.lost_flushes(), reader.lost_flushes()), (0, 0));
        writer.lose_flush();
        writer.publish(&map(63));
        assert_eq!((reader.read(), reader.lost_flushes()), (Ok(map(63)), 1));
        let successor = ShardMapWriter::new(raw).unwrap();
        assert_eq!(successor.lost_flushes(), 1);
        successor.lose_flush();
        assert_eq!(reader.lost_flushes(), 2);
    }

    #[test]
    fn an_invalid_map_is_an_error() {
        let (mut writer, reader, raw) = pair();
        writer.publish(&map(7));
        for (at, bad) in [(SHARDS, 5000), (CELLS, 65), (OWNERS, 64), (OWNERS + 4, 1 << 16)] {
            let good = raw.load32(at, Relaxed);
            raw.store32(at, bad, Relaxed);
            assert_eq!(reader.read(), Err(ShardMapError::Corrupt));
            raw.store32(at, good, Relaxed);
        }
        assert_eq!(reader.read(), Ok(map(7)));
    }
}
