//! **Kept handles.** A client may keep a handle after its last close, under a word lease on the
//! opens of the inode. It marks the inode as idle while it uses no handle of it. A cell closes the
//! handles of idle inodes after it has revoked the lease.
//!
//! A client that is not a front also keeps copies of the file's data: under the same lease, and
//! under one on the attributes, which come with its `Open` and its `Read`. A front's kernel may
//! change mapped pages of a file that it has open for writing. So either a front has a file open
//! for writing, or other clients keep it.
//!
//! A front's kernel takes a file over from a client that has it open and proves that with its
//! capability (`Claim`).
//!
//! The code: `inode/open.rs`, `inode/grant.rs`.

use std::time::Duration;

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{
    AccessMode, Attr, Capability, FileKind, Handle, Lease, NewInode, Opened, Position, RangeChange,
    RangeCopy, RangeKind, Reply, Request, RequestHeader, SetAttr,
};

use crate::client::{read, write};
use crate::image::name;
use crate::pair::*;

const SECOND: Duration = Duration::from_secs(1);
const READ: AccessMode = AccessMode::READ.union(AccessMode::KEEP);
const WRITE: AccessMode = AccessMode::WRITE.union(AccessMode::KEEP);
const SOLE: AccessMode = AccessMode::WRITE.union(AccessMode::SOLE);
const BOTH: AccessMode = READ.union(WRITE);

/// A file, a client that is not a front, and a front. None of them has the file open.
fn file() -> (Pair, Ino, ClientId, ClientId) {
    let mut pair = Pair::alone();
    let client = pair.client();
    let handle = pair.file(client, IN_A, "file", b"text");
    pair.close(client, handle);
    let front = pair.front();
    (pair, handle.ino, client, front)
}

fn open(pair: &mut Pair, client: ClientId, ino: Ino, access: AccessMode) -> Opened {
    match pair.call(client, Request::Open { ino, access }) {
        Ok(Reply::Opened(opened)) => opened,
        other => panic!("it is not opened: {other:?}"),
    }
}

fn kept(pair: &mut Pair, client: ClientId, ino: Ino, access: AccessMode) -> (Handle, Lease) {
    let opened = open(pair, client, ino, access);
    (opened.handle, opened.kept.expect("a lease"))
}

fn mark(pair: &mut Pair, client: ClientId, ino: Ino, is_idle: bool) {
    let idle = &mut pair.member(A).machine.idle;
    if is_idle {
        idle.insert((client, ino))
    } else {
        idle.remove(&(client, ino))
    };
}

fn is_closed(pair: &mut Pair, client: ClientId, handle: Handle) -> bool {
    pair.call(client, Request::Seek { handle, position: 0 }) == Err(Errno::EBADF)
}

#[test]
fn a_front_that_opens_a_file_for_writing_ends_the_leases_of_others() {
    let (mut pair, ino, client, front) = file();
    let (handle, lease) = kept(&mut pair, client, ino, READ);
    open(&mut pair, front, ino, READ);
    assert!(pair.is_valid(A, client, lease), "a front that reads changes nothing");
    let opened = open(&mut pair, front, ino, WRITE);
    assert!(!pair.is_valid(A, client, lease));
    assert!(!opened.direct && opened.kept.is_some_and(|own| pair.is_valid(A, front, own)));
    assert_eq!(pair.read(client, handle, 0, 4), b"text", "the handle is still open");
}

#[test]
fn a_handle_that_reads_nothing_is_not_kept_beside_a_front_that_writes() {
    let (mut pair, ino, client, front) = file();
    let (_, lease) = kept(&mut pair, client, ino, AccessMode::KEEP);
    open(&mut pair, front, ino, WRITE);
    assert!(!pair.is_valid(A, client, lease));
}

#[test]
fn a_file_that_a_front_writes_is_not_kept() {
    let (mut pair, ino, client, front) = file();
    let (writer, lease) = kept(&mut pair, front, ino, BOTH);
    let opened = open(&mut pair, client, ino, READ);
    assert!(opened.direct && opened.kept.is_none());
    assert!(!pair.is_valid(A, front, lease), "the front must not open it again without the cell");
    let plain = open(&mut pair, client, ino, AccessMode::READ);
    assert!(!plain.direct, "a client that keeps nothing sees no difference");
    pair.close(front, writer);
    let opened = open(&mut pair, client, ino, READ);
    assert!(!opened.direct && opened.kept.is_some());
}

