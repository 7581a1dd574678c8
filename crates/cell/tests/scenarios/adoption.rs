//! **Entries that do not count.** A process may die between any two stores, and the table of its
//! frames then has entries that do not count: of a change that did not happen, of a page that was
//! replaced or cut off, of an inode that is gone. Each scenario forges one such entry, whose frame
//! holds bytes that no client has written. One check alone keeps them out of the file.
//!
//! The code: `recovery/frames.rs`, `frames/table.rs`.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{ClientId, Ino, Lsn};
use warren_cell::{FrameNo, Memory};
use warren_proto::{Handle, Request, SetAttr};

use crate::bytes::{PAGE, page};
use crate::pair::*;

/// Bytes of an entry of the table.
const ENTRY: usize = 32;
/// A frame of the cache that no scenario here fills, and another one.
const SPARE: u32 = FRAMES - 1;
const SECOND: u32 = FRAMES - 2;
/// A forged frame is full of this byte.
const FORGED: u8 = 0x77;

/// An entry of the table: the page, and the record of the log that has changed it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Entry {
    ino: Ino,
    page: u64,
    since: Lsn,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

impl Pair {
    /// The entries of a dead process that name pages of the file, in order of the pages.
    fn entries(&mut self, file: Handle) -> Vec<Entry> {
        let frames = self.member(A).machine.table(FRAMES).iter();
        let table: Vec<u8> = frames.flat_map(|frame| frame.iter().copied()).collect();
        let entries = table.chunks_exact(ENTRY).map(|entry| Entry {
            ino: Ino(word(entry, 0)),
            page: word(entry, 8),
            since: Lsn(word(entry, 16)),
        });
        let mut entries: Vec<_> = entries.filter(|entry| entry.ino == file.ino).collect();
        entries.sort_unstable_by_key(|entry| entry.page);
        entries
    }

    /// Puts an entry for this frame into the table of a dead process, and bytes into the frame.
    fn forge(&mut self, frame: u32, entry: Entry, bytes: u8) {
        let mut bytes_of_entry = [0; ENTRY];
        bytes_of_entry[..8].copy_from_slice(&entry.ino.0.to_le_bytes());
        bytes_of_entry[8..16].copy_from_slice(&entry.page.to_le_bytes());
        bytes_of_entry[16..24].copy_from_slice(&entry.since.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes_of_entry[..24]);
        bytes_of_entry[24..28].copy_from_slice(&crc.to_le_bytes());
        let checksum = crc32c::crc32c(&[bytes; BLOCK_SIZE]);
        bytes_of_entry[28..].copy_from_slice(&checksum.to_le_bytes());
        self.put_entry(frame, bytes_of_entry);
        self.member(A).machine.frame_mut(FrameNo(frame)).fill(bytes);
    }

    fn put_entry(&mut self, frame: u32, entry: [u8; ENTRY]) {
        let at = frame as usize * ENTRY;
        let table = self.member(A).machine.table(FRAMES);
        table[at / BLOCK_SIZE][at % BLOCK_SIZE..][..ENTRY].copy_from_slice(&entry);
    }

    fn entry_bytes(&mut self, frame: u32) -> [u8; ENTRY] {
        let at = frame as usize * ENTRY;
        let table = self.member(A).machine.table(FRAMES);
        table[at / BLOCK_SIZE][at % BLOCK_SIZE..][..ENTRY].try_into().expect("an entry")
    }

    pub(crate) fn resize(&mut self, client: ClientId, file: Handle, size: usize) {
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        let truncate = Request::SetAttr { ino: file.ino, handle: Some(file), set };
        assert!(self.call(client, truncate).is_ok());
    }
}

/// A file of three dirty pages.
fn with_three_pages() -> (Pair, ClientId, Handle) {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.supervisor.grants = false;
    let file = pair.file(client, IN_A, "file", page(1).repeat(3));
    // Later records, so that the log does not end where a page was changed.
    pair.create(client, IN_A, "later");
    (pair, client, file)
}

/// The same, whose cell has died, and their entries.
fn dead_with_three_pages() -> (Pair, ClientId, Handle, Vec<Entry>) {
    let (mut pair, client, file) = with_three_pages();
    pair.lose(A);
    let entries = pair.entries(file);
    assert_eq!(entries.iter().map(|entry| entry.page).collect::<Vec<_>>(), [0, 1, 2]);
    (pair, client, file, entries)
}

