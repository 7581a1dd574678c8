//! The table of the files that a client holds, and room for copies of their data.

use core::sync::atomic::AtomicU64;

use warren_base::limits::OPEN_DATA_MAX;
use warren_client::{HELD_WORDS, Held, HeldFiles};
use warren_transport::Connection;

use crate::arena;

/// Files of up to so many bytes are copied. Each entry of the table has room for such a copy of its
/// own, of which only what is used is allocated.
pub(super) const COPIED_MAX: u64 = OPEN_DATA_MAX;

/// The files that a client holds, and their data.
pub(super) struct Files {
    pub held: HeldFiles<&'static [AtomicU64]>,
    data: usize,
}

impl Files {
    pub(super) fn new(connection: &Connection) -> Option<Self> {
        let entries = connection.idle_words();
        let words = entries * HELD_WORDS;
        let memory = arena::reserve(words * size_of::<u64>())?;
        let data = arena::reserve(entries * COPIED_MAX as usize)?;
        // SAFETY: the memory is zeroed, aligned to a page, and never unmapped.
        let words = unsafe { core::slice::from_raw_parts(memory as *const AtomicU64, words) };
        Some(Self { held: HeldFiles::new(words), data })
    }

    pub(super) fn data_of(&self, Held(at): Held) -> usize {
        self.data + at as usize * COPIED_MAX as usize
    }
}

/// Up to `room` bytes of a file's data, from `offset` on. The file may have become shorter since
/// the offset was chosen.
pub(super) fn part(data: &[u8], offset: u64, room: usize) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let rest = data.get(start..).unwrap_or_default();
    &rest[..rest.len().min(room)]
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn a_part_ends_with_the_data_and_with_the_room() {
        assert_eq!(part(b"data", 1, 2), b"at");
        assert_eq!(part(b"data", 1, 9), b"ata");
        for behind in [4, 5, 5000, u64::MAX] {
            assert_eq!(part(b"data", behind, 9), b"");
        }
    }
}
