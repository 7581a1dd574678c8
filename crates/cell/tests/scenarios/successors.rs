//! **Successors.** A process that dies leaves its frames: pages that are not durable, the image of
//! its log, and a table that names the page in each frame. A successor replays the whole image,
//! takes over these pages, and executes the requests that it finds in the slots. No acknowledged
//! change is lost, and no request is executed twice.
//!
//! ```text
//! other cells   Lost -> LossHandled   Joined -> Again, AllSaid -->
//! successor                     replay -> Again, AllSaid --> all received: Ready, reads all slots
//! ```
//!
//! A request whose record is in the log is answered from there, because its reply may not have been
//! sent. Nothing is committed before a checkpoint: the log may name data that no flush has covered.
//!
//! The code: `recovery/replay.rs`, `recovery/frames.rs`, `frames/table.rs`, `core/peers.rs`.

use warren_base::{ClientId, Errno};
use warren_cell::Effect;
use warren_proto::control::Report;
use warren_proto::{
    AccessMode, ByteRange, CreateFlags, Handle, LockFlavour, LockOwner, LockSpec, LockType,
    NewInode, Position, Reply, Request, SetAttr,
};

use crate::bytes::{PAGE, page};
use crate::client::{Call, create, fsync, read, rename, write};
use crate::device::Kind;
use crate::image::name;
use crate::pair::*;

fn exclusive(wait: bool, handle: Handle) -> Request {
    let (flavour, owner, lock) = (LockFlavour::Flock, LockOwner(1), LockType::Exclusive);
    let spec = LockSpec { flavour, owner, lock, range: ByteRange::ALL, pid: 1 };
    Request::Lock { handle, spec, wait }
}

fn mkfile(text: &str) -> Request {
    let (flags, access) = (CreateFlags::EXCLUSIVE, AccessMode::empty());
    Request::Create { dir: IN_A, name: name(text), new: NewInode::regular(0o644), flags, access }
}

fn dies_before_the_reply(pair: &mut Pair, request: Request, bytes: &[u8]) -> Call {
    let client = *pair.clients.keys().next().expect("a client");
    pair.die_before(A, |effect| matches!(effect, Effect::Reply { .. }));
    let call = pair.submit(client, request, bytes);
    pair.drive();
    assert!(pair.is_dead(A) && !pair.is_answered(call));
    call
}

#[test]
fn a_successor_takes_over_dirty_pages() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(3));
    pair.sync(client);
    pair.write(client, file, PAGE, page(2));
    pair.replace(A);
    let wanted = page(1).then(page(2)).then(page(1));
    assert_eq!(pair.read(client, file, 0, 3 * PAGE), wanted);
    pair.sync(client);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), wanted, "the pages were still dirty");
}

/// A process writes these pages to the device, and dies before anything flushes them.
fn dies_before_a_flush(pair: &mut Pair, pages: usize) -> (ClientId, Handle) {
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(5).repeat(pages));
    pair.die_before(A, |effect| matches!(effect, Effect::Report(Report::Written { .. })));
    pair.send(client, Request::Sync);
    assert!(pair.is_dead(A) && !pair.trace(&["data"]).is_empty());
    pair.supervisor.grants = false;
    pair.lose(A);
    (client, file)
}

#[test]
fn a_flush_that_fails_after_the_writers_death_loses_no_page() {
    for is_before in [true, false] {
        let mut pair = Pair::alone();
        let (client, file) = dies_before_a_flush(&mut pair, 20);
        pair.device.fail(Kind::Flush, Errno::EIO);
        if !is_before {
            pair.start_successor(A);
        }
        pair.device.flush().expect_err("the flush of another process");
        if is_before {
            pair.start_successor(A);
        }
        assert_eq!(pair.read(client, file, 0, 20 * PAGE), page(5).repeat(20));
    }
}

#[test]
fn a_process_that_dies_after_a_failed_flush_loses_no_page() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(5).repeat(20));
    // That of the supervisor. The cell has not flushed since.
    pair.device.fail(Kind::Flush, Errno::EIO);
    assert_eq!(pair.call(client, Request::Sync), Err(Errno::EIO));
    pair.replace(A);
    assert_eq!(pair.read(client, file, 0, 20 * PAGE), page(5).repeat(20));
}

