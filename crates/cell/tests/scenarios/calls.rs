//! **Calls.** A client writes a request into a slot. The driver gives the request to the cell that
//! owns the inode's shard, and the cell replies into the same slot.
//!
//! A request runs from its start to its end. If something is missing (a page, a node, a lock, a
//! reply of another cell), the run has changed nothing. The task is parked, and the cell goes on
//! with other requests. When the missing thing has arrived, the task runs from its start again. A
//! cell has no other concurrency.
//!
//! The code: `cell.rs`, `core/events.rs`, `core/tasks.rs`, `run/task.rs`, `authority.rs`.

use warren_base::{Errno, Ino, MapVersion};
use warren_proto::{Capabilities, Capability, Position, Reply, Request, RequestHeader};

use crate::bytes::{PAGE, page};
use crate::client::read;
use crate::device::Kind;
use crate::image::name;
use crate::pair::*;

#[test]
fn a_request_that_misses_nothing_is_answered_in_one_run() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.trace(&[]);
    assert_eq!(pair.attr(client, IN_A).ino, IN_A);
    assert_eq!(pair.trace(&[""]), ["A replies"]);
}

#[test]
fn a_request_that_waits_for_the_device_delays_no_other_request() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(7));
    pair.sync(client);
    pair.cut_power();
    let client = pair.client();
    let handle = pair.open(client, file.ino);
    pair.device.hold(Kind::Read);
    let slow = pair.send(client, read(handle, Position::At(0), PAGE));
    assert!(!pair.is_answered(slow));
    assert_eq!(pair.cell(A).live_tasks(), 1, "it is parked");
    assert_eq!(pair.attr(client, file.ino).size, PAGE as u64, "other requests go on");
    pair.release_io();
    assert_eq!(pair.bytes_of(slow), page(7));
    assert_eq!(pair.cell(A).live_tasks(), 0);
}

#[test]
fn a_request_at_the_wrong_cell_is_answered_with_the_version_of_the_map() {
    let mut pair = Pair::new();
    let client = pair.client();
    let call = pair.submit_to(B, client, Request::GetAttr { ino: IN_A }, &[]);
    pair.drive();
    assert_eq!(pair.answer(call), Some(Ok(Reply::Moved(MapVersion(1)))));
}

#[test]
fn a_client_may_name_an_inode_after_a_lookup_has_led_to_it() {
    let mut pair = Pair::new();
    let client = pair.client();
    let get_attr = |capability: Capability| {
        let capabilities = Capabilities::of(capability);
        let header = RequestHeader { capabilities, ..RequestHeader::default() };
        (header, Request::GetAttr { ino: IN_A })
    };
    let (header, request) = get_attr(Capability::NONE);
    let guessed = pair.submit_with(A, client, header, (request, &[]));
    pair.drive();
    assert_eq!(pair.answer(guessed), Some(Err(Errno::ESTALE)), "the number alone gives no right");
    let lookup = pair.send(client, Request::Lookup { dir: Ino::ROOT, name: name("a") });
    let (header, request) = get_attr(pair.granted(lookup));
    let call = pair.submit_with(A, client, header, (request, &[]));
    pair.drive();
    assert!(matches!(pair.answer(call), Some(Ok(Reply::Attr { .. }))));
}

#[test]
fn a_slot_that_rings_twice_before_the_reply_is_executed_once() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"0123456789");
    pair.sync(client);
    pair.cut_power();
    let client = pair.client();
    let handle = pair.open(client, file.ino);
    pair.device.hold(Kind::Read);
    let call = pair.send(client, read(handle, Position::Current, 4));
    pair.ring(call);
    assert_eq!(pair.cell(A).live_tasks(), 1);
    pair.release_io();
    assert_eq!(pair.bytes_of(call), b"0123");
    let next = pair.send(client, read(handle, Position::Current, 4));
    assert_eq!(pair.bytes_of(next), b"4567", "the offset was moved once");
}

#[test]
fn a_listing_comes_in_short_parts() {
    let mut pair = Pair::new();
    let client = pair.client();
    let mut made: Vec<String> = (0..450).map(|number| format!("{number}")).collect();
    for name in &made {
        pair.create(client, IN_A, name);
    }
    let (mut cookie, mut listed) = (0, Vec::new());
    loop {
        let list = Request::ReadDir { dir: IN_A, cookie, bytes_max: u32::MAX, leased: false };
        let part = pair.call(client, list);
        let Ok(Reply::Listing { entries, end, .. }) = part else { panic!("{part:?}") };
        assert!((1..=192).contains(&entries.len()), "{} names", entries.len());
        listed.extend(entries.iter().map(|it| String::from_utf8_lossy(it.name).into_owned()));
        cookie = entries.last_cookie().expect("it is not empty");
        if end {
            break;
        }
    }
    made.sort();
    listed.sort();
    assert_eq!(listed, made);
}

#[test]
fn a_client_that_disconnects_leaves_no_open_file() {
    let mut pair = Pair::new();
    let (gone, other) = (pair.client(), pair.client());
    let file = pair.create(gone, IN_A, "file");
    pair.unlink(other, IN_A, "file");
    assert_eq!(pair.attr(other, file.ino).nlink, 0, "the file lives while it is open");
    pair.trace(&[]);
    pair.disconnect(gone);
    assert_eq!(pair.trace(&["Expelled"]), ["A reports Expelled", "B reports Expelled"]);
    assert_eq!(pair.call(other, Request::GetAttr { ino: file.ino }), Err(Errno::ESTALE));
}

#[test]
fn requests_of_a_client_that_disconnected_are_dropped() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(7));
    pair.sync(client);
    pair.cut_power();
    let (gone, other) = (pair.client(), pair.client());
    let handle = pair.open(gone, file.ino);
    pair.device.hold(Kind::Read);
    pair.send(gone, read(handle, Position::At(0), PAGE));
    pair.disconnect(gone);
    assert_eq!(pair.cell(A).live_tasks(), 0);
    pair.trace(&[]);
    pair.release_io();
    assert!(pair.trace(&["replies"]).is_empty(), "its memory may be gone");
    assert_eq!(pair.content(other, IN_A, "file"), page(7));
}
