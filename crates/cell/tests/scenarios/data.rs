//! **File data.** The pages of a file lie in frames of the cell's cache: loading, clean or dirty. A
//! write changes pages in frames, then it is answered. The device receives them later: with an
//! `fsync`, with a checkpoint, or when a quarter of the cache is dirty.
//!
//! A page is changed in a new frame, so that the old frame stays valid: for an I/O that uses it,
//! and for a successor until the record of the change is in the log. The extent holds a checksum of
//! each page. A page that does not match its checksum is EIO.
//!
//! The code: `data/read.rs`, `data/write.rs`, `shard/pages.rs`, `frames.rs`, `cache/pages.rs`,
//! `frames/io.rs`.

use warren_base::{ClientId, Errno};
use warren_proto::{Handle, Position, Reply, Request, SetAttr};

use crate::bytes::{Bytes, PAGE, page};
use crate::client::{fsync, read, write};
use crate::device::Kind;
use crate::pair::*;

/// A file with so many pages, page `n` full of `n`. None of them is in the cache.
fn cold_file(pages: u8) -> (Pair, ClientId, Handle) {
    let mut pair = Pair::alone();
    let client = pair.client();
    let bytes: Vec<u8> = (0..pages).flat_map(|n| page(n).0).collect();
    let file = pair.file(client, IN_A, "file", &bytes);
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    let handle = pair.open(client, file.ino);
    pair.trace(&[]);
    (pair, client, handle)
}

/// The number of pages read since the last call, in any number of I/Os.
fn pages_read(pair: &mut Pair) -> usize {
    let count =
        |line: &String| line.rsplit(' ').next().and_then(|count| count.parse::<usize>().ok());
    pair.trace(&["reads"]).iter().filter_map(count).sum()
}

#[test]
fn a_hole_reads_as_zeros() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.write(client, file, 3 * PAGE - 2, b"abcd");
    assert_eq!(pair.read(client, file, 3 * PAGE - 4, 100), b"\0\0abcd");
    let attr = pair.attr(client, file.ino);
    assert_eq!(attr.size, 3 * PAGE as u64 + 2);
    assert_eq!(attr.blocks, 2, "the first two pages are a hole");
    assert_eq!(pair.read(client, file, 0, PAGE), page(0));
}

#[test]
fn appends_of_two_clients_follow_each_other() {
    let mut pair = Pair::alone();
    let (one, other) = (pair.client(), pair.client());
    let own = pair.create(one, IN_A, "log");
    let others = pair.open(other, own.ino);
    for (client, handle, text) in [(one, own, b"ab"), (other, others, b"cd"), (one, own, b"ef")] {
        pair.submit(client, write(handle, Position::End), text);
    }
    pair.drive();
    assert_eq!(pair.read(other, others, 0, 100), b"abcdef");
}

#[test]
fn a_write_of_a_part_of_a_page_reads_the_rest_of_it() {
    let (mut pair, client, file) = cold_file(2);
    pair.write(client, file, 1, b"xyz");
    assert_eq!(pair.trace(&["reads"]), ["A reads 1"], "the rest of the page");
    assert_eq!(pair.read(client, file, 0, 5), b"\0xyz\0");
    pair.trace(&[]);
    pair.write(client, file, PAGE, page(9));
    assert!(pair.trace(&["reads"]).is_empty(), "a whole page needs no read");
}

#[test]
fn bytes_that_a_truncation_cuts_off_come_back_as_zeros() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(7));
    for size in [10, PAGE as u64] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let truncate = Request::SetAttr { ino: file.ino, handle: Some(file), set };
        assert!(pair.call(client, truncate).is_ok());
    }
    let wanted = Bytes([vec![7; 10], vec![0; PAGE - 10]].concat());
    assert_eq!(pair.read(client, file, 0, PAGE), wanted);
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), wanted);
}

#[test]
fn a_sequential_reader_finds_the_next_pages_in_the_cache() {
    let (mut pair, client, file) = cold_file(100);
    assert_eq!(pair.read(client, file, 0, PAGE), page(0));
    assert_eq!(pages_read(&mut pair), 1 + 64);
    for at in 1..32 {
        assert_eq!(pair.read(client, file, usize::from(at) * PAGE, PAGE), page(at));
    }
    assert_eq!(pages_read(&mut pair), 0, "the pages were read ahead");
    assert_eq!(pair.read(client, file, 32 * PAGE, PAGE), page(32));
    assert_eq!(pages_read(&mut pair), 32, "the reader is in the middle of these pages");
}

#[test]
fn a_random_reader_causes_no_read_ahead() {
    let (mut pair, client, file) = cold_file(100);
    for at in [50, 20, 70] {
        assert_eq!(pair.read(client, file, usize::from(at) * PAGE, PAGE), page(at));
        assert_eq!(pair.trace(&["reads"]), ["A reads 1"]);
    }
}

#[test]
fn a_damaged_block_is_eio_and_harms_no_other_page() {
    let (mut pair, client, file) = cold_file(3);
    let block = pair.device.find(&page(1).0)[0];
    pair.device.damage(block);
    let look = |at: usize| read(file, Position::At((at * PAGE) as u64), PAGE);
    assert_eq!(pair.call(client, look(1)), Err(Errno::EIO));
    assert_eq!(pair.read(client, file, 0, PAGE), page(0));
    assert_eq!(pair.read(client, file, 2 * PAGE, PAGE), page(2));
}

#[test]
fn a_page_may_be_changed_while_it_is_being_written() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.device.hold(Kind::Data);
    let sync = pair.send(client, fsync(file));
    assert_eq!(pair.trace(&["data"]), ["A writes 20 data"]);
    pair.write(client, file, 0, page(2).repeat(20));
    assert!(!pair.is_answered(sync), "the write was answered, because it takes new frames");
    pair.release_io();
    assert_eq!(pair.answer(sync), Some(Ok(Reply::Done)));
    assert_eq!(pair.read(client, file, 0, PAGE), page(2));
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(20), "as it was at the fsync");
}

#[test]
fn a_cache_that_is_a_quarter_dirty_is_written_back() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    let quarter = FRAMES as usize / 4;
    pair.write(client, file, 0, page(1).repeat(quarter));
    assert!(pair.trace(&["data"]).is_empty());
    pair.write(client, file, quarter * PAGE, page(1));
    assert!(!pair.trace(&["data"]).is_empty());
    assert_eq!(pair.read(client, file, quarter * PAGE, PAGE), page(1));
}

#[test]
fn pages_whose_write_failed_stay_dirty() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.supervisor.grants = false;
    pair.device.fail(Kind::Data, Errno::EIO);
    let waiting = pair.send(client, fsync(file));
    assert!(!pair.is_answered(waiting));
    assert_eq!(pair.read(client, file, 0, PAGE), page(1), "the page is in the cache");
    // The failure has requested a checkpoint, which writes the pages to other blocks.
    pair.grant_checkpoints();
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(20));
}
