//! **Copies that share blocks** (`copy_file_range`). The blocks of the source become blocks of the
//! target too. A file that changes one of them gets another, as with every write. A block is free
//! when no file has it any more.
//!
//! The source must be durable in its places first: its old data would otherwise be nowhere if it is
//! changed again, and the write of the old data fails or is lost with the process.
//!
//! The code: `data/copy.rs`, `shard/sharing.rs`, `shard/extents.rs`.

use warren_base::{ClientId, Errno};
use warren_proto::{AccessMode, Answer, Handle, LeaseKey, RangeCopy, Reply, Request, SetAttr};

use crate::bytes::{PAGE, page};
use crate::client::{Call, fsync};
use crate::device::Kind;
use crate::pair::*;

fn copy(
    pair: &mut Pair,
    client: ClientId,
    (source, handle): (Handle, Handle),
    (from, to, length): (usize, usize, usize),
) -> Answer {
    let copy = RangeCopy { from: from as u64, to: to as u64, length: length as u64 };
    pair.call(client, Request::CopyRange { handle, source, copy, kill_privileges: false })
}

/// Copies the whole file.
fn copy_all(pair: &mut Pair, client: ClientId, source: Handle, target: Handle) {
    let size = pair.attr(client, source.ino).size;
    match copy(pair, client, (source, target), (0, 0, usize::MAX >> 1)) {
        Ok(Reply::Written { len, .. }) => assert_eq!(u64::from(len), size),
        other => panic!("{other:?}"),
    }
}

fn free(pair: &mut Pair, client: ClientId) -> u64 {
    match pair.call(client, Request::StatFs) {
        Ok(Reply::StatFs(stat)) => stat.blocks_free,
        other => panic!("{other:?}"),
    }
}

fn unlink(pair: &mut Pair, client: ClientId, handle: Handle, name: &str) {
    assert!(pair.call(client, Request::Close { handle }).is_ok());
    let name = warren_proto::FileName::new(name.as_bytes()).expect("a legal name");
    assert_eq!(pair.call(client, Request::Unlink { dir: IN_A, name }), Ok(Reply::Done));
}

#[test]
fn a_copy_takes_no_blocks_and_each_file_changes_alone() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let source = pair.file(client, IN_A, "source", page(1).repeat(100));
    let target = pair.create(client, IN_A, "target");
    pair.sync(client);
    let before = free(&mut pair, client);
    copy_all(&mut pair, client, source, target);
    pair.sync(client);
    assert!(free(&mut pair, client) + 8 >= before, "nodes of the tree at most");
    assert_eq!(pair.attr(client, target.ino).blocks, 100);
    pair.write(client, source, 3 * PAGE, page(2));
    pair.write(client, target, 5 * PAGE, page(3));
    pair.sync(client);
    let expected = page(1).repeat(3).then(page(2)).then(page(1).repeat(96));
    assert_eq!(pair.read(client, source, 0, 100 * PAGE), expected);
    let expected = page(1).repeat(5).then(page(3)).then(page(1).repeat(94));
    assert_eq!(pair.read(client, target, 0, 100 * PAGE), expected);
}

#[test]
fn a_copy_waits_until_a_front_has_dropped_the_pages_of_the_target() {
    let mut pair = Pair::alone();
    let (front, client) = (pair.front(), pair.client());
    let source = pair.file(client, IN_A, "source", page(1).repeat(2));
    let target = pair.file(client, IN_A, "target", page(2).repeat(2));
    pair.sync(client);
    let handle = pair.open(front, target.ino);
    assert_eq!(pair.read(front, handle, 0, 100), &[2; 100]);
    let listen = |pair: &mut Pair, acknowledged| {
        let request = Request::AwaitRecall { pages: true, acknowledged };
        let call = pair.submit_to(A, front, request, &[]);
        pair.drive();
        call
    };
    let pages = listen(&mut pair, 0);
    let range = RangeCopy { from: 0, to: 0, length: 2 * PAGE as u64 };
    let request =
        Request::CopyRange { handle: target, source, copy: range, kill_privileges: false };
    let copied = pair.send(client, request);
    let Some(Ok(Reply::Recall { number, keys, .. })) = pair.answer(pages) else {
        panic!("the pages of the target are not recalled");
    };
    assert_eq!(keys, [LeaseKey::Pages(target.ino)]);
    assert!(!pair.is_answered(copied));
    listen(&mut pair, number);
    assert!(pair.answer(copied).is_some_and(|answer| answer.is_ok()));
    assert_eq!(pair.read(front, handle, 0, 100), &[1; 100]);
}

fn listen(pair: &mut Pair, front: ClientId, acknowledged: u64) -> Call {
    let request = Request::AwaitRecall { pages: true, acknowledged };
    let call = pair.submit_to(A, front, request, &[]);
    pair.drive();
    call
}

