//! Log records that are kept for a shard that was given up: they say what became of it since its
//! last checkpoint, and the log itself is used again.
//!
//! ```text
//!   0     4     8             16    18   20    24          32         64
//!   |magic| crc | incarnation |shard|cell| len | first LSN | zeros ...| records, len bytes |
//! ```
//!
//! They lie from the start of a chunk that the region map gives to the shard and its tree does not
//! record. The records are whole, in the order of the log, and as they lay there. The crc covers
//! everything behind it, up to the end of the records.

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{CellId, Lsn, ShardId};

use crate::codec::{Put, Take, crc_behind};
use crate::log::RECORD_MAX;

const MAGIC: u32 = u32::from_le_bytes(*b"WKpt");
const COVERED_FROM: usize = 8;
const HEADER: usize = 64;

/// Bytes of records that one chunk holds.
pub const KEPT_MAX: usize = CHUNK_BLOCKS as usize * BLOCK_SIZE - HEADER;

const _: () = assert!(RECORD_MAX <= KEPT_MAX);

/// The records in one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptRecords {
    pub incarnation: u64,
    pub shard: ShardId,
    /// Whose log they are of.
    pub cell: CellId,
    pub first: Lsn,
    /// At most [`KEPT_MAX`] bytes.
    pub records: Vec<u8>,
}

impl KeptRecords {
    /// Whole blocks.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.records.len() <= KEPT_MAX);
        let mut out = Vec::with_capacity(HEADER + self.records.len());
        out.u32(MAGIC);
        out.u32(0);
        out.u64(self.incarnation);
        out.u16(self.shard.0);
        out.u16(self.cell.0);
        out.u32(self.records.len() as u32);
        out.u64(self.first.0);
        out.resize(HEADER, 0);
        out.extend_from_slice(&self.records);
        let crc = crc_behind(&out, COVERED_FROM);
        out[4..COVERED_FROM].copy_from_slice(&crc.to_le_bytes());
        out.resize(out.len().next_multiple_of(BLOCK_SIZE), 0);
        out
    }

    /// How many blocks such records fill whose first block this is; `None` if it is none.
    pub fn blocks(first: &[u8]) -> Option<u64> {
        let mut take = Take::new(first);
        let (magic, _, _) = (take.u32()?, take.u32()?, take.array::<12>()?);
        let len = take.u32()? as usize;
        let is_one = magic == MAGIC && len <= KEPT_MAX;
        is_one.then(|| (HEADER + len).div_ceil(BLOCK_SIZE) as u64)
    }

    /// The records in these blocks; `None` if they are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut take = Take::new(bytes);
        let (magic, crc, incarnation) = (take.u32()?, take.u32()?, take.u64()?);
        let (shard, cell) = (ShardId(take.u16()?), CellId(take.u16()?));
        let (len, first) = (take.u32()? as usize, Lsn(take.u64()?));
        let covered = bytes.get(..HEADER.checked_add(len)?)?;
        let is_intact = magic == MAGIC && crc == crc_behind(covered, COVERED_FROM);
        let records = covered[HEADER..].to_vec();
        is_intact.then_some(Self { incarnation, shard, cell, first, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_their_bytes_and_damage_is_found() {
        let (shard, cell) = (ShardId(3), CellId(1));
        let records: Vec<u8> = (0..5000_u32).map(|n| n as u8).collect();
        let kept = KeptRecords { incarnation: 9, shard, cell, first: Lsn(8), records };
        let mut bytes = kept.encode();
        assert_eq!(KeptRecords::blocks(&bytes[..BLOCK_SIZE]), Some(2));
        assert_eq!(KeptRecords::decode(&bytes), Some(kept));
        bytes[4999] ^= 1;
        assert_eq!(KeptRecords::decode(&bytes), None);
        assert_eq!(KeptRecords::blocks(&[0; BLOCK_SIZE]), None);
        assert_eq!(KeptRecords::decode(&[]), None);
    }
}
