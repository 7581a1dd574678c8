//! Posts to a cell that reads them when the test lets it.

use warren_proto::stream::{RecordHeader, padded};
use warren_proto::{Handle, Position};

use super::fleet::{FakeCell, Record, shape};
use super::*;
use crate::posts::Posts;

const CELL: CellId = CellId(1);
const TIME: Timestamp = Timestamp(77);

fn write(at: u64) -> Request {
    let handle = Handle { ino: Ino(5), open: 6 };
    let position = Position::At(at);
    let (kill_privileges, write_back, direct) = (false, false, false);
    Request::Write { handle, position, kill_privileges, write_back, direct }
}

/// Posts a write at an offset that its bytes show, too.
fn post(posts: &mut Posts, n: u64, len: usize) -> bool {
    let capabilities = Capabilities::default();
    posts.publish((CELL, TIME), (&write(n), capabilities), len, |bytes| bytes.fill(n as u8))
}

/// Bytes of such a record.
fn record_len(n: u64, len: usize) -> usize {
    let mut body = Vec::new();
    write(n).encode_body(Capabilities::default(), &mut body);
    let (body_len, payload_len) = (body.len() as u32, len as u32);
    RecordHeader { body_len, payload_len, ..RecordHeader::default() }.record_len()
}

/// The cell executes the next record, which must be this one.
fn execute(cell: &FakeCell, n: u64, len: usize) {
    let (Record { header, request, payload, .. }, end) = cell.read_record().expect("a record");
    assert_eq!((header.time, request), (TIME, write(n)));
    assert_eq!(payload, vec![n as u8; len], "record {n}");
    cell.replies.store_outcome(end, None, n + 1);
}

fn ring() -> usize {
    shape().lanes().stream()
}

/// Posts until there is no room. Returns the number of the next record.
fn fill(posts: &mut Posts, from: u64, len: usize) -> u64 {
    (from..).find(|n| !post(posts, *n, len)).expect("the ring is finite")
}

#[test]
fn a_record_is_read_as_it_was_published() {
    let mut fleet = Fleet::new(2, &[0, 1]);
    let mut posts = fleet.connect().posts();
    let capabilities = Capabilities { inode: Capability(77), other: Capability(78) };
    let published = posts
        .publish((CELL, TIME), (&write(3), capabilities), 5, |to| to.copy_from_slice(b"bytes"));
    assert!(published && fleet.cells[0].read_record().is_none());
    let cell = &mut fleet.cells[1];
    let (record, end) = cell.read_record().expect("a record");
    assert_eq!((record.request, record.capabilities), (write(3), capabilities));
    assert_eq!((record.header.time, &*record.payload), (TIME, &b"bytes"[..]));
    assert!(!cell.was_woken(), "a post wakes no cell");
    cell.replies.store_outcome(end, Some(Errno::EAGAIN), 9);
    let outcome = posts.outcome(CELL).expect("a cell");
    assert_eq!((outcome.executed, outcome.errno, outcome.value), (end, Some(Errno::EAGAIN), 9));
    assert!(cell.read_record().is_none());
    assert_eq!(posts.outcome(CellId(2)), None);
}

#[test]
fn records_wait_for_room_and_wrap() {
    for len in [1000, 5000, shape().record_max() - record_len(0, 0)] {
        let mut fleet = Fleet::new(2, &[0, 1]);
        let mut posts = fleet.connect().posts();
        let cell = &mut fleet.cells[1];
        let (mut first, mut next) = (0, fill(&mut posts, 0, len));
        assert_eq!(next as usize, ring() / record_len(0, len), "{len} bytes");
        for round in 0..200 {
            for _ in 0..=round % (next - first) {
                execute(cell, first, len);
                first += 1;
            }
            next = fill(&mut posts, next, len);
            assert!(next - first <= (ring() / record_len(0, len)) as u64);
        }
        (first..next).for_each(|n| execute(cell, n, len));
        assert!(cell.read_record().is_none());
        assert!(next as usize * record_len(0, len) > 2 * ring(), "it has wrapped");
    }
}

#[test]
fn a_record_that_is_too_long_is_not_published() {
    let fleet = Fleet::new(2, &[0, 1]);
    let mut posts = fleet.connect().posts();
    let longest = shape().record_max() - record_len(0, 0);
    assert_eq!(padded(longest), longest);
    assert!(!post(&mut posts, 0, longest + 1));
    assert!(fleet.cells[1].read_record().is_none());
    assert!(post(&mut posts, 1, longest));
    execute(&fleet.cells[1], 1, longest);
}

#[test]
fn a_ring_that_is_half_full_wakes_the_cell_once() {
    let mut fleet = Fleet::new(2, &[0, 1]);
    let mut posts = fleet.connect().posts();
    let cell = &mut fleet.cells[1];
    let (len, mut n) = (1000, 0);
    for round in 0..5 {
        let first = n;
        let half = (ring() / 2 / record_len(0, len)) as u64;
        while n < first + half {
            assert!(post(&mut posts, n, len));
            n += 1;
        }
        assert!(!cell.was_woken(), "round {round}: half of the ring is free");
        assert!(post(&mut posts, n, len) && post(&mut posts, n + 1, len));
        n += 2;
        assert!(cell.was_woken(), "round {round}");
        n = fill(&mut posts, n, len);
        assert!(!cell.was_woken(), "round {round}: once");
        (first..n).for_each(|n| execute(cell, n, len));
        // The client finds that only when it needs room.
        assert!(post(&mut posts, n, len));
        execute(cell, n, len);
        n += 1;
    }
}

#[test]
fn a_cell_that_keeps_up_is_not_woken() {
    let fleet = Fleet::new(2, &[0, 1]);
    let mut posts = fleet.connect().posts();
    for n in 0..400 {
        assert!(post(&mut posts, n, 1000));
        execute(&fleet.cells[1], n, 1000);
    }
    assert!(!fleet.cells[1].was_woken());
}

#[test]
fn a_successor_of_the_client_continues_its_streams() {
    let mut fleet = Fleet::new(2, &[0, 1]);
    let mut posts = fleet.connect().posts();
    let mut next = fill(&mut posts, 0, 3000);
    drop(posts);
    let (mut first, cell) = (0, &mut fleet.cells[1]);
    for _ in 0..3 {
        execute(cell, first, 3000);
        first += 1;
    }
    cell.succeed();
    let mut posts = fleet.connect().posts();
    let outcome = posts.outcome(CELL).expect("a cell");
    assert_eq!((outcome.errno, outcome.value), (None, 3), "both sides have successors");
    next = fill(&mut posts, next, 3000);
    assert!(next >= first + (ring() / record_len(0, 3000)) as u64 - 1);
    let cell = &mut fleet.cells[1];
    (first..next).for_each(|n| execute(cell, n, 3000));
    assert!(cell.read_record().is_none());
}

/// A cell's segment is read-only to the client, but a cell may be broken.
#[test]
fn a_cell_that_claims_more_than_was_published_gets_nothing() {
    let fleet = Fleet::new(2, &[0, 1]);
    let mut posts = fleet.connect().posts();
    assert!(post(&mut posts, 0, 8));
    let (_, end) = fleet.cells[1].read_record().expect("a record");
    fill(&mut posts, 1, 1000);
    fleet.cells[1].replies.store_outcome(end.advance(4 * ring()), None, 0);
    assert!(!post(&mut posts, 2, 1000), "it is sent as a request");
}
