//! Fills the image: a copy of the text from the library's file, with all its sites patched.
//!
//! The copy is made from the file, because a debugger may have changed the text in memory. One
//! process fills the image at a time, under a lock of the file that ends with the process. If one
//! is killed, the mark is still there, and the next one begins again. The header comes last.

use core::ffi::CStr;
use core::mem::size_of;
use core::slice;

use super::file::{DISTANCE, FILLED, Header, MARK, Open, TRAMPOLINES};
use crate::abi::{MAP_SHARED, PAGE, PROT_EXEC, PROT_READ, PROT_WRITE, RLIMIT_FSIZE, is_error, nr};
use crate::loader::Library;
use crate::object::Object;
use crate::site::{self, CODE_MAX, SYSCALL};
use crate::stub;

const ALIGN: usize = 16;
/// The longest text without a site, in bytes, that still lies within the part to be patched.
const GAP: usize = 128 << 10;
/// Calls that the unwind information does not cover, because it does not hold in the child.
const CHILDREN: [usize; 3] = [nr::CLONE, nr::CLONE3, nr::VFORK];

/// Fills and seals the image, whose lock is held. `file` is the path of the library's file. The
/// image's seals show whether it is filled.
pub(super) fn fill(image: &Open, library: &Library, file: &CStr) -> Option<()> {
    let mut mark = MARK;
    image.read(&mut mark, 0)?;
    // Another process may have filled it meanwhile.
    if mark != MARK || image.seals() != Some(0) || image.own_length().is_none() {
        return None;
    }
    let file = Open::new(file, 0)?;
    let length = PAGE + (library.end - library.start) + TRAMPOLINES;
    // The kernel ends a process by SIGXFSZ that tries to make a file longer than it may be.
    stub::limits(RLIMIT_FSIZE).filter(|[soft, _]| *soft >= length as u64)?;
    // SAFETY: the file is the launcher's, and for this.
    if unsafe { stub::call(nr::FTRUNCATE, [image.0, length]) } != 0 {
        return None;
    }
    let args = [0, length, PROT_READ | PROT_WRITE, MAP_SHARED, image.0, 0];
    // SAFETY: it replaces no mapping.
    let mapped = unsafe { stub::call(nr::MMAP, args) };
    if is_error(mapped) {
        return None;
    }
    // SAFETY: it was mapped now. No other process writes, because of the lock.
    let bytes = unsafe { slice::from_raw_parts_mut(mapped as *mut u8, length) };
    let filled = write(bytes, library, &file);
    // A file that is mapped to be written has no seals.
    stub::unmap(mapped as usize, length);
    filled?;
    image.seal();
    Some(())
}

fn write(bytes: &mut [u8], library: &Library, file: &Open) -> Option<()> {
    let (header, rest) = bytes.split_at_mut(PAGE);
    let (text, trampolines) = rest.split_at_mut(library.end - library.start);
    // The file may have been replaced. Its build id is in its first page.
    let mut first = [0; PAGE];
    file.read(&mut first, 0)?;
    // SAFETY: the library's first page is mapped.
    if first != *unsafe { &*(library.base as *const [u8; PAGE]) } {
        return None;
    }
    file.read(text, library.offset)?;
    let (used, dense) = patch_all(text, trampolines, library)?;
    let filled = Header {
        mark: FILLED,
        build_id: library.build_id,
        text: text.len(),
        trampolines: used.next_multiple_of(PAGE),
        dense,
    };
    // SAFETY: a header has no padding.
    let filled: [u8; size_of::<Header>()] = unsafe { core::mem::transmute(filled) };
    header[..filled.len()].copy_from_slice(&filled);
    Some(())
}

/// Patches all sites in the copy. Returns the bytes of the trampolines, and the dense part.
fn patch_all(
    text: &mut [u8],
    trampolines: &mut [u8],
    library: &Library,
) -> Option<(usize, [usize; 2])> {
    let (start, end) = (library.start, library.end);
    let object = Object::new(library.base, start, end, PROT_READ | PROT_EXEC)?;
    let entry = start - DISTANCE;
    // The entry's address comes first.
    let mut used = ALIGN;
    let mut dense = Dense::default();
    let mut at = 0;
    while let Some(offset) = site::find_call(&text[at..]) {
        let call = at + offset;
        at = call + SYSCALL.len();
        let Some((function, inside)) = object.function(start + call) else { continue };
        let first = function - start;
        let Some(site) = site::find(&text[first..at], call - first, |_, _| true) else { continue };
        if !inside && !CHILDREN.iter().any(|number| site.loads(*number)) {
            continue;
        }
        if used + CODE_MAX > trampolines.len() {
            break;
        }
        let code = site::trampoline(&site, function, entry + used, entry);
        let jump = site::jump(function + site.start, entry + used);
        let (Some(code), Some(jump)) = (code, jump) else { continue };
        trampolines[used..used + code.length].copy_from_slice(&code.bytes[..code.length]);
        used = (used + code.length).next_multiple_of(ALIGN);
        text[first + site.start..][..site.length()].copy_from_slice(&jump[..site.length()]);
        dense.add(first + site.start, at);
    }
    Some((used, dense.finish()))
}

/// Finds the part of the text that has most of the sites, without a gap of more than [`GAP`]. It is
/// given the sites in their order.
#[derive(Default)]
struct Dense {
    best: Run,
    last: Run,
}

#[derive(Clone, Copy, Default)]
struct Run {
    start: usize,
    end: usize,
    sites: usize,
}

impl Dense {
    fn add(&mut self, start: usize, end: usize) {
        if self.last.sites == 0 || start > self.last.end + GAP {
            self.last = Run { start, end, sites: 0 };
        }
        self.last.end = end;
        self.last.sites += 1;
        if self.last.sites > self.best.sites {
            self.best = self.last;
        }
    }

    /// Its start and its length, in pages.
    fn finish(self) -> [usize; 2] {
        let start = self.best.start & !(PAGE - 1);
        [start, self.best.end.next_multiple_of(PAGE) - start]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dense_part_has_most_sites() {
        let mut dense = Dense::default();
        assert_eq!(Dense::default().finish(), [0, 0]);
        for start in [0x100, 0x200, 0x80_100, 0x81_ffe, 0x84_000, 0xf0_000, 0xf0_010] {
            dense.add(start, start + 7);
        }
        assert_eq!(dense.finish(), [0x80_000, 0x5000]);
    }
}
