//! The op logs: the place of each, where its replay starts, and how its records are framed.
//!
//! ```text
//! log region:  table, copy 0 | table, copy 1 | log 0 | log 1 | ... | log n-1
//!
//! table, one block                        record, at any multiple of 8 bytes of a log
//!   0  4  magic "WLog"                      0  4  crc of the bytes behind it
//!   4  4  crc of bytes 8..4096              4  4  bytes of the record, header and padding included
//!   8  8  generation                        8  8  LSN of the record
//!  16  8  incarnation of the logs          16  8  incarnation
//!  24  2  logs, n                          24  2  steps
//!  26  6  zero                             26  2  1 + units of 8 bytes of padding before it,
//!                                                0 if not known
//!                                         28  4  1 + units of 8 bytes from where the log was
//!                                                durable to here, 0 if not known
//!  32  8  for each log: LSN from where     32     the steps, then the cause (as messages),
//!         it is to be replayed                    zeros up to a multiple of 8
//! ```
//!
//! An LSN is a byte position: byte `l` of a log of `b` blocks lies at `l % (4096 b)` of its area. A
//! log ends where no intact record of its incarnation with the right LSN follows. Eight zero bytes
//! in a record's place mean that the rest of the block is empty: each write to the device ends with
//! a block, so that a block with durable contents is never written again.
//!
//! An incarnation is never used twice, so records of an earlier fleet in the area are never valid.
//!
//! A power failure may leave any part of the last commit, so a log may end within it. But a record
//! that was made later than another commit had ended shows that everything before that was durable:
//! if such a record lies behind the log's end ([`durable_behind`]), the log is damaged there.

use thiserror::Error;
use warren_base::limits::{BLOCK_SIZE, CELLS_MAX, XATTR_NAME_MAX, XATTR_VALUE_MAX};
use warren_base::{BlockNo, Lsn};

use crate::codec::{Put, Take, crc_behind};
use crate::layout::Layout;

const MAGIC: u32 = u32::from_le_bytes(*b"WLog");
const COVERED_FROM: usize = 8;
const STARTS: usize = 32;

/// Bytes of a record before its steps.
pub const RECORD_HEADER: usize = 32;
/// Records begin at multiples of this.
pub const RECORD_ALIGN: usize = 8;
/// The longest record: the longest value of an extended attribute, with its name and the answer. A
/// page of every run of a write-back batch, and the inline data of one `fsync`, take less.
pub const RECORD_MAX: usize = 72 << 10;
/// A limit that no log reaches. Adding to a position below it cannot overflow.
const LSN_MAX: u64 = 1 << 62;
/// Blocks of the smallest log of a cell.
pub const LOG_BLOCKS_MIN: u64 = 128;

const _: () = {
    assert!(STARTS + 8 * CELLS_MAX <= BLOCK_SIZE);
    assert!(LOG_BLOCKS_MIN as usize * BLOCK_SIZE >= 7 * RECORD_MAX);
    assert!(RECORD_MAX >= RECORD_HEADER + XATTR_VALUE_MAX + XATTR_NAME_MAX + 256);
};

/// Where the replay of each log starts. There are two copies, and a checkpoint writes the one that
/// is not valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogTable {
    pub generation: u64,
    pub incarnation: u64,
    pub starts: Vec<Lsn>,
}

/// Why a table cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LogTableError {
    #[error("not a log table")]
    BadMagic,
    #[error("the log table's checksum is wrong")]
    BadChecksum,
    #[error("the log table makes no sense")]
    Nonsense,
    #[error("neither log table can be used")]
    Lost,
    #[error("the log table of the last checkpoint is lost, the other is of the past")]
    InDoubt,
}

/// The blocks of one cell's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogArea {
    pub start: BlockNo,
    pub blocks: u64,
}

