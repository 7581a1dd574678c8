//! Changes of which blocks a range of a file has (`fallocate`), and copies of ranges that share
//! blocks (`copy_file_range`).

use core::ops::Range;

use warren_base::limits::BLOCK_SIZE;

use crate::Wire;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The kind of the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum RangeKind {
    /// Holes get blocks, which read as zeros.
    Allocate,
    /// The bytes become zero, and whole blocks become a hole.
    PunchHole,
    /// The bytes become zero, and all blocks of the range are allocated.
    Zero,
}

/// A range of a file, and what becomes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct RangeChange {
    pub kind: RangeKind,
    /// A range beyond the end of the file leaves the size as it is.
    pub keep_size: bool,
    pub offset: u64,
    pub length: u64,
}

const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;

impl RangeChange {
    /// The change by the mode of `fallocate`. `None` for a mode that no kernel passes to a front
    /// (`FALLOC_FL_COLLAPSE_RANGE`, `FALLOC_FL_INSERT_RANGE`, and others), or that Linux refuses.
    pub const fn of_mode(mode: u32, offset: u64, length: u64) -> Option<Self> {
        let keep_size = mode & KEEP_SIZE != 0;
        let kind = match mode & !KEEP_SIZE {
            0 => RangeKind::Allocate,
            PUNCH_HOLE if keep_size => RangeKind::PunchHole,
            ZERO_RANGE => RangeKind::Zero,
            _ => return None,
        };
        Some(Self { kind, keep_size, offset, length })
    }

    /// The end of the range. `None` if there is none.
    pub const fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }

    /// The first and the last block of the file that the range touches. It is not empty.
    pub const fn blocks(&self) -> (u64, u64) {
        (self.offset / BLOCK, (self.last_byte() / BLOCK))
    }

    /// The first and the last block of the file that lose all their data, of a file of `size`
    /// bytes. The last block of the file counts as whole if a hole reaches beyond its end.
    pub fn emptied(&self, size: u64) -> Option<(u64, u64)> {
        if self.kind == RangeKind::Allocate {
            return None;
        }
        let (first, end) = (self.offset.div_ceil(BLOCK), self.zeroed_end(size) / BLOCK);
        (first < end).then(|| (first, end - 1))
    }

    /// The blocks of the file of which a part becomes zero, and this part: of a file of `size`
    /// bytes.
    pub fn cut(&self, size: u64) -> [Option<(u64, Range<usize>)>; 2] {
        if self.kind == RangeKind::Allocate {
            return [None, None];
        }
        let (start, end) = (self.offset, self.zeroed_end(size));
        let (first, last) = (start / BLOCK, end / BLOCK);
        let (from, to) = ((start % BLOCK) as usize, (end % BLOCK) as usize);
        let until = if first == last { to } else { BLOCK_SIZE };
        let begins = from > 0;
        let ends = to > 0 && !(begins && first == last);
        [begins.then_some((first, from..until)), ends.then_some((last, 0..to))]
    }

    /// The end of the bytes that become zero. Those behind the end of a file are zero anyway.
    fn zeroed_end(&self, size: u64) -> u64 {
        let end = self.last_byte().saturating_add(1);
        let is_to_end = self.kind == RangeKind::PunchHole && end > size;
        if is_to_end { end.max(size.next_multiple_of(BLOCK)) } else { end }
    }

    const fn last_byte(&self) -> u64 {
        self.offset.saturating_add(self.length.saturating_sub(1))
    }

    /// The size of a file of `size` bytes after the change.
    pub fn size_after(&self, size: u64) -> u64 {
        if self.keep_size { size } else { size.max(self.offset.saturating_add(self.length)) }
    }
}

/// A range of one file that is copied to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct RangeCopy {
    pub from: u64,
    pub to: u64,
    pub length: u64,
}

impl RangeCopy {
    /// Bytes that can be copied by sharing blocks, from a file of `source` bytes to one of `target`
    /// bytes: those in whole blocks. The last block of the source counts as whole if the target
    /// ends with the copy. `None` if there are none.
    pub fn shareable(&self, source: u64, target: u64) -> Option<u64> {
        if !self.from.is_multiple_of(BLOCK) || !self.to.is_multiple_of(BLOCK) {
            return None;
        }
        let length = self.length.min(source.saturating_sub(self.from));
        let is_to_end =
            self.from.saturating_add(length) >= source && self.to.saturating_add(length) >= target;
        let length = if is_to_end { length } else { length - length % BLOCK };
        (length > 0).then_some(length)
    }