#[test]
fn a_handle_for_writing_that_a_front_does_not_use_is_closed() {
    let (mut pair, ino, client, front) = file();
    let (writer, _) = kept(&mut pair, front, ino, WRITE);
    let (reader, _) = kept(&mut pair, front, ino, READ);
    mark(&mut pair, front, ino, true);
    let opened = open(&mut pair, client, ino, READ);
    assert!(!opened.direct && opened.kept.is_some());
    assert!(pair.member(A).machine.closed.contains(&(front, ino)));
    mark(&mut pair, front, ino, false);
    assert!(is_closed(&mut pair, front, writer) && is_closed(&mut pair, front, reader));
}

#[test]
fn a_handle_for_writing_that_is_not_kept_is_not_closed() {
    let (mut pair, ino, client, front) = file();
    let writer = pair.open(front, ino);
    mark(&mut pair, front, ino, true);
    assert!(open(&mut pair, client, ino, READ).direct);
    assert!(!is_closed(&mut pair, front, writer));
}

#[test]
fn a_successor_knows_what_fronts_have_open() {
    let (mut pair, ino, client, front) = file();
    let (writer, lease) = kept(&mut pair, front, ino, WRITE);
    let (_, of_client) = kept(&mut pair, client, Ino::ROOT, READ);
    pair.replace(A);
    assert!(!pair.is_valid(A, front, lease) && !pair.is_valid(A, client, of_client));
    assert!(open(&mut pair, client, ino, READ).direct);
    mark(&mut pair, front, ino, true);
    assert!(open(&mut pair, client, ino, READ).kept.is_some());
    mark(&mut pair, front, ino, false);
    assert!(is_closed(&mut pair, front, writer));
}

#[test]
fn a_successor_ends_a_file_without_a_name_that_is_only_kept() {
    let (mut pair, ino, client, front) = file();
    let (handle, _) = kept(&mut pair, front, ino, READ);
    pair.unlink(client, IN_A, "file");
    assert!(!is_closed(&mut pair, front, handle), "it is in use");
    // The predecessor dies before it sees this.
    mark(&mut pair, front, ino, true);
    pair.replace(A);
    assert!(pair.member(A).machine.closed.contains(&(front, ino)));
    assert!(is_closed(&mut pair, front, handle));
}

#[test]
fn a_file_created_by_a_front_is_open_for_writing() {
    let (mut pair, _, client, front) = file();
    let handle = pair.create(front, IN_A, "another");
    assert!(open(&mut pair, client, handle.ino, READ).direct);
    pair.close(front, handle);
    let (_, lease) = kept(&mut pair, client, handle.ino, READ);
    // The kernel did not know that the name exists.
    pair.create(front, IN_A, "another");
    assert!(!pair.is_valid(A, client, lease));
}

/// Opens or reads; returns the leased attributes that came with the reply.
fn beside(pair: &mut Pair, client: ClientId, request: Request) -> Option<(Attr, Lease)> {
    let call = pair.send(client, request);
    assert!(matches!(pair.answer(call), Some(Ok(_))));
    let attrs = pair.beside(call);
    assert!(attrs.len() <= 1);
    attrs.first().copied()
}

#[test]
fn attributes_come_with_the_open_and_with_a_read_that_has_ended_their_lease() {
    let (mut pair, ino, client, _) = file();
    let writer = pair.open(client, ino);
    pair.write(client, writer, 0, b"more");
    let (attr, lease) =
        beside(&mut pair, client, Request::Open { ino, access: READ }).expect("no lease before");
    assert!(attr.ino == ino && pair.is_valid(A, client, lease));
    let (reader, _) = kept(&mut pair, client, ino, READ);
    assert!(pair.is_valid(A, client, lease), "an open changes nothing");
    let first = read(reader, Position::At(0), 4);
    pair.wait(SECOND);
    let (touched, second) =
        beside(&mut pair, client, first.clone()).expect("the read has changed the access time");
    assert!(!pair.is_valid(A, client, lease) && pair.is_valid(A, client, second));
    assert!(touched.atime > attr.atime);
    assert_eq!(pair.attr(client, ino), touched);
    assert_eq!(beside(&mut pair, client, first.clone()), None, "the client has the lease");
    pair.wait(SECOND);
    pair.write(client, writer, 0, b"text");
    let (changed, third) = beside(&mut pair, client, first).expect("the write has ended the lease");
    assert!(changed.mtime > touched.mtime && pair.is_valid(A, client, third));
}