impl LogArea {
    /// The place of byte `lsn`: a block of the area, counted from its first, and the byte in it.
    pub const fn place(&self, lsn: Lsn) -> (u64, usize) {
        let block = (lsn.0 / BLOCK_SIZE as u64) % self.blocks;
        (block, (lsn.0 % BLOCK_SIZE as u64) as usize)
    }

    pub const fn bytes(&self) -> u64 {
        self.blocks * BLOCK_SIZE as u64
    }
}

impl Layout {
    /// The blocks of the copies of the log table.
    pub fn log_table(&self, copy: usize) -> BlockNo {
        assert!(copy < 2 && self.log_blocks() > 0);
        self.log_start().offset(copy as u64)
    }

    /// The area of log `log` of `logs`.
    pub fn log_area(&self, log: usize, logs: usize) -> LogArea {
        assert!(log < logs && logs <= CELLS_MAX);
        let blocks = (self.log_blocks() - 2) / logs as u64;
        LogArea { start: self.log_start().offset(2 + log as u64 * blocks), blocks }
    }

    /// The most cells that the log region has room for.
    pub fn logs_max(&self) -> usize {
        let fitting = self.log_blocks().saturating_sub(2) / LOG_BLOCKS_MIN;
        usize::try_from(fitting).unwrap_or(CELLS_MAX).min(CELLS_MAX)
    }
}

impl LogTable {
    pub fn encode(&self) -> Box<[u8]> {
        assert!(self.starts.len() <= CELLS_MAX);
        let mut out = Vec::with_capacity(BLOCK_SIZE);
        out.u32(MAGIC);
        out.u32(0);
        out.u64(self.generation);
        out.u64(self.incarnation);
        out.u16(self.starts.len() as u16);
        out.resize(STARTS, 0);
        self.starts.iter().for_each(|start| out.u64(start.0));
        out.resize(BLOCK_SIZE, 0);
        let crc = crc_behind(&out, COVERED_FROM);
        out[4..COVERED_FROM].copy_from_slice(&crc.to_le_bytes());
        out.into()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, LogTableError> {
        let mut take = Take::new(bytes);
        let magic = take.u32().ok_or(LogTableError::BadMagic)?;
        let crc = take.u32().ok_or(LogTableError::BadMagic)?;
        if magic != MAGIC || bytes.len() != BLOCK_SIZE {
            return Err(LogTableError::BadMagic);
        } else if crc != crc_behind(bytes, COVERED_FROM) {
            return Err(LogTableError::BadChecksum);
        }
        Self::fields(&mut take).ok_or(LogTableError::Nonsense)
    }

    fn fields(take: &mut Take<'_>) -> Option<Self> {
        let (generation, incarnation) = (take.u64()?, take.u64()?);
        let logs = usize::from(take.u16()?);
        take.bytes(6)?;
        if logs > CELLS_MAX {
            return None;
        }
        let starts = (0..logs).map(|_| take.u64().map(Lsn)).collect::<Option<Vec<_>>>()?;
        let can_be = |lsn: &Lsn| lsn.0 <= LSN_MAX && lsn.0.is_multiple_of(RECORD_ALIGN as u64);
        starts.iter().all(can_be).then_some(Self { generation, incarnation, starts })
    }

    /// The intact copy with at most `logs_max` logs and the highest generation that is not above
    /// the superblock's, and the number of the other copy. Every checkpoint writes a table, so a
    /// table that is older than the superblock is out of date, whatever is in the other place.
    pub fn choose(
        copies: [&[u8]; 2],
        generation: u64,
        logs_max: usize,
    ) -> Result<(Self, usize), LogTableError> {
        match Self::newest(copies, generation, logs_max)? {
            (table, _) if table.generation < generation => Err(LogTableError::InDoubt),
            counts => Ok(counts),
        }
    }

    /// The error of a copy that was written, if it has one.
    pub fn damage(bytes: &[u8]) -> Option<LogTableError> {
        let never_written = bytes.len() == BLOCK_SIZE && bytes.iter().all(|byte| *byte == 0);
        Self::decode(bytes).err().filter(|_| !never_written)
    }

    fn newest(
        copies: [&[u8]; 2],
        generation: u64,
        logs_max: usize,
    ) -> Result<(Self, usize), LogTableError> {
        let can_be =
            |table: &Self| table.generation <= generation && table.starts.len() <= logs_max;
        let counts = |bytes: &[u8]| Self::decode(bytes).ok().filter(can_be);
        match copies.map(counts) {
            [Some(a), Some(b)] if a.generation < b.generation => Ok((b, 0)),
            [Some(a), _] => Ok((a, 1)),
            [None, Some(b)] => Ok((b, 0)),
            [None, None] => Err(LogTableError::Lost),
        }
    }
}

/// Where a record lies in its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordPlace {
    pub lsn: Lsn,
    /// Where the record before it ends, if that is known.
    pub last: Option<Lsn>,
    /// Up to where the log is durable, if that is known.
    pub durable: Option<Lsn>,
}

