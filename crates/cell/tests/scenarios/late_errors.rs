//! A change that was posted fails after its program went on.

use warren_base::{ClientId, Errno};
use warren_proto::stream::Delegated;
use warren_proto::{Handle, Position};

use crate::bytes::page;
use crate::client::{fsync, write};
use crate::device::Kind;
use crate::pair::*;

/// A file of which a page is on the device alone. Its client may post.
fn on_device(pair: &mut Pair) -> (ClientId, Handle, Delegated) {
    let client = pair.client();
    pair.file(client, IN_A, "file", page(1));
    pair.sync(client);
    pair.cut_power();
    let client = pair.client();
    let ino = pair.lookup(client, IN_A, "file").expect("a file");
    let (file, delegated) = pair.open_own(client, ino);
    (client, file, delegated.expect("a delegation"))
}

#[test]
fn an_error_of_the_device_is_shown_once_to_its_client_and_in_the_log() {
    let mut pair = Pair::alone();
    let (client, file, delegated) = on_device(&mut pair);
    let other = pair.client();
    pair.device.fail(Kind::Read, Errno::EIO);
    pair.post(client, write(file, Position::At(0)), b"part");
    pair.look_at(client);
    assert_eq!(pair.outcome(client).errno, Some(Errno::EIO));
    assert!(!pair.may_post(client, &delegated));
    assert_eq!(pair.trace(&["PostFailed"]), ["A reports PostFailed"]);
    let theirs = pair.open(other, file.ino);
    pair.fsync(other, theirs);
    assert_eq!(pair.call(client, fsync(file)), Err(Errno::EIO));
    pair.fsync(client, file);
    assert_eq!(pair.content(other, IN_A, "file"), page(1));
}

#[test]
fn a_record_that_is_skipped_is_no_error() {
    let mut pair = Pair::alone();
    let (client, file, delegated) = on_device(&mut pair);
    let other = pair.client();
    let theirs = pair.open(other, file.ino);
    assert!(!pair.may_post(client, &delegated), "another client has opened the file");
    pair.post(client, write(file, Position::At(0)), b"part");
    pair.look_at(client);
    assert_eq!(pair.outcome(client).errno, Some(Errno::EAGAIN));
    pair.fsync(client, file);
    pair.fsync(other, theirs);
}