/// The successor serves the three pages as they were, and so does a fleet after a power failure.
fn assert_as_it_was(mut pair: Pair, client: ClientId, file: Handle) {
    pair.start_successor(A);
    assert_eq!(pair.read(client, file, 0, 4 * PAGE), page(1).repeat(3));
    pair.grant_checkpoints();
    pair.sync(client);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(3));
}

#[test]
fn a_whole_later_entry_counts() {
    let (mut pair, client, file, entries) = dead_with_three_pages();
    let since = Lsn(entries[1].since.0 + 8);
    pair.forge(SPARE, Entry { since, ..entries[1] }, FORGED);
    pair.start_successor(A);
    let wanted = page(1).then(page(FORGED)).then(page(1));
    assert_eq!(pair.read(client, file, 0, 3 * PAGE), wanted, "the forged entries below would");
}

#[test]
fn the_entry_of_a_change_without_its_record_does_not_count() {
    // Where the next record begins: that of this page.
    let next = {
        let (mut pair, client, file) = with_three_pages();
        pair.write(client, file, 5 * PAGE, page(1));
        pair.lose(A);
        pair.entries(file).last().expect("the page is dirty").since.0
    };
    // Its record would have been the next, or some record later.
    for later in [next, next + 8, 1 << 40, u64::MAX] {
        let (mut pair, client, file, entries) = dead_with_three_pages();
        pair.forge(SPARE, Entry { since: Lsn(later), ..entries[1] }, FORGED);
        assert_as_it_was(pair, client, file);
    }
}

#[test]
fn the_older_of_two_entries_does_not_count() {
    let (mut pair, client, file, entries) = dead_with_three_pages();
    for (frame, older) in [(SPARE, 8), (SECOND, entries[1].since.0)] {
        let since = Lsn(entries[1].since.0 - older);
        pair.forge(frame, Entry { since, ..entries[1] }, FORGED);
    }
    assert_as_it_was(pair, client, file);
}

#[test]
fn an_entry_that_is_not_whole_does_not_count() {
    for byte in [0, 8, 16, 23, 24, 27] {
        let (mut pair, client, file, entries) = dead_with_three_pages();
        let since = Lsn(entries[1].since.0 + 8);
        pair.forge(SPARE, Entry { since, ..entries[1] }, FORGED);
        let mut torn = pair.entry_bytes(SPARE);
        // The entry of the page before or of the one after, or a wrong checksum.
        torn[byte] ^= if byte == 8 { 3 } else { 1 };
        pair.put_entry(SPARE, torn);
        assert_as_it_was(pair, client, file);
    }
}

#[test]
fn the_entry_of_a_page_past_the_end_does_not_count() {
    let (mut pair, client, file, entries) = dead_with_three_pages();
    for (frame, number) in [(SPARE, 3), (SECOND, 7)] {
        pair.forge(frame, Entry { page: number, ..entries[2] }, FORGED);
    }
    pair.start_successor(A);
    pair.grant_checkpoints();
    pair.resize(client, file, 8 * PAGE);
    let wanted = page(1).repeat(3).then(page(0).repeat(5));
    assert_eq!(pair.read(client, file, 0, 8 * PAGE), wanted, "the file is longer now");
}

#[test]
fn the_entry_of_an_inode_that_is_gone_or_elsewhere_is_cleared() {
    let (mut pair, client, file, entries) = dead_with_three_pages();
    for (frame, ino) in [(SPARE, Ino(7_000)), (SECOND, Ino(9 << 48 | 5))] {
        pair.forge(frame, Entry { ino, ..entries[0] }, FORGED);
    }
    pair.start_successor(A);
    assert_eq!(pair.entry_bytes(SPARE), [0; ENTRY]);
    assert_eq!(pair.entry_bytes(SECOND), [0; ENTRY]);
    assert_eq!(pair.read(client, file, 0, 4 * PAGE), page(1).repeat(3));
}

#[test]
fn a_page_that_was_changed_after_it_got_its_place_is_not_written_there() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.fsync(client, file);
    pair.supervisor.grants = false;
    let before = pair.device.find(page(1).as_ref());
    pair.write(client, file, PAGE, page(2));
    pair.lose(A);
    let entries = pair.entries(file);
    assert_eq!(entries.len(), 1, "the others are durable");
    pair.start_successor(A);
    assert_eq!(
        pair.device.find(page(1).as_ref()),
        before,
        "the log names the place with these bytes"
    );
    pair.grant_checkpoints();
    pair.sync(client);
    pair.cut_power();
    let client = pair.client();
    let wanted = page(1).then(page(2)).then(page(1).repeat(18));
    assert_eq!(pair.content(client, IN_A, "file"), wanted);
}