impl RecordPlace {
    /// A place of which nothing else is known.
    pub const fn of(lsn: Lsn) -> Self {
        Self { lsn, last: None, durable: None }
    }

    /// 1 and the distance from an earlier point, in units of [`RECORD_ALIGN`].
    fn units_from(self, point: Option<Lsn>) -> u64 {
        point.map_or(0, |point| 1 + (self.lsn.0 - point.0) / RECORD_ALIGN as u64)
    }
}

/// Completes a record, whose steps and cause follow the place of its header. It is padded to
/// [`RECORD_ALIGN`].
pub fn seal_record(record: &mut Vec<u8>, place: RecordPlace, incarnation: u64, steps: u16) {
    let len = record.len().next_multiple_of(RECORD_ALIGN);
    assert!((RECORD_HEADER..=RECORD_MAX).contains(&len));
    record.resize(len, 0);
    record[4..8].copy_from_slice(&(len as u32).to_le_bytes());
    record[8..16].copy_from_slice(&place.lsn.0.to_le_bytes());
    record[16..24].copy_from_slice(&incarnation.to_le_bytes());
    record[24..26].copy_from_slice(&steps.to_le_bytes());
    let (padding, distance) = (place.units_from(place.last), place.units_from(place.durable));
    record[26..28].copy_from_slice(&u16::try_from(padding).unwrap_or(0).to_le_bytes());
    record[28..32].copy_from_slice(&u32::try_from(distance).unwrap_or(0).to_le_bytes());
    let crc = crc_behind(record, 4);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

/// A record in a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawRecord {
    pub lsn: Lsn,
    /// Where the next record may begin.
    pub end: Lsn,
    /// Where the record before it ends, if it says so.
    pub last: Option<Lsn>,
    /// Everything before this was durable when the record was made, as far as is known.
    pub durable: Lsn,
    pub steps: u16,
    /// Steps, cause, padding.
    pub body: Vec<u8>,
}

impl RawRecord {
    /// Whether the record before it may end here.
    fn follows(&self, end: Lsn) -> bool {
        self.last.is_none_or(|last| last == end)
    }

    pub const fn place(&self) -> RecordPlace {
        RecordPlace { lsn: self.lsn, last: self.last, durable: Some(self.durable) }
    }
}

/// The contents of a log where a record may begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FoundRecord {
    Record(RawRecord),
    /// No record begins there: the log ends.
    None,
    /// The bytes before the limit are not enough to know.
    Beyond,
}

/// Reads the record at `lsn` or behind it; `None` at the end of the log. `read` copies bytes of the
/// log from a position on. The log has no bytes at or beyond `limit`.
pub fn read_record(
    lsn: Lsn,
    limit: Lsn,
    incarnation: u64,
    read: impl FnMut(Lsn, &mut [u8]),
) -> Option<RawRecord> {
    match find_record(lsn, limit, incarnation, read) {
        FoundRecord::Record(record) => Some(record),
        FoundRecord::None | FoundRecord::Beyond => None,
    }
}

