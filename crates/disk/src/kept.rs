//! Log records that are kept for a shard that was given up: they say what became of it since its
//! last checkpoint, and the log itself is used again.
//!
//! ```text
//!   0     4     8             16    18   20    24          32
//!   |magic| crc | incarnation |shard|cell| len | first LSN | ...
//!   32           40     44      48     56      64
//!   | checkpoint | part | parts | seal | zeros | records, len bytes |
//! ```
//!
//! They lie from the start of a chunk that the region map gives to the shard and its tree does not
//! record. The records are whole, in the order of the log, and as they lay there. The crc covers
//! everything behind it, up to the end of the records.
//!
//! Such a chunk may also hold file data, or records that were kept before an earlier repair. So
//! `fsck` uses records only if
//! * their seal is right, a hash of what the crc covers but for the seal, with the pool's secret as
//!   its key: no client can write such a block as file data, and
//! * `checkpoint`, which marked the shard as given up, is later than every node of its tree.

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{CellId, Lsn, ShardId, siphash_2_4};

use crate::codec::{Put, Take, crc_behind};
use crate::log::{RECORD_ALIGN, RECORD_MAX, RawRecord, read_record};

const MAGIC: u32 = u32::from_le_bytes(*b"WKpt");
const COVERED_FROM: usize = 8;
const SEAL: usize = 48;
const HEADER: usize = 64;
/// The second half of the seal's key; the first is the pool's secret.
const SEAL_KEY: u64 = u64::from_le_bytes(*b"WarrKept");
/// A limit that no log reaches. Adding to a position below it cannot overflow.
const LSN_MAX: u64 = 1 << 62;

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
    /// The checkpoint that marks the shard as given up.
    pub checkpoint: u64,
    /// Which of the shard's chunks of records this is, from 0 on, and how many there are.
    pub part: u32,
    pub parts: u32,
    /// At most [`KEPT_MAX`] bytes.
    pub records: Vec<u8>,
}

impl KeptRecords {
    /// Whole blocks.
    pub fn encode(&self, secret: u64) -> Vec<u8> {
        assert!(self.records.len() <= KEPT_MAX);
        let mut out = Vec::with_capacity(HEADER + self.records.len());
        out.u32(MAGIC);
        out.u32(0);
        out.u64(self.incarnation);
        out.u16(self.shard.0);
        out.u16(self.cell.0);
        out.u32(self.records.len() as u32);
        out.u64(self.first.0);
        out.u64(self.checkpoint);
        out.u32(self.part);
        out.u32(self.parts);
        out.resize(HEADER, 0);
        out.extend_from_slice(&self.records);
        let seal = seal(secret, &out);
        out[SEAL..SEAL + 8].copy_from_slice(&seal.to_le_bytes());
        let crc = crc_behind(&out, COVERED_FROM);
        out[4..COVERED_FROM].copy_from_slice(&crc.to_le_bytes());
        out.resize(out.len().next_multiple_of(BLOCK_SIZE), 0);
        out
    }

    /// The number of blocks that such records fill, by their first block. `None` if it is no first
    /// block.
    pub fn blocks(first: &[u8]) -> Option<u64> {
        let mut take = Take::new(first);
        let (magic, _, _) = (take.u32()?, take.u32()?, take.array::<12>()?);
        let len = take.u32()? as usize;
        let is_one = magic == MAGIC && len <= KEPT_MAX;
        is_one.then(|| (HEADER + len).div_ceil(BLOCK_SIZE) as u64)
    }