/// Two fronts have pages of the target, and one of them copies: its kernel drops its own.
#[test]
fn a_copy_waits_for_all_other_fronts_and_not_for_its_own() {
    let mut pair = Pair::alone();
    let fronts = [(); 3].map(|()| pair.front());
    let client = pair.client();
    let source = pair.file(client, IN_A, "source", page(1).repeat(2));
    let target = pair.file(client, IN_A, "target", page(2).repeat(2));
    pair.sync(client);
    let handles = fronts.map(|front| pair.open(front, target.ino));
    for (front, handle) in fronts.into_iter().zip(handles) {
        assert_eq!(pair.read(front, handle, 0, 100), &[2; 100]);
    }
    let calls = fronts.map(|front| listen(&mut pair, front, 0));
    let range = RangeCopy { from: 0, to: 0, length: 2 * PAGE as u64 };
    let (source, handle) = (pair.open(fronts[0], source.ino), handles[0]);
    let request = Request::CopyRange { handle, source, copy: range, kill_privileges: false };
    let copied = pair.send(fronts[0], request);
    assert_eq!(pair.answer(calls[0]), None, "its own pages are not recalled");
    for at in [2, 1] {
        assert!(!pair.is_answered(copied), "front {at} may use old pages");
        let Some(Ok(Reply::Recall { number, keys, .. })) = pair.answer(calls[at]) else {
            panic!("the pages of front {at} are not recalled");
        };
        assert_eq!(keys, [LeaseKey::Pages(target.ino)]);
        listen(&mut pair, fronts[at], number);
    }
    assert!(pair.answer(copied).is_some_and(|answer| answer.is_ok()));
    for (front, handle) in fronts.into_iter().zip(handles) {
        assert_eq!(pair.read(front, handle, 0, 2 * PAGE), page(1).repeat(2));
    }
}

/// The kernel of another front has stored in pages of the source, and writes them back afterwards.
#[test]
fn what_a_front_writes_back_to_the_source_after_a_copy_is_not_in_the_target() {
    for is_synced in [false, true] {
        let mut pair = Pair::alone();
        let (front, client) = (pair.front(), pair.client());
        let source = pair.file(client, IN_A, "source", page(1).repeat(4));
        let target = pair.create(client, IN_A, "target");
        if is_synced {
            pair.sync(client);
        }
        let handle = pair.open(front, source.ino);
        assert_eq!(pair.read(front, handle, 0, 100), &[1; 100]);
        let listening = listen(&mut pair, front, 0);
        // Written before the copy, and in no place of the device yet.
        pair.write(front, handle, 3 * PAGE, page(5));
        let whole = (0, 0, 4 * PAGE);
        let copied = copy(&mut pair, client, (source, target), whole);
        assert!(matches!(copied, Ok(Reply::Written { .. })), "{copied:?}");
        assert!(!pair.is_answered(listening), "the source is only read");
        pair.write(front, handle, PAGE, page(3));
        let copy = page(1).repeat(3).then(page(5));
        let changed = page(1).then(page(3)).then(page(1)).then(page(5));
        assert_eq!(pair.read(client, target, 0, 4 * PAGE), copy);
        assert_eq!(pair.read(client, source, 0, 4 * PAGE), changed);
        pair.fsync(client, target);
        pair.sync(client);
        pair.replace(A);
        pair.cut_power();
        let client = pair.client();
        assert_eq!(pair.content(client, IN_A, "target"), copy);
        assert_eq!(pair.content(client, IN_A, "source"), changed);
    }
}

/// The target has all of the source or nothing, and the answer says which.
#[test]
fn a_copy_is_whole_wherever_its_cell_dies() {
    let mut deaths = 0;
    for step in 0.. {
        let mut pair = Pair::alone();
        let (other, client) = (pair.client(), pair.client());
        let source = pair.file(client, IN_A, "source", page(1).repeat(30));
        pair.fsync(client, source);
        let target = pair.file(client, IN_A, "target", page(2).repeat(30));
        pair.write(client, source, 0, page(3).repeat(20));
        let handle = pair.open(other, source.ino);
        pair.io_takes = std::time::Duration::from_micros(10);
        let range = RangeCopy { from: 0, to: 0, length: 30 * PAGE as u64 };
        let request =
            Request::CopyRange { handle: target, source, copy: range, kill_privileges: false };
        let copied = pair.submit(client, request, &[]);
        let events = std::cell::Cell::new(0);
        pair.drive_until(|_| events.replace(events.get() + 1) == step);
        let was_answered = pair.is_answered(copied);
        pair.replace(A);
        deaths += usize::from(!was_answered);
        let answer = pair.answer(copied).expect("its successor executes the copy");
        let wanted = match answer {
            Ok(Reply::Written { .. }) => page(3).repeat(20).then(page(1).repeat(10)),
            // The successor waits for a checkpoint, so the client copies the data itself.
            Err(Errno::EXDEV) => page(2).repeat(30),
            other => panic!("step {step}: {other:?}"),
        };
        assert_eq!(pair.read(client, target, 0, 30 * PAGE), wanted, "step {step}");
        pair.write(other, handle, 0, page(4));
        pair.sync(client);
        pair.cut_power();
        let client = pair.client();
        assert_eq!(pair.content(client, IN_A, "target"), wanted, "step {step}");
        if was_answered {
            break;
        }
    }
    assert!(deaths > 2, "{deaths}");
}