/// The same for a log of which only the bytes before `limit` are available.
pub fn find_record(
    lsn: Lsn,
    limit: Lsn,
    incarnation: u64,
    mut read: impl FnMut(Lsn, &mut [u8]),
) -> FoundRecord {
    let mut at = lsn;
    loop {
        if at.0 + RECORD_ALIGN as u64 > limit.0 {
            return FoundRecord::Beyond;
        }
        let mut header = [0; RECORD_HEADER];
        read(at, &mut header[..RECORD_ALIGN]);
        if header[..RECORD_ALIGN] != [0; RECORD_ALIGN] {
            if at.0 + RECORD_HEADER as u64 > limit.0 {
                return FoundRecord::Beyond;
            }
            return match read_at(at, limit, incarnation, read) {
                // What was passed over was no padding, but a record of zeros.
                Some(FoundRecord::Record(record)) if at > lsn && !record.follows(lsn) => {
                    FoundRecord::None
                }
                found => found.unwrap_or(FoundRecord::None),
            };
        }
        let next = (at.0 + 1).next_multiple_of(BLOCK_SIZE as u64);
        // Padding only follows records.
        if at.0.is_multiple_of(BLOCK_SIZE as u64) {
            return FoundRecord::None;
        }
        at = Lsn(next);
    }
}

fn read_at(
    lsn: Lsn,
    limit: Lsn,
    incarnation: u64,
    mut read: impl FnMut(Lsn, &mut [u8]),
) -> Option<FoundRecord> {
    let mut header = [0; RECORD_HEADER];
    read(lsn, &mut header);
    let mut take = Take::new(&header);
    let (crc, len) = (take.u32()?, take.u32()? as usize);
    let (own, of, steps) = (take.u64()?, take.u64()?, take.u16()?);
    let (padding, distance) = (u64::from(take.u16()?), u64::from(take.u32()?));
    let fits = (RECORD_HEADER..=RECORD_MAX).contains(&len) && len.is_multiple_of(RECORD_ALIGN);
    if !fits || own != lsn.0 || of != incarnation {
        return None;
    }
    if lsn.0 + len as u64 > limit.0 {
        return Some(FoundRecord::Beyond);
    }
    let mut bytes = vec![0; len];
    read(lsn, &mut bytes);
    if bytes[..RECORD_HEADER] != header || crc != crc_behind(&bytes, 4) {
        return None;
    }
    let body = bytes.split_off(RECORD_HEADER);
    let end = Lsn(lsn.0 + len as u64);
    let before = |units: u64| lsn.0.checked_sub(units.checked_sub(1)? * RECORD_ALIGN as u64);
    let (last, durable) = (before(padding).map(Lsn), Lsn(before(distance).unwrap_or(0)));
    Some(FoundRecord::Record(RawRecord { lsn, end, last, durable, steps, body }))
}