#[test]
fn clients_that_keep_nothing_get_no_attributes_beside_a_reply() {
    let (mut pair, ino, client, front) = file();
    let access = AccessMode::READ;
    assert_eq!(beside(&mut pair, client, Request::Open { ino, access }), None);
    assert_eq!(beside(&mut pair, front, Request::Open { ino, access: READ }), None);
    for reader in [client, front] {
        let handle = pair.open_as(reader, ino, access);
        assert_eq!(beside(&mut pair, reader, read(handle, Position::At(0), 4)), None);
    }
}

fn claim(pair: &mut Pair, front: ClientId, of: ClientId, ino: Ino) -> Result<Attr, Errno> {
    claim_with(pair, front, of, (ino, KEY.capability(of, ino)))
}

fn claim_with(
    pair: &mut Pair,
    front: ClientId,
    client: ClientId,
    (ino, capability): (Ino, Capability),
) -> Result<Attr, Errno> {
    match pair.call(front, Request::Claim { client, ino, capability })? {
        Reply::Attr { attr, lease: None } => Ok(attr),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_front_claims_a_file_that_a_client_has_open() {
    let (mut pair, ino, client, front) = file();
    let other = pair.client();
    assert_eq!(claim(&mut pair, front, client, ino), Err(Errno::ENOENT), "it is not open");
    let (handle, _) = kept(&mut pair, client, ino, READ);
    let attr = pair.attr(client, ino);
    assert_eq!(claim(&mut pair, front, client, ino), Ok(attr));
    assert_eq!(claim(&mut pair, front, other, ino), Err(Errno::ENOENT), "it is another's");
    let wrong = [Capability::NONE, KEY.capability(other, ino), KEY.capability(client, IN_A)];
    for capability in wrong {
        let claimed = claim_with(&mut pair, front, client, (ino, capability));
        assert_eq!(claimed, Err(Errno::ENOENT));
    }
    for not_a_front in [client, other] {
        assert_eq!(claim(&mut pair, not_a_front, client, ino), Err(Errno::EPERM));
    }
    pair.replace(A);
    assert_eq!(claim(&mut pair, front, client, ino), Ok(attr));
    pair.close(client, handle);
    assert_eq!(claim(&mut pair, front, client, ino), Err(Errno::ENOENT));
}

#[test]
fn a_file_is_claimed_for_the_user_of_the_client_only() {
    let (mut pair, ino, _, front) = file();
    let client = pair.client_of(7);
    kept(&mut pair, client, ino, READ);
    assert_eq!(claim(&mut pair, front, client, ino), Err(Errno::ENOENT), "for root");
    let capability = KEY.capability(client, ino);
    let header = RequestHeader { uid: 7, ..Default::default() };
    let request = Request::Claim { client, ino, capability };
    let call = pair.submit_with(A, front, header, (request, &[]));
    pair.drive();
    assert!(matches!(pair.answer(call), Some(Ok(Reply::Attr { .. }))));
}

#[test]
fn a_file_without_a_name_is_claimed() {
    let (mut pair, ino, client, front) = file();
    let (handle, _) = kept(&mut pair, client, ino, READ);
    pair.unlink(front, IN_A, "file");
    assert_eq!(claim(&mut pair, front, client, ino).map(|attr| attr.nlink), Ok(0));
    let opened = open(&mut pair, front, ino, READ);
    pair.close(client, handle);
    assert_eq!(pair.read(front, opened.handle, 0, 4), b"text");
}

#[test]
fn only_regular_files_are_claimed() {
    let (mut pair, _, client, front) = file();
    for ino in [IN_A, Ino::ROOT] {
        pair.open_as(client, ino, AccessMode::READ);
        assert_eq!(claim(&mut pair, front, client, ino), Err(Errno::ENOENT));
    }
}

#[test]
fn a_client_that_is_gone_has_nothing_open() {
    let (mut pair, ino, client, front) = file();
    kept(&mut pair, client, ino, READ);
    pair.disconnect(client);
    assert_eq!(claim(&mut pair, front, client, ino), Err(Errno::ENOENT));
}

#[test]
fn names_of_the_hand_over_are_not_created() {
    let (mut pair, ino, client, front) = file();
    let reserved = name(".warren-handover\u{1}anything");
    for who in [client, front] {
        let requests = [
            Request::Link { ino, dir: IN_A, name: reserved.clone() },
            Request::Rename {
                from: IN_A,
                from_name: name("file"),
                dir: IN_A,
                name: reserved.clone(),
                flags: Default::default(),
            },
            Request::Create {
                dir: IN_A,
                name: reserved.clone(),
                new: NewInode { kind: FileKind::Socket, ..NewInode::regular(0o600) },
                flags: Default::default(),
                access: AccessMode::empty(),
            },
        ];
        for request in requests {
            assert_eq!(pair.call(who, request.clone()), Err(Errno::EPERM), "{request:?}");
        }
    }
}

#[test]
fn a_mark_for_a_file_that_is_read_closes_no_handle_for_writing() {
    let (mut pair, ino, client, front) = file();
    let (writing, lease) = kept(&mut pair, client, ino, SOLE);
    let (reading, _) = kept(&mut pair, client, ino, READ);
    mark(&mut pair, client, ino, true);
    let opened = open(&mut pair, front, ino, WRITE);
    assert!(!pair.is_valid(A, client, lease), "the client learns of the front");
    pair.close(front, opened.handle);
    pair.call(client, Request::Unlink { dir: IN_A, name: name("file") }).expect("unlinked");
    assert!(is_closed(&mut pair, client, reading));
    assert!(!is_closed(&mut pair, client, writing));
}

#[test]
fn a_front_that_opened_a_file_learns_of_every_change_of_its_data() {
    let (mut pair, ino, client, front) = file();
    let (handle, _) = kept(&mut pair, client, ino, SOLE);
    let source = pair.file(client, IN_A, "source", [7; 4096]);
    let kill_privileges = false;
    let kind = RangeKind::PunchHole;
    let change = RangeChange { kind, keep_size: true, offset: 0, length: 1 };
    let copy = RangeCopy { from: 0, to: 0, length: 4096 };
    // The client has looked at its lease before the front opens the file, and sends this then.
    let changes = [
        write(handle, Position::End),
        Request::Fallocate { handle, change, kill_privileges },
        Request::CopyRange { handle, source, copy, kill_privileges },
        Request::SetAttr {
            ino,
            handle: Some(handle),
            set: SetAttr { size: Some(1), ..SetAttr::default() },
        },
    ];
    let reading = open(&mut pair, front, ino, AccessMode::READ);
    assert!(reading.direct, "the kernel keeps nothing");
    assert!(pair.call(client, changes[0].clone()).is_ok());
    open(&mut pair, front, ino, AccessMode::WRITE);
    for change in &changes {
        assert_eq!(pair.call(client, change.clone()), Err(Errno::EBUSY), "{change:?}");
    }
    assert_eq!(pair.attr(front, ino).size, 4);
}

#[test]
fn a_file_that_a_front_writes_is_left_to_its_kernel() {
    let (mut pair, ino, client, front) = file();
    let opened = open(&mut pair, front, ino, AccessMode::WRITE | AccessMode::APPEND);
    let other = open(&mut pair, client, ino, SOLE);
    assert!(other.direct && other.kept.is_none());
    pair.close(client, other.handle);
    let access = SOLE | AccessMode::TRUNCATE;
    assert_eq!(pair.call(client, Request::Open { ino, access }), Err(Errno::EBUSY));
    assert_eq!(pair.attr(client, ino).size, 4);
    pair.close(front, opened.handle);
    assert!(!open(&mut pair, client, ino, SOLE).direct);
}