#[test]
fn a_block_is_free_when_its_last_file_is_gone() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.sync(client);
    let before = free(&mut pair, client);
    let source = pair.file(client, IN_A, "source", page(1).repeat(64));
    let target = pair.create(client, IN_A, "target");
    copy_all(&mut pair, client, source, target);
    unlink(&mut pair, client, source, "source");
    pair.sync(client);
    assert!(free(&mut pair, client) + 64 <= before);
    assert_eq!(pair.read(client, target, 0, 64 * PAGE), page(1).repeat(64));
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    assert!(pair.call(client, Request::SetAttr { ino: target.ino, handle: None, set }).is_ok());
    pair.sync(client);
    assert!(free(&mut pair, client) + 8 >= before);
}

#[test]
fn what_is_shared_is_there_after_a_power_failure_and_with_a_successor() {
    for power in [true, false] {
        let mut pair = Pair::alone();
        let client = pair.client();
        let source = pair.file(client, IN_A, "source", page(1).repeat(20));
        let target = pair.file(client, IN_A, "target", page(2).repeat(30));
        copy_all(&mut pair, client, source, target);
        pair.write(client, source, 0, page(3).repeat(20));
        let client = if power {
            pair.fsync(client, target);
            pair.cut_power();
            pair.client()
        } else {
            pair.kill(A);
            pair.replace(A);
            client
        };
        let target = if power { pair.open(client, target.ino) } else { target };
        let expected = page(1).repeat(20).then(page(2).repeat(10));
        assert_eq!(pair.read(client, target, 0, 30 * PAGE), expected);
        pair.sync(client);
        assert_eq!(pair.read(client, target, 0, 30 * PAGE), expected);
        assert_eq!(pair.attr(client, target.ino).blocks, 30);
    }
}

#[test]
fn a_process_may_die_before_the_table_of_frames_names_no_page_of_the_target() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let source = pair.file(client, IN_A, "source", page(1).repeat(4));
    pair.fsync(client, source);
    let target = pair.file(client, IN_A, "target", page(2).repeat(6));
    // The source has its place before, so that the copy makes one record.
    let another = pair.create(client, IN_A, "another");
    copy_all(&mut pair, client, source, another);
    let table = pair.member(A).machine.table(FRAMES).to_vec();
    let copied = copy(&mut pair, client, (source, target), (0, PAGE, 4 * PAGE));
    assert!(matches!(copied, Ok(Reply::Written { .. })), "{copied:?}");
    pair.kill(A);
    pair.member(A).machine.table(FRAMES).clone_from_slice(&table);
    pair.replace(A);
    let expected = page(2).then(page(1).repeat(4)).then(page(2));
    assert_eq!(pair.read(client, target, 0, 6 * PAGE), expected);
}

#[test]
fn a_shared_block_is_not_promised_to_a_full_pool() {
    let mut pair = Pair::with(Setup { cells: 1, free_chunks: 4, ..Setup::default() });
    let client = pair.client();
    let source = pair.file(client, IN_A, "source", page(1).repeat(40));
    let target = pair.create(client, IN_A, "target");
    copy_all(&mut pair, client, source, target);
    let mut refused = 0;
    for at in 0..40 {
        let call = pair.send_write(client, target, at * PAGE, page(2));
        match pair.answer(call).expect("the write is answered") {
            Ok(_) => {}
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                refused += 1;
            }
        }
    }
    assert!(refused < 40, "there was some space");
    pair.sync(client);
    assert_eq!(pair.read(client, source, 0, 40 * PAGE), page(1).repeat(40));
    unlink(&mut pair, client, source, "source");
    pair.sync(client);
    // What only one file has can be written again.
    for at in 0..40 {
        pair.write(client, target, at * PAGE, page(3));
    }
    assert_eq!(pair.read(client, target, 0, 40 * PAGE), page(3).repeat(40));
}