    /// The records in these blocks; `None` if they are damaged, or no cell of the pool with this
    /// secret has written them.
    pub fn decode(bytes: &[u8], secret: u64) -> Option<Self> {
        let mut take = Take::new(bytes);
        let (magic, crc, incarnation) = (take.u32()?, take.u32()?, take.u64()?);
        let (shard, cell) = (ShardId(take.u16()?), CellId(take.u16()?));
        let (len, first) = (take.u32()? as usize, Lsn(take.u64()?));
        let (checkpoint, part, parts) = (take.u64()?, take.u32()?, take.u32()?);
        let own_seal = take.u64()?;
        let covered = bytes.get(..HEADER.checked_add(len)?)?;
        let is_intact = magic == MAGIC && crc == crc_behind(covered, COVERED_FROM);
        if !is_intact || own_seal != seal(secret, covered) {
            return None;
        }
        let records = covered[HEADER..].to_vec();
        Some(Self { incarnation, shard, cell, first, checkpoint, part, parts, records })
    }

    /// The records, up to one that is not intact or does not follow the one before.
    pub fn raw_records(&self) -> impl Iterator<Item = RawRecord> + '_ {
        let (mut rest, mut behind) = (&self.records[..], self.first);
        std::iter::from_fn(move || {
            let lsn = rest.get(RECORD_ALIGN..2 * RECORD_ALIGN)?;
            let lsn = Lsn(u64::from_le_bytes(lsn.try_into().ok()?));
            if !(behind.0..LSN_MAX).contains(&lsn.0) {
                return None;
            }
            let copy = |at: Lsn, into: &mut [u8]| {
                into.copy_from_slice(&rest[(at.0 - lsn.0) as usize..][..into.len()]);
            };
            let limit = Lsn(lsn.0 + rest.len() as u64);
            let record = read_record(lsn, limit, self.incarnation, copy)?;
            rest = &rest[(record.end.0 - lsn.0) as usize..];
            behind = record.end;
            (record.lsn == lsn).then_some(record)
        })
    }
}

/// The seal of such a header with the records behind it.
fn seal(secret: u64, bytes: &[u8]) -> u64 {
    let mut sealed = bytes[COVERED_FROM..SEAL].to_vec();
    sealed.extend_from_slice(&bytes[HEADER..]);
    siphash_2_4([secret, SEAL_KEY], &sealed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{RECORD_HEADER, RecordPlace, seal_record};

    const SECRET: u64 = 5;

    fn kept(records: Vec<u8>) -> KeptRecords {
        let (shard, cell, first) = (ShardId(3), CellId(1), Lsn(8));
        let (incarnation, checkpoint, part, parts) = (9, 12, 1, 2);
        KeptRecords { incarnation, shard, cell, first, checkpoint, part, parts, records }
    }

    #[test]
    fn records_survive_their_bytes_and_damage_is_found() {
        let kept = kept((0..5000_u32).map(|n| n as u8).collect());
        let mut bytes = kept.encode(SECRET);
        assert_eq!(KeptRecords::blocks(&bytes[..BLOCK_SIZE]), Some(2));
        assert_eq!(KeptRecords::decode(&bytes, SECRET), Some(kept.clone()));
        assert_eq!(KeptRecords::decode(&bytes, SECRET + 1), None, "of another pool, or invented");
        assert_eq!(kept.raw_records().count(), 0);
        bytes[4999] ^= 1;
        assert_eq!(KeptRecords::decode(&bytes, SECRET), None);
        assert_eq!(KeptRecords::blocks(&[0; BLOCK_SIZE]), None);
        assert_eq!(KeptRecords::decode(&[], SECRET), None);
    }

    #[test]
    fn records_are_found_though_others_lay_between_them() {
        let mut records = Vec::new();
        for (lsn, body) in [(8, "one"), (400, "two"), (5000, "three"), (4096, "before")] {
            let mut record = vec![0; RECORD_HEADER];
            record.extend_from_slice(body.as_bytes());
            seal_record(&mut record, RecordPlace::of(Lsn(lsn)), 9, 1);
            records.extend(record);
        }
        let kept = kept(records);
        let lsns: Vec<u64> = kept.raw_records().map(|record| record.lsn.0).collect();
        assert_eq!(lsns, [8, 400, 5000]);
        assert_eq!(KeptRecords { incarnation: 8, ..kept }.raw_records().count(), 0);
    }
}
