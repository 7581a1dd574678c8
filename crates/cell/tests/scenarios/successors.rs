//! **Successors.** A process that dies leaves its frames: dirty pages, the image of its log, and a table that says which frame
//! holds which page. A successor replays the whole image, takes the pages back, and serves the requests that it finds
//! in the slots. Nothing that was answered is lost, and no request is executed twice.
//!
//! ```text
//! the others: Lost -> Heard        successor: replay -> Again, AllSaid to and from all -> Ready -> looks at all slots
//!             Joined -> Again, AllSaid
//! ```
//!
//! A request whose record is in the log is answered from there: the record was made, the reply may not have been sent.
//! What the log says of data on the device may not be true (the flush may be missing), so nothing is committed before
//! a checkpoint.
//!
//! The code: `replay.rs`, `table.rs`, `loss.rs`.

use warren_base::Errno;
use warren_cell::{Effect, Event};
use warren_proto::{
    AccessMode, ByteRange, CreateFlags, LockFlavour, LockOwner, LockSpec, LockType, NewInode,
    Position, Reply, Request,
};

use crate::bytes::page;
use crate::client::{Call, create, fsync, read, rename, write};
use crate::image::name;
use crate::pair::*;

fn exclusive(wait: bool, handle: warren_proto::Handle) -> Request {
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
    let call = pair.post(client, request, bytes);
    pair.drive();
    assert!(pair.is_dead(A) && !pair.is_answered(call));
    call
}

#[test]
fn a_successor_takes_back_dirty_pages() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(3));
    pair.sync(client);
    pair.write(client, file, 4096, page(2));
    pair.replace(A);
    let wanted = page(1).then(page(2)).then(page(1));
    assert_eq!(pair.read(client, file, 0, 3 * 4096), wanted);
    pair.sync(client);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), wanted, "they are dirty still");
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
fn an_append_whose_reply_was_not_sent_is_made_once() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"one ");
    let call = dies_before_the_reply(&mut pair, write(file, Position::End), b"two");
    pair.replace(A);
    assert_eq!(pair.answer(call), Some(Ok(Reply::Written { len: 3, size: 7 })));
    assert_eq!(pair.content(client, IN_A, "file"), b"one two");
}

#[test]
fn a_read_whose_reply_was_not_sent_brings_the_same_bytes() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"0123456789");
    let call = dies_before_the_reply(&mut pair, read(file, Position::Current, 4), &[]);
    pair.replace(A);
    assert_eq!(pair.bytes_of(call), b"0123");
    let next = pair.ask(client, read(file, Position::Current, 4));
    assert_eq!(pair.bytes_of(next), b"4567", "the offset has moved once");
}

#[test]
fn a_request_that_waited_is_executed_by_the_successor() {
    let mut pair = Pair::alone();
    let [holder, waiter] = [(); 2].map(|()| pair.client());
    let own = pair.create(holder, IN_A, "file");
    let others = pair.open(waiter, own.ino);
    assert_eq!(pair.call(holder, exclusive(false, own)), Ok(Reply::Done));
    let waits = pair.ask(waiter, exclusive(true, others));
    pair.replace(A);
    assert!(!pair.is_answered(waits), "the lock is held still");
    pair.close(holder, own);
    pair.hang_up(holder);
    assert_eq!(pair.answer(waits), Some(Ok(Reply::Done)));
}

#[test]
fn other_cells_serve_meanwhile() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.lose(A);
    let waits = pair.ask(client, Request::GetAttr { ino: file.ino });
    let moved = pair.ask(client, rename((IN_A, "file"), (IN_B, "moved")));
    pair.create(client, IN_B, "here");
    pair.unlink(client, IN_B, "here");
    assert!(!pair.is_answered(waits) && !pair.is_answered(moved), "these need A");
    pair.succeed(A);
    assert!(pair.is_answered(waits));
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_eq!(pair.lookup(client, IN_B, "moved"), Some(file.ino));
}

#[test]
fn fsync_waits_for_the_checkpoint_of_a_successor() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.supervisor.grants = false;
    pair.replace(A);
    let call = pair.ask(client, fsync(file));
    assert!(!pair.is_answered(call));
    assert_eq!(pair.read(client, file, 0, 4096), page(1), "everything else goes on");
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
    // This one dies before it has replayed anything.
    pair.lose(A);
    pair.die_before(A, |_| true);
    pair.succeed(A);
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
    pair.succeed(A);
    pair.succeed(B);
    assert!(pair.is_serving());
    assert_eq!(pair.read(client, here, 0, 10), b"here");
    assert_eq!(pair.read(client, there, 0, 10), b"there");
}

#[test]
fn a_client_that_hung_up_meanwhile_leaves_nothing_behind() {
    let mut pair = Pair::alone();
    let (gone, other) = (pair.client(), pair.client());
    let file = pair.create(gone, IN_A, "file");
    pair.unlink(other, IN_A, "file");
    pair.lose(A);
    pair.hang_up(gone);
    pair.succeed(A);
    assert_eq!(pair.trace(&["Expelled"]), ["A reports Expelled"]);
    let look = Request::GetAttr { ino: file.ino };
    assert_eq!(pair.call(other, look), Err(Errno::ESTALE), "no client has it open");
}

#[test]
fn a_request_that_is_refused_is_answered_unless_it_was_executed() {
    let mut pair = Pair::alone();
    pair.client();
    let executed = dies_before_the_reply(&mut pair, mkfile("file"), &[]);
    // The driver found that processes end with these requests, and offers them no more.
    pair.refuses = true;
    pair.replace(A);
    assert!(matches!(pair.answer(executed), Some(Ok(Reply::Created { .. }))));
    let client = pair.client();
    let call = pair.ask(client, create(IN_A, "another"));
    assert_eq!(pair.answer(call), Some(Err(Errno::EIO)));
    pair.refuses = false;
    assert_eq!(pair.list(client, IN_A), ["file"]);
}

#[test]
fn free_chunks_that_were_lost_with_a_process_are_found() {
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
    assert!(free(&mut pair) < before, "they are at no cell");
    pair.grant_checkpoints();
    assert_eq!(pair.trace(&["Found"]), ["A gets Found"], "a checkpoint has counted");
    assert_eq!(free(&mut pair), before);
    // Events that come late or for nothing do no harm.
    pair.plan_event(A, Event::Tick);
    pair.drive();
    assert!(
        pair.trace(&[""]).iter().all(|line| line.contains("replies") || line.contains("Count"))
    );
}
