//! The file-backed text of the program: where a function starts, and what may be patched.
//!
//! The start of a function comes from the table of `.eh_frame_hdr` (LSB, "exception frames"), which
//! every object that compilers make for Linux has, and which the program itself uses to unwind.
//! Code that no file backs (JIT code) has no entry and is never patched.
//!
//! The entries are a cache of `/proc/self/maps`. One is dropped when the program maps, unmaps or
//! protects something there.

use core::slice;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::abi::{PROT_EXEC, PROT_READ, PROT_WRITE};
use crate::call::SystemCall;
use crate::elf::{self, PT_GNU_EH_FRAME, PT_LOAD};
use crate::maps::{self, BUFFER, Mapping};
const OBJECTS: usize = 32;

/// A call may lie this far behind the described part of a function.
const BEYOND_MAX: usize = 64;

/// The text of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    pub start: usize,
    pub end: usize,
    pub protection: usize,
    /// The address of its `.eh_frame_hdr`.
    table: usize,
}

/// The known objects. Used under the lock of `patch`.
pub(crate) struct Objects {
    known: [Object; OBJECTS],
    next: usize,
}

/// Bounds of the known objects, to forget them without the lock. 0 for none.
pub(crate) struct Ends([(AtomicUsize, AtomicUsize); OBJECTS]);

/// A call is about to change mappings.
pub(crate) fn forget_changed(call: &SystemCall) {
    let [start, length, ..] = call.args;
    for (known_start, known_end) in &Ends::here().0 {
        if known_start.load(Relaxed) < start.saturating_add(length)
            && start < known_end.load(Relaxed)
        {
            known_end.store(0, Relaxed);
        }
    }
}

impl Objects {
    /// The object whose text contains `address`.
    pub(crate) fn find(&mut self, address: usize, buffer: &mut [u8; BUFFER]) -> Option<Object> {
        for (object, (_, end)) in self.known.iter().zip(&Ends::here().0) {
            if (object.start..object.end).contains(&address) && end.load(Relaxed) == object.end {
                return Some(*object);
            }
        }
        let mut first = None;
        let mut found = None;
        maps::visit_mappings(buffer, |mapping| {
            note_first(&mut first, mapping);
            if (mapping.start..mapping.end).contains(&address) {
                found = object(mapping, first);
            }
            mapping.end <= address
        });
        let object = found?;
        let slot = self.next % OBJECTS;
        self.next += 1;
        self.known[slot] = object;
        Ends::here().0[slot].0.store(object.start, Relaxed);
        Ends::here().0[slot].1.store(object.end, Relaxed);
        Some(object)
    }
}

/// The start of a file's mappings: its inode and address, if it can be read.
pub(crate) type First = Option<(usize, usize)>;

pub(crate) fn note_first(first: &mut First, mapping: &Mapping) {
    if mapping.offset == 0 && mapping.inode != 0 && mapping.protection & PROT_READ != 0 {
        *first = Some((mapping.inode, mapping.start));
    }
}

/// The object of a mapping of text. `first` is the start of the file that was mapped last.
pub(crate) fn object(mapping: &Mapping, first: First) -> Option<Object> {
    let wanted = PROT_READ | PROT_EXEC;
    if mapping.inode == 0 || mapping.protection & (wanted | PROT_WRITE) != wanted {
        return None;
    }
    let base = first.filter(|(inode, _)| *inode == mapping.inode).map(|(_, base)| base)?;
    let Mapping { start, end, protection, .. } = *mapping;
    Object::new(base, start, end, protection)
}

/// The address of `.eh_frame_hdr` of the ELF file that is mapped at `base`.
fn unwind_table(base: usize) -> Option<usize> {
    // SAFETY: the first page of a file is mapped at `base`, and it can be read.
    let segments = unsafe { elf::segments(base) }?;
    let address_of = |kind| Some(segments.iter().find(|it| it.p_type == kind)?.p_vaddr as usize);
    let bias = base.wrapping_sub(address_of(PT_LOAD)?);
    Some(bias.wrapping_add(address_of(PT_GNU_EH_FRAME)?))
}

impl Object {
    /// The text between two addresses, of the file that is mapped at `base`.
    pub(crate) fn new(base: usize, start: usize, end: usize, protection: usize) -> Option<Self> {
        Some(Self { start, end, protection, table: unwind_table(base)? })
    }

    /// The start of the function that contains `address`, and whether the unwind information covers
    /// the address. The C library ends it before the call in `clone`, because it does not hold in
    /// the child.
    pub(crate) fn function(&self, address: usize) -> Option<(usize, bool)> {
        // Version 1; pointers relative to rip, counts of 4 bytes, entries relative to the table.
        const ENCODINGS: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        // SAFETY: the object is mapped, and its program header says that the table is there.
        if unsafe { *(self.table as *const [u8; 4]) } != ENCODINGS {
            return None;
        }
        // SAFETY: as above. The count follows the pointer to `.eh_frame`.
        let count = unsafe { *((self.table + 8) as *const u32) } as usize;
        let entry = |at: usize, word: usize| {
            let address = self.table + 12 + at * 8 + word * 4;
            // SAFETY: `at` is below the count of the entries.
            self.table.wrapping_add_signed(unsafe { *(address as *const i32) } as isize)
        };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if entry(middle, 0) <= address { low = middle + 1 } else { high = middle }
        }
        let at = low.checked_sub(1)?;
        let (start, description) = (entry(at, 0), entry(at, 1));
        // The description has its length, a pointer, the start and the length of the function.
        // SAFETY: the entry says that it is there.
        let (relative, length) =
            unsafe { (*((description + 8) as *const i32), *((description + 12) as *const u32)) };
        let again = (description + 8).wrapping_add_signed(relative as isize);
        let known = again == start && start >= self.start && address < self.end;
        let beyond = (address - start).checked_sub(length as usize);
        let near = beyond.is_none_or(|beyond| beyond < BEYOND_MAX);
        (known && near).then_some((start, beyond.is_none()))
    }

    /// The text between two addresses in it.
    ///
    /// # Safety
    /// The object is still mapped, and no other thread changes its text meanwhile.
    pub(crate) unsafe fn text(&self, start: usize, end: usize) -> &[u8] {
        assert!(self.start <= start && start <= end && end <= self.end);
        // SAFETY: it can be read, and the caller's.
        unsafe { slice::from_raw_parts(start as *const u8, end - start) }
    }
}