#[test]
fn a_successor_writes_no_page_again_that_a_checkpoint_or_a_flush_has_made_durable() {
    for ends_with in [|pair: &mut Pair, client, _| pair.sync(client), Pair::fsync] {
        let mut pair = Pair::alone();
        let client = pair.client();
        let file = pair.file(client, IN_A, "file", page(5).repeat(20));
        ends_with(&mut pair, client, file);
        pair.supervisor.grants = false;
        pair.trace(&[]);
        pair.replace(A);
        assert!(pair.trace(&["data"]).is_empty());
        assert_eq!(pair.read(client, file, 0, 20 * PAGE), page(5).repeat(20));
    }
}

#[test]
fn pages_that_were_cut_off_before_a_flush_do_not_come_back() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(5).repeat(20));
    pair.device.hold(Kind::Flush);
    let call = pair.send(client, fsync(file));
    assert!(!pair.trace(&["data"]).is_empty() && !pair.is_answered(call));
    for size in [0, 20 * PAGE as u64] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let truncate = Request::SetAttr { ino: file.ino, handle: Some(file), set };
        assert!(pair.call(client, truncate).is_ok());
    }
    pair.replace(A);
    assert_eq!(pair.read(client, file, 0, 20 * PAGE), page(0).repeat(20));
}

#[test]
fn a_request_whose_reply_was_not_sent_is_answered_from_the_log() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let call = dies_before_the_reply(&mut pair, mkfile("file"), &[]);
    pair.replace(A);
    let answer = pair.answer(call);
    assert!(matches!(answer, Some(Ok(Reply::Created { .. }))), "not EEXIST, but {answer:?}");
    assert_eq!(pair.list(client, IN_A), ["file"]);
}

#[test]
fn an_append_whose_reply_was_not_sent_is_executed_once() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"one ");
    let call = dies_before_the_reply(&mut pair, write(file, Position::End), b"two");
    pair.replace(A);
    assert_eq!(pair.answer(call), Some(Ok(Reply::Written { len: 3, size: 7 })));
    assert_eq!(pair.content(client, IN_A, "file"), b"one two");
}

#[test]
fn a_read_whose_reply_was_not_sent_returns_the_same_bytes() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"0123456789");
    let call = dies_before_the_reply(&mut pair, read(file, Position::Current, 4), &[]);
    pair.replace(A);
    assert_eq!(pair.bytes_of(call), b"0123");
    let next = pair.send(client, read(file, Position::Current, 4));
    assert_eq!(pair.bytes_of(next), b"4567", "the offset was moved once");
}

#[test]
fn a_request_that_waited_waits_at_the_successor() {
    let mut pair = Pair::alone();
    let [holder, waiter] = [(); 2].map(|()| pair.client());
    let own = pair.create(holder, IN_A, "file");
    let others = pair.open(waiter, own.ino);
    assert_eq!(pair.call(holder, exclusive(false, own)), Ok(Reply::Done));
    let waits = pair.send(waiter, exclusive(true, others));
    pair.replace(A);
    assert!(!pair.is_answered(waits), "the lock is still held");
    pair.close(holder, own);
    pair.disconnect(holder);
    assert_eq!(pair.answer(waits), Some(Ok(Reply::Done)));
}

#[test]
fn other_cells_serve_while_a_cell_is_lost() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.lose(A);
    let waits = pair.send(client, Request::GetAttr { ino: file.ino });
    let moved = pair.send(client, rename((IN_A, "file"), (IN_B, "moved")));
    pair.create(client, IN_B, "here");
    pair.unlink(client, IN_B, "here");
    assert!(!pair.is_answered(waits) && !pair.is_answered(moved), "both need A");
    pair.start_successor(A);
    assert!(pair.is_answered(waits));
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_eq!(pair.lookup(client, IN_B, "moved"), Some(file.ino));
}

#[test]
fn a_successor_serves_when_all_cells_have_sent_what_they_decided() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"text");
    pair.lose(A);
    assert_eq!(pair.trace(&["Lost", "LossHandled"]), ["B receives Lost", "B reports LossHandled"]);
    pair.hold_messages(|body| is_message(body, "AllSaid"));
    pair.start_successor(A);
    let call = pair.send(client, Request::GetAttr { ino: file.ino });
    assert!(!pair.cell(A).is_ready() && !pair.is_answered(call));
    assert_eq!(pair.trace(&["AllSaid"]), ["B to A: AllSaid", "A to B: AllSaid"]);
    pair.release_messages();
    assert!(pair.is_answered(call));
}

