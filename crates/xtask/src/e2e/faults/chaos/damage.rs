//! Damage to the memory of a cell that is stopped: bits of its frames, and what it has written for
//! another cell.
//!
//! Only that is damaged for which a check is promised (decisions 19 and 81):
//!
//! ```text
//! frames: cache │ image of the op log │ table    a page that is not durable and has its
//!           ╰ a page      its checksum ╯          checksum, or this checksum in the entry
//! link:   cursors │ request ring │ reply ring    a record or a cursor that no correct cell
//!                                                writes
//! ```

use std::collections::BTreeMap;

use rustix::process::Pid;
use warren_base::Rng;

use super::super::cell_memory::{CellMemory, PAGE};
use super::marked::Mark;

/// An entry of the table of frames (`cell/src/frames/table.rs`), copied once more because the
/// damage shares no code with the cell.
const ENTRY: usize = 32;
const ENTRY_CRC: usize = 24;
const ENTRY_CHECKSUM: usize = 28;
/// Pages with an entry in a page of the table.
const ENTRIES: u64 = (PAGE / ENTRY) as u64;

/// A link (`shm/src/ring.rs`), as well.
const LINK_RECEIVER: u64 = 16;
const LINK_CURSORS: u64 = 4096;
const LINK_RINGS: u64 = 8192;
const RING_BYTES: u64 = 128 * 1024;
const LINE: u64 = 64;
const RECORD_HEADER: usize = 32;
const RECORD: usize = RECORD_HEADER + 8;

/// A dirty page in the frames of a cell.
pub(super) struct DirtyPage {
    pub mark: Mark,
    /// Where the page and its checksum lie in the memory of the process.
    page: u64,
    checksum: u64,
}

impl DirtyPage {
    /// One of the marked pages of the process that have their checksums.
    pub(super) fn find(memory: &CellMemory, rng: &mut Rng) -> Option<Self> {
        let (mut pages, mut entries) = (BTreeMap::new(), Vec::new());
        for area in memory.areas("warren-frames").ok()? {
            let table = area.end - (area.end - area.start).div_ceil(ENTRIES) - PAGE as u64;
            let visit = |at: u64, page: &[u8]| {
                if let Some(mark) = Mark::of(page) {
                    pages.insert((crc32c::crc32c(page), u64::from(mark.page)), (at, mark));
                } else if at >= table {
                    entries.extend(checksums(at, page));
                }
            };
            memory.pages(area, visit).ok()?;
        }
        let found = entries.into_iter().filter_map(|(checksum, key)| {
            let (page, mark) = *pages.get(&key)?;
            Some(Self { mark, page, checksum })
        });
        let mut found: Vec<Self> = found.collect();
        let at = rng.below(found.len().max(1) as u64) as usize;
        (!found.is_empty()).then(|| found.swap_remove(at))
    }

    /// Flips a bit of the page. Returns whether the process was still there.
    pub(super) fn flip(&self, memory: &CellMemory, rng: &mut Rng) -> bool {
        flip(memory, self.page + rng.below(PAGE as u64), rng)
    }

    /// Flips a bit of its checksum.
    pub(super) fn flip_checksum(&self, memory: &CellMemory, rng: &mut Rng) -> bool {
        flip(memory, self.checksum + rng.below(4), rng)
    }
}

fn flip(memory: &CellMemory, at: u64, rng: &mut Rng) -> bool {
    let mut byte = [0];
    if memory.read(at, &mut byte).is_err() {
        return false;
    }
    memory.write(at, &[byte[0] ^ 1 << rng.below(8)]).is_ok()
}

/// The checksums in the entries of this page of a table: each with its place and its page's number.
fn checksums(at: u64, table: &[u8]) -> Vec<(u64, (u32, u64))> {
    let half = |entry: &[u8], at: usize| {
        u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"))
    };
    let of_entry = |(number, entry): (usize, &[u8])| {
        let page = u64::from_le_bytes(entry[8..16].try_into().expect("8 bytes"));
        let checksum = half(entry, ENTRY_CHECKSUM);
        let is_whole = half(entry, ENTRY_CRC) == crc32c::crc32c(&entry[..ENTRY_CRC]);
        let place = at + (number * ENTRY + ENTRY_CHECKSUM) as u64;
        (is_whole && checksum != 0).then_some((place, (checksum, page)))
    };
    table.chunks_exact(ENTRY).enumerate().filter_map(of_entry).collect()
}