/// The intact records that begin in `from..limit`, wherever one may begin: where the last of them
/// begins, and up to where the log was durable according to all of them. `None` if there are none.
pub fn durable_behind(
    from: Lsn,
    limit: Lsn,
    incarnation: u64,
    mut read: impl FnMut(Lsn, &mut [u8]),
) -> Option<(Lsn, Lsn)> {
    let mut found: Option<(Lsn, Lsn)> = None;
    let mut block = [0; BLOCK_SIZE + RECORD_HEADER];
    let mut at = from.0.next_multiple_of(RECORD_ALIGN as u64);
    while at + RECORD_HEADER as u64 <= limit.0 {
        let bytes = (limit.0 - at).min(block.len() as u64) as usize;
        read(Lsn(at), &mut block[..bytes]);
        for offset in (0..=bytes - RECORD_HEADER).step_by(RECORD_ALIGN) {
            let lsn = Lsn(at + offset as u64);
            let is_own = block[offset + 8..offset + 16] == lsn.0.to_le_bytes();
            if is_own
                && let Some(FoundRecord::Record(record)) =
                    read_at(lsn, limit, incarnation, &mut read)
            {
                let known = found.map_or(Lsn(0), |(_, durable)| durable);
                found = Some((lsn, known.max(record.durable)));
            }
        }
        at += (bytes - RECORD_HEADER + RECORD_ALIGN) as u64;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const INCARNATION: u64 = 7;

    fn record(lsn: u64, body: &[u8]) -> Vec<u8> {
        let mut record = vec![0; RECORD_HEADER];
        record.extend_from_slice(body);
        seal_record(&mut record, RecordPlace::of(Lsn(lsn)), INCARNATION, 1);
        record
    }

    fn reader(bytes: &[u8]) -> impl FnMut(Lsn, &mut [u8]) + '_ {
        |at, into| into.copy_from_slice(&bytes[at.0 as usize..][..into.len()])
    }

    #[test]
    fn records_follow_each_other_and_padding_leads_to_the_next_block() {
        let mut log = record(0, b"one");
        log.extend(record(log.len() as u64, b"second"));
        log.resize(BLOCK_SIZE, 0);
        log.extend(record(BLOCK_SIZE as u64, b"third"));
        log.resize(3 * BLOCK_SIZE, 0);
        let limit = Lsn(log.len() as u64);
        let mut bodies = Vec::new();
        let mut at = Lsn(0);
        while let Some(record) = read_record(at, limit, INCARNATION, reader(&log)) {
            at = record.end;
            bodies.push(record.body);
        }
        assert_eq!(bodies, [&b"one\0\0\0\0\0"[..], b"second\0\0", b"third\0\0\0"]);
    }

    #[test]
    fn a_log_of_which_too_little_is_at_hand_does_not_end_there() {
        let mut log = record(0, b"one");
        let first = log.len() as u64;
        log.extend(record(first, b"second"));
        let second = log.len() as u64;
        log.resize(2 * BLOCK_SIZE, 0);
        let find =
            |at: u64, limit: u64| find_record(Lsn(at), Lsn(limit), INCARNATION, reader(&log));
        for limit in first..second {
            assert_eq!(find(first, limit), FoundRecord::Beyond, "{limit}");
        }
        assert!(matches!(find(first, second), FoundRecord::Record(_)));
        assert_eq!(find(second, BLOCK_SIZE as u64), FoundRecord::Beyond, "padded");
        assert_eq!(find(second, BLOCK_SIZE as u64 + 8), FoundRecord::None);
        let other = find_record(Lsn(0), Lsn(first), INCARNATION + 1, reader(&log));
        assert_eq!(other, FoundRecord::None);
    }

    #[test]
    fn every_flipped_bit_ends_the_log() {
        let log = record(0, b"what was acknowledged");
        let limit = Lsn(log.len() as u64);
        for bit in 0..8 * log.len() {
            let mut bad = log.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_record(Lsn(0), limit, INCARNATION, reader(&bad)), None, "bit {bit}");
        }
    }

    #[test]
    fn records_behind_a_damaged_one_show_how_much_was_durable() {
        let mut log = Vec::new();
        let mut starts = Vec::new();
        for (body, durable) in [(&b"one"[..], 0), (b"damaged", 0), (b"of the same commit", 0)] {
            let mut one = vec![0; RECORD_HEADER];
            one.extend_from_slice(body);
            let place = RecordPlace {
                durable: Some(Lsn(durable)),
                ..RecordPlace::of(Lsn(log.len() as u64))
            };
            seal_record(&mut one, place, INCARNATION, 1);
            starts.push(log.len());
            log.extend(one);
        }
        let behind = |log: &[u8], from: usize| {
            durable_behind(Lsn(from as u64), Lsn(log.len() as u64), INCARNATION, reader(log))
        };
        log[starts[1] + RECORD_HEADER] ^= 1;
        assert_eq!(behind(&log, starts[1]), Some((Lsn(starts[2] as u64), Lsn(0))));
        // The next record begins a block later than the last header that fits into this one.
        log.resize(2 * BLOCK_SIZE - 16, 0);
        let mut later = vec![0; RECORD_HEADER];
        let lsn = Lsn(log.len() as u64);
        let durable = Some(Lsn(BLOCK_SIZE as u64));
        seal_record(&mut later, RecordPlace { durable, ..RecordPlace::of(lsn) }, INCARNATION, 1);
        log.extend(later);
        assert_eq!(behind(&log, starts[1]), Some((lsn, Lsn(BLOCK_SIZE as u64))));
        assert_eq!(behind(&log, lsn.0 as usize + 8), None);
        assert_eq!(behind(&log[..log.len() - 1], starts[2] + 8), None, "cut off");
    }

    #[test]
    fn zeros_in_the_place_of_a_record_are_no_padding() {
        let mut log = record(0, b"one");
        let first = log.len();
        log.extend(record(first as u64, b"second"));
        let last = Lsn(log.len() as u64);
        log.resize(BLOCK_SIZE, 0);
        let (lsn, mut third) = (Lsn(log.len() as u64), vec![0; RECORD_HEADER]);
        let place = RecordPlace { last: Some(last), ..RecordPlace::of(lsn) };
        seal_record(&mut third, place, INCARNATION, 1);
        log.extend(third);
        let limit = Lsn(log.len() as u64);
        let next = |log: &[u8], at| read_record(at, limit, INCARNATION, reader(log));
        assert_eq!(next(&log, last).map(|record| record.lsn), Some(lsn));
        for end in [first + RECORD_ALIGN, BLOCK_SIZE] {
            let mut bad = log.clone();
            bad[first..end].fill(0);
            assert_eq!(next(&bad, Lsn(first as u64)), None);
        }
    }

    #[test]
    fn what_an_earlier_fleet_left_is_no_record() {
        let log = record(0, b"old");
        let limit = Lsn(log.len() as u64);
        assert!(read_record(Lsn(0), limit, INCARNATION, reader(&log)).is_some());
        assert_eq!(read_record(Lsn(0), limit, INCARNATION + 1, reader(&log)), None);
    }

    #[test]
    fn the_newest_table_that_the_superblock_vouches_for_counts() {
        let choose = LogTable::choose;
        let table = |generation| LogTable { generation, incarnation: 3, starts: vec![Lsn(16); 2] };
        let [old, new] = [table(4).encode(), table(5).encode()];
        assert_eq!(choose([&old, &new], 5, 2), Ok((table(5), 0)));
        assert_eq!(choose([&old, &new], 4, 2), Ok((table(4), 1)));
        assert_eq!(choose([&new, &old], 5, 2), Ok((table(5), 1)));
        assert_eq!(choose([&old, &new], 3, 2), Err(LogTableError::Lost));
        let mut bad = new.clone();
        bad[40] ^= 1;
        assert_eq!(LogTable::decode(&bad), Err(LogTableError::BadChecksum));
        assert_eq!(choose([&old, &bad], 4, 2), Ok((table(4), 1)), "torn");
        assert_eq!(choose([&old, &bad], 5, 2), Err(LogTableError::InDoubt), "rotten");
        assert_eq!(choose([&bad, &bad], 5, 2), Err(LogTableError::Lost));
        assert_eq!(choose([&old, &new], 5, 1), Err(LogTableError::Lost), "of more logs than fit");
        for start in [9, u64::MAX - 7] {
            let odd = LogTable { starts: vec![Lsn(start)], ..table(5) }.encode();
            assert_eq!(LogTable::decode(&odd), Err(LogTableError::Nonsense));
        }
        let never = vec![0; BLOCK_SIZE];
        assert_eq!(choose([&old, &never], 4, 2), Ok((table(4), 1)));
        let next = table(6).encode();
        for other in [&never[..], &next] {
            assert_eq!(choose([&old, other], 5, 2), Err(LogTableError::InDoubt), "of the past");
        }
    }
}