#[test]
fn fsync_waits_for_the_checkpoint_of_a_successor() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.supervisor.grants = false;
    pair.replace(A);
    let call = pair.send(client, fsync(file));
    assert!(!pair.is_answered(call));
    assert_eq!(pair.read(client, file, 0, PAGE), page(1), "other requests go on");
    pair.grant_checkpoints();
    assert_eq!(pair.answer(call), Some(Ok(Reply::Done)));
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(20));
}

#[test]
fn a_successor_may_die_as_well() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"one");
    pair.supervisor.grants = false;
    pair.replace(A);
    pair.write(client, file, 3, b" two");
    pair.replace(A);
    pair.write(client, file, 7, b" three");
    // This process dies with its first effect.
    pair.lose(A);
    pair.die_before(A, |_| true);
    pair.start_successor(A);
    assert!(pair.is_dead(A));
    pair.replace(A);
    assert_eq!(pair.content(client, IN_A, "file"), b"one two three");
}

#[test]
fn both_cells_may_be_lost_at_once() {
    let mut pair = Pair::new();
    let client = pair.client();
    let here = pair.file(client, IN_A, "file", b"here");
    let there = pair.file(client, IN_B, "file", b"there");
    pair.kill(A);
    pair.kill(B);
    pair.lose(A);
    pair.lose(B);
    pair.start_successor(A);
    pair.start_successor(B);
    assert!(pair.is_serving());
    assert_eq!(pair.read(client, here, 0, 10), b"here");
    assert_eq!(pair.read(client, there, 0, 10), b"there");
}

#[test]
fn a_client_that_disconnected_meanwhile_leaves_no_open_file() {
    let mut pair = Pair::alone();
    let (gone, other) = (pair.client(), pair.client());
    let file = pair.create(gone, IN_A, "file");
    pair.unlink(other, IN_A, "file");
    pair.lose(A);
    pair.disconnect(gone);
    pair.start_successor(A);
    assert_eq!(pair.trace(&["Expelled"]), ["A reports Expelled"]);
    let look = Request::GetAttr { ino: file.ino };
    assert_eq!(pair.call(other, look), Err(Errno::ESTALE), "the file is no longer open");
}

#[test]
fn a_request_that_is_refused_is_eio_unless_it_was_executed() {
    let mut pair = Pair::alone();
    pair.client();
    let executed = dies_before_the_reply(&mut pair, mkfile("file"), &[]);
    // The driver refuses requests that have ended several processes.
    pair.faults.refuses_requests = true;
    pair.replace(A);
    assert!(matches!(pair.answer(executed), Some(Ok(Reply::Created { .. }))));
    let client = pair.client();
    let call = pair.send(client, create(IN_A, "another"));
    assert_eq!(pair.answer(call), Some(Err(Errno::EIO)));
    pair.faults.refuses_requests = false;
    assert_eq!(pair.list(client, IN_A), ["file"]);
}

#[test]
fn free_chunks_of_a_dead_process_are_found_by_a_checkpoint() {
    let mut pair = Pair::new();
    let client = pair.client();
    let free = |pair: &mut Pair| match pair.call(client, Request::StatFs) {
        Ok(Reply::StatFs(stat)) => stat.blocks_free,
        other => panic!("{other:?}"),
    };
    pair.sync(client);
    let before = free(&mut pair);
    pair.supervisor.grants = false;
    pair.replace(B);
    assert!(free(&mut pair) < before, "no cell has them");
    pair.grant_checkpoints();
    assert_eq!(pair.trace(&["Found"]), ["A receives Found"], "the checkpoint has counted");
    assert_eq!(free(&mut pair), before);
}

#[test]
fn the_locks_of_a_client_that_is_gone_end_with_its_cells_process_too() {
    let mut pair = Pair::alone();
    let [gone, other] = [(); 2].map(|()| pair.client());
    let own = pair.create(gone, IN_A, "file");
    let others = pair.open(other, own.ino);
    pair.supervisor.grants = false;
    assert_eq!(pair.call(gone, exclusive(false, own)), Ok(Reply::Done));
    pair.disconnect(gone);
    pair.replace(A);
    assert_eq!(pair.call(other, exclusive(false, others)), Ok(Reply::Done));
}
