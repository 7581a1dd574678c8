//! **Allocation of ranges** (`fallocate`). A block of a file is in a hole, unwritten or placed. The
//! shard owes an unwritten block a place, so that it can be written when the pool is full. Blocks
//! that are placed can always be written again, because the old ones are free after the next
//! checkpoint.
//!
//! A change of a range is one record of the log, and the record before it names the data of the
//! file. So a power failure finds the file as it was before the change, or as after it.
//!
//! The code: `data/fallocate.rs`, `data/find.rs`, `cache/range.rs`, `shard/extents.rs`.

use warren_base::{ClientId, Errno};
use warren_proto::{
    Answer, Handle, Position, RangeChange, RangeKind, ReadFlags, Reply, Request, SetAttr,
};

use crate::bytes::{PAGE, page};
use crate::pair::*;

fn change(kind: RangeKind, pages: std::ops::Range<usize>) -> RangeChange {
    let (offset, length) = ((pages.start * PAGE) as u64, (pages.len() * PAGE) as u64);
    RangeChange { kind, keep_size: kind == RangeKind::PunchHole, offset, length }
}

fn fallocate(pair: &mut Pair, client: ClientId, handle: Handle, change: RangeChange) -> Answer {
    pair.call(client, Request::Fallocate { handle, change, kill_privileges: false })
}

fn change_range(
    pair: &mut Pair,
    client: ClientId,
    handle: Handle,
    kind: RangeKind,
    pages: std::ops::Range<usize>,
) {
    let done = fallocate(pair, client, handle, change(kind, pages));
    assert_eq!(done, Ok(Reply::Done));
}

/// The page at which data begin, from this one on, and the one at which they end.
fn data(pair: &mut Pair, client: ClientId, handle: Handle, from: usize) -> Option<(usize, usize)> {
    let mut find = |from: u64, hole| {
        let request = Request::FindData { handle, offset: from, hole };
        match pair.call(client, request) {
            Ok(Reply::Offset(at)) => Some(at),
            Err(Errno::ENXIO) => None,
            other => panic!("{other:?}"),
        }
    };
    let start = find((from * PAGE) as u64, false)?;
    let end = find(start, true).expect("data end");
    Some((start as usize / PAGE, end as usize / PAGE))
}

fn blocks(pair: &mut Pair, client: ClientId, file: Handle) -> u64 {
    pair.attr(client, file.ino).blocks
}

fn write(pair: &mut Pair, client: ClientId, file: Handle, at: usize, byte: u8) -> Answer {
    let call = pair.send_write(client, file, at * PAGE, page(byte).repeat(3));
    pair.answer(call).expect("the write is answered")
}

/// Writes small files until there is no space.
fn fill(pair: &mut Pair, client: ClientId) {
    for number in 0.. {
        let file = match pair.call(client, crate::client::create(IN_A, &format!("fill{number}"))) {
            Ok(Reply::Created { opened: Some(opened), .. }) => opened.handle,
            other => return assert_eq!(other, Err(Errno::ENOSPC)),
        };
        for at in (0..40).step_by(3) {
            if let Err(errno) = write(pair, client, file, at, 9) {
                assert_eq!(errno, Errno::ENOSPC);
                return;
            }
        }
    }
}

#[test]
fn a_hole_reads_as_zeros_and_its_blocks_are_free() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.sync(client);
    change_range(&mut pair, client, file, RangeKind::PunchHole, 2..12);
    assert_eq!((blocks(&mut pair, client, file), pair.attr(client, file.ino).size), (10, 81_920));
    let read = pair.read(client, file, PAGE, 3 * PAGE);
    assert_eq!(read, page(1).then(page(0).repeat(2)));
    assert_eq!(data(&mut pair, client, file, 0), Some((0, 2)));
    assert_eq!(data(&mut pair, client, file, 2), Some((12, 20)));
    pair.sync(client);
    let last = pair.file(client, IN_A, "last", page(4).repeat(200));
    pair.fsync(client, last);
    assert!(pair.device.find(&page(1).0).len() < 20, "the checkpoint has freed them");
}