#[test]
fn only_whole_blocks_of_files_that_the_client_may_copy_are_shared() {
    let mut pair = Pair::new();
    let client = pair.client();
    let source = pair.file(client, IN_A, "source", page(1).repeat(3));
    let target = pair.file(client, IN_A, "target", page(2).repeat(3));
    let files = (source, target);
    for (from, to, length) in [(1, 0, PAGE), (0, 1, PAGE), (0, 0, PAGE - 1)] {
        let refused = copy(&mut pair, client, files, (from, to, length));
        assert_eq!(refused, Err(Errno::EXDEV));
    }
    let size = 3 * PAGE as u64;
    let partly = copy(&mut pair, client, files, (0, 0, 2 * PAGE - 1));
    assert_eq!(partly, Ok(Reply::Written { len: PAGE as u32, size }));
    let nothing = copy(&mut pair, client, files, (3 * PAGE, 0, PAGE));
    assert_eq!(nothing, Ok(Reply::Written { len: 0, size }));
    let far = pair.file(client, IN_B, "far", page(3));
    assert_eq!(copy(&mut pair, client, (far, target), (0, 0, PAGE)), Err(Errno::EXDEV));
    assert_eq!(copy(&mut pair, client, (source, source), (0, PAGE, 2 * PAGE)), Err(Errno::EINVAL));
    let within = copy(&mut pair, client, (target, target), (0, 2 * PAGE, PAGE));
    assert_eq!(within, Ok(Reply::Written { len: PAGE as u32, size }));
    let reader = pair.open_as(client, target.ino, AccessMode::READ);
    let writer = pair.open_as(client, source.ino, AccessMode::WRITE);
    for files in [(source, reader), (writer, target)] {
        assert_eq!(copy(&mut pair, client, files, (0, 0, PAGE)), Err(Errno::EBADF));
    }
    let other = pair.client();
    assert_eq!(copy(&mut pair, other, files, (0, 0, PAGE)), Err(Errno::EBADF));
    let beyond = copy(&mut pair, client, files, (0, 1 << 62, usize::MAX >> 1));
    assert_eq!(beyond, Ok(Reply::Written { len: size as u32, size: (1 << 62) + size }));
}

#[test]
fn a_copy_revokes_the_lease_on_the_attributes_of_the_target() {
    let mut pair = Pair::alone();
    let (client, other) = (pair.client(), pair.client());
    let source = pair.file(client, IN_A, "source", page(1).repeat(4));
    let target = pair.create(client, IN_A, "target");
    let (attr, lease) = pair.attr_with_lease(other, target.ino);
    let lease = lease.expect("a lease");
    assert!(attr.size == 0 && pair.is_valid(A, other, lease));
    copy_all(&mut pair, client, source, target);
    assert!(!pair.is_valid(A, other, lease), "the size is another");
}

/// The pages of the source are written, and the flush behind them fails later.
#[test]
fn a_copy_waits_until_the_written_pages_of_the_source_are_flushed() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let source = pair.file(client, IN_A, "source", page(1).repeat(20));
    let target = pair.create(client, IN_A, "target");
    pair.supervisor.grants = false;
    pair.device.hold(Kind::Flush);
    pair.send(client, fsync(source));
    let length = 20 * PAGE as u64;
    let range = RangeCopy { from: 0, to: 0, length };
    let request =
        Request::CopyRange { handle: target, source, copy: range, kill_privileges: false };
    let copied = pair.send(client, request);
    assert!(!pair.is_answered(copied), "the blocks may be lost");
    pair.write(client, source, 0, page(2).repeat(20));
    pair.device.fail(Kind::Flush, Errno::EIO);
    pair.release_io();
    pair.grant_checkpoints();
    let copied = pair.answer(copied).expect("answered");
    pair.sync(client);
    pair.cut_power();
    let client = pair.client();
    let content = pair.content(client, IN_A, "target");
    match copied {
        Ok(_) => assert!([1, 2].map(|byte| page(byte).repeat(20)).contains(&content)),
        Err(_) => assert!(content.0.is_empty(), "{copied:?}"),
    }
}

#[test]
fn a_copy_over_a_few_dirty_pages_leaves_the_right_number_of_blocks() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let source = pair.file(client, IN_A, "source", page(1).repeat(2));
    let target = pair.file(client, IN_A, "target", page(2).repeat(3));
    copy_all(&mut pair, client, source, target);
    assert_eq!(pair.attr(client, target.ino).blocks, 3);
    pair.sync(client);
    assert_eq!(pair.attr(client, target.ino).blocks, 3);
}

#[test]
fn what_is_written_over_a_copied_range_is_there_with_a_successor() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let source = pair.file(client, IN_A, "source", page(1).repeat(4));
    let target = pair.create(client, IN_A, "target");
    pair.fsync(client, source);
    pair.supervisor.grants = false;
    copy_all(&mut pair, client, source, target);
    pair.write(client, target, PAGE, page(3));
    pair.replace(A);
    let expected = page(1).then(page(3)).then(page(1).repeat(2));
    assert_eq!(pair.read(client, target, 0, 4 * PAGE), expected);
}