    /// The first block of both ranges, and the number of blocks. Both begin with a block.
    pub const fn blocks(&self) -> (u64, u64, u64) {
        (self.from / BLOCK, self.to / BLOCK, self.length.div_ceil(BLOCK))
    }

    /// Whether the ranges overlap, in one file.
    pub fn overlaps(&self) -> bool {
        self.from.abs_diff(self.to) < self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_are_shared_and_the_last_one_of_both_files() {
        let share = |from, to, length, source, target| {
            RangeCopy { from, to, length }.shareable(source, target)
        };
        assert_eq!(share(0, 0, 10_000, 10_000, 0), Some(10_000));
        assert_eq!(share(0, 0, 10_000, 10_000, 10_000), Some(10_000));
        assert_eq!(share(0, 0, 10_000, 10_000, 10_001), Some(8192), "the target has more");
        assert_eq!(share(0, 0, 9_999, 10_000, 0), Some(8192), "the source has more");
        assert_eq!(share(4096, 0, u64::MAX, 10_000, 0), Some(5904));
        assert_eq!(share(0, 0, 4095, 10_000, 0), None);
        for (from, to) in [(1, 0), (0, 4095), (12_288, 0)] {
            assert_eq!(share(from, to, 8192, 10_000, 0), None);
        }
    }

    #[test]
    fn modes_are_those_that_a_kernel_passes_to_a_front() {
        let kind = |mode| RangeChange::of_mode(mode, 0, 1).map(|it| (it.kind, it.keep_size));
        assert_eq!(kind(0), Some((RangeKind::Allocate, false)));
        assert_eq!(kind(1), Some((RangeKind::Allocate, true)));
        assert_eq!(kind(3), Some((RangeKind::PunchHole, true)));
        assert_eq!(kind(0x10), Some((RangeKind::Zero, false)));
        assert_eq!(kind(0x11), Some((RangeKind::Zero, true)));
        for mode in [2, 4, 8, 0x12, 0x20, 0x40, 0x41, 0x80, 1 << 31] {
            assert_eq!(kind(mode), None, "{mode:#x}");
        }
    }

    #[test]
    fn a_range_behind_the_end_makes_the_file_longer_unless_the_size_is_kept() {
        let change = RangeChange::of_mode(0, 10, 20).expect("a mode");
        assert_eq!((change.size_after(15), change.size_after(40)), (30, 40));
        assert_eq!(RangeChange { keep_size: true, ..change }.size_after(15), 15);
        assert_eq!(RangeChange { length: u64::MAX, ..change }.end(), None);
    }

    #[test]
    fn whole_blocks_are_emptied_and_others_cut() {
        let zeroed = |mode, from: u64, to: u64, size| {
            let change = RangeChange::of_mode(mode, from, to - from).expect("a mode");
            (change.emptied(size), change.cut(size))
        };
        let far = 100 * BLOCK;
        assert_eq!(zeroed(3, BLOCK, 3 * BLOCK, far), (Some((1, 2)), [None, None]));
        assert_eq!(
            zeroed(3, 10, 3 * BLOCK + 5, far),
            (Some((1, 2)), [Some((0, 10..BLOCK_SIZE)), Some((3, 0..5))])
        );
        assert_eq!(zeroed(3, 10, 20, far), (None, [Some((0, 10..20)), None]));
        assert_eq!(zeroed(3, 0, 20, far), (None, [None, Some((0, 0..20))]));
        assert_eq!(zeroed(3, 0, 20, 20), (None, [None, Some((0, 0..20))]));
        assert_eq!(zeroed(3, 0, 20, 19), (Some((0, 0)), [None, None]));
        assert_eq!(zeroed(0x11, 0, 20, 20), (None, [None, Some((0, 0..20))]));
        assert_eq!(zeroed(3, 10, 20, 15), (None, [Some((0, 10..BLOCK_SIZE)), None]));
        assert_eq!(zeroed(0, 0, far, far), (None, [None, None]));
        assert_eq!(RangeChange::of_mode(0, 10, BLOCK).expect("a mode").blocks(), (0, 1));
    }
}