#[test]
fn a_range_that_cuts_pages_changes_only_its_bytes() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(3));
    let (kind, keep_size) = (RangeKind::Zero, true);
    let change = RangeChange { kind, keep_size, offset: 10, length: (2 * PAGE) as u64 };
    for is_cold in [false, true] {
        if is_cold {
            pair.write(client, file, 0, page(1).repeat(3));
            pair.sync(client);
        }
        assert_eq!(fallocate(&mut pair, client, file, change), Ok(Reply::Done));
        let mut expected = page(1).repeat(3);
        expected.0[10..2 * PAGE + 10].fill(0);
        assert_eq!(pair.read(client, file, 0, 3 * PAGE), expected);
        assert_eq!(blocks(&mut pair, client, file), 3);
    }
}

#[test]
fn allocated_blocks_are_no_data_and_count_as_used() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let free = |pair: &mut Pair| match pair.call(client, Request::StatFs) {
        Ok(Reply::StatFs(stat)) => stat.blocks_free,
        other => panic!("{other:?}"),
    };
    let file = pair.create(client, IN_A, "file");
    let before = free(&mut pair);
    change_range(&mut pair, client, file, RangeKind::Allocate, 0..100);
    assert_eq!((blocks(&mut pair, client, file), data(&mut pair, client, file, 0)), (100, None));
    assert!(free(&mut pair) <= before - 100);
    pair.write(client, file, 50 * PAGE, page(1));
    assert_eq!(blocks(&mut pair, client, file), 100);
    assert_eq!(data(&mut pair, client, file, 0), Some((50, 51)));
    pair.sync(client);
    assert_eq!(data(&mut pair, client, file, 0), Some((50, 51)));
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    let cut = Request::SetAttr { ino: file.ino, handle: Some(file), set };
    assert!(pair.call(client, cut).is_ok());
    pair.sync(client);
    assert_eq!(blocks(&mut pair, client, file), 0);
    assert!(free(&mut pair) >= before - 1);
}

#[test]
fn allocated_blocks_can_be_written_and_written_again_in_a_full_pool() {
    for written_before in [false, true] {
        let mut pair = Pair::with(Setup { cells: 1, free_chunks: 10, ..Setup::default() });
        let client = pair.client();
        let file = pair.create(client, IN_A, "file");
        change_range(&mut pair, client, file, RangeKind::Allocate, 0..180);
        if written_before {
            (0..180).step_by(3).for_each(|at| drop(write(&mut pair, client, file, at, 1)));
        }
        fill(&mut pair, client);
        assert_eq!(write(&mut pair, client, file, 200, 1), Err(Errno::ENOSPC));
        let other = pair.open(client, file.ino);
        for round in 2..5 {
            // Every second page first, so that the extents are as many as they can be.
            for at in (0..180).step_by(2).chain((1..180).step_by(2)) {
                let call = pair.send_write(client, other, at * PAGE, page(round));
                let answer = pair.answer(call).expect("the write is answered");
                assert!(answer.is_ok(), "round {round}, page {at}: {answer:?}");
            }
            pair.sync(client);
        }
        assert_eq!(pair.read(client, file, 0, 30 * PAGE), page(4).repeat(30));
    }
}

