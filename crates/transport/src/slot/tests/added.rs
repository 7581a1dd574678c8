//! Writes that are added to the last record of a stream.

use std::cell::RefCell;

use warren_proto::stream::RecordHeader;
use warren_proto::{Handle, Position};

use super::fleet::{FakeCell, Record};
use super::*;
use crate::posts::{Added, Posts};

const CELL: CellId = CellId(0);
const TIMES: [Timestamp; 2] = [Timestamp(7), Timestamp(8)];

fn write(at: u64) -> Request {
    let (handle, position) = (Handle { ino: Ino(5), open: 6 }, Position::At(at));
    let (kill_privileges, write_back, direct) = (false, false, false);
    Request::Write { handle, position, kill_privileges, write_back, direct }
}

fn publish(posts: &mut Posts, at: u64, bytes: &[u8]) {
    publish_contained(posts, at, bytes, 0);
}

fn publish_contained(posts: &mut Posts, at: u64, bytes: &[u8], contained: u32) {
    let named = (&write(at), Capabilities::default());
    let place = (CELL, TIMES[0], None, contained);
    let is_published =
        posts.publish_record(place, named, bytes.len(), |to| to.copy_from_slice(bytes));
    assert!(is_published);
}

/// Adds a write while something else happens.
fn add(posts: &mut Posts, at: u64, bytes: &[u8], meanwhile: impl Fn()) -> Option<Added> {
    posts.add_to_last((CELL, TIMES[1]), &write(at), bytes.len(), |to| {
        meanwhile();
        to.copy_from_slice(bytes);
    })
}

fn is_added(posts: &mut Posts, at: u64, bytes: &[u8]) -> bool {
    matches!(add(posts, at, bytes, || ()), Some(Added::Seen { .. }))
}

/// Executes the next record. Returns its offset and bytes, or nothing if it was contained.
fn execute(cell: &FakeCell) -> Option<(u64, RecordHeader, Vec<u8>)> {
    let (Record { header, request, payload, .. }, end) = cell.read_record().expect("a record");
    let is_contained = cell.replies.take_record((cell.replies.executed(), end), &header);
    cell.replies.store_outcome(end, None, 0);
    match request {
        Request::Write { position: Position::At(at), .. } => {
            (!is_contained).then_some((at, header, payload))
        }
        request => panic!("{request:?}"),
    }
}

#[test]
fn writes_behind_or_over_the_last_one_need_no_record() {
    let fleet = Fleet::new(1, &[0]);
    let mut posts = fleet.connect().posts();
    publish(&mut posts, 0, &[1; 100]);
    assert!(!is_added(&mut posts, 100, &[2; 100]), "without spare room");
    publish(&mut posts, 100, &[2; 100]);
    assert!(is_added(&mut posts, 200, &[3; 100]));
    assert!(!is_added(&mut posts, 299, &[4; 100]), "neither behind it nor over it");
    assert!(is_added(&mut posts, 300, &[4; 33]));
    assert!(!is_added(&mut posts, 333, &[5; 1000]), "more than it has room for");
    let cell = &fleet.cells[0];
    assert_eq!(execute(cell).map(|(at, _, bytes)| (at, bytes)), Some((0, vec![1; 100])));
    let (at, header, bytes) = execute(cell).expect("another one");
    assert_eq!((at, header.time), (100, TIMES[1]));
    assert_eq!(bytes, [&[2; 100][..], &[3; 100], &[4; 33]].concat());
    assert!(cell.read_record().is_none());
    // Over the last one.
    let mut posts = posts;
    publish(&mut posts, 50, &[6; 80]);
    publish(&mut posts, 50, &[7; 80]);
    for n in 8..12 {
        assert!(is_added(&mut posts, 50, &[n; 80]));
    }
    assert!(!is_added(&mut posts, 50, &[1; 79]), "it does not cover the last one");
    assert_eq!(execute(cell).map(|(at, _, bytes)| (at, bytes)), Some((50, vec![6; 80])));
    assert_eq!(execute(cell).map(|(at, _, bytes)| (at, bytes)), Some((50, vec![11; 80])));
    assert!(cell.read_record().is_none());
}

#[test]
fn nothing_is_added_to_a_record_that_the_cell_reads() {
    let fleet = Fleet::new(1, &[0]);
    let mut posts = fleet.connect().posts();
    publish(&mut posts, 0, &[1; 8]);
    publish(&mut posts, 8, &[2; 8]);
    fleet.cells[0].fix_records();
    assert!(add(&mut posts, 16, &[3; 8], || ()).is_none());
    publish(&mut posts, 16, &[3; 8]);
    assert!(is_added(&mut posts, 24, &[4; 8]));
}

/// The cell looks at the stream in the middle of the change, and reads the record before or after
/// that.
#[test]
fn a_write_that_is_added_too_late_is_executed_once() {
    for reads_before in [false, true] {
        let fleet = Fleet::new(1, &[0]);
        let mut posts = fleet.connect().posts();
        publish(&mut posts, 0, &[1; 8]);
        publish(&mut posts, 8, &[2; 8]);
        let (cell, mut found) = (&fleet.cells[0], RefCell::new(Vec::new()));
        let look = || {
            cell.fix_records();
            if reads_before {
                found.borrow_mut().extend([execute(cell), execute(cell)]);
            }
        };
        let added = add(&mut posts, 16, &[3; 8], look);
        let Some(Added::Late { contained }) = added else { panic!("it is not late") };
        publish_contained(&mut posts, 16, &[3; 8], contained);
        assert!(add(&mut posts, 24, &[4; 8], || ()).is_none(), "it may be contained itself");
        publish(&mut posts, 24, &[4; 8]);
        let found = found.get_mut();
        while found.len() < 4 {
            found.push(execute(cell));
        }
        assert!(cell.read_record().is_none());
        assert_eq!(found[2].is_none(), !reads_before, "contained");
        let all: Vec<u8> = found.iter().flatten().flat_map(|(_, _, bytes)| bytes.clone()).collect();
        assert_eq!(all, [[1; 8], [2; 8], [3; 8], [4; 8]].concat());
    }
}
