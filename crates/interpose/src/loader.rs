//! The C library of the program, as the loader knows it.
//!
//! The loader keeps a list of the objects that it has loaded, and shows it to debuggers. The entry
//! `DT_DEBUG` of the program leads there. Reading it takes no call, where `/proc/self/maps` takes
//! thirty microseconds.
//!
//! The runtime of AddressSanitizer looks at this list as well. It ends a program in which another
//! library comes first, because that library's functions could take the place of its own. This
//! library defines none, so its entry moves behind the runtime's. The order in which symbols are
//! looked up is kept elsewhere and stays as it is.

use core::ffi::CStr;

use crate::abi::PAGE;
use crate::elf::{self, PF_X, PT_LOAD, PT_NOTE, Segment};
use crate::{probe, stub};

/// The file names of C libraries start with one of these.
const NAMES: [&[u8]; 2] = [b"libc.so.", b"libc-"];
const OBJECTS_MAX: usize = 256;
const NOTES_MAX: usize = 1024;
/// The bytes of a build id that are kept.
pub(crate) const BUILD_ID: usize = 32;

const NT_GNU_BUILD_ID: usize = 3;

/// An entry of the loader's list (`struct link_map`).
#[repr(C)]
struct Entry {
    bias: usize,
    name: *const core::ffi::c_char,
    dynamic: usize,
    next: *mut Entry,
    previous: *mut Entry,
}

/// The names of runtimes of AddressSanitizer (`IsDynamicRTName` of compiler-rt, `asan_linux.cpp`).
const SANITIZERS: [&[u8]; 2] = [b"libasan.so", b"libclang_rt.asan"];

/// The entries of a list.
///
/// # Safety
/// `list` is the loader's list, and is not changed while the result is used.
unsafe fn entries(list: usize) -> impl Iterator<Item = *mut Entry> {
    let mut at = list as *mut Entry;
    core::iter::from_fn(move || {
        let found = at;
        // SAFETY: the list ends with a null.
        at = unsafe { at.as_ref() }?.next;
        Some(found)
    })
    .take(OBJECTS_MAX)
}

/// Whether the file name of the object starts with one of these.
///
/// # Safety
/// The entry is in the loader's list.
unsafe fn is_named(entry: *mut Entry, starts: &[&[u8]]) -> bool {
    // SAFETY: the caller's. The loader keeps the path of the file there, if it has one.
    let Some(path) = (unsafe { path(entry) }) else { return false };
    let name = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    starts.iter().any(|start| name.starts_with(start))
}

/// The path of the object's file, if the loader has one.
///
/// # Safety
/// The entry is in the loader's list.
unsafe fn path(entry: *mut Entry) -> Option<&'static CStr> {
    // SAFETY: the caller's. The loader keeps the path there.
    unsafe { (!(*entry).name.is_null()).then(|| CStr::from_ptr((*entry).name)) }
}

/// Moves the entry of this library behind that of AddressSanitizer's runtime, if it stands before.
///
/// # Safety
/// `list` is the loader's list, and no other thread runs.
pub(crate) unsafe fn let_sanitizer_be_first(list: usize) {
    // SAFETY: it is in the list.
    let is_sanitizer = |entry: &*mut Entry| unsafe { is_named(*entry, &SANITIZERS) };
    // SAFETY: the caller's.
    let (mut before, mut rest) = unsafe { (entries(list), entries(list)) };
    let Some(runtime) = rest.find(is_sanitizer) else { return };
    // SAFETY: entries of the list can be read.
    let is_ours = |entry: &*mut Entry| unsafe { (**entry).bias } == stub::base();
    let Some(ours) = before.by_ref().take_while(|entry| *entry != runtime).find(is_ours) else {
        return;
    };
    // SAFETY: the list is linked both ways. Ours is not its first entry, which is the program's,
    // and the runtime is not its last, because it needs the C library.
    unsafe {
        let (previous, next, last) = ((*ours).previous, (*ours).next, (*runtime).next);
        if previous.is_null() || next.is_null() || last.is_null() {
            return;
        }
        (*previous).next = next;
        (*next).previous = previous;
        ((*ours).previous, (*ours).next) = (runtime, last);
        (*last).previous = ours;
        (*runtime).next = ours;
    }
}