#[test]
fn many_writes_to_allocated_blocks_wait_for_as_many_checkpoints_as_they_need() {
    let mut pair = Pair::with(Setup { cells: 1, free_chunks: 6, ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    change_range(&mut pair, client, file, RangeKind::Allocate, 0..90);
    fill(&mut pair, client);
    for round in 1..4 {
        let mut send = |at: usize| {
            let request = crate::client::write(file, Position::At((at * PAGE) as u64));
            pair.submit(client, request, page(round).repeat(3).as_ref())
        };
        let calls: Vec<_> = (0..90).step_by(3).map(&mut send).collect();
        pair.drive();
        for call in calls {
            assert!(matches!(pair.answer(call), Some(Ok(_))), "{:?}", pair.answer(call));
        }
    }
}

#[test]
fn more_than_the_pool_has_is_refused_at_once_and_nothing_is_allocated() {
    let mut pair = Pair::with(Setup { cells: 1, free_chunks: 3, ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    for pages in [400, 1 << 40] {
        let refused = fallocate(&mut pair, client, file, change(RangeKind::Allocate, 0..pages));
        assert_eq!(refused, Err(Errno::ENOSPC));
    }
    assert_eq!((blocks(&mut pair, client, file), pair.attr(client, file.ino).size), (0, 0));
    change_range(&mut pair, client, file, RangeKind::Allocate, 0..50);
    // What is allocated needs no more, again and again.
    for _ in 0..5 {
        change_range(&mut pair, client, file, RangeKind::Zero, 0..50);
    }
}

#[test]
fn a_range_is_there_after_a_power_failure_with_all_that_was_written_before() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    change_range(&mut pair, client, file, RangeKind::PunchHole, 3..6);
    change_range(&mut pair, client, file, RangeKind::Allocate, 25..40);
    pair.write(client, file, 30 * PAGE, page(2));
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    let handle = pair.open(client, file.ino);
    assert_eq!(pair.read(client, handle, 2 * PAGE, 2 * PAGE), page(1).then(page(0)));
    assert_eq!(pair.read(client, handle, 30 * PAGE, PAGE), page(2));
    assert_eq!(blocks(&mut pair, client, handle), 17 + 15);
    assert_eq!(data(&mut pair, client, handle, 20), Some((30, 31)));
    assert_eq!(pair.attr(client, file.ino).size, 40 * PAGE as u64);
}

#[test]
fn a_successor_does_not_take_pages_from_a_hole() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    change_range(&mut pair, client, file, RangeKind::PunchHole, 3..6);
    change_range(&mut pair, client, file, RangeKind::Allocate, 4..5);
    pair.kill(A);
    pair.replace(A);
    assert_eq!(pair.read(client, file, 2 * PAGE, 4 * PAGE), page(1).then(page(0).repeat(3)));
    assert_eq!(blocks(&mut pair, client, file), 18);
    assert_eq!(data(&mut pair, client, file, 0), Some((0, 3)));
}

#[test]
fn a_process_may_die_before_the_table_of_frames_names_no_page_of_the_hole() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(6));
    let table = pair.member(A).machine.table(FRAMES).to_vec();
    change_range(&mut pair, client, file, RangeKind::PunchHole, 2..4);
    pair.kill(A);
    assert!(pair.member(A).machine.table(FRAMES) != table, "two entries are cleared");
    pair.member(A).machine.table(FRAMES).clone_from_slice(&table);
    pair.replace(A);
    let expected = page(1).repeat(2).then(page(0).repeat(2)).then(page(1).repeat(2));
    assert_eq!(pair.read(client, file, 0, 6 * PAGE), expected);
    // The pages that are written afterwards count.
    pair.write(client, file, 2 * PAGE, page(5));
    pair.kill(A);
    pair.replace(A);
    assert_eq!(pair.read(client, file, 2 * PAGE, 2 * PAGE), page(5).then(page(0)));
}

#[test]
fn illegal_ranges_are_refused() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    let reader = pair.open_as(client, file.ino, warren_proto::AccessMode::READ);
    let of = |offset, length| {
        let (kind, keep_size) = (RangeKind::Allocate, true);
        RangeChange { kind, keep_size, offset, length }
    };
    let max = i64::MAX as u64;
    assert_eq!(fallocate(&mut pair, client, file, of(0, 0)), Err(Errno::EINVAL));
    assert_eq!(fallocate(&mut pair, client, file, of(max, 1)), Err(Errno::EFBIG));
    assert_eq!(fallocate(&mut pair, client, file, of(u64::MAX, 2)), Err(Errno::EFBIG));
    assert_eq!(fallocate(&mut pair, client, reader, of(0, 1)), Err(Errno::EBADF));
    let find = Request::FindData { handle: file, offset: 0, hole: true };
    assert_eq!(pair.call(client, find), Err(Errno::ENXIO));
    let at_the_end = Request::Read {
        handle: file,
        position: Position::At(0),
        len: 1,
        flags: ReadFlags::empty(),
    };
    assert_eq!(pair.call(client, at_the_end), Ok(Reply::Read { len: 0 }));
}
