//! **Recovery after a power failure.** The trees are those of the last checkpoint; what was synced since then is in the
//! logs on the device, and the frames hold nothing.
//!
//! ```text
//! every cell reads its log -> LogEnd -> Cut, until no cut moves -> Replay -> Replayed -> Claimed
//!                          -> what was decided is said to all (AllSaid) -> Ready -> a checkpoint
//! ```
//!
//! A log is replayed from where the last checkpoint fixed its state, step by step, up to its cut. Then the pool is as it
//! was after some prefix of what each cell did, and after all that was answered to an `fsync`.
//!
//! The code: `replay.rs`, `step.rs`.

use warren_proto::{Reply, Request, SetAttr};

use crate::bytes::{PAGE, page};
use crate::client::fsync;
use crate::device::Kind;
use crate::pair::*;

#[test]
fn create_write_fsync_and_the_power_is_cut() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"what was synced");
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), b"what was synced");
    let ino = pair.lookup(client, IN_A, "file").expect("it is there");
    assert_eq!((ino, pair.attr(client, ino).mode), (file.ino, 0o644));
}

#[test]
fn cells_agree_on_how_much_of_each_log_counts_before_they_replay() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"text");
    pair.fsync(client, file);
    pair.trace(&[]);
    pair.cut_power();
    let trace = pair.trace(&["A reports", "A gets"]);
    let order = [
        "A reports LogEnd",
        "A gets Cut",
        "A reports LogEnd",
        "A gets Replay",
        "A reports Replayed",
        "A gets Claimed",
        "A reports WantCheckpoint",
        "A reports Ready",
        "A gets Drain",
    ];
    assert_eq!(trace[..order.len()], order);
}

#[test]
fn what_came_before_a_synced_change_is_there_too() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.create(client, IN_A, "before");
    let file = pair.create(client, IN_A, "synced");
    pair.fsync(client, file);
    pair.create(client, IN_A, "after");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_A), ["before", "synced"], "a prefix");
}

#[test]
fn the_data_of_another_file_need_not_be_there() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.file(client, IN_A, "other", page(1));
    let file = pair.file(client, IN_A, "synced", page(2));
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "synced"), page(2));
    assert!(
        pair.content(client, IN_A, "other").0.is_empty(),
        "its name is older, its data was not synced"
    );
}

#[test]
fn a_file_that_took_a_name_over_has_its_data() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let old = pair.file(client, IN_A, "config", b"old");
    pair.fsync(client, old);
    pair.file(client, IN_A, "config.new", b"new");
    pair.rename(client, (IN_A, "config.new"), (IN_A, "config"));
    let dir = pair.open_as(client, IN_A, warren_proto::AccessMode::READ);
    pair.fsync(client, dir);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "config"), b"new", "though it was not synced itself");
    assert_eq!(pair.list(client, IN_A), ["config"]);
}

#[test]
fn a_record_that_the_device_has_in_part_is_none() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"one");
    pair.fsync(client, file);
    pair.write(client, file, 0, page(2).repeat(3));
    pair.device.hold(Kind::Log);
    let call = pair.ask(client, fsync(file));
    assert!(!pair.is_answered(call));
    pair.tear_writes(1);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), b"one");
}

#[test]
fn a_file_without_a_name_is_reclaimed() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.sync(client);
    let used = |pair: &mut Pair, client| match pair.call(client, Request::StatFs) {
        Ok(Reply::StatFs(stat)) => stat.blocks - stat.blocks_free,
        other => panic!("{other:?}"),
    };
    let before = used(&mut pair, client);
    let file = pair.file(client, IN_A, "file", page(1).repeat(100));
    pair.fsync(client, file);
    pair.unlink(client, IN_A, "file");
    pair.sync(client);
    assert!(used(&mut pair, client) >= before + 100, "it is open");
    pair.cut_power();
    let client = pair.client();
    pair.sync(client);
    assert!(used(&mut pair, client) <= before + 2);
}

#[test]
fn truncations_and_writes_are_replayed_in_their_order() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.fsync(client, file);
    for (size, byte) in [(5, 2), (3, 3)] {
        let set = SetAttr { size: Some(size * PAGE as u64), ..SetAttr::default() };
        let cut = Request::SetAttr { ino: file.ino, handle: Some(file), set };
        assert!(pair.call(client, cut).is_ok());
        pair.write(client, file, (size as usize + 1) * PAGE, page(byte));
    }
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    let wanted = page(1).repeat(3).then(page(0)).then(page(3));
    assert_eq!(pair.content(client, IN_A, "file"), wanted);
}

#[test]
fn a_second_power_failure_finds_what_the_first_recovery_left() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"first");
    pair.fsync(client, file);
    pair.cut_power();
    pair.cut_power();
    let client = pair.client();
    let file = pair.open(client, file.ino);
    pair.write(client, file, 0, b"again");
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), b"again");
}

#[test]
fn a_rename_over_two_cells_is_there_whole_or_not_at_all() {
    for is_synced in [true, false] {
        let mut pair = Pair::new();
        let client = pair.client();
        pair.create(client, IN_A, "file");
        pair.sync(client);
        pair.rename(client, (IN_A, "file"), (IN_B, "moved"));
        if is_synced {
            let dir = pair.open_as(client, IN_A, warren_proto::AccessMode::READ);
            pair.fsync(client, dir);
        }
        pair.cut_power();
        let client = pair.client();
        let places = [pair.list(client, IN_A), pair.list(client, IN_B)];
        assert_eq!(places.concat(), [if is_synced { "moved" } else { "file" }]);
    }
}