/// The C library, as it is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    pub base: usize,
    /// Where its text is mapped, in pages.
    pub start: usize,
    pub end: usize,
    /// Where its text is in its file.
    pub offset: usize,
    pub build_id: [u8; BUILD_ID],
}

/// The C library in the loader's list, and the path of its file.
///
/// # Safety
/// `list` is the loader's list, and the loader does not change it meanwhile.
pub(crate) unsafe fn c_library(list: usize) -> Option<(Library, &'static CStr)> {
    // SAFETY: the caller's.
    for entry in unsafe { entries(list) } {
        // SAFETY: it is in the list.
        unsafe {
            if is_named(entry, &NAMES) {
                return Some((library((*entry).bias)?, path(entry)?));
            }
        }
    }
    None
}

/// The library whose first page is mapped at `base`.
pub(crate) fn library(base: usize) -> Option<Library> {
    if base == 0 || !base.is_multiple_of(PAGE) || !probe::readable(base, PAGE) {
        return None;
    }
    // SAFETY: it can be read.
    let segments = unsafe { elf::segments(base) }?;
    // Its addresses count from its first page.
    let first = segments.iter().find(|it| it.p_type == PT_LOAD)?;
    if first.p_offset != 0 || first.p_vaddr != 0 {
        return None;
    }
    let text = segments.iter().find(|it| it.p_type == PT_LOAD && it.p_flags & PF_X != 0)?;
    let [offset, address, length] =
        [text.p_offset, text.p_vaddr, text.p_filesz].map(|word| word as usize);
    let start = base + address;
    if !address.is_multiple_of(PAGE) || !offset.is_multiple_of(PAGE) {
        return None;
    }
    let mut notes = segments.iter().filter(|it| it.p_type == PT_NOTE);
    let build_id = notes.find_map(|segment| build_id(base, segment))?;
    Some(Library { base, start, end: start + length.next_multiple_of(PAGE), offset, build_id })
}

/// The build id among the notes of a segment, if they lie in the first page.
fn build_id(base: usize, segment: &Segment) -> Option<[u8; BUILD_ID]> {
    let (address, length) = (segment.p_vaddr as usize, (segment.p_memsz as usize).min(NOTES_MAX));
    if address + length > PAGE {
        return None;
    }
    // SAFETY: the first page is mapped, and nothing writes to it.
    let notes = unsafe { core::slice::from_raw_parts((base + address) as *const u8, length) };
    let mut notes = elf::notes(notes);
    let (.., found) =
        notes.find(|(kind, name, _)| *kind == NT_GNU_BUILD_ID && *name == b"GNU\0")?;
    let mut id = [0; BUILD_ID];
    id.get_mut(..found.len())?.copy_from_slice(found);
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_of_this_program_is_found() {
        let mut buffer = [0; crate::maps::BUFFER];
        let mut base = 0;
        let mut text = (0, 0);
        crate::maps::visit_mappings(&mut buffer, |mapping| {
            if mapping.name.starts_with(b"libc.so.") {
                match mapping.offset {
                    0 => base = mapping.start,
                    _ if mapping.protection & crate::abi::PROT_EXEC != 0 => {
                        text = (mapping.start, mapping.end);
                    }
                    _ => {}
                }
            }
            true
        });
        let found = library(base).expect("glibc has a build id");
        assert_eq!((found.start, found.end), text);
        assert_ne!(found.build_id, [0; BUILD_ID]);
        assert!(library(0).is_none() && library(base + 1).is_none());
    }
}