/// The words that are written into a link in the name of the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    /// A record with a wrong checksum.
    Checksum,
    /// A record of another place in the ring.
    Place,
    /// A record of another sender.
    Sender,
    /// A record under a capability that was never given. It is dropped; then the cell's own next
    /// record is out of place.
    Capability,
    /// A cursor of what was sent that is out of range.
    Tail,
    /// A cursor of what was received that is out of range.
    Head,
}

impl Lie {
    const ALL: [Self; 6] =
        [Self::Checksum, Self::Place, Self::Sender, Self::Capability, Self::Tail, Self::Head];
}

/// Writes what no correct cell writes into one of the links of the process. Returns the number of
/// the cell that receives it.
pub(super) fn forge(process: Pid, sender: u16, rng: &mut Rng) -> Option<u16> {
    let memory = CellMemory::open(process).ok()?;
    let links = memory.areas("warren-peer").ok()?.into_iter().filter(|area| area.is_own);
    let links: Vec<u64> = links.map(|area| area.start).collect();
    if links.is_empty() {
        return None;
    }
    let (link, lane) = (*rng.pick(&links), rng.below(2));
    let (tail_at, head_at) = (LINK_CURSORS + lane * LINE, LINK_CURSORS + (2 + lane) * LINE);
    let number = |at: u64| {
        let mut bytes = [0; 8];
        memory.read(link + at, &mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
    };
    let receiver = number(LINK_RECEIVER)? as u16;
    let lie = *rng.pick(&Lie::ALL);
    let written = match lie {
        Lie::Tail | Lie::Head => {
            let at = if lie == Lie::Tail { tail_at } else { head_at };
            let far = number(at)? + 8 * (1 + RING_BYTES + rng.below(RING_BYTES));
            memory.write(link + at, &far.to_le_bytes())
        }
        _ => {
            let tail = number(tail_at)?;
            let ring = link + LINK_RINGS + lane * RING_BYTES;
            let record = record(lie, tail, sender, rng);
            let put = (tail..)
                .step_by(8)
                .zip(record.chunks(8))
                .try_for_each(|(at, word)| memory.write(ring + at % RING_BYTES, word));
            let next = tail + RECORD as u64;
            put.and_then(|()| memory.write(link + tail_at, &next.to_le_bytes()))
        }
    };
    written.is_ok().then_some(receiver)
}

fn record(lie: Lie, tail: u64, sender: u16, rng: &mut Rng) -> [u8; RECORD] {
    let mut raw = [0; RECORD];
    let tail = if lie == Lie::Place { tail + 8 * (1 + rng.below(RING_BYTES)) } else { tail };
    let sender = if lie == Lie::Sender { sender + 1 } else { sender };
    raw[0..8].copy_from_slice(&tail.to_le_bytes());
    raw[8..12].copy_from_slice(&8_u32.to_le_bytes());
    raw[12..16].copy_from_slice(&1_u32.to_le_bytes());
    raw[16..24].copy_from_slice(&rng.next_u64().to_le_bytes());
    raw[24..26].copy_from_slice(&sender.to_le_bytes());
    raw[RECORD_HEADER..].copy_from_slice(&rng.next_u64().to_le_bytes());
    let sum = crc32c::crc32c(&raw[..RECORD_HEADER - 4]);
    let sum = crc32c::crc32c_append(sum, &raw[RECORD_HEADER..]);
    let sum = if lie == Lie::Checksum { sum ^ 1 << rng.below(32) } else { sum };
    raw[RECORD_HEADER - 4..RECORD_HEADER].copy_from_slice(&sum.to_le_bytes());
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_are_whole_and_have_checksums_are_found() {
        let mut table = vec![0; PAGE];
        for (number, checksum) in [(1, 77_u32), (2, 0), (3, 78)] {
            let entry = &mut table[number * ENTRY..][..ENTRY];
            entry[..8].copy_from_slice(&9_u64.to_le_bytes());
            entry[8..16].copy_from_slice(&(number as u64).to_le_bytes());
            let crc = crc32c::crc32c(&entry[..ENTRY_CRC]);
            entry[ENTRY_CRC..ENTRY_CHECKSUM].copy_from_slice(&crc.to_le_bytes());
            entry[ENTRY_CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
        }
        table[3 * ENTRY] ^= 1;
        assert_eq!(checksums(8192, &table), [(8192 + 32 + 28, (77, 1))]);
    }
}
