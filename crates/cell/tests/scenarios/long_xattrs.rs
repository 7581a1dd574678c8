//! **Long values.** An extended attribute has up to 64 KiB, and the names of a file's attributes as
//! much. What a body has no room for is in the payload. A value of more than 128 bytes is in pieces
//! in the tree, in records of their own; a change of all of them is one step of the log.
//!
//! The code: `inode/xattr.rs`, `shard/xattrs.rs`.

use warren_base::limits::{XATTR_LIST_MAX, XATTR_NAME_MAX, XATTR_VALUE_MAX};
use warren_base::{ClientId, Errno, Ino};
use warren_disk::LOG_BLOCKS_MIN;
use warren_proto::{Answer, Reply, Request, XattrMode, XattrName};

use crate::bytes::page;
use crate::client::Call;
use crate::pair::*;

fn named(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).expect("a legal name")
}

fn set(pair: &mut Pair, client: ClientId, ino: Ino, text: &str, value: &[u8]) -> Answer {
    let (name, mode, kill_set_gid) = (named(text), XattrMode::Any, false);
    let request = Request::SetXattr { ino, name, value: [].into(), mode, kill_set_gid };
    let call = pair.submit(client, request, value);
    pair.drive();
    pair.answer(call).expect("it is answered")
}

/// The value, and whether it came in the payload.
fn get(pair: &mut Pair, client: ClientId, ino: Ino, text: &str) -> (Vec<u8>, bool) {
    let call = pair.send(client, Request::GetXattr { ino, name: named(text) });
    long(pair, call)
}

fn long(pair: &Pair, call: Call) -> (Vec<u8>, bool) {
    match pair.answer(call) {
        Some(Ok(Reply::Xattr(value))) => (value.into(), false),
        Some(Ok(Reply::LongXattr { len })) => {
            let bytes = pair.payload_of(call).to_vec();
            assert_eq!(bytes.len(), len as usize);
            (bytes, true)
        }
        other => panic!("{other:?}"),
    }
}

/// Bytes without a period that fits a piece.
fn value(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ salt).collect()
}

fn free_blocks(pair: &mut Pair, client: ClientId) -> u64 {
    pair.sync(client);
    match pair.call(client, Request::StatFs) {
        Ok(Reply::StatFs(stat)) => stat.blocks_free,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_of_any_length_is_set_replaced_and_removed() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let ino = pair.create(client, IN_A, "file").ino;
    let before = free_blocks(&mut pair, client);
    for (salt, len) in (0..).zip([1, 128, 129, 2000, 2001, 2048, 2049, 65_535, 65_536, 4000, 130]) {
        let value = value(len, salt);
        assert_eq!(set(&mut pair, client, ino, "user.a", &value), Ok(Reply::Done));
        assert_eq!(get(&mut pair, client, ino, "user.a"), (value, len > 2048), "{len} bytes");
    }
    let longest = value(XATTR_VALUE_MAX, 0);
    assert_eq!(set(&mut pair, client, ino, "user.a", &longest), Ok(Reply::Done));
    assert!(free_blocks(&mut pair, client) < before - 16);
    let too_long = value(XATTR_VALUE_MAX + 1, 0);
    assert_eq!(set(&mut pair, client, ino, "user.a", &too_long), Err(Errno::E2BIG));
    let list = "system.posix_acl_access";
    assert_eq!(set(&mut pair, client, ino, list, &longest), Err(Errno::ENOSPC));
    let capability = "security.capability";
    assert_eq!(set(&mut pair, client, ino, capability, &longest), Err(Errno::EINVAL));
    assert_eq!(get(&mut pair, client, ino, "user.a"), (longest, true));
    let remove = Request::RemoveXattr { ino, name: named("user.a") };
    assert_eq!(pair.call(client, remove), Ok(Reply::Done));
    let name = named("user.a");
    assert_eq!(pair.call(client, Request::GetXattr { ino, name }), Err(Errno::ENODATA));
    assert_eq!(free_blocks(&mut pair, client), before);
}

#[test]
fn the_end_of_a_file_is_the_end_of_its_long_values() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let before = free_blocks(&mut pair, client);
    let file = pair.create(client, IN_A, "file");
    // With fewer records than are freed in one run, and with more.
    for number in 0..6 {
        let (text, value) = (format!("user.{number}"), value(XATTR_VALUE_MAX, number));
        assert_eq!(set(&mut pair, client, file.ino, &text, &value), Ok(Reply::Done));
    }
    pair.close(client, file);
    pair.unlink(client, IN_A, "file");
    assert_eq!(free_blocks(&mut pair, client), before);
}

