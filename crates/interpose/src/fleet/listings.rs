//! Listings that a client keeps, as the kernel's `getdents64` gives them.

use alloc::vec::Vec;

use warren_base::{FileKind, Ino};
use warren_client::Guard;

use crate::inode_numbers::number_of;

/// Directories of which listings are kept.
const LISTINGS: usize = 32;
/// `struct linux_dirent64`: inode, next offset, length, type, name, a zero; a multiple of 8 bytes.
const NAME_AT: usize = 19;

pub(super) struct Listing {
    pub ino: Ino,
    pub guard: Guard,
    pub records: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Listings {
    pub kept: Vec<Listing>,
    next: usize,
}

impl Listings {
    pub(super) fn keep(&mut self, listing: Listing, old: Option<usize>) -> usize {
        let at = match old {
            Some(at) => at,
            None if self.kept.len() < LISTINGS => {
                self.kept.push(listing);
                return self.kept.len() - 1;
            }
            None => {
                self.next = (self.next + 1) % LISTINGS;
                self.next
            }
        };
        self.kept[at] = listing;
        at
    }
}

pub(super) fn push_record(to: &mut Vec<u8>, ino: Ino, next: u64, kind: FileKind, name: &[u8]) {
    let length = (NAME_AT + name.len() + 1).next_multiple_of(8);
    to.extend_from_slice(&number_of(ino).to_le_bytes());
    to.extend_from_slice(&next.to_le_bytes());
    to.extend_from_slice(&(length as u16).to_le_bytes());
    to.push((kind.mode_bits() >> 12) as u8);
    to.extend_from_slice(name);
    to.resize(to.len() + length - NAME_AT - name.len(), 0);
}

/// The first record: its length, and the offset behind it.
fn first(records: &[u8]) -> Option<(usize, u64)> {
    let next = u64::from_le_bytes(records.get(8..16)?.try_into().ok()?);
    let length = u16::from_le_bytes(records.get(16..18)?.try_into().ok()?);
    Some((length.into(), next))
}

/// The records behind an offset.
pub(super) fn skip(mut records: &[u8], offset: u64) -> &[u8] {
    while let Some((length, next)) = first(records)
        && next <= offset
    {
        records = &records[length..];
    }
    records
}

/// The number of bytes of records that fit, and the offset behind them. Records that share an
/// offset are not separated, unless they alone do not fit: a listing goes on behind all of them.
pub(super) fn fitting(records: &[u8], room: usize) -> (usize, Option<u64>) {
    let (mut length, mut last) = (0, None);
    let mut group = (0, None);
    while let Some((record, next)) = first(&records[length..]) {
        if last != Some(next) {
            group = (length, last);
        }
        if length + record > room {
            return if group.0 > 0 { group } else { (length, last) };
        }
        (length, last) = (length + record, Some(next));
    }
    (length, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<u8> {
        let mut records = Vec::new();
        for (next, name) in [(1, "."), (2, ".."), (7, "a"), (9, "b"), (9, "c"), (12, "longer")] {
            push_record(&mut records, Ino(5), next, FileKind::Regular, name.as_bytes());
        }
        records
    }

    #[test]
    fn listings_go_on_behind_an_offset() {
        let records = records();
        assert_eq!(skip(&records, 0).len(), records.len());
        assert_eq!(skip(&records, 2).len(), records.len() - 48);
        assert_eq!(skip(&records, 8), skip(&records, 7));
        assert_eq!(skip(&records, 9).len(), 32);
        assert!(skip(&records, 12).is_empty());
    }

    #[test]
    fn entries_with_one_offset_stay_together() {
        let records = records();
        assert_eq!(fitting(&records, 10_000), (records.len(), Some(12)));
        assert_eq!(fitting(&records, 23), (0, None));
        assert_eq!(fitting(&records, 24), (24, Some(1)));
        assert_eq!(fitting(&records, 4 * 24), (3 * 24, Some(7)), "the next two share an offset");
        assert_eq!(fitting(&records, 5 * 24), (5 * 24, Some(9)));
        assert_eq!(fitting(skip(&records, 7), 24), (24, Some(9)), "they alone do not fit");
        assert_eq!(fitting(&[], 24), (0, None));
    }
}
