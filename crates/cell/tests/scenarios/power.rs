//! **Recovery after a power failure.** The trees are those of the last checkpoint. The logs on the
//! device hold what was made durable since then. The frames hold nothing.
//!
//! ```text
//! each cell reads its log -> LogEnd -> Cut, until no cut moves -> Replay -> Replayed -> Claimed
//!                         -> Again, AllSaid, to and from all cells -> Ready -> a checkpoint
//! ```
//!
//! Each log is replayed step by step, from the last checkpoint up to its cut. After that, each cell
//! is in the state after a prefix of its changes, and the prefix contains every change that an
//! `fsync` covered.
//!
//! The code: `recovery/replay.rs`, `recovery/scan.rs`, `apply.rs`.

use warren_base::{Errno, ShardId};
use warren_proto::control::Report;
use warren_proto::{AccessMode, Reply, Request, SetAttr};

use crate::bytes::{PAGE, page};
use crate::client::fsync;
use crate::device::Kind;
use crate::pair::*;

#[test]
fn create_write_fsync_and_then_the_power_is_cut() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"durable");
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), b"durable");
    let ino = pair.lookup(client, IN_A, "file").expect("it is there");
    assert_eq!((ino, pair.attr(client, ino).mode), (file.ino, 0o644));
}

#[test]
fn cells_agree_on_the_cut_of_each_log_before_they_replay() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"text");
    pair.fsync(client, file);
    pair.trace(&[]);
    pair.cut_power();
    let trace = pair.trace(&["A reports", "A receives"]);
    let order = [
        "A reports LogEnd",
        "A receives Cut",
        "A reports LogEnd",
        "A receives Replay",
        "A reports Replayed",
        "A receives Claimed",
        "A reports WantCheckpoint",
        "A reports Ready",
        "A receives Drain",
    ];
    assert_eq!(trace[..order.len()], order);
}

#[test]
fn a_recovery_finds_a_prefix_of_the_changes() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.create(client, IN_A, "before");
    let file = pair.create(client, IN_A, "synced");
    pair.fsync(client, file);
    pair.create(client, IN_A, "after");
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_A), ["before", "synced"]);
}

#[test]
fn fsync_covers_the_data_of_its_own_file_only() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.file(client, IN_A, "other", page(1));
    let file = pair.file(client, IN_A, "synced", page(2));
    pair.fsync(client, file);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "synced"), page(2));
    assert!(pair.content(client, IN_A, "other").0.is_empty(), "only its name is in the log");
}

#[test]
fn a_file_that_replaces_another_has_its_data() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let old = pair.file(client, IN_A, "config", b"old");
    pair.fsync(client, old);
    pair.file(client, IN_A, "config.new", b"new");
    pair.rename(client, (IN_A, "config.new"), (IN_A, "config"));
    let dir = pair.open_as(client, IN_A, AccessMode::READ);
    pair.fsync(client, dir);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(
        pair.content(client, IN_A, "config"),
        b"new",
        "the rename has logged the data first"
    );
    assert_eq!(pair.list(client, IN_A), ["config"]);
}

#[test]
fn a_record_that_is_not_complete_does_not_count() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"one");
    pair.fsync(client, file);
    pair.write(client, file, 0, page(2).repeat(3));
    pair.device.hold(Kind::Log);
    let call = pair.send(client, fsync(file));
    assert!(!pair.is_answered(call));
    pair.tear_writes(1);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), b"one");
}

#[test]
fn an_unlinked_file_is_reclaimed() {
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
    assert!(used(&mut pair, client) >= before + 100, "the file is open");
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
fn a_shard_whose_tree_is_damaged_is_reported_and_the_others_are_served() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.create(client, IN_B, "file");
    pair.sync(client);
    let shard = ShardId(1);
    let root = pair.supervisor.durable.roots[&shard].root.expect("a root");
    pair.device.damage(root.block);
    pair.cut_power();
    let report = Report::GivenUp { cell: B, shard, errno: Errno::EIO };
    assert!(pair.supervisor.broken.contains(&report));
    let client = pair.client();
    assert_eq!(pair.call(client, Request::GetAttr { ino: IN_B }), Err(Errno::EIO));
    pair.create(client, IN_A, "file");
    pair.sync(client);
    // Its root slot says so, whatever becomes of the block.
    pair.device.damage(root.block);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.call(client, Request::GetAttr { ino: IN_B }), Err(Errno::EIO));
    assert!(pair.lookup(client, IN_A, "file").is_some());
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
fn a_rename_over_two_cells_is_atomic() {
    for is_synced in [true, false] {
        let mut pair = Pair::new();
        let client = pair.client();
        pair.create(client, IN_A, "file");
        pair.sync(client);
        pair.rename(client, (IN_A, "file"), (IN_B, "moved"));
        if is_synced {
            let dir = pair.open_as(client, IN_A, AccessMode::READ);
            pair.fsync(client, dir);
        }
        pair.cut_power();
        let client = pair.client();
        let places = [pair.list(client, IN_A), pair.list(client, IN_B)];
        assert_eq!(places.concat(), [if is_synced { "moved" } else { "file" }]);
    }
}

#[test]
fn a_device_that_refuses_a_read_is_asked_again_before_a_shard_is_given_up() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.create(client, IN_B, "file");
    pair.sync(client);
    pair.cut_power_before(|device| (0..20).for_each(|_| device.fail(Kind::Read, Errno::EIO)));
    assert!(pair.is_serving() && pair.supervisor.broken.is_empty());
    let client = pair.client();
    assert!(pair.lookup(client, IN_B, "file").is_some());
}

#[test]
fn a_device_that_reads_nothing_ends_the_start_and_marks_no_shard() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.create(client, IN_B, "file");
    pair.sync(client);
    pair.cut_power_before(|device| (0..200).for_each(|_| device.fail(Kind::Read, Errno::EIO)));
    assert!(!pair.is_serving());
    let (cell, errno) = (B, Errno::EIO);
    let unreadable = Report::Unreadable { cell, errno };
    assert!(pair.supervisor.broken.contains(&unreadable));
    assert!(pair.supervisor.durable.roots.values().all(|root| !root.given_up));
}

/// The cell has nothing else to read: it finds out by itself that the device works.
#[test]
fn one_block_that_cannot_be_read_costs_one_shard() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.create(client, IN_B, "file");
    pair.sync(client);
    let (shard, errno) = (ShardId(1), Errno::EIO);
    let root = pair.supervisor.durable.roots[&shard].root.expect("a root");
    pair.device.unreadable.insert(root.block);
    pair.cut_power();
    assert!(pair.is_serving());
    let report = Report::GivenUp { cell: B, shard, errno };
    assert!(pair.supervisor.broken.contains(&report));
}
