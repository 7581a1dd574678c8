//! The headers and the notes of ELF files of 64 bits that are mapped.

pub(crate) use linux_raw_sys::elf_uapi::{
    PF_X, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_LOAD, PT_NOTE, PT_PHDR, elf64_phdr as Segment,
};

use core::slice;

use linux_raw_sys::elf_uapi::{elf64_hdr, elf64_note};

/// Program headers that fit into the first page behind the header, rounded down.
pub(crate) const SEGMENTS_MAX: usize = 64;

/// The segments of the file that is mapped at `base`.
///
/// # Safety
/// Its first page is mapped and can be read. In a linked file, the program headers follow the
/// header, in the same page.
pub(crate) unsafe fn segments(base: usize) -> Option<&'static [Segment]> {
    // SAFETY: the caller's.
    let header = unsafe { &*(base as *const elf64_hdr) };
    if !header.e_ident.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let first = base + header.e_phoff as usize;
    let count = usize::from(header.e_phnum).min(SEGMENTS_MAX);
    // SAFETY: they are in the first page, and aligned.
    Some(unsafe { slice::from_raw_parts(first as *const Segment, count) })
}

/// The kind, the name and the contents of each note in a segment of notes. Names and contents are
/// rounded up to a word.
pub(crate) fn notes(mut rest: &[u8]) -> impl Iterator<Item = (usize, &[u8], &[u8])> {
    core::iter::from_fn(move || {
        let word = |at: usize| Some(u32::from_ne_bytes(*rest.get(at..)?.first_chunk()?) as usize);
        let (name_length, length, kind) = (word(0)?, word(4)?, word(8)?);
        let (name, behind) = rest.get(size_of::<elf64_note>()..)?.split_at_checked(name_length)?;
        let padding = name_length.next_multiple_of(4) - name_length;
        let contents = behind.get(padding..)?.get(..length)?;
        rest = behind.get(padding + length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, name, contents))
    })
}