#[test]
fn a_long_value_is_as_durable_as_any_other() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    let (first, second) = (value(XATTR_VALUE_MAX, 1), value(50_000, 2));
    assert_eq!(set(&mut pair, client, file.ino, "user.a", &first), Ok(Reply::Done));
    assert_eq!(set(&mut pair, client, file.ino, "user.b", &first), Ok(Reply::Done));
    pair.fsync(client, file);
    assert_eq!(set(&mut pair, client, file.ino, "user.b", &second), Ok(Reply::Done));
    pair.cut_power();
    let client = pair.client();
    assert_eq!(get(&mut pair, client, file.ino, "user.a"), (first.clone(), true));
    // Nothing has promised the second value, and it is not there in part.
    assert_eq!(get(&mut pair, client, file.ino, "user.b"), (first.clone(), true));
    assert_eq!(set(&mut pair, client, file.ino, "user.b", &second), Ok(Reply::Done));
    pair.kill(A);
    pair.start_successor(A);
    pair.drive();
    assert_eq!(get(&mut pair, client, file.ino, "user.a"), (first, true));
    assert_eq!(get(&mut pair, client, file.ino, "user.b"), (second, true));
}

#[test]
fn the_names_of_a_file_have_as_much_room_as_a_list() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let ino = pair.create(client, IN_A, "file").ino;
    let count = XATTR_LIST_MAX / (XATTR_NAME_MAX + 1);
    let text = |number| format!("user.{number:0>250}");
    for number in 0..count {
        assert_eq!(set(&mut pair, client, ino, &text(number), b"x"), Ok(Reply::Done));
    }
    assert_eq!(set(&mut pair, client, ino, "user.a", b"x"), Err(Errno::ENOSPC));
    assert_eq!(set(&mut pair, client, ino, &text(7), b"y"), Ok(Reply::Done), "it has a name");
    let call = pair.send(client, Request::ListXattr { ino });
    let (list, is_long) = long(&pair, call);
    assert!(is_long && list.len() == XATTR_LIST_MAX);
    let mut names: Vec<&[u8]> = list[..list.len() - 1].split(|byte| *byte == 0).collect();
    names.sort_unstable();
    assert!(names.iter().enumerate().all(|(number, name)| *name == text(number).as_bytes()));
    let remove = Request::RemoveXattr { ino, name: named(&text(3)) };
    assert_eq!(pair.call(client, remove), Ok(Reply::Done));
    assert_eq!(set(&mut pair, client, ino, "user.a", b"x"), Ok(Reply::Done));
}

#[test]
fn what_the_lanes_of_a_client_do_not_hold_is_a_length() {
    let mut pair = Pair::alone();
    let (large, small) = (pair.client(), pair.small_client());
    let ino = pair.create(large, IN_A, "file").ino;
    let fits = value(16 << 10, 1);
    assert_eq!(set(&mut pair, small, ino, "user.a", &fits), Ok(Reply::Done));
    assert_eq!(get(&mut pair, small, ino, "user.a"), (fits, true));
    let longer = value((16 << 10) + 1, 1);
    assert_eq!(set(&mut pair, large, ino, "user.a", &longer), Ok(Reply::Done));
    let call = pair.send(small, Request::GetXattr { ino, name: named("user.a") });
    let len = longer.len() as u32;
    assert_eq!(pair.answer(call), Some(Ok(Reply::LongXattr { len })));
    assert_eq!(pair.payload_of(call), []);
    assert_eq!(get(&mut pair, large, ino, "user.a"), (longer, true));
}

#[test]
fn a_full_log_is_awaited_by_a_long_value() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let ino = pair.create(client, IN_A, "file").ino;
    // Several times as much as the log holds.
    for number in 0..100 {
        let value = value(XATTR_VALUE_MAX, number);
        assert_eq!(set(&mut pair, client, ino, "user.a", &value), Ok(Reply::Done));
    }
    assert_eq!(get(&mut pair, client, ino, "user.a").0, value(XATTR_VALUE_MAX, 99));
    assert!(pair.trace(&["reports Written"]).len() > 2);
}

#[test]
fn values_that_fill_the_log_leave_room_for_the_fsync_of_others() {
    let log_blocks = 16 * LOG_BLOCKS_MIN;
    let mut pair = Pair::with(Setup { cells: 1, log_blocks, ..Setup::default() });
    let (client, other) = (pair.client(), pair.client());
    let file = pair.create(client, IN_A, "file");
    let own = pair.create(other, IN_A, "own");
    pair.supervisor.grants = false;
    let value = value(16 << 10, 1);
    let waiting = loop {
        let (name, mode, kill_set_gid) = (named("user.a"), XattrMode::Any, false);
        let request =
            Request::SetXattr { ino: file.ino, name, value: [].into(), mode, kill_set_gid };
        let call = pair.submit(client, request, &value);
        pair.drive();
        if !pair.is_answered(call) {
            break call;
        }
    };
    for round in 0..20 {
        pair.write(other, own, 0, page(round));
        pair.fsync(other, own);
    }
    assert!(!pair.is_answered(waiting), "no checkpoint has freed the log");
    pair.grant_checkpoints();
    assert_eq!(pair.answer(waiting), Some(Ok(Reply::Done)));
}
