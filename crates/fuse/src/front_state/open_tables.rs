//! The part of a front's segment that has the kernel's open files, and the handles of cells behind
//! them.
//!
//! ```text
//!       0   page     how many opens and handles were ever used at once
//!    4096   2 MiB    opens
//! 2101248   3 MiB    handles
//!
//! open      0 unique of the OPEN or CREATE (0: unused)    8 u32 handle    12 u32 generation
//! handle    0 state (0: unused)   8 inode   16 open   24 u32 access   28 u32 cell
//!          32 stamp (0: the handle is not kept)       40 u32 word     44 u32 direct
//! ```
//!
//! An open is stored before its handle if the handle is new, and removed before it. So an open
//! whose handle is unused does not count: the kernel sends its request again.

use std::sync::atomic::Ordering::{Acquire, Release};

use warren_base::{CellId, Ino};
use warren_proto::{AccessMode, Handle, Lease};
use warren_shm::{Load, Store, WriteMap};

/// At most so many open files of the kernel.
pub(crate) const OPENS_MAX: usize = 1 << 17;
/// At most so many handles of cells.
pub(crate) const HANDLES_MAX: usize = 1 << 16;

const PAGE: usize = 4096;
const OPEN: usize = 16;
const HANDLE: usize = 48;
/// One more than the largest number that was ever used: what lies behind it was never touched.
const OPENS_END: usize = 0;
const HANDLES_END: usize = 8;
const OPENS: usize = PAGE;
const HANDLES: usize = OPENS + OPENS_MAX * OPEN;
pub(crate) const OPEN_TABLES_LEN: usize = HANDLES + HANDLES_MAX * HANDLE;
const _: () = assert!(HANDLES == 2_101_248);

/// The tables, which begin at `start` of the memory.
#[derive(Clone, Copy)]
pub(crate) struct OpenTables<'a> {
    pub map: &'a WriteMap,
    pub start: usize,
}

/// A lease of the cell's on the open files of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeptLease {
    pub cell: CellId,
    pub lease: Lease,
}

/// A handle of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeldHandle {
    pub handle: Handle,
    pub access: AccessMode,
    pub direct: bool,
    /// The handle may be kept when no open of the kernel uses it, while the lease lasts.
    pub kept: Option<KeptLease>,
}

/// An open file of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KernelOpen {
    /// The unique number of the FUSE request that opened it.
    pub unique: u64,
    pub handle: u32,
    /// The number of earlier uses of the entry.
    pub generation: u32,
}

const fn open_at(number: u32) -> usize {
    assert!((number as usize) < OPENS_MAX, "no such open");
    OPENS + number as usize * OPEN
}

const fn handle_at(number: u32) -> usize {
    assert!((number as usize) < HANDLES_MAX, "no such handle");
    HANDLES + number as usize * HANDLE
}

impl OpenTables<'_> {
    fn load(self, at: usize) -> u64 {
        self.map.load64(self.start + at, Acquire)
    }

    fn store(self, at: usize, value: u64) {
        self.map.store64(self.start + at, value, Release);
    }

    /// The open, whether it is used or not.
    pub(crate) fn open(self, number: u32) -> KernelOpen {
        let at = open_at(number);
        let place = self.load(at + 8);
        let unique = self.load(at);
        KernelOpen { unique, handle: place as u32, generation: (place >> 32) as u32 }
    }

    pub(crate) fn set_open(self, number: u32, open: KernelOpen) {
        let at = open_at(number);
        self.touch(OPENS_END, number);
        self.store(at + 8, u64::from(open.handle) | u64::from(open.generation) << 32);
        self.store(at, open.unique);
    }

    pub(crate) fn remove_open(self, number: u32) {
        self.store(open_at(number), 0);
    }

    /// The largest number of opens that were ever used at once.
    pub(crate) fn opens_end(self) -> u32 {
        (self.load(OPENS_END) as u32).min(OPENS_MAX as u32)
    }

    pub(crate) fn handles_end(self) -> u32 {
        (self.load(HANDLES_END) as u32).min(HANDLES_MAX as u32)
    }

    /// `None` if it is unused.
    pub(crate) fn held_handle(self, number: u32) -> Option<HeldHandle> {
        let at = handle_at(number);
        if self.load(at) == 0 {
            return None;
        }
        let word = |field: usize| self.load(at + field);
        let half = |field: usize| (word(field) as u32, (word(field) >> 32) as u32);
        let ((access, cell), (word_no, direct), stamp) = (half(24), half(40), word(32));
        let lease = Lease { word: word_no, stamp };
        let kept = KeptLease { cell: CellId(cell as u16), lease };
        Some(HeldHandle {
            handle: Handle { ino: Ino(word(8)), open: word(16) },
            access: AccessMode::from_bits_truncate(access as u16),
            direct: direct != 0,
            kept: (stamp != 0).then_some(kept),
        })
    }

    pub(crate) fn set_held_handle(self, number: u32, held: &HeldHandle) {
        let at = handle_at(number);
        let (cell, lease) = match held.kept {
            Some(KeptLease { cell, lease }) => (u64::from(cell.0), lease),
            None => (0, Lease { word: 0, stamp: 0 }),
        };
        self.touch(HANDLES_END, number);
        self.store(at + 8, held.handle.ino.0);
        self.store(at + 16, held.handle.open);
        self.store(at + 24, u64::from(held.access.bits()) | cell << 32);
        self.store(at + 32, lease.stamp);
        self.store(at + 40, u64::from(lease.word) | u64::from(held.direct) << 32);
        self.store(at, 1);
    }

    pub(crate) fn remove_held_handle(self, number: u32) {
        self.store(handle_at(number), 0);
    }

    /// The caller is the only one that uses new numbers.
    fn touch(self, end: usize, number: u32) {
        if self.load(end) <= u64::from(number) {
            self.store(end, u64::from(number) + 1);
        }
    }
}
